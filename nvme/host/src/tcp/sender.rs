//! The send queue of a connection: headers in a staging buffer, data in place, all of it sent by
//! one vectored send.

use std::io::IoSlice;
use std::ops::Deref;

use arrayvec::ArrayVec;

use crate::error::HostError;
use crate::tcp::connection::Commands;
use crate::tcp::stream::{ByteStream, StreamResult};

/// Maximum number of pieces of one vectored send: header and data of 128 writes with their digests,
/// and well below the kernel's limit of 1024 (limits.h, UIO_MAXIOV).
const PIECES_PER_SEND_MAX: usize = 512;

/// Maximum bytes of staging for one PDU: a header with digest, padded to the largest alignment, and
/// a data digest.
pub(crate) const STAGED_PER_PDU_MAX_BYTES: usize = 256 + 4;

/// Maximum number of pieces of one PDU: header, data, data digest.
const PIECES_PER_PDU_MAX: usize = 3;

/// A contiguous piece of outgoing bytes.
#[derive(Debug, Clone, Copy)]
enum Piece {
    /// Bytes of the staging buffer.
    Staged { start: usize, len: usize },
    /// Bytes of a command's data.
    Data { slot: u16, start: usize, len: usize },
}

impl Piece {
    fn len(self) -> usize {
        match self {
            Self::Staged { len, .. } | Self::Data { len, .. } => len,
        }
    }

    /// The piece without its first `sent` bytes.
    fn after(self, sent: usize) -> Self {
        match self {
            Self::Staged { start, len } => Self::Staged {
                start: start + sent,
                len: len - sent,
            },
            Self::Data { slot, start, len } => Self::Data {
                slot,
                start: start + sent,
                len: len - sent,
            },
        }
    }
}

/// The outgoing half of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    staging: Box<[u8]>,
    staged: usize,
    /// Pieces in stream order.
    pieces: Vec<Piece>,
    pieces_max: usize,
    queued: u64,
    sent: u64,
    sends: u64,
}

impl Sender {
    /// A sender with room for `pdus` queued PDUs.
    pub(crate) fn new(pdus: usize) -> Self {
        let pieces_max = pdus * PIECES_PER_PDU_MAX;
        Self {
            staging: vec![0; pdus * STAGED_PER_PDU_MAX_BYTES].into_boxed_slice(),
            staged: 0,
            pieces: Vec::with_capacity(pieces_max),
            pieces_max,
            queued: 0,
            sent: 0,
            sends: 0,
        }
    }

    /// Whether there is room for one more PDU.
    pub(crate) fn has_room(&self) -> bool {
        self.staging.len() - self.staged >= STAGED_PER_PDU_MAX_BYTES
            && self.pieces_max - self.pieces.len() >= PIECES_PER_PDU_MAX
    }

    /// Whether everything queued was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Number of bytes queued since the start: the stream position after the last one.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Number of bytes sent since the start.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of sending system calls.
    pub(crate) fn sends(&self) -> u64 {
        self.sends
    }

    /// Queues a copy of `bytes`, followed by zeroes up to `padded` bytes. The caller has checked
    /// [`Self::has_room`].
    pub(crate) fn stage(&mut self, bytes: &[u8], padded: usize) {
        let start = self.staged;
        let len = padded.max(bytes.len());
        let target = &mut self.staging[start..start + len];
        target[..bytes.len()].copy_from_slice(bytes);
        target[bytes.len()..].fill(0);
        self.add_staged(len);
    }

    /// Queues a copy of `bytes` without padding: as [`Self::stage`], but of constant length.
    #[inline]
    pub(crate) fn stage_all<const BYTES: usize>(&mut self, bytes: &[u8; BYTES]) {
        self.staging[self.staged..self.staged + BYTES].copy_from_slice(bytes);
        self.add_staged(BYTES);
    }

    /// Adds the next `len` bytes of the staging buffer to the pieces.
    #[inline]
    fn add_staged(&mut self, len: usize) {
        let start = self.staged;
        self.staged += len;
        self.queued += len as u64;
        if let Some(Piece::Staged {
            start: first,
            len: before,
        }) = self.pieces.last_mut()
            && *first + *before == start
        {
            *before += len;
            return;
        }
        self.pieces.push(Piece::Staged { start, len });
    }

    /// Queues `len` bytes of the command's data from `start` on.
    #[inline]
    pub(crate) fn attach(&mut self, slot: u16, start: usize, len: usize) {
        self.queued += len as u64;
        self.pieces.push(Piece::Data { slot, start, len });
    }

    /// Sends as much as the stream accepts; with one system call, unless there are very many
    /// pieces.
    pub(crate) fn send<B: Deref<Target = [u8]>>(
        &mut self,
        stream: &mut impl ByteStream,
        slots: &Commands<B>,
    ) -> Result<(), HostError> {
        while !self.is_empty() {
            self.sends += 1;
            let (result, offered) = self.offer(stream, slots);
            let sent = match result {
                StreamResult::Bytes(bytes) => bytes,
                StreamResult::Nothing => break,
                StreamResult::Ended => return Err(HostError::Closed),
                StreamResult::Failed(errno) => return Err(HostError::Socket(errno)),
            };
            self.advance(sent);
            if sent < offered {
                break;
            }
        }
        self.reclaim();
        Ok(())
    }

    /// Sends as many pieces as one call may have. Returns the result, and the number of bytes
    /// offered.
    fn offer<B: Deref<Target = [u8]>>(
        &self,
        stream: &mut impl ByteStream,
        slots: &Commands<B>,
    ) -> (StreamResult, usize) {
        let mut offered = 0;
        // Fill the list in place: a collected list would be moved once more.
        let mut buffers = ArrayVec::<IoSlice<'_>, PIECES_PER_SEND_MAX>::new();
        for piece in self.pieces.iter().take(PIECES_PER_SEND_MAX) {
            offered += piece.len();
            buffers.push(IoSlice::new(self.bytes(*piece, slots)));
        }
        (stream.send(&buffers), offered)
    }

    fn bytes<'a, B: Deref<Target = [u8]>>(
        &'a self,
        piece: Piece,
        slots: &'a Commands<B>,
    ) -> &'a [u8] {
        match piece {
            Piece::Staged { start, len } => &self.staging[start..start + len],
            // A command keeps its data until all of it was sent: an earlier completion is an error.
            Piece::Data { slot, start, len } => slots
                .get(slot)
                .data
                .as_deref()
                .map_or(&[][..], |data| &data[start..start + len]),
        }
    }

    fn advance(&mut self, sent: usize) {
        self.sent += sent as u64;
        if self.sent == self.queued {
            self.pieces.clear();
            return;
        }
        let mut rest = sent;
        let mut whole = 0;
        while let Some(piece) = self.pieces.get_mut(whole) {
            if rest < piece.len() {
                *piece = piece.after(rest);
                break;
            }
            rest -= piece.len();
            whole += 1;
        }
        self.pieces.drain(..whole);
    }

    /// Frees staging space of sent bytes.
    fn reclaim(&mut self) {
        if self.pieces.is_empty() {
            self.staged = 0;
        } else if self.staged > self.staging.len() / 2 {
            let first = self.pieces.iter().find_map(|piece| match piece {
                Piece::Staged { start, .. } => Some(*start),
                Piece::Data { .. } => None,
            });
            let first = first.unwrap_or(self.staged);
            self.staging.copy_within(first..self.staged, 0);
            self.staged -= first;
            for piece in &mut self.pieces {
                if let Piece::Staged { start, .. } = piece {
                    *start -= first;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::time::Duration;

    use super::*;

    /// Accepts at most `quota` bytes of each send.
    #[derive(Debug)]
    struct Sink {
        taken: Vec<u8>,
        quota: usize,
        pieces: Vec<usize>,
    }

    impl ByteStream for Sink {
        fn receive(&mut self, _: &mut [IoSliceMut<'_>]) -> StreamResult {
            StreamResult::Nothing
        }

        fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult {
            self.pieces.push(buffers.len());
            let before = self.taken.len();
            for buffer in buffers {
                let room = self.quota - (self.taken.len() - before);
                self.taken
                    .extend_from_slice(&buffer[..buffer.len().min(room)]);
            }
            match self.taken.len() - before {
                0 => StreamResult::Nothing,
                bytes => StreamResult::Bytes(bytes),
            }
        }

        fn wait(&self, _: bool, _: Duration) {}
    }

    fn sink(quota: usize) -> Sink {
        Sink {
            taken: Vec::new(),
            quota,
            pieces: Vec::new(),
        }
    }

    #[test]
    fn consecutive_headers_are_sent_as_one_piece() {
        let mut sender = Sender::new(8);
        let slots = Commands::<Vec<u8>>::new(1);
        for value in 0..8_u8 {
            assert!(sender.has_room());
            sender.stage(&[value; 72], 72);
        }
        let mut sink = sink(usize::MAX);
        sender.send(&mut sink, &slots).expect("taken");
        assert_eq!(
            (sink.pieces.as_slice(), sink.taken.len()),
            ([1].as_slice(), 576)
        );
        assert!(sender.is_empty());
        assert_eq!(
            (sender.queued(), sender.sent(), sender.sends()),
            (576, 576, 1)
        );
    }

    #[test]
    fn full_queue_of_writes_with_digests_is_sent_in_one_call() {
        let mut sender = Sender::new(128);
        let mut slots = Commands::<Vec<u8>>::new(1);
        let slot = slots.take().expect("free");
        slots.get_mut(slot).data = Some(vec![7; 4096]);
        for _ in 0..128 {
            assert!(sender.has_room());
            sender.stage_all(&[1; 72]);
            sender.attach(slot, 0, 4096);
            sender.stage(&[0xdd; 4], 4);
        }
        let mut sink = sink(usize::MAX);
        sender.send(&mut sink, &slots).expect("taken");
        assert!(sender.is_empty());
        assert_eq!((sender.sends(), sink.taken.len()), (1, 128 * 4172));
    }

    #[test]
    fn partial_sends_preserve_order() {
        for quota in [1, 7, 100, 1000] {
            let mut sender = Sender::new(4);
            let mut slots = Commands::<Vec<u8>>::new(1);
            let slot = slots.take().expect("free");
            slots.get_mut(slot).data = Some((0..=255).collect());
            let mut sink = sink(quota);
            let mut expected = Vec::new();
            for round in 0..200_u8 {
                if sender.has_room() {
                    sender.stage(&[round; 72], 80);
                    sender.attach(slot, usize::from(round), 50);
                    sender.stage(&[0xdd; 4], 4);
                    expected.extend_from_slice(&[round; 72]);
                    expected.extend_from_slice(&[0; 8]);
                    expected.extend((0..=255_u8).skip(usize::from(round)).take(50));
                    expected.extend_from_slice(&[0xdd; 4]);
                }
                sender.send(&mut sink, &slots).expect("taken");
            }
            while !sender.is_empty() {
                sender.send(&mut sink, &slots).expect("taken");
            }
            assert_eq!(sink.taken, expected, "quota {quota}");
            assert!(
                expected.len() > 134 * 4,
                "quota {quota}: staging is reclaimed"
            );
        }
    }

    #[test]
    fn blocked_stream_limits_the_sender_to_its_capacity() {
        let mut sender = Sender::new(4);
        let slots = Commands::<Vec<u8>>::new(1);
        let mut sink = sink(0);
        let mut queued = 0;
        while sender.has_room() {
            sender.stage(&[1; 72], 72);
            queued += 1;
            sender.send(&mut sink, &slots).expect("no failure");
        }
        assert!(queued >= 4);
        assert_eq!(sender.sent(), 0);
    }
}
