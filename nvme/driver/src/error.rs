//! Errors of opening and using a drive.

use std::io;

use nvme_spec::Status;
use nvme_spec::command::AdminOpcode;

/// Error of opening or using a drive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// Invalid options.
    #[error("{0}")]
    Options(&'static str),
    /// Every register reads as all ones.
    #[error("the drive does not respond: it was removed, or its link is down")]
    Gone,
    /// BAR 0 ends before the doorbells that are needed.
    #[error("BAR 0 has {len} bytes, {needed} are needed for the doorbells")]
    RegistersTooShort {
        /// Bytes that are mapped.
        len: usize,
        /// Bytes of registers and doorbells that are needed.
        needed: usize,
    },
    /// CAP.CSS does not include the NVM command set.
    #[error("the controller has no NVM command set (key-value or admin only)")]
    NoNvmCommandSet,
    /// The smallest memory page is larger than the arena's alignment.
    #[error("the controller's smallest memory page is {bytes} bytes; only 4096 is supported")]
    PageSize {
        /// 2^(12 + CAP.MPSMIN).
        bytes: u32,
    },
    /// CAP.MQES is too small.
    #[error("the controller's queues hold {entries} entries; 3 are needed")]
    QueuesTooSmall {
        /// CAP.MQES, one-based.
        entries: u32,
    },
    /// The controller did not follow CC.EN within CAP.TO.
    #[error("the controller did not become {wanted} within {waited_ms} ms (CAP.TO)")]
    NotReady {
        /// The state waited for.
        wanted: &'static str,
        /// Duration of the wait in milliseconds.
        waited_ms: u64,
    },
    /// The controller reports a fatal status (CSTS.CFS).
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// An admin command of the start sequence failed.
    #[error("{} failed: {status}", opcode)]
    Command {
        /// The command.
        opcode: AdminOpcode,
        /// Status of the completion.
        status: Status,
    },
    /// An admin command did not complete in time.
    #[error("{opcode} timed out")]
    CommandTimeout {
        /// The command.
        opcode: AdminOpcode,
    },
    /// An admin completion with an unknown identifier.
    #[error("the controller completed an admin command that was never sent ({cid:#06x})")]
    UnknownAdminCompletion {
        /// Command identifier.
        cid: u16,
    },
    /// Fewer queue pairs than reactors.
    #[error(
        "the controller grants {granted} I/O queue pairs for {reactors} reactors: \
         use at most {granted} cores"
    )]
    TooFewQueues {
        /// Pairs that the controller grants.
        granted: u32,
        /// Pairs that are needed.
        reactors: usize,
    },
    /// The arena has no room for the queues.
    #[error(
        "the arena has no free slice of {bytes} bytes for the drive's queues: give it more memory"
    )]
    NoMemory {
        /// Contiguous bytes needed.
        bytes: usize,
    },
    /// Bus mastering could not be switched on or off.
    #[error("bus mastering could not be switched {}", if *.on { "on" } else { "off" })]
    BusMaster {
        /// The setting requested.
        on: bool,
        /// The system's error.
        source: io::Error,
    },
    /// The function could not be reset.
    #[error("the function could not be reset")]
    FunctionReset(#[source] io::Error),
    /// The drive has no such namespace.
    #[error("the drive has no active namespace {nsid}")]
    NoNamespace {
        /// The identifier requested.
        nsid: u32,
    },
    /// The namespace cannot be used.
    #[error("namespace {nsid}: {reason}")]
    Namespace {
        /// The namespace.
        nsid: u32,
        /// The reason.
        reason: Unusable,
    },
    /// A reattached drive has another identity.
    #[error("the reattached drive is a different one: {0} differs")]
    DifferentDrive(&'static str),
    /// The drive is in use: it is not gone, or parts of it are still referenced.
    #[error("the drive is not waiting to be opened again")]
    InUse,
}

/// The reason why a namespace cannot be used as a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The block size is neither 512 nor 4096.
    #[error("its blocks have {bytes} bytes; format it with blocks of 512 or 4096 (`nvme format`)")]
    BlockSize {
        /// Bytes per block.
        bytes: u32,
    },
    /// The format has metadata.
    #[error(
        "its format has {bytes} bytes of metadata per block; \
         format it without metadata (`nvme format`)"
    )]
    Metadata {
        /// Bytes per block.
        bytes: u16,
    },
    /// Protection information is enabled.
    #[error(
        "its format has protection information (type {kind}); \
         format it without (`nvme format --pi=0`)"
    )]
    Protection {
        /// Protection type, 1 to 3.
        kind: u8,
    },
    /// Identify Namespace reports no usable format.
    #[error("its format is not one that the drive lists")]
    NoFormat,
    /// Identify Namespace reports no blocks.
    #[error("it has no blocks")]
    Empty,
    /// The namespace uses another command set than NVM.
    #[error("it belongs to another command set ({csi:#04x}) than NVM")]
    CommandSet {
        /// The command set's identifier.
        csi: u8,
    },
    /// Identify Namespace failed.
    #[error("it could not be identified: {0}")]
    NotIdentified(Status),
}

/// The reason why a drive is gone until it is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// Its registers read as all ones.
    NotResponding,
    /// The system requested it back.
    RemovalRequested,
    /// It was [released](crate::Drive::release) for another process.
    Released,
    /// It was not ready in time after a reset.
    ResetFailed,
    /// It returned as another drive, or with less command support than before.
    Changed,
    /// A reactor did not acknowledge a reset in time.
    ReactorUnresponsive,
}

impl std::fmt::Display for GoneReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotResponding => "it does not respond",
            Self::RemovalRequested => "the system requested its removal",
            Self::Released => "it was released for another process",
            Self::ResetFailed => "it could not be reset",
            Self::Changed => "a different drive was reattached",
            Self::ReactorUnresponsive => "a reactor did not acknowledge its reset",
        })
    }
}
