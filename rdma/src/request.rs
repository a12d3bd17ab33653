//! Work requests and the memory that they name.
#![expect(
    unsafe_code,
    reason = "declares the promise that memory is named under"
)]

/// The largest number of memory pieces of one work request. A command capsule and its data, or a
/// lease that crosses the boundary between two registrations, need two.
pub const SGES_MAX: usize = 4;

/// One piece of registered local memory that a device may access. Layout of `struct ibv_sge`.
///
/// Safe code posts work requests that name memory. So a piece is made only of memory that the
/// program does not refer to while it is posted:
/// * a [`DmaLease`](hugemem::DmaLease), a [`DmaBorrow`](hugemem::DmaBorrow) or
///   [`DmaData`](hugemem::DmaData), which give no access to their bytes until the poster proves
///   that the device is done with them;
/// * a [`DmaBuffer`](hugemem::DmaBuffer), whose access is atomic;
/// * memory that is shared with the device permanently, [`SharedMemory`](crate::SharedMemory).
///
/// ```compile_fail,E0451
/// // No piece is made of an address.
/// let piece = rdma::Sge { address: 0x1000, length: 4096, lkey: 7 };
/// ```
///
/// ```compile_fail,E0277
/// // No piece is made of a lease that the program has access to.
/// fn post<P: rdma::Provider>(map: &rdma::MemoryMap<P>, lease: &hugemem::Lease) {
///     map.gather(lease, 0, 512);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) length: u32,
    /// Local key of the registration.
    pub(crate) lkey: u32,
}

impl Sge {
    /// A piece of any memory. A wrong key or range causes no damage: the device rejects it
    /// ([`LOCAL_PROTECTION_ERROR`](crate::CompletionStatus::LOCAL_PROTECTION_ERROR)).
    ///
    /// # Safety
    /// While a request that names the piece is posted, until its completion was received or its
    /// queue pair was destroyed, the program does not refer to the memory, and does not write it if
    /// the device reads it.
    #[must_use]
    pub const unsafe fn new(address: u64, length: u32, lkey: u32) -> Self {
        Self {
            address,
            length,
            lkey,
        }
    }

    /// Virtual address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Local key of the registration.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The same memory by another local key. A key of a registration that does not contain the
    /// memory is refused by the device.
    #[must_use]
    pub fn with_lkey(self, lkey: u32) -> Self {
        Self { lkey, ..self }
    }
}

/// Up to [`SGES_MAX`] pieces, in the order of the message's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SgeList {
    pieces: [Sge; SGES_MAX],
    count: u8,
}

impl SgeList {
    /// The empty list: a message without bytes.
    pub const EMPTY: Self = Self {
        pieces: [Sge {
            address: 0,
            length: 0,
            lkey: 0,
        }; SGES_MAX],
        count: 0,
    };

    /// A list of one piece.
    #[inline]
    #[must_use]
    pub fn one(piece: Sge) -> Self {
        let mut list = Self::EMPTY;
        list.pieces[0] = piece;
        list.count = 1;
        list
    }

    /// Adds a piece at the end.
    ///
    /// # Errors
    /// The piece, if the list is full.
    #[inline]
    pub fn push(&mut self, piece: Sge) -> Result<(), Sge> {
        let Some(place) = self.pieces.get_mut(usize::from(self.count)) else {
            return Err(piece);
        };
        *place = piece;
        self.count += 1;
        Ok(())
    }

    /// The pieces.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Sge] {
        &self.pieces[..usize::from(self.count)]
    }

    /// Total bytes of all pieces.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes_of(self.as_slice())
    }
}

#[inline]
fn bytes_of(pieces: &[Sge]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length)).sum()
}

impl From<Sge> for SgeList {
    fn from(piece: Sge) -> Self {
        Self::one(piece)
    }
}

/// An address in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Virtual address in the peer's registration.
    pub address: u64,
    /// The peer's remote key.
    pub rkey: u32,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOperation {
    /// Sends a message, which consumes one of the peer's receives.
    Send,
    /// Sends a message and invalidates a key of the peer before the peer receives the message.
    SendWithInvalidate {
        /// The peer's remote key.
        rkey: u32,
    },
    /// Writes to the peer's memory. The peer is notified only by a later message.
    Write(RemoteAddress),
    /// Reads the peer's memory.
    Read(RemoteAddress),
    /// Invalidates a key of this side, that of a memory window. Without data.
    LocalInvalidate {
        /// The window's remote key.
        rkey: u32,
    },
}

/// The source, or for reads the destination, of a send request's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Copied when the request is queued: the memory needs no registration and may be reused
    /// immediately. At most
    /// [`QueuePairCapacity::inline_bytes`](crate::QueuePairCapacity::inline_bytes) bytes; not for
    /// reads.
    Inline(&'a [u8]),
    /// Gathered by the device (for reads: scattered) until the completion: up to
    /// [`QueuePairCapacity::send_sges`](crate::QueuePairCapacity::send_sges) pieces. The list
    /// itself is copied when the request is queued.
    Memory(&'a [Sge]),
}

impl Payload<'_> {
    /// Bytes of the message.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Memory(pieces) => bytes_of(pieces),
        }
    }
}

/// One work request for a send queue.
///
/// The requests of one queue pair execute in order. A request without
/// [`signalled`](Self::signalled) has no completion unless it fails or is flushed; its entry in the
/// send queue is free again once a later signalled request has completed. So at least one request
/// in every [`QueuePairCapacity::send_requests`](crate::QueuePairCapacity::send_requests) must be
/// signalled.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Returned in the completion; chosen by the caller.
    pub wr_id: u64,
    /// The operation.
    pub operation: SendOperation,
    /// The bytes.
    pub payload: Payload<'a>,
    /// Whether the request has a completion on success.
    pub signalled: bool,
    /// Whether the message wakes a peer that sleeps on solicited completions only.
    pub solicited: bool,
    /// Whether to wait for all earlier reads of this queue pair.
    pub fence: bool,
}

impl<'a> SendRequest<'a> {
    /// A signalled request with the other flags clear.
    #[inline]
    #[must_use]
    pub fn new(wr_id: u64, operation: SendOperation, payload: Payload<'a>) -> Self {
        Self {
            wr_id,
            operation,
            payload,
            signalled: true,
            solicited: false,
            fence: false,
        }
    }

    /// The same request with or without a completion on success.
    #[inline]
    #[must_use]
    pub fn signalled(mut self, signalled: bool) -> Self {
        self.signalled = signalled;
        self
    }
}

/// One work request for a receive queue or a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// Returned in the completion; chosen by the caller.
    pub wr_id: u64,
    /// Where the message is written. Needs the right to write.
    pub memory: SgeList,
}

/// The memory that a memory window opens for the peer.
#[derive(Clone, Copy, Debug)]
pub struct WindowBinding {
    /// Returned in the completion; chosen by the caller.
    pub wr_id: u64,
    /// Virtual address of the first byte, in the registration.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Whether the peer may read.
    pub remote_read: bool,
    /// Whether the peer may write.
    pub remote_write: bool,
    /// Whether the request has a completion on success.
    pub signalled: bool,
}
