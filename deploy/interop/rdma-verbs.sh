# Real verbs on soft RoCE: the suite that every RDMA provider runs, and what becomes of connections when
# a peer is killed, a port goes down and a device is removed.
#   INTEROP_PROGRAMS   the directory with examples/verbs_conformance and examples/verbs_lab
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"

PATH=$INTEROP_PROGRAMS/examples:$PATH
address=192.0.2.1

cd /tmp
show uname -r

say "no device"
# In this order: what was loaded last is told first that a device goes, and soft RoCE's driver would
# have user space close everything before the connection manager says why.
modprobe rdma_rxe
modprobe rdma_ucm
if verbs_conformance $address > no-device.log 2>&1; then fail "a machine without devices has some"; fi
cat no-device.log
grep -qF "no RDMA here: this machine has no RDMA device" no-device.log || fail "not one clear line"

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
