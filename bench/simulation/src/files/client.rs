//! A client with connections that end: it sends requests in slots, repeats them over any connection
//! until they are answered, and sometimes also afterwards. It checks that a repetition is answered
//! as the first request was, or is refused.

use std::collections::BTreeMap;
use std::net::IpAddr;

use files_client::{Client, ClientOptions, ReplyStream};
use files_spec::Status;
use files_spec::operations::{Operation, OperationResult};
use reactors::Nanos;

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
    /// The connections over which it was sent and not answered yet.
    copies: Vec<u64>,
    answer: Option<Vec<u8>>,
    /// It is repeated once more when it is answered.
    repeats_late: bool,
    /// Its slot is not used before every copy is answered.
    holds_slot: bool,
}

struct Connection {
    number: u64,
    wire: Wire,
    stream: ReplyStream,
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

    /// Its connections.
    pub(super) fn wires(&self) -> impl Iterator<Item = &Wire> {
        self.connections.iter().map(|it| &it.wire)
    }

    /// One of its connections breaks.
    pub(super) fn cut(&mut self) {
        if !self.connections.is_empty() {
            let index = self.random.below(self.connections.len() as u64) as usize;
            self.connections[index].wire.cut();
        }
    }

    /// It loses its connections until then: in order, or without the server noticing.
    pub(super) fn leave(&mut self, until: Nanos, silently: bool) {
        for connection in &self.connections {
            match silently {
                true => connection.wire.vanish(),
                false => connection.wire.cut(),
            }
        }
        if silently {
            for connection in std::mem::take(&mut self.connections) {
                self.lose_copies(connection.number);
            }
        }
        self.absent_until = until;
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
        for connection in &self.connections {
            connection.wire.cut();
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
        let wires = self.connections.iter().filter_map(|it| it.wire.next_due());
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
        let connection = &self.connections[index];
        if let Some(sent) = self.sent.get_mut(&xid) {
            connection.wire.send(&sent.message);
            sent.copies.push(connection.number);
            sent.at = Some(now);
            self.sent_at = now;
            if sent.answer.is_none() {
                self.client.sent(sent.slot, connection.number);
            }
        }
    }

    /// A connection has ended: its answers do not arrive any more.
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
            let number = self.connections.remove(index).number;
            self.lose_copies(number);
            if self.connections.is_empty() {
                let pause = self.random.below(RECONNECT_AFTER_MAX.as_nanos());
                self.absent_until = self.absent_until.max(now + Nanos(pause));
            }
        }
        if self.connections.is_empty() && now >= self.absent_until {
            for _ in 0..self.random.between(1, CONNECTIONS_MAX as u64) {
                self.connect(listener);
            }
        }
        let Some(first) = self.connections.first() else {
            return Ok(events);
        };
        if let Some(message) = self.client.control() {
            first.wire.send(message.bytes());
            self.client.control_sent(first.number);
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

    /// Receives what has arrived over a connection.
    fn receive(
        &mut self,
        index: usize,
        now: Nanos,
        events: &mut Vec<Event>,
    ) -> Result<HostEnd, String> {
        let connection = &mut self.connections[index];
        let mut arrived = Vec::new();
        let end = connection.wire.receive(&mut arrived);
        let number = connection.number;
        let mut rest = &arrived[..];
        while !rest.is_empty() {
            let stream = &mut self.connections[index].stream;
            let room = stream.room();
            let length = room.len().min(rest.len());
            room[..length].copy_from_slice(&rest[..length]);
            stream.received(length);
            rest = &rest[length..];
            while let Some(record) = self.next_record(index)? {
                self.received(number, record, now, events)?;
            }
        }
        Ok(end)
    }

    fn next_record(&mut self, index: usize) -> Result<Option<Vec<u8>>, String> {
        let record = self.connections[index].stream.next_record();
        let record = record.map_err(|error| format!("replies end: {error:?}"))?;
        Ok(record.map(<[u8]>::to_vec))
    }

    fn connect(&mut self, listener: &Listener) {
        let random = Random::new(self.random.bits(), 1);
        let wire = listener.connect(self.address, self.network, random);
        self.next_connection += 1;
        self.connections.push(Connection {
            number: self.next_connection,
            wire,
            stream: ReplyStream::default(),
        });
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
