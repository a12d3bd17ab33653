//! The 64-bit identifier of a request: transport, connection and slot.
//!
//! The target core and the buffer pool return it unchanged. The generation distinguishes a
//! connection from an earlier one in the same place of the table.

use bitfield_struct::bitfield;

/// Identifies one request slot of one connection of one transport.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct RequestToken {
    /// The slot in the connection's table.
    #[bits(16)]
    pub slot: u16,
    /// The connection's place in the table.
    #[bits(16)]
    pub connection: u16,
    /// The connection's generation.
    #[bits(24)]
    pub generation: u32,
    /// The transport's number: distinguishes the requests of transports that share a pool.
    #[bits(8)]
    pub transport: u8,
}

/// Generations before they repeat.
pub(crate) const GENERATIONS: u32 = 1 << 24;

impl RequestToken {
    /// Whether both identify the same connection.
    #[must_use]
    #[inline]
    pub fn names_same_connection(self, other: Self) -> bool {
        self.with_slot(0) == other.with_slot(0)
    }
}
