#!/usr/bin/env bash
# A host connects over TLS 1.3 with a pre-shared key: with the commands that `windlass key generate`
# prints, from its keyring with identities of both versions, and with a key of each kind. Raw I/O and a
# file system are verified, and no data is readable on the network. Wrong and missing keys are refused,
# another host's key, and a host without TLS. While the host writes and verifies, its key is exchanged
# without a reconnection, and the appliance is killed.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/keys.sh"

other_host=nqn.2026-11.org.example:host-b
other_id=22222222-2222-4222-8222-222222222222
discovery=nqn.2014-08.org.nvmexpress.discovery
marker=these-words-must-not-be-readable-on-the-network

# make_key NAME [OPTION…]: a key file of this name; /tmp/printed.NAME has the printed commands.
make_key() {
  local name=$1
  shift
  windlass key generate --host "$host" --subsystem "$INTEROP_NQN" "$@" --file "$keys/$name" \
    > "/tmp/printed.$name" 2>&1 || fail "no key: $(cat "/tmp/printed.$name")"
  show windlass key check "$keys/$name" --host "$host" --subsystem "$INTEROP_NQN"
}

# key NAME: the key itself.
key() { cat "$keys/$1"; }

# configure_host POLICY TABLE NAME…: the policy of the listener, the table of the host, and these keys.
configure_host() {
  local policy=$1 table=$2 name
  shift 2
  {
    printf '\n[[device]]\nname = "vol0"\ntype = "file"\npath = "/tmp/volume"\nsize = "32MiB"\n'
    for name; do printf '\n[[key]]\nname = "%s"\nfile = "%s"\n' "$name" "$keys/$name"; done
  } | configure_export '"vol0"' "hosts = [{ nqn = \"$host\"$table }]"
  sed -i "s/^transport = \"tcp\"/&\ntls = \"$policy\"/" $config
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

# The commands as an administrator copies them, with the address.
printed_commands() {
  local commands command connected=0
  say "the commands that windlass key generate prints"
  mkdir -p /etc/nvme
  install -m 600 $keys/old /etc/nvme/windlass.key
  mapfile -t commands < <(grep '^  nvme ' /tmp/printed.old)
  for command in "${commands[@]}"; do
    command=${command/ADDRESS -s 4420/$INTEROP_ADDRESS -s $INTEROP_PORT}
    say "$command"
    eval "$command" || fail "the command exited with $?"
    [[ $command = *connect* ]] || continue
    is_connected
    is_encrypted old
    disconnect
    forget_keys
    connected=$((connected + 1))
  done
  [ $connected = 2 ] || fail "$connected commands connect"
}

input_and_output() {
  say "I/O over TLS"
  connects --tls --tls-key="$(key old)"
  is_encrypted old
  disk=$(namespaces)
  verify "mixed sizes" "$disk" 16
  verify "large requests" "$disk" 16 --bsrange=512k-1m
  if captures "$marker"; then fail "data is readable on the network"; fi
  show mkfs.ext4 -q -F "$disk"
  show mount "$disk" /mnt
  verify "file system" /mnt/data 16
  show umount /mnt
  show e2fsck -f -n "$disk"
  expect_quiet_kernel
  disconnect
  forget_keys
  say "with digests"
  connects --tls --tls-key="$(key old)" --hdr-digest --data-digest
  is_encrypted old
  verify "digests" "$disk" 4
  expect_quiet_kernel
  disconnect
  forget_keys
}

every_kind_of_key() {
  local version
  for version in 0 1; do
    say "a key in the keyring, with an identity of version $version"
    keep old $version
    keyctl list %:.nvme
    connects --tls
    is_encrypted old
    verify "keyring-$version" "$(namespaces)" 4
    disconnect
    forget_keys
  done
  say "a key that is used as it is"
  configure_host required ', tls = ["old", "plain", "long"], require = ["tls"]' old plain long
  apply
  connects --tls --tls-key="$(key plain)"
  is_encrypted plain
  disconnect
  forget_keys
  say "a key for SHA-384, for which this host's GnuTLS computes with SHA-256"
  is_refused --tls --tls-key="$(key long)"
  said "GnuTLS before 3.8.11" || fail "the log does not say so"
  forget_keys
  say "discovery over TLS"
  nvme check-tls-key -d "$(key old)" -n $host -c $discovery -I 1 -i
  show nvme discover "${at_target[@]}" --hostnqn=$host --hostid=$id --tls
  forget_keys
  dmesg --clear
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
  say "the host has no key"
  is_refused --tls
  say "the key of a host, in the name of another one"
  nqn=$other_host uuid=$other_id is_refused --tls --tls-key="$(key old)"
  configure_host required ", tls = \"old\", require = [\"tls\"] }, \
    { nqn = \"$other_host\", tls = \"other\", require = [\"tls\"]" old other
  apply
  serial=$(keep old 1 | awk '{ print $NF }')
  connection="transport=tcp,traddr=$INTEROP_ADDRESS,trsvcid=$INTEROP_PORT,nqn=$INTEROP_NQN"
  connection+=",hostnqn=$other_host,hostid=$other_id,tls,tls_key=0x$serial"
  if echo "$connection" > /dev/nvme-fabrics; then fail "the host connects"; fi
  said "the connection uses key old of host $host" || fail "the log does not say so"
  [ -z "$(controllers)" ] || fail "a controller is left"
  forget_keys
  say "TLS at a listener without it"
  configure_host off ''
  apply
  is_refused --tls --tls-key="$(key old)"
  forget_keys
  configure_host required ', tls = "old", require = ["tls"]' old
  apply
  # The kernel has complained of the refusals.
  dmesg --clear
}

kernel_records() {
  say "records of the kernel"
  show modprobe tls
  show "$INTEROP_PROGRAMS/examples/kernel_records"
  configure_host required ', tls = "old", require = ["tls"]' old
  sed -i 's/^tls = "required"/&\ntls_records = "kernel"/' $config
  windlass doctor --config $config > /tmp/output 2>&1 || true
  grep -F 'records are sealed by the kernel (kTLS)' /tmp/output || fail "doctor: $(cat /tmp/output)"
  apply
  connects --tls --tls-key="$(key old)"
  is_encrypted old
  [ "$(status .channel.records)" = kernel ] || fail "other records: $(status .)"
  # Both ends of each connection.
  awk '$1 == "TlsCurrTxSw" { exit $2 < 4 }' /proc/net/tls_stat || fail "the appliance does not use kTLS"
  disk=$(namespaces)
  verify "mixed sizes" "$disk" 16
  verify "large requests" "$disk" 16 --bsrange=512k-1m
  if captures "$marker"; then fail "data is readable on the network"; fi
  expect_quiet_kernel
  disconnect
  eventually 10 no_kernel_records
  forget_keys
  say "digests over records of the kernel"
  connects --tls --tls-key="$(key old)" --hdr-digest --data-digest
  verify "digests" "$disk" 4
  expect_quiet_kernel
  disconnect
  forget_keys
  configure_host required ', tls = "old", require = ["tls"]' old
  apply
}

no_kernel_records() { awk '$1 == "TlsCurrTxSw" { exit $2 > 0 }' /proc/net/tls_stat; }

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
  local writer
  say "the host connects again after the appliance was killed"
  connects --tls --tls-key="$(key new)"
  is_encrypted new
  verify "restart" "$(namespaces)" 16 --rate_iops=30 $across_failures > /tmp/fio.log 2>&1 &
  writer=$!
  sleep 2
  kill -0 $writer || fail "fio has ended: $(cat /tmp/fio.log)"
  kill -9 "$windlass"
  wait "$windlass" || true
  eventually 60 is_not_live
  start
  eventually 60 is_live
  eventually 60 is_protected new
  wait $writer || fail "fio: $(cat /tmp/fio.log)"
  cat /tmp/fio.log
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
  captures "$marker" || fail "the capture does not show what is readable"
  configure_host allowed ', tls = "new", require = ["tls"]' new
  apply
  eventually 60 is_not_live
  show nvme disconnect -n "$INTEROP_NQN"
  connects --tls --tls-key="$(key new)"
  is_protected new || fail "not protected: $(status .)"
  windlass upgrade --dry-run --socket $control > /tmp/output 2>&1 || fail "$(cat /tmp/output)"
  cat /tmp/output
  grep -q '1 host(s) over TLS are disconnected' /tmp/output ||
    fail "an upgrade would not tell that the host is disconnected"
  disconnect
}

begin
start_tlshd
mkdir -p $keys
for name in old new other; do make_key $name; done
make_key plain --hash none
make_key long --hash sha384
configure_host required ', tls = "old", require = ["tls"]' old
show cat $config
show windlass check $config
start
printed_commands
input_and_output
every_kind_of_key
configure_host required ', tls = "old", require = ["tls"]' old
apply
wrong_and_missing_keys
kernel_records
keys_are_exchanged
survives_a_restart
both_at_one_listener
for name in old new other plain long; do expect_secret "the key $name" "$(key $name)"; done
windlass status --socket $control --json | jq -c '.keys[]'
stop
say passed
