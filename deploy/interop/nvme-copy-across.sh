#!/usr/bin/env bash
# A host of ours, beside the kernel's, copies with NVMe Copy across namespaces of two drives (descriptor
# format 2h, which Linux does not let a user enable), while the kernel's host writes and verifies on both.
# Counters tell that all data was in controller memory buffers of the drives, and a text that each copied
# block has is not in the memory of the appliance. What is between two namespaces of one drive, and within its
# limits, the drive copies by itself. Formats that are not enabled or not reported, wrong
# ranges, a sector that cannot be read, an abort and a drive that is slower than its deadline have their
# results. Each drive is pulled during copies: those that need it fail, and those on the other drive go on. The
# kernel's host and its own driver compare.
#   INTEROP_PROGRAMS   the directory with windlass and examples/copying_host
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/copies.sh"

# The namespaces of the export.
a1=1 b1=2 a2=3 b2=4 a3=5 b3=6
block_bytes=512
region_bytes=$((2 << 20))
region_blocks=$((region_bytes / block_bytes))
# Source and destinations, in blocks.
source=$(((8 << 20) / block_bytes))
first=$(((32 << 20) / block_bytes))
second=$(((40 << 20) / block_bytes))
third=$(((48 << 20) / block_bytes))
scratch=$(((56 << 20) / block_bytes))
# A Copy of two drives has half of its blocks from each.
half_bytes=$((128 << 10))

copying_host() {
  "$INTEROP_PROGRAMS/examples/copying_host" "$INTEROP_ADDRESS:$INTEROP_PORT" "$INTEROP_NQN" "$@"
}

# answered TEXT COPY…: one Copy has a response with this text.
answered() {
  local text=$1 output
  shift
  output=$(copying_host once "$@" 2>&1) || fail "$* has no response: $output"
  echo "Copy $*: $output"
  grep -qiF -- "$text" <<< "$output" || fail "$* has no status $text: $output"
}

# Streams of copies, by name: where to, and where from.
declare -A routes=(
  [a-to-b]="$b2:$first $a2:$source"
  [b-to-a]="$a2:$first $b2:$source"
  [within-a]="$a2:$second $a2:$source"
  [within-b]="$b2:$second $b2:$source"
  [both-to-a]="$a2:$third $a2:$source $b2:$source"
)
declare -A streams=()

# begin_streams NAME…: they end when /tmp/end exists.
begin_streams() {
  local name
  rm -f /tmp/end
  for name in "$@"; do
    # shellcheck disable=SC2086  # several words
    copying_host stream /tmp/end $region_blocks ${routes[$name]} > "/tmp/$name.log" 2>&1 &
    streams[$name]=$!
  done
}

# await_stream NAME: each of its copies has a response.
await_stream() {
  wait "${streams[$1]}" || fail "$1: $(cat "/tmp/$1.log")"
  sed "s/^/$1: /" "/tmp/$1.log"
}

# succeeded NAME…: the number of copies of these streams that succeeded.
succeeded() {
  local name sum=0
  for name in "$@"; do sum=$((sum + $(sed -n 's/ copies succeeded$//p' "/tmp/$name.log"))); done
  echo $sum
}

has_failed() { grep -q failed "/tmp/$1.log"; }

through_memory() { counted "$1" .copies.drive_memory; }
on_host_path() { counted "$1" '.copies_on_host_path | add'; }
has_more_than() { [ "$(through_memory "$1")" -gt "$2" ]; }

# content DISK BLOCK: what the region there has.
content() {
  dd if="$1" bs=128k iflag=direct,skip_bytes,count_bytes skip=$(($2 * block_bytes)) count=$region_bytes \
    status=none
}

# has DISK BLOCK FILE: the region there has that content.
has() { content "$1" "$2" | cmp - "$3" || fail "$1 has wrong data from block $2 on"; }

# compare A B: the disks of namespaces 2 have what the streams copied.
compare() {
  has "$2" $first /tmp/from-a
  has "$1" $first /tmp/from-b
  has "$1" $second /tmp/from-a
  has "$2" $second /tmp/from-b
  has "$1" $third /tmp/from-both
}

# wipe DISK: there is nothing behind the source.
wipe() { dd if=/dev/zero of="$1" bs=1M seek=32 count=32 oflag=direct status=none; }

modprobe -a nvme nvme-tcp
cd /tmp
show uname -r
await_disks
for drive in a b; do
  for block in $(seq $((region_bytes / 4096))); do
    printf '%-4095s\n' "$canary $drive $block"
  done > /tmp/from-$drive
done
cp /tmp/from-a /tmp/from-both
for ((half = 1; half < region_bytes / half_bytes; half += 2)); do
  dd if=/tmp/from-b of=/tmp/from-both bs=$half_bytes skip=$half seek=$half count=1 conv=notrunc status=none
done
for disk in "$(disk_of $A 2)" "$(disk_of $B 2)" "$(disk_of $A 3)" "$(disk_of $B 3)"; do
  dd if=/dev/zero of="$disk" bs=1M count=$((namespace_bytes >> 20)) oflag=direct status=none
done
for number in 2 3; do
  dd if=/tmp/from-a of="$(disk_of $A $number)" bs=1M seek=8 oflag=direct status=none
  dd if=/tmp/from-b of="$(disk_of $B $number)" bs=1M seek=8 oflag=direct status=none
done
show windlass bind $A $B
configure_export '"a1", "b1", "a2", "b2", "a3", "b3"' 'allow_any_host = true' <<END
$(drive_table a1 $A 'command_deadline = "2s"')
$(drive_table b1 $B 'command_deadline = "2s"')
$(drive_table a2 $A 'data_path = "drive-memory"' 'command_deadline = "2s"')
$(drive_table b2 $B 'data_path = "auto"' 'command_deadline = "2s"')
$(drive_table a3 $A 'command_deadline = "2s"')
$(drive_table b3 $B 'data_path = "auto"' 'command_deadline = "2s"')
END
show cat $config
start
connect

say "formats that are not enabled or not reported, and wrong ranges"
answered "Invalid Field" disabled $b2:$first $a2:$source:8
answered "Invalid Field" 3 $b2:$first $a2:$source:8
answered "Invalid Field" 4 $b2:$first $a2:$source:8
answered "Invalid Field" 2 $b2:$first 99:$source:8
answered "LBA Out of Range" 2 $b2:$first $a2:$source:8 $a2:$((namespace_bytes / block_bytes - 4)):8
answered "LBA Out of Range" 2 $b2:$((namespace_bytes / block_bytes - 4)) $a2:$source:8
answered "Overlapping I/O Range" 2 $b2:$((source + 4)) $a2:$source:4 $b2:$source:8
answered "Command Size Limit" 2 $b2:$first $a2:$source:512 $a2:$source:1
for device in a2 b2; do
  [ "$(through_memory $device)" = 0 ] || fail "something was copied to $device"
done

say "copies across both drives and within them while the host writes and verifies"
begin_writers
begin_streams "${!routes[@]}"
sleep 6
touch /tmp/end
for name in "${!routes[@]}"; do
  await_stream "$name"
  [ "$(succeeded "$name")" -ge $((region_blocks / 512)) ] || fail "$name did not copy all of it"
  if has_failed "$name"; then fail "copies of $name failed"; fi
done
end_writers
[ "$(through_memory a2)" = "$(succeeded b-to-a within-a both-to-a)" ] || fail "a2: $(counted a2 .copies)"
[ "$(through_memory b2)" = "$(succeeded a-to-b within-b)" ] || fail "b2: $(counted b2 .copies)"
for device in a2 b2; do
  [ "$(counted $device .copies.host) $(on_host_path $device)" = "0 0" ] \
    || fail "not all through memory of the drives: $(counted $device '[.copies, .copies_on_host_path]')"
done

say "copies between namespaces of drive B, which it executes by itself"
answered Success 2 $b3:$first $b2:$source:128
answered Success 2 $b3:$((first + 128)) $b2:$((source + 128)):64 $b2:$((source + 192)):64
answered Success 2 $b2:$scratch $b3:$first:128
for device in b2:1 b3:2; do
  [ "$(counted ${device%:*} .copies.drive)" = "${device#*:}" ] \
    || fail "not by drive B: $(counted ${device%:*} '[.copies, .copies_on_host_path]')"
done
before=$(through_memory b3)
answered Success 2 $b3:$second $b2:$source:256
[ "$(through_memory b3)" = $((before + 1)) ] || fail "drive B has no room for more than 128 blocks"

say "no copied block was in the memory of the appliance"
found=$(canaries)
[ "$found" = 0 ] || fail "the text is there $found times"
answered Success 2 $a3:$first $b2:$source:512
answered Success 2 $b2:$scratch $a3:$source:512
[ "$(counted a3 .copies.host)" = 1 ] || fail "a3 is not on the host path"
[ "$(counted b2 .copies_on_host_path.source_on_host_path)" = 1 ] || fail "the reason is not counted"
found=$(canaries)
[ "$found" -gt 0 ] || fail "copies through the arena leave no text: the check finds nothing"
say "after copies through the arena: $found times"
(windlass doctor --config $config || true) > /tmp/doctor.log
grep -F "device b2" /tmp/doctor.log | grep -F "source_on_host_path 1" \
  || fail "doctor does not explain b2: $(cat /tmp/doctor.log)"

say "the kernel's host compares"
compare "$(device_of $a2)" "$(device_of $b2)"
dd if="$(device_of $b3)" of=/tmp/between bs=$block_bytes skip=$first count=256 iflag=direct status=none
head -c $((256 * block_bytes)) /tmp/from-b | cmp - /tmp/between || fail "drive B has copied something else"

say "a sector of drive B cannot be read: nothing is written, and the lowest range is the first"
unreadable file1n2 $((source + 300))
under disk1n2 bad
answered "Unrecovered Read Error" 2 $a2:$scratch $a2:$source:128 $b2:$((source + 256)):128
answered "lowest range 0" 2 $a2:$scratch $b2:$((source + 256)):128 $a2:$source:128
answered "Unrecovered Read Error" 2 $b3:$second $b2:$((source + 256)):128
[ "$(counted b3 .copies_on_host_path.failed)" = 1 ] || fail "drive B has not tried: $(counted b3 .copies_on_host_path)"
head -c $region_bytes /dev/zero > /tmp/nothing
has "$(device_of $a2)" $scratch /tmp/nothing
answered Success 2 $a2:$scratch $a2:$source:128 $b2:$source:256
under disk1n2 file1n2

say "a Copy that the drive has is not aborted, and completes"
throttle few few2 file1n2
limit few bps-total $((512 << 10))
under disk1n2 few2
copying_host abort $b2:$scratch $a2:$source:512 > /tmp/abort.log &
aborting=$!
eventually 30 grep -q aborted /tmp/abort.log
limit few bps-total 0
wait $aborting || fail "it has no response: $(cat /tmp/abort.log)"
cat /tmp/abort.log
grep -qx "not aborted" /tmp/abort.log || fail "it was aborted"
[ "$(grep -c "^Copy [0123]: successful" /tmp/abort.log)" = 4 ] || fail "not all copies succeeded"
under disk1n2 file1n2

say "drive B is slower than its deadline: each Copy has a response, and later ones use drive memory"
throttle slow slow2 file1n2
limit slow iops-total 1
under disk1n2 slow2
begin_streams a-to-b within-a
eventually 60 said deadline
touch /tmp/end
limit slow iops-total 0
for name in a-to-b within-a; do await_stream $name; done
if has_failed within-a; then fail "copies on drive A failed"; fi
under disk1n2 file1n2
say "b2: $(counted b2 '[.copies, .copies_on_host_path] | tostring')"
is_alive || fail "the appliance is gone"
eventually 60 is_served $b2
before=$(through_memory b2)
answered Success 2 $b2:$scratch $a2:$source:512
[ "$(through_memory b2)" = $((before + 1)) ] || fail "not through memory of a drive"

# pulled NUMBER ADDRESS GONE STAYS: the drive GONE, a or b, is pulled during copies on all ways. Those within
# the other one go on, and the kernel's host writes and verifies there. Then it is back.
pulled() {
  local number=$1 address=$2 gone=$3 stays=$4 name before writer
  local copied=${stays}2 written=${stays}1
  say "drive $gone is pulled during copies"
  wipe "$(device_of "${!copied}")"
  verify "drive $stays" "$(device_of "${!written}")" 16 --rate=1m,2m > /tmp/stays.log 2>&1 &
  writer=$!
  begin_streams "${!routes[@]}"
  eventually 30 has_more_than a2 $(($(through_memory a2) + 8))
  eventually 30 has_more_than b2 $(($(through_memory b2) + 8))
  qmp device_del "id=nvme$number" > /dev/null
  eventually 30 said "device ${gone}1 is gone"
  eventually 30 test ! -e "/sys/bus/pci/devices/$address"
  for name in a-to-b b-to-a "within-$gone" both-to-a; do
    await_stream "$name"
    # The namespace may be gone before the Copy reaches the drive.
    grep -qE "failed: (internal path error|invalid field)" "/tmp/$name.log" \
      || fail "$name went on without drive $gone"
  done
  before=$(through_memory "$copied")
  eventually 30 has_more_than "$copied" $((before + 8))
  touch /tmp/end
  await_stream "within-$stays"
  if has_failed "within-$stays"; then fail "copies on drive $stays failed"; fi
  wait $writer || fail "fio on drive $stays: $(cat /tmp/stays.log)"
  cat /tmp/stays.log
  is_alive || fail "the appliance is gone"
  has "$(device_of "${!copied}")" $second "/tmp/from-$stays"

  say "drive $gone is plugged in again, and used again"
  eventually 30 plug_in_again "$number"
  eventually 30 windlass bind "$address"
  for name in "${gone}1" "${gone}2"; do eventually 30 is_served "${!name}"; done
  wipe "$(device_of $a2)"
  wipe "$(device_of $b2)"
  before=$(through_memory "${gone}2")
  begin_streams "${!routes[@]}"
  eventually 30 has_more_than "${gone}2" $((before + 32))
  touch /tmp/end
  for name in "${!routes[@]}"; do
    await_stream "$name"
    if has_failed "$name"; then fail "copies of $name failed"; fi
  done
  compare "$(device_of $a2)" "$(device_of $b2)"
}

pulled 1 $B b a
pulled 0 $A a b

say "the kernel's driver compares the namespaces"
disconnect
stop
show windlass unbind $A $B
for address in $A $B; do eventually 20 disk_of $address 2; done
compare "$(disk_of $A 2)" "$(disk_of $B 2)"
expect_quiet_iommu
say passed
