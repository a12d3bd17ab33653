#!/usr/bin/env bash
# A PCI function that is no drive, QEMU's edu device, reads from the controller memory buffer of a drive
# what the drive wrote, and writes what the drive reads, by the drive's addresses in their IOMMU
# container. When the drive is released, reset or closed, the same accesses fail: the IOMMU reports each
# of them, and none of the drive.
#   INTEROP_PROGRAMS   the directory with windlass and examples/foreign_function
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

function=0000:03:00.0

cd /tmp
show uname -r
# Its addresses have 64 bits, and not 28.
qmp device_add driver=edu id=foreign bus=hp2 dma_mask=18446744073709551615 > /dev/null
eventually 20 test -e /sys/bus/pci/devices/$function
show windlass bind $A
show pcibind $function vfio-pci
show "$INTEROP_PROGRAMS/examples/foreign_function" $A $function | tee /tmp/foreign.log
grep "^denied: " /tmp/foreign.log > /tmp/denied || fail "nothing was denied"
# The kernel limits the rate of its messages, so that not each access has one.
dmesg | grep -E 'DMAR:.*fault addr' > /tmp/faults || fail "the IOMMU has reported nothing"
cat /tmp/faults
say "$(wc -l < /tmp/denied) accesses were denied, $(wc -l < /tmp/faults) are reported"
# Newer kernels write the domain, too.
if grep -vE "Request device \[(0000:)?${function#0000:}\]" /tmp/faults; then
  fail "a drive reached for memory that is not its own"
fi
sed -E 's/.*DMA (Read|Write).*fault addr (0x[0-9a-f]+).*/denied: \L\1\E \2/' /tmp/faults | while read -r fault; do
  grep -qxF "$fault" /tmp/denied || fail "the IOMMU has reported another one: $fault"
done
say passed
