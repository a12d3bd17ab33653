//! Memory that is registered by address.
#![expect(unsafe_code, reason = "the promise that foreign memory takes")]

use crate::memory::MemoryRange;

/// A range by address. The fabric touches it only through a view of a region that it was told of.
pub(crate) fn foreign(address: usize, len: usize) -> MemoryRange<'static> {
    // SAFETY: tests hold no references to memory that they name like this, and keep its region
    // until they are done.
    unsafe { MemoryRange::foreign(address, len) }
}
