//! One rate that all reactors share: one atomic word, no lock.
//!
//! The word is the *theoretical arrival time* of the generic cell rate algorithm (ITU-T I.371): when
//! the next command conforms. A command may start if that time has passed, whatever its size, and
//! moves it on by its cost. The time never falls behind the clock by more than the burst. So in any
//! interval, commands cost at most the interval, the burst, and the cost of one command.
//!
//! A command that may not start yet *reserves* its turn: it moves the time on as well and starts
//! when the previous value has passed. Turns are in the order of the reservations, on all reactors,
//! so no command starves.
//!
//! `tests/loom.rs` explores every interleaving.

use reactors::Nanos;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Binary digits of a nanosecond's fraction in the unit of time, so that the cost of a command is
/// exact to a percent at the highest rates. The clock may run for 2^60 ns (36 years).
const FRACTION_BITS: u32 = 4;

/// Binary digits of the fraction in the cost of a byte.
const BYTE_FRACTION_BITS: u32 = 32;

const SECOND: u64 = 1_000_000_000 << FRACTION_BITS;

/// A rate of commands or bytes, alone on its cache line.
#[repr(align(64))]
pub(crate) struct Rate {
    /// When the next command conforms.
    next: AtomicU64,
    per_command: u64,
    per_byte: u64,
    burst: u64,
    throttled: AtomicU64,
    waited_ns: AtomicU64,
}

impl Rate {
    /// At most `commands` in a second.
    pub(crate) fn of_commands(commands: u64, burst: Nanos) -> Self {
        Self::new(SECOND / commands.max(1), 0, burst)
    }

    /// At most `bytes` in a second.
    pub(crate) fn of_bytes(bytes: u64, burst: Nanos) -> Self {
        let second = u128::from(SECOND) << BYTE_FRACTION_BITS;
        let per_byte = second / u128::from(bytes.max(1));
        Self::new(0, u64::try_from(per_byte).unwrap_or(u64::MAX), burst)
    }

    fn new(per_command: u64, per_byte: u64, burst: Nanos) -> Self {
        Self {
            next: AtomicU64::new(0),
            per_command,
            per_byte,
            burst: time(burst),
            throttled: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    /// The cost of a command that moves `bytes` bytes.
    #[inline(always)]
    fn cost(&self, bytes: u32) -> u64 {
        let of_bytes = (u128::from(self.per_byte) * u128::from(bytes)) >> BYTE_FRACTION_BITS;
        self.per_command + of_bytes as u64
    }

    /// Takes the cost of a command if it may start now.
    #[inline(always)]
    pub(crate) fn take(&self, bytes: u32, now: Nanos) -> bool {
        let now = time(now);
        let (cost, earliest) = (self.cost(bytes), now.saturating_sub(self.burst));
        let mut next = self.next.load(Ordering::Relaxed);
        // The word orders nothing but itself.
        while next <= now {
            match self.next.compare_exchange_weak(
                next,
                next.max(earliest) + cost,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(changed) => next = changed,
            }
        }
        false
    }

    /// Takes the cost of a command, and returns when it may start.
    pub(crate) fn reserve(&self, bytes: u32, now: Nanos) -> Nanos {
        let (cost, earliest) = (self.cost(bytes), time(now).saturating_sub(self.burst));
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let start = next.max(earliest);
            match self.next.compare_exchange_weak(
                next,
                start.saturating_add(cost),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Nanos(start.div_ceil(1 << FRACTION_BITS)),
                Err(changed) => next = changed,
            }
        }
    }

    /// Returns the cost of a command that does not start.
    pub(crate) fn give_back(&self, bytes: u32) {
        self.next.fetch_sub(self.cost(bytes), Ordering::Relaxed);
    }

    /// Counts a command that this rate delayed.
    pub(crate) fn count_throttled(&self, waited: Nanos) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
        self.waited_ns.fetch_add(waited.0, Ordering::Relaxed);
    }

    /// The commands that it delayed so far, and the sum of their delays.
    pub(crate) fn throttled(&self) -> (u64, Nanos) {
        let waited = self.waited_ns.load(Ordering::Relaxed);
        (self.throttled.load(Ordering::Relaxed), Nanos(waited))
    }
}

/// A time in the unit of the word.
#[inline(always)]
fn time(at: Nanos) -> u64 {
    at.0 << FRACTION_BITS
}
