#!/usr/bin/env bash
# The kernel's NFS client uses a durable volume on an NVMe drive while the appliance is killed and
# started again, and while the drive is pulled and plugged in again, both under load. The client waits
# and goes on by itself; everything that it has synced is there; a share of another volume is served
# while the drive is gone; `windlass volume` formats, checks and lists the drive without the appliance.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/files.sh"

nfs_port=2049
rounds=2
export STATE_DIRECTORY=/tmp/state

configure_files() {
  configure_export '"vol0"' << END

[[device]]
name = "vol0"
type = "memory"
size = "4MiB"

[[device]]
name = "fast"
type = "nvme"
pci = "$A"

[[device]]
name = "ram"
type = "memory"
size = "8MiB"

[[volume]]
name = "files"
device = "fast"
metadata_memory = "8MiB"

[[volume]]
name = "scratch"
device = "ram"
metadata_memory = "1MiB"

[[share]]
name = "files"
volume = "files"
clients = ["$INTEROP_ADDRESS"]
squash = "none"

[[share]]
name = "scratch"
volume = "scratch"
clients = ["$INTEROP_ADDRESS"]
squash = "none"

[[file_listener]]
name = "nfs"
address = "0.0.0.0:$nfs_port"
END
}

mount_at() {
  mkdir -p "$2"
  show mount -t nfs -o "vers=4.2,proto=tcp,port=$nfs_port,sec=sys,nconnect=2" \
    "$INTEROP_ADDRESS:/$1" "$2"
}

begin
modprobe nfsv4
mkdir -p $STATE_DIRECTORY
show windlass bind $A
configure_files
show windlass check $config
if windlass run $config > /tmp/refused 2>&1; then fail "a drive without a volume was served"; fi
grep -q 'windlass volume format files' /tmp/refused || fail "$(cat /tmp/refused)"
show windlass volume format files --config $config
if windlass volume format files --config $config > /tmp/refused 2>&1; then
  fail "a volume was overwritten"
fi
grep -q 'the device has a volume' /tmp/refused || fail "$(cat /tmp/refused)"
show windlass volume check files --config $config
start
if windlass volume check files --config $config > /tmp/refused 2>&1; then
  fail "a drive in use was opened"
fi
cat /tmp/refused
mount_at files $at
mkdir $at/synced
echo 0 > /tmp/acknowledged
write_files &
writer=$!
verify_again &
load=$!
kill_and_restart $rounds
mount_at scratch /mnt/scratch
for round in $(seq $rounds); do
  before=$(acknowledged)
  eventually 60 has_gone_on
  sleep "0.$((RANDOM % 10))"
  say "round $round: the drive is pulled after $(acknowledged) files"
  qmp device_del id=nvme0 > /dev/null
  eventually 30 said "volume files: its device fast is gone"
  eventually 30 test ! -e /sys/bus/pci/devices/$A
  echo "while it is gone" > /mnt/scratch/beside
  sync -f /mnt/scratch/beside
  windlass status --socket $control > /tmp/status 2>&1 || true
  grep -E 'files +fast' /tmp/status || true
  before=$(acknowledged)
  sleep 2
  same "files written without the drive" "$(acknowledged)" "$before"
  eventually 30 sh -c "qmp device_add driver=nvme id=nvme0 bus=hp0 serial=LAB0 subsys=subsys0 > /dev/null"
  eventually 30 test -e /sys/bus/pci/devices/$A
  eventually 30 windlass bind $A
  eventually 60 said "volume files: its device is back"
  eventually 120 has_gone_on
  # The next round waits for messages of its own.
  cat /tmp/windlass.log
  : > /tmp/windlass.log
done
touch /tmp/stop
wait $writer || fail "writing failed: $(acknowledged) files"
wait $load || fail "fio found wrong data: $(cat /tmp/fio)"
check_files
same "beside the drive" "$(cat /mnt/scratch/beside)" "while it is gone"
head -c 4M /dev/urandom > /tmp/random
dd if=/tmp/random of=$at/large bs=1M conv=fsync status=none
say "one more kill, without load"
kill -KILL "$windlass"
wait "$windlass" || true
start
check_files
cold
show cmp /tmp/random $at/large
show fio --name=direct --filename=$at/direct --size=8M --rw=randrw --bs=4k --direct=1 \
  --ioengine=psync --fallocate=none --verify=crc32c --verify_fatal=1 --eta=never --minimal
show umount $at
# The volume in memory is a new one since the kill.
umount -f /mnt/scratch || true
stop
show windlass volume check files --config $config
show windlass volume list --config $config
expect_quiet_iommu
if dmesg | grep -iE 'nfs.*(error|bad|fail)|hung task|WARNING:|BUG:'; then
  fail "the kernel complains"
fi
