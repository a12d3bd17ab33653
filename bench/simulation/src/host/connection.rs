//! A host's end of one connection: one queue, as a careful host keeps it, over TCP or RDMA.
//!
//! It believes nothing: every answer is held against the command that it claims to answer.

use std::collections::BTreeMap;

use nvme_spec::tcp::{ADMIN_IN_CAPSULE_DATA_BYTES, FatalError, Framing};
use nvme_spec::{Cqe, Sqe};
use reactors::Nanos;

use super::admin::CommandKey;
use super::rdma::RdmaLine;
use super::tcp::TcpLine;
use super::twins::{Told, Which};
use super::wrong_data::WrongData;
use super::{Command, IoKind};
use crate::memory::MemoryBound;
use crate::network::{HostEnd, Wire, WireId};
use crate::random::Random;

/// Answers that overtake the answer to a command that was given up, at most.
const OVERTAKEN_MAX: u64 = 8;

/// What moves with a command.
#[derive(Clone, Debug)]
pub(super) enum Transfer {
    None,
    /// So many bytes to the host.
    In(usize),
    /// These bytes from the host.
    Out(Vec<u8>),
    /// The command is sent as it stands, with its own data pointer and these bytes in its capsule.
    Raw(Vec<u8>),
}

/// How a command's way to the target goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    None,
    /// A bit of the data flips on the wire, behind its digest.
    Data,
    /// A bit of the header flips on the wire.
    Header,
    /// The key is none, or its memory is shorter than the data.
    Key,
    /// An H2CData PDU breaks a rule (TCP only).
    HostData(WrongData),
    /// The data is never sent, though it was asked for (TCP only).
    Withheld,
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
    /// Its place in its queue, counted from the first command.
    pub(super) place: u64,
    /// Data that the target asks for, where that is the transport's way.
    pub(super) out: Vec<u8>,
    /// Bytes of data that move with it, either way.
    pub(super) moves: usize,
    /// Bytes of `out` that the target has asked for.
    pub(super) asked: usize,
    pub(super) damage: Damage,
    pub(super) expected: usize,
    pub(super) data: Vec<u8>,
    /// The last data PDU has come.
    pub(super) complete: bool,
    /// Of an event request: others in front of it that waited when it was answered.
    pub(super) waiting: usize,
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
    /// Largest data of a command, bytes.
    pub(super) transfer_max: usize,
    /// Data that was asked for is sent so much later at most, and answers have a place so much
    /// later.
    pub(super) write_delay_max: Nanos,
}

/// A queue, whatever its commands travel by.
pub(super) struct Queue {
    pub(super) shape: ConnectionShape,
    pub(super) random: Random,
    pub(super) outstanding: BTreeMap<u16, Outstanding>,
    /// Commands with the identifier of one that was outstanding before them.
    pub(super) twins: BTreeMap<u16, Outstanding>,
    /// Answers to such an identifier that may be either command's.
    pub(super) half_answered: BTreeMap<u16, Cqe>,
    next_cid: u16,
    sent: u64,
    /// Commands that SQHD has told to be taken from the queue.
    taken: u64,
    pub(super) answered: u64,
    /// Answers that may overtake another.
    overtaken_max: u64,
    pub(super) live: bool,
    /// Answers may be late until then, and for the usual time after.
    pub(super) disturbed_until: Nanos,
    /// The target must terminate the connection for this reason.
    pub(super) must_end: Option<FatalError>,
    /// Since then it holds memory of the target, and moves nothing.
    pub(super) withheld_since: Option<Nanos>,
    /// Until then its host misuses it. It is of use again afterwards if the target had no reason to
    /// end it, since it refused the commands.
    pub(super) misused_until: Option<Nanos>,
}

/// What a connection's commands travel by.
pub(super) enum Line {
    Tcp(TcpLine),
    Rdma(Box<RdmaLine>),
}

/// What is left of a connection whose host vanished.
pub enum Vanished {
    /// A stream that leads nowhere.
    Tcp(Wire),
    /// A queue pair that nobody answers.
    Rdma(Box<super::rdma::Ends>),
}

impl Vanished {
    /// The network notices: both ends are told.
    pub fn end(self) {
        match self {
            Self::Tcp(wire) => wire.cut(),
            Self::Rdma(ends) => ends.cut(),
        }
    }
}

/// A host's end of a connection.
pub(super) struct Connection {
    pub(super) queue: Queue,
    line: Line,
    pub(super) opened_at: Nanos,
    /// The target has a reason to close it.
    pub(super) excused: bool,
    /// Nothing more is to be sent on it.
    pub(super) closing: bool,
}

impl Connection {
    /// A queue over a line that was just opened.
    pub(super) fn new(line: Line, shape: ConnectionShape, random: Random, now: Nanos) -> Self {
        Self {
            line,
            opened_at: now,
            queue: Queue {
                shape,
                random,
                outstanding: BTreeMap::new(),
                twins: BTreeMap::new(),
                half_answered: BTreeMap::new(),
                next_cid: 0,
                sent: 0,
                taken: 0,
                answered: 0,
                overtaken_max: 0,
                live: false,
                disturbed_until: Nanos::ZERO,
                must_end: None,
                withheld_since: None,
                misused_until: None,
            },
            excused: false,
            closing: false,
        }
    }

    pub(super) fn qid(&self) -> u16 {
        self.queue.shape.qid
    }

    /// Commands that can be sent now: a queue holds one less than its entries.
    pub(super) fn room(&self) -> usize {
        let queue = &self.queue;
        let room = usize::from(queue.shape.depth - 1).saturating_sub(queue.occupied());
        match &self.line {
            Line::Tcp(_) => room,
            Line::Rdma(line) => room.min(line.room()),
        }
    }

    pub(super) fn outstanding(&self) -> impl Iterator<Item = (u16, &Outstanding)> {
        let all = self.queue.outstanding.iter().chain(&self.queue.twins);
        all.map(|(cid, it)| (*cid, it))
    }

    pub(super) fn outstanding_mut(&mut self) -> impl Iterator<Item = &mut Outstanding> {
        let queue = &mut self.queue;
        queue
            .outstanding
            .values_mut()
            .chain(queue.twins.values_mut())
    }

    pub(super) fn take_outstanding(&mut self) -> impl Iterator<Item = Outstanding> + use<> {
        let first = std::mem::take(&mut self.queue.outstanding).into_values();
        first.chain(std::mem::take(&mut self.queue.twins).into_values())
    }

    /// Sends a command; its data goes in the capsule at times, where it fits. Returns its
    /// identifier.
    pub(super) fn submit(&mut self, sending: Sending, now: Nanos) -> u16 {
        let in_capsule = self.queue.random.coin();
        self.submit_so(sending, now, in_capsule, None)
    }

    /// Sends a command with the identifier of one that is outstanding.
    pub(super) fn submit_twin(&mut self, sending: Sending, now: Nanos, cid: u16) {
        let in_capsule = self.queue.random.coin();
        self.submit_so(sending, now, in_capsule, Some(cid));
    }

    /// Sends a command whose data the target has to ask for.
    pub(super) fn submit_solicited(&mut self, sending: Sending, now: Nanos) -> u16 {
        self.submit_so(sending, now, false, None)
    }

    /// Sends a Connect, whose data must be in the capsule over TCP (TCP 1.1 §3.3.1.1).
    pub(super) fn submit_connect(&mut self, sqe: Sqe, data: Vec<u8>, now: Nanos) {
        let sending = Sending {
            transfer: Transfer::Out(data),
            ..Sending::plain(sqe, Command::Connect)
        };
        self.submit_so(sending, now, true, None);
    }

    fn submit_so(
        &mut self,
        sending: Sending,
        now: Nanos,
        in_capsule: bool,
        twin: Option<u16>,
    ) -> u16 {
        let Sending {
            sqe,
            command,
            transfer,
            damage,
        } = sending;
        let cid = twin.unwrap_or_else(|| self.queue.free_cid());
        let inside = match &transfer {
            Transfer::Out(data) => in_capsule && data.len() <= self.in_capsule_max(),
            Transfer::None | Transfer::In(_) | Transfer::Raw(_) => false,
        };
        let mut outstanding = Outstanding {
            command,
            issued_at: now,
            place: self.queue.sent,
            out: Vec::new(),
            moves: match &transfer {
                Transfer::None => 0,
                Transfer::In(bytes) => *bytes,
                Transfer::Out(data) => data.len(),
                // Its data pointer may say anything.
                Transfer::Raw(_) => self.queue.shape.transfer_max,
            },
            asked: 0,
            damage,
            expected: match transfer {
                Transfer::In(bytes) => bytes,
                Transfer::None | Transfer::Out(_) | Transfer::Raw(_) => 0,
            },
            data: Vec::new(),
            complete: false,
            waiting: 0,
        };
        let (queue, sqe, data) = (&mut self.queue, sqe.with_cid(cid), (transfer, inside));
        match &mut self.line {
            Line::Tcp(line) => line.send(queue, sqe, data, &mut outstanding),
            Line::Rdma(line) => line.send(queue, sqe, data, damage),
        }
        queue.sent += 1;
        let commands = match twin {
            Some(_) => &mut queue.twins,
            None => &mut queue.outstanding,
        };
        commands.insert(cid, outstanding);
        cid
    }

    /// Data that a capsule of this queue may carry: over TCP fabrics commands always carry theirs,
    /// over RDMA only what the receives were made for.
    pub(super) fn in_capsule_max(&self) -> usize {
        let shape = self.queue.shape;
        match &self.line {
            Line::Tcp(_) if shape.qid == 0 || !self.queue.live => {
                ADMIN_IN_CAPSULE_DATA_BYTES as usize
            }
            Line::Rdma(_) if shape.qid == 0 || !self.queue.live => 0,
            Line::Tcp(_) | Line::Rdma(_) => shape.in_capsule_bytes,
        }
    }

    /// Answers to what is given up may be overtaken by others made after them: SQHD is the head's
    /// value when an answer was made (Base 2.1 §4.2.1).
    pub(super) fn answers_may_overtake(&mut self) {
        self.may_be_overtaken_by(OVERTAKEN_MAX);
    }

    /// The same by so many.
    pub(super) fn may_be_overtaken_by(&mut self, answers: u64) {
        let queue = &mut self.queue;
        queue.overtaken_max = queue.overtaken_max.max(answers);
    }

    /// Picks an I/O command that is not answered, and notes that it may be aborted now.
    pub(super) fn abort_any(&mut self) -> Option<(u16, CommandKey)> {
        let (qid, opened_at) = (self.qid(), self.opened_at);
        let queue = &mut self.queue;
        let waiting = queue.outstanding.len() as u64;
        let chosen = queue.random.below(waiting.max(1)) as usize;
        let (cid, outstanding) = queue.outstanding.iter_mut().nth(chosen)?;
        if queue.twins.contains_key(cid) {
            return None;
        }
        queue.overtaken_max = OVERTAKEN_MAX;
        if let Command::Io(io) = &mut outstanding.command {
            io.aborted = true;
        }
        Some((*cid, (qid, opened_at, outstanding.place)))
    }

    /// Every I/O command that is not answered, each of which may be aborted now.
    pub(super) fn abort_all(&mut self) -> impl Iterator<Item = (u16, CommandKey)> {
        self.queue.overtaken_max = OVERTAKEN_MAX;
        let (qid, opened_at) = (self.qid(), self.opened_at);
        let twins = &self.queue.twins;
        let alone = self.queue.outstanding.iter_mut();
        alone
            .filter(|(cid, _)| !twins.contains_key(cid))
            .filter_map(move |(cid, it)| {
                let key = (qid, opened_at, it.place);
                match &mut it.command {
                    Command::Io(io) => {
                        io.aborted = true;
                        Some((*cid, key))
                    }
                    _ => None,
                }
            })
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
        let polled = match &mut self.line {
            Line::Tcp(line) => line.poll(&mut self.queue, now, incoming),
            Line::Rdma(line) => line.poll(&mut self.queue, now, incoming),
        };
        if self.queue.must_end.is_some() {
            self.excused = true;
            self.closing = true;
        }
        polled
    }

    /// When it wants a turn although nothing else happens.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        match &self.line {
            Line::Tcp(line) => {
                let dues = [line.wire.next_due(), line.next_send()];
                dues.into_iter().flatten().min()
            }
            // The fabric as a whole says when something arrives.
            Line::Rdma(line) => line.next_due(),
        }
    }

    /// Whether something has arrived for the target on this connection that it has not taken.
    pub(super) fn waits_for_target(&self) -> bool {
        match &self.line {
            Line::Tcp(line) => line.wire.waits_for_target(),
            Line::Rdma(_) => false,
        }
    }

    /// Closes this end in order.
    pub(super) fn finish(&mut self) {
        match &mut self.line {
            Line::Tcp(line) => line.wire.finish(),
            Line::Rdma(line) => line.finish(),
        }
    }

    /// Breaks the connection for both ends.
    pub(super) fn cut(&mut self) {
        match &mut self.line {
            Line::Tcp(line) => line.wire.cut(),
            Line::Rdma(line) => line.cut(),
        }
    }

    /// Nothing moves in one direction before `until`.
    pub(super) fn stall(&mut self, to_target: bool, until: Nanos) {
        match &mut self.line {
            Line::Tcp(line) => line.wire.stall(to_target, until),
            Line::Rdma(line) => line.stall(to_target, until),
        }
    }

    /// The host is gone without a word; what is left of the connection, if anything.
    pub(super) fn vanish(&mut self) -> Option<Vanished> {
        match &mut self.line {
            Line::Tcp(line) => {
                line.wire.vanish();
                Some(Vanished::Tcp(line.wire.clone()))
            }
            Line::Rdma(line) => line.vanish().map(Vanished::Rdma),
        }
    }

    /// Sends what is no command.
    pub(super) fn send_garbage(&mut self, kind: u8, word: u64) {
        match &mut self.line {
            Line::Tcp(line) => line.send_garbage(kind, word),
            Line::Rdma(line) => line.send_garbage(kind, word),
        }
    }

    /// Its line, where that is RDMA.
    pub(super) fn rdma(&mut self) -> Option<&mut RdmaLine> {
        match &mut self.line {
            Line::Tcp(_) => None,
            Line::Rdma(line) => Some(line),
        }
    }

    /// What the target may hold for it, where it is a stream.
    pub(super) fn memory_bound(&self) -> Option<(WireId, MemoryBound)> {
        let queue = &self.queue;
        let bound = MemoryBound {
            entries: if queue.sent > 0 { queue.shape.depth } else { 0 },
            data_bytes: self.outstanding().map(|(_, it)| it.moves).sum(),
        };
        match &self.line {
            Line::Tcp(line) => Some((line.wire.id(), bound)),
            Line::Rdma(_) => None,
        }
    }

    /// How it stands, for messages.
    pub(super) fn state(&self) -> String {
        match &self.line {
            Line::Tcp(line) => line.wire.state(),
            Line::Rdma(line) => line.state(),
        }
    }
}

impl Queue {
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

    /// Entries that are not free for a new command: with flow control, SQHD alone frees them (Base
    /// 2.1 §4.2.1), without it, answers do.
    fn occupied(&self) -> usize {
        let outstanding = self.outstanding.len() + self.twins.len();
        // SQHD of answers that overtake each other goes back and forth.
        if self.shape.flow_control && self.live && self.overtaken_max == 0 {
            outstanding.max((self.sent - self.taken) as usize)
        } else {
            outstanding
        }
    }

    /// A command was answered.
    pub(super) fn response(
        &mut self,
        cqe: Cqe,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        let which = match self.told(&cqe) {
            Told::Alone => Which::First,
            Told::Of(which) => which,
            Told::Either => {
                self.count_answer(&cqe)?;
                for (outstanding, cqe) in self.pair_answered(cqe)?.into_iter().flatten() {
                    self.check_answer(&outstanding, &cqe)?;
                    incoming.push(Incoming::Answered { outstanding, cqe });
                }
                return Ok(());
            }
        };
        let cid = cqe.cid.get();
        let Some(mut outstanding) = self.take_command(cid, which) else {
            return Err(format!("an answer to command {cid}, which waits for none"));
        };
        if matches!(outstanding.command, Command::EventRequest) {
            outstanding.waiting = self.event_requests_before(outstanding.place);
        }
        self.check_answer(&outstanding, &cqe)?;
        self.count_answer(&cqe)?;
        incoming.push(Incoming::Answered { outstanding, cqe });
        self.half_known(cid, incoming)
    }

    /// Holds an answer against what moved with its command.
    pub(super) fn check_answer(&self, outstanding: &Outstanding, cqe: &Cqe) -> Result<(), String> {
        let (cid, success) = (cqe.cid.get(), cqe.status().is_success());
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
        Ok(())
    }

    fn count_answer(&mut self, cqe: &Cqe) -> Result<(), String> {
        self.answered += 1;
        // A Connect that is refused makes no queue, so there is no head.
        if cqe.status().is_success() || self.live {
            self.check_head(cqe)?;
        }
        Ok(())
    }

    /// SQHD counts what the target has taken from the queue (Base 2.1 §4.2.1): at least what it
    /// answered, at most what was sent.
    fn check_head(&mut self, cqe: &Cqe) -> Result<(), String> {
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
        self.taken = self.taken.max(made + beyond);
        Ok(())
    }
}
