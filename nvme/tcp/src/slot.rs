//! The states of NVMe/TCP requests: [`nvme_fabrics::SlotState`] with the transport's record of data
//! that is being received.
//!
//! Data and response are queued together, so sending them is one state. `AwaitingFetch` is not
//! used: an R2T can always be queued.

use hugemem::Lease;
use nvme_target::{Timing, Work};

/// The state of a request.
pub(crate) type SlotState = nvme_fabrics::SlotState<Fetch, Timing>;
/// The request slots of a connection.
pub(crate) type SlotTable = nvme_fabrics::SlotTable<Fetch, Timing>;

/// Data from the host that is being received into a lease.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) work: Work,
    pub(crate) lease: Lease,
    /// Bytes received.
    pub(crate) filled: usize,
    /// Of these, the bytes at the front that are in the device already, and not in the lease. A
    /// multiple of the block size.
    pub(crate) placed: usize,
    /// Block size in bytes, if data may be received directly into the device.
    pub(crate) block_bytes: Option<usize>,
    /// Requested with an R2T, so H2CData PDUs carry it; otherwise the command capsule does.
    pub(crate) solicited: bool,
    /// A data digest did not match. The command fails after all of its data has been received.
    pub(crate) corrupt: bool,
    /// A rate limit delays the command, whose data is received before only so that the stream goes
    /// on.
    pub(crate) awaits_rate: bool,
}

impl Fetch {
    /// Bytes still missing.
    pub(crate) fn missing(&self) -> usize {
        self.lease.len() - self.filled
    }
}

/// Whether data from the host is still missing for a request.
pub(crate) fn is_fetching(state: &SlotState) -> bool {
    matches!(state, SlotState::FetchingData(_))
}
