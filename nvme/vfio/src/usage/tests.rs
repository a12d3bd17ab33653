//! Tests of every kind of use, and of files that are empty, malformed or wrong.

use super::*;
use crate::machine::FakeMachine;
use proptest::prelude::*;

fn usage(machine: &FakeMachine) -> Usage {
    let disks = ["nvme0n1".to_owned()];
    let nodes = ["nvme0".to_owned(), "ng0n1".to_owned()];
    of_drive(&machine.system(), &disks, &nodes)
}

/// The messages of the first drive's uses.
fn uses(machine: &FakeMachine) -> Vec<String> {
    usage(machine)
        .uses
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// The message of its only use.
fn the_use(machine: &FakeMachine) -> String {
    let uses = uses(machine);
    assert_eq!(uses.len(), 1, "{uses:?}");
    uses[0].clone()
}

#[test]
fn missing_proc_and_sys_files_mean_unused() {
    let nothing = FakeMachine::empty();
    let found = usage(&nothing);
    assert!(found.uses.is_empty() && found.claims.is_empty() && found.unknown.is_none());
}

#[test]
fn unused_disk_is_opened_exclusively() {
    let machine = FakeMachine::with_drives();
    let found = usage(&machine);
    assert!(found.uses.is_empty(), "{:?}", found.uses);
    assert_eq!(found.claims.len(), 1);
}

#[test]
fn truncated_table_lines_are_handled() {
    let machine = FakeMachine::with_drives();
    for table in [
        "",
        "\n\n",
        "36",
        "36 1 259:0",
        "- - -",
        "36 1 8:0 / /a rw -",
        "\\",
        "\\9\\99",
    ] {
        machine.file("proc/self/mountinfo", table);
        machine.file("proc/swaps", table);
        for found in uses(&machine) {
            // An incomplete line may count as a use, rather than be ignored.
            assert!(table.contains("259:0"), "{table:?}: {found}");
        }
    }
}

#[test]
fn names_with_a_common_prefix_are_distinct() {
    let machine = FakeMachine::with_drives();
    machine.add_block("nvme0n10", "259:9", "");
    machine.add_block("nvme0n10p1", "259:10", "nvme0n10");
    let mounts = "36 1 259:10 / /a rw - ext4 /dev/nvme0n10p1 rw\n\
                  37 1 259:9 / /b rw - ext4 /dev/nvme0n10 rw\n";
    machine.file("proc/self/mountinfo", mounts);
    machine.file("proc/swaps", "Filename Type\n/dev/nvme0n10 partition\n");
    machine.link("proc/12/fd/3", "/dev/nvme0n10");
    machine.link("proc/12/fd/4", "/dev/nvme01");
    assert_eq!(uses(&machine), Vec::<String>::new());
}

#[test]
fn mounts_are_found_by_number_name_and_link() {
    let machine = FakeMachine::with_drives();
    for mount in [
        "36 1 259:0 / /srv rw,noatime shared:1 - ext4 /dev/root rw\n",
        "36 1 0:44 / /srv rw shared:1 master:2 - btrfs /dev/nvme0n1 rw\n",
        "36 1 0:44 / /srv rw - zfs /dev/disk/by-id/it rw\n",
    ] {
        machine.file("proc/self/mountinfo", mount);
        machine.link("dev/disk/by-id/it", "../../nvme0n1");
        assert_eq!(the_use(&machine), "/dev/nvme0n1 is mounted on /srv");
    }
}

#[test]
fn a_mounted_partition_uses_the_disk() {
    let machine = FakeMachine::with_drives();
    machine.add_block("nvme0n1p2", "259:5", "nvme0n1");
    let mount = "36 1 259:5 / /with\\040blank\\012line rw - xfs /dev/nvme0n1p2 rw\n";
    machine.file("proc/self/mountinfo", mount);
    machine.plan().busy.insert("nvme0n1".to_owned());
    let line = "/dev/nvme0n1p2 is mounted on /with blank?line";
    assert_eq!(the_use(&machine), line);
}

#[test]
fn mount_in_another_mount_namespace_is_found_once() {
    let machine = FakeMachine::with_drives();
    machine.file("proc/self/mountinfo", "");
    for process in ["40", "41", "42"] {
        machine.link(&format!("proc/{process}/ns/mnt"), "mnt:[2]");
        let mount = "36 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n";
        machine.file(&format!("proc/{process}/mountinfo"), mount);
    }
    machine.plan().busy.insert("nvme0n1".to_owned());
    let line = "/dev/nvme0n1 is mounted on /data in the mount namespace of process 40";
    assert_eq!(the_use(&machine), line);
}

#[test]
fn swap_space_is_a_use() {
    let machine = FakeMachine::with_drives();
    let table = "Filename\t\tType\t\tSize\n/dev/dm-0 partition 8\n/dev/nvme0n1 partition 8\n";
    machine.file("proc/swaps", table);
    assert_eq!(the_use(&machine), "/dev/nvme0n1 is swap space");
}

#[test]
fn holders_are_described() {
    let machine = FakeMachine::with_drives();
    machine.add_block("nvme0n1p1", "259:5", "nvme0n1");
    for (holder, file, content, words) in [
        ("dm-0", "dm/uuid", "LVM-abc", "LVM volume vg-data"),
        (
            "dm-0",
            "dm/uuid",
            "CRYPT-LUKS2-abc",
            "encrypted volume vg-data",
        ),
        ("dm-0", "dm/uuid", "mpath-abc", "multipath device vg-data"),
        ("dm-0", "dm/uuid", "", "mapped device vg-data"),
        ("md127", "md/level", "raid1\n", "md array md127 (raid1)"),
        ("bcache0", "bcache/x", "", "block device bcache0"),
    ] {
        machine.file(&format!("sys/class/block/{holder}/{file}"), content);
        machine.file("sys/class/block/dm-0/dm/name", "vg-data\n");
        let link = format!("sys/class/block/nvme0n1p1/holders/{holder}");
        machine.link(&link, "x");
        // The kernel then refuses exclusive opening, too.
        machine.plan().busy.insert("nvme0n1".to_owned());
        assert_eq!(
            the_use(&machine),
            format!("/dev/nvme0n1p1 is part of {words}")
        );
        fs::remove_file(machine.path(&link)).unwrap();
    }
}

#[test]
fn btrfs_members_are_found() {
    let machine = FakeMachine::with_drives();
    machine.link("sys/fs/btrfs/1b2c/devices/nvme0n1", "x");
    machine.folder("sys/fs/btrfs/features");
    assert_eq!(the_use(&machine), "/dev/nvme0n1 is part of btrfs 1b2c");
}

#[test]
fn enabled_nvmet_exports_are_found() {
    let machine = FakeMachine::with_drives();
    let subsystem = "sys/kernel/config/nvmet/subsystems/nqn.x";
    for (place, node) in [("namespaces/1", "nvme0n1"), ("passthru", "nvme0")] {
        machine.file(
            &format!("{subsystem}/{place}/device_path"),
            format!("/dev/{node}\n"),
        );
        machine.file(&format!("{subsystem}/{place}/enable"), "0\n");
        assert_eq!(uses(&machine), Vec::<String>::new());
        machine.file(&format!("{subsystem}/{place}/enable"), "1\n");
        let line = format!("/dev/{node} is exported by the kernel as nqn.x");
        assert_eq!(the_use(&machine), line);
        machine.file(&format!("{subsystem}/{place}/enable"), "0\n");
    }
}

#[test]
fn loop_devices_are_found() {
    let machine = FakeMachine::with_drives();
    machine.file("sys/block/loop3/loop/backing_file", "/dev/nvme0n1\n");
    assert_eq!(
        the_use(&machine),
        "/dev/nvme0n1 is part of loop device loop3"
    );
}

#[test]
fn programs_with_the_disk_open_are_found() {
    let machine = FakeMachine::with_drives();
    machine.link("proc/1234/fd/7", "/dev/nvme0");
    machine.link("proc/1234/fd/8", "/dev/nvme0");
    machine.link("proc/1234/fd/9", "socket:[77]");
    machine.file("proc/1234/comm", "smart\nd\n");
    assert_eq!(
        the_use(&machine),
        "/dev/nvme0 is open in smart?d (process 1234)"
    );
    // A program that merely has the disk open does not explain why exclusive opening fails.
    machine.link("proc/1234/fd/7", "/dev/nvme0n1");
    machine.link("proc/1234/fd/8", "/dev/null");
    machine.plan().busy.insert("nvme0n1".to_owned());
    assert_eq!(uses(&machine).len(), 2);
    // This process itself does not count as a use.
    let own = format!("proc/{}/fd/3", std::process::id());
    let machine = FakeMachine::with_drives();
    machine.link(&own, "/dev/nvme0n1");
    assert_eq!(uses(&machine), Vec::<String>::new());
}

#[test]
fn an_unexplained_exclusive_open_is_a_use() {
    let machine = FakeMachine::with_drives();
    machine.plan().busy.insert("nvme0n1".to_owned());
    let line = "/dev/nvme0n1 is opened exclusively (by a ZFS pool, for example)";
    assert_eq!(the_use(&machine), line);
}

#[test]
fn disk_that_cannot_be_opened_has_unknown_use() {
    let machine = FakeMachine::with_drives();
    machine.plan().forbidden.insert("nvme0n1".to_owned());
    let found = usage(&machine);
    assert!(found.uses.is_empty() && found.claims.is_empty());
    assert_eq!(
        found.unknown.map(|(device, _)| device).as_deref(),
        Some("nvme0n1")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_table_content_is_handled(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        text in "[-0-9:/ \\\\n]{0,80}",
    ) {
        let machine = FakeMachine::with_drives();
        for content in [&bytes[..], text.as_bytes()] {
            machine.file("proc/self/mountinfo", content);
            machine.file("proc/swaps", content);
            machine.file("sys/block/loop0/loop/backing_file", content);
            for line in uses(&machine) {
                prop_assert!(!line.contains('\n'));
            }
        }
    }
}
