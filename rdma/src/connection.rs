//! Parameters and events of the connection manager.

use std::fmt;
use std::io;

use crate::provider::Provider;

/// A number chosen by the owner of a connection, a listener or a queue, and carried by its events:
/// an index into the owner's table with a generation, so that no event needs a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Bytes of private data that this crate stores of any message.
pub const PRIVATE_DATA_MAX: usize = 256;
/// Bytes of private data that a connection request carries over InfiniBand and RoCE.
pub const CONNECT_PRIVATE_DATA_MAX: usize = 56;
/// Bytes of private data that an accept carries over InfiniBand and RoCE.
pub const ACCEPT_PRIVATE_DATA_MAX: usize = 196;
/// Bytes of private data that a reject carries over InfiniBand and RoCE.
pub const REJECT_PRIVATE_DATA_MAX: usize = 148;

const _: () = assert!(ACCEPT_PRIVATE_DATA_MAX <= PRIVATE_DATA_MAX);

/// Private data as received. InfiniBand and RoCE pad it with zeroes to the message's full size, so
/// its length is only an upper bound of what the peer sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; PRIVATE_DATA_MAX],
    len: u16,
}

impl PrivateData {
    /// No bytes.
    pub const EMPTY: Self = Self {
        bytes: [0; PRIVATE_DATA_MAX],
        len: 0,
    };

    /// The first [`PRIVATE_DATA_MAX`] of `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().min(PRIVATE_DATA_MAX);
        let mut data = Self::EMPTY;
        data.bytes[..len].copy_from_slice(&bytes[..len]);
        data.len = len as u16;
        data
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({:02x?})", self.as_slice())
    }
}

/// The value of [`ConnectParameters::rnr_retries`] for unlimited retries.
pub const RNR_RETRY_FOREVER: u8 = 7;

/// Connection parameters that a side requests or grants.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParameters<'a> {
    /// Sent to the peer; at most [`CONNECT_PRIVATE_DATA_MAX`] bytes with a request,
    /// [`ACCEPT_PRIVATE_DATA_MAX`] with an accept.
    pub private_data: &'a [u8],
    /// The largest number of RDMA reads that this side has outstanding; not more than the peer's
    /// responder resources and
    /// [`DeviceLimits::reads_outgoing`](crate::DeviceLimits::reads_outgoing).
    pub initiator_depth: u8,
    /// RDMA reads of the peer that this side answers concurrently; not more than
    /// [`DeviceLimits::reads_incoming`](crate::DeviceLimits::reads_incoming).
    pub responder_resources: u8,
    /// How often an unacknowledged packet is retransmitted, 0 to 7. Only with a request.
    pub retries: u8,
    /// How often the peer retransmits a message for which this side had no receive, 0 to 7; see
    /// [`RNR_RETRY_FOREVER`].
    pub rnr_retries: u8,
}

/// Why a connection was rejected: the connection manager's code, numbered as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub i32);

impl RejectReason {
    /// No listener at the address (InfiniBand: invalid service identifier).
    pub const NO_LISTENER: Self = Self(8);
    /// The listener's owner rejected it; see the private data (InfiniBand: consumer defined).
    pub const BY_CONSUMER: Self = Self(28);
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NO_LISTENER => f.write_str("no listener at this address"),
            Self::BY_CONSUMER => f.write_str("rejected by the peer"),
            Self(code) => write!(f, "reason {code}"),
        }
    }
}

/// An event of the connection manager.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "events are few, and taken apart where they are taken"
)]
pub enum Event<P: Provider> {
    /// A peer sent a connection request to a listener. Dropping the request rejects it.
    ConnectRequest {
        /// The listener's token.
        listener: Token,
        /// The peer's request.
        request: P::ConnectRequest,
    },
    /// A listener stopped listening, because its device or its address was removed.
    ListenerFailed {
        /// The listener's token.
        listener: Token,
    },
    /// An event of a connection.
    Connection {
        /// The connection's token.
        token: Token,
        /// The event.
        event: ConnectionEvent,
    },
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The address was resolved to a device; the next step is the route.
    AddressResolved,
    /// The address has no device or did not respond, for this reason.
    AddressFailed(io::ErrorKind),
    /// A route to the peer was found; the next steps are the queue pair and the request.
    RouteResolved,
    /// No route to the peer, for this reason.
    RouteFailed(io::ErrorKind),
    /// Connected. On the passive side a message may complete before this event.
    Established {
        /// The accept's private data; empty on the passive side.
        private_data: PrivateData,
        /// RDMA reads that the peer answers concurrently; having more outstanding gains nothing.
        initiator_depth: u8,
        /// RDMA reads that the peer may have outstanding.
        responder_resources: u8,
    },
    /// The peer rejected the connection, or the connection manager did on its behalf.
    Rejected {
        /// The reason.
        reason: RejectReason,
        /// The reject's private data.
        private_data: PrivateData,
    },
    /// The peer does not respond.
    Unreachable,
    /// The request or the accept failed on this side, for this reason.
    ConnectFailed(io::ErrorKind),
    /// The peer disconnected, disappeared, or received this side's disconnect. The provider has
    /// moved this side's queue pair to the error state before it delivers this event, so that the
    /// queue pair's work is flushed.
    Disconnected,
    /// The device is being removed. Drop all objects on it soon.
    DeviceRemoved,
    /// The address of the connection moved to another device: the connection will fail eventually.
    AddressChanged,
    /// The queue pair's number may be used again. No action needed.
    TimewaitExit,
    /// An event unknown to this crate, with the provider's codes.
    Other {
        /// The provider's event code.
        event: i32,
        /// The provider's status code.
        status: i32,
    },
}
