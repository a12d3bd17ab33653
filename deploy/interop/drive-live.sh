#!/usr/bin/env bash
# A drive is added to the appliance and removed from it while the host uses another drive, without a
# restart. A removed drive belongs to the kernel again, with the data that was written, and can be
# added again.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

apply() { show windlass apply --socket $control; }

# holds_drive ADDRESS: whether the appliance has the node of the drive's IOMMU group open.
holds_drive() { find "/proc/$windlass/fd" -lname "$(node_of "$1")" | grep -q .; }
holds_no_drive() { ! holds_drive "$1"; }

# locked_kib: the appliance's locked memory, with what is pinned for drives.
locked_kib() { awk '/^VmLck/ { print $2 }' "/proc/$windlass/status"; }

# refused TEXT: the configuration is not applied, one line says why, and nothing is changed.
refused() {
  local output
  echo "\$ windlass apply"
  if output=$(windlass apply --socket $control 2>&1); then fail "it was applied: $output"; fi
  echo "$output"
  grep -qF -- "$1" <<< "$output" || fail "it does not say: $1"
  grep -qF "nothing was changed" <<< "$output" || fail "something was changed"
}

# is_as_before: the host still has the two namespaces of drive A, and no others.
is_as_before() {
  is_served 1 && is_served 2 && is_not_served 3 && is_not_served 4 && is_live
}

modprobe -a nvme nvme-tcp
cd /tmp
show uname -r
show windlass bind $A
[ -e "/sys/bus/pci/devices/$B/driver" ] || echo $B > /sys/bus/pci/drivers_probe
eventually 20 disk_of $B 1
configure_drives 0-1 "a1 a2"
start
connect
files=$(find "/proc/$windlass/fd" -type l | wc -l)

say "I/O on drive A, which lasts"
fio --name=steady --filename="$(device_of 2)" --rw=randrw --bs=4k --iodepth=8 --direct=1 \
  --ioengine=io_uring --time_based --runtime=600 --size=32M --output=/tmp/steady.log &
steady=$!

say "drives that cannot be added"
configure_drives 0-1 "a1 a2 b1 b2"
refused "\`windlass bind $B\` moves it to vfio-pci"
[ "$(driver_of $B)" = nvme ] || fail "the drive was touched"
is_as_before || fail "the host sees a change"
show windlass bind $B
sed -i 's/^namespace = 2/namespace = 7/' $config
sed -i '0,/^namespace = 7/ s//namespace = 2/' $config
refused "$B: the drive has no active namespace 7"
is_as_before || fail "the host sees a change"
holds_no_drive $B || fail "the appliance kept the drive"

for round in 1 2 3; do
  say "round $round: drive B is added"
  configure_drives 0-1 "a1 a2 b1 b2"
  apply
  eventually 30 is_served 3
  eventually 30 is_served 4
  holds_drive $B || fail "the appliance does not have the drive"
  windlass status --socket $control | grep b1 || fail "the status does not show it"
  [ "$round" = 1 ] || cmp -n $((4 << 20)) /tmp/data "$(device_of 4)" || fail "the data is not the same"
  verify "drive B, round $round" "$(device_of 3)" 8
  head -c 4M /dev/urandom > /tmp/data
  # Not flushed: the removal has to make the drive write its cache.
  dd if=/tmp/data of="$(device_of 4)" bs=64k oflag=direct status=none
  kill -0 $steady || fail "fio on drive A ended: $(cat /tmp/steady.log)"

  say "round $round: drive B is removed"
  configure_drives 0-1 "a1 a2"
  apply
  eventually 30 is_not_served 3
  eventually 30 is_not_served 4
  is_as_before || fail "the host sees another change"
  holds_no_drive $B || fail "the appliance still has the drive"
  [ "$(find "/proc/$windlass/fd" -type l | wc -l)" -le $((files + 2)) ] || fail "descriptors leak"

  say "round $round: the kernel has drive B"
  show windlass unbind $B
  eventually 20 disk_of $B 2
  cmp -n $((4 << 20)) /tmp/data "$(disk_of $B 2)" || fail "the kernel's data is not the same"
  show windlass bind $B
done

say "every drive is removed, and the memory is no longer mapped for any"
kill -0 $steady || fail "fio on drive A ended: $(cat /tmp/steady.log)"
kill -INT $steady
wait $steady || true
grep -q 'err= 0' /tmp/steady.log || fail "fio on drive A: $(cat /tmp/steady.log)"
head -c 4M /dev/urandom > /tmp/data-a
dd if=/tmp/data-a of="$(device_of 2)" bs=64k oflag=direct status=none
mapped_kib=$(locked_kib)
configure_drives 0-1 "a1"
# The device becomes one in memory.
sed -i -e 's/^type = "nvme"/type = "memory"\nsize = "8MiB"/' -e '/^pci/d' -e '/^namespace/d' $config
apply
holds_no_drive $A || fail "the appliance still has drive A"
say "locked: $mapped_kib KiB with a drive, $(locked_kib) KiB without"
[ "$(locked_kib)" -le $((mapped_kib - 65536)) ] || fail "the memory is still mapped"
eventually 30 is_not_served 2

say "both drives are added"
configure_drives 0-1 "a1 a2 b1 b2"
apply
for nsid in 1 2 3 4; do eventually 30 is_served $nsid; done
eventually 30 is_live
# A Linux host that reconnects and finds other identifiers removes the namespace, and adds it at the
# next scan only.
sleep 2
is_served 1 || show nvme ns-rescan "/dev/$controller"
eventually 30 is_served 1
[ "$(locked_kib)" = "$mapped_kib" ] || fail "$(locked_kib) KiB are locked, not $mapped_kib"
cmp -n $((4 << 20)) /tmp/data-a "$(device_of 2)" || fail "the data of drive A is not the same"
cmp -n $((4 << 20)) /tmp/data "$(device_of 4)" || fail "the data of drive B is not the same"
verify "drive A, back again" "$(device_of 1)" 8
expect_quiet_iommu
disconnect

say "a stop shuts added drives down"
stop
show windlass unbind $A $B
eventually 20 disk_of $B 2
cmp -n $((4 << 20)) /tmp/data "$(disk_of $B 2)" || fail "the kernel's data is not the same"
expect_quiet_iommu
say passed
