//! The devices' engine: executes requests in order, checks them at both ends, and completes them.

use crate::fake::counters::Operation;
use crate::fake::faults::{Fault, FaultPoint, LATE_BYTE};
use crate::fake::memory::{Bound, Segments};
use crate::fake::state::{
    Action, Armed, Entry, Head, QueuePairObject, ReceiveSource, SendEntry, State,
};
use crate::fake::table::Key;
use rdma::{
    CompletionFlags, CompletionOpcode, CompletionStatus, DeviceEvent, QueuePairFault,
    QueuePairState, RNR_RETRY_FOREVER, ReceiveRequest, SendOperation, WorkCompletion,
};

/// Progress of the first request of a send queue.
enum Step {
    /// The request left the queue, or will do so by itself.
    Moved,
    /// The request waits for time or for the peer.
    Blocked,
}

/// Result of executing a request.
#[derive(Clone, Copy)]
enum Outcome {
    /// Done, with this many bytes.
    Done(u32),
    /// The peer did not respond.
    NoResponse,
    /// The peer has no receive.
    NotReady,
    /// The request failed; the peer's queue pair fails too if it caused or detects the error.
    Failed(CompletionStatus, PeerEffect),
}

/// The completion of a receive.
#[derive(Clone, Copy)]
struct Received {
    status: CompletionStatus,
    bytes: u32,
    invalidated: Option<u32>,
    solicited: bool,
}

impl Received {
    /// A receive that failed. Failures count as solicited, so they wake a sleeping owner.
    fn failed(status: CompletionStatus) -> Self {
        Self {
            status,
            bytes: 0,
            invalidated: None,
            solicited: true,
        }
    }
}

/// Effect of a failed request on the peer's queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerEffect {
    Unaffected,
    Error(QueuePairFault),
}

impl State {
    /// Executes all requests that can execute now, in fixed order or, if not `in_order`, in
    /// pseudo-random order and portions.
    pub(super) fn run(&mut self, in_order: bool) {
        let spare = std::mem::take(&mut self.active_spare);
        let mut round = std::mem::replace(&mut self.active, spare);
        if !in_order {
            self.random.shuffle(&mut round);
        }
        for key in round.drain(..) {
            let portion = match in_order {
                true => u64::MAX,
                false => 1 + self.random.below(self.config.burst.max(1)),
            };
            if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
                queue_pair.listed = false;
            }
            for _ in 0..portion {
                match self.step(key) {
                    Some(Step::Moved) => {}
                    Some(Step::Blocked) | None => break,
                }
            }
            self.list(key);
        }
        self.active_spare = round;
    }

    /// Advances the first request of a send queue; `None` if there is none.
    fn step(&mut self, key: Key) -> Option<Step> {
        let tick = self.tick;
        let queue_pair = self.queue_pairs.get(key)?;
        if queue_pair.head.wedged {
            if queue_pair.state == QueuePairState::Error {
                self.write_late_data(key);
            }
            return Some(Step::Blocked);
        }
        if queue_pair.state == QueuePairState::Error {
            self.flush_all(key);
            return None;
        }
        queue_pair.sends.front()?;
        let (head, state) = (queue_pair.head, queue_pair.state);
        let starts_at = head.blocked_until.max(queue_pair.stalled_until);
        if state != QueuePairState::ReadyToSend || starts_at > tick {
            return Some(Step::Blocked);
        }
        if let Some(bytes) = head.executed {
            self.complete_head(key, CompletionStatus::SUCCESS, bytes);
            return Some(Step::Moved);
        }
        if !head.faults_checked
            && let Some(step) = self.apply_faults(key)
        {
            return Some(step);
        }
        let outcome = self.execute(key);
        Some(self.finish_request(key, outcome))
    }

    /// A stuck request accesses its local memory late.
    fn write_late_data(&self, key: Key) {
        let queue_pair = self.queue_pairs.get(key);
        let stuck = queue_pair.and_then(|one| Some((one.domain, one.sends.front()?)));
        let is_read = |entry: &SendEntry| entry.action.operation() == Operation::Read;
        if let Some((domain, entry)) = stuck.filter(|(_, entry)| is_read(entry))
            && let Ok(memory) = self.keys.local(domain, &entry.memory, true)
        {
            memory.fill(&[LATE_BYTE; 64]);
        }
    }

    /// Looks up the faults for the first request, once.
    fn apply_faults(&mut self, key: Key) -> Option<Step> {
        let tick = self.tick;
        let queue_pair = self.queue_pairs.get_mut(key)?;
        queue_pair.head.faults_checked = true;
        let operation = queue_pair.sends.front()?.action.operation();
        let fault_point = FaultPoint {
            machine: queue_pair.machine,
            queue_pair: Some(queue_pair.number),
            operation: Some(operation),
        };
        let fault = self
            .faults
            .choose(&mut self.random, fault_point, |_| true)?;
        let head = &mut self.queue_pairs.get_mut(key)?.head;
        match fault {
            Fault::Fail(status) => {
                let peer_effect = peer_effect_of(status);
                return Some(self.finish_request(key, Outcome::Failed(status, peer_effect)));
            }
            Fault::DropConnection => {
                self.drop_connection(key);
                return Some(Step::Moved);
            }
            Fault::NotReady(ticks) => head.not_ready_until = tick + u64::from(ticks),
            Fault::DelayRequest(ticks) => {
                head.blocked_until = tick + u64::from(ticks);
                return Some(Step::Blocked);
            }
            Fault::DelayCompletion(ticks) => {
                let bytes = match self.execute(key) {
                    Outcome::Done(bytes) => bytes,
                    other => return Some(self.finish_request(key, other)),
                };
                let head = &mut self.queue_pairs.get_mut(key)?.head;
                head.executed = Some(bytes);
                head.blocked_until = tick + u64::from(ticks);
                return Some(Step::Blocked);
            }
            Fault::Wedge => {
                self.queue_pairs.get_mut(key)?.head.wedged = true;
                return Some(Step::Blocked);
            }
            Fault::QueuePairFatal => {
                self.notify_queue_pair_fault(key, QueuePairFault::Fatal);
                self.fail_queue_pair(key);
                return Some(Step::Moved);
            }
        }
        None
    }

    /// Turns the result of a request into a completion, a wait or an error.
    fn finish_request(&mut self, key: Key, outcome: Outcome) -> Step {
        let tick = self.tick;
        let (status, peer_effect) = match outcome {
            Outcome::Done(bytes) => {
                self.complete_head(key, CompletionStatus::SUCCESS, bytes);
                return Step::Moved;
            }
            Outcome::NoResponse => match self.retry(key, tick, false) {
                None => return Step::Blocked,
                Some(status) => (status, PeerEffect::Unaffected),
            },
            Outcome::NotReady => match self.retry(key, tick, true) {
                None => return Step::Blocked,
                Some(status) => (status, PeerEffect::Unaffected),
            },
            Outcome::Failed(status, peer_effect) => (status, peer_effect),
        };
        let peer = self.queue_pairs.get(key).and_then(|one| one.peer);
        self.complete_head(key, status, 0);
        self.fail_queue_pair(key);
        if let (PeerEffect::Error(fault), Some(peer)) = (peer_effect, peer) {
            self.notify_queue_pair_fault(peer, fault);
            self.fail_queue_pair(peer);
        }
        Step::Moved
    }

    /// Counts a failed try; returns the error status if it was the last.
    fn retry(&mut self, key: Key, tick: u64, not_ready: bool) -> Option<CompletionStatus> {
        let pause = self.config.retry_ticks;
        let queue_pair = self.queue_pairs.get_mut(key)?;
        let head = &mut queue_pair.head;
        if head.next_try > tick {
            return None;
        }
        head.next_try = tick + pause;
        let machine = queue_pair.machine;
        if !not_ready {
            head.retries += 1;
            let exceeded = head.retries > u32::from(queue_pair.retries);
            return exceeded.then_some(CompletionStatus::RETRIES_EXCEEDED);
        }
        head.rnr_retries += 1;
        let limit = queue_pair.rnr_retries;
        let exceeded = limit != RNR_RETRY_FOREVER && head.rnr_retries > u32::from(limit);
        self.counters(machine).not_ready += 1;
        exceeded.then_some(CompletionStatus::RNR_RETRIES_EXCEEDED)
    }

    /// Executes the first request of a send queue.
    fn execute(&mut self, key: Key) -> Outcome {
        let Some(local) = self.queue_pairs.get(key) else {
            return Outcome::NoResponse;
        };
        let Some(entry) = local.sends.front().copied() else {
            return Outcome::NoResponse;
        };
        let (domain, device, peer_key) = (local.domain, local.device, local.peer);
        let is_partitioned = local.is_partitioned;
        let ready_after = local.head.not_ready_until;
        match entry.action {
            Action::Bind { .. } => return self.bind(key, domain, &entry.action),
            Action::Send(SendOperation::LocalInvalidate { rkey }) => {
                return match self.keys.invalidate(domain, rkey) {
                    Ok(()) => Outcome::Done(0),
                    Err(_) => Outcome::Failed(
                        CompletionStatus::LOCAL_QP_OPERATION_ERROR,
                        PeerEffect::Unaffected,
                    ),
                };
            }
            Action::Send(_) => {}
        }
        let read = entry.action.operation() == Operation::Read;
        if entry.inline_len.is_none() && self.keys.local(domain, &entry.memory, read).is_err() {
            let status = CompletionStatus::LOCAL_PROTECTION_ERROR;
            return Outcome::Failed(status, PeerEffect::Unaffected);
        }
        let Some((peer_key, peer)) = peer_key.and_then(|at| Some((at, self.queue_pairs.get(at)?)))
        else {
            return Outcome::NoResponse;
        };
        let is_responder = matches!(
            peer.state,
            QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend
        );
        if is_partitioned
            || !is_responder
            || !self.device_works(device)
            || !self.device_works(peer.device)
        {
            return Outcome::NoResponse;
        }
        match entry.action.remote() {
            Some(remote) => {
                let outcome = self.transfer_data(key, peer_key, &entry);
                if read && matches!(outcome, Outcome::Done(_)) {
                    self.record_read(peer_key, remote.address);
                }
                outcome
            }
            None if self.tick < ready_after => Outcome::NotReady,
            None => self.deliver(domain, peer_key, &entry),
        }
    }

    fn record_read(&mut self, responder: Key, address: u64) {
        let responder = self.queue_pairs.get_mut(responder);
        if let Some(reads) = responder.and_then(|it| it.reads_served.as_mut()) {
            reads.push(address);
        }
    }

    fn bind(&mut self, key: Key, domain: Key, action: &Action) -> Outcome {
        let Action::Bind {
            rkey,
            lkey,
            address,
            length,
            remote_read,
            remote_write,
        } = *action
        else {
            return Outcome::Done(0);
        };
        let bound = Bound {
            queue_pair: key,
            lkey,
            address,
            len: length,
            remote_read,
            remote_write,
        };
        match self.keys.bind(domain, rkey, bound) {
            Ok(()) => Outcome::Done(0),
            Err(_) => Outcome::Failed(CompletionStatus::WINDOW_BIND_ERROR, PeerEffect::Unaffected),
        }
    }

    /// Executes an RDMA write or read.
    fn transfer_data(&self, key: Key, peer_key: Key, entry: &SendEntry) -> Outcome {
        let (Some(local), Some(peer)) = (self.queue_pairs.get(key), self.queue_pairs.get(peer_key))
        else {
            return Outcome::NoResponse;
        };
        let Some(remote) = entry.action.remote() else {
            return Outcome::NoResponse;
        };
        let bytes = bytes_of(entry);
        let write = entry.action.operation() == Operation::Write;
        if !write && local.initiator_depth == 0 {
            let status = CompletionStatus::LOCAL_QP_OPERATION_ERROR;
            return Outcome::Failed(status, PeerEffect::Unaffected);
        }
        if !write && peer.responder_resources == 0 {
            let peer_effect = PeerEffect::Error(QueuePairFault::InvalidRequest);
            return Outcome::Failed(CompletionStatus::REMOTE_INVALID_REQUEST, peer_effect);
        }
        let there = self
            .keys
            .remote(peer.domain, peer_key, remote, bytes.into(), write);
        let Ok(there) = there else {
            let peer_effect = PeerEffect::Error(QueuePairFault::AccessViolation);
            return Outcome::Failed(CompletionStatus::REMOTE_ACCESS_ERROR, peer_effect);
        };
        match self.keys.local(local.domain, &entry.memory, !write) {
            Ok(here) if write => put(entry, &here, &there),
            Ok(here) => there.copy_to(&here),
            Err(_) => {
                let status = CompletionStatus::LOCAL_PROTECTION_ERROR;
                return Outcome::Failed(status, PeerEffect::Unaffected);
            }
        }
        Outcome::Done(bytes)
    }

    /// Delivers a message into one of the peer's receives.
    fn deliver(&mut self, domain: Key, peer_key: Key, entry: &SendEntry) -> Outcome {
        let Some(receive) = self.take_receive(peer_key) else {
            return Outcome::NotReady;
        };
        let Some(peer) = self.queue_pairs.get(peer_key) else {
            return Outcome::NoResponse;
        };
        let (peer_domain, machine) = (peer.domain, peer.machine);
        let bytes = bytes_of(entry);
        let mut invalidated = None;
        if let Action::Send(SendOperation::SendWithInvalidate { rkey }) = entry.action {
            if self.keys.invalidate(peer_domain, rkey).is_err() {
                let status = CompletionStatus::REMOTE_INVALID_REQUEST;
                self.complete_receive(peer_key, &receive, Received::failed(status));
                let peer_effect = PeerEffect::Error(QueuePairFault::AccessViolation);
                return Outcome::Failed(CompletionStatus::REMOTE_ACCESS_ERROR, peer_effect);
            }
            invalidated = Some(rkey);
        }
        let failed = match self.keys.local(peer_domain, &receive.memory, true) {
            Err(_) => Some((
                CompletionStatus::LOCAL_PROTECTION_ERROR,
                CompletionStatus::REMOTE_OPERATION_ERROR,
            )),
            Ok(there) if there.bytes() < bytes as usize => Some((
                CompletionStatus::LOCAL_LENGTH_ERROR,
                CompletionStatus::REMOTE_INVALID_REQUEST,
            )),
            Ok(there) => match self.keys.local(domain, &entry.memory, false) {
                Ok(here) => {
                    put(entry, &here, &there);
                    None
                }
                // Checked before, and unchanged since.
                Err(_) => None,
            },
        };
        if let Some((at_peer, here)) = failed {
            self.complete_receive(peer_key, &receive, Received::failed(at_peer));
            return Outcome::Failed(here, PeerEffect::Error(QueuePairFault::InvalidRequest));
        }
        let counters = self.counters(machine).at(Operation::Receive);
        counters.succeeded += 1;
        counters.bytes += u64::from(bytes);
        let received = Received {
            status: CompletionStatus::SUCCESS,
            bytes,
            invalidated,
            solicited: entry.solicited,
        };
        self.complete_receive(peer_key, &receive, received);
        Outcome::Done(bytes)
    }

    /// Takes the next receive of a queue pair.
    fn take_receive(&mut self, key: Key) -> Option<ReceiveRequest> {
        let queue_pair = self.queue_pairs.get_mut(key)?;
        let shared = match queue_pair.source {
            ReceiveSource::Own => return queue_pair.receives.posted.pop_front(),
            ReceiveSource::Shared(shared) => shared,
        };
        let device = queue_pair.device;
        let queue = self.shared_receives.get_mut(shared)?;
        let receive = queue.receives.posted.pop_front()?;
        if (queue.receives.posted.len() as u32) < queue.low_limit {
            queue.low_limit = 0;
            let token = queue.token;
            self.notify_device(device, DeviceEvent::ReceivesLow { token });
        }
        Some(receive)
    }

    fn complete_receive(&mut self, key: Key, receive: &ReceiveRequest, received: Received) {
        let Received {
            status,
            bytes,
            invalidated,
            solicited,
        } = received;
        let Some(queue_pair) = self.queue_pairs.get(key) else {
            return;
        };
        let completion = WorkCompletion {
            wr_id: receive.wr_id,
            status,
            opcode: CompletionOpcode::RECEIVE,
            byte_len: bytes,
            qp_number: queue_pair.number,
            vendor_error: 0,
            flags: match invalidated {
                Some(_) => CompletionFlags::WITH_INVALIDATE,
                None => CompletionFlags::default(),
            },
            invalidated_rkey: invalidated.unwrap_or(0),
        };
        let entry = Entry {
            completion,
            queue_pair: key,
            sends: 0,
            receive: Some(queue_pair.source),
        };
        let (queue, machine) = (queue_pair.receive_completions, queue_pair.machine);
        self.count_failure(machine, Operation::Receive, status);
        self.push_completion(queue, entry, solicited);
    }

    /// Removes the first request from a send queue, with a completion if it is signalled or failed.
    fn complete_head(&mut self, key: Key, status: CompletionStatus, bytes: u32) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return;
        };
        let Some(entry) = queue_pair.sends.pop_front() else {
            return;
        };
        queue_pair.head = Head::default();
        queue_pair.unsignalled += 1;
        let operation = entry.action.operation();
        let (machine, queue) = (queue_pair.machine, queue_pair.send_completions);
        let success = status == CompletionStatus::SUCCESS;
        let completion_entry = (entry.signalled || !success).then(|| Entry {
            completion: WorkCompletion {
                wr_id: entry.wr_id,
                status,
                opcode: opcode_of(operation),
                byte_len: if operation == Operation::Read {
                    bytes
                } else {
                    0
                },
                qp_number: queue_pair.number,
                ..WorkCompletion::default()
            },
            queue_pair: key,
            sends: std::mem::take(&mut queue_pair.unsignalled),
            receive: None,
        });
        if success {
            let counters = self.counters(machine).at(operation);
            counters.succeeded += 1;
            counters.bytes += u64::from(bytes);
        }
        self.count_failure(machine, operation, status);
        if let Some(completion_entry) = completion_entry {
            self.push_completion(queue, completion_entry, !success);
        }
    }

    fn count_failure(&mut self, machine: usize, operation: Operation, status: CompletionStatus) {
        let counters = self.counters(machine).at(operation);
        match status {
            CompletionStatus::SUCCESS => {}
            CompletionStatus::FLUSHED => counters.flushed += 1,
            _ => counters.failed += 1,
        }
    }

    /// Moves a queue pair to the error state and flushes it, receives last.
    pub(super) fn fail_queue_pair(&mut self, key: Key) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return;
        };
        if queue_pair.state == QueuePairState::Error {
            return;
        }
        let shared = queue_pair.source != ReceiveSource::Own;
        queue_pair.state = QueuePairState::Error;
        self.flush_all(key);
        if shared {
            self.notify_queue_pair_fault(key, QueuePairFault::LastReceive);
        }
    }

    /// Flushes the posted requests of a queue pair in the error state.
    pub(super) fn flush_all(&mut self, key: Key) {
        while let Some(queue_pair) = self.queue_pairs.get(key)
            && !queue_pair.sends.is_empty()
            && !queue_pair.head.wedged
        {
            match queue_pair.head.executed {
                Some(bytes) => self.complete_head(key, CompletionStatus::SUCCESS, bytes),
                None => self.complete_head(key, CompletionStatus::FLUSHED, 0),
            }
        }
        while let Some(queue_pair) = self.queue_pairs.get_mut(key)
            && let Some(receive) = queue_pair.receives.posted.pop_front()
        {
            let status = CompletionStatus::FLUSHED;
            self.complete_receive(key, &receive, Received::failed(status));
        }
    }

    /// Adds a completion; a full queue fails with all queue pairs on it.
    fn push_completion(&mut self, key: Key, entry: Entry, solicited: bool) {
        let Some(queue) = self.completion_queues.get_mut(key) else {
            return;
        };
        if queue.failed {
            return;
        }
        if queue.ring.len() < queue.entries {
            queue.ring.push_back(entry);
            let rings = match queue.armed {
                Armed::No => false,
                Armed::Any => true,
                Armed::Solicited => solicited,
            };
            if rings {
                queue.armed = Armed::No;
                queue.notifier.notify();
            }
            return;
        }
        queue.failed = true;
        queue.notifier.notify();
        let (device, token) = (queue.device, queue.token);
        self.notify_device(device, DeviceEvent::CompletionQueueFailed { token });
        let uses =
            |one: &QueuePairObject| one.send_completions == key || one.receive_completions == key;
        let lost: Vec<Key> = (self.queue_pairs.iter())
            .filter_map(|(at, one)| uses(one).then_some(at))
            .collect();
        for at in lost {
            self.notify_queue_pair_fault(at, QueuePairFault::Fatal);
            self.fail_queue_pair(at);
        }
    }
}

/// Writes a request's bytes to the peer's memory.
fn put(entry: &SendEntry, here: &Segments<'_>, there: &Segments<'_>) {
    match entry.inline_len {
        Some(len) => there.fill(&entry.inline[..usize::from(len)]),
        None => here.copy_to(there),
    }
}

fn bytes_of(entry: &SendEntry) -> u32 {
    match entry.inline_len {
        Some(len) => len.into(),
        None => entry.memory.bytes() as u32,
    }
}

fn opcode_of(operation: Operation) -> CompletionOpcode {
    match operation {
        Operation::Send | Operation::SendWithInvalidate => CompletionOpcode::SEND,
        Operation::Write => CompletionOpcode::WRITE,
        Operation::Read => CompletionOpcode::READ,
        Operation::BindWindow => CompletionOpcode::BIND_WINDOW,
        Operation::LocalInvalidate => CompletionOpcode::LOCAL_INVALIDATE,
        Operation::Receive => CompletionOpcode::RECEIVE,
    }
}

/// Effect of an injected failure on the peer.
fn peer_effect_of(status: CompletionStatus) -> PeerEffect {
    match status {
        CompletionStatus::REMOTE_ACCESS_ERROR => PeerEffect::Error(QueuePairFault::AccessViolation),
        CompletionStatus::REMOTE_INVALID_REQUEST | CompletionStatus::REMOTE_OPERATION_ERROR => {
            PeerEffect::Error(QueuePairFault::InvalidRequest)
        }
        _ => PeerEffect::Unaffected,
    }
}
