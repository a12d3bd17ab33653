//! A controller's Error Information log (Base 2.1 §5.1.12.1.2).
//!
//! Commands of one controller fail on any core, so its log has a lock. Errors are rare on the I/O
//! path, and each queue logs only a few of a flood.

mod handover;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::ErrorRecord;
use nvme_spec::log::{ErrorEntry, ParameterErrorLocation};
use nvme_spec::{Cqe, U16, U32, U64};
use zerocopy::IntoBytes;

use crate::page::Page;
use crate::status::from_device;

/// Entries in the log; ELPE is one less.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;

/// The latest errors and their total number.
pub(crate) struct ErrorLog(Mutex<Ring>);

struct Ring {
    entries: Box<[ErrorEntry; ERROR_LOG_ENTRIES]>,
    count: u64,
    /// The number of the newest record that was imported from each device's own log.
    imported: BTreeMap<usize, u64>,
}

impl Ring {
    fn record(&mut self, mut entry: ErrorEntry) {
        self.count += 1;
        entry.error_count = U64::new(self.count);
        self.entries[slot(self.count)] = entry;
    }
}

/// A device's own log as returned by [`Device::error_log`](block::Device::error_log).
pub(crate) struct DeviceErrors {
    pub(crate) device: usize,
    /// A namespace on the device.
    pub(crate) nsid: u32,
    /// Newest first.
    pub(crate) records: Vec<ErrorRecord>,
}

/// An entry that belongs to no command of this controller (Base 2.1 §5.1.12.1.2: the queue and
/// command identifiers are then FFFFh).
fn foreign_entry(nsid: u32, record: &ErrorRecord) -> ErrorEntry {
    let mut entry = ErrorEntry::default();
    entry.sqid = U16::new(u16::MAX);
    entry.cid = U16::new(u16::MAX);
    entry.status = Cqe::new(0, from_device(record.error)).status;
    entry.location = ParameterErrorLocation::NONE;
    entry.lba = U64::new(record.lba.unwrap_or(0));
    entry.nsid = U32::new(nsid);
    entry
}

/// Slot of the entry with the number `number`.
fn slot(number: u64) -> usize {
    // The remainder is below 64.
    (number % ERROR_LOG_ENTRIES as u64) as usize
}

impl ErrorLog {
    pub(crate) fn new() -> Self {
        let entries = Box::new([ErrorEntry::default(); ERROR_LOG_ENTRIES]);
        Self(Mutex::new(Ring {
            entries,
            count: 0,
            imported: BTreeMap::new(),
        }))
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry and sets its error count.
    pub(crate) fn record(&self, entry: ErrorEntry) {
        self.ring().record(entry);
    }

    /// Imports the records that devices have logged since the last call; the first call imports all
    /// that they still have. Namespaces of one drive report the same records, which are added once.
    pub(crate) fn import(&self, logs: &[DeviceErrors]) {
        let mut ring = self.ring();
        let mut seen = Vec::new();
        for log in logs {
            let Some(newest) = log.records.first().map(|record| record.number) else {
                continue;
            };
            let last = ring.imported.insert(log.device, newest).unwrap_or(0);
            // If the numbers restart, the log is that of another drive.
            let last = if newest < last { 0 } else { last };
            for record in log.records.iter().rev() {
                if record.number > last && !seen.contains(record) {
                    seen.push(*record);
                    ring.record(foreign_entry(log.nsid, record));
                }
            }
        }
    }

    /// Total number of entries since the controller was created.
    pub(crate) fn count(&self) -> u64 {
        self.ring().count
    }

    /// Writes the page, newest entry first.
    pub(crate) fn write(&self, page: &mut Page<'_>) {
        let ring = self.ring();
        let oldest = ring.count.saturating_sub(ERROR_LOG_ENTRIES as u64);
        for number in (oldest + 1..=ring.count).rev() {
            page.put(ring.entries[slot(number)].as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    fn numbers(log: &ErrorLog) -> Vec<u64> {
        let mut bytes = vec![0; ERROR_LOG_ENTRIES * size_of::<ErrorEntry>()];
        log.write(&mut Page::new(&mut bytes, 0));
        let entries = <[ErrorEntry]>::ref_from_bytes(&bytes).expect("whole entries");
        entries
            .iter()
            .map(|entry| entry.error_count.get())
            .collect()
    }

    /// Base 2.1 §5.1.12.1.2: the newest entry comes first, an unused one has error count 0.
    #[test]
    fn newest_error_log_entry_is_first() {
        let log = ErrorLog::new();
        assert!(numbers(&log).iter().all(|number| *number == 0));
        for _ in 0..3 {
            log.record(ErrorEntry::default());
        }
        assert_eq!(numbers(&log)[..4], [3, 2, 1, 0]);
        for _ in 0..100 {
            log.record(ErrorEntry::default());
        }
        let numbers = numbers(&log);
        assert_eq!(numbers, (40..=103).rev().collect::<Vec<_>>());
        assert_eq!(log.count(), 103);
    }
}
