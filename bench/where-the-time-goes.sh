#!/bin/bash
# Writes bench/WHERE-THE-TIME-GOES.md (the cost of one request over TCP by stage and by function, and the
# duration of its stages) and its flame graphs. Takes two minutes; needs perf, jq, valgrind and inferno
# (cargo install inferno).
#
#   cargo build --release -p appliance -p bench -p measurement
#   bench/where-the-time-goes.sh [folder with the three binaries, else target/release]
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=${1:-target/release}
page=bench/WHERE-THE-TIME-GOES.md
for tool in perf jq valgrind inferno-collapse-perf inferno-flamegraph; do
  command -v "$tool" >/dev/null || { echo "$0: $tool is not installed" >&2; exit 1; }
done
seconds=4
port=$((20000 + RANDOM % 10000))
work=$(mktemp -d)
target=
end() {
  if [ -n "$target" ] && kill "$target" 2>/dev/null; then wait "$target" || true; fi
  target=
}
trap 'end; rm -rf "$work"' EXIT

dd if=/dev/urandom of="$work/file" bs=1M count=64 status=none
cat >"$work/windlass.toml" <<TOML
[appliance]
name = "where"
cores = "0"
memory = "256MiB"
[control]
socket = "$work/control.sock"
[[device]]
name = "ram"
type = "memory"
size = "64MiB"
block_size = 4096
[[device]]
name = "file"
type = "file"
path = "$work/file"
block_size = 4096
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:$port"
queue_depth = 256
congestion_control = "reno"
[[export]]
nqn = "nqn.2026-11.org.windlass:where"
devices = ["ram", "file"]
listeners = ["loopback"]
allow_any_host = true
TOML

# Runs one load, with a profile of the target: NAME, arguments of `bench run`.
load() {
  local name=$1 host
  shift
  "$binaries/windlass" run "$work/windlass.toml" >"$work/$name.log" 2>&1 &
  target=$!
  for _ in $(seq 100); do
    [ -S "$work/control.sock" ] && break
    sleep 0.1
  done
  "$binaries/bench" run --address "127.0.0.1:$port" --cores 1 --warm-up 0.5 \
    --congestion-control reno --time $((seconds + 5)) "$@" >"$work/$name.run" &
  host=$!
  sleep 1.5
  perf record -q -e cpu-clock -F 2000 -o "$work/$name.perf" -p "$target" -- sleep "$seconds"
  # Stacks cost the target time, so they are taken apart from the shares. A batch of pieces to send
  # lies on the stack, which makes it deep.
  perf record -q -e cpu-clock -F 499 --call-graph dwarf,49152 -o "$work/$name.stacks" \
    -p "$target" -- sleep 2
  wait "$host"
  "$binaries/windlass" status --json --socket "$work/control.sock" >"$work/$name.json" || true
  end
}

# The flame graph of a load, from the reactor's turn on: LOAD, title.
flames() {
  perf script -i "$work/$1.stacks" --no-inline -F comm,tid,event,ip,sym,dso,time 2>/dev/null |
    inferno-collapse-perf 2>/dev/null | grep '^reactor' |
    sed -E 's/^reactor-[0-9]+;.*(reactors::reactor::Reactor::run)/\1/; s/entry_SYSCALL_64[^;]*;do_syscall_64;//' |
    inferno-flamegraph --title "$2" --countname samples >"bench/results/flame-$1.svg"
}

# The profile by place, as rows of a table.
places() {
  perf report -i "$work/$1.perf" --stdio --no-children -g none --percent-limit 0 \
    -F overhead,dso,sym -t '|' 2>/dev/null | awk -F'|' '
    /^ *[0-9.]+%/ {
      share = $1 + 0; place = "windlass: everything else"
      if ($2 ~ /kernel/) {
        place = "kernel: TCP, IP, loopback, sockets, entry"
        if ($3 ~ /copy_(from|to)_iter|copy_user|rep_movs|memcpy/) place = "kernel: copying data"
        else if ($3 ~ /alloc|kfree|kmem|slab|page|skb_release|free/) place = "kernel: memory for packets"
        else if ($3 ~ /io_uring|io_|blk_|bio|virt|nvme|vring|ext4|xfs|dio|iomap/) place = "kernel: io_uring, file, drive"
      } else if ($2 ~ /vdso|libc|ld-/) place = "C library and clock: " ($3 ~ /mem/ ? "copying" : "the rest")
      else if (match($3, /(nvme_tcp|nvme_target|block|hugemem|reactors|uring|crc_fast)::/))
        place = "windlass: `" substr($3, RSTART, RLENGTH - 2) "`"
      sum[place] += share
    }
    END { for (place in sum) if (sum[place] >= 0.5) printf "| %s | %.1f %% |\n", place, sum[place] }
  ' | sort -t'|' -k3 -rn
}

functions() {
  perf report -i "$work/$1.perf" --stdio --no-children -g none --percent-limit 1 \
    -F overhead,dso,sym -t '|' 2>/dev/null | awk -F'|' '
    /^ *[0-9.]+%/ && shown < 12 { shown++; gsub(/^ +| +$/, "", $3); sub(/^\[.\] /, "", $3)
      gsub(/^ +| +$/, "", $2); printf "| `%s` | %s | %s |\n", $3, ($2 ~ /kernel/ ? "kernel" : "user"), $1 }'
}

# The stages of a load's requests, as rows of a table: LOAD, operation.
stages() {
  jq -r --arg operation "$2" --arg load "$1" '
    def us: if . == null then "" else "\(. / 100 | round / 10) µs" end;
    .exports[0] | (.stages + {total: .latency}) | to_entries[]
    | .value[$operation] as $taken | select($taken.count > 0)
    | "| \($load) | \(.key) | \($taken.count) | \($taken.p50_ns | us) | \($taken.p99_ns | us) |"
    ' "$work/$1.json"
}

load read --nsid 1 --depth 128 --mix 100/0 --block-size 4k
load write --nsid 1 --depth 128 --mix 0/100 --block-size 4k
load file --nsid 2 --depth 128 --mix 100/0 --block-size 4k
flames read "4 KiB random reads of RAM over TCP, 128 in flight: the target's core"
flames write "4 KiB random writes of RAM over TCP, 128 in flight: the target's core"
flames file "4 KiB random reads of a file over TCP, 128 in flight: the target's core"
"$binaries/measure" cost tcp >"$work/cost"
"$binaries/measure" cost tcp --case ram-write-4k-128 >"$work/cost-write"
"$binaries/measure" cost growth >"$work/growth"

{
  cat <<'PAGE'
# Where the time goes

A profile of 4 KiB requests over NVMe/TCP on the loopback interface: target on one core, host on the other, 128 in
flight on one connection. `bench/where-the-time-goes.sh` makes this page; only its words are written by hand.
Counts are those of the tree and the day that the page was made from; the current instructions of each case are in
[`baselines/`](baselines).

PAGE
  printf 'On %s, Linux %s.\n' "$(lscpu | sed -n 's/^Model name: *//p')" "$(uname -r)"
  cat <<'PAGE'

## The target's core, by place

Samples of the target's processor time (`perf record -e cpu-clock`). Shares are valid on a busy machine too. If
the host is the slower end, they include polls that find nothing, under entry and `reactors`.

PAGE
  for one in "read random reads of RAM" "write random writes of RAM" "file random reads of a file, O_DIRECT"; do
    printf '**%s**\n\n| place | share |\n|---|---|\n' "${one#* }"
    places "${one%% *}"
    printf '\n[Flame graph](results/flame-%s.svg)\n\n' "${one%% *}"
  done
  printf '## The most expensive functions\n\n'
  for one in "read random reads of RAM" "write random writes of RAM"; do
    printf '**%s**\n\n| function | where | share |\n|---|---|---|\n' "${one#* }"
    functions "${one%% *}"
    printf '\n'
  done
  cat <<'PAGE'
## Instructions of Windlass, by stage

Exact counts by callgrind (`measure cost tcp`): the instructions of Windlass, without the kernel's, in a random read
and a random write of RAM.

PAGE
  for counted in cost cost-write; do
    printf '```text\n'
    sed -n '/^One request of/,/all stages/p' "$work/$counted"
    printf '```\n\n'
  done
  printf 'All cases:\n\n```text\n'
  sed -n '/^  case /,$p' "$work/cost" | sed '/^ *$/d'
  cat <<'PAGE'
```

## The same beside growing numbers of connections, exports, namespaces and reactors

Exact counts (`measure cost growth`, a minute): one request beside idle connections with an admin and an I/O
queue each, beside exports and namespaces with devices of their own (up to the limit of 128 devices), and
beside equally busy reactors. With one request in flight, one request bears the whole cost of a turn, so any
search in a turn would show there. `cargo xtask test` fails if the largest number of a column is 3 % above the
smallest.

```text
PAGE
  sed -n '/^  idle connections/,$p' "$work/growth"
  cat <<'PAGE'
```

## The stages of a request

The target's own measurements (`windlass status --json`) of the last seconds of each load.
Times are those of the reactor's turns: a stage that begins and ends in one turn took no time. Reads of RAM
have no device stage, and neither do writes that are complete in the receive buffer; a few that a receive
cuts in two do.

| load | stage | requests | median | 99th percentile |
|---|---|---|---|---|
PAGE
  stages read read
  stages write write
  stages file read
  cat <<'PAGE'

## Conclusions

- Most of a read is the kernel's: copying the data into packets, and TCP over loopback for both ends, since
  sent data is also received there in the sender's time. Windlass's part is smaller. It consists mainly of the first
  touch of the range's lock, which is in no cache, and of the prefetch of the data, which shortens the kernel's
  copy by more than it takes.
- The data of a write is copied twice: by the kernel into the receive buffer, which stays in the
  second-level cache, and by Windlass to its place. Receiving it there directly would save one copy, but a
  host that stops in the middle would keep the range from its readers.
- `try_write` is that copy, past the caches: memory that is in no cache would have to be read before it is
  overwritten, and all following instructions would wait.
- The number of requests per system call depends on the number in flight: one receive takes everything
  that has been received, and one send carries everything that is ready.
PAGE
} >"$page"
