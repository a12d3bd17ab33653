//! Counters of a device: each queue counts separately, the control plane sums them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use crate::error::DeviceError;
use crate::request::Operation;

/// Whether a device can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthState {
    /// Works normally.
    #[default]
    Ready,
    /// Serves only reads.
    ReadOnly,
    /// Lost data that it had accepted, see [`Health::damage`]: writes and flushes fail and reads
    /// continue until [`Device::reopen`](crate::Device::reopen) succeeds.
    Damaged,
    /// Being reset after a fault: requests wait until the reset ends.
    Resetting,
    /// Gone: every request is refused.
    Removed,
}

/// The cause of a device's damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageCause {
    /// Cached writes could not be synced to the medium: `fdatasync(2)` or a write with
    /// `RWF_DSYNC` failed.
    SyncFailed,
    /// The file system failed a write to its page cache.
    WriteFailed,
    /// A write ended before all data was written.
    ShortWrite,
    /// The file is shorter than the device.
    Truncated,
    /// A queue was closed with a write in flight that the kernel did not complete in time.
    WriteAbandoned,
    /// The kernel did not complete a write in time whose host had disconnected. The write might
    /// still overwrite data written since.
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
            Self::ShortWrite => "a write ended before all data was written",
            Self::Truncated => "the file is shorter than the device",
            Self::WriteAbandoned => "a write was abandoned and may still reach the medium",
            Self::WriteStuck => "the kernel has not completed a write, which may still take effect",
        })
    }
}

/// The first damage to a device since it was opened or reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The cause.
    pub cause: DamageCause,
    /// The time when it was detected.
    pub at: SystemTime,
}

/// Counters of a device since it was opened, and its state. Byte counts include only successful
/// requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether the device can be used.
    pub state: HealthState,
    /// Why the state is [`HealthState::Damaged`]; `None` in every other state.
    pub damage: Option<Damage>,
    /// Reads completed, including failed ones.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Writes completed, including failed ones.
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
    /// Those of them that were media errors.
    pub media_errors: u64,
    /// Requests that had to wait inside the device, for a range lock or for memory.
    pub waits: u64,
    /// Temperature in kelvin, if the back end has a sensor.
    pub temperature_kelvin: Option<u16>,
    /// Spare blocks left in percent, if the back end reports them: 100 is new.
    pub available_spare_percent: Option<u8>,
    /// Wear in percent, if the back end reports it: may exceed 100.
    pub used_percent: Option<u8>,
    /// The drive's own health data, if the back end is a drive.
    pub drive: Option<DriveHealth>,
}

/// Critical warnings of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthWarnings {
    /// The spare blocks are below their threshold.
    pub spare: bool,
    /// A temperature is beyond a threshold.
    pub temperature: bool,
    /// Media or internal errors made the drive less reliable.
    pub reliability: bool,
    /// The medium is read-only.
    pub read_only: bool,
    /// The backup of the volatile memory failed.
    pub backup: bool,
}

impl HealthWarnings {
    /// Whether there is any warning.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Lifetime counters of a drive, as of its last report. Counters saturate at 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveHealth {
    /// Active warnings.
    pub warnings: HealthWarnings,
    /// Threshold of the spare warning in percent.
    pub spare_threshold_percent: u8,
    /// Data read from it, in units of 512,000 bytes.
    pub data_units_read: u64,
    /// Data written to it, in units of 512,000 bytes.
    pub data_units_written: u64,
    /// Read commands.
    pub read_commands: u64,
    /// Write commands.
    pub write_commands: u64,
    /// Minutes in which it executed commands.
    pub busy_minutes: u64,
    /// Power cycles.
    pub power_cycles: u64,
    /// Hours powered on.
    pub power_on_hours: u64,
    /// Power losses without prior notification.
    pub unsafe_shutdowns: u64,
    /// Media errors that it could not correct.
    pub media_errors: u64,
    /// Entries that its error log ever had, including overwritten ones.
    pub error_log_entries: u64,
}

/// Maximum number of records of one read of a device's error log.
pub const ERROR_RECORDS_MAX: usize = 64;

/// One entry of the error log that a back end keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecord {
    /// Number of the entry over the device's life, starting at 1.
    pub number: u64,
    /// The error.
    pub error: DeviceError,
    /// The error in the back end's own code.
    pub code: u32,
    /// The first failed block, if the error concerns a range.
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

/// Counters of one queue. Only its reactor writes them, other threads read them: plain loads and
/// stores suffice.
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

/// All counters of a device. The lock is taken when a queue opens or closes and when the sum is
/// read, never by a request.
#[derive(Default)]
pub struct HealthCounters(Mutex<Register>);

impl HealthCounters {
    /// Counters for a new queue; the sum includes them after the queue is closed.
    #[must_use]
    pub fn open_queue(self: &Arc<Self>) -> QueueCounters {
        let cells = Arc::new(Cells::default());
        self.lock().open.push(Arc::downgrade(&cells));
        QueueCounters {
            cells,
            device: Arc::clone(self),
        }
    }

    /// The sum of all queues, open and closed, for a device in the given state.
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

/// The counters of one queue.
pub struct QueueCounters {
    cells: Arc<Cells>,
    device: Arc<HealthCounters>,
}

impl QueueCounters {
    /// Counts a completed request of `bytes` bytes.
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

    /// Counts `bytes` bytes of a write. [`completed`](Self::completed) counts the write itself
    /// later, with the remaining bytes.
    pub fn count_partial_write(&self, bytes: u64) {
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
    fn health_counts_survive_their_queue() {
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
