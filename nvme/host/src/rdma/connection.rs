//! An established NVMe/RDMA connection of a host: sends command capsules, receives response
//! capsules (RDMA 1.1 §3.3).
//!
//! It owns the queue pair, its completion queue and the commands in flight with their data. A
//! command completes when its response was received, when its capsule was sent if the capsule is in
//! memory, and when the key of its window is invalid again, invalidated by the target or by this
//! side.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use hugemem::DmaBuffer;
use nvme_spec::sgl::{KEYED_LENGTH_MAX_BYTES, SglDescriptor};
use nvme_spec::tcp::PduType;
use nvme_spec::{Cqe, Sqe};
use rdma::{
    CompletionQueue, CompletionStatus, Connection as _, ConnectionEvent, DeviceMemory, Event,
    EventChannel, MemoryMap, Payload, PostError, Provider, QueuePair, ReceiveRequest,
    SendOperation, SendRequest, SgeList, WindowBinding, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::IntoBytes;

use crate::error::{HostError, ProtocolError};
use crate::link::{
    COMPLETIONS_MAX, Completion, Completions, ConnectionCounters, Link, Refusal, Refused, Transfer,
};
use crate::rdma::keys::{DESCRIPTORS_MAX, Descriptors, Windows, describe, no_data};
use crate::rdma::memory::{CommandData, CommandDone};
use crate::rdma::work::{SendQueueUsage, Work};
use crate::slots::Slots;

/// Maximum number of completions taken from the completion queue at a time.
const BATCH: usize = 32;

/// Empty polls of the completion queue between two checks for connection events, which enter the
/// kernel.
const EMPTY_POLLS_PER_EVENT_CHECK: u32 = 1024;

/// Bytes of a response capsule.
pub(crate) const RESPONSE_BYTES: usize = size_of::<Cqe>();

/// Bytes of a command capsule without data.
pub(crate) const COMMAND_BYTES: usize = size_of::<Sqe>();

/// Maximum bytes of a capsule without data: a command and its descriptors.
const CAPSULE_MAX_BYTES: usize = COMMAND_BYTES + DESCRIPTORS_MAX * size_of::<SglDescriptor>();

/// State of a command's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum WindowState {
    /// There is none, or its key is invalid again.
    #[default]
    Closed,
    /// The target may use it.
    Open,
    /// Waits for room in the send queue to invalidate it.
    Closing,
    /// The invalidation is in progress.
    Invalidating,
}

/// A command in flight.
#[derive(Debug)]
pub(crate) struct Command<B: CommandData> {
    token: u64,
    data: Option<B::Posted>,
    /// Bytes requested from the target.
    expected: u32,
    /// Its capsule is in memory, and was not sent yet.
    sending: bool,
    window: WindowState,
    response: Option<Cqe>,
}

impl<B: CommandData> Default for Command<B> {
    fn default() -> Self {
        Self {
            token: 0,
            data: None,
            expected: 0,
            sending: false,
            window: WindowState::Closed,
            response: None,
        }
    }
}

/// Parameters and memory of a connection, determined when it is established.
#[derive(Debug)]
pub(crate) struct RdmaParameters<P: Provider> {
    pub(crate) map: Arc<MemoryMap<P>>,
    /// Maximum number of commands in flight.
    pub(crate) depth: u16,
    pub(crate) send_entries: u16,
    pub(crate) inline_bytes: usize,
    pub(crate) windows: Option<Windows<P>>,
    /// Maximum number of data descriptors per command.
    pub(crate) descriptors: usize,
    /// Receive buffers for responses, [`RESPONSE_BYTES`] each.
    pub(crate) responses: Arc<DmaBuffer>,
    /// Send buffers for capsules, one per slot, `capsule_stride` bytes each.
    pub(crate) capsules: Arc<DmaBuffer>,
    pub(crate) capsule_stride: usize,
    /// Maximum bytes of in-capsule data after Connect.
    pub(crate) in_capsule_max_bytes: u32,
}

/// The verbs objects, in the order in which they are dropped.
#[derive(Debug)]
pub(crate) struct Verbs<P: Provider> {
    pub(crate) queue_pair: P::QueuePair,
    pub(crate) connection: P::Connection,
    pub(crate) completions: P::CompletionQueue,
    pub(crate) events: P::EventChannel,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct RdmaConnection<P: Provider, B: CommandData> {
    /// `None` after the connection has failed: the device then accesses no memory of commands.
    queue_pair: Option<P::QueuePair>,
    parameters: RdmaParameters<P>,
    connection: P::Connection,
    completion_queue: P::CompletionQueue,
    events: P::EventChannel,
    commands: Slots<Command<B>>,
    send_queue: SendQueueUsage,
    /// Slots whose windows wait for room in the send queue to be invalidated.
    closing: VecDeque<u16>,
    /// Completions found when the caller was about to sleep.
    ready_completions: ArrayVec<WorkCompletion, BATCH>,
    in_capsule_max_bytes: u32,
    has_unsent: bool,
    empty_polls: u32,
    counters: ConnectionCounters,
    failure: Option<HostError>,
    /// Proof that the queue pair was destroyed.
    queue_pair_destroyed: Option<CommandDone>,
}

impl<P: Provider, B: CommandData> RdmaConnection<P, B> {
    /// A connection over an established queue pair with all its receives posted.
    pub(crate) fn new(verbs: Verbs<P>, parameters: RdmaParameters<P>) -> Self {
        let depth = usize::from(parameters.depth);
        Self {
            queue_pair: Some(verbs.queue_pair),
            connection: verbs.connection,
            completion_queue: verbs.completions,
            events: verbs.events,
            commands: Slots::new(depth),
            send_queue: SendQueueUsage::new(parameters.send_entries),
            closing: VecDeque::with_capacity(depth),
            ready_completions: ArrayVec::new(),
            in_capsule_max_bytes: 0,
            has_unsent: false,
            empty_polls: 0,
            counters: ConnectionCounters::default(),
            failure: None,
            queue_pair_destroyed: None,
            parameters,
        }
    }

    /// Checks that need no slot: room in the send queue, and the data's length.
    fn admit(&self, transfer: Transfer<B>) -> Result<(bool, u32, Option<B>), Refused<B>> {
        let (reads, data) = match transfer {
            Transfer::None => (false, None),
            Transfer::Read(data) | Transfer::ReadUpTo(data) => (true, Some(data)),
            Transfer::Write(data) => (false, Some(data)),
        };
        let length = data.as_ref().map_or(0, CommandData::bytes);
        let refusal = if self.failure.is_some() {
            Refusal::Failed
        } else if data.is_some() && length == 0 || length > KEYED_LENGTH_MAX_BYTES as usize {
            Refusal::Length
        } else if !self.send_queue.have_room(2) {
            Refusal::Full
        } else {
            return Ok((reads, length as u32, data));
        };
        Err(Refused { refusal, data })
    }

    /// Describes the data of slot `index`: the descriptors for the capsule, and the memory of
    /// in-capsule data. Returns `None` if the memory is not registered.
    fn describe_data(
        &mut self,
        index: u16,
        reads: bool,
        (data, length): (&B::Posted, usize),
    ) -> Option<(Descriptors, SgeList)> {
        let data = B::memory(data);
        if !reads && length <= self.in_capsule_max_bytes as usize {
            let inside = SglDescriptor::in_capsule(0, length as u32);
            let memory = self.parameters.map.gather(data, 0, length)?;
            return Some((Descriptors::from_iter([inside]), memory));
        }
        let key = match &mut self.parameters.windows {
            None => None,
            Some(windows) => {
                let (window, whole) = windows.binding(index, data)?;
                let signalled = self.send_queue.take(false);
                let binding = WindowBinding {
                    wr_id: Work::Binding(index).id(signalled.unwrap_or(0)),
                    address: data.address() as u64,
                    length: length as u64,
                    remote_read: !reads,
                    remote_write: reads,
                    signalled: signalled.is_some(),
                };
                let queue_pair = self.queue_pair.as_mut()?;
                queue_pair.queue_bind(window, whole, &binding).ok()?;
                self.counters.work_requests += 1;
                self.commands.get_mut(index).window = WindowState::Open;
                windows.key(index)
            }
        };
        let shape = (length, self.parameters.descriptors);
        let list = describe(&self.parameters.map, key, data, shape)?;
        Some((list, SgeList::EMPTY))
    }

    /// Queues the capsule of slot `index`: as inline data if it fits, otherwise from memory.
    fn queue_capsule(
        &mut self,
        index: u16,
        sqe: &Sqe,
        descriptors: &[SglDescriptor],
        data: SgeList,
    ) -> Result<(), PostError> {
        let mut capsule = ArrayVec::<u8, CAPSULE_MAX_BYTES>::new();
        // Both fit: the array has room for the maximum of each.
        capsule.extend(sqe.as_bytes().iter().copied());
        if descriptors.len() > 1 {
            capsule.extend(descriptors.as_bytes().iter().copied());
        }
        let inline = data.as_slice().is_empty() && capsule.len() <= self.parameters.inline_bytes;
        let signalled = self.send_queue.take(!inline);
        let work = if inline {
            Work::Copied(index)
        } else {
            Work::Command(index)
        };
        let mut memory;
        let payload = if inline {
            Payload::Inline(&capsule)
        } else {
            self.commands.get_mut(index).sending = true;
            let start = usize::from(index) * self.parameters.capsule_stride;
            self.parameters.capsules.write(start, &capsule);
            let capsules = &*self.parameters.capsules;
            let staged = self.parameters.map.gather(capsules, start, capsule.len());
            memory = staged.ok_or(PostError::NotPossible)?;
            for piece in data.as_slice() {
                memory.push(*piece).map_err(|_| PostError::TooManyPieces)?;
            }
            Payload::Memory(memory.as_slice())
        };
        let id = work.id(signalled.unwrap_or(0));
        let request =
            SendRequest::new(id, SendOperation::Send, payload).signalled(signalled.is_some());
        let queue_pair = self.queue_pair.as_mut().ok_or(PostError::NotPossible)?;
        queue_pair.queue_send(&request)?;
        self.counters.work_requests += 1;
        self.has_unsent = true;
        Ok(())
    }

    /// Processes a work completion, which completes at most one command.
    fn handle_work_completion(
        &mut self,
        completion: &WorkCompletion,
        completions: &mut Completions<B>,
    ) -> Result<(), HostError> {
        let (work, retires) = Work::of(completion.wr_id);
        self.counters.work_completions += 1;
        if !completion.is_success() {
            return Err(self.work_error(work, completion.status));
        }
        self.send_queue.retire(retires);
        match work {
            Work::Response(buffer) => {
                let index = self.take_response(buffer, completion)?;
                self.finish(index, completions);
            }
            Work::Command(index) => {
                self.commands.get_mut(index).sending = false;
                self.finish(index, completions);
            }
            Work::Invalidation(index) => {
                self.commands.get_mut(index).window = WindowState::Closed;
                self.finish(index, completions);
            }
            Work::Copied(_) | Work::Binding(_) => {}
        }
        Ok(())
    }

    /// The error for a failed work request: a connection event if there is one, otherwise the
    /// request's status.
    fn work_error(&mut self, work: Work, status: CompletionStatus) -> HostError {
        if let Err(error) = self.check_events() {
            return error;
        }
        if status == CompletionStatus::FLUSHED {
            return HostError::Closed;
        }
        let what = work.what();
        HostError::WorkRequest { what, status }
    }

    /// Copies a response capsule from its buffer, posts the buffer again, and stores the response
    /// in its command. Returns the command's slot.
    fn take_response(
        &mut self,
        buffer: u16,
        completion: &WorkCompletion,
    ) -> Result<u16, HostError> {
        if completion.byte_len as usize != RESPONSE_BYTES {
            let found = completion.byte_len;
            return Err(ProtocolError::ResponseLength { found }.into());
        }
        let mut bytes = [0; RESPONSE_BYTES];
        self.parameters
            .responses
            .read(usize::from(buffer) * RESPONSE_BYTES, &mut bytes);
        let cqe: Cqe = zerocopy::transmute!(bytes);
        let request = receive_request(&self.parameters.map, &self.parameters.responses, buffer)
            .ok_or(PostError::NotPossible)?;
        if let Some(queue_pair) = &mut self.queue_pair {
            queue_pair.queue_receive(&request)?;
            self.counters.work_requests += 1;
        }
        let cid = cqe.cid.get();
        let kind = PduType::CAPSULE_RESP;
        let index = self
            .commands
            .find(cid)
            .filter(|&index| self.commands.get(index).response.is_none())
            .ok_or(ProtocolError::UnknownCommand { kind, cid })?;
        let command = self.commands.get_mut(index);
        if let Some(found) = completion.invalidated() {
            let own = self
                .parameters
                .windows
                .as_ref()
                .and_then(|all| all.key(index));
            if command.window != WindowState::Open || own != Some(found) {
                return Err(ProtocolError::InvalidatedKey { cid, found }.into());
            }
            command.window = WindowState::Closed;
            self.counters.invalidations += 1;
        }
        command.response = Some(cqe);
        Ok(index)
    }

    /// Completes a command if nothing is outstanding; otherwise continues with closing its window.
    fn finish(&mut self, index: u16, completions: &mut Completions<B>) {
        let command = self.commands.get_mut(index);
        let Some(cqe) = command.response.filter(|_| !command.sending) else {
            return;
        };
        match command.window {
            WindowState::Closed => {}
            WindowState::Open => {
                command.window = WindowState::Closing;
                self.closing.push_back(index);
                return;
            }
            WindowState::Closing | WindowState::Invalidating => return,
        }
        let Command {
            token,
            data,
            expected,
            ..
        } = self.commands.release(index);
        let data = data.map(|data| B::take_back(data, &CommandDone::completed()));
        let received = if cqe.status().is_success() {
            expected
        } else {
            0
        };
        self.counters.placed_bytes += u64::from(received);
        completions.push(Completion {
            token,
            cqe,
            received,
            data,
        });
    }

    /// Invalidates the windows that the target did not.
    fn close_windows(&mut self) -> Result<(), PostError> {
        while let Some(&index) = self.closing.front() {
            let key = self
                .parameters
                .windows
                .as_ref()
                .and_then(|all| all.key(index));
            let (Some(rkey), Some(queue_pair)) = (key, self.queue_pair.as_mut()) else {
                return Err(PostError::NotPossible);
            };
            if !self.send_queue.have_room(1) {
                return Ok(());
            }
            let retires = self.send_queue.take(true).unwrap_or(1);
            let request = SendRequest::new(
                Work::Invalidation(index).id(retires),
                SendOperation::LocalInvalidate { rkey },
                Payload::Memory(&[]),
            );
            queue_pair.queue_send(&request)?;
            self.counters.work_requests += 1;
            self.has_unsent = true;
            self.commands.get_mut(index).window = WindowState::Invalidating;
            self.closing.pop_front();
        }
        Ok(())
    }

    /// Polls the completion queue and adds completed commands.
    fn collect(&mut self, completions: &mut Completions<B>, most: usize) -> Result<(), HostError> {
        while completions.len() < most {
            let room = (most - completions.len()).min(BATCH);
            let mut batch = [WorkCompletion::default(); BATCH];
            let found = if self.ready_completions.is_empty() {
                self.completion_queue
                    .poll(&mut batch[..room])
                    .map_err(|_| HostError::DeviceRemoved)?
            } else {
                let found = room.min(self.ready_completions.len());
                for (place, completion) in
                    batch.iter_mut().zip(self.ready_completions.drain(..found))
                {
                    *place = completion;
                }
                found
            };
            if found == 0 {
                self.counters.empty_receives += 1;
                self.empty_polls += 1;
                if self.empty_polls >= EMPTY_POLLS_PER_EVENT_CHECK {
                    self.empty_polls = 0;
                    self.check_events()?;
                }
                return Ok(());
            }
            self.empty_polls = 0;
            self.counters.receives += 1;
            for completion in &batch[..found] {
                self.handle_work_completion(completion, completions)?;
            }
            if found < room {
                break;
            }
        }
        Ok(())
    }

    /// Processes connection events.
    fn check_events(&mut self) -> Result<(), HostError> {
        loop {
            match self.events.next_event() {
                Ok(None) => return Ok(()),
                Ok(Some(Event::Connection { event, .. })) => match event {
                    ConnectionEvent::Disconnected => return Err(HostError::Closed),
                    ConnectionEvent::DeviceRemoved => return Err(HostError::DeviceRemoved),
                    _ => {}
                },
                Ok(Some(_)) => {}
                Err(_) => return Err(HostError::DeviceRemoved),
            }
        }
    }

    fn check_failure(&self) -> Result<(), HostError> {
        self.failure
            .as_ref()
            .map_or(Ok(()), |failure| Err(failure.duplicate()))
    }

    /// Records `error` as the reason why the connection ended, and ends the device's access to
    /// memory.
    fn fail(&mut self, error: HostError) -> HostError {
        if self.failure.is_none() {
            // The connection has failed whether or not the peer can be notified.
            let _ = self.connection.disconnect();
            self.end_queue_pair();
            self.failure = Some(error.duplicate());
        }
        error
    }
}

impl<P: Provider, B: CommandData> RdmaConnection<P, B> {
    /// Destroys the queue pair. If the device refuses that, it may still access the memory of
    /// posted requests, which is then never reused.
    fn end_queue_pair(&mut self) {
        let Some(mut queue_pair) = self.queue_pair.take() else {
            return;
        };
        self.queue_pair_destroyed = CommandDone::destroyed(&mut queue_pair).ok();
        if self.queue_pair_destroyed.is_none() {
            std::mem::forget(Arc::clone(&self.parameters.responses));
            std::mem::forget(Arc::clone(&self.parameters.capsules));
            std::mem::forget(Arc::clone(&self.parameters.map));
        }
    }

    /// The data of an abandoned command, if the device no longer accesses it.
    fn give_up(&mut self, data: Option<B::Posted>) -> Option<B> {
        match &self.queue_pair_destroyed {
            Some(done) => data.map(|data| B::take_back(data, done)),
            None => {
                std::mem::forget(data);
                None
            }
        }
    }
}

/// The receive request for a response buffer.
pub(crate) fn receive_request<P: Provider>(
    map: &MemoryMap<P>,
    responses: &DmaBuffer,
    buffer: u16,
) -> Option<ReceiveRequest> {
    let offset = usize::from(buffer) * RESPONSE_BYTES;
    Some(ReceiveRequest {
        wr_id: Work::Response(buffer).id(0),
        memory: map.gather(responses, offset, RESPONSE_BYTES)?,
    })
}

impl<P: Provider, B: CommandData + Debug> Link<B> for RdmaConnection<P, B> {
    fn connected(&mut self, in_capsule_max_bytes: u32) {
        self.in_capsule_max_bytes = in_capsule_max_bytes.min(self.parameters.in_capsule_max_bytes);
    }

    fn submit(&mut self, sqe: Sqe, transfer: Transfer<B>, token: u64) -> Result<u16, Refused<B>> {
        let (reads, length, data) = self.admit(transfer)?;
        let Some(index) = self.commands.take() else {
            return Err(Refused {
                refusal: Refusal::Full,
                data,
            });
        };
        let data = data.map(B::post);
        let named = match &data {
            None => Some((Descriptors::from_iter([no_data()]), SgeList::EMPTY)),
            Some(data) => self.describe_data(index, reads, (data, length as usize)),
        };
        let Some((descriptors, memory)) = named else {
            self.commands.release(index);
            let data = data.map(|data| B::take_back(data, &CommandDone::never_posted()));
            return Err(Refused {
                refusal: Refusal::NotRegistered,
                data,
            });
        };
        let sgl = match *descriptors {
            [ref one] => *one,
            // Base 2.1 §4.3.2: several descriptors form a segment, which follows the command in the
            // capsule.
            ref several => SglDescriptor::last_segment_in_capsule(0, size_of_val(several) as u32),
        };
        let command = self.commands.get_mut(index);
        command.token = token;
        command.expected = if reads { length } else { 0 };
        command.data = data;
        let cid = command.cid();
        let sqe = sqe.with_cid(cid).with_sgl(sgl);
        if let Err(error) = self.queue_capsule(index, &sqe, &descriptors, memory) {
            self.fail(HostError::Post(error));
            let data = self.commands.release(index).data;
            let data = self.give_up(data);
            return Err(Refused {
                refusal: Refusal::Failed,
                data,
            });
        }
        Ok(cid)
    }

    fn flush(&mut self) -> Result<(), HostError> {
        self.check_failure()?;
        if let Err(error) = self.close_windows() {
            return Err(self.fail(error.into()));
        }
        let Some(queue_pair) = &mut self.queue_pair else {
            return Err(HostError::Closed);
        };
        if std::mem::take(&mut self.has_unsent) {
            self.counters.sends += 1;
        }
        match queue_pair.flush() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error.cause.into())),
        }
    }

    fn poll_until(
        &mut self,
        completions: &mut Completions<B>,
        most: usize,
    ) -> Result<usize, HostError> {
        self.check_failure()?;
        let before = completions.len();
        let mut result = self.collect(completions, most.min(COMPLETIONS_MAX));
        if result.is_ok() && !self.closing.is_empty() {
            // A command completes only after its window is closed.
            result = self.flush();
        }
        let added = completions.len() - before;
        self.counters.completed += added as u64;
        match result {
            // Return earlier completions first; the next poll reports the error.
            Err(error) if added > 0 => {
                self.fail(error);
                Ok(added)
            }
            Err(error) => Err(self.fail(error)),
            Ok(()) => Ok(added),
        }
    }

    fn has_unsent(&self) -> bool {
        self.has_unsent || !self.closing.is_empty()
    }

    fn take_failed_command(&mut self) -> Option<(u64, Option<B>)> {
        debug_assert!(self.failure.is_some(), "only what failed is abandoned");
        let index = self.commands.any_in_flight()?;
        let command = self.commands.release(index);
        let data = self.give_up(command.data);
        Some((command.token, data))
    }

    fn in_flight(&self) -> usize {
        self.commands.in_flight()
    }

    fn depth(&self) -> usize {
        self.commands.depth()
    }

    fn counters(&self) -> ConnectionCounters {
        self.counters
    }

    fn wait(&mut self, limit: Duration) {
        if self.failure.is_some() || !self.ready_completions.is_empty() {
            return;
        }
        // An error here is reported, with its cause, by the next poll.
        let _ = self.completion_queue.acknowledge();
        let _ = self.completion_queue.arm(false);
        let mut batch = [WorkCompletion::default(); BATCH];
        let found = self.completion_queue.poll(&mut batch).unwrap_or(0);
        self.ready_completions.extend(batch.into_iter().take(found));
        if found > 0 {
            return;
        }
        let limit = Timespec::try_from(limit).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        let (completed, happened) = (self.completion_queue.descriptor(), self.events.descriptor());
        let mut descriptors = [
            PollFd::from_borrowed_fd(completed, PollFlags::IN),
            PollFd::from_borrowed_fd(happened, PollFlags::IN),
        ];
        let _ = poll(&mut descriptors, Some(&limit));
        if !descriptors[1].revents().is_empty() {
            // Makes the next poll check the events.
            self.empty_polls = EMPTY_POLLS_PER_EVENT_CHECK;
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl<P: Provider, B: CommandData> Drop for RdmaConnection<P, B> {
    fn drop(&mut self) {
        if self.queue_pair.is_some() {
            // First notify the target, then end the device's access to memory.
            let _ = self.connection.disconnect();
            self.end_queue_pair();
        }
        while let Some(index) = self.commands.any_in_flight() {
            let data = self.commands.release(index).data;
            drop(self.give_up(data));
        }
    }
}
