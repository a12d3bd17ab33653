//! Counters of one core, written only by its reactor and readable from any thread.

mod copies;
mod handover;
mod transfers;

pub(crate) use copies::CopyWay;
pub use copies::{CopyCounters, CopyTotals, HostPathReason};
pub use reactors::Counter;
pub use transfers::{TransferCounters, TransferReason, TransferTotals};

use crate::stages::Histograms;
use crate::statuses::StatusTable;

/// Traffic of one queue or device. Bytes and commands count successful commands only.
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

/// The values of [`IoCounters`] at one point in time.
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
    /// Adds the totals of another queue or core.
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
    /// Counts a successful read of `bytes` bytes; only the owning reactor may call it.
    #[inline]
    pub(crate) fn count_read(&self, bytes: u32) {
        self.reads.add(1);
        self.bytes_read.add(u64::from(bytes));
    }

    /// Counts a successful write of `bytes` bytes; only the owning reactor may call it.
    #[inline]
    pub(crate) fn count_write(&self, bytes: u32) {
        self.writes.add(1);
        self.bytes_written.add(u64::from(bytes));
    }

    /// The current values. They are read one by one, not atomically together.
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

    /// Resets to zero for the next user of the slot; only the owning reactor may call it.
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
    /// Commands of all kinds that were admitted or completed.
    pub commands: Counter,
    /// Those of them on admin queues.
    pub admin_commands: Counter,
    /// Commands of all kinds that ended with an error.
    pub errors: Counter,
    /// Errors that were counted but not logged, because their rate was too high.
    pub errors_not_logged: Counter,
    /// Connects that created a queue.
    pub connects: Counter,
    /// Connects that were refused.
    pub connects_refused: Counter,
    /// Queues that were authenticated, repetitions included.
    pub authentications: Counter,
    /// Authentications that failed.
    pub authentications_failed: Counter,
    /// Associations of hosts that had lost an association with the same subsystem.
    pub reconnects: Counter,
    /// Controller resets requested by hosts.
    pub controller_resets: Counter,
    /// Keep-alive timers that expired.
    pub keep_alive_expired: Counter,
    /// Asynchronous events that were reported to hosts.
    pub events: Counter,
    /// Requests that a device deferred, and commands that a fence held back.
    pub deferred: Counter,
    /// Commands that a device had when their queue ended.
    pub orphaned: Counter,
    /// Device completions with a stale tag.
    pub stale_completions: Counter,
    /// Calls with a stale queue handle.
    pub stale_queues: Counter,
    /// Gauge: current number of queues.
    pub queues: Counter,
    /// Gauge: current number of commands in execution.
    pub executions: Counter,
    /// By device index.
    pub devices: Box<[IoCounters]>,
    /// By device index.
    pub copies: Box<[CopyCounters]>,
    /// By device index.
    pub transfers: Box<[TransferCounters]>,
    /// Errors of commands that belong to no subsystem.
    pub(crate) statuses: StatusTable,
    /// Time that commands spend in each device.
    pub(crate) device_latency: Box<[Histograms]>,
    /// By queue slot. The counters of a slot restart from zero with each new queue.
    pub(crate) queue_slots: Box<[IoCounters]>,
}

impl CoreCounters {
    pub(crate) fn new(devices: usize, queues: usize) -> Self {
        Self {
            devices: (0..devices).map(|_| IoCounters::default()).collect(),
            copies: (0..devices).map(|_| CopyCounters::default()).collect(),
            transfers: (0..devices).map(|_| TransferCounters::default()).collect(),
            device_latency: (0..devices).map(|_| Histograms::default()).collect(),
            queue_slots: (0..queues).map(|_| IoCounters::default()).collect(),
            ..Self::default()
        }
    }
}
