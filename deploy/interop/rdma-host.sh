#!/usr/bin/env bash
# The kernel's NVMe/RDMA host on soft RoCE uses the appliance: discovery over RDMA and over TCP,
# four queues, file system, large transfers, the page cache filled by RDMA. Then it disconnects
# during I/O, the link goes down and up, the appliance is killed and restarted, and the network is
# removed permanently.
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"

# Options of a connection that has to survive failures.
patience=(--reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5)

file_system() {
  show mkfs.ext4 -q -F "$1"
  show mount "$1" /mnt
  verify "on $1's file system" /mnt/data 24
  # The page cache is filled with data from the appliance, which is what was written.
  dd if=/dev/urandom of=/mnt/page-cache bs=1M count=16 status=none
  sync /mnt/page-cache
  local before after
  before=$(sha256sum < /mnt/page-cache)
  echo 3 > /proc/sys/vm/drop_caches
  after=$(sha256sum < /mnt/page-cache)
  [ "$before" = "$after" ] || fail "the page cache holds something else"
  say "the page cache holds what was written: $after"
  show umount /mnt
  show e2fsck -f -n "$1"
}

# large DEVICE: transfers of whole mebibytes in one command.
large() {
  [ "$(cat "/sys/block/${1##*/}/queue/max_hw_sectors_kb")" -ge 1024 ] || fail "no 1 MiB transfers"
  echo 1024 > "/sys/block/${1##*/}/queue/max_sectors_kb"
  verify "large on $1" "$1" 32 --bsrange=1m-1m --iodepth=4
}

# under_io OPTION…: verified writes in the background, slow enough to be disturbed.
under_io() {
  verify "under $1" "$ram" 24 --rate=4m,4m $across_failures > /tmp/fio.log 2>&1 &
  fio=$!
  eventually 60 has_written 4096
}

has_written() { [ $(($(awk '{ print $7 }' "/sys/block/${ram##*/}/stat") - start)) -ge "$1" ]; }
said() { grep -qF -- "$1" /tmp/windlass.log; }
note_start() { start=$(awk '{ print $7 }' "/sys/block/${ram##*/}/stat"); }

find_disks() {
  ram=$(device_of 1) vol=$(device_of 2)
  say "the memory is $ram, the file $vol"
}

survived() {
  eventually 60 is_live
  say "the controller is live again"
  wait "$fio" || fail "fio: $(cat /tmp/fio.log)"
  cat /tmp/fio.log
}

cd /tmp
show uname -r
soft_roce
truncate -s 64M /tmp/vol
configure 0,1 '"ram", "vol"' <<END

[[device]]
name = "ram"
type = "memory"
size = "64MiB"

[[device]]
name = "vol"
type = "file"
path = "/tmp/vol"
END
start

say "found over each"
over_tcp
discover_both
over_rdma
discover_both

say "attached over RDMA"
connect -i 4
queues=$(dmesg | grep -oE "creating [0-9]+ I/O queues" | tail -1)
say "$queues"
[ "$queues" = "creating 4 I/O queues" ] || fail "not four I/O queues"
find_disks
file_system "$ram"
large "$vol"
expect_quiet_kernel
disconnect
expect_quiet_kernel
stop

# The main use of Gfarm: RDMA WRITE transfers data from the export's memory to the host's page
# cache.
written=$(moved bytes_written) copied=$(moved bytes_copied)
say "bytes written to the host's memory $written, read from it $(moved bytes_read), copied $copied"
[ "$written" -ge $((16 << 20)) ] || fail "the page cache was not filled by RDMA WRITE"
[ "$copied" = 0 ] || fail "bytes were copied"

say "both transports at once"
: > /tmp/windlass.log
start
over_tcp
connect
verify "over TCP" "$(device_of 1)" 8
disconnect
over_rdma
connect -i 4 "${patience[@]}"
find_disks

# Whether a process has the device open. A slow guest needs seconds to start fio, which would find no
# device after the disconnection, and use a file of that name instead.
is_open() {
  ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q " $1\$"
}

say "the host leaves during I/O"
fio --name=left --filename="$vol" --rw=randrw --bs=16k --direct=1 --ioengine=io_uring --iodepth=32 \
  --time_based --runtime=30 --size=32m --allow_file_create=0 > /tmp/left.log 2>&1 &
left=$!
eventually 30 is_open "$vol"
sleep 1
disconnect
wait "$left" && fail "fio did not notice that the host left"
kill -0 "$windlass" || fail "the appliance is gone"
connect -i 4 "${patience[@]}"
find_disks

say "the link goes down and comes back during I/O"
note_start
under_io "a lost link"
ip link set d0 carrier off
eventually 10 said "a port is down"
sleep 1
ip link set d0 carrier on
eventually 10 said "a port is up"
survived

say "the appliance dies and returns during I/O"
# The content of RAM is lost with the process, so this applies only to the file.
ram=$vol
note_start
under_io "death"
die
eventually 60 is_not_live
sleep 1
start
survived
verify "after all" "$vol" 24 --verify_only=1

# When the interface loses its addresses, soft RoCE breaks every connection and also its own queue
# pair for the connection manager (Linux 6.12, with nvmet too), so that it cannot connect again. The
# other path to the same namespaces takes over, and the appliance continues.
say "the network goes away during I/O, and TCP takes over"
note_start
under_io "a lost network"
ip link set d0 down
eventually 60 is_not_live
sleep 1
ip link set d0 up
over_tcp
show nvme connect "${at_target[@]}" -n "$INTEROP_NQN"
wait "$fio" || fail "fio: $(cat /tmp/fio.log)"
cat /tmp/fio.log
stop
if dmesg | grep -E 'WARNING:|BUG:|hung task'; then fail "the kernel complains"; fi
say passed
