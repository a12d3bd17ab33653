//! A flight recorder: the latest trace events of a reactor, always enabled, in a ring of fixed
//! size.
//!
//! The reactor's thread records a time and a few small numbers with plain stores; any thread can
//! read them without delaying it. This module does not interpret the numbers, except for the
//! reactor's own events: sleeps and stalls.

mod raw;

use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::time::Nanos;

/// Capacity of a recorder in events, 16 bytes each.
pub const TRACE_RECORDS_MAX: usize = 32_768;

type Ring = raw::Ring<TRACE_RECORDS_MAX>;

/// The kind of a trace event. The first numbers belong to the reactor; those from
/// [`FIRST_FREE`](TraceRecordKind::FIRST_FREE) on belong to other crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceRecordKind(pub u8);

impl TraceRecordKind {
    /// The thread blocks in the kernel.
    pub const SLEEP: TraceRecordKind = TraceRecordKind(1);
    /// It is awake again. Argument: 1 if a message or a descriptor woke it, 0 for a deadline.
    pub const WAKE: TraceRecordKind = TraceRecordKind(2);
    /// An activity exceeded the stall threshold and has ended. Argument: the poller's number, see
    /// [`poller_name`](crate::ReactorStats::poller_name). Queue and command: the duration, see
    /// [`stalled_for`](TraceRecord::stalled_for).
    pub const STALL: TraceRecordKind = TraceRecordKind(3);
    /// The first number for other crates.
    pub const FIRST_FREE: TraceRecordKind = TraceRecordKind(16);
}

/// A trace event in one word: a kind, a 24-bit argument, and two 16-bit numbers, by convention a
/// queue and a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceRecord(u64);

impl TraceRecord {
    /// Creates an event; bits of `argument` beyond the 24th are dropped.
    #[inline]
    #[must_use]
    pub const fn new(
        kind: TraceRecordKind,
        argument: u32,
        queue: u16,
        command: u16,
    ) -> TraceRecord {
        let argument = (argument & 0xFF_FFFF) as u64;
        TraceRecord((kind.0 as u64) << 56 | argument << 32 | (queue as u64) << 16 | command as u64)
    }

    /// The same event with a command. For an event whose command is 0, prepared in advance.
    #[inline]
    #[must_use]
    pub const fn with_command(self, command: u16) -> TraceRecord {
        TraceRecord(self.0 | command as u64)
    }

    /// The same event with a kind. For an event whose kind is 0.
    #[inline]
    #[must_use]
    pub const fn with_kind(self, kind: TraceRecordKind) -> TraceRecord {
        TraceRecord(self.0 | (kind.0 as u64) << 56)
    }

    /// The same event with more bits of the argument set.
    #[inline]
    #[must_use]
    pub const fn with_argument(self, argument: u32) -> TraceRecord {
        TraceRecord(self.0 | ((argument & 0xFF_FFFF) as u64) << 32)
    }

    pub(crate) const fn stall(poller: u16, lasted: Nanos) -> TraceRecord {
        let us = lasted.as_micros();
        let us = if us > u32::MAX as u64 {
            u32::MAX
        } else {
            us as u32
        };
        TraceRecord::new(
            TraceRecordKind::STALL,
            poller as u32,
            (us >> 16) as u16,
            us as u16,
        )
    }

    /// The kind of the event.
    #[must_use]
    pub const fn kind(self) -> TraceRecordKind {
        TraceRecordKind((self.0 >> 56) as u8)
    }

    /// The argument.
    #[inline]
    #[must_use]
    pub const fn argument(self) -> u32 {
        (self.0 >> 32) as u32 & 0xFF_FFFF
    }

    /// The queue.
    #[must_use]
    pub const fn queue(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The command.
    #[must_use]
    pub const fn command(self) -> u16 {
        self.0 as u16
    }

    /// Duration of a [`TraceRecordKind::STALL`] in whole microseconds, about an hour at most.
    #[must_use]
    pub const fn stalled_for(self) -> Nanos {
        Nanos::from_micros(self.0 & 0xFFFF_FFFF)
    }
}

/// The writing end. All clones stay on one thread.
///
/// ```compile_fail
/// fn send<T: Send>() {}
/// send::<reactors::recorder::Recorder>();
/// ```
#[derive(Clone)]
pub struct Recorder {
    ring: Arc<Ring>,
    /// Only one thread may write.
    not_send: PhantomData<Rc<()>>,
}

impl Recorder {
    /// Creates a recorder that belongs to no reactor.
    #[must_use]
    pub fn new() -> Recorder {
        Recording::new().recorder()
    }

    /// Records an event at `now`, which may be earlier than the time of the previous event.
    #[inline]
    pub fn record(&self, now: Nanos, note: TraceRecord) {
        if !cfg!(uncounted) {
            self.ring.push([now.0, note.0]);
        }
    }

    /// The reading end.
    #[must_use]
    pub fn recording(&self) -> Recording {
        Recording(Arc::clone(&self.ring))
    }
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// The reading end, usable by any thread.
#[derive(Clone)]
pub struct Recording(Arc<Ring>);

/// A copy of events from the ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRecords {
    /// Number of events recorded before the first of these, since the beginning.
    pub before: u64,
    /// Times and events, in the order of recording.
    pub notes: Vec<(Nanos, TraceRecord)>,
}

impl Recording {
    pub(crate) fn new() -> Recording {
        Recording(Arc::new(Ring::new()))
    }

    /// Creates the writing end. Only one thread may use it.
    pub(crate) fn recorder(&self) -> Recorder {
        Recorder {
            ring: Arc::clone(&self.0),
            not_send: PhantomData,
        }
    }

    /// The events from number `from` on, counted since the beginning, as far as the ring still
    /// contains them.
    #[must_use]
    pub fn read(&self, from: u64) -> TraceRecords {
        let (before, words) = self.0.read(from);
        let notes = words.into_iter();
        TraceRecords {
            before,
            notes: notes
                .map(|[time, note]| (Nanos(time), TraceRecord(note)))
                .collect(),
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recording").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
