#!/usr/bin/env bash
# A hostile host over real verbs violates the rules, and receives the reactions that the
# specification requires: rejections with reasons, error statuses, the end of its connection. Other
# hosts are not affected.
#   INTEROP_PROGRAMS   the directory with windlass and examples/hostile_rdma
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"

cd /tmp
show uname -r
soft_roce
configure 0,1 '"ram"' <<END

[[device]]
name = "ram"
type = "memory"
size = "16MiB"
END
start
show "$INTEROP_PROGRAMS/examples/hostile_rdma" "$fabric:$INTEROP_PORT" "$INTEROP_NQN"
stop
for line in "a connection request is rejected" "remote access error" "shorter than a command"; do
  grep -qF -- "$line" /tmp/windlass.log || fail "the log does not say: $line"
done
if dmesg | grep -E 'WARNING:|BUG:|hung task'; then fail "the kernel complains"; fi
say passed
