#!/usr/bin/env bash
# `windlass upgrade` with hosts over soft RoCE and over TCP, each of which writes and verifies: the
# one over RDMA is disconnected and connects again, and the one over TCP keeps its connections. A
# program that cannot continue disconnects neither of them.
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/hosts.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"

upgrades=3
control=/tmp/windlass.sock
# The export of the host over TCP.
other=$INTEROP_NQN-over-tcp

is_over() { [ ! -e "/proc/$1" ]; }
answers() { windlass status --socket $control > /dev/null 2>&1; }

# upgrade: replaces the process; the host over RDMA connects again.
upgrade() {
  local old=$windlass answer before
  before=$(reconnections)
  answer=$(windlass upgrade --json --socket $control) || fail "not upgraded"
  windlass=$(jq .pid <<< "$answer")
  say "process $old hands over to $windlass: $(jq -c '{connections, pause_us}' <<< "$answer")"
  eventually 20 is_over "$old"
  eventually 20 answers
  eventually 60 has_reconnected "$before"
  eventually 60 is_live
  [ "$(tcp_connections)" = "$connections" ] || fail "the host over TCP has connected again"
}

cd /tmp
show uname -r
without_multipath
soft_roce
truncate -s 64M /tmp/vol
configure 0,1 '"ram"' <<END

[[device]]
name = "ram"
type = "memory"
size = "64MiB"

[[device]]
name = "vol"
type = "file"
path = "/tmp/vol"

[[export]]
nqn = "$other"
devices = ["vol"]
listeners = ["lan"]
allow_any_host = true

[control]
socket = "$control"
END
start

over_tcp
vol=$(attach "$other" $host_b $id_b -i 2)
connections=$(tcp_connections)
over_rdma
ram=$(attach "$INTEROP_NQN" $host_a $id_a -i 4 --reconnect-delay=1 --ctrl-loss-tmo=300)
controller=$(controllers)
say "over TCP $vol, over RDMA $ram"
transports=$(windlass status --json --socket $control | jq -c '[.hosts[] | [.export, .transport]] | sort')
say "$transports"
[ "$transports" = "[[\"$INTEROP_NQN\",\"rdma\"],[\"$other\",\"tcp\"]]" ] || fail "the status confuses the transports"
told=$(windlass upgrade --dry-run --socket $control)
say "$told"
grep -qF "1 host(s) over RDMA are disconnected and connect again" <<< "$told" || fail "not said"
dmesg --clear
writer /tmp/upgraded "over TCP" "$vol" > /tmp/tcp.log 2>&1 &
of_tcp=$!
writer /tmp/upgraded "over RDMA" "$ram" $across_failures > /tmp/rdma.log 2>&1 &
of_rdma=$!
sleep 1

say "a program that cannot continue"
if windlass upgrade /bin/false --socket $control; then fail "upgraded to it"; fi
is_live || fail "the host over RDMA was disconnected"
[ "$(reconnections)" = 0 ] || fail "the host over RDMA was disconnected"

say "$upgrades upgrades"
for _ in $(seq $upgrades); do
  upgrade
  sleep 2
done
: > /tmp/upgraded
wait $of_tcp || fail "fio saw it: $(cat /tmp/tcp.log)"
wait $of_rdma || fail "fio saw it: $(cat /tmp/rdma.log)"
cat /tmp/tcp.log /tmp/rdma.log
disconnect
show nvme disconnect -n "$other"

say "the last process stops in order"
kill "$windlass"
eventually 30 is_over "$windlass"
grep -q "stopped" /tmp/windlass.log || fail "the log does not say so"
windlass=
if dmesg | grep -E 'WARNING:|BUG:|hung task'; then fail "the kernel complains"; fi
say passed
