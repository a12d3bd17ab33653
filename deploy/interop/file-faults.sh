#!/usr/bin/env bash
# File devices on file systems that fail: full, turned read-only, and with a disk below that answers
# no command. The host gets the exact status, nothing that was acknowledged is lost, and when the
# file system is well again so is the namespace.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

block=4096
# Status values as nvme-cli shows them: status code type and code (Base 2.1, 4.2.3; NVM 1.1, 3.2.1).
capacity_exceeded='Capacity Exceeded'
write_protected='Write Protected'
write_fault='Write Fault'
read_error='Unrecovered Read Error'

configure_files() {
  cat > $config <<END
[appliance]
name = "interop"
memory = "16MiB"

[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:$INTEROP_PORT"

[[export]]
nqn = "$INTEROP_NQN"
devices = ["full", "frozen", "broken"]
listeners = ["loopback"]
allow_any_host = true

[[device]]
name = "full"
type = "file"
path = "/srv/full/volume"
size = "16MiB"

[[device]]
name = "frozen"
type = "file"
path = "/srv/frozen/volume"
size = "8MiB"

[[device]]
name = "broken"
type = "file"
path = "/srv/broken/volume"
size = "8MiB"
END
}

# pattern NUMBER: one request's data that is no other's.
pattern() {
  yes "block $1" | head -c $block > "/tmp/pattern.$1" || true
  echo "/tmp/pattern.$1"
}

# write NSID NUMBER: writes the pattern of that number to its place.
write() {
  local start=$(($2 * block / 512))
  nvme write "$(device_of "$1")" --start-block=$start --block-count=$((block / 512 - 1)) \
    --data-size=$block --data="$(pattern "$2")" 2>&1
}

# holds NSID NUMBER: whether that place has its pattern.
holds() {
  nvme read "$(device_of "$1")" --start-block=$(($2 * block / 512)) \
    --block-count=$((block / 512 - 1)) --data-size=$block --data=/tmp/found > /tmp/read.log 2>&1 &&
    cmp -s /tmp/found "$(pattern "$2")"
}

# refused TEXT COMMAND…: the command fails with the status of that name.
refused() {
  local text=$1 said
  shift
  said=$("$@") && fail "$* succeeded"
  say "$*: $said"
  grep -qiF -- "$text" <<< "$said" || fail "it should have said: $text"
}

succeeds() {
  local said
  said=$("$@") || fail "$*: $said"
}

# What was acknowledged before is there.
all_is_there() {
  local number
  for number in $(seq 0 5); do
    holds "$1" "$number" || fail "namespace $1, block $number: $(cat /tmp/read.log)"
  done
}

write_some() {
  local number
  for number in $(seq 0 5); do succeeds write "$1" "$number"; done
  show nvme flush "$(device_of "$1")" -n "$1"
}

# A sparse file whose file system has no more room.
full() {
  say "full"
  write_some 1
  dd if=/dev/zero of=/srv/full/filler bs=64k 2> /dev/null || true
  refused "$capacity_exceeded" write 1 1000
  all_is_there 1
  # What has its place already can be written over.
  succeeds write 1 3
  rm /srv/full/filler
  succeeds write 1 1000
  holds 1 1000 || fail "not written"
}

# A file system that the kernel remounts read-only below the open file.
frozen() {
  say "read-only"
  write_some 2
  # Only the kernel's own emergency remounts a file system with a file that is open for writing.
  echo u > /proc/sysrq-trigger
  eventually 30 grep -q " /srv/frozen ext4 ro" /proc/mounts
  refused "$write_protected" write 2 20
  all_is_there 2
  # A reboot's worth of repair, and all is as it was.
  disconnect
  stop
  show umount /srv/frozen
  e2fsck -f -y "$frozen_disk" || [ $? = 1 ] || fail "e2fsck exited with $?"
  show mount "$frozen_disk" /srv/frozen
  # The emergency was everywhere.
  show mount -o remount,rw /
  show mount -o remount,rw /srv/broken
  start
  connect
  all_is_there 2
  succeeds write 2 20
}

# A disk that fails every command, for as long as it is told to.
broken() {
  say "I/O errors"
  local knobs=/sys/bus/pseudo/drivers/scsi_debug
  write_some 3
  # Every command is aborted by the transport, and so are its repetitions (scsi_debug's opts 16).
  echo 1 > $knobs/every_nth
  echo 16 > $knobs/opts
  refused "$write_fault" write 3 3
  said=$(nvme read "$(device_of 3)" --start-block=0 --block-count=7 --data-size=$block 2>&1 > /tmp/found) \
    && fail "a broken disk was read"
  say "$said"
  grep -qiF "$read_error" <<< "$said" || fail "it should have said: $read_error"
  # The others go on.
  succeeds write 1 5
  echo 0 > $knobs/opts
  echo 0 > $knobs/every_nth
  all_is_there 3
  succeeds write 3 20
  holds 3 20 || fail "not written"
}

begin
mkdir -p /srv/full /srv/frozen /srv/broken
show mount -t tmpfs -o size=12m none /srv/full
modprobe loop
truncate -s 32M /tmp/frozen.img
show mkfs.ext4 -q -F -e remount-ro /tmp/frozen.img
frozen_disk=$(losetup --find --show /tmp/frozen.img)
show mount "$frozen_disk" /srv/frozen
modprobe scsi_debug dev_size_mb=32 sector_size=512
modprobe sd_mod
eventually 30 test -e /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block
broken_disk=/dev/$(ls /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block)
eventually 30 test -b "$broken_disk"
# Without a journal, whose own failure would take the file system away.
show mkfs.ext4 -q -F -O ^has_journal "$broken_disk"
show mount -o noatime,lazytime "$broken_disk" /srv/broken
# Blocks that are there: writing over them moves nothing but data.
show dd if=/dev/zero of=/srv/broken/volume bs=1M count=8 conv=fsync status=none

configure_files
start
connect
full
broken
frozen
error_log
disconnect
stop
say passed
