//! A controller's Error Information log (Base 2.1 §5.1.12.1.2).
//!
//! Commands fail on any core, and the log is one, so it stands behind a lock. Errors are not the
//! I/O path's steady state, and each queue logs only a few of a flood.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_spec::U64;
use nvme_spec::log::ErrorEntry;
use zerocopy::IntoBytes;

use crate::page::Page;

/// Entries that are kept; ELPE is one less.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;

/// The last errors, and how many there were.
pub(crate) struct ErrorLog(Mutex<Ring>);

struct Ring {
    entries: Box<[ErrorEntry; ERROR_LOG_ENTRIES]>,
    count: u64,
}

/// Slot of the entry with this number.
fn slot(number: u64) -> usize {
    // The remainder is below 64.
    (number % ERROR_LOG_ENTRIES as u64) as usize
}

impl ErrorLog {
    pub(crate) fn new() -> Self {
        let entries = Box::new([ErrorEntry::default(); ERROR_LOG_ENTRIES]);
        Self(Mutex::new(Ring { entries, count: 0 }))
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry; its error count is set here.
    pub(crate) fn record(&self, mut entry: ErrorEntry) {
        let mut ring = self.ring();
        ring.count += 1;
        let count = ring.count;
        entry.error_count = U64::new(count);
        ring.entries[slot(count)] = entry;
    }

    /// Entries since the controller exists.
    pub(crate) fn count(&self) -> u64 {
        self.ring().count
    }

    /// Writes the page: the newest entry first.
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
    fn the_newest_comes_first() {
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
