//! What can go wrong between host and target, each with what was wrong.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nvme_spec::Status;
use nvme_spec::nqn::NqnError;
use nvme_spec::tcp::{FatalError, PduType, offset};
use rustix::io::Errno;

/// Why a connection, or a command on it, came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No TCP connection could be made.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not give the connection the congestion control that was asked for.
    #[error("no congestion control {name:?} for the connection: {source}")]
    CongestionControl {
        /// Its name.
        name: String,
        /// The kernel's answer.
        source: Errno,
    },
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
        /// Fatal Error Information: a field's offset or a digest, by status.
        information: u32,
    },
    /// The target broke the protocol.
    #[error("the target broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// Something did not come in time.
    #[error("the target did not answer {what} within {limit:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },
    /// A command failed with an NVMe status.
    #[error("{command}: {status}")]
    Command {
        /// The command.
        command: &'static str,
        /// Its status.
        status: CommandStatus,
    },
    /// The controller reports a fatal status (CSTS.CFS).
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    ControllerFatal,
    /// The target asks for what this host does not have.
    #[error("the target asks for {0}, which this host does not have")]
    Unsupported(&'static str),
    /// The target does not do a digest that was asked for.
    #[error("the target does not do {0} digests")]
    DigestRefused(&'static str),
    /// A name that cannot be an NQN.
    #[error("'{name}' is no NQN: {source}")]
    Nqn {
        /// The name.
        name: Box<str>,
        /// What is wrong with it.
        source: NqnError,
    },
    /// A data structure that the target returned makes no sense.
    #[error("the target's {what} is malformed")]
    Malformed {
        /// The data structure.
        what: &'static str,
    },
    /// An option outside of what is possible.
    #[error("{what} must be {least} to {most}, not {value}")]
    Option {
        /// The option.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The least possible.
        least: u64,
        /// The most possible.
        most: u64,
    },
    /// No command slot is free for a command that cannot wait.
    #[error("no command slot is free")]
    NoSlot,
    /// The pool has no memory free for a queue's own needs.
    #[error("no memory is free in the pool")]
    NoMemory,
    /// Data lies in memory that the transport was not told of.
    #[error("the data's memory is not registered with the transport")]
    NotRegistered,
    /// The memory for capsules and admin data cannot be had.
    #[error("no memory for capsules: {0}")]
    StagingMemory(hugemem::ArenaError),
    /// RDMA cannot do a step of the control path.
    #[error("{step}: {source}")]
    Rdma {
        /// The step.
        step: &'static str,
        /// Why.
        source: rdma::Error,
    },
    /// No way leads to the target by RDMA.
    #[error("cannot reach {address} by RDMA: {step} failed ({kind})")]
    Unreachable {
        /// Where to.
        address: SocketAddr,
        /// The step that failed.
        step: &'static str,
        /// Why.
        kind: io::ErrorKind,
    },
    /// The target, or its connection manager, turned the connection down (RDMA 1.1 §3).
    #[error("{address} rejects the connection: {status}")]
    Rejected {
        /// Where to.
        address: SocketAddr,
        /// Why.
        status: Rejection,
    },
    /// A work request failed, and its queue pair with it.
    #[error("the connection failed: {what}: {status}")]
    WorkRequest {
        /// What it was to do.
        what: &'static str,
        /// How it ended.
        status: rdma::CompletionStatus,
    },
    /// The RDMA device takes no more work.
    #[error("the connection failed: {0}")]
    Post(#[from] rdma::PostError),
    /// The RDMA device is gone.
    #[error("the RDMA device was removed")]
    DeviceRemoved,
}

/// Why a connection was turned down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// By the target, with its own words.
    ByTarget(nvme_spec::rdma::RejectReason),
    /// By the connection manager, or without a reason.
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

/// A command's status, printed by the names of Fabrics commands where it was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandStatus {
    /// The status.
    pub status: Status,
    /// Whether the command was a Fabrics command, whose specific codes overlap those of I/O.
    pub fabrics: bool,
    /// Dword 0 of the completion: for Connect it points at the field at fault.
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
    /// The NVMe status, where the error is a command's.
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
            | Self::DigestRefused(_)
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

    /// The same error for another reader: causes that cannot be copied are reduced to their kind.
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
            // A connection fails only with the kinds above.
            _ => Self::Closed,
        }
    }
}

/// How the target broke the transport's protocol. Identifiers are command identifiers, lengths
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A PDU type that a controller never sends, or not now.
    #[error("unexpected PDU {0}")]
    UnexpectedPdu(PduType),
    /// HLEN is not the type's.
    #[error("{kind}: header length {found}, not {expected}")]
    HeaderLength {
        /// PDU type.
        kind: PduType,
        /// HLEN.
        found: u8,
        /// The type's header length.
        expected: u8,
    },
    /// Flags that the type does not have, or digests other than negotiated.
    #[error("{kind}: flags {found:#04x}")]
    Flags {
        /// PDU type.
        kind: PduType,
        /// FLAGS.
        found: u8,
    },
    /// PLEN is not what header, data and digests add up to.
    #[error("{kind}: PDU length {found}")]
    PduLength {
        /// PDU type.
        kind: PduType,
        /// PLEN.
        found: u32,
    },
    /// PDO lies within the header or off the host's alignment.
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
        /// The digest that was received.
        found: u32,
    },
    /// A field of ICResp is out of its range.
    #[error("ICResp: field at byte {offset} is not supported")]
    Initialization {
        /// Offset of the field.
        offset: u32,
    },
    /// No command with this identifier is in flight; it may have been completed already.
    #[error("{kind} for command {cid:#06x}, which is not in flight")]
    UnknownCommand {
        /// PDU type.
        kind: PduType,
        /// Command Identifier.
        cid: u16,
    },
    /// A completion before the command, or the data asked for, was sent.
    #[error("command {cid:#06x} was completed before it was sent in full")]
    CompletedTooSoon {
        /// Command Identifier.
        cid: u16,
    },
    /// Data for a command that takes none.
    #[error("data for command {cid:#06x}, which reads none")]
    NoDataWanted {
        /// Command Identifier.
        cid: u16,
    },
    /// Data PDUs with a gap, an overlap or out of order.
    #[error("command {cid:#06x}: data at {found}, expected at {expected}")]
    DataOutOfOrder {
        /// Command Identifier.
        cid: u16,
        /// DATAO.
        found: u32,
        /// Where the last data PDU ended.
        expected: u32,
    },
    /// DATAL is zero, disagrees with PLEN, or goes past the end of the buffer.
    #[error("command {cid:#06x}: {found} bytes of data where at most {most} fit")]
    DataLength {
        /// Command Identifier.
        cid: u16,
        /// DATAL.
        found: u32,
        /// What the buffer, or the PDU, has room for.
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
    /// A read that succeeded with less data than it asked for.
    #[error("command {cid:#06x} succeeded with {found} of {expected} bytes")]
    ShortData {
        /// Command Identifier.
        cid: u16,
        /// Bytes received.
        found: u32,
        /// Bytes asked for.
        expected: u32,
    },
    /// An R2T for a command that has no data to send.
    #[error("R2T for command {cid:#06x}, which has no data to send")]
    NoDataToSend {
        /// Command Identifier.
        cid: u16,
    },
    /// A response capsule of another length than a completion queue entry (RDMA).
    #[error("a response capsule of {found} bytes")]
    ResponseLength {
        /// Bytes received.
        found: u32,
    },
    /// A response that invalidated a key other than its command's (RDMA).
    #[error("the response to command {cid:#06x} invalidated the key {found:#010x}, not its own")]
    InvalidatedKey {
        /// Command Identifier.
        cid: u16,
        /// The key.
        found: u32,
    },
    /// The accept's private data is not NVMe/RDMA's (RDMA 1.1 §3).
    #[error("the accept's private data has the record format {found}")]
    AcceptFormat {
        /// Record Format; a length instead where it is too short.
        found: u16,
    },
    /// A second R2T while one is outstanding; this host allows one (TCP 1.1 §3.6.2.2, MAXR2T).
    #[error("R2T for command {cid:#06x} while another is outstanding")]
    R2tLimit {
        /// Command Identifier.
        cid: u16,
    },
    /// An R2T that is not next in order, empty, or past the end of the data.
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
        /// Where the last R2T ended.
        sent: u32,
        /// The data there is.
        total: u32,
    },
}

impl ProtocolError {
    /// What a termination request says about it: status, and information by status (TCP 1.1
    /// §3.6.2.4).
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
            Self::UnknownCommand { .. } | Self::NoDataWanted { .. } | Self::NoDataToSend { .. } => {
                (header, offset::CCCID)
            }
            Self::CompletedTooSoon { .. }
            | Self::DataAfterLast { .. }
            | Self::DataOutOfOrder { .. }
            | Self::ShortData { .. } => (FatalError::SEQUENCE_ERROR, 0),
            Self::DataLength { .. } | Self::R2tRange { .. } => (FatalError::DATA_OUT_OF_RANGE, 0),
            Self::R2tLimit { .. } => (FatalError::DATA_LIMIT_EXCEEDED, 0),
            // RDMA has no termination request: the queue pair ends instead.
            Self::ResponseLength { .. }
            | Self::InvalidatedKey { .. }
            | Self::AcceptFormat { .. } => (header, 0),
        }
    }
}
