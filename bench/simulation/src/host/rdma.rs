//! A host's end of an NVMe/RDMA connection: capsules out, responses in, its memory open to the
//! target by keys (RDMA 1.1 §2).
//!
//! It believes nothing: what the target writes is held against what it was asked for, and keys that
//! it invalidates against those that it was asked to.

use std::time::Duration;

use hugemem::{PagePolicy, Region, SharedRegion};
use nvme_spec::rdma::{ConnectReject, ConnectRequest, RECORD_FORMAT};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe, U16};
use rdma::fake::{
    ConnectFault, Fabric, Fake, FakeCompletionQueue, FakeConnection, FakeEventChannel,
    FakeQueuePair, FakeWindow, Fault, Operation, Pattern,
};
use rdma::{
    Access, CompletionQueue, CompletionStatus, ConnectParameters, Connection, ConnectionEvent,
    Device, Domain, Event, EventChannel, MemoryWindow, Payload, Provider, QueuePair,
    QueuePairCapacity, QueuePairOptions, RNR_RETRY_FOREVER, ReceiveRequest, Registration,
    RejectReason, SendOperation, SendRequest, SgeList, SharedMemory, Token, WindowBinding,
    WorkCompletion,
};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::connection::{ConnectionShape, Damage, Incoming, Queue, Transfer};
use super::twins::{ByIdentifier, Told, Which};
use super::{Command, IoKind};
use crate::fabric::{RdmaNetwork, TARGET_ADDRESS};
use crate::network::HostEnd;
use crate::random::Random;

const COMMAND_BYTES: usize = size_of::<Sqe>();
const RESPONSE_BYTES: usize = size_of::<Cqe>();
const DESCRIPTOR_BYTES: usize = size_of::<SglDescriptor>();
/// Room behind a capsule's data, for capsules that are too long.
const CAPSULE_SLACK_BYTES: usize = 64;
/// Bytes behind a command's data that nobody may touch.
const GUARD_BYTES: usize = 64;
/// What a host's memory holds before anything is written there.
const UNWRITTEN: u8 = 0xEE;
/// Data that every command has room for: a Connect's, a log page.
const DATA_BYTES_MIN: usize = 4096;
/// Work requests of one command at most: the window's opening, the capsule, the window's end.
const REQUESTS_PER_COMMAND: u32 = 3;
/// Pieces that a command's data is named in.
const PIECES_MAX: u64 = 4;
/// Marks the identifiers of receives.
const RECEIVE: u64 = 1 << 32;
/// Never looked at: the fabric answers in its own time.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// How a host asks for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// The host's number.
    pub(super) host: usize,
    pub(super) shape: ConnectionShape,
    pub(super) cntlid: u16,
    /// Keys are made for each command.
    pub(super) windows: bool,
    /// First something is asked for that must be rejected: what, by number.
    pub(super) begins_wrong: Option<u64>,
}

/// Where things lie in a connection's memory, in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    depth: usize,
    capsule: usize,
    data: usize,
}

impl Layout {
    fn new(shape: &ConnectionShape) -> Self {
        let in_capsule = shape
            .in_capsule_bytes
            .max(DESCRIPTOR_BYTES * PIECES_MAX as usize);
        let capsule = COMMAND_BYTES + in_capsule + CAPSULE_SLACK_BYTES;
        Self {
            depth: usize::from(shape.depth),
            capsule: capsule.next_multiple_of(COMMAND_BYTES),
            data: shape.transfer_max.max(DATA_BYTES_MIN) + GUARD_BYTES,
        }
    }

    fn response_at(self, receive: usize) -> usize {
        receive * RESPONSE_BYTES
    }

    fn capsule_at(self, slot: usize) -> usize {
        (self.depth * RESPONSE_BYTES).next_multiple_of(COMMAND_BYTES) + slot * self.capsule
    }

    fn data_at(self, slot: usize) -> usize {
        self.capsule_at(self.depth) + slot * self.data
    }

    fn bytes(self) -> usize {
        self.data_at(self.depth)
    }
}

/// The verbs objects of a connection, in the order in which they are given up.
struct Verbs {
    queue_pair: FakeQueuePair,
    windows: Vec<FakeWindow>,
    memory: SharedMemory<Fake>,
    completions: FakeCompletionQueue,
}

/// A host's end, with all that the fabric knows of it.
pub struct Ends {
    verbs: Option<Verbs>,
    connection: FakeConnection,
    channel: FakeEventChannel,
    fabric: Fabric,
}

impl Ends {
    fn number(&self) -> Option<u32> {
        self.verbs.as_ref().map(|verbs| verbs.queue_pair.number())
    }

    /// Breaks the connection: both ends are told.
    pub(super) fn cut(&self) {
        if let Some(number) = self.number() {
            self.fabric.drop_connection(number);
        }
    }
}

/// A command's place.
struct Place {
    slot: u16,
    /// Bytes that the target may write.
    expected: usize,
    /// The key that it was told to invalidate; whether that is due to it.
    key: Option<(u32, bool)>,
}

/// A host's end of an RDMA connection.
pub(super) struct RdmaLine {
    /// Until it vanishes.
    ends: Option<Ends>,
    provider: Fake,
    call: Call,
    layout: Layout,
    tick: Nanos,
    places: ByIdentifier<Place>,
    free: Vec<u16>,
    /// Send requests that are not completed.
    posted: u32,
    /// Receives that are posted again later, by when.
    later: Vec<(Nanos, u16)>,
    /// The request that is out must be rejected.
    is_wrong: bool,
    end: Option<HostEnd>,
}

impl RdmaLine {
    /// Begins to open it: the address is looked up.
    pub(super) fn open(network: &RdmaNetwork, call: Call) -> Self {
        let provider = network.host(call.host).clone();
        let fabric = network.fabric().clone();
        let layout = Layout::new(&call.shape);
        Self {
            ends: Some(begin(&provider, fabric)),
            provider,
            call,
            layout,
            tick: network.tick(),
            places: ByIdentifier::default(),
            free: (0..call.shape.depth).rev().collect(),
            posted: 0,
            later: Vec::new(),
            is_wrong: call.begins_wrong.is_some(),
            end: None,
        }
    }

    /// Commands that there is room for in the send queue.
    pub(super) fn room(&self) -> usize {
        let most = u32::from(self.call.shape.depth) * REQUESTS_PER_COMMAND;
        ((most - self.posted.min(most)) / REQUESTS_PER_COMMAND) as usize
    }

    /// Sends a command with its data as `transfer` says, in the capsule where `in_capsule` says so.
    pub(super) fn send(
        &mut self,
        queue: &mut Queue,
        sqe: Sqe,
        (transfer, in_capsule): (Transfer, bool),
        damage: Damage,
    ) {
        // Rooms are asked for before commands are sent.
        let Some(slot) = self.free.pop() else { return };
        let at = self.layout.data_at(usize::from(slot));
        let mut place = Place {
            slot,
            expected: 0,
            key: None,
        };
        let mut behind = Vec::new();
        let is_raw = matches!(transfer, Transfer::Raw(_));
        let sgl = match transfer {
            Transfer::Raw(inline) => {
                behind = inline;
                Some(sqe.dptr.sgl())
            }
            Transfer::None => SglDescriptor::keyed(0, 0, 0, false),
            Transfer::In(bytes) => {
                place.expected = bytes;
                self.write(at, &vec![UNWRITTEN; bytes + GUARD_BYTES]);
                self.name(queue, &mut place, (bytes, true), &mut behind, damage)
            }
            Transfer::Out(data) if in_capsule => {
                let room = queue.shape.in_capsule_bytes - data.len();
                let begin = if queue.random.permille(200) {
                    room & !3
                } else {
                    0
                };
                behind = vec![UNWRITTEN; begin];
                behind.extend_from_slice(&data);
                Some(SglDescriptor::in_capsule(begin as u64, data.len() as u32))
            }
            Transfer::Out(data) => {
                self.write(at, &data);
                self.name(queue, &mut place, (data.len(), false), &mut behind, damage)
            }
        };
        let Some(sgl) = sgl else { return };
        let pointed = if is_raw { sqe } else { sqe.with_sgl(sgl) };
        let mut capsule = pointed.as_bytes().to_vec();
        capsule.extend(behind);
        self.post_capsule(slot, &capsule);
        self.places.insert(sqe.cid.get(), place);
    }

    /// Names a command's data: by a key of its own or by the memory's, in one piece or in several,
    /// whose descriptors then go `behind` the command.
    fn name(
        &mut self,
        queue: &mut Queue,
        place: &mut Place,
        (bytes, to_host): (usize, bool),
        behind: &mut Vec<u8>,
        damage: Damage,
    ) -> Option<SglDescriptor> {
        let slot = usize::from(place.slot);
        let verbs = self.ends.as_mut()?.verbs.as_mut()?;
        let offset = self.layout.data_at(slot);
        let address = (verbs.memory.registration().address() + offset) as u64;
        if damage == Damage::Key {
            // Another key, or memory beyond what is registered.
            let (address, key) = match queue.random.coin() {
                true => (address, verbs.memory.registration().rkey() ^ 0x5A00),
                false => (address + (1 << 40), verbs.memory.registration().rkey()),
            };
            return SglDescriptor::keyed(address, bytes as u32, key, false);
        }
        if let Some(window) = verbs.windows.get_mut(slot) {
            let binding = WindowBinding {
                wr_id: 0,
                address,
                length: bytes as u64,
                remote_read: !to_host,
                remote_write: to_host,
                signalled: true,
            };
            let bound =
                (verbs.queue_pair).queue_bind(window, verbs.memory.registration(), &binding);
            self.posted += u32::from(bound.is_ok());
            let (key, remotely) = (window.rkey(), queue.random.permille(700));
            place.key = Some((key, remotely));
            return SglDescriptor::keyed(address, bytes as u32, key, remotely);
        }
        let key = verbs.memory.registration().rkey();
        let segments = queue.shape.qid > 0
            && queue.live
            && queue.shape.in_capsule_bytes >= DESCRIPTOR_BYTES * PIECES_MAX as usize;
        let pieces = if segments && queue.random.permille(500) {
            queue.random.between(1, PIECES_MAX.min(bytes as u64))
        } else {
            0
        };
        if pieces == 0 {
            return SglDescriptor::keyed(address, bytes as u32, key, false);
        }
        let mut begin = 0;
        for left in (0..pieces).rev() {
            let most = bytes as u64 - begin - left;
            let piece = if left == 0 {
                most
            } else {
                queue.random.between(1, most)
            };
            let descriptor = SglDescriptor::keyed(address + begin, piece as u32, key, false)?;
            behind.extend_from_slice(descriptor.as_bytes());
            begin += piece;
        }
        Some(SglDescriptor::last_segment_in_capsule(
            0,
            behind.len() as u32,
        ))
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if let Some(verbs) = self.ends.as_ref().and_then(|ends| ends.verbs.as_ref()) {
            verbs.memory.view().write(at, bytes);
        }
    }

    fn post_capsule(&mut self, slot: u16, capsule: &[u8]) {
        let at = self.layout.capsule_at(usize::from(slot));
        self.write(at, capsule);
        let Some(verbs) = self.ends.as_mut().and_then(|ends| ends.verbs.as_mut()) else {
            return;
        };
        let memory = [verbs.memory.piece(at, capsule.len())];
        let request = SendRequest::new(0, SendOperation::Send, Payload::Memory(&memory));
        let queued = verbs.queue_pair.queue_send(&request.signalled(true));
        self.posted += u32::from(queued.is_ok());
        // One that has failed takes nothing more, and says so by its completions.
        let _ = verbs.queue_pair.flush();
    }

    /// Sends what is no command capsule: too short or too long.
    pub(super) fn send_garbage(&mut self, kind: u8, word: u64) {
        let Some(slot) = self.free.last().copied() else {
            return;
        };
        let bytes = match kind % 3 {
            0 => usize::from(kind) % COMMAND_BYTES,
            1 => COMMAND_BYTES - 1,
            _ => self.layout.capsule,
        };
        let mut garbage = word.to_le_bytes().repeat(bytes.div_ceil(8));
        garbage.truncate(bytes);
        self.post_capsule(slot, &garbage);
    }

    /// Takes in what has come; whether there was anything.
    ///
    /// # Errors
    /// What the target did wrong.
    pub(super) fn poll(
        &mut self,
        queue: &mut Queue,
        now: Nanos,
        incoming: &mut Vec<Incoming>,
    ) -> Result<bool, String> {
        let due = self.later.iter().filter(|(at, _)| *at <= now);
        let due: Vec<u16> = due.map(|(_, receive)| *receive).collect();
        self.later.retain(|(at, _)| *at > now);
        due.into_iter()
            .for_each(|receive| self.post_receive(receive));
        let mut moved = false;
        let mut batch = [WorkCompletion::default(); 16];
        while let Some(verbs) = self.ends.as_mut().and_then(|ends| ends.verbs.as_mut()) {
            let taken = verbs.completions.poll(&mut batch);
            let taken = taken.map_err(|error| error.to_string())?;
            moved |= taken > 0;
            for completion in &batch[..taken] {
                self.complete(queue, now, completion, incoming)?;
            }
            if taken < batch.len() {
                break;
            }
        }
        while let Some(event) = self.next_event() {
            moved = true;
            self.take_event(event, incoming)?;
        }
        if let Some(end) = self.end {
            incoming.push(Incoming::Ended(end));
            moved = true;
        }
        Ok(moved)
    }

    fn next_event(&mut self) -> Option<ConnectionEvent> {
        match self.ends.as_mut()?.channel.next_event() {
            Ok(Some(Event::Connection { event, .. })) => Some(event),
            Ok(_) | Err(_) => None,
        }
    }

    fn complete(
        &mut self,
        queue: &mut Queue,
        now: Nanos,
        completion: &WorkCompletion,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        if !completion.is_success() {
            if completion.status != CompletionStatus::FLUSHED || self.end.is_none() {
                self.end.get_or_insert(HostEnd::Reset);
            }
            return Ok(());
        }
        if completion.wr_id & RECEIVE == 0 {
            self.posted -= 1;
            return Ok(());
        }
        let receive = (completion.wr_id & !RECEIVE) as u16;
        if completion.byte_len as usize != RESPONSE_BYTES {
            return Err(format!("a response of {} bytes", completion.byte_len));
        }
        let mut bytes = [0; RESPONSE_BYTES];
        self.read(self.layout.response_at(usize::from(receive)), &mut bytes);
        let cqe: Cqe = zerocopy::transmute!(bytes);
        self.answered(queue, &cqe, completion.invalidated())?;
        let delay = queue.shape.write_delay_max.as_nanos();
        if delay > 0 && queue.random.permille(100) {
            let at = now + Nanos(queue.random.below(delay));
            self.later.push((at, receive));
            queue.disturbed_until = queue.disturbed_until.max(at);
        } else {
            self.post_receive(receive);
        }
        queue.response(cqe, incoming)
    }

    /// Takes a command's data in, and makes its key invalid where the target has not.
    fn answered(
        &mut self,
        queue: &mut Queue,
        cqe: &Cqe,
        invalidated: Option<u32>,
    ) -> Result<(), String> {
        let cid = cqe.cid.get();
        let is_half_answered = queue.half_answered.contains_key(&cid);
        let which = match queue.told(cqe) {
            // Both places are free when both are answered; neither has a key of its own.
            Told::Either if !is_half_answered => return Ok(()),
            Told::Of(which) => which,
            Told::Alone | Told::Either => Which::First,
        };
        let Some(place) = self.places.take(cid, which) else {
            return Ok(());
        };
        if is_half_answered {
            let others = self.places.take(cid, Which::First);
            self.free.extend(others.map(|it| it.slot));
        }
        let at = self.layout.data_at(usize::from(place.slot));
        if place.expected > 0 {
            let mut data = vec![0; place.expected + GUARD_BYTES];
            self.read(at, &mut data);
            let guard = data.split_off(place.expected);
            if guard.iter().any(|byte| *byte != UNWRITTEN) {
                return Err(format!("more data for command {cid} than it asked for"));
            }
            if let Some(outstanding) = queue.command_mut(cid, which) {
                outstanding.data = data;
            }
        }
        // A target may do without the data of commands that move none, and then leaves their keys.
        let moved = queue
            .command_mut(cid, which)
            .is_some_and(|it| match &it.command {
                Command::Io(io) => {
                    matches!(io.kind, IoKind::Read | IoKind::Write | IoKind::Compare)
                }
                _ => false,
            });
        match (place.key, invalidated) {
            (Some((key, true)), Some(found)) if key == found => {}
            (Some((key, remotely)), None) => {
                if remotely && moved && cqe.status().is_success() {
                    return Err(format!("the key of command {cid} was not invalidated"));
                }
                self.invalidate(key);
            }
            (None, None) => {}
            (_, Some(found)) => return Err(format!("command {cid} invalidated key {found:#x}")),
        }
        self.free.push(place.slot);
        Ok(())
    }

    fn invalidate(&mut self, rkey: u32) {
        let Some(verbs) = self.ends.as_mut().and_then(|ends| ends.verbs.as_mut()) else {
            return;
        };
        let operation = SendOperation::LocalInvalidate { rkey };
        let request = SendRequest::new(0, operation, Payload::Memory(&[]));
        let queued = verbs.queue_pair.queue_send(&request.signalled(true));
        self.posted += u32::from(queued.is_ok());
        let _ = verbs.queue_pair.flush();
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        if let Some(verbs) = self.ends.as_ref().and_then(|ends| ends.verbs.as_ref()) {
            verbs.memory.view().read(at, into);
        }
    }

    fn post_receive(&mut self, receive: u16) {
        let at = self.layout.response_at(usize::from(receive));
        if let Some(verbs) = self.ends.as_mut().and_then(|ends| ends.verbs.as_mut()) {
            post_receive(verbs, receive, at);
            let _ = verbs.queue_pair.flush();
        }
    }

    fn take_event(
        &mut self,
        event: ConnectionEvent,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), String> {
        match event {
            ConnectionEvent::AddressResolved => {
                let connection = self.ends.as_mut().map(|ends| &mut ends.connection);
                let begun = connection.map(|it| it.resolve_route(RESOLVE_TIMEOUT));
                begun.transpose().map_err(|error| error.to_string())?;
            }
            ConnectionEvent::RouteResolved => self.call()?,
            ConnectionEvent::Established { .. } if self.is_wrong => {
                return Err("a connection was accepted that asked for nonsense".to_owned());
            }
            ConnectionEvent::Established { .. } => incoming.push(Incoming::Initialised),
            ConnectionEvent::Rejected {
                reason,
                private_data,
            } => self.rejected(reason, private_data.as_slice())?,
            // The network's doing: the target has no part in it.
            ConnectionEvent::AddressFailed(_)
            | ConnectionEvent::RouteFailed(_)
            | ConnectionEvent::Unreachable => {
                self.end.get_or_insert(HostEnd::Cut);
            }
            ConnectionEvent::Disconnected | ConnectionEvent::ConnectFailed(_) => {
                self.end.get_or_insert(HostEnd::Reset);
            }
            ConnectionEvent::DeviceRemoved
            | ConnectionEvent::AddressChanged
            | ConnectionEvent::TimewaitExit
            | ConnectionEvent::Other { .. } => {}
        }
        Ok(())
    }

    /// Makes the queue pair and asks the target.
    fn call(&mut self) -> Result<(), String> {
        let (call, layout, is_wrong) = (self.call, self.layout, self.is_wrong);
        let Some(ends) = &mut self.ends else {
            return Ok(());
        };
        let verbs = verbs(&mut ends.connection, &self.provider, &call, layout)?;
        let verbs = ends.verbs.insert(verbs);
        for receive in 0..call.shape.depth {
            post_receive(verbs, receive, layout.response_at(usize::from(receive)));
        }
        let posted = verbs.queue_pair.flush();
        posted.map_err(|error| error.to_string())?;
        let ConnectionShape { qid, depth, .. } = call.shape;
        let cntlid = if qid == 0 { 0 } else { call.cntlid };
        let mut request = ConnectRequest::new(qid, depth, depth - 1, cntlid);
        if is_wrong {
            match call.begins_wrong {
                Some(0) => request.recfmt = U16::new(RECORD_FORMAT + 1),
                Some(1) => request.hrqsize = U16::new(depth - 1),
                _ => request.hsqsize_z = U16::new(u16::MAX),
            }
        }
        let asked = ends.connection.connect(&ConnectParameters {
            private_data: request.as_bytes(),
            initiator_depth: 0,
            responder_resources: 16,
            retries: 7,
            rnr_retries: RNR_RETRY_FOREVER,
        });
        asked.map_err(|error| error.to_string())
    }

    /// The target said no, or the connection manager did.
    fn rejected(&mut self, reason: RejectReason, data: &[u8]) -> Result<(), String> {
        let by_target = reason == RejectReason::BY_CONSUMER;
        let told = ConnectReject::read_from_prefix(data).ok();
        let told = told
            .map(|(reject, _)| reject)
            .filter(|it| by_target && it.sts.get() != 0);
        if self.is_wrong && told.is_some() {
            // What was wrong is made right, on a connection of its own.
            self.is_wrong = false;
            if let Some(ends) = self.ends.take() {
                let fabric = ends.fabric.clone();
                self.ends = Some(begin(&self.provider, fabric));
            }
            return Ok(());
        }
        let has_no_room =
            told.is_some_and(|it| it.reason() == nvme_spec::rdma::RejectReason::NO_RESOURCES);
        let of_network = !by_target && reason != RejectReason::NO_LISTENER;
        self.end.get_or_insert(if has_no_room || of_network {
            HostEnd::Cut
        } else {
            HostEnd::Reset
        });
        Ok(())
    }

    /// When it wants to send although nothing comes.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Disconnects in order.
    pub(super) fn finish(&mut self) {
        if let Some(ends) = &mut self.ends {
            // Cannot be refused by the fabric.
            let _ = ends.connection.disconnect();
        }
    }

    /// Breaks the connection for both ends.
    pub(super) fn cut(&mut self) {
        if let Some(ends) = &self.ends {
            ends.cut();
        }
        self.end = Some(HostEnd::Cut);
    }

    /// Nothing moves in one direction before `until`.
    pub(super) fn stall(&mut self, to_target: bool, until: Nanos) {
        if let Some((fabric, number)) = self.queue_pair(to_target) {
            fabric.stall(number, until.as_nanos() / self.tick.as_nanos());
        }
    }

    /// The host's queue pair, or the target's.
    fn queue_pair(&self, of_host: bool) -> Option<(&Fabric, u32)> {
        let ends = self.ends.as_ref()?;
        let own = ends.number()?;
        let number = if of_host {
            own
        } else {
            ends.fabric.peer_of(own)?
        };
        Some((&ends.fabric, number))
    }

    /// The host is gone without a word.
    pub(super) fn vanish(&mut self) -> Option<Box<Ends>> {
        let ends = self.ends.take()?;
        ends.fabric.silence(ends.number()?);
        Some(Box::new(ends))
    }

    /// The next work request of one end that is posted is late, or its completion is, by no more
    /// than `longest`.
    pub(super) fn delay(&mut self, random: &mut Random, longest: Nanos) -> Option<()> {
        let ticks = (longest.as_nanos() / self.tick.as_nanos()).max(2);
        let ticks = random.between(1, ticks) as u32;
        let fault = random.pick(&[
            Fault::DelayRequest(ticks),
            Fault::DelayCompletion(ticks),
            Fault::NotReady(ticks),
        ]);
        self.strike(random, fault)
    }

    /// The next work request of one end that is posted fails, and the connection with it.
    pub(super) fn fail(&mut self, random: &mut Random) -> Option<()> {
        let fault = random.pick(&[
            Fault::Fail(CompletionStatus::RETRIES_EXCEEDED),
            Fault::Fail(CompletionStatus::RNR_RETRIES_EXCEEDED),
            Fault::Fail(CompletionStatus::REMOTE_ACCESS_ERROR),
            Fault::Fail(CompletionStatus::REMOTE_OPERATION_ERROR),
            Fault::Fail(CompletionStatus::GENERAL_ERROR),
            Fault::DropConnection,
            Fault::QueuePairFatal,
        ]);
        self.strike(random, fault)
    }

    /// The target's device is stuck on the next read or write that is posted: nothing more of the
    /// connection is done or flushed, and the data of a read arrives after the connection has failed.
    pub(super) fn wedge(&mut self, random: &mut Random) -> Option<()> {
        let operation = random.pick(&[Operation::Read, Operation::Read, Operation::Write]);
        let (fabric, number) = self.queue_pair(false)?;
        fabric.add_fault(Pattern::ONCE.by(number).of(operation), Fault::Wedge);
        Some(())
    }

    fn strike(&mut self, random: &mut Random, fault: Fault) -> Option<()> {
        let of_host = random.permille(300);
        let operation = random.pick(&[
            None,
            Some(Operation::Send),
            Some(Operation::Write),
            Some(Operation::Read),
            Some(Operation::Read),
        ]);
        let (fabric, number) = self.queue_pair(of_host)?;
        let pattern = Pattern {
            operation: operation.filter(|_| !of_host),
            ..Pattern::ONCE.by(number)
        };
        fabric.add_fault(pattern, fault);
        Some(())
    }

    /// How it stands, for messages.
    pub(super) fn state(&self) -> String {
        let Self {
            posted, later, end, ..
        } = self;
        let awaited = self.places.len();
        format!(
            "{posted} requests posted, {awaited} awaited, {} receives later, end {end:?}",
            later.len()
        )
    }
}

/// The next connection of a host is not made, or late.
pub(super) fn harm_next_connection(network: &RdmaNetwork, host: usize, random: &mut Random) {
    let kind = std::io::ErrorKind::HostUnreachable;
    let fault = random.pick(&[
        ConnectFault::AddressFailed(kind),
        ConnectFault::RouteFailed(kind),
        ConnectFault::Unreachable,
        // InfiniBand: stale connection.
        ConnectFault::Rejected(RejectReason(10)),
        ConnectFault::Delay(1000),
    ]);
    let pattern = Pattern::ONCE.on(network.host(host).machine());
    network.fabric().add_connect_fault(pattern, fault);
}

/// Looks the target up.
fn begin(provider: &Fake, fabric: Fabric) -> Ends {
    let mut channel = provider.event_channel().expect("descriptors");
    let connection = channel.connection(Token(1));
    let mut connection = connection.expect("the channel is there");
    let begun = connection.resolve_address(None, TARGET_ADDRESS, RESOLVE_TIMEOUT);
    begun.expect("the connection is new");
    Ends {
        verbs: None,
        connection,
        channel,
        fabric,
    }
}

/// Everything that a connection's data moves by.
fn verbs(
    connection: &mut FakeConnection,
    provider: &Fake,
    call: &Call,
    layout: Layout,
) -> Result<Verbs, String> {
    let told = |error: rdma::Error| error.to_string();
    let device = provider.devices().map_err(told)?.remove(0);
    let domain = device.create_domain().map_err(told)?;
    let region = Region::map(layout.bytes(), PagePolicy::Ordinary);
    let region = region.map_err(|error| error.to_string())?;
    let region = SharedRegion::new(region).map_err(|error| error.to_string())?;
    let access = if call.windows {
        Access::WINDOWS
    } else {
        Access::REMOTE
    };
    let memory = SharedMemory::<Fake>::register(&domain, region, access).map_err(told)?;
    let windows = if call.windows { layout.depth } else { 0 };
    let windows: Result<Vec<_>, _> = (0..windows).map(|_| domain.create_window()).collect();
    let depth = u32::from(call.shape.depth);
    let sends = depth * REQUESTS_PER_COMMAND;
    let completions = domain
        .create_completion_queue(sends + depth, Token(0))
        .map_err(told)?;
    let options = QueuePairOptions::<Fake> {
        send_completions: &completions,
        receive_completions: &completions,
        shared_receives: None,
        capacity: QueuePairCapacity {
            send_requests: sends,
            receive_requests: depth,
            send_sges: 1,
            receive_sges: 1,
            inline_bytes: 0,
        },
    };
    let queue_pair = connection
        .create_queue_pair(&domain, &options)
        .map_err(told)?;
    Ok(Verbs {
        queue_pair,
        windows: windows.map_err(told)?,
        memory,
        completions,
    })
}

fn post_receive(verbs: &mut Verbs, receive: u16, at: usize) {
    let request = ReceiveRequest {
        wr_id: RECEIVE | u64::from(receive),
        memory: SgeList::one(verbs.memory.piece(at, RESPONSE_BYTES)),
    };
    // One that has failed takes nothing more, and says so by its completions.
    let _ = verbs.queue_pair.queue_receive(&request);
}
