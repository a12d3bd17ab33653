//! The numbers that name things and come back later: requests, work requests, connections.
//!
//! Each carries the place in a table and a generation, so that what comes back late is recognised
//! and harms nothing.

use bitfield_struct::bitfield;
use rdma::Token;

/// Names one request slot of one connection of one transport, for the target core and the buffer
/// pool.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(crate) struct RequestToken {
    #[bits(16)]
    pub(crate) slot: u16,
    #[bits(16)]
    pub(crate) connection: u16,
    #[bits(24)]
    pub(crate) generation: u32,
    /// The transport's number, so that transports that share a pool tell their requests apart.
    #[bits(8)]
    pub(crate) transport: u8,
}

/// Generations before they repeat.
pub(crate) const GENERATIONS: u32 = 1 << 24;
/// In the place of a connection: a receive that waits for a buffer. The slot is its number, the
/// generation its device.
pub(crate) const RECEIVES: u16 = u16::MAX;
/// In the place of a slot: the Connect command, which comes before there are slots.
pub(crate) const CONNECT_SLOT: u16 = u16::MAX;

impl RequestToken {
    /// Whether both name the same connection.
    pub(crate) fn names_same_connection(self, other: Self) -> bool {
        self.with_slot(0) == other.with_slot(0)
    }
}

/// Names one work request of a send queue, or one receive.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(crate) struct WorkId {
    /// Counts what was posted together on this connection; of a receive, its number.
    #[bits(32)]
    pub(crate) sequence: u32,
    #[bits(16)]
    pub(crate) connection: u16,
    /// The low bits of the connection's generation.
    #[bits(14)]
    pub(crate) generation: u16,
    /// The last work request of its sequence number.
    pub(crate) last: bool,
    pub(crate) receive: bool,
}

/// Which of a generation's bits a [`WorkId`] has room for.
pub(crate) const WORK_GENERATION_MASK: u32 = (1 << 14) - 1;

/// What an event of the connection manager or of a device is about.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(crate) struct EventToken {
    #[bits(16)]
    pub(crate) index: u16,
    #[bits(24)]
    pub(crate) generation: u32,
    #[bits(8)]
    kind: u8,
    /// The reactor that owns it.
    #[bits(16)]
    pub(crate) reactor: u16,
}

/// What kind of thing an [`EventToken`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSubject {
    Connection,
    Listener,
    /// A device's completion queues and shared receive queue.
    Device,
    /// None of ours.
    Unknown,
}

impl EventToken {
    /// The name of a thing of `reactor`.
    pub(crate) fn of(subject: EventSubject, reactor: usize, index: u16, generation: u32) -> Self {
        let kind = match subject {
            EventSubject::Connection => 1,
            EventSubject::Listener => 2,
            EventSubject::Device => 3,
            EventSubject::Unknown => 0,
        };
        Self::new()
            .with_index(index)
            .with_generation(generation)
            .with_kind(kind)
            .with_reactor(reactor as u16)
    }

    pub(crate) fn subject(self) -> EventSubject {
        match self.kind() {
            1 => EventSubject::Connection,
            2 => EventSubject::Listener,
            3 => EventSubject::Device,
            _ => EventSubject::Unknown,
        }
    }
}

impl From<EventToken> for Token {
    fn from(token: EventToken) -> Self {
        Token(token.into_bits())
    }
}

impl From<Token> for EventToken {
    fn from(token: Token) -> Self {
        Self::from_bits(token.0)
    }
}
