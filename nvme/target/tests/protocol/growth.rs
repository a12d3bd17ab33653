//! The cost of Abort, of the end of a queue and of Connect does not grow with the tables of a core,
//! nor with the entries of other queues in them.
//!
//! The tests compare the shortest times of many tries, with a bound far above random variation,
//! because they detect a search through a table of 65,536 entries.

use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_target::CoreLimits;

use crate::harness::{ConnectOptions, LATER, Link, RAM, World};

/// Tries, of which the fastest counts.
const TRIES: usize = 200;
/// Maximum ratio of the time with the large table to the time with the small one.
const TIMES_MAX: u32 = 8;
/// The size of the table, and the waiting commands of each host.
const SMALL: (usize, u16) = (1 << 10, 0);
const LARGE: (usize, u16) = (1 << 16, 60);

/// A world with a table of this size, and hosts with this many waiting commands each.
fn world((executions_max, waiting): (usize, u16)) -> (World, Link) {
    let limits = CoreLimits {
        queues_max: 64,
        executions_max,
    };
    let mut world = World::with(1, limits, |config| config.limits.controllers_max = 64);
    let admin = world.enabled(0);
    world.fault.arm(LATER, true);
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    for host in 0..8 {
        let call = ConnectOptions {
            host_id: [host + 1; 16],
            ..ConnectOptions::default()
        };
        let other = world.enabled_by(0, &call);
        let cntlid = other.info.controller_id;
        let io = world.connect(
            0,
            &ConnectOptions {
                cntlid,
                qid: 1,
                sqsize_z: 63,
                ..call
            },
        );
        for cid in 0..waiting {
            world
                .start(io, read.with_cid(cid), &[])
                .expect_err("put off");
        }
    }
    (world, admin)
}

/// The shortest time of an action after its preparation.
fn best(
    world: &mut World,
    mut prepare: impl FnMut(&mut World) -> Option<Link>,
    mut action: impl FnMut(&mut World, Option<Link>),
) -> Duration {
    let times = (0..TRIES).map(|_| {
        let prepared = prepare(world);
        let begin = Instant::now();
        action(world, prepared);
        begin.elapsed()
    });
    times.min().expect("some tries")
}

#[track_caller]
fn compare(what: &str, measure: impl Fn(&mut World, Link) -> Duration) {
    let [small, large] = [SMALL, LARGE].map(|extent| {
        let (mut world, admin) = world(extent);
        measure(&mut world, admin)
    });
    let floor = Duration::from_micros(2);
    assert!(
        large <= small.max(floor) * TIMES_MAX,
        "{what}: {small:?} in a small table, {large:?} in a large one"
    );
}

/// Abort of a command that does not exist searches only its queue.
#[test]
fn abort_cost_depends_only_on_its_queue() {
    compare("Abort", |world, admin| {
        let io = world.io_queue(0, admin, 1);
        assert_eq!(io.info.qid, 1);
        let turn = |world: &mut World| {
            let now = world.now;
            world.nodes[0].poll(now);
            None
        };
        best(world, turn, |world, _| {
            world.command(admin, Sqe::abort_command(1, 77)).ok();
        })
    });
}

/// The end of an I/O queue searches only its own commands.
#[test]
fn queue_close_cost_depends_only_on_its_commands() {
    compare("close", |world, admin| {
        let open = |world: &mut World| Some(world.io_queue(0, admin, 1));
        best(world, open, |world, io| world.close(io.expect("opened")))
    });
}

/// The cost of a host that connects and disconnects immediately does not depend on other queues.
#[test]
fn connect_cost_is_independent_of_other_commands() {
    compare("Connect", |world, _| {
        let idle = |_: &mut World| None;
        best(world, idle, |world, _| {
            let admin = world.connect(0, &ConnectOptions::default());
            world.close(admin);
        })
    });
}
