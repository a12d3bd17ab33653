//! Why a drive cannot be driven.

use std::io;

use nvme_spec::Status;
use nvme_spec::command::AdminOpcode;

/// Why a drive could not be brought up, or cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// Options that make no sense together.
    #[error("{0}")]
    Options(&'static str),
    /// Every register reads as all ones.
    #[error("the drive does not answer: it was removed, or its link is down")]
    Gone,
    /// Registers that end before the doorbells that are needed.
    #[error("BAR 0 has {len} bytes, {needed} are needed for the doorbells")]
    RegistersTooShort {
        /// Bytes that are mapped.
        len: usize,
        /// Bytes that hold registers and doorbells.
        needed: usize,
    },
    /// CAP.CSS has no NVM command set.
    #[error("the controller has no NVM command set (key-value or admin only)")]
    NoNvmCommandSet,
    /// The smallest memory page is larger than what the arena is aligned to.
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
    /// The controller did not follow CC.EN in the time that CAP.TO gives it.
    #[error("the controller did not become {wanted} within {waited_ms} ms (CAP.TO)")]
    NotReady {
        /// What was waited for.
        wanted: &'static str,
        /// How long.
        waited_ms: u64,
    },
    /// CSTS.CFS.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// An admin command of the start failed.
    #[error("{} failed: {status}", opcode)]
    Command {
        /// The command.
        opcode: AdminOpcode,
        /// What the controller answered.
        status: Status,
    },
    /// An admin command of the start was not answered.
    #[error("{opcode} was not answered in time")]
    CommandTimeout {
        /// The command.
        opcode: AdminOpcode,
    },
    /// An admin completion that belongs to no command.
    #[error("the controller completed an admin command that was never sent ({cid:#06x})")]
    UnknownAdminCompletion {
        /// Its identifier.
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
        /// Bytes wanted in one piece.
        bytes: usize,
    },
    /// Bus mastering could not be switched.
    #[error("bus mastering could not be switched {}", if *.on { "on" } else { "off" })]
    BusMaster {
        /// Which way.
        on: bool,
        /// What the system answered.
        source: io::Error,
    },
    /// The function could not be reset.
    #[error("the function could not be reset")]
    FunctionReset(#[source] io::Error),
    /// The drive has no such namespace.
    #[error("the drive has no active namespace {nsid}")]
    NoNamespace {
        /// The identifier asked for.
        nsid: u32,
    },
    /// The namespace cannot be used.
    #[error("namespace {nsid}: {reason}")]
    Namespace {
        /// The namespace.
        nsid: u32,
        /// Why not.
        reason: Unusable,
    },
    /// A drive that came back is another one.
    #[error("another drive came back: {0} differs")]
    NotTheSame(&'static str),
    /// The drive is in use: it is not gone, or parts of it are still held.
    #[error("the drive is not waiting to be opened again")]
    InUse,
}

/// Why a namespace cannot be used as a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A block size other than 512 and 4096.
    #[error("its blocks have {bytes} bytes; format it with blocks of 512 or 4096 (`nvme format`)")]
    BlockSize {
        /// Bytes of a block.
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
    /// Protection information is switched on.
    #[error(
        "its format has protection information (type {kind}); \
         format it without (`nvme format --pi=0`)"
    )]
    Protection {
        /// Protection type, 1 to 3.
        kind: u8,
    },
    /// Identify Namespace names no usable format.
    #[error("its format is not one that the drive lists")]
    NoFormat,
    /// Identify Namespace failed or says that it has no blocks.
    #[error("it has no blocks")]
    Empty,
    /// Another command set than NVM.
    #[error("it belongs to another command set ({csi:#04x}) than NVM")]
    CommandSet {
        /// The command set's identifier.
        csi: u8,
    },
    /// Identify Namespace failed.
    #[error("it could not be identified: {0}")]
    NotIdentified(Status),
}

/// Why a drive is gone for good, until it is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// Its registers read as all ones.
    Vanished,
    /// The system asked for it back.
    LetGo,
    /// It did not come back from a reset in time.
    ResetFailed,
    /// It came back as another drive, or with fewer abilities than before.
    Changed,
    /// A reactor did not take notice of a reset in time.
    ReactorStuck,
}

impl std::fmt::Display for GoneReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Vanished => "it no longer answers",
            Self::LetGo => "the system asked for it back",
            Self::ResetFailed => "it could not be reset",
            Self::Changed => "it came back as another drive",
            Self::ReactorStuck => "a reactor did not take notice of its reset",
        })
    }
}
