#!/usr/bin/env bash
# A host authenticates itself by DH-HMAC-CHAP, in one and both directions, on every queue, also after
# the appliance was killed. Wrong and missing keys are refused. While the host writes and verifies,
# its key is exchanged without a reconnection, and it authenticates itself again with the new one. It
# authenticates itself over RDMA too.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/keys.sh"

# make_key NAME [OPTION…]: a key file of this name.
make_key() {
  local name=$1
  shift
  show windlass key generate --kind chap "$@" --file "$keys/$name"
  show windlass key check "$keys/$name"
}

# secret NAME: the secret of a key.
secret() { cat "$keys/$1"; }

# configure_host TABLE NAME…: the table of the host, and these keys.
configure_host() {
  local table=$1 name
  shift
  {
    printf '\n[[device]]\nname = "vol0"\ntype = "memory"\nsize = "32MiB"\n'
    for name; do printf '\n[[key]]\nname = "%s"\nfile = "%s"\n' "$name" "$keys/$name"; done
  } | configure_export '"vol0"' "hosts = [{ nqn = \"$host\"$table }]"
}

# is_authenticated KEY BIDIRECTIONAL: with this key on the admin queue, and on every I/O queue.
is_authenticated() {
  [ "$(status '.authentication | "\(.key) \(.bidirectional)"')" = "$1 $2" ] &&
    [ "$(status '(.queues | length > 0) and all(.queues[]; .authenticated)')" = true ]
}

# uses KEY: how often a key was used.
uses() {
  windlass status --socket $control --json | jq --arg key "$1" \
    '.keys[] | select(.name == $key) | .uses'
}

wrong_and_missing_keys() {
  say "wrong and missing keys are refused"
  is_refused
  is_refused --dhchap-secret="$(secret other)"
  said "authentication for $INTEROP_NQN on queue 0 failed" || fail "the log does not say so"
  is_refused --dhchap-secret="$(secret old)" --dhchap-ctrl-secret="$(secret other)"
  chmod 644 $keys/new
  configure_host ', chap = "new"' new
  for command in "check $config" "apply --socket $control"; do
    # shellcheck disable=SC2086  # several options
    if windlass $command > /tmp/output 2>&1; then
      fail "a key file that others may read is accepted"
    fi
    cat /tmp/output
    grep -qF "run chmod 600 $keys/new" /tmp/output || fail "the fix is missing"
  done
  chmod 600 $keys/new
  # The kernel has complained of the refusals.
  dmesg --clear
}

keys_are_exchanged() {
  local writer sequence
  say "a key is exchanged while the host writes"
  connects --dhchap-secret="$(secret old)"
  is_authenticated old false || fail "not authenticated: $(status .)"
  disk=$(namespaces)
  sequence=$(cat "/sys/block/${disk##*/}/diskseq")
  verify "exchange" "$disk" 16 --rate_iops=60 > /tmp/fio.log 2>&1 &
  writer=$!
  configure_host ', chap = ["old", "new"], require = ["chap"]' old new
  apply
  echo "$(secret new)" > "/sys/class/nvme/$controller/dhchap_secret"
  eventually 60 is_authenticated new false
  configure_host ', chap = "new", require = ["chap"]' new
  apply
  is_live || fail "the controller is $(state)"
  # Again with the same key.
  before=$(uses new)
  echo "$(secret new)" > "/sys/class/nvme/$controller/dhchap_secret"
  kill -0 $writer || fail "fio has ended: $(cat /tmp/fio.log)"
  wait $writer || fail "fio: $(cat /tmp/fio.log)"
  cat /tmp/fio.log
  say "key new: $before uses, then $(uses new)"
  [ "$(cat "/sys/block/${disk##*/}/diskseq")" = "$sequence" ] || fail "the disk was attached again"
  expect_quiet_kernel
  disconnect
  is_refused --dhchap-secret="$(secret old)"
}

survives_a_restart() {
  say "the host authenticates itself again after the appliance was killed"
  connects --dhchap-secret="$(secret new)" --dhchap-ctrl-secret="$(secret own)"
  is_authenticated new true || fail "not authenticated: $(status .)"
  kill -9 "$windlass"
  wait "$windlass" || true
  eventually 60 is_not_live
  start
  eventually 60 is_live
  eventually 60 is_authenticated new true
  disconnect
}

a_requirement_is_new() {
  say "a new requirement disconnects hosts that have not authenticated themselves"
  configure_host ', chap = "new"' new
  apply
  connects
  [ "$(status .authentication)" = null ] || fail "authenticated: $(status .)"
  configure_host ', chap = "new", require = ["chap"]' new
  apply
  eventually 60 is_not_live
  show nvme disconnect -n "$INTEROP_NQN"
  connects --dhchap-secret="$(secret new)"
  is_authenticated new false || fail "not authenticated: $(status .)"
  disconnect
}

over_rdma() {
  local fabric=192.0.2.1
  say "over RDMA, with a listener that is added live"
  modprobe rdma_rxe
  modprobe -a rdma_ucm nvme-rdma
  ip link add d0 type dummy
  ip addr add $fabric/24 dev d0
  ip link set d0 mtu 9000 up
  show rdma link add rxe0 type rxe netdev d0
  eventually 10 test -e /dev/infiniband/uverbs0
  configure_host ', chap = "new", chap_controller = "own", require = ["chap"]' new own
  sed -i 's/^listeners = .*/listeners = ["loopback", "san"]/' $config
  printf '\n[[listener]]\nname = "san"\ntransport = "rdma"\naddress = "%s:%s"\n' \
    $fabric "$INTEROP_PORT" >> $config
  apply
  at_target=(-t rdma -a $fabric -s "$INTEROP_PORT")
  is_refused
  is_refused --dhchap-secret="$(secret old)"
  said "authentication for $INTEROP_NQN on queue 0 failed" || fail "the log does not say so"
  dmesg --clear
  connects --dhchap-secret="$(secret new)" --dhchap-ctrl-secret="$(secret own)"
  is_authenticated new true || fail "not authenticated: $(status .)"
  [ "$(cat "/sys/class/nvme/$controller/transport")" = rdma ] || fail "not over RDMA"
  verify "over RDMA" "$(namespaces)" 8
  disconnect
}

begin
mkdir -p $keys
make_key old
make_key new --hash sha512
make_key own --hash sha384
make_key other --hash none
configure_host ', chap = "old", chap_controller = "own", require = ["chap"]' old own
show cat $config
show windlass check $config
start
connects --dhchap-secret="$(secret old)" --dhchap-ctrl-secret="$(secret own)"
is_authenticated old true || fail "not authenticated: $(status .)"
status .
disconnect
wrong_and_missing_keys
configure_host ', chap = "old", require = ["chap"]' old
apply
keys_are_exchanged
configure_host ', chap = "new", chap_controller = "own", require = ["chap"]' new own
apply
survives_a_restart
a_requirement_is_new
over_rdma
for name in old new own other; do expect_secret "the secret of $name" "$(secret $name)"; done
windlass status --socket $control --json | jq -c '.keys[]'
stop
say passed
