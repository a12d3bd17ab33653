#!/usr/bin/env bash
# Two hosts share a file device by reservations. Host B fences host A while A writes: after the
# preempt no byte of A changes the device. The reservation survives the end of the appliance, and
# an operator evicts hosts and clears reservations.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/hosts.sh"

export STATE_DIRECTORY=/tmp/windlass.state
key_a=0xa11ce
key_b=0xb0b
# Write Exclusive (Base 2.1 §7.5).
write_exclusive=1

configure_shared() {
  configure_export '"shared"' <<END

[[device]]
name = "shared"
type = "file"
path = "/srv/shared"
size = "16MiB"
END
}

# write DISK: writes a block outside of the range of fio.
write() {
  head -c 4096 /dev/urandom > /tmp/block
  nvme write "$1" --start-block=32760 --block-count=7 --data-size=4096 --data=/tmp/block 2>&1
}

# conflicts DISK: a write is refused because of the reservation.
conflicts() {
  local said
  said=$(write "$1") && fail "$1: a fenced host has written"
  say "$1: $said"
  grep -qi 'reservation conflict' <<< "$said" || fail "it should have said: Reservation Conflict"
}

succeeds() {
  local said
  said=$("$@") || fail "$*: $said"
}

can_write() { write "$1" > /dev/null; }

# checksum DISK: of the range of fio.
checksum() {
  dd if="$1" iflag=direct bs=1M count=15 status=none | sha256sum
}

# reports DISK EXPRESSION: whether jq finds that the report meets the expression.
reports() {
  nvme resv-report "$1" --namespace-id=1 --eds --output-format=json > /tmp/report ||
    fail "no report"
  cat /tmp/report
  jq -e "$2" /tmp/report > /dev/null || fail "the report does not meet: $2"
}

register() {
  show nvme resv-register "$1" --namespace-id=1 --nrkey="$2" --rrega=0 --cptpl="$3"
}

commands_work() {
  say "register, acquire, report, release"
  # Persist Through Power Loss is set (3) by A, and unchanged (0) by B.
  register "$a" $key_a 3
  register "$b" $key_b 0
  show nvme resv-acquire "$a" --namespace-id=1 --crkey=$key_a --rtype=$write_exclusive --racqa=0
  reports "$b" ".rtype == $write_exclusive and .regctl == 2 and .ptpls == 1"
  conflicts "$b"
  succeeds write "$a"
  show nvme resv-release "$a" --namespace-id=1 --crkey=$key_a --rtype=$write_exclusive --rrela=0
  succeeds write "$b"
  show nvme resv-acquire "$a" --namespace-id=1 --crkey=$key_a --rtype=$write_exclusive --racqa=0
  conflicts "$b"
}

# write_always DISK: writes until /tmp/stop exists. fio ends with the first write that conflicts.
write_always() {
  until [ -e /tmp/stop ]; do
    fio --name=fenced --filename="$1" --size=15M --rw=randwrite --bs=4k --direct=1 \
      --ioengine=libaio --iodepth=16 --rate_iops=1000 --refill_buffers=1 --randrepeat=0 \
      --time_based --runtime=300 --eta=never || true
  done >> /tmp/fenced.log 2>&1
}

# refusals: the number of writes of fio that were refused (EBADE).
refusals() { grep -c 'Invalid exchange' /tmp/fenced.log || true; }

fence_under_io() {
  local writer before after refused
  say "fencing a host that writes"
  write_always "$a" &
  writer=$!
  sleep 2
  before=$(checksum "$b")
  sleep 1
  [ "$before" != "$(checksum "$b")" ] || fail "host A does not write: $(cat /tmp/fenced.log)"
  show nvme resv-acquire "$b" --namespace-id=1 --crkey=$key_b --prkey=$key_a \
    --rtype=$write_exclusive --racqa=2
  before=$(checksum "$b")
  refused=$(refusals)
  sleep 5
  after=$(checksum "$b")
  [ "$(refusals)" -gt "$refused" ] || fail "host A has not tried to write: $(cat /tmp/fenced.log)"
  [ "$before" = "$after" ] || fail "data has changed after the host was fenced"
  : > /tmp/stop
  wait $writer
  say "writes of host A that were refused: $(refusals)"
  conflicts "$a"
  succeeds write "$b"
  reports "$a" ".rtype == $write_exclusive and .regctl == 1"
}

a_is_live() { [ "$(cat "/sys/class/nvme/$a_controller/state")" = live ]; }

# After the end of the appliance the reservation is in force, before a host has registered again.
survives_kill() {
  say "SIGKILL"
  kill -9 "$windlass"
  wait "$windlass" || true
  start
  eventually 60 can_write "$b"
  eventually 60 a_is_live
  conflicts "$a"
  show windlass reservations shared --socket $control
  windlass reservations shared --socket $control > /tmp/list
  for part in 'Write Exclusive' "$id_b" 0x0000000000000b0b "$host_b"; do
    grep -qF -- "$part" /tmp/list || fail "the list does not have: $part"
  done
}

operators_fence() {
  say "windlass evict, windlass reservations --clear"
  show windlass evict "$host_b" --export "$INTEROP_NQN" --socket $control
  succeeds write "$a"
  eventually 60 can_write "$b"
  register "$a" $key_a 0
  show nvme resv-acquire "$a" --namespace-id=1 --crkey=$key_a --rtype=$write_exclusive --racqa=0
  conflicts "$b"
  show windlass reservations shared --clear --socket $control
  succeeds write "$b"
  reports "$b" ".rtype == 0 and .regctl == 0"
}

without_multipath
begin
mkdir -p $STATE_DIRECTORY
configure_shared
start
a=$(attach "$INTEROP_NQN" $host_a $id_a --reconnect-delay=1)
b=$(attach "$INTEROP_NQN" $host_b $id_b --reconnect-delay=1)
a_controller=${a#/dev/}
a_controller=${a_controller%n1}
say "host A has $a, host B has $b"
commands_work
fence_under_io
survives_kill
operators_fence
show nvme disconnect -n "$INTEROP_NQN"
stop
say passed
