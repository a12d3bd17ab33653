#!/usr/bin/env bash
# Administration of the Debian package under systemd: install, configure, attach, reload under I/O,
# a reactor that hangs, upgrade, removal, purge.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/rdma.sh"
. "$(dirname "$0")/lib/package.sh"

added=/var/lib/windlass/volume1.img
# Enough for the arena and the other memory of a reactor.
huge_pages=48

is_held_in_huge_pages() { [ "$(awk '/HugePages_Free/ { print $2 }' /proc/meminfo)" -lt $huge_pages ]; }

# The files of a machine, without those of package managers and the journal.
inventory() {
  find /etc /usr /var /opt /root -xdev \
    \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) -prune \
    -o \( -name 'passwd*' -o -name 'shadow*' -o -name 'group*' -o -name 'gshadow*' -o -name 'sub?id*' \
    -o -name .pwd.lock -o -path '/var/lib/systemd/*' -a ! -name '*windlass*' \) -o -print | sort
  getent passwd | cut -d: -f1
  getent group | cut -d: -f1
}

as_it_comes() {
  say "as it comes"
  install "${packages[0]}"
  eventually 30 is_running
  systemctl is-enabled windlass windlass-hugepages || fail "a unit is not enabled"
  [ "$(property StatusText)" = "serving 1 export(s) on 1 listener(s)" ] || fail "no status"
  nvme discover "${at_target[@]}" | grep 'nqn.2026-11.org.windlass:example' ||
    fail "the example is not served"
  local process status
  process=$(property MainPID)
  status=$(cat "/proc/$process/status")
  [ "$(stat -c %U "/proc/$process")" = windlass ] || fail "it does not run as its own user"
  grep -E '^(Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' <<< "$status"
  if grep -E '^Cap(Prm|Eff|Bnd|Amb):' <<< "$status" | grep -v 0000000000000000; then
    fail "it has capabilities"
  fi
  [ "$(stat -c %U:%G:%a $file)" = root:windlass:640 ] || fail "$file is not the service's to read"
}

# A file and a drive are exported over TCP and RDMA, huge pages hold the arena.
configure_the_service() {
  say "a configuration of the administrator's"
  soft_roce
  cat > $file <<END
[appliance]
name = "interop"
memory = "64MiB"
pages = "huge"
[[device]]
name = "volume0"
type = "file"
path = "$volume"
size = "64MiB"
[[device]]
name = "drive"
type = "nvme"
pci = "$A"
[[listener]]
name = "loopback"
transport = "tcp"
address = "$INTEROP_ADDRESS:$INTEROP_PORT"
[[listener]]
name = "fabric"
transport = "rdma"
address = "$fabric:$INTEROP_PORT"
[[export]]
nqn = "$INTEROP_NQN"
devices = ["volume0", "drive"]
listeners = ["loopback", "fabric"]
allow_any_host = true
END
  echo HUGEPAGES_2M=$huge_pages > /etc/default/windlass-hugepages
  mkdir -p /run/systemd/system/windlass.service.d
  printf '[Service]\nEnvironment=WINDLASS_TEST_HOOKS=stick-on-usr1\n' \
    > /run/systemd/system/windlass.service.d/hook.conf
  systemctl daemon-reload
  show systemctl restart windlass-hugepages
  show systemctl enable --now windlass-bind@$A
  [ "$(driver_of $A)" = vfio-pci ] || fail "the drive was not bound"
  eventually 30 sh -c "[ \"\$(stat -c %G:%a '$(node_of $A)')\" = windlass:660 ]"
  show systemctl restart windlass
  is_running || fail "not running after its restart"
  nvme discover -t rdma -a $fabric -s "$INTEROP_PORT" | grep "$INTEROP_NQN" ||
    fail "RDMA does not answer"
  is_held_in_huge_pages || fail "the arena is not in huge pages"
}

a_wrong_configuration_is_not_tried_again() {
  say "a wrong configuration"
  cp $file right
  echo 'memroy = "1GiB"' >> $file
  if systemctl restart windlass; then fail "started with a wrong configuration"; fi
  [ "$(property ExecMainStatus)" = 78 ] || fail "exit status $(property ExecMainStatus)"
  [ "$(property SubState)" = failed ] || fail "state $(property SubState)"
  journal memroy || fail "the journal does not say what is wrong"
  cat right > $file
  show systemctl restart windlass
}

bytes_of() { blockdev --getsize64 "$1"; }
has_namespaces() { [ "$(namespaces | wc -l)" = "$1" ]; }
has_bytes() { [ "$(bytes_of "$1" 2> /dev/null)" = $(($2 << 20)) ]; }
is_discovered() { nvme discover "${at_target[@]}" | grep -F "$1" > /dev/null; }
reload() {
  say "reload: $1"
  show systemctl reload windlass
}
refused_reload() {
  local began
  began=$(date +%s.%6N)
  say "a reload that is refused: $1"
  if systemctl reload windlass; then fail "reloaded"; fi
  journal "$2" --since=@"$began" || fail "the journal does not say: $2"
  is_running || fail "the service does not run any more"
}

# The kernel host learns of changes only by events: nothing here rescans, reconnects or disconnects.
reloads_under_io() {
  say "reloads under I/O"
  local process writer third other="$INTEROP_NQN.other"
  process=$(property MainPID)
  dmesg --clear
  until [ -e reloaded ]; do
    verify "a volume under reloads" "$(device_of 1)" 16 --rate=2m,2m
  done > writes.log 2>&1 &
  writer=$!

  {
    sed 's/"drive"\]/"drive", "volume1"]/' right
    printf '[[device]]\nname = "volume1"\ntype = "file"\npath = "%s"\nsize = "32MiB"\n' "$added"
  } > $file
  reload "a namespace comes"
  eventually 20 has_namespaces 3
  third=$(device_of 3)
  has_bytes "$third" 32 || fail "$third has $(bytes_of "$third") bytes"
  verify "a namespace that came" "$third" 8

  sed -i 's/^size = "32MiB"/size = "48MiB"/; s/^size = "64MiB"/size = "96MiB"/' $file
  reload "namespaces grow, one of them under I/O"
  eventually 20 has_bytes "$third" 48
  eventually 20 has_bytes "$(device_of 1)" 96
  verify "what a namespace grew by" "$third" 8 --offset=40m

  cp $file grown
  cat >> $file <<END
[[device]]
name = "nothing"
type = "null"
size = "1GiB"
[[export]]
nqn = "$other"
devices = ["nothing"]
listeners = ["loopback"]
allow_any_host = true
END
  reload "an export comes"
  is_discovered "$other" || fail "$other is not discovered"
  cat grown > $file
  reload "it goes again"
  if is_discovered "$other"; then fail "$other is still discovered"; fi

  echo 'memroy = "1GiB"' >> $file
  refused_reload "a wrong file" memroy
  sed 's/^memory = .*/memory = "32MiB"/' grown > $file
  show windlass apply --dry-run $file
  refused_reload "more than a reload can do" "appliance.memory"
  cat grown > $file
  reload "nothing"
  journal "the file is applied; nothing to change" || fail "something was changed by refused reloads"

  sed 's/^size = "64MiB"/size = "96MiB"/' right > $file
  reload "a namespace goes, and its file"
  eventually 20 has_namespaces 2
  : > reloaded
  wait $writer || fail "fio saw it: $(cat writes.log)"
  cat writes.log
  [ "$(property MainPID)" = "$process" ] || fail "the service was restarted"
  expect_quiet_kernel
  rm $added
}

a_stuck_reactor_is_ended() {
  say "a stuck reactor"
  local restarts began
  restarts=$(property NRestarts)
  began=$(date +%s)
  verify "a volume while the service is restarted" "$(device_of 1)" 16 --rate=2m,2m $across_failures \
    > writes.log 2>&1 &
  local writer=$!
  sleep 2
  show systemctl kill --kill-whom=main -s USR1 windlass
  has_restarted() { [ "$(property NRestarts)" -gt "$restarts" ] && is_running; }
  eventually 60 has_restarted
  say "restarted by the watchdog after $(($(date +%s) - began)) s"
  # With priority and source location, which only the journal's own protocol transmits.
  journal "reactor 0 is stuck in inbox: the watchdog is no longer pinged" -p err -o verbose \
    CODE_FILE=appliance/src/service/heartbeat.rs || fail "nothing said why"
  journal "Watchdog timeout" || fail "it was not the watchdog"
  wait $writer || fail "fio saw it: $(cat writes.log)"
  cat writes.log
  eventually 60 is_live
}

upgrade() {
  say "upgrade"
  local process
  process=$(property MainPID)
  cp $file /etc/default/windlass-hugepages /tmp
  cp "${packages[1]}" /tmp/windlass.deb
  show dpkg -i /tmp/windlass.deb
  [ "$(property MainPID)" = "$process" ] || fail "the upgrade interrupted the service"
  is_live || fail "the host lost its controller"
  cmp $file /tmp/windlass.toml || fail "the configuration was changed"
  cmp /etc/default/windlass-hugepages /tmp/windlass-hugepages || fail "the variables were changed"
  show systemctl restart windlass
  eventually 60 is_live
  verify "a drive after the upgrade" "$(device_of 2)" 8
}

purge() {
  say "removal and purge"
  disconnect
  show dpkg --remove windlass
  [ "$(driver_of $A)" = nvme ] || fail "the drive was not given back"
  [ -s $file ] || fail "a removal took the configuration away"
  say "purge with a volume"
  # In the way that dpkg runs it; the package remains known to dpkg for the purge below.
  /var/lib/dpkg/info/windlass.postrm purge > purge.log || fail "purge: $(cat purge.log)"
  cat purge.log
  grep '/var/lib/windlass and its owner' purge.log > /dev/null || fail "nothing was said of the volume"
  [ "$(stat -c %U $volume)" = windlass ] || fail "the volume has no owner"
  say "purge without one"
  rm $volume
  show apt-get purge -q -y windlass
  inventory > after
  diff before after || fail "the purge left something"
  [ ! -e /run/windlass ] || fail "/run/windlass is left"
  if systemctl cat windlass.service 2> /dev/null; then fail "the unit is left"; fi
  rm -r /run/systemd/system/windlass.service.d
}

begin_under_systemd vfio-pci
inventory > before
as_it_comes
configure_the_service
connect --reconnect-delay=1
verify "a file as it is installed" "$(device_of 1)" 8
verify "a drive as it is installed" "$(device_of 2)" 8
a_wrong_configuration_is_not_tried_again
eventually 60 is_live
reloads_under_io
a_stuck_reactor_is_ended
upgrade
purge
expect_quiet_iommu
say passed
