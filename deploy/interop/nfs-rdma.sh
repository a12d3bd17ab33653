#!/usr/bin/env bash
# The kernel's NFS client mounts shares over RDMA on soft RoCE, at a listener that is added to a running
# appliance: a share of a RAM volume by NFSv4.1 and 4.2, in part beside a mount over TCP, one of a RAM
# volume that is added later, and one of a durable volume. Under load on that one, the listener and then
# the RDMA device are removed and added again, and the appliance is killed and started again. Names, long
# replies, long calls and data are right, with a cold cache, and Windlass copies no data of 4 KiB or more.
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

# configure_with FILE…: the configuration is the basis with these parts.
configure_with() { cat /tmp/basis.toml "$@" > $config; }
apply() { show windlass apply --socket $control; }
is_registered() { [ "$(pinned_kib)" -ge $((pinned + 65536)) ]; }
is_not_registered() { [ "$(pinned_kib)" -le $((pinned + 4096)) ]; }
# The memory that network cards may access.
pinned_kib() { awk '/^VmPin/ { print $2 }' "/proc/$windlass/status"; }
is_refused() {
  ! timeout 90 mount -t nfs -o vers=4.2,proto=rdma,port=20049,sec=sys,soft,retry=0 "$fabric:/scratch" $at
}

is_count() { [ "$(counter "$1")" = "$2" ]; }
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

# A RAM volume is added, and read from its memory.
volume_comes_and_goes() {
  local borrowed round
  for round in 1 2; do
    say "round $round: a volume is added"
    configure_with /tmp/rdma.toml /tmp/late.toml
    apply
    mount_share late 4.2
    borrowed=$(counter read_bytes_borrowed)
    cp /tmp/random $at/file
    cold
    show cmp /tmp/random $at/file
    dd if=$at/file of=/dev/null bs=1M iflag=direct status=none
    [ "$(counter read_bytes_borrowed)" -ge $((borrowed + (20 << 20))) ] || fail "READs were copied"
    show umount $at
    configure_with /tmp/rdma.toml
    apply
  done
}

# The listener is removed, with its connections, and added again: the client goes on by itself.
listener_under_load() {
  mkdir $at/synced
  echo 0 > /tmp/acknowledged
  write_files &
  local writer=$! round
  verify_again &
  local verifier=$!
  for round in 1 2 3; do
    before=$(acknowledged)
    eventually 60 has_gone_on
    say "round $round: the listener is removed after $(acknowledged) files"
    configure_with
    apply
    same "connections over RDMA" "$(counter rdma_connections)" 0
    is_not_registered || fail "$(pinned_kib) KiB are still pinned"
    before=$(acknowledged)
    sleep 3
    [ "$(acknowledged)" -le $((before + 1)) ] || fail "files were written without a listener"
    configure_with /tmp/rdma.toml
    apply
    is_registered || fail "the memory is not registered"
    eventually 120 has_gone_on
  done
  touch /tmp/stop
  wait $writer || fail "writing failed: $(acknowledged) files"
  wait $verifier || fail "fio: $(cat /tmp/fio)"
  rm /tmp/stop
  check_files
  rm -r $at/synced $at/verified
}

# The RDMA device is removed and created again: nothing keeps it, and the client goes on by itself.
device_under_load() {
  mkdir $at/synced
  echo 0 > /tmp/acknowledged
  write_files &
  local writer=$! round
  for round in 1 2; do
    before=$(acknowledged)
    eventually 60 has_gone_on
    say "round $round: the RDMA device is removed after $(acknowledged) files"
    show timeout 60 rdma link delete rxe0
    eventually 20 is_count rdma_listeners_down 1
    is_count rdma_devices_missing 1 || fail "the status does not show the missing device"
    same "connections over RDMA" "$(counter rdma_connections)" 0
    windlass status --socket $control > /tmp/status.log || true
    grep -F "RDMA device" /tmp/status.log || fail "the status has no line about it"
    windlass doctor --config $config > /tmp/doctor.log || true
    grep -F "RDMA device" /tmp/doctor.log || fail "doctor does not show it"
    before=$(acknowledged)
    show rdma link add rxe0 type rxe netdev d0
    eventually 30 is_count rdma_listeners_down 0
    eventually 30 is_count rdma_devices_missing 0
    eventually 180 has_gone_on
  done
  touch /tmp/stop
  wait $writer || fail "writing failed: $(acknowledged) files"
  rm /tmp/stop
  check_files
  rm -r $at/synced
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
# librdmacm closes a removed device only while there is another one.
ip link add d1 type dummy
ip addr add 192.0.3.1/24 dev d1
ip link set d1 up
show rdma link add rxe1 type rxe netdev d1
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

[control]
socket = "$control"
END
cat > /tmp/rdma.toml << END

[[file_listener]]
name = "nfs-rdma"
transport = "rdma"
address = "$fabric:20049"
END
cat > /tmp/late.toml << END

[[device]]
name = "late"
type = "memory"
size = "32MiB"

[[volume]]
name = "late"
device = "late"

[[share]]
name = "late"
volume = "late"
allow_any_client = true
squash = "none"
END
# No other service registers memory.
awk -v RS= -v ORS='\n\n' '!/name = "san"/' $config | sed 's/"san", //' > /tmp/basis.toml
configure_with
show cat $config
show windlass check $config
show windlass volume format files --config $config
start
pinned=$(pinned_kib)
mkdir -p $at
is_refused || fail "there is a listener over RDMA"
configure_with /tmp/rdma.toml
apply
is_registered || fail "the memory is not registered"
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
volume_comes_and_goes
mount_share files 4.2
listener_under_load
device_under_load
killed_under_load
show umount $at
stop
show windlass volume check files --config $config
if dmesg | grep -iE '(nfs|rpcrdma).*(error|bad|fail)|hung task|WARNING:|BUG:'; then
  fail "the kernel complains"
fi
