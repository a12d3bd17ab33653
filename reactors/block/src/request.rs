//! Requests to a device queue and their completions.

use std::fmt;

use arrayvec::ArrayVec;
use hugemem::{Data, Lease};

use crate::bounds::{check, check_in_device};
use crate::device::Geometry;
use crate::error::DeviceError;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read the range into the request's lease or, without a lease, complete with a borrow.
    Read,
    /// Write the request's lease to the range.
    Write {
        /// The data is on the medium when the request completes.
        fua: bool,
    },
    /// All requests that completed before this one was submitted are on the medium when it
    /// completes. The range is ignored.
    Flush,
    /// Make the range read as zeroes.
    WriteZeroes {
        /// The zeroes are on the medium when the request completes.
        fua: bool,
        /// The device may deallocate the blocks.
        deallocate: bool,
    },
    /// Deallocate the range: a hint. It reads as [`Geometry::deallocate`] says afterwards.
    Deallocate,
    /// Compare the range with the request's lease.
    Compare,
}

impl Operation {
    /// Whether the operation carries `blocks × block_size` bytes in a lease.
    #[must_use]
    pub fn has_data(self) -> bool {
        match self {
            Self::Read | Self::Write { .. } | Self::Compare => true,
            Self::Flush | Self::WriteZeroes { .. } | Self::Deallocate => false,
        }
    }

    /// Whether the operation changes the medium and is therefore refused on a read-only device.
    #[must_use]
    pub fn changes_medium(self) -> bool {
        match self {
            Self::Write { .. } | Self::WriteZeroes { .. } | Self::Deallocate => true,
            Self::Read | Self::Flush | Self::Compare => false,
        }
    }
}

/// One request to a device.
pub struct Request {
    /// Chosen by the caller and returned in the completion; the queue does not interpret it.
    pub tag: u64,
    /// The operation.
    pub operation: Operation,
    /// First block of the range.
    pub lba: u64,
    /// Length of the range in blocks. At least 1 for reads, writes and compares; 0 is an empty
    /// range for write zeroes and deallocate.
    pub blocks: u32,
    /// `blocks × block_size` bytes for a read, write or compare (none for a read if the queue
    /// [`can_borrow_read`](crate::DeviceQueue::can_borrow_read)); none for all other operations.
    pub data: Option<Lease>,
}

impl Request {
    /// Checks the request against the geometry of the device.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::ReadOnly`] and [`DeviceError::Unsupported`] are
    /// errors of the peer. [`DeviceError::Internal`] is a bug of the caller (data that does not
    /// match the range); debug builds panic.
    pub fn check(&self, geometry: &Geometry, lends_reads: bool) -> Result<(), DeviceError> {
        check(self, geometry, lends_reads)
    }

    /// Checks a request whose data is not in a lease of the arena: a read or a write without data.
    ///
    /// # Errors
    /// The error with which the queue refuses it.
    pub fn check_in_device(&self, geometry: &Geometry) -> Result<(), DeviceError> {
        check_in_device(self, geometry)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Request")
            .field("tag", &self.tag)
            .field("operation", &self.operation)
            .field("lba", &self.lba)
            .field("blocks", &self.blocks)
            .field("data_bytes", &self.data.as_ref().map(Lease::len))
            .finish()
    }
}

/// The completion of one request.
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The result. After an error the content of `data` is undefined.
    pub result: Result<(), DeviceError>,
    /// The request's lease or, for a successful read without one, a borrow of `blocks × block_size`
    /// bytes.
    pub data: Option<Data>,
}

impl fmt::Debug for Completion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Completion")
            .field("tag", &self.tag)
            .field("result", &self.result)
            .field("data_bytes", &self.data.as_ref().map(|data| data.len()))
            .finish()
    }
}

/// A request that the queue did not take, returned unchanged.
#[derive(Debug)]
pub enum Refusal {
    /// The queue is full: it takes the same request after completions were polled.
    Later(Request),
    /// The request can never succeed, for this reason.
    Never(Request, DeviceError),
}

impl Refusal {
    /// The request, unchanged.
    #[must_use]
    pub fn into_request(self) -> Request {
        match self {
            Self::Later(request) | Self::Never(request, _) => request,
        }
    }
}

/// Maximum number of completions of one poll.
pub const COMPLETIONS_PER_POLL_MAX: usize = 64;

/// The caller's array for the completions of a poll.
pub type CompletionBatch = ArrayVec<Completion, COMPLETIONS_PER_POLL_MAX>;
