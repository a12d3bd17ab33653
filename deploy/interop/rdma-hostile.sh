#!/usr/bin/env bash
# Our own initiator on real verbs, on soft RoCE: discovery and verified load by arena keys and by memory
# windows; then a client that does what no host does. Every offence gets the answer that the
# specification names, and a queue beside it never notices.
#   INTEROP_PROGRAMS   the directory with windlass, bench and examples/hostile_rdma
. "$(dirname "${BASH_SOURCE[0]}")/lib/guest.sh"
. "$(dirname "${BASH_SOURCE[0]}")/lib/rdma.sh"

PATH=$INTEROP_PROGRAMS/examples:$PATH
at=$fabric:$INTEROP_PORT

cd /tmp
soft_roce
configure 0 '"ram"' <<END

[[device]]
name = "ram"
type = "memory"
size = "32MiB"
END
start

say "our host"
show bench discover --transport rdma --address "$at"
load=(run --transport rdma --address "$at" --nqn "$INTEROP_NQN" --verify --ops 1500 --region 8M)
show bench "${load[@]}" --depth 32 --block-size 512,4k,64k,1M
show bench "${load[@]}" --depth 16 --queues 2 --block-size 4k,64k --memory-windows --json windows.json
[ "$(jq '.runs[0].trouble' windows.json)" = null ] || fail "trouble"

say "what no host does"
show hostile_rdma "$at" "$INTEROP_NQN"
show bench "${load[@]}" --depth 8 --block-size 4k

stop
say "passed"
