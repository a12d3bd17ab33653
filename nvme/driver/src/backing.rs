//! The interface between the driver and a PCI NVMe function: registers, DMA addresses, interrupts,
//! and ways to stop the function.
//!
//! [`DeviceBacking`] has two implementations: an adapter over `vfio::Device`, and the emulated
//! controller. All methods take `&self` and may be called from any thread. Every reactor writes
//! doorbells, possibly at the same time.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hugemem::{AddressSpace, DmaBuf};

/// A PCI NVMe function that this program owns. Shared by all reactors.
pub trait DeviceBacking: Send + Sync {
    /// Length of the mapped part of BAR 0 in bytes: registers and doorbells.
    fn registers_len(&self) -> usize;

    /// Reads four bytes of BAR 0 in one access. Returns all ones if the function was removed.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4 or the access is outside the mapping: a bug in the
    /// driver.
    fn read_u32(&self, offset: usize) -> u32;

    /// Reads eight bytes of BAR 0: in one access if the backing can, otherwise the low half first
    /// (Base 2.1 §3.1.4 allows both). Returns all ones if the function was removed.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the access is outside the mapping.
    fn read_u64(&self, offset: usize) -> u64;

    /// Writes four bytes of BAR 0 in one access, after every earlier store of this thread to memory
    /// is visible to the function: a doorbell needs no further fence.
    ///
    /// # Panics
    /// As [`read_u32`](Self::read_u32).
    fn write_u32(&self, offset: usize, value: u32);

    /// Writes eight bytes of BAR 0, in one access or the low half first, with the ordering of
    /// [`write_u32`](Self::write_u32).
    ///
    /// # Panics
    /// As [`read_u64`](Self::read_u64).
    fn write_u64(&self, offset: usize, value: u64);

    /// The address at which the function accesses the byte at `region_offset` of the arena's
    /// region. The whole arena is mapped once and without gaps: the address is that of offset 0
    /// plus `region_offset`, and does not change.
    fn dma_address(&self, region_offset: usize) -> u64;

    /// Maps `len` bytes at `offset` of BAR `bar`: the controller memory buffer that CMBLOC and
    /// CMBSZ describe. Returns `None` if the backing cannot map it; the driver then works without
    /// it.
    fn controller_memory(
        &self,
        bar: u8,
        offset: u64,
        len: u64,
    ) -> Option<Arc<dyn ControllerMemory>> {
        let _ = (bar, offset, len);
        None
    }

    /// The address space in which the function accesses memory, if it can be one of several in it.
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// Reserves `len` addresses of the address space for memory of this function, from `at` on if
    /// given: nothing else has them. `None` if there are none.
    fn reserve_addresses(&self, len: u64, at: Option<u64>) -> Option<u64> {
        let _ = (len, at);
        None
    }

    /// Makes the `part` of BAR `bar`, an offset and a length in bytes, accessible to every function of the address space,
    /// at `address`, which is reserved. It ends with [`unshare_memory`](Self::unshare_memory), and
    /// before the function is reset or closed. May take milliseconds.
    ///
    /// # Errors
    /// The kernel refused, or memory is shared already.
    fn share_memory(&self, bar: u8, part: (u64, u64), address: u64) -> io::Result<()> {
        let _ = (bar, part, address);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Ends the access of other functions. Unless `is_unused`, requests of others may still have the
    /// addresses, so that they are not used again.
    fn unshare_memory(&self, is_unused: bool) {
        let _ = is_unused;
    }

    /// A descriptor of the `part` of BAR `bar`, an offset and a length in bytes, for devices outside of
    /// the address space: a dma-buf. The driver revokes what was registered with it before it stops
    /// the function.
    ///
    /// # Errors
    /// The backing has none, or the kernel refused.
    fn export_memory(&self, bar: u8, part: (u64, u64)) -> io::Result<DmaBuf> {
        let _ = (bar, part);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Allows the function to access memory, or prevents it. After `Ok` for `false`, the function
    /// neither reads nor writes this program's memory.
    ///
    /// # Errors
    /// The configuration space could not be written.
    fn set_bus_master(&self, on: bool) -> io::Result<()>;

    /// Resets the function. May take 100 ms or more: only the control thread calls it. Afterwards
    /// bus mastering is off and no queues exist.
    ///
    /// # Errors
    /// The function supports no reset, or was removed.
    fn reset_function(&self) -> io::Result<()>;

    /// Number of usable interrupt vectors; 0 if there are none.
    fn interrupt_vectors(&self) -> u16;

    /// The descriptor that becomes readable when `vector` fires, level-triggered until
    /// [`clear_interrupt`](Self::clear_interrupt). `None` if the function has fewer vectors.
    fn interrupt(&self, vector: u16) -> Option<BorrowedFd<'_>>;

    /// Connects a vector to its descriptor, or disconnects it. Called only before and after a
    /// reactor sleeps. An interrupt that fires while disconnected may be lost, so the driver polls
    /// its queue after connecting.
    ///
    /// # Errors
    /// The kernel refused; the driver then does not let its reactor sleep.
    fn arm_interrupt(&self, vector: u16, armed: bool) -> io::Result<()>;

    /// Makes the vector's descriptor unreadable again until it next fires.
    fn clear_interrupt(&self, vector: u16);

    /// Whether the system requests the function back, because it is about to be unplugged or
    /// unbound. The driver then releases it soon.
    fn removal_requested(&self) -> bool;

    /// The function's name for users: `0000:01:00.0`.
    fn describe(&self) -> String;
}

/// A mapped controller memory buffer: memory of the function that this program writes (Base 2.1
/// §8.2.1). Offsets are relative to the start of the buffer.
pub trait ControllerMemory: Send + Sync {
    /// Length of the mapping in bytes.
    fn len(&self) -> usize;

    /// Whether the mapping is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the buffer for a controller without CMBMSC: its bus address, from the BAR
    /// (Base 2.1 §3.1.4.11). A controller with CMBMSC receives an address from the host instead.
    fn bus_address(&self) -> u64;

    /// Writes eight bytes in one access.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the access is outside the mapping.
    fn write_u64(&self, offset: usize, value: u64);

    /// Makes all earlier writes visible to the function before any later doorbell write.
    fn flush_writes(&self) {}
}
