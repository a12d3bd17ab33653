//! Copy within a namespace (NVM 1.1 §3.3.2): invalid input, results on all cores, and everything that
//! may happen between its reads and its write.

mod across;
mod by_drive;
mod in_device;

use std::collections::BTreeMap;

use block::Operation;
use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, RegisterAction, RegisterControl, RegisterData,
    ReservationAcquire, ReservationRegister, ReservationType,
};
use nvme_spec::command::{Cns, CopyFormat, CopyRange, FeatureId, Fuse, IoOpcode, ProtectionInfo};
use nvme_spec::identify::{Cdfs, IdentifyController, IdentifyNamespace};
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status, U64};
use nvme_target::{AnaPath, AnaState};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::harness::{
    CACHED, ConnectOptions, FAIL_MEDIA, HOLD, LATER, Link, PLAIN, RAM, RAM_BLOCKS, READ_ONLY,
    Reply, SUBSYSTEM, TCP_PORT, TRANSFER_MAX, World,
};

const INVALID: Status = Status::INVALID_FIELD.with_dnr();
const TOO_LARGE: Status = Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr();
const OUT_OF_RANGE: Status = Status::LBA_OUT_OF_RANGE.with_dnr();
const WRONG_LENGTH: Status = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
const PROTECTED: Status = Status::NAMESPACE_WRITE_PROTECTED.with_dnr();
const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();

/// Most blocks of a Copy on the namespace RAM.
const MAX: u16 = (TRANSFER_MAX / 512) as u16;
/// First block of the destination of most copies.
const TO: u64 = 100;

/// A source range: first block and number of blocks.
type Source = (u64, u16);

fn block_bytes(nsid: u32) -> usize {
    if nsid == CACHED { 4096 } else { 512 }
}

fn list(sources: &[Source]) -> Vec<u8> {
    let ranges = sources
        .iter()
        .map(|(lba, blocks)| CopyRange::new(*lba, blocks - 1));
    ranges.collect::<Vec<_>>().as_bytes().to_vec()
}

fn copy(nsid: u32, to: u64, ranges: usize) -> Sqe {
    let sgl = SglDescriptor::transport(32 * ranges as u32);
    Sqe::copy_ranges(nsid, to, (ranges - 1) as u8).with_sgl(sgl)
}

/// Starts a Copy whose first read takes a turn.
#[track_caller]
fn begin(world: &mut World, io: Link, nsid: u32, sources: &[Source], to: u64) -> u64 {
    let sqe = copy(nsid, to, sources.len()).with_cid(world.cid());
    let started = world.start(io, sqe, &list(sources));
    started.expect_err("it takes a turn")
}

#[track_caller]
fn run(world: &mut World, io: Link, nsid: u32, sources: &[Source], to: u64) -> Reply {
    let sqe = copy(nsid, to, sources.len());
    world.exchange(io, sqe, &list(sources))
}

/// Fills the first blocks of a namespace, each with its own content.
fn fill(world: &mut World, io: Link, nsid: u32, blocks: u64) {
    for lba in 0..blocks {
        let data = vec![content(lba); block_bytes(nsid)];
        world.write(io, Sqe::write(nsid, lba, 0, false), &data).ok();
    }
    world.ram.take();
    world.cached.take();
}

/// The content of a block that [`fill`] has written.
fn content(lba: u64) -> u8 {
    lba as u8 + 1
}

/// The first byte of each block.
#[track_caller]
fn blocks(world: &mut World, io: Link, nsid: u32, lba: u64, count: u16) -> Vec<u8> {
    let data = world.read_blocks(io, nsid, lba, count);
    let blocks = data.chunks(block_bytes(nsid)).map(|block| {
        assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
        block[0]
    });
    blocks.collect()
}

/// A host with an I/O queue on each core.
fn two_queues(world: &mut World) -> [Link; 2] {
    let admin = world.enabled(0);
    [world.io_queue(0, admin, 1), world.io_queue(1, admin, 2)]
}

/// After everything has ended, nothing is left and copies work.
#[track_caller]
fn assert_clean(world: &mut World, io: Link) {
    world.settle();
    run(world, io, RAM, &[(0, 1)], TO).ok();
    for node in &world.nodes {
        assert_eq!(node.core.in_flight(), 0);
        let audit = node.core.audit();
        assert_eq!((audit.pairs, audit.exclusions), (0, 0), "{audit:?}");
    }
    assert_eq!(world.leases(), 0);
}

/// Commands that are refused before their list is fetched.
#[test]
fn invalid_commands_are_refused() {
    let with = |change: &dyn Fn(&mut nvme_spec::command::CopyCommand)| {
        let sqe = copy(RAM, TO, 1);
        let mut command = sqe.copy();
        change(&mut command);
        sqe.with_copy(command)
    };
    let mut cases = vec![
        (
            with(&|it| it.control = it.control.with_cetype(1)),
            INVALID,
            "command extension",
        ),
        (
            with(&|it| it.control = it.control.with_dtype(1)),
            INVALID,
            "directive",
        ),
        (copy(RAM, TO, 17), TOO_LARGE, "17 ranges"),
        (copy(RAM, TO, 256), TOO_LARGE, "256 ranges"),
        (copy(RAM, RAM_BLOCKS, 1), OUT_OF_RANGE, "beyond the end"),
        (copy(RAM, u64::MAX, 1), OUT_OF_RANGE, "the last address"),
        (copy(READ_ONLY, 0, 1), PROTECTED, "read-only"),
        (copy(3, 0, 1), INVALID, "inactive namespace"),
        (
            copy(u32::MAX, 0, 1),
            Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr(),
            "every namespace",
        ),
        (copy(RAM, TO, 1).with_fuse(Fuse::FIRST), INVALID, "fused"),
        (copy(RAM, TO, 1).with_prp(0, 0), INVALID, "PRPs"),
    ];
    for format in 1..16 {
        let format = CopyFormat(format);
        let sqe = with(&|it| it.control = it.control.with_format(format));
        cases.push((sqe, INVALID, "format"));
    }
    for bytes in [0, 16, 31, 33, 64, 512, 4096] {
        let sqe = copy(RAM, TO, 1).with_sgl(SglDescriptor::transport(bytes));
        cases.push((sqe, WRONG_LENGTH, "length"));
    }
    let mut world = World::new();
    let (_, io) = world.ready();
    world.ram.take();
    for (sqe, status, what) in cases {
        let reply = world.start(io, sqe.with_cid(world.cid()), &[]);
        let reply = reply.unwrap_or_else(|_| panic!("{what} is refused at once"));
        assert_eq!(reply.status(), status, "{what}");
        assert_eq!(reply.dw0(), 0);
    }
    assert!(world.ram.take().is_empty());
    assert_clean(&mut world, io);
}

/// NVM 1.1 §3.3.2: lists that are refused. No block is read or written, so that Dword 0 is 0 (NVM
/// 1.1 §3.3.2.5).
#[test]
fn invalid_source_ranges_are_refused() {
    let half = MAX / 2;
    let cases: Vec<(Vec<Source>, u64, Status)> = vec![
        (vec![(0, MAX + 1)], TO, TOO_LARGE),
        (vec![(0, u16::MAX)], TO, TOO_LARGE),
        (vec![(0, half), (0, half), (0, 1)], 1000, TOO_LARGE),
        (vec![(0, MAX / 15); 16], 1000, TOO_LARGE),
        // Command Size Limit Exceeded comes first.
        (vec![(RAM_BLOCKS, MAX + 1)], TO, TOO_LARGE),
        (vec![(RAM_BLOCKS, 1)], TO, OUT_OF_RANGE),
        (vec![(RAM_BLOCKS - 1, 2)], TO, OUT_OF_RANGE),
        (vec![(u64::MAX, 1)], TO, OUT_OF_RANGE),
        (vec![(u64::MAX, 2)], TO, OUT_OF_RANGE),
        (vec![(0, 1), (1, 1), (RAM_BLOCKS, 1)], TO, OUT_OF_RANGE),
        (vec![(RAM_BLOCKS, 1), (1, 1), (0, 1)], TO, OUT_OF_RANGE),
        (vec![(0, 2)], RAM_BLOCKS - 1, OUT_OF_RANGE),
        (vec![(0, 1), (1, 1)], RAM_BLOCKS - 1, OUT_OF_RANGE),
    ];
    let mut world = World::new();
    let (_, io) = world.ready();
    fill(&mut world, io, RAM, 4);
    for (sources, to, status) in cases {
        let reply = run(&mut world, io, RAM, &sources, to);
        assert_eq!(reply.status(), status, "{sources:?} to {to}");
        assert_eq!(reply.dw0(), 0);
        assert!(world.ram.take().is_empty(), "{sources:?} to {to}");
    }
    // A command extension of the second range.
    let mut ranges = [CopyRange::new(0, 0), CopyRange::new(1, 0)];
    ranges[1].parameters = ranges[1].parameters.with_cetype(1);
    let reply = world.exchange(io, copy(RAM, TO, 2), ranges.as_bytes());
    assert_eq!((reply.status(), reply.dw0()), (INVALID, 0));
    assert_eq!(blocks(&mut world, io, RAM, TO, 2), [0, 0]);
    assert_clean(&mut world, io);
}

/// NVM 1.1 §3.3.2.3: without protection information the fields for it are ignored, and so are
/// reserved ones.
#[test]
fn fields_without_meaning_are_ignored() {
    let mut world = World::new();
    let (_, io) = world.ready();
    fill(&mut world, io, RAM, 4);
    let sqe = copy(RAM, TO, 1);
    let mut command = sqe.copy();
    command.control = command
        .control
        .with_prinfor(
            ProtectionInfo::new()
                .with_action(true)
                .with_check_guard(true),
        )
        .with_prinfow(ProtectionInfo::new().with_check_reference_tag(true))
        .with_stcr(true)
        .with_stcw(true)
        .with_lr(true);
    command.extension = command.extension.with_cev(7).with_dspec(9);
    command.reference_tag = 77.into();
    let mut range = [0xff_u8; 32];
    range[8..20].copy_from_slice(&CopyRange::new(3, 0).as_bytes()[8..20]);
    let reply = world.exchange(io, sqe.with_copy(command), &range);
    reply.ok();
    assert_eq!(blocks(&mut world, io, RAM, TO, 2), [content(3), 0]);
    assert_clean(&mut world, io);
}

/// Base 2.1 §5.1.13.2.1, ONCS and CDFS; NVM 1.1 §4.1.5.1, MSSRL, MCL and MSRC.
#[test]
fn identify_reports_the_limits() {
    let mut world = World::new();
    let (admin, _) = world.ready();
    let page = world.read(admin, Sqe::identify_structure(Cns::CONTROLLER, 0), 4096);
    let page = IdentifyController::read_from_bytes(&page.ok()).expect("a page");
    assert!(page.oncs.copy() && page.oncs.copy_single_atomicity());
    assert!(!page.oncs.all_fast_copy());
    let formats = Cdfs::new().with_format_0(true).with_format_2(true);
    assert_eq!(page.cdfs, formats);
    for nsid in [RAM, CACHED, READ_ONLY, PLAIN] {
        let page = world.read(admin, Sqe::identify_structure(Cns::NAMESPACE, nsid), 4096);
        let page = IdentifyNamespace::read_from_bytes(&page.ok()).expect("a page");
        let most = (TRANSFER_MAX / block_bytes(nsid)) as u32;
        assert_eq!((u32::from(page.mssrl.get()), page.mcl.get()), (most, most));
        assert_eq!(page.msrc_z, 15);
    }
}

#[test]
fn ranges_are_copied_in_their_order() {
    let sixteen: Vec<Source> = (0..16).map(|lba| (15 - lba, 1)).collect();
    let lists: [&[Source]; 6] = [
        &[(3, 1)],
        &[(3, 5)],
        &[(7, 1), (2, 3), (7, 1)],
        &[(0, 2), (9, 1)],
        &[(9, 1), (0, 7)],
        &sixteen,
    ];
    for nsid in [RAM, CACHED, PLAIN] {
        let mut world = World::new();
        let queues = two_queues(&mut world);
        fill(&mut world, queues[0], nsid, 16);
        let to = 40;
        for (place, sources) in lists.iter().enumerate() {
            let [io, other] = [queues[place % 2], queues[(place + 1) % 2]];
            run(&mut world, io, nsid, sources, to).ok();
            let each = sources
                .iter()
                .flat_map(|(lba, blocks)| (*lba..).take(usize::from(*blocks)));
            let wanted: Vec<u8> = each.map(content).collect();
            let count = wanted.len() as u16;
            assert_eq!(blocks(&mut world, other, nsid, to, count), wanted);
            assert_eq!(blocks(&mut world, other, nsid, to - 1, 1), [0]);
            let sqe = Sqe::write_zeroes_range(
                nsid,
                to,
                nvme_spec::command::WriteZeroesControl::new().with_nlb_z(count - 1),
            );
            world.command(other, sqe).ok();
            // The sources are unchanged.
            let first = blocks(&mut world, io, nsid, 0, 16);
            assert_eq!(first, (0..16).map(content).collect::<Vec<_>>());
        }
        assert_clean(&mut world, queues[0]);
    }
}

/// NVM 1.1 §3.3.2.2: the data of all ranges is written by one request, after all reads, as large as
/// the limits allow.
#[test]
fn all_data_is_written_by_one_request() {
    let mut world = World::new();
    let (_, io) = world.ready();
    fill(&mut world, io, RAM, 16);
    run(&mut world, io, RAM, &[(0, 2), (5, 1), (8, 3)], TO).ok();
    let requests = [
        (Operation::Read, 8, 3),
        (Operation::Read, 5, 1),
        (Operation::Read, 0, 2),
        (Operation::Write { fua: false }, TO, 6),
    ];
    assert_eq!(world.ram.take(), requests);
    run(&mut world, io, RAM, &[(0, MAX)], 1000).ok();
    let sources: Vec<Source> = (0..16).map(|lba| (lba, MAX / 16)).collect();
    run(&mut world, io, RAM, &sources, 1000).ok();
    assert_eq!(world.ram.take().len(), 2 + 17);
    let wanted: Vec<u8> = (0..5).map(|lba| if lba == 0 { 16 } else { 0 }).collect();
    let last = 1000 + 15 * u64::from(MAX / 16);
    assert_eq!(blocks(&mut world, io, RAM, last, 5), wanted);
    assert_clean(&mut world, io);
}

/// NVM 1.1 §3.3.2: format 0 allows it. Here the destination gets the data from before the command.
#[test]
fn destination_may_overlap_the_sources() {
    let cases: [(&[Source], u64, [u8; 8]); 4] = [
        (&[(0, 4)], 2, [1, 2, 1, 2, 3, 4, 7, 8]),
        (&[(2, 4)], 0, [3, 4, 5, 6, 5, 6, 7, 8]),
        (&[(4, 2), (0, 2), (1, 3)], 0, [5, 6, 1, 2, 2, 3, 4, 8]),
        (&[(0, 8)], 0, [1, 2, 3, 4, 5, 6, 7, 8]),
    ];
    for (sources, to, wanted) in cases {
        let mut world = World::new();
        let (_, io) = world.ready();
        fill(&mut world, io, RAM, 8);
        run(&mut world, io, RAM, sources, to).ok();
        assert_eq!(blocks(&mut world, io, RAM, 0, 8), wanted, "{sources:?}");
    }
}

/// NVM 1.1 §3.3.2, FUA: of the write. Without a write cache it is already so.
#[test]
fn force_unit_access_is_for_the_write() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let with_fua = |nsid: u32| {
        let sqe = copy(nsid, 9, 1);
        let mut command = sqe.copy();
        command.control = command.control.with_fua(true);
        sqe.with_copy(command)
    };
    let ranges = list(&[(3, 1)]);
    let write_of = |fua| [(Operation::Read, 3, 1), (Operation::Write { fua }, 9, 1)];
    world.exchange(io, with_fua(CACHED), &ranges).ok();
    assert_eq!(world.cached.take(), write_of(true));
    world.exchange(io, copy(CACHED, 9, 1), &ranges).ok();
    assert_eq!(world.cached.take(), write_of(false));
    world.exchange(io, with_fua(RAM), &ranges).ok();
    assert_eq!(world.ram.take(), write_of(false));
    world
        .set_feature(admin, FeatureId::VOLATILE_WRITE_CACHE, 0)
        .ok();
    world.cached.take();
    world.exchange(io, copy(CACHED, 9, 1), &ranges).ok();
    assert_eq!(world.cached.take(), write_of(true));
}

/// If a read fails, nothing is written.
#[test]
fn nothing_is_written_after_a_failed_read() {
    for failing in 0..3 {
        let mut world = World::new();
        let (_, io) = world.ready();
        fill(&mut world, io, RAM, 8);
        world.fault.arm(HOLD, true);
        let tag = begin(&mut world, io, RAM, &[(0, 1), (2, 1), (4, 1)], TO);
        for _ in 0..failing {
            world.fault.release();
            world.settle();
        }
        // The device has this read, or gets it next.
        world.fault.arm(HOLD, false);
        world.fault.arm(FAIL_MEDIA, true);
        world.fault.release();
        let reply = world.wait(io, tag);
        world.fault.arm(FAIL_MEDIA, false);
        assert!(reply.status().is(Status::UNRECOVERED_READ_ERROR));
        assert_eq!(reply.dw0(), 0);
        let requests = world.ram.take();
        let is_read = |operation| matches!(operation, Operation::Read);
        assert!(requests.iter().all(|(operation, ..)| is_read(*operation)));
        assert_eq!(blocks(&mut world, io, RAM, TO, 3), [0; 3]);
        assert_clean(&mut world, io);
    }
}

/// A failed write fails the command. No range is known to be copied.
#[test]
fn failed_write_fails_the_command() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.fault.arm(HOLD, true);
    let tag = begin(&mut world, io, RAM, &[(0, 1), (2, 1)], TO);
    world.fault.release();
    world.settle();
    world.fault.arm(HOLD, false);
    world.fault.arm(FAIL_MEDIA, true);
    world.fault.release();
    let reply = world.wait(io, tag);
    world.fault.arm(FAIL_MEDIA, false);
    assert!(!reply.status().is_success());
    assert_eq!(reply.dw0(), 0);
    assert_clean(&mut world, io);
}

/// A Copy is aborted while its request waits for the device, in each of its steps, and not while the
/// device has it.
#[test]
fn abort_while_a_request_waits() {
    for steps in 0..3 {
        for effect in [HOLD, LATER] {
            let mut world = World::new();
            let admin = world.enabled(0);
            let io = world.io_queue(0, admin, 1);
            fill(&mut world, io, RAM, 4);
            world.fault.arm(HOLD, true);
            let cid = world.cid();
            let tag = begin(&mut world, io, RAM, &[(0, 1), (2, 1)], TO);
            for step in 0..steps {
                if step + 1 == steps && effect == LATER {
                    world.fault.arm(LATER, true);
                    world.fault.arm(HOLD, false);
                }
                world.fault.release();
                world.settle();
            }
            let is_waiting = effect == LATER && steps > 0;
            let abort = Sqe::abort_command(1, cid.wrapping_add(1));
            let is_aborted = world.command(admin, abort).dw0() & 1 == 0;
            assert_eq!(is_aborted, is_waiting, "{steps} steps");
            world.fault.arm(HOLD, false);
            world.fault.arm(LATER, false);
            world.fault.release();
            let reply = world.wait(io, tag);
            let wanted = match is_waiting {
                true => (Status::ABORT_REQUESTED, [0, 0]),
                false => (Status::SUCCESS, [1, 3]),
            };
            let found = blocks(&mut world, io, RAM, TO, 2);
            assert_eq!(
                (reply.status(), found.as_slice()),
                (wanted.0, &wanted.1[..])
            );
            assert_clean(&mut world, io);
        }
    }
}

/// The end of the connection in every state leaves nothing behind, and no write follows the reads of
/// an ended queue.
#[test]
fn end_of_the_queue_ends_its_copies() {
    for turns in 0..6 {
        for effect in [None, Some(HOLD), Some(LATER)] {
            let mut world = World::new();
            let admin = world.enabled(0);
            let io = world.io_queue(0, admin, 1);
            fill(&mut world, io, RAM, 4);
            if let Some(effect) = effect {
                world.fault.arm(effect, true);
            }
            begin(&mut world, io, RAM, &[(0, 1), (2, 1)], TO);
            for _ in 0..turns {
                world.poll();
            }
            let was_over = world.nodes[0].core.in_flight() == 0;
            world.close(io);
            if let Some(effect) = effect {
                world.fault.arm(effect, false);
            }
            world.fault.release();
            world.settle();
            let again = world.io_queue(1, admin, 1);
            let found = blocks(&mut world, again, RAM, TO, 2);
            let wanted = match (effect, was_over) {
                (None, true) => [1, 3],
                (Some(_), _) => [0, 0],
                // The device had the write, or not.
                (None, false) if found == [1, 3] => [1, 3],
                (None, false) => [0, 0],
            };
            assert_eq!(found, wanted, "{turns} turns, {effect:?}");
            assert_clean(&mut world, again);
        }
    }
}

/// Base 2.1 §3.7.2: after a reset no write of a Copy from before reaches the device.
#[test]
fn reset_ends_copies() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let io = world.io_queue(0, admin, 1);
    fill(&mut world, io, RAM, 4);
    world.fault.arm(HOLD, true);
    begin(&mut world, io, RAM, &[(0, 1), (2, 1)], TO);
    world.set_cc(admin, Cc::new());
    // Before the queue's connection is closed.
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.settle();
    for close in world.closes(0) {
        world.nodes[0].core.close_queue(close.queue, world.now);
    }
    world.settle();
    world.set_cc(admin, Cc::enabled_nvm());
    let io = world.io_queue(0, admin, 1);
    assert_eq!(blocks(&mut world, io, RAM, TO, 2), [0, 0]);
    assert_clean(&mut world, io);
}

fn zero_block(world: &World, fuse: Fuse, lba: u64) -> Sqe {
    let sqe = match fuse {
        Fuse::FIRST => Sqe::compare(RAM, lba, 0),
        _ => Sqe::write(RAM, lba, 0, false),
    };
    let sqe = sqe.with_fuse(fuse).with_cid(world.cid());
    sqe.with_sgl(SglDescriptor::transport(512))
}

/// Starts a Compare and Write of a block of zeroes.
fn begin_pair(world: &mut World, io: Link, lba: u64, to: u8) -> u64 {
    let sqe = zero_block(world, Fuse::FIRST, lba);
    world.start(io, sqe, &[0; 512]).expect_err("it waits");
    let sqe = zero_block(world, Fuse::SECOND, lba);
    world.start(io, sqe, &[to; 512]).expect_err("it waits")
}

/// A Copy to the block of a Compare and Write waits for it like a write, on either core. One from
/// that block does not.
#[test]
fn copies_wait_for_a_compare_and_write_of_their_destination() {
    for node in [0, 1] {
        let mut world = World::new();
        let queues = two_queues(&mut world);
        fill(&mut world, queues[0], RAM, 4);
        let pair = begin_pair(&mut world, queues[0], TO + 1, 9);
        // The device holds the Compare, once it is granted.
        world.fault.arm(HOLD, true);
        world.settle();
        world.fault.arm(HOLD, false);
        let io = queues[node];
        let waiting = begin(&mut world, io, RAM, &[(0, 3)], TO);
        world.settle();
        assert!(world.take_reply(node, waiting).is_none());
        run(&mut world, io, RAM, &[(TO, 2)], 200).ok();
        run(&mut world, io, RAM, &[(0, 1)], TO + 2).ok();
        run(&mut world, io, RAM, &[(0, 1)], TO).ok();
        world.fault.release();
        assert_eq!(world.wait(queues[0], pair).status(), Status::SUCCESS);
        world.wait(io, waiting).ok();
        assert_eq!(blocks(&mut world, io, RAM, TO, 4), [1, 2, 3, 0]);
        assert_clean(&mut world, io);
    }
}

/// A Compare and Write waits for a Copy to its block from the first read on.
#[test]
fn compare_and_write_waits_for_earlier_copies() {
    for steps in 0..3 {
        let mut world = World::new();
        let [io, other] = two_queues(&mut world);
        fill(&mut world, io, RAM, 4);
        world.fault.arm(HOLD, true);
        let copying = begin(&mut world, other, RAM, &[(0, 1), (2, 1)], TO);
        for _ in 0..steps {
            world.fault.release();
            world.settle();
        }
        let pair = begin_pair(&mut world, io, TO + 1, 9);
        world.settle();
        assert!(world.take_reply(io.node, pair).is_none());
        world.fault.arm(HOLD, false);
        world.fault.release();
        world.wait(other, copying).ok();
        let failed = world.wait(io, pair).status();
        assert_eq!(failed, Status::ABORTED_FAILED_FUSED, "{steps} steps");
        assert_eq!(blocks(&mut world, io, RAM, TO, 2), [1, 3]);
        assert_clean(&mut world, io);
    }
}

/// A world with blocks to copy, in which a device holds a write of a host. Returns its queue at another
/// reactor, whose end raises a fence.
fn with_held_write() -> (World, Link) {
    let mut world = World::new();
    let lost = world.enabled(1);
    let far = world.io_queue(1, lost, 1);
    fill(&mut world, far, RAM, 4);
    world.fault.arm(HOLD, true);
    let sqe = Sqe::write(RAM, TO, 0, false).with_cid(world.cid());
    let sqe = sqe.with_sgl(SglDescriptor::transport(512));
    world.start(far, sqe, &[8; 512]).expect_err("held");
    world.fault.arm(HOLD, false);
    (world, far)
}

/// A host's fence holds a Copy back like a write.
#[test]
fn fence_holds_copies_back() {
    let (mut world, far) = with_held_write();
    let admin = world.enabled_by(0, &ConnectOptions::default());
    let io = world.io_queue(0, admin, 1);
    world.close(far);
    world.settle();
    let tag = begin(&mut world, io, RAM, &[(0, 1), (2, 1)], TO);
    world.settle();
    assert!(world.take_reply(0, tag).is_none());
    world.fault.release();
    world.wait(io, tag).ok();
    assert_eq!(blocks(&mut world, io, RAM, TO, 2), [1, 3]);
    assert_clean(&mut world, io);
}

/// A host with one controller and one I/O queue.
fn host(world: &mut World, node: usize, number: u8) -> Link {
    let call = ConnectOptions {
        host_id: [number; 16],
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(node, &call);
    let cntlid = admin.info.controller_id;
    let io = ConnectOptions {
        cntlid,
        qid: 1,
        ..call
    };
    world.connect(node, &io)
}

fn register(world: &mut World, io: Link, key: u64) {
    let mut command = ReservationRegister::new_zeroed();
    command.control = RegisterControl::new().with_action(RegisterAction::REGISTER);
    let sqe = Sqe::new(IoOpcode::RESERVATION_REGISTER.0, RAM).with_reservation_register(command);
    let (crkey, nrkey) = (U64::ZERO, U64::new(key));
    let data = RegisterData { crkey, nrkey };
    world.write(io, sqe, data.as_bytes()).ok();
}

/// Starts to acquire a reservation.
fn acquire(
    world: &mut World,
    io: Link,
    action: AcquireAction,
    rtype: ReservationType,
    keys: [u64; 2],
) -> Result<Reply, u64> {
    let mut command = ReservationAcquire::new_zeroed();
    command.control = AcquireControl::new().with_action(action).with_rtype(rtype);
    let sqe = Sqe::new(IoOpcode::RESERVATION_ACQUIRE.0, RAM).with_reservation_acquire(command);
    let [crkey, prkey] = keys.map(U64::new);
    let data = AcquireData { crkey, prkey };
    let sgl = SglDescriptor::transport(16);
    let sqe = sqe.with_cid(world.cid()).with_sgl(sgl);
    world.start(io, sqe, data.as_bytes())
}

/// Base 2.1 §8.1.22.1: a Copy conflicts like a write of its destination and a read of its sources.
#[test]
fn reservations_restrict_copies() {
    for rtype in [
        ReservationType::WRITE_EXCLUSIVE,
        ReservationType::EXCLUSIVE_ACCESS,
    ] {
        let mut world = World::new();
        let (holder, other) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
        fill(&mut world, holder, RAM, 4);
        register(&mut world, holder, 1);
        let acquired = acquire(&mut world, holder, AcquireAction::ACQUIRE, rtype, [1, 0]);
        let acquired = acquired.unwrap_or_else(|tag| world.wait(holder, tag));
        acquired.ok();
        run(&mut world, other, RAM, &[(0, 1)], TO).is(CONFLICT);
        run(&mut world, holder, RAM, &[(0, 1)], TO).ok();
        run(&mut world, other, CACHED, &[(0, 1)], TO).ok();
    }
}

/// Base 2.1 §8.1.22.7: a host that is preempted between the reads and the write writes nothing, and
/// Preempt and Abort completes after the Copy.
#[test]
fn preempted_host_writes_nothing_after_its_reads() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
    fill(&mut world, fenced, RAM, 4);
    register(&mut world, fenced, 1);
    register(&mut world, fencing, 2);
    world.fault.arm(HOLD, true);
    let copying = begin(&mut world, fenced, RAM, &[(0, 1), (2, 1)], TO);
    let action = AcquireAction::PREEMPT_AND_ABORT;
    let rtype = ReservationType::WRITE_EXCLUSIVE;
    let preempting = acquire(&mut world, fencing, action, rtype, [2, 1]).expect_err("it waits");
    world.settle();
    assert!(world.take_reply(0, preempting).is_none(), "a read is left");
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.settle();
    let status = world.wait(fenced, copying).status();
    assert!(
        status.is(Status::RESERVATION_CONFLICT) || status.is(Status::ABORTED_PREEMPT_AND_ABORT)
    );
    world.wait(fencing, preempting).ok();
    assert_eq!(blocks(&mut world, fencing, RAM, TO, 2), [0, 0]);
}

/// Base 2.1 §8.1.1: a Copy whose namespace loses access between the reads and the write is refused.
#[test]
fn ana_states_restrict_copies() {
    let mut world = World::new();
    let (_, io) = world.ready();
    fill(&mut world, io, RAM, 4);
    world.fault.arm(HOLD, true);
    let copying = begin(&mut world, io, RAM, &[(0, 1), (2, 1)], TO);
    let path = AnaPath {
        port: TCP_PORT,
        group: 1,
    };
    let states = BTreeMap::from([(path, AnaState::Inaccessible)]);
    let done = world.target.set_ana_states(SUBSYSTEM, &states);
    done.expect("a right change");
    world.settle();
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.wait(io, copying).is(Status::ANA_INACCESSIBLE);
    run(&mut world, io, RAM, &[(0, 1)], TO).is(Status::ANA_INACCESSIBLE);
    let states = BTreeMap::from([(path, AnaState::Optimized)]);
    let done = world.target.set_ana_states(SUBSYSTEM, &states);
    done.expect("a right change");
    world.settle();
    assert_eq!(blocks(&mut world, io, RAM, TO, 2), [0, 0]);
    assert_clean(&mut world, io);
}

/// A namespace that becomes read-only, or is removed, between the reads and the write.
#[test]
fn changed_namespace_refuses_the_write() {
    for is_removed in [false, true] {
        let mut world = World::new();
        let (_, io) = world.ready();
        fill(&mut world, io, RAM, 4);
        world.fault.arm(HOLD, true);
        let copying = begin(&mut world, io, RAM, &[(0, 1), (2, 1)], TO);
        let usual = crate::harness::config(&world.devices())
            .subsystems
            .remove(0);
        let mut namespaces = usual.namespaces.clone();
        match is_removed {
            true => namespaces.retain(|it| it.nsid != RAM),
            false => namespaces[0].read_only = true,
        }
        let updated = world.target.update_namespaces(SUBSYSTEM, namespaces);
        updated.expect("a right change");
        world.settle();
        world.fault.arm(HOLD, false);
        world.fault.release();
        let status = world.wait(io, copying).status();
        match is_removed {
            true => assert!(!status.is_success(), "{status}"),
            false => assert_eq!(status, PROTECTED),
        }
        let updated = world.target.update_namespaces(SUBSYSTEM, usual.namespaces);
        updated.expect("a right change");
        world.settle();
        assert_eq!(blocks(&mut world, io, RAM, TO, 2), [0, 0]);
        assert_clean(&mut world, io);
    }
}
