//! Two cores on two threads: a change on one is effective on the other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_target::{Admission, CloseReason, CoreLimits};

use crate::harness::{ConnectOptions, Link, Parts, RAM, World};

const ROUNDS: u32 = 60;
const LIMITS: CoreLimits = CoreLimits {
    queues_max: 16,
    executions_max: 1024,
};

/// Far longer than any round takes, so that a hang fails the test.
const TIMEOUT: Duration = Duration::from_secs(60);

fn until(mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < TIMEOUT, "nothing moves any more");
        thread::yield_now();
    }
}

/// Progress of the commands of one thread, for the other thread.
#[derive(Default)]
struct Commands {
    /// All admitted commands.
    begun: AtomicU32,
    /// Those that may still reach the device.
    busy: AtomicU32,
}

/// Sends one write; it may be refused.
fn write(world: &mut World, io: Link, commands: &Commands) {
    let (tag, now) = (world.tag(), world.now);
    let sqe = Sqe::write(RAM, tag % 64, 0, false).with_cid(tag as u16);
    let sqe = sqe.with_sgl(SglDescriptor::transport(512));
    let admission = world.nodes[0].core.admit(io.queue, tag, &sqe, now);
    let Admission::Work(work) = admission else {
        return;
    };
    commands.busy.fetch_add(1, Ordering::SeqCst);
    commands.begun.fetch_add(1, Ordering::SeqCst);
    // A point for the reset to happen, even if both threads share one CPU.
    thread::yield_now();
    let begun = world.execute(io, tag, work, &[7; 512]).is_none();
    if begun {
        until(|| {
            world.poll();
            world.take_reply(0, tag).is_some()
        });
    }
    commands.busy.fetch_sub(1, Ordering::SeqCst);
}

/// The I/O queue's thread: connects, writes until it has to close, and closes.
fn serve(parts: &Parts, controllers: mpsc::Receiver<u16>, commands: &Commands) {
    let mut world = World::of(parts, 1..2, LIMITS);
    for cntlid in controllers {
        // The controller may be reset again before the queue exists.
        let call = ConnectOptions {
            cntlid,
            qid: 1,
            ..ConnectOptions::default()
        };
        let Ok(io) = world.try_connect(0, &call) else {
            continue;
        };
        until(|| {
            write(&mut world, io, commands);
            world.poll();
            let reasons = world.close_reasons(0);
            assert!(
                reasons
                    .iter()
                    .all(|reason| *reason == CloseReason::ControllerReset)
            );
            !reasons.is_empty()
        });
        world.close(io);
        world.poll();
    }
    assert_eq!(world.nodes[0].core.queues(), 0);
}

/// Base 2.1 §3.7.2: after CSTS.RDY is 0 no earlier command reaches a device on any core, whatever
/// the order in which the threads run.
#[test]
fn no_earlier_command_reaches_a_device_after_reset() {
    let parts = Parts::new(2, |_| {});
    let (sender, receiver) = mpsc::channel();
    let commands = Commands::default();
    thread::scope(|scope| {
        let (shared, counter) = (&parts, &commands);
        let server = scope.spawn(move || serve(shared, receiver, counter));
        let mut world = World::of(&parts, 0..1, LIMITS);
        let admin = world.connect(0, &ConnectOptions::default());
        for round in 0..ROUNDS {
            world.set_cc(admin, Cc::enabled_nvm());
            let before = commands.begun.load(Ordering::SeqCst);
            sender
                .send(admin.info.controller_id)
                .expect("the other thread lives");
            // Varies how many commands have started before the reset.
            let enough = before + 1 + round % 4;
            until(|| commands.begun.load(Ordering::SeqCst) >= enough || server.is_finished());
            world.set_cc(admin, Cc::new());
            until(|| {
                world.poll();
                !world.csts(admin).rdy()
            });
            let busy = commands.busy.load(Ordering::SeqCst);
            let moved = parts.target.snapshot().devices[0].writes;
            assert!(busy == 0, "{busy} commands after the reset");
            thread::yield_now();
            assert_eq!(parts.target.snapshot().devices[0].writes, moved);
        }
        drop(sender);
        world.close(admin);
    });
    assert!(parts.target.snapshot().controllers.is_empty());
    assert!(parts.target.snapshot().devices[0].writes > 0);
}
