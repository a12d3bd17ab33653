//! Configuration of a reactor.

use crate::time::Nanos;

/// Idle behaviour of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Never sleeps: the lowest latency, at the cost of one core.
    Poll,
    /// Spins, then spins with pauses, then blocks until a descriptor, a message or a deadline wakes
    /// it.
    Adaptive {
        /// Time to poll at full speed without progress.
        spin: Nanos,
        /// Time to continue with pause instructions between turns before blocking.
        pause: Nanos,
    },
    /// Blocks after a single turn without progress.
    Sleep,
}

impl IdlePolicy {
    /// `Adaptive` with 50 µs of spinning and 50 µs of pausing. This is a few times the cost of a
    /// sleep and a wake-up, so that the reactor polls through the gaps of a busy connection and an
    /// idle core is released quickly.
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

/// Configuration of one reactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorConfig {
    /// The core to pin the thread to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// Behaviour without work.
    pub idle: IdlePolicy,
    /// Stall threshold of a single poll, flush, job or timer: longer ones are counted, named and
    /// logged.
    pub stall_threshold: Nanos,
    /// Capacity for control messages ([`ReactorHandle::run`](crate::ReactorHandle::run)).
    pub inbox_capacity: usize,
    /// Maximum number of armed reactor timers ([`Reactor::schedule`](crate::Reactor::schedule)).
    pub timers_max: usize,
    /// Granularity of the reactor's own timers.
    pub timer_tick: Nanos,
}

impl ReactorConfig {
    /// The default configuration, pinned to `core`.
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
