//! What the connections of one device share while they work, and why a connection is closed.

use files_service::FileCore;
use hugemem::DmaBuffer;
use rdma::{MemoryMap, PostError, Provider};
use reactors::Nanos;

use crate::counters::RdmaCounters;
use crate::limits::MESSAGE_BYTES;

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a request cannot be posted")]
    Post(#[from] PostError),
    #[error("requests cannot be posted")]
    Flush(#[from] rdma::FlushError),
    #[error("its memory is not registered with the device")]
    NotRegistered,
    #[error("a request has failed: {0}")]
    Failed(rdma::CompletionStatus),
    #[error("it does not take what is sent to it")]
    Stalled,
    #[error("it was not established in time")]
    NotEstablished,
    #[error("its queue pair has failed: {0:?}")]
    QueuePair(rdma::QueuePairFault),
}

/// What the connections of one device share while they work.
pub(crate) struct Context<'a, P: Provider> {
    pub(crate) core: &'a mut FileCore,
    pub(crate) map: &'a MemoryMap<P>,
    /// The bytes of holes in files.
    pub(crate) zeroes: &'a DmaBuffer,
    pub(crate) counters: &'a RdmaCounters,
    /// Memory for one message.
    pub(crate) scratch: &'a mut [u8; MESSAGE_BYTES],
    pub(crate) now: Nanos,
}

/// Most bytes of a part of a reply that one request writes: the bytes of holes are in `zeroes`.
pub(crate) fn request_bytes_max(is_hole: bool, zeroes: &DmaBuffer) -> usize {
    if is_hole { zeroes.len() } else { usize::MAX }
}
