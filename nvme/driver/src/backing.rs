//! What the driver needs of a PCI NVMe function: registers, addresses that the function can reach,
//! interrupts, and a way to stop it for certain.
//!
//! Two things implement [`DeviceBacking`]: an adapter over `vfio::Device`, and the emulated
//! controller. Everything is `&self` and may be called from any thread; doorbells are written from
//! every reactor at once.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A PCI NVMe function that belongs to this program. Shared by all reactors.
pub trait DeviceBacking: Send + Sync {
    /// Bytes of BAR 0 that are mapped: registers and doorbells.
    fn registers_len(&self) -> usize;

    /// Reads four bytes of BAR 0, once and whole. All ones when the function is gone.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 4 or the access lies outside: the driver's own mistake.
    fn read_u32(&self, offset: usize) -> u32;

    /// Reads eight bytes of BAR 0: as one access where the backing can, else the low half first
    /// (Base 2.1 §3.1.4 allows both). All ones when the function is gone.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8 or the access lies outside.
    fn read_u64(&self, offset: usize) -> u64;

    /// Writes four bytes of BAR 0, once and whole, after every earlier store to memory of this
    /// thread is visible to the function: a doorbell needs no further fence.
    ///
    /// # Panics
    /// As [`read_u32`](Self::read_u32).
    fn write_u32(&self, offset: usize, value: u32);

    /// Writes eight bytes of BAR 0, as one access or the low half first, ordered as
    /// [`write_u32`](Self::write_u32).
    ///
    /// # Panics
    /// As [`read_u64`](Self::read_u64).
    fn write_u64(&self, offset: usize, value: u64);

    /// The address by which the function reaches the byte at `region_offset` of the arena's region.
    /// The whole arena is mapped once and without gaps: the answer is that for offset 0 plus
    /// `region_offset`, and does not change.
    fn dma_address(&self, region_offset: usize) -> u64;

    /// Maps `len` bytes at `offset` of BAR `bar`, which CMBLOC and CMBSZ name as the controller
    /// memory buffer. `None` where the backing cannot: the driver then does without.
    fn controller_memory(
        &self,
        bar: u8,
        offset: u64,
        len: u64,
    ) -> Option<Arc<dyn ControllerMemory>> {
        let _ = (bar, offset, len);
        None
    }

    /// Lets the function reach memory, or stops it: once this returned `Ok` for `false`, the
    /// function reads and writes no memory of ours.
    ///
    /// # Errors
    /// The configuration space could not be written.
    fn set_bus_master(&self, on: bool) -> io::Result<()>;

    /// Resets the function. May take 100 ms and more: only the control thread calls it. Leaves bus
    /// mastering off and every queue gone.
    ///
    /// # Errors
    /// The function knows no reset, or is gone.
    fn reset_function(&self) -> io::Result<()>;

    /// Interrupt vectors that can be used, 0 where there are none.
    fn interrupt_vectors(&self) -> u16;

    /// The descriptor that becomes readable when `vector` fires, level-triggered until
    /// [`clear_interrupt`](Self::clear_interrupt). `None` beyond the last vector.
    fn interrupt(&self, vector: u16) -> Option<BorrowedFd<'_>>;

    /// Connects a vector with its descriptor, or disconnects it. Called only on the way into and
    /// out of sleep; what fired while disconnected may be lost, so the driver looks at its queue
    /// after connecting.
    ///
    /// # Errors
    /// The kernel refused: the driver then does not let its reactor sleep.
    fn arm_interrupt(&self, vector: u16, armed: bool) -> io::Result<()>;

    /// Makes the vector's descriptor unreadable again until it next fires.
    fn clear_interrupt(&self, vector: u16);

    /// Whether the system asks for the function back (it is about to be unplugged or unbound): the
    /// driver lets go soon.
    fn removal_requested(&self) -> bool;

    /// What people call the function: `0000:01:00.0`.
    fn describe(&self) -> String;
}

/// A mapped controller memory buffer: memory of the function that this program writes (Base 2.1
/// §8.2.1). Offsets are from the buffer's start.
pub trait ControllerMemory: Send + Sync {
    /// Bytes that are mapped.
    fn len(&self) -> usize;

    /// Whether nothing is mapped.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address by which a controller without CMBMSC knows the buffer: its place on the bus, as
    /// the BAR says (Base 2.1 §3.1.4.11). Controllers with CMBMSC are told an address instead.
    fn bus_address(&self) -> u64;

    /// Writes eight bytes, once and whole.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8 or the access lies outside.
    fn write_u64(&self, offset: usize, value: u64);

    /// Makes every write so far visible to the function before any later doorbell.
    fn flush_writes(&self) {}
}
