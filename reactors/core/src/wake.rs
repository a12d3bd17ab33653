//! Wakes a reactor that sleeps in the kernel, without a system call if it is awake.

mod flag;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use flag::SleepFlag;

struct Shared {
    flag: SleepFlag,
    descriptor: OwnedFd,
}

/// Wakes one reactor, or another thread that created it. Publish the work first, then call
/// [`Waker::wake`].
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// The waker of the calling thread. Its descriptor is readable after a wake-up.
    ///
    /// # Errors
    /// The kernel provides no eventfd.
    pub fn new() -> io::Result<Waker> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker(Arc::new(Shared {
            flag: SleepFlag::new(),
            descriptor,
        })))
    }

    /// Ensures that the reactor sees everything published before this call: if it sleeps or is
    /// about to, it takes another turn. Costs a fence and a load while it is awake, and one
    /// `write(2)` for the first call during a sleep.
    pub fn wake(&self) {
        if self.0.flag.take_wake_duty() {
            // A full counter (EAGAIN) is readable already, which suffices.
            let _ = rustix::io::write(&self.0.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Whether the reactor sleeps or is about to.
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.0.flag.is_announced()
    }

    /// Announces a sleep of its thread, which then checks for work once more before it waits for the
    /// descriptor: from here on, [`wake`](Self::wake) makes the descriptor readable.
    pub fn announce_sleep(&self) {
        self.0.flag.announce();
    }

    /// Ends an announced sleep.
    pub fn retract_sleep(&self) {
        self.0.flag.cancel_announcement();
    }

    /// Resets the descriptor's counter after a wake-up.
    pub fn drain(&self) {
        let mut token = [0_u8; 8];
        // EAGAIN means that the counter was 0.
        let _ = rustix::io::read(&self.0.descriptor, &mut token);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Waker")
            .field("sleeping", &self.is_sleeping())
            .finish()
    }
}
