#!/usr/bin/env bash
# Without an IOMMU the appliance does not use a drive, and prints one line with the setting to
# enable.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

says_so() { grep -F "$A has no IOMMU: enable it in the firmware"; }

cd /tmp
cat > $config <<END
[appliance]
memory = "16MiB"
idle = "adaptive"

[[device]]
name = "fast0"
type = "nvme"
pci = "$A"

[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:$INTEROP_PORT"

[[export]]
nqn = "$INTEROP_NQN"
devices = ["fast0"]
listeners = ["loopback"]
allow_any_host = true
END
windlass devices | says_so || fail "devices does not say so"
windlass check $config | says_so || fail "check does not say so"
if windlass bind $A 2> /tmp/bind.log; then fail "bind took it"; fi
says_so < /tmp/bind.log || fail "bind does not say so"
start
says_so < /tmp/windlass.log || fail "run does not say so"
stop
[ ! -e "/sys/bus/pci/devices/$A/driver" ] || fail "the drive was touched"
say passed
