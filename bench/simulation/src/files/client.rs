//! A client's sessions and connections: it sends requests in slots, repeats them over any connection
//! until they are answered, and sometimes also afterwards. It checks that a repetition is answered
//! as the first request was, or is refused.

use std::collections::BTreeMap;
use std::net::IpAddr;

use files_client_testing::CompoundHeader;
use files_spec::Status;
use files_spec::compound::CompoundOk;
use files_spec::operations::{
    ChannelAttributes, ClientOwner, CreateSessionArgs, ExchangeIdArgs, Operation, OperationResult,
    Outcome, ProtectionArgs, SequenceArgs,
};
use files_spec::rpc::{AcceptStatus, Fragment, MARK_BYTES, Reply, ReplyBody};
use files_spec::types::SessionId;
use files_spec::xdr::{Decoder, List, Opaque, Xdr as _};
use reactors::Nanos;

use crate::network::{HostEnd, Listener, NetworkBehaviour, Wire};
use crate::random::Random;

/// The number of an operation of the workload.
pub(super) type OperationId = u64;

/// Slots of a session.
const SLOTS: usize = 4;
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

struct Request {
    xid: u32,
    record: Vec<u8>,
    operation: OperationId,
    /// Whether the client wants its reply to be kept.
    is_kept: bool,
    /// The connections over which it was sent and not answered yet.
    copies: Vec<u64>,
    repeat_at: Option<Nanos>,
    answer: Option<Vec<u8>>,
    /// It is repeated once more when it is answered.
    repeats_late: bool,
}

#[derive(Default)]
struct Slot {
    sequence: u32,
    request: Option<Request>,
}

struct Connection {
    number: u64,
    wire: Wire,
    arrived: Vec<u8>,
}

/// What the client does to get a session.
enum Stage {
    Exchanging,
    /// With the next sequence number of CREATE_SESSION.
    Creating(u32),
    Established,
}

/// A client.
pub(super) struct FileClient {
    owner: Vec<u8>,
    verifier: [u8; 8],
    address: IpAddr,
    network: NetworkBehaviour,
    random: Random,
    repetitions: Repetitions,
    connections: Vec<Connection>,
    next_connection: u64,
    /// It opens no connection before.
    absent_until: Nanos,
    stage: Stage,
    /// The request outside of sessions, until it is answered.
    control: Option<(u32, Vec<u8>)>,
    /// The connection that it was sent over.
    control_over: u64,
    session: SessionId,
    /// The identifier of the client.
    pub(super) clientid: u64,
    slots: Vec<Slot>,
    xid: u32,
    /// Answered requests of which copies may still be on their way, with their answers.
    stale: BTreeMap<u32, Vec<u8>>,
    /// When a request was last sent, and the time of the latest sent one that was answered.
    pub(super) sent_at: Nanos,
    pub(super) renewed_at: Nanos,
    sent: BTreeMap<u32, Nanos>,
    /// Repetitions that were answered.
    pub(super) repeated: u64,
}

fn decode(bytes: &[u8]) -> Result<(Status, Vec<OperationResult<'_>>), String> {
    let mut from = Decoder::new(bytes);
    let reply = Reply::decode(&mut from).map_err(|it| format!("no reply: {it:?}"))?;
    match reply.body {
        ReplyBody::Accepted(it) if matches!(it.status, AcceptStatus::Success) => {}
        body => return Err(format!("the call was refused: {body:?}")),
    }
    let compound = CompoundOk::decode(from).map_err(|it| format!("no COMPOUND: {it:?}"))?;
    let results: Result<Vec<_>, _> = compound.results.collect();
    let results = results.map_err(|it| format!("a malformed result: {it:?}"))?;
    Ok((compound.status, results))
}

fn xid_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |it| u32::from_be_bytes(*it))
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
        Self {
            owner: format!("client {number}").into_bytes(),
            verifier: [1; 8],
            address,
            network,
            random,
            repetitions,
            connections: Vec::new(),
            next_connection: 0,
            absent_until: Nanos::ZERO,
            stage: Stage::Exchanging,
            control: None,
            control_over: 0,
            session: SessionId::default(),
            clientid: 0,
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            xid: (number as u32) << 24,
            stale: BTreeMap::new(),
            sent_at: Nanos::ZERO,
            renewed_at: Nanos::ZERO,
            sent: BTreeMap::new(),
            repeated: 0,
        }
    }

    /// Whether it can send a request.
    #[must_use]
    pub(super) fn is_free(&self) -> bool {
        let is_free = self.slots.iter().any(|it| it.request.is_none());
        matches!(self.stage, Stage::Established) && is_free && !self.connections.is_empty()
    }

    /// Whether no request waits for an answer.
    #[must_use]
    pub(super) fn is_idle(&self) -> bool {
        self.slots.iter().all(|it| it.request.is_none())
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
    pub(super) fn leave(&mut self, now: Nanos, until: Nanos, silently: bool) {
        for connection in &self.connections {
            match silently {
                true => connection.wire.vanish(),
                false => connection.wire.cut(),
            }
        }
        if silently {
            for number in self
                .connections
                .iter()
                .map(|it| it.number)
                .collect::<Vec<_>>()
            {
                self.lose_copies(number, now);
            }
            self.connections.clear();
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
        self.lose_session()
    }

    fn lose_session(&mut self) -> Vec<OperationId> {
        self.stage = Stage::Exchanging;
        self.control = None;
        let mut unanswered = Vec::new();
        for slot in &mut self.slots {
            let request = slot.request.take().filter(|it| it.answer.is_none());
            unanswered.extend(request.map(|it| it.operation));
            slot.sequence = 0;
        }
        self.stale.clear();
        self.sent.clear();
        unanswered
    }

    /// When it continues without an event of the network.
    #[must_use]
    pub(super) fn next_due(&self, now: Nanos) -> Option<Nanos> {
        let requests = self.slots.iter().filter_map(|it| it.request.as_ref());
        let repeats = requests.filter_map(|it| it.repeat_at);
        let returns = self.connections.is_empty().then_some(self.absent_until);
        let wires = self.connections.iter().filter_map(|it| it.wire.next_due());
        let due = repeats.chain(returns).chain(wires).min();
        due.map(|it| it.max(now + Nanos(1)))
    }

    fn header(&mut self) -> CompoundHeader<'static> {
        self.xid += 1;
        CompoundHeader {
            xid: self.xid,
            uid: 0,
            tag: b"",
            minor_version: 2,
        }
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
        let free: Vec<usize> = (0..SLOTS)
            .filter(|it| self.slots[*it].request.is_none())
            .collect();
        let index = self.random.pick(&free);
        self.slots[index].sequence += 1;
        let sequence = Operation::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: self.slots[index].sequence,
            slotid: index as u32,
            highest_slotid: SLOTS as u32 - 1,
            cachethis: is_kept,
        });
        let all: Vec<_> = [sequence]
            .into_iter()
            .chain(operations.iter().copied())
            .collect();
        let header = self.header();
        let record = header.record(&all);
        let repeats_late = self.random.permille(self.repetitions.late_permille);
        self.slots[index].request = Some(Request {
            xid: header.xid,
            record,
            operation,
            is_kept,
            copies: Vec::new(),
            repeat_at: None,
            answer: None,
            repeats_late,
        });
        self.transmit(index, now);
        if self.random.permille(self.repetitions.twice_permille) {
            self.transmit(index, now);
        }
    }

    /// Sends the request of a slot over any connection.
    fn transmit(&mut self, slot: usize, now: Nanos) {
        if self.connections.is_empty() {
            return;
        }
        let index = self.random.below(self.connections.len() as u64) as usize;
        let connection = &self.connections[index];
        if let Some(request) = &mut self.slots[slot].request {
            connection
                .wire
                .send(&Fragment::whole(request.record.len()).encode());
            connection.wire.send(&request.record);
            request.copies.push(connection.number);
            request.repeat_at = None;
            self.sent_at = now;
            self.sent.insert(request.xid, now);
        }
    }

    /// A connection has ended: its answers do not arrive any more.
    fn lose_copies(&mut self, number: u64, now: Nanos) {
        for slot in &mut self.slots {
            if let Some(request) = &mut slot.request {
                request.copies.retain(|it| *it != number);
                if request.copies.is_empty() {
                    match request.answer {
                        Some(_) => slot.request = None,
                        None => request.repeat_at = Some(now),
                    }
                }
            }
        }
    }

    /// Receives, and sends what is due.
    ///
    /// # Errors
    /// A reply violates a rule.
    pub(super) fn pump(&mut self, now: Nanos, listener: &Listener) -> Result<Vec<Event>, String> {
        let mut events = Vec::new();
        let mut index = 0;
        while index < self.connections.len() {
            let connection = &mut self.connections[index];
            let end = connection.wire.receive(&mut connection.arrived);
            let number = connection.number;
            while let Some(record) = next_record(&mut self.connections[index].arrived)? {
                self.received(number, record, now, &mut events)?;
            }
            if end == HostEnd::Open {
                index += 1;
                continue;
            }
            self.connections.remove(index);
            self.lose_copies(number, now);
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
        if self.connections.is_empty() {
            return Ok(events);
        }
        let carrier = self.control_over;
        if let Some((_, record)) = &self.control
            && !self.connections.iter().any(|it| it.number == carrier)
        {
            self.connections[0].wire.send(record);
            self.control_over = self.connections[0].number;
        }
        self.advance();
        for slot in 0..SLOTS {
            let request = self.slots[slot].request.as_ref();
            let due = request.and_then(|it| it.repeat_at);
            if due.is_some_and(|it| it <= now) {
                self.transmit(slot, now);
            }
        }
        Ok(events)
    }

    fn connect(&mut self, listener: &Listener) {
        let random = Random::new(self.random.bits(), 1);
        let wire = listener.connect(self.address, self.network, random);
        self.next_connection += 1;
        self.connections.push(Connection {
            number: self.next_connection,
            wire,
            arrived: Vec::new(),
        });
    }

    /// Sends the next request outside of sessions.
    fn advance(&mut self) {
        if self.control.is_some() {
            return;
        }
        let channel = ChannelAttributes {
            headerpadsize: 0,
            maxrequestsize: 1 << 20,
            maxresponsesize: 1 << 20,
            maxresponsesize_cached: 4096,
            maxoperations: 16,
            maxrequests: SLOTS as u32,
            rdma_ird: None,
        };
        let header = self.header();
        let owner = self.owner.clone();
        let operation = match self.stage {
            Stage::Exchanging => Operation::ExchangeId(ExchangeIdArgs {
                clientowner: ClientOwner {
                    verifier: self.verifier,
                    ownerid: Opaque(&owner),
                },
                flags: 0,
                state_protect: ProtectionArgs::None,
                client_impl_id: List::new(&[]),
            }),
            Stage::Creating(sequence) => Operation::CreateSession(CreateSessionArgs {
                clientid: self.clientid,
                sequence,
                flags: 0,
                fore_chan_attrs: channel,
                back_chan_attrs: channel,
                cb_program: 0,
                sec_parms: List::new(&[]),
            }),
            Stage::Established => return,
        };
        let record = header.record(&[operation]);
        let record = [&Fragment::whole(record.len()).encode()[..], &record].concat();
        self.connections[0].wire.send(&record);
        self.control_over = self.connections[0].number;
        self.control = Some((header.xid, record));
    }

    fn received(
        &mut self,
        connection: u64,
        record: Vec<u8>,
        now: Nanos,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        let xid = xid_of(&record);
        if self.control.as_ref().is_some_and(|it| it.0 == xid) {
            self.control = None;
            return self.control_answered(&record, events);
        }
        if let Some(answer) = self.stale.get(&xid) {
            return check_repetition(answer, &record);
        }
        let slot = self
            .slots
            .iter()
            .position(|slot| slot.request.as_ref().is_some_and(|it| it.xid == xid));
        let Some(index) = slot else {
            // Of a former session.
            return Ok(());
        };
        let (_, results) = decode(&record)?;
        let sequence = results
            .first()
            .map_or(Status::SERVERFAULT, OperationResult::status);
        let second = results.get(1).map(OperationResult::status);
        if let Some(sent) = self.sent.remove(&xid) {
            self.renewed_at = self.renewed_at.max(sent);
        }
        let Some(request) = &mut self.slots[index].request else {
            return Ok(());
        };
        if let Some(position) = request.copies.iter().position(|it| *it == connection) {
            request.copies.remove(position);
        }
        if let Some(answer) = &request.answer {
            self.repeated += 1;
            if second == Some(Status::RETRY_UNCACHED_REP) && request.is_kept {
                return Err("a reply was not kept".to_owned());
            }
            check_repetition(answer, &record)?;
        } else if sequence == Status::BADSESSION {
            let lost = self.lose_session();
            events.push(Event::SessionLost(lost));
            return Ok(());
        } else if second == Some(Status::RETRY_UNCACHED_REP) && request.is_kept {
            return Err("a reply was not kept".to_owned());
        } else if second == Some(Status::RETRY_UNCACHED_REP) && !request.copies.is_empty() {
            // The answer itself may come later, over another connection.
            return Ok(());
        } else if sequence == Status::DELAY {
            if request.copies.is_empty() {
                request.repeat_at = Some(now + REPEAT_AFTER);
            }
            return Ok(());
        } else if sequence != Status::OK {
            return Err(format!("SEQUENCE failed: {sequence:?}"));
        } else {
            let operation = request.operation;
            request.answer = Some(record.clone());
            events.push(match second {
                Some(Status::RETRY_UNCACHED_REP) => Event::ReplyLost(operation),
                _ => Event::Answered(operation, Answer { bytes: record }),
            });
            if std::mem::take(&mut request.repeats_late) {
                self.transmit(index, now);
            }
        }
        let Some(request) = &mut self.slots[index].request else {
            return Ok(());
        };
        // Copies that are still on their way may arrive after the next request of the slot.
        if request.copies.is_empty() || self.random.coin() {
            let request = self.slots[index].request.take();
            if let Some(request) = request
                && !request.copies.is_empty()
                && let Some(answer) = request.answer
            {
                self.stale.insert(xid, answer);
            }
        }
        Ok(())
    }

    fn control_answered(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), String> {
        let (_, results) = decode(record)?;
        match results.first() {
            Some(OperationResult::ExchangeId(Outcome::Ok(ok))) => {
                self.clientid = ok.clientid;
                self.stage = Stage::Creating(ok.sequenceid);
            }
            Some(OperationResult::CreateSession(Outcome::Ok(ok))) => {
                self.session = ok.sessionid;
                self.stage = Stage::Established;
                events.push(Event::Established);
            }
            Some(result) if result.status() == Status::STALE_CLIENTID => {
                self.stage = Stage::Exchanging;
            }
            Some(result) if result.status() == Status::DELAY => {}
            result => return Err(format!("no session: {result:?}")),
        }
        Ok(())
    }
}

/// Checks the answer of a repetition: it is the first one, or the request is refused.
fn check_repetition(first: &[u8], again: &[u8]) -> Result<(), String> {
    let is_lost = |results: &[OperationResult<'_>]| {
        results.get(1).map(OperationResult::status) == Some(Status::RETRY_UNCACHED_REP)
    };
    if first == again || is_lost(&decode(first)?.1) {
        return Ok(());
    }
    let (_, results) = decode(again)?;
    let sequence = results
        .first()
        .map_or(Status::SERVERFAULT, OperationResult::status);
    let second = results.get(1).map(OperationResult::status);
    let is_refused = match sequence {
        Status::OK => second == Some(Status::RETRY_UNCACHED_REP),
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

/// Takes the next whole record.
fn next_record(arrived: &mut Vec<u8>) -> Result<Option<Vec<u8>>, String> {
    let Some(mark) = arrived.first_chunk::<MARK_BYTES>() else {
        return Ok(None);
    };
    let fragment = Fragment::decode(*mark);
    if !fragment.is_last {
        return Err("a reply has several fragments".to_owned());
    }
    let end = MARK_BYTES + fragment.length as usize;
    if arrived.len() < end {
        return Ok(None);
    }
    let record = arrived[MARK_BYTES..end].to_vec();
    arrived.drain(..end);
    Ok(Some(record))
}
