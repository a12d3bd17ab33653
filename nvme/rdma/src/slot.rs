//! The states of NVMe/RDMA requests: [`nvme_fabrics::SlotState`] with the transport's records of
//! reads of host memory and of responses.
//!
//! A request starts when its capsule is received. Data and response are posted together, and that
//! frees the slot: the host may reuse the command's place as soon as it has the response.
//! `Responding` is a response that waits for room in the send queue. What posted work needs is in
//! [`posted`](crate::posted).

use hugemem::{Data, Lease};
use nvme_spec::Cqe;
use nvme_target::{Completed, Timing, Work};

use crate::posted::ReadBuffer;

/// The state of a request.
pub(crate) type SlotState = nvme_fabrics::SlotState<Fetch, Response>;
/// The request slots of a connection.
pub(crate) type SlotTable = nvme_fabrics::SlotTable<Fetch, Response>;

/// Data of the host that is being read into a lease.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) work: Work,
    pub(crate) buffer: ReadBuffer,
    /// Whether the data is read into memory of a device, which the connection has.
    pub(crate) is_in_device: bool,
    /// Blocks of host memory whose reads are posted.
    pub(crate) blocks: u8,
    /// Bytes of these blocks.
    pub(crate) posted_bytes: u32,
}

impl Fetch {
    /// A fetch of which nothing is posted.
    pub(crate) fn new(work: Work, lease: Lease) -> Self {
        Self {
            work,
            buffer: ReadBuffer::new(lease),
            is_in_device: false,
            blocks: 0,
            posted_bytes: 0,
        }
    }

    /// The same for a fetch into memory of a device.
    pub(crate) fn in_device(work: Work) -> Self {
        Self {
            work,
            buffer: ReadBuffer::without_lease(),
            is_in_device: true,
            blocks: 0,
            posted_bytes: 0,
        }
    }

    /// Whether every read is posted.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.posted_bytes == self.work.bytes()
    }
}

/// A response that is to be posted.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) capsule: Cqe,
    /// `data[..bytes]` is written to the host's memory before the response is sent. Without data, it is
    /// in memory of a device, which the connection has.
    pub(crate) data: Option<Data>,
    pub(crate) bytes: u32,
    pub(crate) timing: Timing,
}

impl From<Completed> for Response {
    #[inline(always)]
    fn from(done: Completed) -> Self {
        Self {
            capsule: done.response,
            data: done.data,
            bytes: done.bytes,
            timing: done.timing,
        }
    }
}
