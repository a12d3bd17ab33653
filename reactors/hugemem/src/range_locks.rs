//! Range locks on the 4 KiB units of a store: many readers or one writer per unit, never waiting.
//!
//! A range locks the words of its units in ascending order, and unlocks those it has if one is
//! refused. Locking acquires and unlocking releases, and every change of a word by a reader or a
//! waiting writer is a read-modify-write. A writer therefore sees all earlier readers gone, and
//! every lock owner sees the data of the writer before it.
//!
//! A writer that finds readers makes the next ones yield, so that overlapping readers cannot starve
//! it. It requests a number of refusals. A writer that does not retry withdraws them, or they run
//! out. One reader then succeeds before the writer can request again, so that a lock that is never
//! released does not starve readers as well.

#[cfg(all(test, loom))]
mod models;

use crate::sync::{AtomicU32, Ordering};

/// The low bits of a word: number of readers that have locked the unit.
const READERS: u32 = 0xFFFF;
/// One refusal owed to a waiting writer; the last one admits its reader.
const YIELD: u32 = 1 << 16;
/// The bits that count refusals; all are set when a writer requests them.
const YIELDS: u32 = 0xFFF * YIELD;
/// A writer has locked the unit.
const WRITER: u32 = 1 << 31;

const _: () = assert!(READERS & YIELDS == 0 && (READERS | YIELDS) & WRITER == 0);

/// One word per unit.
#[derive(Debug)]
pub(crate) struct RangeLocks {
    words: Box<[AtomicU32]>,
}

impl RangeLocks {
    /// Creates `units` unlocked units.
    pub(crate) fn new(units: usize) -> RangeLocks {
        RangeLocks {
            words: (0..units).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Locks units `first..first + count` for reading, all or none.
    pub(crate) fn try_lock_read(&self, first: usize, count: usize) -> bool {
        // Most ranges are unlocked: the loop over such units has no calls.
        let words = &self.words[first..first + count];
        let busy = words.iter().position(|word| !lock_read_idle(word));
        busy.is_none_or(|had| lock_read_rest(words, had))
    }

    /// Locks one unit for reading that no writer has locked or waits for, the common case. `false`:
    /// [`try_lock_read`](Self::try_lock_read) may succeed.
    #[inline]
    pub(crate) fn try_lock_read_idle(&self, unit: usize) -> bool {
        lock_read_idle(&self.words[unit])
    }

    /// Releases a read lock of `try_lock_read`.
    pub(crate) fn unlock_read(&self, first: usize, count: usize) {
        self.words[first..first + count]
            .iter()
            .for_each(unlock_read);
    }

    /// Releases the read lock of one unit.
    #[inline]
    pub(crate) fn unlock_read_one(&self, unit: usize) {
        unlock_read(&self.words[unit]);
    }

    /// Whether a writer was refused one of these units and has not locked it since.
    pub(crate) fn is_awaited(&self, first: usize, count: usize) -> bool {
        self.words[first..first + count]
            .iter()
            .any(|word| word.load(Ordering::Relaxed) & YIELDS != 0)
    }

    /// Withdraws a refused writer of these units that does not retry: readers no longer yield to
    /// it. Another waiting writer requests refusals again with its next attempt.
    pub(crate) fn withdraw(&self, first: usize, count: usize) {
        for word in &self.words[first..first + count] {
            if word.load(Ordering::Relaxed) & YIELDS != 0 {
                word.fetch_and(!YIELDS, Ordering::Relaxed);
            }
        }
    }

    /// Locks units `first..first + count` for writing, all or none.
    pub(crate) fn try_lock_write(&self, first: usize, count: usize) -> bool {
        // As in `try_lock_read`.
        let words = &self.words[first..first + count];
        let busy = words.iter().position(|word| !lock_write_free(word));
        busy.is_none_or(|had| lock_write_rest(words, had))
    }

    /// Releases a write lock of `try_lock_write`.
    pub(crate) fn unlock_write(&self, first: usize, count: usize) {
        for word in &self.words[first..first + count] {
            debug_assert!(
                word.load(Ordering::Relaxed) & WRITER != 0,
                "a lock is released once"
            );
            word.store(0, Ordering::Release);
        }
    }
}

/// Locks a unit for reading that no writer has locked or waits for. `false`: nothing has happened.
#[inline(always)]
fn lock_read_idle(word: &AtomicU32) -> bool {
    let value = word.load(Ordering::Relaxed);
    // The bits of writers are higher.
    let is_idle = value < READERS;
    let after = value.wrapping_add(1);
    is_idle
        && word
            .compare_exchange_weak(value, after, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
}

/// Locks these units for reading, all or none. The first `had` are locked already.
#[inline(never)]
fn lock_read_rest(words: &[AtomicU32], had: usize) -> bool {
    let refused = words[had..].iter().position(|word| !lock_read(word));
    if let Some(more) = refused {
        words[..had + more].iter().for_each(unlock_read);
    }
    refused.is_none()
}

fn lock_read(word: &AtomicU32) -> bool {
    let mut value = word.load(Ordering::Relaxed);
    loop {
        // At the maximum reader count, a reader is refused as if a writer had the lock.
        if value & WRITER != 0 || value & READERS == READERS {
            return false;
        }
        let (admitted, after) = match value & YIELDS {
            0 => (true, value + 1),
            YIELD => (true, value + 1 - YIELD),
            _ => (false, value - YIELD),
        };
        match word.compare_exchange_weak(value, after, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return admitted,
            Err(now) => value = now,
        }
    }
}

#[inline]
fn unlock_read(word: &AtomicU32) {
    let before = word.fetch_sub(1, Ordering::Release);
    debug_assert!(before & READERS > 0, "a lock is released once");
}

/// Locks a unit for writing that is unlocked and owes no refusals. `false`: nothing has happened.
#[inline(always)]
fn lock_write_free(word: &AtomicU32) -> bool {
    word.compare_exchange_weak(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Locks these units for writing, all or none. The first `had` are locked already.
#[inline(never)]
fn lock_write_rest(words: &[AtomicU32], had: usize) -> bool {
    let tries = words[had..].iter().map(lock_write);
    let refused = tries
        .enumerate()
        .find(|(_, result)| *result != WriteLockResult::Locked);
    let Some((more, result)) = refused else {
        return true;
    };
    let (before, rest) = words.split_at(had + more);
    before.iter().for_each(unlock_write_unused);
    if result == WriteLockResult::Requested {
        // All readers of the rest yield in parallel, not one unit after the other.
        rest[1..].iter().for_each(request_yield);
    }
    false
}

/// Result of an attempt to lock a unit for writing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteLockResult {
    Locked,
    /// Readers have locked it, and later ones were requested to yield just now.
    Requested,
    /// A writer has locked it, or readers were requested to yield before.
    Refused,
}

fn lock_write(word: &AtomicU32) -> WriteLockResult {
    let mut value = word.load(Ordering::Relaxed);
    loop {
        let free = value & (WRITER | READERS) == 0;
        let requested = value & YIELDS != 0;
        if !free && (requested || value & WRITER != 0) {
            return WriteLockResult::Refused;
        }
        // The refusals remain in the word, for a writer that is refused another unit of its range.
        let after = value | if free { WRITER } else { YIELDS };
        match word.compare_exchange_weak(value, after, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) if free => return WriteLockResult::Locked,
            Ok(_) => return WriteLockResult::Requested,
            Err(now) => value = now,
        }
    }
}

/// Requests readers of a unit to yield, unless it is unlocked or they were requested before. If the
/// word changes meanwhile, the next attempt does it.
fn request_yield(word: &AtomicU32) {
    let value = word.load(Ordering::Relaxed);
    if value & READERS != 0 && value & (YIELDS | WRITER) == 0 {
        let requested = value | YIELDS;
        let _ = word.compare_exchange(value, requested, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Unlocks a unit that a writer had locked while another of its range was refused. Readers yield
/// here too, otherwise the units of a busy range would never be unlocked at the same time.
fn unlock_write_unused(word: &AtomicU32) {
    // Only the owner of a write lock changes the word.
    let yields = word.load(Ordering::Relaxed) & YIELDS;
    word.store(if yields == 0 { YIELDS } else { yields }, Ordering::Release);
}

#[cfg(all(test, not(loom)))]
mod tests;
