//! One controller on several cores: notifications reach them, and nothing is leaked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use nvme_target::{CloseReason, ControllerKind, ControllerState, IoTotals};

use crate::harness::{
    CLOSED_SUBSYSTEM, ConnectOptions, HOLD, HOST, RAM, STRANGER, SUBSYSTEM, World, discovery_call,
    subsystem,
};

/// Base 2.1 §3.7.2: a reset on core 0 ends the I/O queue on core 1, and waits for it.
#[test]
fn reset_ends_io_queues_on_other_cores() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let far = world.io_queue(1, admin, 1);
    let near = world.io_queue(0, admin, 2);
    world.set_cc(admin, Cc::new());
    world
        .command(far, Sqe::read(RAM, 0, 0))
        .is(Status::COMMAND_SEQUENCE_ERROR);
    assert!(world.nodes[1].core.has_ready(), "it is called");
    world.settle();
    assert_eq!(world.close_reasons(1), [CloseReason::ControllerReset]);
    assert_eq!(world.close_reasons(0), [CloseReason::ControllerReset]);
    world.close(near);
    world.settle();
    assert!(
        world.csts(admin).rdy(),
        "the queue on core 1 is still there"
    );
    world.close(far);
    world.settle();
    assert!(!world.csts(admin).rdy());
    world.set_cc(admin, Cc::enabled_nvm());
    let again = world.io_queue(1, admin, 1);
    world.read_blocks(again, RAM, 0, 1);
    assert!(world.closes(0).is_empty() && world.closes(1).is_empty());
}

/// A reset waits for a write that is in a device of the other core.
#[test]
fn reset_waits_for_device_writes_on_other_cores() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let far = world.io_queue(1, admin, 1);
    world.fault.arm(HOLD, true);
    let write = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    world
        .start(far, write.with_cid(1), &[1; 512])
        .expect_err("in the device");
    world.set_cc(admin, Cc::new());
    world.settle();
    world.close(far);
    world.settle();
    assert!(world.csts(admin).rdy());
    world.fault.release();
    world.settle();
    assert!(!world.csts(admin).rdy());
}

/// The end of the admin connection ends the whole association, and the registry removes it with its
/// last queue.
#[test]
fn an_association_ends_with_its_admin_queue() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let far = world.io_queue(1, admin, 1);
    world.close(admin);
    assert_eq!(world.target.snapshot().controllers.len(), 1);
    let cntlid = admin.info.controller_id;
    let late = ConnectOptions {
        cntlid,
        qid: 2,
        ..ConnectOptions::default()
    };
    let refused = world
        .try_connect(1, &late)
        .expect_err("the association is over");
    assert_eq!(
        refused.status(),
        Status::CONNECT_INVALID_PARAMETERS.with_dnr()
    );
    world
        .command(far, Sqe::read(RAM, 0, 0))
        .is(Status::COMMAND_SEQUENCE_ERROR);
    world.settle();
    assert_eq!(world.close_reasons(1), [CloseReason::AssociationLost]);
    world.close(far);
    assert!(world.target.snapshot().controllers.is_empty());
    assert_eq!(
        world.nodes[0].core.queues() + world.nodes[1].core.queues(),
        0
    );
}

/// The end of an I/O connection ends nothing else.
#[test]
fn closing_an_io_queue_ends_nothing_else() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let first = world.io_queue(1, admin, 1);
    let second = world.io_queue(1, admin, 2);
    world.close(first);
    world.settle();
    assert!(world.closes(0).is_empty() && world.closes(1).is_empty());
    world.read_blocks(second, RAM, 0, 1);
    world.command(admin, Sqe::keep_alive()).ok();
    let again = world.io_queue(0, admin, 1);
    world.read_blocks(again, RAM, 0, 1);
}

/// A host that is removed from the list loses its controllers; others stay.
#[test]
fn host_removed_from_the_list_is_disconnected() {
    let mut world = World::new();
    let call = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(0, &call);
    let cntlid = admin.info.controller_id;
    let far = world.connect(
        1,
        &ConnectOptions {
            cntlid,
            qid: 1,
            ..call
        },
    );
    let other = world.enabled(0);
    let strangers = vec![STRANGER.to_owned()];
    world
        .target
        .update_hosts(CLOSED_SUBSYSTEM, false, strangers)
        .expect("right");
    world.settle();
    assert_eq!(world.close_reasons(1), [CloseReason::Revoked]);
    assert_eq!(world.close_reasons(0), [], "the admin queue goes last");
    world.close(far);
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::Revoked]);
    world.close(admin);
    world.command(other, Sqe::keep_alive()).ok();
    let refused = world.try_connect(0, &call).expect_err("no longer allowed");
    assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.with_dnr());
    world.connect(
        0,
        &ConnectOptions {
            host: STRANGER,
            ..call
        },
    );
}

/// Removing a subsystem ends its controllers; its slot is reused only after their end.
#[test]
fn a_removed_subsystem_ends_its_controllers() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world
        .target
        .remove_subsystem(SUBSYSTEM)
        .expect("it is there");
    let other = "nqn.2026-11.org.windlass:other";
    world
        .target
        .add_subsystem(subsystem(other, Vec::new()))
        .expect("right");
    world.settle();
    assert_eq!(
        world.close_reasons(0),
        [CloseReason::Revoked, CloseReason::Revoked]
    );
    world
        .command(io, Sqe::read(RAM, 0, 0))
        .is(Status::ABORTED_SQ_DELETION);
    let snapshot = world.target.snapshot();
    assert_eq!(snapshot.controllers[0].subsystem_nqn, SUBSYSTEM);
    let names: Vec<_> = snapshot
        .subsystems
        .iter()
        .map(|it| (&it.nqn[..], it.controllers))
        .collect();
    assert_eq!(names, [(CLOSED_SUBSYSTEM, 0), (other, 0)]);
    world.close(io);
    world.close(admin);
    let devices: Vec<_> = world.devices();
    let again = subsystem(
        SUBSYSTEM,
        vec![crate::harness::namespace(RAM, 0, &*devices[0])],
    );
    world.target.add_subsystem(again).expect("right");
    let (_, io) = world.ready();
    world.read_blocks(io, RAM, 0, 1);
}

/// Reactors are woken for changes that concern them.
#[test]
fn sleeping_reactors_are_woken() {
    let mut world = World::new();
    let woken = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counts = Arc::clone(&woken);
    world.target.set_waker(Box::new(move |reactor| {
        counts[reactor].fetch_add(1, Ordering::Relaxed);
    }));
    let admin = world.enabled(0);
    let far = world.io_queue(1, admin, 1);
    let count = |reactor: usize| woken[reactor].load(Ordering::Relaxed);
    assert_eq!((count(0), count(1)), (0, 0));
    world.set_cc(admin, Cc::new());
    assert!(count(1) > 0, "a reset wakes the core of the I/O queue");
    let before = count(0);
    world.settle();
    world.close(far);
    assert!(
        count(0) > before,
        "its end wakes the core of the admin queue"
    );
    let before = (count(0), count(1));
    world
        .target
        .update_hosts(SUBSYSTEM, true, Vec::new())
        .expect("right");
    assert!(
        count(0) > before.0 && count(1) > before.1,
        "a change wakes all"
    );
}

/// The snapshot for the control plane.
#[test]
fn snapshot_lists_controllers_and_queues() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let near = world.io_queue(0, admin, 1);
    let far = world.io_queue(1, admin, 2);
    let discovery = world.connect(1, &discovery_call());
    world.read_blocks(far, RAM, 0, 8);
    world
        .write(near, Sqe::write(RAM, 0, 0, false), &[0; 512])
        .ok();
    let snapshot = world.target.snapshot();
    let [io, disc] = &snapshot.controllers[..] else {
        panic!("two controllers")
    };
    assert_eq!(io.kind, ControllerKind::Io);
    assert_eq!(io.state, ControllerState::Ready);
    assert_eq!((&io.subsystem_nqn[..], &io.host_nqn[..]), (SUBSYSTEM, HOST));
    assert_eq!(
        (io.controller_id, io.admin_reactor),
        (admin.info.controller_id, 0)
    );
    let queues: Vec<_> = io
        .io_queues
        .iter()
        .map(|queue| (queue.qid, queue.reactor))
        .collect();
    assert_eq!(queues, [(1, 0), (2, 1)]);
    let read = IoTotals {
        reads: 1,
        bytes_read: 4096,
        ..IoTotals::default()
    };
    let written = IoTotals {
        writes: 1,
        bytes_written: 512,
        ..IoTotals::default()
    };
    assert_eq!(
        (io.io_queues[1].totals, io.io_queues[0].totals),
        (read, written)
    );
    let both = IoTotals {
        writes: 1,
        bytes_written: 512,
        ..read
    };
    assert_eq!((io.totals, snapshot.devices[0]), (both, both));
    assert_eq!(
        (disc.kind, disc.state),
        (ControllerKind::Discovery, ControllerState::Disabled)
    );
    assert_eq!(disc.controller_id, discovery.info.controller_id);
    assert_eq!(snapshot.queues_per_reactor, [2, 2]);
    world.close(far);
    let snapshot = world.target.snapshot();
    assert_eq!(snapshot.controllers[0].io_queues.len(), 1);
    assert_eq!(
        snapshot.controllers[0].totals, both,
        "what a closed queue moved is not lost"
    );
    let again = world.io_queue(1, admin, 3);
    let snapshot = world.target.snapshot();
    assert_eq!(
        snapshot.controllers[0].io_queues[1].totals,
        IoTotals::default()
    );
    world.close(again);
}

/// Many hosts connect and disconnect on all cores, and nothing is leaked.
#[test]
fn repeated_connects_and_disconnects_leak_nothing() {
    let mut world = World::new();
    for round in 0..50 {
        let admin = world.enabled(round % 2);
        let io: Vec<_> = (1..=4)
            .map(|qid| world.io_queue(usize::from(qid) % 2, admin, qid))
            .collect();
        for link in &io {
            world.read_blocks(*link, RAM, 0, 1);
        }
        if round % 3 == 0 {
            world.close(admin);
            world.settle();
            io.into_iter().for_each(|link| world.close(link));
        } else {
            io.into_iter().for_each(|link| world.close(link));
            world.close(admin);
        }
        world.settle();
        for node in 0..2 {
            world.closes(node);
        }
    }
    assert!(world.target.snapshot().controllers.is_empty());
    assert_eq!(world.leases(), 0);
    for node in &world.nodes {
        assert_eq!((node.core.queues(), node.core.in_flight()), (0, 0));
        assert_eq!(node.core.counters().stale_completions.get(), 0);
        assert_eq!(node.next_deadline(), None);
    }
}
