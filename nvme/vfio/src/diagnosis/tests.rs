//! Problems of a drive, in the order in which they have to be fixed.

use super::*;
use crate::machine::{FakeMachine, address, line};
use proptest::prelude::*;

const A: &str = "0000:01:00.0";
const MIB: u64 = 1 << 20;

fn found(machine: &FakeMachine) -> String {
    let problem = diagnose(&machine.system(), address(A), 64 * MIB).unwrap_err();
    assert_eq!(machine.plan().written, [], "a diagnosis changes nothing");
    line(&problem)
}

#[test]
fn missing_pci_function_is_reported() {
    let machine = FakeMachine::empty();
    assert!(found(&machine).contains("no PCI function has this address"));
}

#[test]
fn drive_in_use_is_reported_first() {
    let machine = FakeMachine::with_drives();
    std::fs::remove_file(machine.path(&format!("sys/bus/pci/devices/{A}/iommu_group"))).unwrap();
    machine.file("proc/swaps", "Filename\n/dev/nvme0n1 partition\n");
    assert!(found(&machine).contains("is swap space"));
    machine.file("proc/swaps", "");
    assert!(found(&machine).contains("has no IOMMU"));
}

#[test]
fn a_noiommu_group_is_refused() {
    let machine = FakeMachine::with_taken_drive();
    machine.file("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
    assert!(found(&machine).contains("has no IOMMU"));
}

#[test]
fn kernel_bound_drive_is_offered_unless_its_group_is_shared() {
    let machine = FakeMachine::with_drives();
    assert!(found(&machine).ends_with("`windlass bind 0000:01:00.0` moves it to vfio-pci"));
    machine.add_function("0000:01:00.1", "0x020000\n", 7);
    machine.give("0000:01:00.1", Some("e1000e"));
    assert!(found(&machine).contains("shares IOMMU group 7"));
    machine.give("0000:01:00.1", None);
    machine.give(A, None);
    assert!(found(&machine).contains("has no driver"));
    machine.give(A, Some("uio_pci_generic"));
    assert!(found(&machine).contains("neither nvme nor vfio-pci"));
}

#[test]
fn ready_drive_is_described() {
    let machine = FakeMachine::with_taken_drive();
    let function = diagnose(&machine.system(), address(A), 64 * MIB).unwrap();
    assert_eq!(function.group.unwrap().number, 7);
    assert_eq!(function.ids.0, 0x1b36);
    assert_eq!((function.model, function.disks), (None, vec![]));
}

#[test]
fn group_member_bound_to_a_kernel_driver_is_reported() {
    let machine = FakeMachine::with_taken_drive();
    machine.add_function("0000:01:00.1", "0x020000\n", 7);
    machine.give("0000:01:00.1", Some("e1000e"));
    assert!(found(&machine).contains("with 0000:01:00.1 (e1000e)"));
}

#[test]
fn missing_forbidden_or_held_vfio_nodes() {
    let machine = FakeMachine::with_taken_drive();
    machine.plan().forbidden.insert("vfio/7".to_owned());
    let text = found(&machine);
    assert!(
        text.contains("/dev/vfio/7") && text.contains("udev rule"),
        "{text}"
    );
    machine.plan().forbidden = ["vfio/vfio".to_owned()].into();
    assert!(found(&machine).contains("/dev/vfio/vfio"));
    machine.plan().forbidden.clear();
    machine.link("proc/9/fd/1", "/dev/vfio/7");
    assert!(found(&machine).contains("a program (process 9)"));
    std::fs::remove_dir_all(machine.path("proc/9")).unwrap();
    std::fs::remove_file(machine.path("dev/vfio/vfio")).unwrap();
    assert!(found(&machine).ends_with("modprobe vfio-pci"));
    // A kernel with only iommufd has other nodes.
    machine.folder(&format!("sys/bus/pci/devices/{A}/vfio-dev/vfio0"));
    machine.file("dev/vfio/devices/vfio0", "");
    machine.file("dev/iommu", "");
    assert!(diagnose(&machine.system(), address(A), 0).is_ok());
    machine.plan().forbidden.insert("iommu".to_owned());
    assert!(found(&machine).contains("/dev/iommu"));
}

/// A machine whose process has this limit, this much locked memory and these capabilities.
fn with_limit(limit: &str, locked: &str, capabilities: &str) -> FakeMachine {
    let machine = FakeMachine::with_taken_drive();
    let limits = format!(
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max locked memory         {limit}              unlimited            bytes     \n"
    );
    machine.file("proc/self/limits", limits);
    let status = format!("Name:\tx\nVmLck:\t    {locked} kB\nCapEff:\t{capabilities}\n");
    machine.file("proc/self/status", status);
    machine
}

#[test]
fn insufficient_locked_memory_limit() {
    let machine = with_limit("8388608", "0", "0000000000000000");
    let text = found(&machine);
    assert!(text.contains("67108864 bytes have to be pinned"), "{text}");
    assert!(
        text.contains("allows 8388608") && text.contains("LimitMEMLOCK=infinity"),
        "{text}"
    );
    // Memory that is already locked counts.
    let machine = with_limit("67108864", "4", "0000000000000000");
    assert!(found(&machine).contains("67112960 bytes"));
    for (limit, locked, capabilities) in [
        ("67108864", "0", "0000000000000000"),
        ("unlimited", "999999", "0000000000000000"),
        ("0", "0", "0000000000004000"),
        // If the values cannot be read, the mapping has to find out.
        ("none", "x", "y"),
    ] {
        let machine = with_limit(limit, locked, capabilities);
        let result = diagnose(&machine.system(), address(A), 64 * MIB);
        assert!(
            result.is_ok(),
            "{limit} {locked} {capabilities}: {result:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_sysfs_content_is_handled(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let machine = FakeMachine::with_taken_drive();
        let device = format!("sys/bus/pci/devices/{A}");
        for file in ["driver_override", "numa_node", "sriov_numvfs", "vendor"] {
            machine.file(&format!("{device}/{file}"), &bytes);
        }
        machine.file("proc/self/limits", [b"Max locked memory ", &bytes[..]].concat());
        machine.file("proc/self/status", [b"VmLck: 4 kB\nCapEff: ", &bytes[..]].concat());
        let _ = diagnose(&machine.system(), address(A), MIB).map_err(|problem| line(&problem));
        machine.file(&format!("{device}/class"), &bytes);
        let _ = diagnose(&machine.system(), address(A), MIB).map_err(|problem| line(&problem));
    }
}
