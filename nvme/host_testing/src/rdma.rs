//! A blocking NVMe/RDMA client at the level of messages and keys, for tests that act as a malicious
//! host.
//!
//! It sends any message with any private data, from memory with configurable access rights,
//! performs only the checks that the test requests, and blocks with a time limit.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaConfig, DmaBuffer, PagePolicy};
use nvme_host::{HostError, RdmaManager as Manager};
use nvme_spec::completion::Cqe;
use nvme_spec::rdma::ConnectRequest;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use rdma::{
    Access, CompletionQueue as _, CompletionStatus, ConnectParameters, Connection as _,
    ConnectionEvent, Device, Domain, DomainMemory, Event, EventChannel, MemoryMap, MemoryRange,
    MemoryWindow, Payload, PrivateData, Provider, QueuePair, QueuePairCapacity, QueuePairOptions,
    RNR_RETRY_FOREVER, ReceiveRequest, Registration, SGES_MAX, SendOperation, SendRequest, Token,
    WindowBinding, WorkCompletion,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::steps::{HostSteps, Names, QUEUE_ENTRIES_Z, StepError};

/// Bytes of the memory to which targets get keys.
pub const MEMORY_BYTES: usize = 1 << 20;

/// The longest message that can be sent, bytes.
pub const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// Bytes of one receive.
const RECEIVE_BYTES: usize = 256;

/// Work requests of the send queue.
const SENDS: u32 = 512;

/// Work request identifiers from here on are receives; lower ones are sends.
const RECEIVES_FROM: u64 = 1 << 32;

/// The reason for which the client cannot continue. It fails the test, unless the test expects it.
#[derive(Debug, thiserror::Error)]
pub enum RawRdmaError {
    /// The connection failed: [`HostError::Rejected`] contains the target's reason.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Nothing was received within the limit.
    #[error("nothing received within {0:?}")]
    TimedOut(Duration),
    /// The connection ended while a response was expected.
    #[error("the connection ended: {0}")]
    Ended(Ending),
    /// A response that is not a completion queue entry, or is for another command.
    #[error("expected a response, received {0} bytes")]
    Malformed(usize),
    /// A command of a helper function failed.
    #[error("{0}")]
    Refused(Status),
}

impl From<StepError> for RawRdmaError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Refused(status) => Self::Refused(status),
            StepError::NotReady(limit) => Self::TimedOut(limit),
        }
    }
}

/// Adds the name of the failed step to an error.
fn step(step: &'static str) -> impl Fn(rdma::Error) -> HostError {
    move |source| HostError::Rdma { step, source }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The target disconnected.
    Disconnected,
    /// A send failed with this status.
    SendFailed(CompletionStatus),
    /// The queue pair entered the error state, and its work requests were flushed.
    Flushed,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the target disconnected"),
            Self::SendFailed(status) => write!(f, "a send failed: {status}"),
            Self::Flushed => f.write_str("the posted work requests were flushed"),
        }
    }
}

/// A message or the end of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawReceived {
    /// A message.
    Message {
        /// Its bytes.
        bytes: Vec<u8>,
        /// The key that the message invalidated.
        invalidated: Option<u32>,
    },
    /// The end of the connection.
    Ended(Ending),
}

/// Options of a connection.
#[derive(Debug, Clone)]
pub struct RawOptions {
    /// Private data of the request, at most [`rdma::CONNECT_PRIVATE_DATA_MAX`] bytes.
    pub private_data: Vec<u8>,
    /// Receives posted before connecting. If there are fewer than responses, the target gets a
    /// receiver-not-ready error.
    pub receives: u16,
    /// RDMA reads that this side has outstanding.
    pub initiator_depth: u8,
    /// RDMA reads of the target that this side serves concurrently.
    pub responder_resources: u8,
    /// Access rights of the memory's key.
    pub access: Access,
    /// Time limit of each operation.
    pub limit: Duration,
}

impl RawOptions {
    /// Options of a regular host for queue `qid`, with `entries` entries on both sides.
    #[must_use]
    pub fn queue(qid: u16, entries: u16, cntlid: u16) -> Self {
        let request = ConnectRequest::new(qid, entries, entries.saturating_sub(1), cntlid);
        Self {
            private_data: request.as_bytes().to_vec(),
            receives: entries,
            initiator_depth: 0,
            responder_resources: 16,
            access: Access {
                bind_window: true,
                ..Access::REMOTE
            },
            limit: Duration::from_secs(20),
        }
    }
}

/// The client.
#[derive(Debug)]
pub struct RawRdmaClient<P: Provider> {
    queue_pair: P::QueuePair,
    manager: Manager<P>,
    completions: P::CompletionQueue,
    windows: Vec<P::Window>,
    memory_registration: P::Registration,
    map: Arc<MemoryMap<P>>,
    domain: P::Domain,
    memory: DmaBuffer,
    messages: DmaBuffer,
    incoming: DmaBuffer,
    received: VecDeque<RawReceived>,
    accepted: PrivateData,
    limit: Duration,
    next_cid: u16,
    sends_pending: u32,
}

impl<P: Provider> RawRdmaClient<P> {
    /// Connects.
    ///
    /// # Errors
    /// [`HostError::Rejected`] with the target's reason, and other errors of a host.
    pub fn connect(
        provider: &P,
        address: SocketAddr,
        options: &RawOptions,
    ) -> Result<Self, RawRdmaError> {
        let (mut manager, device) = Manager::resolve(provider, address, options.limit)?;
        let arena = Arena::new(ArenaConfig {
            bytes: 16 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: MEMORY_BYTES,
        })
        .map_err(HostError::StagingMemory)?;
        let domain = device
            .create_domain()
            .map_err(step("creating a protection domain"))?;
        let shared = DomainMemory::new(domain.clone(), Access::LOCAL);
        let registering = step("registering memory");
        shared.attach_region(arena.region()).map_err(&registering)?;
        let take = |bytes| arena.dma_buffer(bytes).ok_or(HostError::NoMemory);
        let memory = take(MEMORY_BYTES)?;
        let start = memory.region_offset();
        let range = MemoryRange::of_region(arena.region(), start..start + MEMORY_BYTES);
        let memory_registration = domain
            .register(range, options.access)
            .map_err(&registering)?;
        let receives = u32::from(options.receives.max(1));
        let completions = domain
            .create_completion_queue(SENDS + receives + 16, Token(0))
            .map_err(step("creating a completion queue"))?;
        let capacity = QueuePairCapacity {
            send_requests: SENDS,
            receive_requests: receives,
            send_sges: SGES_MAX as u32,
            receive_sges: 1,
            inline_bytes: 0,
        };
        let queue_pair = manager
            .connection
            .create_queue_pair(
                &domain,
                &QueuePairOptions {
                    send_completions: &completions,
                    receive_completions: &completions,
                    shared_receives: None,
                    capacity: capacity.clamped(device.limits()),
                },
            )
            .map_err(step("creating a queue pair"))?;
        let mut client = Self {
            queue_pair,
            completions,
            windows: Vec::new(),
            memory_registration,
            map: shared.map(),
            domain,
            memory,
            messages: take(MESSAGE_MAX_BYTES)?,
            incoming: take(receives as usize * RECEIVE_BYTES)?,
            received: VecDeque::new(),
            accepted: PrivateData::EMPTY,
            limit: options.limit,
            next_cid: 0,
            sends_pending: 0,
            manager,
        };
        for buffer in 0..options.receives {
            client.post_receive(u64::from(buffer))?;
        }
        client.flush()?;
        let accepted = client.manager.connect(&ConnectParameters {
            private_data: &options.private_data,
            initiator_depth: options.initiator_depth,
            responder_resources: options.responder_resources,
            retries: 7,
            rnr_retries: RNR_RETRY_FOREVER,
        })?;
        client.accepted = accepted.private_data;
        Ok(client)
    }

    /// The private data of the target's accept.
    #[must_use]
    pub fn accepted(&self) -> &PrivateData {
        &self.accepted
    }

    /// The address of the memory, for descriptors.
    #[must_use]
    pub fn memory_address(&self) -> u64 {
        self.memory.address() as u64
    }

    /// The key of the memory, with the rights of [`RawOptions::access`].
    #[must_use]
    pub fn memory_key(&self) -> u32 {
        self.memory_registration.rkey()
    }

    /// A key that no memory has.
    #[must_use]
    pub fn unknown_key(&self) -> u32 {
        !self.memory_registration.rkey()
    }

    /// Writes to the memory from `offset` on.
    ///
    /// # Panics
    /// Beyond [`MEMORY_BYTES`].
    pub fn write_memory(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes);
    }

    /// Reads from the memory.
    ///
    /// # Panics
    /// Beyond [`MEMORY_BYTES`].
    #[must_use]
    pub fn read_memory(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }

    /// A keyed descriptor of the memory.
    ///
    /// # Panics
    /// For more than 16 MiB.
    #[must_use]
    pub fn keyed_descriptor(&self, offset: usize, len: usize, invalidate: bool) -> SglDescriptor {
        let address = self.memory_address() + offset as u64;
        SglDescriptor::keyed(address, len as u32, self.memory_key(), invalidate)
            .expect("the descriptor's length is valid")
    }

    /// Binds a new memory window to a part of the memory. Returns its key, which a target may
    /// invalidate.
    ///
    /// # Errors
    /// [`RawRdmaError::Host`] if the device has no windows.
    pub fn open_window(&mut self, offset: usize, len: usize) -> Result<u32, RawRdmaError> {
        let window = self.domain.create_window();
        let mut window = window.map_err(step("creating a memory window"))?;
        let binding = WindowBinding {
            wr_id: u64::from(u32::MAX),
            address: self.memory_address() + offset as u64,
            length: len as u64,
            remote_read: true,
            remote_write: true,
            signalled: false,
        };
        self.queue_pair
            .queue_bind(&mut window, &self.memory_registration, &binding)
            .map_err(HostError::Post)?;
        self.flush()?;
        let key = window.rkey();
        self.windows.push(window);
        Ok(key)
    }

    /// Sends any bytes as one message.
    ///
    /// # Errors
    /// [`RawRdmaError::Host`] if the queue pair is full.
    ///
    /// # Panics
    /// Beyond [`MESSAGE_MAX_BYTES`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), RawRdmaError> {
        // There is one buffer for all messages, so the earlier sends have to complete first.
        while self.sends_pending > 0 {
            if self.poll_events()? == 0 {
                std::thread::yield_now();
            }
            if self.received_end().is_some() {
                return Ok(());
            }
        }
        self.messages.write(0, bytes);
        self.repeat_send(bytes.len(), 1)
    }

    /// Sends the first `len` bytes of the last message `times` times, without waiting in between.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn repeat_send(&mut self, len: usize, times: u32) -> Result<(), RawRdmaError> {
        let memory = self.map.gather(&self.messages, 0, len);
        let memory = memory.ok_or(HostError::NotRegistered)?;
        for _ in 0..times {
            let request =
                SendRequest::new(0, SendOperation::Send, Payload::Memory(memory.as_slice()));
            let queued = self.queue_pair.queue_send(&request);
            queued.map_err(HostError::Post)?;
            self.sends_pending += 1;
        }
        self.flush()
    }

    /// Posts any work request, for operations without a function here.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), RawRdmaError> {
        let queued = self.queue_pair.queue_send(request);
        queued.map_err(HostError::Post)?;
        self.flush()
    }

    /// The next message or the end of the connection, if one is available.
    ///
    /// # Errors
    /// [`RawRdmaError::Host`] if the device is gone.
    pub fn try_receive(&mut self) -> Result<Option<RawReceived>, RawRdmaError> {
        if self.received.is_empty() {
            self.poll_events()?;
        }
        Ok(self.received.pop_front())
    }

    /// Waits for the next message or the end of the connection.
    ///
    /// # Errors
    /// [`RawRdmaError::TimedOut`].
    pub fn receive(&mut self) -> Result<RawReceived, RawRdmaError> {
        let deadline = Instant::now() + self.limit;
        loop {
            if let Some(next) = self.received.pop_front() {
                if matches!(next, RawReceived::Ended(_)) {
                    // Later calls return the end again.
                    self.received.push_front(next.clone());
                }
                return Ok(next);
            }
            if self.poll_events()? > 0 {
                continue;
            }
            if Instant::now() > deadline {
                return Err(RawRdmaError::TimedOut(self.limit));
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the end of the connection, and drops messages before it.
    ///
    /// # Errors
    /// [`RawRdmaError::TimedOut`].
    pub fn wait_end(&mut self) -> Result<Ending, RawRdmaError> {
        loop {
            if let RawReceived::Ended(ending) = self.receive()? {
                return Ok(ending);
            }
        }
    }

    /// Disconnects orderly.
    ///
    /// # Errors
    /// [`RawRdmaError::Host`].
    pub fn disconnect(&mut self) -> Result<(), RawRdmaError> {
        let left = self.manager.connection.disconnect();
        Ok(left.map_err(step("disconnecting"))?)
    }

    fn received_end(&self) -> Option<Ending> {
        self.received.iter().find_map(|one| match one {
            RawReceived::Ended(ending) => Some(*ending),
            RawReceived::Message { .. } => None,
        })
    }

    /// Processes completions and events; returns their number.
    fn poll_events(&mut self) -> Result<usize, RawRdmaError> {
        let mut batch = [WorkCompletion::default(); 16];
        let polled = self.completions.poll(&mut batch);
        let found = polled.map_err(step("polling"))?;
        for completion in &batch[..found] {
            self.handle_completion(completion)?;
        }
        let mut happened = 0;
        while let Some(event) = self.manager.events.next_event().map_err(step("an event"))? {
            happened += 1;
            if let Event::Connection {
                event: ConnectionEvent::Disconnected | ConnectionEvent::DeviceRemoved,
                ..
            } = event
                && self.received_end().is_none()
            {
                let end = RawReceived::Ended(Ending::Disconnected);
                self.received.push_back(end);
            }
        }
        Ok(found + happened)
    }

    fn handle_completion(&mut self, completion: &WorkCompletion) -> Result<(), RawRdmaError> {
        let receive = completion.wr_id >= RECEIVES_FROM;
        if !receive && completion.wr_id == 0 {
            self.sends_pending -= 1;
        }
        if !completion.is_success() {
            let ending = match completion.status {
                CompletionStatus::FLUSHED => Ending::Flushed,
                status => Ending::SendFailed(status),
            };
            if self.received_end().is_none() {
                self.received.push_back(RawReceived::Ended(ending));
            }
            return Ok(());
        }
        if receive {
            let buffer = completion.wr_id - RECEIVES_FROM;
            let len = (completion.byte_len as usize).min(RECEIVE_BYTES);
            let mut bytes = vec![0; len];
            self.incoming
                .read(buffer as usize * RECEIVE_BYTES, &mut bytes);
            self.received.push_back(RawReceived::Message {
                bytes,
                invalidated: completion.invalidated(),
            });
            self.post_receive(buffer)?;
            self.flush()?;
        }
        Ok(())
    }

    fn post_receive(&mut self, buffer: u64) -> Result<(), RawRdmaError> {
        let offset = buffer as usize * RECEIVE_BYTES;
        let memory = self.map.gather(&self.incoming, offset, RECEIVE_BYTES);
        let request = ReceiveRequest {
            wr_id: RECEIVES_FROM + buffer,
            memory: memory.ok_or(HostError::NotRegistered)?,
        };
        let queued = self.queue_pair.queue_receive(&request);
        Ok(queued.map_err(HostError::Post)?)
    }

    fn flush(&mut self) -> Result<(), RawRdmaError> {
        let flushed = self.queue_pair.flush();
        Ok(flushed.map_err(|error| HostError::Post(error.cause))?)
    }

    /// A command identifier that this client has not used recently.
    pub fn next_cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1) & 0x7fff;
        self.next_cid
    }

    /// Sends a command capsule unchanged, with `extra` after the command, and waits for one
    /// response, which must be for this command.
    ///
    /// # Errors
    /// [`RawRdmaError::Ended`], [`RawRdmaError::Malformed`], [`RawRdmaError::TimedOut`].
    pub fn exchange(&mut self, sqe: &Sqe, extra: &[u8]) -> Result<Cqe, RawRdmaError> {
        let mut capsule = sqe.as_bytes().to_vec();
        capsule.extend_from_slice(extra);
        self.send(&capsule)?;
        match self.receive()? {
            RawReceived::Ended(ending) => Err(RawRdmaError::Ended(ending)),
            RawReceived::Message { bytes, .. } => match Cqe::read_from_bytes(&bytes) {
                Ok(cqe) if cqe.cid.get() == sqe.cid.get() => Ok(cqe),
                _ => Err(RawRdmaError::Malformed(bytes.len())),
            },
        }
    }

    /// Executes a valid command with a new identifier. Its data is the first `bytes` bytes of the
    /// memory, described by a keyed descriptor; no data for 0.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub fn command(&mut self, sqe: Sqe, bytes: usize) -> Result<Cqe, RawRdmaError> {
        let sqe = sqe.with_cid(self.next_cid());
        let sgl = if bytes == 0 {
            SglDescriptor::keyed(0, 0, 0, false).unwrap_or_default()
        } else {
            self.keyed_descriptor(0, bytes, false)
        };
        self.exchange(&sqe.with_sgl(sgl), &[])
    }

    /// Opens an admin queue like a regular host: connects, sends Connect for any controller,
    /// enables it and waits until it is ready. Returns the client and the controller's identifier.
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and [`exchange`](Self::exchange).
    pub fn open_admin(
        provider: &P,
        address: SocketAddr,
        names: &Names,
    ) -> Result<(Self, u16), RawRdmaError> {
        let options = RawOptions::queue(0, QUEUE_ENTRIES_Z + 1, 0);
        let mut client = Self::connect(provider, address, &options)?;
        let cntlid = client.open_admin_queue(names)?;
        Ok((client, cntlid))
    }

    /// Opens I/O queue `qid` of the controller `cntlid` like a regular host.
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and [`exchange`](Self::exchange).
    pub fn open_io(
        provider: &P,
        address: SocketAddr,
        names: &Names,
        cntlid: u16,
        qid: u16,
    ) -> Result<Self, RawRdmaError> {
        let options = RawOptions::queue(qid, QUEUE_ENTRIES_Z + 1, cntlid);
        let mut client = Self::connect(provider, address, &options)?;
        client.open_io_queue(names, cntlid, qid)?;
        Ok(client)
    }
}

impl<P: Provider> HostSteps for RawRdmaClient<P> {
    type Error = RawRdmaError;

    fn run(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, RawRdmaError> {
        self.write_memory(0, data);
        self.command(sqe, data.len())
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}
