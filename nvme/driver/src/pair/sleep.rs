//! A pair's interrupt, for reactors that sleep: connected on the way into sleep while something is
//! in flight, disconnected by the first poll after it.
//!
//! The descriptor that reactors wait on is an epoll instance of our own, so that it stays the same
//! when the drive goes and comes back with other interrupts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::event::epoll;

use super::Pair;
use crate::backing::DeviceBacking;

/// The interrupt of a pair.
pub(super) struct Sleep {
    epoll: Option<OwnedFd>,
    /// The vector that the completion queue was created with.
    vector: Option<u16>,
    armed: bool,
}

impl Sleep {
    pub(super) fn new() -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        Self {
            epoll: epoll.ok(),
            vector: None,
            armed: false,
        }
    }

    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    pub(super) fn has_interrupt(&self) -> bool {
        self.vector.is_some()
    }

    /// A descriptor of its own for each namespace queue: an epoll instance takes none twice.
    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        let epoll = self.epoll.as_ref()?;
        epoll.as_fd().try_clone_to_owned().ok()
    }

    /// Watches a vector of a drive that became ready.
    pub(super) fn connect(&mut self, backing: &dyn DeviceBacking, vector: Option<u16>) {
        let event = vector.and_then(|vector| backing.interrupt(vector));
        let added = event.zip(self.epoll.as_ref()).map(|(event, epoll)| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(epoll, event, data, epoll::EventFlags::IN)
        });
        self.vector = vector.filter(|_| matches!(added, Some(Ok(()))));
    }

    /// Forgets the drive's vector.
    pub(super) fn disconnect(&mut self, backing: &dyn DeviceBacking) {
        let Some(vector) = self.vector.take() else {
            return;
        };
        if std::mem::take(&mut self.armed) {
            // The drive is about to be gone: it interrupts nobody any more.
            let _ = backing.arm_interrupt(vector, false);
        }
        if let (Some(event), Some(epoll)) = (backing.interrupt(vector), &self.epoll) {
            let _ = epoll::delete(epoll, event);
        }
    }

    /// Connects the interrupt with its descriptor. False: there is none.
    fn arm(&mut self, backing: &dyn DeviceBacking) -> bool {
        let Some(vector) = self.vector else {
            return false;
        };
        self.armed = self.armed || backing.arm_interrupt(vector, true).is_ok();
        self.armed
    }
}

impl Pair {
    /// A descriptor that is readable when the drive has interrupted.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.sleep.descriptor()
    }

    /// See [`block::DeviceQueue::prepare_sleep`].
    pub(crate) fn prepare_sleep(&mut self, queue: u8) -> bool {
        self.flush();
        if self.has_ready(queue) {
            return false;
        }
        if self.table.used() == 0 || !self.running {
            // Nothing comes from the drive, and the owner wakes whom it has news for.
            return true;
        }
        let armed = match &self.backing {
            Some(backing) => self.sleep.arm(&**backing),
            None => false,
        };
        if !armed {
            return false;
        }
        let oldest = self.oldest_tick();
        self.own()
            .asleep
            .store(u64::from(oldest) + 1, Ordering::Release);
        !self.has_ready(queue)
    }

    /// The first poll after a sleep, or after one that did not come about.
    #[cold]
    pub(super) fn wake_up(&mut self) {
        self.sleep.armed = false;
        if let (Some(backing), Some(vector)) = (&self.backing, self.sleep.vector) {
            // Nothing is lost where this fails: the interrupt stays connected, which only costs.
            let _ = backing.arm_interrupt(vector, false);
            backing.clear_interrupt(vector);
        }
        self.own().asleep.store(0, Ordering::Release);
    }

    /// When the oldest command in flight was submitted.
    fn oldest_tick(&self) -> u32 {
        let now = self.tick;
        let slots = self.table.slots.iter();
        let ages = slots
            .filter(|slot| slot.has_command())
            .map(|slot| now.wrapping_sub(slot.submitted));
        now.wrapping_sub(ages.max().unwrap_or(0))
    }
}

/// Lets the borrow of a queue's own descriptor be given out.
pub(crate) fn borrow(descriptor: Option<&OwnedFd>) -> Option<BorrowedFd<'_>> {
    descriptor.map(AsFd::as_fd)
}
