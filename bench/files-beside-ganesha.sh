#!/usr/bin/env bash
# Operations per second of processor time of Windlass and of NFS-Ganesha with files in memory (FSAL_MEM),
# alternating, with the same client, both over the loopback interface on one core. The client is
# `windlass bench files` on another core. The processor time is that of the whole server process.
#
#   bench/files-beside-ganesha.sh [WINDLASS [ROUNDS]]
#
# Debian's packages nfs-ganesha, nfs-ganesha-mem and rpcbind have to be installed; run as root.
set -euo pipefail

windlass=$(realpath "${1:-target/release/windlass}")
rounds=${2:-5}
seconds=2
server_core=0
client_core=1
ganesha_port=2050
windlass_port=2051
# The file of reads and writes: FSAL_MEM keeps so many bytes at most.
file_bytes=$((2 << 20))

place=$(mktemp -d)
pids=()
end() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait
  rm -r "$place"
}
trap end EXIT

pgrep -x rpcbind > /dev/null || rpcbind -w
mkdir -p /var/run/ganesha /var/lib/nfs/ganesha
# start_ganesha BYTES: with so many bytes of memory for each file, which it takes when it is created.
start_ganesha() {
  cat > "$place/ganesha.conf" << END
NFS_CORE_PARAM {
  Protocols = 4; NFS_Port = $ganesha_port; Bind_addr = 127.0.0.1;
  Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = true;
}
NFSv4 { Graceless = true; Minor_Versions = 1, 2; RecoveryBackend = fs; Delegations = false; }
MEM { Inode_Size = $1; UP_Test_Interval = 0; }
EXPORT {
  Export_Id = 7; Path = /mem; Pseudo = /mem; Protocols = 4; Transports = TCP; SecType = sys;
  Access_Type = RW; Squash = No_Root_Squash; FSAL { Name = MEM; }
}
END
  taskset -c $server_core ganesha.nfsd -F -L "$place/ganesha.log" -N NIV_CRIT \
    -f "$place/ganesha.conf" -p "$place/ganesha.pid" > /dev/null 2>&1 &
  ganesha=$!
  pids+=("$ganesha")
  await $ganesha_port
}

# await PORT: until a server answers: at most 20 s.
await() {
  local attempt
  for attempt in $(seq 100); do
    if "$windlass" bench files metadata --address "127.0.0.1:$1" --share mem --items 1 > /dev/null 2>&1; then
      return
    fi
    sleep 0.2
  done
  echo "nobody serves on port $1" >&2
  exit 1
}

cat > "$place/windlass.toml" << END
[appliance]
cores = "$server_core"
memory = "256MiB"

[control]
socket = "$place/control.sock"
http = "off"

[[device]]
name = "ram"
type = "memory"
size = "256MiB"

[[device]]
name = "blocks"
type = "memory"
size = "4MiB"

[[volume]]
name = "mem"
device = "ram"

[[share]]
name = "mem"
volume = "mem"
allow_any_client = true
squash = "none"

[[file_listener]]
name = "nfs"
address = "127.0.0.1:$windlass_port"

[[listener]]
name = "blocks"
transport = "tcp"
address = "127.0.0.1:0"

[[export]]
nqn = "nqn.2026-11.org.windlass:beside"
devices = ["blocks"]
listeners = ["blocks"]
allow_any_host = true
END
STATE_DIRECTORY=$place "$windlass" run "$place/windlass.toml" > "$place/windlass.out" 2>&1 &
server=$!
pids+=("$server")

await $windlass_port

# Ticks of all threads of a process: fields 14 and 15 of proc_pid_stat(5).
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; }

# work PORT KIND: operations that were executed.
work() {
  local client=(taskset -c $client_core "$windlass" bench files)
  local to=(--address "127.0.0.1:$1" --share mem --json "$place/report.json")
  case $2 in
    metadata)
      "${client[@]}" metadata "${to[@]}" --items 20000 --depth 32 > /dev/null
      echo $((6 * 20000))
      ;;
    *)
      "${client[@]}" data "${to[@]}" --region $file_bytes --block-size 4k --depth 32 --mix "$2" \
        --time $seconds > /dev/null
      python3 - "$place/report.json" << 'END'
import json, sys
phases = json.load(open(sys.argv[1]))["runs"][0]["phases"]
kinds = [phase[kind] for phase in phases for kind in ("reads", "writes")]
print(sum(kind["operations"] for kind in kinds if kind))
END
      ;;
  esac
}

# per_second OPERATIONS TICKS
per_second() { awk "BEGIN { printf \"%.0f\", $1 * $(getconf CLK_TCK) / ($2 > 0 ? $2 : 1) }"; }

compare() {
  local name=$1 kind=$2 round of operations before used total_ours=0 total_theirs=0 ours=0 theirs=0
  for round in $(seq "$rounds"); do
    for of in windlass ganesha; do
      if [ $of = windlass ]; then
        before=$(ticks "$server")
        operations=$(work $windlass_port "$kind")
        used=$(($(ticks "$server") - before))
        ours=$((ours + used)) total_ours=$((total_ours + operations))
      else
        before=$(ticks "$ganesha")
        operations=$(work $ganesha_port "$kind")
        used=$(($(ticks "$ganesha") - before))
        theirs=$((theirs + used)) total_theirs=$((total_theirs + operations))
      fi
      echo "  round $round, $of: $(per_second "$operations" "$used")"
    done
  done
  local a b
  a=$(per_second $total_ours $ours) b=$(per_second $total_theirs $theirs)
  echo "$name: $a operations per second of Windlass's processor time, $b of Ganesha's: $(awk "BEGIN { printf \"%.1f\", $a / $b }") times"
}

start_ganesha $file_bytes
compare "4 KiB random reads, depth 32" 100/0
compare "4 KiB random writes, depth 32" 0/100
kill "$ganesha"
wait "$ganesha" || true
start_ganesha 0
compare "create, look up and remove files and directories, depth 32" metadata
