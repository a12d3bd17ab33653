//! One owned slice of the arena.
//!
//! Why slices never overlap: a slice number is in exactly one place, the depot, a cache, or one
//! `Lease`. Each number is added once at start. A `Lease` is created only from a number just taken
//! out, and `drop` returns it once. The type is neither `Clone` nor constructible elsewhere.
#![expect(
    unsafe_code,
    reason = "a lease turns its part of the mapping into a slice"
)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;

use crate::account::{ACCOUNT_BITS, Account};
use crate::class::{CLASS_BYTES, CLASSES};
use crate::pool::PoolInner;

/// The only owner of one slice of the arena, 4096-aligned; dropping it returns the slice.
///
/// The bytes are those of the previous owner: they have to be overwritten before they are sent. A
/// lease stays on the thread of its pool, and a reference to its bytes cannot outlive it:
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
    len: Length,
    slice: u32,
    class: Class,
    pool: Rc<PoolInner>,
}

/// Bytes in use in the low bits, and the charged account in the high bits: together they have the
/// size of a length alone.
#[derive(Clone, Copy)]
struct Length(u32);

/// Bits of a length, which is at most the size of the largest slice.
const LENGTH_BITS: u32 = u32::BITS - ACCOUNT_BITS;

const _: () = assert!(CLASS_BYTES[CLASSES - 1] < 1 << LENGTH_BITS);
const _: () = assert!(size_of::<Lease>() == 32);

impl Length {
    fn new(bytes: usize, account: Account) -> Length {
        Length(bytes as u32 | (account.index() as u32) << LENGTH_BITS)
    }

    #[inline]
    fn bytes(self) -> usize {
        (self.0 & ((1 << LENGTH_BITS) - 1)) as usize
    }

    #[inline]
    fn account(self) -> Account {
        Account::from_index(self.0 >> LENGTH_BITS)
    }
}

/// Index in [`CLASS_BYTES`]. An enum, because its unused values let `Data` distinguish leases from
/// borrows without a tag. It fills a word, so that a lease is moved in whole words: parts that are
/// stored separately and loaded together stall the core.
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
    /// Wraps a slice number that was just taken from the pool's arena for `account`.
    #[inline(always)]
    pub(crate) fn new(
        pool: Rc<PoolInner>,
        account: Account,
        class: usize,
        slice: u32,
        len: usize,
    ) -> Lease {
        assert!(
            len <= CLASS_BYTES[class],
            "{len} bytes in a slice of {}",
            CLASS_BYTES[class]
        );
        let offset = pool.arena().carving().offset(class, slice);
        let pointer = pool.arena().region().pointer(offset);
        Lease {
            pointer,
            len: Length::new(len, account),
            slice,
            class: CLASSES_BY_PLACE[class],
            pool,
        }
    }

    /// Bytes in use.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.bytes()
    }

    /// Whether no byte is in use.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn class(&self) -> usize {
        self.class as usize
    }

    /// Bytes of the slice.
    #[must_use]
    pub fn capacity(&self) -> usize {
        CLASS_BYTES[self.class as usize]
    }

    /// Sets the length in use, from the start of the slice; bytes are not cleared.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "{len} bytes in a slice of {}",
            self.capacity()
        );
        self.len = Length::new(len, self.account());
    }

    /// The account that the slice is charged to.
    #[inline]
    #[must_use]
    pub fn account(&self) -> Account {
        self.len.account()
    }

    /// Charges the slice to `account`, without checking its share: for data that was received
    /// before the pool knew its host.
    #[inline]
    pub fn charge(&mut self, account: Account) {
        let (class, before) = (self.class as usize, self.account());
        self.pool.recharge(class, before, account);
        self.len = Length::new(self.len(), account);
    }

    /// Address of the first byte; it does not change when the lease is moved.
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

    /// Allows or forbids device access to the slice, for the check in debug builds.
    #[inline(always)]
    pub(crate) fn set_device_access(&self, allowed: bool) {
        let arena = self.pool.arena();
        arena.set_device_access(self.class as usize, self.slice, allowed);
    }

    /// Offset of the first byte in the arena's region, in bytes, from which device addresses are
    /// computed.
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
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len()) }
    }
}

impl DerefMut for Lease {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only path to the only owner.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len()) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let account = self.account();
        self.pool
            .give_back(self.class as usize, self.slice, account);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("region_offset", &self.region_offset())
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("account", &self.account())
            .finish()
    }
}
