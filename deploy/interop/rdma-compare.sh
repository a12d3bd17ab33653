#!/usr/bin/env bash
# The appliance and the kernel's own target (nvmet) serve a disk in memory of the same size over the
# same soft RoCE to the same kernel host, alternating, three times. Bare verbs transfer the same
# bytes over it, as the ceiling of both. Prints the rates and their ratios. The machine is emulated,
# so only the ratios within a run are meaningful.
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"

mebibytes=64
kernel_nqn=nqn.2026-11.org.windlass:kernel
seconds=${INTEROP_SECONDS:-3}

# attach NQN PORT: prints the namespace's device.
attach() {
  nvme connect -t rdma -a $fabric -s "$2" -n "$1" -i 2 > /dev/null
  local place device
  for _ in $(seq 100); do
    for place in /sys/class/nvme-subsystem/*; do
      [ "$(cat "$place/subsysnqn" 2> /dev/null)" = "$1" ] || continue
      for device in "$place"/nvme*n*; do
        if [[ $device =~ /(nvme[0-9]+n[0-9]+)$ ]] && [ -b "/dev/${BASH_REMATCH[1]}" ]; then
          echo "/dev/${BASH_REMATCH[1]}"
          return
        fi
      done
    done
    sleep 0.1
  done
  return 1
}

# rate DEVICE BLOCK DEPTH RW: requests per second.
rate() {
  fio --name=rate --filename="$1" --rw="$4" --bs="$2" --iodepth="$3" --direct=1 \
    --ioengine=io_uring --time_based --runtime="$seconds" --ramp_time=1 --size=${mebibytes}m \
    --output-format=json | jq -r '.jobs[0].read.iops | floor'
}

# ceiling BLOCK DEPTH: requests per second of bare verbs; 0 if they cannot be measured, which does
# not affect the comparison of the two targets.
ceiling() {
  if measure ceiling rdma --address $fabric --size "$1" --depth "$2" --time "$seconds" \
    --json /tmp/ceiling.json >&2; then
    jq '.requests_per_second | floor' /tmp/ceiling.json
  else
    echo 0
  fi
}

# part SUM CEILING: the ratio of both.
part() {
  awk "BEGIN { if ($2 > 0) printf \"%.2f\", $1 / $2; else printf \"unknown\" }"
}

cd /tmp
soft_roce
modprobe null_blk nr_devices=0
disk=/sys/kernel/config/nullb/kernel
mkdir $disk
echo $mebibytes > $disk/size
echo 1 > $disk/memory_backed
echo 0 > $disk/irqmode
echo 1 > $disk/power
kernel_subsystem $kernel_nqn /dev/kernel
kernel_port 1 rdma $fabric 4421
kernel_export 1 $kernel_nqn
configure 1 '"ram"' <<END

[[device]]
name = "ram"
type = "memory"
size = "${mebibytes}MiB"
END
start
ours=$(attach "$INTEROP_NQN" "$INTEROP_PORT") || fail "the appliance's disk is not there"
kernels=$(attach $kernel_nqn 4421) || fail "the kernel's disk is not there"
say "ours $ours, the kernel's $kernels"
for device in "$ours" "$kernels"; do
  dd if=/dev/urandom of="$device" bs=1M count=$mebibytes oflag=direct status=none
done

# compare NAME BLOCK DEPTH RW: alternates, so that other load on the machine affects both.
compare() {
  local a b c sum_a=0 sum_b=0 sum_c=0
  for _ in 1 2 3; do
    a=$(rate "$ours" "$2" "$3" "$4")
    b=$(rate "$kernels" "$2" "$3" "$4")
    c=$(ceiling "$2" "$3")
    echo "$1: ours $a IOPS, nvmet-rdma $b IOPS, bare verbs $c a second"
    sum_a=$((sum_a + a)) sum_b=$((sum_b + b)) sum_c=$((sum_c + c))
  done
  say "$1: ratio $(part $sum_a $sum_b) to nvmet-rdma, $(part $sum_a $sum_c) to bare verbs," \
    "nvmet-rdma's to bare verbs $(part $sum_b $sum_c)"
}

compare "4 KiB random reads, depth 32" 4k 32 randread
compare "128 KiB reads, depth 8" 128k 8 read
nvme disconnect -n "$INTEROP_NQN"
nvme disconnect -n $kernel_nqn
stop
[ "$(moved bytes_copied)" = 0 ] || fail "bytes were copied"
say passed
