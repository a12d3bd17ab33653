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
//! The speed of an *adapted* rate changes while it is used: [`Rate::adapt`]. Such a rate also counts
//! what it admits, and no command waits for it longer than [`ADAPTED_WAIT_MAX`].
//!
//! `tests/loom.rs` explores every interleaving.

// The speed is not synchronized with anything: a command that sees an old one is delayed as before
// the change. So the models need not explore it.
use std::sync::atomic::AtomicU64 as Speed;

use reactors::Nanos;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Binary digits of a nanosecond's fraction in the unit of time, so that the cost of a command is
/// exact to a percent at the highest rates. The clock may run for 2^60 ns (36 years).
const FRACTION_BITS: u32 = 4;

/// Binary digits of the fraction in the cost of a byte.
const BYTE_FRACTION_BITS: u32 = 32;

const SECOND: u64 = 1_000_000_000 << FRACTION_BITS;

/// The bytes that a command counts for at an adapted rate, beside those that it moves: the work of
/// a small command does not depend on its size.
pub(crate) const ADAPTED_COMMAND_BYTES: u64 = 4096;

/// The longest wait of a command for an adapted rate, however slow it is and however many commands
/// are before it. Linux hosts give up after 30 s.
pub(crate) const ADAPTED_WAIT_MAX: Nanos = Nanos::from_secs(2);

/// The longest time for which a host waits for commands that stop its stream one after the other,
/// if it fills its queue with them.
pub(crate) const ADAPTED_STREAM_WAIT_MAX: Nanos = Nanos::from_secs(10);

/// The longest time from a reservation of an adapted rate to its turn, so that a rate that becomes
/// faster does not leave commands waiting for turns of a slow one.
const ADAPTED_TURN_MAX: Nanos = Nanos::from_millis(500);

/// The longest wait of a command for an adapted rate. Where it stops its stream, others wait behind
/// it, as many as its queue has entries.
pub(crate) fn patience(stops_stream: bool, depth: u16) -> Nanos {
    let share = Nanos(ADAPTED_STREAM_WAIT_MAX.0 / u64::from(depth.max(1)));
    match stops_stream {
        true => share.min(ADAPTED_WAIT_MAX),
        false => ADAPTED_WAIT_MAX,
    }
}

/// A rate of commands or bytes, alone on its cache lines.
#[repr(align(64))]
pub(crate) struct Rate {
    /// When the next command conforms.
    next: AtomicU64,
    /// The cost of a command; that of an adapted rate changes. Both costs are zero without a limit.
    per_command: Speed,
    per_byte: Speed,
    burst: u64,
    is_adapted: bool,
    /// The bytes and commands that an adapted rate has let start, in bytes.
    admitted: AtomicU64,
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

    /// No limit until it is adapted.
    pub(crate) fn adapted(burst: Nanos) -> Self {
        Self {
            is_adapted: true,
            ..Self::new(0, 0, burst)
        }
    }

    fn new(per_command: u64, per_byte: u64, burst: Nanos) -> Self {
        Self {
            next: AtomicU64::new(0),
            per_command: Speed::new(per_command),
            per_byte: Speed::new(per_byte),
            burst: time(burst),
            is_adapted: false,
            admitted: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    /// Changes the limit of an adapted rate: bytes in a second, or none.
    pub(crate) fn adapt(&self, bytes: Option<u64>) {
        debug_assert!(self.is_adapted);
        let second = u128::from(SECOND) << BYTE_FRACTION_BITS;
        let per_byte = bytes.map_or(0, |it| second / u128::from(it.max(1)));
        let per_command = (per_byte * u128::from(ADAPTED_COMMAND_BYTES)) >> BYTE_FRACTION_BITS;
        let as_cost = |cost| u64::try_from(cost).unwrap_or(u64::MAX);
        self.per_byte.store(as_cost(per_byte), Ordering::Relaxed);
        self.per_command
            .store(as_cost(per_command), Ordering::Relaxed);
    }

    /// What an adapted rate has let start so far, in bytes.
    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// The cost of a command that moves `bytes` bytes.
    #[inline(always)]
    fn cost(&self, bytes: u32) -> u64 {
        let per_byte = self.per_byte.load(Ordering::Relaxed);
        let of_bytes = (u128::from(per_byte) * u128::from(bytes)) >> BYTE_FRACTION_BITS;
        self.per_command.load(Ordering::Relaxed) + of_bytes as u64
    }

    /// Takes the cost of `commands` commands of `bytes` bytes each if all may start now, one after
    /// the other.
    pub(crate) fn take(&self, bytes: u32, commands: u32, now: Nanos) -> bool {
        let now = time(now);
        let (cost, earliest) = (self.cost(bytes), now.saturating_sub(self.burst));
        if cost == 0 {
            self.count_admitted(bytes, commands);
            return true;
        }
        let before_last = cost.saturating_mul(u64::from(commands.saturating_sub(1)));
        let mut next = self.next.load(Ordering::Relaxed);
        // The word orders nothing but itself.
        loop {
            let last = next.max(earliest).saturating_add(before_last);
            if last > now {
                return false;
            }
            match self.next.compare_exchange_weak(
                next,
                last + cost,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.count_admitted(bytes, commands);
                    return true;
                }
                Err(changed) => next = changed,
            }
        }
    }

    /// Takes the cost of a command that waits, and returns when it may start: for an adapted rate, at
    /// `latest` whatever its speed.
    pub(crate) fn reserve(&self, bytes: u32, latest: Nanos, now: Nanos) -> Nanos {
        let (cost, earliest) = (self.cost(bytes), time(now).saturating_sub(self.burst));
        let (latest, furthest) = match self.is_adapted {
            true => (time(latest), time(now + ADAPTED_TURN_MAX)),
            false => (u64::MAX, u64::MAX),
        };
        self.count_admitted(bytes, 1);
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let turn = next.max(earliest).min(furthest);
            match self.next.compare_exchange_weak(
                next,
                turn.saturating_add(cost),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Nanos(turn.min(latest).div_ceil(1 << FRACTION_BITS)),
                Err(changed) => next = changed,
            }
        }
    }

    /// Returns the cost of `commands` commands of `bytes` bytes each that do not start.
    pub(crate) fn give_back(&self, bytes: u32, commands: u32) {
        let cost = self.cost(bytes).saturating_mul(u64::from(commands));
        if self.is_adapted {
            let admitted = admitted_bytes(bytes, commands);
            self.admitted.fetch_sub(admitted, Ordering::Relaxed);
            // The commands may have taken it at another speed.
            let less = |next: u64| Some(next.saturating_sub(cost));
            let order = Ordering::Relaxed;
            let _ = self.next.fetch_update(order, order, less);
            return;
        }
        self.next.fetch_sub(cost, Ordering::Relaxed);
    }

    /// Counts commands that an adapted rate lets start.
    #[inline(always)]
    fn count_admitted(&self, bytes: u32, commands: u32) {
        if self.is_adapted {
            let admitted = admitted_bytes(bytes, commands);
            self.admitted.fetch_add(admitted, Ordering::Relaxed);
        }
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

/// What `commands` commands of `bytes` bytes each count for at an adapted rate.
#[inline(always)]
fn admitted_bytes(bytes: u32, commands: u32) -> u64 {
    (u64::from(bytes) + ADAPTED_COMMAND_BYTES) * u64::from(commands)
}

/// A time in the unit of the word.
#[inline(always)]
fn time(at: Nanos) -> u64 {
    at.0 << FRACTION_BITS
}
