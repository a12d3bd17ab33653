//! Copy across the namespaces of a subsystem (NVM 1.1 §3.3.2.4): what a host may copy from where, and
//! everything that may happen to a source between the list of source ranges and the write.

use block::{Drain, Operation};
use nvme_spec::U16;
use nvme_spec::command::CopyCommand;
use nvme_spec::features::{CopyFormatsEnabled, HostBehavior};
use nvme_target::{DeviceIndex, MaskedAccess, NamespaceMask, RateLimit, RateScope};
use reactors::Nanos;

use super::*;
use crate::harness::{HIGHEST, HOST, LIMITS};

const NO_NAMESPACE: Status = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
const INCOMPATIBLE: Status = Status::INCOMPATIBLE_NAMESPACE_OR_FORMAT.with_dnr();
const OVERLAPPING: Status = Status::OVERLAPPING_IO_RANGE.with_dnr();
const NOT_FAST: Status = Status::FAST_COPY_NOT_POSSIBLE.with_dnr();

/// The device of the namespace RAM.
pub(super) const RAM_DEVICE: DeviceIndex = DeviceIndex(0);
/// The device of the namespace PLAIN.
pub(super) const PLAIN_DEVICE: DeviceIndex = DeviceIndex(3);

/// A source range: namespace, first block and number of blocks.
pub(super) type Named = (u32, u64, u16);

pub(super) fn named(sources: &[Named]) -> Vec<u8> {
    let ranges = sources
        .iter()
        .map(|(nsid, lba, blocks)| CopyRange::of_namespace(*nsid, *lba, blocks - 1));
    ranges.collect::<Vec<_>>().as_bytes().to_vec()
}

pub(super) fn across(nsid: u32, to: u64, ranges: usize) -> Sqe {
    let sgl = SglDescriptor::transport(32 * ranges as u32);
    Sqe::copy_from_namespaces(nsid, to, (ranges - 1) as u8).with_sgl(sgl)
}

fn set_formats(world: &mut World, admin: Link, formats: CopyFormatsEnabled) -> Reply {
    let mut behavior = HostBehavior::default();
    behavior.cdfe = formats;
    let sqe = Sqe::set_feature(FeatureId::HOST_BEHAVIOR, 0, 0);
    world.write(admin, sqe, behavior.as_bytes())
}

fn enable(world: &mut World, admin: Link) {
    let format_2 = CopyFormatsEnabled::new().with_format_2(true);
    set_formats(world, admin, format_2).ok();
}

/// A controller with the format enabled, and an I/O queue on node 0.
pub(super) fn ready(world: &mut World) -> (Link, Link) {
    let (admin, io) = world.ready();
    enable(world, admin);
    (admin, io)
}

#[track_caller]
pub(super) fn run_across(
    world: &mut World,
    io: Link,
    nsid: u32,
    sources: &[Named],
    to: u64,
) -> Reply {
    let sqe = across(nsid, to, sources.len());
    world.exchange(io, sqe, &named(sources))
}

/// Starts a Copy whose first read takes a turn.
#[track_caller]
pub(super) fn begin_across(
    world: &mut World,
    io: Link,
    nsid: u32,
    sources: &[Named],
    to: u64,
) -> u64 {
    let sqe = across(nsid, to, sources.len()).with_cid(world.cid());
    let started = world.start(io, sqe, &named(sources));
    started.expect_err("it takes a turn")
}

/// Nothing is left of the commands, and no memory is taken.
#[track_caller]
fn assert_over(world: &mut World) {
    world.settle();
    for node in &world.nodes {
        assert_eq!(node.core.in_flight(), 0);
    }
    assert_eq!(world.leases(), 0);
}

fn masked(nsids: &[u32]) -> NamespaceMask {
    let namespaces = nsids.iter().map(|nsid| (*nsid, MaskedAccess::Unrestricted));
    NamespaceMask {
        hosts: vec![HOST.to_owned()],
        namespaces: namespaces.collect(),
    }
}

/// Base 2.1 §5.1.25.1.14, CDFE: a format is refused until the host has enabled it, and again after a
/// reset. Formats that are not supported cannot be enabled.
#[test]
fn format_has_to_be_enabled() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    fill(&mut world, io, RAM, 4);
    let sources = [(RAM, 2, 1)];
    run_across(&mut world, io, PLAIN, &sources, 9).is(INVALID);
    run_across(&mut world, io, RAM, &sources, 9).is(INVALID);
    for formats in [0b0_1000, 0b1_0000, 0b1_1100] {
        let formats = CopyFormatsEnabled::from_bits(U16::new(formats));
        set_formats(&mut world, admin, formats).is(INVALID);
        run_across(&mut world, io, PLAIN, &sources, 9).is(INVALID);
    }
    assert_eq!(world.ram.take(), [], "no source was read");
    enable(&mut world, admin);
    run_across(&mut world, io, PLAIN, &sources, 9).ok();
    assert_eq!(blocks(&mut world, io, PLAIN, 9, 1), [content(2)]);
    // The format is that of the whole list: without its own, the names are ignored.
    let sqe = copy(RAM, 9, 1);
    world.exchange(io, sqe, &named(&[(PLAIN, 3, 1)])).ok();
    assert_eq!(blocks(&mut world, io, RAM, 9, 1), [content(3)]);
    for format in [1, 3, 4, 5, 15] {
        let sqe = across(PLAIN, 9, 1);
        let command = sqe.copy();
        let control = command.control.with_format(CopyFormat(format));
        let sqe = sqe.with_copy(CopyCommand { control, ..command });
        world.exchange(io, sqe, &named(&sources)).is(INVALID);
    }
    set_formats(&mut world, admin, CopyFormatsEnabled::new()).ok();
    run_across(&mut world, io, PLAIN, &sources, 9).is(INVALID);
    enable(&mut world, admin);
    world.set_cc(admin, Cc::new());
    world.close(io);
    world.settle();
    world.set_cc(admin, Cc::enabled_nvm());
    let io = world.io_queue(0, admin, 1);
    run_across(&mut world, io, PLAIN, &sources, 9).is(INVALID);
    assert_over(&mut world);
}

/// NVM 1.1 §3.3.2, §3.3.2.4: lists that are refused. Nothing is read or written, so Dword 0 is 0 (NVM
/// 1.1 §3.3.2.5), whichever range is wrong.
#[test]
fn wrong_sources_are_refused() {
    let half = MAX / 2;
    let cases: Vec<(u32, Vec<Named>, u64, Status)> = vec![
        (PLAIN, vec![(0, 0, 1)], 9, NO_NAMESPACE),
        (PLAIN, vec![(u32::MAX, 0, 1)], 9, NO_NAMESPACE),
        (PLAIN, vec![(HIGHEST + 1, 0, 1)], 9, NO_NAMESPACE),
        (PLAIN, vec![(HIGHEST, 0, 1)], 9, INVALID),
        (PLAIN, vec![(3, 0, 1)], 9, INVALID),
        (PLAIN, vec![(RAM, 0, 1), (3, 0, 1)], 9, INVALID),
        (PLAIN, vec![(CACHED, 0, 1)], 9, INCOMPATIBLE),
        (CACHED, vec![(RAM, 0, 1)], 9, INCOMPATIBLE),
        (
            RAM,
            vec![(RAM, 0, 1), (PLAIN, 0, 1), (CACHED, 0, 1)],
            9,
            INCOMPATIBLE,
        ),
        (RAM, vec![(READ_ONLY, 64, 1)], 9, OUT_OF_RANGE),
        (RAM, vec![(READ_ONLY, 63, 2)], 9, OUT_OF_RANGE),
        (RAM, vec![(READ_ONLY, u64::MAX, 2)], 9, OUT_OF_RANGE),
        // Within the destination, but not within the source, and the other way around.
        (RAM, vec![(PLAIN, 100, 1)], 9, OUT_OF_RANGE),
        (PLAIN, vec![(RAM, 0, 2)], 63, OUT_OF_RANGE),
        (PLAIN, vec![(RAM, 0, MAX + 1)], 0, TOO_LARGE),
        (
            RAM,
            vec![(RAM, 0, half), (PLAIN, 0, half), (RAM, 0, 1)],
            900,
            TOO_LARGE,
        ),
        (RAM, vec![(RAM, 5, 1)], 5, OVERLAPPING),
        (RAM, vec![(RAM, 5, 3)], 7, OVERLAPPING),
        (RAM, vec![(PLAIN, 0, 2), (RAM, 11, 1)], 9, OVERLAPPING),
        (RAM, vec![(RAM, 11, 1), (PLAIN, 0, 2)], 9, OVERLAPPING),
        (READ_ONLY, vec![(RAM, 0, 1)], 0, PROTECTED),
    ];
    let mut world = World::new();
    let (_, io) = ready(&mut world);
    fill(&mut world, io, RAM, 4);
    fill(&mut world, io, PLAIN, 4);
    for (nsid, sources, to, status) in cases {
        let reply = run_across(&mut world, io, nsid, &sources, to);
        assert_eq!(reply.status(), status, "{sources:?} to {nsid}, {to}");
        assert_eq!(reply.dw0(), 0);
        assert!(world.ram.take().is_empty(), "{sources:?} to {nsid}, {to}");
        assert!(world.cached.take().is_empty());
    }
    run_across(&mut world, io, PLAIN, &[(RAM, 0, 1); 17], 9).is(TOO_LARGE);
    // The second range demands a fast copy.
    let mut ranges = [1, 2].map(|lba| CopyRange::of_namespace(RAM, lba, 0));
    ranges[1].options = ranges[1].options.with_fast_only(true);
    world
        .exchange(io, across(PLAIN, 9, 2), ranges.as_bytes())
        .is(NOT_FAST);
    assert_eq!(blocks(&mut world, io, PLAIN, 9, 2), [0, 0]);
    // Ranges beside the destination do not overlap it, nor do the same blocks of another namespace.
    run_across(&mut world, io, RAM, &[(RAM, 8, 1), (RAM, 11, 1)], 9).ok();
    run_across(&mut world, io, RAM, &[(PLAIN, 9, 2)], 9).ok();
    assert_over(&mut world);
}

/// NVM 1.1 §3.3.2, MSSRL: that of the source, if it is lower than that of the destination.
#[test]
fn limits_of_the_source_apply() {
    let mut world = World::with(2, LIMITS, |config| {
        config.subsystems[0].namespaces[3]
            .geometry
            .max_transfer_blocks = 4;
    });
    let (_, io) = ready(&mut world);
    run_across(&mut world, io, RAM, &[(PLAIN, 0, 5)], 9).is(TOO_LARGE);
    run_across(&mut world, io, RAM, &[(PLAIN, 0, 4), (PLAIN, 4, 4)], 9).ok();
    run_across(&mut world, io, PLAIN, &[(RAM, 0, 3), (RAM, 4, 2)], 9).is(TOO_LARGE);
    assert_over(&mut world);
}

#[test]
fn ranges_of_several_namespaces_are_copied_in_their_order() {
    let mut world = World::new();
    let admin = world.enabled(0);
    enable(&mut world, admin);
    let queues = [world.io_queue(0, admin, 1), world.io_queue(1, admin, 2)];
    fill(&mut world, queues[0], RAM, 16);
    for lba in 0..16 {
        let data = [content(lba) + 100; 512];
        let sqe = Sqe::write(PLAIN, lba, 0, false);
        world.write(queues[0], sqe, &data).ok();
    }
    for io in queues {
        let sources = [(PLAIN, 3, 2), (RAM, 5, 1), (READ_ONLY, 0, 1), (PLAIN, 9, 1)];
        run_across(&mut world, io, RAM, &sources, TO).ok();
        let requests = [
            (Operation::Read, 5, 1),
            (Operation::Write { fua: false }, TO, 5),
        ];
        assert_eq!(world.ram.take(), requests);
        let wanted = [104, 105, content(5), 0, 110];
        assert_eq!(
            blocks(&mut world, io, RAM, TO, 6),
            [&wanted[..], &[0]].concat()
        );
        world.ram.take();
        run_across(&mut world, io, PLAIN, &[(RAM, 1, 2), (PLAIN, 0, 1)], 40).ok();
        let wanted = [content(1), content(2), 101, 0];
        assert_eq!(blocks(&mut world, io, PLAIN, 40, 4), wanted);
        world.ram.take();
        let zeroes = nvme_spec::command::WriteZeroesControl::new().with_nlb_z(4);
        for (nsid, lba) in [(RAM, TO), (PLAIN, 40)] {
            let sqe = Sqe::write_zeroes_range(nsid, lba, zeroes);
            world.command(io, sqe).ok();
        }
        world.ram.take();
    }
    assert_over(&mut world);
}

/// A host neither reads a namespace that is hidden from it nor learns anything of it: for every range
/// it gets what it gets for a namespace that does not exist.
#[test]
fn hidden_sources_do_not_exist() {
    let mut world = World::with(2, LIMITS, |config| {
        config.subsystems[0].masks = vec![masked(&[PLAIN])];
    });
    let (_, io) = ready(&mut world);
    for (lba, blocks) in [(0, 1), (RAM_BLOCKS, 1), (RAM_BLOCKS - 1, 2), (u64::MAX, 3)] {
        for hidden in [RAM, CACHED, READ_ONLY, 3] {
            for sources in [
                vec![(hidden, lba, blocks)],
                vec![(PLAIN, 0, 1), (hidden, lba, blocks)],
            ] {
                let reply = run_across(&mut world, io, PLAIN, &sources, 9);
                assert_eq!((reply.status(), reply.dw0()), (INVALID, 0), "{sources:?}");
            }
        }
    }
    run_across(&mut world, io, RAM, &[(PLAIN, 0, 1)], 9).is(INVALID);
    assert!(world.ram.take().is_empty() && world.cached.take().is_empty());
    run_across(&mut world, io, PLAIN, &[(PLAIN, 0, 1)], 9).ok();
    assert_over(&mut world);
}

/// A source that is hidden or removed while another one is read is not read any more.
#[test]
fn source_that_vanishes_is_not_read() {
    for is_masked in [true, false] {
        let mut world = World::new();
        let (_, io) = ready(&mut world);
        fill(&mut world, io, RAM, 4);
        world.fault.arm(HOLD, true);
        // The last range is read first.
        let tag = begin_across(&mut world, io, RAM, &[(PLAIN, 0, 1), (RAM, 2, 1)], TO);
        let mut changed = crate::harness::config(&world.devices())
            .subsystems
            .remove(0);
        match is_masked {
            true => changed.masks = vec![masked(&[RAM])],
            false => changed.namespaces.retain(|it| it.nsid != PLAIN),
        }
        world
            .target
            .update_subsystem(changed)
            .expect("a right change");
        world.settle();
        world.fault.arm(HOLD, false);
        world.fault.release();
        let reply = world.wait(io, tag);
        assert_eq!((reply.status(), reply.dw0()), (INVALID, 0));
        let of_ram = world.ram.take();
        assert_eq!(of_ram, [(Operation::Read, 2, 1)]);
        assert_over(&mut world);
    }
}

/// Base 2.1 §8.1.22.1: each source is read by the rules of its own reservation, and not by those of
/// the destination.
#[test]
fn reservations_of_sources_apply() {
    for (rtype, readable) in [
        (ReservationType::WRITE_EXCLUSIVE, true),
        (ReservationType::EXCLUSIVE_ACCESS, false),
    ] {
        let mut world = World::new();
        let (holder, other) = (host_across(&mut world, 0, 1), host_across(&mut world, 1, 2));
        fill(&mut world, holder, RAM, 4);
        register(&mut world, holder, 1);
        let acquired = acquire(&mut world, holder, AcquireAction::ACQUIRE, rtype, [1, 0]);
        let acquired = acquired.unwrap_or_else(|tag| world.wait(holder, tag));
        acquired.ok();
        world.ram.take();
        for sources in [vec![(RAM, 1, 1)], vec![(PLAIN, 0, 1), (RAM, 1, 1)]] {
            world.ram.take();
            let reply = run_across(&mut world, other, PLAIN, &sources, 9);
            match readable {
                true => assert!(reply.status().is_success()),
                false => {
                    assert_eq!((reply.status(), reply.dw0()), (CONFLICT, 0));
                    assert!(world.ram.take().is_empty());
                }
            }
            run_across(&mut world, holder, PLAIN, &sources, 9).ok();
        }
        // The destination is reserved.
        run_across(&mut world, other, RAM, &[(PLAIN, 0, 1)], TO).is(CONFLICT);
        run_across(&mut world, holder, RAM, &[(PLAIN, 0, 1)], TO).ok();
        run_across(&mut world, other, PLAIN, &[(READ_ONLY, 0, 1)], 9).ok();
        assert_over(&mut world);
    }
}

/// A host with one controller with the format enabled, and one I/O queue.
fn host_across(world: &mut World, node: usize, number: u8) -> Link {
    let call = ConnectOptions {
        host_id: [number; 16],
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(node, &call);
    enable(world, admin);
    let io = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..call
    };
    world.connect(node, &io)
}

/// Base 2.1 §8.1.22.7: Preempt and Abort of the reservation of a source waits for the reads of the
/// preempted host, and no later one follows.
#[test]
fn preempted_host_does_not_read_the_source() {
    for held_first in [true, false] {
        let mut world = World::new();
        let (fenced, fencing) = (host_across(&mut world, 1, 1), host_across(&mut world, 0, 2));
        fill(&mut world, fenced, RAM, 4);
        register(&mut world, fenced, 1);
        register(&mut world, fencing, 2);
        world.fault.arm(HOLD, true);
        let sources = [(RAM, 0, 1), (RAM, 2, 1)];
        let copying = begin_across(&mut world, fenced, PLAIN, &sources, 9);
        let action = AcquireAction::PREEMPT_AND_ABORT;
        let rtype = ReservationType::EXCLUSIVE_ACCESS;
        let preempting = acquire(&mut world, fencing, action, rtype, [2, 1]).expect_err("it waits");
        world.settle();
        assert!(world.take_reply(0, preempting).is_none(), "a read is left");
        if held_first {
            world.fault.arm(HOLD, false);
        }
        world.fault.release();
        world.settle();
        world.fault.arm(HOLD, false);
        world.fault.release();
        let status = world.wait(fenced, copying).status();
        assert!(
            status.is(Status::RESERVATION_CONFLICT) || status.is(Status::ABORTED_PREEMPT_AND_ABORT),
            "{status}"
        );
        world.wait(fencing, preempting).ok();
        assert_eq!(blocks(&mut world, fencing, PLAIN, 9, 2), [0, 0]);
        assert_over(&mut world);
    }
}

/// Base 2.1 §8.1.1: a source without access is not read, and a change of its state waits for the
/// copies that read it.
#[test]
fn ana_states_of_sources_apply() {
    let mut world = World::with(2, LIMITS, |config| {
        for namespace in &mut config.subsystems[0].namespaces {
            namespace.ana_group = if namespace.nsid == RAM { 2 } else { 1 };
        }
    });
    let (_, io) = ready(&mut world);
    fill(&mut world, io, RAM, 4);
    world.fault.arm(HOLD, true);
    let sources = [(RAM, 0, 1), (RAM, 2, 1)];
    let copying = begin_across(&mut world, io, PLAIN, &sources, 9);
    let path = AnaPath {
        port: TCP_PORT,
        group: 2,
    };
    let states = BTreeMap::from([(path, AnaState::Inaccessible)]);
    let done = world.target.set_ana_states(SUBSYSTEM, &states);
    let done = done.expect("a right change");
    world.settle();
    let waits = std::sync::mpsc::TryRecvError::Empty;
    assert_eq!(done.try_recv(), Err(waits), "a read is left");
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.wait(io, copying).is(Status::ANA_INACCESSIBLE);
    world.settle();
    assert_ne!(done.try_recv(), Err(waits));
    run_across(&mut world, io, PLAIN, &sources, 9).is(Status::ANA_INACCESSIBLE);
    run_across(&mut world, io, PLAIN, &[(READ_ONLY, 0, 1)], 9).ok();
    assert_eq!(blocks(&mut world, io, PLAIN, 9, 2), [0, 0]);
    assert_over(&mut world);
}

/// If a source fails, nothing is written, so that the lowest range that was not copied is the first
/// (NVM 1.1 §3.3.2.5), whichever one failed.
#[test]
fn nothing_is_written_after_a_failed_source() {
    let sources = [(PLAIN, 0, 1), (RAM, 1, 1), (PLAIN, 1, 1), (RAM, 2, 1)];
    for is_later in [false, true] {
        let mut world = World::new();
        let (_, io) = ready(&mut world);
        fill(&mut world, io, RAM, 8);
        world
            .fault
            .arm(if is_later { HOLD } else { FAIL_MEDIA }, true);
        let tag = begin_across(&mut world, io, PLAIN, &sources, 9);
        world.fault.arm(HOLD, false);
        world.fault.arm(FAIL_MEDIA, true);
        world.fault.release();
        let reply = world.wait(io, tag);
        world.fault.arm(FAIL_MEDIA, false);
        assert_eq!(reply.status(), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(reply.dw0(), 0);
        assert_eq!(blocks(&mut world, io, PLAIN, 9, 4), [0; 4]);
        assert_over(&mut world);
    }
    // A failing destination.
    let mut world = World::new();
    let (_, io) = ready(&mut world);
    world.fault.arm(FAIL_MEDIA, true);
    let reply = run_across(&mut world, io, RAM, &[(PLAIN, 0, 1), (READ_ONLY, 0, 1)], 9);
    world.fault.arm(FAIL_MEDIA, false);
    assert!(!reply.status().is_success());
    assert_eq!(reply.dw0(), 0);
    assert_over(&mut world);
}

/// A Copy is aborted while its read waits for the device of the source, and not while it is there.
#[test]
fn abort_while_a_source_is_read() {
    for effect in [HOLD, LATER] {
        let mut world = World::new();
        let (admin, io) = ready(&mut world);
        fill(&mut world, io, RAM, 4);
        world.fault.arm(effect, true);
        let cid = world.cid();
        let tag = begin_across(&mut world, io, PLAIN, &[(RAM, 1, 2)], 9);
        let abort = Sqe::abort_command(1, cid.wrapping_add(1));
        let is_aborted = world.command(admin, abort).dw0() & 1 == 0;
        assert_eq!(is_aborted, effect == LATER);
        world.fault.arm(effect, false);
        world.fault.release();
        let reply = world.wait(io, tag);
        let wanted = match is_aborted {
            true => (Status::ABORT_REQUESTED, [0, 0]),
            false => (Status::SUCCESS, [2, 3]),
        };
        assert_eq!((reply.status(), reply.dw0()), (wanted.0, 0));
        assert_eq!(blocks(&mut world, io, PLAIN, 9, 2), wanted.1);
        assert_over(&mut world);
    }
}

/// The end of the connection while a source is read leaves nothing behind, and no write follows.
#[test]
fn end_of_the_queue_ends_reads_of_sources() {
    for effect in [HOLD, LATER] {
        let mut world = World::new();
        let (admin, io) = ready(&mut world);
        fill(&mut world, io, RAM, 4);
        world.fault.arm(effect, true);
        begin_across(&mut world, io, PLAIN, &[(RAM, 1, 2)], 9);
        world.close(io);
        world.fault.arm(effect, false);
        world.fault.release();
        world.settle();
        let io = world.io_queue(1, admin, 1);
        assert_eq!(blocks(&mut world, io, PLAIN, 9, 2), [0, 0]);
        assert_over(&mut world);
    }
}

/// A source that is cut off ends exactly the copies that read it at that moment. A destination that is
/// cut off ends a Copy after its read.
#[test]
fn lost_devices_end_their_copies() {
    for (lost, ends_at_once) in [(RAM_DEVICE, true), (PLAIN_DEVICE, false)] {
        let mut world = World::new();
        let (_, io) = ready(&mut world);
        fill(&mut world, io, RAM, 4);
        world.fault.arm(HOLD, true);
        let tag = begin_across(&mut world, io, PLAIN, &[(RAM, 1, 2)], 9);
        let named = world.nodes[0].core.outstanding(&[lost]);
        assert_eq!(named.len(), 1, "it delays the removal of either");
        let now = world.now;
        for node in &mut world.nodes {
            node.cut(usize::from(lost.0), now);
        }
        world.settle();
        let reply = world.take_reply(0, tag);
        assert_eq!(reply.is_some(), ends_at_once);
        world.fault.arm(HOLD, false);
        world.fault.release();
        let reply = reply.unwrap_or_else(|| world.wait(io, tag));
        assert_eq!(
            (reply.status(), reply.dw0()),
            (Status::INTERNAL_PATH_ERROR, 0)
        );
        for node in &mut world.nodes {
            assert_eq!(node.detach(usize::from(lost.0)), Drain::Done);
        }
        assert_over(&mut world);
    }
}

/// The read of a source counts for the limits of its device, and the Copy for those of its host.
#[test]
fn rates_of_sources_apply() {
    let limits = |device| RateLimit {
        scope: RateScope::Device(device),
        reads: true,
        writes: false,
        iops: None,
        bandwidth: Some(1 << 20),
        burst: Nanos::from_millis(1),
    };
    for (limited, is_delayed) in [(RAM_DEVICE, true), (DeviceIndex(2), false)] {
        let mut world = World::new();
        let set = world.target.set_rate_limits(vec![limits(limited)]);
        set.expect("a right limit");
        world.settle();
        let (_, io) = ready(&mut world);
        run_across(&mut world, io, PLAIN, &[(RAM, 0, 32), (RAM, 32, 32)], 0).ok();
        // 32 KiB take 31 ms.
        let sqe = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
        let begin = world.now;
        let tag = world.start(io, sqe.with_cid(world.cid()), &[]);
        if let Err(tag) = tag {
            let until = begin + Nanos::from_millis(100);
            while world.now < until && world.take_reply(0, tag).is_none() {
                world.advance(Nanos::from_millis(1));
            }
        }
        let waited = world.now.saturating_sub(begin);
        let is_as_long = (Nanos::from_millis(25)..Nanos::from_millis(40)).contains(&waited);
        assert_eq!(is_as_long, is_delayed, "{waited:?}");
        assert_over(&mut world);
    }
}

/// A host's fence holds a Copy back, also while its source changes.
#[test]
fn fence_holds_copies_across_namespaces_back() {
    let (mut world, far) = with_held_write();
    let admin = world.enabled_by(0, &ConnectOptions::default());
    enable(&mut world, admin);
    let io = world.io_queue(0, admin, 1);
    world.close(far);
    world.settle();
    let tags = [9, 19].map(|to| begin_across(&mut world, io, PLAIN, &[(RAM, 0, 1)], to));
    world.settle();
    assert!(tags.iter().all(|tag| world.take_reply(0, *tag).is_none()));
    assert_eq!(world.nodes[0].core.outstanding(&[RAM_DEVICE]).len(), 1);
    world.fault.release();
    for tag in tags {
        world.wait(io, tag).ok();
    }
    assert_eq!(blocks(&mut world, io, PLAIN, 9, 1), [1]);
    assert_over(&mut world);
}
