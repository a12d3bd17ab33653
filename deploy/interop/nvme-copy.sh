#!/usr/bin/env bash
# The host copies with NVMe Copy within namespaces of two drives, while it writes and verifies on both. With
# `data_path = "drive-memory"` the data is in the controller memory buffer of the drive: counters tell that, and a text
# that each copied block has is not in the memory of the appliance. With `"auto"`, a drive executes by itself the copies
# within its limits. Wrong commands are refused. A drive is pulled
# during copies: those on the other one go on. The kernel's own driver compares. Linux does not let a user enable
# descriptor format 2h (it refuses Set Features of Host Behavior Support), so copies between namespaces are in nvme-copy-across.sh.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/copies.sh"

block_bytes=512
# The host itself reads the beginning and the end of each namespace.
first_block=$(((8 << 20) / block_bytes))
to_block=$(((32 << 20) / block_bytes))
# All of a Copy: 256 KiB.
copy_blocks=512
copies_of_a_round=8

# little NUMBER BYTES: writes the number, the lowest byte first.
little() {
  local index text
  for ((index = 0; index < $2; index++)); do
    printf -v text '\\x%02x' $((($1 >> (8 * index)) & 255))
    # shellcheck disable=SC2059  # the format is the byte
    printf "$text"
  done
}

# list RANGE…: source ranges of descriptor format 0, each BLOCK:BLOCKS.
list() {
  local block blocks
  for range in "$@"; do
    IFS=: read -r block blocks <<< "$range"
    little 0 8; little "$block" 8; little $((blocks - 1)) 2; little 0 14
  done
}

# nvme_copy NSID FORMAT BLOCK RANGE…: copies the ranges of the namespace to the block.
nvme_copy() {
  local nsid=$1 format=$2 block=$3
  shift 3
  list "$@" > "/tmp/list.$BASHPID"
  nvme io-passthru "$(device_of "$nsid")" --opcode=0x19 --namespace-id="$nsid" --cdw10="$block" \
    --cdw12=$((($# - 1) | format << 8)) --data-len=$((32 * $#)) --input-file="/tmp/list.$BASHPID" --write 2>&1
}

# refused TEXT NSID FORMAT BLOCK RANGE…: the Copy has a status with this text.
refused() {
  local text=$1 output
  shift
  if output=$(nvme_copy "$@"); then fail "it completed: $*"; fi
  grep -qiF -- "$text" <<< "$output" || fail "it does not say $text: $output"
}

# copy_all NSID: copies the region of a namespace to its other place.
copy_all() {
  local index offset half=$((copy_blocks / 2))
  for index in $(seq 0 $((copies_of_a_round - 1))); do
    offset=$((index * copy_blocks))
    # Two ranges.
    nvme_copy "$1" 0 $((to_block + offset)) $((first_block + offset)):$half \
      $((first_block + offset + half)):$half > /tmp/copy.log || fail "$(cat /tmp/copy.log)"
  done
}

# by_drive COPIES BLOCK: so many copies within b2 to the blocks from BLOCK on, which drive B executes by itself: QEMU's
# drives take 128 blocks in all, where the others have more.
by_drive() {
  local index offset before
  before=$(counted b2 .copies.drive)
  for index in $(seq 0 $(($1 - 1))); do
    offset=$((index * 128))
    nvme_copy 4 0 $(($2 + offset)) $((first_block + offset)):64 $((first_block + offset + 64)):64 \
      > /tmp/copy.log || fail "$(cat /tmp/copy.log)"
  done
  [ $(($(counted b2 .copies.drive) - before)) = "$1" ] \
    || fail "not by drive B itself: $(counted b2 '[.copies, .copies_on_host_path]')"
  dd if="$(device_of 4)" of=/tmp/by-drive bs=$block_bytes skip="$2" count=$(($1 * 128)) iflag=direct status=none
  dd if=/tmp/data bs=$block_bytes skip=$first_block count=$(($1 * 128)) status=none | cmp - /tmp/by-drive \
    || fail "drive B has copied something else"
}

# through_memory DEVICE NSID: all of these copies within the device use memory of its drive.
through_memory() {
  local before
  before=$(counted "$1" .copies.drive_memory)
  say "copies within $1"
  copy_all "$2"
  [ $(($(counted "$1" .copies.drive_memory) - before)) = $copies_of_a_round ] \
    || fail "not through memory of the drive: $(counted "$1" '[.copies, .copies_on_host_path]')"
}

modprobe -a nvme nvme-tcp
cd /tmp
show uname -r
show nvme version
await_disks
for block in $(seq $((namespace_bytes / 4096))); do printf '%-4095s\n' "$canary $block"; done > /tmp/all
region_bytes=$((copies_of_a_round * copy_blocks * block_bytes))
truncate -s $namespace_bytes /tmp/data
dd if=/tmp/all of=/tmp/data bs=1M skip=8 seek=8 count=$((region_bytes >> 20)) conv=notrunc status=none
for disk in "$(disk_of $A 2)" "$(disk_of $B 2)" "$(disk_of $B 3)"; do
  dd if=/tmp/data of="$disk" bs=1M oflag=direct status=none
done
show windlass bind $A $B
configure_export '"a1", "b1", "a2", "b2", "b3"' 'allow_any_host = true' <<END
$(for name in a1 a2; do drive_table $name $A 'data_path = "drive-memory"'; done)
$(for name in b1 b2; do drive_table $name $B 'data_path = "auto"'; done)
$(drive_table b3 $B)
END
show cat $config
start
connect

# a2 is namespace 3, b2 is 4, and b3 is 5.
say "a format that is not enabled, and wrong ranges"
refused "Invalid Field" 3 2 $to_block "$first_block:8"
refused "LBA" 3 0 $to_block "$((namespace_bytes / block_bytes - 4)):8"
refused "LBA" 3 0 $((namespace_bytes / block_bytes - 4)) "$first_block:8"
[ "$(counted a2 .copies.drive_memory)" = 0 ] || fail "something was copied"

say "copies while the host writes and verifies"
begin_writers
through_memory a2 3
through_memory b2 4
say "copies that drive B executes by itself"
by_drive 8 $((to_block + copies_of_a_round * copy_blocks))
[ "$(counted b2 .copies.host)" = 0 ] || fail "b2 used memory of the machine"
say "a copy by nvme-cli"
before=$(counted a2 .copies.drive_memory)
show nvme copy "$(device_of 3)" --sdlba=16 --slbs=$first_block --blocks=7
[ $(($(counted a2 .copies.drive_memory) - before)) = 1 ] || fail "not through memory of the drive"
end_writers

say "no copied block was in the memory of the appliance"
found=$(canaries)
[ "$found" = 0 ] || fail "the text is there $found times"
copy_all 5
[ "$(counted b3 .copies.host)" = $copies_of_a_round ] || fail "b3 is not on the host path"
found=$(canaries)
[ "$found" -gt 0 ] || fail "copies through the arena leave no text: the check finds nothing"
say "after copies through the arena: $found times"
(windlass doctor --config $config || true) > /tmp/doctor.log
grep -F "device a2" /tmp/doctor.log | grep -F "copies went through memory of drives" \
  || fail "doctor does not explain a2: $(cat /tmp/doctor.log)"

say "drive B is pulled while the host copies on it"
endless() { while nvme_copy 4 0 $to_block "$first_block:$copy_blocks" > /tmp/endless.log; do :; done; }
endless &
copying=$!
sleep 1
qmp device_del id=nvme1 > /dev/null
wait $copying
cat /tmp/endless.log
eventually 30 said "b1 is gone"
eventually 30 test ! -e /sys/bus/pci/devices/$B
is_alive || fail "the appliance is gone"
through_memory a2 3

say "the kernel's driver compares the namespaces"
disconnect
stop
show windlass unbind $A
eventually 20 disk_of $A 2
disk=$(disk_of $A 2)
cmp -i "$((first_block * block_bytes)):$((to_block * block_bytes))" -n $region_bytes /tmp/data "$disk" \
  || fail "the copy is not the same"
cmp -i "$((first_block * block_bytes)):$((16 * block_bytes))" -n $((8 * block_bytes)) /tmp/data "$disk" \
  || fail "the copy by nvme-cli is not the same"
expect_quiet_iommu
say passed
