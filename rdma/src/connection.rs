//! What the connection manager says and is told.

use std::fmt;
use std::io;

use crate::provider::Provider;

/// A number that the owner of a connection, a listener or a queue chose, and that comes back in
/// events: an index into its table with a generation, so that no event needs a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Bytes of private data that this crate keeps of any message.
pub const PRIVATE_DATA_MAX: usize = 256;
/// Bytes of private data that a connection request carries over InfiniBand and RoCE.
pub const CONNECT_PRIVATE_DATA_MAX: usize = 56;
/// Bytes of private data that an accept carries over InfiniBand and RoCE.
pub const ACCEPT_PRIVATE_DATA_MAX: usize = 196;
/// Bytes of private data that a reject carries over InfiniBand and RoCE.
pub const REJECT_PRIVATE_DATA_MAX: usize = 148;

const _: () = assert!(ACCEPT_PRIVATE_DATA_MAX <= PRIVATE_DATA_MAX);

/// Private data as it came. InfiniBand and RoCE pad it with zeroes to the message's full size, so
/// its length is no more than an upper bound of what the peer sent.
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

/// The value of [`ConnectParameters::rnr_retries`] that means: as often as it takes.
pub const RNR_RETRY_FOREVER: u8 = 7;

/// What a side asks of, or grants to, a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParameters<'a> {
    /// Handed to the peer; at most [`CONNECT_PRIVATE_DATA_MAX`] bytes with a request,
    /// [`ACCEPT_PRIVATE_DATA_MAX`] with an accept.
    pub private_data: &'a [u8],
    /// RDMA reads that this side has outstanding at most; not more than the peer's responder
    /// resources and [`DeviceLimits::reads_outgoing`](crate::DeviceLimits::reads_outgoing).
    pub initiator_depth: u8,
    /// RDMA reads of the peer that this side answers at once; not more than
    /// [`DeviceLimits::reads_incoming`](crate::DeviceLimits::reads_incoming).
    pub responder_resources: u8,
    /// How often an unanswered packet is sent again, 0 to 7. Only with a request.
    pub retries: u8,
    /// How often the peer sends a message again for which this side had no receive, 0 to 7; see
    /// [`RNR_RETRY_FOREVER`].
    pub rnr_retries: u8,
}

/// Why a connection was rejected: the connection manager's code, as the wire protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub i32);

impl RejectReason {
    /// Nobody listens there (InfiniBand: invalid service identifier).
    pub const NO_LISTENER: Self = Self(8);
    /// The listener's owner said no; see the private data (InfiniBand: consumer defined).
    pub const BY_CONSUMER: Self = Self(28);
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NO_LISTENER => f.write_str("nobody listens there"),
            Self::BY_CONSUMER => f.write_str("rejected by the peer"),
            Self(code) => write!(f, "reason {code}"),
        }
    }
}

/// Something from the connection manager.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "events are few, and taken apart where they are taken"
)]
pub enum Event<P: Provider> {
    /// A peer wants to connect to a listener. Dropping the request rejects it.
    ConnectRequest {
        /// The listener's token.
        listener: Token,
        /// The peer's wish.
        request: P::ConnectRequest,
    },
    /// A listener no longer listens: its device went away, or its address.
    ListenerFailed {
        /// The listener's token.
        listener: Token,
    },
    /// Something happened to a connection.
    Connection {
        /// The connection's token.
        token: Token,
        /// What happened.
        event: ConnectionEvent,
    },
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The address has a device; the route is next.
    AddressResolved,
    /// The address has no device or no answer, for this reason.
    AddressFailed(io::ErrorKind),
    /// There is a way to the peer; a queue pair and the request are next.
    RouteResolved,
    /// There is no way to the peer.
    RouteFailed(io::ErrorKind),
    /// Connected. On the passive side a message may complete before this comes.
    Established {
        /// The accept's private data; empty on the passive side.
        private_data: PrivateData,
        /// RDMA reads that the peer answers at once: more outstanding are not worth asking for.
        initiator_depth: u8,
        /// RDMA reads that the peer may have outstanding.
        responder_resources: u8,
    },
    /// The peer said no, or the connection manager did for it.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The reject's private data.
        private_data: PrivateData,
    },
    /// The peer does not answer.
    Unreachable,
    /// The request or the accept failed here, for this reason.
    ConnectFailed(io::ErrorKind),
    /// The peer disconnected, is gone, or has seen this side's disconnect. Before it is told, the
    /// provider has put this side's queue pair into the error state, so that its work is flushed.
    Disconnected,
    /// The device is being removed. Everything on it is to be dropped soon.
    DeviceRemoved,
    /// The address that the connection goes by moved elsewhere: it will fail by and by.
    AddressChanged,
    /// The queue pair's number may be used again. Nothing to do.
    TimewaitExit,
    /// One that this crate does not know, by the provider's codes.
    Other {
        /// Which event.
        event: i32,
        /// Its status.
        status: i32,
    },
}
