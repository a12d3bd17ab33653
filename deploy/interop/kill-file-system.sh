#!/usr/bin/env bash
# The target and its host are killed together repeatedly while files are written and synchronised.
# Each time the file system recovers from its journal, is clean, and contains every file that was
# synchronised before. INTEROP_ROUNDS is the number of repetitions.
. "$(dirname "$0")/lib/guest.sh"

acknowledged=/tmp/acknowledged

# Files with unique names and sizes; a file is added to the list after it and its directory are
# synced.
write_files() {
  local round=$1 number file
  for number in $(seq 100000); do
    file=/mnt/$round.$number
    head -c $((1 + RANDOM * 8)) /dev/urandom > "$file" 2> /dev/null || return 0
    sync "$file" /mnt 2> /dev/null || return 0
    sha256sum "$file" >> $acknowledged 2> /dev/null || return 0
    # Every second file is removed, so that there is space to free.
    if [ $((number % 4)) = 3 ]; then
      file=/mnt/$round.$((number - 1))
      sed -i "\\# $file\$#d" $acknowledged
      rm "$file" 2> /dev/null || return 0
    fi
  done
}

some_files() { [ "$(wc -l < $acknowledged)" -ge "$1" ]; }

# The file system's state after the replay of its journal, and its content.
examine() {
  show mount "$device" /mnt
  if [ -s $acknowledged ]; then
    sha256sum --check --quiet $acknowledged || fail "a synchronised file is lost or damaged"
  fi
  say "$(wc -l < $acknowledged) synchronised files are there"
  show umount /mnt
  show e2fsck -f -n "$device"
}

begin
connect
device=$(namespaces)
show mkfs.ext4 -q -F "$device"
: > $acknowledged
for round in $(seq "$INTEROP_ROUNDS"); do
  say "round $round"
  show mount "$device" /mnt
  before=$(wc -l < $acknowledged)
  write_files "$round" &
  writer=$!
  eventually 60 some_files $((before + 5))
  sleep "0.$((RANDOM % 10))"
  appliance kill
  # The host's cache is lost too, with all data that was not sent yet.
  nvme disconnect -n "$INTEROP_NQN"
  wait $writer || fail "the writer did not end"
  show umount -l /mnt
  appliance start
  connect
  device=$(namespaces)
  examine
  # Frees space for the next round.
  show mount "$device" /mnt
  rm -f /mnt/"$round".*
  : > $acknowledged
  show umount /mnt
done
disconnect
say passed
