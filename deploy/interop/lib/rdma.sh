# Common part of the scenarios in which the appliance runs in the guest with soft RoCE; sourced
# after guest.sh. INTEROP_ADDRESS is not usable for RDMA, which does not work over the loopback
# interface.
#   INTEROP_PROGRAMS   the directory with windlass
#   INTEROP_IDLE       the appliance's idle policy; adaptive by default
# shellcheck shell=bash

PATH=$INTEROP_PROGRAMS:$PATH
fabric=192.0.2.1
config=/tmp/windlass.toml
windlass=

# The end of the appliance's log shows why a scenario failed.
at_end() {
  local status=$?
  [ "$status" = 0 ] && return
  if [ -e /tmp/windlass.log ]; then
    echo "--- the appliance said"
    tail -n 60 /tmp/windlass.log
  fi
}
trap at_end EXIT

# soft_roce: creates an RDMA device on a network inside this guest. The connection manager is loaded
# after soft RoCE, so that it is notified first when a device is removed.
soft_roce() {
  modprobe rdma_rxe
  modprobe -a rdma_ucm nvme-rdma nvme-tcp
  ip link add d0 type dummy
  ip addr add $fabric/24 dev d0
  ip link set d0 mtu 9000 up
  show rdma link add rxe0 type rxe netdev d0
  eventually 10 test -e /dev/infiniband/uverbs0
}

# configure CORES DEVICES: an export over TCP and RDMA at one address; standard input contains the
# devices' tables.
configure() {
  cat > $config <<END
[appliance]
name = "interop"
cores = "$1"
memory = "64MiB"
idle = "${INTEROP_IDLE:-adaptive}"

[[listener]]
name = "san"
transport = "rdma"
address = "$fabric:$INTEROP_PORT"

[[listener]]
name = "lan"
transport = "tcp"
address = "$fabric:$INTEROP_PORT"

[[export]]
nqn = "$INTEROP_NQN"
devices = [$2]
listeners = ["san", "lan"]
allow_any_host = true
END
  cat >> $config
  show cat $config
}

is_ready() {
  kill -0 "$windlass" 2> /dev/null || fail "the appliance did not start"
  grep -q '^windlass: ready' /tmp/windlass.out
}

# start: starts the appliance and waits until it is ready.
start() {
  say "starting the appliance"
  : > /tmp/windlass.out
  windlass run $config > /tmp/windlass.out 2>> /tmp/windlass.log &
  windlass=$!
  eventually 60 is_ready
  cat /tmp/windlass.out
}

# stop: stops the appliance, which has to end in order.
stop() {
  say "stopping the appliance"
  kill "$windlass"
  wait "$windlass" || fail "the appliance ended with $?"
  windlass=
  cat /tmp/windlass.log
}

# die: kills the appliance.
die() {
  say "killing the appliance"
  kill -9 "$windlass"
  wait "$windlass" 2> /dev/null || true
  windlass=
}

over_rdma() { at_target=(-t rdma -a $fabric -s "$INTEROP_PORT"); }
over_tcp() { at_target=(-t tcp -a $fabric -s "$INTEROP_PORT"); }

# The host's ends of its connections over TCP.
tcp_connections() {
  ss -Htn state established dst "$fabric:$INTEROP_PORT" | awk '{ print $3 }' | sort
}
# How often a host has connected again since the kernel's log was cleared.
reconnections() { dmesg | grep -c "Successfully reconnected" || true; }
has_reconnected() { [ "$(reconnections)" -gt "$1" ]; }

# discover_both: the log lists the subsystem once for each transport, over both transports.
discover_both() {
  local log
  show nvme discover "${at_target[@]}"
  log=$(nvme discover "${at_target[@]}" -o json)
  jq -e --arg nqn "$INTEROP_NQN" --arg address $fabric --arg port "$INTEROP_PORT" \
    '[.records[] | select(.subnqn == $nqn and .traddr == $address and .trsvcid == $port
      and .adrfam == "ipv4") | .trtype] | sort == ["rdma", "tcp"]' <<< "$log" > /dev/null ||
    fail "the discovery log does not name $INTEROP_NQN over both transports"
}

# moved NAME: the final value of one of the appliance's counters, summed over all reactors.
moved() {
  sed -E 's/\x1b\[[0-9;]*m//g' /tmp/windlass.log |
    awk -v name="$1=" '/NVMe\/RDMA moved/ { for (i = 1; i <= NF; i++)
      if (index($i, name) == 1) sum += substr($i, length(name) + 1) } END { print sum + 0 }'
}

# device_of NSID: the block device of that namespace of the export. The number in its name may
# differ.
device_of() {
  local device
  for device in $(namespaces); do
    if [ "$(cat "/sys/block/${device##*/}/nsid")" = "$1" ]; then
      echo "$device"
      return
    fi
  done
  return 1
}
