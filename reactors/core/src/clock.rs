//! Clocks: the processor's time-stamp counter, and virtual time for tests and simulation.

mod tsc;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

use crate::time::Nanos;
use tsc::Scale;

/// A monotonic clock.
pub trait Clock {
    /// Nanoseconds since the clock's origin. Never less than an earlier result on the same thread.
    fn now(&self) -> Nanos;
}

/// The process's clock: the time-stamp counter scaled to nanoseconds, with CLOCK_MONOTONIC's
/// origin.
///
/// The counter is used if the processor reports it as invariant and the kernel uses it as its clock
/// source. A counter that the kernel found to be unstable is thus not used; every reading is then a
/// `clock_gettime`. The scale is measured once per process in about 2 ms and shared by all copies,
/// so times of different reactors are comparable. Its error is some parts per million; the kernel's
/// clock itself may be slewed by up to 500.
#[derive(Clone, Copy, Debug)]
pub struct TscClock {
    scale: Option<Scale>,
}

impl TscClock {
    /// Returns the process's clock, which the first call measures.
    #[must_use]
    pub fn new() -> TscClock {
        static SCALE: OnceLock<Option<Scale>> = OnceLock::new();
        TscClock {
            scale: *SCALE.get_or_init(Scale::measure),
        }
    }

    /// Creates a clock that calls the kernel for every reading.
    #[must_use]
    pub const fn from_kernel() -> TscClock {
        TscClock { scale: None }
    }

    /// Whether readings use the time-stamp counter.
    #[must_use]
    pub const fn uses_counter(&self) -> bool {
        self.scale.is_some()
    }
}

impl Default for TscClock {
    fn default() -> TscClock {
        TscClock::new()
    }
}

impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Nanos {
        match &self.scale {
            Some(scale) => scale.now(),
            None => kernel_now(),
        }
    }
}

fn nanos(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Nanos(
        secs.saturating_mul(1_000_000_000)
            .saturating_add(time.tv_nsec.unsigned_abs()),
    )
}

fn kernel_now() -> Nanos {
    nanos(ClockId::Monotonic)
}

/// A clock that advances only on command. Clones share the time; it belongs to one thread.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    now: Rc<Cell<Nanos>>,
}

impl VirtualClock {
    /// Creates a clock at zero.
    #[must_use]
    pub fn new() -> VirtualClock {
        VirtualClock::default()
    }

    /// Advances the time by `span`.
    pub fn advance(&self, span: Nanos) {
        self.now.set(self.now.get() + span);
    }

    /// Advances the time to `to`; does nothing if it is later already.
    pub fn advance_to(&self, to: Nanos) {
        self.now.set(self.now.get().max(to));
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        self.now.get()
    }
}

#[cfg(test)]
mod tests;
