#!/usr/bin/env bash
# A kernel host discovers the target, attaches, queries all available data, and uses every namespace
# as a raw device and with a file system. INTEROP_CONNECT may enable digests.
. "$(dirname "$0")/lib/guest.sh"

# The target's ICResp determines the digests, not the host's request.
# TCP 1.1 §3.6.2.3: PDU type 01h; byte 11 has HDGST_ENABLE, DDGST_ENABLE.
watch_for_digests() {
  local payload='((tcp[12] & 0xf0) >> 2)'
  timeout 60 tcpdump -i any -n -c 1 \
    "tcp src port $INTEROP_PORT and tcp[$payload] = 1 and tcp[$payload + 2] = 128 and
     tcp[$payload + 11] & 3 = 3" > /tmp/icresp 2> /tmp/tcpdump &
  watcher=$!
  eventually 30 grep -q listening /tmp/tcpdump
}

identify() {
  local device
  show nvme list-subsys
  nvme list-subsys -o json | jq -e --arg nqn "$INTEROP_NQN" \
    '[.. | objects | select(.NQN? == $nqn) | .Paths[] | select(.State == "live")] | length == 1' \
    > /dev/null || fail "list-subsys has no live path"
  show nvme list
  show nvme id-ctrl "/dev/$controller"
  [ "$(nvme id-ctrl "/dev/$controller" -o json | jq -r .subnqn)" = "$INTEROP_NQN" ] ||
    fail "id-ctrl has another NQN"
  show nvme smart-log "/dev/$controller"
  [ "$(nvme smart-log "/dev/$controller" -o json | jq .critical_warning)" = 0 ] ||
    fail "the SMART log has a warning"
  error_log
  show nvme fw-log "/dev/$controller"
  show nvme effects-log "/dev/$controller"
  for device in $(namespaces); do
    show nvme id-ns "$device"
    local id bytes
    id=$(nvme id-ns "$device" -o json)
    bytes=$(jq '.nsze * pow(2; .lbafs[.flbas % 16].ds)' <<< "$id")
    [ "$bytes" = "$(blockdev --getsize64 "$device")" ] || fail "$device: id-ns has another size"
    [ "$(jq '.nguid + .eui64 | test("^0*$")' <<< "$id")" = false ] || fail "$device: no identifier"
    show nvme ns-descs "$device"
    # Linux 6.12 has no Verify in its own target.
    [ "$INTEROP_SELF" = 1 ] || show nvme verify "$device" --start-block=0 --block-count=7
  done
  local uuids
  uuids=$(cat /sys/block/nvme*n*/uuid | sort -u | wc -l)
  [ "$uuids" = "$INTEROP_NAMESPACES" ] || fail "$uuids UUIDs for $INTEROP_NAMESPACES namespaces"
}

file_system() {
  show mkfs.ext4 -q -F "$1"
  show mount "$1" /mnt
  verify "on $1's file system" /mnt/data 48
  show umount /mnt
  show e2fsck -f -n "$1"
}

discard() {
  local device=$1
  show blkdiscard -f "$device"
  # DLFEAT 001b indicates this (NVM 1.1 §4.1.5.1).
  if [ "$(nvme id-ns "$device" -o json | jq '.dlfeat % 8')" = 1 ]; then
    cmp -n $((16 << 20)) "$device" /dev/zero || fail "$device: discarded blocks are not zero"
    say "$device reads as zeroes"
  fi
}

begin
discover
case $INTEROP_CONNECT in *digest*) watch_for_digests ;; esac
connect
case $INTEROP_CONNECT in
  *digest*)
    wait "$watcher" || fail "the target did not agree to both digests"
    say "digests: $(cat /tmp/icresp)"
    ;;
esac
identify
for device in $(namespaces); do
  verify "raw $device" "$device" 32
  file_system "$device"
  discard "$device"
done
error_log
expect_quiet_kernel
disconnect
expect_quiet_kernel
say passed
