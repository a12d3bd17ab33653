//! The memory-ordering part of the sleep protocol; `tests/loom.rs` explores it.
//!
//! Sleeper: announce (store, fence), check every queue once more, then block or retract. Waker:
//! publish into a queue, fence, check the flag. The two fences are in one total order, so either
//! the sleeper sees the queue's entry or the waker sees the flag.
//!
//! Every change of the flag is a read-modify-write. Sleeps are rare enough, and loom models the
//! order of plain stores and a concurrent swap more weakly than the language defines it, so that it
//! would report lost wake-ups that cannot occur.

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

    /// Sleeper: called before the last check of its queues.
    pub(crate) fn announce(&self) {
        self.sleeping.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Sleeper: called after it woke up.
    pub(crate) fn cancel_announcement(&self) {
        self.sleeping.swap(false, Ordering::AcqRel);
    }

    /// Waker: called after publishing. Returns true for exactly one waker per sleep, which must
    /// then signal. A late signal (the sleeper is awake already) costs one needless wake-up and has
    /// no other effect.
    pub(crate) fn take_wake_duty(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_announced(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }
}
