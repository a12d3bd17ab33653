#!/usr/bin/env bash
# Two appliances serve one file. The host sees one namespace with two paths, prefers the optimized
# one, and follows each change of the ANA states, a lost path and a killed appliance while fio
# writes and verifies.
. "$(dirname "$0")/lib/guest.sh"

PATH=$INTEROP_PROGRAMS:$PATH
declare -A appliances
declare -A ports=([alpha]=$INTEROP_PORT [beta]=$((INTEROP_PORT + 1)))
declare -A first_ids=([alpha]=1 [beta]=1001)
declare -A cores=([alpha]=0 [beta]=1)

# The end of the appliances' logs shows why the scenario failed.
at_end() {
  local status=$? name
  [ "$status" = 0 ] && return
  for name in "${!ports[@]}"; do
    [ -e "/tmp/$name.log" ] || continue
    echo "--- $name said"
    tail -n 40 "/tmp/$name.log"
  done
}
trap at_end EXIT

# configure NAME STATE: an appliance with the shared file, at whose listener it has this ANA state.
configure() {
  cat > "/tmp/$1.toml" <<END
[appliance]
name = "$1"
cores = "${cores[$1]}"
memory = "32MiB"

[control]
socket = "/tmp/$1.sock"

[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:${ports[$1]}"

[[device]]
name = "shared"
type = "file"
path = "/srv/shared"
size = "64MiB"
shared = true
uuid = "5d1e7c1a-3c0b-4f6e-9a5e-2f7d9f1c0a11"

[[export]]
nqn = "$INTEROP_NQN"
serial = "TWO-PATHS"
controller_ids = [${first_ids[$1]}, $((first_ids[$1] + 999))]
devices = ["shared"]
listeners = ["loopback"]
ana = [{ listener = "loopback", state = "$2" }]
allow_any_host = true
END
  show cat "/tmp/$1.toml"
}

is_ready() {
  kill -0 "${appliances[$1]}" 2> /dev/null || fail "$1 did not start"
  grep -q '^windlass: ready' "/tmp/$1.out"
}

start() {
  say "starting $1"
  : > "/tmp/$1.out"
  windlass run "/tmp/$1.toml" > "/tmp/$1.out" 2> "/tmp/$1.log" &
  appliances[$1]=$!
  eventually 60 is_ready "$1"
}

# set_state NAME STATE: of every group at every listener of the appliance.
set_state() { show windlass ana set "$2" --export "$INTEROP_NQN" --socket "/tmp/$1.sock"; }

# path_of NAME: the directory of the host's path to an appliance.
path_of() {
  local controller
  for controller in /sys/class/nvme/nvme*; do
    grep -q "trsvcid=${ports[$1]}\b" "$controller/address" || continue
    echo "$controller/$(ls "$controller" | grep -E '^nvme[0-9]+c[0-9]+n[0-9]+$')"
    return
  done
  return 1
}

ana_is() { [ "$(cat "$(path_of "$1")/ana_state" 2> /dev/null)" = "$2" ]; }

# requests NAME: read and write requests of the host at that path.
requests() { awk '{ print $1 + $5 }' "$(path_of "$1")/stat"; }

# uses NAME: the host sends requests there, and none to the other appliance.
uses() {
  local other=alpha used idle
  [ "$1" = alpha ] && other=beta
  used=$(requests "$1") idle=$(requests "$other")
  sleep 1
  used=$(($(requests "$1") - used)) idle=$(($(requests "$other") - idle))
  say "in one second: $used requests to $1, $idle to $other"
  [ "$used" -gt 0 ] && [ "$idle" = 0 ]
}

connect_to() {
  show nvme connect -t tcp -a "$INTEROP_ADDRESS" -s "${ports[$1]}" -n "$INTEROP_NQN" \
    --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=3
}

# The writer ends when /tmp/stop exists; each of its rounds verifies everything that it has written.
write_always() {
  local round=0
  until [ -e /tmp/stop ]; do
    round=$((round + 1))
    verify "round $round" "$1" 16 $across_failures --rate_iops=400 --randseed=$round || exit 1
  done
}

one_namespace_has_two_paths() {
  say "one namespace with two paths"
  show nvme list-subsys
  nvme list-subsys -o json > /tmp/subsystems
  jq -e --arg nqn "$INTEROP_NQN" '[.[].Subsystems[] | select(.NQN == $nqn)] |
    length == 1 and (.[0].Paths | length == 2)' /tmp/subsystems > /dev/null ||
    fail "there is not one subsystem with two paths"
  [ "$(namespaces | wc -l)" = 1 ] || fail "there is not one namespace: $(namespaces)"
  eventually 10 ana_is alpha optimized
  eventually 10 ana_is beta non-optimized
  show nvme ana-log "$disk"
}

follows_states() {
  say "changes of states"
  eventually 10 uses alpha
  set_state alpha inaccessible
  eventually 10 ana_is alpha inaccessible
  eventually 10 uses beta
  set_state alpha optimized
  eventually 10 uses alpha
  set_state alpha change
  eventually 10 uses beta
  set_state alpha non-optimized
  set_state beta optimized
  eventually 10 uses beta
  set_state beta persistent-loss
  eventually 10 uses alpha
  say "no path is accessible for two seconds"
  set_state alpha inaccessible
  sleep 2
  set_state alpha optimized
  eventually 20 uses alpha
  set_state beta non-optimized
}

survives_lost_paths() {
  local controller
  say "a path is lost"
  controller=$(path_of alpha)
  controller=$(basename "$(dirname "$controller")")
  show nvme disconnect -d "$controller"
  eventually 10 test "$(nvme list-subsys | grep -c live)" = 1
  connect_to alpha
  eventually 20 ana_is alpha optimized
  eventually 20 uses alpha
  say "an appliance is killed"
  kill -9 "${appliances[alpha]}"
  wait "${appliances[alpha]}" || true
  sleep 5
  start alpha
  eventually 60 ana_is alpha optimized
  eventually 20 uses alpha
}

modprobe nvme-tcp
[ "$(cat /sys/module/nvme_core/parameters/multipath)" = Y ] || fail "the kernel has no multipath"
cd /tmp
mkdir -p /srv
truncate -s 64M /srv/shared
configure alpha optimized
configure beta non-optimized
start alpha
start beta
connect_to alpha
connect_to beta
eventually 60 path_of beta
disk=$(namespaces)
one_namespace_has_two_paths
write_always "$disk" > /tmp/fio.log 2>&1 &
writer=$!
follows_states
survives_lost_paths
show windlass ana --socket /tmp/alpha.sock
show windlass ana --socket /tmp/beta.sock
: > /tmp/stop
wait $writer || fail "fio: $(tail -n 30 /tmp/fio.log)"
say "$(grep -c 'read back' /tmp/fio.log) rounds of fio were verified"
expect_quiet=$(dmesg | grep -iE 'Buffer I/O error|I/O error, dev|hung task|WARNING:|BUG:' || true)
[ -z "$expect_quiet" ] || fail "the kernel complains: $expect_quiet"
show nvme disconnect -n "$INTEROP_NQN"
for name in alpha beta; do
  kill "${appliances[$name]}"
  wait "${appliances[$name]}" || fail "$name ended with $?"
done
say passed
