//! A call over RDMA: which of its parts, and of its reply, are in memory of the client
//! (RFC 8166 §3.4.3), and what its reply must say about them.

use files_spec::compound::{CompoundArgs, CompoundOk, PayloadSearch, find_payload};
use files_spec::operations::Operation;
use files_spec::rdma::{Chunk, Chunks, Header, Procedure, ReadSegment, Segment};
use files_spec::rpc::{Call, Reply};
use files_spec::xdr::{DecodeError, Decoder, Placement, Xdr as _, padding};
use rdma::{
    Domain as _, MemoryWindow, QueuePair as _, Registration as _, WindowBinding, WorkCompletion,
};
use rdma_testing::fake::{FakeQueuePair, FakeWindow};

use super::{Area, CALL_BYTES, DATA_BYTES, GUARD_BYTES, Machine, REPLY_BYTES, UNWRITTEN};
use crate::random::Random;

/// Data of a READ that may be part of the message or of the reply chunk, in bytes.
const INLINE_READ_BYTES_MAX: usize = 16 << 10;
/// Room for results beside the data of a READ, in bytes.
const RESULTS_BYTES: usize = 12 << 10;
/// Most segments of one chunk.
const SEGMENTS_MAX: u64 = 6;

/// How a call violates the protocol, or its client what it has agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// A chunk has a wrong key.
    Key,
    /// The memory is not registered any more when the server uses it.
    Removed,
    /// The chunks for data or results are too short.
    Short,
}

/// An outstanding call.
pub(super) struct OutstandingCall {
    pub(super) xid: u32,
    /// The number by which the client knows it; none for what is no call.
    pub(super) copy: Option<u64>,
    /// The place of its memory, and that of its message.
    pub(super) place: usize,
    pub(super) message_at: usize,
    chunks: Chunks,
    /// The keys of its own.
    keys: Vec<u32>,
    windows: Vec<FakeWindow>,
    /// Whether its keys become invalid when it is sent.
    is_removed: bool,
    /// Whether the server may refuse it.
    pub(super) may_be_refused: bool,
}

/// A call that is made.
pub(super) struct Made {
    pub(super) header: Header,
    pub(super) message: Vec<u8>,
    windows: Vec<FakeWindow>,
}

/// What makes calls.
pub(super) struct Maker<'a> {
    pub(super) machine: &'a Machine,
    pub(super) queue_pair: &'a mut FakeQueuePair,
    pub(super) random: &'a mut Random,
    pub(super) place: usize,
    /// Length of the longest message to the server, and of the longest one from it, in bytes.
    pub(super) message_bytes: (usize, usize),
    pub(super) violation: Option<Violation>,
}

impl Maker<'_> {
    /// Makes the call of a record.
    pub(super) fn make(mut self, xid: u32, credits: u32, record: &[u8]) -> Made {
        let area = Area::of(self.place);
        let mut windows = Vec::new();
        let mut chunks = Chunks::default();
        let mut message = record.to_vec();
        let room = self.message_bytes.0;
        if let PayloadSearch::At(Placement { at, length }) = find_payload(record, record.len())
            && length > 0
            && (record.len() > CALL_BYTES || self.random.permille(700))
        {
            let padded = length + padding(length);
            let sent = if self.random.coin() { length } else { padded };
            let view = self.machine.memory.view();
            view.write(area.data, &record[at..at + sent]);
            let chunk = self.chunk((area.data, sent), false, &mut windows);
            for segment in chunk.segments() {
                let position = at as u32;
                let segment = *segment;
                let read = ReadSegment { position, segment };
                chunks.push_read(read).expect("few segments");
            }
            message.drain(at..at + padded);
        }
        self.offer(record, area, &mut chunks, &mut windows);
        if self.violation == Some(Violation::Key) {
            damage(&mut chunks);
        }
        let mut header = Header {
            xid,
            credits,
            procedure: Procedure::Message,
            chunks,
        };
        let is_long = message.len() <= CALL_BYTES && self.random.permille(30);
        if is_long || header.encoded_bytes() + message.len() > room {
            self.machine.memory.view().write(area.call, &message);
            let chunk = self.chunk((area.call, message.len()), false, &mut windows);
            let mut long = Chunks::default();
            long.reply = chunks.reply;
            for segment in chunk.segments() {
                let (position, segment) = (0, *segment);
                let read = ReadSegment { position, segment };
                long.push_read(read).expect("few segments");
            }
            for read in chunks.reads() {
                long.push_read(*read).expect("few segments");
            }
            for write in chunks.writes() {
                long.push_write(*write).expect("few chunks");
            }
            (header.chunks, header.procedure) = (long, Procedure::NoMessage);
            message.clear();
        }
        Made {
            header,
            message,
            windows,
        }
    }

    /// Offers memory for data and results.
    fn offer(
        &mut self,
        record: &[u8],
        area: Area,
        chunks: &mut Chunks,
        windows: &mut Vec<FakeWindow>,
    ) {
        let is_short = self.violation == Some(Violation::Short);
        let count = read_bytes(record);
        let is_inline = count.is_some_and(|it| it <= INLINE_READ_BYTES_MAX);
        // A chunk for data that the results do not have is returned unused.
        let is_useless = count.is_none() && chunks.reads().is_empty() && self.random.permille(20);
        let is_placed = count.is_some() && (!is_inline || self.random.coin());
        if is_placed || is_useless {
            let mut bytes = count.unwrap_or(1000).clamp(1, DATA_BYTES);
            if is_short {
                bytes = self.random.between(1, bytes as u64) as usize;
            }
            self.clear(area.data, bytes);
            let chunk = self.chunk((area.data, bytes), true, windows);
            chunks.push_write(chunk).expect("one chunk");
        }
        let unplaced = count.filter(|_| !is_placed).unwrap_or(0);
        let mut bytes = unplaced + RESULTS_BYTES;
        if is_short {
            bytes = self.random.between(1, bytes as u64) as usize;
        }
        if unplaced > 0 || self.may_be_long(record) || self.random.permille(200) {
            self.clear(area.reply, bytes);
            chunks.reply = Some(self.chunk((area.reply, bytes), true, windows));
        }
    }

    /// Whether the results of a record may not fit into a message.
    fn may_be_long(&self, record: &[u8]) -> bool {
        let mut is_long = self.message_bytes.1 < super::MESSAGE_BYTES;
        with_operations(record, |operation| {
            is_long |= matches!(
                operation,
                Operation::ReadDir(_) | Operation::ReadLink(()) | Operation::GetXattr(_)
            );
        });
        is_long
    }

    /// Fills memory with what the server has to replace.
    fn clear(&self, at: usize, bytes: usize) {
        let unwritten = vec![UNWRITTEN; bytes + GUARD_BYTES];
        self.machine.memory.view().write(at, &unwritten);
    }

    /// A chunk of memory, in segments.
    fn chunk(
        &mut self,
        (at, bytes): (usize, usize),
        is_written: bool,
        windows: &mut Vec<FakeWindow>,
    ) -> Chunk {
        let registration = self.machine.memory.registration();
        let address = (registration.address() + at) as u64;
        let mut key = registration.rkey();
        if self.machine.has_windows {
            let window = self.machine.domain.create_window();
            let mut window = window.expect("windows are not limited");
            let binding = WindowBinding {
                wr_id: 0,
                address,
                length: bytes as u64,
                remote_read: !is_written,
                remote_write: is_written,
                signalled: false,
            };
            // A queue pair that has failed takes no requests.
            let _ = (self.queue_pair).queue_bind(&mut window, registration, &binding);
            key = window.rkey();
            windows.push(window);
        }
        let mut chunk = Chunk::default();
        let segments = self.random.between(1, SEGMENTS_MAX.min(bytes as u64));
        let mut done = 0;
        for left in (0..segments).rev() {
            let rest = bytes as u64 - done;
            let length = match left {
                0 => rest,
                _ => self.random.between(1, rest - left),
            };
            let segment = Segment {
                handle: key,
                length: length as u32,
                offset: address + done,
            };
            chunk.push(segment).expect("few segments");
            done += length;
        }
        chunk
    }
}

impl OutstandingCall {
    pub(super) fn new(
        made: Made,
        (copy, place, message_at): (Option<u64>, usize, usize),
        violation: Option<Violation>,
    ) -> Self {
        Self {
            xid: made.header.xid,
            copy,
            place,
            message_at,
            chunks: made.header.chunks,
            keys: made.windows.iter().map(MemoryWindow::rkey).collect(),
            windows: made.windows,
            is_removed: violation == Some(Violation::Removed),
            may_be_refused: violation == Some(Violation::Short),
        }
    }

    /// What is no call, with the answer that it gets.
    pub(super) fn refused(xid: u32, place: usize, message_at: usize) -> Self {
        Self {
            xid,
            copy: None,
            place,
            message_at,
            chunks: Chunks::default(),
            keys: Vec::new(),
            windows: Vec::new(),
            is_removed: false,
            may_be_refused: true,
        }
    }

    /// Its message was sent.
    pub(super) fn sent(&mut self) {
        if self.is_removed {
            // Without its window, a key is invalid.
            self.windows.clear();
        }
    }

    /// Its chunks, for messages.
    pub(super) fn told(&self) -> String {
        let (xid, chunks, keys) = (self.xid, &self.chunks, &self.keys);
        format!("call {xid:#x} with {chunks:x?} and the keys {keys:x?}")
    }

    /// Whether a message can be the answer: it has the same chunks, and invalidates a key of the call
    /// if it has keys of its own.
    pub(super) fn fits(&self, header: &Header, completion: &WorkCompletion) -> bool {
        let is_error = matches!(
            header.procedure,
            Procedure::ChunkError | Procedure::VersionError { .. }
        );
        let invalidates = match completion.invalidated() {
            Some(key) => self.keys.contains(&key),
            None => is_error || self.keys.is_empty(),
        };
        self.xid == header.xid
            && invalidates
            && match is_error {
                true => self.may_be_refused,
                false => self.copy.is_some() && self.has_same_chunks(&header.chunks),
            }
    }

    fn has_same_chunks(&self, returned: &Chunks) -> bool {
        let is_used = |offered: &Chunk, used: &Chunk| {
            let segments = offered.segments().iter().zip(used.segments());
            let count = offered.segments().len() == used.segments().len();
            count
                && segments.into_iter().all(|(offered, used)| {
                    let place = |it: &Segment| (it.handle, it.offset);
                    place(offered) == place(used) && used.length <= offered.length
                })
        };
        let writes = self.chunks.writes().iter().zip(returned.writes());
        let is_reply = match (&self.chunks.reply, &returned.reply) {
            (_, None) => true,
            (Some(offered), Some(used)) => is_used(offered, used),
            (None, Some(_)) => false,
        };
        self.chunks.writes().len() == returned.writes().len()
            && writes
                .into_iter()
                .all(|(offered, used)| is_used(offered, used))
            && is_reply
    }

    /// The reply in a message, with what the server has placed in memory.
    ///
    /// # Errors
    /// The server has written too much, or something else than it says.
    pub(super) fn reply(
        &self,
        machine: &Machine,
        header: &Header,
        rest: &[u8],
    ) -> Result<Vec<u8>, String> {
        let area = Area::of(self.place);
        let read = |at: usize, bytes: u64| {
            let mut data = vec![0; bytes as usize];
            machine.memory.view().read(at, &mut data);
            data
        };
        let used = header.chunks.reply.as_ref().map(Chunk::bytes);
        let mut reply = match (header.procedure, used) {
            (Procedure::Message, None) => rest.to_vec(),
            (Procedure::NoMessage, Some(bytes)) if rest.is_empty() => read(area.reply, bytes),
            _ => return Err(format!("a reply has the header {header:?}")),
        };
        let placed = header.chunks.writes().first().map_or(0, Chunk::bytes);
        if placed > 0 {
            let mut data = read(area.data, placed);
            let at = hole_of(&reply, data.len());
            let at = at.ok_or_else(|| format!("{placed} bytes were placed that no READ has"))?;
            data.resize(data.len() + padding(data.len()), 0);
            reply.splice(at..at, data);
        }
        self.check_rest(machine, area, (placed, used.unwrap_or(0)))?;
        Ok(reply)
    }

    /// Checks that nothing is written behind what the server says.
    fn check_rest(
        &self,
        machine: &Machine,
        area: Area,
        (placed, replied): (u64, u64),
    ) -> Result<(), String> {
        let offered = self
            .chunks
            .writes()
            .first()
            .map(|_| area.data + placed as usize);
        let reply = self.chunks.reply.map(|_| area.reply + replied as usize);
        for at in offered.into_iter().chain(reply).chain(area.guards()) {
            let mut bytes = [0; GUARD_BYTES];
            machine.memory.view().read(at, &mut bytes);
            if bytes != [UNWRITTEN; GUARD_BYTES] {
                return Err(format!(
                    "memory behind {placed} bytes of data and {replied} of results is written"
                ));
            }
        }
        Ok(())
    }
}

/// Gives the first chunk a wrong key.
fn damage(chunks: &mut Chunks) {
    let wrong = |mut segment: Segment| {
        segment.handle ^= 0x5A00;
        segment
    };
    let mut damaged = Chunks::default();
    for read in chunks.reads() {
        let (position, segment) = (read.position, wrong(read.segment));
        let read = ReadSegment { position, segment };
        damaged.push_read(read).expect("as many");
    }
    for chunk in chunks.writes() {
        damaged
            .push_write(chunk_with(chunk, wrong))
            .expect("as many");
    }
    damaged.reply = chunks.reply.map(|it| chunk_with(&it, wrong));
    *chunks = damaged;
}

fn chunk_with(chunk: &Chunk, change: impl Fn(Segment) -> Segment) -> Chunk {
    let mut changed = Chunk::default();
    for segment in chunk.segments() {
        changed.push(change(*segment)).expect("as many");
    }
    changed
}

fn with_operations(record: &[u8], mut see: impl FnMut(&Operation<'_>)) {
    let mut from = Decoder::new(record);
    if Call::decode(&mut from).is_err() {
        return;
    }
    let Ok(args) = CompoundArgs::decode(from) else {
        return;
    };
    args.operations.flatten().for_each(|it| see(&it));
}

/// The bytes that the first READ of a call asks for.
fn read_bytes(record: &[u8]) -> Option<usize> {
    let mut count = None;
    with_operations(record, |operation| {
        if let Operation::Read(read) = operation {
            count.get_or_insert(read.count as usize);
        }
    });
    count.filter(|it| *it > 0)
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

const _: () = assert!(INLINE_READ_BYTES_MAX + RESULTS_BYTES <= REPLY_BYTES);
