//! How queue pairs reach a drive that is ready: what changes when it comes back after it was gone.

use std::sync::Arc;

use nvme_spec::registers::{Cap, cq_head_doorbell, sq_tail_doorbell};

use crate::backing::{ControllerMemory, DeviceBacking};

/// Part of a controller memory buffer that holds the submission queues.
#[derive(Clone)]
pub(crate) struct QueueRoom {
    pub(crate) memory: Arc<dyn ControllerMemory>,
    /// The address by which the controller knows the buffer's first byte.
    pub(crate) address: u64,
    /// Submission queues that fit, those of the first reactors.
    pub(crate) queues: usize,
    /// Bytes from one queue to the next.
    pub(crate) stride: usize,
}

/// The way to a drive that is ready.
pub(crate) struct Wiring {
    pub(crate) backing: Arc<dyn DeviceBacking>,
    pub(crate) cap: Cap,
    /// The device's address of the arena's first byte.
    pub(crate) dma_base: u64,
    /// Where submission queues live on the drive.
    pub(crate) room: Option<QueueRoom>,
    /// Whether the controller took the shadow doorbells.
    pub(crate) shadow: bool,
}

/// The identifier of a reactor's queues: the admin queues have 0.
pub(crate) fn queue_id(reactor: usize) -> u16 {
    u16::try_from(reactor + 1).expect("reactors are limited")
}

/// The vector of a reactor's completion queue: one of its own or none, so that no reactor clears
/// what another one waits for. Vector 0 is the admin queue's.
pub(crate) fn vector(backing: &dyn DeviceBacking, reactor: usize) -> Option<u16> {
    let vector = queue_id(reactor);
    (vector < backing.interrupt_vectors() && backing.interrupt(vector).is_some()).then_some(vector)
}

impl Wiring {
    /// Offsets in BAR 0 of a queue's submission and completion doorbells.
    pub(crate) fn doorbells(&self, qid: u16) -> (usize, usize) {
        doorbells(self.cap, qid)
    }

    /// Where a reactor's submission queue lies on the drive: offset in the buffer.
    pub(crate) fn place(&self, reactor: usize) -> Option<(Arc<dyn ControllerMemory>, usize)> {
        let room = self.room.as_ref()?;
        let place = (Arc::clone(&room.memory), reactor * room.stride);
        (reactor < room.queues).then_some(place)
    }
}

/// See [`Wiring::doorbells`].
pub(crate) fn doorbells(cap: Cap, qid: u16) -> (usize, usize) {
    // At most 4 KiB + 65,536 queues × 2 × 128 KiB.
    (
        sq_tail_doorbell(cap, qid) as usize,
        cq_head_doorbell(cap, qid) as usize,
    )
}
