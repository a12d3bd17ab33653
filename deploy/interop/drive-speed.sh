#!/usr/bin/env bash
# Compares our driver and the kernel's on the same drive, alternating: 4 KiB random reads, one core,
# at depths 1 and 32. fio with io_uring uses the kernel's driver. Prints each round, medians and
# their ratio. It is not one of the tests: the guest and its drive are emulated, so only the ratio
# within a run is meaningful.
#
#   cargo build --release -p measurement
#   cargo xtask lab -- run --nvme 1 --ns 1 --size 64M --huge 64 --timeout 600 -- deploy/interop/drive-speed.sh
#
#   DRIVE_PROGRAMS   the directory with measure; target/release by default
#   DRIVE_ROUNDS     rounds, of which medians are taken; 5 by default
#   DRIVE_SECONDS    seconds of each measurement; 3 by default
#   DRIVE_JSON       where to keep the figures; nowhere by default
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
PATH=${DRIVE_PROGRAMS:-$here/target/release}:$PATH
rounds=${DRIVE_ROUNDS:-5}
seconds=${DRIVE_SECONDS:-3}
drive=0000:01:00.0
depths="1 32"

# Programs run from memory, because the share is slow.
cp "$(command -v measure)" /tmp/measure
cd /tmp

disk() {
  local place disk
  for _ in $(seq 100); do
    for place in /sys/bus/pci/devices/$drive/nvme/nvme*/nvme*n1; do
      # With multipath the path below the controller is nvme0c0n1, and the disk nvme0n1.
      disk=$(sed -E 's/c[0-9]+n/n/' <<< "${place##*/}")
      if [ -b "/dev/$disk" ]; then
        echo "/dev/$disk"
        return
      fi
    done
    sleep 0.1
  done
  echo "the kernel's driver shows no disk" >&2
  return 1
}

# kernel DEPTH: reads per second.
kernel() {
  taskset -c 0 fio --name=kernel --filename="$(disk)" --rw=randread --bs=4k --iodepth="$1" --direct=1 \
    --ioengine=io_uring --time_based --runtime="$seconds" --ramp_time=1 --output-format=json |
    jq '.jobs[0].read | {iops: .iops, p50_us: (.clat_ns.percentile["50.000000"] / 1000)}'
}

# ours: reads per second at both depths.
ours() {
  ./measure drive $drive --depth "${depths// /,}" --time "$seconds" --core 0 --json ours.json > /dev/null
  jq '[.rows[] | {depth, iops, p50_us: (.latency.p50_ns / 1000), doorbells}]' ours.json
}

modprobe nvme
modprobe vfio-pci
pcibind $drive nvme > /dev/null
# All blocks that are read are written first: reads of an empty file behind the drive would be too
# fast.
dd if=/dev/urandom of="$(disk)" bs=1M count=64 oflag=direct status=none 2> /dev/null || true
: > rounds.json
for round in $(seq "$rounds"); do
  pcibind $drive nvme > /dev/null
  for depth in $depths; do
    kernel "$depth" | jq -c "{round: $round, who: \"kernel\", depth: $depth} + ." >> rounds.json
  done
  pcibind $drive vfio-pci > /dev/null
  ours | jq -c ".[] | {round: $round, who: \"windlass\"} + ." >> rounds.json
  tail -n 4 rounds.json
done
pcibind $drive nvme > /dev/null

jq -s '
  def median: sort | .[length / 2 | floor];
  def of($who; $depth): map(select(.who == $who and .depth == $depth) | .iops) | median;
  . as $all | {
    rounds: $all,
    medians: [1, 32 | . as $depth | {
      depth: $depth,
      kernel_iops: ($all | of("kernel"; $depth)),
      windlass_iops: ($all | of("windlass"; $depth))
    } | .ratio = .windlass_iops / .kernel_iops]
  }' rounds.json > figures.json
jq -r '.medians[] | "depth \(.depth): windlass \(.windlass_iops | floor) IOPS, the kernel with fio " +
  "\(.kernel_iops | floor) IOPS, ratio \(.ratio * 100 | floor / 100)"' figures.json
if [ -n "${DRIVE_JSON:-}" ]; then cp figures.json "$DRIVE_JSON"; fi
