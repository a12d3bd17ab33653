# Common part of the scenarios with the Debian package under systemd; sourced after drives.sh.
#   INTEROP_PACKAGES   the directory of the packages, of which there are two versions
# shellcheck shell=bash
# shellcheck disable=SC2034  # for the scenarios

# The older first.
mapfile -t packages < <(ls -v "$INTEROP_PACKAGES"/*.deb)
export DEBIAN_FRONTEND=noninteractive
file=/etc/windlass/windlass.toml
volume=/var/lib/windlass/volume0.img

at_end() {
  local status=$?
  [ "$status" = 0 ] && return
  echo "--- the units said"
  systemctl status --no-pager --lines=0 'windlass*' || true
  journalctl --no-pager -o short-monotonic -u 'windlass*' | tail -n 60
}

is_running() { systemctl --quiet is-active windlass; }
property() { systemctl show --value -p "$1" windlass; }
# journal TEXT OPTION…: whether the service, or systemd about it, has logged TEXT. Reads everything,
# because the journal's reader would otherwise end with a broken pipe.
journal() {
  local text=$1
  shift
  journalctl -q --no-pager -u windlass "$@" | grep -F -- "$text" > /dev/null
}

# begin_under_systemd MODULE…: waits until the machine is up.
begin_under_systemd() {
  modprobe -a nvme-tcp "$@"
  cd /tmp
  eventually 60 test -S /run/systemd/private
  say "systemd is $(systemctl is-system-running --wait)"
}

install() {
  cp "$1" /tmp/windlass.deb
  show apt-get install -q -y --no-install-recommends /tmp/windlass.deb
}
