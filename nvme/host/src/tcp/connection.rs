//! One NVMe/TCP connection of a host: initialisation, submission of commands, processing of
//! completions (TCP 1.1 §3.3).
//!
//! It owns the stream, the commands in flight with their data, and the framing in both directions.
//! Of a command it knows only the direction of its data. It performs I/O only through a
//! [`ByteStream`], which never waits: a socket, a script in tests, a damaged stream in fuzzing, a
//! target on the same thread in measurements. Only [`Connection::initialize`] waits, as the control
//! path does. Generic over the data's memory, so that an admin queue needs no pool.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DigestFlags, Framing, H2cData, IcReq, TermReq,
};
use nvme_spec::{Cqe, Sqe};
use zerocopy::{IntoBytes, transmute_ref};

use crate::deadline::Deadline;
use crate::error::{HostError, ProtocolError};
use crate::link::{COMPLETIONS_MAX, Completions, ConnectionCounters, Refusal, Refused, Transfer};
use crate::slots::Slots;
use crate::tcp::inbox::{Inbox, Phase};
use crate::tcp::pdu::{Negotiated, digest};
use crate::tcp::sender::Sender;
use crate::tcp::stream::{ByteStream, StreamResult};

/// The direction of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Direction {
    /// No data.
    #[default]
    None,
    /// Read: the target sends all of it.
    FromTarget,
    /// Read: the target may send less.
    FromTargetUpTo,
    /// Write: the host sends the data in the capsule.
    InCapsule,
    /// Write: the host sends the data that R2Ts request.
    OnRequest,
}

/// The part of an R2T that has not been queued for sending yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingR2t {
    pub(crate) ttag: u16,
    pub(crate) offset: u32,
    pub(crate) remaining: u32,
}

/// A command in flight.
#[derive(Debug)]
pub(crate) struct Command<B> {
    pub(crate) direction: Direction,
    /// LAST_PDU was received.
    pub(crate) last_pdu_received: bool,
    /// A data digest did not match, so the command fails when it completes.
    pub(crate) digest_failed: bool,
    /// Bytes of `data` to transfer.
    pub(crate) expected: u32,
    /// Bytes received in data PDUs, or requested by R2Ts, so far.
    pub(crate) transferred: u32,
    pub(crate) pending_r2t: Option<PendingR2t>,
    /// Position in the outgoing stream after the last byte that was queued for this command.
    pub(crate) send_end: u64,
    pub(crate) token: u64,
    pub(crate) data: Option<B>,
}

impl<B> Default for Command<B> {
    fn default() -> Self {
        Self {
            direction: Direction::None,
            last_pdu_received: false,
            digest_failed: false,
            expected: 0,
            transferred: 0,
            pending_r2t: None,
            send_end: 0,
            token: 0,
            data: None,
        }
    }
}

/// The commands in flight on a TCP connection.
pub(crate) type Commands<B> = Slots<Command<B>>;

/// PDUs that may be queued in addition to one per command.
const SPARE_PDUS: usize = 64;

/// Parameters negotiated by initialisation and Connect.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TcpParameters {
    /// Digests, and the target's data alignment.
    pub(crate) framing: Framing,
    /// Maximum data bytes of one H2CData PDU.
    pub(crate) h2c_data_max_bytes: u32,
    /// Maximum data bytes of a command capsule.
    pub(crate) in_capsule_max_bytes: u32,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection<S, B> {
    stream: S,
    /// Digests that the ICReq requests.
    pub(crate) requested: DigestFlags,
    pub(crate) parameters: TcpParameters,
    pub(crate) slots: Commands<B>,
    sender: Sender,
    /// Commands with an R2T whose data is not completely queued, in the order of their R2Ts.
    pending_r2ts: VecDeque<u16>,
    /// The common header of every response capsule, if capsules have no digests.
    pub(crate) expected_response_header: Option<CommonHeader>,
    pub(crate) inbox: Inbox,
    pub(crate) counters: ConnectionCounters,
    failure: Option<HostError>,
}

impl<S: ByteStream, B: Deref<Target = [u8]> + DerefMut> Connection<S, B> {
    /// A connection over a new stream, for `depth` commands in flight. The next [`Self::flush`]
    /// sends its ICReq; commands may be sent after it [is initialised](Self::is_initialized).
    pub(crate) fn new(
        stream: S,
        requested: DigestFlags,
        depth: usize,
        receive_bytes: usize,
    ) -> Self {
        let mut sender = Sender::new(depth + SPARE_PDUS);
        // Request no alignment (HPDA 0) and one R2T at a time (MAXR2T, zero-based).
        let request = IcReq::new(0, requested, 0);
        sender.stage(request.as_bytes(), 0);
        Self {
            stream,
            requested,
            parameters: TcpParameters::default(),
            slots: Slots::new(depth),
            sender,
            pending_r2ts: VecDeque::with_capacity(depth),
            expected_response_header: None,
            inbox: Inbox::new(receive_bytes),
            counters: ConnectionCounters::default(),
            failure: None,
        }
    }

    /// Whether the target has accepted the initialisation.
    fn is_initialized(&self) -> bool {
        !matches!(self.inbox.phase, Phase::Initialization)
    }

    /// Waits until the connection is initialised, at most for `limit`.
    pub(crate) fn initialize(&mut self, limit: Duration) -> Result<(), HostError> {
        let deadline = Deadline::after(limit, "the connection's initialisation");
        loop {
            self.flush()?;
            self.poll_until(&mut Completions::new(), COMPLETIONS_MAX)?;
            if self.is_initialized() {
                return Ok(());
            }
            self.wait(deadline.left()?);
        }
    }

    /// Applies the negotiated parameters to all later PDUs.
    pub(crate) fn initialized(&mut self, negotiated: Negotiated) {
        let Negotiated {
            framing,
            h2c_data_max_bytes,
        } = negotiated;
        (self.parameters.framing, self.parameters.h2c_data_max_bytes) =
            (framing, h2c_data_max_bytes);
        let response = CapsuleResp::new(Cqe::default(), framing);
        self.expected_response_header = (!framing.header_digest).then_some(response.ch);
    }

    /// Queues a command, which the next [`Self::flush`] sends. Returns its command identifier.
    pub(crate) fn submit(
        &mut self,
        sqe: Sqe,
        transfer: Transfer<B>,
        token: u64,
    ) -> Result<u16, Refused<B>> {
        let (direction, data) = self.split(transfer);
        let refuse = |refusal, data| Err(Refused { refusal, data });
        if self.failure.is_some() {
            return refuse(Refusal::Failed, data);
        }
        let Ok(length) = u32::try_from(data.as_deref().map_or(0, <[u8]>::len)) else {
            return refuse(Refusal::Length, data);
        };
        if direction != Direction::None && length == 0 {
            return refuse(Refusal::Length, data);
        }
        if !self.sender.has_room() {
            return refuse(Refusal::Full, data);
        }
        let Some(index) = self.slots.take() else {
            return refuse(Refusal::Full, data);
        };
        let slot = self.slots.get_mut(index);
        slot.direction = direction;
        slot.last_pdu_received = false;
        slot.digest_failed = false;
        slot.expected = length;
        slot.transferred = 0;
        slot.pending_r2t = None;
        slot.token = token;
        slot.data = data;
        let cid = slot.cid();
        // TCP 1.1 §3.3.2: in-capsule data is described by an offset, all other data by a transport
        // data block.
        let sgl = match direction {
            Direction::InCapsule => SglDescriptor::in_capsule(0, length),
            Direction::None
            | Direction::FromTarget
            | Direction::FromTargetUpTo
            | Direction::OnRequest => SglDescriptor::transport(length),
        };
        self.stage_capsule(index, sqe.with_cid(cid).with_sgl(sgl));
        Ok(cid)
    }

    fn split(&self, transfer: Transfer<B>) -> (Direction, Option<B>) {
        match transfer {
            Transfer::None => (Direction::None, None),
            Transfer::Read(data) => (Direction::FromTarget, Some(data)),
            Transfer::ReadUpTo(data) => (Direction::FromTargetUpTo, Some(data)),
            Transfer::Write(data) => {
                let in_capsule = data.len() <= self.parameters.in_capsule_max_bytes as usize;
                let direction = if in_capsule {
                    Direction::InCapsule
                } else {
                    Direction::OnRequest
                };
                (direction, Some(data))
            }
        }
    }

    fn stage_capsule(&mut self, index: u16, sqe: Sqe) {
        let slot = self.slots.get(index);
        let inline = if slot.direction == Direction::InCapsule {
            slot.expected
        } else {
            0
        };
        let capsule = CapsuleCmd::new(sqe, inline, self.parameters.framing);
        let header: &[u8; size_of::<CapsuleCmd>()] = transmute_ref!(&capsule);
        self.stage_header(header, capsule.ch.pdo);
        self.stage_data(index, 0, inline);
    }

    /// Queues a header with its digest, padded to the start of data.
    fn stage_header<const BYTES: usize>(&mut self, header: &[u8; BYTES], pdo: u8) {
        if self.parameters.framing.header_digest {
            let mut digested = ArrayVec::<u8, 132>::new();
            // A header has at most 72 bytes here, so both parts fit.
            digested.extend(header.iter().copied().chain(digest(header)));
            self.sender.stage(&digested, usize::from(pdo));
        } else if usize::from(pdo) <= BYTES {
            self.sender.stage_all(header);
        } else {
            self.sender.stage(header, usize::from(pdo));
        }
    }

    /// Queues a part of a command's data with its digest.
    fn stage_data(&mut self, index: u16, start: u32, len: u32) {
        if len > 0 {
            let (start, len) = (start as usize, len as usize);
            self.sender.attach(index, start, len);
            if self.parameters.framing.data_digest
                && let Some(data) = self.slots.get(index).data.as_deref()
            {
                self.sender.stage(&digest(&data[start..start + len]), 4);
            }
        }
        self.slots.get_mut(index).send_end = self.sender.queued();
    }

    /// Records an R2T; the next [`Self::flush`] sends its data.
    pub(crate) fn add_r2t(&mut self, index: u16, pending_r2t: PendingR2t) {
        self.slots.get_mut(index).pending_r2t = Some(pending_r2t);
        self.pending_r2ts.push_back(index);
    }

    /// Queues the data that R2Ts requested, while there is room.
    fn stage_r2t_data(&mut self) {
        while let Some(&index) = self.pending_r2ts.front() {
            let slot = self.slots.get_mut(index);
            let cid = slot.cid();
            let Some(pending_r2t) = slot.pending_r2t.as_mut() else {
                self.pending_r2ts.pop_front();
                continue;
            };
            if !self.sender.has_room() {
                return;
            }
            let len = pending_r2t
                .remaining
                .min(self.parameters.h2c_data_max_bytes);
            let (ttag, offset) = (pending_r2t.ttag, pending_r2t.offset);
            pending_r2t.offset += len;
            pending_r2t.remaining -= len;
            let last = pending_r2t.remaining == 0;
            if last {
                slot.pending_r2t = None;
                self.pending_r2ts.pop_front();
            }
            let pdu = H2cData::new(cid, ttag, offset, len, last, self.parameters.framing);
            let header: &[u8; size_of::<H2cData>()] = transmute_ref!(&pdu);
            self.stage_header(header, pdu.ch.pdo);
            self.stage_data(index, offset, len);
        }
    }

    /// Whether everything that was queued for the command, or requested by an R2T, was sent.
    pub(crate) fn is_sent(&self, index: u16) -> bool {
        let slot = self.slots.get(index);
        slot.pending_r2t.is_none() && slot.send_end <= self.sender.sent()
    }

    /// Sends everything queued, in one system call if the socket has room.
    pub(crate) fn flush(&mut self) -> Result<(), HostError> {
        self.check_failure()?;
        loop {
            self.stage_r2t_data();
            if self.sender.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.sender.send(&mut self.stream, &self.slots) {
                return Err(self.fail(error));
            }
            self.counters.sends = self.sender.sends();
            if !self.sender.is_empty() || self.pending_r2ts.is_empty() {
                return Ok(());
            }
        }
    }

    /// As [`Self::poll_until`], until `completions` is full.
    #[cfg(test)]
    pub(crate) fn poll(&mut self, completions: &mut Completions<B>) -> Result<usize, HostError> {
        self.poll_until(completions, COMPLETIONS_MAX)
    }

    /// Adds completed commands to `completions` until it has `most` entries, after at most one
    /// receiving system call. Returns the number added.
    ///
    /// An error is final: the connection cannot be used any more, and [`Self::take_failed_command`]
    /// returns the buffers.
    pub(crate) fn poll_until(
        &mut self,
        completions: &mut Completions<B>,
        most: usize,
    ) -> Result<usize, HostError> {
        self.check_failure()?;
        let before = completions.len();
        let most = most.min(COMPLETIONS_MAX);
        let result = self.parse(completions, most).and_then(|()| {
            if completions.len() >= most {
                return Ok(());
            }
            self.receive()?;
            self.parse(completions, most)
        });
        let added = completions.len() - before;
        self.counters.completed += added as u64;
        match result {
            // Return earlier completions first; the next poll reports the error.
            Err(error) if added > 0 => {
                self.fail(error);
                Ok(added)
            }
            Err(error) => Err(self.fail(error)),
            Ok(()) => Ok(added),
        }
    }

    /// Receives once: into the rest of the data being received, and into the inbox after it.
    fn receive(&mut self) -> Result<(), HostError> {
        let mut target = match &self.inbox.phase {
            Phase::Data(incoming) => {
                let range = incoming.next..incoming.end;
                let data = self.slots.get_mut(incoming.slot).data.as_deref_mut();
                data.and_then(|data| data.get_mut(range))
            }
            Phase::Initialization | Phase::Header | Phase::Digest(_) => None,
        };
        let result = self.inbox.receive(&mut self.stream, target.take());
        match result {
            Ok(placed) => {
                self.counters.receives += 1;
                self.counters.placed_bytes += placed as u64;
                Ok(())
            }
            Err(StreamResult::Bytes(_) | StreamResult::Nothing) => {
                self.counters.empty_receives += 1;
                Ok(())
            }
            Err(StreamResult::Ended) if self.inbox.is_between_pdus() => Err(HostError::Closed),
            Err(StreamResult::Ended) => Err(HostError::ClosedWithinPdu),
            Err(StreamResult::Failed(errno)) => Err(HostError::Socket(errno)),
        }
    }

    fn check_failure(&self) -> Result<(), HostError> {
        self.failure
            .as_ref()
            .map_or(Ok(()), |failure| Err(failure.duplicate()))
    }

    /// Records `error` as the reason why the connection ended, and sends a termination request if
    /// the target violated the protocol.
    fn fail(&mut self, error: HostError) -> HostError {
        if let HostError::Protocol(fault) = error {
            self.send_termination(fault);
        }
        self.failure = Some(error.duplicate());
        error
    }

    /// TCP 1.1 §3.5: the side that detects a fatal error sends a termination request and closes.
    /// Best effort: if a PDU is only partly sent, a termination request cannot be sent.
    fn send_termination(&mut self, fault: ProtocolError) {
        if self.sender.is_empty() {
            let (status, information) = fault.termination();
            let header = self.inbox.parsed_header();
            let request = TermReq::from_host(status, information, header.len());
            let buffers = [request.as_bytes(), header].map(std::io::IoSlice::new);
            // The connection has failed either way.
            let _ = self.stream.send(&buffers);
        }
    }

    /// Takes one command back from a failed connection: its token and buffer. Returns `None` after
    /// the last.
    pub(crate) fn take_failed_command(&mut self) -> Option<(u64, Option<B>)> {
        let index = self.slots.any_in_flight()?;
        debug_assert!(self.failure.is_some(), "only what failed is abandoned");
        let command = self.slots.release(index);
        Some((command.token, command.data))
    }

    /// Waits for the target, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        self.stream.wait(!self.sender.is_empty(), limit);
    }

    /// The descriptor to wait on.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.stream.descriptor()
    }

    /// Whether data waits for room in the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.sender.is_empty() || !self.pending_r2ts.is_empty()
    }
}

#[cfg(test)]
mod initialization_tests;
#[cfg(test)]
mod tests;
