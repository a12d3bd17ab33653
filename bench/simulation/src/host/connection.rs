//! The host's end of one connection over TCP or RDMA: one queue with strict checks.
//!
//! Every completion is compared with the command to which it refers.

use std::collections::BTreeMap;

use nvme_spec::command::IoOpcode;
use nvme_spec::tcp::{ADMIN_IN_CAPSULE_DATA_BYTES, FatalError, Framing};
use nvme_spec::{Cqe, Sqe};
use reactors::Nanos;

use super::admin::CommandKey;
use super::authenticating::Standing;
use super::rdma::RdmaTransportEnd;
use super::tcp::TcpTransportEnd;
use super::twins::{CompletionOwner, Which};
use super::wrong_data::WrongData;
use super::{Command, IoKind};
use crate::fairness::Granted;
use crate::memory::{MemoryBound, QueuePairBound};
use crate::network::{HostEnd, Wire, WireId};
use crate::random::Random;

/// The data transfer of a command.
#[derive(Clone, Debug)]
pub(super) enum Transfer {
    None,
    /// This number of bytes to the host.
    In(usize),
    /// These bytes from the host.
    Out(Vec<u8>),
    /// None. The command is sent unchanged, with its own data pointer and these bytes in its
    /// capsule.
    Raw(Vec<u8>),
}

/// The damage to a command or its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    None,
    /// A bit of the data flips on the wire, after the digest was calculated.
    Data,
    /// A bit of the header flips on the wire.
    Header,
    /// The key is invalid, or its memory is shorter than the data.
    Key,
    /// An H2CData PDU breaks a rule (TCP only).
    HostData(WrongData),
    /// The requested data is never sent (TCP only).
    Withheld,
}

/// A command to send.
pub(super) struct Sending {
    pub(super) sqe: Sqe,
    pub(super) command: Command,
    pub(super) transfer: Transfer,
    pub(super) damage: Damage,
}

impl Sending {
    /// A command without data or damage.
    pub(super) fn plain(sqe: Sqe, command: Command) -> Self {
        Self {
            sqe,
            command,
            transfer: Transfer::None,
            damage: Damage::None,
        }
    }
}

/// An outstanding command.
pub(super) struct Outstanding {
    pub(super) command: Command,
    pub(super) issued_at: Nanos,
    /// When the last of its data was sent, as far as the host knows.
    pub(super) data_sent_at: Nanos,
    /// Its position in its queue, counted from the first command.
    pub(super) position: u64,
    /// Data that the target requests, if the transport does so.
    pub(super) out: Vec<u8>,
    /// Number of data bytes that it transfers in either direction.
    pub(super) transfer_bytes: usize,
    /// Whether the target has to request its data, and has not done so.
    pub(super) awaits_memory: bool,
    /// Number of bytes of `out` that the target has requested.
    pub(super) requested_bytes: usize,
    pub(super) damage: Damage,
    pub(super) expected: usize,
    pub(super) data: Vec<u8>,
    /// Whether the last data PDU was received.
    pub(super) complete: bool,
    /// Of an event request: the number of earlier ones that were outstanding at its completion.
    pub(super) waiting: usize,
}

impl Outstanding {
    /// Whether it waits for memory for more than the data that the target requests.
    pub(super) fn is_copy(&self) -> bool {
        match &self.command {
            Command::Io(io) => io.kind == IoKind::Copy,
            // It is refused after its list has arrived.
            Command::Invalid(refusal) => refusal.opcode == IoOpcode::COPY.0,
            _ => false,
        }
    }
}

/// A received message or event.
#[expect(
    clippy::large_enum_variant,
    reason = "few exist at a time, and they are taken apart where they are taken"
)]
pub(super) enum Incoming {
    Initialised,
    Completed {
        outstanding: Outstanding,
        cqe: Cqe,
    },
    /// The target terminates the connection because of data from this host.
    Terminated(u16),
    /// The connection has ended.
    Ended(HostEnd),
}

/// The parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionShape {
    pub(super) qid: u16,
    pub(super) depth: u16,
    pub(super) framing: Framing,
    pub(super) flow_control: bool,
    pub(super) in_capsule_bytes: usize,
    /// Maximum data of a command in bytes.
    pub(super) transfer_max: usize,
    /// Maximum delay of requested data, and of reposted receives for responses.
    pub(super) write_delay_max: Nanos,
    /// Whether rate limits may delay its commands.
    pub(super) is_limited: bool,
}

/// A queue, independent of its transport.
pub(super) struct Queue {
    pub(super) shape: ConnectionShape,
    pub(super) random: Random,
    pub(super) outstanding: BTreeMap<u16, Outstanding>,
    /// Commands whose identifier was in use when they were sent.
    pub(super) twins: BTreeMap<u16, Outstanding>,
    /// Completions with such an identifier that may belong to either command.
    pub(super) ambiguous_completions: BTreeMap<u16, Cqe>,
    next_cid: u16,
    sent: u64,
    /// Number of commands that SQHD has reported as taken from the queue.
    taken: u64,
    pub(super) completed_count: u64,
    pub(super) live: bool,
    /// Until when completions may be late; the usual latency follows.
    pub(super) disturbed_until: Nanos,
    /// The error for which the target must terminate the connection.
    pub(super) must_end: Option<FatalError>,
    /// The data that the target requested in the last poll.
    pub(super) granted: Vec<Granted>,
    /// Since when it holds memory of the target without progress.
    pub(super) withheld_since: Option<Nanos>,
    /// Until when its host misuses it. It is usable again afterwards if the target refused the
    /// commands and so had no reason to end it.
    pub(super) misused_until: Option<Nanos>,
}

/// The transport of a connection.
pub(super) enum ConnectionTransport {
    Tcp(TcpTransportEnd),
    Rdma(Box<RdmaTransportEnd>),
}

/// The remains of a connection whose host vanished.
pub enum Vanished {
    /// A stream without a receiver.
    Tcp(Wire),
    /// A queue pair without a peer.
    Rdma(Box<super::rdma::Ends>),
}

impl Vanished {
    /// Ends the connection for both sides, as if the network detected the loss.
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
    transport: ConnectionTransport,
    pub(super) opened_at: Nanos,
    /// The target has a reason to close it.
    pub(super) excused: bool,
    /// Nothing more may be sent on it.
    pub(super) closing: bool,
    /// How far its host is authenticated.
    pub(super) standing: Standing,
    /// Whether its host has been authenticated.
    pub(super) is_authenticated: bool,
}

impl Connection {
    /// A queue on a new transport connection.
    pub(super) fn new(
        transport: ConnectionTransport,
        shape: ConnectionShape,
        random: Random,
        now: Nanos,
    ) -> Self {
        Self {
            transport,
            opened_at: now,
            queue: Queue {
                shape,
                random,
                outstanding: BTreeMap::new(),
                twins: BTreeMap::new(),
                ambiguous_completions: BTreeMap::new(),
                next_cid: 0,
                sent: 0,
                taken: 0,
                completed_count: 0,
                live: false,
                disturbed_until: Nanos::ZERO,
                must_end: None,
                granted: Vec::new(),
                withheld_since: None,
                misused_until: None,
            },
            excused: false,
            closing: false,
            standing: Standing::Open,
            is_authenticated: false,
        }
    }

    pub(super) fn qid(&self) -> u16 {
        self.queue.shape.qid
    }

    /// Number of commands that can be sent now: a queue holds one less than its entries.
    pub(super) fn room(&self) -> usize {
        let queue = &self.queue;
        let room = usize::from(queue.shape.depth - 1).saturating_sub(queue.occupied());
        match &self.transport {
            ConnectionTransport::Tcp(_) => room,
            ConnectionTransport::Rdma(transport) => room.min(transport.room()),
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

    /// Sends a command, sometimes with in-capsule data if it fits. Returns its identifier.
    pub(super) fn submit(&mut self, sending: Sending, now: Nanos) -> u16 {
        let in_capsule = self.queue.random.coin();
        self.submit_so(sending, now, in_capsule, None)
    }

    /// Sends a command with the identifier of an outstanding command.
    pub(super) fn submit_twin(&mut self, sending: Sending, now: Nanos, cid: u16) {
        let in_capsule = self.queue.random.coin();
        self.submit_so(sending, now, in_capsule, Some(cid));
    }

    /// Sends a command whose data the target has to request.
    pub(super) fn submit_solicited(&mut self, sending: Sending, now: Nanos) -> u16 {
        self.submit_so(sending, now, false, None)
    }

    /// Sends a Connect, whose data must be in the capsule over TCP (TCP 1.1 §3.3.1).
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
            data_sent_at: now,
            position: self.queue.sent,
            out: Vec::new(),
            transfer_bytes: match &transfer {
                Transfer::None => 0,
                Transfer::In(bytes) => *bytes,
                Transfer::Out(data) => data.len(),
                // The data pointer may describe any length.
                Transfer::Raw(_) => self.queue.shape.transfer_max,
            },
            awaits_memory: matches!(&transfer, Transfer::Out(_)) && !inside,
            requested_bytes: 0,
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
        match &mut self.transport {
            ConnectionTransport::Tcp(transport) => {
                transport.send(queue, sqe, data, &mut outstanding);
            }
            ConnectionTransport::Rdma(transport) => transport.send(queue, sqe, data, damage),
        }
        queue.sent += 1;
        let commands = match twin {
            Some(_) => &mut queue.twins,
            None => &mut queue.outstanding,
        };
        commands.insert(cid, outstanding);
        cid
    }

    /// Maximum in-capsule data of this queue: over TCP, fabrics commands always carry their data;
    /// over RDMA, the size of the receives limits it.
    pub(super) fn in_capsule_max(&self) -> usize {
        let shape = self.queue.shape;
        match &self.transport {
            ConnectionTransport::Tcp(_) if shape.qid == 0 || !self.queue.live => {
                ADMIN_IN_CAPSULE_DATA_BYTES as usize
            }
            ConnectionTransport::Rdma(_) if shape.qid == 0 || !self.queue.live => 0,
            ConnectionTransport::Tcp(_) | ConnectionTransport::Rdma(_) => shape.in_capsule_bytes,
        }
    }

    /// Picks an outstanding I/O command, and notes that it may be aborted.
    pub(super) fn abort_any(&mut self) -> Option<(u16, CommandKey)> {
        let (qid, opened_at) = (self.qid(), self.opened_at);
        let queue = &mut self.queue;
        let waiting = queue.outstanding.len() as u64;
        let chosen = queue.random.below(waiting.max(1)) as usize;
        let (cid, outstanding) = queue.outstanding.iter_mut().nth(chosen)?;
        if queue.twins.contains_key(cid) {
            return None;
        }
        if let Command::Io(io) = &mut outstanding.command {
            io.aborted = true;
        }
        Some((*cid, (qid, opened_at, outstanding.position)))
    }

    /// Returns every outstanding I/O command, and notes that it may be aborted.
    pub(super) fn abort_all(&mut self) -> impl Iterator<Item = (u16, CommandKey)> {
        let (qid, opened_at) = (self.qid(), self.opened_at);
        let twins = &self.queue.twins;
        let alone = self.queue.outstanding.iter_mut();
        alone
            .filter(|(cid, _)| !twins.contains_key(cid))
            .filter_map(move |(cid, it)| {
                let key = (qid, opened_at, it.position);
                match &mut it.command {
                    Command::Io(io) => {
                        io.aborted = true;
                        Some((*cid, key))
                    }
                    _ => None,
                }
            })
    }

    /// Receives and processes everything that has arrived. Returns whether there was anything.
    ///
    /// # Errors
    /// A violation by the target.
    pub(super) fn poll(
        &mut self,
        now: Nanos,
        incoming: &mut Vec<Incoming>,
    ) -> Result<bool, String> {
        self.queue.granted.clear();
        let polled = match &mut self.transport {
            ConnectionTransport::Tcp(transport) => transport.poll(&mut self.queue, now, incoming),
            ConnectionTransport::Rdma(transport) => transport.poll(&mut self.queue, now, incoming),
        };
        if self.queue.must_end.is_some() {
            self.excused = true;
            self.closing = true;
        }
        polled
    }

    /// The next time at which it acts on its own.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        match &self.transport {
            ConnectionTransport::Tcp(transport) => {
                let dues = [transport.wire.next_due(), transport.next_send()];
                dues.into_iter().flatten().min()
            }
            // The fabric as a whole reports the time of the next arrival.
            ConnectionTransport::Rdma(transport) => transport.next_due(),
        }
    }

    /// Whether unprocessed data has arrived at the target on this connection.
    pub(super) fn waits_for_target(&self) -> bool {
        match &self.transport {
            ConnectionTransport::Tcp(transport) => transport.wire.waits_for_target(),
            ConnectionTransport::Rdma(_) => false,
        }
    }

    /// Closes this end in order.
    pub(super) fn finish(&mut self) {
        match &mut self.transport {
            ConnectionTransport::Tcp(transport) => transport.wire.finish(),
            ConnectionTransport::Rdma(transport) => transport.finish(),
        }
    }

    /// Breaks the connection for both ends.
    pub(super) fn cut(&mut self) {
        match &mut self.transport {
            ConnectionTransport::Tcp(transport) => transport.wire.cut(),
            ConnectionTransport::Rdma(transport) => transport.cut(),
        }
    }

    /// Delays everything in one direction until `until`.
    pub(super) fn stall(&mut self, to_target: bool, until: Nanos) {
        match &mut self.transport {
            ConnectionTransport::Tcp(transport) => transport.wire.stall(to_target, until),
            ConnectionTransport::Rdma(transport) => transport.stall(to_target, until),
        }
    }

    /// Lets the host vanish silently. Returns the remains of the connection, if any.
    pub(super) fn vanish(&mut self) -> Option<Vanished> {
        match &mut self.transport {
            ConnectionTransport::Tcp(transport) => {
                transport.wire.vanish();
                Some(Vanished::Tcp(transport.wire.clone()))
            }
            ConnectionTransport::Rdma(transport) => transport.vanish().map(Vanished::Rdma),
        }
    }

    /// Sends bytes that are not a valid command.
    pub(super) fn send_garbage(&mut self, kind: u8, word: u64) {
        match &mut self.transport {
            ConnectionTransport::Tcp(transport) => transport.send_garbage(kind, word),
            ConnectionTransport::Rdma(transport) => transport.send_garbage(kind, word),
        }
    }

    /// Its RDMA transport, if it has one.
    pub(super) fn rdma(&mut self) -> Option<&mut RdmaTransportEnd> {
        match &mut self.transport {
            ConnectionTransport::Tcp(_) => None,
            ConnectionTransport::Rdma(transport) => Some(transport),
        }
    }

    /// Its memory bound, if it is a stream.
    pub(super) fn memory_bound(&self) -> Option<(WireId, MemoryBound)> {
        let queue = &self.queue;
        let bound = MemoryBound {
            entries: if queue.sent > 0 { queue.shape.depth } else { 0 },
            data_bytes: self.outstanding().map(|(_, it)| it.transfer_bytes).sum(),
        };
        match &self.transport {
            ConnectionTransport::Tcp(transport) => Some((transport.wire.id(), bound)),
            ConnectionTransport::Rdma(_) => None,
        }
    }

    /// Its memory bound, if it is an RDMA connection that the target has.
    pub(super) fn queue_pair_bound(&self) -> Option<QueuePairBound> {
        let ConnectionTransport::Rdma(transport) = &self.transport else {
            return None;
        };
        let queue = &self.queue;
        let (number, posted) = transport.of_target()?;
        Some(QueuePairBound {
            number,
            entries: queue.shape.depth,
            is_connected: queue.sent > 0,
            is_live: queue.live,
            data_bytes: self.outstanding().map(|(_, it)| it.transfer_bytes).sum(),
            posted,
        })
    }

    /// Its state, for messages.
    pub(super) fn state(&self) -> String {
        match &self.transport {
            ConnectionTransport::Tcp(transport) => transport.wire.state(),
            ConnectionTransport::Rdma(transport) => transport.state(),
        }
    }
}

impl Queue {
    /// Notes that the target requests a command's data, so that it has memory for it.
    /// `is_read`: by an RDMA read.
    pub(super) fn memory_granted(&mut self, cid: u16, which: Which, is_read: bool) {
        let Some(outstanding) = self.command_mut(cid, which) else {
            return;
        };
        let was_waiting = std::mem::take(&mut outstanding.awaits_memory);
        if let Command::Io(io) = &outstanding.command
            && was_waiting
        {
            let granted = Granted {
                bytes: outstanding.transfer_bytes,
                disk: io.extents[0].disk,
                sent_at: is_read.then_some(outstanding.issued_at),
            };
            self.granted.push(granted);
        }
    }

    /// Picks an unused identifier. Identifiers have no particular order and are reused soon.
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

    /// Number of occupied entries: with flow control, only SQHD frees entries (Base 2.1 §4.2.1);
    /// without it, completions do.
    fn occupied(&self) -> usize {
        let outstanding = self.outstanding.len() + self.twins.len();
        if self.shape.flow_control && self.live {
            outstanding.max((self.sent - self.taken) as usize)
        } else {
            outstanding
        }
    }

    /// Handles the completion of a command.
    pub(super) fn response(
        &mut self,
        cqe: Cqe,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        let which = match self.owner_of(&cqe) {
            CompletionOwner::Alone => Which::First,
            CompletionOwner::Of(which) => which,
            CompletionOwner::Either => {
                self.count_completion(&cqe)?;
                for (outstanding, cqe) in self.second_completion(cqe)?.into_iter().flatten() {
                    self.check_completion(&outstanding, &cqe)?;
                    incoming.push(Incoming::Completed { outstanding, cqe });
                }
                return Ok(());
            }
        };
        let cid = cqe.cid.get();
        let Some(mut outstanding) = self.take_command(cid, which) else {
            return Err(format!(
                "a completion for command {cid}, which is not outstanding"
            ));
        };
        if matches!(outstanding.command, Command::EventRequest) {
            outstanding.waiting = self.event_requests_before(outstanding.position);
        }
        self.check_completion(&outstanding, &cqe)?;
        self.count_completion(&cqe)?;
        incoming.push(Incoming::Completed { outstanding, cqe });
        self.resolve_pair(cid, incoming)
    }

    /// Compares a completion with the data transfer of its command.
    pub(super) fn check_completion(
        &self,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), String> {
        let (cid, success) = (cqe.cid.get(), cqe.status().is_success());
        // The target may ignore a deallocation, including its ranges.
        let takes_data = match &outstanding.command {
            Command::Io(io) => matches!(io.kind, IoKind::Write | IoKind::Compare | IoKind::Copy),
            _ => false,
        };
        if success && takes_data && outstanding.requested_bytes < outstanding.out.len() {
            return Err(format!(
                "command {cid} succeeded before its data was requested"
            ));
        }
        let admin = self.shape.qid == 0;
        let missing = outstanding.data.len() < outstanding.expected;
        if success && !admin && missing {
            return Err(format!("command {cid} succeeded without all of its data"));
        }
        Ok(())
    }

    fn count_completion(&mut self, cqe: &Cqe) -> Result<(), String> {
        self.completed_count += 1;
        // A refused Connect creates no queue, so there is no head.
        if cqe.status().is_success() || self.live {
            self.check_head(cqe)?;
        }
        Ok(())
    }

    /// Checks SQHD, the number of entries that the target has taken from the queue (Base 2.1
    /// §4.2.1): at least the completed commands, at most the sent ones.
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
        let made = self.completed_count;
        if head >= depth {
            return Err(format!("SQHD {head} in a queue of {depth} entries"));
        }
        let beyond = (head + depth - made % depth) % depth;
        if beyond > self.sent - made {
            return Err(format!(
                "SQHD {head} after {made} completions of {} commands, depth {depth}",
                self.sent
            ));
        }
        self.taken = self.taken.max(made + beyond);
        Ok(())
    }
}
