//! What makes a descriptor readable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::error::Error;

/// An eventfd that is readable between [`ring`](Self::ring) and [`silence`](Self::silence).
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Self).map_err(|errno| Error::System {
            step: "eventfd",
            source: errno.into(),
        })
    }

    pub(super) fn ring(&self) {
        // A counter that is full is readable too.
        let _: Result<usize, Errno> = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Returns whether it had rung.
    pub(super) fn silence(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]).is_ok()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
