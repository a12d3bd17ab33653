#!/usr/bin/env bash
# `windlass upgrade` of an appliance on two emulated drives, while a kernel host writes and verifies
# on both: the old process shuts the drives down, the new one opens them, and the host keeps its
# controller and its connections. A program that cannot continue changes nothing, and one that fails
# when the drives are released leaves them to the old process.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

upgrades=3

# The host's ends of its connections.
association() {
  ss -Htn state established dst "$INTEROP_ADDRESS:$INTEROP_PORT" | awk '{ print $3 }' | sort
}
is_over() { [ ! -e "/proc/$1" ]; }
answers() { windlass status --socket $control > /dev/null 2>&1; }
# holds_drive ADDRESS: whether the process that serves has the node of the drive's IOMMU group open.
holds_drive() { find "/proc/$windlass/fd" -lname "$(node_of "$1")" | grep -q .; }

is_undisturbed() {
  is_live || fail "the controller is $(state)"
  [ "$(association)" = "$before" ] || fail "the host has connected again: $(association)"
  holds_drive $A && holds_drive $B || fail "process $windlass does not have the drives"
}

# upgrade: replaces the process.
upgrade() {
  local old=$windlass answer
  answer=$(windlass upgrade --json --socket $control) || fail "not upgraded"
  windlass=$(jq .pid <<< "$answer")
  say "process $old hands over to $windlass: $(jq -c '{connections, pause_us}' <<< "$answer")"
  eventually 20 is_over "$old"
  eventually 20 answers
  is_undisturbed
}

# refused TEXT PROGRAM: an upgrade to a program that cannot continue.
refused() {
  local told
  if told=$(windlass upgrade "$2" --socket $control 2>&1); then fail "upgraded to $2: $told"; fi
  say "$told"
  grep -qF -- "$1" <<< "$told" || fail "the reason is not: $1"
  is_undisturbed
}

begin_with_drives
configure 0-1
start
connect
before=$(association)
one=$(device_of 1) other=$(device_of 3)
say "$(grep -c : <<< "$before") connections; namespaces $one of $A and $other of $B"
told=$(windlass upgrade --dry-run --socket $control)
say "$told"
grep -qF "2 NVMe drive(s) are shut down and opened again" <<< "$told" || fail "not said"
dmesg --clear
writer /tmp/upgraded "drive A" "$one" > /tmp/one.log 2>&1 &
of_one=$!
writer /tmp/upgraded "drive B" "$other" > /tmp/other.log 2>&1 &
of_other=$!
sleep 1

say "programs that cannot continue"
refused "has ended (exit status: 1) before it served" /bin/false
# It has no VFIO, which it learns when the drives are released.
cat > /usr/local/bin/without-drives << 'END'
#!/bin/sh
exec unshare -m sh -c 'mount --bind /dev/null /dev/vfio/vfio && exec windlass "$@"' sh "$@"
END
chmod 755 /usr/local/bin/without-drives
refused "cannot be used: the log has the reason" /usr/local/bin/without-drives
said "is available again" || fail "the drives were not released"

say "$upgrades upgrades"
for _ in $(seq $upgrades); do
  upgrade
  sleep 2
done
: > /tmp/upgraded
wait $of_one || fail "fio saw it: $(cat /tmp/one.log)"
wait $of_other || fail "fio saw it: $(cat /tmp/other.log)"
cat /tmp/one.log /tmp/other.log
[ "$(association)" = "$before" ] || fail "the host has connected again: $(association)"
expect_quiet_kernel
expect_quiet_iommu
disconnect

say "the last process stops in order"
kill "$windlass"
eventually 30 is_over "$windlass"
grep -q "stopped" /tmp/windlass.log || fail "the log does not say so"
windlass=
say passed
