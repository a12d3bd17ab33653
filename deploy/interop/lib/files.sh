# Common part of the scenarios of file exports: files of a share at $at; sourced after guest.sh.
# shellcheck shell=bash

at=/mnt/share

# same WHAT ACTUAL EXPECTED
same() { [ "$2" = "$3" ] || fail "$1: $2 instead of $3"; }

# Later reads are the server's.
cold() { sync && echo 3 > /proc/sys/vm/drop_caches; }

# A file that is copied, cut and extended has the right bytes; /tmp/random has what was copied, and
# /tmp/expected what is left in $at/copy.
copy_and_truncate() {
  head -c 10M /dev/urandom > /tmp/random
  cp /tmp/random $at/copy
  cold
  show cmp /tmp/random $at/copy
  truncate -s 5000 $at/copy
  truncate -s 20000 $at/copy
  cold
  head -c 5000 /tmp/random > /tmp/expected
  truncate -s 20000 /tmp/expected
  show cmp /tmp/expected $at/copy
}

# Writes to a file through the page cache, and verifies it.
verify_buffered() {
  show fio --name=buffered --filename=$at/buffered --size=16M --rw=randwrite --bsrange=512-64k \
    --ioengine=psync --fallocate=none --verify=crc32c --verify_fatal=1 --eta=never --minimal
}

# Writes and syncs numbered files until /tmp/stop exists; /tmp/acknowledged has the last number.
write_files() {
  local number=0
  until [ -e /tmp/stop ]; do
    number=$((number + 1))
    echo "content of $number" > /tmp/part
    dd if=/tmp/part of="$at/synced/$number" conv=fsync status=none || return 1
    echo $number > /tmp/acknowledged.new
    mv /tmp/acknowledged.new /tmp/acknowledged
  done
}

acknowledged() { cat /tmp/acknowledged; }

# Five more files than $before are synced.
has_gone_on() { [ "$(acknowledged)" -ge $((before + 5)) ]; }

# Writes with syncs and verifies until /tmp/stop exists.
verify_again() {
  until [ -e /tmp/stop ]; do
    fio --name=verified --filename=$at/verified --size=2M --rw=randwrite --bsrange=512-64k \
      --ioengine=psync --fallocate=none --fsync=16 --verify=crc32c --verify_fatal=1 --eta=never \
      --minimal > /tmp/fio 2>&1 || return 1
  done
}

# kill_and_restart TIMES: kills the appliance while files are written, and checks the volume before each
# start.
kill_and_restart() {
  local round
  for round in $(seq "$1"); do
    before=$(acknowledged)
    eventually 60 has_gone_on
    sleep "0.$((RANDOM % 10))"
    say "round $round: the appliance is killed after $(acknowledged) files"
    kill -KILL "$windlass"
    wait "$windlass" || true
    show windlass volume check files --config $config
    before=$(acknowledged)
    start
    eventually 120 has_gone_on
  done
}

# Everything up to the last acknowledged number is there.
check_files() {
  local number last
  last=$(acknowledged)
  cold
  for number in $(seq "$last"); do
    [ "$(cat "$at/synced/$number")" = "content of $number" ] ||
      fail "file $number of $last: $(cat "$at/synced/$number")"
  done
  say "$last synced files are there"
}
