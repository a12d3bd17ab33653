//! Doorbells: a register, and optionally a shadow doorbell in memory that the controller reads
//! (Base 2.1 §B.5).

use std::sync::atomic::{Ordering, fence};

use hugemem::DmaBuffer;
use nvme_spec::registers::DOORBELL_BASE_BYTES;

use crate::backing::DeviceBacking;
use crate::memory::PAGE_BYTES;

/// The doorbell of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doorbell {
    /// Offset of the register in BAR 0.
    register: usize,
}

impl Doorbell {
    pub(crate) fn at(register: usize) -> Self {
        Self { register }
    }

    /// Notifies the controller of the index `new`; `old` is the last index it was notified of.
    /// Returns true if the register was written.
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

    /// Stores the shadow doorbell. Returns whether the register must be written too.
    fn ring_shadow(self, shadow: &DmaBuffer, old: u16, new: u16) -> bool {
        let offset = self.register - DOORBELL_BASE_BYTES as usize;
        shadow.store_u32(offset, u32::from(new), Ordering::Release);
        // The controller stores EventIdx and then reads the doorbell; the driver stores the
        // doorbell and then reads EventIdx. Without a full fence both could miss the other's store.
        fence(Ordering::SeqCst);
        let event = shadow.load_u32(PAGE_BYTES + offset, Ordering::Relaxed);
        is_due(event as u16, old, new)
    }

    /// Stores the shadow doorbell without reading EventIdx. For the admin queues, whose registers
    /// are always written.
    pub(crate) fn follow(self, shadow: &DmaBuffer, new: u16) {
        let offset = self.register - DOORBELL_BASE_BYTES as usize;
        shadow.store_u32(offset, u32::from(new), Ordering::Release);
    }
}

/// Whether the move from `old` to `new` passes `event`, at which the controller wants a register
/// write (Base 2.1 §B.5). Indices wrap at the queue's size, so the result is true too often, but
/// never too rarely.
fn is_due(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base 2.1 §B.5: the register is written if the move passes EventIdx.
    #[test]
    fn doorbell_register_is_written_when_event_idx_is_passed() {
        assert!(is_due(5, 5, 6));
        assert!(is_due(5, 3, 9));
        assert!(!is_due(9, 3, 9));
        assert!(!is_due(2, 3, 9));
        assert!(is_due(3, 3, 9));
    }

    #[test]
    fn event_idx_is_detected_across_queue_wraps() {
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
