//! The memory of a RAM device, which may have grown: consecutive stores.
//!
//! Almost every range lies in one store, usually the first. A range across a boundary is processed
//! piece by piece. If a piece meets a range lock, the whole range is retried, which repeats the
//! earlier pieces without further effect.

use std::sync::{Arc, Mutex, PoisonError};

use hugemem::{Borrow, Store, StoreHandle};

/// All stores of a device, shared by its queues.
#[derive(Debug)]
pub(super) struct Extents {
    first: Arc<Store>,
    /// Stores added by growth, in order.
    more: Mutex<Vec<Arc<Store>>>,
}

impl Extents {
    pub(super) fn new(first: Arc<Store>) -> Self {
        Self {
            first,
            more: Mutex::default(),
        }
    }

    pub(super) fn first(&self) -> &Arc<Store> {
        &self.first
    }

    pub(super) fn add(&self, store: Arc<Store>) {
        let more = self.more.lock();
        more.unwrap_or_else(PoisonError::into_inner).push(store);
    }

    /// All stores, in order.
    pub(super) fn all(&self) -> Vec<Arc<Store>> {
        let more = self.more.lock();
        let more = more.unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.first)
            .chain(&*more)
            .cloned()
            .collect()
    }

    /// Creates one reactor's access to all current stores.
    pub(super) fn handle(&self) -> ExtentsHandle {
        let more = self.more.lock();
        let more = more.unwrap_or_else(PoisonError::into_inner);
        let mut end = self.first.len();
        let more = more.iter().map(|store| {
            let start = end;
            end += store.len();
            Extent {
                start,
                end,
                store: store.handle(),
            }
        });
        ExtentsHandle {
            first_end: self.first.len(),
            first: self.first.handle(),
            more: more.collect(),
        }
    }
}

/// A store after the first.
#[derive(Debug)]
struct Extent {
    start: usize,
    end: usize,
    store: StoreHandle,
}

/// One reactor's access to a device's memory. Its methods correspond to those of [`StoreHandle`]:
/// they never wait, and a range beyond the device is a bug of the caller.
#[derive(Debug)]
pub(super) struct ExtentsHandle {
    first: StoreHandle,
    first_end: usize,
    more: Box<[Extent]>,
}

impl ExtentsHandle {
    /// [`StoreHandle::try_borrow_read_idle`] for a range in the first store that lies in one
    /// unlocked unit. `None`: nothing has happened.
    #[inline(always)]
    pub(super) fn try_borrow_read_idle(&self, offset: usize, len: usize) -> Option<Borrow> {
        // Both lie within the device, so the sum cannot overflow.
        if offset + len > self.first_end {
            return None;
        }
        self.first.try_borrow_read_idle(offset, len)
    }

    /// Borrows a range that lies in one store; `None` also if it does not.
    pub(super) fn try_borrow_read(&self, offset: usize, len: usize) -> Option<Borrow> {
        if offset + len <= self.first_end {
            return self.first.try_borrow_read(offset, len);
        }
        self.try_borrow_read_later_extent(offset, len)
    }

    fn try_borrow_read_later_extent(&self, offset: usize, len: usize) -> Option<Borrow> {
        if !self.is_whole(offset, len) {
            return None;
        }
        let (store, start, _) = self.locate(offset);
        store.try_borrow_read(start, len)
    }

    /// Releases the write locks that writes keep until the end of a turn.
    pub(super) fn fence_writes(&self) {
        self.first.fence_writes();
        self.more
            .iter()
            .for_each(|extent| extent.store.fence_writes());
    }

    /// Withdraws a refused write that is not retried.
    #[cold]
    pub(super) fn withdraw(&self, offset: usize, len: usize) {
        self.pieces(offset, len, |store, start, range| {
            store.withdraw(start, range.len());
            true
        });
    }

    /// Whether a range lies in one store.
    pub(super) fn is_whole(&self, offset: usize, len: usize) -> bool {
        offset + len <= self.first_end || len <= self.locate(offset).2
    }

    pub(super) fn try_read(&self, offset: usize, bytes: &mut [u8]) -> bool {
        self.pieces(offset, bytes.len(), |store, start, range| {
            store.try_read(start, &mut bytes[range])
        })
    }

    pub(super) fn try_write(&self, offset: usize, bytes: &[u8]) -> bool {
        self.pieces(offset, bytes.len(), |store, start, range| {
            store.try_write(start, &bytes[range])
        })
    }

    /// Refuses a range that does not lie in one store.
    pub(super) fn try_fill(&self, offset: usize, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if !self.is_whole(offset, len) {
            return false;
        }
        let (store, start, _) = self.locate(offset);
        store.try_fill(start, len, fill)
    }

    pub(super) fn try_equal(&self, offset: usize, bytes: &[u8]) -> Option<bool> {
        let mut equal = true;
        let all = self.pieces(offset, bytes.len(), |store, start, range| {
            let same = store.try_equal(start, &bytes[range]);
            equal &= same.unwrap_or(true);
            same.is_some()
        });
        all.then_some(equal)
    }

    pub(super) fn try_zero(&self, offset: usize, len: usize) -> bool {
        self.pieces(offset, len, |store, start, range| {
            store.try_zero(start, range.len())
        })
    }

    pub(super) fn try_discard(&self, offset: usize, len: usize) -> bool {
        self.pieces(offset, len, |store, start, range| {
            store.try_discard(start, range.len())
        })
    }

    /// The store at `offset`, the offset in that store, and the number of bytes from there to its
    /// end.
    fn locate(&self, offset: usize) -> (&StoreHandle, usize, usize) {
        if offset < self.first_end {
            return (&self.first, offset, self.first_end - offset);
        }
        let mut behind = self.more.iter();
        match behind.find(|extent| offset < extent.end) {
            Some(extent) => (&extent.store, offset - extent.start, extent.end - offset),
            // Beyond the device: the store reports it.
            None => (&self.first, offset, usize::MAX),
        }
    }

    /// Calls `each` for each store that a range touches, with the part of the range in it, until a
    /// call returns false.
    #[inline]
    fn pieces(
        &self,
        offset: usize,
        len: usize,
        mut each: impl FnMut(&StoreHandle, usize, std::ops::Range<usize>) -> bool,
    ) -> bool {
        if offset + len <= self.first_end {
            return each(&self.first, offset, 0..len);
        }
        let mut done = 0;
        while done < len {
            let (store, start, room) = self.locate(offset + done);
            let piece = room.min(len - done);
            if !each(store, start, done..done + piece) {
                return false;
            }
            done += piece;
        }
        true
    }
}
