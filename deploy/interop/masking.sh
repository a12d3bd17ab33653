#!/usr/bin/env bash
# Two hosts attach one export, each with a mask of its own. A host has the namespaces of its mask
# only, and a hidden namespace has the answers of one that does not exist. Masks change while both
# hosts write: namespaces appear, disappear and become read-only at their host, which stays
# connected, and the other host is neither notified nor disturbed.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/hosts.sh"

# The namespace identifiers of the devices, and one that the export does not have.
vol0=1 vol1=2 vol2=3 absent=9
# The masks of the hosts.
see_a='devices = ["vol0"], read_only = ["vol1"]'
see_b='devices = ["vol1"]'
# The writers of the hosts use the first MiBs of a device, and single blocks are written above.
writers_mib=8 apart_mib=24
# The state of each controller before a change.
declare -A before

# configure_masks: the masks in see_a and see_b.
configure_masks() {
  configure_hosts "hosts = [\"$host_a\", \"$host_b\"]" "masks = [" \
    "  { hosts = [\"$host_a\"], $see_a }," \
    "  { hosts = [\"$host_b\"], $see_b }," "]"
}

# configure_hosts LINE…: these lines in the export.
configure_hosts() {
  local name
  for name in vol0 vol1 vol2; do
    printf '\n[[device]]\nname = "%s"\ntype = "memory"\nsize = "32MiB"\n' $name
  done | configure_export '"vol0", "vol1", "vol2"' "$@"
}

# controller_of HOST: the controller of that host.
controller_of() {
  local place
  for place in /sys/class/nvme/nvme*; do
    if [ "$(cat "$place/hostnqn" 2> /dev/null)" = "$1" ]; then
      echo "${place##*/}"
      return
    fi
  done
  return 1
}

# connect_as HOST UUID: a controller for that host.
connect_as() {
  show nvme connect "${at_target[@]}" -n "$INTEROP_NQN" --hostnqn="$1" --hostid="$2"
  controller_of "$1" > /dev/null || fail "$1 has no controller"
}

# disks CONTROLLER: lines with a namespace identifier and the disk, in order.
disks() {
  local place nsid
  for place in "/sys/class/nvme/$1/$1"n*; do
    nsid=$(cat "$place/nsid" 2> /dev/null) || continue
    echo "$nsid /dev/${place##*/}"
  done | sort -n
}

# disk_at CONTROLLER NSID: prints nothing if the host has no such disk.
disk_at() { disks "$1" | awk -v nsid="$2" '$1 == nsid { print $2 }'; }

# listed CONTROLLER: the namespace identifiers that the target lists.
listed() { nvme list-ns "/dev/$1" --output-format=json | jq -r '.nsid_list[].nsid' | xargs; }

# has CONTROLLER NSID…: the host has these disks only, and the target lists only them.
has() {
  local controller=$1
  shift
  [ "$(disks "$controller" | awk '{ print $1 }' | xargs)" = "$*" ] &&
    [ "$(listed "$controller")" = "$*" ]
}

read_only() { cat "/sys/block/$(basename "$(disk_at "$1" "$2")")/ro"; }
is_read_only() { [ "$(read_only "$1" "$2")" = 1 ]; }
is_writable() { [ "$(read_only "$1" "$2")" = 0 ]; }

# Commands that answer for any namespace that a host has.
identify=(id-ns ns-descs list-ctrl "get-feature --feature-id=0x82")

# answers CONTROLLER NSID: lines with the status and the checksum of each answer for a namespace.
answers() {
  local command status
  for command in "${identify[@]}"; do
    status=0
    # shellcheck disable=SC2086  # several options
    nvme $command "/dev/$1" --namespace-id="$2" --output-format=binary > /tmp/answer 2>&1 ||
      status=$?
    echo "$command: status $status, $(sha256sum < /tmp/answer)"
  done
}

# is_identified CONTROLLER NSID: whether Identify Namespace has data.
is_identified() {
  nvme id-ns "/dev/$1" --namespace-id="$2" --output-format=binary > /tmp/answer ||
    fail "$1 does not identify namespace $2"
  [ "$(tr -d '\0' < /tmp/answer | wc -c)" != 0 ]
}

# expect_visible CONTROLLER NSID: every command is answered.
expect_visible() {
  answers "$1" "$2" > /tmp/answers
  [ "$(grep -c ': status 0,' /tmp/answers)" = "${#identify[@]}" ] ||
    fail "$1: namespace $2: $(cat /tmp/answers)"
  is_identified "$1" "$2" || fail "$1: namespace $2 is not identified"
}

# expect_hidden CONTROLLER NSID: the answers are those for a namespace that does not exist: Identify
# Namespace returns zeroes, and the other commands fail (NVM 1.1 §4.1.5.1, Base 2.1 §3.2.1.4).
expect_hidden() {
  answers "$1" "$2" > /tmp/answers
  answers "$1" $absent > /tmp/answers.absent
  diff /tmp/answers.absent /tmp/answers || fail "$1: namespace $2 differs from an absent one"
  [ "$(grep -c ': status 0,' /tmp/answers)" = 1 ] || fail "$1: namespace $2: $(cat /tmp/answers)"
  if is_identified "$1" "$2"; then fail "$1: namespace $2 is identified"; fi
}

# write_apart CONTROLLER NSID: writes a new block, which is in /tmp/block.
write_apart() {
  head -c 4096 /dev/urandom > /tmp/block
  dd if=/tmp/block of="$(disk_at "$1" "$2")" bs=4k seek=$((apart_mib << 8)) oflag=direct \
    conv=notrunc status=none
}

# expect_apart CONTROLLER NSID FILE: the block there is that of the file.
expect_apart() {
  dd if="$(disk_at "$1" "$2")" bs=4k skip=$((apart_mib << 8)) count=1 iflag=direct status=none |
    cmp - "$3" || fail "$1: namespace $2 has other data"
}

# refuses_writes CONTROLLER NSID: the kernel refuses writes, and the target refuses those of
# nvme-cli, which the kernel does not examine.
refuses_writes() {
  local said disk
  disk=$(disk_at "$1" "$2")
  cp /tmp/block /tmp/written
  said=$(write_apart "$1" "$2" 2>&1) && fail "$disk is written"
  say "dd: $said"
  said=$(nvme write "$disk" --namespace-id="$2" --start-block=$((apart_mib << 11)) \
    --block-count=7 --data-size=4096 --data=/tmp/block 2>&1) && fail "$disk is written by nvme-cli"
  say "nvme write: $said"
  grep -qi 'write protected' <<< "$said" || fail "it should have said: Write Protected"
  mv /tmp/written /tmp/block
  expect_apart "$1" "$2" /tmp/block
}

# events CONTROLLER: how often the kernel was notified of changed namespaces.
events() { dmesg | grep -c "nvme $1: rescanning namespaces" || true; }

# picture CONTROLLER: what a host has, with sequence numbers that change if it were attached again.
picture() {
  local nsid disk block
  echo "$1 $(cat "/sys/class/nvme/$1/cntlid") $(state_of "$1"), $(events "$1") events"
  disks "$1" | while read -r nsid disk; do
    block=/sys/block/${disk##*/}
    echo "  $nsid: $disk, sequence $(cat "$block/diskseq"), read-only $(cat "$block/ro")"
  done
}

state_of() { cat "/sys/class/nvme/$1/state"; }

# apply: applies the configuration; `before` is what the hosts had.
apply() {
  before=([$a]=$(picture "$a") [$b]=$(picture "$b"))
  show windlass apply --socket $control
}

# change TEXT: applies the masks in see_a and see_b.
change() {
  say "$1"
  configure_masks
  apply
}

# Several times as long as a host takes to react.
settle() { sleep 2; }

# is_unaffected CONTROLLER: the last change has not reached that host.
is_unaffected() {
  [ "$(picture "$1")" = "${before[$1]}" ] ||
    fail "$1 was affected; before: ${before[$1]} now: $(picture "$1")"
}

# is_notified CONTROLLER: the last change has reached that host, by an event.
is_notified() {
  local then=${before[$1]%%$'\n'*} now
  now=$(picture "$1")
  now=${now%%$'\n'*}
  say "before: $then; now: $now"
  [ "${then%,*}" = "${now%,*}" ] || fail "$1 is not the same controller"
  [ "$then" != "$now" ] || fail "$1 got no event"
}

# requests DISK: the number of completed reads and writes.
requests() { awk '{ print $1 + $5 }' "/sys/block/${1##*/}/stat"; }

has_requests() { [ "$(requests "$1")" -gt "$2" ]; }

# expect_writers: both hosts complete requests.
expect_writers() {
  local disk
  for disk in "$disk_a" "$disk_b"; do eventually 20 has_requests "$disk" "$(requests "$disk")"; done
}

# write_always HOST DISK: writes until /tmp/stop exists; each round verifies all that it wrote.
write_always() {
  local round=0
  until [ -e /tmp/stop ]; do
    round=$((round + 1))
    verify "host $1, round $round" "$2" $writers_mib --rate_iops=100 --randseed=$round || exit 1
  done
}

# expect_refusal TEXT: the file is refused with this text, and no host is affected.
expect_refusal() {
  local command output
  before=([$a]=$(picture "$a") [$b]=$(picture "$b"))
  for command in "check $config" "apply --socket $control" "apply $config --socket $control"; do
    echo "\$ windlass $command"
    # shellcheck disable=SC2086  # several options
    if output=$(windlass $command 2>&1); then fail "it was accepted: $output"; fi
    echo "$output"
    grep -qF -- "$1" <<< "$output" || fail "it does not say: $1"
  done
  settle
  is_unaffected "$a"
  is_unaffected "$b"
  configure_masks
  output=$(windlass apply --socket $control)
  grep -qF "nothing to change" <<< "$output" || fail "a refused file has changed something: $output"
}

hosts_see_their_own() {
  say "each host sees its own"
  show nvme list
  eventually 60 has "$a" $vol0 $vol1
  eventually 60 has "$b" $vol1
  is_writable "$a" $vol0 || fail "vol0 at host A: $(picture "$a")"
  is_read_only "$a" $vol1 || fail "vol1 at host A: $(picture "$a")"
  is_writable "$b" $vol1 || fail "vol1 at host B: $(picture "$b")"
  expect_visible "$a" $vol0
  expect_visible "$a" $vol1
  expect_hidden "$a" $vol2
  show cat /tmp/answers
  expect_visible "$b" $vol1
  expect_hidden "$b" $vol0
  expect_hidden "$b" $vol2
  verify "vol0 at host A" "$(disk_at "$a" $vol0)" 8
  verify "vol1 at host B" "$(disk_at "$b" $vol1)" 8
  write_apart "$b" $vol1
  expect_apart "$a" $vol1 /tmp/block
  refuses_writes "$a" $vol1
  expect_apart "$b" $vol1 /tmp/block
}

access_changes() {
  see_a='devices = ["vol0", "vol1"]'
  change "vol1 becomes writable at host A"
  eventually 20 is_writable "$a" $vol1
  write_apart "$a" $vol1
  expect_apart "$b" $vol1 /tmp/block
  settle
  is_notified "$a"
  is_unaffected "$b"

  see_a='devices = ["vol0"], read_only = ["vol1"]'
  change "vol1 becomes read-only at host A"
  eventually 20 is_read_only "$a" $vol1
  refuses_writes "$a" $vol1
  settle
  is_notified "$a"
  is_unaffected "$b"
  expect_writers
}

namespaces_come_and_go() {
  see_a='devices = ["vol0", "vol2"], read_only = ["vol1"]'
  change "vol2 appears at host A"
  eventually 20 has "$a" $vol0 $vol1 $vol2
  verify "vol2 at host A" "$(disk_at "$a" $vol2)" 8
  write_apart "$a" $vol2
  settle
  is_notified "$a"
  is_unaffected "$b"
  expect_hidden "$b" $vol2

  see_a='devices = ["vol0"], read_only = ["vol1"]' see_b='devices = ["vol1", "vol2"]'
  change "vol2 moves to host B"
  eventually 20 has "$a" $vol0 $vol1
  eventually 20 has "$b" $vol1 $vol2
  expect_apart "$b" $vol2 /tmp/block
  is_notified "$a"
  is_notified "$b"
  expect_hidden "$a" $vol2
  expect_writers

  see_b='devices = ["vol1"], read_only = ["vol0"]'
  change "vol2 disappears at host B, vol0 appears read-only"
  eventually 20 has "$b" $vol0 $vol1
  is_read_only "$b" $vol0 || fail "$(picture "$b")"
  write_apart "$a" $vol0
  expect_apart "$b" $vol0 /tmp/block
  refuses_writes "$b" $vol0
  settle
  is_notified "$b"
  is_unaffected "$a"

  see_b='devices = ["vol1"]'
  change "vol0 disappears at host B"
  eventually 20 has "$b" $vol1
  expect_hidden "$b" $vol0
  settle
  is_notified "$b"
  is_unaffected "$a"

  see_a='devices = ["vol0"]'
  change "vol1 disappears at host A"
  eventually 20 has "$a" $vol0
  expect_hidden "$a" $vol1
  settle
  is_notified "$a"
  is_unaffected "$b"
  expect_writers
}

invalid_masks_are_refused() {
  say "invalid masks"
  configure_hosts "hosts = [\"$host_a\", \"$host_b\"]" \
    "masks = [{ hosts = [\"$host_b.other\"], devices = [\"vol0\", \"vol1\"] }]"
  expect_refusal "\`$host_b.other\` is none of this export's hosts"
  configure_hosts "allow_any_host = true" \
    "masks = [{ hosts = [\"$host_a\"], devices = [\"vol0\", \"vol1\"] }]"
  expect_refusal "\`masks\` and \`allow_any_host = true\` exclude each other"
  expect_writers
}

# A host loses a disk to which it writes. The kernel logs errors of that disk.
disappears_under_io() {
  local writer said=/tmp/fio.lost.log
  see_a='devices = ["vol0", "vol2"]'
  change "vol2 appears at host A"
  eventually 20 has "$a" $vol0 $vol2
  fio --name=lost --filename="$(disk_at "$a" $vol2)" --rw=randwrite --bs=4k --iodepth=16 \
    --direct=1 --ioengine=io_uring --time_based --runtime=600 --rate_iops=1000 --eta=never \
    > $said 2>&1 &
  writer=$!
  eventually 60 has_requests "$(disk_at "$a" $vol2)" 100
  see_a='devices = ["vol0"]'
  change "vol2 disappears at host A, which writes to it"
  if wait $writer; then fail "fio has written to a hidden namespace: $(cat $said)"; fi
  grep -m 1 'io_u error' $said || fail "fio failed otherwise: $(cat $said)"
  eventually 20 has "$a" $vol0
  settle
  is_notified "$a"
  is_unaffected "$b"
  expect_writers
}

no_namespace_and_all() {
  see_a='devices = []'
  change "host A sees nothing"
  eventually 20 has "$a"
  settle
  is_notified "$a"
  is_unaffected "$b"
  say "no masks: every host sees everything"
  configure_hosts "hosts = [\"$host_a\", \"$host_b\"]"
  apply
  eventually 20 has "$a" $vol0 $vol1 $vol2
  eventually 20 has "$b" $vol0 $vol1 $vol2
  is_notified "$a"
  is_notified "$b"
}

without_multipath
begin
configure_masks
show cat $config
show windlass check $config
start
connect_as $host_a $id_a
connect_as $host_b $id_b
a=$(controller_of $host_a)
b=$(controller_of $host_b)
say "host A has $a, host B has $b"
hosts_see_their_own
disk_a=$(disk_at "$a" $vol0) disk_b=$(disk_at "$b" $vol1)
write_always A "$disk_a" > /tmp/fio.a.log 2>&1 &
writer_a=$!
write_always B "$disk_b" > /tmp/fio.b.log 2>&1 &
writer_b=$!
expect_writers
access_changes
namespaces_come_and_go
invalid_masks_are_refused
expect_quiet_kernel
disappears_under_io
: > /tmp/stop
wait $writer_a || fail "host A: $(tail -n 30 /tmp/fio.a.log)"
wait $writer_b || fail "host B: $(tail -n 30 /tmp/fio.b.log)"
for log in /tmp/fio.a.log /tmp/fio.b.log; do
  say "$(grep -c 'read back' $log) rounds of fio were verified"
done
no_namespace_and_all
show nvme disconnect -n "$INTEROP_NQN"
stop
say passed
