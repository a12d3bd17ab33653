#!/usr/bin/env bash
# `windlass copy --by-drive` lets a drive copy a namespace to another one of its own by NVMe Copy with
# descriptor format 2h, while the host writes and verifies on both drives. Counters tell that the drive has
# copied every byte, and a text that each copied block has is not in the memory of the appliance. Devices with
# data_path = "auto" need no option. A sector that cannot be read makes the copy take the next way, which
# reports the lowest range; an abort, a deadline and a drive that is pulled end it. The kernel's own driver
# compares the namespaces.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/copies.sh"

# by_drive COPY…: the copy is complete, and the drive has copied every byte.
by_drive() {
  show copy "$@"
  [ "$(last state)" = complete ] || fail "it is not complete: $(copies)"
  [ "$(last written_bytes) $(last drive_bytes) $(last drive_failures)" = "$namespace_bytes $namespace_bytes 0" ] \
    || fail "the drive has not copied it: $(copies)"
}

# restrict BYTES: limits what QEMU moves in a second below A's namespace 3.
restrict() { limit few bps-total "$1"; }

modprobe -a nvme nvme-tcp
cd /tmp
show uname -r
await_disks
for block in $(seq $((namespace_bytes / 4096))); do printf '%-4095s\n' "$canary $block"; done > /tmp/data
[ "$(stat -c %s /tmp/data)" = $namespace_bytes ] || fail "the data has a wrong size"
for disk in "$(disk_of $A 2)" "$(disk_of $B 2)"; do
  dd if=/tmp/data of="$disk" bs=1M oflag=direct status=none
done
for disk in "$(disk_of $A 3)" "$(disk_of $B 3)"; do
  dd if=/dev/zero of="$disk" bs=1M count=64 oflag=direct status=none
done
show windlass bind $A $B
configure_export '"a1", "b1"' 'allow_any_host = true' <<END
$(for name in a1 a2 a3; do drive_table $name $A 'command_deadline = "2s"'; done)
$(for name in b1 b2 b3; do drive_table $name $B 'command_deadline = "2s"' 'data_path = "auto"'; done)
$(printf '[[device]]\nname = "ram"\ntype = "memory"\nsize = "64MiB"\n')
END
show cat $config
start
connect

say "copies that no drive executes by itself"
fails_with "devices a2 and b2 are not namespaces of one drive" a2 b2 --by-drive
fails_with "devices a2 and ram are not namespaces of one drive" a2 ram --by-drive
[ -z "$(copies)" ] || fail "a copy began"

say "copies by the drives while the host writes and verifies"
begin_writers
by_drive a2 a3 --by-drive
by_drive b2 b3
end_writers

say "no copied block was in the memory of the appliance"
found=$(canaries)
[ "$found" = 0 ] || fail "the text is there $found times"
show copy a2 a3
[ "$(last drive_bytes)" = 0 ] || fail "it was not asked for"
found=$(canaries)
[ "$found" -gt 0 ] || fail "a copy through the arena leaves no text: the check finds nothing"
say "after a copy through the arena: $found times"

say "a sector that cannot be read: the next way fails with it, too"
unreadable file0n2 70000
under disk0n2 bad
for options in "--by-drive" "--by-drive --drive-memory"; do
  # shellcheck disable=SC2086
  fails_with "failed: the medium could not be read" a2 a3 $options
  failed_at 70000
  [ "$(last drive_failures)" = 1 ] && [ "$(last drive_bytes)" -gt 0 ] || fail "the drive has not tried: $(copies)"
done
under disk0n2 file0n2
show copy a2 a3 --by-drive --offset "$intact"
[ "$(last drive_bytes)" = $((namespace_bytes - intact)) ] || fail "the drive has not copied it: $(copies)"

say "an abort"
throttle few few3 file0n3
under disk0n3 few3
restrict $((4 << 20))
abort a2 a3 --by-drive
restrict 0
show copy a2 a3 --by-drive --offset "$intact"
[ "$(last drive_bytes)" = $((namespace_bytes - intact)) ] || fail "the drive has not copied it: $(copies)"

say "the drive is slower than its deadline: the copy ends, and the next one is complete"
limit few iops-total 1
copy a2 a3 --by-drive > /tmp/slow.log 2>&1 &
copying=$!
if wait $copying; then fail "it completed: $(cat /tmp/slow.log)"; fi
cat /tmp/slow.log
[ "$(last state)" = failed ] && said deadline || fail "it did not fail by its deadline"
limit few iops-total 0
is_alive || fail "the appliance is gone"
eventually 60 is_served 1
eventually 60 by_drive a2 a3 --by-drive

say "the kernel's driver compares the namespaces"
disconnect
stop
show windlass unbind $A $B
for address in $A $B; do
  eventually 20 disk_of $address 3
  cmp -n $namespace_bytes /tmp/data "$(disk_of $address 3)" || fail "the copy is not the same"
  cmp -n $namespace_bytes /tmp/data "$(disk_of $address 2)" || fail "the source was changed"
done

say "a drive that is pulled while it copies"
show windlass bind $A $B
start
throttle slow slow3 file1n3
under disk1n3 slow3
limit slow bps-total $((4 << 20))
copy b2 b3 > /tmp/pulled.log 2>&1 &
copying=$!
eventually 30 has_written $((2 << 20))
qmp device_del id=nvme1 > /dev/null
if wait $copying; then fail "it completed: $(cat /tmp/pulled.log)"; fi
cat /tmp/pulled.log
grep -q "the device is gone" /tmp/pulled.log || fail "it does not say why"
is_alive || fail "the appliance is gone"
by_drive a2 a3 --by-drive
stop
expect_quiet_iommu
say passed
