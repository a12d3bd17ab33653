# Hosts with keys; sourced after drives.sh by scenarios whose appliance runs in the guest.
# shellcheck shell=bash disable=SC2154  # the variables of drives.sh

host=nqn.2026-11.org.example:host-a
id=11111111-1111-4111-8111-111111111111
keys=/tmp/keys

apply() { show windlass apply --socket $control; }

# connects OPTION…: connects as the host, and sets `controller`.
connects() {
  # Not shown: the options may have a key.
  nvme connect "${at_target[@]}" -n "$INTEROP_NQN" --hostnqn=$host --hostid=$id "$@" ||
    fail "nvme connect exited with $?"
  is_connected
}

is_connected() {
  controller=$(controllers)
  [ -n "$controller" ] || fail "no controller"
  eventually 60 is_live
  eventually 60 all_namespaces_are_there
}

# is_refused OPTION…: the host cannot connect; `nqn` and `uuid` replace its identity.
is_refused() {
  local said
  said=$(nvme connect "${at_target[@]}" -n "$INTEROP_NQN" --hostnqn="${nqn:-$host}" \
    --hostid="${uuid:-$id}" "$@" 2>&1) && fail "the host connects"
  say "nvme connect: $said"
  [ -z "$(controllers)" ] || fail "a controller is left"
}

# status FILTER: a value of the status of the host's controller.
status() { windlass status --socket $control --json | jq -r ".hosts[0] | $1"; }

# start_tlshd: the kernel's handshakes are performed by a daemon.
start_tlshd() {
  modprobe tls
  # Emulated processors on a busy machine can need more than the 10 s that the kernel allows.
  echo 60 > /sys/module/nvme_tcp/parameters/tls_handshake_timeout
  printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' > /etc/tlshd.conf
  tlshd -s -c /etc/tlshd.conf > /tmp/tlshd.log 2>&1 &
  trap 'at_end; tail -n 20 /tmp/tlshd.log' EXIT
  sleep 1
}

# is_protected KEY: with this key on the admin queue, and every I/O queue is protected.
is_protected() {
  [ "$(status '.channel.key')" = "$1" ] &&
    [ "$(status '(.queues | length > 0) and all(.queues[]; .protected)')" = true ]
}

# is_encrypted KEY: with this key, by the host's kernel.
is_encrypted() {
  is_protected "$1" || fail "not protected: $(status .)"
  status .channel
  # One socket of each queue of the host; our records do not use the kernel's TLS.
  grep -E '^TlsCurr[RT]xSw' /proc/net/tls_stat
  [ "$(awk '$1 == "TlsCurrTxSw" { print $2 }' /proc/net/tls_stat)" -ge 2 ] ||
    fail "the kernel does not encrypt"
}

# captures TEXT: writes the text and reads it back; whether it was readable on the network.
captures() {
  local capture=/tmp/capture block=/tmp/block watcher
  rm -f $capture
  tcpdump -i lo -U -w $capture "tcp port $INTEROP_PORT" 2> /tmp/tcpdump &
  watcher=$!
  eventually 30 grep -q listening /tmp/tcpdump
  yes "$1" | head -c 65536 > $block || true
  dd if=$block of="$(namespaces)" bs=64k oflag=direct status=none || fail "the text is not written"
  dd if="$(namespaces)" bs=64k count=1 iflag=direct status=none | cmp - $block ||
    fail "other data is read"
  has_captured_both() { [ "$(stat -c %s $capture)" -gt 131072 ]; }
  eventually 30 has_captured_both
  kill $watcher
  wait $watcher || true
  grep -qaF "$1" $capture
}
