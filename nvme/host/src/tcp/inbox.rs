//! Bytes on their way in: what has arrived but is not understood yet, and where in a PDU the
//! connection is.

use std::io::IoSliceMut;

use nvme_spec::tcp::{CapsuleResp, HEADER_MAX_BYTES};

use crate::tcp::stream::{ByteStream, Moved};

/// Data PDUs of this size and more are worth a receive of their own.
const LARGE_DATA_BYTES: usize = 32 * 1024;

/// What is received beyond the data that is arriving while data PDUs are large: their next header,
/// and little of the data behind it, so that most of that is placed and not copied.
const SMALL_WINDOW_BYTES: usize = 4 * 1024;

/// Least size of an inbox: the longest header, with padding and digests.
const RECEIVE_MIN_BYTES: usize = 1024;

/// Bytes of the header of whatever a controller sends in answer to commands.
const RESPONSE_HEADER_BYTES: usize = size_of::<CapsuleResp>();

/// Data of one PDU on its way into its command's buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) slot: u16,
    /// Where in the command's buffer this PDU's data began.
    pub(crate) start: usize,
    /// Where the next byte goes.
    pub(crate) next: usize,
    /// Where this PDU's data ends.
    pub(crate) end: usize,
    /// SUCCESS: the command is over when the data is in.
    pub(crate) success: bool,
}

/// Which bytes come next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// The answer to the initialisation.
    Initialization,
    /// A header, from its first byte.
    Header,
    /// Data.
    Data(Arrival),
    /// The data digest behind the data.
    Digest(Arrival),
}

/// The incoming half of a connection.
#[derive(Debug)]
pub(crate) struct Inbox {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    pub(crate) phase: Phase,
    /// Data bytes of the last data PDU.
    last_data_bytes: usize,
    /// Copy of the header that is being understood, for a termination request.
    header: [u8; HEADER_MAX_BYTES],
    header_bytes: usize,
}

impl Inbox {
    /// An inbox of `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            buffer: vec![0; bytes.max(RECEIVE_MIN_BYTES)].into_boxed_slice(),
            start: 0,
            end: 0,
            phase: Phase::Initialization,
            last_data_bytes: 0,
            header: [0; HEADER_MAX_BYTES],
            header_bytes: 0,
        }
    }

    /// What has arrived and is not consumed.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The first `len` pending bytes are dealt with.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end, "only what is pending is consumed");
    }

    /// Data of `bytes` is about to arrive for a command.
    pub(crate) fn expect_data(&mut self, arrival: Arrival) {
        self.last_data_bytes = arrival.end - arrival.start;
        self.phase = Phase::Data(arrival);
    }

    /// Remembers the header at hand, which a termination request would quote.
    pub(crate) fn note_header(&mut self, len: usize) {
        let pending = &self.buffer[self.start..self.end];
        self.header_bytes = len.min(HEADER_MAX_BYTES).min(pending.len());
        match pending.first_chunk::<RESPONSE_HEADER_BYTES>() {
            // A copy whose length is known is a few moves, and not a call.
            Some(header) if self.header_bytes <= header.len() => {
                self.header[..header.len()].copy_from_slice(header);
            }
            _ => self.header[..self.header_bytes].copy_from_slice(&pending[..self.header_bytes]),
        }
    }

    /// The header that was being understood last.
    pub(crate) fn offending_header(&self) -> &[u8] {
        &self.header[..self.header_bytes]
    }

    /// Whether the stream may end here.
    pub(crate) fn is_between_pdus(&self) -> bool {
        matches!(self.phase, Phase::Initialization | Phase::Header) && self.start == self.end
    }

    /// Receives once: into `target` first, then into the inbox. Gives how many bytes `target` got.
    pub(crate) fn receive(
        &mut self,
        stream: &mut impl ByteStream,
        target: Option<&mut [u8]>,
    ) -> Result<usize, Moved> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let window = if self.last_data_bytes >= LARGE_DATA_BYTES {
            self.buffer.len().min(self.end + SMALL_WINDOW_BYTES)
        } else {
            self.buffer.len()
        };
        let rest = &mut self.buffer[self.end..window];
        let (moved, target_bytes) = match target {
            Some(target) => {
                let target_bytes = target.len();
                let mut buffers = [IoSliceMut::new(target), IoSliceMut::new(rest)];
                (stream.receive(&mut buffers), target_bytes)
            }
            None => (stream.receive(&mut [IoSliceMut::new(rest)]), 0),
        };
        let Moved::Bytes(bytes) = moved else {
            return Err(moved);
        };
        let placed = bytes.min(target_bytes);
        self.end += bytes - placed;
        if let Phase::Data(arrival) = &mut self.phase {
            arrival.next += placed;
        }
        Ok(placed)
    }
}
