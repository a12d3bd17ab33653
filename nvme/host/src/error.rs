//! Errors of the host, with their details.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nvme_spec::Status;
use nvme_spec::nqn::NqnError;
use nvme_spec::tcp::{FatalError, PduType, offset};
use rustix::io::Errno;

/// The reason why a connection, or a command on it, failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The TCP connection could not be established.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The target's address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel does not support the requested congestion control.
    #[error("congestion control {name:?} is not available: {source}")]
    CongestionControl {
        /// Its name.
        name: String,
        /// The kernel's error.
        source: Errno,
    },
    /// The TLS handshake failed, with the likely cause.
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    /// A connected socket failed.
    #[error("the connection failed: {0}")]
    Socket(#[from] Errno),
    /// The target closed the connection between two PDUs.
    #[error("the target closed the connection")]
    Closed,
    /// The target closed the connection within a PDU.
    #[error("the target closed the connection in the middle of a PDU")]
    ClosedWithinPdu,
    /// The target ended the connection with a termination request (TCP 1.1 §3.6.2.5).
    #[error("the target ended the connection: {status} (information {information:#x})")]
    Terminated {
        /// Fatal Error Status.
        status: FatalError,
        /// Fatal Error Information: a field's offset or a digest, depending on the status.
        information: u32,
    },
    /// The target violated the protocol.
    #[error("the target violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// An event did not happen in time.
    #[error("timed out after {limit:?} waiting for {what}")]
    TimedOut {
        /// The event waited for.
        what: &'static str,
        /// Duration of the wait.
        limit: Duration,
    },
    /// A command failed with an NVMe status.
    #[error("{command}: {status}")]
    Command {
        /// Name of the command.
        command: &'static str,
        /// Its status.
        status: CommandStatus,
    },
    /// The controller requires authentication, and the host has no secret.
    #[error("the controller requires authentication, and this host has no key")]
    AuthenticationRequired,
    /// The controller requires a secure channel, and the host did not ask for one.
    #[error("the controller requires TLS: connect with a key for it, or generate one")]
    ChannelRequired,
    /// The authentication failed.
    #[error("authentication failed: {0}")]
    Authentication(nvme_authentication::Failure),
    /// The controller reports a fatal status (CSTS.CFS).
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    ControllerFatal,
    /// An option, or a requirement of the target, that this host does not support.
    #[error("{0}: not supported by this host")]
    Unsupported(&'static str),
    /// The target does not support a digest that was requested.
    #[error("the target does not support {0} digests")]
    DigestUnsupported(&'static str),
    /// A name that is not an NQN.
    #[error("'{name}' is not an NQN: {source}")]
    Nqn {
        /// The name.
        name: Box<str>,
        /// The reason why it is invalid.
        source: NqnError,
    },
    /// A data structure that the target returned is malformed.
    #[error("the target's {what} is malformed")]
    Malformed {
        /// The data structure.
        what: &'static str,
    },
    /// An option is out of range.
    #[error("{what} must be {least} to {most}, not {value}")]
    Option {
        /// The option.
        what: &'static str,
        /// The value given.
        value: u64,
        /// Minimum.
        least: u64,
        /// Maximum.
        most: u64,
    },
    /// No command slot is free for a command of the control path.
    #[error("no command slot is free")]
    NoSlot,
    /// The pool has no free memory for a queue's own needs.
    #[error("no memory is free in the pool")]
    NoMemory,
    /// Data is in memory that is not registered with the transport.
    #[error("the data's memory is not registered with the transport")]
    NotRegistered,
    /// The memory for capsules and admin data could not be allocated.
    #[error("no memory for capsules: {0}")]
    StagingMemory(hugemem::ArenaError),
    /// A verbs operation of the control path failed.
    #[error("{step}: {source}")]
    Rdma {
        /// Name of the operation.
        step: &'static str,
        /// The cause.
        source: rdma::Error,
    },
    /// The target cannot be reached by RDMA.
    #[error("cannot reach {address} by RDMA: {step} failed ({kind})")]
    Unreachable {
        /// The target's address.
        address: SocketAddr,
        /// The step that failed.
        step: &'static str,
        /// The cause.
        kind: io::ErrorKind,
    },
    /// The target, or its connection manager, rejected the connection (RDMA 1.1 §3).
    #[error("{address} rejects the connection: {status}")]
    Rejected {
        /// The target's address.
        address: SocketAddr,
        /// The reason.
        status: Rejection,
    },
    /// A work request failed, and with it the queue pair.
    #[error("the connection failed: {what}: {status}")]
    WorkRequest {
        /// Purpose of the work request.
        what: &'static str,
        /// Status of its completion.
        status: rdma::CompletionStatus,
    },
    /// The RDMA device accepts no more work requests.
    #[error("the connection failed: {0}")]
    Post(#[from] rdma::PostError),
    /// The RDMA device was removed.
    #[error("the RDMA device was removed")]
    DeviceRemoved,
}

/// The reason why a connection was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// Rejected by the target, with its reason.
    ByTarget(nvme_spec::rdma::RejectReason),
    /// Rejected by the connection manager, or without a reason.
    ByConnectionManager(rdma::RejectReason),
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ByTarget(reason) => write!(f, "{reason}"),
            Self::ByConnectionManager(reason) => write!(f, "{reason}"),
        }
    }
}

/// The status of a command. Displayed with the names for Fabrics commands if it was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandStatus {
    /// The status.
    pub status: Status,
    /// Whether the command was a Fabrics command, whose command-specific codes overlap those of I/O
    /// commands.
    pub fabrics: bool,
    /// Dword 0 of the completion: for Connect it identifies the invalid field.
    pub dw0: u32,
}

impl std::fmt::Display for CommandStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = if self.fabrics {
            self.status.fabrics_text()
        } else {
            self.status.text()
        };
        let retry = if self.status.dnr() {
            ", do not retry"
        } else {
            ""
        };
        let (sct, sc) = (self.status.sct().into_bits(), self.status.sc());
        write!(
            f,
            "{} (sct {sct:#x}, sc {sc:#04x}{retry})",
            text.unwrap_or("unknown status")
        )
    }
}

impl HostError {
    /// The NVMe status, if a command failed.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Command { status, .. } => Some(status.status),
            Self::Connect { .. }
            | Self::CongestionControl { .. }
            | Self::Socket(_)
            | Self::Closed
            | Self::ClosedWithinPdu
            | Self::Terminated { .. }
            | Self::Protocol(_)
            | Self::TimedOut { .. }
            | Self::ControllerFatal
            | Self::Unsupported(_)
            | Self::AuthenticationRequired
            | Self::ChannelRequired
            | Self::Authentication(_)
            | Self::Tls(_)
            | Self::DigestUnsupported(_)
            | Self::Nqn { .. }
            | Self::Malformed { .. }
            | Self::Option { .. }
            | Self::NoSlot
            | Self::NoMemory
            | Self::NotRegistered
            | Self::StagingMemory(_)
            | Self::Rdma { .. }
            | Self::Unreachable { .. }
            | Self::Rejected { .. }
            | Self::WorkRequest { .. }
            | Self::Post(_)
            | Self::DeviceRemoved => None,
        }
    }

    /// A copy of the error. Causes that cannot be copied are reduced to their kind.
    #[must_use]
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Socket(errno) => Self::Socket(*errno),
            Self::ClosedWithinPdu => Self::ClosedWithinPdu,
            Self::Terminated {
                status,
                information,
            } => Self::Terminated {
                status: *status,
                information: *information,
            },
            Self::Protocol(error) => Self::Protocol(*error),
            Self::WorkRequest { what, status } => Self::WorkRequest {
                what,
                status: *status,
            },
            Self::Post(error) => Self::Post(*error),
            Self::DeviceRemoved => Self::DeviceRemoved,
            // A connection fails only with the errors above.
            _ => Self::Closed,
        }
    }
}

/// A violation of the transport's protocol by the target. Identifiers are command identifiers;
/// lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A PDU type that a controller never sends, or must not send now.
    #[error("unexpected PDU {0}")]
    UnexpectedPdu(PduType),
    /// HLEN is wrong for the PDU type.
    #[error("{kind}: header length {found}, not {expected}")]
    HeaderLength {
        /// PDU type.
        kind: PduType,
        /// HLEN.
        found: u8,
        /// The header length of the PDU type.
        expected: u8,
    },
    /// Flags that the PDU type does not have, or digest flags other than negotiated.
    #[error("{kind}: flags {found:#04x}")]
    Flags {
        /// PDU type.
        kind: PduType,
        /// FLAGS.
        found: u8,
    },
    /// PLEN is not the sum of header, data and digests.
    #[error("{kind}: PDU length {found}")]
    PduLength {
        /// PDU type.
        kind: PduType,
        /// PLEN.
        found: u32,
    },
    /// PDO is within the header or violates the host's alignment.
    #[error("{kind}: data offset {found}")]
    DataOffset {
        /// PDU type.
        kind: PduType,
        /// PDO.
        found: u8,
    },
    /// The header digest does not match.
    #[error("{kind}: wrong header digest {found:#010x}")]
    HeaderDigest {
        /// PDU type.
        kind: PduType,
        /// The digest received.
        found: u32,
    },
    /// A field of ICResp is out of range.
    #[error("ICResp: field at byte {offset} is not supported")]
    Initialization {
        /// Offset of the field.
        offset: u32,
    },
    /// No command with this identifier is in flight; it may have completed already.
    #[error("{kind} for command {cid:#06x}, which is not in flight")]
    UnknownCommand {
        /// PDU type.
        kind: PduType,
        /// Command Identifier.
        cid: u16,
    },
    /// A completion before the command, or data requested by R2T, was sent.
    #[error("command {cid:#06x} was completed before it was sent in full")]
    CompletedBeforeSent {
        /// Command Identifier.
        cid: u16,
    },
    /// Data for a command that is not a read.
    #[error("data for command {cid:#06x}, which is not a read")]
    UnexpectedData {
        /// Command Identifier.
        cid: u16,
    },
    /// Data PDUs with a gap, an overlap or in the wrong order.
    #[error("command {cid:#06x}: data at {found}, expected at {expected}")]
    DataOutOfOrder {
        /// Command Identifier.
        cid: u16,
        /// DATAO.
        found: u32,
        /// The end of the previous data PDU.
        expected: u32,
    },
    /// DATAL is zero, contradicts PLEN, or exceeds the buffer.
    #[error("command {cid:#06x}: {found} bytes of data where at most {most} fit")]
    DataLength {
        /// Command Identifier.
        cid: u16,
        /// DATAL.
        found: u32,
        /// The space left in the buffer or the PDU.
        most: u32,
    },
    /// Data after the last data PDU.
    #[error("command {cid:#06x}: data after the last data PDU")]
    DataAfterLast {
        /// Command Identifier.
        cid: u16,
    },
    /// SUCCESS without LAST_PDU (TCP 1.1 §3.6.2.9).
    #[error("command {cid:#06x}: SUCCESS without LAST_PDU")]
    SuccessWithoutLast {
        /// Command Identifier.
        cid: u16,
    },
    /// A read that succeeded with less data than requested.
    #[error("command {cid:#06x} succeeded with {found} of {expected} bytes")]
    ShortData {
        /// Command Identifier.
        cid: u16,
        /// Bytes received.
        found: u32,
        /// Bytes requested.
        expected: u32,
    },
    /// An R2T for a command that has no data to send.
    #[error("R2T for command {cid:#06x}, which has no data to send")]
    NoDataToSend {
        /// Command Identifier.
        cid: u16,
    },
    /// A response capsule whose length is not that of a completion queue entry (RDMA).
    #[error("a response capsule of {found} bytes")]
    ResponseLength {
        /// Bytes received.
        found: u32,
    },
    /// A response that invalidated a key other than that of its command (RDMA).
    #[error("the response to command {cid:#06x} invalidated the key {found:#010x}, not its own")]
    InvalidatedKey {
        /// Command Identifier.
        cid: u16,
        /// The key.
        found: u32,
    },
    /// The private data of the accept does not have the NVMe/RDMA format (RDMA 1.1 §3).
    #[error("the accept's private data has the record format {found}")]
    AcceptFormat {
        /// Record Format, or the length of private data that is too short.
        found: u16,
    },
    /// A second R2T while one is outstanding; this host allows one (TCP 1.1 §3.6.2.2, MAXR2T).
    #[error("R2T for command {cid:#06x} while another is outstanding")]
    R2tLimit {
        /// Command Identifier.
        cid: u16,
    },
    /// An R2T that is out of order, empty, or exceeds the data.
    #[error(
        "R2T for command {cid:#06x}: {length} bytes at {offset}, with {sent} of {total} asked for"
    )]
    R2tRange {
        /// Command Identifier.
        cid: u16,
        /// R2TO.
        offset: u32,
        /// R2TL.
        length: u32,
        /// The end of the previous R2T.
        sent: u32,
        /// Length of the data.
        total: u32,
    },
}

impl ProtocolError {
    /// The status and information of a termination request for this error (TCP 1.1 §3.6.2.4).
    pub(crate) fn termination(self) -> (FatalError, u32) {
        let header = FatalError::INVALID_HEADER_FIELD;
        match self {
            Self::UnexpectedPdu(kind) if kind.name().is_some() => (FatalError::SEQUENCE_ERROR, 0),
            Self::UnexpectedPdu(_) => (header, offset::PDU_TYPE),
            Self::HeaderLength { .. } => (header, offset::HLEN),
            Self::Flags { .. } | Self::SuccessWithoutLast { .. } => (header, offset::FLAGS),
            Self::PduLength { .. } => (header, offset::PLEN),
            Self::DataOffset { .. } => (header, offset::PDO),
            Self::HeaderDigest { found, .. } => (FatalError::HEADER_DIGEST_ERROR, found),
            Self::Initialization { offset } => (FatalError::UNSUPPORTED_PARAMETER, offset),
            Self::UnknownCommand { .. }
            | Self::UnexpectedData { .. }
            | Self::NoDataToSend { .. } => (header, offset::CCCID),
            Self::CompletedBeforeSent { .. }
            | Self::DataAfterLast { .. }
            | Self::DataOutOfOrder { .. }
            | Self::ShortData { .. } => (FatalError::SEQUENCE_ERROR, 0),
            Self::DataLength { .. } | Self::R2tRange { .. } => (FatalError::DATA_OUT_OF_RANGE, 0),
            Self::R2tLimit { .. } => (FatalError::DATA_LIMIT_EXCEEDED, 0),
            // RDMA has no termination request: the queue pair is destroyed instead.
            Self::ResponseLength { .. }
            | Self::InvalidatedKey { .. }
            | Self::AcceptFormat { .. } => (header, 0),
        }
    }
}
