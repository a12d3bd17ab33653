//! Why something cannot be had or done.

use std::io;
use std::net::SocketAddr;

/// Why there is no RDMA here: one clear line, and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// A library of rdma-core is not installed.
    #[error("no RDMA here: the library {library} cannot be loaded ({cause})")]
    LibraryMissing {
        /// Its file name.
        library: &'static str,
        /// What the loader said.
        cause: String,
    },
    /// A library lacks a function: rdma-core is older than this program needs.
    #[error("no RDMA here: {library} has no function {function}")]
    LibraryTooOld {
        /// The library's file name.
        library: &'static str,
        /// The missing function.
        function: &'static str,
    },
    /// The kernel's connection manager cannot be reached.
    #[error("no RDMA here: the kernel's connection manager cannot be opened")]
    NoConnectionManager(#[source] io::Error),
    /// There is no RDMA device.
    #[error("no RDMA here: this machine has no RDMA device")]
    NoDevice,
    /// The address belongs to no RDMA device.
    #[error("no RDMA here: {address} is not an address of an RDMA device")]
    NotOnDevice {
        /// The address.
        address: SocketAddr,
    },
}

impl Unavailable {
    /// What to do about it, in one line.
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
                "choose an address of a network interface that `rdma link show` names, and see that \
                 the interface is up"
            }
        }
    }
}

/// Why a control call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no RDMA here.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// More was asked for than the device allows.
    #[error("{wanted} {what} wanted, the device allows {limit}")]
    Limit {
        /// What there is too little of, with its unit.
        what: &'static str,
        /// How much was asked for.
        wanted: u64,
        /// How much there is.
        limit: u64,
    },
    /// Objects of different devices or domains were to work together, or the call does not fit the
    /// object's state: the caller's mistake, unless the device has just gone.
    #[error("{0}")]
    Misuse(&'static str),
    /// Private data is longer than the message carries.
    #[error("{len} bytes of private data, {limit} at most")]
    PrivateDataTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes there is room for.
        limit: usize,
    },
    /// The device is gone or failed.
    #[error("the RDMA device is gone")]
    DeviceGone,
    /// The kernel or the device refused a step.
    #[error("{step} failed")]
    System {
        /// The call that failed.
        step: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

/// Why a work request was not taken. Nothing of it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: the caller has more outstanding than it asked for.
    #[error("the queue is full")]
    QueueFull,
    /// More pieces of memory than the queue takes.
    #[error("too many pieces of memory")]
    TooManyPieces,
    /// More inline bytes than the queue takes, or inline bytes where they cannot be.
    #[error("inline data does not fit")]
    InlineTooLong,
    /// The queue pair does not take such requests in its state, or at all.
    #[error("the queue pair does not take this request")]
    NotPossible,
    /// The device refused, with this error number.
    #[error("the device refused, error {0}")]
    Device(i32),
}

/// Some of the queued work requests were not posted. Those before them were; those behind them
/// were not either, and are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{refused} work requests were refused, the first is {first_wr_id:#x}: {cause}")]
pub struct FlushError {
    /// Identifier of the first one refused.
    pub first_wr_id: u64,
    /// How many were refused.
    pub refused: u32,
    /// Why the first one was.
    pub cause: PostError,
}
