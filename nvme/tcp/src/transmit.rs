//! What a connection still has to send: a queue of PDUs whose data stays where it lies until the
//! kernel has taken it.
//!
//! Everything queued during a poll leaves in one vectored send. Storage is taken when the
//! connection is set up: a slot has at most two PDUs queued (data and response, or one R2T), so the
//! queue never grows.

use std::collections::VecDeque;
use std::io::IoSlice;

use arrayvec::ArrayVec;
use hugemem::{Borrow, Data, Lease, SuspendedBorrow, prefetch};
use nvme_spec::tcp::{C2hData, C2hEnd, DATA_ALIGNMENT_MAX_Z, Framing};
use nvme_target::Served;
use reactors::sim::planted;

use crate::digest::{DIGEST_BYTES, digest};
use crate::stream::{ByteStream, Transferred};

/// Bytes of the fixed headers of C2HData, R2T and CapsuleResp PDUs (TCP 1.1 §3.6.2).
pub(crate) const HEADER_BYTES: usize = 24;
/// Most padding that a host may ask for between header and data (TCP 1.1 §3.6.2.2).
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

/// Where the bytes of a payload are.
#[derive(Debug)]
enum PayloadData {
    Held(Data),
    /// The device has its memory back, and lends it again when the PDU can be sent. The host may get
    /// newer data then, as it may of any read that is not completed.
    Suspended(SuspendedBorrow),
}

/// Data behind a header, sent from where it lies.
#[derive(Debug)]
struct Payload {
    data: PayloadData,
    bytes: u32,
    padding: u8,
    /// Made when the PDU is about to be sent, where there is one.
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl Payload {
    /// The bytes, unless the device has its memory back.
    #[inline]
    fn data(&self) -> Option<&[u8]> {
        match &self.data {
            PayloadData::Held(data) => Some(&data[..self.bytes as usize]),
            PayloadData::Suspended(_) => None,
        }
    }

    fn loan(&self) -> Option<&Borrow> {
        match &self.data {
            PayloadData::Held(Data::Borrow(loan)) => Some(loan),
            PayloadData::Held(Data::Lease(_)) | PayloadData::Suspended(_) => None,
        }
    }

    /// The same with a loan given back.
    fn suspended(self) -> Self {
        match self.data {
            PayloadData::Held(Data::Borrow(loan)) => Self {
                data: PayloadData::Suspended(loan.suspend()),
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

/// What became of a PDU that is half sent and whose data is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspended {
    /// There was none.
    Nothing,
    /// So many bytes were copied into a lease.
    Copied(usize),
    /// There was no lease for them.
    NoMemory,
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

    /// Gives the device its memory back; `false` where none was lent.
    fn suspend(&mut self) -> bool {
        if self.payload.as_ref().and_then(Payload::loan).is_none() {
            return false;
        }
        self.payload = self.payload.take().map(Payload::suspended);
        true
    }

    /// Has the device lend its memory again; `false` when a writer is there.
    fn resume(&mut self) -> bool {
        let Some(payload) = &mut self.payload else {
            return true;
        };
        let PayloadData::Suspended(claim) = &mut payload.data else {
            return true;
        };
        let Some(loan) = claim.try_borrow_read() else {
            return false;
        };
        payload.data = PayloadData::Held(Data::Borrow(loan));
        true
    }

    /// Adds the PDU's pieces, [`PIECES_PER_PDU_MAX`] at most; returns its bytes. `None`, and nothing
    /// is added, while it is suspended.
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
    /// Bytes that the stream has taken.
    bytes_sent: u64,
    /// PDUs that the stream has taken.
    pdus_sent: u64,
    /// PDUs that are suspended.
    suspended: usize,
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
            bytes_sent: 0,
            pdus_sent: 0,
            suspended: 0,
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

    /// Bytes that it holds: of its own, and of leases.
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
        if let Data::Borrow(loan) = &data
            && loan.is_uncached()
            && !self.queue.is_empty()
        {
            prefetch(&loan[..bytes]);
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
        self.suspended = 0;
        self.sealed = self.sealed.min(self.queue.len());
    }

    /// Bytes that the stream has taken so far.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    /// Whether data is queued in such a lease.
    pub(crate) fn any_lease(&self, is_such: impl Fn(&Lease) -> bool) -> bool {
        let payloads = self.queue.iter().filter_map(Outgoing::payload);
        payloads
            .into_iter()
            .any(|payload| matches!(&payload.data, PayloadData::Held(Data::Lease(lease)) if is_such(lease)))
    }

    /// Gives devices back what they lend for PDUs that are not begun; returns how many.
    pub(crate) fn suspend_loans(&mut self) -> usize {
        let begun = usize::from(self.sent > 0);
        let unsent = self.queue.iter_mut().skip(begun);
        let suspended = unsent.filter_map(|outgoing| {
            outgoing
                .framed_mut()
                .is_some_and(Framed::suspend)
                .then_some(())
        });
        let suspended = suspended.count();
        self.suspended += suspended;
        if suspended > 0 {
            self.sealed = self.sealed.min(begun);
        }
        suspended
    }

    /// The same for what was queued last: data, and the response behind it.
    pub(crate) fn suspend_newest(&mut self) -> usize {
        let begun = usize::from(self.sent > 0);
        let newest = self.queue.len().saturating_sub(2).max(begun);
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

    /// The number of the PDU that is half sent, if its data is lent.
    pub(crate) fn begun_loan(&self) -> Option<u64> {
        let begun = self.queue.front().filter(|_| self.sent > 0)?;
        begun.payload()?.loan().map(|_| self.pdus_sent)
    }

    /// Whether a writer waits for the data of the PDU that is half sent.
    pub(crate) fn begun_loan_is_awaited(&self) -> bool {
        let begun = self.queue.front().filter(|_| self.sent > 0);
        let payload = begun.and_then(Outgoing::payload);
        payload
            .and_then(Payload::loan)
            .is_some_and(Borrow::is_awaited)
    }

    /// Copies data that a device lends for a PDU that is half sent into a lease, which `take` finds.
    pub(crate) fn copy_begun_loan(
        &mut self,
        take: impl FnOnce(usize) -> Option<Lease>,
    ) -> Suspended {
        if self.begun_loan().is_none() {
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
        let copied = match planted("borrow-copied-short") {
            true => data.len() / 2,
            false => data.len(),
        };
        lease[..copied].copy_from_slice(&data[..copied]);
        payload.data = PayloadData::Held(Data::Lease(lease));
        Suspended::Copied(payload.bytes as usize)
    }

    /// Has devices lend their memory again for the next send. `false`: not even for the first PDU.
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

    /// Sends what is queued. `finished` hears of all that is over with PDUs that have been taken.
    pub(crate) fn flush(
        &mut self,
        stream: &mut impl ByteStream,
        mut finished: impl FnMut(Finishes),
    ) -> Flushed {
        for _ in 0..SENDS_PER_FLUSH_MAX {
            if self.queue.is_empty() {
                return Flushed::Empty;
            }
            // A writer that is in the way is soon gone.
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
        self.bytes_sent += bytes as u64;
        self.pdus_sent += gone as u64;
        self.sealed = self.sealed.saturating_sub(gone);
        self.queue.drain(..gone);
    }
}

#[cfg(test)]
mod tests;
