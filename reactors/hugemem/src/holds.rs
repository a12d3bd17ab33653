//! Who holds which 4 KiB units of a store: any number of readers, or one writer, try-only.

use crate::sync::{AtomicU32, Ordering};

/// The word of a unit that is being written; below it, the number of its readers.
const WRITER: u32 = u32::MAX;
/// Readers that one unit can have; one more is refused as if a writer held it.
const READERS_MAX: u32 = 0xFFFF;

/// One word per unit.
#[derive(Debug)]
pub(crate) struct Holds {
    words: Box<[AtomicU32]>,
}

impl Holds {
    /// `units` units that nobody holds.
    pub(crate) fn new(units: usize) -> Holds {
        Holds {
            words: (0..units).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Holds units `first..first + count` for reading, all or none.
    pub(crate) fn try_share(&self, first: usize, count: usize) -> bool {
        for unit in first..first + count {
            let word = &self.words[unit];
            let shared = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |value| {
                (value < READERS_MAX).then_some(value + 1)
            });
            if shared.is_err() {
                self.unshare(first, unit - first);
                return false;
            }
        }
        true
    }

    /// Ends a hold that `try_share` gave.
    pub(crate) fn unshare(&self, first: usize, count: usize) {
        for word in &self.words[first..first + count] {
            word.fetch_sub(1, Ordering::Release);
        }
    }

    /// Holds units `first..first + count` for writing, all or none.
    pub(crate) fn try_own(&self, first: usize, count: usize) -> bool {
        for unit in first..first + count {
            let word = &self.words[unit];
            if word
                .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                self.disown(first, unit - first);
                return false;
            }
        }
        true
    }

    /// Ends a hold that `try_own` gave.
    pub(crate) fn disown(&self, first: usize, count: usize) {
        for word in &self.words[first..first + count] {
            word.store(0, Ordering::Release);
        }
    }
}
