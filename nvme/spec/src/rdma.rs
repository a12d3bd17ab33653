//! NVMe/RDMA connection management: private data of requests, accepts and rejects (RDMA 1.1 §3).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::U16;

/// Record Format of this protocol.
pub const RECORD_FORMAT: u16 = 0;

/// Private data of a connection request, 32 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ConnectRequest {
    /// Record Format, [`RECORD_FORMAT`].
    pub recfmt: U16,
    /// Queue Identifier; 0 is the admin queue.
    pub qid: U16,
    /// Host RQ size: entries of the host's receive queue.
    pub hrqsize: U16,
    /// Host SQ size, zero-based: equal to SQSIZE of the Connect command that follows.
    pub hsqsize_z: U16,
    /// Controller Identifier for I/O queues; 0 if not given.
    pub cntlid: U16,
    reserved10: [u8; 22],
}
const _: () = assert!(size_of::<ConnectRequest>() == 32);

impl ConnectRequest {
    /// Creates a request.
    pub const fn new(qid: u16, hrqsize: u16, hsqsize_z: u16, cntlid: u16) -> Self {
        Self {
            recfmt: U16::new(RECORD_FORMAT),
            qid: U16::new(qid),
            hrqsize: U16::new(hrqsize),
            hsqsize_z: U16::new(hsqsize_z),
            cntlid: U16::new(cntlid),
            reserved10: [0; 22],
        }
    }

    /// Number of capsules that the host may have in flight, 1 to 65,536.
    pub const fn hsqsize(&self) -> u32 {
        self.hsqsize_z.get() as u32 + 1
    }
}

/// Private data of an accept, 32 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ConnectAccept {
    /// Record Format, [`RECORD_FORMAT`].
    pub recfmt: U16,
    /// Controller RQ size: entries of the controller's receive queue.
    pub crqsize: U16,
    reserved4: [u8; 28],
}
const _: () = assert!(size_of::<ConnectAccept>() == 32);

impl ConnectAccept {
    /// Creates an accept.
    pub const fn new(crqsize: u16) -> Self {
        Self {
            recfmt: U16::new(RECORD_FORMAT),
            crqsize: U16::new(crqsize),
            reserved4: [0; 28],
        }
    }
}

open_enum! {
    /// Why a connection request was rejected (RDMA 1.1 §3, STS).
    pub struct RejectReason(u16) {
        INVALID_PRIVATE_DATA_LENGTH = 0x01, "invalid private data length";
        INVALID_RECORD_FORMAT = 0x02, "invalid record format";
        INVALID_QUEUE_ID = 0x03, "invalid queue identifier";
        INVALID_HSQSIZE = 0x04, "invalid host send queue size";
        INVALID_HRQSIZE = 0x05, "invalid host receive queue size";
        NO_RESOURCES = 0x06, "no resources";
        INVALID_IRD = 0x07, "invalid inbound read depth";
        INVALID_ORD = 0x08, "invalid outbound read depth";
        INVALID_CNTLID = 0x09, "invalid controller identifier";
    }
}

/// Private data of a reject, 4 bytes, the only one of the three that is not padded to 32.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ConnectReject {
    /// Record Format, [`RECORD_FORMAT`].
    pub recfmt: U16,
    /// Status; see [`ConnectReject::reason`].
    pub sts: U16,
}
const _: () = assert!(size_of::<ConnectReject>() == 4);

impl ConnectReject {
    /// Creates a reject.
    pub const fn new(reason: RejectReason) -> Self {
        Self {
            recfmt: U16::new(RECORD_FORMAT),
            sts: U16::new(reason.0),
        }
    }

    /// The reject reason.
    pub const fn reason(&self) -> RejectReason {
        RejectReason(self.sts.get())
    }
}
