//! A pair's interrupt, for reactors that sleep: armed before sleeping while commands are in flight,
//! disarmed by the first poll afterwards.
//!
//! The descriptor that reactors wait on is an epoll instance of the pair, so that it stays the same
//! when the drive is reattached with other interrupts.

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

    /// A separate descriptor for each namespace queue, because an epoll instance accepts each only
    /// once.
    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        let epoll = self.epoll.as_ref()?;
        epoll.as_fd().try_clone_to_owned().ok()
    }

    /// Adds the vector of a drive that became ready.
    pub(super) fn connect(&mut self, backing: &dyn DeviceBacking, vector: Option<u16>) {
        let event = vector.and_then(|vector| backing.interrupt(vector));
        let added = event.zip(self.epoll.as_ref()).map(|(event, epoll)| {
            let data = epoll::EventData::new_u64(0);
            epoll::add(epoll, event, data, epoll::EventFlags::IN)
        });
        self.vector = vector.filter(|_| matches!(added, Some(Ok(()))));
    }

    /// Removes the drive's vector.
    pub(super) fn disconnect(&mut self, backing: &dyn DeviceBacking) {
        let Some(vector) = self.vector.take() else {
            return;
        };
        if std::mem::take(&mut self.armed) {
            // The drive is about to be gone and sends no more interrupts.
            let _ = backing.arm_interrupt(vector, false);
        }
        if let (Some(event), Some(epoll)) = (backing.interrupt(vector), &self.epoll) {
            let _ = epoll::delete(epoll, event);
        }
    }

    /// Connects the interrupt to its descriptor. Returns false if there is none.
    fn arm(&mut self, backing: &dyn DeviceBacking) -> bool {
        let Some(vector) = self.vector else {
            return false;
        };
        self.armed = self.armed || backing.arm_interrupt(vector, true).is_ok();
        self.armed
    }
}

impl Pair {
    /// A descriptor that becomes readable when the drive interrupts.
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
            // No completion is due, and the owner wakes the reactor when its word changes.
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

    /// Disarms the interrupt, in the first poll after a sleep or after a sleep that was cancelled.
    #[cold]
    pub(super) fn wake_up(&mut self) {
        self.sleep.armed = false;
        if let (Some(backing), Some(vector)) = (&self.backing, self.sleep.vector) {
            // An error is harmless: the interrupt stays armed, which only costs time.
            let _ = backing.arm_interrupt(vector, false);
            backing.clear_interrupt(vector);
        }
        self.own().asleep.store(0, Ordering::Release);
    }

    /// Submission time of the oldest command in flight.
    fn oldest_tick(&self) -> u32 {
        let now = self.tick;
        let slots = self.table.slots.iter();
        let ages = slots
            .filter(|slot| slot.has_command())
            .map(|slot| now.wrapping_sub(slot.submitted));
        now.wrapping_sub(ages.max().unwrap_or(0))
    }
}

/// Borrows a queue's own descriptor.
pub(crate) fn borrow(descriptor: Option<&OwnedFd>) -> Option<BorrowedFd<'_>> {
    descriptor.map(AsFd::as_fd)
}
