#!/usr/bin/env bash
# `measure device-memory` copies a namespace to another one of the same drive through the arena, and through
# the drive's controller memory buffer, alone and beside a neighbour that copies memory, and prints the bandwidth of
# the latter relative to the former and the slowdown of the neighbour. The drive is emulated, so the figures
# show that it works, and nothing about hardware. A drive of the kernel, one without such a buffer, and
# namespaces that cannot be copied are refused. The kernel's own driver compares the namespaces.
#   INTEROP_PROGRAMS   the directory with windlass and measure
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

# refused TEXT ARGUMENT…: the measurement fails with TEXT, in one line.
refused() {
  local text=$1 output
  shift
  echo "\$ measure device-memory $*"
  if output=$(measure device-memory "$@" 2>&1); then fail "it was not refused: $output"; fi
  echo "$output"
  grep -qF -- "$text" <<< "$output" || fail "it does not say: $text"
  [ "$(wc -l <<< "$output")" = 1 ] || fail "the error is not one line"
}

# figure FILTER: whether the report has it.
figure() { jq -e "$1" /tmp/device-memory.json > /dev/null || fail "the report lacks: $1"; }

plug_in_without_buffer() {
  qmp device_add driver=nvme id=nvme1 bus=hp1 serial=LAB1 subsys=subsys1 > /dev/null
}

modprobe -a nvme
cp "$(command -v measure)" /tmp/measure
PATH=/tmp:$PATH
cd /tmp
show uname -r
eventually 20 disk_of $A 2
dd if=/dev/urandom of="$(disk_of $A 1)" bs=1M count=64 oflag=direct status=none
dd if=/dev/zero of="$(disk_of $A 2)" bs=1M count=64 oflag=direct status=none

say "what cannot be measured"
refused "windlass bind" $A --overwrite 2
qmp device_del id=nvme1 > /dev/null
eventually 30 test ! -e /sys/bus/pci/devices/$B
eventually 30 plug_in_without_buffer
eventually 30 disk_of $B 2
show windlass bind $A $B
refused "has no controller memory buffer for data" $B --overwrite 2
refused "namespace 1 cannot be copied to itself" $A --overwrite 1
refused "namespace 7" $A --overwrite 7
refused "copies in flight" $A --overwrite 2 --depth 1000
refused "0000:1f:1f.7" 0000:1f:1f.7 --overwrite 2

say "both paths, and their neighbour"
show measure device-memory $A --overwrite 2 --rounds 3 --time 2 --neighbour-memory 64MiB --core 0 \
  --neighbour-core 1 --json /tmp/device-memory.json
figure '.emulated and (.rounds | length) == 3 and .compared == 512'
figure '[.rounds[] | .neighbour, (.host, .drive_memory | .alone, .beside, .neighbour)] | all(. > 0)'
jq -c '.rounds[]' /tmp/device-memory.json

say "the kernel's driver compares the namespaces"
show windlass unbind $A
eventually 20 disk_of $A 2
cmp "$(disk_of $A 1)" "$(disk_of $A 2)" || fail "the copy is not the same"
expect_quiet_iommu
say passed
