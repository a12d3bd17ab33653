#!/usr/bin/env bash
# The first RDMA listener is added to an appliance that serves a host over TCP, without a restart.
# The RDMA device is then removed during I/O and created again, several times: its listener is
# served again. The last RDMA listener is removed, which ends the registration of the memory, and
# added again. I/O over TCP sees nothing of it.
#
# There are two RDMA devices. librdmacm closes a removed device only while there is another one, and
# soft RoCE's driver waits for that. Drivers of NICs do not wait.
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"

control=/tmp/windlass.sock
steady_nqn=$INTEROP_NQN-steady

# configure_live tcp|rdma: two exports over TCP; one of them also over RDMA, if wanted.
configure_live() {
  local listeners='"lan"'
  [ "$1" = tcp ] || listeners='"lan", "san"'
  cat > $config <<END
[appliance]
name = "interop"
cores = "0,1"
memory = "64MiB"
idle = "${INTEROP_IDLE:-adaptive}"
[control]
socket = "$control"
http = "off"
[[device]]
name = "ram"
type = "memory"
size = "64MiB"
[[device]]
name = "steady"
type = "memory"
size = "32MiB"
[[listener]]
name = "lan"
transport = "tcp"
address = "$fabric:$INTEROP_PORT"
[[export]]
nqn = "$INTEROP_NQN"
devices = ["ram"]
listeners = [$listeners]
allow_any_host = true
[[export]]
nqn = "$steady_nqn"
devices = ["steady"]
listeners = ["lan"]
allow_any_host = true
END
  [ "$1" = tcp ] || cat >> $config <<END
[[listener]]
name = "san"
transport = "rdma"
address = "$fabric:$INTEROP_PORT"
END
}

apply() { show windlass apply --socket $control; }

# refused TEXT: the configuration is not applied, one line says why, and nothing is changed.
refused() {
  local output
  echo "\$ windlass apply"
  if output=$(windlass apply --socket $control 2>&1); then fail "it was applied: $output"; fi
  echo "$output"
  grep -qF -- "$1" <<< "$output" || fail "it does not say: $1"
  grep -qF "nothing was changed" <<< "$output" || fail "something was changed"
}

# counter NAME: a counter of the RDMA transport; empty if there is no such transport.
counter() { { windlass status --socket $control --json || true; } | jq -r ".transports.rdma.$1 // empty"; }
is_count() { [ "$(counter "$1")" = "$2" ]; }

# pinned_kib: the memory that network cards may access.
pinned_kib() { awk '/^VmPin/ { print $2 }' "/proc/$windlass/status"; }

times_said() { grep -cF -- "$1" /tmp/windlass.log || true; }
said_more() { [ "$(times_said "$1")" -gt "$2" ]; }
expect_steady() { kill -0 "$steady" || fail "fio over TCP ended: $(cat /tmp/steady.log)"; }
has_no_controller() { [ -z "$(controllers)" ]; }

# use_rdma NAME: a host attaches over RDMA, and writes and verifies.
use_rdma() {
  over_rdma
  connect -i 2
  verify "$1" "$(device_of 1)" 16
}

modprobe rdma_rxe
modprobe -a rdma_ucm nvme-rdma nvme-tcp
cd /tmp
show uname -r
ip link add d0 type dummy
ip addr add $fabric/24 dev d0
ip link set d0 mtu 9000 up
ip link add d1 type dummy
ip addr add 192.0.3.1/24 dev d1
ip link set d1 up
configure_live tcp
show cat $config
start
pinned=$(pinned_kib)
[ -z "$(counter listeners_down)" ] || fail "there is an RDMA transport"

say "I/O over TCP, which lasts"
nvme connect -t tcp -a $fabric -s "$INTEROP_PORT" -n "$steady_nqn"
find_steady() {
  local place path
  for place in /sys/class/nvme-subsystem/*; do
    [ "$(cat "$place/subsysnqn")" = "$steady_nqn" ] || continue
    for path in "$place"/nvme*n*; do
      [[ $path =~ /(nvme[0-9]+n[0-9]+)$ ]] && steady_disk=/dev/${BASH_REMATCH[1]} && return 0
    done
  done
  return 1
}
eventually 30 find_steady
fio --name=steady --filename="$steady_disk" --rw=randrw --bs=4k --iodepth=8 --direct=1 \
  --ioengine=io_uring --time_based --runtime=600 --size=16M --output=/tmp/steady.log &
steady=$!

say "an RDMA listener without an RDMA device"
configure_live rdma
refused "listener san: RDMA is unavailable"
expect_steady
[ -z "$(counter listeners_down)" ] || fail "there is an RDMA transport"

say "the first RDMA listener"
for index in 0 1; do
  show rdma link add rxe$index type rxe netdev d$index
  eventually 10 test -e /dev/infiniband/uverbs$index
done
apply
[ "$(pinned_kib)" -ge $((pinned + 65536)) ] || fail "the memory is not registered"
registered=$(counter memory_registrations)
use_rdma "the first RDMA listener"
head -c 4M /dev/urandom > /tmp/data
dd if=/tmp/data of="$(device_of 1)" bs=64k oflag=direct status=none
expect_steady

for round in 1 2 3; do
  say "round $round: the RDMA device is removed during I/O"
  again=$(times_said "is back: memory registered")
  listening=$(times_said "a listener listens again")
  # Reads: the data has to stay.
  fio --name=left --filename="$(device_of 1)" --rw=randread --bs=16k --direct=1 \
    --ioengine=io_uring --iodepth=16 --time_based --runtime=60 --size=32m > /tmp/left.log 2>&1 &
  left=$!
  sleep 1
  show timeout 60 rdma link delete rxe0
  # The kernel's host removes its controllers too, since they used the same device.
  eventually 60 has_no_controller
  wait "$left" && fail "fio did not notice that the device went away: $(cat /tmp/left.log)"
  eventually 20 is_count listeners_down 1
  is_count devices_missing 1 || fail "the status does not show the missing device"
  is_count memory_registrations $((registered / 2)) || fail "memory is still registered"
  windlass status --socket $control > /tmp/status.log || true
  grep -F "RDMA device" /tmp/status.log || fail "the status has no line about it"
  windlass doctor --config $config | tee /tmp/doctor.log || true
  grep -qF "RDMA device" /tmp/doctor.log || fail "doctor does not show it"
  expect_steady

  say "round $round: the RDMA device returns"
  show rdma link add rxe0 type rxe netdev d0
  eventually 30 said_more "is back: memory registered" "$again"
  eventually 30 said_more "a listener listens again" "$listening"
  eventually 10 is_count listeners_down 0
  is_count devices_missing 0 || fail "a device is missing"
  is_count memory_registrations "$registered" || fail "registrations leak"
  over_rdma
  connect -i 2
  cmp -n $((4 << 20)) /tmp/data "$(device_of 1)" || fail "the data is not the same"
  expect_steady
done
verify "after all rounds" "$(device_of 1)" 16
disconnect

for round in 1 2; do
  say "round $round: the last RDMA listener is removed"
  configure_live tcp
  apply
  eventually 10 is_count memory_registrations 0
  [ "$(pinned_kib)" -le $((pinned + 4096)) ] || fail "$(pinned_kib) KiB are still pinned"
  over_rdma
  if nvme discover "${at_target[@]}"; then fail "the listener is still there"; fi
  expect_steady
  # No listener notices the removal.
  show timeout 60 rdma link delete rxe0
  show rdma link add rxe0 type rxe netdev d0
  configure_live rdma
  apply
  use_rdma "added again, round $round"
  disconnect
done

expect_steady
kill -INT "$steady"
wait "$steady" || true
grep -q 'err= 0' /tmp/steady.log || fail "fio over TCP: $(cat /tmp/steady.log)"
show nvme disconnect -n "$steady_nqn"
stop
if dmesg | grep -E 'WARNING:|BUG:|hung task'; then fail "the kernel complains"; fi
say passed
