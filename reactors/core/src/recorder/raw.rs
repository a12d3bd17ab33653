//! The cells of the flight recorder's ring; `tests/loom.rs` explores it.
//!
//! One thread writes, any number read, nobody waits. The writer counts an entry as written behind
//! it, and a fence before the next entry lets whoever reads a word of that one also see the count:
//! so a reader that looks at the count once more, behind a fence of its own, knows which entries
//! may have been overwritten under its hands, and drops them.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// A ring of `N` entries of two words; `N` is a power of two.
pub(crate) struct Ring<const N: usize> {
    /// Entries written since the beginning.
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

    /// Writes an entry over the oldest one. One thread at a time may call it.
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

    /// The entries from number `from` on that are still whole, oldest first, and the number of the
    /// first of them. At most `N - 1`, since the one that is being written may be any time.
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
        let whole_from = (end + 1).saturating_sub(N as u64).max(begin);
        let overwritten = usize::try_from(whole_from - begin).unwrap_or(usize::MAX);
        words.drain(..overwritten.min(words.len()));
        (whole_from, words)
    }
}
