# Common part of the scenarios; sourced in the guest. The harness sets these variables, INTEROP_…:
#   ADDRESS PORT NQN   the address of the target and its export
#   NAMESPACES         their number
#   CONNECT            additional options of nvme connect
#   SIGNALS            the directory for requests to kill and restart the appliance
#   ROUNDS             the number of repetitions in scenarios that repeat their work
#   SELF               1: there is no appliance; the guest's kernel is the target
# shellcheck shell=bash

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/kernel-target.sh"

say() { echo "--- $*"; }

fail() {
  echo "FAILED: $*"
  dmesg | grep -iE 'nvme|warning|bug:|hung|error' | tail -n 40
  exit 1
}

# show COMMAND…: runs the command, and logs it with its output.
show() {
  echo "\$ $*"
  "$@" || fail "$* exited with $?"
}

# eventually SECONDS COMMAND…: waits until the command succeeds.
eventually() {
  local seconds=$1 end
  end=$(($(date +%s) + $1))
  shift
  until "$@"; do
    [ "$(date +%s)" -lt "$end" ] || fail "not within $seconds s: $*"
    sleep 0.1
  done
}

# appliance kill|start: requests this from the harness; without an appliance it applies to the
# kernel's target.
requests=0
appliance() {
  say "appliance: $1"
  if [ "$INTEROP_SELF" = 1 ]; then
    case $1 in
      kill) kernel_withdraw 1 "$INTEROP_NQN" ;;
      start) kernel_export 1 "$INTEROP_NQN" ;;
    esac
    return
  fi
  requests=$((requests + 1))
  : > "$INTEROP_SIGNALS/$requests.$1"
  eventually 120 test -e "$INTEROP_SIGNALS/$requests.done"
}

# Creates the kernel's own target if it replaces the appliance.
begin() {
  modprobe nvme-tcp
  # The current directory is the shared work tree, where no files may be created.
  cd /tmp
  show uname -r
  show nvme version
  [ "$INTEROP_SELF" = 1 ] || return 0
  local devices=() index
  for index in $(seq "$INTEROP_NAMESPACES"); do
    devices+=("$(kernel_disk "disk$index" 256)")
  done
  kernel_subsystem "$INTEROP_NQN" "${devices[@]}"
  kernel_port 1 tcp "$INTEROP_ADDRESS" "$INTEROP_PORT"
  kernel_export 1 "$INTEROP_NQN"
}

at_target=(-t tcp -a "$INTEROP_ADDRESS" -s "$INTEROP_PORT")

# The discovery log has to contain the subsystem.
discover() {
  local log
  show nvme discover "${at_target[@]}"
  log=$(nvme discover "${at_target[@]}" -o json)
  jq -e --arg nqn "$INTEROP_NQN" \
    '[.records[] | select(.subnqn == $nqn and .trtype == "tcp")] | length == 1' <<< "$log" \
    > /dev/null || fail "the discovery log does not name $INTEROP_NQN once"
}

# controllers: the connected controllers of the subsystem, as nvme0 …
controllers() {
  local place
  for place in /sys/class/nvme/nvme*; do
    if [ "$(cat "$place/subsysnqn" 2> /dev/null)" = "$INTEROP_NQN" ]; then echo "${place##*/}"; fi
  done
}

state() { cat "/sys/class/nvme/$controller/state"; }
is_live() { [ "$(state)" = live ]; }
is_not_live() { ! is_live; }

# namespaces: the block devices of the subsystem, as /dev/nvme0n1 …, in order
namespaces() {
  local place path
  for place in /sys/class/nvme-subsystem/*; do
    [ "$(cat "$place/subsysnqn")" = "$INTEROP_NQN" ] || continue
    for path in "$place"/nvme*n*; do
      # The paths of a multipath device are named nvmeXcYnZ and are no block devices.
      [[ $path =~ /(nvme[0-9]+n[0-9]+)$ ]] && echo "/dev/${BASH_REMATCH[1]}"
    done
  done | sort -V
}

all_namespaces_are_there() {
  local device count=0
  for device in $(namespaces); do
    [ -b "$device" ] && [ "$(blockdev --getsize64 "$device")" -gt 0 ] && count=$((count + 1))
  done
  [ "$count" = "$INTEROP_NAMESPACES" ]
}

# connect OPTION…: sets `controller`, and waits until every namespace exists.
connect() {
  # shellcheck disable=SC2086  # several options, or none
  show nvme connect "${at_target[@]}" -n "$INTEROP_NQN" $INTEROP_CONNECT "$@"
  controller=$(controllers)
  [ -n "$controller" ] || fail "no controller"
  eventually 60 is_live
  eventually 60 all_namespaces_are_there
}

disconnect() {
  show nvme disconnect -n "$INTEROP_NQN"
  [ -z "$(controllers)" ] || fail "a controller is left"
}

# attach NQN HOST UUID OPTION…: prints the disk of another host's controller of that export. Without
# multipath each controller has its own disks, although they are the same namespace.
attach() {
  local nqn=$1 host=$2 uuid=$3 before path
  shift 3
  before=$(ls /sys/class/nvme)
  nvme connect "${at_target[@]}" -n "$nqn" --hostnqn="$host" --hostid="$uuid" "$@" > /dev/null ||
    fail "host $host cannot connect"
  for path in /sys/class/nvme/nvme*; do
    grep -qx "${path##*/}" <<< "$before" && continue
    eventually 60 test -e "$path/${path##*/}n1"
    echo "/dev/${path##*/}n1"
    return
  done
  fail "host $host has no controller"
}

# Messages of the kernel that a healthy connection never causes.
expect_quiet_kernel() {
  if dmesg | grep -iE 'nvme.*(timeout|I/O error|failed|reset|reconnect|digest)|hung task|WARNING:|BUG:'
  then
    fail "the kernel complains"
  fi
}

# An option of verify for I/O while the namespace may have no path. Requests of io_uring must not
# wait. Linux 6.12 queues them without a path nonetheless, and a new path that is still frozen then
# fails them with EAGAIN.
# shellcheck disable=SC2034 # The scenarios use it.
across_failures=--ioengine=libaio

# verify NAME FILE MIB OPTION…: writes random data in random mixed sizes, and verifies all of it.
verify() {
  local name=$1 file=$2 bytes=$(($3 << 20)) result=/tmp/fio.$BASHPID.json
  shift 3
  say "fio: $name, $bytes bytes $*"
  fio --name="$name" --filename="$file" --size="$bytes" --rw=randwrite --bsrange=4k-128k \
    --direct=1 --ioengine=io_uring --iodepth=16 --fallocate=none --randseed=4711 \
    --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
    --eta=never --output-format=json --output=$result "$@" ||
    fail "fio exited with $?: $(tail -n 5 $result)"
  jq -r '.jobs[0] | "\(.jobname): error \(.error), " +
    "\(.write.io_bytes) bytes written in \(.write.total_ios) requests, " +
    "\(.read.io_bytes) read back in \(.read.total_ios)"' $result
  jq -e --argjson bytes "$bytes" '.jobs[0] | .error == 0 and .read.io_bytes >= $bytes' $result \
    > /dev/null || fail "$name: not all of it was verified"
}

# writer END NAME FILE OPTION…: writes and verifies 8 MiB, 8 MiB a second each, until the file END
# exists; prints how often.
writer() {
  local end=$1 rounds=0
  shift
  until [ -e "$end" ]; do
    verify "$1" "$2" 8 --rate=8m,8m "${@:3}"
    rounds=$((rounds + 1))
  done
  say "$1: $rounds rounds"
}

# error_log: shows the entries of the controller's error log that are in use.
error_log() {
  say "error log of $controller"
  nvme error-log "/dev/$controller" -e 64 -o json |
    jq -c '.errors[] | select(.error_count > 0)' || fail "no error log"
}
