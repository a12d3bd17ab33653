//! RPC-over-RDMA version 1 (RFC 8166): the header of each message with its chunk lists, and the
//! private data of connections (RFC 8797).
//!
//! A chunk is memory of the client that it offers for one part of a call or reply: the server reads
//! or writes it by RDMA. All lists are bounded, so that a header has a fixed size in memory.

#[cfg(test)]
mod tests;

use crate::limits::RECORD_BYTES_MAX;
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, UNIT_BYTES, Xdr};

/// The version of the protocol.
pub const RDMA_VERSION: u32 = 1;

/// Limit of the segments of a chunk, and of all read chunks. Linux sends at most 16.
pub const SEGMENTS_MAX: usize = 16;

/// Limit of the write chunks of a call. Linux sends at most one.
pub const WRITE_CHUNKS_MAX: usize = 4;

/// Size of a message that each side receives without any agreement, in bytes (RFC 8166 §3.3.2).
pub const INLINE_BYTES_DEFAULT: usize = 1024;

/// Limit of the size of a header in bytes.
pub const HEADER_BYTES_MAX: usize = FIXED_BYTES
    + SEGMENTS_MAX * (2 * UNIT_BYTES + SEGMENT_BYTES)
    + (WRITE_CHUNKS_MAX + 1) * (2 * UNIT_BYTES + SEGMENTS_MAX * SEGMENT_BYTES)
    + 2 * UNIT_BYTES;

/// Size of the fixed part of a header in bytes.
const FIXED_BYTES: usize = 16;
/// Size of a segment in bytes.
const SEGMENT_BYTES: usize = 16;

const MESSAGE: u32 = 0;
const NO_MESSAGE: u32 = 1;
const ERROR: u32 = 4;

const ERROR_VERSION: u32 = 1;
const ERROR_CHUNK: u32 = 2;

xdr_struct! {
    /// A range of the client's memory (RFC 8166 §3.4.3).
    pub struct Segment {
        handle: u32,
        length: u32,
        offset: u64,
    }
}

impl Segment {
    const NONE: Self = Self {
        handle: 0,
        length: 0,
        offset: 0,
    };

    fn wraps(&self) -> bool {
        self.offset.checked_add(u64::from(self.length)).is_none()
    }
}

xdr_struct! {
    /// A segment of a read chunk, with the position of the chunk in the message.
    pub struct ReadSegment {
        position: u32,
        segment: Segment,
    }
}

/// A list has no room for another item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListFull;

/// Ranges of the client's memory for one part of a message (RFC 8166 §3.4.4).
#[derive(Clone, Copy)]
pub struct Chunk {
    segments: [Segment; SEGMENTS_MAX],
    count: u8,
}

impl Default for Chunk {
    fn default() -> Self {
        Self {
            segments: [Segment::NONE; SEGMENTS_MAX],
            count: 0,
        }
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.segments() == other.segments()
    }
}

impl Eq for Chunk {}

impl core::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.segments()).finish()
    }
}

impl Chunk {
    /// Its segments, in the order of the data.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..usize::from(self.count)]
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments().iter().map(|it| u64::from(it.length)).sum()
    }

    /// Appends a segment.
    ///
    /// # Errors
    /// It has [`SEGMENTS_MAX`] segments already.
    pub fn push(&mut self, segment: Segment) -> Result<(), ListFull> {
        let place = self.segments.get_mut(usize::from(self.count));
        *place.ok_or(ListFull)? = segment;
        self.count += 1;
        Ok(())
    }

    /// The chunk as a reply returns it, with the lengths that `bytes` bytes use (RFC 8166 §3.4.6);
    /// `None` if it has no room for them.
    #[must_use]
    pub fn used(&self, bytes: u64) -> Option<Self> {
        let mut used = *self;
        let mut left = bytes;
        for segment in &mut used.segments[..usize::from(self.count)] {
            // The smaller one has 32 bits.
            segment.length = left.min(u64::from(segment.length)) as u32;
            left -= u64::from(segment.length);
        }
        (left == 0).then_some(used)
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let count = from.length(SEGMENTS_MAX)?;
        let mut chunk = Self::default();
        for _ in 0..count {
            let segment = Segment::decode(from)?;
            if segment.wraps() {
                return Err(DecodeError::TooLong);
            }
            chunk.push(segment).map_err(|_| DecodeError::TooLong)?;
        }
        Ok(chunk)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        u32::from(self.count).encode(to)?;
        self.segments().iter().try_for_each(|it| it.encode(to))
    }
}

/// The chunk lists of a message.
#[derive(Clone, Copy)]
pub struct Chunks {
    reads: [ReadSegment; SEGMENTS_MAX],
    read_count: u8,
    writes: [Chunk; WRITE_CHUNKS_MAX],
    write_count: u8,
    /// Memory for a reply that is too long for a message.
    pub reply: Option<Chunk>,
}

impl Default for Chunks {
    fn default() -> Self {
        let read = ReadSegment {
            position: 0,
            segment: Segment::NONE,
        };
        Self {
            reads: [read; SEGMENTS_MAX],
            read_count: 0,
            writes: [Chunk::default(); WRITE_CHUNKS_MAX],
            write_count: 0,
            reply: None,
        }
    }
}

impl PartialEq for Chunks {
    fn eq(&self, other: &Self) -> bool {
        let lists = |it: &Self| (it.reads().len(), it.writes().len(), it.reply);
        lists(self) == lists(other)
            && self.reads() == other.reads()
            && self.writes() == other.writes()
    }
}

impl Eq for Chunks {}

impl core::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Chunks")
            .field("reads", &self.reads())
            .field("writes", &self.writes())
            .field("reply", &self.reply)
            .finish()
    }
}

impl Chunks {
    /// The segments of all read chunks, by ascending position.
    #[must_use]
    pub fn reads(&self) -> &[ReadSegment] {
        &self.reads[..usize::from(self.read_count)]
    }

    /// The write chunks, in the order of the results that they are for.
    #[must_use]
    pub fn writes(&self) -> &[Chunk] {
        &self.writes[..usize::from(self.write_count)]
    }

    /// Appends a segment of a read chunk.
    ///
    /// # Errors
    /// There are [`SEGMENTS_MAX`] of them already.
    pub fn push_read(&mut self, read: ReadSegment) -> Result<(), ListFull> {
        let place = self.reads.get_mut(usize::from(self.read_count));
        *place.ok_or(ListFull)? = read;
        self.read_count += 1;
        Ok(())
    }

    /// Appends a write chunk.
    ///
    /// # Errors
    /// There are [`WRITE_CHUNKS_MAX`] of them already.
    pub fn push_write(&mut self, chunk: Chunk) -> Result<(), ListFull> {
        let place = self.writes.get_mut(usize::from(self.write_count));
        *place.ok_or(ListFull)? = chunk;
        self.write_count += 1;
        Ok(())
    }

    /// A key that the client has given for this message alone, if there is any: the server may
    /// invalidate it with its reply.
    #[must_use]
    pub fn first_handle(&self) -> Option<u32> {
        let writes = self.writes().iter().chain(&self.reply);
        let mut segments = writes.flat_map(Chunk::segments);
        let reads = self.reads().first().map(|it| it.segment);
        let first = segments.next().copied().or(reads);
        first.map(|it| it.handle)
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut chunks = Self::default();
        let mut position = 0;
        while bool::decode(from)? {
            let read = ReadSegment::decode(from)?;
            let is_unit = (read.position as usize).is_multiple_of(UNIT_BYTES);
            if read.position < position || !is_unit || read.segment.wraps() {
                return Err(DecodeError::Discriminant);
            }
            position = read.position;
            chunks.push_read(read).map_err(|_| DecodeError::TooLong)?;
        }
        while bool::decode(from)? {
            let chunk = Chunk::decode(from)?;
            chunks.push_write(chunk).map_err(|_| DecodeError::TooLong)?;
        }
        if bool::decode(from)? {
            chunks.reply = Some(Chunk::decode(from)?);
        }
        Ok(chunks)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        for read in self.reads() {
            true.encode(to)?;
            read.encode(to)?;
        }
        false.encode(to)?;
        for chunk in self.writes() {
            true.encode(to)?;
            chunk.encode(to)?;
        }
        false.encode(to)?;
        self.reply.is_some().encode(to)?;
        self.reply.map_or(Ok(()), |chunk| chunk.encode(to))
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Procedure {
    /// The header of an RPC message that follows it, RDMA_MSG.
    Message,
    /// The header of an RPC message that is in chunks only, RDMA_NOMSG.
    NoMessage,
    /// The call has another version than those from `low` to `high`, RDMA_ERROR.
    VersionError {
        /// The lowest version.
        low: u32,
        /// The highest version.
        high: u32,
    },
    /// The chunk lists of the call cannot be used, RDMA_ERROR.
    ChunkError,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The identifier of the RPC message.
    pub xid: u32,
    /// Calls that a client wants to have, or that a server accepts, at the same time.
    pub credits: u32,
    /// What the message is.
    pub procedure: Procedure,
    /// The chunk lists; empty in an error.
    pub chunks: Chunks,
}

/// Why a message is not a header, or not that of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// It has no fixed part, or is no call: there is no answer.
    Truncated,
    /// It has another version.
    Version {
        /// Its identifier.
        xid: u32,
    },
    /// Its procedure is unknown, or its chunk lists are malformed, too long, or do not match the
    /// message.
    Chunk {
        /// Its identifier.
        xid: u32,
    },
}

impl HeaderError {
    /// The header of the answer (RFC 8166 §4.5.1 and §4.5.2).
    #[must_use]
    pub fn answer(self, credits: u32) -> Option<Header> {
        let (xid, procedure) = match self {
            Self::Truncated => return None,
            Self::Version { xid } => {
                let (low, high) = (RDMA_VERSION, RDMA_VERSION);
                (xid, Procedure::VersionError { low, high })
            }
            Self::Chunk { xid } => (xid, Procedure::ChunkError),
        };
        Some(Header {
            xid,
            credits,
            procedure,
            chunks: Chunks::default(),
        })
    }
}

/// The parts of a call that the server reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallChunks {
    /// The call itself, if it does not follow the header (RFC 8166 §3.5.3).
    pub message: Chunk,
    /// Where in the call the other chunk belongs.
    pub data_at: usize,
    /// One item of the call.
    pub data: Chunk,
}

impl Header {
    /// Decodes a header. Returns it with its length.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(message: &[u8]) -> Result<(Self, usize), HeaderError> {
        let mut from = Decoder::new(message);
        let mut fixed = [0; 4];
        for word in &mut fixed {
            *word = u32::decode(&mut from).map_err(|_| HeaderError::Truncated)?;
        }
        let [xid, version, credits, procedure] = fixed;
        if version != RDMA_VERSION {
            return Err(HeaderError::Version { xid });
        }
        let (procedure, chunks) =
            decode_body(procedure, &mut from).map_err(|_| HeaderError::Chunk { xid })?;
        let header = Self {
            xid,
            credits,
            procedure,
            chunks,
        };
        Ok((header, from.position()))
    }

    /// Appends the header.
    ///
    /// # Errors
    /// The memory is exhausted; [`HEADER_BYTES_MAX`] bytes suffice.
    pub fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        self.xid.encode(to)?;
        RDMA_VERSION.encode(to)?;
        self.credits.encode(to)?;
        match self.procedure {
            Procedure::Message => MESSAGE.encode(to)?,
            Procedure::NoMessage => NO_MESSAGE.encode(to)?,
            Procedure::VersionError { low, high } => {
                let words = [ERROR, ERROR_VERSION, low, high];
                return words.iter().try_for_each(|it| it.encode(to));
            }
            Procedure::ChunkError => {
                ERROR.encode(to)?;
                return ERROR_CHUNK.encode(to);
            }
        }
        self.chunks.encode(to)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let chunk = |it: &Chunk| UNIT_BYTES + it.segments().len() * SEGMENT_BYTES;
        let listed = |it: &Chunk| UNIT_BYTES + chunk(it);
        match self.procedure {
            Procedure::VersionError { .. } => FIXED_BYTES + 3 * UNIT_BYTES,
            Procedure::ChunkError => FIXED_BYTES + UNIT_BYTES,
            Procedure::Message | Procedure::NoMessage => {
                let reads = self.chunks.reads().len() * (2 * UNIT_BYTES + SEGMENT_BYTES);
                let writes: usize = self.chunks.writes().iter().map(listed).sum();
                let reply = self.chunks.reply.as_ref().map_or(0, chunk);
                // Each list ends with a unit, and the reply chunk begins with one.
                FIXED_BYTES + reads + writes + reply + 3 * UNIT_BYTES
            }
        }
    }

    /// The read chunks of a call with `inline_bytes` bytes behind the header. It has at most two:
    /// the call itself, and one item of it, as clients of NFS use them (RFC 8267).
    ///
    /// # Errors
    /// They do not match the message, or exceed a record; or it is an error of a peer that takes
    /// this side for a client.
    pub fn call(&self, inline_bytes: usize) -> Result<CallChunks, HeaderError> {
        let refused = HeaderError::Chunk { xid: self.xid };
        let mut call = CallChunks::default();
        for read in self.chunks.reads() {
            let at = read.position as usize;
            let chunk = match at {
                0 => &mut call.message,
                _ => &mut call.data,
            };
            if call.data_at != 0 && call.data_at != at {
                return Err(refused);
            }
            call.data_at = at;
            chunk.push(read.segment).map_err(|_| refused)?;
        }
        let is_long = !call.message.segments().is_empty();
        let (is_valid, message_bytes) = match self.procedure {
            Procedure::Message => (!is_long, inline_bytes as u64),
            Procedure::NoMessage => (is_long && inline_bytes == 0, call.message.bytes()),
            Procedure::VersionError { .. } | Procedure::ChunkError => {
                return Err(HeaderError::Truncated);
            }
        };
        let fits = message_bytes + call.data.bytes() <= RECORD_BYTES_MAX as u64;
        let is_within = call.data_at as u64 <= message_bytes;
        match is_valid && fits && is_within {
            true => Ok(call),
            false => Err(refused),
        }
    }
}

fn decode_body(procedure: u32, from: &mut Decoder<'_>) -> Result<(Procedure, Chunks), DecodeError> {
    let procedure = match procedure {
        MESSAGE => Procedure::Message,
        NO_MESSAGE => Procedure::NoMessage,
        ERROR => {
            let error = match u32::decode(from)? {
                ERROR_VERSION => Procedure::VersionError {
                    low: u32::decode(from)?,
                    high: u32::decode(from)?,
                },
                ERROR_CHUNK => Procedure::ChunkError,
                _ => return Err(DecodeError::Discriminant),
            };
            return Ok((error, Chunks::default()));
        }
        _ => return Err(DecodeError::Discriminant),
    };
    Ok((procedure, Chunks::decode(from)?))
}

/// What a side announces with a connection request or its acceptance (RFC 8797).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// Whether this side supports that messages invalidate its keys.
    pub invalidates_remotely: bool,
    /// Size of the longest message that it sends, in bytes.
    pub send_bytes: usize,
    /// Size of the longest message that it receives, in bytes.
    pub receive_bytes: usize,
}

/// The first bytes of the format, and its version.
const FORMAT: [u8; 5] = [0xf6, 0xab, 0x0e, 0x18, 1];
const INVALIDATES_REMOTELY: u8 = 1;
/// Unit of the sizes in bytes; a size of one unit is 0.
const SIZE_UNIT_BYTES: usize = 1024;

impl PrivateData {
    /// Size of the format in bytes.
    pub const BYTES: usize = 8;

    /// What a side without private data supports (RFC 8166 §3.3.2).
    pub const DEFAULT: Self = Self {
        invalidates_remotely: false,
        send_bytes: INLINE_BYTES_DEFAULT,
        receive_bytes: INLINE_BYTES_DEFAULT,
    };

    /// Decodes what a peer has sent; bytes in another format are ignored.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let Some([format @ .., flags, send, receive]) = bytes.first_chunk::<{ Self::BYTES }>()
        else {
            return Self::DEFAULT;
        };
        if *format != FORMAT {
            return Self::DEFAULT;
        }
        let size = |units: u8| (usize::from(units) + 1) * SIZE_UNIT_BYTES;
        Self {
            invalidates_remotely: flags & INVALIDATES_REMOTELY != 0,
            send_bytes: size(*send),
            receive_bytes: size(*receive),
        }
    }

    /// The bytes of the format. Sizes are rounded down to KiB, from 1 to 256.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let units = |size: usize| ((size / SIZE_UNIT_BYTES).clamp(1, 256) - 1) as u8;
        let [a, b, c, d, e] = FORMAT;
        let flags = match self.invalidates_remotely {
            true => INVALIDATES_REMOTELY,
            false => 0,
        };
        let (send, receive) = (units(self.send_bytes), units(self.receive_bytes));
        [a, b, c, d, e, flags, send, receive]
    }
}
