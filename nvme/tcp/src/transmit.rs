//! The send queue of a connection: PDUs whose data stays in its lease or device memory until the
//! kernel has accepted it.
//!
//! Everything queued during a poll is sent with one vectored send. The queue's storage is allocated
//! when the connection is set up: a slot has at most two PDUs queued (data and response, or one
//! R2T), so the queue never grows.

mod handover;

use std::collections::VecDeque;
use std::io::IoSlice;

use arrayvec::ArrayVec;
use hugemem::{Borrow, Data, Lease, SuspendedBorrow, prefetch};
use nvme_spec::tcp::{C2hData, C2hEnd, DATA_ALIGNMENT_MAX_Z, Framing};
use nvme_target::InlineTiming;

use crate::digest::{DIGEST_BYTES, digest};
use crate::stream::{ByteStream, Transferred};

/// Bytes of the fixed headers of C2HData, R2T and CapsuleResp PDUs (TCP 1.1 §3.6.2).
pub(crate) const HEADER_BYTES: usize = 24;
/// Largest padding that a host may request between header and data (TCP 1.1 §3.6.2.2).
const PADDING_MAX: usize = (DATA_ALIGNMENT_MAX_Z as usize + 1) * 4;
/// Buffers of one vectored send at most; the kernel accepts 1,024 (UIO_MAXIOV).
const PIECES_PER_SEND_MAX: usize = 512;
/// Buffers that one PDU can need: header, padding, data, data digest.
const PIECES_PER_PDU_MAX: usize = 4;
/// Bytes after which a send is made even if more is queued, so that one connection does not occupy
/// its reactor.
const BYTES_PER_SEND_MAX: usize = 2 << 20;
/// Vectored sends in one flush at most.
const SENDS_PER_FLUSH_MAX: usize = 4;

/// The buffers of one vectored send.
type Pieces<'a> = ArrayVec<IoSlice<'a>, PIECES_PER_SEND_MAX>;

static PADDING: [u8; PADDING_MAX] = [0; PADDING_MAX];

/// The data of a payload.
#[derive(Debug)]
enum PayloadData {
    Held(Data),
    /// The borrow has ended; it is taken again when the PDU can be sent. The host may then receive
    /// newer data, which is permitted for any read that is not completed.
    Suspended(SuspendedBorrow),
}

/// The data of a PDU, sent without a copy.
#[derive(Debug)]
struct Payload {
    data: PayloadData,
    bytes: u32,
    padding: u8,
    /// Computed when the PDU is about to be sent, if data digests are enabled.
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl Payload {
    /// The bytes, unless the borrow is suspended.
    #[inline]
    fn data(&self) -> Option<&[u8]> {
        match &self.data {
            PayloadData::Held(data) => Some(&data[..self.bytes as usize]),
            PayloadData::Suspended(_) => None,
        }
    }

    fn borrowed(&self) -> Option<&Borrow> {
        match &self.data {
            PayloadData::Held(Data::Borrow(borrow)) => Some(borrow),
            PayloadData::Held(Data::Lease(_)) | PayloadData::Suspended(_) => None,
        }
    }

    /// The same payload with its borrow suspended.
    fn suspended(self) -> Self {
        match self.data {
            PayloadData::Held(Data::Borrow(borrow)) => Self {
                data: PayloadData::Suspended(borrow.suspend()),
                digest: None,
                ..self
            },
            data => Self { data, ..self },
        }
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

/// What completes when a PDU has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finishes {
    /// Nothing: another PDU follows, or the PDU belongs to no request.
    Nothing,
    /// The request in this slot.
    Slot(u16),
    /// A command that completed inline and has no slot.
    Inline(InlineTiming),
}

/// The result of copying the borrowed data of a partly sent PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspended {
    /// There is no such PDU.
    Nothing,
    /// Number of bytes copied into a lease.
    Copied(usize),
    /// The pool had no lease.
    NoMemory,
}

#[derive(Debug)]
enum Outgoing {
    Framed(Framed),
    /// Connection set-up and termination, which happen once per connection.
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

    /// What completes when it has been sent.
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

    fn framed_mut(&mut self) -> Option<&mut Framed> {
        match self {
            Self::Control(_) => None,
            Self::Framed(framed) => Some(framed),
        }
    }
}

impl Framed {
    #[inline]
    fn is_suspended(&self) -> bool {
        let payload = self.payload.as_ref();
        payload.is_some_and(|it| matches!(it.data, PayloadData::Suspended(_)))
    }

    /// Suspends the borrow; returns `false` if the PDU has none.
    fn suspend(&mut self) -> bool {
        if self.payload.as_ref().and_then(Payload::borrowed).is_none() {
            return false;
        }
        self.payload = self.payload.take().map(Payload::suspended);
        true
    }

    /// Takes a suspended borrow again; returns `false` if a writer holds the range.
    fn resume(&mut self) -> bool {
        let Some(payload) = &mut self.payload else {
            return true;
        };
        let PayloadData::Suspended(claim) = &mut payload.data else {
            return true;
        };
        let Some(borrow) = claim.try_borrow_read() else {
            return false;
        };
        payload.data = PayloadData::Held(Data::Borrow(borrow));
        true
    }

    /// Adds the PDU's buffers, [`PIECES_PER_PDU_MAX`] at most; returns its size in bytes. Adds
    /// nothing and returns `None` while its borrow is suspended.
    #[inline]
    fn add_to<'a>(&'a self, pieces: &mut Pieces<'a>) -> Option<usize> {
        let mut bytes = usize::from(self.header_bytes);
        let header = &self.header[..bytes];
        let Some(payload) = &self.payload else {
            pieces.push(IoSlice::new(header));
            return Some(bytes);
        };
        let data = payload.data()?;
        pieces.push(IoSlice::new(header));
        let mut add = |piece: &'a [u8]| {
            bytes += piece.len();
            pieces.push(IoSlice::new(piece));
        };
        if payload.padding > 0 {
            add(&PADDING[..usize::from(payload.padding)]);
        }
        add(data);
        if let Some(digest) = &payload.digest {
            add(digest);
        }
        Some(bytes)
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

/// The result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// The queue is empty, and the stream keeps nothing.
    Empty,
    /// The stream accepts no more bytes; wait until it is writable.
    Blocked,
    /// More is queued, but other connections are served first.
    Yielded,
    /// The stream is broken.
    Broken,
}

/// The send queue of one connection.
#[derive(Debug)]
pub(crate) struct Transmitter {
    queue: VecDeque<Outgoing>,
    /// Bytes of the first PDU that the stream has accepted.
    sent: usize,
    /// Number of PDUs at the front whose data digest is computed; 0 without data digests.
    sealed: usize,
    framing: Framing,
    /// Header bytes, with the header digest, of every PDU except control PDUs.
    header_bytes: u8,
    /// Padding bytes between header and data.
    padding: u8,
    /// Template of a C2HData header with the SUCCESS flag, for this connection's framing.
    success: C2hData,
    sends: u64,
    /// Bytes that the stream has accepted.
    bytes_sent: u64,
    /// PDUs that the stream has accepted.
    pdus_sent: u64,
    /// PDUs whose borrows are suspended.
    suspended: usize,
}

impl Transmitter {
    /// An empty queue with capacity for the PDUs of connection set-up.
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
            bytes_sent: 0,
            pdus_sent: 0,
            suspended: 0,
        }
    }

    /// Sets the digests and the data alignment that the initialisation negotiated.
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

    /// The header of a PDU with all data of a command that succeeded, with the SUCCESS flag.
    #[inline]
    pub(crate) fn success_header(&self, command_id: u16, bytes: u32) -> C2hData {
        self.success.for_command(command_id, bytes)
    }

    /// Allocates storage for a connection with `slots` request slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.queue.reserve(2 * slots + 4);
    }

    /// Bytes held: by the queue itself, and by leases in it.
    pub(crate) fn held_bytes(&self) -> (usize, usize) {
        let (mut own, mut leased) = (self.queue.capacity() * size_of::<Outgoing>(), 0);
        for outgoing in &self.queue {
            if let Outgoing::Control(bytes) = outgoing {
                own += bytes.len();
            }
            if let Some(PayloadData::Held(Data::Lease(lease))) =
                outgoing.payload().map(|it| &it.data)
            {
                leased += lease.len();
            }
        }
        (own, leased)
    }

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Vectored sends made since the last call.
    pub(crate) fn take_sends(&mut self) -> u64 {
        std::mem::take(&mut self.sends)
    }

    /// Queues a complete PDU without digests: ICResp or C2HTermReq.
    pub(crate) fn push_control(&mut self, bytes: &[u8]) {
        self.queue.push_back(Outgoing::Control(bytes.into()));
    }

    /// Queues a PDU without data. `finishes` completes when the PDU has been sent.
    #[inline]
    pub(crate) fn push_header(&mut self, header: [u8; HEADER_BYTES], finishes: Finishes) {
        let framed = self.frame(header, None, finishes);
        self.queue.push_back(Outgoing::Framed(framed));
    }

    /// Queues a data PDU with the first `bytes` of `data`, which is released when the stream has
    /// accepted all of it.
    #[inline(always)]
    pub(crate) fn push_data(
        &mut self,
        header: [u8; HEADER_BYTES],
        data: Data,
        bytes: usize,
        finishes: Finishes,
    ) {
        // If nothing else is queued, the kernel's copy starts before a prefetch could help.
        if let Data::Borrow(borrow) = &data
            && borrow.is_uncached()
            && !self.queue.is_empty()
        {
            prefetch(&borrow[..bytes]);
        }
        let payload = Payload {
            data: PayloadData::Held(data),
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

    /// Commands that completed inline and whose responses are not sent, the oldest first.
    pub(crate) fn inline_timings(&self) -> impl Iterator<Item = InlineTiming> {
        let finishes = self.queue.iter().map(Outgoing::finishes);
        finishes.filter_map(|finishes| match finishes {
            Finishes::Inline(inline_timing) => Some(inline_timing),
            Finishes::Slot(_) | Finishes::Nothing => None,
        })
    }

    /// Discards every PDU except a partly sent one, so that a termination request can follow
    /// immediately.
    pub(crate) fn discard_unsent(&mut self) {
        self.queue.truncate(usize::from(self.sent > 0));
        self.suspended = 0;
        self.sealed = self.sealed.min(self.queue.len());
    }

    /// Bytes that the stream has accepted so far.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    /// Whether data is queued in a lease for which `is_such` returns true.
    pub(crate) fn any_lease(&self, is_such: impl Fn(&Lease) -> bool) -> bool {
        let payloads = self.queue.iter().filter_map(Outgoing::payload);
        payloads
            .into_iter()
            .any(|payload| matches!(&payload.data, PayloadData::Held(Data::Lease(lease)) if is_such(lease)))
    }

    /// Suspends the borrows of PDUs that are not partly sent; returns their number.
    pub(crate) fn suspend_borrows(&mut self) -> usize {
        let partly_sent = usize::from(self.sent > 0);
        let unsent = self.queue.iter_mut().skip(partly_sent);
        let suspended = unsent.filter_map(|outgoing| {
            outgoing
                .framed_mut()
                .is_some_and(Framed::suspend)
                .then_some(())
        });
        let suspended = suspended.count();
        self.suspended += suspended;
        if suspended > 0 {
            self.sealed = self.sealed.min(partly_sent);
        }
        suspended
    }

    /// The same for the last two PDUs of the queue: data and its response.
    pub(crate) fn suspend_newest(&mut self) -> usize {
        let partly_sent = usize::from(self.sent > 0);
        let newest = self.queue.len().saturating_sub(2).max(partly_sent);
        let mut suspended = 0;
        for (place, outgoing) in self.queue.iter_mut().enumerate().skip(newest) {
            if outgoing.framed_mut().is_some_and(Framed::suspend) {
                suspended += 1;
                self.sealed = self.sealed.min(place);
            }
        }
        self.suspended += suspended;
        suspended
    }

    /// The number of the PDU that is partly sent, if its data is borrowed.
    pub(crate) fn partly_sent_borrow(&self) -> Option<u64> {
        let partly_sent = self.queue.front().filter(|_| self.sent > 0)?;
        partly_sent.payload()?.borrowed().map(|_| self.pdus_sent)
    }

    /// Whether a writer waits for the borrowed data of the PDU that is partly sent.
    pub(crate) fn partly_sent_borrow_is_awaited(&self) -> bool {
        let partly_sent = self.queue.front().filter(|_| self.sent > 0);
        let payload = partly_sent.and_then(Outgoing::payload);
        payload
            .and_then(Payload::borrowed)
            .is_some_and(Borrow::is_awaited)
    }

    /// Copies the borrowed data of a partly sent PDU into a lease, which `take` provides.
    pub(crate) fn copy_partly_sent_borrow(
        &mut self,
        take: impl FnOnce(usize) -> Option<Lease>,
    ) -> Suspended {
        if self.partly_sent_borrow().is_none() {
            return Suspended::Nothing;
        }
        let Some(Outgoing::Framed(Framed {
            payload: Some(payload),
            ..
        })) = self.queue.front_mut()
        else {
            return Suspended::Nothing;
        };
        let Some(mut lease) = take(payload.bytes as usize) else {
            return Suspended::NoMemory;
        };
        let data = payload.data().unwrap_or_default();
        lease[..data.len()].copy_from_slice(data);
        payload.data = PayloadData::Held(Data::Lease(lease));
        Suspended::Copied(payload.bytes as usize)
    }

    /// Takes suspended borrows again for the next send. Returns `false` if the first PDU's borrow
    /// is refused.
    #[cold]
    fn resume(&mut self) -> bool {
        let mut bytes = 0;
        for (place, outgoing) in self.queue.iter_mut().enumerate() {
            if bytes >= BYTES_PER_SEND_MAX {
                break;
            }
            if let Outgoing::Framed(framed) = outgoing {
                let was_suspended = framed.is_suspended();
                if !framed.resume() {
                    return place > 0;
                }
                self.suspended -= usize::from(was_suspended);
            }
            bytes += outgoing.len();
        }
        true
    }

    /// Sends what is queued. Calls `finished` for each PDU that the stream has accepted entirely.
    pub(crate) fn flush(
        &mut self,
        stream: &mut impl ByteStream,
        mut finished: impl FnMut(Finishes),
    ) -> Flushed {
        for _ in 0..SENDS_PER_FLUSH_MAX {
            if self.queue.is_empty() {
                return send_kept(stream);
            }
            // The writer that holds the range finishes soon.
            if self.suspended > 0 && !self.resume() {
                return Flushed::Yielded;
            }
            if self.framing.data_digest {
                self.seal();
            }
            self.sends += 1;
            match self.send_batch(stream) {
                Transferred::Bytes(bytes) => self.retire(bytes, &mut finished),
                Transferred::WouldBlock => return Flushed::Blocked,
                Transferred::Closed | Transferred::Failed(_) => return Flushed::Broken,
            }
        }
        if self.queue.is_empty() {
            send_kept(stream)
        } else {
            Flushed::Yielded
        }
    }

    /// Computes the data digests of all queued PDUs in order, and prefetches the next PDU's data
    /// meanwhile.
    fn seal(&mut self) {
        let mut unsealed = self.queue.range_mut(self.sealed..).peekable();
        while let Some(outgoing) = unsealed.next() {
            if matches!(outgoing, Outgoing::Framed(framed) if framed.is_suspended()) {
                return;
            }
            self.sealed += 1;
            if let Some(payload) = unsealed.peek().and_then(|next| next.payload()) {
                prefetch(payload.data().unwrap_or_default());
            }
            if let Outgoing::Framed(Framed {
                payload: Some(payload),
                ..
            }) = outgoing
            {
                payload.digest = Some(digest(payload.data().unwrap_or_default()));
            }
        }
    }

    fn send_batch(&self, stream: &mut impl ByteStream) -> Transferred {
        let mut pieces = Pieces::new();
        let mut bytes = 0;
        for outgoing in &self.queue {
            if pieces.remaining_capacity() < PIECES_PER_PDU_MAX || bytes >= BYTES_PER_SEND_MAX {
                break;
            }
            match outgoing {
                Outgoing::Framed(framed) => match framed.add_to(&mut pieces) {
                    Some(added) => bytes += added,
                    None => break,
                },
                Outgoing::Control(control) => {
                    pieces.push(IoSlice::new(control));
                    bytes += control.len();
                }
            }
        }
        let mut unsent = &mut pieces[..];
        IoSlice::advance_slices(&mut unsent, self.sent);
        stream.send(unsent)
    }

    /// Drops the PDUs that the stream has accepted entirely with the next `bytes`.
    fn retire(&mut self, bytes: usize, finished: &mut impl FnMut(Finishes)) {
        let mut taken = self.sent + bytes;
        let mut sent_pdus = 0;
        for outgoing in &self.queue {
            let len = outgoing.len();
            if taken < len {
                break;
            }
            taken -= len;
            sent_pdus += 1;
            finished(outgoing.finishes());
        }
        debug_assert!(
            taken == 0 || sent_pdus < self.queue.len(),
            "the stream took more than it was given"
        );
        self.sent = taken;
        self.bytes_sent += bytes as u64;
        self.pdus_sent += sent_pdus as u64;
        self.sealed = self.sealed.saturating_sub(sent_pdus);
        self.queue.drain(..sent_pdus);
    }
}

/// Sends what the stream has accepted and kept.
#[inline]
fn send_kept(stream: &mut impl ByteStream) -> Flushed {
    match stream.send_kept() {
        Ok(true) => Flushed::Empty,
        Ok(false) => Flushed::Blocked,
        Err(_) => Flushed::Broken,
    }
}

#[cfg(test)]
mod tests;
