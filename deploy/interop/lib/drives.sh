# Common part of the scenarios in which the appliance runs in the guest with the guest's drives;
# sourced after guest.sh. Two drives, A and B, have the namespaces a1 a2 b1 b2, which are 1 to 4 of
# the export.
#   INTEROP_PROGRAMS   the directory with windlass
# shellcheck shell=bash

A=0000:01:00.0
B=0000:02:00.0
PATH=$INTEROP_PROGRAMS:$PATH
config=/tmp/windlass.toml
control=/tmp/windlass.sock
windlass=
# The command prefix that runs the appliance; root runs it if empty.
as=()

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

# configure CORES LINE…: an export of both drives, with additional lines for each device.
configure() {
  local cores=$1
  shift
  configure_drives "$cores" "a1 a2 b1 b2" "$@"
}

# configure_drives CORES NAMES LINE…: an export of these namespaces of the drives.
configure_drives() {
  local cores=$1 names=$2 name list
  shift 2
  list=$(printf '"%s", ' $names)
  cat > $config <<END
[appliance]
name = "interop"
cores = "$cores"
memory = "64MiB"
idle = "adaptive"

[control]
socket = "$control"

[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:$INTEROP_PORT"

[[export]]
nqn = "$INTEROP_NQN"
devices = [${list%, }]
listeners = ["loopback"]
allow_any_host = true
END
  for name in $names; do
    printf '\n[[device]]\nname = "%s"\ntype = "nvme"\n' "$name"
    case $name in a*) echo "pci = \"$A\"" ;; *) echo "pci = \"${B#0000:}\"" ;; esac
    echo "namespace = ${name#?}"
    printf '%s\n' "$@"
  done >> $config
  show cat $config
}

# configure_export DEVICES [LINE…]: an export with a control socket, and with these lines about its
# hosts, by default for any host; standard input contains the devices' tables, and further exports.
configure_export() {
  local devices=$1
  shift
  cat > $config <<END
[appliance]
name = "interop"
cores = "0-1"
memory = "32MiB"

[control]
socket = "$control"

[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:$INTEROP_PORT"

[[export]]
nqn = "$INTEROP_NQN"
devices = [$devices]
listeners = ["loopback"]
END
  printf '%s\n' "${@:-allow_any_host = true}" >> $config
  cat >> $config
}

is_ready() {
  kill -0 "$windlass" 2> /dev/null || fail "the appliance did not start"
  grep -q '^windlass: ready' /tmp/windlass.out
}

# start: starts the appliance and waits until it is ready.
start() {
  say "starting the appliance"
  # Removes the output of a previous appliance.
  : > /tmp/windlass.out
  "${as[@]}" windlass run $config > /tmp/windlass.out 2> /tmp/windlass.log &
  windlass=$!
  eventually 60 is_ready
  cat /tmp/windlass.out /tmp/windlass.log
}

is_alive() { kill -0 "$windlass" 2> /dev/null; }

# stop: stops the appliance, which has to end in order.
stop() {
  say "stopping the appliance"
  kill "$windlass"
  wait "$windlass" || fail "the appliance ended with $?"
  windlass=
  cat /tmp/windlass.log
}

# expect_secret WHAT TEXT: the appliance has not printed TEXT.
expect_secret() {
  if grep -qF -- "$2" /tmp/windlass.log /tmp/windlass.out; then fail "the log has $1"; fi
}

# said TEXT: whether the appliance has printed TEXT since its start.
said() { grep -qF -- "$1" /tmp/windlass.log; }

# is_served NSID: whether the kernel host has that namespace of the export.
is_served() { device_of "$1" > /dev/null; }
is_not_served() { ! is_served "$1"; }

# device_of NSID: the block device of that namespace of the export.
device_of() {
  local device
  for device in $(namespaces); do
    if [ "$(cat "/sys/block/${device##*/}/nsid" 2> /dev/null)" = "$1" ]; then
      echo "$device"
      return
    fi
  done
  return 1
}

# disk_of ADDRESS NSID: the block device that the kernel's own driver creates for it. The number in
# its name is not the namespace's.
disk_of() {
  local path disk
  for path in "/sys/bus/pci/devices/$1"/nvme/nvme*/nvme*n*; do
    # With multipath the path below the controller is nvme0c0n1, and the disk nvme0n1.
    disk=$(sed -E 's/c[0-9]+n/n/' <<< "${path##*/}")
    if [ -b "/dev/$disk" ] && [ "$(cat "/sys/block/$disk/nsid" 2> /dev/null)" = "$2" ]; then
      echo "/dev/$disk"
      return
    fi
  done
  return 1
}

driver_of() { basename "$(readlink -f "/sys/bus/pci/devices/$1/driver")"; }

# without_root MEMLOCK: from now on the appliance runs as nobody with this limit of locked memory.
without_root() {
  as=(prlimit --memlock="$1" setpriv --reuid=nobody --regid=nogroup --clear-groups)
}

# node_of ADDRESS: the node of the drive's IOMMU group.
node_of() { echo "/dev/vfio/$(basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")")"; }

# IOMMU messages of the kernel that none of our drives may cause.
expect_quiet_iommu() {
  if dmesg | grep -iE 'DMAR:.*fault'; then fail "a drive reached for memory that is not its own"; fi
}

# begin_with_drives: binds both drives for the appliance.
begin_with_drives() {
  modprobe -a nvme-tcp
  cd /tmp
  show uname -r
  show windlass bind $A $B
  show windlass devices
}

# machine JSON: sends a command to QEMU; the text may have several lines.
machine() {
  local answer
  answer=$(qmp "$(tr -d '\n' <<< "$1")" 2>&1) || fail "QEMU did not: $1: $answer"
}

# under DISK NODE: inserts a block node of QEMU below a namespace of an emulated drive.
under() {
  machine "{\"execute\":\"blockdev-reopen\",\"arguments\":{\"options\":[{\"driver\":\"raw\",
    \"node-name\":\"$1\",\"file\":\"$2\",\"discard\":\"unmap\"}]}}"
}
