//! The cells of the flight recorder's ring; `tests/loom.rs` explores it.
//!
//! One thread writes, any number read, and none waits. The writer updates the count after each
//! entry. A fence before the next entry ensures that a reader of any word of that entry also sees
//! the count. A reader that loads the count again after its own fence therefore knows which entries
//! may have been overwritten during the read, and drops them.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// A ring of `N` entries of two words; `N` is a power of two.
pub(crate) struct Ring<const N: usize> {
    /// Number of entries written since the beginning.
    written: AtomicU64,
    entries: Box<[[AtomicU64; 2]; N]>,
}

impl<const N: usize> Ring<N> {
    pub(crate) fn new() -> Self {
        const { assert!(N.is_power_of_two()) };
        let cells = (0..N).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]);
        let cells: Box<[_]> = cells.collect();
        Self {
            written: AtomicU64::new(0),
            entries: match cells.try_into() {
                Ok(entries) => entries,
                Err(_) => unreachable!("there are N cells"),
            },
        }
    }

    /// Overwrites the oldest entry. Only one thread at a time may call it.
    #[inline]
    pub(crate) fn push(&self, words: [u64; 2]) {
        let number = self.written.load(Ordering::Relaxed);
        let [first, second] = &self.entries[number as usize & (N - 1)];
        // Pairs with the fence in `read`.
        fence(Ordering::Release);
        first.store(words[0], Ordering::Relaxed);
        second.store(words[1], Ordering::Relaxed);
        self.written.store(number + 1, Ordering::Release);
    }

    /// The complete entries from number `from` on, oldest first, and the number of the first. At
    /// most `N - 1`, because one may be in the process of being overwritten.
    pub(crate) fn read(&self, from: u64) -> (u64, Vec<[u64; 2]>) {
        let end = self.written.load(Ordering::Acquire);
        let begin = from.max(end.saturating_sub(N as u64)).min(end);
        let words = (begin..end).map(|number| {
            let [first, second] = &self.entries[number as usize & (N - 1)];
            [
                first.load(Ordering::Relaxed),
                second.load(Ordering::Relaxed),
            ]
        });
        let mut words: Vec<_> = words.collect();
        // Pairs with the fence in `push`.
        fence(Ordering::Acquire);
        let end = self.written.load(Ordering::Relaxed);
        let complete_from = (end + 1).saturating_sub(N as u64).max(begin);
        let overwritten = usize::try_from(complete_from - begin).unwrap_or(usize::MAX);
        words.drain(..overwritten.min(words.len()));
        (complete_from, words)
    }
}
