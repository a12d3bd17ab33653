//! A client with connections that end: it sends requests in slots, repeats them over any connection
//! until they are answered, and sometimes also afterwards. It checks that a repetition is answered
//! as the first request was, or is refused.

use std::collections::BTreeMap;
use std::net::IpAddr;

use files_client::{Client, ClientOptions, ReplyStream};
use files_spec::Status;
use files_spec::operations::{Operation, OperationResult};
use files_spec::rpc::MARK_BYTES;
use reactors::Nanos;

use super::rdma::{Arrived, Machine, RdmaEnd};
use crate::network::{HostEnd, Listener, NetworkBehaviour, Wire};
use crate::random::Random;

/// The number of an operation of the workload.
pub(super) type OperationId = u64;

/// Slots of a session.
const SLOTS: u32 = 4;
/// The longest request and reply in bytes.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// Connections of a client.
const CONNECTIONS_MAX: usize = 2;
/// Pause before a request is repeated that is being executed.
const REPEAT_AFTER: Nanos = Nanos::from_millis(1);
/// Pause before a lost connection is replaced.
const RECONNECT_AFTER_MAX: Nanos = Nanos::from_millis(4);

/// How often a client repeats requests, per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repetitions {
    /// Requests that are sent twice at once.
    pub twice_permille: u32,
    /// Requests that are repeated when they are answered.
    pub late_permille: u32,
}

/// A reply, decoded as far as possible.
pub(super) struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    /// The results of its operations, without that of SEQUENCE.
    ///
    /// # Errors
    /// It is malformed.
    pub(super) fn results(&self) -> Result<(Status, Vec<OperationResult<'_>>), String> {
        let (status, mut results) = decode(&self.bytes)?;
        if !results.is_empty() {
            results.remove(0);
        }
        Ok((status, results))
    }
}

/// What a client has learned.
pub(super) enum Event {
    /// An operation is answered.
    Answered(OperationId, Answer),
    /// An operation was executed, and its reply is lost.
    ReplyLost(OperationId),
    /// The server does not know the session. These operations were executed or not.
    SessionLost(Vec<OperationId>),
    /// There is a session.
    Established,
}

/// A request of which an answer can come.
struct Sent {
    slot: u32,
    message: Vec<u8>,
    /// Whether the client wants its reply to be kept.
    is_kept: bool,
    /// When it was sent last, if it has renewed no lease yet.
    at: Option<Nanos>,
    /// The copies of it that were sent and not answered yet: the number of a connection over TCP, and
    /// a number of its own over RDMA.
    copies: Vec<u64>,
    answer: Option<Vec<u8>>,
    /// It is repeated once more when it is answered.
    repeats_late: bool,
    /// Its slot is not used before every copy is answered.
    holds_slot: bool,
}

struct Connection {
    number: u64,
    link: Link,
}

/// The transport of a connection.
enum Link {
    Tcp {
        wire: Wire,
        stream: Box<ReplyStream>,
    },
    Rdma(Box<RdmaEnd>),
}

impl Link {
    /// Sends a request with its mark. Returns the number of this copy, which is that of the connection
    /// or `next`.
    fn send(&mut self, message: &[u8], number: u64, next: &mut u64) -> u64 {
        match self {
            Self::Tcp { wire, .. } => {
                wire.send(message);
                number
            }
            Self::Rdma(end) => {
                *next += 1;
                end.send(*next, &message[MARK_BYTES..]);
                *next
            }
        }
    }

    fn cut(&mut self) {
        match self {
            Self::Tcp { wire, .. } => wire.cut(),
            Self::Rdma(end) => end.cut(),
        }
    }
}

/// A client's access to RDMA.
pub(super) struct OverRdma {
    pub(super) machine: Machine,
    /// How many of its connections are over RDMA, per thousand.
    pub(super) permille: u32,
    pub(super) random: Random,
}

/// Counters of the connections of a client over RDMA.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RdmaFigures {
    /// Connections that were established.
    pub(super) connections: u64,
    /// Replies that have arrived.
    pub(super) replies: u64,
    /// Calls that the server has refused because of their chunks.
    pub(super) refused: u64,
    /// Keys that the server has invalidated.
    pub(super) invalidations: u64,
    /// Messages that violate the protocol, or an agreement.
    pub(super) violations: u64,
}

/// A client.
pub(super) struct FileClient {
    client: Client,
    verifier: [u8; 8],
    address: IpAddr,
    network: NetworkBehaviour,
    random: Random,
    repetitions: Repetitions,
    connections: Vec<Connection>,
    next_connection: u64,
    over_rdma: Option<OverRdma>,
    /// The server has accepted no connection over RDMA, so that the next one is over TCP.
    falls_back: bool,
    /// Connections over RDMA whose end the server does not notice.
    ghosts: Vec<RdmaEnd>,
    pub(super) of_rdma: RdmaFigures,
    /// It opens no connection before.
    absent_until: Nanos,
    /// By identifier.
    sent: BTreeMap<u32, Sent>,
    /// Slots with requests that the server executes, and when they are repeated.
    delayed: Vec<(Nanos, u32)>,
    /// When a request was last sent, and the time of the latest sent one that was answered.
    pub(super) sent_at: Nanos,
    pub(super) renewed_at: Nanos,
    /// Repetitions that were answered.
    pub(super) repeated: u64,
}

fn decode(bytes: &[u8]) -> Result<(Status, Vec<OperationResult<'_>>), String> {
    let answer = files_client::Answer::decode(bytes).map_err(|it| it.to_string())?;
    let status = answer.status;
    let results = answer.results().map_err(|it| it.to_string())?;
    Ok((status, results))
}

impl FileClient {
    /// A client without connections.
    #[must_use]
    pub(super) fn new(
        number: usize,
        address: IpAddr,
        network: NetworkBehaviour,
        repetitions: Repetitions,
        random: Random,
        over_rdma: Option<OverRdma>,
    ) -> Self {
        let verifier = [1; 8];
        let client = Client::new(ClientOptions {
            owner: format!("client {number}").into_bytes(),
            verifier,
            uid: 0,
            minor_version: 2,
            slots: SLOTS,
            message_bytes: MESSAGE_BYTES_MAX,
        });
        Self {
            client,
            verifier,
            address,
            network,
            random,
            repetitions,
            connections: Vec::new(),
            next_connection: 0,
            over_rdma,
            falls_back: false,
            ghosts: Vec::new(),
            of_rdma: RdmaFigures::default(),
            absent_until: Nanos::ZERO,
            sent: BTreeMap::new(),
            delayed: Vec::new(),
            sent_at: Nanos::ZERO,
            renewed_at: Nanos::ZERO,
            repeated: 0,
        }
    }

    /// The slots that can take a request.
    fn free_slots(&self) -> Vec<u32> {
        let is_held = |slot: u32| {
            let mut held = self.sent.values().filter(|it| it.holds_slot);
            held.any(|it| it.slot == slot)
        };
        let free = self.client.free_slots().iter().copied();
        let mut free: Vec<u32> = free.filter(|slot| !is_held(*slot)).collect();
        free.sort_unstable();
        free
    }

    /// Whether it can send a request.
    #[must_use]
    pub(super) fn is_free(&self) -> bool {
        !self.connections.is_empty() && !self.free_slots().is_empty()
    }

    /// Whether no request waits for an answer.
    #[must_use]
    pub(super) fn is_idle(&self) -> bool {
        self.client.waiting() == 0 && !self.sent.values().any(|it| it.holds_slot)
    }

    /// One of its connections stands still in one direction.
    pub(super) fn stall(&mut self, to_server: bool, until: Nanos) {
        match self.connections.first_mut().map(|it| &mut it.link) {
            Some(Link::Tcp { wire, .. }) => wire.stall(to_server, until),
            Some(Link::Rdma(end)) => end.stall(to_server, until),
            None => {}
        }
    }

    /// Disturbs a work request of one of its connections over RDMA.
    pub(super) fn disturb(&mut self, random: &mut Random, longest: Nanos) -> Option<()> {
        let mut ends = self.ends();
        ends.next()?.disturb(random, longest)
    }

    fn ends(&mut self) -> impl Iterator<Item = &mut RdmaEnd> {
        let links = self.connections.iter_mut().map(|it| &mut it.link);
        links.filter_map(|it| match it {
            Link::Rdma(end) => Some(&mut **end),
            Link::Tcp { .. } => None,
        })
    }

    /// Number of its connections over RDMA that the server may have.
    pub(super) fn connections_over_rdma(&mut self) -> usize {
        self.ends().count()
    }

    /// The server is killed, which ends all connections.
    pub(super) fn server_killed(&mut self) {
        self.ends()
            .for_each(|it| it.may_end("the server was killed"));
    }

    /// One of its connections breaks.
    pub(super) fn cut(&mut self) {
        if !self.connections.is_empty() {
            let index = self.random.below(self.connections.len() as u64) as usize;
            self.connections[index].link.cut();
        }
    }

    /// It loses its connections until then: in order, or without the server noticing.
    pub(super) fn leave(&mut self, until: Nanos, silently: bool, now: Nanos) {
        if silently {
            for connection in std::mem::take(&mut self.connections) {
                self.vanish(connection, now);
            }
        }
        for connection in &mut self.connections {
            connection.link.cut();
        }
        self.absent_until = until;
    }

    fn vanish(&mut self, connection: Connection, now: Nanos) {
        match connection.link {
            Link::Tcp { wire, .. } => {
                wire.vanish();
                self.lose_copies(connection.number);
            }
            Link::Rdma(mut end) => {
                for copy in end.unanswered() {
                    self.lose_copies(copy);
                }
                if end.vanish(now) {
                    self.ghosts.push(*end);
                }
            }
        }
    }

    /// Whether it has no connection by its own will.
    #[must_use]
    pub(super) fn is_absent(&self, now: Nanos) -> bool {
        now < self.absent_until
    }

    /// It starts again and knows nothing of its session. Returns the operations that it has
    /// forgotten.
    pub(super) fn restart(&mut self) -> Vec<OperationId> {
        self.verifier[0] = self.verifier[0].wrapping_add(1);
        for connection in &mut self.connections {
            connection.link.cut();
        }
        self.forget_session();
        self.client.restart(self.verifier)
    }

    fn forget_session(&mut self) {
        self.sent.clear();
        self.delayed.clear();
    }

    /// When it continues without an event of the network.
    #[must_use]
    pub(super) fn next_due(&self, now: Nanos) -> Option<Nanos> {
        let repeats = self.delayed.iter().map(|it| it.0);
        let returns = self.connections.is_empty().then_some(self.absent_until);
        let wires = self.connections.iter().filter_map(|it| match &it.link {
            Link::Tcp { wire, .. } => wire.next_due(),
            Link::Rdma(_) => None,
        });
        let due = repeats.chain(returns).chain(wires).min();
        due.map(|it| it.max(now + Nanos(1)))
    }

    /// Sends an operation in a free slot.
    ///
    /// # Panics
    /// Panics if no slot is free.
    pub(super) fn send(
        &mut self,
        operation: OperationId,
        operations: &[Operation<'_>],
        is_kept: bool,
        now: Nanos,
    ) {
        let slot = self.random.pick(&self.free_slots());
        let begun = self.client.begin(slot, operation, operations, is_kept);
        let xid = begun.expect("own requests are valid");
        let sent = Sent {
            slot,
            message: self.client.message(slot).bytes().to_vec(),
            is_kept,
            at: None,
            copies: Vec::new(),
            answer: None,
            repeats_late: self.random.permille(self.repetitions.late_permille),
            holds_slot: false,
        };
        self.sent.insert(xid, sent);
        self.transmit(xid, now);
        if self.random.permille(self.repetitions.twice_permille) {
            self.transmit(xid, now);
        }
    }

    /// Sends a request over any connection.
    fn transmit(&mut self, xid: u32, now: Nanos) {
        if self.connections.is_empty() {
            return;
        }
        let index = self.random.below(self.connections.len() as u64) as usize;
        let Connection { number, link } = &mut self.connections[index];
        if let Some(sent) = self.sent.get_mut(&xid) {
            let copy = link.send(&sent.message, *number, &mut self.next_connection);
            sent.copies.push(copy);
            sent.at = Some(now);
            self.sent_at = now;
            if sent.answer.is_none() {
                self.client.sent(sent.slot, copy);
            }
        }
    }

    /// A connection over TCP has ended, or a call over RDMA has no answer: it does not arrive any more.
    fn lose_copies(&mut self, number: u64) {
        self.client.lose_connection(number);
        self.sent.retain(|_, sent| {
            sent.copies.retain(|it| *it != number);
            sent.answer.is_none() || !sent.copies.is_empty()
        });
    }

    /// Receives, and sends what is due.
    ///
    /// # Errors
    /// A reply violates a rule.
    pub(super) fn pump(&mut self, now: Nanos, listener: &Listener) -> Result<Vec<Event>, String> {
        let mut events = Vec::new();
        let mut index = 0;
        while index < self.connections.len() {
            let end = self.receive(index, now, &mut events)?;
            if end == HostEnd::Open {
                index += 1;
                continue;
            }
            let connection = self.connections.remove(index);
            self.ended(connection);
            if self.connections.is_empty() {
                let pause = self.random.below(RECONNECT_AFTER_MAX.as_nanos());
                self.absent_until = self.absent_until.max(now + Nanos(pause));
            }
        }
        if self.connections.is_empty() && now >= self.absent_until {
            for _ in 0..self.random.between(1, CONNECTIONS_MAX as u64) {
                self.connect(listener, now);
            }
        }
        self.ghosts.retain(|it| !it.is_over(now));
        let Some(first) = self.connections.first_mut() else {
            return Ok(events);
        };
        if let Some(message) = self.client.control() {
            let next = &mut self.next_connection;
            let copy = first.link.send(message.bytes(), first.number, next);
            self.client.control_sent(copy);
        }
        for (at, slot) in std::mem::take(&mut self.delayed) {
            match at <= now {
                true => self.client.repeat(slot),
                false => self.delayed.push((at, slot)),
            }
        }
        let unsent: Vec<u32> = self.client.unsent().collect();
        for slot in unsent {
            let mut sent = self.sent.iter();
            let waiting = sent.find(|(_, it)| it.slot == slot && it.answer.is_none());
            if let Some((&xid, _)) = waiting {
                self.transmit(xid, now);
            }
        }
        Ok(events)
    }

    /// A connection has ended.
    fn ended(&mut self, connection: Connection) {
        match connection.link {
            Link::Tcp { .. } => self.lose_copies(connection.number),
            Link::Rdma(end) => {
                for copy in end.unanswered() {
                    self.lose_copies(copy);
                }
                self.of_rdma.violations += end.violations;
                self.of_rdma.invalidations += end.invalidations;
            }
        }
    }

    /// Receives what has arrived over a connection.
    fn receive(
        &mut self,
        index: usize,
        now: Nanos,
        events: &mut Vec<Event>,
    ) -> Result<HostEnd, String> {
        let number = self.connections[index].number;
        let (wire, stream) = match &mut self.connections[index].link {
            Link::Tcp { wire, stream } => (wire, stream),
            Link::Rdma(_) => return self.receive_over_rdma(index, now, events),
        };
        let mut arrived = Vec::new();
        let end = wire.receive(&mut arrived);
        let mut records = Vec::new();
        let mut rest = &arrived[..];
        while !rest.is_empty() {
            let room = stream.room();
            let length = room.len().min(rest.len());
            room[..length].copy_from_slice(&rest[..length]);
            stream.received(length);
            rest = &rest[length..];
            while let Some(record) = next_record(stream)? {
                records.push(record);
            }
        }
        for record in records {
            self.received(number, record, now, events)?;
        }
        Ok(end)
    }

    fn receive_over_rdma(
        &mut self,
        index: usize,
        now: Nanos,
        events: &mut Vec<Event>,
    ) -> Result<HostEnd, String> {
        let mut arrived = Vec::new();
        let Link::Rdma(end) = &mut self.connections[index].link else {
            return Ok(HostEnd::Open);
        };
        end.pump(now, &mut arrived)?;
        let mut end = HostEnd::Open;
        for arrived in arrived {
            match arrived {
                Arrived::Established => {
                    self.of_rdma.connections += 1;
                    self.falls_back = false;
                }
                Arrived::Reply(copy, record) => {
                    self.of_rdma.replies += 1;
                    self.received(copy, record, now, events)?;
                }
                Arrived::Refused(copy) => {
                    self.of_rdma.refused += 1;
                    self.lose_copies(copy);
                }
                Arrived::Ended { was_established } => {
                    self.falls_back |= !was_established;
                    end = HostEnd::Reset;
                }
            }
        }
        Ok(end)
    }

    fn connect(&mut self, listener: &Listener, now: Nanos) {
        let random = Random::new(self.random.bits(), 1);
        self.next_connection += 1;
        let number = self.next_connection;
        let is_rdma = !std::mem::take(&mut self.falls_back);
        let over_rdma = self.over_rdma.as_mut().filter(|_| is_rdma);
        let end = over_rdma.and_then(|it| {
            let is_chosen = it.random.permille(it.permille);
            let random = Random::new(it.random.bits(), 2);
            let end = is_chosen.then(|| RdmaEnd::connect(&it.machine, random, now));
            end.flatten()
        });
        let link = match end {
            Some(end) => Link::Rdma(Box::new(end)),
            None => Link::Tcp {
                wire: listener.connect(self.address, self.network, random),
                stream: Box::default(),
            },
        };
        self.connections.push(Connection { number, link });
    }

    fn received(
        &mut self,
        connection: u64,
        record: Vec<u8>,
        now: Nanos,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        let xid = files_client::xid_of(&record).unwrap_or_default();
        let mut sent_at = None;
        if let Some(sent) = self.sent.get_mut(&xid) {
            if let Some(position) = sent.copies.iter().position(|it| *it == connection) {
                sent.copies.remove(position);
            }
            sent_at = sent.at.take();
            if sent.answer.is_some() {
                return self.repeated(xid, &record);
            }
        }
        let event = self.client.received(connection, &record);
        match event.map_err(|violation| violation.to_string())? {
            files_client::Event::Ignored | files_client::Event::Advanced => {}
            files_client::Event::Established => events.push(Event::Established),
            files_client::Event::Delayed { slot } => {
                self.delayed.push((now + REPEAT_AFTER, slot));
            }
            files_client::Event::SessionLost { tokens } => {
                self.forget_session();
                events.push(Event::SessionLost(tokens));
            }
            files_client::Event::ReplyLost { token } => {
                self.renewed_at = self.renewed_at.max(sent_at.unwrap_or_default());
                events.push(Event::ReplyLost(token));
                self.answered(xid, record, now);
            }
            files_client::Event::Answered { token, .. } => {
                self.renewed_at = self.renewed_at.max(sent_at.unwrap_or_default());
                let bytes = record.clone();
                events.push(Event::Answered(token, Answer { bytes }));
                self.answered(xid, record, now);
            }
        }
        Ok(())
    }

    /// A request has its first answer.
    fn answered(&mut self, xid: u32, answer: Vec<u8>, now: Nanos) {
        let Some(sent) = self.sent.get_mut(&xid) else {
            return;
        };
        sent.answer = Some(answer);
        if std::mem::take(&mut sent.repeats_late) {
            self.transmit(xid, now);
        }
        if let Some(sent) = self.sent.get_mut(&xid) {
            // Copies that are still on their way may arrive after the next request of the slot.
            sent.holds_slot = self.random.coin();
        }
        self.end_if_last(xid);
    }

    /// Ends a request when every copy is answered.
    fn end_if_last(&mut self, xid: u32) {
        if self.sent.get(&xid).is_some_and(|it| it.copies.is_empty()) {
            self.sent.remove(&xid);
        }
    }

    /// Checks the answer of a repetition.
    fn repeated(&mut self, xid: u32, again: &[u8]) -> Result<(), String> {
        let Some(sent) = self.sent.get(&xid) else {
            return Ok(());
        };
        self.repeated += 1;
        if sent.is_kept && is_lost(&decode(again)?.1) {
            return Err("a reply was not kept".to_owned());
        }
        if let Some(first) = &sent.answer {
            check_repetition(first, again)?;
        }
        self.end_if_last(xid);
        Ok(())
    }
}

fn next_record(stream: &mut ReplyStream) -> Result<Option<Vec<u8>>, String> {
    let record = stream.next_record();
    let record = record.map_err(|error| format!("replies end: {error:?}"))?;
    Ok(record.map(<[u8]>::to_vec))
}

/// Whether a reply was not kept.
fn is_lost(results: &[OperationResult<'_>]) -> bool {
    results.get(1).map(OperationResult::status) == Some(Status::RETRY_UNCACHED_REP)
}

/// Checks the answer of a repetition: it is the first one, or the request is refused.
fn check_repetition(first: &[u8], again: &[u8]) -> Result<(), String> {
    if first == again || is_lost(&decode(first)?.1) {
        return Ok(());
    }
    let (_, results) = decode(again)?;
    let sequence = results
        .first()
        .map_or(Status::SERVERFAULT, OperationResult::status);
    let is_refused = match sequence {
        Status::OK => is_lost(&results),
        // The slot has had a later request, or the session is gone.
        Status::SEQ_MISORDERED | Status::DELAY | Status::BADSESSION => true,
        _ => false,
    };
    match is_refused {
        true => Ok(()),
        false => Err(format!(
            "a repeated request was answered with {results:?}, and first with {:?}",
            decode(first)?.1
        )),
    }
}
