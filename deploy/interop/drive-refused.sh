#!/usr/bin/env bash
# A drive that is not available results in one line with its remedy, from `check` and `run` alike.
# Nothing is changed, and everything else is served: an export without the drive, or an empty one if
# it has no other device.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

cat > $config <<END
[appliance]
name = "interop"
memory = "16MiB"
idle = "adaptive"

[[device]]
name = "fast0"
type = "nvme"
pci = "$A"

[[device]]
name = "ram"
type = "memory"
size = "8MiB"

[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:$INTEROP_PORT"

[[export]]
nqn = "$INTEROP_NQN"
devices = ["fast0"]
listeners = ["loopback"]
allow_any_host = true

[[export]]
nqn = "$INTEROP_NQN.ram"
devices = ["ram"]
listeners = ["loopback"]
allow_any_host = true
END

# left_out TEXT: the drive is left out with one line that contains TEXT, and the rest is served.
left_out() {
  local lines
  say "$1"
  # shellcheck disable=SC2024
  "${as[@]}" windlass check $config > /tmp/check.out || fail "check exited with $?"
  grep -F -- "$1" /tmp/check.out || fail "check does not say so: $(cat /tmp/check.out)"
  "${as[@]}" windlass run $config > /tmp/windlass.out 2> /tmp/windlass.log &
  windlass=$!
  eventually 60 is_ready
  cat /tmp/windlass.log
  lines=$(grep -cE 'ERROR' /tmp/windlass.log)
  [ "$lines" = 1 ] || fail "$lines lines"
  grep -E 'ERROR.*fast0' /tmp/windlass.log | grep -F -- "$1" || fail "run does not say so"
  served
  stop > /dev/null
}

# The export of the drive exists and is empty; the other one has its namespace.
served() {
  show nvme connect "${at_target[@]}" -n "$INTEROP_NQN"
  show nvme connect "${at_target[@]}" -n "$INTEROP_NQN.ram"
  controller=$(controllers)
  eventually 20 is_live
  [ -z "$(namespaces)" ] || fail "the drive is served"
  (INTEROP_NQN=$INTEROP_NQN.ram && eventually 20 is_served 1)
  nvme disconnect -n "$INTEROP_NQN" > /dev/null
  nvme disconnect -n "$INTEROP_NQN.ram" > /dev/null
}

modprobe -a nvme-tcp
cd /tmp
left_out "$A has no driver: \`windlass bind $A\`"
modprobe nvme
echo $A > /sys/bus/pci/drivers_probe 2> /dev/null || true
eventually 20 test -e /sys/bus/pci/drivers/nvme/$A
left_out "\`windlass bind $A\` moves it to vfio-pci"
[ "$(driver_of $A)" = nvme ] || fail "the drive was touched"
show windlass bind $A
without_root unlimited
node=$(node_of $A)
chmod 600 "$node"
left_out "no permission for $node"
chmod 666 "$node"
without_root 65536
left_out "have to be pinned"
as=()
# This is the first access to the drive: it is asked for its identity.
say "a format with metadata"
windlass run $config > /tmp/windlass.out 2> /tmp/windlass.log &
windlass=$!
eventually 60 is_ready
grep -E 'ERROR.*fast0.*8 bytes of metadata.*nvme format' /tmp/windlass.log ||
  fail "run does not say so: $(cat /tmp/windlass.log)"
served
stop
expect_quiet_iommu
say passed
