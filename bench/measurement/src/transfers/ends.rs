//! Two ends of one connection on one thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use hugemem::{Arena, ArenaConfig, DmaBuffer, PagePolicy};
use rdma::{
    Access, CompletionOpcode, CompletionQueue as _, ConnectParameters, ConnectRequest as _,
    Connection as _, ConnectionEvent, Device, Domain, DomainMemory, Event, EventChannel, Listener,
    MemoryMap, Payload, Provider, QueuePair, QueuePairCapacity, QueuePairOptions,
    RNR_RETRY_FOREVER, ReceiveRequest, RemoteAddress, SGES_MAX, SendOperation, SendRequest,
    SgeList, Token, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::{MESSAGE_BYTES, TransferError, TransferMethod, step};
use crate::ceiling::SLEEP_MAX;

/// The data memory of each end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Maximum number of transfers in flight.
    pub(super) slots: usize,
    /// Maximum size of each transfer in bytes.
    pub(super) slot_bytes: usize,
}

/// Size of the largest slot in bytes.
pub(super) const SLOT_BYTES_MAX: usize = 1 << 20;

/// Size of a receive buffer in bytes: a message followed by data.
const RECEIVE_BYTES: usize = 8192;

/// Number of receives posted on each side.
const RECEIVES: usize = 64;

/// Number of work requests of a send queue.
const SENDS: u32 = 256;

/// Requested inline data size in bytes.
const INLINE_BYTES: u32 = 512;

/// Maximum number of completions of one poll.
const POLLED_MAX: usize = 64;

/// Time-out of all operations.
const LIMIT: Duration = Duration::from_secs(20);

/// First identifier of reads; receives and sends have lower ones.
pub(super) const READS_FROM: u64 = 1 << 32;

/// First identifier of sends.
pub(super) const SENDS_FROM: u64 = 1 << 31;

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

/// The results of a poll.
#[derive(Debug, Default)]
pub(crate) struct Polled {
    pub(crate) messages: Vec<Vec<u8>>,
    /// Slots whose read is completed.
    pub(crate) reads: Vec<usize>,
}

/// The results of a poll, by slot.
#[derive(Debug, Default)]
pub(super) struct PolledSlots {
    /// Slots whose message was received.
    pub(super) messages: ArrayVec<usize, POLLED_MAX>,
    /// Slots whose read is completed.
    pub(super) reads: ArrayVec<usize, POLLED_MAX>,
}

impl PolledSlots {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.reads.is_empty()
    }
}

/// One end of the connection.
#[derive(Debug)]
pub(super) struct End<P: Provider> {
    queue_pair: P::QueuePair,
    _connection: P::Connection,
    _events: P::EventChannel,
    completions: P::CompletionQueue,
    domain: P::Domain,
    map: Arc<MemoryMap<P>>,
    data: Vec<DmaBuffer>,
    incoming: DmaBuffer,
    staged: DmaBuffer,
    slot_bytes: usize,
    /// Number of sends, reads and writes so far.
    pub(super) work_requests: u64,
}

/// Both ends of the connection.
#[derive(Debug)]
pub(crate) struct Ends<P: Provider> {
    server: End<P>,
    client: End<P>,
    device: String,
    inline_bytes: usize,
}

/// One end's objects before the connection.
struct Parts<P: Provider> {
    completions: P::CompletionQueue,
    domain: P::Domain,
    map: Arc<MemoryMap<P>>,
    arena: Arc<Arena>,
}

fn parts<P: Provider>(device: &P::Device) -> Result<Parts<P>, TransferError> {
    let arena = Arena::new(ArenaConfig {
        bytes: 128 << 20,
        pages: PagePolicy::Auto,
        max_transfer: SLOT_BYTES_MAX,
    })
    .map_err(|error| TransferError::Memory(error.to_string()))?;
    let domain = device.create_domain().map_err(step("a domain"))?;
    let memory = DomainMemory::new(domain.clone(), Access::REMOTE);
    memory
        .attach_region(arena.region())
        .map_err(step("registering memory"))?;
    let completions = domain
        .create_completion_queue(SENDS + RECEIVES as u32 + 16, Token(0))
        .map_err(step("a completion queue"))?;
    Ok(Parts {
        completions,
        domain,
        map: memory.map(),
        arena,
    })
}

impl<P: Provider> Parts<P> {
    fn queue_pair(
        &self,
        connection: &mut P::Connection,
        device: &P::Device,
    ) -> Result<P::QueuePair, TransferError> {
        let capacity = QueuePairCapacity {
            send_requests: SENDS,
            receive_requests: RECEIVES as u32,
            send_sges: SGES_MAX as u32,
            receive_sges: 1,
            inline_bytes: INLINE_BYTES,
        };
        let options = QueuePairOptions {
            send_completions: &self.completions,
            receive_completions: &self.completions,
            shared_receives: None,
            capacity: capacity.clamped(device.limits()),
        };
        connection
            .create_queue_pair(&self.domain, &options)
            .map_err(step("a queue pair"))
    }

    fn end(
        self,
        queue_pair: P::QueuePair,
        connection: P::Connection,
        events: P::EventChannel,
        room: Room,
    ) -> Result<End<P>, TransferError> {
        let take = |bytes| {
            let taken = self.arena.dma_buffer(bytes);
            taken.ok_or_else(|| TransferError::Memory("the arena is empty".to_owned()))
        };
        let data: Result<Vec<DmaBuffer>, TransferError> =
            (0..room.slots).map(|_| take(room.slot_bytes)).collect();
        let mut end = End {
            queue_pair,
            _connection: connection,
            _events: events,
            completions: self.completions,
            domain: self.domain,
            map: self.map,
            data: data?,
            incoming: take(RECEIVES * RECEIVE_BYTES)?,
            staged: take(room.slots * MESSAGE_BYTES)?,
            slot_bytes: room.slot_bytes,
            work_requests: 0,
        };
        for buffer in 0..RECEIVES {
            end.post_receive(buffer)?;
        }
        end.flush()?;
        Ok(end)
    }
}

fn posted<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, TransferError> {
    result.map_err(|error| TransferError::Work(error.to_string()))
}

impl<P: Provider> End<P> {
    fn post_receive(&mut self, buffer: usize) -> Result<(), TransferError> {
        let offset = buffer * RECEIVE_BYTES;
        let memory = self.map.gather(&self.incoming, offset, RECEIVE_BYTES);
        posted(self.queue_pair.queue_receive(&ReceiveRequest {
            wr_id: buffer as u64,
            memory: memory.unwrap_or_default(),
        }))
    }

    pub(super) fn post(&mut self, request: &SendRequest<'_>) -> Result<(), TransferError> {
        self.work_requests += 1;
        posted(self.queue_pair.queue_send(request))
    }

    pub(super) fn flush(&mut self) -> Result<(), TransferError> {
        posted(self.queue_pair.flush())
    }

    /// A slot's memory, for a work request of this end.
    pub(super) fn gather(&self, slot: usize, bytes: usize) -> SgeList {
        let memory = self.map.gather(&self.data[slot], 0, bytes);
        memory.unwrap_or_default()
    }

    /// A slot's memory, for a work request of the other end.
    pub(super) fn remote(&self, slot: usize) -> RemoteAddress {
        let remote = self.map.remote(self.data[slot].address(), self.slot_bytes);
        remote.unwrap_or(RemoteAddress {
            address: 0,
            rkey: 0,
        })
    }

    pub(super) fn poll(&mut self) -> Result<Polled, TransferError> {
        let mut polled = Polled::default();
        self.poll_each(
            |incoming, offset, len| {
                let mut bytes = vec![0; len];
                incoming.read(offset, &mut bytes);
                polled.messages.push(bytes);
            },
            |slot| polled.reads.push(slot),
        )?;
        Ok(polled)
    }

    /// Like [`poll`](Self::poll), without the content of messages and without allocations.
    pub(super) fn poll_slots(&mut self) -> Result<PolledSlots, TransferError> {
        let mut polled = PolledSlots::default();
        self.poll_each(
            |incoming, offset, _| {
                let mut text = [0; MESSAGE_BYTES];
                incoming.read(offset, &mut text);
                polled.messages.push(super::slot_of(&text));
            },
            |slot| polled.reads.push(slot),
        )?;
        Ok(polled)
    }

    /// Requests a notification of the next completion.
    pub(super) fn arm(&mut self) -> Result<(), TransferError> {
        self.completions.arm(false).map_err(step("arming"))
    }

    /// Sleeps until one of `ends` is notified of a completion, or for a limited time.
    pub(super) fn await_completion(ends: [&mut Self; 2]) -> Result<(), TransferError> {
        let flags = PollFlags::IN;
        let mut told = [
            PollFd::from_borrowed_fd(ends[0].completions.descriptor(), flags),
            PollFd::from_borrowed_fd(ends[1].completions.descriptor(), flags),
        ];
        // An interruption by a signal ends the sleep too.
        let _ = poll(&mut told, Some(&SLEEP_MAX));
        for end in ends {
            let acknowledged = end.completions.acknowledge();
            acknowledged.map_err(step("taking a notification"))?;
        }
        Ok(())
    }

    /// Calls `message` with the position and the length of each message, and `read` with the slot
    /// of each completed read.
    fn poll_each(
        &mut self,
        mut message: impl FnMut(&DmaBuffer, usize, usize),
        mut read: impl FnMut(usize),
    ) -> Result<(), TransferError> {
        let mut batch = [WorkCompletion::default(); POLLED_MAX];
        let found = self.completions.poll(&mut batch).map_err(step("polling"))?;
        for done in &batch[..found] {
            if !done.is_success() {
                return Err(TransferError::Work(done.status.to_string()));
            }
            if done.is_receive() {
                let buffer = done.wr_id as usize;
                let len = done.byte_len as usize;
                message(&self.incoming, buffer * RECEIVE_BYTES, len);
                self.post_receive(buffer)?;
            } else if done.opcode == CompletionOpcode::READ {
                read((done.wr_id - READS_FROM) as usize);
            }
        }
        Ok(())
    }
}

/// One side during connection establishment.
struct ConnectionSetup<P: Provider> {
    events: P::EventChannel,
    connection: Option<P::Connection>,
    made: Option<(Parts<P>, P::QueuePair)>,
    is_established: bool,
}

impl<P: Provider> ConnectionSetup<P> {
    fn new(provider: &P) -> Result<Self, TransferError> {
        Ok(Self {
            events: provider.event_channel().map_err(step("RDMA"))?,
            connection: None,
            made: None,
            is_established: false,
        })
    }

    /// Handles one event.
    fn advance(&mut self) -> Result<(), TransferError> {
        match self.events.next_event().map_err(step("an event"))? {
            Some(Event::ConnectRequest { request, .. }) => {
                let device = request.device().clone();
                let connection = request
                    .into_connection(&mut self.events, Token(3))
                    .map_err(step("a request"))?;
                let connection = self.connection.insert(connection);
                self.made = Some(make(connection, &device)?);
                let accepted = connection.accept(&parameters(&device));
                accepted.map_err(step("accepting"))
            }
            Some(Event::Connection { event, .. }) => self.connection_event(event),
            Some(Event::ListenerFailed { .. }) | None => Ok(()),
        }
    }

    fn connection_event(&mut self, event: ConnectionEvent) -> Result<(), TransferError> {
        let apart = |what: &str| TransferError::Apart(what.to_owned());
        let connection = self.connection.as_mut();
        let connection = connection.ok_or_else(|| apart("an event of no connection"))?;
        match event {
            ConnectionEvent::AddressResolved => {
                let routed = connection.resolve_route(LIMIT);
                routed.map_err(step("resolving the route"))
            }
            ConnectionEvent::RouteResolved => {
                let device = connection.device().ok_or_else(|| apart("no device"))?;
                self.made = Some(make(connection, &device)?);
                let asked = connection.connect(&parameters(&device));
                asked.map_err(step("connecting"))
            }
            ConnectionEvent::Established { .. } => {
                self.is_established = true;
                Ok(())
            }
            other => Err(apart(&format!("{other:?}"))),
        }
    }

    fn end(self, room: Room) -> Result<End<P>, TransferError> {
        match (self.made, self.connection) {
            (Some((parts, queue_pair)), Some(connection)) => {
                parts.end(queue_pair, connection, self.events, room)
            }
            _ => Err(TransferError::Apart("no connection".to_owned())),
        }
    }
}

fn make<P: Provider>(
    connection: &mut P::Connection,
    device: &P::Device,
) -> Result<(Parts<P>, P::QueuePair), TransferError> {
    let made: Parts<P> = parts(device)?;
    let queue_pair = made.queue_pair(connection, device)?;
    Ok((made, queue_pair))
}

impl<P: Provider> Ends<P> {
    /// Connects `client` to `server`, which listens on `address`.
    pub(crate) fn connect(
        server: &P,
        client: &P,
        address: SocketAddr,
        room: Room,
    ) -> Result<Self, TransferError> {
        let (mut server, mut client) =
            (ConnectionSetup::new(server)?, ConnectionSetup::new(client)?);
        let listener = server
            .events
            .listen(address, 1, Token(1))
            .map_err(step("listening"))?;
        let peer = SocketAddr::new(address.ip(), listener.local_address().port());
        let connecting = client.events.connection(Token(2));
        let connecting = client
            .connection
            .insert(connecting.map_err(step("connecting"))?);
        let resolved = connecting.resolve_address(None, peer, LIMIT);
        resolved.map_err(step("resolving the address"))?;
        let deadline = Instant::now() + LIMIT;
        while !(server.is_established && client.is_established) {
            if Instant::now() > deadline {
                return Err(TransferError::Apart("no answer".to_owned()));
            }
            client.advance()?;
            server.advance()?;
        }
        let (server, client) = (server.end(room)?, client.end(room)?);
        let capacity = server.queue_pair.capacity();
        Ok(Self {
            device: server.domain.device().name().to_owned(),
            inline_bytes: capacity.inline_bytes.min(INLINE_BYTES) as usize,
            server,
            client,
        })
    }

    fn end(&mut self, side: Side) -> &mut End<P> {
        match side {
            Side::Server => &mut self.server,
            Side::Client => &mut self.client,
        }
    }

    pub(crate) fn device_name(&self) -> String {
        self.device.clone()
    }

    /// Maximum size of inline data in a message, in addition to the message itself.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.inline_bytes.saturating_sub(MESSAGE_BYTES)
    }

    pub(crate) fn domain(&self) -> &P::Domain {
        &self.server.domain
    }

    pub(crate) fn work_requests(&self) -> u64 {
        self.server.work_requests + self.client.work_requests
    }

    /// Fills the server's memory with a pattern and the client's with zeroes.
    pub(crate) fn prepare(&mut self, bytes: usize, depth: usize) {
        let pattern: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8 + 1).collect();
        for slot in 0..depth {
            self.server.data[slot].write(0, &pattern);
            self.client.data[slot].zero();
        }
    }

    /// Checks that at least the client's first slot contains the pattern.
    pub(crate) fn check(&self, _: TransferMethod, bytes: usize) -> Result<(), TransferError> {
        let mut found = vec![0; bytes];
        self.client.data[0].read(0, &mut found);
        let wrong = found
            .iter()
            .enumerate()
            .filter(|&(index, byte)| *byte != (index % 251) as u8 + 1);
        match wrong.count() {
            0 => Ok(()),
            wrong => Err(TransferError::WrongData(wrong)),
        }
    }

    /// A slot's memory on one side, for a work request of the other side.
    pub(crate) fn remote(&mut self, side: Side, slot: usize) -> RemoteAddress {
        self.end(side).remote(slot)
    }

    /// Separates server and client, for a thread each.
    pub(super) fn into_ends(self) -> (End<P>, End<P>) {
        (self.server, self.client)
    }

    /// Maximum size of an inline message in bytes.
    pub(super) fn inline_room(&self) -> usize {
        self.inline_bytes
    }

    pub(crate) fn send(&mut self, side: Side, message: &[u8]) -> Result<(), TransferError> {
        let inline = self.inline_bytes >= message.len();
        let end = self.end(side);
        if inline {
            let payload = Payload::Inline(message);
            return end.post(&SendRequest::new(SENDS_FROM, SendOperation::Send, payload));
        }
        // Each slot has one message in flight at a time, so its buffer is free again.
        let slot = super::slot_of(message);
        end.staged.write(slot * MESSAGE_BYTES, message);
        let offset = slot * MESSAGE_BYTES;
        let memory = end.map.gather(&end.staged, offset, message.len());
        let memory = memory.unwrap_or_default();
        let payload = Payload::Memory(memory.as_slice());
        end.post(&SendRequest::new(SENDS_FROM, SendOperation::Send, payload))
    }

    /// Writes a slot's data to the other side, or reads it from there.
    pub(crate) fn move_data(
        &mut self,
        side: Side,
        operation: SendOperation,
        slot: usize,
        bytes: usize,
    ) -> Result<(), TransferError> {
        let end = self.end(side);
        let memory = end.gather(slot, bytes);
        let payload = Payload::Memory(memory.as_slice());
        let id = READS_FROM + slot as u64;
        end.post(&SendRequest::new(id, operation, payload))
    }

    /// Sends a message followed by a slot's data.
    pub(crate) fn send_data(
        &mut self,
        slot: usize,
        bytes: usize,
        inline: bool,
        message: &[u8],
    ) -> Result<(), TransferError> {
        let end = &mut self.server;
        if inline {
            let mut all = message.to_vec();
            all.resize(message.len() + bytes, 0);
            end.data[slot].read(0, &mut all[message.len()..]);
            let payload = Payload::Inline(&all);
            return end.post(&SendRequest::new(SENDS_FROM, SendOperation::Send, payload));
        }
        end.staged.write(slot * MESSAGE_BYTES, message);
        let offset = slot * MESSAGE_BYTES;
        let memory = end.map.gather(&end.staged, offset, message.len());
        let mut memory = memory.unwrap_or_default();
        let data = end.map.gather(&end.data[slot], 0, bytes);
        for piece in data.unwrap_or_default().as_slice() {
            posted(memory.push(*piece).map_err(|_| "too many pieces"))?;
        }
        let payload = Payload::Memory(memory.as_slice());
        end.post(&SendRequest::new(SENDS_FROM, SendOperation::Send, payload))
    }

    /// Copies the data of a message into the client's slot.
    pub(crate) fn place(&mut self, slot: usize, data: &[u8]) {
        self.client.data[slot].write(0, data);
    }

    pub(crate) fn poll(&mut self, side: Side) -> Result<Polled, TransferError> {
        self.end(side).poll()
    }

    pub(crate) fn flush(&mut self, side: Side) -> Result<(), TransferError> {
        self.end(side).flush()
    }
}

fn parameters(device: &impl Device) -> ConnectParameters<'static> {
    let limits = device.limits();
    ConnectParameters {
        private_data: &[],
        initiator_depth: limits.reads_outgoing.min(limits.reads_incoming),
        responder_resources: limits.reads_incoming,
        retries: 7,
        rnr_retries: RNR_RETRY_FOREVER,
    }
}
