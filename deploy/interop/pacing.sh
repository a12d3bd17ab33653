#!/usr/bin/env bash
# Two hosts read from two namespaces of one drive, which QEMU makes a bottleneck: it serves the
# requests of both in order, at most so many bytes per second. A latency target of one export slows the other
# one down until it is kept, and weights share the drive.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/hosts.sh"

# What the drive reads in a second.
drive_bytes=$((32 << 20))
target_ms=20
other=$INTEROP_NQN-other
# The time of a measurement in seconds, and the time before it, in which the appliance finds the paces.
time_s=10 before_s=6

# configure_exports OF_ONE OF_OTHER: exports of one namespace each, with these lines.
configure_exports() {
  configure_export '"one"' 'allow_any_host = true' "$1" <<END

[[export]]
nqn = "$other"
devices = ["other"]
listeners = ["loopback"]
allow_any_host = true
$2

[[device]]
name = "one"
type = "nvme"
pci = "$A"
namespace = 1

[[device]]
name = "other"
type = "nvme"
pci = "$A"
namespace = 2
END
}

apply() {
  configure_exports "$@"
  show windlass apply --socket $control
}

# load NAME DISK OPTION…: reads from a disk. The JSON of fio is in /tmp/NAME.json.
load() {
  local name=$1 disk=$2
  shift 2
  fio --name="$name" --filename="$disk" --rw=randread --direct=1 --ioengine=io_uring --time_based \
    --ramp_time=$before_s --runtime=$time_s --eta=never --output-format=json \
    --output="/tmp/$name.json" "$@" || fail "$name: fio exited with $?: $(cat "/tmp/$name.json")"
}

# A host that reads little, and one that wants all of the drive.
little() { load little "$disk_one" --bs=4k --iodepth=4 --rate_iops=300; }
greedy() { load "$1" "$2" --bs=64k --iodepth=64; }
bytes_of() { jq '.jobs[0].read.bw_bytes' "/tmp/$1.json"; }
p99_ms() { jq '.jobs[0].read.clat_ns.percentile."99.000000" / 1000000 | floor' /tmp/little.json; }
paces() { windlass status --json --socket $control | jq -c '.paces'; }

# beside_each_other: the latency of the one, beside the other.
beside_each_other() {
  greedy greedy "$disk_other" &
  local of_other=$!
  little &
  local of_one=$!
  sleep $((before_s + time_s / 2))
  paces
  wait $of_one || fail "the host that reads little failed"
  wait $of_other || fail "the greedy host failed"
  say "$1: p99 $(p99_ms) ms, the other host $(($(bytes_of greedy) >> 10)) KiB/s"
}

# both_greedy: loads both disks at the same time, as `heavy` and `light`.
both_greedy() {
  greedy heavy "$disk_one" &
  local of_one=$!
  greedy light "$disk_other" || fail "a host failed"
  wait $of_one || fail "a host failed"
}

begin_with_drive() {
  modprobe nvme-tcp
  cd /tmp
  show windlass bind $A
}

# narrow: both namespaces become the same disk without content, with one queue.
narrow() {
  machine '{"execute":"blockdev-add","arguments":{"driver":"null-co","node-name":"wide",
    "size":67108864,"read-zeroes":true}}'
  machine "{\"execute\":\"object-add\",\"arguments\":{\"qom-type\":\"throttle-group\",\"id\":\"queue\",
    \"limits\":{\"bps-total\":$drive_bytes}}}"
  machine '{"execute":"blockdev-add","arguments":{"driver":"throttle","node-name":"narrow",
    "throttle-group":"queue","file":"wide"}}'
  under disk0n1 narrow
  under disk0n2 narrow
}

without_multipath
begin_with_drive
narrow
configure_exports "" ""
start
disk_one=$(attach "$INTEROP_NQN" $host_a $id_a -i 2)
disk_other=$(attach "$other" $host_b $id_b -i 2)
say "the hosts have $disk_one and $disk_other"

beside_each_other "without a target"
free=$(p99_ms)
[ "$free" -gt $((2 * target_ms)) ] || fail "the drive is no bottleneck"

say "a target of $target_ms ms"
apply "p99 = \"${target_ms}ms\"" ""
beside_each_other "with a target"
[ "$(p99_ms)" -le $((target_ms * 5 / 4)) ] || fail "the target is missed"
[ "$(bytes_of greedy)" -ge $((drive_bytes / 2)) ] || fail "the other host gets less than half of the drive"
paces | jq -e '.[0].reason == "latency" and .[0].throttled > 0' > /dev/null ||
  fail "the status does not say who waits"

say "weights"
apply "weight = 300" "weight = 100"
both_greedy
heavy=$(bytes_of heavy) light=$(bytes_of light)
say "weights of 300 and 100: $((heavy >> 10)) and $((light >> 10)) KiB/s; $(paces)"
[ $((heavy * 10)) -ge $((light * 24)) ] && [ $((heavy * 10)) -le $((light * 36)) ] ||
  fail "not about three to one"
[ $((heavy + light)) -ge $((drive_bytes * 7 / 10)) ] || fail "the drive is not used"

say "without them"
apply "" ""
both_greedy
say "$(($(bytes_of heavy) >> 10)) and $(($(bytes_of light) >> 10)) KiB/s; $(paces)"
expect_quiet_kernel
show nvme disconnect -n "$INTEROP_NQN"
show nvme disconnect -n "$other"
stop
say passed
