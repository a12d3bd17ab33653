//! The memory of a RAM device: ranges are locked for reading or for writing, never both.
//!
//! Why plain copies never race: each 4 KiB unit has a lock word (see `range_locks`). Every access
//! locks the words of all units of its range, shared to read and exclusive to write, in ascending
//! order and without waiting. If one is refused, it releases the ones it has. Between lock and
//! unlock no other thread, and no other call on this thread, writes a byte that is read or accesses
//! a byte that is written. Locking acquires and unlocking releases, so the writes of one lock owner
//! are visible to the next.
#![expect(unsafe_code, reason = "locked ranges of the mapping become slices")]

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use crate::UNIT_BYTES;
use crate::range_locks::RangeLocks;
use crate::region::{PagePolicy, Region, RegionError, panic_out_of_range};
use crate::streaming;

/// Stores of at least this size are mostly uncached.
const UNCACHED_BYTES_MIN: usize = 32 << 20;

/// Maximum number of units of a store: unit numbers fit a word, and one number is
/// [`SEVERAL_UNITS`].
const UNITS_MAX: usize = u32::MAX as usize;
/// Maximum size of a store in bytes, nearly 16 TiB.
pub const STORE_BYTES_MAX: usize = UNITS_MAX * UNIT_BYTES;

/// Replaces the unit number of a borrow that does not lock exactly one unit.
const SEVERAL_UNITS: u32 = u32::MAX;

/// Memory of a RAM device, shared between reactors through their [`StoreHandle`]s. Initially zero.
#[derive(Debug)]
pub struct Store {
    region: Region,
    range_locks: RangeLocks,
    len: usize,
    /// Writes use non-temporal stores, and reads benefit from a prefetch.
    is_uncached: bool,
}

impl Store {
    /// Allocates `len` bytes, at most [`STORE_BYTES_MAX`].
    ///
    /// # Errors
    /// [`RegionError`]: nothing remains mapped.
    pub fn new(len: usize, pages: PagePolicy) -> Result<Arc<Store>, RegionError> {
        if len > STORE_BYTES_MAX {
            return Err(RegionError::Shortage {
                wanted: len,
                available: STORE_BYTES_MAX,
            });
        }
        Ok(Self::over(Region::map(len, pages)?, len))
    }

    /// Continues with the `len` bytes of an earlier process's store: see [`Region::adopt`].
    ///
    /// # Errors
    /// [`RegionError`]: the descriptor is not that of such a store.
    pub fn adopt(descriptor: OwnedFd, len: usize) -> Result<Arc<Store>, RegionError> {
        if len > STORE_BYTES_MAX {
            return Err(RegionError::Shortage {
                wanted: len,
                available: STORE_BYTES_MAX,
            });
        }
        Ok(Self::over(Region::adopt(descriptor, len)?, len))
    }

    fn over(region: Region, len: usize) -> Arc<Store> {
        let range_locks = RangeLocks::new(len.div_ceil(UNIT_BYTES));
        Arc::new(Store {
            region,
            range_locks,
            len,
            is_uncached: len >= UNCACHED_BYTES_MIN,
        })
    }

    /// Size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a store is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory of the store.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Creates one reactor's access to the store.
    #[must_use]
    pub fn handle(self: &Arc<Store>) -> StoreHandle {
        StoreHandle {
            inner: Rc::new(HandleInner {
                base: self.region.pointer(0),
                store: Arc::clone(self),
                unfenced: Cell::default(),
            }),
        }
    }

    /// Panics if the range exceeds the store.
    #[inline]
    fn check(&self, offset: usize, len: usize) {
        if offset > self.len || len > self.len - offset {
            panic_out_of_range(offset, len, self.len);
        }
    }
}

/// First unit and number of units of a range within the store.
#[inline]
fn touched_units(offset: usize, len: usize) -> (usize, usize) {
    let first = offset / UNIT_BYTES;
    let end = if len == 0 {
        first
    } else {
        (offset + len).div_ceil(UNIT_BYTES)
    };
    (first, end - first)
}

/// The unit of a range, if the range touches no other unit.
#[inline(always)]
fn only_unit(offset: usize, len: usize) -> Option<usize> {
    // An empty range wraps around and touches no unit.
    let within = len.wrapping_sub(1) < UNIT_BYTES - offset % UNIT_BYTES;
    within.then_some(offset / UNIT_BYTES)
}

/// One reactor's access to a [`Store`]: cheap to clone, bound to its thread.
///
/// No call waits: `false` or `None` means that a range lock prevents the access, and the caller
/// retries later. After a refused write, reads of the same units are refused for a while too, so
/// that the write succeeds. Offsets and lengths are in bytes, without alignment; a range beyond the
/// store is a bug of the caller. A call takes the time of its copy: callers split long ranges.
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<hugemem::StoreHandle>();
/// ```
#[derive(Debug, Clone)]
pub struct StoreHandle {
    inner: Rc<HandleInner>,
}

/// State shared with borrows by a reference count that only their thread accesses.
#[derive(Debug)]
struct HandleInner {
    /// First byte of the store.
    base: NonNull<u8>,
    store: Arc<Store>,
    /// First unit and number of units of a write that stay locked until a fence.
    unfenced: Cell<(usize, usize)>,
}

impl HandleInner {
    #[inline(never)]
    fn fence_writes(&self) {
        let (first, count) = self.unfenced.take();
        streaming::fence();
        self.store.range_locks.unlock_write(first, count);
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.fence_writes();
    }
}

impl StoreHandle {
    /// Borrows a range for reading until the [`Borrow`] is dropped.
    ///
    /// # Panics
    /// If the range exceeds the store, or is 4 GiB or longer.
    #[inline(always)]
    #[must_use]
    pub fn try_borrow_read(&self, offset: usize, len: usize) -> Option<Borrow> {
        self.try_borrow_read_idle(offset, len)
            .or_else(|| self.try_borrow_read_any(offset, len))
    }

    /// Borrows a range within one unit that no writer has locked or waits for, the common case.
    /// `None`: nothing has happened, and [`try_borrow_read`](Self::try_borrow_read) may succeed.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[inline(always)]
    #[must_use]
    pub fn try_borrow_read_idle(&self, offset: usize, len: usize) -> Option<Borrow> {
        let store = &self.inner.store;
        let unit = only_unit(offset, len)?;
        // If the sum wraps, it is 0; the unit is then beyond the store, which the access to its
        // word detects.
        if offset.wrapping_add(len) > store.len {
            panic_out_of_range(offset, len, store.len);
        }
        let is_locked = store.range_locks.try_lock_read_idle(unit);
        // A store has at most `UNITS_MAX` units, and a unit is small, so both fit.
        is_locked.then(|| self.borrow(offset, len as u32, unit as u32))
    }

    /// Borrows a range of several units, or one that is locked by others or by this handle's last
    /// write.
    #[inline(never)]
    fn try_borrow_read_any(&self, offset: usize, len: usize) -> Option<Borrow> {
        self.inner.store.check(offset, len);
        let Ok(length) = u32::try_from(len) else {
            panic!("a borrow of {len} bytes");
        };
        self.fence_writes();
        let (first, count) = touched_units(offset, len);
        let is_locked = self.inner.store.range_locks.try_lock_read(first, count);
        let unit = if count == 1 {
            first as u32
        } else {
            SEVERAL_UNITS
        };
        is_locked.then(|| self.borrow(offset, length, unit))
    }

    /// A borrow of a range within the store whose units are locked for it: only `unit`, or
    /// [`SEVERAL_UNITS`].
    #[inline(always)]
    fn borrow(&self, offset: usize, len: u32, unit: u32) -> Borrow {
        debug_assert!(offset + len as usize <= self.inner.store.len);
        Borrow {
            // SAFETY: the range was checked to lie within the store.
            pointer: unsafe { self.inner.base.add(offset) },
            len,
            unit,
            handle: Rc::clone(&self.inner),
        }
    }

    /// Copies a range out of the store.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_read(&self, offset: usize, bytes: &mut [u8]) -> bool {
        self.try_borrow_read(offset, bytes.len())
            .map(|borrow| bytes.copy_from_slice(&borrow))
            .is_some()
    }

    /// Compares a range with `bytes`.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_equal(&self, offset: usize, bytes: &[u8]) -> Option<bool> {
        self.try_borrow_read(offset, bytes.len())
            .map(|borrow| *borrow == *bytes)
    }

    /// Copies `bytes` into the store.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_write(&self, offset: usize, bytes: &[u8]) -> bool {
        if self.inner.store.is_uncached {
            return self.try_stream(offset, bytes);
        }
        self.with_write_lock(offset, bytes.len(), |range| range.copy_from_slice(bytes))
    }

    /// Copies `bytes` into the store with non-temporal stores. The range stays locked until
    /// [`fence_writes`](Self::fence_writes), when most of the copy has completed.
    fn try_stream(&self, offset: usize, bytes: &[u8]) -> bool {
        self.fence_writes();
        let store = &self.inner.store;
        store.check(offset, bytes.len());
        let (first, count) = touched_units(offset, bytes.len());
        if !store.range_locks.try_lock_write(first, count) {
            return false;
        }
        let pointer = store.region.pointer(offset);
        // SAFETY: the range lies in the region, populated and zeroed at start, and all of its units
        // are locked for writing until `fence_writes` unlocks them, so nothing else refers to these
        // bytes.
        let range = unsafe { slice::from_raw_parts_mut(pointer.as_ptr(), bytes.len()) };
        // SAFETY: `fence_writes` calls the fence before it unlocks the units, and no code reads
        // them before that.
        unsafe { streaming::copy(range, bytes) };
        self.inner.unfenced.set((first, count));
        true
    }

    /// Fences the last non-temporal write and releases its range lock: at the end of a turn, or
    /// before this handle writes or reads anything other than a single unlocked unit.
    #[inline(always)]
    pub fn fence_writes(&self) {
        if self.inner.unfenced.get().1 > 0 {
            self.inner.fence_writes();
        }
    }

    /// Fills a range with zeroes.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_zero(&self, offset: usize, len: usize) -> bool {
        self.with_write_lock(offset, len, |range| range.fill(0))
    }

    /// Discards the content of a range, which reads as zeroes afterwards.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_discard(&self, offset: usize, len: usize) -> bool {
        // A punched hole would return memory to the machine, and the next write might find none: a
        // SIGBUS on the I/O path. So the pages stay, zeroed.
        self.try_zero(offset, len)
    }

    /// Calls `fill` to write a range under a write lock.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_fill(&self, offset: usize, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        self.with_write_lock(offset, len, fill)
    }

    /// Withdraws a refused write to the range that is not retried. Otherwise readers would continue
    /// to yield to it, thousands of times for each unit.
    pub fn withdraw(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let store = &self.inner.store;
        store.check(offset, len);
        let (first, count) = touched_units(offset, len);
        store.range_locks.withdraw(first, count);
    }

    /// Calls `change` with a range that is locked for writing during the call.
    fn with_write_lock(&self, offset: usize, len: usize, change: impl FnOnce(&mut [u8])) -> bool {
        self.fence_writes();
        let store = &self.inner.store;
        store.check(offset, len);
        let (first, count) = touched_units(offset, len);
        if !store.range_locks.try_lock_write(first, count) {
            return false;
        }
        let pointer = store.region.pointer(offset);
        // SAFETY: the range lies in the region, populated and zeroed at start, and all of its units
        // are locked for writing until `unlock_write`, so nothing else refers to these bytes.
        change(unsafe { slice::from_raw_parts_mut(pointer.as_ptr(), len) });
        store.range_locks.unlock_write(first, count);
        true
    }
}

/// A range of a [`Store`] borrowed for reading; it cannot be written until this is dropped.
///
/// ```
/// # use hugemem::{PagePolicy, Store};
/// let handle = Store::new(4096, PagePolicy::Auto)?.handle();
/// let borrow = handle.try_borrow_read(0, 512).expect("no range is locked");
/// let bytes: &[u8] = &borrow;
/// assert_eq!(bytes, [0; 512]);
/// drop(borrow);
/// # Ok::<(), hugemem::RegionError>(())
/// ```
///
/// ```compile_fail,E0505
/// # use hugemem::{PagePolicy, Store};
/// let handle = Store::new(4096, PagePolicy::Auto)?.handle();
/// let borrow = handle.try_borrow_read(0, 512).expect("no range is locked");
/// let bytes: &[u8] = &borrow;
/// drop(borrow); // the bytes may be written from here on
/// assert_eq!(bytes, [0; 512]);
/// # Ok::<(), hugemem::RegionError>(())
/// ```
///
/// ```compile_fail,E0596
/// fn scribble(mut borrow: hugemem::Borrow) {
///     borrow[0] = 1;
/// }
/// ```
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<hugemem::Borrow>();
/// ```
pub struct Borrow {
    pointer: NonNull<u8>,
    len: u32,
    /// The only locked unit, so that most borrows end without computing their range; or
    /// [`SEVERAL_UNITS`].
    unit: u32,
    handle: Rc<HandleInner>,
}

// Borrows move from the device to the transport by value.
const _: () = assert!(size_of::<Borrow>() == 24 && size_of::<Option<crate::Data>>() == 32);

impl Borrow {
    /// Offset of the first byte in the store's region, in bytes.
    #[inline]
    #[must_use]
    pub fn region_offset(&self) -> usize {
        self.pointer.addr().get() - self.handle.base.addr().get()
    }

    /// Whether a writer waits for a unit of the range. Checks every unit: not for the I/O path.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        let (first, count) = touched_units(self.region_offset(), self.len());
        self.handle.store.range_locks.is_awaited(first, count)
    }

    /// Releases the range, which can be borrowed again later.
    #[must_use]
    pub fn suspend(self) -> SuspendedBorrow {
        SuspendedBorrow {
            pointer: self.pointer,
            len: self.len(),
            handle: Rc::clone(&self.handle),
        }
    }

    #[inline(never)]
    fn unlock_read_several(&self) {
        let (first, count) = touched_units(self.region_offset(), self.len());
        self.handle.store.range_locks.unlock_read(first, count);
    }

    /// Whether the bytes are most likely uncached, because the store is larger than the caches.
    #[inline]
    #[must_use]
    pub fn is_uncached(&self) -> bool {
        self.handle.store.is_uncached
    }
}

/// A range that was borrowed and is not locked now: it may be written.
#[derive(Debug)]
pub struct SuspendedBorrow {
    pointer: NonNull<u8>,
    len: usize,
    handle: Rc<HandleInner>,
}

impl SuspendedBorrow {
    /// Borrows the range again, with its current content; `None` while a writer has locked it or
    /// waits for it.
    #[must_use]
    pub fn try_borrow_read(&self) -> Option<Borrow> {
        let offset = self.pointer.addr().get() - self.handle.base.addr().get();
        let handle = StoreHandle {
            inner: Rc::clone(&self.handle),
        };
        handle.try_borrow_read(offset, self.len)
    }
}

impl Deref for Borrow {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the region, which the store keeps mapped and populated, and its
        // units are locked for reading until `drop`, so these bytes are not written.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len as usize) }
    }
}

impl Drop for Borrow {
    #[inline(always)]
    fn drop(&mut self) {
        match self.unit {
            SEVERAL_UNITS => self.unlock_read_several(),
            unit => self.handle.store.range_locks.unlock_read_one(unit as usize),
        }
    }
}

impl fmt::Debug for Borrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrow")
            .field("region_offset", &self.region_offset())
            .field("len", &self.len)
            .finish()
    }
}
