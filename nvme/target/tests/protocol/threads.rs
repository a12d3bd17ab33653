//! Two cores on two threads: what one does holds for the other from then on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nvme_spec::Sqe;
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_target::{Admission, CloseReason, CoreLimits};

use crate::harness::{HostCall, Link, Parts, RAM, World};

const ROUNDS: usize = 60;
const LIMITS: CoreLimits = CoreLimits {
    queues_max: 16,
    executions_max: 1024,
};

/// Far more than any round takes, so that a hang is a failure and not a hang.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "nothing moves any more");
        thread::yield_now();
    }
}

/// One write, if it is let in; `busy` counts commands that may reach the device.
fn write(world: &mut World, io: Link, busy: &AtomicU32) {
    let (tag, now) = (world.tag(), world.now);
    let sqe = Sqe::write(RAM, tag % 64, 0, false).with_cid(tag as u16);
    let sqe = sqe.with_sgl(SglDescriptor::transport(512));
    let admission = world.nodes[0].core.admit(io.queue, tag, &sqe, now);
    let Admission::Work(work) = admission else {
        return;
    };
    busy.fetch_add(1, Ordering::SeqCst);
    let begun = world.execute(io, tag, work, &[7; 512]).is_none();
    if begun {
        until(|| {
            world.poll();
            world.answer(0, tag).is_some()
        });
    }
    busy.fetch_sub(1, Ordering::SeqCst);
}

/// The I/O queue's thread: connects, writes until it has to close, and closes.
fn serve(parts: &Parts, controllers: mpsc::Receiver<u16>, busy: &AtomicU32) {
    let mut world = World::of(parts, 1..2, LIMITS);
    for cntlid in controllers {
        // The controller may be reset again before the queue is there.
        let call = HostCall {
            cntlid,
            qid: 1,
            ..HostCall::default()
        };
        let Ok(io) = world.try_connect(0, &call) else {
            continue;
        };
        until(|| {
            write(&mut world, io, busy);
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

/// Base 2.1 §3.7.2: once CSTS.RDY is 0 no command of before reaches a device, on any core, however
/// the threads are scheduled.
#[test]
fn a_reset_is_a_barrier() {
    let parts = Parts::new(2, |_| {});
    let (sender, receiver) = mpsc::channel();
    let busy = AtomicU32::new(0);
    thread::scope(|scope| {
        let (shared, counter) = (&parts, &busy);
        let server = scope.spawn(move || serve(shared, receiver, counter));
        let mut world = World::of(&parts, 0..1, LIMITS);
        let admin = world.connect(0, &HostCall::default());
        for _ in 0..ROUNDS {
            world.set_cc(admin, Cc::enabled_nvm());
            sender
                .send(admin.info.controller_id)
                .expect("the other thread lives");
            until(|| busy.load(Ordering::SeqCst) > 0 || server.is_finished());
            world.set_cc(admin, Cc::new());
            until(|| {
                world.poll();
                !world.csts(admin).rdy()
            });
            let commands = busy.load(Ordering::SeqCst);
            let moved = parts.target.snapshot().devices[0].writes;
            assert!(commands == 0, "{commands} commands after the reset");
            thread::yield_now();
            assert_eq!(parts.target.snapshot().devices[0].writes, moved);
        }
        drop(sender);
        world.close(admin);
    });
    assert!(parts.target.snapshot().controllers.is_empty());
    assert!(parts.target.snapshot().devices[0].writes > 0);
}
