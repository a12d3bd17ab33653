//! Why a server of files cannot be used.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use files_client::{ReplyError, Violation};
use files_spec::Status;
use files_spec::rpc::RecordError;

/// Why a server of files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// There is no connection.
    #[error("cannot connect to {address}: {source}: check that an NFS server listens there")]
    Connect {
        /// The server.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// A connection has failed.
    #[error("the connection to the server failed: {0}")]
    Socket(io::Error),
    /// The server closed a connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server closed a connection within a reply.
    #[error("the server closed the connection in the middle of a reply")]
    ClosedWithinReply,
    /// The records of a connection exceed a limit.
    #[error("the server violates the protocol: a reply is too long ({0:?})")]
    Record(RecordError),
    /// The server violates the protocol, or refuses a session.
    #[error("the server cannot be used: {0}")]
    Violation(#[from] Violation),
    /// A result is malformed.
    #[error("the server violates the protocol: {0}")]
    Reply(#[from] ReplyError),
    /// A reply has another result.
    #[error("the server violates the protocol: the result of {0} is missing")]
    Result(&'static str),
    /// The server has ended the session.
    #[error(
        "the server has ended the session of this client: it was restarted, or the lease has expired"
    )]
    SessionLost,
    /// The server does not answer.
    #[error("the server has not answered for {0:?}")]
    TimedOut(Duration),
    /// An operation failed.
    #[error("{operation} of {object} failed: {status}")]
    Operation {
        /// The operation.
        operation: &'static str,
        /// Its object.
        object: String,
        /// Its status.
        status: Status,
    },
    /// Less was read or written than asked for.
    #[error("{operation} of {length} bytes at {offset} moved {moved} bytes")]
    Short {
        /// The operation.
        operation: &'static str,
        /// Where.
        offset: u64,
        /// The bytes that were asked for.
        length: usize,
        /// The bytes that were moved.
        moved: usize,
    },
    /// The server grants fewer slots.
    #[error(
        "the server grants {granted} requests in flight on a connection, not {wanted}: give --depth {granted} and more --connections"
    )]
    Slots {
        /// The granted number.
        granted: u32,
        /// The wanted number.
        wanted: u32,
    },
    /// A part of the path is not a name.
    #[error("'{0}' in the path is not a valid name")]
    Name(String),
    /// The path is too long.
    #[error("the path has more than {0} parts")]
    Path(usize),
    /// A request does not fit.
    #[error("a request does not fit into a record")]
    Request,
}
