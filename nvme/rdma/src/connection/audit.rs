//! The memory that a connection holds, for tests and simulations. Not called on the I/O path.

use hugemem::{Data, DmaBuffer, Lease};
use nvme_target::KeyedBlocks;
use rdma::{Provider, QueuePair as _};

use super::Connection;
use crate::slot::SlotState;

/// Memory that one connection holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAudit {
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// Bytes of tables and queues, of responses in the arena, and of the connection itself.
    pub own_bytes: usize,
    /// Bytes of arena memory for data that is fetched, or that is queued or posted for the host.
    pub leased_bytes: usize,
}

impl<P: Provider> Connection<P> {
    /// The memory that it holds.
    pub(crate) fn audit(&self) -> ConnectionAudit {
        let remotes = self.remotes.capacity() * size_of::<KeyedBlocks>();
        let waiting = self.waiting_reads.capacity() + self.waiting_sends.capacity();
        let responses = self.responses.as_ref().map_or(0, DmaBuffer::len);
        let own_bytes = size_of::<Self>()
            + self.slots.own_bytes()
            + self.sends.own_bytes()
            + self.in_device.own_bytes()
            + remotes
            + waiting * size_of::<u16>()
            + responses;
        let slots = self.slots.iter().map(|state| match state {
            SlotState::AwaitingFetch(fetch) | SlotState::FetchingData(fetch) => fetch.buffer.len(),
            SlotState::AwaitingRate(_, lease) => lease.as_ref().map_or(0, Lease::len),
            SlotState::AwaitingCopyBuffer(_, list) => list.len(),
            SlotState::Responding(response) => match &response.data {
                Some(Data::Lease(lease)) => lease.len(),
                Some(Data::Borrow(_)) | None => 0,
            },
            SlotState::Free
            | SlotState::AwaitingBuffer(_)
            | SlotState::Executing
            | SlotState::Held => 0,
        });
        ConnectionAudit {
            queue_pair: self.queue_pair.number(),
            own_bytes,
            leased_bytes: slots.sum::<usize>()
                + self.sends.leased_bytes()
                + self.connecting.leased_bytes(),
        }
    }
}
