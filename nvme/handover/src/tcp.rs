//! The record of an NVMe/TCP connection.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// One connection without a request in progress. A PDU that is partly received is part of
/// `received`, from its first byte on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpConnectionRecord {
    /// The reactor that serves it.
    pub reactor: u32,
    /// The port that the host connected to.
    pub port: u16,
    /// The PDUs that are in order.
    pub phase: TcpPhase,
    /// Header digests are enabled.
    pub header_digest: bool,
    /// Data digests are enabled.
    pub data_digest: bool,
    /// The host's data alignment in dwords, zero-based (HPDA).
    pub host_alignment_z: u8,
    /// Largest data of an H2CData PDU in bytes (MAXH2CDATA), as the ICResp reported it.
    pub host_data_max_bytes: u32,
    /// Data that a command capsule may carry, in bytes.
    pub in_capsule_max_bytes: u32,
    /// Whether a successful read may end with the SUCCESS flag instead of a response capsule.
    pub success_flag: bool,
    /// The rest of data that the connection discards, before `received`.
    pub skipped: Option<SkippedData>,
    /// Bytes that were received from the stream and not consumed.
    pub received: Bytes,
    /// Bytes that the stream has to send before any other.
    pub unsent: Bytes,
}

/// Data of a capsule whose command does not use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkippedData {
    /// Bytes that are still expected.
    pub remaining: u32,
    /// Whether a data digest follows.
    pub digest: bool,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TcpPhase {
    /// Waits for the ICReq.
    #[default]
    Initialising,
    /// Waits for the Connect command.
    Connecting,
    /// Serves a queue.
    Serving {
        /// The queue's controller.
        controller_id: u16,
        /// The queue's identifier.
        qid: u16,
    },
}
