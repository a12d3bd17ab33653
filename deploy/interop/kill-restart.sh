#!/usr/bin/env bash
# The target is killed and restarted while a kernel host writes and while it reads back. The host
# reconnects and continues; no acknowledged data is lost, and no program receives an error.
. "$(dirname "$0")/lib/guest.sh"

# Slow enough that both kills happen during the work.
mebibytes=48
rate="--rate=4m,4m"

# Sectors read and written so far, in 512 bytes: Documentation/block/stat.rst, fields 3 and 7.
sectors_read() { awk '{ print $3 }' "/sys/block/${device##*/}/stat"; }
sectors_written() { awk '{ print $7 }' "/sys/block/${device##*/}/stat"; }

fio_runs() { kill -0 "$fio" 2> /dev/null; }

# moved COUNTER SECTORS: whether fio has transferred this much; it must not have finished.
moved() {
  fio_runs || fail "fio ended too early: $(cat /tmp/fio.log)"
  [ $(($("$1") - start)) -ge "$2" ]
}

# die_after COUNTER SECTORS: kills the target after this much, and restarts it.
die_after() {
  start=$("$1")
  eventually 120 moved "$1" "$2"
  say "$(($("$1") - start)) of $1"
  appliance kill
  eventually 60 is_not_live
  say "the controller is $(state)"
  # Some attempts to reconnect have to fail.
  sleep 3
  fio_runs || fail "fio did not wait for the target: $(cat /tmp/fio.log)"
  appliance start
  eventually 120 is_live
  say "the controller is $(state) again"
}

begin
discover
connect --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5
device=$(namespaces)
verify "under death" "$device" $mebibytes "$rate" $across_failures > /tmp/fio.log 2>&1 &
fio=$!
die_after sectors_written 16384
start=$(sectors_read)
eventually 180 moved sectors_read 1
die_after sectors_read 16384
wait "$fio" || fail "fio: $(cat /tmp/fio.log)"
cat /tmp/fio.log
verify "after all" "$device" $mebibytes --verify_only=1
error_log
disconnect
say passed
