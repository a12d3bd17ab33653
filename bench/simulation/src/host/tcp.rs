//! The host's end of a TCP connection.
//!
//! It reads and writes PDUs with the functions that all test hosts share
//! (`nvme_host_testing::pdu`), and checks every PDU of the target against the rules of the
//! transport (TCP 1.1 §3.3 and §3.6.2). This module adds the faults: damaged, withheld, delayed and
//! wrong data.

use nvme_host::pdu::{Header, assemble, negotiate};
use nvme_host_testing::pdu::{Pdu, PduInbox};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    C2hData, CapsuleCmd, CommonHeader, DigestFlags, Framing, H2cData, IcReq, R2t,
};
use nvme_spec::{Cqe, Sqe, Status};
use reactors::Nanos;
use zerocopy::IntoBytes;

use super::connection::{Damage, Incoming, Outstanding, Queue, Transfer};
use super::twins::Which;
use super::wrong_data::WrongData;
use crate::network::{HostEnd, Wire};

/// The host's end of a TCP connection.
pub(super) struct TcpTransportEnd {
    pub(super) wire: Wire,
    inbox: PduInbox,
    host_data_bytes_max: usize,
    /// Delayed data, with its times.
    later: Vec<(Nanos, Vec<u8>)>,
    initialised: bool,
    /// An invalid PDU was sent, so later ones have no effect.
    is_broken: bool,
}

impl TcpTransportEnd {
    /// Opens the connection and sends the ICReq.
    pub(super) fn open(wire: Wire, framing: Framing) -> Self {
        wire.send(IcReq::new(framing.alignment_z, digests(framing), 0).as_bytes());
        Self {
            wire,
            inbox: PduInbox::default(),
            host_data_bytes_max: 4096,
            is_broken: false,
            later: Vec::new(),
            initialised: false,
        }
    }

    /// Sends a command with its data according to `transfer`, in the capsule if `in_capsule`.
    pub(super) fn send(
        &mut self,
        queue: &mut Queue,
        sqe: Sqe,
        (transfer, in_capsule): (Transfer, bool),
        outstanding: &mut Outstanding,
    ) {
        let damage = outstanding.damage;
        let is_raw = matches!(transfer, Transfer::Raw(_));
        let (sgl, inline) = match transfer {
            Transfer::Raw(inline) => (sqe.dptr.sgl(), inline),
            Transfer::None => (SglDescriptor::transport(0), Vec::new()),
            Transfer::In(bytes) => (SglDescriptor::transport(bytes as u32), Vec::new()),
            Transfer::Out(data) if in_capsule => {
                (SglDescriptor::in_capsule(0, data.len() as u32), data)
            }
            Transfer::Out(data) => {
                let sgl = SglDescriptor::transport(data.len() as u32);
                outstanding.out = data;
                (sgl, Vec::new())
            }
        };
        let pointed = if is_raw { sqe } else { sqe.with_sgl(sgl) };
        let command = CapsuleCmd::new(pointed, inline.len() as u32, sending(queue));
        let header = (command.as_bytes(), command.ch);
        let mut capsule = pdu(queue, header, &inline, damage);
        if damage == Damage::Header {
            let byte = queue.random.between(8, 71) as usize;
            capsule[byte] ^= 1 << queue.random.below(8);
            self.is_broken = true;
        }
        self.wire.send(&capsule);
    }

    /// Sends bytes that are not a valid PDU.
    pub(super) fn send_garbage(&mut self, kind: u8, word: u64) {
        self.is_broken = true;
        let word = word.to_le_bytes();
        let mut bytes = vec![kind, 0, 72, 0, 72, 0, 0, 0];
        bytes.extend([word; 16].concat());
        self.wire.send(&bytes);
    }

    /// The next time at which it sends on its own.
    pub(super) fn next_send(&self) -> Option<Nanos> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Receives and processes everything that has arrived. Returns whether there was anything.
    ///
    /// # Errors
    /// A violation by the target.
    pub(super) fn poll(
        &mut self,
        queue: &mut Queue,
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
        let before = self.inbox.buffer().len();
        let end = self.wire.receive(self.inbox.buffer());
        let moved = self.inbox.buffer().len() > before || end != HostEnd::Open;
        while let Some(pdu) = self.inbox.next_pdu().map_err(text)? {
            self.take_pdu(queue, &pdu, now, incoming)?;
        }
        if end != HostEnd::Open {
            // The host judges whether there was a reason. If there was, the stream may end within a
            // PDU.
            incoming.push(Incoming::Ended(end));
        }
        Ok(moved)
    }

    fn take_pdu(
        &mut self,
        queue: &mut Queue,
        pdu: &Pdu,
        now: Nanos,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        let framing = queue.shape.framing;
        let (header, data) = pdu.check(framing).map_err(text)?;
        let common = pdu.common();
        let kind = common.pdu_type;
        if !kind.valid_flags().contains(common.flags) {
            return Err(format!("{kind} with flags {:?}", common.flags));
        }
        if !data.is_empty() && common.pdo != framing.data_offset(common.hlen) {
            return Err(format!("data at {} of the PDU", common.pdo));
        }
        match header {
            Header::Initialized => self.initialised(queue, pdu, incoming)?,
            Header::Response(capsule) => queue.response(capsule.cqe, incoming)?,
            Header::Data(header) => take_data(queue, &header, data, incoming)?,
            Header::Request(request) => self.request(queue, &request, now)?,
            Header::Termination(request) => {
                incoming.push(Incoming::Terminated(request.fes.get()));
            }
        }
        Ok(())
    }

    fn initialised(
        &mut self,
        queue: &Queue,
        pdu: &Pdu,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        let response = pdu.ic_resp();
        let response = response.filter(|it| !self.initialised && it.cpda_z == 0);
        let response = response.ok_or_else(|| "an ICResp out of order".to_owned())?;
        let negotiated = negotiate(&response, digests(queue.shape.framing)).map_err(text)?;
        self.host_data_bytes_max = negotiated.h2c_data_max_bytes as usize;
        self.initialised = true;
        incoming.push(Incoming::Initialised);
        Ok(())
    }

    /// Handles an R2T.
    fn request(&mut self, queue: &mut Queue, request: &R2t, now: Nanos) -> Result<(), String> {
        let cid = request.cccid.get();
        let (begin, length) = (request.r2to.get() as usize, request.r2tl.get() as usize);
        let end = begin + length;
        let which = queue.which(cid, |it| it.requested_bytes == begin && it.out.len() == end);
        queue.memory_granted(cid, which, false);
        let commands = match which {
            Which::First => &mut queue.outstanding,
            Which::Second => &mut queue.twins,
        };
        let Some(mut outstanding) = commands.remove(&cid) else {
            return Err(format!("an R2T for command {cid}, which waits for nothing"));
        };
        if begin != outstanding.requested_bytes || end > outstanding.out.len() || length == 0 {
            return Err(format!("an R2T for {begin} to {end} of command {cid}"));
        }
        // Memory is granted in order: a command does not overtake one of the same size in its
        // queue. A Copy needs more than its list of source ranges. A command that has waited for a
        // rate may be overtaken before it asks for memory.
        let (position, is_copy) = (outstanding.position, outstanding.is_copy());
        let overtaken = queue.outstanding.iter().find(|(_, it)| {
            let waits = it.requested_bytes == 0 && it.out.len() == outstanding.out.len();
            waits && it.is_copy() == is_copy && it.position < position
        });
        if let Some((overtaken, _)) = overtaken.filter(|_| !queue.shape.is_limited) {
            return Err(format!(
                "an R2T for command {cid} before that of {overtaken}"
            ));
        }
        outstanding.requested_bytes = end;
        if outstanding.damage == Damage::Withheld {
            queue.withheld_since = Some(now);
            queue.put_back(cid, which, outstanding);
            return Ok(());
        }
        if let Damage::HostData(wrong) = outstanding.damage {
            self.send_wrong(queue, request, &outstanding.out[begin..end], wrong);
            queue.put_back(cid, which, outstanding);
            return Ok(());
        }
        let mut sent = begin;
        let mut damage = outstanding.damage;
        let mut bytes = Vec::new();
        while sent < end {
            let most = self.host_data_bytes_max.min(end - sent);
            let piece = if queue.random.permille(300) {
                // The lengths of all but the last PDU are multiples of four bytes.
                (queue.random.between(4, most.max(4) as u64) as usize & !3).min(most)
            } else {
                most
            };
            let last = sent + piece == end;
            let tag = request.ttag.get();
            let framing = sending(queue);
            let header = H2cData::new(cid, tag, sent as u32, piece as u32, last, framing);
            let data = &outstanding.out[sent..sent + piece];
            bytes.extend(pdu(queue, (header.as_bytes(), header.ch), data, damage));
            damage = Damage::None;
            sent += piece;
        }
        let delay = queue.shape.write_delay_max.as_nanos();
        if delay > 0 && queue.random.permille(100) {
            let at = now + Nanos(queue.random.below(delay));
            // Delayed data keeps its order.
            outstanding.data_sent_at = at;
            self.later.push((at, bytes));
            queue.disturbed_until = queue.disturbed_until.max(at);
        } else {
            outstanding.data_sent_at = now;
            self.wire.send(&bytes);
        }
        queue.put_back(cid, which, outstanding);
        Ok(())
    }
}

impl TcpTransportEnd {
    /// Responds to an R2T with data of which one PDU violates a rule.
    fn send_wrong(&mut self, queue: &mut Queue, request: &R2t, data: &[u8], wrong: WrongData) {
        let framing = sending(queue);
        let (pdus, reason) = wrong.pdus(request, data, self.host_data_bytes_max, framing);
        let mut bytes = Vec::new();
        for (header, data) in pdus {
            bytes.extend(assemble(header.as_bytes(), header.ch, data));
        }
        // The target terminates the connection at the first error.
        if !std::mem::replace(&mut self.is_broken, true) {
            queue.must_end = Some(reason);
        }
        self.wire.send(&bytes);
    }
}

/// Handles a C2HData PDU.
fn take_data(
    queue: &mut Queue,
    header: &C2hData,
    data: &[u8],
    incoming: &mut Vec<Incoming>,
) -> Result<(), String> {
    let cid = header.cccid.get();
    let begin = header.datao.get() as usize;
    let flow_control = queue.shape.flow_control;
    let which = queue.which(cid, |it| {
        it.data.len() == begin && it.expected == begin + data.len()
    });
    let Some(outstanding) = queue.command_mut(cid, which) else {
        return Err(format!("data for command {cid}, which waits for nothing"));
    };
    if outstanding.complete || begin != outstanding.data.len() {
        return Err(format!("data for command {cid} out of order"));
    }
    outstanding.data.extend_from_slice(data);
    if outstanding.data.len() > outstanding.expected {
        return Err(format!("more data for command {cid} than it requested"));
    }
    outstanding.complete = header.ch.flags.last_pdu();
    if header.ch.flags.success() {
        // TCP 1.1 §3.6.2.9, SUCCESS: without a response capsule there is no SQHD.
        if flow_control {
            return Err(format!(
                "SUCCESS for command {cid} although SQ flow control is on"
            ));
        }
        let all = outstanding.data.len() == outstanding.expected;
        if !outstanding.complete || !all {
            return Err(format!("SUCCESS for command {cid} before all of its data"));
        }
        if let Some(outstanding) = queue.take_command(cid, which) {
            queue.completed_count += 1;
            let cqe = Cqe::new(cid, Status::SUCCESS);
            incoming.push(Incoming::Completed { outstanding, cqe });
            queue.resolve_pair(cid, incoming)?;
        }
    }
    Ok(())
}

/// The framing of PDUs to the target, which requires no alignment (CPDA is 0).
fn sending(queue: &Queue) -> Framing {
    queue.shape.framing.dword_aligned()
}

fn digests(framing: Framing) -> DigestFlags {
    DigestFlags::new()
        .with_header(framing.header_digest)
        .with_data(framing.data_digest)
}

/// A PDU whose data may be damaged after the digest was calculated.
fn pdu(
    queue: &mut Queue,
    (header, common): (&[u8], CommonHeader),
    data: &[u8],
    damage: Damage,
) -> Vec<u8> {
    let mut pdu = assemble(header, common, data);
    if damage == Damage::Data && common.flags.ddgstf() {
        let at = usize::from(common.pdo) + queue.random.below(data.len() as u64) as usize;
        pdu[at] ^= 1 << queue.random.below(8);
    }
    pdu
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
