//! Doorbells: a register, and in front of it a word of memory where the controller looks there
//! (Base 2.1 §B.5).

use std::sync::atomic::{Ordering, fence};

use hugemem::DmaBuffer;
use nvme_spec::registers::DOORBELL_BASE_BYTES;

use crate::backing::DeviceBacking;
use crate::memory::PAGE_BYTES;

/// One queue's doorbell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doorbell {
    /// Offset of the register in BAR 0.
    register: usize,
}

impl Doorbell {
    pub(crate) fn at(register: usize) -> Self {
        Self { register }
    }

    /// Tells the controller of `new`; `old` is what it was told last. True when the register was
    /// written.
    #[inline]
    pub(crate) fn ring(
        self,
        backing: &dyn DeviceBacking,
        shadow: Option<&DmaBuffer>,
        old: u16,
        new: u16,
    ) -> bool {
        if let Some(shadow) = shadow
            && !self.ring_shadow(shadow, old, new)
        {
            return false;
        }
        backing.write_u32(self.register, u32::from(new));
        true
    }

    /// Stores the shadow doorbell; whether the register must be written too.
    fn ring_shadow(self, shadow: &DmaBuffer, old: u16, new: u16) -> bool {
        let offset = self.register - DOORBELL_BASE_BYTES as usize;
        shadow.store_u32(offset, u32::from(new), Ordering::Release);
        // The controller stores EventIdx and then looks at the doorbell; we store the doorbell and
        // then look at EventIdx. Without a full fence both could miss the other's store.
        fence(Ordering::SeqCst);
        let event = shadow.load_u32(PAGE_BYTES + offset, Ordering::Relaxed);
        is_due(event as u16, old, new)
    }

    /// Stores the shadow doorbell without a look at EventIdx, for the admin queues, whose registers
    /// are always written.
    pub(crate) fn follow(self, shadow: &DmaBuffer, new: u16) {
        let offset = self.register - DOORBELL_BASE_BYTES as usize;
        shadow.store_u32(offset, u32::from(new), Ordering::Release);
    }
}

/// Whether the controller wants to be told of the way from `old` to `new`: it sleeps at `event`
/// (Base 2.1 §B.5). Indices wrap at the queue's size, which makes the answer true too often, never
/// too rarely.
fn is_due(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base 2.1 §B.5: the register is written when the move passes EventIdx.
    #[test]
    fn the_register_is_written_when_the_event_index_is_passed() {
        assert!(is_due(5, 5, 6));
        assert!(is_due(5, 3, 9));
        assert!(!is_due(9, 3, 9));
        assert!(!is_due(2, 3, 9));
        assert!(is_due(3, 3, 9));
    }

    #[test]
    fn a_wrap_of_the_queue_never_hides_an_event() {
        let entries = 13;
        for old in 0..entries {
            for step in 1..entries {
                let new = (old + step) % entries;
                for passed in 0..step {
                    let event = (old + passed) % entries;
                    assert!(is_due(event, old, new), "{event} from {old} to {new}");
                }
            }
        }
    }
}
