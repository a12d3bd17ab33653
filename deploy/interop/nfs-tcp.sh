#!/usr/bin/env bash
# The kernel's NFS client mounts a share of a RAM volume by NFSv4.1 and 4.2 over TCP, while its NVMe
# host uses an export of the same appliance. Names, attributes, links, times, sizes, locks and data
# are those of a local file system; a share of a directory has no more files and data than its quotas;
# two clients exclude each other; and after the appliance was killed, the share is empty and can be
# mounted again.
. "$(dirname "$0")/lib/guest.sh"
. "$(dirname "$0")/lib/drives.sh"
. "$(dirname "$0")/lib/files.sh"

export_path=/scratch
nfs_port=2049

# configure_files [MAX_SIZE]: the quota of the share `team`.
configure_files() {
  configure_export '"vol0"' << END

[[device]]
name = "vol0"
type = "memory"
size = "32MiB"

[[device]]
name = "ram"
type = "memory"
size = "96MiB"

[[volume]]
name = "scratch"
device = "ram"

[[share]]
name = "scratch"
volume = "scratch"
allow_any_client = true
squash = "none"

[[share]]
name = "team"
volume = "scratch"
directory = "team"
max_size = "${1:-4MiB}"
max_files = 20
allow_any_client = true
squash = "none"

[[file_listener]]
name = "nfs"
address = "0.0.0.0:$nfs_port"
END
}

# mount_share VERSION ADDRESS DIRECTORY [OPTION]
mount_share() {
  mkdir -p "$3"
  show mount -t nfs -o "vers=$1,proto=tcp,port=$nfs_port,sec=sys${4:+,$4}" "$2:$export_path" "$3"
}

names() {
  say "names, links and attributes"
  cd $at
  mkdir d
  echo one > a
  mv a d/b
  ln d/b c
  ln -s d/b s
  same "a symbolic link" "$(readlink s)" d/b
  same "its target" "$(cat s)" one
  same "hard links" "$(stat -c %h c)" 2
  chmod 640 c
  chown 5:6 c
  touch -d '2001-02-03 04:05:06' c
  cold
  same "mode and owners" "$(stat -c '%a %u %g' d/b)" "640 5 6"
  same "time" "$(stat -c %Y d/b)" "$(date -d '2001-02-03 04:05:06' +%s)"
  if rmdir d 2> /dev/null; then fail "a directory with entries was removed"; fi
  if cat missing 2> /dev/null; then fail "a missing file was read"; fi
  mkdir many
  (cd many && seq 1000 | xargs touch)
  cold
  same "entries" "$(find many -type f | wc -l)" 1000
  rm -r many d c s
  same "what is left" "$(ls -A)" team
  cd /tmp
}

data() {
  say "data"
  copy_and_truncate
  tar -C /usr/share -cf - . 2> /dev/null | head -c 20M > /tmp/some.tar || true
  mkdir $at/tree
  tar -C $at/tree -xf /tmp/some.tar 2> /dev/null || true
  (cd $at/tree && find . -type f -exec md5sum {} + | sort) > /tmp/sums
  cold
  say "$(wc -l < /tmp/sums) files"
  (cd $at/tree && md5sum --quiet -c /tmp/sums) || fail "files differ"
  rm -r $at/tree $at/copy
  verify "NFS, direct" $at/direct 16
  verify_buffered
  rm $at/direct $at/buffered
}

# Number of the COPY operations of a mount.
copies_of() { awk -v at="$at" '$1 == "device" { is_ours = $5 == at } is_ours && $1 == "COPY:" { print $2 }' /proc/self/mountstats; }

# The server copies; where no block can be shared, the kernel reads and writes.
copies() {
  say "copies by copy_file_range"
  head -c 1000000 /tmp/random > $at/source
  copy_range $at/source $at/target 1000000
  cold
  show cmp $at/source $at/target
  say "$(copies_of) copies by the server"
  [ "$(copies_of)" -gt 0 ] || fail "the server has copied nothing"
  copy_range $at/source $at/target 5000
  cold
  show cmp $at/source $at/target
  rm $at/source $at/target
}

# copy_range SOURCE TARGET BYTES: the system call as such, since cp may clone or read and write.
copy_range() {
  perl -e 'open(I, "<", $ARGV[0]) && open(O, "+>>", $ARGV[1]) || die; close(O);
    open(O, "+<", $ARGV[1]) || die; $left = 0 + $ARGV[2];
    while ($left > 0) {
      $done = syscall(326, fileno(I), 0, fileno(O), 0, $left, 0);
      die "copy_file_range: $!" if $done <= 0;
      $left -= $done;
    }' "$1" "$2" "$3" || fail "copy_file_range failed"
}

# An unlinked file lives until it is closed.
unlinked() {
  say "a file that is removed while it is open"
  exec 9<> $at/open
  rm $at/open
  echo still >&9
  same "its content" "$(cat /dev/fd/9)" still
  exec 9>&-
}

# A share of a directory of the same volume: `df` shows its quota, and what exceeds it fails as a whole.
quotas() {
  say "quotas"
  local team=/mnt/team
  if ls $at/team 2> /dev/null; then fail "the directory of a share is open to another share"; fi
  if rmdir $at/team 2> /dev/null; then fail "the directory of a share was removed"; fi
  export_path=/team mount_share 4.2 "$INTEROP_ADDRESS" $team
  same "its size in KiB" "$(df --output=size $team | tail -1 | tr -d ' ')" 4096
  same "its free files" "$(df --output=iavail $team | tail -1 | tr -d ' ')" 20
  write_to_team() { dd if=/tmp/random of=$team/data bs=1M count="$1" conv=fsync 2> /tmp/dd; }
  write_to_team 4 || fail "4 MiB do not fit: $(cat /tmp/dd)"
  same "its free space" "$(df --output=avail $team | tail -1 | tr -d ' ')" 0
  if write_to_team 5; then fail "5 MiB fit"; fi
  grep -q 'Disk quota exceeded' /tmp/dd || fail "another error: $(cat /tmp/dd)"
  rm $team/data
  (cd $team && seq 20 | xargs touch) || fail "20 files do not fit"
  if touch $team/more 2> /tmp/touch; then fail "21 files fit"; fi
  grep -q 'Disk quota exceeded' /tmp/touch || fail "another error: $(cat /tmp/touch)"
  rm $team/20
  configure_files 8MiB
  show windlass apply --socket $control
  write_to_team 5 || fail "5 MiB do not fit after the change: $(cat /tmp/dd)"
  rm $team/*
  show umount $team
}

# Another client: a name space of networks with a host name of its own.
other_client() { ip netns exec other unshare --uts bash -c "hostname other; $*"; }

two_clients() {
  say "two clients"
  ip netns add other
  ip link add to-other type veth peer name to-this netns other
  ip addr add 10.9.9.1/24 dev to-other
  ip link set to-other up
  ip -n other addr add 10.9.9.2/24 dev to-this
  ip -n other link set to-this up
  mkdir -p /mnt/other
  echo shared > $at/file
  flock $at/file sleep 8 &
  local holder=$!
  sleep 2
  other_client "mount -t nfs -o vers=4.1,port=$nfs_port,sec=sys 10.9.9.1:$export_path /mnt/other &&
    cat /mnt/other/file &&
    ! flock -n /mnt/other/file true &&
    echo 'the lock is held by the other client' &&
    flock -w 60 /mnt/other/file true &&
    echo changed > /mnt/other/file && umount /mnt/other" || fail "the other client failed"
  wait $holder
  same "what the other client wrote" "$(cat $at/file)" changed
  rm $at/file
}

begin
modprobe nfsv4
configure_files
show windlass check $config
start
connect
disk=$(namespaces)
for version in 4.1 4.2; do
  mount_share $version "$INTEROP_ADDRESS" $at nconnect=4
  grep " $at " /proc/mounts
  names
  verify "NVMe" "$disk" 16 &
  nvme=$!
  data
  wait $nvme || fail "the NVMe host failed"
  [ $version = 4.1 ] || copies
  [ $version = 4.1 ] || quotas
  unlinked
  show umount $at
done
mount_share 4.1 "$INTEROP_ADDRESS" $at
two_clients
echo volatile > $at/file
say "the appliance is killed"
kill -KILL "$windlass"
wait "$windlass" || true
start
umount -f $at || umount -l $at
mount_share 4.2 "$INTEROP_ADDRESS" $at
same "what is left of a volatile volume" "$(ls -A $at)" team
echo again > $at/file
show umount $at
disconnect
if dmesg | grep -iE 'nfs.*(error|bad|fail)|hung task|WARNING:|BUG:'; then
  fail "the kernel complains"
fi
