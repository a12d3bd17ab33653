//! Errors of RDMA calls.

use std::io;
use std::net::SocketAddr;

/// Why RDMA is unavailable, with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// A library of rdma-core is not installed.
    #[error("RDMA is unavailable: the library {library} cannot be loaded ({cause})")]
    LibraryMissing {
        /// Its file name.
        library: &'static str,
        /// The error message of the loader.
        cause: String,
    },
    /// A library lacks a function: rdma-core is older than this program needs.
    #[error("RDMA is unavailable: {library} has no function {function}")]
    LibraryTooOld {
        /// The library's file name.
        library: &'static str,
        /// The missing function.
        function: &'static str,
    },
    /// The kernel's connection manager cannot be reached.
    #[error("RDMA is unavailable: the kernel's connection manager cannot be opened")]
    NoConnectionManager(#[source] io::Error),
    /// There is no RDMA device.
    #[error("RDMA is unavailable: this machine has no RDMA device")]
    NoDevice,
    /// The address belongs to no RDMA device.
    #[error("RDMA is unavailable: {address} is not an address of an RDMA device")]
    NotOnDevice {
        /// The address.
        address: SocketAddr,
    },
}

impl Unavailable {
    /// The remedy, in one line.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::LibraryMissing { .. } | Self::LibraryTooOld { .. } => {
                "install libibverbs1, librdmacm1 and ibverbs-providers (rdma-core)"
            }
            Self::NoConnectionManager(_) => {
                "load the kernel module rdma_ucm, and let this program open /dev/infiniband/rdma_cm"
            }
            Self::NoDevice => {
                "install an RDMA network card and its driver, or add soft RoCE to a network card: \
                 rdma link add rxe0 type rxe netdev IFACE"
            }
            Self::NotOnDevice { .. } => {
                "choose an address of a network interface listed by `rdma link show`, and check \
                 that the interface is up"
            }
        }
    }
}

/// Why a control call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// RDMA is unavailable.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The request exceeds a limit of the device.
    #[error("{wanted} {what} requested, the device allows {limit}")]
    Limit {
        /// The limited resource, with its unit.
        what: &'static str,
        /// The requested amount.
        wanted: u64,
        /// The available amount.
        limit: u64,
    },
    /// Objects of different devices or domains were combined, or the call does not fit the object's
    /// state: an error of the caller, unless the device has just been removed.
    #[error("{0}")]
    Misuse(&'static str),
    /// Memory of other devices cannot be registered.
    #[error("memory of other devices cannot be registered: {0}")]
    NoDeviceMemory(&'static str),
    /// Private data exceeds the message's capacity.
    #[error("{len} bytes of private data, {limit} at most")]
    PrivateDataTooLong {
        /// Bytes given.
        len: usize,
        /// Largest number of bytes.
        limit: usize,
    },
    /// The device was removed or failed.
    #[error("the RDMA device was removed or failed")]
    DeviceGone,
    /// The kernel or the device rejected a step.
    #[error("{step} failed")]
    System {
        /// The call that failed.
        step: &'static str,
        /// The error that it returned.
        source: io::Error,
    },
}

/// Why a work request was not queued. The call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: the caller has more requests outstanding than the capacity that it
    /// requested.
    #[error("the queue is full")]
    QueueFull,
    /// More pieces of memory than the queue supports.
    #[error("too many pieces of memory")]
    TooManyPieces,
    /// More inline bytes than the queue supports, or inline bytes in a request that allows none.
    #[error("inline data does not fit")]
    InlineTooLong,
    /// The queue pair does not support such requests, or not in its state.
    #[error("the queue pair does not support this request in its state")]
    NotPossible,
    /// The device rejected the request, with this error number.
    #[error("the device rejected the request, error {0}")]
    Device(i32),
}

/// Some of the queued work requests were not posted. Those before them were posted; those after
/// them were discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{refused} work requests were refused, the first is {first_wr_id:#x}: {cause}")]
pub struct FlushError {
    /// Identifier of the first rejected request.
    pub first_wr_id: u64,
    /// Number of rejected requests.
    pub refused: u32,
    /// Why the first one was rejected.
    pub cause: PostError,
}
