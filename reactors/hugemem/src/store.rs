//! The memory of a RAM device: ranges are lent for reading or written, never both at once.
//!
//! Why plain copies never race: each 4 KiB unit has a hold word (see `holds`). Every access takes
//! the words of all units that its range touches, shared to read and exclusive to write, in
//! ascending order and without waiting; it gives up what it has when one is refused. So between
//! taking and giving back no other thread, and no other call on this thread, writes a byte that is
//! read or touches a byte that is written. Taking acquires and giving back releases, so what one
//! holder wrote is visible to the next.
#![expect(unsafe_code, reason = "held ranges of the mapping become slices")]

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use crate::UNIT_BYTES;
use crate::holds::Holds;
use crate::region::{PagePolicy, Region, RegionError, outside};
use crate::streaming;

/// Stores of this size and more are mostly in no cache.
const UNCACHED_BYTES_MIN: usize = 32 << 20;

/// Units of a store at most: their numbers fit a word, and one number is [`SEVERAL`].
const UNITS_MAX: usize = u32::MAX as usize;
/// Bytes of a store at most, nearly 16 TiB.
pub const STORE_BYTES_MAX: usize = UNITS_MAX * UNIT_BYTES;

/// In place of the unit of a loan that is not of exactly one.
const SEVERAL: u32 = u32::MAX;

/// Memory of a RAM device, shared between reactors through their [`StoreHandle`]s. All zero at
/// first.
#[derive(Debug)]
pub struct Store {
    region: Region,
    holds: Holds,
    len: usize,
    /// Writes go past the caches, and what is to be read is worth a prefetch.
    is_uncached: bool,
}

impl Store {
    /// Takes memory for `len` bytes, [`STORE_BYTES_MAX`] at most.
    ///
    /// # Errors
    /// [`RegionError`]: nothing stays mapped.
    pub fn new(len: usize, pages: PagePolicy) -> Result<Arc<Store>, RegionError> {
        if len > STORE_BYTES_MAX {
            return Err(RegionError::Shortage {
                wanted: len,
                available: STORE_BYTES_MAX,
            });
        }
        let region = Region::map(len, pages)?;
        let holds = Holds::new(len.div_ceil(UNIT_BYTES));
        Ok(Arc::new(Store {
            region,
            holds,
            len,
            is_uncached: len >= UNCACHED_BYTES_MIN,
        }))
    }

    /// Bytes there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a store is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// One reactor's access to the store.
    #[must_use]
    pub fn handle(self: &Arc<Store>) -> StoreHandle {
        StoreHandle {
            inner: Rc::new(HandleInner {
                base: self.region.pointer(0),
                store: Arc::clone(self),
                unsettled: Cell::default(),
            }),
        }
    }

    /// Panics when the range exceeds the store.
    #[inline]
    fn check(&self, offset: usize, len: usize) {
        if offset > self.len || len > self.len - offset {
            outside(offset, len, self.len);
        }
    }
}

/// First unit and number of units that a range touches which lies within the store.
#[inline]
fn touched(offset: usize, len: usize) -> (usize, usize) {
    let first = offset / UNIT_BYTES;
    let end = if len == 0 {
        first
    } else {
        (offset + len).div_ceil(UNIT_BYTES)
    };
    (first, end - first)
}

/// The unit of a range that touches no other.
#[inline(always)]
fn only_unit(offset: usize, len: usize) -> Option<usize> {
    // An empty range wraps around, and touches none.
    let within = len.wrapping_sub(1) < UNIT_BYTES - offset % UNIT_BYTES;
    within.then_some(offset / UNIT_BYTES)
}

/// One reactor's access to a [`Store`]: cheap to clone, bound to its thread.
///
/// Every call is try-only: `false` or `None` means that a hold is in the way, and the caller tries
/// again later; after a refused write, reads of the same units are refused too for a while, so that
/// the write gets through. Offsets and lengths are bytes, not aligned; a range beyond the store is
/// the caller's bug. A call takes as long as its copy: callers split what is long.
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<hugemem::StoreHandle>();
/// ```
#[derive(Debug, Clone)]
pub struct StoreHandle {
    inner: Rc<HandleInner>,
}

/// What loans keep alive with a count that only their own thread touches.
#[derive(Debug)]
struct HandleInner {
    /// First byte of the store.
    base: NonNull<u8>,
    store: Arc<Store>,
    /// First unit and number of units of a write that are held until a fence.
    unsettled: Cell<(usize, usize)>,
}

impl HandleInner {
    #[inline(never)]
    fn settle(&self) {
        let (first, count) = self.unsettled.take();
        streaming::fence();
        self.store.holds.disown(first, count);
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.settle();
    }
}

impl StoreHandle {
    /// Lends a range for reading until the loan is dropped.
    ///
    /// # Panics
    /// When the range exceeds the store, or is 4 GiB or longer.
    #[inline(always)]
    #[must_use]
    pub fn try_lend(&self, offset: usize, len: usize) -> Option<Loan> {
        self.try_lend_idle(offset, len)
            .or_else(|| self.try_lend_any(offset, len))
    }

    /// Lends a range within one unit that no writer has or waits for, which is how most are found.
    /// `None`: [`try_lend`](Self::try_lend) has to look closer, and nothing has happened.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[inline(always)]
    #[must_use]
    pub fn try_lend_idle(&self, offset: usize, len: usize) -> Option<Loan> {
        let store = &self.inner.store;
        let unit = only_unit(offset, len)?;
        // The sum is 0 at most where it wraps: then the unit is none of the store's, which its word
        // shows.
        if offset.wrapping_add(len) > store.len {
            outside(offset, len, store.len);
        }
        let is_held = store.holds.try_share_idle(unit);
        // A store has no more units than `UNITS_MAX`, and a unit's bytes are few.
        is_held.then(|| self.loan(offset, len as u32, unit as u32))
    }

    /// Lends a range of several units, or one that others or the last write hold.
    #[inline(never)]
    fn try_lend_any(&self, offset: usize, len: usize) -> Option<Loan> {
        self.inner.store.check(offset, len);
        let Ok(length) = u32::try_from(len) else {
            panic!("a loan of {len} bytes");
        };
        self.settle();
        let (first, count) = touched(offset, len);
        let is_held = self.inner.store.holds.try_share(first, count);
        let unit = if count == 1 { first as u32 } else { SEVERAL };
        is_held.then(|| self.loan(offset, length, unit))
    }

    /// A loan of a range that lies within the store, and whose units are held for it: `unit` alone,
    /// or [`SEVERAL`].
    #[inline(always)]
    fn loan(&self, offset: usize, len: u32, unit: u32) -> Loan {
        debug_assert!(offset + len as usize <= self.inner.store.len);
        Loan {
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
        self.try_lend(offset, bytes.len())
            .map(|loan| bytes.copy_from_slice(&loan))
            .is_some()
    }

    /// Compares a range with `bytes`.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_equal(&self, offset: usize, bytes: &[u8]) -> Option<bool> {
        self.try_lend(offset, bytes.len())
            .map(|loan| *loan == *bytes)
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
        self.with_owned(offset, bytes.len(), |range| range.copy_from_slice(bytes))
    }

    /// Copies `bytes` into the store past the caches. The range stays held until
    /// [`settle`](Self::settle), by when most of the copy has arrived.
    fn try_stream(&self, offset: usize, bytes: &[u8]) -> bool {
        self.settle();
        let store = &self.inner.store;
        store.check(offset, bytes.len());
        let (first, count) = touched(offset, bytes.len());
        if !store.holds.try_own(first, count) {
            return false;
        }
        let pointer = store.region.pointer(offset);
        // SAFETY: the range lies in the region, populated and zeroed at start, and all of its units
        // are held exclusively until `settle` disowns them, so nothing else refers to these bytes.
        let range = unsafe { slice::from_raw_parts_mut(pointer.as_ptr(), bytes.len()) };
        // SAFETY: `settle` makes a fence before it disowns them, and nobody looks before that.
        unsafe { streaming::copy(range, bytes) };
        self.inner.unsettled.set((first, count));
        true
    }

    /// Lets go of what the last write holds: at the end of a turn, else before this handle writes or
    /// reads anything but a single unit that is free.
    #[inline(always)]
    pub fn settle(&self) {
        if self.inner.unsettled.get().1 > 0 {
            self.inner.settle();
        }
    }

    /// Fills a range with zeroes.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_zero(&self, offset: usize, len: usize) -> bool {
        self.with_owned(offset, len, |range| range.fill(0))
    }

    /// Forgets the contents of a range, which reads as zeroes afterwards.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_discard(&self, offset: usize, len: usize) -> bool {
        // A punched hole would give memory back to the machine, and the next write could then find
        // none: a SIGBUS on the I/O path. So the pages stay, zeroed.
        self.try_zero(offset, len)
    }

    /// Has `fill` write a range, which nobody else reads or writes meanwhile.
    ///
    /// # Panics
    /// When the range exceeds the store.
    #[must_use]
    pub fn try_fill(&self, offset: usize, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        self.with_owned(offset, len, fill)
    }

    /// Says that a write to the range which was refused is not tried again: until then readers yield
    /// to it, thousands of times for each unit.
    pub fn withdraw(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let store = &self.inner.store;
        store.check(offset, len);
        let (first, count) = touched(offset, len);
        store.holds.withdraw(first, count);
    }

    /// Runs `change` on a range that is held exclusively for its duration.
    fn with_owned(&self, offset: usize, len: usize, change: impl FnOnce(&mut [u8])) -> bool {
        self.settle();
        let store = &self.inner.store;
        store.check(offset, len);
        let (first, count) = touched(offset, len);
        if !store.holds.try_own(first, count) {
            return false;
        }
        let pointer = store.region.pointer(offset);
        // SAFETY: the range lies in the region, populated and zeroed at start, and all of its units
        // are held exclusively until `disown`, so nothing else refers to these bytes.
        change(unsafe { slice::from_raw_parts_mut(pointer.as_ptr(), len) });
        store.holds.disown(first, count);
        true
    }
}

/// A range of a [`Store`] lent for reading; nobody writes there until it is dropped.
///
/// ```
/// # use hugemem::{PagePolicy, Store};
/// let handle = Store::new(4096, PagePolicy::Auto)?.handle();
/// let loan = handle.try_lend(0, 512).expect("nothing is held");
/// let bytes: &[u8] = &loan;
/// assert_eq!(bytes, [0; 512]);
/// drop(loan);
/// # Ok::<(), hugemem::RegionError>(())
/// ```
///
/// ```compile_fail,E0505
/// # use hugemem::{PagePolicy, Store};
/// let handle = Store::new(4096, PagePolicy::Auto)?.handle();
/// let loan = handle.try_lend(0, 512).expect("nothing is held");
/// let bytes: &[u8] = &loan;
/// drop(loan); // the bytes may be written from here on
/// assert_eq!(bytes, [0; 512]);
/// # Ok::<(), hugemem::RegionError>(())
/// ```
///
/// ```compile_fail,E0596
/// fn scribble(mut loan: hugemem::Loan) {
///     loan[0] = 1;
/// }
/// ```
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<hugemem::Loan>();
/// ```
pub struct Loan {
    pointer: NonNull<u8>,
    len: u32,
    /// The only unit that is held, so that most loans end without a look at their range; or
    /// [`SEVERAL`].
    unit: u32,
    handle: Rc<HandleInner>,
}

// Loans move from the device to the transport by value.
const _: () = assert!(size_of::<Loan>() == 24 && size_of::<Option<crate::Data>>() == 32);

impl Loan {
    /// Offset of the first byte in the store's region, in bytes.
    #[inline]
    #[must_use]
    pub fn region_offset(&self) -> usize {
        self.pointer.addr().get() - self.handle.base.addr().get()
    }

    /// Whether a writer waits for a unit of the range. Looks at every unit: not for the I/O path.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        let (first, count) = touched(self.region_offset(), self.len());
        self.handle.store.holds.is_awaited(first, count)
    }

    /// Gives the range back, to be lent again later.
    #[must_use]
    pub fn suspend(self) -> LoanClaim {
        LoanClaim {
            pointer: self.pointer,
            len: self.len(),
            handle: Rc::clone(&self.handle),
        }
    }

    #[inline(never)]
    fn unshare_several(&self) {
        let (first, count) = touched(self.region_offset(), self.len());
        self.handle.store.holds.unshare(first, count);
    }

    /// Whether the bytes are most likely in no cache, the store being larger than those.
    #[inline]
    #[must_use]
    pub fn is_uncached(&self) -> bool {
        self.handle.store.is_uncached
    }
}

/// A range that was lent, and is not held now: nothing keeps a writer away.
#[derive(Debug)]
pub struct LoanClaim {
    pointer: NonNull<u8>,
    len: usize,
    handle: Rc<HandleInner>,
}

impl LoanClaim {
    /// Lends the range again, with what it holds now; `None` while a writer has it or waits for it.
    #[must_use]
    pub fn try_lend(&self) -> Option<Loan> {
        let offset = self.pointer.addr().get() - self.handle.base.addr().get();
        let handle = StoreHandle {
            inner: Rc::clone(&self.handle),
        };
        handle.try_lend(offset, self.len)
    }
}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the region, which the store keeps mapped and populated, and its
        // units are held shared until `drop`, so nobody writes these bytes.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len as usize) }
    }
}

impl Drop for Loan {
    #[inline(always)]
    fn drop(&mut self) {
        match self.unit {
            SEVERAL => self.unshare_several(),
            unit => self.handle.store.holds.unshare_one(unit as usize),
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("region_offset", &self.region_offset())
            .field("len", &self.len)
            .finish()
    }
}
