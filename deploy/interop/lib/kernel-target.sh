# Functions for the kernel's own NVMe-oF target; sourced in the guest.
# shellcheck shell=bash

target_root=/sys/kernel/config/nvmet

# kernel_disk NAME MIB: makes a disk in memory that zeroes what is discarded; prints its device.
kernel_disk() {
  modprobe loop
  truncate -s "$2M" "/tmp/$1"
  losetup -f --show "/tmp/$1"
}

# kernel_subsystem NQN DEVICE…: a subsystem for any host, with the devices as namespaces 1, 2, …
kernel_subsystem() {
  modprobe nvmet
  local place=$target_root/subsystems/$1 nsid=0 device
  shift
  mkdir "$place"
  echo 1 > "$place/attr_allow_any_host"
  for device; do
    nsid=$((nsid + 1))
    mkdir "$place/namespaces/$nsid"
    printf %s "$device" > "$place/namespaces/$nsid/device_path"
    cat /proc/sys/kernel/random/uuid > "$place/namespaces/$nsid/device_nguid"
    echo 1 > "$place/namespaces/$nsid/enable"
  done
}

# kernel_port ID tcp|rdma ADDRESS SERVICE: a port that listens once a subsystem is on it.
kernel_port() {
  modprobe "nvmet-$2"
  local place=$target_root/ports/$1
  mkdir "$place"
  echo ipv4 > "$place/addr_adrfam"
  echo "$2" > "$place/addr_trtype"
  echo "$3" > "$place/addr_traddr"
  echo "$4" > "$place/addr_trsvcid"
}

# kernel_export ID NQN: puts a subsystem on a port.
kernel_export() {
  ln -s "$target_root/subsystems/$2" "$target_root/ports/$1/subsystems/$2"
}

# kernel_withdraw ID NQN: removes it again; its connections close.
kernel_withdraw() {
  rm "$target_root/ports/$1/subsystems/$2"
}
