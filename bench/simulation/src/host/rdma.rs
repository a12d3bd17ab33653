//! The host's end of an NVMe/RDMA connection: sends capsules, receives responses, and gives the
//! target access to its memory by keys (RDMA 1.1 §3.3).
//!
//! It checks the target strictly: it compares written data with the requests, and invalidated keys
//! with those that the target was asked to invalidate.

use std::time::Duration;

use hugemem::{PagePolicy, Region, SharedRegion};
use nvme_spec::rdma::{ConnectReject, ConnectRequest, RECORD_FORMAT};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe, U16};
use rdma::{
    Access, CompletionQueue, CompletionStatus, ConnectParameters, Connection, ConnectionEvent,
    Device, Domain, Event, EventChannel, MemoryWindow, Payload, Provider, QueuePair,
    QueuePairCapacity, QueuePairOptions, RNR_RETRY_FOREVER, ReceiveRequest, Registration,
    RejectReason, SendOperation, SendRequest, SgeList, SharedMemory, Token, WindowBinding,
    WorkCompletion,
};
use rdma_testing::fake::{
    ConnectFault, Fabric, Fake, FakeCompletionQueue, FakeConnection, FakeEventChannel,
    FakeQueuePair, FakeWindow, Fault, Operation, Pattern,
};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::connection::{ConnectionShape, Damage, Incoming, Queue, Transfer};
use super::twins::{ByIdentifier, CompletionOwner, Which};
use super::{Command, IoKind};
use crate::fabric::{RdmaNetwork, TARGET_ADDRESS};
use crate::network::HostEnd;
use crate::random::Random;

const COMMAND_BYTES: usize = size_of::<Sqe>();
const RESPONSE_BYTES: usize = size_of::<Cqe>();
const DESCRIPTOR_BYTES: usize = size_of::<SglDescriptor>();
/// Extra space after a capsule's data, for capsules that are too long.
const CAPSULE_SLACK_BYTES: usize = 64;
/// Bytes after a command's data that must not be accessed.
const GUARD_BYTES: usize = 64;
/// The initial content of a host's memory.
const UNWRITTEN: u8 = 0xEE;
/// Minimum space for the data of each command: that of a Connect or a log page.
const DATA_BYTES_MIN: usize = 4096;
/// Maximum number of work requests per command: bind the window, send the capsule, invalidate the
/// window.
const REQUESTS_PER_COMMAND: u32 = 3;
/// Maximum number of descriptors for a command's data.
const PIECES_MAX: u64 = 4;
/// Marks work request identifiers of receives.
const RECEIVE: u64 = 1 << 32;
/// Unused: the fabric determines its own response times.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Parameters of a connection request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionRequest {
    /// The host's number.
    pub(super) host: usize,
    pub(super) shape: ConnectionShape,
    pub(super) cntlid: u16,
    /// Whether it creates a key for each command.
    pub(super) windows: bool,
    /// Whether it records the target's reads of its memory.
    pub(super) records_reads: bool,
    /// The invalid request, by number, that is sent first and must be rejected.
    pub(super) begins_wrong: Option<u64>,
}

/// The layout of a connection's memory, in bytes.
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

    /// The slot whose data is at an offset.
    fn slot_of(self, offset: usize) -> usize {
        (offset - self.data_at(0)) / self.data
    }

    fn bytes(self) -> usize {
        self.data_at(self.depth)
    }
}

/// The verbs objects of a connection, in drop order.
struct Verbs {
    queue_pair: FakeQueuePair,
    windows: Vec<FakeWindow>,
    memory: SharedMemory<Fake>,
    completions: FakeCompletionQueue,
}

/// The host's end, with all of its fabric objects.
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

    /// Breaks the connection and notifies both ends.
    pub(super) fn cut(&self) {
        if let Some(number) = self.number() {
            self.fabric.drop_connection(number);
        }
    }
}

/// The resources of an outstanding command.
struct CommandEntry {
    slot: u16,
    /// Number of bytes that the target may write.
    expected: usize,
    /// The key that the target was asked to invalidate, and whether it has to.
    key: Option<(u32, bool)>,
}

/// The host's end of an RDMA connection.
pub(super) struct RdmaTransportEnd {
    /// `None` after the host vanished.
    ends: Option<Ends>,
    provider: Fake,
    connection_request: ConnectionRequest,
    layout: Layout,
    tick: Nanos,
    entries: ByIdentifier<CommandEntry>,
    free: Vec<u16>,
    /// Outstanding send requests.
    posted: u32,
    /// Receives that are posted again later, with their times.
    later: Vec<(Nanos, u16)>,
    /// Whether the current connection request must be rejected.
    is_wrong: bool,
    end: Option<HostEnd>,
}

impl RdmaTransportEnd {
    /// Starts a connection with the resolution of the address.
    pub(super) fn open(network: &RdmaNetwork, connection_request: ConnectionRequest) -> Self {
        let provider = network.host(connection_request.host).clone();
        let fabric = network.fabric().clone();
        let layout = Layout::new(&connection_request.shape);
        Self {
            ends: Some(begin(&provider, fabric)),
            provider,
            connection_request,
            layout,
            tick: network.tick(),
            entries: ByIdentifier::default(),
            free: (0..connection_request.shape.depth).rev().collect(),
            posted: 0,
            later: Vec::new(),
            is_wrong: connection_request.begins_wrong.is_some(),
            end: None,
        }
    }

    /// Number of commands that fit into the send queue.
    pub(super) fn room(&self) -> usize {
        let most = u32::from(self.connection_request.shape.depth) * REQUESTS_PER_COMMAND;
        ((most - self.posted.min(most)) / REQUESTS_PER_COMMAND) as usize
    }

    /// Sends a command with its data according to `transfer`, in the capsule if `in_capsule`.
    pub(super) fn send(
        &mut self,
        queue: &mut Queue,
        sqe: Sqe,
        (transfer, in_capsule): (Transfer, bool),
        damage: Damage,
    ) {
        // The caller has checked that there is room.
        let Some(slot) = self.free.pop() else { return };
        let at = self.layout.data_at(usize::from(slot));
        let mut entry = CommandEntry {
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
                entry.expected = bytes;
                self.write(at, &vec![UNWRITTEN; bytes + GUARD_BYTES]);
                self.describe_data(queue, &mut entry, (bytes, true), &mut behind, damage)
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
                self.describe_data(queue, &mut entry, (data.len(), false), &mut behind, damage)
            }
        };
        let Some(sgl) = sgl else { return };
        let pointed = if is_raw { sqe } else { sqe.with_sgl(sgl) };
        let mut capsule = pointed.as_bytes().to_vec();
        capsule.extend(behind);
        self.post_capsule(slot, &capsule);
        self.entries.insert(sqe.cid.get(), entry);
    }

    /// Describes a command's data with its own key or the key of the memory, by one descriptor or
    /// by several, which are appended to `behind`.
    fn describe_data(
        &mut self,
        queue: &mut Queue,
        entry: &mut CommandEntry,
        (bytes, to_host): (usize, bool),
        behind: &mut Vec<u8>,
        damage: Damage,
    ) -> Option<SglDescriptor> {
        let slot = usize::from(entry.slot);
        let verbs = self.ends.as_mut()?.verbs.as_mut()?;
        let offset = self.layout.data_at(slot);
        let address = (verbs.memory.registration().address() + offset) as u64;
        if damage == Damage::Key {
            // An invalid key, or memory beyond the registered region.
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
            entry.key = Some((key, remotely));
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
        // A failed queue pair accepts no requests; its completions report the failure.
        let _ = verbs.queue_pair.flush();
    }

    /// Sends a capsule that is too short or too long.
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
        let due = self.later.iter().filter(|(at, _)| *at <= now);
        let due: Vec<u16> = due.map(|(_, receive)| *receive).collect();
        self.later.retain(|(at, _)| *at > now);
        due.into_iter()
            .for_each(|receive| self.post_receive(receive));
        if self.connection_request.records_reads {
            self.take_reads(queue);
        }
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

    /// Notes the commands whose data the target has begun to read.
    fn take_reads(&mut self, queue: &mut Queue) {
        let Some(ends) = &self.ends else { return };
        let Some(verbs) = &ends.verbs else { return };
        let base = verbs.memory.registration().address() as u64;
        for address in ends.fabric.take_reads(verbs.queue_pair.number()) {
            let slot = self.layout.slot_of((address - base) as usize);
            if let Some((cid, which)) = self.entries.find(|it| usize::from(it.slot) == slot) {
                queue.memory_granted(cid, which, true);
            }
        }
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
        self.completed(queue, &cqe, completion.invalidated())?;
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

    /// Handles a response: reads the command's data, and invalidates its key if the target did not.
    fn completed(
        &mut self,
        queue: &mut Queue,
        cqe: &Cqe,
        invalidated: Option<u32>,
    ) -> Result<(), String> {
        let cid = cqe.cid.get();
        let is_ambiguous = queue.ambiguous_completions.contains_key(&cid);
        let which = match queue.owner_of(cqe) {
            // Both entries are freed when both commands are complete; neither has its own key.
            CompletionOwner::Either if !is_ambiguous => return Ok(()),
            CompletionOwner::Of(which) => which,
            CompletionOwner::Alone | CompletionOwner::Either => Which::First,
        };
        let Some(entry) = self.entries.take(cid, which) else {
            return Ok(());
        };
        if is_ambiguous {
            let others = self.entries.take(cid, Which::First);
            self.free.extend(others.map(|it| it.slot));
        }
        let at = self.layout.data_at(usize::from(entry.slot));
        if entry.expected > 0 {
            let mut data = vec![0; entry.expected + GUARD_BYTES];
            self.read(at, &mut data);
            let guard = data.split_off(entry.expected);
            if guard.iter().any(|byte| *byte != UNWRITTEN) {
                return Err(format!("more data for command {cid} than it requested"));
            }
            if let Some(outstanding) = queue.command_mut(cid, which) {
                outstanding.data = data;
            }
        }
        // A target may skip the data of commands that transfer none, and then leaves their keys
        // valid.
        let moved = queue
            .command_mut(cid, which)
            .is_some_and(|it| match &it.command {
                Command::Io(io) => {
                    let kinds = [IoKind::Read, IoKind::Write, IoKind::Compare, IoKind::Copy];
                    kinds.contains(&io.kind)
                }
                _ => false,
            });
        match (entry.key, invalidated) {
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
        self.free.push(entry.slot);
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
            ConnectionEvent::RouteResolved => self.send_connect_request()?,
            ConnectionEvent::Established { .. } if self.is_wrong => {
                return Err("an invalid connection request was accepted".to_owned());
            }
            ConnectionEvent::Established { .. } => incoming.push(Incoming::Initialised),
            ConnectionEvent::Rejected {
                reason,
                private_data,
            } => self.rejected(reason, private_data.as_slice())?,
            // The network caused this, not the target.
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

    /// Creates the queue pair and sends the connection request.
    fn send_connect_request(&mut self) -> Result<(), String> {
        let (connection_request, layout, is_wrong) =
            (self.connection_request, self.layout, self.is_wrong);
        let Some(ends) = &mut self.ends else {
            return Ok(());
        };
        let verbs = verbs(
            &mut ends.connection,
            &self.provider,
            &connection_request,
            layout,
        )?;
        let verbs = ends.verbs.insert(verbs);
        for receive in 0..connection_request.shape.depth {
            post_receive(verbs, receive, layout.response_at(usize::from(receive)));
        }
        let posted = verbs.queue_pair.flush();
        posted.map_err(|error| error.to_string())?;
        let ConnectionShape { qid, depth, .. } = connection_request.shape;
        let cntlid = if qid == 0 {
            0
        } else {
            connection_request.cntlid
        };
        let mut request = ConnectRequest::new(qid, depth, depth - 1, cntlid);
        if is_wrong {
            match connection_request.begins_wrong {
                Some(0) => request.recfmt = U16::new(RECORD_FORMAT + 1),
                Some(1) => request.hrqsize = U16::new(depth - 1),
                _ => request.hsqsize_z = U16::new(u16::MAX),
            }
        }
        let begun = ends.connection.connect(&ConnectParameters {
            private_data: request.as_bytes(),
            initiator_depth: 0,
            responder_resources: 16,
            retries: 7,
            rnr_retries: RNR_RETRY_FOREVER,
        });
        begun.map_err(|error| error.to_string())
    }

    /// Handles a rejection by the target or the connection manager.
    fn rejected(&mut self, reason: RejectReason, data: &[u8]) -> Result<(), String> {
        let by_target = reason == RejectReason::BY_CONSUMER;
        let reject = ConnectReject::read_from_prefix(data).ok();
        let reject = reject
            .map(|(reject, _)| reject)
            .filter(|it| by_target && it.sts.get() != 0);
        if self.is_wrong && reject.is_some() {
            // The request is repeated correctly on a new connection.
            self.is_wrong = false;
            if let Some(ends) = self.ends.take() {
                let fabric = ends.fabric.clone();
                self.ends = Some(begin(&self.provider, fabric));
            }
            return Ok(());
        }
        let has_no_room =
            reject.is_some_and(|it| it.reason() == nvme_spec::rdma::RejectReason::NO_RESOURCES);
        let of_network = !by_target && reason != RejectReason::NO_LISTENER;
        self.end.get_or_insert(if has_no_room || of_network {
            HostEnd::Cut
        } else {
            HostEnd::Reset
        });
        Ok(())
    }

    /// The next time at which it acts on its own.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Disconnects in order.
    pub(super) fn finish(&mut self) {
        if let Some(ends) = &mut self.ends {
            // The fabric does not refuse this.
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

    /// Delays everything in one direction until `until`.
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

    /// The number of the target's queue pair, and its outstanding send requests.
    pub(super) fn of_target(&self) -> Option<(u32, u32)> {
        let (fabric, number) = self.queue_pair(false)?;
        Some((number, fabric.sends_in_use(number)?))
    }

    /// Lets the host vanish silently.
    pub(super) fn vanish(&mut self) -> Option<Box<Ends>> {
        let ends = self.ends.take()?;
        ends.fabric.partition(ends.number()?);
        Some(Box::new(ends))
    }

    /// Delays the next posted work request of one end, or its completion, by at most `longest`.
    pub(super) fn delay(&mut self, random: &mut Random, longest: Nanos) -> Option<()> {
        let ticks = (longest.as_nanos() / self.tick.as_nanos()).max(2);
        let ticks = random.between(1, ticks) as u32;
        let fault = random.pick(&[
            Fault::DelayRequest(ticks),
            Fault::DelayCompletion(ticks),
            Fault::NotReady(ticks),
        ]);
        self.inject_fault(random, fault)
    }

    /// Makes the next posted work request of one end fail, and with it the connection.
    pub(super) fn fail(&mut self, random: &mut Random) -> Option<()> {
        let fault = pick_failure(random);
        self.inject_fault(random, fault)
    }

    /// Makes the target's next read of the host's memory fail, and with it the connection.
    pub(super) fn fail_read(&mut self, random: &mut Random) -> Option<()> {
        let (fabric, number) = self.queue_pair(false)?;
        let pattern = Pattern::ONCE.by(number).of(Operation::Read);
        fabric.add_fault(pattern, pick_failure(random));
        Some(())
    }

    /// Makes the target's device hang on the next posted read or write: no other request of the
    /// connection completes or is flushed, and the data of a read arrives after the connection has
    /// failed.
    pub(super) fn hang_next_request(&mut self, random: &mut Random) -> Option<()> {
        let operation = random.pick(&[Operation::Read, Operation::Read, Operation::Write]);
        let (fabric, number) = self.queue_pair(false)?;
        fabric.add_fault(Pattern::ONCE.by(number).of(operation), Fault::Wedge);
        Some(())
    }

    fn inject_fault(&mut self, random: &mut Random, fault: Fault) -> Option<()> {
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

    /// Its state, for messages.
    pub(super) fn state(&self) -> String {
        let Self {
            posted, later, end, ..
        } = self;
        let awaited = self.entries.len();
        format!(
            "{posted} requests posted, {awaited} awaited, {} receives later, end {end:?}",
            later.len()
        )
    }
}

/// A failure of a work request that ends its connection.
fn pick_failure(random: &mut Random) -> Fault {
    random.pick(&[
        Fault::Fail(CompletionStatus::RETRIES_EXCEEDED),
        Fault::Fail(CompletionStatus::RNR_RETRIES_EXCEEDED),
        Fault::Fail(CompletionStatus::REMOTE_ACCESS_ERROR),
        Fault::Fail(CompletionStatus::REMOTE_OPERATION_ERROR),
        Fault::Fail(CompletionStatus::GENERAL_ERROR),
        Fault::DropConnection,
        Fault::QueuePairFatal,
    ])
}

/// Makes the next connection of a host fail or late.
pub(super) fn disturb_next_connection(network: &RdmaNetwork, host: usize, random: &mut Random) {
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

/// Starts the resolution of the target's address.
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

/// Creates the verbs objects of a connection.
fn verbs(
    connection: &mut FakeConnection,
    provider: &Fake,
    connection_request: &ConnectionRequest,
    layout: Layout,
) -> Result<Verbs, String> {
    let text = |error: rdma::Error| error.to_string();
    let device = provider.devices().map_err(text)?.remove(0);
    let domain = device.create_domain().map_err(text)?;
    let region = Region::map(layout.bytes(), PagePolicy::Ordinary);
    let region = region.map_err(|error| error.to_string())?;
    let region = SharedRegion::new(region).map_err(|error| error.to_string())?;
    let access = if connection_request.windows {
        Access::WINDOWS
    } else {
        Access::REMOTE
    };
    let memory = SharedMemory::<Fake>::register(&domain, region, access).map_err(text)?;
    let windows = if connection_request.windows {
        layout.depth
    } else {
        0
    };
    let windows: Result<Vec<_>, _> = (0..windows).map(|_| domain.create_window()).collect();
    let depth = u32::from(connection_request.shape.depth);
    let sends = depth * REQUESTS_PER_COMMAND;
    let completions = domain
        .create_completion_queue(sends + depth, Token(0))
        .map_err(text)?;
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
        .map_err(text)?;
    Ok(Verbs {
        queue_pair,
        windows: windows.map_err(text)?,
        memory,
        completions,
    })
}

fn post_receive(verbs: &mut Verbs, receive: u16, at: usize) {
    let request = ReceiveRequest {
        wr_id: RECEIVE | u64::from(receive),
        memory: SgeList::one(verbs.memory.piece(at, RESPONSE_BYTES)),
    };
    // A failed queue pair accepts no requests; its completions report the failure.
    let _ = verbs.queue_pair.queue_receive(&request);
}
