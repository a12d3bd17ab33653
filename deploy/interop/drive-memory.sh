#!/usr/bin/env bash
# `windlass copy --drive-memory` copies a namespace of a drive to another one of the same drive, and of the
# other drive, through the controller memory buffer of one drive, while the host writes and verifies on
# both drives. Counters tell that no memory of the machine was used, and a text that each copied block has
# is not in the memory of the appliance. A sector that cannot be read and an abort end a copy, which is
# continued. Either drive is pulled during a copy: the host's requests to the other one do not
# fail. The kernel's own driver compares the namespaces. Without such a buffer it is refused.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/copies.sh"

# through_memory COPY…: the copy is complete, and every byte was in the memory of a drive.
through_memory() {
  show copy "$@" --drive-memory
  [ "$(last state)" = complete ] || fail "it is not complete: $(copies)"
  [ "$(last written_bytes)" = $namespace_bytes ] || fail "not everything is written"
  [ "$(last drive_memory_bytes)" = $namespace_bytes ] || fail "memory of the machine was used"
}

# through_memory_from OFFSET: the copy from A to B is continued and complete.
through_memory_from() {
  show copy a2 b2 --drive-memory --offset "$1"
  [ "$(last state)" = complete ] || fail "it is not complete: $(copies)"
  [ "$(last written_bytes) $(last drive_memory_bytes)" = "$((namespace_bytes - $1)) $((namespace_bytes - $1))" ] \
    || fail "memory of the machine was used: $(copies)"
}

# restrict BYTES: limits what QEMU moves in a second below B's namespace 2.
restrict() { limit few bps-total "$1"; }

modprobe -a nvme nvme-tcp
cd /tmp
show uname -r
await_disks
# Each 4 KiB have the text and differ.
for block in $(seq $((namespace_bytes / 4096))); do printf '%-4095s\n' "$canary $block"; done > /tmp/data
[ "$(stat -c %s /tmp/data)" = $namespace_bytes ] || fail "the data has a wrong size"
dd if=/tmp/data of="$(disk_of $A 2)" bs=1M oflag=direct status=none
for disk in "$(disk_of $A 3)" "$(disk_of $B 2)" "$(disk_of $B 3)"; do
  dd if=/dev/zero of="$disk" bs=1M count=64 oflag=direct status=none
done
show windlass bind $A $B
configure_export '"a1", "b1"' 'allow_any_host = true' <<END
$(for name in a1 a2 a3; do drive_table $name $A 'command_deadline = "2s"'; done)
$(for name in b1 b2 b3; do drive_table $name $B 'command_deadline = "2s"'; done)
$(for name in ram other; do printf '[[device]]\nname = "%s"\ntype = "memory"\nsize = "64MiB"\n' $name; done)
END
show cat $config
start
connect

say "copies that cannot use the memory of a drive"
fails_with "neither device ram nor other is on a drive" ram other --drive-memory
fails_with "device ram cannot use the controller memory buffer of the drive of device a3" ram a3 --drive-memory
[ -z "$(copies)" ] || fail "a copy began"

say "a copy through the drive's memory while the host writes and verifies"
begin_writers
for round in 1 2; do
  say "round $round"
  through_memory a2 a3
  through_memory a2 b2
  through_memory b2 b3
done
end_writers

say "no copied block was in the memory of the appliance"
found=$(canaries)
[ "$found" = 0 ] || fail "the text is there $found times"
show copy a2 b3
[ "$(last drive_memory_bytes)" = 0 ] || fail "it was not asked for"
found=$(canaries)
[ "$found" -gt 0 ] || fail "a copy through the arena leaves no text: the check finds nothing"
say "after a copy through the arena: $found times"

say "a sector that cannot be read"
unreadable file0n2 70000
under disk0n2 bad
fails_with "failed: the medium could not be read" a2 b2 --drive-memory
failed_at 70000
[ "$(last drive_memory_bytes)" -ge "$intact" ] || fail "memory of the machine was used"
under disk0n2 file0n2
through_memory_from "$intact"

say "an abort"
throttle few few2 file1n2
under disk1n2 few2
restrict $((4 << 20))
abort a2 b2 --drive-memory
restrict 0
through_memory_from "$intact"

say "the drive is slower than its deadline: the copy ends, and the next one is complete"
throttle slow slow2 file0n2
limit slow iops-total 1
under disk0n2 slow2
copy a2 a3 --drive-memory > /tmp/reset.log 2>&1 &
copying=$!
if wait $copying; then fail "it completed: $(cat /tmp/reset.log)"; fi
cat /tmp/reset.log
[ "$(last state)" = failed ] && said deadline || fail "it did not fail by its deadline"
limit slow iops-total 0
is_alive || fail "the appliance is gone"
eventually 60 is_served 1
eventually 60 copy a2 a3 --drive-memory
[ "$(last drive_memory_bytes)" = $namespace_bytes ] || fail "memory of the machine was used"
through_memory a2 b2

# pulled NUMBER OTHER PATTERN: a copy from A to B through A's memory fails with such a text, because the
# drive of that number is pulled. A namespace of the other drive is written and verified without an error.
pulled() {
  local number=$1 other=$2 pattern=$3 copying writer
  restrict $((4 << 20))
  copy a2 b2 --drive-memory > /tmp/pulled.log 2>&1 &
  copying=$!
  verify "the drive that stays" "$(device_of "$other")" 16 --rate=2m,2m > /tmp/stays.log 2>&1 &
  writer=$!
  eventually 30 has_written $((2 << 20))
  [ "$(last drive_memory_bytes)" -ge $((2 << 20)) ] || fail "memory of the machine was used"
  qmp device_del "id=nvme$number" > /dev/null
  if wait $copying; then fail "it completed: $(cat /tmp/pulled.log)"; fi
  cat /tmp/pulled.log
  grep -qE "$pattern" /tmp/pulled.log || fail "it does not say: $pattern"
  restrict 0
  wait $writer || fail "fio on the drive that stays: $(cat /tmp/stays.log)"
  cat /tmp/stays.log
  is_alive || fail "the appliance is gone"
}

say "the drive that is written is pulled"
pulled 1 1 "device b2 failed: the device is gone"
eventually 30 said "b1 is gone"
eventually 30 test ! -e /sys/bus/pci/devices/$B
through_memory a2 a3

say "it is plugged in again, and the drive that is read is pulled"
eventually 30 plug_in_again 1
eventually 30 windlass bind $B
eventually 30 is_served 2
eventually 30 copy a2 b2 --drive-memory
through_memory a2 b3
pulled 0 2 "device a2 failed: the device is gone"
eventually 30 said "a1 is gone"
eventually 30 test ! -e /sys/bus/pci/devices/$A
through_memory b3 b2

say "the kernel's driver compares the namespaces"
disconnect
stop
show windlass unbind $B
eventually 20 disk_of $B 3
for namespace in 2 3; do
  cmp -n $namespace_bytes /tmp/data "$(disk_of $B $namespace)" || fail "copy $namespace is not the same"
done
expect_quiet_iommu
say passed
