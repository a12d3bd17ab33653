//! An io_uring for the file operations of one queue.
//!
//! Owns: the ring, a fixed table of the operations in flight with their leases, and the files. It
//! never releases memory that the kernel may still write, does not allocate after start, and does
//! not block (except for a bounded wait if a ring is dropped with operations in flight).
//!
//! [`Ring::submit`] queues operations, [`Ring::flush`] submits them in one system call, and
//! [`Ring::poll`] returns them when they have ended. See `io_uring(7)`, `io_uring_setup(2)` and
//! `io_uring_enter(2)`.

mod kernel;
mod operation;
mod ring;
mod slots;

pub use kernel::{RingCounters, RingFile, leaked_leases};
pub use operation::{
    AllocateMode, Done, FILES_MAX, Failure, FileId, Operation, Outcome, Pending, Step,
};
pub use ring::{Notice, RING_DEPTH_MAX, Ring, RingConfig, RingError};
