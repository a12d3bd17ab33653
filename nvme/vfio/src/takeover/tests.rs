//! Moving drives: refusals, changes, and the state after each step that can fail.

use super::*;
use crate::machine::{FakeMachine, address, line};

const A: &str = "0000:01:00.0";
const B: &str = "0000:02:00.0";

fn plan_for(machine: &FakeMachine, names: &[&str]) -> Result<Takeover, Vec<Problem>> {
    let addresses: Vec<PciAddress> = names.iter().map(|name| address(name)).collect();
    plan_bind(&machine.system(), &addresses)
}

fn back_plan_for(machine: &FakeMachine, names: &[&str]) -> Result<Takeover, Vec<Problem>> {
    let addresses: Vec<PciAddress> = names.iter().map(|name| address(name)).collect();
    plan_unbind(&machine.system(), &addresses)
}

/// The message of a single refusal, which has changed nothing.
fn refusal(machine: &FakeMachine, result: Result<Takeover, Vec<Problem>>) -> String {
    let problems = result.unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(machine.plan().written, []);
    line(&problems[0])
}

fn state(driver: Option<&str>, only: &str) -> (Option<String>, Option<String>) {
    (driver.map(str::to_owned), Some(only.to_owned()))
}

#[test]
fn missing_pci_function_is_refused() {
    let machine = FakeMachine::with_drives();
    let text = refusal(&machine, plan_for(&machine, &["0000:09:00.0"]));
    assert!(text.contains("no PCI function has this address"), "{text}");
    let text = refusal(&machine, back_plan_for(&machine, &["0000:09:00.0"]));
    assert!(text.contains("no PCI function has this address"), "{text}");
}

#[test]
fn functions_that_are_no_nvme_drive_are_refused() {
    let machine = FakeMachine::with_drives();
    machine.add_function("0000:03:00.0", "0x020000\n", 9);
    machine.add_function("0000:04:00.0", "0x0108zz\n", 9);
    let text = refusal(&machine, plan_for(&machine, &["0000:03:00.0"]));
    assert!(text.contains("its PCI class is 020000"), "{text}");
    refusal(&machine, plan_for(&machine, &["0000:04:00.0"]));
    refusal(&machine, back_plan_for(&machine, &["0000:03:00.0"]));
}

#[test]
fn one_drive_in_use_prevents_all_moves() {
    let machine = FakeMachine::with_drives();
    machine.file("proc/swaps", "Filename\n/dev/nvme1n1 partition\n");
    let text = refusal(&machine, plan_for(&machine, &[A, B]));
    assert_eq!(
        text,
        format!("{B} is in use: /dev/nvme1n1 is swap space: swapoff it first")
    );
    machine.plan().busy.insert("nvme0n1".to_owned());
    let problems = plan_for(&machine, &[A, B]).unwrap_err();
    assert_eq!(problems.len(), 2, "every problem at once");
}

#[test]
fn the_wait_for_udev_is_limited() {
    let machine = FakeMachine::with_drives();
    machine.link("proc/50/fd/9", "/dev/nvme0n1");
    machine.file("proc/50/comm", "(udev-worker)\n");
    machine.plan().ends_at_claim = Some((5, "proc/50"));
    assert!(plan_for(&machine, &[A]).is_ok());
    machine.plan().ends_at_claim = None;
    machine.link("proc/50/fd/9", "/dev/nvme0n1");
    machine.file("proc/50/comm", "(udev-worker)\n");
    let text = refusal(&machine, plan_for(&machine, &[A]));
    assert!(
        text.contains("open in (udev-worker) (process 50)"),
        "{text}"
    );
}

#[test]
fn an_unknown_use_is_refused() {
    let machine = FakeMachine::with_drives();
    machine.plan().forbidden.insert("nvme0n1".to_owned());
    let text = refusal(&machine, plan_for(&machine, &[A]));
    assert!(
        text.contains("cannot tell") && text.ends_with("run this as root"),
        "{text}"
    );
}

#[test]
fn bind_without_an_iommu_is_refused() {
    let machine = FakeMachine::with_drives();
    std::fs::remove_file(machine.path(&format!("sys/bus/pci/devices/{A}/iommu_group"))).unwrap();
    let text = refusal(&machine, plan_for(&machine, &[A]));
    assert!(text.contains("has no IOMMU"), "{text}");
}

#[test]
fn group_members_with_kernel_drivers_are_refused() {
    let machine = FakeMachine::with_drives();
    machine.add_function("0000:01:00.1", "0x020000\n", 7);
    machine.give("0000:01:00.1", Some("e1000e"));
    let text = refusal(&machine, plan_for(&machine, &[A]));
    assert!(
        text.contains("shares IOMMU group 7 with 0000:01:00.1 (e1000e)"),
        "{text}"
    );
    // Bridges, functions without a driver and functions of VFIO are harmless.
    for harmless in [None, Some("vfio-pci"), Some("pcieport"), Some("pci-stub")] {
        machine.give("0000:01:00.1", harmless);
        assert!(plan_for(&machine, &[A]).is_ok(), "{harmless:?}");
    }
}

#[test]
fn two_drives_of_one_group_move_together() {
    let machine = FakeMachine::with_drives();
    machine.add_drive("0000:01:00.1", 7, "nvme2", "nvme2n1");
    refusal(&machine, plan_for(&machine, &[A]));
    plan_for(&machine, &[A, "0000:01:00.1"])
        .unwrap()
        .perform()
        .unwrap();
    assert_eq!(
        machine.state("0000:01:00.1"),
        state(Some("vfio-pci"), "vfio-pci")
    );
}

#[test]
fn virtual_functions_and_other_drivers_are_refused() {
    let machine = FakeMachine::with_drives();
    machine.file(&format!("sys/bus/pci/devices/{A}/sriov_numvfs"), "4\n");
    let text = refusal(&machine, plan_for(&machine, &[A]));
    assert!(text.contains("4 virtual functions"), "{text}");
    machine.give(B, Some("uio_pci_generic"));
    let text = refusal(&machine, plan_for(&machine, &[B]));
    assert!(
        text.contains("uio_pci_generic, neither nvme nor vfio-pci"),
        "{text}"
    );
    refusal(&machine, back_plan_for(&machine, &[B]));
}

#[test]
fn missing_kernel_module_is_named() {
    let machine = FakeMachine::with_drives();
    std::fs::remove_dir(machine.path("sys/bus/pci/drivers/vfio-pci")).unwrap();
    let text = refusal(&machine, plan_for(&machine, &[A]));
    assert!(text.ends_with("modprobe vfio-pci"), "{text}");
    let machine = FakeMachine::with_taken_drive();
    std::fs::remove_dir(machine.path("sys/bus/pci/drivers/nvme")).unwrap();
    let text = refusal(&machine, back_plan_for(&machine, &[A]));
    assert!(text.ends_with("modprobe nvme"), "{text}");
}

#[test]
fn bind_and_unbind_are_idempotent() {
    let machine = FakeMachine::with_drives();
    let plan = plan_for(&machine, &[A, B, A]).unwrap();
    let steps: Vec<String> = plan.steps().map(ToString::to_string).collect();
    assert_eq!(
        steps,
        [
            format!("{A} from nvme to vfio-pci (IOMMU group 7)"),
            format!("{B} from nvme to vfio-pci (IOMMU group 8)"),
        ]
    );
    plan.perform().unwrap();
    for name in [A, B] {
        assert_eq!(machine.state(name), state(Some("vfio-pci"), "vfio-pci"));
    }
    machine.plan().written.clear();
    let again = plan_for(&machine, &[A]).unwrap();
    assert_eq!(
        again.steps().next().unwrap().to_string(),
        format!("{A} already belongs to vfio-pci")
    );
    again.perform().unwrap();
    assert_eq!(machine.plan().written, [], "nothing to do");

    back_plan_for(&machine, &[A]).unwrap().perform().unwrap();
    assert_eq!(machine.state(A), state(Some("nvme"), "(null)"));
    assert_eq!(machine.state(B), state(Some("vfio-pci"), "vfio-pci"));
    machine.plan().written.clear();
    back_plan_for(&machine, &[A]).unwrap().perform().unwrap();
    assert_eq!(machine.plan().written, [], "nothing to do");
}

#[test]
fn driverless_drive_can_be_bound_and_unbound() {
    let machine = FakeMachine::with_drives();
    machine.give(A, None);
    plan_for(&machine, &[A]).unwrap().perform().unwrap();
    assert_eq!(machine.state(A), state(Some("vfio-pci"), "vfio-pci"));
    machine.give(A, None);
    back_plan_for(&machine, &[A]).unwrap().perform().unwrap();
    assert_eq!(machine.state(A), state(Some("nvme"), "(null)"));
}

#[test]
fn stale_driver_override_is_cleared() {
    let machine = FakeMachine::with_drives();
    machine.file(
        &format!("sys/bus/pci/devices/{A}/driver_override"),
        "vfio-pci\n",
    );
    let plan = back_plan_for(&machine, &[A]).unwrap();
    plan.perform().unwrap();
    assert_eq!(machine.state(A), state(Some("nvme"), "(null)"));
}

#[test]
fn failed_step_is_rolled_back() {
    for step in ["driver_override", "nvme/unbind", "drivers_probe"] {
        let machine = FakeMachine::with_drives();
        machine.plan().failure = Some((step, 0, libc::EIO));
        let problem = plan_for(&machine, &[A]).unwrap().perform().unwrap_err();
        let text = line(&problem);
        assert!(text.contains("os error 5"), "{text}");
        if step != "drivers_probe" {
            assert_eq!(machine.state(A), state(Some("nvme"), "(null)"), "{step}");
            assert!(!text.contains("put back"), "{text}");
        } else {
            // Binding fails, so undoing fails as well, and the message says so.
            assert_eq!(machine.state(A).0, None);
            assert!(
                text.contains(&format!("{A} could not be restored")),
                "{text}"
            );
        }
    }
}

#[test]
fn move_is_rolled_back_if_the_driver_does_not_bind() {
    let machine = FakeMachine::with_drives();
    machine.plan().refusing_driver = Some("vfio-pci");
    let problem = plan_for(&machine, &[B, A]).unwrap().perform().unwrap_err();
    let text = line(&problem);
    assert!(text.contains("vfio-pci did not bind to it"), "{text}");
    for name in [A, B] {
        assert_eq!(machine.state(name), state(Some("nvme"), "(null)"));
    }
    let machine = FakeMachine::with_taken_drive();
    machine.plan().refusing_driver = Some("nvme");
    let plan = back_plan_for(&machine, &[A]).unwrap();
    plan.perform().unwrap_err();
    assert_eq!(machine.state(A), state(Some("vfio-pci"), "vfio-pci"));
}

#[test]
fn later_failure_rolls_back_the_first_drive() {
    let machine = FakeMachine::with_drives();
    // Unbinding fails for the second drive, after it succeeded for the first.
    machine.plan().failure = Some(("nvme/unbind", 1, libc::EBUSY));
    plan_for(&machine, &[A, B]).unwrap().perform().unwrap_err();
    for name in [A, B] {
        assert_eq!(machine.state(name), state(Some("nvme"), "(null)"));
    }
}

#[test]
fn drive_removed_during_the_move_is_reported_missing() {
    for end in ["driver_override", "nvme/unbind", "drivers_probe"] {
        let machine = FakeMachine::with_drives();
        let plan = plan_for(&machine, &[B, A]).unwrap();
        machine.plan().pulled_at = Some((end, A));
        let problem = plan.perform().unwrap_err();
        assert!(
            matches!(problem, Problem::NoSuchFunction { .. }),
            "{end}: {problem:?}"
        );
        assert_eq!(machine.state(B), state(Some("nvme"), "(null)"), "{end}");
    }
}

#[test]
fn drive_bound_to_another_driver_meanwhile_is_untouched() {
    let machine = FakeMachine::with_drives();
    let plan = plan_for(&machine, &[A]).unwrap();
    machine.give(A, Some("uio_pci_generic"));
    let text = line(&plan.perform().unwrap_err());
    assert!(
        text.contains("another driver was bound to it meanwhile"),
        "{text}"
    );
    assert_eq!(machine.state(A).0.as_deref(), Some("uio_pci_generic"));
}

#[test]
fn drive_held_by_a_program_is_not_unbound() {
    let machine = FakeMachine::with_taken_drive();
    machine.plan().busy.insert("vfio/7".to_owned());
    let text = refusal(&machine, back_plan_for(&machine, &[A]));
    assert_eq!(
        text,
        format!("{A} is open in another program: stop that program first")
    );
    machine.link("proc/77/fd/5", "/dev/vfio/7");
    machine.file("proc/77/comm", "windlass\n");
    let text = refusal(&machine, back_plan_for(&machine, &[A]));
    assert_eq!(
        text,
        format!("{A} is open in windlass (process 77): stop that program first")
    );
    // With iommufd a device has its own node, which can be opened twice.
    let machine = FakeMachine::with_taken_drive();
    machine.folder(&format!("sys/bus/pci/devices/{A}/vfio-dev/vfio3"));
    machine.link("proc/77/fd/5", "/dev/vfio/devices/vfio3");
    refusal(&machine, back_plan_for(&machine, &[A]));
}
