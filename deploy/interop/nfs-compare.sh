#!/usr/bin/env bash
# The appliance and the kernel's own server (knfsd) share a file in memory of the same size, on a RAM
# volume and on tmpfs, with the same kernel client and the same mount options, over TCP and over RDMA on
# soft RoCE, alternating. Prints the rates of direct and of buffered sequential reads and their ratios, and
# the processor time of the reactor and of the kernel's threads. The machine is emulated, so only the ratios
# within a run are meaningful.
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/files.sh"

control=/tmp/windlass.sock
mebibytes=64
seconds=${INTEROP_SECONDS:-3}
rounds=${INTEROP_ROUNDS:-3}
# Of knfsd: as many as it has by default.
threads=8
kernel_tcp=2149
kernel_rdma=20149

# knfsd: exports a file system in memory.
knfsd() {
  mkdir -p /srv/memory /var/lib/nfs/v4recovery
  mount -t tmpfs -o size=$((2 * mebibytes))m memory /srv/memory
  modprobe -a nfsd rpcrdma
  mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
  # It would offer less on a machine with little memory.
  echo $((1 << 20)) > /proc/fs/nfsd/max_block_size
  pgrep rpcbind > /dev/null || rpcbind -w
  show exportfs -o rw,no_root_squash,no_subtree_check,fsid=7 "$fabric:/srv/memory"
  show rpc.mountd --no-nfs-version 3
  show rpc.nfsd --no-nfs-version 3 --nfs-version 4.2 --port $kernel_tcp --rdma=$kernel_rdma $threads
  # No client has anything to reclaim.
  echo Y > /proc/fs/nfsd/v4_end_grace
}

# mount_at DIRECTORY PATH TRANSPORT PORT
mount_at() {
  mkdir -p "$1"
  show mount -t nfs -o "vers=4.2,proto=$3,port=$4,sec=sys,nosharecache,rsize=1048576,wsize=1048576" \
    "$fabric:$2" "$1"
}

# direct FILE BLOCK DEPTH RW: requests per second.
direct() {
  fio --name=rate --filename="$1" --readonly --rw="$4" --bs="$2" --iodepth="$3" --direct=1 \
    --ioengine=io_uring --time_based --runtime="$seconds" --ramp_time=1 --size=${mebibytes}m \
    --output-format=json | jq -r '.jobs[0].read.iops | floor'
}

# buffered FILE _ _ _: mebibytes per second into the client's page cache, by its readahead.
buffered() {
  echo 3 > /proc/sys/vm/drop_caches
  fio --name=rate --filename="$1" --readonly --rw=read --bs=1m --ioengine=psync --invalidate=1 \
    --size=${mebibytes}m --output-format=json | jq -r '.jobs[0].read.bw / 1024 | floor'
}

# Ticks of the processor that the server's threads have used: field 14 and 15 of proc_pid_stat(5).
ticks() { awk '{ sub(/.*\) /, ""); sum += $12 + $13 } END { print sum + 0 }' "$@" 2> /dev/null; }
ticks_of_ours() { ticks /proc/"$windlass"/task/*/stat; }
ticks_of_kernels() {
  local places=() pid
  for pid in $(pgrep -x nfsd); do places+=("/proc/$pid/stat"); done
  ticks "${places[@]}"
}

part() { awk "BEGIN { if ($2 > 0) printf \"%.2f\", $1 / $2; else printf \"unknown\" }"; }

# compare NAME KIND BLOCK DEPTH RW: alternates, so that other load on the machine affects both.
compare() {
  local name=$1 a b sum_a=0 sum_b=0 ours=0 kernels=0 before round
  shift
  for round in $(seq "$rounds"); do
    before=$(ticks_of_ours)
    a=$("$1" /mnt/ours/file "$2" "$3" "$4")
    ours=$((ours + $(ticks_of_ours) - before))
    before=$(ticks_of_kernels)
    b=$("$1" /mnt/kernels/file "$2" "$3" "$4")
    kernels=$((kernels + $(ticks_of_kernels) - before))
    echo "$name, round $round: ours $a, knfsd $b"
    sum_a=$((sum_a + a)) sum_b=$((sum_b + b))
  done
  say "$name: ratio $(part $sum_a $sum_b) to knfsd, $(part "$sum_a * $kernels" "($sum_b * $ours)") per" \
    "processor time of the servers; ticks of our threads $ours, of knfsd's $kernels"
}

# profile NAME THREADS FILE BLOCK DEPTH RW: by which threads processors are used meanwhile, and by which
# functions in the server's, if the directory of the build has a `perf` beside it with its libraries.
perf=$INTEROP_PROGRAMS/../perf
profile() {
  local name=$1 threads=$2
  shift 2
  [ -x "$perf/perf" ] || return 0
  direct "$@" > /dev/null &
  LD_LIBRARY_PATH=$perf "$perf/perf" record -q -a -e cpu-clock -F 499 -o /tmp/perf.data sleep 3
  wait $!
  say "profile: $name"
  report --sort comm | sed -E 's/(kworker)[^ ]*/\1/' \
    | awk '$2 != "swapper" { sum[$2] += $1 } END { for (it in sum) print sum[it] " % " it }' | sort -rn | head -n 8
  echo "functions of $threads:"
  report --comm "$threads" --percentage relative --sort symbol --percent-limit 2 | sed -E 's/[ -]+$//'
}
report() {
  LD_LIBRARY_PATH=$perf "$perf/perf" report -q -i /tmp/perf.data --stdio "$@" 2> /dev/null | grep -v '^$'
}

cd /tmp
show uname -r
soft_roce
modprobe -a nfsv4 rpcrdma
configure 1 '"vol0"' << END

[[device]]
name = "vol0"
type = "memory"
size = "4MiB"

[[device]]
name = "ram"
type = "memory"
size = "$((2 * mebibytes))MiB"

[[volume]]
name = "scratch"
device = "ram"

[[share]]
name = "scratch"
volume = "scratch"
allow_any_client = true
squash = "none"

[[file_listener]]
name = "nfs"
address = "$fabric:2049"

[[file_listener]]
name = "nfs-rdma"
transport = "rdma"
address = "$fabric:20049"

[control]
socket = "$control"
END
start
knfsd
head -c ${mebibytes}M /dev/urandom > /tmp/content
for transport in tcp rdma; do
  ports=(2049 $kernel_tcp)
  [ $transport = tcp ] || ports=(20049 $kernel_rdma)
  mount_at /mnt/ours /scratch $transport "${ports[0]}"
  mount_at /mnt/kernels /srv/memory $transport "${ports[1]}"
  grep ' /mnt/' /proc/mounts
  for place in ours kernels; do
    dd if=/tmp/content of=/mnt/$place/file bs=1M conv=fsync status=none
    show cmp /tmp/content /mnt/$place/file
  done
  compare "$transport, 4 KiB random reads, depth 32" direct 4k 32 randread
  compare "$transport, 1 MiB reads, depth 4" direct 1m 4 read
  compare "$transport, buffered sequential reads in MiB/s" buffered - - -
  profile "$transport, 1 MiB reads from ours" reactor-0 /mnt/ours/file 1m 4 read
  profile "$transport, 1 MiB reads from knfsd" nfsd /mnt/kernels/file 1m 4 read
  show umount /mnt/ours /mnt/kernels
done
copied=$(windlass status --socket $control --json | jq -r .files.service.read_bytes_copied)
same "copied bytes of READs" "$copied" 0
stop
rpc.nfsd 0
if dmesg | grep -iE 'nfs.*(error|bad|fail)|hung task|WARNING:|BUG:'; then fail "the kernel complains"; fi
say passed
