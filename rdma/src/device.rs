//! What a device is and may do, and what happens to it.

use std::fmt;

use crate::connection::Token;
use crate::request::SGES_MAX;

/// Names a device within its provider, for tables: small, and the same for as long as the provider
/// lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

/// Which wire protocol a device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet, in hardware or in software.
    Roce,
    /// iWARP. Reads need the right of remote writing on their own memory; providers add it.
    Iwarp,
    /// One that this crate does not know.
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

/// What a device allows, as it reports it. Counts are entries, sizes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Which wire protocol it speaks.
    pub transport: Transport,
    /// Its ports, numbered from 1.
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
    /// Shared receive queues; 0 when it has none.
    pub shared_receive_queues: u32,
    /// Work requests of one shared receive queue.
    pub shared_receive_requests: u32,
    /// Pieces of memory in one shared receive, at most [`SGES_MAX`].
    pub shared_receive_sges: u32,
    /// RDMA reads that one queue pair may answer at once (responder resources).
    pub reads_incoming: u8,
    /// RDMA reads that one queue pair may have outstanding (initiator depth).
    pub reads_outgoing: u8,
    /// Registrations.
    pub registrations: u32,
    /// Bytes of one registration: longer memory is registered in several.
    pub registration_bytes: u64,
    /// Memory windows of type 2; 0 when it has none.
    pub windows: u32,
}

/// How much one queue pair holds: asked for, and granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapacity {
    /// Work requests of the send queue.
    pub send_requests: u32,
    /// Work requests of the receive queue; without meaning with a shared receive queue.
    pub receive_requests: u32,
    /// Pieces of memory in one send request, at most [`SGES_MAX`].
    pub send_sges: u32,
    /// Pieces of memory in one receive, at most [`SGES_MAX`].
    pub receive_sges: u32,
    /// Bytes of an inline message. A wish: a device that has fewer grants fewer, down to 0.
    pub inline_bytes: u32,
}

impl QueuePairCapacity {
    /// The same, reduced to what the device allows. A difference is worth a log line.
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
    /// Just made.
    Reset,
    /// Receives may be posted.
    Initialized,
    /// Messages come in.
    ReadyToReceive,
    /// Connected: everything works.
    ReadyToSend,
    /// Sends are being drained.
    SendQueueDrained,
    /// A send failed, receives still work.
    SendQueueError,
    /// Everything posted is flushed. What is posted from now on is flushed too.
    Error,
    /// One that this crate does not know.
    Other(i32),
}

/// What happened to a queue pair outside of its work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairFault {
    /// The device gave up on it.
    Fatal,
    /// The peer asked for something that the protocol does not allow.
    InvalidRequest,
    /// The peer asked for memory that it may not touch.
    AccessViolation,
    /// The last receive that it had taken from its shared receive queue has completed: it takes
    /// no more, and may be destroyed without losing one.
    LastReceive,
    /// A message came in before the connection manager said that the connection is established.
    CommunicationEstablished,
    /// The path changed, or failed to.
    Path,
}

/// Something that happened to a device, told once to whoever asks
/// ([`Device::next_event`](crate::Device::next_event)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A port carries traffic (again).
    PortUp(u8),
    /// A port carries no traffic. Requests on it fail by and by with
    /// [`CompletionStatus::RETRIES_EXCEEDED`](crate::CompletionStatus::RETRIES_EXCEEDED).
    PortDown(u8),
    /// The device failed or is being removed: nothing on it works again.
    Fatal,
    /// Something happened to a queue pair.
    QueuePair {
        /// Its connection's token.
        token: Token,
        /// Its number.
        qp_number: u32,
        /// What happened.
        fault: QueuePairFault,
    },
    /// A shared receive queue has fewer receives than its limit; the limit is off now.
    ReceivesLow {
        /// The shared receive queue's token.
        token: Token,
    },
    /// A shared receive queue failed.
    SharedReceiveQueueFailed {
        /// The shared receive queue's token.
        token: Token,
    },
    /// A completion queue failed: it overflowed, most likely. Queue pairs on it are lost.
    CompletionQueueFailed {
        /// The completion queue's token.
        token: Token,
    },
    /// Addresses or keys of a port changed. Nothing to do.
    PortChanged(u8),
    /// One that this crate does not know, by the provider's code.
    Other(i32),
}
