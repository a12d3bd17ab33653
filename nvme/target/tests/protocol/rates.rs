//! Rate limits: commands above them wait, in order and without memory, and none of them fails.

use nvme_spec::command::WriteZeroesControl;
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use nvme_target::{CloseReason, DeviceIndex, RATE_LIMITS_MAX, RateLimit, RateScope, TargetError};
use reactors::Nanos;

use crate::harness::{CACHED, ConnectOptions, HOST, Link, PLAIN, SUBSYSTEM, World};

/// Another host.
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000000c";

/// Commands that a queue has outstanding in a load.
const DEPTH: usize = 8;

/// The time between two turns of a load.
pub(crate) const TURN: Nanos = Nanos::from_micros(100);

/// The limit of 1000 commands in a second.
fn limit(scope: RateScope) -> RateLimit {
    RateLimit {
        scope,
        reads: true,
        writes: true,
        iops: Some(1000),
        bandwidth: None,
        burst: Nanos::from_millis(10),
    }
}

fn of_host() -> RateLimit {
    limit(RateScope::Host(HOST.to_owned()))
}

fn world(limits: Vec<RateLimit>) -> World {
    let world = World::new();
    world.target.set_rate_limits(limits).unwrap();
    world
}

/// The admin queue of a host on node 0, and an I/O queue on each of these nodes.
pub(crate) fn attach(world: &mut World, host: &'static str, nodes: &[usize]) -> (Link, Vec<Link>) {
    let call = ConnectOptions {
        host,
        host_id: if host == HOST { [1; 16] } else { [2; 16] },
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(0, &call);
    let queues = (1..).zip(nodes).map(|(qid, node)| {
        let io = ConnectOptions {
            cntlid: admin.info.controller_id,
            qid,
            ..call
        };
        world.connect(*node, &io)
    });
    (admin, queues.collect())
}

pub(crate) fn read(nsid: u32, blocks: u16) -> Sqe {
    let block = if nsid == CACHED { 4096 } else { 512 };
    let sgl = SglDescriptor::transport(u32::from(blocks) * block);
    Sqe::read(nsid, 0, blocks - 1).with_sgl(sgl)
}

fn write(nsid: u32) -> Sqe {
    Sqe::write(nsid, 0, 0, false).with_sgl(SglDescriptor::transport(512))
}

/// A queue that always has [`DEPTH`] commands outstanding.
pub(crate) struct Load {
    link: Link,
    sqe: Sqe,
    data: Vec<u8>,
    tags: Vec<u64>,
    pub(crate) completed: u64,
}

impl Load {
    pub(crate) fn new(link: Link, sqe: Sqe) -> Self {
        Self {
            link,
            sqe,
            data: Vec::new(),
            tags: Vec::new(),
            completed: 0,
        }
    }

    /// Waits for the commands that are outstanding.
    pub(crate) fn stop(&mut self, world: &mut World) {
        for tag in std::mem::take(&mut self.tags) {
            while world.take_reply(self.link.node, tag).is_none() {
                world.now += TURN;
                world.poll();
            }
        }
    }

    fn turn(&mut self, world: &mut World) {
        let mut left = Vec::new();
        for tag in std::mem::take(&mut self.tags) {
            match world.take_reply(self.link.node, tag) {
                Some(reply) => {
                    reply.ok();
                    self.completed += 1;
                }
                None => left.push(tag),
            }
        }
        self.tags = left;
        // A host sends a bounded number in a turn, even if all complete inline.
        for _ in 0..DEPTH {
            if self.tags.len() == DEPTH {
                break;
            }
            let sqe = self.sqe.with_cid(world.cid());
            match world.start(self.link, sqe, &self.data) {
                Ok(reply) => {
                    reply.ok();
                    self.completed += 1;
                }
                Err(tag) => self.tags.push(tag),
            }
        }
    }
}

/// Runs loads for a time.
pub(crate) fn run(world: &mut World, loads: &mut [Load], span: Nanos) {
    let end = world.now + span;
    while world.now < end {
        for load in &mut *loads {
            load.turn(world);
        }
        world.now += TURN;
        world.poll();
    }
}

fn second(world: &mut World, loads: &mut [Load]) -> Vec<u64> {
    let before: Vec<u64> = loads.iter().map(|it| it.completed).collect();
    run(world, loads, Nanos::from_secs(1));
    let after = loads.iter().map(|it| it.completed);
    after
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

#[track_caller]
fn assert_within(value: u64, wanted: u64, permille: u64) {
    let tolerance = wanted * permille / 1000;
    assert!(
        value.abs_diff(wanted) <= tolerance,
        "{value} is not within {permille} permille of {wanted}"
    );
}

#[test]
fn limit_of_commands_is_exact_over_all_reactors() {
    let mut world = world(vec![of_host()]);
    let (_, queues) = attach(&mut world, HOST, &[0, 1, 1]);
    let loads = queues
        .into_iter()
        .map(|link| Load::new(link, read(PLAIN, 1)));
    let mut loads: Vec<Load> = loads.collect();
    for _ in 0..3 {
        let done: u64 = second(&mut world, &mut loads).iter().sum();
        assert_within(done, 1000, 20);
    }
    let [snapshot] = &world.target.rate_limits()[..] else {
        panic!("one limit")
    };
    assert!(snapshot.by_iops.commands > 2900);
    assert!(snapshot.by_iops.waited > Nanos::from_secs(10));
    assert_eq!(snapshot.by_bandwidth.commands, 0);
}

#[test]
fn limit_of_bytes_is_exact_for_commands_of_any_size() {
    const BYTES: u64 = 10 << 20;
    let limited = RateLimit {
        iops: None,
        bandwidth: Some(BYTES),
        ..of_host()
    };
    let mut world = world(vec![limited]);
    let (_, queues) = attach(&mut world, HOST, &[0, 1]);
    let mut loads = vec![
        Load::new(queues[0], read(CACHED, 1)),
        Load::new(queues[1], read(PLAIN, 64)),
    ];
    for _ in 0..3 {
        let done = second(&mut world, &mut loads);
        assert_within(done[0] * 4096 + done[1] * 32768, BYTES, 20);
    }
}

/// The highest rates that a configuration takes are as exact as others.
#[test]
fn fast_limits_are_exact() {
    let limited = RateLimit {
        iops: Some(70_000),
        ..of_host()
    };
    let mut world = world(vec![limited]);
    let (_, queues) = attach(&mut world, HOST, &[0, 1]);
    let loads = queues
        .into_iter()
        .map(|link| Load::new(link, read(PLAIN, 1)));
    let mut loads: Vec<Load> = loads.collect();
    let done: u64 = second(&mut world, &mut loads).iter().sum();
    assert_within(done, 70_000, 20);
}

#[test]
fn reads_and_writes_have_separate_limits() {
    let reads = RateLimit {
        writes: false,
        ..of_host()
    };
    let writes = RateLimit {
        reads: false,
        iops: Some(200),
        ..of_host()
    };
    let mut world = world(vec![reads, writes]);
    let (_, queues) = attach(&mut world, HOST, &[0, 1]);
    let mut loads = vec![
        Load::new(queues[0], read(PLAIN, 1)),
        Load {
            data: vec![7; 512],
            ..Load::new(queues[1], write(PLAIN))
        },
    ];
    second(&mut world, &mut loads);
    let done = second(&mut world, &mut loads);
    assert_within(done[0], 1000, 20);
    assert_within(done[1], 200, 20);
}

#[test]
fn hosts_of_a_limited_device_share_it() {
    let mut world = world(vec![limit(RateScope::Device(DeviceIndex(3)))]);
    let (_, one) = attach(&mut world, HOST, &[0]);
    let (_, other) = attach(&mut world, OTHER, &[1, 1]);
    let mut loads = vec![
        Load::new(one[0], read(PLAIN, 1)),
        Load::new(other[0], read(PLAIN, 1)),
        Load::new(other[1], read(CACHED, 1)),
    ];
    second(&mut world, &mut loads);
    let done = second(&mut world, &mut loads);
    assert_within(done[0] + done[1], 1000, 20);
    assert_within(done[0], 500, 100);
    assert!(done[2] > 10_000, "another device is not limited");
}

#[test]
fn host_without_a_limit_is_not_delayed() {
    let mut world = world(vec![limit(RateScope::HostAt {
        host: HOST.to_owned(),
        subsystem: SUBSYSTEM.to_owned(),
    })]);
    let (_, limited) = attach(&mut world, HOST, &[0]);
    let (_, other) = attach(&mut world, OTHER, &[0]);
    let mut loads = vec![Load::new(limited[0], read(PLAIN, 1))];
    second(&mut world, &mut loads);
    assert_eq!(loads[0].tags.len(), DEPTH);
    for _ in 0..100 {
        let sqe = read(PLAIN, 1).with_cid(world.cid());
        assert!(world.start(other[0], sqe, &[]).is_ok());
    }
}

/// Starts commands until one waits. Returns its tag.
fn exhaust(world: &mut World, link: Link, sqe: Sqe) -> u64 {
    for _ in 0..1000 {
        let sqe = sqe.with_cid(world.cid());
        if let Err(tag) = world.start(link, sqe, &[7; 512]) {
            return tag;
        }
    }
    panic!("the limit delays nothing");
}

#[test]
fn commands_wait_in_order_without_memory_and_wake_the_reactor() {
    let mut world = world(vec![of_host()]);
    let (_, queues) = attach(&mut world, HOST, &[0]);
    let io = queues[0];
    let mut tags = vec![exhaust(&mut world, io, read(PLAIN, 1))];
    for _ in 0..4 {
        let sqe = read(CACHED, 1).with_cid(world.cid());
        tags.push(world.start(io, sqe, &[]).expect_err("it waits"));
    }
    assert_eq!((world.leases(), world.nodes[0].core.in_flight()), (0, 0));
    world.settle();
    assert!(world.nodes[0].prepare_sleep());
    for (place, tag) in tags.iter().enumerate() {
        assert!(
            world.take_reply(0, *tag).is_none(),
            "command {place} is early"
        );
        while let Some(at) = world.nodes[0]
            .next_deadline()
            .filter(|_| !world.nodes[0].core.has_ready())
        {
            world.now = world.now.max(at);
            world.poll();
        }
        world.continue_released(0);
        world.settle();
        for later in &tags[place + 1..] {
            assert!(world.take_reply(0, *later).is_none(), "overtaken");
        }
        assert!(
            world.take_reply(0, *tag).is_some(),
            "command {place} is late"
        );
    }
}

#[test]
fn inline_completions_are_limited() {
    let mut world = world(vec![of_host()]);
    let (_, queues) = attach(&mut world, HOST, &[0]);
    let now = world.now;
    let core = &mut world.nodes[0].core;
    let (read, write) = (read(PLAIN, 1), Sqe::write(PLAIN, 0, 0, false));
    let write = write.with_sgl(SglDescriptor::in_capsule(0, 512));
    let mut completed = 0;
    for _ in 0..50 {
        completed += u32::from(
            core.complete_inline(queues[0].queue, &read, None, now)
                .is_some(),
        );
        let data = Some(&[7; 512][..]);
        completed += u32::from(
            core.complete_inline(queues[0].queue, &write, data, now)
                .is_some(),
        );
    }
    // The burst, and the command that exceeds it.
    assert_eq!(completed, 11);
    let later = now + Nanos::from_millis(2);
    assert!(
        core.complete_inline(queues[0].queue, &read, None, later)
            .is_some()
    );
}

/// Queues take the cost of several commands at once. In a turn, they start no more commands than the
/// rate lets start; what they have not used is there for others afterwards.
#[test]
fn what_a_queue_took_in_advance_is_returned() {
    for sent in 1..=11 {
        let mut world = world(vec![of_host()]);
        let (_, queues) = attach(&mut world, HOST, &[0, 0]);
        let now = world.now;
        let started = |world: &mut World, queue: usize, sent: u32| {
            let core = &mut world.nodes[0].core;
            let read = read(PLAIN, 1);
            let completed = (0..sent)
                .filter_map(|_| core.complete_inline(queues[queue].queue, &read, None, now));
            completed.count() as u32
        };
        assert_eq!(started(&mut world, 0, sent), sent);
        let beside = started(&mut world, 1, 50);
        assert!(beside <= 11 - sent, "{sent} and {beside} in a turn");
        world.poll();
        assert_eq!(started(&mut world, 1, 50), 11 - sent - beside);
    }
}

/// A queue that is closed in the turn leaves nothing of its host's rate unused.
#[test]
fn what_a_closed_queue_took_in_advance_is_returned() {
    let mut world = world(vec![of_host()]);
    let (_, queues) = attach(&mut world, HOST, &[0, 0]);
    let now = world.now;
    let core = &mut world.nodes[0].core;
    let read = read(PLAIN, 1);
    for _ in 0..4 {
        assert!(
            core.complete_inline(queues[0].queue, &read, None, now)
                .is_some()
        );
    }
    core.close_queue(queues[0].queue, now);
    let rest = (0..50).filter_map(|_| core.complete_inline(queues[1].queue, &read, None, now));
    assert_eq!(rest.count(), 7);
}

/// Base 2.1 §5.1.1: a command that waits is aborted, and later ones do not wait longer.
#[test]
fn waiting_commands_can_be_aborted() {
    let mut world = world(vec![of_host()]);
    let (admin, queues) = attach(&mut world, HOST, &[0]);
    let io = queues[0];
    exhaust(&mut world, io, read(PLAIN, 1));
    let waiting = [700, 701, 702].map(|cid| {
        let started = world.start(io, read(PLAIN, 1).with_cid(cid), &[]);
        started.expect_err("it waits")
    });
    let aborted = world.command(admin, Sqe::abort_command(1, 701));
    assert_eq!(aborted.dw0(), 0);
    world.gathered(io, waiting[1]).is(Status::ABORT_REQUESTED);
    world.advance(Nanos::from_millis(4));
    assert!(world.take_reply(0, waiting[0]).is_some() && world.take_reply(0, waiting[2]).is_some());
    let aborted = world.command(admin, Sqe::abort_command(1, 702));
    assert_eq!(aborted.dw0(), 1, "it is complete");
}

/// Base 2.1 §6.4: a Disconnect does not wait for the rates.
#[test]
fn disconnect_ends_waiting_commands() {
    let mut world = world(vec![of_host()]);
    let (_, queues) = attach(&mut world, HOST, &[0]);
    let io = queues[0];
    let waiting = exhaust(&mut world, io, read(PLAIN, 1));
    let disconnect = world.start(io, Sqe::disconnect_queue().with_cid(900), &[]);
    let disconnect = disconnect.expect_err("a command is outstanding");
    world.gathered(io, waiting).is(Status::ABORTED_SQ_DELETION);
    world.wait(io, disconnect).ok();
    assert_eq!(world.close_reasons(0), [CloseReason::Disconnected]);
    world.close(io);
}

#[test]
fn closed_connection_and_reset_forget_waiting_commands() {
    let mut world = world(vec![of_host()]);
    let (admin, queues) = attach(&mut world, HOST, &[0, 1]);
    for io in &queues {
        exhaust(&mut world, *io, read(PLAIN, 1));
    }
    world.close(queues[0]);
    world.set_cc(admin, Cc::new());
    world.settle();
    assert_eq!(world.close_reasons(1), [CloseReason::ControllerReset]);
    world.close(queues[1]);
    world.advance(Nanos::from_secs(1));
    let queues: Vec<usize> = world.nodes.iter().map(|it| it.core.queues()).collect();
    assert_eq!(queues, [1, 0], "the admin queue is left");
    assert_eq!(world.nodes[1].next_deadline(), None);
    // The controller's own timers are later.
    let next = world.nodes[0].next_deadline();
    assert!(next.is_none_or(|it| it > world.now + Nanos::from_secs(1)));
}

#[test]
fn drain_does_not_wait_for_the_rates() {
    let mut world = world(vec![RateLimit {
        iops: Some(1),
        ..of_host()
    }]);
    let (_, queues) = attach(&mut world, HOST, &[1]);
    let io = queues[0];
    let mut waiting = vec![exhaust(&mut world, io, read(PLAIN, 1))];
    for _ in 0..20 {
        let sqe = read(PLAIN, 1).with_cid(world.cid());
        waiting.push(world.start(io, sqe, &[]).expect_err("it waits"));
    }
    world.target.drain_subsystem(SUBSYSTEM).unwrap();
    world.settle();
    for tag in waiting {
        world.wait(io, tag).ok();
    }
    world.settle();
    assert_eq!(world.close_reasons(1), [CloseReason::Revoked]);
}

#[test]
fn hand_over_does_not_wait_for_the_rates() {
    let mut world = world(vec![RateLimit {
        iops: Some(1),
        ..of_host()
    }]);
    let (_, queues) = attach(&mut world, HOST, &[0]);
    let waiting = exhaust(&mut world, queues[0], read(PLAIN, 1));
    world.nodes[0].core.release_throttled();
    world.gathered(queues[0], waiting).ok();
}

/// A change applies to the commands that wait, and a limit that stays keeps what was used.
#[test]
fn limits_change_under_load() {
    let slow = RateLimit {
        iops: Some(1),
        ..of_host()
    };
    let mut world = world(vec![slow.clone()]);
    let (_, queues) = attach(&mut world, HOST, &[0]);
    let io = queues[0];
    let waiting = exhaust(&mut world, io, read(PLAIN, 1));
    let of_others = limit(RateScope::Host(OTHER.to_owned()));
    world
        .target
        .set_rate_limits(vec![of_others.clone(), slow])
        .unwrap();
    world.settle();
    assert!(
        world.take_reply(0, waiting).is_none(),
        "the limit is the same"
    );
    world
        .target
        .set_rate_limits(vec![of_others, of_host()])
        .unwrap();
    world.advance(Nanos::from_millis(2));
    assert!(
        world.take_reply(0, waiting).is_some(),
        "a faster one applies"
    );
    exhaust(&mut world, io, read(PLAIN, 1));
    let waiting = exhaust(&mut world, io, read(PLAIN, 1));
    world.target.set_rate_limits(Vec::new()).unwrap();
    world.settle();
    assert!(world.take_reply(0, waiting).is_some(), "no limit applies");
    let sqe = read(PLAIN, 1).with_cid(world.cid());
    world.start(io, sqe, &[]).expect("at once").ok();
}

/// Base 2.1 §3.9: the keep-alive timer does not depend on commands that wait.
#[test]
fn keep_alive_does_not_wait() {
    let mut world = world(vec![RateLimit {
        iops: Some(1),
        ..of_host()
    }]);
    let (admin, queues) = attach(&mut world, HOST, &[0]);
    exhaust(&mut world, queues[0], read(PLAIN, 1));
    world.command(admin, Sqe::keep_alive()).ok();
}

/// Commands that only change data, without moving any, are limited too; a flush is not.
#[test]
fn other_commands_are_counted() {
    let mut world = world(vec![of_host()]);
    let (_, queues) = attach(&mut world, HOST, &[0]);
    let io = queues[0];
    exhaust(&mut world, io, read(PLAIN, 1));
    let zeroes =
        Sqe::write_zeroes_range(PLAIN, 10, WriteZeroesControl::new()).with_cid(world.cid());
    let waiting = world.start(io, zeroes, &[]).expect_err("it waits");
    world.command(io, Sqe::flush(PLAIN)).ok();
    assert!(world.take_reply(0, waiting).is_none());
    world.advance(Nanos::from_millis(3));
    world.wait(io, waiting).ok();
}

#[test]
fn too_many_limits_are_refused() {
    let world = World::new();
    let limits = vec![of_host(); RATE_LIMITS_MAX + 1];
    let count = limits.len();
    let refused = world.target.set_rate_limits(limits).unwrap_err();
    assert_eq!(refused, TargetError::TooManyRateLimits { count });
    assert!(world.target.rate_limits().is_empty());
}
