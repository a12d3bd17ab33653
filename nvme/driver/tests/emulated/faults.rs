//! The driver's reaction to every fault of the emulated controller: requests end with the right
//! error in bounded time, leases are returned, the drive recovers or reports that it is gone, and
//! another drive of the same arena is not affected.

use block::{DeviceError, Operation};
use nvme_driver::backing::DeviceBacking;
use nvme_driver::{DriveOptions, DriveState, GoneReason, NamespaceStatus};
use nvme_driver_testing::{
    EmulatedNamespace, EmulatedOptions, Fault, FaultId, FaultMatch, FaultRule, Queues,
    ShadowDoorbells, When,
};
use nvme_spec::Status;
use nvme_spec::command::{AdminOpcode, IoOpcode};
use nvme_spec::registers::Register;
use reactors::{Nanos, Poller};

use crate::support::{Client, DEADLINES, Ended, MS, PATIENCE, Rig, drive_options, taken};

const WRITE: Operation = Operation::Write { fua: false };

/// The drive under test and another one on the same arena.
struct TwoDrives {
    rig: Rig,
    client: Client,
    other: Rig,
    beside: Client,
    taken: u64,
}

fn small() -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, 100)],
        timeout_units: 1,
        ..EmulatedOptions::default()
    }
}

fn options() -> DriveOptions {
    DriveOptions {
        queue_depth_max: 100,
        ..drive_options(1)
    }
}

impl TwoDrives {
    fn new(emulated: EmulatedOptions) -> Self {
        let rig = Rig::new(emulated, options());
        let other = Rig::try_new(&rig.arena, small(), options()).expect("another drive");
        let client = rig.client(1, 0, 64);
        let beside = other.client(1, 0, 64);
        let taken = taken(&rig.arena);
        Self {
            rig,
            client,
            other,
            beside,
            taken,
        }
    }

    fn inject(&self, matching: FaultMatch, when: When, fault: Fault) -> FaultId {
        self.rig
            .control
            .inject(FaultRule::new(matching, when, fault))
    }

    /// Writes eight blocks at the same time. Returns the results by block.
    fn write_eight(&mut self, byte: u8) -> Vec<Result<(), DeviceError>> {
        let data = vec![byte; 4096];
        for lba in 0..8 {
            self.client
                .submit(WRITE, lba, 1, Some(&data))
                .expect("taken");
        }
        let mut ended = self.client.finish(&mut self.rig);
        ended.sort_by_key(|ended| ended.tag);
        ended.into_iter().map(|ended| ended.result).collect()
    }

    fn until(&mut self, what: &str, done: impl Fn(&Rig) -> bool) {
        let deadline = self.rig.now + PATIENCE;
        while !done(&self.rig) {
            assert!(
                self.rig.now < deadline,
                "{what}: {:?}",
                self.rig.drive.state()
            );
            self.rig.step(MS);
            self.client.turn();
        }
    }

    /// Checks that the drive is ready and serves requests, that nothing leaked, and that the other
    /// drive was not affected.
    fn check_well(&mut self) {
        self.until("the drive is not ready", Rig::is_ready);
        self.rig.control.disarm_all();
        for byte in [1, 2] {
            let (rig, client) = (&mut self.rig, &mut self.client);
            client.write(rig, 99, byte).expect("a write");
            assert_eq!(client.read(rig, 99), Ok(byte));
            client.flush(rig).expect("a flush");
        }
        self.check_beside();
    }

    fn check_beside(&mut self) {
        self.beside.write(&mut self.other, 5, 5).expect("a write");
        assert_eq!(self.beside.read(&mut self.other, 5), Ok(5));
        assert_eq!(self.other.drive.counters().resets, 0);
        assert_eq!(
            taken(&self.rig.arena),
            self.taken,
            "leases did not come home"
        );
        for rig in [&self.rig, &self.other] {
            let counters = rig.control.counters();
            assert_eq!(counters.illegal_accesses, 0, "{counters:?}");
        }
    }

    fn check_gone(&mut self, reason: GoneReason) {
        self.until("the drive is not gone", Rig::is_gone);
        assert_eq!(self.rig.drive.state(), DriveState::Gone(reason));
        let refused = self.client.submit(Operation::Flush, 0, 0, None);
        assert_eq!(refused, Err(Some(DeviceError::Removed)));
        self.check_beside();
    }

    /// Inserts the drive again and waits until it is reattached.
    fn reattach(&mut self) {
        self.until("the drive is still held", |rig| rig.drive.wants_reopen());
        self.rig.control.reinsert();
        let backing = std::sync::Arc::clone(&self.rig.controller) as _;
        self.rig
            .drive
            .reattach(backing)
            .expect("a drive that waits");
        let deadline = self.rig.now + PATIENCE;
        loop {
            self.rig.step(MS);
            self.client.turn();
            let state = self.rig.drive.state();
            if state == DriveState::Ready || matches!(state, DriveState::Gone(GoneReason::Changed))
            {
                return;
            }
            assert!(self.rig.now < deadline, "not taken again: {state:?}");
        }
    }
}

fn io() -> FaultMatch {
    FaultMatch::io()
}

fn writes() -> FaultMatch {
    FaultMatch::io().with_opcode(IoOpcode::WRITE.0)
}

const OK: Result<(), DeviceError> = Ok(());

#[test]
fn statuses_are_mapped_to_errors_without_recovery() {
    let rows = [
        (Status::UNRECOVERED_READ_ERROR, DeviceError::MediaRead),
        (Status::WRITE_FAULT, DeviceError::MediaWrite),
        (Status::NAMESPACE_WRITE_PROTECTED, DeviceError::ReadOnly),
        (Status::CAPACITY_EXCEEDED, DeviceError::NoSpace),
        (Status::COMMAND_INTERRUPTED, DeviceError::Interrupted),
        (Status::INTERNAL_ERROR, DeviceError::Internal),
        (Status::LBA_OUT_OF_RANGE, DeviceError::OutOfRange),
    ];
    let mut two = TwoDrives::new(small());
    for (status, error) in rows {
        let third = writes().with_blocks(2..3);
        let id = two.inject(third, When::Always, Fault::Status(status.with_dnr()));
        let mut expected = vec![OK; 8];
        expected[2] = Err(error);
        assert_eq!(two.write_eight(3), expected);
        assert_eq!(two.rig.control.fired(id), 1);
        two.rig.control.arm(id, false);
    }
    two.check_well();
    assert_eq!(two.rig.drive.counters().resets, 0);
    let health = two.rig.device(1).health();
    assert_eq!(health.errors, 0, "each device object counts its own queues");
}

#[test]
fn hung_command_is_aborted() {
    for latency in [
        Fault::Hang { abortable: true },
        Fault::Delay(DEADLINES.command + DEADLINES.command),
    ] {
        let mut two = TwoDrives::new(small());
        two.inject(writes().with_blocks(4..5), When::First(1), latency);
        let began = two.rig.now;
        let mut expected = vec![OK; 8];
        expected[4] = Err(DeviceError::Aborted);
        assert_eq!(two.write_eight(3), expected);
        assert!(two.rig.now - began <= DEADLINES.command + DEADLINES.abort);
        two.check_well();
        let counters = two.rig.drive.counters();
        assert_eq!(
            (counters.aborts, counters.timeouts, counters.resets),
            (1, 1, 0)
        );
    }
}

#[test]
fn late_command_completes_before_its_deadline() {
    let mut two = TwoDrives::new(small());
    two.inject(io(), When::First(3), Fault::Delay(Nanos::from_millis(30)));
    assert_eq!(two.write_eight(3), [OK; 8]);
    two.check_well();
    assert_eq!(two.rig.drive.counters().timeouts, 0);
}

/// Faults that only a reset ends, each with the counter that counts it.
#[test]
fn reset_ends_commands_that_cannot_be_aborted() {
    type Count = fn(&nvme_driver::DriveCounters) -> u64;
    let cases: [(Fault, When, Count); 8] = [
        (Fault::Hang { abortable: false }, When::Nth(3), |counters| {
            counters.timeouts
        }),
        (Fault::DropCompletion, When::Nth(3), |counters| {
            counters.timeouts
        }),
        (Fault::Duplicate, When::Nth(3), |counters| {
            counters.stale_identifiers
        }),
        (Fault::StaleIdentifier, When::Nth(3), |counters| {
            counters.stale_identifiers
        }),
        (Fault::WrongIdentifier(0x8000), When::Nth(3), |counters| {
            counters.stale_identifiers
        }),
        (Fault::WrongIdentifier(0x007f), When::Nth(1), |counters| {
            counters.unknown_identifiers
        }),
        (Fault::WrongHead(u16::MAX), When::Nth(3), |counters| {
            counters.bad_heads
        }),
        (Fault::Fatal, When::Nth(3), |counters| counters.resets),
    ];
    for (fault, when, count) in cases {
        println!("{fault:?}");
        let mut two = TwoDrives::new(small());
        let id = two.inject(writes(), when, fault);
        let results = two.write_eight(7);
        assert_eq!(two.rig.control.fired(id), 1);
        let interrupted = results.iter().filter(|result| result.is_err());
        assert!(interrupted.clone().count() >= usize::from(fault != Fault::Duplicate));
        for result in interrupted {
            assert_eq!(*result, Err(DeviceError::Interrupted));
        }
        two.check_well();
        let counters = two.rig.drive.counters();
        assert!(count(&counters) >= 1, "{counters:?}");
        assert_eq!((counters.resets, counters.recoveries), (1, 1));
    }
}

/// A drive that lost and regained power processes no commands. The driver detects this at the next
/// tick, not only when the first command is overdue.
#[test]
fn drive_is_reset_after_a_brief_power_loss() {
    let mut two = TwoDrives::new(small());
    two.rig.control.power_cut();
    two.rig.control.reinsert();
    let deadline = two.rig.now + DEADLINES.command;
    while two.rig.drive.counters().recoveries == 0 {
        assert!(two.rig.now < deadline, "{:?}", two.rig.drive.state());
        two.rig.step(MS);
        two.client.turn();
    }
    two.check_well();
}

#[test]
fn slow_reset_defers_requests_and_succeeds() {
    let mut two = TwoDrives::new(EmulatedOptions {
        ready_after: Nanos::from_millis(300),
        disabled_after: Nanos::from_millis(200),
        ..small()
    });
    two.inject(writes(), When::Nth(3), Fault::DropCompletion);
    let results = two.write_eight(7);
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
    // Meanwhile the drive refuses requests with "later", not with "never".
    assert_eq!(two.rig.drive.state(), DriveState::Resetting);
    let later = two.client.submit(Operation::Flush, 0, 0, None);
    assert_eq!(later, Err(None));
    two.check_well();
}

/// Between CC.EN = 0 and CSTS.RDY = 0 the drive still writes to memory, so no lease may be
/// returned.
#[test]
fn leases_are_not_returned_while_the_drive_can_write() {
    let mut two = TwoDrives::new(EmulatedOptions {
        disabled_after: Nanos::from_millis(100),
        ..small()
    });
    two.inject(
        io().with_blocks(0..1),
        When::First(1),
        Fault::DropCompletion,
    );
    // Executes while the drive is being disabled because of the other command's deadlines.
    let slow = Fault::Delay(Nanos::from_millis(60));
    two.inject(io().with_blocks(9..10), When::First(1), slow);
    two.client
        .submit(Operation::Read, 0, 1, None)
        .expect("taken");
    two.client.turn();
    for _ in 0..50 {
        two.rig.step(MS);
        two.client.turn();
    }
    two.client
        .submit(Operation::Read, 9, 1, None)
        .expect("taken");
    two.client.turn();
    let mut carried_out = false;
    let deadline = two.rig.now + PATIENCE;
    while two.client.in_flight() > 0 {
        assert!(two.rig.now < deadline, "the requests are lost");
        let outstanding = two.rig.control.outstanding();
        two.rig.step(MS);
        let is_ready = two.rig.controller.read_u32(Register::CSTS.0 as usize) & 1 == 1;
        let resetting = two.rig.drive.state() == DriveState::Resetting;
        carried_out |= resetting && is_ready && two.rig.control.outstanding() < outstanding;
        let ended = two.client.turn();
        assert!(!is_ready || ended.is_empty(), "a lease is home too early");
        for ended in ended {
            assert_eq!(ended.result, Err(DeviceError::Interrupted));
        }
    }
    assert!(carried_out, "the drive wrote while it was being disabled");
    two.check_well();
}

/// A controller may continue to transfer a command's data after it completed an Abort, until CC.EN
/// = 0 takes effect (Base 2.1 §3.7.2): no lease may be returned before that.
#[test]
fn leases_are_not_returned_while_a_lost_command_transfers() {
    let data = [7; 4096];
    for operation in [Operation::Read, WRITE] {
        let mut two = TwoDrives::new(EmulatedOptions {
            disabled_after: Nanos::from_millis(100),
            ..small()
        });
        let lost = io().with_blocks(4..5);
        let id = two.inject(lost, When::First(1), Fault::NeverCompletes);
        let taken = two.client.submit(operation, 4, 1, Some(&data));
        taken.expect("taken");
        two.client.turn();
        let deadline = two.rig.now + PATIENCE;
        while two.client.in_flight() > 0 {
            assert!(two.rig.now < deadline, "the request is lost");
            two.rig.step(MS);
            let is_ready = two.rig.controller.read_u32(Register::CSTS.0 as usize) & 1 == 1;
            let ended = two.client.turn();
            assert!(!is_ready || ended.is_empty(), "a lease is home too early");
            for ended in ended {
                assert_eq!(ended.result, Err(DeviceError::Interrupted));
            }
        }
        assert_eq!(two.rig.control.fired(id), 1);
        two.check_well();
        let counters = two.rig.drive.counters();
        assert_eq!((counters.aborts, counters.resets), (1, 1));
    }
}

#[test]
fn controller_that_stays_enabled_gets_a_function_level_reset() {
    let mut two = TwoDrives::new(small());
    two.inject(writes(), When::Nth(3), Fault::DropCompletion);
    let stuck = two.inject(
        FaultMatch::admin(),
        When::First(1),
        Fault::Disabled(Nanos::MAX),
    );
    let results = two.write_eight(7);
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
    assert_eq!(two.rig.control.fired(stuck), 1);
    two.check_well();
    assert_eq!(two.rig.control.counters().function_resets, 1);
}

#[test]
fn controller_that_never_becomes_ready_is_gone() {
    let never = [Fault::Ready(Nanos::MAX), Fault::EnableFatal];
    for fault in never {
        println!("{fault:?}");
        // Once: the function reset succeeds.
        let mut two = TwoDrives::new(small());
        two.inject(writes(), When::Nth(3), Fault::DropCompletion);
        let id = two.inject(FaultMatch::admin(), When::First(1), fault);
        two.write_eight(7);
        two.check_well();
        assert_eq!(two.rig.control.fired(id), 1);
        // Always: no recovery is possible.
        let mut two = TwoDrives::new(small());
        two.inject(writes(), When::Nth(3), Fault::DropCompletion);
        two.inject(FaultMatch::admin(), When::Always, fault);
        two.write_eight(7);
        two.check_gone(GoneReason::ResetFailed);
        assert!(!two.rig.control.is_bus_master());
        two.rig.control.disarm_all();
        two.rig.control.power_cut();
        two.reattach();
        two.check_well();
    }
}

#[test]
fn failed_function_reset_disables_bus_mastering_and_the_drive_is_gone() {
    let mut two = TwoDrives::new(small());
    two.inject(writes(), When::Nth(3), Fault::DropCompletion);
    two.inject(
        FaultMatch::admin(),
        When::Always,
        Fault::Disabled(Nanos::MAX),
    );
    two.inject(FaultMatch::admin(), When::Always, Fault::FunctionReset);
    let results = two.write_eight(7);
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
    two.check_gone(GoneReason::ResetFailed);
    assert!(!two.rig.control.is_bus_master());
}

#[test]
fn drive_removed_under_load_works_after_reinsertion() {
    let mut two = TwoDrives::new(small());
    two.client.write(&mut two.rig, 50, 0x50).expect("a write");
    two.client.flush(&mut two.rig).expect("a flush");
    let id = two.inject(writes(), When::Nth(3), Fault::Remove);
    let results = two.write_eight(7);
    assert_eq!(two.rig.control.fired(id), 1);
    assert_eq!(results[..2], [OK; 2]);
    assert_eq!(results[2..], [Err(DeviceError::Removed); 6]);
    two.check_gone(GoneReason::NotResponding);
    two.reattach();
    assert_eq!(two.client.read(&mut two.rig, 50), Ok(0x50));
    two.check_well();
    assert_eq!(two.rig.drive.counters().reattachments, 1);
}

#[test]
fn removal_of_an_idle_drive_is_detected() {
    let mut two = TwoDrives::new(small());
    two.rig.control.remove();
    two.check_gone(GoneReason::NotResponding);
    two.reattach();
    two.check_well();
    two.rig.control.fail();
    two.until("the fatal status is not noticed", |rig| {
        rig.drive.counters().resets == 1
    });
    two.check_well();
}

/// A power cut shorter than a tick: registers do not read as all ones, but the queues are gone.
#[test]
fn power_cut_shorter_than_a_tick_is_detected() {
    let mut two = TwoDrives::new(small());
    two.client.write(&mut two.rig, 50, 0x50).expect("a write");
    two.client.flush(&mut two.rig).expect("a flush");
    two.rig.control.power_cut();
    two.rig.control.reinsert();
    let results = two.write_eight(7);
    assert!(
        results
            .iter()
            .all(|result| *result == Err(DeviceError::Interrupted)
                || *result == Err(DeviceError::Removed)),
        "{results:?}"
    );
    two.check_well();
    assert_eq!(two.client.read(&mut two.rig, 50), Ok(0x50));
}

#[test]
fn different_drive_in_the_slot_is_rejected() {
    let mut two = TwoDrives::new(small());
    two.rig.control.remove();
    two.check_gone(GoneReason::NotResponding);
    two.rig.control.replace_serial("ANOTHER");
    two.reattach();
    two.check_gone(GoneReason::Changed);
    two.until("the drive is still held", |rig| rig.drive.wants_reopen());
    two.rig.control.remove();
    two.rig.control.replace_serial("WINDLASS0001");
    two.reattach();
    two.check_well();
}

/// A drive is released for another process, and taken back.
#[test]
fn released_drive_is_shut_down_and_taken_back() {
    let mut two = TwoDrives::new(EmulatedOptions {
        shutdown_after: Nanos::from_millis(10),
        ..small()
    });
    two.inject(
        writes(),
        When::First(1),
        Fault::Delay(Nanos::from_millis(10)),
    );
    let data = vec![9; 4096];
    two.client.submit(WRITE, 3, 1, Some(&data)).expect("taken");
    two.client.turn();
    two.rig.drive.release();
    let ended: Vec<Ended> = two.client.finish(&mut two.rig);
    assert_eq!(ended[0].result, OK, "what was in flight ends");
    two.check_gone(GoneReason::Released);
    assert!(!two.rig.control.is_bus_master());
    let mut block = vec![0; 4096];
    assert!(two.rig.control.read_durable(1, 3, &mut block));
    assert_eq!(block[0], 9, "a shutdown makes the cache safe");
    two.reattach();
    two.check_well();
    // The request has ended with the release.
    two.rig.step(PATIENCE);
    two.check_well();
}

/// A reactor that does not yet know that the drive is back refuses requests, so that nothing may be
/// sent to it before.
#[test]
fn drive_that_is_back_is_ready_when_every_reactor_knows_it() {
    let mut two = TwoDrives::new(small());
    assert!(two.rig.drive.is_ready_everywhere());
    two.rig.drive.release();
    two.check_gone(GoneReason::Released);
    assert!(!two.rig.drive.is_ready_everywhere());
    two.until("the drive is still held", |rig| rig.drive.wants_reopen());
    let backing = std::sync::Arc::clone(&two.rig.controller) as _;
    two.rig.drive.reattach(backing).expect("it waits");
    let deadline = two.rig.now + PATIENCE;
    while two.rig.drive.state() != DriveState::Ready {
        assert!(two.rig.now < deadline, "it is not ready");
        two.rig.step(MS);
        assert!(!two.rig.drive.is_ready_everywhere());
    }
    let refused = two.client.submit(Operation::Read, 3, 1, None);
    assert!(refused.is_err(), "the reactor has not polled");
    two.client.turn();
    assert!(two.rig.drive.is_ready_everywhere());
    two.check_well();
}

#[test]
fn removal_request_shuts_the_drive_down_in_order() {
    let mut two = TwoDrives::new(EmulatedOptions {
        shutdown_after: Nanos::from_millis(10),
        ..small()
    });
    two.inject(
        writes(),
        When::First(1),
        Fault::Delay(Nanos::from_millis(10)),
    );
    let data = vec![9; 4096];
    two.client.submit(WRITE, 3, 1, Some(&data)).expect("taken");
    two.client.turn();
    two.rig.control.request_removal(true);
    let ended: Vec<Ended> = two.client.finish(&mut two.rig);
    assert_eq!(ended[0].result, OK, "what was in flight ends");
    two.check_gone(GoneReason::RemovalRequested);
    assert!(!two.rig.control.is_bus_master());
    let mut block = vec![0; 4096];
    assert!(two.rig.control.read_durable(1, 3, &mut block));
    assert_eq!(block[0], 9, "a shutdown makes the cache safe");
    two.reattach();
    two.check_well();
}

#[test]
fn lost_late_and_torn_doorbell_writes() {
    for (fault, harmless) in [
        (Fault::DoorbellLost, false),
        (Fault::DoorbellDeferred, true),
        (Fault::DoorbellTorn, false),
    ] {
        println!("{fault:?}");
        let mut two = TwoDrives::new(small());
        let id = two.inject(io(), When::First(1), fault);
        let results = two.write_eight(7);
        assert_eq!(two.rig.control.fired(id), 1);
        if harmless {
            assert_eq!(results, [OK; 8]);
        } else {
            assert_eq!(results, [Err(DeviceError::Interrupted); 8]);
        }
        two.check_well();
        if fault == Fault::DoorbellTorn {
            assert_eq!(two.rig.control.counters().invalid_doorbells, 1);
            assert!(two.rig.drive.counters().events >= 1);
        }
        // The next doorbell write of the head makes up for a lost one.
        two.inject(io(), When::Nth(2), fault);
        assert_eq!(two.write_eight(7), [OK; 8]);
        two.check_well();
    }
}

#[test]
fn failed_admin_commands_do_not_stop_recovery() {
    let abort = FaultMatch::admin().with_opcode(AdminOpcode::ABORT.0);
    for fault in [
        Fault::DropCompletion,
        Fault::Status(Status::INTERNAL_ERROR),
        Fault::WrongIdentifier(0x40),
    ] {
        println!("{fault:?}");
        let mut two = TwoDrives::new(small());
        two.inject(writes(), When::Nth(3), Fault::Hang { abortable: false });
        two.inject(abort.clone(), When::First(1), fault);
        let results = two.write_eight(7);
        assert_eq!(results[2], Err(DeviceError::Interrupted));
        two.check_well();
    }
    // A start after a reset that fails once is retried.
    for opcode in [
        AdminOpcode::IDENTIFY,
        AdminOpcode::CREATE_IO_CQ,
        AdminOpcode::CREATE_IO_SQ,
    ] {
        for fault in [
            Fault::DropCompletion,
            Fault::Status(Status::INTERNAL_ERROR),
            Fault::Fatal,
        ] {
            println!("{opcode}: {fault:?}");
            let mut two = TwoDrives::new(small());
            two.inject(writes(), When::Nth(3), Fault::Fatal);
            let matching = FaultMatch::admin().with_opcode(opcode.0);
            let id = two.inject(matching, When::First(1), fault);
            let results = two.write_eight(7);
            assert!(
                results[2..]
                    .iter()
                    .all(|result| *result == Err(DeviceError::Interrupted))
            );
            two.check_well();
            assert_eq!(two.rig.control.fired(id), 1);
        }
    }
}

/// A reactor that does not poll keeps its leases until it does; the drive gives up waiting for it.
#[test]
fn reactor_that_stops_polling_keeps_its_leases() {
    let rig = Rig::new(
        small(),
        DriveOptions {
            reactors: 2,
            ..options()
        },
    );
    let mut away = rig.client(1, 1, 8);
    let mut two = {
        let other = Rig::try_new(&rig.arena, small(), options()).expect("another drive");
        let (client, beside) = (rig.client(1, 0, 64), other.client(1, 0, 64));
        let taken = taken(&rig.arena);
        TwoDrives {
            rig,
            client,
            other,
            beside,
            taken,
        }
    };
    let hangs = FaultMatch::of(Queues::One(2));
    two.inject(hangs, When::Always, Fault::Hang { abortable: false });
    away.submit(Operation::Read, 1, 1, None).expect("taken");
    away.turn();
    two.inject(writes(), When::First(1), Fault::Fatal);
    two.write_eight(1);
    for _ in 0..100 {
        two.rig.step(MS);
        two.client.turn();
    }
    assert_eq!(
        taken(&two.rig.arena),
        two.taken + 1,
        "the lease is where it was"
    );
    assert!(!two.rig.is_ready());
    let ended = away.finish(&mut two.rig);
    assert_eq!(ended[0].result, Err(DeviceError::Interrupted));
    drop(ended);
    let deadline = two.rig.now + PATIENCE;
    while !two.rig.is_ready() {
        assert!(two.rig.now < deadline);
        two.rig.step(MS);
        away.turn();
        two.client.turn();
    }
    two.rig.control.disarm_all();
    assert_eq!(away.read(&mut two.rig, 1), Ok(0));
}

#[test]
fn changed_namespace_is_refused_without_affecting_others() {
    let mut large = EmulatedNamespace::new(2, 512, 100);
    large.block_count_max = 200;
    let mut two = TwoDrives::new(EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, 100), large],
        ..small()
    });
    let mut second = two.rig.client(2, 0, 8);
    second.write(&mut two.rig, 1, 4).expect("a write");
    let status = |two: &TwoDrives| two.rig.drive.namespaces()[1].status;
    assert!(two.rig.control.resize_namespace(2, 150));
    two.until("the change is not noticed", |rig| {
        rig.drive.namespaces()[1].status == NamespaceStatus::Changed
    });
    let refused = second.submit(Operation::Read, 1, 1, None);
    assert_eq!(refused, Err(Some(DeviceError::Removed)));
    assert_eq!(two.client.write(&mut two.rig, 1, 1), Ok(()));
    assert!(two.rig.control.resize_namespace(2, 100));
    two.until("the change is not noticed", |rig| {
        rig.drive.namespaces()[1].status == NamespaceStatus::Usable
    });
    assert_eq!(second.read(&mut two.rig, 1), Ok(4));
    assert!(two.rig.control.attach_namespace(2, false));
    two.until("the removal is not noticed", |rig| {
        rig.drive.namespaces()[1].status == NamespaceStatus::Removed
    });
    assert!(two.rig.control.attach_namespace(2, true));
    two.until("the return is not noticed", |rig| {
        rig.drive.namespaces()[1].status == NamespaceStatus::Usable
    });
    assert_eq!(status(&two), NamespaceStatus::Usable);
    assert_eq!(second.read(&mut two.rig, 1), Ok(4));
    drop(second);
    two.check_well();
}

#[test]
fn health_and_errors_come_from_the_drive() {
    let mut two = TwoDrives::new(small());
    two.until("no health", |rig| {
        rig.device(1).health().temperature_kelvin == Some(310)
    });
    two.rig.control.set_wear(42, 77);
    let bad = FaultMatch::io().with_blocks(7..8);
    two.inject(
        bad,
        When::First(1),
        Fault::Status(Status::UNRECOVERED_READ_ERROR),
    );
    assert_eq!(
        two.client.read(&mut two.rig, 7),
        Err(DeviceError::MediaRead)
    );
    two.rig.control.set_temperature(400);
    two.until("the event does not lead to a look", |rig| {
        rig.device(1).health().temperature_kelvin == Some(400)
    });
    let health = two.rig.device(1).health();
    assert_eq!(health.available_spare_percent, Some(42));
    assert_eq!(health.used_percent, Some(77));
    let drive = health.drive.expect("the drive's own health");
    assert!(drive.warnings.temperature && drive.media_errors == 1);
    two.check_well();
}

/// Recovery also works with shadow doorbells, even if the controller reads them late.
#[test]
fn recovery_with_shadow_doorbells() {
    for shadow_doorbells in [ShadowDoorbells::Ring, ShadowDoorbells::Poll] {
        for fault in [
            Fault::DropCompletion,
            Fault::Fatal,
            Fault::Hang { abortable: true },
        ] {
            println!("{shadow_doorbells:?}: {fault:?}");
            let mut two = TwoDrives::new(EmulatedOptions {
                shadow_doorbells,
                ..small()
            });
            two.inject(writes(), When::Nth(3), fault);
            let results = two.write_eight(7);
            assert!(results[2].is_err(), "{results:?}");
            two.check_well();
        }
    }
}

/// The drive's interrupt wakes a sleeping reactor, and nothing wakes it earlier.
#[test]
fn interrupts_wake_sleeping_reactors() {
    let mut two = TwoDrives::new(EmulatedOptions {
        latency: block_testing::Latency::Fixed(Nanos::from_millis(2)),
        ..small()
    });
    let data = vec![1; 4096];
    for round in 0..20 {
        two.client
            .submit(WRITE, round, 1, Some(&data))
            .expect("taken");
        assert!(two.client.turn().is_empty());
        assert!(two.client.queue.prepare_sleep(), "round {round}");
        assert!(!is_readable(&two.client));
        two.rig.step(MS);
        assert!(!is_readable(&two.client));
        two.rig.step(MS);
        assert!(is_readable(&two.client), "round {round}");
        let ended = two.client.turn();
        assert_eq!(ended.len(), 1);
        assert!(!is_readable(&two.client));
    }
    two.check_well();
}

fn is_readable(client: &Client) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let source = client.queue.wake_source().expect("a descriptor");
    let mut polled = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
    let zero = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&zero)).expect("poll") == 1
}

#[test]
fn stop_shuts_down_the_drive_with_its_cache_flushed() {
    let mut two = TwoDrives::new(EmulatedOptions {
        shutdown_after: Nanos::from_millis(5),
        ..small()
    });
    two.client.write(&mut two.rig, 3, 8).expect("a write");
    let deadline = two.rig.now + PATIENCE;
    while two.rig.owner.stop(two.rig.now) != reactors::StopState::Stopped {
        assert!(two.rig.now < deadline, "the stop does not end");
        two.rig.step(MS);
        two.client.turn();
    }
    assert_eq!(two.rig.drive.state(), DriveState::Closed);
    let mut block = vec![0; 4096];
    assert!(two.rig.control.read_durable(1, 3, &mut block));
    assert_eq!(block[0], 8);
    assert!(!two.rig.control.is_bus_master());
    two.check_beside();
}
