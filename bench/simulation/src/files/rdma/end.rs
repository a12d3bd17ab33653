//! The client's end of a connection over RDMA: it connects, sends calls within its credits, and
//! receives replies (RFC 8166). It checks the server strictly: each reply belongs to a call, uses only
//! memory that the call offers, and invalidates only keys of the call; no connection ends without a
//! reason.

use std::collections::VecDeque;
use std::time::Duration;

use files_spec::rdma::{HEADER_BYTES_MAX, Header, INLINE_BYTES_DEFAULT, PrivateData, Procedure};
use files_spec::xdr::Encoder;
use rdma::{
    CompletionQueue as _, ConnectParameters, Connection as _, ConnectionEvent, Domain as _, Event,
    EventChannel as _, Payload, Provider as _, QueuePair as _, QueuePairCapacity, QueuePairOptions,
    RNR_RETRY_FOREVER, ReceiveRequest, SendOperation, SendRequest, SgeList, Token, WorkCompletion,
};
use rdma_testing::fake::{
    FakeCompletionQueue, FakeConnection, FakeEventChannel, FakeQueuePair, Fault, Operation, Pattern,
};
use reactors::Nanos;

use super::call::{Maker, OutstandingCall, Violation};
use super::{GHOST_FOR, MESSAGE_BYTES, MESSAGES, Machine, SERVER_ADDRESS};
use crate::random::Random;

/// Calls of a connection that may be outstanding.
const OUTSTANDING_MAX: usize = 8;
/// Calls beyond its credits.
const EXCESS_MAX: usize = 3;
/// Send requests of a call: keys for three chunks, and the message.
const REQUESTS_PER_CALL: usize = 4;
/// Marks work request identifiers of receives.
const RECEIVE: u64 = 1 << 32;
/// Unused: the fabric has its own times.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time without a call after which the server may close a connection.
const UNUSED_FOR: Nanos = Nanos::from_secs(359);
/// Credits that a client asks for.
const CREDITS_WANTED: u32 = 16;

/// What has arrived.
pub(in super::super) enum Arrived {
    /// The connection is established.
    Established,
    /// The reply to a call.
    Reply(u64, Vec<u8>),
    /// A call was refused because of its chunks, and gets no reply.
    Refused(u64),
    /// The connection has ended; it was established or not.
    Ended { was_established: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Established,
    Ended,
}

/// A connection.
pub(in super::super) struct RdmaEnd {
    // Declared in the order of dropping.
    queue_pair: Option<FakeQueuePair>,
    connection: FakeConnection,
    channel: FakeEventChannel,
    completions: FakeCompletionQueue,
    outstanding: Vec<OutstandingCall>,
    machine: Machine,
    random: Random,
    place: usize,
    stage: Stage,
    was_established: bool,
    credits: usize,
    /// Records that wait for credits.
    unsent: VecDeque<(u64, Vec<u8>)>,
    free_messages: Vec<usize>,
    /// Length of the longest message that it sends, and receives, in bytes.
    message_bytes: (usize, usize),
    /// Whether it has private data.
    announces: bool,
    /// How it has ended.
    end: String,
    /// When it was last used.
    used_at: Nanos,
    /// Why the server may end it.
    reason: Option<&'static str>,
    /// The server does not notice its end, until then.
    ghost_until: Option<Nanos>,
    /// Calls that have violated something.
    pub(in super::super) violations: u64,
    /// Keys that the server has invalidated.
    pub(in super::super) invalidations: u64,
}

impl RdmaEnd {
    /// Begins a connection. Returns `None` if the client has too many.
    pub(in super::super) fn connect(
        machine: &Machine,
        mut random: Random,
        now: Nanos,
    ) -> Option<Self> {
        let place = machine.places.borrow_mut().ends.pop()?;
        let mut channel = machine.provider.event_channel().expect("descriptors");
        let mut connection = channel.connection(Token(1)).expect("the channel is there");
        let begun = connection.resolve_address(None, SERVER_ADDRESS, TIMEOUT);
        begun.expect("the connection is new");
        let sends = MESSAGES * REQUESTS_PER_CALL;
        let entries = (sends + MESSAGES) as u32;
        let completions = machine.domain.create_completion_queue(entries, Token(0));
        let announces = machine.has_windows || random.permille(700);
        let longest = match announces {
            true => random.pick(&[INLINE_BYTES_DEFAULT, 2048, MESSAGE_BYTES]),
            false => INLINE_BYTES_DEFAULT,
        };
        Some(Self {
            queue_pair: None,
            connection,
            channel,
            completions: completions.expect("queues are not limited"),
            outstanding: Vec::new(),
            machine: machine.clone(),
            random,
            place,
            stage: Stage::Connecting,
            was_established: false,
            credits: 1,
            unsent: VecDeque::new(),
            free_messages: (0..MESSAGES).collect(),
            message_bytes: (longest, longest),
            announces,
            end: String::new(),
            used_at: now,
            reason: None,
            ghost_until: None,
            violations: 0,
            invalidations: 0,
        })
    }

    /// Sends a record, when there is a credit.
    pub(in super::super) fn send(&mut self, copy: u64, record: &[u8]) {
        self.unsent.push_back((copy, record.to_vec()));
    }

    /// The numbers of all calls that are not answered.
    pub(in super::super) fn unanswered(&self) -> Vec<u64> {
        let outstanding = self.outstanding.iter().filter_map(|it| it.copy);
        outstanding
            .chain(self.unsent.iter().map(|it| it.0))
            .collect()
    }

    fn message_at(&self, index: usize) -> usize {
        (self.place * 2 * MESSAGES + index) * MESSAGE_BYTES
    }

    fn post_receive(&mut self, index: usize) {
        let at = self.message_at(index);
        let request = ReceiveRequest {
            wr_id: RECEIVE | index as u64,
            memory: SgeList::one(self.machine.memory.piece(at, self.message_bytes.1)),
        };
        if let Some(queue_pair) = &mut self.queue_pair {
            // A queue pair that has failed takes no requests; its completions tell.
            let _ = queue_pair.queue_receive(&request);
            let _ = queue_pair.flush();
        }
    }

    /// Creates the queue pair and sends the connection request.
    fn request(&mut self) -> Result<(), String> {
        let options = QueuePairOptions {
            send_completions: &self.completions,
            receive_completions: &self.completions,
            shared_receives: None,
            capacity: QueuePairCapacity {
                send_requests: (MESSAGES * REQUESTS_PER_CALL) as u32,
                receive_requests: MESSAGES as u32,
                send_sges: 1,
                receive_sges: 1,
                inline_bytes: 0,
            },
        };
        let made = self
            .connection
            .create_queue_pair(&self.machine.domain, &options);
        self.queue_pair = Some(made.map_err(|error| error.to_string())?);
        for index in 0..MESSAGES {
            self.post_receive(index);
        }
        let own = PrivateData {
            invalidates_remotely: self.machine.has_windows,
            send_bytes: self.message_bytes.0,
            receive_bytes: self.message_bytes.1,
        };
        let announced = own.encode();
        let reads = self.machine.network.behaviour.reads;
        let begun = self.connection.connect(&ConnectParameters {
            private_data: if self.announces { &announced } else { &[] },
            initiator_depth: 0,
            responder_resources: reads,
            retries: 7,
            rnr_retries: RNR_RETRY_FOREVER,
        });
        begun.map_err(|error| error.to_string())
    }

    /// Receives, and sends what it can.
    ///
    /// # Errors
    /// The server violates a rule.
    pub(in super::super) fn pump(
        &mut self,
        now: Nanos,
        into: &mut Vec<Arrived>,
    ) -> Result<(), String> {
        if !self.outstanding.is_empty() || !self.unsent.is_empty() {
            self.used_at = now;
        } else if self.used_at + UNUSED_FOR <= now {
            self.reason = Some("it was not used");
        }
        while let Ok(Some(event)) = self.channel.next_event() {
            if let Event::Connection { event, .. } = event {
                self.event(event, into)?;
            }
        }
        let mut batch = [WorkCompletion::default(); 16];
        while let Ok(count @ 1..) = self.completions.poll(&mut batch) {
            for completion in &batch[..count] {
                self.completed(completion, into)?;
            }
        }
        while self.stage == Stage::Established && self.may_send() {
            let Some((copy, record)) = self.unsent.pop_front() else {
                break;
            };
            if self.is_ambiguous(&record) || !self.transmit(copy, &record) {
                self.unsent.push_front((copy, record));
                break;
            }
        }
        if self.stage == Stage::Ended {
            let was_established = self.was_established;
            into.push(Arrived::Ended { was_established });
            if was_established && self.reason.is_none() {
                return Err(format!(
                    "the server has ended a connection without a reason: {}, {} outstanding, {} \
                     unsent",
                    self.end,
                    self.outstanding_told(),
                    self.unsent.len()
                ));
            }
        }
        Ok(())
    }

    fn event(&mut self, event: ConnectionEvent, into: &mut Vec<Arrived>) -> Result<(), String> {
        match event {
            ConnectionEvent::AddressResolved => {
                let begun = self.connection.resolve_route(TIMEOUT);
                begun.map_err(|error| error.to_string())
            }
            ConnectionEvent::RouteResolved => self.request(),
            ConnectionEvent::Established { .. } => {
                if self.stage == Stage::Connecting {
                    self.stage = Stage::Established;
                    self.was_established = true;
                    into.push(Arrived::Established);
                }
                Ok(())
            }
            ConnectionEvent::Rejected { .. }
            | ConnectionEvent::AddressFailed(_)
            | ConnectionEvent::RouteFailed(_)
            | ConnectionEvent::Unreachable
            | ConnectionEvent::ConnectFailed(_)
            | ConnectionEvent::Disconnected => {
                if self.stage != Stage::Ended {
                    self.end = "an event of the connection".to_owned();
                }
                self.stage = Stage::Ended;
                Ok(())
            }
            ConnectionEvent::DeviceRemoved
            | ConnectionEvent::AddressChanged
            | ConnectionEvent::TimewaitExit
            | ConnectionEvent::Other { .. } => Ok(()),
        }
    }

    /// Whether the reply could not be told from that of an outstanding call: with keys of their own, copies
    /// of a request are different calls.
    fn is_ambiguous(&self, record: &[u8]) -> bool {
        let xid = files_client::xid_of(record).unwrap_or_default();
        !self.machine.has_windows && self.outstanding.iter().any(|it| it.xid == xid)
    }

    fn may_send(&mut self) -> bool {
        let outstanding = self.outstanding.len();
        let hostile = self.machine.network.behaviour.hostile;
        outstanding < self.credits.min(OUTSTANDING_MAX)
            || outstanding < self.credits.min(OUTSTANDING_MAX) + EXCESS_MAX
                && self.random.permille(hostile)
    }

    /// Sends a call. Returns false without memory for it.
    fn transmit(&mut self, copy: u64, record: &[u8]) -> bool {
        let hostile = self.machine.network.behaviour.hostile;
        if self.random.permille(hostile) {
            self.send_garbage();
        }
        let Some(message_at) = self.free_messages.pop() else {
            return false;
        };
        let Some(place) = self.machine.places.borrow_mut().calls.pop() else {
            self.free_messages.push(message_at);
            return false;
        };
        let violation = self.violation();
        let xid = files_client::xid_of(record).unwrap_or_default();
        let Some(queue_pair) = &mut self.queue_pair else {
            return false;
        };
        let maker = Maker {
            machine: &self.machine,
            queue_pair,
            random: &mut self.random,
            place,
            message_bytes: self.message_bytes,
            violation,
        };
        let made = maker.make(xid, CREDITS_WANTED, record);
        let mut memory = [0; HEADER_BYTES_MAX];
        let mut to = Encoder::new(&mut memory);
        made.header.encode(&mut to).expect("it fits");
        let message = [to.written(), &made.message].concat();
        self.post_message(message_at, &message);
        let call = OutstandingCall::new(made, (Some(copy), place, message_at), violation);
        self.outstanding.push(call);
        true
    }

    /// Draws how the next call violates something.
    fn violation(&mut self) -> Option<Violation> {
        if !self.random.permille(self.machine.network.behaviour.hostile) {
            return None;
        }
        self.violations += 1;
        let violations = [
            Violation::Key,
            Violation::Removed,
            Violation::Short,
            Violation::Short,
        ];
        let violation = self.random.pick(&violations);
        if violation != Violation::Short {
            self.reason = Some("a key was wrong");
        }
        Some(violation)
    }

    /// Sends what is no call, and expects the answer of RFC 8166 §4.5.1 to it.
    fn send_garbage(&mut self) {
        let Some(message_at) = self.free_messages.pop() else {
            return;
        };
        let Some(place) = self.machine.places.borrow_mut().calls.pop() else {
            self.free_messages.push(message_at);
            return;
        };
        self.violations += 1;
        // Other calls have other identifiers.
        let xid = 0xFFFF_0000 | self.random.below(1 << 16) as u32;
        let words: &[u32] = match self.random.below(4) {
            // Another version.
            0 => &[xid, 2, 1, 0, 0, 0, 0],
            // Another procedure.
            1 => &[xid, 1, 1, 9, 0, 0, 0],
            // A read chunk within a word.
            2 => &[xid, 1, 1, 0, 1, 5, 7, 8, 0, 0, 0, 0, 0],
            // A long call without a chunk.
            _ => &[xid, 1, 1, 1, 0, 0, 0],
        };
        let message: Vec<u8> = words.iter().flat_map(|it| it.to_be_bytes()).collect();
        self.post_message(message_at, &message);
        let call = OutstandingCall::refused(xid, place, message_at);
        self.outstanding.push(call);
    }

    fn post_message(&mut self, index: usize, message: &[u8]) {
        let at = self.message_at(MESSAGES + index);
        self.machine.memory.view().write(at, message);
        let piece = [self.machine.memory.piece(at, message.len())];
        let send = SendRequest::new(index as u64, SendOperation::Send, Payload::Memory(&piece));
        if let Some(queue_pair) = &mut self.queue_pair {
            // A queue pair that has failed takes no requests; its completions tell.
            let _ = queue_pair.queue_send(&send);
            let _ = queue_pair.flush();
        }
    }

    fn completed(
        &mut self,
        completion: &WorkCompletion,
        into: &mut Vec<Arrived>,
    ) -> Result<(), String> {
        if !completion.is_success() {
            if self.stage != Stage::Ended {
                self.end = format!("{} of request {:#x}", completion.status, completion.wr_id);
            }
            self.stage = Stage::Ended;
            return Ok(());
        }
        if completion.wr_id & RECEIVE == 0 {
            let sent = |it: &&mut OutstandingCall| it.message_at as u64 == completion.wr_id;
            if let Some(call) = self.outstanding.iter_mut().find(sent) {
                call.sent();
            }
            return Ok(());
        }
        let index = (completion.wr_id & !RECEIVE) as usize;
        let mut message = vec![0; completion.byte_len as usize];
        let at = self.message_at(index);
        self.machine.memory.view().read(at, &mut message);
        self.post_receive(index);
        self.received(&message, completion, into)
    }

    fn received(
        &mut self,
        message: &[u8],
        completion: &WorkCompletion,
        into: &mut Vec<Arrived>,
    ) -> Result<(), String> {
        let decoded = Header::decode(message);
        let (header, at) = decoded.map_err(|error| format!("a reply is malformed: {error:?}"))?;
        let position = self
            .outstanding
            .iter()
            .position(|it| it.fits(&header, completion));
        let Some(position) = position else {
            return Err(format!(
                "no call of a connection has the reply {header:?}, which invalidates {:x?}; there \
                 are {}",
                completion.invalidated(),
                self.outstanding_told()
            ));
        };
        if header.credits == 0 {
            return Err("a reply grants no credits".to_owned());
        }
        self.credits = header.credits as usize;
        self.invalidations += u64::from(completion.invalidated().is_some());
        let call = self.outstanding.remove(position);
        let arrived = match (header.procedure, call.copy) {
            (_, None) => None,
            (Procedure::ChunkError | Procedure::VersionError { .. }, Some(copy)) => {
                Some(Arrived::Refused(copy))
            }
            (Procedure::Message | Procedure::NoMessage, Some(copy)) => {
                let reply = call.reply(&self.machine, &header, &message[at..])?;
                Some(Arrived::Reply(copy, reply))
            }
        };
        into.extend(arrived);
        self.free_messages.push(call.message_at);
        self.machine.places.borrow_mut().calls.push(call.place);
        Ok(())
    }

    fn outstanding_told(&self) -> String {
        let told = self.outstanding.iter().map(OutstandingCall::told);
        told.collect::<Vec<_>>().join("; ")
    }

    /// The number of its queue pair, or of that of the server.
    fn queue_pair(&self, of_client: bool) -> Option<u32> {
        let own = self.queue_pair.as_ref()?.number();
        match of_client {
            true => Some(own),
            false => self.machine.network.fabric.peer_of(own),
        }
    }

    /// Whether it can break: it has a queue pair.
    pub(in super::super) fn cut(&mut self) {
        self.reason = Some("it was cut");
        match self.queue_pair(true) {
            Some(number) => self.machine.network.fabric.drop_connection(number),
            None => self.stage = Stage::Ended,
        }
    }

    /// Delays everything in one direction.
    pub(in super::super) fn stall(&mut self, to_server: bool, until: Nanos) {
        self.reason = Some("it stood still");
        if let Some(number) = self.queue_pair(to_server) {
            let network = &self.machine.network;
            network.fabric.stall(number, network.tick_of(until));
        }
    }

    /// The client is gone, and the server does not notice. Returns whether the connection must be kept
    /// until [`Self::is_over`].
    pub(in super::super) fn vanish(&mut self, now: Nanos) -> bool {
        self.unsent.clear();
        let number = self.queue_pair(true);
        if let Some(number) = number {
            self.machine.network.fabric.partition(number);
            self.ghost_until = Some(now + GHOST_FOR);
        }
        number.is_some()
    }

    /// Whether a connection that has vanished is over.
    pub(in super::super) fn is_over(&self, now: Nanos) -> bool {
        self.ghost_until.is_none_or(|it| it <= now)
    }

    /// The server is killed, or may close it.
    pub(in super::super) fn may_end(&mut self, why: &'static str) {
        self.reason = Some(why);
    }

    /// Lets the next work request of one end be late, fail, or never end.
    pub(in super::super) fn disturb(&mut self, random: &mut Random, longest: Nanos) -> Option<()> {
        let of_client = random.permille(250);
        let ticks = self.machine.network.tick_of(longest).max(2);
        let ticks = random.between(1, ticks) as u32;
        let status = random.pick(&[
            rdma::CompletionStatus::RETRIES_EXCEEDED,
            rdma::CompletionStatus::REMOTE_ACCESS_ERROR,
            rdma::CompletionStatus::REMOTE_OPERATION_ERROR,
        ]);
        let fault = match random.below(12) {
            0..=3 => Fault::DelayRequest(ticks),
            4..=7 => Fault::DelayCompletion(ticks),
            8 => Fault::NotReady(ticks),
            9 => Fault::DropConnection,
            10 => Fault::QueuePairFatal,
            _ if of_client || random.coin() => Fault::Fail(status),
            _ => Fault::Wedge,
        };
        let operation = match of_client {
            true => None,
            false => random.pick(&[
                None,
                Some(Operation::Write),
                Some(Operation::Read),
                Some(Operation::Read),
            ]),
        };
        let operation = match fault {
            Fault::Wedge if operation.is_none() => Some(Operation::Read),
            _ => operation,
        };
        let number = self.queue_pair(of_client)?;
        let pattern = Pattern {
            operation,
            ..Pattern::ONCE.by(number)
        };
        self.machine.network.fabric.add_fault(pattern, fault);
        self.reason = Some("it was disturbed");
        Some(())
    }
}

impl Drop for RdmaEnd {
    fn drop(&mut self) {
        // Nothing refers to its memory any more when its queue pair is gone.
        self.queue_pair = None;
        let mut places = self.machine.places.borrow_mut();
        places.ends.push(self.place);
        places
            .calls
            .extend(self.outstanding.iter().map(|it| it.place));
    }
}

const _: () = assert!(OUTSTANDING_MAX + EXCESS_MAX < MESSAGES);
