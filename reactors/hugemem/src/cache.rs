//! Free slices of one class cached for one reactor; other reactors can steal them.
//!
//! The owner puts and takes at the top, without contention. A slice in the cache of an idle or
//! sleeping reactor must stay available to the others, so any thread may steal one. The thread that
//! swaps a slot's number out empties the slot; only the owner fills slots.

use std::cell::Cell;

use crate::sync::{AtomicU32, Ordering};

/// A slot without a slice.
const EMPTY: u32 = u32::MAX;

/// The slots of one class in one reactor's cache.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Slots from here up are empty. A hint for other reactors; the owner's [`Top`] is exact.
    level: AtomicU32,
    slots: Box<[AtomicU32]>,
}

/// The owner's position: slots from here up are empty; slices below may have been stolen.
#[derive(Debug, Default)]
pub(crate) struct Top(Cell<usize>);

impl Cache {
    /// Creates an empty cache with `slots` slots.
    pub(crate) fn new(slots: usize) -> Cache {
        Cache {
            level: AtomicU32::new(0),
            slots: (0..slots).map(|_| AtomicU32::new(EMPTY)).collect(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Puts a slice on top; returns false if there is no room. Only the owner calls this.
    pub(crate) fn put(&self, top: &Top, slice: u32) -> bool {
        debug_assert_ne!(slice, EMPTY);
        let at = top.0.get();
        let Some(slot) = self.slots.get(at) else {
            return false;
        };
        slot.store(slice, Ordering::Release);
        self.move_top(top, at + 1);
        true
    }

    /// Takes the most recently put slice that was not stolen. Only the owner calls this.
    pub(crate) fn take(&self, top: &Top) -> Option<u32> {
        let mut at = top.0.get();
        let mut found = EMPTY;
        while at > 0 && found == EMPTY {
            at -= 1;
            found = self.slots[at].swap(EMPTY, Ordering::Acquire);
        }
        if at != top.0.get() {
            self.move_top(top, at);
        }
        (found != EMPTY).then_some(found)
    }

    /// Steals a slice from another reactor's cache, least recently put first.
    pub(crate) fn steal(&self) -> Option<u32> {
        let level = self.level.load(Ordering::Relaxed) as usize;
        self.slots[..level.min(self.slots.len())]
            .iter()
            .find_map(|slot| {
                // A load first keeps the owner's cache line shared if there is nothing to steal.
                let there = slot.load(Ordering::Relaxed) != EMPTY;
                let slice = if there {
                    slot.swap(EMPTY, Ordering::Acquire)
                } else {
                    EMPTY
                };
                (slice != EMPTY).then_some(slice)
            })
    }

    fn move_top(&self, top: &Top, to: usize) {
        top.0.set(to);
        self.level.store(to as u32, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
