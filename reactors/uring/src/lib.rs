//! One io_uring per queue of file operations.
//!
//! Owns: the ring, a fixed table of the operations in flight with the leases that they read from
//! and write to, and the files. Refuses: to let go of memory that the kernel may still write, to
//! allocate after start, and to block (but for a bounded wait when a ring is dropped with work in
//! flight).
//!
//! Operations are pushed by [`Ring::submit`], entered in one system call by [`Ring::flush`], and
//! come back through [`Ring::poll`]. See `io_uring(7)`, `io_uring_setup(2)` and
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
