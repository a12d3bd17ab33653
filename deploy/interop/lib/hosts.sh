# Common part of the scenarios with two hosts on one kernel; sourced after guest.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034  # for the scenarios

host_a=nqn.2026-11.org.example:host-a
host_b=nqn.2026-11.org.example:host-b
id_a=11111111-1111-4111-8111-111111111111
id_b=22222222-2222-4222-8222-222222222222

# without_multipath: loads the driver without multipath, with which it would take the hosts for two
# paths of one. It may be loaded already.
without_multipath() {
  modprobe -r nvme_tcp nvme nvme_fabrics nvme_core 2> /dev/null || true
  modprobe nvme_core multipath=N
  [ "$(cat /sys/module/nvme_core/parameters/multipath)" = N ] ||
    fail "multipath cannot be turned off"
}
