//! Free slices of one class kept near one reactor, where others can still get at them.
//!
//! The owner puts and takes at the top, without contention. A slice in an idle or sleeping
//! reactor's cache must not be lost to the others, so any thread may steal one: a slot is emptied
//! by whoever swaps its number out, and only the owner fills slots.

use std::cell::Cell;

use crate::sync::{AtomicU32, Ordering};

/// A slot without a slice.
const EMPTY: u32 = u32::MAX;

/// The slots of one class in one reactor's cache.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Slots from here up are empty; a hint for thieves, the owner's [`Top`] is the truth.
    level: AtomicU32,
    slots: Box<[AtomicU32]>,
}

/// The owner's position: slots from here up are empty, those below may have been stolen from.
#[derive(Debug, Default)]
pub(crate) struct Top(Cell<usize>);

impl Cache {
    /// An empty cache with `slots` slots.
    pub(crate) fn new(slots: usize) -> Cache {
        Cache {
            level: AtomicU32::new(0),
            slots: (0..slots).map(|_| AtomicU32::new(EMPTY)).collect(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Puts a slice on top; `false` when there is no room. Only the owner calls this.
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

    /// Takes the slice that was put last and not stolen. Only the owner calls this.
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

    /// Takes a slice from another reactor's cache, the coldest first.
    pub(crate) fn steal(&self) -> Option<u32> {
        let level = self.level.load(Ordering::Relaxed) as usize;
        self.slots[..level.min(self.slots.len())]
            .iter()
            .find_map(|slot| {
                // Looking first leaves the owner's cache line shared when there is nothing to
                // steal.
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
