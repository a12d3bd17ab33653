//! The free slices of one class that are in no reactor's cache: a stack shared by all reactors.
//!
//! A linked stack of slice numbers, with all storage allocated at start. The head carries a tag
//! that changes with every operation. A reactor that was interrupted between reading a link and
//! updating the head therefore fails its compare-and-swap instead of installing a stale link (the
//! ABA problem), except after exactly 2^32 operations during that interruption. A batch of any size
//! is moved with one compare-and-swap.

#[cfg(all(test, loom))]
mod models;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The end of the list; slice numbers are smaller.
const NONE: u32 = u32::MAX;

/// A lock-free stack of slice numbers `0..total`, each contained at most once.
#[derive(Debug)]
pub(crate) struct Depot {
    /// The top slice in the low half, the tag in the high half.
    head: AtomicU64,
    /// Each slice's successor. Links of slices that are not in the stack are stale but harmless.
    next: Box<[AtomicU32]>,
}

fn pack(slice: u32, tag: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(slice)
}

fn unpack(head: u64) -> (u32, u32) {
    (head as u32, (head >> 32) as u32)
}

impl Depot {
    /// Creates a stack for `total` slices that contains the first `open` of them, the lowest on
    /// top.
    pub(crate) fn new(total: u32, open: u32) -> Depot {
        assert!(open <= total && total < NONE, "{open} of {total} slices");
        let next = (1..=total).map(|n| AtomicU32::new(if n >= open { NONE } else { n }));
        let top = if open == 0 { NONE } else { 0 };
        Depot {
            head: AtomicU64::new(pack(top, 0)),
            next: next.collect(),
        }
    }

    /// Takes up to `slices.len()` slices in one operation; returns their number.
    pub(crate) fn pop_batch(&self, slices: &mut [u32]) -> usize {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (mut top, tag) = unpack(head);
            let mut count = 0;
            while top != NONE && count < slices.len() {
                slices[count] = top;
                count += 1;
                top = self.next[top as usize].load(Ordering::Relaxed);
            }
            if count == 0 {
                return 0;
            }
            let moved = pack(top, tag.wrapping_add(1));
            match self
                .head
                .compare_exchange_weak(head, moved, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return count,
                Err(now) => head = now,
            }
        }
    }

    /// Returns slices in one operation. The caller must own them and no longer owns them
    /// afterwards.
    pub(crate) fn push_batch(&self, slices: &[u32]) {
        let Some((&last, _)) = slices.split_last() else {
            return;
        };
        for pair in slices.windows(2) {
            self.next[pair[0] as usize].store(pair[1], Ordering::Relaxed);
        }
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (top, tag) = unpack(head);
            self.next[last as usize].store(top, Ordering::Relaxed);
            let moved = pack(slices[0], tag.wrapping_add(1));
            match self
                .head
                .compare_exchange_weak(head, moved, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
