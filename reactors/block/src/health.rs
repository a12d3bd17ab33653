//! Counters of a device: each queue counts for itself, the control plane adds them up.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use crate::error::DeviceError;
use crate::request::Operation;

/// Whether a device can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthState {
    /// In order.
    #[default]
    Ready,
    /// Serving reads only.
    ReadOnly,
    /// Lost data that it had accepted, see [`Health::damage`]: writes and flushes fail, reads
    /// continue, until [`Device::reopen`](crate::Device::reopen) succeeds.
    Damaged,
    /// Being reset after a fault: requests wait for its end.
    Resetting,
    /// Gone: every request is refused.
    Removed,
}

/// What damaged a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageCause {
    /// Cached writes could not be synced to the medium: `fdatasync(2)` or a write with
    /// `RWF_DSYNC` failed.
    SyncFailed,
    /// The file system failed a write to its page cache.
    WriteFailed,
    /// A write ended part of the way through.
    ShortWrite,
    /// The file ends before the device does.
    Truncated,
    /// A queue was closed with a write in flight that the kernel did not finish in time.
    WriteAbandoned,
    /// The kernel did not finish a write in time whose host had gone. What was written since might
    /// be overwritten by it.
    WriteStuck,
}

impl DamageCause {
    /// A stable word for metrics and the API.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::SyncFailed => "sync_failed",
            Self::WriteFailed => "write_failed",
            Self::ShortWrite => "short_write",
            Self::Truncated => "truncated",
            Self::WriteAbandoned => "write_abandoned",
            Self::WriteStuck => "write_stuck",
        }
    }
}

impl fmt::Display for DamageCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::SyncFailed => "a sync of cached writes failed: acknowledged writes may be lost",
            Self::WriteFailed => "the file system failed a cached write",
            Self::ShortWrite => "a write ended part of the way through",
            Self::Truncated => "the file ends before the device does",
            Self::WriteAbandoned => "a write was abandoned and may still reach the medium",
            Self::WriteStuck => "the kernel does not finish a write, which may still take effect",
        })
    }
}

/// The first damage to a device since it was opened or reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What happened.
    pub cause: DamageCause,
    /// When it was noticed.
    pub at: SystemTime,
}

/// What a device did since it was opened, and how it is. All byte counts are of successful
/// requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether the device can be used.
    pub state: HealthState,
    /// Why the state is [`HealthState::Damaged`]; `None` in every other state.
    pub damage: Option<Damage>,
    /// Reads completed, also unsuccessful ones.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Writes completed, also unsuccessful ones.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Write zeroes completed.
    pub write_zeroes: u64,
    /// Deallocations completed.
    pub deallocates: u64,
    /// Compares completed, equal or not.
    pub compares: u64,
    /// Requests that ended with an error other than a compare's mismatch.
    pub errors: u64,
    /// Of these, how many were errors of the medium.
    pub media_errors: u64,
    /// Requests that had to wait inside the device: for a lent range, or for memory.
    pub waits: u64,
    /// Kelvin, where the back end has a sensor.
    pub temperature_kelvin: Option<u16>,
    /// Spare blocks left, where the back end knows: 100 is as new.
    pub available_spare_percent: Option<u8>,
    /// Wear, where the back end knows: may exceed 100.
    pub used_percent: Option<u8>,
    /// What a drive tells of itself and its whole life, where the back end is one.
    pub drive: Option<DriveHealth>,
}

/// What a drive warns of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthWarnings {
    /// The spare blocks fell below their threshold.
    pub spare: bool,
    /// A temperature is beyond a threshold.
    pub temperature: bool,
    /// Media or internal errors made the drive less reliable.
    pub reliability: bool,
    /// The medium takes no more writes.
    pub read_only: bool,
    /// What backs up the volatile memory failed.
    pub backup: bool,
}

impl HealthWarnings {
    /// Whether there is any warning.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// What a drive keeps count of over its whole life, as it last told. Counts saturate at 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveHealth {
    /// What it warns of.
    pub warnings: HealthWarnings,
    /// The spare below which it warns, percent.
    pub spare_threshold_percent: u8,
    /// Data read from it, in units of 512,000 bytes.
    pub data_units_read: u64,
    /// Data written to it, in units of 512,000 bytes.
    pub data_units_written: u64,
    /// Read commands.
    pub read_commands: u64,
    /// Write commands.
    pub write_commands: u64,
    /// Minutes in which it was busy with commands.
    pub busy_minutes: u64,
    /// Power cycles.
    pub power_cycles: u64,
    /// Hours under power.
    pub power_on_hours: u64,
    /// Times that it lost power without being told before.
    pub unsafe_shutdowns: u64,
    /// Errors of the medium that it could not correct.
    pub media_errors: u64,
    /// Entries that its error log ever had.
    pub error_log_entries: u64,
}

/// Records that one look at a device's error log gives at most.
pub const ERROR_RECORDS_MAX: usize = 64;

/// One entry of the log that a back end keeps of its own errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecord {
    /// The entry's number in the device's life, counting from 1.
    pub number: u64,
    /// What went wrong.
    pub error: DeviceError,
    /// The same in the back end's own code.
    pub code: u32,
    /// The first block in trouble, where the error is one of a range.
    pub lba: Option<u64>,
}

const COUNTERS: usize = 11;

/// Index of a counter in [`QueueCounters`].
#[derive(Clone, Copy)]
enum Counter {
    Reads,
    BytesRead,
    Writes,
    BytesWritten,
    Flushes,
    WriteZeroes,
    Deallocates,
    Compares,
    Errors,
    MediaErrors,
    Waits,
}

type Totals = [u64; COUNTERS];

/// Counters of one queue. Written by its reactor alone, read by anyone: plain loads and stores do.
#[derive(Default)]
struct Cells([AtomicU64; COUNTERS]);

impl Cells {
    #[inline]
    fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.0[counter as usize];
        cell.store(
            cell.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    fn add_to(&self, totals: &mut Totals) {
        for (total, cell) in totals.iter_mut().zip(&self.0) {
            *total = total.wrapping_add(cell.load(Ordering::Relaxed));
        }
    }
}

#[derive(Default)]
struct Register {
    closed: Totals,
    open: Vec<Weak<Cells>>,
}

/// All counters of a device. The lock is taken when a queue opens or closes and when somebody reads
/// the sum, never by a request.
#[derive(Default)]
pub struct HealthCounters(Mutex<Register>);

impl HealthCounters {
    /// Counters for a queue that opens; they outlive it in the sum.
    #[must_use]
    pub fn open_queue(self: &Arc<Self>) -> QueueCounters {
        let cells = Arc::new(Cells::default());
        self.lock().open.push(Arc::downgrade(&cells));
        QueueCounters {
            cells,
            device: Arc::clone(self),
        }
    }

    /// All queues together, open and closed, for a device in the given state.
    #[must_use]
    pub fn sum(&self, state: HealthState) -> Health {
        let mut totals: Totals;
        {
            let register = self.lock();
            totals = register.closed;
            for cells in register.open.iter().filter_map(Weak::upgrade) {
                cells.add_to(&mut totals);
            }
        }
        let of = |counter: Counter| totals[counter as usize];
        Health {
            state,
            reads: of(Counter::Reads),
            bytes_read: of(Counter::BytesRead),
            writes: of(Counter::Writes),
            bytes_written: of(Counter::BytesWritten),
            flushes: of(Counter::Flushes),
            write_zeroes: of(Counter::WriteZeroes),
            deallocates: of(Counter::Deallocates),
            compares: of(Counter::Compares),
            errors: of(Counter::Errors),
            media_errors: of(Counter::MediaErrors),
            waits: of(Counter::Waits),
            ..Health::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Register> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One queue's share of a device's counters.
pub struct QueueCounters {
    cells: Arc<Cells>,
    device: Arc<HealthCounters>,
}

impl QueueCounters {
    /// Counts the end of a request over `bytes` bytes.
    #[inline]
    pub fn completed(&self, operation: Operation, bytes: u64, result: Result<(), DeviceError>) {
        let (commands, moved) = match operation {
            Operation::Read => (Counter::Reads, Some(Counter::BytesRead)),
            Operation::Write { .. } => (Counter::Writes, Some(Counter::BytesWritten)),
            Operation::Flush => (Counter::Flushes, None),
            Operation::WriteZeroes { .. } => (Counter::WriteZeroes, None),
            Operation::Deallocate => (Counter::Deallocates, None),
            Operation::Compare => (Counter::Compares, None),
        };
        self.cells.add(commands, 1);
        match (result, moved) {
            (Ok(()), Some(moved)) => self.cells.add(moved, bytes),
            (Ok(()), None) | (Err(DeviceError::CompareMismatch), _) => {}
            (Err(error), _) => {
                self.cells.add(Counter::Errors, 1);
                if error.is_media() {
                    self.cells.add(Counter::MediaErrors, 1);
                }
            }
        }
    }

    /// Counts `bytes` bytes of a write whose end is counted by [`completed`](Self::completed), with
    /// what is then left of it.
    pub fn wrote_part(&self, bytes: u64) {
        self.cells.add(Counter::BytesWritten, bytes);
    }

    /// Counts a request that has to wait inside the device.
    pub fn waited(&self) {
        self.cells.add(Counter::Waits, 1);
    }
}

impl Drop for QueueCounters {
    fn drop(&mut self) {
        let mut register = self.device.lock();
        self.cells.add_to(&mut register.closed);
        let cells = Arc::as_ptr(&self.cells);
        register
            .open
            .retain(|open| !std::ptr::eq(open.as_ptr(), cells));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_outlive_their_queue() {
        let counters = Arc::new(HealthCounters::default());
        let first = counters.open_queue();
        let second = counters.open_queue();
        first.completed(Operation::Read, 4096, Ok(()));
        first.completed(Operation::Read, 4096, Err(DeviceError::MediaRead));
        first.completed(Operation::Compare, 512, Err(DeviceError::CompareMismatch));
        second.completed(Operation::Write { fua: true }, 512, Ok(()));
        second.completed(Operation::Flush, 0, Err(DeviceError::Aborted));
        second.waited();
        let expected = Health {
            reads: 2,
            bytes_read: 4096,
            writes: 1,
            bytes_written: 512,
            flushes: 1,
            compares: 1,
            errors: 2,
            media_errors: 1,
            waits: 1,
            ..Health::default()
        };
        assert_eq!(counters.sum(HealthState::Ready), expected);
        drop(first);
        assert_eq!(counters.sum(HealthState::Ready), expected);
        drop(second);
        assert_eq!(counters.sum(HealthState::Ready), expected);
        assert!(counters.lock().open.is_empty());
    }
}
