#!/usr/bin/env bash
# A host connects over TLS 1.3 with a pre-shared key, from the command line and from its keyring, with
# identities of both versions. Wrong and missing keys are refused, and a host without TLS. While the
# host writes and verifies, its key is exchanged without a reconnection; it connects again after the
# appliance was killed.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"

host=nqn.2026-11.org.example:host-a
id=11111111-1111-4111-8111-111111111111
keys=/tmp/keys

# make_key NAME: a key file of this name.
make_key() {
  show windlass key generate --file "$keys/$1"
  show windlass key check "$keys/$1"
}

# key NAME: the key itself.
key() { cat "$keys/$1"; }

# configure_host POLICY TABLE NAME…: the policy of the listener, the table of the host, and these keys.
configure_host() {
  local policy=$1 table=$2 name
  shift 2
  {
    printf '\n[[device]]\nname = "vol0"\ntype = "memory"\nsize = "32MiB"\n'
    for name; do printf '\n[[key]]\nname = "%s"\nfile = "%s"\n' "$name" "$keys/$name"; done
  } | configure_export '"vol0"' "hosts = [{ nqn = \"$host\"$table }]"
  sed -i "s/^transport = \"tcp\"/&\ntls = \"$policy\"/" $config
}

apply() { show windlass apply --socket $control; }

# start_tlshd: the kernel's handshakes are performed by a daemon.
start_tlshd() {
  printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' > /etc/tlshd.conf
  tlshd -s -c /etc/tlshd.conf > /tmp/tlshd.log 2>&1 &
  sleep 1
}

# connects OPTION…: connects as the host, and sets `controller`.
connects() {
  show nvme connect "${at_target[@]}" -n "$INTEROP_NQN" --hostnqn=$host --hostid=$id "$@"
  controller=$(controllers)
  eventually 60 is_live
  eventually 60 all_namespaces_are_there
}

# is_refused OPTION…: the host cannot connect.
is_refused() {
  local said
  said=$(nvme connect "${at_target[@]}" -n "$INTEROP_NQN" --hostnqn=$host --hostid=$id "$@" 2>&1) &&
    fail "the host connects"
  say "nvme connect: $said"
  [ -z "$(controllers)" ] || fail "a controller is left"
}

# status FILTER: a value of the status of the host's controller.
status() { windlass status --socket $control --json | jq -r ".hosts[0] | $1"; }

# is_protected KEY: with this key on the admin queue, and every I/O queue is protected.
is_protected() {
  [ "$(status '.channel.key')" = "$1" ] &&
    [ "$(status '(.queues | length > 0) and all(.queues[]; .protected)')" = true ]
}

# keep KEY VERSION: puts a key into the keyring, and prints its serial number.
keep() {
  nvme check-tls-key -d "$(key "$1")" -n $host -c "$INTEROP_NQN" -I "$2" -i > /tmp/kept ||
    fail "the key is not kept"
  cat /tmp/kept
}

forget_keys() {
  local serial
  for serial in $(keyctl rlist %:.nvme); do keyctl unlink "$serial" %:.nvme; done
}

every_kind_of_identity() {
  say "a key on the command line"
  connects --tls --tls-key="$(key old)"
  is_protected old || fail "not protected: $(status .)"
  status .channel
  [ "$(cat "/sys/class/nvme/$controller/tls_mode" 2> /dev/null || echo tls)" = tls ] || fail "no TLS"
  verify "command-line" "$(namespaces)" 4
  disconnect
  forget_keys
  for version in 0 1; do
    say "a key in the keyring, with an identity of version $version"
    keep old $version
    keyctl list %:.nvme
    connects --tls
    is_protected old || fail "not protected: $(status .)"
    status .channel
    verify "keyring-$version" "$(namespaces)" 4
    disconnect
    forget_keys
  done
}

wrong_and_missing_keys() {
  say "wrong and missing keys are refused, and a host without TLS"
  is_refused --tls --tls-key="$(key other)"
  said "no key is known for the identity" || fail "the log does not say so"
  forget_keys
  keep other 0
  is_refused --tls
  said "the host has another key for the identity" || fail "the log does not say so"
  forget_keys
  is_refused
  said "connects without TLS, and the listener requires it" || fail "the log does not say so"
  # The kernel has complained of the refusals.
  dmesg --clear
}

keys_are_exchanged() {
  local writer sequence
  say "a key is exchanged while the host writes"
  connects --tls --tls-key="$(key old)"
  disk=$(namespaces)
  sequence=$(cat "/sys/block/${disk##*/}/diskseq")
  verify "exchange" "$disk" 8 --rate_iops=60 > /tmp/fio.log 2>&1 &
  writer=$!
  configure_host required ', tls = ["old", "new"], require = ["tls"]' old new
  apply
  configure_host required ', tls = "new", require = ["tls"]' new
  apply
  is_live || fail "the controller is $(state)"
  kill -0 $writer || fail "fio has ended: $(cat /tmp/fio.log)"
  wait $writer || fail "fio: $(cat /tmp/fio.log)"
  cat /tmp/fio.log
  [ "$(cat "/sys/block/${disk##*/}/diskseq")" = "$sequence" ] || fail "the disk was attached again"
  is_protected old || fail "another key: $(status .)"
  expect_quiet_kernel
  disconnect
  forget_keys
  is_refused --tls --tls-key="$(key old)"
  forget_keys
  dmesg --clear
}

survives_a_restart() {
  say "the host connects again after the appliance was killed"
  connects --tls --tls-key="$(key new)"
  is_protected new || fail "not protected: $(status .)"
  kill -9 "$windlass"
  wait "$windlass" || true
  eventually 60 is_not_live
  start
  eventually 60 is_live
  eventually 60 is_protected new
  disconnect
  forget_keys
}

both_at_one_listener() {
  say "a listener serves hosts with TLS and without"
  configure_host allowed ', tls = "new"' new
  apply
  show nvme discover "${at_target[@]}" --hostnqn=$host --hostid=$id
  nvme discover "${at_target[@]}" --hostnqn=$host --hostid=$id | grep -q 'sectype: *tls13' ||
    fail "discovery does not report TLS"
  connects
  [ "$(status .channel)" = null ] || fail "protected: $(status .)"
  configure_host allowed ', tls = "new", require = ["tls"]' new
  apply
  eventually 60 is_not_live
  show nvme disconnect -n "$INTEROP_NQN"
  connects --tls --tls-key="$(key new)"
  is_protected new || fail "not protected: $(status .)"
  if windlass upgrade --dry-run --socket $control > /tmp/output 2>&1; then
    fail "an upgrade would lose protected connections"
  fi
  cat /tmp/output
  disconnect
}

begin
modprobe tls
start_tlshd
mkdir -p $keys
for name in old new other; do make_key $name; done
configure_host required ', tls = "old", require = ["tls"]' old
show cat $config
show windlass check $config
start
every_kind_of_identity
wrong_and_missing_keys
keys_are_exchanged
survives_a_restart
both_at_one_listener
for name in old new other; do
  if grep -qF "$(key $name)" /tmp/windlass.log /tmp/windlass.out; then
    fail "the log has the key $name"
  fi
done
windlass status --socket $control --json | jq -c '.keys[]'
stop
say passed
