#!/usr/bin/env bash
# `windlass copy --drive-memory` copies a namespace of a drive to another one of the same drive through
# the drive's controller memory buffer, while the host writes and verifies on both drives. Counters tell that
# no memory of the machine was used, and the kernel's own driver compares the namespaces. Without such a
# buffer, and between drives, it is refused.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/copies.sh"

modprobe -a nvme nvme-tcp
cd /tmp
show uname -r
await_disks
head -c $namespace_bytes /dev/urandom > /tmp/data
dd if=/tmp/data of="$(disk_of $A 2)" bs=1M oflag=direct status=none
dd if=/dev/zero of="$(disk_of $A 3)" bs=1M count=64 oflag=direct status=none
show windlass bind $A $B
configure_export '"a1", "b1"' 'allow_any_host = true' <<END
$(for name in a1 a2 a3; do drive_table $name $A 'command_deadline = "2s"'; done)
$(for name in b1 b2; do drive_table $name $B 'command_deadline = "2s"'; done)
[[device]]
name = "ram"
type = "memory"
size = "64MiB"
END
show cat $config
start
connect

say "copies that cannot use the memory of one drive"
fails_with "are not on one drive" a2 b2 --drive-memory
fails_with "has no controller memory buffer" ram a3 --drive-memory
[ -z "$(copies)" ] || fail "a copy began"

say "a copy through the drive's memory while the host writes and verifies"
rm -f /tmp/enough
writer /tmp/enough "drive A beside the copy" "$(device_of 1)" > /tmp/a.log 2>&1 &
writer_a=$!
writer /tmp/enough "drive B beside the copy" "$(device_of 2)" > /tmp/b.log 2>&1 &
writer_b=$!
for round in 1 2 3; do
  show copy a2 a3 --drive-memory
  [ "$(last state)" = complete ] || fail "round $round: it is not complete"
  [ "$(last written_bytes)" = $namespace_bytes ] || fail "round $round: not everything is written"
  [ "$(last drive_memory_bytes)" = $namespace_bytes ] || fail "round $round: memory of the machine was used"
done
touch /tmp/enough
wait $writer_a || fail "fio on drive A: $(cat /tmp/a.log)"
wait $writer_b || fail "fio on drive B: $(cat /tmp/b.log)"
cat /tmp/a.log /tmp/b.log

say "the drive is slower than its deadline: the copy ends, and the next one is complete"
machine '{"execute":"object-add","arguments":{"qom-type":"throttle-group","id":"slow",
  "limits":{"iops-total":1}}}'
qmp blockdev-add driver=throttle node-name=slow2 throttle-group=slow file=file0n2 > /dev/null
under disk0n2 slow2
copy a2 a3 --drive-memory > /tmp/reset.log 2>&1 &
copying=$!
if wait $copying; then fail "it completed: $(cat /tmp/reset.log)"; fi
cat /tmp/reset.log
[ "$(last state)" = failed ] && said deadline || fail "it did not fail by its deadline"
machine '{"execute":"qom-set","arguments":{"path":"/objects/slow","property":"limits",
  "value":{"iops-total":0}}}'
is_alive || fail "the appliance is gone"
eventually 60 is_served 1
eventually 60 copy a2 a3 --drive-memory
[ "$(last drive_memory_bytes)" = $namespace_bytes ] || fail "memory of the machine was used"

say "the kernel's driver compares the namespaces"
disconnect
stop
show windlass unbind $A $B
eventually 20 disk_of $A 3
cmp -n $namespace_bytes /tmp/data "$(disk_of $A 2)" || fail "the source was changed"
cmp -n $namespace_bytes /tmp/data "$(disk_of $A 3)" || fail "the copy is not the same"
expect_quiet_iommu
say passed
