#!/usr/bin/env bash
# A drive whose device has data_path = "drive-memory" is used over soft RoCE and TCP. Linux 6.19 and later
# export the drive's controller memory buffer as a dma-buf, and soft RoCE refuses to register it: all data
# takes the way through the arena, is right, and is counted by reason; status, metrics, doctor and log
# say why. The drive is pulled, and is back.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/copies.sh"
. "$(dirname "$0")/lib/rdma.sh"

on_host_path() { counted a1 ".transfers_on_host_path.$1"; }

# grows REASON COMMAND…: the command's requests are counted by this reason, and none by the other ones
# of large requests.
grows() {
  local reason=$1 before=() after=() reasons=(unregistered transport) index
  shift
  for index in "${reasons[@]}"; do before+=("$(on_host_path "$index")"); done
  "$@"
  for index in "${reasons[@]}"; do after+=("$(on_host_path "$index")"); done
  for index in 0 1; do
    say "${reasons[$index]}: ${before[$index]}, then ${after[$index]}"
    if [ "${reasons[$index]}" = "$reason" ]; then
      [ "${after[$index]}" -gt "${before[$index]}" ] || fail "it was not counted as $reason"
    else
      [ "${after[$index]}" = "${before[$index]}" ] || fail "it was counted as ${reasons[$index]}"
    fi
  done
}

# large: writes and verifies with requests of 1 MiB.
large() {
  local disk
  disk=$(device_of 1)
  echo 1024 > "/sys/block/${disk##*/}/queue/max_sectors_kb"
  verify "large requests" "$disk" 16 --bsrange=1m-1m --iodepth=4
}

is_served_again() { [ "$(counted a1 .state)" = ready ]; }

cd /tmp
show uname -r
soft_roce
show windlass bind $A
configure 0,1 '"a1"' <<END
[control]
socket = "$control"

$(drive_table a1 $A 'data_path = "drive-memory"')
END
start

say "over soft RoCE"
over_rdma
connect
grows unregistered large
verify "small requests" "$(device_of 1)" 8
[ "$(on_host_path small)" -gt 0 ] || fail "small requests are not counted"
disconnect

say "over TCP"
over_tcp
connect
grows transport large
disconnect

say "the exported memory does not keep the drive"
qmp device_del id=nvme0 > /dev/null
eventually 30 said "a1 is gone"
eventually 30 test ! -e /sys/bus/pci/devices/$A
eventually 30 plug_in_again 0
eventually 30 windlass bind $A
eventually 30 is_served_again
over_rdma
connect
grows unregistered large
disconnect

say "nothing went through the drive's memory, and everything says why"
show jq -c . <<< "$(counted a1 '[.transfers, .transfers_on_host_path, .drive_memory] | tostring')"
[ "$(counted a1 '.transfers | add') $(counted a1 .drive_memory.cards)" = "0 0" ] || fail "the way was used"
counted a1 '.drive_memory.not_registered[]' | grep "^rxe0: " || fail "the status does not name the card"
exec 3<> /dev/tcp/127.0.0.1/9808
printf 'GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9808\r\nConnection: close\r\n\r\n' >&3
cat <&3 > /tmp/metrics
exec 3>&-
grep -E '^windlass_device_transfers_on_host_path_total\{.*reason="unregistered".*\} [1-9]' /tmp/metrics \
  || fail "no metric: $(head -n 20 /tmp/metrics)"
(windlass doctor --config $config || true) > /tmp/doctor.log
grep "^SLOW.*device a1.*No network card has registered that memory (rxe0: " /tmp/doctor.log \
  || fail "doctor does not explain it: $(cat /tmp/doctor.log)"
grep -F "not soft RoCE" /tmp/doctor.log || fail "doctor names no fix: $(cat /tmp/doctor.log)"
grep -F "memory of a drive is not registered" /tmp/windlass.log || fail "the log does not say it"
stop
if dmesg | grep -E 'WARNING:|BUG:|refcount'; then fail "the kernel complains"; fi
expect_quiet_iommu
say passed
