//! An NFSv4.1 client over RDMA, with RPC-over-RDMA version 1 as Linux uses it: data of a WRITE in a
//! read chunk, memory for the data of a READ in a write chunk, and memory for long replies.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use files_spec::compound::{CompoundArgs, CompoundOk, PayloadSearch, find_payload};
use files_spec::operations::Operation;
use files_spec::rdma::{
    Chunk, Chunks, HEADER_BYTES_MAX, Header, PrivateData, Procedure, ReadSegment, Segment,
};
use files_spec::rpc::{Call, Reply};
use files_spec::xdr::{DecodeError, Decoder, Encoder, Placement, Xdr as _, padding};
use hugemem::{PagePolicy, Region, SharedRegion};
use rdma::{
    Access, CompletionQueue as _, ConnectParameters, Connection as _, ConnectionEvent, Device as _,
    Domain as _, Event, EventChannel as _, Payload, Provider, QueuePair as _, QueuePairCapacity,
    QueuePairOptions, ReceiveRequest, Registration as _, SendOperation, SendRequest, SgeList,
    SharedMemory, Token, WorkCompletion,
};

use crate::{Answer, Peer, record_of};

/// Size of messages in bytes.
const MESSAGE_BYTES: usize = 4096;
/// Receives, and sends.
const MESSAGES: usize = 64;
/// Calls with memory of their own that may be outstanding.
const SLOTS: usize = 16;
/// Memory of a call for data of READ or WRITE, in bytes.
const DATA_BYTES: usize = (1 << 20) + (64 << 10);
/// Memory of a call for a long call, and for a long reply, in bytes.
const LONG_BYTES: usize = 1 << 17;
const SLOT_BYTES: usize = DATA_BYTES + 2 * LONG_BYTES;
/// Where the memory of calls begins.
const SLOTS_AT: usize = 2 * MESSAGES * MESSAGE_BYTES;
/// Turns after which a wait has failed.
const TURNS_MAX: usize = 100_000;
/// Data that are not longer are part of their message, in bytes.
const INLINE_DATA_BYTES: usize = 1024;

/// What runs while a client waits: the server and the fabric.
pub trait World {
    /// One turn.
    fn turn(&mut self);
}

/// A client over RDMA.
pub struct RdmaClient<P: Provider, W: World> {
    // Declared in the order of dropping.
    queue_pair: P::QueuePair,
    connection: P::Connection,
    channel: P::EventChannel,
    completions: P::CompletionQueue,
    memory: SharedMemory<P>,
    world: Rc<RefCell<W>>,
    xid: u32,
    sent: usize,
    /// Messages that have arrived.
    received: VecDeque<Vec<u8>>,
    is_ended: bool,
    /// Divides chunks into segments of at most this size in bytes.
    pub segment_bytes: usize,
    /// Size of the longest message that it sends, in bytes. Longer calls are in a chunk.
    pub message_bytes: usize,
    /// Data of a WRITE or READ that are not longer are part of their message, in bytes.
    pub inline_data_bytes: usize,
    /// Whether memory for a long reply is offered with every call.
    pub offers_reply: bool,
    /// Added to the keys of chunks: 0 for valid ones.
    pub key_offset: u32,
    /// Credits that the server has granted with the last reply.
    pub credits: u32,
    /// Sizes of the data that the server has placed, by call.
    pub placed: BTreeMap<u32, u64>,
}

impl<P: Provider, W: World> RdmaClient<P, W> {
    /// Connects a machine to a server.
    ///
    /// # Errors
    /// The server has rejected the connection.
    ///
    /// # Panics
    /// The machine has no device.
    pub fn connect(
        machine: &P,
        server: SocketAddr,
        world: Rc<RefCell<W>>,
    ) -> Result<Self, Box<ConnectionEvent>> {
        let device = machine.devices().expect("devices").remove(0);
        let domain = device.create_domain().expect("a domain");
        let bytes = SLOTS_AT + SLOTS * SLOT_BYTES;
        let region = Region::map(bytes, PagePolicy::Ordinary).expect("memory");
        let region = SharedRegion::new(region).expect("memory");
        let memory = SharedMemory::register(&domain, region, Access::REMOTE).expect("registered");
        let entries = 4 * MESSAGES as u32;
        let completions = domain.create_completion_queue(entries, Token(0));
        let completions = completions.expect("a queue");
        let mut channel = machine.event_channel().expect("a channel");
        let mut connection = channel.connection(Token(1)).expect("a connection");
        let limit = Duration::from_secs(5);
        let resolved = connection.resolve_address(None, server, limit);
        resolved.expect("the server has an address");
        wait_for::<P, W>(&mut channel, &world, |it| {
            it == ConnectionEvent::AddressResolved
        })?;
        connection.resolve_route(limit).expect("a route");
        wait_for::<P, W>(&mut channel, &world, |it| {
            it == ConnectionEvent::RouteResolved
        })?;
        let options = QueuePairOptions {
            send_completions: &completions,
            receive_completions: &completions,
            shared_receives: None,
            capacity: QueuePairCapacity {
                send_requests: 2 * MESSAGES as u32,
                receive_requests: MESSAGES as u32,
                send_sges: 1,
                receive_sges: 1,
                inline_bytes: 0,
            },
        };
        let queue_pair = connection.create_queue_pair(&domain, &options);
        let mut client = Self {
            queue_pair: queue_pair.expect("a queue pair"),
            connection,
            channel,
            completions,
            memory,
            world,
            xid: 0x4000,
            sent: 0,
            received: VecDeque::new(),
            is_ended: false,
            segment_bytes: usize::MAX,
            message_bytes: MESSAGE_BYTES,
            inline_data_bytes: INLINE_DATA_BYTES,
            offers_reply: false,
            key_offset: 0,
            credits: 1,
            placed: BTreeMap::new(),
        };
        for index in 0..MESSAGES {
            client.post_receive(index);
        }
        let own = PrivateData {
            invalidates_remotely: false,
            send_bytes: MESSAGE_BYTES,
            receive_bytes: MESSAGE_BYTES,
        };
        let parameters = ConnectParameters {
            private_data: &own.encode(),
            initiator_depth: 4,
            responder_resources: 4,
            retries: 7,
            rnr_retries: 7,
        };
        client.connection.connect(&parameters).expect("a request");
        let world = Rc::clone(&client.world);
        let is_established = |it| matches!(it, ConnectionEvent::Established { .. });
        wait_for::<P, W>(&mut client.channel, &world, is_established)?;
        Ok(client)
    }

    fn post_receive(&mut self, index: usize) {
        let request = ReceiveRequest {
            wr_id: index as u64,
            memory: SgeList::one(self.memory.piece(index * MESSAGE_BYTES, MESSAGE_BYTES)),
        };
        // A queue pair that has failed takes no requests.
        let _ = self.queue_pair.queue_receive(&request);
        let _ = self.queue_pair.flush();
    }

    /// Number of its queue pair.
    pub fn queue_pair_number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// Sends any bytes as a message.
    pub fn send_message(&mut self, message: &[u8]) {
        let at = (MESSAGES + self.sent % MESSAGES) * MESSAGE_BYTES;
        self.sent += 1;
        self.memory.view().write(at, message);
        let piece = [self.memory.piece(at, message.len())];
        let send = SendRequest::new(u64::MAX, SendOperation::Send, Payload::Memory(&piece));
        let _ = self.queue_pair.queue_send(&send);
        let _ = self.queue_pair.flush();
    }

    /// Takes what has arrived. Returns whether the connection is still there.
    pub fn poll(&mut self) -> bool {
        while let Ok(Some(event)) = self.channel.next_event() {
            if let Event::Connection { event, .. } = event {
                self.is_ended |= event == ConnectionEvent::Disconnected;
            }
        }
        let mut batch = [WorkCompletion::default(); 16];
        while let Ok(count @ 1..) = self.completions.poll(&mut batch) {
            for completion in &batch[..count] {
                if !completion.is_success() {
                    self.is_ended = true;
                    continue;
                }
                if completion.wr_id == u64::MAX {
                    continue;
                }
                let index = completion.wr_id as usize;
                let mut message = vec![0; completion.byte_len as usize];
                self.memory.view().read(index * MESSAGE_BYTES, &mut message);
                self.received.push_back(message);
                self.post_receive(index);
            }
        }
        !self.is_ended
    }

    /// The next message.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn receive_message(&mut self) -> io::Result<Vec<u8>> {
        for _ in 0..TURNS_MAX {
            let is_open = self.poll();
            if let Some(message) = self.received.pop_front() {
                return Ok(message);
            }
            if !is_open {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            self.world.borrow_mut().turn();
        }
        panic!("no message has arrived");
    }

    /// Waits for the end of the connection.
    pub fn wait_for_end(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.poll() {
                return;
            }
            self.world.borrow_mut().turn();
        }
        panic!("the connection has not ended");
    }

    /// Writes to the memory of a call, from which its chunks are made. Returns where it begins.
    pub fn fill(&mut self, xid: u32, bytes: &[u8]) -> usize {
        let at = Self::slot_of(xid);
        self.memory.view().write(at, bytes);
        at
    }

    /// Where the memory of a call begins.
    fn slot_of(xid: u32) -> usize {
        SLOTS_AT + xid as usize % SLOTS * SLOT_BYTES
    }

    /// A chunk of memory of this client.
    pub fn chunk(&self, at: usize, bytes: usize) -> Chunk {
        let mut chunk = Chunk::default();
        let registration = self.memory.registration();
        let mut done = 0;
        while done < bytes {
            let length = self.segment_bytes.min(bytes - done);
            let segment = Segment {
                handle: registration.rkey().wrapping_add(self.key_offset),
                length: length as u32,
                offset: (registration.address() + at + done) as u64,
            };
            chunk.push(segment).expect("few segments");
            done += length;
        }
        chunk
    }

    /// The header of a call and what follows it: data of a WRITE in a chunk, and memory for those of
    /// a READ.
    fn marshal(&mut self, record: &[u8]) -> (Header, Vec<u8>) {
        let xid = files_client::xid_of(record).expect("a call");
        let slot = Self::slot_of(xid);
        let mut chunks = Chunks::default();
        let mut message = record.to_vec();
        if let PayloadSearch::At(Placement { at, length }) = find_payload(record, record.len())
            && length > self.inline_data_bytes
        {
            self.memory.view().write(slot, &record[at..at + length]);
            for segment in self.chunk(slot, length).segments() {
                let read = ReadSegment {
                    position: at as u32,
                    segment: *segment,
                };
                chunks.push_read(read).expect("few segments");
            }
            message.drain(at..at + length + padding(length));
        }
        let count = read_bytes(record);
        if count > self.inline_data_bytes {
            chunks.push_write(self.chunk(slot, count)).expect("one");
        }
        if self.offers_reply {
            chunks.reply = Some(self.chunk(slot + DATA_BYTES, LONG_BYTES));
        }
        let mut header = Header {
            xid,
            credits: MESSAGES as u32,
            procedure: Procedure::Message,
            chunks,
        };
        if header.encoded_bytes() + message.len() > self.message_bytes {
            let at = slot + DATA_BYTES + LONG_BYTES;
            self.memory.view().write(at, &message);
            let mut long = Chunks::default();
            for segment in self.chunk(at, message.len()).segments() {
                let read = ReadSegment {
                    position: 0,
                    segment: *segment,
                };
                long.push_read(read).expect("few segments");
            }
            for read in chunks.reads() {
                long.push_read(*read).expect("few segments");
            }
            for write in chunks.writes() {
                long.push_write(*write).expect("few chunks");
            }
            long.reply = chunks.reply;
            (header.chunks, header.procedure) = (long, Procedure::NoMessage);
            message.clear();
        }
        (header, message)
    }

    /// The reply of a message, with what the server has placed.
    fn unmarshal(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        let (header, at) = Header::decode(message).map_err(|_| refused())?;
        self.credits = header.credits;
        let slot = Self::slot_of(header.xid);
        let mut reply = match header.procedure {
            Procedure::Message => message[at..].to_vec(),
            Procedure::NoMessage => {
                let bytes = header.chunks.reply.map_or(0, |it| it.bytes());
                let mut reply = vec![0; bytes as usize];
                self.memory.view().read(slot + DATA_BYTES, &mut reply);
                reply
            }
            Procedure::VersionError { .. } | Procedure::ChunkError => return Err(refused()),
        };
        let placed = header.chunks.writes().first().map_or(0, Chunk::bytes);
        self.placed.insert(header.xid, placed);
        if placed > 0 {
            let mut data = vec![0; placed as usize];
            self.memory.view().read(slot, &mut data);
            let at = hole_of(&reply, data.len()).ok_or_else(refused)?;
            data.resize(data.len() + padding(data.len()), 0);
            reply.splice(at..at, data);
        }
        Ok(reply)
    }
}

impl<P: Provider, W: World> Peer for RdmaClient<P, W> {
    fn record(&mut self, operations: &[Operation<'_>]) -> Vec<u8> {
        record_of(&mut self.xid, operations)
    }

    fn try_send(&mut self, record: &[u8]) -> io::Result<()> {
        if !self.poll() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let (header, message) = self.marshal(record);
        let mut memory = [0; HEADER_BYTES_MAX];
        let mut to = Encoder::new(&mut memory);
        header.encode(&mut to).expect("fits");
        self.send_message(&[to.written(), &message].concat());
        Ok(())
    }

    fn try_receive(&mut self) -> io::Result<Answer> {
        let message = self.receive_message()?;
        self.unmarshal(&message).map(Answer)
    }
}

/// Waits for an event of a connection.
fn wait_for<P: Provider, W: World>(
    channel: &mut P::EventChannel,
    world: &Rc<RefCell<W>>,
    is_it: impl Fn(ConnectionEvent) -> bool,
) -> Result<(), Box<ConnectionEvent>> {
    for _ in 0..TURNS_MAX {
        if let Ok(Some(Event::Connection { event, .. })) = channel.next_event() {
            return match is_it(event) {
                true => Ok(()),
                false => Err(Box::new(event)),
            };
        }
        world.borrow_mut().turn();
    }
    panic!("no event has arrived");
}

/// The bytes that the first READ of a call asks for.
fn read_bytes(record: &[u8]) -> usize {
    let mut from = Decoder::new(record);
    if Call::decode(&mut from).is_err() {
        return 0;
    }
    let Ok(args) = CompoundArgs::decode(from) else {
        return 0;
    };
    let mut counts = args.operations.filter_map(|it| match it {
        Ok(Operation::Read(read)) => Some(read.count as usize),
        _ => None,
    });
    counts.next().unwrap_or(0).min(DATA_BYTES)
}

/// Where in a reply the data of the first READ belong.
fn hole_of(reply: &[u8], length: usize) -> Option<usize> {
    let whole = reply.len() + length + padding(length);
    let mut from = Decoder::prefix(reply, whole);
    Reply::decode(&mut from).ok()?;
    let compound = CompoundOk::decode(from).ok()?;
    compound.results.into_iter().find_map(|it| match it {
        Err(malformed) => match malformed.error {
            DecodeError::Awaiting(placement) if placement.length == length => Some(placement.at),
            _ => None,
        },
        Ok(_) => None,
    })
}
