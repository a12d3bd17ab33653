#!/usr/bin/env bash
# Fails a drive in every way that QEMU supports: its medium, its health, its speed. Hosts receive
# the right status, health data is reported, deadlines are met, and the other drive is not affected.
# Then the appliance is killed and takes its drives again. It runs without root here.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

# fails_with STATUS COMMAND…: the command fails, and the newest entry of the error log has the status.
fails_with() {
  local status=$1 found
  shift
  echo "\$ $*"
  if "$@" 2>&1; then fail "$* did not fail"; fi
  # nvme-cli shows the status field with or without the phase tag, depending on its version.
  found=$(nvme error-log "/dev/$controller" -e 64 -o json |
    jq "[.errors[] | select(.error_count > 0) | .status_field] | first")
  nvme error-log "/dev/$controller" -e 2
  case $found in
    $((status)) | $((status | 0x2000)) | $((status | 0x4000))) ;;
    *) fail "the status is $found, not $status" ;;
  esac
}

has_warning() {
  [ "$(nvme smart-log "/dev/$controller" -o json | jq .critical_warning)" = "$1" ]
}

begin_with_drives
configure 0 'command_deadline = "2s"'
chmod 666 "$(node_of $A)" "$(node_of $B)"
# The arena, and a reserve for other locked memory.
without_root $((96 << 20))
start
[ "$(stat -c %U "/proc/$windlass")" = nobody ] || fail "the appliance is root"
connect --reconnect-delay=1 --ctrl-loss-tmo=120
a=$(device_of 1)

say "errors of the medium"
machine '{"execute":"blockdev-add","arguments":{"driver":"blkdebug","node-name":"bad","image":"file0n1",
  "inject-error":[{"event":"none","iotype":"read","sector":8,"errno":5,"once":false},
                  {"event":"none","iotype":"write","sector":16,"errno":5,"once":false}]}}'
dd if=/dev/zero of="$a" bs=4k count=4 oflag=direct status=none
under disk0n1 bad
# NVM 1.1 §3.2.1: Unrecovered Read Error and Write Fault.
fails_with 0x281 dd if="$a" of=/dev/null bs=4k skip=1 count=1 iflag=direct
fails_with 0x280 dd if=/dev/zero of="$a" bs=4k seek=2 count=1 oflag=direct
show dd if="$a" of=/dev/null bs=4k count=1 iflag=direct
dmesg | grep -E 'critical medium error|Medium Error' || fail "the kernel saw no medium error"
verify "the other drive" "$(device_of 3)" 4
under disk0n1 file0n1
show dd if="$a" of=/dev/null bs=4k skip=1 count=1 iflag=direct
show dd if=/dev/zero of="$a" bs=4k seek=2 count=1 oflag=direct

say "a warning of the drive's health"
has_warning 0 || fail "there is a warning already"
qmp qom-set path=/machine/peripheral/nvme0 property=smart_critical_warning value=4 > /dev/null
eventually 20 has_warning 4
eventually 20 said "a1 warns"
qmp qom-set path=/machine/peripheral/nvme0 property=smart_critical_warning value=0 > /dev/null

say "a drive that is slower than its deadline"
machine '{"execute":"object-add","arguments":{"qom-type":"throttle-group","id":"slow",
  "limits":{"iops-total":1}}}'
qmp blockdev-add driver=throttle node-name=slow0 throttle-group=slow file=file0n1 > /dev/null
verify "the other drive, beside the slow one" "$(device_of 3)" 12 --rate=1m,2m > /tmp/other.log 2>&1 &
other=$!
under disk0n1 slow0
fio --name=slow --filename="$a" --rw=randread --bs=4k --iodepth=8 --direct=1 --ioengine=io_uring \
  --number_ios=16 --size=16M --output=/tmp/slow.log &
slow=$!
# Sixteen reads take at least eight seconds, and the last of each eight exceeds its deadline.
eventually 30 said "deadline"
is_alive || fail "the appliance is gone"
say "the drive gets its speed back"
machine '{"execute":"qom-set","arguments":{"path":"/objects/slow","property":"limits",
  "value":{"iops-total":0}}}'
eventually 60 sh -c "! kill -0 $slow 2> /dev/null"
wait $slow || say "fio saw an error of the slow drive, which is allowed"
tail -n 5 /tmp/slow.log
under disk0n1 file0n1
wait $other || fail "fio on the other drive: $(cat /tmp/other.log)"
cat /tmp/other.log
eventually 30 is_served 1
verify "the drive that was slow" "$(device_of 1)" 4
is_alive || fail "the appliance is gone"

say "the appliance is killed in the middle of its I/O"
verify "across a death" "$(device_of 3)" 8 --rate=1m,2m $across_failures > /tmp/death.log 2>&1 &
writer=$!
sleep 2
kill -9 "$windlass"
wait "$windlass" || true
kill -0 $writer || fail "fio ended too early: $(cat /tmp/death.log)"
start
wait $writer || fail "fio: $(cat /tmp/death.log)"
cat /tmp/death.log
disconnect
stop
expect_quiet_iommu
say passed
