#!/usr/bin/env bash
# Secure channel concatenation, which needs Linux 6.15: a host without a key for TLS generates one while
# it authenticates itself, and connects anew with it, in one and both directions. I/O is verified, and
# no data is readable on the network. A wrong secret is refused, and a host that does not generate a key.
# The host reconnects after the appliance was killed, and a revoked secret disconnects it.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/keys.sh"

# Revoked secrets are recorded there.
export STATE_DIRECTORY=/tmp/windlass.state
marker=these-words-must-not-be-readable-on-the-network

# make_key NAME [OPTION…]: a secret in a key file of this name.
make_key() {
  local name=$1
  shift
  show windlass key generate --kind chap "$@" --file "$keys/$name"
}

# secret NAME: the secret of a key.
secret() { cat "$keys/$1"; }

# configure_host TABLE: the table of the host.
configure_host() {
  local name
  {
    printf '\n[[device]]\nname = "vol0"\ntype = "file"\npath = "/tmp/volume"\nsize = "32MiB"\n'
    for name in db1 long own; do
      printf '\n[[key]]\nname = "%s"\nfile = "%s"\n' "$name" "$keys/$name"
    done
  } | configure_export '"vol0"' "hosts = [{ nqn = \"$host\"$1 }]"
  sed -i 's/^transport = "tcp"/&\ntls = "allowed"/' $config
}

# is_concatenated KEY: protected by a key that was generated with this secret.
is_concatenated() {
  is_encrypted "$1"
  [ "$(status .channel.generated)" = true ] || fail "the key is not generated: $(status .channel)"
  [ "$(cat "/sys/class/nvme/$controller/tls_mode")" = concat ] || fail "the host has another mode"
}

generates_its_key() {
  local name
  say "a key is generated and used"
  connects --dhchap-secret="$(secret db1)" --concat
  is_concatenated db1
  verify "concatenation" "$(namespaces)" 16
  if captures "$marker"; then fail "data is readable on the network"; fi
  disconnect
  say "both are authenticated"
  configure_host ', chap = ["db1", "long"], chap_controller = "own", concatenation = true, require = ["tls"]'
  apply
  for name in db1 long; do
    connects --dhchap-secret="$(secret $name)" --dhchap-ctrl-secret="$(secret own)" --concat
    is_concatenated $name
    verify "both directions" "$(namespaces)" 4
    disconnect
  done
  expect_quiet_kernel
}

is_refused_without_a_key() {
  say "wrong secrets, and hosts without TLS, are refused"
  is_refused --dhchap-secret="$(secret other)" --concat
  said "the host's key is none of those in \`chap\`" || fail "the log does not say so"
  is_refused --dhchap-secret="$(secret db1)"
  is_refused
  configure_host ', chap = "db1", require = ["chap"]'
  apply
  is_refused --dhchap-secret="$(secret db1)" --concat
  # The log has one failure of a host in 10 s.
  sleep 11
  is_refused --dhchap-secret="$(secret db1)" --concat
  said "the host requests a secure channel" || fail "the log does not say so"
  configure_host ', chap = "db1", concatenation = true, require = ["tls"]'
  apply
  dmesg --clear
}

survives_a_restart() {
  local writer
  say "the host generates another key after the appliance was killed"
  connects --dhchap-secret="$(secret db1)" --concat
  verify "restart" "$(namespaces)" 16 --rate_iops=30 $across_failures > /tmp/fio.log 2>&1 &
  writer=$!
  sleep 2
  kill -0 $writer || fail "fio has ended: $(cat /tmp/fio.log)"
  kill -9 "$windlass"
  wait "$windlass" || true
  eventually 60 is_not_live
  start
  eventually 120 is_live
  eventually 60 is_protected db1
  wait $writer || fail "fio: $(cat /tmp/fio.log)"
  cat /tmp/fio.log
}

a_revoked_secret_disconnects() {
  say "a revoked secret ends the generated key"
  show windlass key revoke db1 --disconnect --socket $control
  eventually 60 is_not_live
  show nvme disconnect -n "$INTEROP_NQN"
  is_refused --dhchap-secret="$(secret db1)" --concat
}

begin
start_tlshd
show "$INTEROP_PROGRAMS/examples/kernel_records"
mkdir -p $keys $STATE_DIRECTORY
make_key db1
make_key long --hash sha384
make_key own
make_key other
configure_host ', chap = "db1", concatenation = true, require = ["tls"]'
show cat $config
show windlass check $config
start
generates_its_key
is_refused_without_a_key
survives_a_restart
a_revoked_secret_disconnects
for name in db1 long own other; do expect_secret "the secret of $name" "$(secret $name)"; done
stop
