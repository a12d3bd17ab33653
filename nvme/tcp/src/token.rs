//! The 64-bit name of a request: which transport, which connection, which slot.
//!
//! It travels through the target core and the buffer pool as an opaque number and comes back. The
//! generation tells a connection from the one that had its place in the table before.

use bitfield_struct::bitfield;

/// Names one request slot of one connection of one transport.
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

impl RequestToken {
    /// Whether both name the same connection.
    pub(crate) fn names_same_connection(self, other: Self) -> bool {
        self.with_slot(0) == other.with_slot(0)
    }
}
