#!/usr/bin/env bash
# The kernel's NFS client mounts shares over RDMA on soft RoCE: a share of a RAM volume by NFSv4.1 and
# 4.2, in part beside a mount over TCP, and one of a durable volume, whose appliance is killed and
# started again under load. Names, long replies, long calls and data are right, with a cold cache, and
# Windlass copies no data of 4 KiB or more.
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/files.sh"

control=/tmp/windlass.sock
export STATE_DIRECTORY=/tmp/state

# mount_share SHARE VERSION [OPTION]
mount_share() {
  mkdir -p $at
  show mount -t nfs -o "vers=$2,proto=rdma,port=20049,sec=sys${3:+,$3}" "$fabric:/$1" $at
  grep " $at " /proc/mounts
}

counter() { windlass status --socket $control --json | jq -r ".files.service.$1"; }

names() {
  say "names, links and long lists"
  cd $at
  mkdir d
  echo one > a
  mv a d/b
  ln d/b c
  ln -s "d/$(printf 'long%.0s' {1..900})" s
  cold
  same "a symbolic link" "$(readlink s | wc -c)" 3603
  same "hard links" "$(stat -c %h c)" 2
  if cat missing 2> /dev/null; then fail "a missing file was read"; fi
  mkdir many
  (cd many && for number in $(seq 500); do : > "a name that makes the list of this directory long $number"; done)
  cold
  same "entries" "$(find many -type f | wc -l)" 500
  rm -r many d c s
  same "what is left" "$(ls -A)" ""
  cd /tmp
}

# A value that makes the call too long for a message.
attributes() {
  say "extended attributes in long calls"
  echo file > $at/attributed
  head -c 20000 /dev/urandom | base64 -w 0 > /tmp/value
  python3 - $at/attributed /tmp/value << 'END' || fail "an extended attribute"
import os, sys
value = open(sys.argv[2], "rb").read()
os.setxattr(sys.argv[1], "user.long", value)
assert os.getxattr(sys.argv[1], "user.long") == value
END
  rm $at/attributed
}

data() {
  say "data"
  copy_and_truncate
  rm $at/copy
  verify "NFS over RDMA, direct" $at/direct 16
  verify "NFS over RDMA, direct, large" $at/direct 16 --bsrange=1m-1m --iodepth=4
  verify_buffered
  rm $at/direct $at/buffered
}

# Aligned reads and writes of 4 KiB and more are not copied by Windlass.
copies_nothing() {
  local read written
  read=$(counter read_bytes_copied) written=$(counter write_bytes_copied)
  dd if=/tmp/random of=$at/aligned bs=1M oflag=direct status=none
  dd if=$at/aligned of=/dev/null bs=1M iflag=direct status=none
  fio --name=aligned --filename=$at/aligned --size=8M --rw=randrw --bs=4k --direct=1 --ioengine=psync \
    --eta=never --minimal > /dev/null || fail "fio"
  say "bytes read by RDMA $(counter rdma_bytes_read), written $(counter rdma_bytes_written)," \
    "borrowed $(counter read_bytes_borrowed)"
  same "copied bytes of READs" "$(($(counter read_bytes_copied) - read))" 0
  same "copied bytes of WRITEs" "$(($(counter write_bytes_copied) - written))" 0
  [ "$(counter rdma_bytes_written)" -ge $((10 << 20)) ] || fail "RDMA WRITE was not used"
  [ "$(counter write_bytes_fetched)" -ge $((10 << 20)) ] || fail "RDMA READ was not used"
  rm $at/aligned
}

beside_tcp() {
  say "over TCP beside"
  mkdir -p /mnt/tcp
  show mount -t nfs -o "vers=4.2,proto=tcp,port=2049,sec=sys,nosharecache" "$fabric:/scratch" /mnt/tcp
  cp /tmp/random /mnt/tcp/file
  cold
  show cmp /tmp/random $at/file
  cp /tmp/expected $at/other
  cold
  show cmp /tmp/expected /mnt/tcp/other
  rm $at/file /mnt/tcp/other
  show umount /mnt/tcp
}

killed_under_load() {
  mkdir $at/synced
  echo 0 > /tmp/acknowledged
  write_files &
  local writer=$! round
  for round in 1 2; do
    before=$(acknowledged)
    eventually 60 has_gone_on
    say "round $round: the appliance is killed after $(acknowledged) files"
    die
    before=$(acknowledged)
    start
    eventually 180 has_gone_on
  done
  touch /tmp/stop
  wait $writer || fail "writing failed: $(acknowledged) files"
  check_files
}

cd /tmp
show uname -r
soft_roce
modprobe -a nfsv4 rpcrdma
mkdir -p $STATE_DIRECTORY
configure 0 '"vol0"' << END

[[device]]
name = "vol0"
type = "memory"
size = "4MiB"

[[device]]
name = "ram"
type = "memory"
size = "64MiB"

[[device]]
name = "disk"
type = "file"
path = "/tmp/files.img"
size = "96MiB"

[[volume]]
name = "scratch"
device = "ram"

[[volume]]
name = "files"
device = "disk"
metadata_memory = "8MiB"

[[share]]
name = "scratch"
volume = "scratch"
allow_any_client = true
squash = "none"

[[share]]
name = "files"
volume = "files"
clients = ["$fabric"]
squash = "none"

[[file_listener]]
name = "nfs"
address = "$fabric:2049"

[[file_listener]]
name = "nfs-rdma"
transport = "rdma"
address = "$fabric:20049"

[control]
socket = "$control"
END
show windlass check $config
show windlass volume format files --config $config
start
mount_share scratch 4.1
names
data
copies_nothing
show umount $at
mount_share scratch 4.2 nconnect=4
names
attributes
data
beside_tcp
say "connections over RDMA $(counter rdma_connections), failed $(counter rdma_connections_failed)," \
  "calls refused $(counter rdma_calls_refused)"
same "refused calls" "$(counter rdma_calls_refused)" 0
show umount $at
mount_share files 4.2
killed_under_load
show umount $at
stop
show windlass volume check files --config $config
if dmesg | grep -iE '(nfs|rpcrdma).*(error|bad|fail)|hung task|WARNING:|BUG:'; then
  fail "the kernel complains"
fi
