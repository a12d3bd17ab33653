//! I/O commands (NVM 1.1 §3.3, Base 2.1 §7): refused ones, and the requests to devices.

use block::Operation;
use nvme_spec::command::{DatasetRange, Fuse, IoOpcode, LogPageId, ReadWrite, WriteZeroesControl};
use nvme_spec::fabrics::{FabricsType, PropertySize};
use nvme_spec::registers::Register;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::{Admission, DataSource, Direction, NamespaceConfig};
use zerocopy::IntoBytes;

use crate::harness::{
    CACHED, CACHED_BLOCKS, ConnectOptions, FAIL_INTERNAL, FAIL_MEDIA, HIGHEST, HOLD, IN_CAPSULE,
    LATER, Link, PLAIN, RAM, RAM_BLOCKS, READ_ONLY, SUBSYSTEM, TRANSFER_MAX, World, namespace,
};

const INVALID: Status = Status::INVALID_FIELD.with_dnr();
const OUT_OF_RANGE: Status = Status::LBA_OUT_OF_RANGE.with_dnr();
const PROTECTED: Status = Status::NAMESPACE_WRITE_PROTECTED.with_dnr();

/// Every I/O command on a namespace, with one block of 512 bytes or one range where it has data.
fn every_command(nsid: u32) -> [(Sqe, usize); 7] {
    [
        (Sqe::read(nsid, 0, 0), 512),
        (Sqe::write(nsid, 0, 0, false), 512),
        (Sqe::compare(nsid, 0, 0), 512),
        (Sqe::verify(nsid, 0, 0), 0),
        (Sqe::flush(nsid), 0),
        (
            Sqe::write_zeroes_range(nsid, 0, WriteZeroesControl::new()),
            0,
        ),
        (Sqe::deallocate(nsid, 0), 16),
    ]
}

fn send(world: &mut World, io: Link, sqe: Sqe, bytes: usize) -> Status {
    let sqe = if bytes > 0 {
        sqe.with_sgl(SglDescriptor::transport(bytes as u32))
    } else {
        sqe
    };
    world.exchange(io, sqe, &vec![0; bytes]).status()
}

fn deallocate(world: &mut World, io: Link, nsid: u32, ranges: &[(u64, u32)]) -> Status {
    let list: Vec<_> = ranges
        .iter()
        .map(|(lba, count)| DatasetRange::new(*lba, *count))
        .collect();
    let sqe = Sqe::deallocate(nsid, (ranges.len() - 1) as u8);
    world.write(io, sqe, list.as_bytes()).status()
}

/// Base 2.1 §4.2.3.1, Invalid Command Opcode.
#[test]
fn unknown_opcodes_are_refused() {
    let known = [
        0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x19, 0x7f,
    ];
    let mut world = World::new();
    let (_, io) = world.ready();
    for opcode in (0..=0xff).filter(|opcode| !known.contains(opcode)) {
        world
            .command(io, Sqe::new(opcode, RAM))
            .is(Status::INVALID_OPCODE.with_dnr());
    }
    for fctype in [
        FabricsType(2),
        FabricsType::AUTHENTICATION_SEND,
        FabricsType(0xff),
    ] {
        world
            .command(io, Sqe::fabrics(fctype))
            .is(Status::INVALID_OPCODE.with_dnr());
    }
    let get = Sqe::get_property(Register::CSTS.0, PropertySize::BYTES_4);
    world.command(io, get).is(Status::INVALID_OPCODE.with_dnr());
}

/// Base 2.1 §3.4.2: Compare and Write is the only fused operation.
#[test]
fn other_commands_are_not_fused() {
    let mut world = World::new();
    let (_, io) = world.ready();
    for (sqe, bytes) in every_command(RAM) {
        if sqe.io_opcode() != IoOpcode::COMPARE {
            assert_eq!(
                send(&mut world, io, sqe.with_fuse(Fuse::FIRST), bytes),
                INVALID
            );
        }
        assert_eq!(send(&mut world, io, sqe.with_fuse(Fuse(3)), bytes), INVALID);
    }
}

/// Base 2.1 §3.2.1.5: an identifier beyond NN is invalid, an inactive one is an invalid field.
#[test]
fn io_commands_check_the_namespace_identifier() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let no_namespace = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
    for nsid in [
        0,
        HIGHEST + 1,
        9999,
        1 << 31,
        NSID_BROADCAST - 1,
        NSID_BROADCAST,
    ] {
        for (sqe, bytes) in every_command(nsid) {
            if nsid == NSID_BROADCAST && sqe.io_opcode() == IoOpcode::FLUSH {
                continue;
            }
            assert_eq!(send(&mut world, io, sqe, bytes), no_namespace, "{nsid:#x}");
        }
    }
    for (sqe, bytes) in every_command(3) {
        assert_eq!(send(&mut world, io, sqe, bytes), INVALID);
    }
}

/// NVM 1.1 §3.2.1, LBA Out of Range: also where the sum overflows.
#[test]
fn lba_ranges_beyond_the_namespace_are_refused() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let bad = [
        (RAM_BLOCKS, 0),
        (RAM_BLOCKS - 1, 1),
        (u64::MAX, 0),
        (u64::MAX - 7, 7),
        (1 << 63, 0),
    ];
    for (lba, nlb_z) in bad {
        let bytes = (usize::from(nlb_z) + 1) * 512;
        let control = WriteZeroesControl::new().with_nlb_z(nlb_z);
        assert_eq!(
            send(&mut world, io, Sqe::read(RAM, lba, nlb_z), bytes),
            OUT_OF_RANGE
        );
        let write = Sqe::write(RAM, lba, nlb_z, false);
        assert_eq!(send(&mut world, io, write, bytes), OUT_OF_RANGE);
        assert_eq!(
            send(&mut world, io, Sqe::compare(RAM, lba, nlb_z), bytes),
            OUT_OF_RANGE
        );
        let zeroes = Sqe::write_zeroes_range(RAM, lba, control);
        assert_eq!(send(&mut world, io, zeroes, 0), OUT_OF_RANGE);
    }
    assert!(world.ram.take().is_empty(), "nothing reached the device");
    assert_eq!(
        send(&mut world, io, Sqe::read(RAM, RAM_BLOCKS - 1, 0), 512),
        Status::SUCCESS
    );
    let all = WriteZeroesControl::new().with_nlb_z((RAM_BLOCKS - 1) as u16);
    let zeroes = Sqe::write_zeroes_range(RAM, 0, all);
    assert_eq!(
        send(&mut world, io, zeroes, 0),
        Status::SUCCESS,
        "MDTS does not bound it"
    );
}

/// Base 2.1 §5.1.13.2.1, MDTS.
#[test]
fn transfers_beyond_mdts_are_refused() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let most = (TRANSFER_MAX / 512 - 1) as u16;
    assert_eq!(
        send(&mut world, io, Sqe::read(RAM, 0, most), TRANSFER_MAX),
        Status::SUCCESS
    );
    let write = Sqe::write(RAM, 0, most, false);
    assert_eq!(send(&mut world, io, write, TRANSFER_MAX), Status::SUCCESS);
    for sqe in [Sqe::read(RAM, 0, most + 1), Sqe::compare(RAM, 0, u16::MAX)] {
        assert_eq!(send(&mut world, io, sqe, TRANSFER_MAX), INVALID);
    }
}

/// Base 2.1 §4.2.3.1, Data SGL Length Invalid: the data of an I/O command is exactly its range.
#[test]
fn data_length_must_match_the_lba_range() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let length = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    for bytes in [1, 511, 513, 1024] {
        assert_eq!(send(&mut world, io, Sqe::read(RAM, 0, 0), bytes), length);
        assert_eq!(
            send(&mut world, io, Sqe::write(RAM, 0, 0, false), bytes),
            length
        );
        assert_eq!(send(&mut world, io, Sqe::compare(RAM, 0, 0), bytes), length);
    }
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(0));
    world.command(io, read).is(length);
    let none = Sqe::deallocate(RAM, 1);
    assert_eq!(send(&mut world, io, none, 31), length);
    assert_eq!(send(&mut world, io, none, 4112), length);
}

/// Base 2.1 §4.1.1 and §4.3.2: PRPs, unsupported descriptors, and in-capsule data.
#[test]
fn data_pointers_are_checked() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let write = Sqe::write(RAM, 0, 7, false);
    world.command(io, write.with_prp(0x1000, 0)).is(INVALID);
    let descriptor = Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr();
    world
        .command(io, write.with_sgl(SglDescriptor::data_block(0, 4096)))
        .is(descriptor);
    let keyed = SglDescriptor::keyed(0, 4096, 1, false).expect("short");
    world.command(io, write.with_sgl(keyed)).is(descriptor);
    let capsule = |offset| write.with_sgl(SglDescriptor::in_capsule(offset, 4096));
    let beyond = u64::from(IN_CAPSULE) - 4095;
    world
        .command(io, capsule(beyond))
        .is(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    let outside = u64::from(IN_CAPSULE) + 1;
    world
        .command(io, capsule(outside))
        .is(Status::SGL_OFFSET_INVALID.with_dnr());
    let read = Sqe::read(RAM, 0, 7).with_sgl(SglDescriptor::in_capsule(0, 4096));
    world.command(io, read).is(descriptor);
    let sqe = capsule(64).with_cid(1);
    let now = world.now;
    let Admission::Work(work) = world.nodes[0].core.admit(io.queue, 1, &sqe, now) else {
        panic!("a right command");
    };
    assert_eq!(work.source(), DataSource::InCapsule { offset: 64 });
    assert_eq!(
        (work.direction(), work.bytes(), work.command_id()),
        (Direction::FromHost, 4096, 1)
    );
    assert!(world.execute(io, 1, work, &[3; 4096]).is_none());
    world.wait(io, 1).ok();
}

/// RDMA 1.1 §3.3: keys are passed to the transport.
#[test]
fn keyed_descriptor_reaches_the_transport() {
    let mut world = World::new();
    let call = ConnectOptions {
        rdma: true,
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(0, &call);
    let cntlid = admin.info.controller_id;
    let io = world.connect(
        0,
        &ConnectOptions {
            cntlid,
            qid: 1,
            ..call
        },
    );
    let keyed = SglDescriptor::keyed(0x1234_5000, 512, 0x77, true).expect("short");
    let sqe = Sqe::read(RAM, 0, 0).with_sgl(keyed);
    let now = world.now;
    let Admission::Work(work) = world.nodes[0].core.admit(io.queue, 1, &sqe, now) else {
        panic!("a right command");
    };
    let (address, key, length, invalidate) = (0x1234_5000, 0x77, 512, true);
    assert_eq!(
        work.source(),
        DataSource::Keyed {
            address,
            key,
            length,
            invalidate
        }
    );
    assert!(!work.needs_lease(), "RAM lends its reads");
    assert!(world.execute(io, 1, work, &[]).is_none());
    assert_eq!(world.wait(io, 1).ok().len(), 512);
}

/// Base 2.1 §4.2.3.1, Namespace is Write Protected: exactly the commands that change the medium.
#[test]
fn read_only_namespace_refuses_modifying_commands() {
    let mut world = World::new();
    let (_, io) = world.ready();
    for (sqe, bytes) in every_command(READ_ONLY) {
        let expected = match sqe.io_opcode() {
            IoOpcode::READ | IoOpcode::COMPARE | IoOpcode::VERIFY | IoOpcode::FLUSH => {
                Status::SUCCESS
            }
            _ => PROTECTED,
        };
        assert_eq!(
            send(&mut world, io, sqe, bytes),
            expected,
            "{}",
            sqe.io_opcode()
        );
    }
}

/// A namespace can be read-only on a device that is not.
#[test]
fn namespace_can_be_read_only_on_a_writable_device() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let devices = world.devices();
    let read_only = NamespaceConfig {
        read_only: true,
        ..namespace(RAM, 0, &*devices[0])
    };
    world
        .target
        .update_namespaces(SUBSYSTEM, vec![read_only])
        .expect("right");
    world.settle();
    assert_eq!(
        send(&mut world, io, Sqe::write(RAM, 0, 0, false), 512),
        PROTECTED
    );
    assert_eq!(
        send(&mut world, io, Sqe::read(RAM, 0, 0), 512),
        Status::SUCCESS
    );
}

/// A read returns the written data, and a block that was never written reads as zeroes.
#[test]
fn read_returns_written_data() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let data: Vec<u8> = (0..4096_u32).map(|index| (index % 251) as u8).collect();
    world.write(io, Sqe::write(RAM, 8, 7, false), &data).ok();
    assert_eq!(world.read_blocks(io, RAM, 8, 8), data);
    assert_eq!(world.read_blocks(io, RAM, 16, 1), [0; 512]);
    assert_eq!(world.leases(), 0);
    let counters = world.nodes[0].core.counters();
    let totals = counters.devices[0].totals();
    assert_eq!((totals.writes, totals.bytes_written), (1, 4096));
    assert_eq!((totals.reads, totals.bytes_read), (2, 4608));
    let queue = &world.target.snapshot().controllers[0].io_queues[0];
    assert_eq!(queue.totals, totals);
}

/// NVM 1.1 §3.3.1.
#[test]
fn compare_fails_on_different_data() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world
        .write(io, Sqe::write(RAM, 0, 0, false), &[5; 512])
        .ok();
    world.write(io, Sqe::compare(RAM, 0, 0), &[5; 512]).ok();
    let reply = world.write(io, Sqe::compare(RAM, 0, 0), &[6; 512]);
    reply.is(Status::COMPARE_FAILURE.with_dnr());
    assert_eq!(world.leases(), 0);
}

/// NVM 1.1 §3.3.5: the device reads the blocks, and the host receives no data.
#[test]
fn verify_reads_without_data() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.ram.take();
    world.command(io, Sqe::verify(RAM, 8, 7)).ok();
    assert_eq!(world.ram.take(), [(Operation::Read, 8, 8)]);
    world.fault.arm(FAIL_MEDIA, true);
    let reply = world.command(io, Sqe::verify(RAM, 8, 0));
    reply.is(Status::UNRECOVERED_READ_ERROR);
    world.fault.arm(FAIL_MEDIA, false);
    let beyond = world.command(io, Sqe::verify(RAM, RAM_BLOCKS, 0));
    beyond.is(Status::LBA_OUT_OF_RANGE.with_dnr());
    let blocks = TRANSFER_MAX / 512;
    let too_long = world.command(io, Sqe::verify(RAM, 0, blocks as u16));
    too_long.is(Status::INVALID_FIELD.with_dnr());
    assert_eq!(world.leases(), 0);
}

/// NVM 1.1 §3.3.5: with FUA, what was verified is durable.
#[test]
fn verify_with_fua_flushes_what_it_read() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.cached.take();
    let mut sqe = Sqe::verify(CACHED, 0, 0);
    let mut range = sqe.read_write();
    range.control = range.control.with_fua(true);
    sqe = sqe.with_read_write(range);
    world.command(io, sqe).ok();
    let requests: Vec<_> = world.cached.take().iter().map(|it| it.0).collect();
    assert_eq!(requests, [Operation::Read, Operation::Flush]);
}

/// NVM 1.1 §3.3.8.
#[test]
fn write_zeroes_reaches_the_device() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world
        .write(io, Sqe::write(RAM, 0, 1, false), &[5; 1024])
        .ok();
    world.ram.take();
    let control = WriteZeroesControl::new().with_deac(true).with_fua(true);
    world
        .command(io, Sqe::write_zeroes_range(RAM, 0, control))
        .ok();
    let zeroes = |fua, deallocate| Operation::WriteZeroes { fua, deallocate };
    assert_eq!(
        world.ram.take(),
        [(zeroes(false, true), 0, 1)],
        "there is no cache to bypass"
    );
    assert_eq!(
        world.read_blocks(io, RAM, 0, 2),
        [[0; 512], [5; 512]].concat()
    );
    world
        .command(io, Sqe::write_zeroes_range(CACHED, 3, control))
        .ok();
    assert_eq!(world.cached.take(), [(zeroes(true, true), 3, 1)]);
    // A device that cannot deallocate is not requested to.
    world
        .command(io, Sqe::write_zeroes_range(PLAIN, 0, control))
        .ok();
    let control = WriteZeroesControl::new().with_nsz(true);
    world
        .command(io, Sqe::write_zeroes_range(RAM, 0, control))
        .is(INVALID);
    let control = WriteZeroesControl::new().with_cetype(1);
    world
        .command(io, Sqe::write_zeroes_range(RAM, 0, control))
        .is(INVALID);
}

/// NVM 1.1 §3.3.4, §3.3.6: command extensions and directives are not supported.
#[test]
fn command_extensions_and_directives_are_refused() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let mut view = ReadWrite::new(0, 0);
    view.control = view.control.with_cetype(1);
    let read = Sqe::read(RAM, 0, 0).with_read_write(view);
    assert_eq!(send(&mut world, io, read, 512), INVALID);
    let mut view = ReadWrite::new(0, 0);
    view.control = view.control.with_dtype(1);
    let write = Sqe::write(RAM, 0, 0, false).with_read_write(view);
    assert_eq!(send(&mut world, io, write, 512), INVALID);
}

/// Base 2.1 §7.2: a Flush flushes the cache, and has no effect without one.
#[test]
fn flush_reaches_the_caches() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let flushed = [(Operation::Flush, 0, 0)];
    world.command(io, Sqe::flush(RAM)).ok();
    assert!(world.ram.take().is_empty());
    world.command(io, Sqe::flush(CACHED)).ok();
    assert_eq!(world.cached.take(), flushed);
    world.command(io, Sqe::flush(NSID_BROADCAST)).ok();
    assert_eq!(world.cached.take(), flushed);
    assert!(world.ram.take().is_empty());
    world.cached_fault.arm(FAIL_INTERNAL, true);
    world
        .command(io, Sqe::flush(CACHED))
        .is(Status::INTERNAL_ERROR);
    world
        .command(io, Sqe::flush(NSID_BROADCAST))
        .is(Status::INTERNAL_ERROR);
}

/// Base 2.1 §7.2: all namespaces are flushed even if one of them fails.
#[test]
fn a_broadcast_flush_reaches_every_cache() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let devices = world.devices();
    let mut both = vec![namespace(1, 0, &*devices[0]), namespace(2, 1, &*devices[1])];
    both[0].geometry.volatile_write_cache = true;
    world
        .target
        .update_namespaces(SUBSYSTEM, both)
        .expect("right");
    world.settle();
    let flushed = [(Operation::Flush, 0, 0)];
    world.command(io, Sqe::flush(NSID_BROADCAST)).ok();
    assert_eq!(
        (&world.ram.take()[..], &world.cached.take()[..]),
        (&flushed[..], &flushed[..])
    );
    world.fault.arm(FAIL_INTERNAL, true);
    world
        .command(io, Sqe::flush(NSID_BROADCAST))
        .is(Status::INTERNAL_ERROR);
    assert_eq!(world.cached.take(), flushed);
}

/// NVM 1.1 §3.3.4, §3.3.6, FUA: a write is durable, and a read returns durable data.
#[test]
fn force_unit_access_reaches_the_device() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let write = Sqe::write(CACHED, 1, 0, true);
    world.write(io, write, &[1; 4096]).ok();
    assert_eq!(
        world.cached.take(),
        [(Operation::Write { fua: true }, 1, 1)]
    );
    let mut view = ReadWrite::new(1, 0);
    view.control = view.control.with_fua(true);
    let read = Sqe::read(CACHED, 1, 0).with_read_write(view);
    assert_eq!(world.read(io, read, 4096).ok(), [1; 4096]);
    assert_eq!(
        world.cached.take(),
        [(Operation::Read, 1, 1), (Operation::Flush, 0, 0)],
        "a write that comes between the two is not answered as durable"
    );
    let read = Sqe::read(RAM, 1, 0).with_read_write(view);
    world.read(io, read, 512).ok();
    assert_eq!(world.ram.take(), [(Operation::Read, 1, 1)]);
    world.cached_fault.arm(FAIL_INTERNAL, true);
    let read = Sqe::read(CACHED, 1, 0).with_read_write(view);
    world.read(io, read, 4096).is(Status::INTERNAL_ERROR);
    assert!(
        world.cached.take().is_empty(),
        "after a failed read there is no flush"
    );
}

/// NVM 1.1 §3.3.3: every range is deallocated; empty ones are skipped.
#[test]
fn ranges_are_deallocated() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world
        .write(io, Sqe::write(RAM, 0, 31, false), &[5; 32 * 512])
        .ok();
    world.ram.take();
    let ranges = [(0, 8), (100, 0), (16, 8), (RAM_BLOCKS, 0)];
    assert_eq!(deallocate(&mut world, io, RAM, &ranges), Status::SUCCESS);
    let asked = [
        (Operation::Deallocate, 0, 8),
        (Operation::Deallocate, 16, 8),
    ];
    assert_eq!(world.ram.take(), asked);
    assert_eq!(world.read_blocks(io, RAM, 0, 8), [0; 4096]);
    assert_eq!(world.read_blocks(io, RAM, 8, 8), [5; 4096]);
    assert_eq!(
        deallocate(&mut world, io, RAM, &[(5, 0)]),
        Status::SUCCESS,
        "nothing at all"
    );
    world.ram.take();
    let most: Vec<_> = (0..256).map(|index| (index, 1)).collect();
    assert_eq!(deallocate(&mut world, io, RAM, &most), Status::SUCCESS);
    assert_eq!(world.ram.take().len(), 256);
    assert_eq!(world.leases(), 0);
}

/// NVM 1.1 §3.3.3: if one range is invalid, none is deallocated.
#[test]
fn invalid_range_prevents_all_deallocation() {
    let mut world = World::new();
    let (_, io) = world.ready();
    for bad in [
        (RAM_BLOCKS, 1),
        (RAM_BLOCKS - 1, 2),
        (u64::MAX, 1),
        (0, u32::MAX),
    ] {
        let ranges = [(0, 8), bad];
        assert_eq!(deallocate(&mut world, io, RAM, &ranges), OUT_OF_RANGE);
    }
    assert!(world.ram.take().is_empty());
    assert_eq!(world.leases(), 0);
}

/// NVM 1.1 §3.3.3: the other attributes are hints, and so is deallocation where it is not
/// supported. Linux sends a buffer for 256 ranges whatever their number.
#[test]
fn dataset_management_hints_succeed() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let mut view = Sqe::deallocate(RAM, 0).dataset_management();
    view.attributes = view.attributes.with_ad(false).with_idw(true);
    let sqe = Sqe::deallocate(RAM, 0).with_dataset_management(view);
    world.write(io, sqe, &[0xff; 16]).ok();
    assert!(world.ram.take().is_empty());
    assert_eq!(
        deallocate(&mut world, io, PLAIN, &[(0, 8)]),
        Status::SUCCESS
    );
    let mut list = DatasetRange::new(4, 4).as_bytes().to_vec();
    list.resize(4096, 0xee);
    world.write(io, Sqe::deallocate(RAM, 0), &list).ok();
    assert_eq!(world.ram.take(), [(Operation::Deallocate, 4, 4)]);
}

/// A range that fails ends the command; later ranges are not deallocated.
#[test]
fn a_failing_range_ends_the_command() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.fault.arm(FAIL_MEDIA, true);
    let status = deallocate(&mut world, io, RAM, &[(0, 8), (16, 8)]);
    assert_eq!(status, Status::UNRECOVERED_READ_ERROR);
    assert!(world.ram.take().is_empty());
    assert_eq!(world.leases(), 0);
}

/// Each device error gets its status, and the lease is returned.
#[test]
fn device_errors_are_mapped_to_statuses() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.fault.arm(FAIL_INTERNAL, true);
    assert_eq!(
        send(&mut world, io, Sqe::write(RAM, 0, 0, false), 512),
        Status::INTERNAL_ERROR
    );
    world.fault.arm(FAIL_INTERNAL, false);
    world.fault.arm(FAIL_MEDIA, true);
    assert_eq!(
        send(&mut world, io, Sqe::read(RAM, 0, 0), 512),
        Status::UNRECOVERED_READ_ERROR
    );
    world.fault.arm(FAIL_MEDIA, false);
    world.fault.remove();
    assert_eq!(
        send(&mut world, io, Sqe::read(RAM, 0, 0), 512),
        Status::INTERNAL_PATH_ERROR
    );
    assert_eq!(
        send(&mut world, io, Sqe::write(RAM, 0, 0, false), 512),
        Status::INTERNAL_PATH_ERROR
    );
    assert_eq!(
        send(&mut world, io, Sqe::read(CACHED, 0, 0), 4096),
        Status::SUCCESS
    );
    assert_eq!(world.leases(), 0);
    assert_eq!(world.nodes[0].core.counters().devices[0].errors.get(), 4);
    world.log(admin, LogPageId::ERROR_INFORMATION, 64);
}

/// Requests that a device defers wait in order and are retried.
#[test]
fn deferred_requests_wait_in_order() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.fault.arm(LATER, true);
    let write = |lba| Sqe::write(RAM, lba, 0, false).with_sgl(SglDescriptor::transport(512));
    let tags: Vec<_> = (0..5)
        .map(|lba| {
            let sqe = write(lba).with_cid(lba as u16);
            world
                .start(io, sqe, &[lba as u8; 512])
                .expect_err("put off")
        })
        .collect();
    world.settle();
    assert_eq!(world.nodes[0].core.in_flight(), 5);
    assert!(!world.nodes[0].core.has_ready());
    assert!(
        world.nodes[0].next_deadline().is_some(),
        "it is tried again soon"
    );
    let other = world.read(io, Sqe::read(CACHED, 0, 0), 4096);
    assert!(
        other.status().is_success(),
        "another device's commands pass"
    );
    world.fault.arm(LATER, false);
    let late = world
        .start(io, write(5).with_cid(5), &[5; 512])
        .expect_err("behind the others");
    assert!(world.ram.take().is_empty());
    world.settle();
    let lbas: Vec<_> = world
        .ram
        .take()
        .into_iter()
        .map(|(_, lba, _)| lba)
        .collect();
    assert_eq!(lbas, [0, 1, 2, 3, 4, 5]);
    for tag in tags.into_iter().chain([late]) {
        world.wait(io, tag).ok();
    }
    assert_eq!((world.leases(), world.nodes[0].core.in_flight()), (0, 0));
    assert_eq!(world.nodes[0].core.counters().deferred.get(), 6);
}

/// Closing a queue drops its waiting requests, and requests in the device complete later.
#[test]
fn closed_queue_releases_its_requests() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let write = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    world.fault.arm(HOLD, true);
    let held = world
        .start(io, write.with_cid(1), &[1; 512])
        .expect_err("in the device");
    world.fault.arm(HOLD, false);
    world.fault.arm(LATER, true);
    let parked = world
        .start(io, write.with_cid(2), &[2; 512])
        .expect_err("put off");
    assert_eq!(world.leases(), 2);
    world.close(io);
    assert_eq!(world.leases(), 1, "what waited in line is dropped at once");
    assert_eq!(world.nodes[0].core.counters().orphaned.get(), 1);
    let again = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..ConnectOptions::default()
    };
    let refused = world
        .try_connect(0, &again)
        .expect_err("its last write is in the device");
    assert_eq!(refused.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    world.fault.release();
    world.settle();
    assert_eq!((world.leases(), world.nodes[0].core.in_flight()), (0, 0));
    assert!(world.take_reply(0, held).is_none() && world.take_reply(0, parked).is_none());
    world.fault.arm(LATER, false);
    let io = world.connect(0, &again);
    let data = world.read_blocks(io, RAM, 0, 1);
    assert_eq!(data, [1; 512], "only the held write was carried out");
}

/// Completions that were not taken before their queue was closed are dropped.
#[test]
fn closed_queue_receives_no_completions() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let read = Sqe::read(RAM, 0, 0)
        .with_sgl(SglDescriptor::transport(512))
        .with_cid(1);
    let tag = world.start(io, read, &[]).expect_err("in the device");
    world.settle();
    assert!(world.nodes[0].core.has_ready());
    world.close(io);
    assert!(world.take_reply(0, tag).is_none());
    let stale = world.command(io, Sqe::flush(RAM));
    stale.is(Status::ABORTED_SQ_DELETION);
    world.close(io);
    assert_eq!(world.nodes[0].core.counters().stale_queues.get(), 2);
}

/// If a namespace is removed while a command's data is being fetched, the command fails.
#[test]
fn namespace_removal_fails_a_write_whose_data_is_fetched() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let admit = |world: &mut World, tag| {
        let write = Sqe::write(RAM, RAM_BLOCKS - 1, 0, false);
        let write = write.with_sgl(SglDescriptor::transport(512));
        let now = world.now;
        match world.nodes[0].core.admit(io.queue, tag, &write, now) {
            Admission::Work(work) => work,
            other => panic!("{other:?}"),
        }
    };
    let devices: Vec<_> = world.devices();
    let whole = namespace(RAM, 0, &*devices[0]);
    let mut smaller = whole.clone();
    smaller.geometry.block_count -= 1;
    let moved = namespace(RAM, 3, &*devices[3]);
    let read_only = NamespaceConfig {
        read_only: true,
        ..whole.clone()
    };
    let no_namespace = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
    let changes = [
        (vec![smaller], OUT_OF_RANGE),
        (vec![moved], no_namespace),
        (vec![read_only], PROTECTED),
        (vec![], INVALID),
    ];
    for (namespaces, expected) in changes {
        let work = admit(&mut world, 1);
        world
            .target
            .update_namespaces(SUBSYSTEM, namespaces)
            .expect("right");
        world.settle();
        world
            .execute(io, 1, work, &[9; 512])
            .expect("answered at once")
            .is(expected);
        world
            .target
            .update_namespaces(SUBSYSTEM, vec![whole.clone()])
            .expect("right");
        world.settle();
    }
    let work = admit(&mut world, 2);
    let grown = vec![whole.clone(), namespace(7, 1, &*devices[1])];
    world
        .target
        .update_namespaces(SUBSYSTEM, grown)
        .expect("right");
    world.settle();
    assert!(world.execute(io, 2, work, &[9; 512]).is_none());
    world.wait(io, 2).ok();
    assert_eq!(world.leases(), 0);
}

/// Added namespaces can be used immediately on every queue.
#[test]
fn added_namespace_is_usable_immediately() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let devices = world.devices();
    let grown = vec![
        namespace(RAM, 0, &*devices[0]),
        namespace(9, 1, &*devices[1]),
    ];
    world
        .target
        .update_namespaces(SUBSYSTEM, grown)
        .expect("right");
    world.settle();
    let last = CACHED_BLOCKS - 1;
    assert_eq!(
        send(&mut world, io, Sqe::read(9, last, 0), 4096),
        Status::SUCCESS
    );
    assert_eq!(send(&mut world, io, Sqe::read(CACHED, 0, 0), 4096), INVALID);
}

/// NVM 1.1 §4.1.5.4, WZSL: a longer Write Zeroes is Invalid Field. With 512-byte blocks the field
/// NLB is the lower limit.
#[test]
fn write_zeroes_are_bounded_by_wzsl() {
    use block::{NullDevice, NullOptions, QueueOptions};
    const LONG: u32 = 9;
    let blocks_max = (32 << 20) / 4096;
    let mut world = World::new();
    let null = NullDevice::new(NullOptions {
        name: "long".to_owned(),
        uuid: [4; 16],
        size_bytes: 1 << 30,
        block_size: 4096,
    });
    let null: std::sync::Arc<dyn block::Device> = std::sync::Arc::new(null.expect("a device"));
    let place = world.target.add_device(std::sync::Arc::clone(&null));
    let place = place.expect("room");
    for (core, node) in world.nodes.iter_mut().enumerate() {
        let pool = node.pool.clone();
        let depth = 16;
        let options = QueueOptions::new(core, depth, pool);
        let attached = node.attach(usize::from(place.0), &*null, options);
        attached.expect("a queue");
    }
    let mut served = crate::harness::config(&world.devices()).subsystems;
    served.retain(|subsystem| subsystem.nqn == crate::harness::SUBSYSTEM);
    let mut namespaces = served.pop().expect("it is there").namespaces;
    namespaces.push(crate::harness::namespace(LONG, place.0, &*null));
    let changed = world
        .target
        .update_namespaces(crate::harness::SUBSYSTEM, namespaces);
    changed.expect("a right change");
    world.settle();
    let (_, io) = world.ready();
    let zeroes = |blocks: u32| {
        let control = WriteZeroesControl::new().with_nlb_z((blocks - 1) as u16);
        Sqe::write_zeroes_range(LONG, 0, control)
    };
    world.command(io, zeroes(blocks_max)).ok();
    for blocks in [blocks_max + 1, 1 << 16] {
        let refused = world.command(io, zeroes(blocks));
        refused.is(Status::INVALID_FIELD.with_dnr());
    }
}
