#!/usr/bin/env bash
# File devices on file systems that fail: full, remounted read-only, and on a disk that completes no
# command. The host receives the exact status, no acknowledged data is lost, and the namespace
# recovers with the file system. After a failed sync, no flush or write of any host succeeds until
# an operator reopens the device.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/hosts.sh"

block=4096
# Status values in nvme-cli's form: status code type and code (Base 2.1 §4.2.3, NVM 1.1 §3.2.1).
capacity_exceeded='Capacity Exceeded'
write_protected='Write Protected'
write_fault='Write Fault'
read_error='Unrecovered Read Error'

# A second export, which two hosts share.
once_nqn=$INTEROP_NQN:once

configure_faulty() {
  configure_export '"full", "frozen", "broken"' <<END

[[export]]
nqn = "$once_nqn"
devices = ["once"]
listeners = ["loopback"]
hosts = ["$host_a", "$host_b"]

[[device]]
name = "once"
type = "file"
path = "/srv/once/volume"
size = "2MiB"

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

# pattern NUMBER: the unique data of one request.
pattern() {
  yes "block $1" | head -c $block > "/tmp/pattern.$1" || true
  echo "/tmp/pattern.$1"
}

# write NSID NUMBER: writes the pattern with that number to its position.
write() {
  local start=$(($2 * block / 512))
  nvme write "$(device_of "$1")" --start-block=$start --block-count=$((block / 512 - 1)) \
    --data-size=$block --data="$(pattern "$2")" 2>&1
}

# holds NSID NUMBER: whether that position contains its pattern.
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

# The data that was acknowledged before is present.
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

# A sparse file on a full file system.
full() {
  say "full"
  write_some 1
  dd if=/dev/zero of=/srv/full/filler bs=64k 2> /dev/null || true
  refused "$capacity_exceeded" write 1 1000
  all_is_there 1
  # Allocated blocks can be overwritten.
  succeeds write 1 3
  rm /srv/full/filler
  succeeds write 1 1000
  holds 1 1000 || fail "not written"
}

# A file system that the kernel remounts read-only while the file is open.
frozen() {
  say "read-only"
  write_some 2
  # Only the kernel's emergency remount works while a file is open for writing.
  echo u > /proc/sysrq-trigger
  eventually 30 grep -q " /srv/frozen ext4 ro" /proc/mounts
  refused "$write_protected" write 2 20
  all_is_there 2
  # Repairs the file system, as a reboot would; then everything is as before.
  disconnect
  stop
  show umount /srv/frozen
  e2fsck -f -y "$frozen_disk" || [ $? = 1 ] || fail "e2fsck exited with $?"
  show mount "$frozen_disk" /srv/frozen
  # The emergency remount affects all file systems.
  show mount -o remount,rw /
  show mount -o remount,rw /srv/broken
  show mount -o remount,rw /srv/once
  start
  connect
  all_is_there 2
  succeeds write 2 20
}

# A disk that fails every command while it is told to.
broken() {
  say "I/O errors"
  local knobs=/sys/bus/pseudo/drivers/scsi_debug
  write_some 3
  # The transport aborts every command and its retries (scsi_debug's opts 16).
  echo 1 > $knobs/every_nth
  echo 16 > $knobs/opts
  refused "$write_fault" write 3 3
  said=$(nvme read "$(device_of 3)" --start-block=0 --block-count=7 --data-size=$block 2>&1 > /tmp/found) \
    && fail "a broken disk was read"
  say "$said"
  grep -qiF "$read_error" <<< "$said" || fail "it should have said: $read_error"
  # The other devices continue.
  succeeds write 1 5
  echo 0 > $knobs/opts
  echo 0 > $knobs/every_nth
  all_is_there 3
  succeeds write 3 20
  holds 3 20 || fail "not written"
}

# Without multipath each controller has its own disks, although they are the same namespace.
namespaces() {
  local one path
  for one in $(controllers); do
    for path in "/sys/class/nvme/$one"/nvme*n*; do
      if [ -e "$path" ]; then echo "/dev/${path##*/}"; fi
    done
  done | sort -V
}

# put DISK NUMBER OPTION…: writes the pattern with that number to its position on a disk.
put() {
  local disk=$1 number=$2
  shift 2
  nvme write "$disk" --start-block=$((number * block / 512)) --block-count=$((block / 512 - 1)) \
    --data-size=$block --data="$(pattern "$number")" "$@" 2>&1
}

# has DISK NUMBER: whether that position of a disk contains its pattern.
has() {
  nvme read "$1" --start-block=$(($2 * block / 512)) --block-count=$((block / 512 - 1)) \
    --data-size=$block --data=/tmp/found > /tmp/read.log 2>&1 && cmp -s /tmp/found "$(pattern "$2")"
}

flush() { nvme flush "$1" -n 1 2>&1; }

# A disk that fails while one host flushes, and works afterwards. Linux reports lost data only to
# one sync, but every host has to be notified.
once() {
  local knobs=/sys/bus/pseudo/drivers/scsi_debug a b disk number
  say "one failed sync"
  a=$(attach "$once_nqn" $host_a $id_a)
  b=$(attach "$once_nqn" $host_b $id_b)
  say "host A has $a, host B has $b"
  for number in $(seq 0 5); do succeeds put "$a" "$number"; done
  for disk in "$a" "$b"; do succeeds flush "$disk"; done
  # Written to the page cache and acknowledged.
  for number in $(seq 10 40); do succeeds put "$a" "$number"; done
  echo 1 > $knobs/every_nth
  echo 16 > $knobs/opts
  refused "$write_fault" flush "$b"
  echo 0 > $knobs/opts
  echo 0 > $knobs/every_nth
  for disk in "$a" "$b" "$a"; do
    refused "$write_fault" flush "$disk"
    refused "$write_fault" put "$disk" 60
    refused "$write_fault" put "$disk" 61 --force-unit-access
    has "$disk" 3 || fail "reads should go on: $(cat /tmp/read.log)"
  done
  windlass status --socket $control > /tmp/status || true
  grep -qi damaged /tmp/status || fail "status does not tell of it: $(cat /tmp/status)"
  show windlass device reopen once --socket $control
  for disk in "$a" "$b"; do
    succeeds put "$disk" 60
    succeeds put "$disk" 61 --force-unit-access
    succeeds flush "$disk"
    for number in $(seq 0 5) 60 61; do
      has "$disk" "$number" || fail "$disk, block $number: $(cat /tmp/read.log)"
    done
  done
  show nvme disconnect -n "$once_nqn"
}

without_multipath
begin
mkdir -p /srv/full /srv/frozen /srv/broken /srv/once
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
# Without a journal, whose own failure would make the file system unavailable.
show mkfs.ext4 -q -F -O ^has_journal "$broken_disk"
show mount -o noatime,lazytime "$broken_disk" /srv/broken
# Allocated blocks: overwriting them changes only data.
show dd if=/dev/zero of=/srv/broken/volume bs=1M count=8 conv=fsync status=none
# Sectors larger than the device's blocks, so that its writes use the page cache.
show truncate -s 8M /srv/broken/once.img
show dd if=/dev/zero of=/srv/broken/once.img bs=1M count=8 conv=fsync,notrunc status=none
once_disk=$(losetup --find --show --sector-size 4096 /srv/broken/once.img)
show mkfs.ext4 -q -F -b 4096 -O ^has_journal "$once_disk"
show mount -o noatime,lazytime,errors=continue "$once_disk" /srv/once
show dd if=/dev/zero of=/srv/once/volume bs=1M count=2 conv=fsync status=none

configure_faulty
start
connect
full
broken
once
frozen
error_log
disconnect
stop
say passed
