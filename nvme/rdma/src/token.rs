//! Identifiers of work requests and of event subjects, and reserved values of request tokens.
//!
//! Each identifier carries a place in a table and a generation, so that a stale one is recognised.

use bitfield_struct::bitfield;
use rdma::{DeviceUser, Token};

/// Connection number in the token of a receive that waits for a buffer. The token's slot is the
/// receive's number and its generation is the device's place.
pub(crate) const RECEIVES: u16 = u16::MAX;
/// Slot number of the Connect command, which arrives before the slot table exists.
pub(crate) const CONNECT_SLOT: u16 = u16::MAX;

/// Identifies one work request of a send queue, or one receive.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(crate) struct WorkId {
    /// Sequence number of the work requests posted together on this connection; for a receive, its
    /// number.
    #[bits(32)]
    pub(crate) sequence: u32,
    #[bits(16)]
    pub(crate) connection: u16,
    /// The low bits of the connection's generation.
    #[bits(14)]
    pub(crate) generation: u16,
    /// Whether it is the last work request of its sequence number.
    pub(crate) last: bool,
    pub(crate) receive: bool,
}

/// The bits of a generation that a [`WorkId`] holds.
pub(crate) const WORK_GENERATION_MASK: u32 = (1 << 14) - 1;

/// Identifies the subject of an event of the connection manager or of a device.
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

/// The kind of object that an [`EventToken`] identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSubject {
    Connection,
    Listener,
    /// A device's completion queues and shared receive queue.
    Device,
    /// Not a token of this transport.
    Unknown,
}

impl EventToken {
    /// A token for an object of `reactor`.
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
        DeviceUser::Nvme.token(token.into_bits())
    }
}

impl From<Token> for EventToken {
    fn from(token: Token) -> Self {
        Self::from_bits(token.0)
    }
}
