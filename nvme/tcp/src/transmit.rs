//! What a connection still has to send: a queue of PDUs whose data stays where it lies until the
//! kernel has taken it.
//!
//! Everything queued during a poll leaves in one vectored send. Storage is taken when the
//! connection is set up: a slot has at most two PDUs queued (data and response, or one R2T), so the
//! queue never grows.

use std::collections::VecDeque;
use std::io::IoSlice;

use arrayvec::ArrayVec;
use hugemem::{Data, Pool, prefetch};
use nvme_spec::tcp::{C2hData, C2hEnd, DATA_ALIGNMENT_MAX_Z, Framing};
use nvme_target::Served;
use reactors::sim::planted;

use crate::digest::{DIGEST_BYTES, digest};
use crate::stream::{ByteStream, Transferred};

/// Bytes of the fixed headers of C2HData, R2T and CapsuleResp PDUs (NVMe/TCP Transport 1.1, section
/// 3.6.2).
pub(crate) const HEADER_BYTES: usize = 24;
/// Most padding that a host may ask for between header and data (TCP 1.1, section 3.6.2.2).
const PADDING_MAX: usize = (DATA_ALIGNMENT_MAX_Z as usize + 1) * 4;
/// Pieces handed to one vectored send; the kernel takes 1,024 at most (UIO_MAXIOV).
const PIECES_PER_SEND_MAX: usize = 512;
/// Pieces that one PDU can need: header, padding, data, data digest.
const PIECES_PER_PDU_MAX: usize = 4;
/// Bytes after which a send is made although more is queued, so that one connection does not hold
/// its reactor.
const BYTES_PER_SEND_MAX: usize = 2 << 20;
/// Vectored sends in one flush at most.
const SENDS_PER_FLUSH_MAX: usize = 4;

/// What one vectored send is given.
type Pieces<'a> = ArrayVec<IoSlice<'a>, PIECES_PER_SEND_MAX>;

static PADDING: [u8; PADDING_MAX] = [0; PADDING_MAX];

/// Data behind a header, sent from where it lies.
#[derive(Debug)]
struct Payload {
    data: Data,
    bytes: u32,
    padding: u8,
    /// Made when the PDU is about to be sent, where there is one.
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl Payload {
    #[inline]
    fn data(&self) -> &[u8] {
        &self.data[..self.bytes as usize]
    }
}

/// A PDU with a 24-byte header.
#[derive(Debug)]
struct Framed {
    header: [u8; HEADER_BYTES + DIGEST_BYTES],
    header_bytes: u8,
    payload: Option<Payload>,
    finishes: Finishes,
}

/// What is over once a PDU is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finishes {
    /// Nothing: more follows, or it was never a request.
    Nothing,
    /// The request in this slot.
    Slot(u16),
    /// A command that was answered at once and has no slot.
    AtOnce(Served),
}

#[derive(Debug)]
enum Outgoing {
    Framed(Framed),
    /// Connection set-up and termination, which happen once.
    Control(Box<[u8]>),
}

impl Outgoing {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Control(bytes) => bytes.len(),
            Self::Framed(framed) => framed.len(),
        }
    }

    /// What is over once it is sent.
    fn finishes(&self) -> Finishes {
        match self {
            Self::Control(_) => Finishes::Nothing,
            Self::Framed(framed) => framed.finishes,
        }
    }

    fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Control(_) => None,
            Self::Framed(framed) => framed.payload.as_ref(),
        }
    }

    /// Adds the PDU's pieces, [`PIECES_PER_PDU_MAX`] at most; returns its bytes.
    #[inline]
    fn add_to<'a>(&'a self, pieces: &mut Pieces<'a>) -> usize {
        match self {
            Self::Control(bytes) => {
                pieces.push(IoSlice::new(bytes));
                bytes.len()
            }
            Self::Framed(framed) => framed.add_to(pieces),
        }
    }
}

impl Framed {
    #[inline]
    fn add_to<'a>(&'a self, pieces: &mut Pieces<'a>) -> usize {
        let mut bytes = usize::from(self.header_bytes);
        pieces.push(IoSlice::new(&self.header[..bytes]));
        let mut add = |piece: &'a [u8]| {
            bytes += piece.len();
            pieces.push(IoSlice::new(piece));
        };
        if let Some(payload) = &self.payload {
            if payload.padding > 0 {
                add(&PADDING[..usize::from(payload.padding)]);
            }
            add(payload.data());
            if let Some(digest) = &payload.digest {
                add(digest);
            }
        }
        bytes
    }

    fn len(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, |payload| {
            usize::from(payload.padding)
                + payload.bytes as usize
                + payload.digest.map_or(0, |digest| digest.len())
        });
        usize::from(self.header_bytes) + payload
    }
}

/// How a flush ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing is left to send.
    Empty,
    /// The stream takes no more now; wait until it is writable.
    Blocked,
    /// More could be sent at once, but the others are to have their turn.
    Yielded,
    /// The stream is broken.
    Broken,
}

/// The queue of PDUs on their way out of one connection.
#[derive(Debug)]
pub(crate) struct Transmitter {
    queue: VecDeque<Outgoing>,
    /// Bytes of the foremost PDU that the stream has taken.
    sent: usize,
    /// PDUs whose data has its digest, at the front; counted only where data has digests.
    sealed: usize,
    framing: Framing,
    /// Of every PDU but control ones, with the header digest.
    header_bytes: u8,
    /// Between header and data.
    padding: u8,
    /// A PDU with data that ends its command, as this connection's framing makes it.
    success: C2hData,
    sends: u64,
}

impl Transmitter {
    /// An empty queue with room for the PDUs of connection set-up.
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::with_capacity(4),
            sent: 0,
            sealed: 0,
            framing: Framing::default(),
            header_bytes: HEADER_BYTES as u8,
            padding: 0,
            success: C2hData::new(0, 0, 1, C2hEnd::Success, Framing::default()),
            sends: 0,
        }
    }

    /// Sets the digests and the host's alignment as the initialisation negotiated them.
    pub(crate) fn negotiate(&mut self, framing: Framing) {
        let digest_bytes = if framing.header_digest {
            DIGEST_BYTES
        } else {
            0
        };
        self.framing = framing;
        self.header_bytes = (HEADER_BYTES + digest_bytes) as u8;
        self.padding = framing.data_offset(HEADER_BYTES as u8) - self.header_bytes;
        self.success = C2hData::new(0, 0, 1, C2hEnd::Success, framing);
    }

    /// The header of a PDU with all data of a command that succeeded.
    #[inline]
    pub(crate) fn success_header(&self, command_id: u16, bytes: u32) -> C2hData {
        self.success.for_command(command_id, bytes)
    }

    /// Takes the storage for a connection with `slots` request slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.queue.reserve(2 * slots + 4);
    }

    /// Whether something is still to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Vectored sends made since the last call.
    pub(crate) fn take_sends(&mut self) -> u64 {
        std::mem::take(&mut self.sends)
    }

    /// Queues a PDU that is complete as it stands and carries no digest: ICResp or C2HTermReq.
    pub(crate) fn push_control(&mut self, bytes: &[u8]) {
        self.queue.push_back(Outgoing::Control(bytes.into()));
    }

    /// Queues a PDU of a header alone. When it is sent, what it `finishes` is over.
    #[inline]
    pub(crate) fn push_header(&mut self, header: [u8; HEADER_BYTES], finishes: Finishes) {
        let framed = self.frame(header, None, finishes);
        self.queue.push_back(Outgoing::Framed(framed));
    }

    /// Queues a data PDU with the first `bytes` of `data`, which is released once the stream has
    /// taken it all.
    #[inline(always)]
    pub(crate) fn push_data(
        &mut self,
        header: [u8; HEADER_BYTES],
        data: Data,
        bytes: usize,
        finishes: Finishes,
    ) {
        // Of what is sent alone, the copy begins before a prefetch has got anywhere.
        if let Data::Loan(loan) = &data
            && loan.is_uncached()
            && !self.queue.is_empty()
        {
            prefetch(&loan[..bytes]);
        }
        let payload = Payload {
            data,
            bytes: bytes as u32,
            padding: self.padding,
            digest: None,
        };
        let framed = self.frame(header, Some(payload), finishes);
        self.queue.push_back(Outgoing::Framed(framed));
    }

    #[inline]
    fn frame(
        &self,
        header: [u8; HEADER_BYTES],
        payload: Option<Payload>,
        finishes: Finishes,
    ) -> Framed {
        let mut storage = [0; HEADER_BYTES + DIGEST_BYTES];
        storage[..HEADER_BYTES].copy_from_slice(&header);
        if self.framing.header_digest {
            storage[HEADER_BYTES..].copy_from_slice(&digest(&header));
        }
        Framed {
            header: storage,
            header_bytes: self.header_bytes,
            payload,
            finishes,
        }
    }

    /// Commands that were answered at once, as far as their answers are not sent; the oldest first.
    pub(crate) fn served(&self) -> impl Iterator<Item = Served> {
        let finishes = self.queue.iter().map(Outgoing::finishes);
        finishes.filter_map(|finishes| match finishes {
            Finishes::AtOnce(served) => Some(served),
            Finishes::Slot(_) | Finishes::Nothing => None,
        })
    }

    /// Gives up everything that is not already half sent, so that a termination request can follow
    /// at once.
    pub(crate) fn discard_unsent(&mut self) {
        self.queue.truncate(usize::from(self.sent > 0));
        self.sealed = self.sealed.min(self.queue.len());
    }

    /// Copies data that a device lends into leases, so that the stream's slowness is nobody else's:
    /// how many bytes. `None`: there is no memory for all of it now.
    pub(crate) fn stop_borrowing(&mut self, pool: &Pool) -> Option<usize> {
        let mut copied = 0;
        for outgoing in &mut self.queue {
            let Outgoing::Framed(Framed {
                payload: Some(payload),
                ..
            }) = outgoing
            else {
                continue;
            };
            if let Data::Loan(_) = payload.data {
                let mut lease = pool.take(payload.bytes as usize)?;
                lease.copy_from_slice(payload.data());
                payload.data = Data::Lease(lease);
                copied += payload.bytes as usize;
            }
        }
        Some(copied)
    }

    /// Sends what is queued. `finished` hears of all that is over with PDUs that have been taken.
    pub(crate) fn flush(
        &mut self,
        stream: &mut impl ByteStream,
        mut finished: impl FnMut(Finishes),
    ) -> Flushed {
        if self.framing.data_digest {
            self.seal();
        }
        for _ in 0..SENDS_PER_FLUSH_MAX {
            if self.queue.is_empty() {
                return Flushed::Empty;
            }
            self.sends += 1;
            match self.send_batch(stream) {
                Transferred::Bytes(bytes) => self.retire(bytes, &mut finished),
                Transferred::WouldBlock => return Flushed::Blocked,
                Transferred::Closed | Transferred::Failed(_) => return Flushed::Broken,
            }
        }
        if self.queue.is_empty() {
            Flushed::Empty
        } else {
            Flushed::Yielded
        }
    }

    /// Makes the digests of all data that is to go, one after the other, while the next data is on its
    /// way from memory.
    fn seal(&mut self) {
        let mut unsealed = self.queue.range_mut(self.sealed..).peekable();
        while let Some(outgoing) = unsealed.next() {
            if let Some(payload) = unsealed.peek().and_then(|next| next.payload()) {
                prefetch(payload.data());
            }
            if let Outgoing::Framed(Framed {
                payload: Some(payload),
                ..
            }) = outgoing
            {
                payload.digest = Some(digest(payload.data()));
            }
        }
        self.sealed = self.queue.len();
    }

    fn send_batch(&self, stream: &mut impl ByteStream) -> Transferred {
        let mut pieces = Pieces::new();
        let mut bytes = 0;
        for outgoing in &self.queue {
            if pieces.remaining_capacity() < PIECES_PER_PDU_MAX || bytes >= BYTES_PER_SEND_MAX {
                break;
            }
            bytes += outgoing.add_to(&mut pieces);
        }
        let mut unsent = &mut pieces[..];
        IoSlice::advance_slices(&mut unsent, self.sent);
        stream.send(unsent)
    }

    /// Drops the PDUs that are wholly among the next `bytes`, all at once and where they lie.
    fn retire(&mut self, bytes: usize, finished: &mut impl FnMut(Finishes)) {
        let before = if planted("sent-forgotten") {
            0
        } else {
            self.sent
        };
        let mut taken = before + bytes;
        let mut gone = 0;
        for outgoing in &self.queue {
            let len = outgoing.len();
            if taken < len {
                break;
            }
            taken -= len;
            gone += 1;
            finished(outgoing.finishes());
        }
        debug_assert!(
            taken == 0 || gone < self.queue.len(),
            "the stream took more than it was given"
        );
        self.sent = taken;
        self.sealed = self.sealed.saturating_sub(gone);
        self.queue.drain(..gone);
    }
}

#[cfg(test)]
mod tests;
