//! Requests of an ended association: the host's next controller, and its other ones, wait for them,
//! so that no old write takes effect after a newer one was acknowledged.

use nvme_spec::command::WriteZeroesControl;
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use nvme_target::{Admission, ControllerState};
use reactors::Nanos;

use crate::harness::{CLOSED_SUBSYSTEM, ConnectOptions, HOLD, Link, PLAIN, RAM, World};

/// Starts a write of one block. Each byte is its command identifier.
fn begin_write(world: &mut World, io: Link, nsid: u32, cid: u16) -> u64 {
    let sqe = Sqe::write(nsid, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    world
        .start(io, sqe.with_cid(cid), &[cid as u8; 512])
        .expect_err("it takes time")
}

/// Starts such a write to [`RAM`], which the device holds until it is released; later requests
/// pass.
fn begin_stuck_write(world: &mut World, io: Link) {
    world.fault.arm(HOLD, true);
    begin_write(world, io, RAM, 1);
    world.fault.arm(HOLD, false);
}

/// A controller of the usual host on `node`, with an I/O queue there.
fn path(world: &mut World, node: usize) -> (Link, Link) {
    let admin = world.enabled(node);
    (admin, world.io_queue(node, admin, 1))
}

/// Base 2.1 §3.5.1, CSTS.RDY: a controller is not ready while a device of another core has a write
/// of an earlier association of its host; other hosts and other subsystems do not wait.
#[test]
fn new_controller_is_not_ready_until_orphans_complete() {
    let mut world = World::new();
    let (admin, far) = path(&mut world, 1);
    begin_stuck_write(&mut world, far);
    world.close(admin);
    let again = world.connect(0, &ConnectOptions::default());
    world.set_cc(again, Cc::enabled_nvm());
    assert!(!world.csts(again).rdy(), "the queue is still there");
    world.close(far);
    world.settle();
    assert!(!world.csts(again).rdy(), "its write is still in the device");
    let states: Vec<_> = world.target.snapshot().controllers;
    assert!(
        states
            .iter()
            .any(|it| it.state == ControllerState::Enabling)
    );
    let cntlid = again.info.controller_id;
    let early = ConnectOptions {
        cntlid,
        qid: 1,
        ..ConnectOptions::default()
    };
    let refused = world.try_connect(0, &early).expect_err("not ready");
    assert_eq!(refused.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    world.enabled_by(
        0,
        &ConnectOptions {
            host_id: [0x22; 16],
            ..ConnectOptions::default()
        },
    );
    world.enabled_by(
        0,
        &ConnectOptions {
            subsystem: CLOSED_SUBSYSTEM,
            ..ConnectOptions::default()
        },
    );
    world.fault.release();
    world.settle();
    assert!(world.csts(again).rdy());
    let io = world.io_queue(0, again, 1);
    world
        .write(io, Sqe::write(RAM, 0, 0, false), &[2; 512])
        .ok();
    world.settle();
    assert_eq!(world.read_blocks(io, RAM, 0, 1), [2; 512]);
}

/// Base 2.1 §5.1.13.2.1, CQT: requests that a device does not complete are ended by force on every
/// core, and the host's next controller does not wait longer.
#[test]
fn stuck_device_request_delays_a_new_controller_at_most_cqt() {
    let mut world = World::new();
    let (admin, far) = path(&mut world, 1);
    begin_stuck_write(&mut world, far);
    world.close(far);
    world.close(admin);
    assert_eq!(
        world.nodes[1].next_deadline(),
        Some(world.now + block::GIVEN_UP_MAX)
    );
    let again = world.connect(0, &ConnectOptions::default());
    world.set_cc(again, Cc::enabled_nvm());
    world.advance(block::GIVEN_UP_MAX - Nanos::from_secs(1));
    world.settle();
    assert!(!world.csts(again).rdy());
    world.advance(Nanos::from_secs(2));
    world.settle();
    assert!(world.csts(again).rdy());
    assert_eq!(world.nodes[1].next_deadline(), None);
    let io = world.io_queue(0, again, 1);
    world
        .write(io, Sqe::write(RAM, 0, 0, false), &[2; 512])
        .ok();
    assert_eq!(world.read_blocks(io, RAM, 0, 1), [2; 512]);
}

/// A host may disable its controller or disconnect while the controller waits.
#[test]
fn controller_waiting_for_orphans_can_be_disabled_or_shut_down() {
    let mut world = World::new();
    let (admin, io) = path(&mut world, 0);
    world.fault.arm(HOLD, true);
    begin_write(&mut world, io, RAM, 1);
    world.close(io);
    world.close(admin);
    let again = world.connect(1, &ConnectOptions::default());
    world.set_cc(again, Cc::enabled_nvm());
    world.set_cc(again, Cc::new());
    assert!(!world.csts(again).rdy());
    world.set_cc(again, Cc::enabled_nvm());
    assert!(!world.csts(again).rdy());
    let closed = world.connect(1, &ConnectOptions::default());
    world.set_cc(closed, Cc::enabled_nvm());
    world.close(closed);
    world.fault.release();
    world.settle();
    assert!(world.csts(again).rdy());
    world.close(again);
    world.settle();
    assert!(world.target.snapshot().controllers.is_empty());
}

/// A write that waits in RAM for another host's borrow is cancelled with its queue: it neither
/// delays the host's next controller nor takes effect when the borrow ends.
#[test]
fn queued_device_write_is_cancelled_with_its_queue() {
    let mut world = World::new();
    let reader = world.enabled_by(
        0,
        &ConnectOptions {
            host_id: [0x22; 16],
            ..ConnectOptions::default()
        },
    );
    let cntlid = reader.info.controller_id;
    let reading = world.connect(
        0,
        &ConnectOptions {
            host_id: [0x22; 16],
            cntlid,
            qid: 1,
            ..ConnectOptions::default()
        },
    );
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let core = &mut world.nodes[0].core;
    let borrow = core
        .complete_inline(reading.queue, &read.with_cid(1), None, now)
        .expect("nothing is in the way");
    let (admin, io) = path(&mut world, 1);
    begin_write(&mut world, io, PLAIN, 1);
    world.settle();
    let leases = world.leases();
    world.close(io);
    world.close(admin);
    world.settle();
    assert_eq!(world.leases(), leases - 1, "its data comes home");
    let again = world.enabled(0);
    let io = world.io_queue(0, again, 1);
    let newer = begin_write(&mut world, io, PLAIN, 2);
    drop(borrow);
    world.wait(io, newer).ok();
    world.settle();
    assert_eq!(world.read_blocks(io, PLAIN, 0, 1), [2; 512]);
}

/// A connected controller holds back only commands that change data while a device has a write of
/// the other path.
#[test]
fn writes_on_another_path_wait_for_orphans() {
    let mut world = World::new();
    let (first_admin, first) = path(&mut world, 0);
    let (admin, second) = path(&mut world, 1);
    begin_stuck_write(&mut world, first);
    // Commands from before the end of the association continue.
    world
        .write(second, Sqe::write(RAM, 8, 0, false), &[9; 512])
        .ok();
    world.close(first);
    world.close(first_admin);
    let newer = begin_write(&mut world, second, RAM, 2);
    let zeroes = Sqe::write_zeroes_range(PLAIN, 0, WriteZeroesControl::new()).with_cid(3);
    let zeroes = world.start(second, zeroes, &[]).expect_err("held back");
    world.settle();
    assert!(world.take_reply(1, newer).is_none() && world.take_reply(1, zeroes).is_none());
    assert_eq!(world.read_blocks(second, RAM, 8, 1), [9; 512]);
    assert_eq!(world.read_blocks(second, PLAIN, 0, 1), [0; 512]);
    world.command(second, Sqe::flush(RAM)).ok();
    world.command(admin, Sqe::keep_alive()).ok();
    world.fault.release();
    world.settle();
    world.wait(second, newer).ok();
    world.wait(second, zeroes).ok();
    assert_eq!(world.read_blocks(second, RAM, 0, 1), [2; 512]);
    // The fence is lifted: writes execute immediately.
    world
        .write(second, Sqe::write(RAM, 0, 0, false), &[3; 512])
        .ok();
    for node in &world.nodes {
        assert_eq!(node.core.in_flight(), 0);
        assert_eq!(node.next_deadline(), None);
    }
}

/// A write whose data arrives after the end of the other path's association is held back too, and
/// is not placed directly.
#[test]
fn write_data_received_after_the_fence_is_held_back() {
    let mut world = World::new();
    let (first_admin, first) = path(&mut world, 0);
    let (_, second) = path(&mut world, 1);
    begin_stuck_write(&mut world, first);
    let sqe = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let core = &mut world.nodes[1].core;
    let admission = core.admit(second.queue, 900, &sqe.with_cid(2), now);
    let Admission::Work(mut work) = admission else {
        panic!("{admission:?}")
    };
    world.close(first_admin);
    let core = &mut world.nodes[1].core;
    let in_capsule = Sqe::write(PLAIN, 0, 0, false).with_sgl(SglDescriptor::in_capsule(0, 512));
    let inline = core.complete_inline(second.queue, &in_capsule.with_cid(3), Some(&[3; 512]), now);
    assert!(inline.is_none());
    assert!(!core.place_directly(second.queue, &mut work, 512, &mut |_| panic!("filled")));
    assert!(world.execute(second, 900, work, &[2; 512]).is_none());
    world.settle();
    assert!(
        world.take_reply(1, 900).is_none(),
        "the queue is still there"
    );
    world.close(first);
    world.fault.release();
    world.settle();
    world.wait(second, 900).ok();
    assert_eq!(world.read_blocks(second, RAM, 0, 1), [2; 512]);
}

/// A reset and a lost connection also leave orphans, for which the other path waits.
#[test]
fn resets_and_lost_connections_fence_the_other_path() {
    for reset in [false, true] {
        let mut world = World::new();
        let (first_admin, first) = path(&mut world, 0);
        let (_, second) = path(&mut world, 1);
        begin_stuck_write(&mut world, first);
        if reset {
            world.set_cc(first_admin, Cc::new());
        } else {
            world.close(first);
        }
        let newer = begin_write(&mut world, second, RAM, 2);
        world.settle();
        assert!(world.take_reply(1, newer).is_none(), "reset: {reset}");
        if reset {
            world.close(first);
        }
        world.fault.release();
        world.settle();
        world.wait(second, newer).ok();
        assert_eq!(world.read_blocks(second, RAM, 0, 1), [2; 512]);
    }
}

/// Base 2.1 §5.1.1: a command that a fence holds back can be aborted, and its connection may close.
#[test]
fn fenced_command_can_be_aborted() {
    let mut world = World::new();
    let (first_admin, first) = path(&mut world, 0);
    let (admin, second) = path(&mut world, 1);
    begin_stuck_write(&mut world, first);
    world.close(first);
    world.close(first_admin);
    let aborted = begin_write(&mut world, second, RAM, 2);
    begin_write(&mut world, second, RAM, 3);
    world.command(admin, Sqe::abort_command(1, 2)).ok();
    world.wait(second, aborted).is(Status::ABORT_REQUESTED);
    world.close(second);
    world.close(admin);
    world.fault.release();
    world.settle();
    assert_eq!(world.leases(), 0);
    assert!(world.target.snapshot().controllers.is_empty());
    let (_, io) = path(&mut world, 0);
    assert_eq!(world.read_blocks(io, RAM, 0, 1), [1; 512]);
}
