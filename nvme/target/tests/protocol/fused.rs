//! Compare and Write, the fused operation (Base 2.1 §3.4.2, NVM 1.1 §2.1.3): results, atomicity on
//! all cores, and invalid input.

use nvme_spec::command::{Cns, Fuse, WriteZeroesControl};
use nvme_spec::identify::IdentifyController;
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use nvme_target::{Admission, CoreLimits, Work};
use zerocopy::FromBytes;

use crate::harness::{
    CACHED, ConnectOptions, HOLD, LATER, Link, PLAIN, RAM, READ_ONLY, Reply, World,
};

const MISSING: Status = Status::ABORTED_MISSING_FUSED;
const FAILED: Status = Status::ABORTED_FAILED_FUSED;
const INVALID: Status = Status::INVALID_FIELD.with_dnr();
const MISCOMPARE: Status = Status::COMPARE_FAILURE;

fn block_bytes(nsid: u32) -> usize {
    if nsid == CACHED { 4096 } else { 512 }
}

fn compare(nsid: u32, lba: u64) -> Sqe {
    let sqe = Sqe::compare(nsid, lba, 0).with_fuse(Fuse::FIRST);
    sqe.with_sgl(SglDescriptor::transport(block_bytes(nsid) as u32))
}

fn write(nsid: u32, lba: u64) -> Sqe {
    let sqe = Sqe::write(nsid, lba, 0, false).with_fuse(Fuse::SECOND);
    sqe.with_sgl(SglDescriptor::transport(block_bytes(nsid) as u32))
}

fn zeroes(lba: u64, nlb_z: u16) -> Sqe {
    Sqe::write_zeroes_range(RAM, lba, WriteZeroesControl::new().with_nlb_z(nlb_z))
}

/// The tags of both commands of a pair.
type Pair = (u64, u64);

/// Starts a Compare and Write of a block whose bytes are all `from` to all `to`.
#[track_caller]
fn begin(world: &mut World, io: Link, nsid: u32, lba: u64, (from, to): (u8, u8)) -> Pair {
    let size = block_bytes(nsid);
    let (first, second) = (world.cid(), world.cid());
    let started = world.start(io, compare(nsid, lba).with_cid(first), &vec![from; size]);
    let first = started.expect_err("it waits for the second");
    let started = world.start(io, write(nsid, lba).with_cid(second), &vec![to; size]);
    (first, started.expect_err("it waits for its block"))
}

#[track_caller]
fn end(world: &mut World, io: Link, pair: Pair) -> (Status, Status) {
    let status = |reply: Reply| reply.status();
    (
        status(world.wait(io, pair.0)),
        status(world.wait(io, pair.1)),
    )
}

/// Whether in-capsule data, zeroes, is written to a block inline.
fn writes_inline(world: &mut World, io: Link, lba: u64) -> bool {
    let size = block_bytes(RAM);
    let write = Sqe::write(RAM, lba, 0, false).with_cid(world.cid());
    let write = write.with_sgl(SglDescriptor::in_capsule(0, size as u32));
    let (data, now) = (vec![0; size], world.now);
    let core = &mut world.nodes[io.node].core;
    let written = core.complete_inline(io.queue, &write, Some(&data), now);
    written.is_some()
}

fn is_open(world: &mut World, io: Link, pair: Pair) -> bool {
    let replies = [pair.0, pair.1].map(|tag| world.take_reply(io.node, tag).is_some());
    replies == [false, false]
}

/// Writes a block without waiting for the result.
fn begin_write(world: &mut World, io: Link, nsid: u32, lba: u64, value: u8) -> Result<Reply, u64> {
    let size = block_bytes(nsid);
    let sqe = Sqe::write(nsid, lba, 0, false).with_cid(world.cid());
    let sqe = sqe.with_sgl(SglDescriptor::transport(size as u32));
    world.start(io, sqe, &vec![value; size])
}

#[track_caller]
fn is_block(world: &mut World, io: Link, nsid: u32, lba: u64, value: u8) {
    let data = world.read_blocks(io, nsid, lba, 1);
    assert_eq!(data, vec![value; block_bytes(nsid)]);
}

/// A host with an I/O queue on each core.
fn two_queues(world: &mut World) -> [Link; 2] {
    let admin = world.enabled(0);
    [world.io_queue(0, admin, 1), world.io_queue(1, admin, 2)]
}

/// After everything has ended, no block is excluded any more and no lease is in use.
#[track_caller]
fn assert_clean(world: &mut World, io: Link) {
    world.settle();
    for nsid in [RAM, CACHED] {
        let tag = begin_write(world, io, nsid, 7, 9);
        let reply = match tag {
            Ok(reply) => reply,
            Err(tag) => world.wait(io, tag),
        };
        assert!(reply.status().is_success());
    }
    for node in &world.nodes {
        assert_eq!(node.core.in_flight(), 0);
        let audit = node.core.audit();
        assert_eq!((audit.pairs, audit.exclusions), (0, 0), "{audit:?}");
    }
    assert_eq!(world.leases(), 0);
}

/// Base 2.1 §5.1.13.2.1, FUSES; NVM 1.1 §2.1.4, ACWU.
#[test]
fn identify_reports_compare_and_write_of_one_block() {
    let mut world = World::new();
    let (admin, _) = world.ready();
    let page = world.read(admin, Sqe::identify_structure(Cns::CONTROLLER, 0), 4096);
    let page = IdentifyController::read_from_bytes(&page.ok()).expect("a page");
    assert!(page.fuses.compare_and_write());
    assert_eq!(page.acwu_z.get(), 0);
}

#[test]
fn block_that_matches_is_replaced() {
    for nsid in [RAM, CACHED, PLAIN] {
        let mut world = World::new();
        let [io, other] = two_queues(&mut world);
        let pair = begin(&mut world, io, nsid, 7, (0, 5));
        let done = end(&mut world, io, pair);
        assert_eq!(done, (Status::SUCCESS, Status::SUCCESS));
        is_block(&mut world, other, nsid, 7, 5);
        is_block(&mut world, other, nsid, 6, 0);
        let pair = begin(&mut world, other, nsid, 7, (5, 0));
        assert_eq!(end(&mut world, other, pair).1, Status::SUCCESS);
        assert_clean(&mut world, io);
    }
}

#[test]
fn block_that_does_not_match_is_kept() {
    let mut world = World::new();
    let [io, _] = two_queues(&mut world);
    let pair = begin(&mut world, io, RAM, 7, (1, 5));
    let (first, second) = end(&mut world, io, pair);
    assert!(first.is(MISCOMPARE), "{first}");
    assert_eq!(second, FAILED);
    is_block(&mut world, io, RAM, 7, 0);
    assert_clean(&mut world, io);
}

/// Base 2.1 §3.4.2: the other command is aborted.
#[test]
fn command_without_its_partner_is_aborted() {
    let mut world = World::new();
    let [io, _] = two_queues(&mut world);
    world.write(io, write(RAM, 0), &[1; 512]).is(MISSING);
    let next: [Sqe; 3] = [
        Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512)),
        Sqe::flush(RAM),
        zeroes(0, 0),
    ];
    for sqe in next {
        let first = world.start(io, compare(RAM, 0).with_cid(world.cid()), &[0; 512]);
        let first = first.expect_err("it waits for the second");
        assert!(world.command(io, sqe).status().is_success());
        assert_eq!(world.wait(io, first).status(), MISSING);
    }
    // A first command does not follow another one.
    let first = world.start(io, compare(RAM, 0).with_cid(world.cid()), &[0; 512]);
    let pair = begin(&mut world, io, RAM, 0, (0, 0));
    assert_eq!(world.wait(io, first.expect_err("waits")).status(), MISSING);
    assert_eq!(end(&mut world, io, pair).1, Status::SUCCESS);
    assert_clean(&mut world, io);
}

/// A host need not send the second command: the end of the queue does not wait for it.
#[test]
fn queue_ends_without_the_second_command() {
    let mut world = World::new();
    let [io, other] = two_queues(&mut world);
    let first = world.start(io, compare(RAM, 0).with_cid(world.cid()), &[0; 512]);
    let first = first.expect_err("it waits for the second");
    let disconnect = world.start(io, Sqe::disconnect_queue().with_cid(world.cid()), &[]);
    let disconnect = disconnect.expect_err("it waits for the first");
    assert_eq!(world.wait(io, first).status(), MISSING);
    assert!(world.wait(io, disconnect).status().is_success());
    world.close(io);
    let started = world.start(other, compare(RAM, 0).with_cid(world.cid()), &[0; 512]);
    started.expect_err("it waits for the second");
    world.close(other);
    let (_, io) = world.ready();
    assert_clean(&mut world, io);
}

/// Both commands of an invalid pair fail, in either order of their data.
#[test]
fn invalid_pairs_are_refused() {
    let two_blocks = |sqe: Sqe| {
        let mut range = sqe.read_write();
        range.control = range.control.with_nlb_z(1);
        sqe.with_read_write(range)
            .with_sgl(SglDescriptor::transport(1024))
    };
    let exceeded = Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_dnr();
    let range = Status::LBA_OUT_OF_RANGE.with_dnr();
    let protected = Status::NAMESPACE_WRITE_PROTECTED.with_dnr();
    let other_opcode = compare(RAM, 0).with_fuse(Fuse::SECOND);
    let write_first = write(RAM, 0).with_fuse(Fuse::FIRST);
    let cases = [
        (compare(RAM, 0), write(RAM, 1), INVALID, INVALID),
        (compare(RAM, 0), write(PLAIN, 0), INVALID, INVALID),
        (compare(RAM, 0), other_opcode, FAILED, INVALID),
        (write_first, write(RAM, 0), INVALID, FAILED),
        (compare(RAM, 1 << 40), write(RAM, 1 << 40), range, FAILED),
        (compare(RAM, 0), write(RAM, 1 << 40), FAILED, range),
        (
            two_blocks(compare(RAM, 0)),
            two_blocks(write(RAM, 0)),
            exceeded,
            FAILED,
        ),
        (compare(RAM, 0), two_blocks(write(RAM, 0)), FAILED, exceeded),
        (
            compare(READ_ONLY, 0),
            write(READ_ONLY, 0),
            FAILED,
            protected,
        ),
    ];
    for (first, second, of_first, of_second) in cases {
        for is_late in [false, true] {
            let mut world = World::new();
            let [io, _] = two_queues(&mut world);
            let status = run(&mut world, io, [first, second], is_late);
            assert_eq!(status, [of_first, of_second], "{first:?} {second:?}");
            is_block(&mut world, io, RAM, 0, 0);
            assert_clean(&mut world, io);
        }
    }
    let mut world = World::new();
    let [io, _] = two_queues(&mut world);
    world
        .write(io, compare(RAM, 0).with_fuse(Fuse(3)), &[0; 512])
        .is(INVALID);
    assert_clean(&mut world, io);
}

/// Sends two commands. `is_late`: the data of the first comes after that of the second.
#[track_caller]
fn run(world: &mut World, io: Link, sqes: [Sqe; 2], is_late: bool) -> [Status; 2] {
    let mut works: Vec<(u64, Work)> = Vec::new();
    let mut replies: Vec<(u64, Status)> = Vec::new();
    let tags = sqes.map(|sqe| {
        let (tag, now, cid) = (world.tag(), world.now, world.cid());
        let core = &mut world.nodes[io.node].core;
        match core.admit(io.queue, tag, &sqe.with_cid(cid), now) {
            Admission::Respond(cqe) => replies.push((tag, cqe.status().with_more(false))),
            Admission::Held | Admission::Copy | Admission::Throttled => panic!("not a part"),
            Admission::Work(work) if is_late => works.insert(0, (tag, work)),
            Admission::Work(work) => works.push((tag, work)),
        }
        tag
    });
    for (tag, work) in works {
        let data = vec![0; work.bytes() as usize];
        let reply = world.execute(io, tag, work, &data);
        replies.extend(reply.map(|reply| (tag, reply.status())));
    }
    tags.map(|tag| {
        let at_once = replies.iter().find(|(of, _)| *of == tag);
        at_once.map_or_else(|| world.wait(io, tag).status(), |(_, status)| *status)
    })
}

/// Another target that serves the same device does not know of the excluded block.
#[test]
fn shared_device_has_no_compare_and_write() {
    let limits = CoreLimits {
        queues_max: 16,
        executions_max: 512,
    };
    let mut world = World::with(2, limits, |config| {
        config.subsystems[0].namespaces[0].reservations = false;
    });
    let [io, _] = two_queues(&mut world);
    world.write(io, compare(RAM, 0), &[0; 512]).is(INVALID);
    world.write(io, write(RAM, 0), &[0; 512]).is(FAILED);
    assert_clean(&mut world, io);
}

/// Of two equal pairs one succeeds, whichever cores they are on.
#[test]
fn one_of_two_competitors_wins() {
    for places in [[0, 0], [0, 1], [1, 0]] {
        let mut world = World::new();
        let queues = two_queues(&mut world);
        let [a, b] = places.map(|place| queues[place]);
        let first = begin(&mut world, a, CACHED, 3, (0, 1));
        let second = begin(&mut world, b, CACHED, 3, (0, 2));
        let results = [end(&mut world, a, first), end(&mut world, b, second)];
        let won = results.map(|it| it == (Status::SUCCESS, Status::SUCCESS));
        let lost = results.map(|it| it.0.is(MISCOMPARE) && it.1 == FAILED);
        assert_eq!(won, lost.map(|lost| !lost));
        assert_ne!(won[0], won[1]);
        is_block(&mut world, a, CACHED, 3, if won[0] { 1 } else { 2 });
        assert_clean(&mut world, a);
    }
}

/// A write of another core that its device already has completes first.
#[test]
fn pair_waits_for_earlier_writes_of_its_block() {
    for is_deallocate in [false, true] {
        let mut world = World::new();
        let [io, other] = two_queues(&mut world);
        world.fault.arm(HOLD, true);
        let earlier = match is_deallocate {
            false => begin_write(&mut world, other, RAM, 7, 4),
            true => {
                let zeroes = zeroes(0, 15);
                world.start(other, zeroes.with_cid(world.cid()), &[])
            }
        };
        let earlier = earlier.expect_err("the device holds it");
        world.fault.arm(HOLD, false);
        let pair = begin(&mut world, io, RAM, 7, (0, 5));
        // Pairs for other blocks do not wait.
        let distant = begin(&mut world, io, RAM, 100, (0, 5));
        assert_eq!(end(&mut world, io, distant).1, Status::SUCCESS);
        world.settle();
        assert!(is_open(&mut world, io, pair));
        world.fault.release();
        assert!(world.wait(other, earlier).status().is_success());
        let (first, second) = end(&mut world, io, pair);
        match is_deallocate {
            true => assert_eq!((first, second), (Status::SUCCESS, Status::SUCCESS)),
            false => assert!(first.is(MISCOMPARE) && second == FAILED),
        }
        assert_clean(&mut world, io);
    }
}

/// While a pair is in progress, no other command changes its block, on either core; reads and other
/// blocks do not wait.
#[test]
fn later_writes_wait_for_the_pair() {
    let mut world = World::new();
    let [io, other] = two_queues(&mut world);
    assert!(writes_inline(&mut world, other, 7), "without a pair");
    let pair = begin(&mut world, io, RAM, 7, (0, 5));
    // The devices hold the Compare, once it is granted.
    world.fault.arm(HOLD, true);
    world.settle();
    world.fault.arm(HOLD, false);
    let mut waiting = Vec::new();
    for link in [io, other] {
        let write = begin_write(&mut world, link, RAM, 7, 8);
        waiting.push((link, write.expect_err("it waits")));
        let zeroes = zeroes(7, 0);
        let zeroes = world.start(link, zeroes.with_cid(world.cid()), &[]);
        waiting.push((link, zeroes.expect_err("it waits")));
        assert!(!writes_inline(&mut world, link, 7), "nor inline");
        is_block(&mut world, link, RAM, 7, 0);
        let distant = begin_write(&mut world, link, RAM, 6, 8);
        let distant = distant.unwrap_or_else(|tag| world.wait(link, tag));
        assert!(distant.status().is_success());
    }
    world.settle();
    for (link, tag) in &waiting {
        assert!(world.take_reply(link.node, *tag).is_none());
    }
    world.fault.release();
    assert_eq!(
        end(&mut world, io, pair),
        (Status::SUCCESS, Status::SUCCESS)
    );
    for (link, tag) in waiting {
        assert!(world.wait(link, tag).status().is_success());
    }
    assert_clean(&mut world, io);
}

/// Writes that waited for a pair start before the next pair for the same block.
#[test]
fn waiting_write_is_not_overtaken_by_later_pairs() {
    let mut world = World::new();
    let [io, other] = two_queues(&mut world);
    let first = begin(&mut world, io, RAM, 7, (0, 1));
    world.fault.arm(HOLD, true);
    world.settle();
    world.fault.arm(HOLD, false);
    let write = begin_write(&mut world, other, RAM, 7, 8).expect_err("it waits");
    let second = begin(&mut world, io, RAM, 7, (1, 2));
    world.fault.release();
    assert_eq!(end(&mut world, io, first).1, Status::SUCCESS);
    assert!(world.wait(other, write).status().is_success());
    let (compared, _) = end(&mut world, io, second);
    assert!(compared.is(MISCOMPARE), "the write was between them");
    is_block(&mut world, io, RAM, 7, 8);
    assert_clean(&mut world, io);
}

/// The abort of one command ends the other one.
#[test]
fn abort_of_a_part_ends_the_pair() {
    for place in [0, 1] {
        let mut world = World::new();
        let admin = world.enabled(0);
        let (io, other) = (world.io_queue(0, admin, 1), world.io_queue(1, admin, 2));
        world.fault.arm(HOLD, true);
        let earlier = begin_write(&mut world, other, RAM, 7, 4).expect_err("held");
        world.fault.arm(HOLD, false);
        let cid = world.cid();
        let pair = begin(&mut world, io, RAM, 7, (0, 5));
        let abort = Sqe::abort_command(1, cid.wrapping_add(1 + place));
        assert_eq!(world.command(admin, abort).dw0() & 1, 0, "performed");
        let (first, second) = end(&mut world, io, pair);
        let expected = match place {
            0 => (Status::ABORT_REQUESTED, FAILED),
            _ => (FAILED, Status::ABORT_REQUESTED),
        };
        assert_eq!((first, second), expected);
        world.fault.release();
        world.wait(other, earlier);
        is_block(&mut world, io, RAM, 7, 4);
        assert_clean(&mut world, io);
    }
}

/// While the Compare is in a device, it is not aborted; the Write still can be. Others may then
/// change the block before the device has completed the Compare, because nothing depends on it.
#[test]
fn abort_of_a_part_while_the_compare_is_in_a_device() {
    for place in [0, 1] {
        let mut world = World::new();
        let admin = world.enabled(0);
        let (io, other) = (world.io_queue(0, admin, 1), world.io_queue(1, admin, 2));
        let cid = world.cid();
        let pair = begin(&mut world, io, RAM, 7, (0, 5));
        world.fault.arm(HOLD, true);
        world.settle();
        world.fault.arm(HOLD, false);
        let abort = Sqe::abort_command(1, cid.wrapping_add(1 + place));
        let is_aborted = world.command(admin, abort).dw0() & 1 == 0;
        assert_eq!(is_aborted, place == 1);
        let write = begin_write(&mut world, other, RAM, 7, 8).expect_err("not inline");
        world.settle();
        let written = world.take_reply(other.node, write);
        assert_eq!(written.is_some(), is_aborted);
        world.fault.release();
        let (first, second) = end(&mut world, io, pair);
        let expected = match place {
            0 => (Status::SUCCESS, Status::SUCCESS),
            _ => (Status::SUCCESS, Status::ABORT_REQUESTED),
        };
        assert_eq!((first, second), expected);
        let written = written.unwrap_or_else(|| world.wait(other, write));
        assert!(written.status().is_success());
        is_block(&mut world, io, RAM, 7, 8);
        assert_clean(&mut world, io);
    }
}

/// The end of the connection in every state leaves no excluded block behind, and no write follows a
/// Compare of an ended queue.
#[test]
fn end_of_the_queue_ends_its_pairs() {
    for turns in 0..6 {
        for effect in [None, Some(HOLD), Some(LATER)] {
            let mut world = World::new();
            let admin = world.enabled(0);
            let io = world.io_queue(0, admin, 1);
            if let Some(effect) = effect {
                world.fault.arm(effect, true);
            }
            begin(&mut world, io, RAM, 7, (0, 5));
            for _ in 0..turns {
                world.poll();
            }
            let was_over = {
                let core = &world.nodes[0].core;
                core.audit().pairs == 0
            };
            world.close(io);
            if let Some(effect) = effect {
                world.fault.arm(effect, false);
            }
            world.fault.release();
            world.settle();
            let again = world.io_queue(1, admin, 1);
            let byte = world.read_blocks(again, RAM, 7, 1)[0];
            match effect {
                Some(_) => assert_eq!(byte, 0, "{turns} turns, {effect:?}"),
                None => assert!(byte == 5 || !was_over, "{turns} turns"),
            }
            assert_clean(&mut world, again);
        }
    }
}

/// Base 2.1 §3.7.2: after a reset no part of a pair takes effect.
#[test]
fn reset_ends_the_pairs() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let io = world.io_queue(0, admin, 1);
    begin(&mut world, io, RAM, 7, (0, 5));
    world.set_cc(admin, Cc::new());
    world.settle();
    for close in world.closes(0) {
        world.nodes[0].core.close_queue(close.queue, world.now);
    }
    world.settle();
    world.set_cc(admin, Cc::enabled_nvm());
    let io = world.io_queue(0, admin, 1);
    is_block(&mut world, io, RAM, 7, 0);
    assert_clean(&mut world, io);
}

/// A device that fails after the Compare fails only the Write.
#[test]
fn failed_write_leaves_the_result_of_the_compare() {
    let mut world = World::new();
    let [io, _] = two_queues(&mut world);
    let pair = begin(&mut world, io, RAM, 7, (0, 5));
    world.fault.arm(HOLD, true);
    world.settle();
    world.fault.arm(HOLD, false);
    world.fault.arm(crate::harness::FAIL_INTERNAL, true);
    world.fault.release();
    let (first, second) = end(&mut world, io, pair);
    world.fault.arm(crate::harness::FAIL_INTERNAL, false);
    assert_eq!(first, Status::SUCCESS);
    assert!(second.is(Status::INTERNAL_ERROR), "{second}");
    assert_clean(&mut world, io);
}

/// Compare and Write as counters do it: hosts on both cores increment a block, with other writes of
/// the same block among them. No increment is lost, and none succeeds twice.
#[test]
fn increments_are_not_lost() {
    let mut random = 12_345_u64;
    let mut below = move |count: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % count
    };
    for _ in 0..30 {
        let mut world = World::new();
        let admin = world.enabled(0);
        let queues = [1, 2, 3, 4].map(|qid| {
            let node = usize::from(qid % 2);
            world.io_queue(node, admin, qid)
        });
        // The value that each queue last knew, and its pair in progress.
        let mut known = [0_u8; 4];
        let mut open: [Option<(Pair, [Option<Status>; 2])>; 4] = [None; 4];
        let mut successes = 0_u8;
        for _ in 0..400 {
            let place = below(4) as usize;
            let io = queues[place];
            match below(6) {
                0 | 1 if open[place].is_none() && successes < 250 => {
                    let values = (known[place], known[place] + 1);
                    open[place] = Some((begin(&mut world, io, RAM, 9, values), [None; 2]));
                }
                2 => world.fault.arm(HOLD, below(3) == 0),
                3 => world.fault.release(),
                4 => {
                    let node = below(2) as usize;
                    let now = world.now;
                    world.nodes[node].poll(now);
                    world.nodes[node].flush();
                }
                _ => world.poll(),
            }
            for (place, entry) in open.iter_mut().enumerate() {
                let Some((pair, status)) = entry else {
                    continue;
                };
                let node = queues[place].node;
                for (tag, status) in [pair.0, pair.1].into_iter().zip(status.iter_mut()) {
                    if let Some(reply) = world.take_reply(node, tag) {
                        *status = Some(reply.status());
                    }
                }
                let [Some(first), Some(second)] = *status else {
                    continue;
                };
                *entry = None;
                assert_eq!(first.is_success(), second.is_success());
                if first.is_success() {
                    successes += 1;
                    known[place] += 1;
                } else {
                    assert!(first.is(MISCOMPARE), "{first}");
                    known[place] = successes;
                }
            }
        }
        world.fault.arm(HOLD, false);
        for _ in 0..50 {
            world.fault.release();
            world.poll();
        }
        for (place, entry) in open.iter().enumerate() {
            if let Some((pair, status)) = entry
                && status[1].is_none()
            {
                let second = world.wait(queues[place], pair.1).status();
                successes += u8::from(second.is_success());
            }
        }
        assert!(successes > 0);
        is_block(&mut world, queues[0], RAM, 9, successes);
        assert_clean(&mut world, queues[1]);
    }
}

/// A host's fence holds a pair back like a write.
#[test]
fn fence_holds_pairs_back() {
    let mut world = World::new();
    let lost = world.enabled(1);
    let far = world.io_queue(1, lost, 1);
    world.fault.arm(HOLD, true);
    begin_write(&mut world, far, RAM, 7, 4).expect_err("held");
    world.fault.arm(HOLD, false);
    let admin = world.enabled_by(0, &ConnectOptions::default());
    let io = world.io_queue(0, admin, 1);
    world.close(far);
    world.settle();
    // The orphan is for another block, but older than the pair.
    let pair = begin(&mut world, io, RAM, 20, (0, 5));
    world.settle();
    assert!(is_open(&mut world, io, pair));
    world.fault.release();
    assert_eq!(end(&mut world, io, pair).1, Status::SUCCESS);
    assert_clean(&mut world, io);
}
