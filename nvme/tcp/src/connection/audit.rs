//! The memory that a connection holds, for tests and simulations. Not called on the I/O path.

use nvme_target::Timing;

use super::{CONNECT_DATA_BYTES, Connection};
use crate::slot::SlotState;
use crate::stream::ByteStream;

/// Memory that one connection holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAudit {
    /// Bytes of tables and queues, and of the connection itself.
    pub own_bytes: usize,
    /// Bytes of the receive buffer that it keeps between two polls.
    pub buffer_bytes: usize,
    /// Bytes of arena memory for data that arrives, or that is queued for sending.
    pub leased_bytes: usize,
}

impl<S: ByteStream> Connection<S> {
    /// The memory that it holds.
    pub(crate) fn audit(&self) -> ConnectionAudit {
        let slots = self.slots.own_bytes();
        let fetching = self.slots.iter().map(|state| match state {
            SlotState::FetchingData(fetch) => fetch.lease.len(),
            _ => 0,
        });
        let (queued, sending) = self.transmitter.held_bytes();
        let deferred_timings = self.deferred_timings.capacity() * size_of::<Timing>();
        let connect = match self.pending_connect.is_some() {
            true => CONNECT_DATA_BYTES,
            false => 0,
        };
        ConnectionAudit {
            own_bytes: size_of::<Self>() + slots + queued + deferred_timings + connect,
            buffer_bytes: self.receiver.buffer_bytes(),
            leased_bytes: fetching.sum::<usize>() + sending,
        }
    }
}
