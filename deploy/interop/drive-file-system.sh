#!/usr/bin/env bash
# Takes drives from the kernel, exports them with the appliance's driver to the kernel's host, and
# returns them: the kernel's driver finds the same file system and the same data.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

begin() {
  modprobe -a nvme nvme-tcp
  cd /tmp
  show uname -r
  for drive in $A $B; do
    [ -e "/sys/bus/pci/devices/$drive/driver" ] || echo "$drive" > /sys/bus/pci/drivers_probe
  done
  eventually 20 disk_of $A 1
  eventually 20 disk_of $B 2
}

# The output of nvme-cli has to match the drives, with one health page for both of them.
identify() {
  local smart
  show nvme list
  for nsid in 1 2 3 4; do
    show nvme id-ns "$(device_of $nsid)"
  done
  show nvme smart-log "/dev/$controller"
  smart=$(nvme smart-log "/dev/$controller" -o json)
  # QEMU's drives are at 323 K.
  [ "$(jq .temperature <<< "$smart")" = 323 ] || fail "the temperature is not the drives'"
  [ "$(jq .critical_warning <<< "$smart")" = 0 ] || fail "a warning"
}

begin
show windlass devices
say "a file system that the kernel made"
one=$(disk_of $A 2)
mkfs.ext4 -q "$one"
mount "$one" /mnt
head -c 8M /dev/urandom > /mnt/from-kernel
(cd /mnt && sha256sum from-kernel) > /tmp/sums
if windlass bind $A; then fail "a drive in use was taken"; fi
umount /mnt

show windlass bind $A $B
configure 0-1
show windlass check $config
windlass check $config | grep -q "$A.*ready" || fail "check does not say that the drive is ready"
start
connect
identify
say "raw, on the second drive"
verify "drive B, namespace 1" "$(device_of 3)" 12
verify "drive B, namespace 2" "$(device_of 4)" 8
show blkdiscard -f "$(device_of 3)"
say "a file system that the appliance's driver made"
show mkfs.ext4 -q -F "$(device_of 1)"
show mount "$(device_of 1)" /mnt
verify "in the file system of drive A" /mnt/data 12
head -c 8M /dev/urandom > /mnt/from-windlass
(cd /mnt && sha256sum from-windlass data) >> /tmp/sums
show umount /mnt
show e2fsck -f -n "$(device_of 1)"
say "the kernel's file system"
show mount "$(device_of 2)" /mnt
(cd /mnt && grep from-kernel /tmp/sums | sha256sum -c) || fail "the kernel's data is not there"
show umount /mnt
# The error log of some drives contains only errors of hosts: none here.
error_log
expect_quiet_kernel
disconnect
stop

show windlass unbind $A $B
eventually 20 disk_of $A 1
[ "$(driver_of $A) $(driver_of $B)" = "nvme nvme" ] || fail "the kernel has not got its drives back"
say "the kernel's driver looks at what the appliance's wrote"
show e2fsck -f -n "$(disk_of $A 1)"
show mount -o ro "$(disk_of $A 1)" /mnt
(cd /mnt && grep -v from-kernel /tmp/sums | sha256sum -c) || fail "the data is not the same"
umount /mnt
show mount -o ro "$(disk_of $A 2)" /mnt
(cd /mnt && grep from-kernel /tmp/sums | sha256sum -c) || fail "the data is not the same"
umount /mnt
expect_quiet_kernel
expect_quiet_iommu
say passed
