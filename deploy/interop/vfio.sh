#!/usr/bin/env bash
# Moves drives from the kernel to VFIO and back: drives in use stay, refusals state the reason, and
# the kernel finds its file system again. The guest has two drives of two namespaces each, with
# controller memory; INTEROP_PROGRAMS contains windlass and examples/lab_drive.
# shellcheck source=deploy/interop/lib/guest.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"

A=0000:01:00.0
B=0000:02:00.0
PATH=$INTEROP_PROGRAMS:$INTEROP_PROGRAMS/examples:$PATH

driver_of() { basename "$(readlink -f "/sys/bus/pci/devices/$1/driver")"; }
group_of() { basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")"; }

# refused TEXT COMMAND…: the command fails with one line for each drive, one of them with TEXT.
refused() {
  local text=$1 output
  shift
  echo "\$ $*"
  if output=$("$@" 2>&1); then fail "$* was not refused: $output"; fi
  echo "$output"
  grep -qF -- "$text" <<< "$output" || fail "$* does not say: $text"
}

# listed TEXT: the output of windlass devices contains TEXT.
listed() {
  local output
  output=$(windlass devices)
  grep -qF -- "$1" <<< "$output" || fail "not in the list: $1: $output"
}

# disk_of ADDRESS NAMESPACE: prints the block device if it exists.
disk_of() {
  local disk=
  for _ in $(seq 100); do
    disk=$(windlass devices --json | jq -r --arg a "$1" --argjson n "$2" \
      '.[] | select(.address == $a) | .namespaces[] | select(.nsid == $n) | .block_device')
    [ -n "$disk" ] && [ -b "/dev/$disk" ] && break
    sleep 0.1
  done
  [ -n "$disk" ] || fail "$1 has no namespace $2"
  echo "/dev/$disk"
}

unprivileged() {
  prlimit --memlock="$1" setpriv --reuid=nobody --regid=nogroup --clear-groups "${@:2}"
}

cd /tmp
show uname -r

say "the kernel has both drives"
modprobe nvme
for drive in $A $B; do echo "$drive" > /sys/bus/pci/drivers_probe; done
a1=$(disk_of $A 1) b1=$(disk_of $B 1) b2=$(disk_of $B 2)
show windlass devices
listed "\`windlass bind $A\` moves it to vfio-pci"
windlass devices --json | jq -e 'length == 2 and .[0].serial == "LAB0" and .[1].driver == "nvme"' > /dev/null

say "wrong addresses"
refused "is not a PCI address" windlass bind nvme0n1
refused "no PCI function has this address" windlass bind 0000:7f:00.0
refused "is not an NVMe drive" windlass bind 0000:00:00.0
refused "no PCI function has this address" windlass unbind 0000:7f:00.0

say "every kind of use is refused, and nothing is moved"
mkfs.ext4 -q "$a1"
mkdir -p /mnt/a
mount "$a1" /mnt/a
head -c 4M /dev/urandom > /mnt/a/data
sum=$(sha256sum < /mnt/a/data)
sync
refused "$a1 is mounted on /mnt/a: umount it first" windlass bind $A
listed "$A is in use: $a1 is mounted on /mnt/a"
refused "$a1 is mounted" windlass bind $B $A
[ "$(driver_of $A) $(driver_of $B)" = "nvme nvme" ] || fail "a drive was moved"
umount /mnt/a
unshare --mount sh -c "mount $a1 /mnt/a; exec sleep 60" &
elsewhere=$!
eventually 10 grep -q " /mnt/a " /proc/$elsewhere/mountinfo
refused "$a1 is mounted on /mnt/a in the mount namespace of process $elsewhere" windlass bind $A
kill $elsewhere
wait $elsewhere || true
eventually 10 mount "$a1" /mnt/a
mkswap "$b1" > /dev/null
swapon "$b1"
refused "$b1 is swap space" windlass bind $B
swapoff "$b1"
modprobe loop
loop=$(losetup --find --show "$b2")
refused "is part of loop device ${loop#/dev/}" windlass bind $B
losetup --detach "$loop"
eventually 10 test ! -e "/sys/block/${loop#/dev/}/loop/backing_file"
exec 3< "$b2"
refused "is open in bash (process $$)" windlass bind $B
exec 3<&-
# A partition table with one entry: type 83h, 65536 sectors from sector 2048.
printf '\0\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x01\0' | dd of="$b2" bs=1 seek=446 conv=notrunc status=none
printf '\x55\xaa' | dd of="$b2" bs=1 seek=510 conv=notrunc status=none
blockdev --rereadpt "$b2"
eventually 10 test -b "${b2}p1"
mkfs.ext4 -q "${b2}p1"
mkdir -p /mnt/b
mount "${b2}p1" /mnt/b
refused "${b2}p1 is mounted on /mnt/b" windlass bind $B
umount /mnt/b
modprobe nvmet
export=/sys/kernel/config/nvmet/subsystems/taken
mkdir $export $export/namespaces/1
echo "$b1" > $export/namespaces/1/device_path
echo 1 > $export/namespaces/1/enable
refused "$b1 is exported by the kernel as taken" windlass bind $B
rmdir $export/namespaces/1 $export

say "both are handed over"
umount /mnt/a
show windlass bind --dry-run $A $B
[ "$(driver_of $A) $(driver_of $B)" = "nvme nvme" ] || fail "a dry run moved a drive"
show windlass bind $A $B
[ "$(driver_of $A) $(driver_of $B)" = "vfio-pci vfio-pci" ] || fail "a drive was not moved"
show windlass bind $A $B
show windlass devices
listed "ready to be exported"
windlass devices --json | jq -e 'all(.[]; .ready and .problem == null)' > /dev/null
show lab_drive check $A $B

say "without root"
node=/dev/vfio/$(group_of $A)
chmod 600 "$node"
refused "no permission for $node" unprivileged unlimited lab_drive open $A 33554432
chgrp nogroup "$node"
chmod 660 "$node"
refused "have to be pinned" unprivileged 65536 lab_drive open $A 33554432
show unprivileged unlimited lab_drive open $A 33554432
show unprivileged 134217728 lab_drive open $A 33554432
# Ordinary pages count twice: locked by the arena, and pinned for the drive.
pages=$(cat /proc/sys/vm/nr_hugepages)
echo 0 > /proc/sys/vm/nr_hugepages
refused "67108864 bytes have to be pinned" unprivileged 34000000 lab_drive open $A 33554432
show unprivileged 70000000 lab_drive open $A 33554432
echo "$pages" > /proc/sys/vm/nr_hugepages
refused "run this as root" unprivileged unlimited windlass unbind $A
[ "$(driver_of $A)" = vfio-pci ] || fail "the drive was moved without root"

say "a drive that is held is not taken away"
lab_drive hold $A > hold.log &
holder=$!
eventually 20 grep -q holding hold.log
refused "$A is open in lab_drive (process $holder)" windlass unbind $A
refused "$A is open in lab_drive (process $holder)" lab_drive open $A 33554432
listed "$A is open in lab_drive (process $holder)"
kill $holder
wait $holder || true

say "a drive that is pulled is asked for, and comes back"
lab_drive hold $B > hold.log &
holder=$!
eventually 20 grep -q holding hold.log
qmp device_del id=nvme1 > /dev/null
wait $holder || fail "the holder was not asked"
grep -q "letting go" hold.log || fail "the holder was not asked: $(cat hold.log)"
eventually 20 test ! -e /sys/bus/pci/devices/$B
refused "no PCI function has this address" windlass unbind $B
eventually 20 sh -c 'qmp device_add driver=nvme id=nvme1 bus=hp1 serial=LAB1 subsys=subsys1 > /dev/null'
eventually 20 test -e /sys/bus/pci/devices/$B
disk_of $B 1
show windlass devices
eventually 10 windlass bind $B
show lab_drive check $A $B

say "a neighbour in the IOMMU group"
qmp device_add driver=virtio-rng-pci id=neighbour bus=hp2 addr=0x0.0x1 multifunction=true > /dev/null
qmp device_add driver=nvme id=nvme2 bus=hp2 addr=0x0.0x0 multifunction=true serial=LAB2 > /dev/null
eventually 20 test -e /sys/bus/pci/devices/0000:03:00.1/driver
[ -e /sys/bus/pci/devices/0000:03:00.0/driver ] || echo 0000:03:00.0 > /sys/bus/pci/drivers_probe
show windlass devices
listed "0000:03:00.0 shares IOMMU group"
neighbour="shares IOMMU group $(group_of 0000:03:00.0) with 0000:03:00.1 (virtio-pci)"
refused "$neighbour" windlass bind 0000:03:00.0
[ "$(driver_of 0000:03:00.0)" = nvme ] || fail "a drive of a shared group was moved"

say "back to the kernel"
show windlass unbind --dry-run $A $B
show windlass unbind $A $B
show windlass unbind $A $B
a1=$(disk_of $A 1)
[ "$(driver_of $A) $(driver_of $B)" = "nvme nvme" ] || fail "a drive is not back"
[ "$(cat /sys/bus/pci/devices/$A/driver_override)" = "(null)" ] || fail "driver_override stays"
fsck.ext4 -n -f "$a1" || fail "the file system was harmed"
mount -o ro "$a1" /mnt/a
[ "$(sha256sum < /mnt/a/data)" = "$sum" ] || fail "the data is not the same"
umount /mnt/a
if dmesg | grep -E 'DMAR:.*(fault|Fault)'; then fail "the IOMMU saw a fault"; fi
say "passed"
