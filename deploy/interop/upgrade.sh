#!/usr/bin/env bash
# `windlass upgrade` and `systemctl restart windlass` of the Debian package under systemd: a kernel
# host writes and verifies on memory and on ext4 on a file, while the process is replaced several
# times, also by that of a later package. The host keeps its controller and its connections. Programs
# that cannot continue change nothing, and a stop ends the connections.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/package.sh"

# Hand-overs to the same program, and restarts.
upgrades=5
restarts=3
# Longer than WatchdogSec= of the unit.
watchdog_s=12

configure_the_service() {
  install "${packages[0]}"
  cat > $file <<END
[appliance]
name = "interop"
memory = "32MiB"
cores = "0-1"
[[device]]
name = "memory0"
type = "memory"
size = "32MiB"
[[device]]
name = "volume0"
type = "file"
path = "$volume"
size = "64MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:$INTEROP_PORT"
[[export]]
nqn = "$INTEROP_NQN"
devices = ["memory0", "volume0"]
listeners = ["loopback"]
allow_any_host = true
END
  show systemctl restart windlass
  is_running || fail "not running"
  journal "the configuration has changed since it was running" || fail "no reason in the journal"
}

main_process() { property MainPID; }
is_main_process() { [ "$(main_process)" = "$1" ]; }
# The host's ends of its connections, and its controller's identifiers.
association() {
  ss -Htn state established dst "$INTEROP_ADDRESS:$INTEROP_PORT" | awk '{ print $3 }' | sort
  cat "/sys/class/nvme/$controller/cntlid"
  cat /sys/block/nvme*n*/uuid
}

# upgrade OPTION…: replaces the process, which systemd has to follow.
upgrade() {
  local old new answer
  old=$(main_process)
  answer=$(windlass upgrade --json "$@") || fail "not upgraded"
  new=$(jq .pid <<< "$answer")
  say "process $old hands over to $new: $(jq -c '{connections, pause_us}' <<< "$answer")"
  eventually 20 is_main_process "$new"
  eventually 20 windlass_answers
  [ ! -e "/proc/$old" ] || fail "the old process has not ended"
  [ "$(stat -c %U "/proc/$new")" = windlass ] || fail "it runs as another user"
  is_running || fail "systemd says $(property SubState)"
  [ "$(jq .connections <<< "$answer")" = "$connections" ] || fail "not all connections: $answer"
  is_live || fail "the controller is $(state)"
}

# restart: restarts the service, whose next process continues from the descriptor store.
restart() {
  local old began
  old=$(main_process)
  began=$(date +%s%N)
  show systemctl restart windlass
  say "process $old was replaced by $(main_process) in $((($(date +%s%N) - began) / 1000000)) ms"
  [ "$(main_process)" != "$old" ] || fail "the same process serves"
  is_running || fail "systemd says $(property SubState)"
  is_live || fail "the controller is $(state)"
  [ "$(association)" = "$before" ] || fail "the host has connected again: $(association)"
  [ "$(property NFileDescriptorStore)" = 0 ] || fail "the state is still in the store"
}

# Only the state of the package's own configuration was not continued.
continues_all() {
  local count
  count=$(journalctl -q --no-pager -u windlass | grep -cF "is not continued" || true)
  [ "$count" = 1 ] || fail "$count states were not continued"
}

windlass_answers() { windlass status > /dev/null 2>&1; }

# refused TEXT PROGRAM: an upgrade to a program that cannot continue.
refused() {
  local text=$1 process told
  process=$(main_process)
  if told=$(windlass upgrade "$2" 2>&1); then fail "upgraded to $2: $told"; fi
  say "$told"
  grep -qF -- "$text" <<< "$told" || fail "the reason is not: $text"
  is_main_process "$process" || fail "another process serves"
  is_live || fail "the controller is $(state)"
}

begin_under_systemd
configure_the_service
connect
memory=$(device_of 1) disk=$(device_of 2)
show mkfs.ext4 -q -F "$disk"
show mount "$disk" /mnt
before=$(association)
connections=$(grep -c : <<< "$before")
say "$connections connections: $before"
dmesg --clear
writer upgraded "memory under upgrades" "$memory" > memory.log 2>&1 &
of_memory=$!
writer upgraded "a file system under upgrades" /mnt/data > files.log 2>&1 &
of_files=$!

say "$upgrades hand-overs to the same program"
for _ in $(seq $upgrades); do
  upgrade
  sleep 1
done
show windlass upgrade --dry-run

say "programs that cannot continue"
refused "has ended (exit status: 1) before it served" /bin/false
printf '#!/bin/sh\nsleep 1\n' | tee /usr/local/bin/anybodys > /usr/local/bin/sleeps
chmod 757 /usr/local/bin/anybodys
chmod 755 /usr/local/bin/sleeps
refused "any user can change it" /usr/local/bin/anybodys
refused "has ended (exit status: 0) before it served" /usr/local/bin/sleeps

say "a later package"
process=$(main_process)
cp "${packages[1]}" /tmp/windlass.deb
show dpkg -i /tmp/windlass.deb
is_main_process "$process" || fail "the package interrupted the service"
upgrade
[ "$(readlink "/proc/$(main_process)/exe")" = /usr/bin/windlass ] || fail "it is not the new program"
show systemctl reload windlass
say "$restarts restarts"
for _ in $(seq $restarts); do
  restart
  sleep 1
done
journal "$connections connection(s) continue after the restart" || fail "nothing was continued"
continues_all
say "an upgrade after a restart, and a restart after it"
upgrade
restart
say "the watchdog goes on"
process=$(main_process)
sleep $watchdog_s
is_main_process "$process" || fail "another process serves"
[ "$(property NRestarts)" = 0 ] || fail "systemd restarted the service"

: > upgraded
wait $of_memory || fail "fio saw it: $(cat memory.log)"
wait $of_files || fail "fio saw it: $(cat files.log)"
cat memory.log files.log
[ "$(association)" = "$before" ] || fail "the host has connected again: $(association)"
expect_quiet_kernel
show umount /mnt
show e2fsck -f -n "$disk"
show windlass status

say "systemd ends the new process, and the connections with it"
show systemctl stop windlass
[ ! -e "/proc/$process" ] || fail "systemd did not wait for process $process"
[ "$(property Result)" = success ] || fail "the stop was not orderly: $(property Result)"
[ "$(property NFileDescriptorStore)" = 0 ] || fail "systemd keeps the store after a stop"
eventually 20 is_not_live
[ -z "$(ss -Htn state established dst "$INTEROP_ADDRESS:$INTEROP_PORT")" ] || fail "still connected"
disconnect
say "a start after it continues nothing"
show systemctl start windlass
continues_all
say passed
