//! A host's end of one NVMe/TCP connection: one queue, as a careful host keeps it.
//!
//! It believes nothing: every PDU of the target is held against the rules of the transport (TCP
//! 1.1 §3.3 and §3.6.2), every answer against the command that it claims to answer.

use std::collections::BTreeMap;

use crc_fast::{CrcAlgorithm, checksum};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    ADMIN_IN_CAPSULE_DATA_BYTES, C2hData, CapsuleCmd, CapsuleResp, CommonHeader, DigestFlags,
    Framing, H2cData, IcReq, IcResp, PduType, R2t, TermReq,
};
use nvme_spec::{Cqe, Sqe, Status};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::{Command, IoKind};
use crate::network::{HostEnd, Wire};
use crate::random::Random;

const DIGEST_BYTES: usize = 4;
/// Answers that overtake the answer to a command that was given up, at most.
const OVERTAKEN_MAX: u64 = 8;

fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// What moves with a command.
#[derive(Clone, Debug)]
pub(super) enum Transfer {
    None,
    /// So many bytes to the host.
    In(usize),
    /// These bytes from the host.
    Out(Vec<u8>),
}

/// How a command's way to the target goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    None,
    /// A bit of the data flips on the wire, behind its digest.
    Data,
    /// A bit of the header flips on the wire.
    Header,
}

/// A command on its way out.
pub(super) struct Sending {
    pub(super) sqe: Sqe,
    pub(super) command: Command,
    pub(super) transfer: Transfer,
    pub(super) damage: Damage,
}

impl Sending {
    /// One without data, on a way without harm.
    pub(super) fn plain(sqe: Sqe, command: Command) -> Self {
        Self {
            sqe,
            command,
            transfer: Transfer::None,
            damage: Damage::None,
        }
    }
}

/// A command that waits for its answer.
pub(super) struct Outstanding {
    pub(super) command: Command,
    pub(super) issued_at: Nanos,
    out: Vec<u8>,
    /// Bytes of `out` that the target has asked for.
    asked: usize,
    damage: Damage,
    expected: usize,
    pub(super) data: Vec<u8>,
    /// The last data PDU has come.
    complete: bool,
}

/// What came in.
pub(super) enum Incoming {
    Initialised,
    Answered {
        outstanding: Outstanding,
        cqe: Cqe,
    },
    /// The target ends the connection because of what this host sent.
    Terminated(u16),
    /// The connection is over.
    Ended(HostEnd),
}

/// What a connection is to be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionShape {
    pub(super) qid: u16,
    pub(super) depth: u16,
    pub(super) framing: Framing,
    pub(super) flow_control: bool,
    pub(super) in_capsule_bytes: usize,
    /// Data that was asked for is sent so much later at most.
    pub(super) write_delay_max: Nanos,
}

/// A host's end of a connection.
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) shape: ConnectionShape,
    random: Random,
    inbox: Vec<u8>,
    outstanding: BTreeMap<u16, Outstanding>,
    next_cid: u16,
    sent: u64,
    answered: u64,
    host_data_bytes_max: usize,
    /// Data that is sent later, by when.
    later: Vec<(Nanos, Vec<u8>)>,
    /// Answers that may overtake another.
    overtaken_max: u64,
    pub(super) initialised: bool,
    pub(super) live: bool,
    /// The target has a reason to close it.
    pub(super) excused: bool,
    /// Nothing more is to be sent on it.
    pub(super) closing: bool,
    /// Answers may be late until then, and for the usual time after.
    pub(super) disturbed_until: Nanos,
}

impl Connection {
    /// Opens it: the ICReq goes out.
    pub(super) fn open(wire: Wire, shape: ConnectionShape, random: Random) -> Self {
        let digests = DigestFlags::new()
            .with_header(shape.framing.header_digest)
            .with_data(shape.framing.data_digest);
        wire.send(IcReq::new(shape.framing.alignment_z, digests, 0).as_bytes());
        Self {
            wire,
            shape,
            random,
            inbox: Vec::new(),
            outstanding: BTreeMap::new(),
            next_cid: 0,
            sent: 0,
            answered: 0,
            host_data_bytes_max: 4096,
            later: Vec::new(),
            overtaken_max: 0,
            initialised: false,
            live: false,
            excused: false,
            closing: false,
            disturbed_until: Nanos::ZERO,
        }
    }

    /// Commands that can be sent now: a queue holds one less than its entries.
    pub(super) fn room(&self) -> usize {
        usize::from(self.shape.depth - 1).saturating_sub(self.outstanding.len())
    }

    pub(super) fn outstanding(&self) -> impl Iterator<Item = (u16, &Outstanding)> {
        self.outstanding.iter().map(|(cid, it)| (*cid, it))
    }

    pub(super) fn take_outstanding(&mut self) -> impl Iterator<Item = Outstanding> + use<> {
        std::mem::take(&mut self.outstanding).into_values()
    }

    /// Sends a command; its data goes in the capsule at times, where it fits. Returns its
    /// identifier.
    pub(super) fn submit(&mut self, sending: Sending, now: Nanos) -> u16 {
        let in_capsule = self.random.coin();
        self.submit_so(sending, now, in_capsule)
    }

    /// Sends a Connect, whose data must be in the capsule (TCP 1.1 §3.3.1.1).
    pub(super) fn submit_connect(&mut self, sqe: Sqe, data: Vec<u8>, now: Nanos) {
        let sending = Sending {
            transfer: Transfer::Out(data),
            ..Sending::plain(sqe, Command::Connect)
        };
        self.submit_so(sending, now, true);
    }

    fn submit_so(&mut self, sending: Sending, now: Nanos, in_capsule: bool) -> u16 {
        let Sending {
            sqe,
            command,
            transfer,
            damage,
        } = sending;
        let cid = self.free_cid();
        let fits = |bytes: usize| in_capsule && bytes <= self.in_capsule_max();
        let (sgl, inline, out, expected) = match transfer {
            Transfer::None => (SglDescriptor::transport(0), Vec::new(), Vec::new(), 0),
            Transfer::In(bytes) => {
                let sgl = SglDescriptor::transport(bytes as u32);
                (sgl, Vec::new(), Vec::new(), bytes)
            }
            Transfer::Out(data) if fits(data.len()) => {
                let sgl = SglDescriptor::in_capsule(0, data.len() as u32);
                (sgl, data, Vec::new(), 0)
            }
            Transfer::Out(data) => {
                let sgl = SglDescriptor::transport(data.len() as u32);
                (sgl, Vec::new(), data, 0)
            }
        };
        let sqe = sqe.with_cid(cid).with_sgl(sgl);
        let mut capsule = self.pdu(
            CapsuleCmd::new(sqe, inline.len() as u32, self.sending()).as_bytes(),
            &inline,
            damage,
        );
        if damage == Damage::Header {
            let byte = self.random.between(8, 71) as usize;
            capsule[byte] ^= 1 << self.random.below(8);
        }
        self.wire.send(&capsule);
        self.sent += 1;
        self.outstanding.insert(
            cid,
            Outstanding {
                command,
                issued_at: now,
                out,
                asked: 0,
                damage,
                expected,
                data: Vec::new(),
                complete: false,
            },
        );
        cid
    }

    /// Answers to what is given up may be overtaken by others made after them: SQHD is the head's
    /// value when an answer was made (Base 2.1 §4.2.1).
    pub(super) fn answers_may_overtake(&mut self) {
        self.overtaken_max = OVERTAKEN_MAX;
    }

    /// Picks an I/O command that is not answered, and notes that it may be aborted now.
    pub(super) fn abort_any(&mut self) -> Option<u16> {
        let waiting = self.outstanding.len() as u64;
        let chosen = self.random.below(waiting.max(1)) as usize;
        let (cid, outstanding) = self.outstanding.iter_mut().nth(chosen)?;
        self.overtaken_max = OVERTAKEN_MAX;
        if let Command::Io(io) = &mut outstanding.command {
            io.aborted = true;
        }
        Some(*cid)
    }

    /// Data that a capsule of this queue may carry. Fabrics commands always carry theirs.
    fn in_capsule_max(&self) -> usize {
        if self.shape.qid == 0 || !self.live {
            ADMIN_IN_CAPSULE_DATA_BYTES as usize
        } else {
            self.shape.in_capsule_bytes
        }
    }

    /// Identifiers come in no particular order, and are used again soon.
    fn free_cid(&mut self) -> u16 {
        loop {
            self.next_cid = if self.random.permille(300) {
                self.random.below(u64::from(u16::MAX)) as u16
            } else {
                self.next_cid.wrapping_add(1)
            };
            if !self.outstanding.contains_key(&self.next_cid) {
                return self.next_cid;
            }
        }
    }

    /// The framing of what goes to the target, which asks for no alignment (CPDA is 0).
    fn sending(&self) -> Framing {
        Framing {
            alignment_z: 0,
            ..self.shape.framing
        }
    }

    /// A PDU with the digests that were agreed on.
    fn pdu(&mut self, header: &[u8], data: &[u8], damage: Damage) -> Vec<u8> {
        let framing = self.shape.framing;
        let mut pdu = header.to_vec();
        if framing.header_digest {
            pdu.extend(digest(header));
        }
        if !data.is_empty() {
            pdu.extend(data);
            if framing.data_digest {
                if damage == Damage::Data {
                    let at = pdu.len() - data.len() + self.random.below(data.len() as u64) as usize;
                    pdu[at] ^= 1 << self.random.below(8);
                }
                pdu.extend(digest(data));
            }
        }
        pdu
    }

    /// When it wants to send although nothing comes.
    pub(super) fn next_send(&self) -> Option<Nanos> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Takes in what has come; whether there was anything.
    ///
    /// # Errors
    /// What the target did wrong.
    pub(super) fn poll(
        &mut self,
        now: Nanos,
        incoming: &mut Vec<Incoming>,
    ) -> Result<bool, String> {
        if !self.later.is_empty() {
            let (due, later) = std::mem::take(&mut self.later)
                .into_iter()
                .partition::<Vec<_>, _>(|(at, _)| *at <= now);
            self.later = later;
            for (_, bytes) in due {
                self.wire.send(&bytes);
            }
        }
        let before = self.inbox.len();
        let end = self.wire.receive(&mut self.inbox);
        let moved = self.inbox.len() > before || end != HostEnd::Open;
        let mut taken = 0;
        while let Some(bytes) = self.take_pdu(taken, now, incoming)? {
            taken += bytes;
        }
        self.inbox.drain(..taken);
        if end != HostEnd::Open {
            // Whether there was a reason is judged by the whole host: with one, what was on its way
            // may be cut short.
            incoming.push(Incoming::Ended(end));
        }
        Ok(moved)
    }

    /// Takes the PDU at `at` of the inbox, when all of it is there; returns its length.
    fn take_pdu(
        &mut self,
        at: usize,
        now: Nanos,
        incoming: &mut Vec<Incoming>,
    ) -> Result<Option<usize>, String> {
        let bytes = &self.inbox[at..];
        let Ok((common, _)) = CommonHeader::read_from_prefix(bytes) else {
            return Ok(None);
        };
        let length = common.plen.get() as usize;
        if length < usize::from(common.hlen) || length > 1 << 24 {
            return Err(format!("a PDU says that it has {length} bytes"));
        }
        let Some(pdu) = bytes.get(..length) else {
            return Ok(None);
        };
        let pdu = pdu.to_vec();
        let data = self.checked_data(&common, &pdu)?;
        match common.pdu_type {
            PduType::IC_RESP => self.initialised(&pdu, incoming)?,
            PduType::CAPSULE_RESP => {
                let (capsule, _) = CapsuleResp::read_from_prefix(&pdu).map_err(|_| short())?;
                self.response(capsule.cqe, incoming)?;
            }
            PduType::C2H_DATA => {
                let (header, _) = C2hData::read_from_prefix(&pdu).map_err(|_| short())?;
                self.data(&header, data, incoming)?;
            }
            PduType::R2T => {
                let (request, _) = R2t::read_from_prefix(&pdu).map_err(|_| short())?;
                self.request(&request, now)?;
            }
            PduType::C2H_TERM_REQ => {
                let (request, _) = TermReq::read_from_prefix(&pdu).map_err(|_| short())?;
                incoming.push(Incoming::Terminated(request.fes.get()));
            }
            other => return Err(format!("a target does not send {other}")),
        }
        Ok(Some(length))
    }

    /// Checks lengths, flags and digests; the data of the PDU.
    fn checked_data<'a>(&self, common: &CommonHeader, pdu: &'a [u8]) -> Result<&'a [u8], String> {
        let kind = common.pdu_type;
        if kind.header_bytes() != Some(common.hlen) || kind.is_from_host() {
            return Err(format!("{kind} with a header of {} bytes", common.hlen));
        }
        if !kind.valid_flags().contains(common.flags) {
            return Err(format!("{kind} with flags {:?}", common.flags));
        }
        let header_bytes = usize::from(common.hlen);
        if !kind.may_have_digest() {
            return Ok(&[]);
        }
        let framing = self.shape.framing;
        if common.flags.hdgstf() != framing.header_digest {
            return Err(format!("{kind} disagrees about header digests"));
        }
        let mut offset = header_bytes;
        if framing.header_digest {
            offset += DIGEST_BYTES;
            let found = pdu.get(header_bytes..offset).ok_or_else(short)?;
            if found != digest(&pdu[..header_bytes]) {
                return Err(format!("{kind} with a wrong header digest"));
            }
        }
        if kind != PduType::C2H_DATA {
            let whole = pdu.len() == offset;
            return whole
                .then_some(&[][..])
                .ok_or_else(|| format!("{kind} with more behind it"));
        }
        if common.pdo != framing.data_offset(common.hlen) {
            return Err(format!("data at {} of the PDU", common.pdo));
        }
        let trailer = if framing.data_digest { DIGEST_BYTES } else { 0 };
        let end = pdu.len().checked_sub(trailer).ok_or_else(short)?;
        let data = pdu.get(usize::from(common.pdo)..end).ok_or_else(short)?;
        if common.flags.ddgstf() != framing.data_digest {
            return Err("a data PDU disagrees about data digests".to_owned());
        }
        if framing.data_digest && pdu[end..] != digest(data) {
            return Err("data with a wrong digest".to_owned());
        }
        Ok(data)
    }

    fn initialised(&mut self, pdu: &[u8], incoming: &mut Vec<Incoming>) -> Result<(), String> {
        let (response, _) = IcResp::read_from_prefix(pdu).map_err(|_| short())?;
        let framing = &mut self.shape.framing;
        if self.initialised || response.cpda_z > 0 {
            return Err("an ICResp out of order".to_owned());
        }
        let asked = (framing.header_digest, framing.data_digest);
        if (response.dgst.header(), response.dgst.data()) != asked {
            return Err("other digests than were asked for".to_owned());
        }
        self.host_data_bytes_max = response.maxh2cdata.get() as usize;
        if self.host_data_bytes_max < 4096 {
            return Err("MAXH2CDATA below 4096".to_owned());
        }
        self.initialised = true;
        incoming.push(Incoming::Initialised);
        Ok(())
    }

    fn response(&mut self, cqe: Cqe, incoming: &mut Vec<Incoming>) -> Result<(), String> {
        let cid = cqe.cid.get();
        let Some(outstanding) = self.outstanding.remove(&cid) else {
            return Err(format!("an answer to command {cid}, which waits for none"));
        };
        let success = cqe.status().is_success();
        // A deallocation may be ignored, ranges and all.
        let takes_data = match &outstanding.command {
            Command::Io(io) => matches!(io.kind, IoKind::Write | IoKind::Compare),
            _ => false,
        };
        if success && takes_data && outstanding.asked < outstanding.out.len() {
            return Err(format!(
                "command {cid} succeeded before its data was asked for"
            ));
        }
        let admin = self.shape.qid == 0;
        let missing = outstanding.data.len() < outstanding.expected;
        if success && !admin && missing {
            return Err(format!("command {cid} succeeded without all of its data"));
        }
        self.answered += 1;
        // A Connect that is refused makes no queue, so there is no head.
        if success || self.live {
            self.check_head(&cqe)?;
        }
        incoming.push(Incoming::Answered { outstanding, cqe });
        Ok(())
    }

    /// SQHD counts what the target has taken from the queue (Base 2.1 §4.2.1): at least what it
    /// answered, at most what was sent.
    fn check_head(&self, cqe: &Cqe) -> Result<(), String> {
        let head = u64::from(cqe.sqhd.get());
        if !self.shape.flow_control {
            let granted = !self.live && head == 0xFFFF;
            return if head == 0 || granted {
                Ok(())
            } else {
                Err(format!("SQHD {head} although flow control is off"))
            };
        }
        let depth = u64::from(self.shape.depth);
        let made = self.answered.saturating_sub(self.overtaken_max);
        if head >= depth {
            return Err(format!("SQHD {head} in a queue of {depth} entries"));
        }
        let beyond = (head + depth - made % depth) % depth;
        if beyond > self.sent - made {
            return Err(format!(
                "SQHD {head} after {} answers to {} commands, depth {depth}",
                self.answered, self.sent
            ));
        }
        Ok(())
    }

    fn data(
        &mut self,
        header: &C2hData,
        data: &[u8],
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        let cid = header.cccid.get();
        let Some(outstanding) = self.outstanding.get_mut(&cid) else {
            return Err(format!("data for command {cid}, which waits for nothing"));
        };
        let begin = header.datao.get() as usize;
        if header.datal.get() as usize != data.len() || data.is_empty() {
            return Err(format!("DATAL {} of {} bytes", header.datal, data.len()));
        }
        if outstanding.complete || begin != outstanding.data.len() {
            return Err(format!("data for command {cid} out of order"));
        }
        outstanding.data.extend_from_slice(data);
        if outstanding.data.len() > outstanding.expected {
            return Err(format!("more data for command {cid} than it asked for"));
        }
        outstanding.complete = header.ch.flags.last_pdu();
        if header.ch.flags.success() {
            let all = outstanding.data.len() == outstanding.expected;
            if !outstanding.complete || !all {
                return Err(format!("SUCCESS for command {cid} before all of its data"));
            }
            if let Some(outstanding) = self.outstanding.remove(&cid) {
                self.answered += 1;
                let cqe = Cqe::new(cid, Status::SUCCESS);
                incoming.push(Incoming::Answered { outstanding, cqe });
            }
        }
        Ok(())
    }

    /// The target is ready for data.
    fn request(&mut self, request: &R2t, now: Nanos) -> Result<(), String> {
        let cid = request.cccid.get();
        let Some(mut outstanding) = self.outstanding.remove(&cid) else {
            return Err(format!("an R2T for command {cid}, which waits for nothing"));
        };
        let (begin, length) = (request.r2to.get() as usize, request.r2tl.get() as usize);
        let end = begin + length;
        if begin != outstanding.asked || end > outstanding.out.len() || length == 0 {
            return Err(format!("an R2T for {begin} to {end} of command {cid}"));
        }
        outstanding.asked = end;
        let mut sent = begin;
        let mut damage = outstanding.damage;
        let mut bytes = Vec::new();
        while sent < end {
            let most = self.host_data_bytes_max.min(end - sent);
            let piece = if self.random.permille(300) {
                // All but the last are multiples of four bytes.
                (self.random.between(4, most.max(4) as u64) as usize & !3).min(most)
            } else {
                most
            };
            let last = sent + piece == end;
            let tag = request.ttag.get();
            let framing = self.sending();
            let header = H2cData::new(cid, tag, sent as u32, piece as u32, last, framing);
            bytes.extend(self.pdu(
                header.as_bytes(),
                &outstanding.out[sent..sent + piece],
                damage,
            ));
            damage = Damage::None;
            sent += piece;
        }
        let delay = self.shape.write_delay_max.as_nanos();
        if delay > 0 && self.random.permille(100) {
            let at = now + Nanos(self.random.below(delay));
            // What was put off stays in front of what comes later.
            self.later.push((at, bytes));
            self.disturbed_until = self.disturbed_until.max(at);
        } else {
            self.wire.send(&bytes);
        }
        self.outstanding.insert(cid, outstanding);
        Ok(())
    }
}

fn short() -> String {
    "a PDU that is too short".to_owned()
}
