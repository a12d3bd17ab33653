//! Limits of connections over TCP.

/// Size of the receive buffer of a connection in bytes.
pub const RECEIVE_BYTES: usize = 64 << 10;

/// Reads of one socket in one turn.
pub const READS_PER_TURN_MAX: usize = 8;

/// Connections of one listener that are accepted in one turn.
pub const ACCEPTS_PER_TURN_MAX: usize = 16;

/// Slices of one vectored write.
pub const SLICES_MAX: usize = 512;
