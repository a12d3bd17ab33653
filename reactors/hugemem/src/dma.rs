//! Memory that a device and this program use at the same time, and an emulated device's view of a
//! region.
//!
//! Owns: [`DmaBuffer`], a slice of the arena for queues and lists, and [`DmaView`], a second
//! mapping of a region. It gives out no references. A device changes bytes at any time, so every
//! access here is atomic and ends with its call.
//!
//! Why a view does not conflict with a lease: a software device accesses a lease only while it is
//! posted ([`DmaLease`](crate::DmaLease)), and then nothing in the program refers to its bytes. A
//! view of an arena checks this in debug builds. For a region that only a view accesses, no
//! references exist. Any other view is created by an `unsafe` call.
#![expect(unsafe_code, reason = "atomic access through addresses of a mapping")]

use std::array;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::arena::Arena;
use crate::class::{CLASS_BYTES, class_for};
use crate::dma_check::DmaCheck;
use crate::region::{Mapping, Region, panic_out_of_range};

/// Bytes that a device may write at any time: each access is atomic and checked.
#[derive(Clone, Copy)]
struct AtomicBytes {
    base: NonNull<u8>,
    len: usize,
}

/// Declares the atomic load and store of one width.
macro_rules! width {
    ($load:ident, $store:ident, $value:ty, $atomic:ty) => {
        #[inline]
        fn $load(&self, offset: usize, order: Ordering) -> $value {
            let pointer = self.at(offset, size_of::<$value>());
            // SAFETY: `at` checked that the value lies within the mapping and is aligned, and the
            // owner of these bytes keeps them mapped; all access is atomic.
            unsafe { <$atomic>::from_ptr(pointer.cast().as_ptr()) }.load(order)
        }

        #[inline]
        fn $store(&self, offset: usize, value: $value, order: Ordering) {
            let pointer = self.at(offset, size_of::<$value>());
            // SAFETY: as for the load.
            unsafe { <$atomic>::from_ptr(pointer.cast().as_ptr()) }.store(value, order);
        }
    };
}

impl AtomicBytes {
    /// The address of `bytes` bytes at `offset`, which is a multiple of `bytes`.
    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        if offset > self.len || bytes > self.len - offset || !offset.is_multiple_of(bytes) {
            panic_out_of_range(offset, bytes, self.len);
        }
        // SAFETY: the offset was just checked, and mappings are aligned to their pages.
        unsafe { self.base.add(offset) }
    }

    width!(load_u8, store_u8, u8, AtomicU8);
    width!(load_u16, store_u16, u16, AtomicU16);
    width!(load_u32, store_u32, u32, AtomicU32);
    width!(load_u64, store_u64, u64, AtomicU64);

    fn check(&self, offset: usize, bytes: usize) {
        if offset > self.len || bytes > self.len - offset {
            panic_out_of_range(offset, bytes, self.len);
        }
    }

    /// Splits a range into bytes up to the next whole word, whole words, and remaining bytes.
    fn parts(offset: usize, bytes: usize) -> (usize, usize) {
        let head = (offset.next_multiple_of(8) - offset).min(bytes);
        (head, head + (bytes - head) / 8 * 8)
    }

    /// `count` words at `offset`, which is a multiple of 8. The reference does not leave this
    /// module's calls.
    #[inline]
    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let bytes = count * size_of::<u64>();
        if offset > self.len || bytes > self.len - offset || !offset.is_multiple_of(8) {
            panic_out_of_range(offset, bytes, self.len);
        }
        // SAFETY: the offset was just checked, and mappings are aligned to their pages.
        let first = unsafe { self.base.add(offset) };
        // SAFETY: the words lie within the mapping, which the owner of these bytes keeps, and are
        // aligned; all access is atomic.
        unsafe { slice::from_raw_parts(first.cast().as_ptr(), count) }
    }

    #[inline]
    fn load_words<const N: usize>(&self, offset: usize) -> [u64; N] {
        let words = self.words(offset, N);
        array::from_fn(|at| words[at].load(Ordering::Relaxed))
    }

    #[inline]
    fn store_words<const N: usize>(&self, offset: usize, values: &[u64; N]) {
        for (word, value) in self.words(offset, N).iter().zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let (head, tail) = Self::parts(offset, into.len());
        for (at, byte) in into[..head].iter_mut().enumerate() {
            *byte = self.load_u8(offset + at, Ordering::Relaxed);
        }
        if head < tail {
            let words = self.words(offset + head, (tail - head) / 8);
            for (to, word) in into[head..tail].chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
        }
        for (at, byte) in into[tail..].iter_mut().enumerate() {
            *byte = self.load_u8(offset + tail + at, Ordering::Relaxed);
        }
    }

    fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let (head, tail) = Self::parts(offset, from.len());
        for (at, byte) in from[..head].iter().enumerate() {
            self.store_u8(offset + at, *byte, Ordering::Relaxed);
        }
        if head < tail {
            let words = self.words(offset + head, (tail - head) / 8);
            for (word, bytes) in words.iter().zip(from[head..tail].chunks_exact(8)) {
                let mut value = [0; 8];
                value.copy_from_slice(bytes);
                word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
            }
        }
        for (at, byte) in from[tail..].iter().enumerate() {
            self.store_u8(offset + tail + at, *byte, Ordering::Relaxed);
        }
    }
}

/// Declares the public loads and stores of a type with a field `bytes: AtomicBytes`.
macro_rules! accessors {
    ($($load:ident $store:ident $value:ty;)+) => {
        $(
            /// Loads a value.
            ///
            /// # Panics
            /// If it exceeds the memory, or the offset is not a multiple of its size.
            #[inline]
            #[must_use]
            pub fn $load(&self, offset: usize, order: Ordering) -> $value {
                self.note_access(offset, size_of::<$value>(), false);
                self.bytes.$load(offset, order)
            }

            /// Stores a value.
            ///
            /// # Panics
            /// As the load does.
            #[inline]
            pub fn $store(&self, offset: usize, value: $value, order: Ordering) {
                self.note_access(offset, size_of::<$value>(), true);
                self.bytes.$store(offset, value, order);
            }
        )+

        /// Loads `N` words with one check, each atomically (relaxed), but not as a snapshot.
        ///
        /// # Panics
        /// If they exceed the memory, or the offset is not a multiple of 8.
        #[inline]
        #[must_use]
        pub fn load_words<const N: usize>(&self, offset: usize) -> [u64; N] {
            self.note_access(offset, N * size_of::<u64>(), false);
            self.bytes.load_words(offset)
        }

        /// Stores `N` words with one check, each atomically (relaxed), in unspecified order.
        ///
        /// # Panics
        /// As the load does.
        #[inline]
        pub fn store_words<const N: usize>(&self, offset: usize, values: &[u64; N]) {
            self.note_access(offset, N * size_of::<u64>(), true);
            self.bytes.store_words(offset, values);
        }

        /// Copies bytes out. Atomic for each word or byte only.
        ///
        /// # Panics
        /// If they exceed the memory.
        pub fn read(&self, offset: usize, into: &mut [u8]) {
            self.note_access(offset, into.len(), false);
            self.bytes.read(offset, into);
        }

        /// Copies bytes in. Atomic for each word or byte only.
        ///
        /// # Panics
        /// If they exceed the memory.
        pub fn write(&self, offset: usize, from: &[u8]) {
            self.note_access(offset, from.len(), true);
            self.bytes.write(offset, from);
        }
    };
}

/// A slice of the arena for memory that a device accesses at any time: queues, lists, shadow
/// doorbells. Dropping it returns the slice, so the driver must first make sure that the device has
/// stopped using it.
///
/// All access is atomic, by any thread, at checked offsets. Values are in the machine's byte order.
pub struct DmaBuffer {
    bytes: AtomicBytes,
    class: usize,
    slice: u32,
    arena: Arc<Arena>,
}

// SAFETY: the slice belongs to this value alone until drop, and all access to it is atomic.
unsafe impl Send for DmaBuffer {}
// SAFETY: as for Send.
unsafe impl Sync for DmaBuffer {}

impl DmaBuffer {
    /// Takes a zeroed slice of `len` bytes; `None` if the arena has no free slice that is large
    /// enough.
    pub(crate) fn take(arena: &Arc<Arena>, len: usize) -> Option<DmaBuffer> {
        let least = class_for(len)?;
        let (class, slice) =
            (least..CLASS_BYTES.len()).find_map(|class| Some((class, arena.take_slice(class)?)))?;
        let base = arena.region().pointer(arena.carving().offset(class, slice));
        let buffer = DmaBuffer {
            bytes: AtomicBytes { base, len },
            class,
            slice,
            arena: Arc::clone(arena),
        };
        arena.set_device_access(class, slice, true);
        buffer.zero();
        Some(buffer)
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "its length never changes")]
    pub fn len(&self) -> usize {
        self.bytes.len
    }

    /// Offset of the first byte in the arena's region, from which device addresses are computed.
    #[must_use]
    pub fn region_offset(&self) -> usize {
        self.arena.carving().offset(self.class, self.slice)
    }

    /// Address of the first byte in this program.
    #[must_use]
    pub fn address(&self) -> usize {
        self.bytes.base.addr().get()
    }

    /// Accesses by the program itself are not checked.
    #[inline(always)]
    fn note_access(&self, _offset: usize, _len: usize, _wrote: bool) {}

    /// Clears all bytes.
    pub fn zero(&self) {
        let words = self.len() / 8;
        for word in 0..words {
            self.store_u64(word * 8, 0, Ordering::Relaxed);
        }
        for at in words * 8..self.len() {
            self.bytes.store_u8(at, 0, Ordering::Relaxed);
        }
    }

    accessors! {
        load_u16 store_u16 u16;
        load_u32 store_u32 u32;
        load_u64 store_u64 u64;
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        self.arena.set_device_access(self.class, self.slice, false);
        self.arena.give_slice_back(self.class, self.slice);
    }
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuffer")
            .field("region_offset", &self.region_offset())
            .field("len", &self.len())
            .finish()
    }
}

/// A device's view of a region: the same memory mapped again, for emulated devices and fabrics.
/// Shared between threads; it outlives the region.
///
/// All access is atomic and checked, as with [`DmaBuffer`].
pub struct DmaView {
    bytes: AtomicBytes,
    region_base: usize,
    /// The check of accesses, if enabled.
    check: Option<Arc<DmaCheck>>,
    _mapping: Arc<Mapping>,
}

/// A region that the program accesses only through its [`DmaView`], for example the memory of a
/// host in a test. No references to its bytes exist, so a device or a peer may access them at any
/// time.
#[derive(Debug)]
pub struct SharedRegion {
    region: Region,
    view: DmaView,
}

impl SharedRegion {
    /// Wraps a region that only the caller uses.
    ///
    /// # Errors
    /// The kernel's error if the region cannot be mapped again.
    pub fn new(region: Region) -> io::Result<Self> {
        let view = DmaView::map(&region)?;
        Ok(Self { region, view })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The view of its bytes.
    #[must_use]
    pub fn view(&self) -> &DmaView {
        &self.view
    }
}

// SAFETY: the mapping lives as long as this value, and all access to it is atomic.
unsafe impl Send for DmaView {}
// SAFETY: as for Send.
unsafe impl Sync for DmaView {}

impl DmaView {
    /// Maps a region again, for a software device that moves bytes on behalf of others.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Safety
    /// While the view accesses bytes, nothing in the program may refer to them: they are posted to
    /// the device of the view, or belong to a [`DmaBuffer`] or a [`SharedRegion`].
    pub unsafe fn of(region: &Region) -> io::Result<DmaView> {
        Self::map(region)
    }

    /// Maps an arena's region again, for a software device behind a driver. In debug builds each
    /// access to memory that is not posted ([`Lease::into_dma`](crate::Lease::into_dma),
    /// [`DmaBuffer`]) is recorded as a violation
    /// ([`Arena::take_dma_violation`](crate::Arena::take_dma_violation)).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_arena(region: &Region) -> io::Result<DmaView> {
        Self::map(region)
    }

    /// If mappings cannot be duplicated, as with hugepages and under valgrind, the view shares the
    /// region's own mapping.
    fn map(region: &Region) -> io::Result<DmaView> {
        let mapping = match region.mapping().duplicate() {
            Ok(another) => Arc::new(another),
            Err(Errno::INVAL) => Arc::clone(region.mapping()),
            Err(errno) => return Err(errno.into()),
        };
        Ok(DmaView {
            bytes: AtomicBytes {
                base: mapping.base(),
                len: mapping.len(),
            },
            region_base: region.base_address(),
            check: region.dma_check(),
            _mapping: mapping,
        })
    }

    #[inline(always)]
    fn note_access(&self, offset: usize, len: usize, wrote: bool) {
        if cfg!(debug_assertions)
            && let Some(check) = &self.check
        {
            check.access(offset, len, wrote);
        }
    }

    /// Size of the region in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len
    }

    /// Address of the region's own mapping, the base of its leases' addresses.
    #[must_use]
    pub fn base_address(&self) -> usize {
        self.region_base
    }

    accessors! {
        load_u16 store_u16 u16;
        load_u32 store_u32 u32;
        load_u64 store_u64 u64;
    }

    /// Copies `len` bytes at `offset` to `to_offset` of another view.
    ///
    /// # Panics
    /// If either range exceeds its view.
    pub fn copy_to(&self, offset: usize, to: &DmaView, to_offset: usize, len: usize) {
        const PIECE: usize = 512;
        let mut piece = [0; PIECE];
        let mut done = 0;
        while done < len {
            let bytes = PIECE.min(len - done);
            self.read(offset + done, &mut piece[..bytes]);
            to.write(to_offset + done, &piece[..bytes]);
            done += bytes;
        }
    }
}

impl fmt::Debug for DmaView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaView")
            .field("region_base", &format_args!("{:#x}", self.region_base))
            .field("len", &self.len())
            .finish()
    }
}
