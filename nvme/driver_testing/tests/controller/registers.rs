//! Registers: values, side effects, and writes that are ignored (Base 2.1 §3.1.4).

use nvme_driver::backing::{ControllerMemory, DeviceBacking};
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedController, EmulatedOptions, Fault, FaultMatch, FaultRule,
    When,
};
use nvme_spec::registers::{
    Aqa, Arbitration, Cc, Cmbloc, Cmbmsc, Cmbsz, CommandSetSelected, NSSR_RESET, Register,
    ShutdownNotification, ShutdownStatus, Version,
};
use reactors::Nanos;

use crate::harness::{Host, arena};

const MS: Nanos = Nanos::from_millis(1);

fn steps(fault: Fault) -> FaultRule {
    FaultRule::new(FaultMatch::admin(), When::Always, fault)
}

#[test]
fn registers_after_power_on() {
    let options = EmulatedOptions {
        queue_entries_max: 5,
        doorbell_stride: 3,
        timeout_units: 7,
        version: Version::V1_4,
        ..EmulatedOptions::default()
    };
    let host = Host::cold(options);
    let cap = host.cap();
    assert_eq!((cap.mqes(), cap.dstrd(), cap.timeout_ms()), (5, 3, 3500));
    assert!(cap.cqr() && cap.css().nvm() && !cap.crwms());
    assert_eq!(host.get(Register::VS), Version::V1_4.into_bits());
    assert_eq!((host.get(Register::CC), host.get(Register::CSTS)), (0, 0));
    assert_eq!(host.drive.registers_len(), 4096 + 4096);
    assert!(!host.control.is_bus_master());
    assert_eq!(host.drive.read_u64(0x28), 0);
}

/// An invalid configuration causes a fatal status, which a reset clears.
#[test]
fn invalid_configurations_are_fatal() {
    let good = Cc::enabled_nvm();
    let size = |asqs_z, acqs_z| Aqa::new().with_asqs_z(asqs_z).with_acqs_z(acqs_z);
    let cases = [
        ("a submission queue of one entry", good, size(0, 7), 0),
        ("a completion queue of one entry", good, size(7, 0), 0),
        ("a queue inside a page", good, size(7, 7), 64),
        ("pages that are too large", good.with_mps(1), size(7, 7), 0),
        (
            "another command set",
            good.with_css(CommandSetSelected::ALL_SUPPORTED),
            size(7, 7),
            0,
        ),
        (
            "weighted arbitration",
            good.with_ams(Arbitration::WEIGHTED),
            size(7, 7),
            0,
        ),
    ];
    for (name, cc, aqa, offset) in cases {
        let host = Host::cold(EmulatedOptions::default());
        host.drive.set_bus_master(true).unwrap();
        host.describe_admin();
        host.set(Register::AQA, aqa.into_bits());
        host.drive
            .write_u64(0x28, host.drive.read_u64(0x28) + offset);
        host.set(Register::CC, cc.into_bits());
        assert!(host.csts().cfs() && !host.csts().rdy(), "{name}");
        host.disable();
        assert_eq!(host.get(Register::CSTS), 0, "{name}");
    }
}

#[test]
fn ready_changes_after_the_configured_time() {
    let options = EmulatedOptions {
        ready_after: Nanos::from_millis(30),
        disabled_after: Nanos::from_millis(20),
        ..EmulatedOptions::default()
    };
    let mut host = Host::cold(options);
    host.enable();
    for _ in 0..29 {
        host.tick(MS);
        assert!(!host.csts().rdy());
    }
    host.tick(MS);
    assert!(host.csts().rdy());
    host.disable();
    host.tick(Nanos::from_millis(19));
    assert!(host.csts().rdy());
    host.tick(MS);
    assert!(!host.csts().rdy());
    assert_eq!(host.control.counters().illegal_accesses, 0);
}

#[test]
fn enable_disable_and_reset_faults() {
    let mut host = Host::cold(EmulatedOptions::default());
    let never = host.control.inject(steps(Fault::Ready(Nanos::MAX)));
    host.enable();
    host.tick(Nanos::from_secs(3600));
    assert!(!host.csts().rdy() && host.control.fired(never) == 1);
    host.disable();
    host.control.arm(never, false);
    let stuck = host.control.inject(steps(Fault::Disabled(Nanos::MAX)));
    host.enable();
    assert!(host.csts().rdy());
    host.disable();
    host.tick(Nanos::from_secs(3600));
    assert!(host.csts().rdy() && host.control.fired(stuck) == 1);
    host.drive.reset_function().unwrap();
    assert!(!host.csts().rdy());
    host.control.disarm_all();
    let fails = host.control.inject(steps(Fault::FunctionReset));
    assert!(host.drive.reset_function().is_err());
    host.control.arm(fails, false);
    let fatal = host.control.inject(steps(Fault::EnableFatal));
    host.enable();
    assert!(host.csts().cfs() && host.control.fired(fatal) == 1);
}

#[test]
fn illegal_register_accesses_are_ignored_and_counted() {
    let host = Host::new(EmulatedOptions::default());
    let illegal = || host.control.counters().illegal_accesses;
    assert_eq!(illegal(), 0);
    let before = [0x00, 0x08, 0x1c, 0x24, 0x28, 0x30].map(|at| host.drive.read_u32(at));
    for (count, at) in [0x00, 0x08, 0x1c, 0x24, 0x28, 0x30].into_iter().enumerate() {
        host.drive.write_u32(at, 0xdead_0000);
        assert_eq!(illegal(), count as u64 + 1, "{at:#x}");
    }
    let after = [0x00, 0x08, 0x1c, 0x24, 0x28, 0x30].map(|at| host.drive.read_u32(at));
    assert_eq!(before, after);
    let cc = host.get(Register::CC);
    host.set(Register::CC, Cc::from_bits(cc).with_mps(3).into_bits());
    assert_eq!((host.get(Register::CC), illegal()), (cc, 7));
    assert_eq!((host.drive.read_u32(0x1000), illegal()), (0, 8));
}

#[test]
fn doorbell_write_to_a_disabled_controller_is_illegal() {
    let host = Host::cold(EmulatedOptions::default());
    host.drive.set_bus_master(true).unwrap();
    host.drive.write_u32(0x1000, 1);
    assert_eq!(host.control.counters().illegal_accesses, 1);
    assert_eq!(host.control.counters().commands, 0);
}

#[test]
fn unaligned_and_out_of_range_register_accesses_panic() {
    let drive = EmulatedController::new(arena().region(), EmulatedOptions::default()).unwrap();
    let len = drive.registers_len();
    for (offset, wide) in [(2, false), (len, false), (4, true), (len - 4, true)] {
        let drive = std::panic::AssertUnwindSafe(&drive);
        let caught = std::panic::catch_unwind(|| {
            if wide {
                drive.read_u64(offset)
            } else {
                u64::from(drive.read_u32(offset))
            }
        });
        assert!(caught.is_err(), "{offset:#x}");
    }
}

/// Base 2.1 §3.7.2: a controller reset preserves the admin queue's registers, a function reset
/// none.
#[test]
fn state_preserved_by_each_reset() {
    let host = Host::new(EmulatedOptions::default());
    let registers = || [0x24, 0x28, 0x30].map(|at| host.drive.read_u32(at));
    let before = registers();
    host.disable();
    assert_eq!(registers(), before);
    assert!(host.control.is_bus_master());
    host.drive.reset_function().unwrap();
    assert_eq!(registers(), [0; 3]);
    assert!(!host.control.is_bus_master());
    let mut host = host;
    host.enable();
    assert!(host.csts().rdy());
    host.set(Register::NSSR, 1);
    assert!(host.csts().rdy(), "any other value does nothing");
    host.set(Register::NSSR, NSSR_RESET);
    assert!(!host.csts().rdy() && host.csts().nssro());
    host.set(Register::CSTS, host.csts().into_bits());
    assert!(!host.csts().nssro(), "writing one clears it");
}

#[test]
fn shutdown_status_reports_completion() {
    let options = EmulatedOptions {
        shutdown_after: Nanos::from_millis(5),
        ..EmulatedOptions::default()
    };
    let mut host = Host::new(options);
    let mut pair = host.pair(1, 4, 4);
    host.write(&mut pair, 3, 7, false);
    let mut byte = [0; 4096];
    assert!(host.control.read_durable(1, 3, &mut byte) && byte[0] == 0);
    let cc = Cc::enabled_nvm().with_shn(ShutdownNotification::NORMAL);
    host.set(Register::CC, cc.into_bits());
    assert_eq!(host.csts().shst(), ShutdownStatus::OCCURRING);
    host.tick(Nanos::from_millis(5));
    assert_eq!(host.csts().shst(), ShutdownStatus::COMPLETE);
    assert!(host.control.read_durable(1, 3, &mut byte) && byte[0] == 7);
    host.disable();
    assert_eq!(host.csts().shst(), ShutdownStatus::NORMAL_OPERATION);
}

#[test]
fn removed_drive_reads_as_all_ones() {
    let mut host = Host::new(EmulatedOptions::default());
    host.control.remove();
    assert_eq!(host.get(Register::CSTS), u32::MAX);
    assert_eq!(host.drive.read_u64(0), u64::MAX);
    host.set(Register::CC, 0);
    assert!(host.drive.set_bus_master(true).is_err());
    assert!(host.drive.reset_function().is_err());
    assert_eq!(host.control.counters().removals, 1);
    host.control.reinsert();
    assert_eq!(host.get(Register::CC), 0);
    assert!(!host.control.is_bus_master());
    host.enable();
    assert!(host.csts().rdy());
    host.control.request_removal(true);
    assert!(host.drive.removal_requested());
    host.control.reinsert();
    assert!(!host.drive.removal_requested());
}

#[test]
fn controller_memory_buffer_is_reported_when_enabled() {
    let options = |placed_by_host| EmulatedOptions {
        controller_memory: Some(ControllerMemoryOptions {
            bytes: 64 << 10,
            placed_by_host,
            holds_data: false,
        }),
        ..EmulatedOptions::default()
    };
    let host = Host::cold(options(true));
    assert!(host.cap().cmbs());
    assert_eq!(
        (host.get(Register::CMBLOC), host.get(Register::CMBSZ)),
        (0, 0)
    );
    host.drive
        .write_u64(0x50, Cmbmsc::new().with_cre(true).into_bits());
    check_memory(&host);
    let host = Host::cold(options(false));
    assert!(!host.cap().cmbs());
    host.drive.write_u64(0x50, 1);
    assert_eq!(host.control.counters().illegal_accesses, 2);
    check_memory(&host);
    let none = Host::cold(EmulatedOptions::default());
    assert_eq!(none.get(Register::CMBSZ), 0);
    assert!(none.drive.controller_memory(2, 4096, 65536).is_none());
}

fn check_memory(host: &Host) {
    let size = Cmbsz::from_bits(host.get(Register::CMBSZ));
    let place = Cmbloc::from_bits(host.get(Register::CMBLOC));
    assert!(size.sqs() && !size.cqs() && size.size_bytes() == Some(65536));
    let offset = u64::from(place.ofst()) * size.unit_bytes().unwrap();
    let map = |bar, offset, len| host.drive.controller_memory(bar, offset, len);
    let memory = map(place.bir(), offset, 65536).expect("a buffer");
    assert_eq!(ControllerMemory::len(&*memory), 65536);
    assert!(map(place.bir() + 1, offset, 65536).is_none());
    assert!(map(place.bir(), offset, 131_072).is_none());
}
