#!/usr/bin/env bash
# `windlass copy` copies a namespace of one drive to another drive while the host writes and verifies
# on both drives. A medium that fails, an abort and a drive that is pulled end copies, which report
# what is copied. The kernel's own driver compares the drives at the end.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/copies.sh"

# restrict BYTES: limits what QEMU moves in a second below B's namespace 2; 0 is no limit.
restrict() { limit slow bps-total "$1"; }

modprobe -a nvme nvme-tcp
cd /tmp
show uname -r
await_disks
head -c $namespace_bytes /dev/urandom > /tmp/data
dd if=/tmp/data of="$(disk_of $A 2)" bs=1M oflag=direct status=none
dd if=/dev/zero of="$(disk_of $B 2)" bs=1M count=64 oflag=direct status=none
show windlass bind $A $B
# Namespaces 1 of both drives are exported, and namespaces 2 are not.
configure_export '"a1", "b1"' 'allow_any_host = true' <<END
$(for name in a1 a2; do drive_table $name $A; done)
$(for name in b1 b2; do drive_table $name $B; done)
END
show cat $config
start
connect

say "copies that must not begin"
fails_with "name two devices" a2 a2
fails_with "--overwrite-exported" a2 b1
fails_with "--live" a1 b2
fails_with "device a3 is not open" a3 b2
[ -z "$(copies)" ] || fail "a copy began"

say "a copy while the host writes and verifies on both drives"
throttle slow slow1 file1n2
under disk1n2 slow1
restrict $((8 << 20))
begin_writers
show copy a2 b2
end_writers
[ "$(last state)" = complete ] && [ "$(last written_bytes)" = $namespace_bytes ] || fail "$(copies)"
[ "$(last source_changes)" = 0 ] || fail "the source was changed: $(copies)"

say "an exported namespace is copied under writes, which are reported"
restrict $((32 << 20))
verify "drive A while it is copied" "$(device_of 1)" 16 --rate=4m,4m > /tmp/a.log 2>&1 &
writer_a=$!
sleep 0.5
show copy a1 b2 --live
[ "$(last source_changes)" -gt 0 ] || fail "no change was counted: $(copies)"
wait $writer_a || fail "fio on drive A: $(cat /tmp/a.log)"
restrict 0

say "a medium that cannot be read"
unreadable file0n2 70000
under disk0n2 bad
fails_with "failed: the medium could not be read" a2 b2
failed_at 70000
under disk0n2 file0n2
show copy a2 b2 --offset "$intact"

say "an abort"
restrict $((4 << 20))
abort a2 b2
restrict 0
show copy a2 b2 --offset "$intact"

say "the kernel's driver compares the drives"
disconnect
stop
show windlass unbind $A $B
for address in $A $B; do eventually 20 disk_of $address 2; done
cmp -n $namespace_bytes /tmp/data "$(disk_of $A 2)" || fail "the source was changed"
cmp -n $namespace_bytes /tmp/data "$(disk_of $B 2)" || fail "the copy is not the same"

say "a drive that is pulled while it is copied"
show windlass bind $A $B
start
connect
restrict $((4 << 20))
windlass copy --socket $control a2 b2 > /tmp/pulled.log 2>&1 &
copying=$!
verify "drive B while A is pulled" "$(device_of 2)" 16 --rate=2m,2m > /tmp/b.log 2>&1 &
writer_b=$!
eventually 30 has_written $((2 << 20))
qmp device_del id=nvme0 > /dev/null
if wait $copying; then fail "it completed: $(cat /tmp/pulled.log)"; fi
cat /tmp/pulled.log
grep -q "device a2 failed: the device is gone" /tmp/pulled.log || fail "it does not name the drive"
eventually 30 said "a1 is gone"
restrict 0
wait $writer_b || fail "fio on drive B: $(cat /tmp/b.log)"
is_alive || fail "the appliance is gone"
disconnect
stop
expect_quiet_iommu
say passed
