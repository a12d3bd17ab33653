#!/usr/bin/env bash
# The kernel's NFS client uses a durable volume while the appliance is killed and started again under
# load. The client recovers by itself; everything that it has synced is there, also with a cold cache
# and after one more start; a lock that it held stays its own; and `windlass volume check` finds a
# consistent volume after each kill.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/files.sh"

nfs_port=2049
rounds=3
export STATE_DIRECTORY=/tmp/state

configure_files() {
  configure_export '"vol0"' << END

[[device]]
name = "vol0"
type = "memory"
size = "4MiB"

[[device]]
name = "disk"
type = "file"
path = "/tmp/files.img"
size = "256MiB"

[[volume]]
name = "files"
device = "disk"
metadata_memory = "8MiB"

[[share]]
name = "files"
volume = "files"
clients = ["10.9.9.0/24", "$INTEROP_ADDRESS"]
squash = "none"

[[share]]
name = "others"
volume = "files"
clients = ["192.0.2.0/24"]

[[file_listener]]
name = "nfs"
address = "0.0.0.0:$nfs_port"
END
}

mount_share() {
  mkdir -p $at
  show mount -t nfs -o "vers=4.2,proto=tcp,port=$nfs_port,sec=sys,nconnect=4" \
    "$INTEROP_ADDRESS:/files" $at
}

# Another client: a name space of networks with a host name of its own.
other_client() { ip netns exec other unshare --uts --mount bash -c "hostname other; $*"; }

prepare_other_client() {
  ip netns add other
  ip link add to-other type veth peer name to-this netns other
  ip addr add 10.9.9.1/24 dev to-other
  ip link set to-other up
  ip -n other addr add 10.9.9.2/24 dev to-this
  ip -n other link set to-this up
  mkdir -p /mnt/other
}

lock_is_held() {
  other_client "mount -t nfs -o vers=4.2,port=$nfs_port,sec=sys 10.9.9.1:/files /mnt/other &&
    ! flock -n /mnt/other/lock true && umount /mnt/other" || fail "the lock was lost"
  say "the lock is still held"
}

begin
modprobe nfsv4
mkdir -p $STATE_DIRECTORY
configure_files
show windlass check $config
show windlass volume format files --config $config
start
mount_share
if mount -t nfs -o "vers=4.2,port=$nfs_port" "$INTEROP_ADDRESS:/others" /mnt 2> /dev/null; then
  fail "a share of other clients was mounted"
fi
prepare_other_client
mkdir $at/synced
echo locked > $at/lock
flock --no-fork $at/lock sleep 10000 &
holder=$!
echo 0 > /tmp/acknowledged
write_files &
writer=$!
verify_again &
load=$!
kill_and_restart $rounds
lock_is_held
touch /tmp/stop
wait $writer || fail "writing failed: $(acknowledged) files"
wait $load || fail "fio found wrong data: $(cat /tmp/fio)"
check_files
head -c 4M /dev/urandom > /tmp/random
dd if=/tmp/random of=$at/large bs=1M conv=fsync status=none
kill $holder
wait $holder 2> /dev/null || true
say "one more kill, without load"
kill -KILL "$windlass"
wait "$windlass" || true
show windlass volume check files --config $config
start
check_files
cold
show cmp /tmp/random $at/large
show umount $at
mount_share
check_files
show umount $at
stop
show windlass volume check files --config $config
show windlass volume list --config $config
if dmesg | grep -iE 'nfs.*(error|bad|fail)|hung task|WARNING:|BUG:'; then
  fail "the kernel complains"
fi
