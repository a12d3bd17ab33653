//! A notification descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use rdma::Error;

/// An eventfd that is readable between [`ring`](Self::ring) and [`silence`](Self::silence).
#[derive(Debug)]
pub(super) struct Notifier {
    descriptor: OwnedFd,
    /// Whether it may be readable, so that a frequent check does not enter the kernel needlessly.
    may_be_readable: AtomicBool,
}

impl Notifier {
    pub(super) fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(|errno| Error::System {
            step: "eventfd",
            source: errno.into(),
        })?;
        Ok(Self {
            descriptor,
            may_be_readable: AtomicBool::new(false),
        })
    }

    pub(super) fn notify(&self) {
        // A saturated counter is readable too.
        let _: Result<usize, Errno> = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        // After the write, so that a readable descriptor is never permanently taken for a silent
        // one.
        self.may_be_readable.store(true, Ordering::Release);
    }

    /// Returns whether it had rung.
    pub(super) fn clear(&self) -> bool {
        self.may_be_readable.swap(false, Ordering::Acquire)
            && rustix::io::read(&self.descriptor, &mut [0u8; 8]).is_ok()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
