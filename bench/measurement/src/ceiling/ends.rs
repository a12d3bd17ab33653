//! Both ends of the bare pairs: they follow the order and the sizes of messages and parse none.
//!
//! Every message has one response, and both directions keep their order. The sizes of the messages
//! on a connection therefore follow a cycle that both ends know.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::{
    CeilingError, CeilingMeasurement, CeilingOptions, DATA_BYTES, DataLocation, DataMemory,
    Exchange, HEADER_BYTES, HOT_MAX_BYTES, IN_CAPSULE_BYTES, REQUEST_BYTES, WINDOW_MAX,
};
use crate::ceiling::busy_time::BusyTime;
use crate::ceiling::passes::Passes;
use crate::ceiling::sealed;
use bench::random::Random;
use bench::report::{Latency, histogram, nanos};

/// Size of the receive buffer of either side, and approximate size of one receive into blocks: some
/// tens of small messages, and small enough to stay in the second-level cache.
pub(super) const RECEIVE_BYTES: usize = 128 * 1024;
/// Maximum number of pieces of one receive into blocks.
const PIECES_MAX: usize = 128;

// One vectored send takes a header and a block for each response, at most IOV_MAX (1024) pieces.
const _: () = assert!(WINDOW_MAX * 2 <= 1024);

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) header: usize,
    pub(super) data: usize,
}

impl Message {
    const fn new(header: usize, data: usize) -> Self {
        Self { header, data }
    }

    fn bytes(self) -> usize {
        self.header + self.data
    }
}

/// The cycle of a connection: what the host sends, and the target's response to each message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cycle {
    pub(super) host_messages: Vec<Message>,
    pub(super) target_messages: Vec<Message>,
    /// What the host sends after it received each of `target_messages`.
    next: Vec<Message>,
    /// Which of `target_messages` completes a request.
    ends: Vec<bool>,
}

impl Cycle {
    pub(super) fn of(exchange: Exchange, window: usize) -> Self {
        let Exchange { write, data_bytes } = exchange;
        let (capsule, response) = (
            Message::new(REQUEST_BYTES, 0),
            Message::new(HEADER_BYTES, 0),
        );
        let simple = |host_messages, target_messages| Self {
            host_messages: vec![host_messages],
            target_messages: vec![target_messages],
            next: vec![host_messages],
            ends: vec![true],
        };
        if !write {
            return simple(capsule, Message::new(HEADER_BYTES, data_bytes));
        }
        if data_bytes <= IN_CAPSULE_BYTES {
            return simple(Message::new(REQUEST_BYTES, data_bytes), response);
        }
        // Commands and their R2Ts, then data and its responses, each for all requests in flight.
        let data = Message::new(HEADER_BYTES, data_bytes);
        let twice = |first, second| [vec![first; window], vec![second; window]].concat();
        Self {
            host_messages: twice(capsule, data),
            target_messages: vec![response; 2 * window],
            next: twice(data, capsule),
            ends: [vec![false; window], vec![true; window]].concat(),
        }
    }

    /// Bytes of the whole cycle: those from the host, and those from the target.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let all = |messages: &[Message]| messages.iter().map(|message| message.bytes()).sum();
        (all(&self.host_messages), all(&self.target_messages))
    }
}

/// The position in a stream of messages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Position in the cycle.
    at: usize,
    /// Bytes of the current message that were transferred.
    have: usize,
}

impl Progress {
    /// Advances by `bytes`; calls `complete` with the position of each completed message.
    pub(super) fn advance(
        &mut self,
        cycle: &[Message],
        bytes: usize,
        mut complete: impl FnMut(usize),
    ) {
        self.have += bytes;
        while self.have >= cycle[self.at].bytes() {
            self.have -= cycle[self.at].bytes();
            complete(self.at);
            self.at = (self.at + 1) % cycle.len();
        }
    }
}

/// The result of a system call; 0 if nothing could be transferred.
fn moved(result: Result<usize, Errno>) -> io::Result<usize> {
    match result {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => Ok(other?),
    }
}

fn received(result: Result<usize, Errno>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        other => moved(other),
    }
}

/// Receives what is available; 0 if there is nothing.
pub(super) fn receive(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    received(rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes))
}

/// Sends as much of `owed` bytes as the socket takes, whatever their content; 0 if it takes
/// nothing.
pub(super) fn send(socket: &TcpStream, bytes: &[u8], owed: usize) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    moved(rustix::net::send(
        socket,
        &bytes[..owed.min(bytes.len())],
        flags,
    ))
}

/// Sends as much of `parts` as the socket takes; 0 if it takes nothing.
fn send_parts(socket: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    moved(rustix::net::sendmsg(
        socket,
        parts,
        &mut SendAncillaryBuffer::default(),
        flags,
    ))
}

/// Runs the target's side until `stop`. Returns the share of its time for which it was busy.
pub(super) fn respond(
    sockets: &[TcpStream],
    options: &CeilingOptions,
    stop: &AtomicBool,
) -> Result<f64, CeilingError> {
    let cycle = Cycle::of(options.exchange, options.window);
    let passes = Passes::begin(sockets, options.responder_percent.is_some(), stop);
    if options.sealed {
        return sealed::respond(sockets, &cycle, &options.answers, passes);
    }
    match &options.answers {
        DataLocation::Memory(memory) if options.exchange.write => {
            receive_into_memory(sockets, &cycle, options.exchange, memory, passes)
        }
        DataLocation::Memory(memory) => respond_from_memory(sockets, &cycle, memory, passes),
        DataLocation::HotBuffer => Ok(respond_from_buffer(
            sockets,
            &cycle,
            options.window,
            passes,
        )?),
    }
}

/// Responds to each request with a header and a random block of `memory`.
pub(super) fn respond_from_memory(
    sockets: &[TcpStream],
    cycle: &Cycle,
    memory: &DataMemory,
    mut passes: Passes<'_>,
) -> Result<f64, CeilingError> {
    let mut requests = vec![0_u8; RECEIVE_BYTES];
    let header = [0x5a_u8; HEADER_BYTES];
    let borrow = memory.borrow_all();
    let block_bytes = cycle.target_messages[0].data;
    let blocks: Vec<&[u8]> = borrow.chunks_exact(block_bytes).collect();
    if blocks.is_empty() {
        return Err(CeilingError::too_small(memory.bytes(), block_bytes));
    }
    let mut random = Random::new(1);
    let mut ends: Vec<_> = sockets
        .iter()
        .map(|socket| {
            (
                socket,
                Progress::default(),
                Vec::with_capacity(2 * WINDOW_MAX),
            )
        })
        .collect();
    while passes.continues() {
        let mut moved = false;
        for (socket, progress, unsent) in &mut ends {
            let bytes = receive(socket, &mut requests)?;
            progress.advance(&cycle.host_messages, bytes, |_| {
                let block = blocks[random.below(blocks.len() as u64) as usize];
                unsent.extend([IoSlice::new(&header), IoSlice::new(block)]);
            });
            moved |= bytes > 0 || !unsent.is_empty();
            if !unsent.is_empty() {
                let sent = send_parts(socket, unsent)?;
                drop_sent(unsent, sent);
            }
        }
        passes.ended(moved)?;
    }
    Ok(passes.busy_share())
}

/// Removes the sent bytes from the front of `parts`.
pub(super) fn drop_sent(parts: &mut Vec<IoSlice<'_>>, sent: usize) {
    let before = parts.len();
    let mut left = parts.as_mut_slice();
    IoSlice::advance_slices(&mut left, sent);
    let gone = before - left.len();
    parts.drain(..gone);
}

/// Responds with one buffer for all received data and one for all sent data.
fn respond_from_buffer(
    sockets: &[TcpStream],
    cycle: &Cycle,
    window: usize,
    mut passes: Passes<'_>,
) -> io::Result<f64> {
    let mut requests = vec![0_u8; RECEIVE_BYTES];
    let responses = vec![0x5a_u8; (window * cycle.target_messages[0].bytes()).min(HOT_MAX_BYTES)];
    let mut ends: Vec<_> = sockets
        .iter()
        .map(|socket| (socket, Progress::default(), 0))
        .collect();
    while passes.continues() {
        let mut moved = false;
        for (socket, progress, owed) in &mut ends {
            let bytes = receive(socket, &mut requests)?;
            progress.advance(&cycle.host_messages, bytes, |at| {
                *owed += cycle.target_messages[at].bytes();
            });
            moved |= bytes > 0 || *owed > 0;
            if *owed > 0 {
                *owed -= send(socket, &responses, *owed)?;
            }
        }
        passes.ended(moved)?;
    }
    Ok(passes.busy_share())
}

/// A connection whose data is received directly into random blocks of memory.
struct TargetConnection<'a, 'm> {
    socket: &'a TcpStream,
    progress: Progress,
    /// Blocks for the next data, by number; the first may be partially filled.
    landing: VecDeque<(usize, &'m mut [u8])>,
    owed: usize,
}

/// Receives each request's data into a random block of `memory`.
fn receive_into_memory(
    sockets: &[TcpStream],
    cycle: &Cycle,
    exchange: Exchange,
    memory: &DataMemory,
    passes: Passes<'_>,
) -> Result<f64, CeilingError> {
    let mut outcome = None;
    let owned = memory.0.handle().try_fill(0, memory.0.len(), |bytes| {
        outcome = Some(receive_into(sockets, cycle, exchange, bytes, passes));
    });
    assert!(owned, "the store is ours, and it has no borrows");
    outcome.expect("it was filled")
}

/// Like [`receive_into_memory`], with the bytes of that memory.
fn receive_into(
    sockets: &[TcpStream],
    cycle: &Cycle,
    exchange: Exchange,
    bytes: &mut [u8],
    mut passes: Passes<'_>,
) -> Result<f64, CeilingError> {
    let there = bytes.len() as u64;
    let mut blocks: Vec<&mut [u8]> = bytes.chunks_exact_mut(exchange.data_bytes).collect();
    let ahead = (RECEIVE_BYTES / exchange.data_bytes).max(2);
    let least = 2 * ahead * sockets.len();
    if blocks.len() < least {
        let least = least * exchange.data_bytes;
        return Err(CeilingError::too_small(there, least));
    }
    let mut random = Random::new(1);
    let mut connections = Vec::with_capacity(sockets.len());
    for socket in sockets {
        connections.push(TargetConnection {
            socket,
            progress: Progress::default(),
            landing: (0..ahead)
                .map(|_| take_block(&mut blocks, &mut random))
                .collect(),
            owed: 0,
        });
    }
    let responses = vec![0x5a_u8; WINDOW_MAX * HEADER_BYTES];
    let mut headers = vec![0_u8; PIECES_MAX * REQUEST_BYTES];
    while passes.continues() {
        let mut moved = false;
        for connection in &mut connections {
            let received = connection.receive(&cycle.host_messages, &mut headers)?;
            let TargetConnection {
                progress,
                landing,
                owed,
                ..
            } = connection;
            progress.advance(&cycle.host_messages, received, |at| {
                *owed += cycle.target_messages[at].bytes();
                if cycle.host_messages[at].data > 0
                    && let Some((number, block)) = landing.pop_front()
                {
                    blocks[number] = block;
                    landing.push_back(take_block(&mut blocks, &mut random));
                }
            });
            moved |= received > 0 || *owed > 0;
            if *owed > 0 {
                *owed -= send(connection.socket, &responses, *owed)?;
            }
        }
        passes.ended(moved)?;
    }
    Ok(passes.busy_share())
}

/// Takes a random block that is not used for data in flight.
fn take_block<'m>(blocks: &mut [&'m mut [u8]], random: &mut Random) -> (usize, &'m mut [u8]) {
    loop {
        let number = random.below(blocks.len() as u64) as usize;
        let block = std::mem::take(&mut blocks[number]);
        if !block.is_empty() {
            return (number, block);
        }
    }
}

impl TargetConnection<'_, '_> {
    /// Receives headers into `room`, which is not read, and data into its blocks.
    fn receive(&mut self, host_messages: &[Message], mut room: &mut [u8]) -> io::Result<usize> {
        let mut pieces = ArrayVec::<IoSliceMut<'_>, PIECES_MAX>::new();
        let mut blocks = self.landing.iter_mut();
        let Progress { mut at, mut have } = self.progress;
        while pieces.remaining_capacity() >= 2 {
            let message = host_messages[at];
            let header = message.header.saturating_sub(have);
            if header > 0 {
                let (piece, rest) = room.split_at_mut(header);
                pieces.push(IoSliceMut::new(piece));
                room = rest;
            }
            if message.data > 0 {
                let Some((_, block)) = blocks.next() else {
                    break;
                };
                let filled = have.saturating_sub(message.header);
                pieces.push(IoSliceMut::new(&mut block[filled..]));
            }
            (at, have) = ((at + 1) % host_messages.len(), 0);
        }
        received(rustix::io::readv(self.socket, &mut pieces))
    }
}

/// One connection of the host.
pub(super) struct HostConnection<'a> {
    pub(super) socket: &'a TcpStream,
    pub(super) progress: Progress,
    pub(super) unsent: usize,
    /// The position in `requests` of the next bytes to send; `None`: always the front.
    pub(super) at: Option<usize>,
    pub(super) requests: Requests,
}

/// The buffer from which a connection's requests are sent.
pub(super) type Requests = Box<dyn Deref<Target = [u8]>>;

impl HostConnection<'_> {
    /// Sends as much of the unsent bytes as the socket takes.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let Some(at) = &mut self.at else {
            self.unsent -= send(self.socket, &self.requests, self.unsent)?;
            return Ok(());
        };
        let (front, back) = self.requests.split_at(*at);
        let now = &back[..self.unsent.min(back.len())];
        let then = &front[..(self.unsent - now.len()).min(front.len())];
        let sent = send_parts(self.socket, &[IoSlice::new(now), IoSlice::new(then)])?;
        *at = (*at + sent) % self.requests.len();
        self.unsent -= sent;
        Ok(())
    }
}

/// The requests of a connection, and the start position. A host keeps the data of a write until its
/// response, so with a target that uses memory all requests in flight are stored consecutively;
/// otherwise they are one buffer that stays in the cache.
fn requests(
    options: &CeilingOptions,
    cycle: &Cycle,
) -> Result<(Requests, Option<usize>), CeilingError> {
    let host_messages = cycle.host_messages.iter().map(|message| message.bytes());
    if options.exchange.write && matches!(options.answers, DataLocation::Memory(_)) {
        let per_cycle = cycle.ends.iter().filter(|ends| **ends).count();
        let in_flight = host_messages.sum::<usize>() / per_cycle * options.window;
        let memory = DataMemory::take(in_flight.max(DATA_BYTES) as u64)?;
        let borrow = memory.0.handle().try_borrow_read(0, in_flight);
        let borrow = borrow.expect("the store is ours, and nobody writes to it");
        return Ok((Box::new(borrow), Some(0)));
    }
    let bytes = options.window * host_messages.max().unwrap_or(0);
    Ok((Box::new(vec![0xa5_u8; bytes.min(HOT_MAX_BYTES)]), None))
}

/// Runs the host's side: keeps the window full on every connection and counts responses.
pub(super) fn run_requester(
    sockets: &[TcpStream],
    options: &CeilingOptions,
) -> Result<CeilingMeasurement, CeilingError> {
    if options.sealed {
        return sealed::request(sockets, options);
    }
    let cycle = Cycle::of(options.exchange, options.window);
    let mut responses = vec![0_u8; RECEIVE_BYTES];
    let first = options.window * cycle.host_messages[0].bytes();
    let mut connections = Vec::with_capacity(sockets.len());
    for socket in sockets {
        let (requests, at) = requests(options, &cycle)?;
        connections.push(HostConnection {
            socket,
            progress: Progress::default(),
            unsent: first,
            at,
            requests,
        });
    }
    let mut clock = Counting::new(options, options.window * sockets.len() == 1);
    let mut busy_time = BusyTime::begin();
    loop {
        let mut moved = false;
        for connection in &mut connections {
            moved |= connection.unsent > 0;
            if connection.unsent > 0 {
                if connection.unsent == first {
                    clock.sent();
                }
                connection.send()?;
            }
            let bytes = receive(connection.socket, &mut responses)?;
            moved |= bytes > 0;
            let HostConnection {
                progress, unsent, ..
            } = connection;
            progress.advance(&cycle.target_messages, bytes, |at| {
                *unsent += cycle.next[at].bytes();
                if cycle.ends[at] {
                    clock.completed();
                }
            });
        }
        busy_time.end_pass(moved);
        if let Some(measured) = clock.tick() {
            return Ok(CeilingMeasurement {
                requester_busy_share: busy_time.busy_share(),
                ..measured
            });
        }
    }
}

/// The host's counters and times.
pub(super) struct Counting<'a> {
    options: &'a CeilingOptions,
    histogram: hdrhistogram::Histogram<u64>,
    one_at_a_time: bool,
    asked_at: Instant,
    warm_from: Instant,
    counting_from: Option<Instant>,
    counted: u64,
    polls: u32,
}

impl<'a> Counting<'a> {
    pub(super) fn new(options: &'a CeilingOptions, one_at_a_time: bool) -> Self {
        let now = Instant::now();
        Self {
            options,
            histogram: histogram(),
            one_at_a_time,
            asked_at: now,
            warm_from: now,
            counting_from: None,
            counted: 0,
            polls: 0,
        }
    }

    pub(super) fn sent(&mut self) {
        if self.one_at_a_time {
            self.asked_at = Instant::now();
        }
    }

    pub(super) fn completed(&mut self) {
        self.counted += 1;
        if self.one_at_a_time && self.counting_from.is_some() {
            let taken = nanos(self.asked_at.elapsed());
            self.histogram.saturating_record(taken);
        }
    }

    /// Reads the clock at intervals. Returns the result when the time is over.
    pub(super) fn tick(&mut self) -> Option<CeilingMeasurement> {
        self.polls += 1;
        if self.polls < 64 {
            return None;
        }
        self.polls = 0;
        let now = Instant::now();
        match self.counting_from {
            None if now - self.warm_from >= self.options.warm_up => {
                self.counting_from = Some(now);
                self.counted = 0;
                None
            }
            Some(start) if now - start >= self.options.duration => Some(CeilingMeasurement {
                requests: self.counted,
                elapsed: now - start,
                latency: self
                    .one_at_a_time
                    .then(|| Latency::from_histogram(&self.histogram)),
                // The caller and the other side fill these in.
                requester_busy_share: 1.0,
                responder_busy_share: 1.0,
            }),
            _ => None,
        }
    }
}
