#!/usr/bin/env bash
# `systemctl restart windlass` of the Debian package under systemd, with a drive and a listener over
# soft RoCE: a host over TCP writes and verifies on the drive and keeps its connections, and one over
# RDMA writes and verifies on memory, is disconnected and connects again.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/hosts.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/rdma.sh"
. "$(dirname "$0")/lib/package.sh"

restarts=3
# Enough for the arena and the other memory of a reactor.
huge_pages=48
# The export of the host over RDMA.
other=$INTEROP_NQN-over-rdma

configure_the_service() {
  install "${packages[0]}"
  cat > $file <<END
[appliance]
name = "interop"
memory = "64MiB"
pages = "huge"
[[device]]
name = "drive"
type = "nvme"
pci = "$A"
[[device]]
name = "ram"
type = "memory"
size = "32MiB"
[[listener]]
name = "lan"
transport = "tcp"
address = "$fabric:$INTEROP_PORT"
[[listener]]
name = "san"
transport = "rdma"
address = "$fabric:$INTEROP_PORT"
[[export]]
nqn = "$INTEROP_NQN"
devices = ["drive"]
listeners = ["lan"]
allow_any_host = true
[[export]]
nqn = "$other"
devices = ["ram"]
listeners = ["san"]
allow_any_host = true
END
  echo HUGEPAGES_2M=$huge_pages > /etc/default/windlass-hugepages
  show systemctl restart windlass-hugepages
  show systemctl enable --now windlass-bind@$A
  eventually 30 sh -c "[ \"\$(stat -c %G:%a '$(node_of $A)')\" = windlass:660 ]"
  show systemctl restart windlass
  is_running || fail "not running"
}

# restart: replaces the process, which continues from the descriptor store.
restart() {
  local old began before
  old=$(property MainPID)
  before=$(reconnections)
  began=$(date +%s%N)
  show systemctl restart windlass
  say "process $old was replaced by $(property MainPID) in $((($(date +%s%N) - began) / 1000000)) ms"
  [ "$(property MainPID)" != "$old" ] || fail "the same process serves"
  is_running || fail "systemd says $(property SubState)"
  [ "$(tcp_connections)" = "$connections" ] || fail "the host over TCP has connected again"
  eventually 60 has_reconnected "$before"
  [ "$(property NFileDescriptorStore)" = 0 ] || fail "the state is still in the store"
}

begin_under_systemd vfio-pci
without_multipath
soft_roce
configure_the_service
over_tcp
drive=$(attach "$INTEROP_NQN" $host_a $id_a -i 2)
connections=$(tcp_connections)
over_rdma
ram=$(attach "$other" $host_b $id_b -i 2 --reconnect-delay=1 --ctrl-loss-tmo=300)
say "over TCP $drive, over RDMA $ram; $(grep -c : <<< "$connections") connections over TCP"
dmesg --clear
writer /tmp/restarted "a drive over TCP" "$drive" > /tmp/tcp.log 2>&1 &
of_tcp=$!
writer /tmp/restarted "memory over RDMA" "$ram" $across_failures > /tmp/rdma.log 2>&1 &
of_rdma=$!
sleep 1

say "$restarts restarts"
for _ in $(seq $restarts); do
  restart
  sleep 2
done
journal "connection(s) continue after the restart" || fail "nothing was continued"
: > /tmp/restarted
wait $of_tcp || fail "fio saw it: $(cat /tmp/tcp.log)"
wait $of_rdma || fail "fio saw it: $(cat /tmp/rdma.log)"
cat /tmp/tcp.log /tmp/rdma.log
[ "$(tcp_connections)" = "$connections" ] || fail "the host over TCP has connected again"
expect_quiet_iommu
show nvme disconnect -n "$INTEROP_NQN"
show nvme disconnect -n "$other"
show systemctl stop windlass
[ "$(property Result)" = success ] || fail "the stop was not orderly: $(property Result)"
if dmesg | grep -E 'WARNING:|BUG:|hung task'; then fail "the kernel complains"; fi
say passed
