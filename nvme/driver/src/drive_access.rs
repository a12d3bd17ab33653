//! The queue pairs' access to a drive that is ready. It may change when a drive is reattached.

use std::sync::Arc;

use hugemem::DeviceMemory;
use nvme_spec::registers::{Cap, cq_head_doorbell, sq_tail_doorbell};

use crate::backing::{ControllerMemory, DeviceBacking};
use crate::data_pages::DataPages;

/// The part of a controller memory buffer that contains the submission queues.
#[derive(Clone)]
pub(crate) struct CmbQueues {
    pub(crate) memory: Arc<dyn ControllerMemory>,
    /// Address of the buffer's first byte for the controller.
    pub(crate) address: u64,
    /// Number of submission queues that fit; they belong to the first reactors.
    pub(crate) queues: usize,
    /// Bytes from one queue to the next.
    pub(crate) stride: usize,
}

/// Access to a drive that is ready.
pub(crate) struct DriveAccess {
    pub(crate) backing: Arc<dyn DeviceBacking>,
    pub(crate) cap: Cap,
    /// Device address of the arena's first byte.
    pub(crate) dma_base: u64,
    /// Location of submission queues in the controller memory buffer.
    pub(crate) room: Option<CmbQueues>,
    /// The part of the controller memory buffer for data. It ends before the controller is started
    /// again.
    pub(crate) data_memory: Option<Arc<DeviceMemory>>,
    /// The PRP entries of its pages, if they are written.
    pub(crate) data_pages: Option<DataPages>,
    /// Whether the controller accepted the shadow doorbells.
    pub(crate) shadow: bool,
}

/// Identifier of a reactor's queues; the admin queues have 0.
pub(crate) fn queue_id(reactor: usize) -> u16 {
    u16::try_from(reactor + 1).expect("reactors are limited")
}

/// The vector of a reactor's completion queue: its own or none, so that no reactor clears an
/// interrupt that another waits for. Vector 0 belongs to the admin queue.
pub(crate) fn vector(backing: &dyn DeviceBacking, reactor: usize) -> Option<u16> {
    let vector = queue_id(reactor);
    (vector < backing.interrupt_vectors() && backing.interrupt(vector).is_some()).then_some(vector)
}

impl DriveAccess {
    /// Offsets in BAR 0 of a queue's submission and completion doorbells.
    pub(crate) fn doorbells(&self, qid: u16) -> (usize, usize) {
        doorbells(self.cap, qid)
    }

    /// A reactor's submission queue in the controller memory buffer: the buffer and the offset in
    /// it.
    pub(crate) fn place(&self, reactor: usize) -> Option<(Arc<dyn ControllerMemory>, usize)> {
        let room = self.room.as_ref()?;
        let place = (Arc::clone(&room.memory), reactor * room.stride);
        (reactor < room.queues).then_some(place)
    }
}

/// Offsets in BAR 0 of a queue's submission and completion doorbells.
pub(crate) fn doorbells(cap: Cap, qid: u16) -> (usize, usize) {
    // At most 4 KiB + 65,536 queues × 2 × 128 KiB.
    (
        sq_tail_doorbell(cap, qid) as usize,
        cq_head_doorbell(cap, qid) as usize,
    )
}
