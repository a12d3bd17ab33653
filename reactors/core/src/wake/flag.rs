//! The half of the sleep protocol that is memory ordering only; `tests/loom.rs` explores it.
//!
//! Sleeper: announce (store, fence), look at every queue once more, then block or retract. Waker:
//! publish into a queue, fence, look at the flag. The two fences are in one total order, so either
//! the sleeper sees the queue's entry or the waker sees the flag.
//!
//! Every change of the flag is a read-modify-write: sleeping is rare enough, and loom keeps the
//! order of plain stores and a racing swap looser than the language does, so that it would report
//! wake-ups lost that cannot be lost.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

pub(crate) struct SleepFlag {
    sleeping: AtomicBool,
}

impl SleepFlag {
    pub(crate) fn new() -> SleepFlag {
        SleepFlag {
            sleeping: AtomicBool::new(false),
        }
    }

    /// The sleeper's side, before it looks at its queues for the last time.
    pub(crate) fn announce(&self) {
        self.sleeping.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// The sleeper's side, awake again.
    pub(crate) fn retract(&self) {
        self.sleeping.swap(false, Ordering::AcqRel);
    }

    /// The waker's side, after publishing: true for exactly one waker of a sleep, which must then
    /// signal. A signal that comes late (the sleeper is awake already) costs one needless wake-up
    /// and nothing else.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_announced(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }
}
