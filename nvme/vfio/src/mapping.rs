//! Mapped registers and memory of a device: every access is volatile, a single operation and
//! bounds-checked.
//!
//! No access can fault while the device's descriptor is open and its memory decoding is on, which
//! this crate never turns off: reads from a function that was removed return all ones, and the
//! kernel removes the mapping only after the descriptor was closed. During a reset an access waits
//! in the kernel until the reset is over.
#![expect(unsafe_code, reason = "volatile access to a device's registers")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// One mapped part of a region.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping contains registers, which every thread may access at any time: each access is
// one volatile load or store of at most eight aligned bytes, and no reference is ever created.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

/// Makes every earlier store of this thread to memory visible before the store to a register that
/// follows. x86 keeps stores in order, so there it is only a compiler fence.
#[inline]
fn memory_before_register() {
    if cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
        fence(Ordering::Release);
    } else {
        fence(Ordering::SeqCst);
    }
}

impl Mapping {
    /// Maps `len` bytes at `offset` of a device's descriptor.
    pub(crate) fn new(device: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no memory of this program is replaced.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                device,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapping { base, len })
    }

    /// Size of the mapping in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address in this program of `len` bytes at `offset`, if all of them are mapped.
    pub(crate) fn address_of(&self, offset: usize, len: usize) -> Option<u64> {
        let is_within = offset <= self.len && len <= self.len - offset;
        is_within.then(|| (self.base.as_ptr() as usize + offset) as u64)
    }

    #[inline]
    fn at<T>(&self, offset: usize) -> *mut T {
        let bytes = size_of::<T>();
        assert!(
            offset.is_multiple_of(bytes) && offset <= self.len && bytes <= self.len - offset,
            "{bytes} bytes at {offset:#x} of {:#x} bytes of registers",
            self.len
        );
        // SAFETY: the offset was checked to be within the mapping.
        unsafe { self.base.add(offset) }.cast().as_ptr()
    }

    #[inline]
    pub(crate) fn read_u32(&self, offset: usize) -> u32 {
        // SAFETY: `at` checked that four aligned bytes are mapped there.
        unsafe { ptr::read_volatile(self.at(offset)) }
    }

    #[inline]
    pub(crate) fn read_u64(&self, offset: usize) -> u64 {
        // SAFETY: `at` checked that eight aligned bytes are mapped there.
        unsafe { ptr::read_volatile(self.at(offset)) }
    }

    #[inline]
    pub(crate) fn write_u32(&self, offset: usize, value: u32) {
        memory_before_register();
        // SAFETY: `at` checked that four aligned bytes are mapped there.
        unsafe { ptr::write_volatile(self.at(offset), value) }
    }

    #[inline]
    pub(crate) fn write_u64(&self, offset: usize, value: u64) {
        memory_before_register();
        // SAFETY: `at` checked that eight aligned bytes are mapped there.
        unsafe { ptr::write_volatile(self.at(offset), value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and every access borrows `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping could not be undone");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// A page of memory in place of registers.
    fn page() -> Mapping {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Mapping::new(file.as_fd(), 0, 4096).unwrap()
    }

    #[test]
    fn mapping_reads_back_written_values() {
        let mapping = page();
        mapping.write_u32(4092, 0x1234_5678);
        mapping.write_u64(8, 0x0102_0304_0506_0708);
        assert_eq!(mapping.read_u32(4092), 0x1234_5678);
        assert_eq!(mapping.read_u64(8), 0x0102_0304_0506_0708);
        assert_eq!(mapping.read_u64(16), 0);
    }

    #[test]
    fn only_mapped_bytes_have_an_address() {
        let mapping = page();
        let base = mapping.address_of(0, 4096).expect("all of it");
        assert_eq!(mapping.address_of(4096, 0), Some(base + 4096));
        assert_eq!(mapping.address_of(4095, 1), Some(base + 4095));
        for (offset, len) in [
            (0, 4097),
            (4096, 1),
            (1, 4096),
            (usize::MAX, 1),
            (1, usize::MAX),
        ] {
            assert_eq!(
                mapping.address_of(offset, len),
                None,
                "{offset:#x} {len:#x}"
            );
        }
    }

    #[test]
    #[should_panic(expected = "4 bytes at 0x1000 of 0x1000")]
    fn an_access_past_the_end_panics() {
        page().read_u32(4096);
    }

    #[test]
    #[should_panic(expected = "8 bytes at 0xffffffffffffffff")]
    fn the_largest_offset_does_not_wrap() {
        page().read_u64(usize::MAX);
    }

    #[test]
    #[should_panic(expected = "8 bytes at 0xffc")]
    fn an_access_across_the_end_panics() {
        page().write_u64(4092, 0);
    }

    #[test]
    #[should_panic(expected = "4 bytes at 0x2")]
    fn an_unaligned_access_panics() {
        page().read_u32(2);
    }
}
