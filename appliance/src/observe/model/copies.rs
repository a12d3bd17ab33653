//! The JSON of copies of devices: their state, how one is begun, and how it is aborted.

use block::{CopyEnd, Health};
use serde::{Deserialize, Serialize};

use crate::copies::CopySample;

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum CopyState {
    /// Blocks are being copied.
    Running,
    /// Everything is written, and the destination was flushed.
    Complete,
    /// A request failed.
    Failed,
    /// An operator or the stop of the appliance ended it.
    Aborted,
}

/// A copy of a device to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CopyStatus {
    /// Counts from 1 since the start of the process.
    pub(crate) number: u32,
    /// The device that is read.
    pub(crate) source: String,
    /// The device that is written.
    pub(crate) destination: String,
    pub(crate) state: CopyState,
    /// The beginning of the range in bytes, on both devices.
    pub(crate) offset: u64,
    /// The length of the range in bytes.
    pub(crate) bytes: u64,
    /// Bytes that are written.
    pub(crate) written_bytes: u64,
    /// Bytes of these whose data was in the memory of the drive, and not in that of this machine.
    pub(crate) drive_memory_bytes: u64,
    /// Bytes of these that the drive of both devices has copied by itself.
    pub(crate) drive_bytes: u64,
    /// Copies by the drive itself that failed; their data took another way.
    pub(crate) drive_failures: u64,
    /// Requests whose data was lost in the memory of a drive, or which failed there; their data took the way
    /// through the memory of this machine.
    pub(crate) drive_memory_failures: u64,
    /// When it began, milliseconds since 1970.
    pub(crate) began_unix_ms: u64,
    /// How long it ran, or has run so far.
    pub(crate) took_ms: u64,
    /// Times that it left memory to requests of hosts.
    pub(crate) memory_waits: u64,
    /// Requests that have changed the source since it began. If there are any, the destination may
    /// have blocks of different moments.
    pub(crate) source_changes: u64,
    /// Bytes from the beginning of the range that are all written; none while it runs.
    pub(crate) intact_bytes: Option<u64>,
    /// The beginning of the lowest range that failed in bytes, on both devices.
    pub(crate) failed_offset: Option<u64>,
    /// The length of the lowest range that failed in bytes.
    pub(crate) failed_bytes: Option<u64>,
    /// Why it ended before everything was copied, and what to do, for people.
    pub(crate) error: Option<String>,
}

impl CopyStatus {
    /// Reads a copy; `health` is that of its source.
    pub(crate) fn read(copy: &CopySample, health: Option<&Health>) -> Self {
        let failure = copy.failure();
        let in_bytes = |blocks: u64| blocks * u64::from(copy.block_bytes);
        Self {
            number: copy.number,
            source: copy.source.to_string(),
            destination: copy.destination.to_string(),
            state: match copy.end {
                None => CopyState::Running,
                Some(CopyEnd::Complete) => CopyState::Complete,
                Some(CopyEnd::Stopped { .. }) if failure.is_some() => CopyState::Failed,
                Some(CopyEnd::Stopped { .. }) => CopyState::Aborted,
            },
            offset: copy.offset,
            bytes: copy.bytes,
            written_bytes: copy.written_bytes,
            drive_memory_bytes: copy.drive_memory_bytes,
            drive_bytes: copy.drive_bytes,
            drive_failures: copy.drive_failures,
            drive_memory_failures: copy.drive_memory_failures,
            began_unix_ms: copy.began_unix_ms,
            took_ms: u64::try_from(copy.took.as_millis()).unwrap_or(u64::MAX),
            memory_waits: copy.memory_waits,
            source_changes: copy.source_changes(health),
            intact_bytes: copy.intact_bytes(),
            failed_offset: failure.map(|it| in_bytes(it.first_block)),
            failed_bytes: failure.map(|it| in_bytes(it.blocks)),
            error: copy.error(),
        }
    }
}

impl CopyStatus {
    /// The part that is written in whole percent: 100 only if everything is.
    pub(crate) fn percent(&self) -> u64 {
        let hundredfold = u128::from(self.written_bytes) * 100;
        let percent = hundredfold / u128::from(self.bytes.max(1));
        u64::try_from(percent).unwrap_or(100).min(100)
    }
}

/// What `POST /api/v1/copies/start` takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct CopyRequest {
    /// The name of the device that is read.
    pub(crate) source: String,
    /// The name of the device that is overwritten.
    pub(crate) destination: String,
    /// The beginning of the range in bytes, on both devices.
    #[serde(default)]
    pub(crate) offset: u64,
    /// The length of the range in bytes; without it, to the end of the source.
    #[serde(default)]
    pub(crate) length: Option<u64>,
    /// Copy although the source may be written to meanwhile: the destination may have blocks of
    /// different moments then.
    #[serde(default)]
    pub(crate) live: bool,
    /// Copy although the destination is exported, and hosts may use it.
    #[serde(default)]
    pub(crate) overwrite_exported: bool,
    /// Move data through the controller memory buffer of the drive of one of the devices, and not
    /// through the memory of this machine.
    #[serde(default)]
    pub(crate) drive_memory: bool,
    /// Let the drive of both devices copy by itself what it can.
    #[serde(default)]
    pub(crate) by_drive: bool,
}

/// What `POST /api/v1/copies/start` answers: the copy has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StartCopyAnswer {
    /// The number of the copy, by which the status has its progress and result.
    pub(crate) number: u32,
}

/// What `POST /api/v1/copies/abort` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct AbortCopyRequest {
    /// The number of a copy that runs.
    pub(crate) number: u32,
}

/// What `POST /api/v1/copies/abort` answers: the copy ends when its requests in flight have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AbortCopyAnswer {
    pub(crate) number: u32,
    /// What was done, for people.
    pub(crate) text: String,
}
