//! One owned slice of the arena.
//!
//! Why the slices never overlap: a slice number is in exactly one place, the depot, a cache, or one
//! `Lease`. Numbers enter at start, once each; a `Lease` is made only from a number just taken out
//! and puts it back once, in `drop`; the type is neither `Clone` nor constructible elsewhere.
#![expect(
    unsafe_code,
    reason = "a lease turns its part of the mapping into a slice"
)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;

use crate::class::CLASS_BYTES;
use crate::pool::PoolInner;

/// The only owner of one slice of the arena, 4096-aligned; dropping it gives the slice back.
///
/// The bytes are those that its last owner left there: whoever sends them out fills them first.
/// A lease stays on the thread of the pool that it came from, and a slice of it ends with it:
///
/// ```
/// # use hugemem::{Arena, ArenaConfig, PagePolicy};
/// let config = ArenaConfig { bytes: 1 << 20, pages: PagePolicy::Auto, max_transfer: 4096 };
/// let pool = Arena::new(config)?.pool(0);
/// let lease = pool.take(512).expect("the first lease");
/// let bytes: &[u8] = &lease;
/// assert_eq!(bytes.len(), 512);
/// drop(lease);
/// # Ok::<(), hugemem::ArenaError>(())
/// ```
///
/// ```compile_fail,E0505
/// # use hugemem::{Arena, ArenaConfig, PagePolicy};
/// let config = ArenaConfig { bytes: 1 << 20, pages: PagePolicy::Auto, max_transfer: 4096 };
/// let pool = Arena::new(config)?.pool(0);
/// let lease = pool.take(512).expect("the first lease");
/// let bytes: &[u8] = &lease;
/// drop(lease); // the slice is given back while it is still borrowed
/// assert_eq!(bytes.len(), 512);
/// # Ok::<(), hugemem::ArenaError>(())
/// ```
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<hugemem::Lease>();
/// ```
///
/// ```compile_fail,E0599
/// fn twice(lease: hugemem::Lease) -> (hugemem::Lease, hugemem::Lease) {
///     (lease.clone(), lease)
/// }
/// ```
pub struct Lease {
    pointer: NonNull<u8>,
    len: u32,
    slice: u32,
    class: Class,
    pool: Rc<PoolInner>,
}

/// Places in [`CLASS_BYTES`]; an enum for what its unused values are worth: `Data` needs no room to
/// tell leases from loans. It fills its word, so that a lease is moved in whole words: pieces of one
/// that are stored apart and loaded together stall the core.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Class {
    First,
    Second,
    Third,
    Fourth,
    Fifth,
}

const CLASSES_BY_PLACE: [Class; CLASS_BYTES.len()] = [
    Class::First,
    Class::Second,
    Class::Third,
    Class::Fourth,
    Class::Fifth,
];

impl Lease {
    /// Wraps a slice number that was just taken out of the pool's arena.
    pub(crate) fn new(pool: Rc<PoolInner>, class: usize, slice: u32, len: usize) -> Lease {
        assert!(
            len <= CLASS_BYTES[class],
            "{len} bytes in a slice of {}",
            CLASS_BYTES[class]
        );
        let offset = pool.arena().carving().offset(class, slice);
        let pointer = pool.arena().region().pointer(offset);
        Lease {
            pointer,
            len: len as u32,
            slice,
            class: CLASSES_BY_PLACE[class],
            pool,
        }
    }

    /// Bytes in use.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no byte is in use.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes there are: the size of the slice.
    #[must_use]
    pub fn capacity(&self) -> usize {
        CLASS_BYTES[self.class as usize]
    }

    /// Uses `len` bytes from the start of the slice from now on; bytes are not cleared.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "{len} bytes in a slice of {}",
            self.capacity()
        );
        self.len = len as u32;
    }

    /// Address of the first byte; it stays the same wherever the lease is moved.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer.as_ptr()
    }

    /// Address of the first byte, for a device that will write there while it owns the lease.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Offset of the first byte in the arena's region, in bytes: what a device address is made of.
    #[must_use]
    pub fn region_offset(&self) -> usize {
        self.pool
            .arena()
            .carving()
            .offset(self.class as usize, self.slice)
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the slice lies in the region, which the pool's arena keeps mapped and populated
        // (zeroed by the kernel, so initialised), and this lease is its only owner (see above).
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Lease {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only path to the only owner.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len as usize) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.give_back(self.class as usize, self.slice);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("region_offset", &self.region_offset())
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}
