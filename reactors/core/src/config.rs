//! What a reactor is told at start.

use crate::time::Nanos;

/// What a reactor does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Never sleeps: the lowest latency, one core burnt.
    Poll,
    /// Spins, then spins with pauses, then blocks until a descriptor, a message or a deadline wakes
    /// it.
    Adaptive {
        /// How long to poll at full speed without progress.
        spin: Nanos,
        /// How long to go on with pause instructions between turns before blocking.
        pause: Nanos,
    },
    /// Blocks as soon as one turn made no progress.
    Sleep,
}

impl IdlePolicy {
    /// `Adaptive` with 50 µs of spinning and 50 µs of pausing: a few times the cost of a sleep and
    /// a wake-up, so that a busy connection's gaps are polled through and an idle core is given
    /// back at once.
    #[must_use]
    pub const fn adaptive() -> IdlePolicy {
        IdlePolicy::Adaptive {
            spin: Nanos::from_micros(50),
            pause: Nanos::from_micros(50),
        }
    }
}

impl Default for IdlePolicy {
    fn default() -> IdlePolicy {
        IdlePolicy::adaptive()
    }
}

/// How one reactor is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorConfig {
    /// The core to pin the thread to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// What to do without work.
    pub idle: IdlePolicy,
    /// A single poll, flush, job or timer longer than this is a stall: counted, named, warned of.
    pub stall_threshold: Nanos,
    /// Control messages that may wait ([`ReactorHandle::run`](crate::ReactorHandle::run)).
    pub inbox_capacity: usize,
    /// Reactor timers that may be armed at once ([`Reactor::schedule`](crate::Reactor::schedule)).
    pub timers_max: usize,
    /// Granularity of the reactor's own timers.
    pub timer_tick: Nanos,
}

impl ReactorConfig {
    /// The defaults, pinned to `core`.
    #[must_use]
    pub fn pinned(core: usize) -> ReactorConfig {
        ReactorConfig {
            core: Some(core),
            ..ReactorConfig::default()
        }
    }
}

impl Default for ReactorConfig {
    fn default() -> ReactorConfig {
        ReactorConfig {
            core: None,
            idle: IdlePolicy::default(),
            stall_threshold: Nanos::from_millis(10),
            inbox_capacity: 256,
            timers_max: 256,
            timer_tick: Nanos::from_millis(1),
        }
    }
}
