//! Commands whose identifier is that of an outstanding command on the same queue.
//!
//! A controller may choose how many commands it searches for a conflict (Base 2.1 §4.2.3.1, Command
//! Identifier Conflict). This target searches none: it identifies requests by the tags of their
//! transports. Both commands are executed, and each gets its own response.

use nvme_spec::command::{AbortResult, Cns};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};

use crate::harness::{HOLD, LATER, RAM, World};

const CID: u16 = 0x1234;

#[test]
fn io_commands_with_one_identifier_both_execute() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.fault.arm(HOLD, true);
    let one = Sqe::write(RAM, 0, 0, false).with_cid(CID);
    let one = one.with_sgl(SglDescriptor::transport(512));
    let other = Sqe::write(RAM, 8, 1, false).with_cid(CID);
    let other = other.with_sgl(SglDescriptor::transport(1024));
    let first = world.start(io, one, &[0xA1; 512]).expect_err("held");
    let second = world.start(io, other, &[0xB2; 1024]).expect_err("held");
    world.fault.arm(HOLD, false);
    world.fault.release();
    for tag in [second, first] {
        let reply = world.wait(io, tag);
        assert_eq!(reply.cqe.cid.get(), CID);
        reply.ok();
    }
    world.settle();
    assert!(world.take_reply(0, first).is_none() && world.take_reply(0, second).is_none());
    assert_eq!(world.read_blocks(io, RAM, 0, 1), [0xA1; 512]);
    assert_eq!(world.read_blocks(io, RAM, 8, 2), [0xB2; 1024]);
    assert_eq!(world.leases(), 0);
}

/// A refused command does not affect the earlier one.
#[test]
fn refusal_does_not_complete_another_command_with_its_cid() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.fault.arm(HOLD, true);
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    let waiting = world.start(io, read.with_cid(CID), &[]).expect_err("held");
    let refused = world.start(io, Sqe::new(0x7E, RAM).with_cid(CID), &[]);
    let refused = refused.expect("an answer at once");
    refused.is(Status::INVALID_OPCODE.with_dnr());
    world.settle();
    assert!(world.take_reply(0, waiting).is_none());
    world.fault.arm(HOLD, false);
    world.fault.release();
    assert_eq!(world.wait(io, waiting).ok(), [0; 512]);
}

/// Base 2.1 §5.1.1: an Abort aborts one command, and dword 0 of its completion refers to that one.
#[test]
fn abort_ends_one_of_two_commands_with_one_identifier() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let read = Sqe::read(RAM, 0, 0).with_cid(CID);
    let read = read.with_sgl(SglDescriptor::transport(512));
    world.fault.arm(LATER, true);
    let first = world.start(io, read, &[]).expect_err("put off");
    let second = world.start(io, read, &[]).expect_err("put off");
    let aborted = world.command(admin, Sqe::abort_command(1, CID));
    assert!(!AbortResult::from_bits(aborted.dw0()).not_aborted());
    world.fault.arm(LATER, false);
    let statuses = [first, second].map(|tag| world.wait(io, tag).status());
    let given_up = statuses.iter().filter(|it| it.is(Status::ABORT_REQUESTED));
    let done = statuses.iter().filter(|it| it.is_success());
    assert_eq!((given_up.count(), done.count()), (1, 1), "{statuses:?}");
    let again = world.command(admin, Sqe::abort_command(1, CID));
    assert!(AbortResult::from_bits(again.dw0()).not_aborted());
}

/// Event requests are identified by their tags: those with the same identifier each wait, and other
/// commands with it do not complete them.
#[test]
fn event_requests_outlast_commands_with_the_same_identifier() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let request = Sqe::async_event_request().with_cid(CID);
    let first = world.start(admin, request, &[]).expect_err("held");
    let second = world.start(admin, request, &[]).expect_err("held");
    let alive = world.start(admin, Sqe::keep_alive().with_cid(CID), &[]);
    alive.expect("an answer at once").ok();
    let identify = Sqe::identify_structure(Cns::CONTROLLER, 0).with_cid(CID);
    let identify = identify.with_sgl(SglDescriptor::transport(4096));
    let page = world
        .start(admin, identify, &[])
        .expect("an answer at once");
    assert_eq!(page.ok().len(), 4096);
    world.settle();
    assert!(world.take_reply(0, first).is_none() && world.take_reply(0, second).is_none());
    for tag in [first, second] {
        let aborted = world.command(admin, Sqe::abort_command(0, CID));
        assert!(!AbortResult::from_bits(aborted.dw0()).not_aborted());
        world.wait(admin, tag).is(Status::ABORT_REQUESTED);
    }
}
