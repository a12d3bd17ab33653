//! What the service over RDMA counts, written only by its reactor.

use reactors::Counter;

/// The counters of the service over RDMA.
#[derive(Debug, Default)]
pub struct RdmaCounters {
    /// Level: connections.
    pub connections: Counter,
    /// Level: listeners whose device or address is gone. They are tried again.
    pub listeners_down: Counter,
    /// Connection requests that were rejected.
    pub connections_rejected: Counter,
    /// Connections that were closed for an error or a violation of the protocol.
    pub connections_failed: Counter,
    /// Calls that were received.
    pub calls: Counter,
    /// Messages that were answered with an error, because their header or chunks cannot be used.
    pub calls_refused: Counter,
    /// Bytes of data that were written into memory of clients.
    pub bytes_written: Counter,
    /// Bytes of data that were read from memory of clients.
    pub bytes_read: Counter,
    /// Calls that were read from memory of clients as a whole.
    pub long_calls: Counter,
    /// Replies that were written into memory of clients as a whole.
    pub long_replies: Counter,
    /// Replies that invalidated a key of their client.
    pub invalidations: Counter,
}
