//! Stopping a drive; and the clock of its owner.

use std::sync::Arc;

use block::{DeviceError, Operation};
use nvme_driver::DriveState;
use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{
    EmulatedController, EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule, When,
};
use nvme_spec::Status;
use reactors::{Nanos, Poller, StopState};

use crate::support::{MS, PATIENCE, Rig, arena, drive_options, taken};

fn emulated() -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, 100)],
        ..EmulatedOptions::default()
    }
}

fn stop(rig: &mut Rig) {
    let deadline = rig.now + PATIENCE;
    while rig.owner.stop(rig.now) != StopState::Stopped {
        assert!(rig.now < deadline, "the owner does not stop");
        rig.step(MS);
    }
    assert_eq!(rig.drive.state(), DriveState::Closed);
    assert!(!rig.control.is_bus_master());
}

/// A failed request counts as completed after it was polled, like any other.
#[test]
fn a_failed_request_does_not_delay_a_stop() {
    let mut rig = Rig::new(emulated(), drive_options(1));
    let mut client = rig.client(1, 0, 8);
    let fault = Fault::Status(Status::UNRECOVERED_READ_ERROR);
    rig.control
        .inject(FaultRule::new(FaultMatch::io(), When::First(1), fault));
    assert_eq!(client.read(&mut rig, 3), Err(DeviceError::MediaRead));
    stop(&mut rig);
    client.turn();
    let refused = client.submit(Operation::Flush, 0, 0, None);
    assert_eq!(refused, Err(Some(DeviceError::Removed)));
}

#[test]
fn stop_waits_for_requests_in_flight() {
    let mut rig = Rig::new(
        EmulatedOptions {
            latency: block_testing::Latency::Fixed(Nanos::from_millis(30)),
            ..emulated()
        },
        drive_options(1),
    );
    let mut client = rig.client(1, 0, 8);
    let data = vec![7; 4096];
    let write = Operation::Write { fua: false };
    client.submit(write, 1, 1, Some(&data)).expect("taken");
    client.turn();
    assert_eq!(rig.owner.stop(rig.now), StopState::Outstanding(1));
    let ended = client.finish(&mut rig);
    assert_eq!(ended[0].result, Ok(()));
    stop(&mut rig);
    let mut durable = vec![0; 4096];
    assert!(rig.control.read_durable(1, 1, &mut durable));
    assert_eq!(durable, data, "the cache was made safe");
}

/// The start is polled with one clock, the owner with its reactor's clock, which starts at zero.
#[test]
fn owner_uses_its_reactors_clock() {
    let mut rig = Rig::new(emulated(), drive_options(1));
    rig.now = Nanos::ZERO;
    rig.control.fail();
    for _ in 0..200 {
        rig.now += MS;
        rig.owner.poll(rig.now);
    }
    assert_eq!(rig.drive.counters().resets, 1);
}

/// Dropping everything without a stop: the drive no longer accesses memory, and all memory is
/// returned.
#[test]
fn dropped_drive_is_disabled_and_returns_its_memory() {
    let arena = arena();
    let before = taken(&arena);
    let rig = Rig::try_new(&arena, emulated(), drive_options(1)).expect("a drive");
    assert!(taken(&arena) > before && rig.control.is_bus_master());
    let control = rig.control.clone();
    let controller = Arc::clone(&rig.controller);
    drop(rig);
    assert!(!control.is_bus_master());
    assert_eq!(taken(&arena), before);
    drop(controller);
}

/// A host was told how long its requests may outlive its association. The deadline of commands,
/// which may be longer, does not change this.
#[test]
fn abandoned_request_is_ended_by_reset_within_cqt() {
    let mut options = drive_options(1);
    options.deadlines.command = Nanos::from_secs(600);
    let mut rig = Rig::new(emulated(), options);
    let (mut client, mut other) = (rig.client(1, 0, 8), rig.client(1, 0, 8));
    let fault = Fault::Hang { abortable: false };
    let writes = FaultMatch::io().with_blocks(4..5);
    rig.control
        .inject(FaultRule::new(writes, When::First(1), fault));
    let write = Operation::Write { fua: false };
    let tag = client.submit(write, 4, 1, Some(&[7; 4096]));
    let tag = tag.expect("taken");
    assert_eq!(client.turn().len(), 0);
    client.queue.give_up(&mut |it| it == tag);
    rig.step(Nanos::from_secs(30));
    assert_eq!(client.turn().len(), 0);
    // The same tag on another queue belongs to another request.
    other.queue.abandon(&mut |it| it == tag);
    rig.step(MS);
    assert_eq!(rig.drive.counters().resets, 0);
    client.queue.abandon(&mut |it| it == tag);
    let ended = client.finish(&mut rig);
    assert_eq!(ended[0].result, Err(DeviceError::Interrupted));
    assert_eq!(rig.drive.counters().resets, 1);
    while !rig.is_ready() {
        rig.step(MS);
        client.turn();
        other.turn();
    }
    client.write(&mut rig, 4, 8).expect("a write");
    assert_eq!(client.read(&mut rig, 4), Ok(8));
}

/// A closed drive has written its cache, its backing is released, and its memory is returned. It
/// can be opened again, also repeatedly.
#[test]
fn closed_drive_is_shut_down_and_can_be_opened_again() {
    let arena = arena();
    let before = taken(&arena);
    let controller = EmulatedController::new(arena.region(), emulated()).expect("a controller");
    let controller = Arc::new(controller);
    for round in 1..=3 {
        let rig = Rig::on(&arena, Arc::clone(&controller), drive_options(2));
        let mut rig = rig.expect("a drive");
        let mut client = rig.client(1, 1, 8);
        if round > 1 {
            assert_eq!(client.read(&mut rig, 5), Ok(round - 1));
        }
        client.write(&mut rig, 5, round).expect("written");
        drop(client);
        assert!(rig.close(), "it does not close");
        assert_eq!(rig.drive.state(), DriveState::Closed);
        assert!(!rig.control.is_bus_master());
        let mut durable = vec![0; 4096];
        assert!(rig.control.read_durable(1, 5, &mut durable));
        assert_eq!(durable, [round; 4096], "the cache was written");
        assert_eq!(
            Arc::strong_count(&controller),
            2,
            "only the test refers to it"
        );
        assert_eq!(rig.owner.stop(rig.now), StopState::Stopped);
        drop(rig);
        assert_eq!(taken(&arena), before);
    }
}

/// A drive that is gone, and one that has returned but is not started yet, is closed at once.
#[test]
fn gone_drive_is_closed() {
    for returns in [false, true] {
        let mut rig = Rig::new(emulated(), drive_options(1));
        rig.control.remove();
        while !rig.drive.wants_reopen() {
            rig.step(MS);
        }
        if returns {
            let backing = Arc::clone(&rig.controller) as Arc<dyn DeviceBacking>;
            rig.drive.close();
            rig.drive.reattach(backing).expect("it is gone");
            assert!(!rig.drive.is_closed());
        }
        assert!(rig.close(), "it does not close");
        assert!(!rig.drive.wants_reopen());
        assert_eq!(Arc::strong_count(&rig.controller), 1);
    }
}

/// A device was closed although the drive had not completed a command. The drive is closed within
/// a bound, and the command's memory returns when the reactor opens its next drive.
#[test]
fn memory_of_an_unfinished_command_returns_after_the_drive_is_closed() {
    let arena = arena();
    let mut rig = Rig::try_new(&arena, emulated(), drive_options(1)).expect("a drive");
    let one_drive = taken(&arena);
    let hang = Fault::Hang { abortable: false };
    let writes = FaultMatch::io().with_blocks(4..5);
    rig.control
        .inject(FaultRule::new(writes, When::Always, hang));
    let mut client = rig.client(1, 0, 8);
    let write = Operation::Write { fua: false };
    client.submit(write, 4, 1, Some(&[7; 4096])).expect("taken");
    client.turn();
    drop(client);
    assert!(rig.close(), "it does not close");
    let next = EmulatedController::new(arena.region(), emulated()).expect("a controller");
    let mut next = Rig::on(&arena, Arc::new(next), drive_options(1)).expect("a drive");
    next.join(&rig);
    drop(rig);
    let mut client = next.client(1, 0, 8);
    assert_eq!(client.read(&mut next, 4), Ok(0));
    drop(client);
    assert_eq!(taken(&arena), one_drive);
    assert!(next.close());
}
