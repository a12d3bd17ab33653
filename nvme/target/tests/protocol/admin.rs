//! Admin commands in general: opcodes, data pointers, Abort.

use nvme_spec::command::{
    AbortResult, AdminOpcode, Cns, FeatureId, Fuse, Identify, LogPageId, LogPageSelect,
};
use nvme_spec::log::ErrorEntry;
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use zerocopy::FromBytes;

use crate::harness::{HOLD, LATER, Link, RAM, Reply, World, discovery_call};

fn identify() -> Sqe {
    Sqe::identify_structure(Cns::CONTROLLER, 0)
}

fn abort(world: &mut World, admin: Link, sqid: u16, cid: u16) -> bool {
    let reply = world.command(admin, Sqe::abort_command(sqid, cid));
    assert!(reply.status().is_success());
    !AbortResult::from_bits(reply.dw0()).not_aborted()
}

/// Base 2.1 §4.2.3.1, Invalid Command Opcode: every unsupported opcode, including the creation of
/// queues over fabrics (Base 2.1 §3.1.3.4).
#[test]
fn unknown_opcodes_are_refused() {
    let known = [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
        AdminOpcode::FABRICS,
    ];
    let mut world = World::new();
    let admin = world.enabled(0);
    let discovery = world.enabled_by(0, &discovery_call());
    for opcode in (0..=0xff).filter(|opcode| !known.contains(&AdminOpcode(*opcode))) {
        for link in [admin, discovery] {
            world
                .command(link, Sqe::new(opcode, 0))
                .is(Status::INVALID_OPCODE.with_dnr());
        }
    }
    for fctype in (0..=0xff_u8).filter(|fctype| ![0, 1, 4, 8].contains(fctype)) {
        let sqe = Sqe::new(AdminOpcode::FABRICS.0, u32::from(fctype));
        world
            .command(admin, sqe)
            .is(Status::INVALID_OPCODE.with_dnr());
    }
}

/// Base 2.1 §4.1.1, FUSE: no admin command is part of a fused operation.
#[test]
fn fused_commands_are_refused() {
    let mut world = World::new();
    let admin = world.enabled(0);
    for fuse in [Fuse::FIRST, Fuse::SECOND, Fuse(3)] {
        let sqe = Sqe::keep_alive().with_fuse(fuse);
        world
            .command(admin, sqe)
            .is(Status::INVALID_FIELD.with_dnr());
    }
}

/// Base 2.1 §4.1.1, PSDT: over fabrics an SGL describes the data.
#[test]
fn prps_are_refused() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let reply = world.command(admin, identify().with_prp(0x1000, 0));
    reply.is(Status::INVALID_FIELD.with_dnr());
}

/// Base 2.1 §4.3.2: descriptors that the transport does not support or that describe no data.
#[test]
fn unsupported_sgl_descriptors_are_refused() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let bad = [
        SglDescriptor::data_block(0x1000, 4096),
        SglDescriptor::bit_bucket(4096),
        SglDescriptor::segment(0, 16),
        SglDescriptor::last_segment(0, 16),
        SglDescriptor::keyed(0x1000, 4096, 7, false).expect("short"),
        // Data for the host is never in the capsule.
        SglDescriptor::in_capsule(0, 4096),
        SglDescriptor::default(),
    ];
    for sgl in bad {
        let reply = world.command(admin, identify().with_sgl(sgl));
        reply.is(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
    }
}

/// Base 2.1 §4.2.3.1, Data SGL Length Invalid: a buffer that is too short. A longer one is valid.
#[test]
fn short_buffers_are_refused() {
    let mut world = World::new();
    let admin = world.enabled(0);
    for bytes in [0, 4, 4095] {
        let reply = world.read(admin, identify(), bytes);
        reply.is(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    assert_eq!(world.read(admin, identify(), 8192).ok().len(), 4096);
    let timestamp = Sqe::set_feature(FeatureId::TIMESTAMP, 0, 0);
    world
        .write(admin, timestamp, &[0; 7])
        .is(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    let reply = world.write(admin, timestamp, &[0; 4097]);
    reply.is(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
}

/// TCP 1.1 §3.3.1: the capsule of an admin command holds 8192 bytes of data.
#[test]
fn admin_in_capsule_data_is_limited_to_8192_bytes() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let timestamp = Sqe::set_feature(FeatureId::TIMESTAMP, 0, 0);
    let refusal = |world: &mut World, offset, length| {
        let sgl = SglDescriptor::in_capsule(offset, length);
        world.command(admin, timestamp.with_sgl(sgl)).status()
    };
    let length_invalid = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    let offset_invalid = Status::SGL_OFFSET_INVALID.with_dnr();
    assert_eq!(refusal(&mut world, 8185, 8), length_invalid);
    assert_eq!(refusal(&mut world, 0, 8193), length_invalid);
    assert_eq!(refusal(&mut world, 8193, 8), offset_invalid);
    assert_eq!(refusal(&mut world, u64::MAX, 8), offset_invalid);
    assert_eq!(refusal(&mut world, 1 << 32, 8), offset_invalid);
    let sgl = SglDescriptor::in_capsule(8184, 8);
    world.exchange(admin, timestamp.with_sgl(sgl), &[0; 8]).ok();
}

/// RDMA 1.1 §3.3: a transport with keys accepts only keyed descriptors.
#[test]
fn keyed_transport_accepts_only_keyed_descriptors() {
    let mut world = World::new();
    let call = crate::harness::ConnectOptions {
        rdma: true,
        ..Default::default()
    };
    let admin = world.enabled_by(0, &call);
    let keyed = SglDescriptor::keyed(0x1000, 4096, 7, true).expect("short");
    assert_eq!(
        world.command(admin, identify().with_sgl(keyed)).ok().len(),
        4096
    );
    let reply = world.read(admin, identify(), 4096);
    reply.is(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
}

/// Base 2.1 §8.1.28: there is no UUID list, so indices are invalid.
#[test]
fn nonzero_uuid_index_is_refused() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let mut view: Identify = identify().identify();
    view.uuid = view.uuid.with_uuid_index(1);
    let reply = world.read(admin, identify().with_identify(view), 4096);
    reply.is(Status::INVALID_FIELD.with_dnr());
}

/// Base 2.1 §5.1.1: Abort of a command that does not exist succeeds and reports that nothing was
/// aborted.
#[test]
fn abort_of_unknown_command_aborts_nothing() {
    let mut world = World::new();
    let (admin, _) = world.ready();
    for (sqid, cid) in [(0, 1), (1, 1), (2, 1), (0xffff, 0xffff)] {
        assert!(!abort(&mut world, admin, sqid, cid));
    }
}

/// Base 2.1 §5.1.1: an event request is aborted.
#[test]
fn an_event_request_is_aborted() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let sqe = Sqe::async_event_request().with_cid(40);
    let tag = world.start(admin, sqe, &[]).expect_err("held");
    assert!(abort(&mut world, admin, 0, 40));
    world.wait(admin, tag).is(Status::ABORT_REQUESTED);
    assert!(!abort(&mut world, admin, 0, 40));
}

/// Base 2.1 §5.1.1: a command that its device deferred is aborted, and a command in the device is
/// not.
#[test]
fn deferred_command_is_aborted() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    world.fault.arm(HOLD, true);
    let in_device = world
        .start(io, read.with_cid(1), &[])
        .expect_err("in the device");
    world.fault.arm(HOLD, false);
    world.fault.arm(LATER, true);
    let first = world.start(io, read.with_cid(2), &[]).expect_err("put off");
    let second = world.start(io, read.with_cid(3), &[]).expect_err("put off");
    assert!(!abort(&mut world, admin, 1, 1));
    assert!(abort(&mut world, admin, 1, 2));
    world.wait(io, first).is(Status::ABORT_REQUESTED);
    world.fault.arm(LATER, false);
    world.wait(io, second).ok();
    world.fault.release();
    world.wait(io, in_device).ok();
    assert!(!abort(&mut world, admin, 1, 3));
}

/// Base 2.1 §4.2.1, SQHD: the completion of an aborted command is sent after those of later commands
/// that complete inline in the same turn, and so has a later head.
#[test]
fn sqhd_of_an_aborted_command_does_not_go_back() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    world.fault.arm(LATER, true);
    let waiting = world.start(io, read.with_cid(2), &[]).expect_err("put off");
    assert!(abort(&mut world, admin, 1, 2));
    let invalid = Sqe::read(0xFFF0, 0, 0).with_sgl(SglDescriptor::transport(512));
    let inline: Vec<Reply> = (3..6)
        .map(|cid| world.start(io, invalid.with_cid(cid), &[]).expect("inline"))
        .collect();
    let aborted = world.gathered(io, waiting);
    aborted.is(Status::ABORT_REQUESTED);
    let sent = inline.iter().chain([&aborted]);
    let heads: Vec<u16> = sent.map(|it| it.cqe.sqhd.get()).collect();
    assert_eq!(heads, [2, 3, 4, 5]);
}

/// Base 2.1 §4.2.1, SQHD: the same for event requests that an Abort, an event or a reset completes.
#[test]
fn sqhd_of_event_requests_does_not_go_back() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let requests = [40, 41, 42].map(|cid| {
        let request = Sqe::async_event_request().with_cid(cid);
        world.start(admin, request, &[]).expect_err("held")
    });
    let mut sent = vec![world.command(admin, Sqe::abort_command(0, 40))];
    sent.push(world.command(admin, Sqe::keep_alive()));
    sent.push(world.gathered(admin, requests[0]));
    world.set_cc(admin, Cc::new());
    sent.push(world.command(admin, Sqe::keep_alive()));
    sent.extend([1, 2].map(|place| world.gathered(admin, requests[place])));
    for place in [2, 4, 5] {
        sent[place].is(Status::ABORT_REQUESTED);
    }
    let heads: Vec<u16> = sent.iter().map(|it| it.cqe.sqhd.get()).collect();
    let first = heads[0];
    // `set_cc` completes inline.
    let expected = [0, 1, 2, 4, 5, 6].map(|it| first + it);
    assert_eq!(heads, expected);
}

/// Base 2.1 §5.1.1: more than ACL + 1 concurrent Aborts exceed the limit and have no effect.
#[test]
fn aborts_beyond_acl_are_refused() {
    const LIMIT: usize = 4;
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.fault.arm(LATER, true);
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    let waiting: Vec<_> = (1..=9)
        .map(|cid| {
            world
                .start(io, read.with_cid(cid), &[])
                .expect_err("put off")
        })
        .collect();
    for (place, tag) in waiting.iter().enumerate() {
        let reply = world.command(admin, Sqe::abort_command(1, place as u16 + 1));
        if place < LIMIT {
            reply.ok();
            world.gathered(io, *tag).is(Status::ABORT_REQUESTED);
        } else {
            reply.is(Status::ABORT_LIMIT_EXCEEDED);
        }
    }
    // The responses are sent at the end of the turn.
    world.poll();
    assert!(abort(&mut world, admin, 1, 9));
    world.fault.arm(LATER, false);
    for tag in &waiting[LIMIT..8] {
        world.wait(io, *tag).ok();
    }
}

/// Base 2.1 §5.1.1: a command on another core is not aborted, nor one of another controller.
#[test]
fn abort_does_not_cross_cores_or_controllers() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let far = world.io_queue(1, admin, 1);
    let other = world.enabled(0);
    let near = world.io_queue(0, other, 2);
    world.fault.arm(LATER, true);
    let read = Sqe::read(RAM, 0, 0)
        .with_sgl(SglDescriptor::transport(512))
        .with_cid(9);
    let far_tag = world.start(far, read, &[]).expect_err("put off");
    let near_tag = world.start(near, read, &[]).expect_err("put off");
    assert!(!abort(&mut world, admin, 1, 9));
    assert!(!abort(&mut world, admin, 2, 9));
    world.fault.arm(LATER, false);
    world.wait(far, far_tag).ok();
    world.wait(near, near_tag).ok();
}

/// Base 2.1 §5.1.12.1.2: a failed command is logged with the location of the error.
#[test]
fn a_failed_command_is_logged() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let sqe = Sqe::log_page(0, LogPageSelect::new().with_lid(LogPageId(0xee)), 0).with_cid(0x123);
    let reply = world.start(admin, sqe, &[]).expect("answered");
    reply.is(Status::INVALID_LOG_PAGE.with_dnr());
    let log = world.log(admin, LogPageId::ERROR_INFORMATION, 128);
    let entries = <[ErrorEntry]>::ref_from_bytes(&log).expect("two entries");
    let entry = &entries[0];
    assert_eq!(entry.error_count.get(), 1);
    assert_eq!((entry.sqid.get(), entry.cid.get()), (0, 0x123));
    let status = Status::INVALID_LOG_PAGE.with_dnr().with_more(true);
    assert_eq!(entry.status.status(), status);
    assert_eq!(entry.location.byte(), 40);
    assert_eq!(
        (entry.opcode, entry.lpver),
        (AdminOpcode::GET_LOG_PAGE.0, 1)
    );
    assert_eq!(entries[1].error_count.get(), 0);
}
