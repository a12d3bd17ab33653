#!/usr/bin/env bash
# Two hosts attach one export and load one disk each. Limits of commands and of data are applied,
# changed and removed under this load: the limited host gets what its limit says, the other one
# goes on as before, no command fails, and both verify their data under limits.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/hosts.sh"

burst='burst = "100ms"'
# The time of a measurement in seconds. The one before it uses up the burst.
time_s=10 before_s=2

# configure_limits LINE…: these lines after the export.
configure_limits() {
  {
    printf '\n[[device]]\nname = "%s"\ntype = "memory"\nsize = "32MiB"\n' vol0
    printf '\n[[device]]\nname = "%s"\ntype = "memory"\nsize = "32MiB"\n' vol1
    printf '%s\n' "$@"
  } | configure_export '"vol0", "vol1"' "hosts = [\"$host_a\", \"$host_b\"]"
}

# apply LINE…: applies these limits only.
apply() {
  configure_limits "$@"
  show windlass apply --socket $control
}

# load NAME DISK OPTION…: loads a disk. The JSON of fio is in /tmp/NAME.json.
load() {
  local name=$1 disk=$2
  shift 2
  fio --name="$name" --filename="$disk" --bs=4k --iodepth=16 --direct=1 --ioengine=io_uring \
    --time_based --ramp_time=$before_s --runtime=$time_s --eta=never --output-format=json \
    --output="/tmp/$name.json" "$@" || fail "$name: fio exited with $?: $(cat "/tmp/$name.json")"
}

# rate NAME KEY: reads and writes per second, or bytes.
rate() { jq -r ".jobs[0] | .read.$2 + .write.$2 | round" "/tmp/$1.json"; }

# expect_rate NAME KEY RATE: within 2 %.
expect_rate() {
  local seen
  seen=$(rate "$1" "$2")
  say "$1: $seen of $3 ($2)"
  [ $((seen * 100)) -ge $(($3 * 98)) ] && [ $((seen * 100)) -le $(($3 * 102)) ] ||
    fail "$1: $seen is not within 2 % of $3"
}

# namespace DISK NSID: the disk of that namespace that the host of DISK has. The kernel numbers disks as it
# finds them, not by namespace.
namespace() {
  local disk
  for disk in "${1%n[0-9]*}"n*; do
    if [ "$(cat "/sys/block/${disk##*/}/nsid" 2> /dev/null)" = "$2" ]; then
      echo "$disk"
      return
    fi
  done
  return 1
}

# both OPTION…: loads the disks of both hosts at the same time.
both() {
  load a "$disk_a" "$@" &
  local of_a=$!
  load b "$disk_b" "$@"
  wait $of_a || fail "the load of host A failed"
}

limits_status() { windlass status --json --socket $control | jq -c '.rate_limits'; }

without_multipath
begin
configure_limits
show windlass check $config
start
disk_a=$(attach "$INTEROP_NQN" $host_a $id_a)
disk_b=$(attach "$INTEROP_NQN" $host_b $id_b)
# Each host has both disks.
eventually 60 namespace "$disk_a" 1 > /dev/null
eventually 60 namespace "$disk_b" 2 > /dev/null
disk_a=$(namespace "$disk_a" 1) disk_b=$(namespace "$disk_b" 2)
say "host A has $disk_a, host B has $disk_b"

say "without limits"
both --rw=randread
free_a=$(rate a iops) free_b=$(rate b iops)
say "host A $free_a, host B $free_b commands per second"
limit=$((free_a / 4))
[ $limit -ge 50 ] || fail "this machine is too slow"

say "host A may send $limit commands per second"
apply "[[rate_limit]]" "host = \"$host_a\"" "iops = $limit" "$burst"
for mix in randread randwrite randrw; do
  both --rw=$mix
  expect_rate a iops $limit
  say "host B: $(rate b iops) commands per second"
  [ "$(rate b iops)" -gt $((2 * limit)) ] || fail "host B is delayed, too"
done
show limits_status
limits_status | jq -e '.[0].throttled_by_iops > 0 and .[0].waited_ns > 0' > /dev/null ||
  fail "the status does not say what the limit delays"

bytes=$((limit * 2048))
say "host A may write $bytes bytes per second"
[ $bytes -ge 65536 ] || fail "this machine is too slow"
apply "[[rate_limit]]" "host = \"$host_a\"" "export = \"$INTEROP_NQN\"" 'operations = "writes"' \
  "bandwidth = $bytes" "$burst"
both --rw=randwrite
expect_rate a bw_bytes $bytes
load a "$disk_a" --rw=randread
[ "$(rate a iops)" -gt $limit ] || fail "reads are limited, too"

say "the limit of a device is changed under load and counts the commands of its hosts"
load a "$disk_a" --rw=randread &
of_a=$!
apply "[[rate_limit]]" 'device = "vol0"' "iops = $limit" "$burst"
wait $of_a || fail "the load failed"
load a "$disk_a" --rw=randread
expect_rate a iops $limit

say "data is verified under limits"
verify "host A" "$disk_a" 4
say "an invalid limit is refused"
configure_limits "[[rate_limit]]" 'device = "vol2"' "iops = 0"
if refused=$(windlass apply --socket $control 2>&1); then fail "it was accepted: $refused"; fi
say "$refused"
grep -q 'device `vol2` does not exist' <<< "$refused" || fail "it names no device"

say "without limits again"
apply
load a "$disk_a" --rw=randread
[ "$(rate a iops)" -gt $((2 * limit)) ] || fail "commands are still delayed: $(rate a iops)"
expect_quiet_kernel
show nvme disconnect -n "$INTEROP_NQN"
stop
say passed
