//! Memory that is registered by address.
#![expect(unsafe_code, reason = "the promise that foreign memory takes")]

use rdma::MemoryRange;

/// A range by address. The fabric accesses it only through the view of a region that was added to
/// it.
pub(crate) fn foreign(address: usize, len: usize) -> MemoryRange<'static> {
    // SAFETY: tests hold no references to memory registered this way, and keep its region until
    // they are done.
    unsafe { MemoryRange::foreign(address, len) }
}
