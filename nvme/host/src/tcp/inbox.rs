//! Received bytes that are not parsed yet, and the current position within a PDU.

use std::io::IoSliceMut;

use nvme_spec::tcp::{CapsuleResp, HEADER_MAX_BYTES};

use crate::tcp::stream::{ByteStream, StreamResult};

/// Minimum size of a data PDU for which a separate receive is worthwhile.
const LARGE_DATA_BYTES: usize = 32 * 1024;

/// Maximum bytes received after the current data while data PDUs are large: the next header and
/// little of its data, so that most of that data is placed and not copied.
const SMALL_WINDOW_BYTES: usize = 4 * 1024;

/// Minimum size of an inbox: the longest header, with padding and digests.
const RECEIVE_MIN_BYTES: usize = 1024;

/// Header length of the PDUs that a controller sends for commands.
const RESPONSE_HEADER_BYTES: usize = size_of::<CapsuleResp>();

/// The data of one PDU that is being received into its command's buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IncomingData {
    pub(crate) slot: u16,
    /// Start of this PDU's data in the command's buffer.
    pub(crate) start: usize,
    /// Position of the next byte.
    pub(crate) next: usize,
    /// End of this PDU's data.
    pub(crate) end: usize,
    /// SUCCESS flag: the command completes after the data.
    pub(crate) success: bool,
}

/// The bytes that are expected next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// The response to the initialisation.
    Initialization,
    /// A header, from its first byte.
    Header,
    /// Data.
    Data(IncomingData),
    /// The data digest after the data.
    Digest(IncomingData),
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
    /// Copy of the header being parsed, for a termination request.
    header: [u8; HEADER_MAX_BYTES],
    header_bytes: usize,
}

impl Inbox {
    /// An inbox of `bytes`, or the minimum size.
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

    /// Bytes received and not consumed.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Consumes the first `len` pending bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end, "only what is pending is consumed");
    }

    /// Starts receiving the data of a PDU.
    pub(crate) fn expect_data(&mut self, incoming: IncomingData) {
        self.last_data_bytes = incoming.end - incoming.start;
        self.phase = Phase::Data(incoming);
    }

    /// Copies the current header, which a termination request would include.
    pub(crate) fn copy_header(&mut self, len: usize) {
        let pending = &self.buffer[self.start..self.end];
        self.header_bytes = len.min(HEADER_MAX_BYTES).min(pending.len());
        match pending.first_chunk::<RESPONSE_HEADER_BYTES>() {
            // A copy of constant length compiles to a few moves instead of a call.
            Some(header) if self.header_bytes <= header.len() => {
                self.header[..header.len()].copy_from_slice(header);
            }
            _ => self.header[..self.header_bytes].copy_from_slice(&pending[..self.header_bytes]),
        }
    }

    /// The header parsed last.
    pub(crate) fn parsed_header(&self) -> &[u8] {
        &self.header[..self.header_bytes]
    }

    /// Whether the stream is between PDUs, where it may end.
    pub(crate) fn is_between_pdus(&self) -> bool {
        matches!(self.phase, Phase::Initialization | Phase::Header) && self.start == self.end
    }

    /// Receives once: into `target` first, then into the inbox. Returns the number of bytes in
    /// `target`.
    pub(crate) fn receive(
        &mut self,
        stream: &mut impl ByteStream,
        target: Option<&mut [u8]>,
    ) -> Result<usize, StreamResult> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let window = if self.last_data_bytes >= LARGE_DATA_BYTES {
            self.buffer.len().min(self.end + SMALL_WINDOW_BYTES)
        } else {
            self.buffer.len()
        };
        let rest = &mut self.buffer[self.end..window];
        let (result, target_bytes) = match target {
            Some(target) => {
                let target_bytes = target.len();
                let mut buffers = [IoSliceMut::new(target), IoSliceMut::new(rest)];
                (stream.receive(&mut buffers), target_bytes)
            }
            None => (stream.receive(&mut [IoSliceMut::new(rest)]), 0),
        };
        let StreamResult::Bytes(bytes) = result else {
            return Err(result);
        };
        let placed = bytes.min(target_bytes);
        self.end += bytes - placed;
        if let Phase::Data(incoming) = &mut self.phase {
            incoming.next += placed;
        }
        Ok(placed)
    }
}
