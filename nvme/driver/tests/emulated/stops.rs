//! Stopping a drive; and the clock of its owner.

use std::sync::Arc;

use block::{DeviceError, Operation};
use nvme_driver::DriveState;
use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule, When};
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
