# Common part of the scenarios of `windlass copy`; sourced after drives.sh.
# shellcheck shell=bash

namespace_bytes=$((64 << 20))

copy() { windlass copy --socket $control "$@"; }

# copies: the copies in the status.
copies() { windlass status --json --socket $control | jq -c '.copies[]'; }

# last FIELD: that field of the last copy; nothing if there was none.
last() { copies | tail -n 1 | jq -r ".$1"; }

# fails_with TEXT COPY…: the copy does not begin or does not complete, and says this.
fails_with() {
  local text=$1 output
  shift
  echo "\$ windlass copy $*"
  if output=$(copy "$@" 2>&1); then fail "it completed: $output"; fi
  echo "$output"
  grep -qF -- "$text" <<< "$output" || fail "it does not say: $text"
}

has_written() { [ "$(last state)" = running ] && [ "$(last written_bytes)" -ge "$1" ]; }

# abort COPY…: aborts the copy when 2 MiB are written; sets `intact`, where it can be continued.
abort() {
  local copying
  windlass copy --socket $control "$@" > /tmp/aborted.log 2>&1 &
  copying=$!
  eventually 30 has_written $((2 << 20))
  kill -INT $copying
  if wait $copying; then fail "it completed: $(cat /tmp/aborted.log)"; fi
  cat /tmp/aborted.log
  grep -q "it was aborted: continue with --offset" /tmp/aborted.log || fail "it was not aborted"
  intact=$(last intact_bytes)
}

# unreadable FILE SECTOR: makes the block node `bad` of QEMU, which cannot read this sector of the other one.
unreadable() {
  machine "{\"execute\":\"blockdev-add\",\"arguments\":{\"driver\":\"blkdebug\",\"node-name\":\"bad\",
    \"image\":\"$1\",\"inject-error\":[{\"event\":\"none\",\"iotype\":\"read\",\"sector\":$2,\"errno\":5,
    \"once\":false}]}}"
}

# failed_at SECTOR: the lowest range that failed of the last copy has this sector, and what precedes it is
# written; sets `intact`.
failed_at() {
  local failed
  failed=$(last failed_offset) intact=$(last intact_bytes)
  [ "$(last state)" = failed ] || fail "$(copies)"
  [ "$failed" -le $(($1 * 512)) ] && [ $((failed + $(last failed_bytes))) -gt $(($1 * 512)) ] ||
    fail "the range does not contain the bad sector: $(copies)"
  [ "$intact" = "$failed" ] || fail "what precedes the range is not written: $(copies)"
}

# await_disks: the kernel's driver has both drives.
await_disks() {
  local address
  for address in $A $B; do
    [ -e "/sys/bus/pci/devices/$address/driver" ] || echo $address > /sys/bus/pci/drivers_probe
    eventually 20 disk_of $address 2
  done
}

# drive_table NAME ADDRESS LINE…: the configuration of a namespace, whose name is a letter and its number.
drive_table() {
  printf '[[device]]\nname = "%s"\ntype = "nvme"\npci = "%s"\nnamespace = %s\n' "$1" "$2" "${1#?}"
  shift 2
  [ $# = 0 ] || printf '%s\n' "$@"
}

# counted DEVICE FILTER: that number in the status of the device.
counted() {
  # It fails while a drive is gone.
  { windlass status --json --socket $control || true; } \
    | jq -r --arg name "$1" ".devices[] | select(.name == \$name) | $2"
}

# begin_writers: the kernel's host writes and verifies on namespace 1 of the export, which is on drive A,
# and on namespace 2, which is on drive B, until end_writers. An error of one ends the scenario then.
begin_writers() {
  rm -f /tmp/enough
  writer /tmp/enough "drive A beside the copies" "$(device_of 1)" > /tmp/a.log 2>&1 &
  writer_a=$!
  writer /tmp/enough "drive B beside the copies" "$(device_of 2)" > /tmp/b.log 2>&1 &
  writer_b=$!
}

end_writers() {
  touch /tmp/enough
  wait $writer_a || fail "fio on drive A: $(cat /tmp/a.log)"
  wait $writer_b || fail "fio on drive B: $(cat /tmp/b.log)"
  cat /tmp/a.log /tmp/b.log
}

# throttle GROUP NODE FILE: adds a block node of QEMU over another one, which a group limits.
throttle() {
  machine "{\"execute\":\"object-add\",\"arguments\":{\"qom-type\":\"throttle-group\",\"id\":\"$1\"}}"
  qmp blockdev-add driver=throttle "node-name=$2" "throttle-group=$1" "file=$3" > /dev/null
}

# limit GROUP LIMIT NUMBER: sets a limit of a group, such as bps-total or iops-total; 0 is none.
limit() {
  machine "{\"execute\":\"qom-set\",\"arguments\":{\"path\":\"/objects/$1\",\"property\":\"limits\",
    \"value\":{\"$2\":$3}}}"
}

# plug_in_again NUMBER: inserts drive A, 0, or B, 1, which has a controller memory buffer, again.
plug_in_again() {
  qmp device_add driver=nvme "id=nvme$1" "bus=hp$1" "serial=LAB$1" "subsys=subsys$1" cmb_size_mb=16 \
    > /dev/null
}

# A text in blocks that no memory of the machine may have.
canary="this block is not in host memory"

# canaries: how many lines of the appliance's memory have the text of the copied blocks.
canaries() {
  local range permissions begin end found=0 count
  while read -r range permissions _; do
    begin=$((16#${range%-*})) end=$((16#${range#*-}))
    case $permissions in rw*) ;; *) continue ;; esac
    # Unreadable parts, such as registers of drives, end the read.
    count=$(dd if="/proc/$windlass/mem" bs=1M iflag=skip_bytes,count_bytes skip=$begin \
      count=$((end - begin)) 2> /dev/null | grep -acF "$canary" || true)
    found=$((found + count))
  done < "/proc/$windlass/maps"
  echo "$found"
}
