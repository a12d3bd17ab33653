//! Explores every interleaving of the handshake between a drive's owner and a queue pair with loom:
//! the handshake is compiled here again, with loom's atomics instead of those of `src/sync.rs`. A
//! cell stands for the queues: loom fails if owner and pair access it at the same time, or if
//! either does not see all earlier accesses of the other.

#[path = "../src/handshake.rs"]
mod handshake;

mod sync {
    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    }
}

use handshake::{Presence, Word};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const ACTIVE: u64 = 1;
const QUIESCED: u64 = 2;
const ACTIVE_AGAIN: u64 = 3;

struct Drive {
    word: Word,
    pairs: [Presence; 2],
    queues: [UnsafeCell<u32>; 2],
}

fn drive() -> Arc<Drive> {
    Arc::new(Drive {
        word: Word::new(ACTIVE),
        pairs: [Presence::default(), Presence::default()],
        queues: [UnsafeCell::new(0), UnsafeCell::new(0)],
    })
}

impl Drive {
    /// The life of a pair: attached, polled a number of times, and detached.
    fn poll_pair(&self, index: usize, polls: usize) {
        let pair = &self.pairs[index];
        let mut seen = pair.attach(&self.word);
        pair.acknowledge(seen);
        for _ in 0..polls {
            if seen != QUIESCED {
                self.queues[index].with_mut(|_| ());
            }
            let now = self.word.load();
            if now != seen {
                seen = now;
                pair.acknowledge(now);
            }
        }
        pair.detach();
    }

    /// The owner stops the pairs, accesses the queues exclusively, and lets the pairs continue.
    fn reset(&self, pairs: usize) {
        self.word.publish(QUIESCED);
        for pair in &self.pairs[..pairs] {
            while !pair.follows(QUIESCED) {
                thread::yield_now();
            }
        }
        for queue in &self.queues[..pairs] {
            queue.with_mut(|_| ());
        }
        self.word.publish(ACTIVE_AGAIN);
    }
}

/// Without a bound these models take minutes. Three preemptions are enough to find errors.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn reset_has_exclusive_access_to_the_queue() {
    bounded(|| {
        let drive = drive();
        let owner = {
            let drive = Arc::clone(&drive);
            thread::spawn(move || drive.reset(1))
        };
        drive.poll_pair(0, 3);
        owner.join().expect("no panic");
    });
}

#[test]
fn reattached_pair_observes_the_reset() {
    bounded(|| {
        let drive = drive();
        let owner = {
            let drive = Arc::clone(&drive);
            thread::spawn(move || drive.reset(1))
        };
        drive.poll_pair(0, 1);
        drive.poll_pair(0, 1);
        owner.join().expect("no panic");
    });
}

#[test]
fn a_reset_waits_for_every_pair() {
    bounded(|| {
        let drive = drive();
        let spawn = |run: fn(&Drive)| {
            let drive = Arc::clone(&drive);
            thread::spawn(move || run(&drive))
        };
        let first = spawn(|drive| drive.poll_pair(0, 1));
        let owner = spawn(|drive| drive.reset(2));
        drive.poll_pair(1, 1);
        first.join().expect("no panic");
        owner.join().expect("no panic");
    });
}
