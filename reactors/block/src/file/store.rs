//! The interface of a file device to the system below it, so that its state machine also runs on a
//! simulated file system and a simulated io_uring.

use std::io;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use uring::{Done, Operation, RingError};

use crate::error::ReopenError;

/// Maximum number of ended operations that one poll takes from a ring.
pub const DONE_PER_POLL_MAX: usize = 64;

/// Operations that have ended.
pub type DoneBatch = ArrayVec<Done, DONE_PER_POLL_MAX>;

/// A ring of operations on the only file of a device, see [`uring::Ring`]. Operations use the file
/// [`FileId::FIRST`](uring::FileId::FIRST).
pub trait FileRing {
    /// Takes an operation, which ends exactly once.
    ///
    /// # Errors
    /// The unchanged operation, if the ring is full.
    fn submit(&mut self, tag: u64, operation: Operation) -> Result<(), Operation>;

    /// Submits all operations to the kernel.
    fn flush(&mut self);

    /// Moves ended operations into `done` until it is full.
    fn poll(&mut self, done: &mut DoneBatch);

    /// Number of operations submitted whose end has not been polled.
    fn in_flight(&self) -> usize;

    /// Whether there are operations that the kernel has not received.
    fn has_unflushed(&self) -> bool;

    /// The current length of the file in bytes. Does not wait for a file server.
    ///
    /// # Errors
    /// The file cannot be examined.
    fn length(&self) -> io::Result<u64>;

    /// A descriptor that is readable when [`poll`](Self::poll) has ended operations.
    fn wake_source(&self) -> Option<BorrowedFd<'_>>;
}

/// An open file, shared by all queues of a device.
pub trait FileStore: Send + Sync + 'static {
    /// The ring type of its queues.
    type Ring: FileRing + 'static;

    /// Whether transfers bypass the page cache.
    fn is_direct(&self) -> bool;

    /// The current length of the file in bytes.
    ///
    /// # Errors
    /// The file cannot be examined.
    fn length(&self) -> io::Result<u64>;

    /// Syncs all completed writes of all queues.
    ///
    /// # Errors
    /// The error of fdatasync(2).
    fn sync(&self) -> io::Result<()>;

    /// Creates a ring of `depth` operations with its own open file description. Linux reports a
    /// failed writeback once to each open file description (`errseq_t`), so every queue receives
    /// the error.
    ///
    /// # Errors
    /// The kernel provides no ring.
    fn open_ring(&self, depth: u32) -> Result<Self::Ring, RingError>;

    /// Opens the file again, checks that it is the same one and not shorter than `bytes`, and
    /// prepares a new open file description for every ring. Blocking.
    ///
    /// # Errors
    /// [`ReopenError`]: nothing has changed.
    fn reopen(&self, bytes: u64) -> Result<(), ReopenError>;

    /// Gives a ring the description that [`reopen`](Self::reopen) prepared for it. The ring must
    /// have no operation in flight. Does not block.
    fn renew(&self, ring: &mut Self::Ring);
}
