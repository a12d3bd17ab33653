//! What a file device needs of the system below it, so that its state machine also runs on a
//! simulated file system and a simulated io_uring.

use std::io;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use uring::{Done, Operation, RingError};

use crate::error::ReopenError;

/// Operations that one poll takes from a ring at most.
pub const DONE_PER_POLL_MAX: usize = 64;

/// Operations that have ended.
pub type DoneBatch = ArrayVec<Done, DONE_PER_POLL_MAX>;

/// A ring of operations on the one file of a device, see [`uring::Ring`].
/// Operations name the file [`FileId::FIRST`](uring::FileId::FIRST).
pub trait FileRing {
    /// Takes an operation, which ends exactly once.
    ///
    /// # Errors
    /// The operation as it came, when the ring is full.
    fn submit(&mut self, tag: u64, operation: Operation) -> Result<(), Operation>;

    /// Enters what was submitted.
    fn flush(&mut self);

    /// Moves ended operations into `done` until it is full.
    fn poll(&mut self, done: &mut DoneBatch);

    /// Operations submitted whose end has not been polled.
    fn in_flight(&self) -> usize;

    /// Whether there are operations that were submitted and not entered.
    fn has_unflushed(&self) -> bool;

    /// The file's length in bytes now. Does not wait for a file server.
    ///
    /// # Errors
    /// The file cannot be examined.
    fn length(&self) -> io::Result<u64>;

    /// A descriptor that is readable when [`poll`](Self::poll) has something to deliver.
    fn wake_source(&self) -> Option<BorrowedFd<'_>>;
}

/// An open file, shared by all queues of a device.
pub trait FileStore: Send + Sync + 'static {
    /// What its queues use.
    type Ring: FileRing + 'static;

    /// Whether transfers bypass the page cache.
    fn is_direct(&self) -> bool;

    /// The file's length in bytes now.
    ///
    /// # Errors
    /// The file cannot be examined.
    fn length(&self) -> io::Result<u64>;

    /// Syncs what was written, by whichever queue.
    ///
    /// # Errors
    /// What fdatasync(2) answered.
    fn sync(&self) -> io::Result<()>;

    /// Makes a ring of `depth` operations with an open file description of its own: Linux reports
    /// a failed writeback once to each open file description (`errseq_t`), so every queue hears
    /// of it.
    ///
    /// # Errors
    /// The kernel gives no ring.
    fn open_ring(&self, depth: u32) -> Result<Self::Ring, RingError>;

    /// Opens the file anew, checks that it is the same one and not shorter than `bytes`, and
    /// prepares a new open file description for every ring. Blocking.
    ///
    /// # Errors
    /// [`ReopenError`]: nothing has changed.
    fn reopen(&self, bytes: u64) -> Result<(), ReopenError>;

    /// Gives a ring the description that [`reopen`](Self::reopen) prepared for it. Nothing is in
    /// flight in the ring. Does not block.
    fn renew(&self, ring: &mut Self::Ring);
}
