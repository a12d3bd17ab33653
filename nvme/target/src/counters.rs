//! Counters of one core: written by its reactor alone, read by anyone.
//!
//! A single writer needs no read-modify-write: a relaxed load and store cost what a plain addition
//! costs, and another thread reads whole values.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stages::Histograms;
use crate::statuses::StatusTable;

/// One counter with a single writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `amount`; only the owning reactor may call it.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.set(self.get().wrapping_add(amount));
    }

    /// Sets a gauge; only the owning reactor may call it.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// What moved over one queue or into one device. Bytes and commands are of successful commands.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct IoCounters {
    /// Read commands.
    pub reads: Counter,
    /// Bytes read.
    pub bytes_read: Counter,
    /// Write commands.
    pub writes: Counter,
    /// Bytes written.
    pub bytes_written: Counter,
    /// Flush, Compare, Write Zeroes and Dataset Management commands.
    pub others: Counter,
    /// I/O commands that ended with an error.
    pub errors: Counter,
}

/// The values of [`IoCounters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Read commands.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Other I/O commands.
    pub others: u64,
    /// I/O commands that ended with an error.
    pub errors: u64,
}

impl IoTotals {
    /// Adds another queue's or core's share.
    pub fn add(&mut self, other: Self) {
        self.reads = self.reads.wrapping_add(other.reads);
        self.bytes_read = self.bytes_read.wrapping_add(other.bytes_read);
        self.writes = self.writes.wrapping_add(other.writes);
        self.bytes_written = self.bytes_written.wrapping_add(other.bytes_written);
        self.others = self.others.wrapping_add(other.others);
        self.errors = self.errors.wrapping_add(other.errors);
    }
}

impl IoCounters {
    /// Counts a read of so many bytes that succeeded; only the owning reactor may call it.
    #[inline]
    pub(crate) fn read(&self, bytes: u32) {
        self.reads.add(1);
        self.bytes_read.add(u64::from(bytes));
    }

    /// Counts a write of so many bytes that succeeded; only the owning reactor may call it.
    #[inline]
    pub(crate) fn wrote(&self, bytes: u32) {
        self.writes.add(1);
        self.bytes_written.add(u64::from(bytes));
    }

    /// The values now, not atomically together.
    #[must_use]
    pub fn totals(&self) -> IoTotals {
        IoTotals {
            reads: self.reads.get(),
            bytes_read: self.bytes_read.get(),
            writes: self.writes.get(),
            bytes_written: self.bytes_written.get(),
            others: self.others.get(),
            errors: self.errors.get(),
        }
    }

    /// Back to zero, for the slot's next user; only the owning reactor may call it.
    pub(crate) fn reset(&self) {
        let Self {
            reads,
            bytes_read,
            writes,
            bytes_written,
            others,
            errors,
        } = self;
        for counter in [reads, bytes_read, writes, bytes_written, others, errors] {
            counter.set(0);
        }
    }
}

/// Counters of one [`TargetCore`](crate::TargetCore).
#[derive(Debug, Default)]
pub struct CoreCounters {
    /// Commands that were admitted or answered, of all kinds.
    pub commands: Counter,
    /// Of these, on admin queues.
    pub admin_commands: Counter,
    /// Commands that ended with an error, of all kinds.
    pub errors: Counter,
    /// Errors that were counted but not logged, because there were too many at once.
    pub errors_not_logged: Counter,
    /// Connects that made a queue.
    pub connects: Counter,
    /// Connects that were refused.
    pub connects_refused: Counter,
    /// Associations of hosts that had lost one with the same subsystem.
    pub reconnects: Counter,
    /// Resets of controllers that hosts asked for.
    pub controller_resets: Counter,
    /// Keep-alive times that ran out.
    pub keep_alive_expired: Counter,
    /// Asynchronous events that hosts were told of.
    pub events: Counter,
    /// Requests that a device put off and that waited here.
    pub deferred: Counter,
    /// Commands that were in a device when their queue went away.
    pub orphaned: Counter,
    /// Device completions with a tag that nobody waits for.
    pub stale_completions: Counter,
    /// Calls with a queue handle that is no longer valid.
    pub stale_queues: Counter,
    /// Gauge: queues now.
    pub queues: Counter,
    /// Gauge: commands in execution now.
    pub executions: Counter,
    /// By device, in the order of the target's list.
    pub devices: Box<[IoCounters]>,
    /// Errors of commands that are of no subsystem.
    pub(crate) statuses: StatusTable,
    /// How long commands are in each device.
    pub(crate) device_latency: Box<[Histograms]>,
    /// By queue slot; a slot counts from zero when a new queue takes it.
    pub(crate) queue_slots: Box<[IoCounters]>,
}

impl CoreCounters {
    pub(crate) fn new(devices: usize, queues: usize) -> Self {
        Self {
            devices: (0..devices).map(|_| IoCounters::default()).collect(),
            device_latency: (0..devices).map(|_| Histograms::default()).collect(),
            queue_slots: (0..queues).map(|_| IoCounters::default()).collect(),
            ..Self::default()
        }
    }
}
