//! Limits and states of devices and queue pairs, and their events.

use std::fmt;

use crate::connection::Token;
use crate::request::SGES_MAX;

/// Identifies a device within its provider, for tables: a small number, constant for the provider's
/// lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

/// The wire protocol of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet, in hardware or in software.
    Roce,
    /// iWARP. The memory of reads needs the right of remote writing; providers add it.
    Iwarp,
    /// A transport unknown to this crate.
    Other(i32),
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Roce => f.write_str("RoCE"),
            Self::Iwarp => f.write_str("iWARP"),
            Self::Other(code) => write!(f, "transport {code}"),
        }
    }
}

/// Limits of a device, as it reports them. Counts are entries, sizes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The wire protocol.
    pub transport: Transport,
    /// Number of ports, numbered from 1.
    pub ports: u8,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests of one send queue, and of one receive queue.
    pub queue_pair_requests: u32,
    /// Pieces of memory in one work request, at most [`SGES_MAX`].
    pub sges: u32,
    /// Pieces of memory in one RDMA read, at most [`SGES_MAX`].
    pub read_sges: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries of one completion queue.
    pub completion_queue_entries: u32,
    /// Shared receive queues; 0 if unsupported.
    pub shared_receive_queues: u32,
    /// Work requests of one shared receive queue.
    pub shared_receive_requests: u32,
    /// Pieces of memory in one shared receive, at most [`SGES_MAX`].
    pub shared_receive_sges: u32,
    /// RDMA reads that one queue pair may answer concurrently (responder resources).
    pub reads_incoming: u8,
    /// RDMA reads that one queue pair may have outstanding (initiator depth).
    pub reads_outgoing: u8,
    /// Registrations.
    pub registrations: u32,
    /// Bytes of one registration; longer memory needs several.
    pub registration_bytes: u64,
    /// Memory windows of type 2; 0 if unsupported.
    pub windows: u32,
}

/// Capacity of one queue pair, requested or granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapacity {
    /// Work requests of the send queue.
    pub send_requests: u32,
    /// Work requests of the receive queue; ignored with a shared receive queue.
    pub receive_requests: u32,
    /// Pieces of memory in one send request, at most [`SGES_MAX`].
    pub send_sges: u32,
    /// Pieces of memory in one receive, at most [`SGES_MAX`].
    pub receive_sges: u32,
    /// Bytes of an inline message. A preference: a device may grant fewer, down to 0.
    pub inline_bytes: u32,
}

impl QueuePairCapacity {
    /// The capacity reduced to the device's limits. Log a difference.
    #[must_use]
    pub fn clamped(self, limits: &DeviceLimits) -> Self {
        let sges = limits.sges.min(SGES_MAX as u32);
        Self {
            send_requests: self.send_requests.min(limits.queue_pair_requests),
            receive_requests: self.receive_requests.min(limits.queue_pair_requests),
            send_sges: self.send_sges.min(sges),
            receive_sges: self.receive_sges.min(sges),
            inline_bytes: self.inline_bytes,
        }
    }
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// New.
    Reset,
    /// Receives may be posted.
    Initialized,
    /// Messages are received.
    ReadyToReceive,
    /// Connected: sends and receives work.
    ReadyToSend,
    /// Sends are being drained.
    SendQueueDrained,
    /// A send failed; receives still work.
    SendQueueError,
    /// Everything posted is flushed, also work that is posted later.
    Error,
    /// A state unknown to this crate.
    Other(i32),
}

/// An event of a queue pair outside of its work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairFault {
    /// The queue pair failed.
    Fatal,
    /// The peer sent a request that the protocol does not allow.
    InvalidRequest,
    /// The peer requested memory that it has no right to access.
    AccessViolation,
    /// The last receive that the queue pair had taken from its shared receive queue has completed.
    /// It takes no more, and can be destroyed without losing a message.
    LastReceive,
    /// A message was received before the connection manager reported the connection as established.
    CommunicationEstablished,
    /// The path migrated, or failed to migrate.
    Path,
}

/// An event of a device, returned once ([`Device::next_event`](crate::Device::next_event)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A port carries traffic again, or for the first time.
    PortUp(u8),
    /// A port carries no traffic. Requests on it eventually fail with
    /// [`CompletionStatus::RETRIES_EXCEEDED`](crate::CompletionStatus::RETRIES_EXCEEDED).
    PortDown(u8),
    /// The device failed or is being removed; it does not recover.
    Fatal,
    /// An event of a queue pair.
    QueuePair {
        /// Its connection's token.
        token: Token,
        /// Its number.
        qp_number: u32,
        /// The event.
        fault: QueuePairFault,
    },
    /// A shared receive queue has fewer receives than its limit; the limit is now disarmed.
    ReceivesLow {
        /// The shared receive queue's token.
        token: Token,
    },
    /// A shared receive queue failed.
    SharedReceiveQueueFailed {
        /// The shared receive queue's token.
        token: Token,
    },
    /// A completion queue failed, most likely by an overflow. Its queue pairs are lost.
    CompletionQueueFailed {
        /// The completion queue's token.
        token: Token,
    },
    /// Addresses or keys of a port changed. No action needed.
    PortChanged(u8),
    /// An event unknown to this crate, with the provider's code.
    Other(i32),
}
