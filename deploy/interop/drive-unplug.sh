#!/usr/bin/env bash
# A drive is unplugged while hosts use it, and plugged in again. Its namespaces disappear and
# return, the commands in flight end, and the other drive's I/O is not affected.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

begin_with_drives
configure 0-1
start
connect

say "at rest"
cpu_before=$(cut -d' ' -f14,15 "/proc/$windlass/stat" | tr ' ' +)
sleep 2
cpu_after=$(cut -d' ' -f14,15 "/proc/$windlass/stat" | tr ' ' +)
# Two reactors for two seconds are 400 ticks.
used=$(((cpu_after) - (cpu_before)))
say "$used ticks of 400 at rest"
[ "$used" -lt 60 ] || fail "the appliance does not rest"

say "data that has to outlive the removal"
head -c 4M /dev/urandom > /tmp/data
dd if=/tmp/data of="$(device_of 2)" bs=64k oflag=direct status=none

say "I/O on both drives"
# Slow enough to be still running when the other drive is removed and returns.
verify "drive B while A is pulled" "$(device_of 3)" 24 --rate=1m,2m > /tmp/other.log 2>&1 &
other=$!
fio --name=pulled --filename="$(device_of 1)" --rw=randrw --bs=4k --iodepth=8 --direct=1 \
  --ioengine=io_uring --time_based --runtime=120 --size=32M --output=/tmp/pulled.log &
pulled=$!
sleep 1
is_alive || fail "the appliance is gone"
kill -0 $pulled || fail "fio ended before the drive was pulled"

say "pulling drive A"
qmp device_del id=nvme0 > /dev/null
eventually 30 said "a1 is gone"
eventually 30 is_not_served 1
eventually 30 is_not_served 2
is_served 3 && is_served 4 || fail "the other drive's namespaces went too"
eventually 30 test ! -e /sys/bus/pci/devices/$A
if wait $pulled; then fail "fio saw no error on the drive that was pulled"; fi
tail -n 5 /tmp/pulled.log
[ "$(controllers)" = "$controller" ] && is_live || fail "the host lost its controller"
kill -0 $other || fail "fio on the other drive ended: $(cat /tmp/other.log)"

say "plugging it in again"
eventually 30 sh -c "qmp device_add driver=nvme id=nvme0 bus=hp0 serial=LAB0 subsys=subsys0 > /dev/null"
eventually 30 test -e /sys/bus/pci/devices/$A
eventually 30 windlass bind $A
eventually 30 is_served 1
eventually 30 is_served 2
cmp -n $((4 << 20)) /tmp/data "$(device_of 2)" || fail "the data is not the same"
verify "drive A, back again" "$(device_of 1)" 8
wait $other || fail "fio on the other drive: $(cat /tmp/other.log)"
cat /tmp/other.log
verify "drive B, after all" "$(device_of 4)" 8
show nvme smart-log "/dev/$controller"
disconnect
stop
expect_quiet_iommu
say passed
