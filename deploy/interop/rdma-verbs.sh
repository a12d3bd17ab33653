# Real verbs on soft RoCE: the conformance suite of RDMA providers, and the effects on connections
# when a peer is killed, a port goes down and a device is removed.
#   INTEROP_PROGRAMS   the directory with windlass, examples/verbs_conformance and examples/verbs_lab
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"

PATH=$INTEROP_PROGRAMS:$INTEROP_PROGRAMS/examples:$PATH
address=192.0.2.1

cd /tmp
show uname -r

# without TEXT: verbs are refused with one line that contains TEXT.
without() {
  local output
  if output=$(verbs_conformance $address 2>&1); then fail "there are verbs: $output"; fi
  echo "$output"
  [ "$(wc -l <<< "$output")" = 1 ] || fail "not one line"
  grep -qF "RDMA is unavailable: $1" <<< "$output" || fail "does not say: $1"
}

say "no libraries"
for name in libibverbs librdmacm; do
  library=/usr/lib/$(uname -m)-linux-gnu/$name.so.1
  mv "$library" "$library.away"
  without "the library $name.so.1 cannot be loaded"
  show windlass --version
  mv "$library.away" "$library"
done

say "no device"
# The order matters: the driver loaded last is notified first of a removed device, and soft RoCE's
# driver would have user space close everything before the connection manager reports the reason.
modprobe rdma_rxe
modprobe rdma_ucm
without "this machine has no RDMA device"

say "soft RoCE"
for index in 0 1; do
  ip link add d$index type dummy
  ip addr add 192.0.$((2 + index)).1/24 dev d$index
  ip link set d$index up
  show rdma link add rxe$index type rxe netdev d$index
  eventually 10 test -e /dev/infiniband/uverbs$index
done
show rdma link show

say "the suite"
show verbs_conformance $address

say "the world changes"
show verbs_lab $address d0 rxe0

if dmesg | grep -E 'WARNING:|BUG:|refcount'; then fail "the kernel complains"; fi
say "passed"
