//! Records of a byte stream, reassembled from their fragments (RFC 5531 §11).

use files_spec::limits::{FRAGMENTS_MAX, RECORD_BYTES_MAX};
use files_spec::rpc::{MARK_BYTES, Record, RecordError};

/// Size of the memory of a stream in bytes: the longest record with its marks, and as much again, so
/// that the beginning of the next record seldom moves.
const MEMORY_BYTES: usize = 2 * (RECORD_BYTES_MAX + FRAGMENTS_MAX as usize * MARK_BYTES);

/// Records that arrive on a stream.
#[derive(Debug)]
pub struct ReplyStream {
    memory: Box<[u8]>,
    /// The record that is being received, and its fragments that are complete.
    begin: usize,
    assembled: usize,
    record: Record,
    /// The bytes behind them, from the next mark on.
    at: usize,
    end: usize,
}

impl Default for ReplyStream {
    fn default() -> Self {
        Self {
            memory: vec![0; MEMORY_BYTES].into_boxed_slice(),
            begin: 0,
            assembled: 0,
            record: Record::default(),
            at: 0,
            end: 0,
        }
    }
}

impl ReplyStream {
    /// Memory for the next bytes; never empty after [`Self::next_record`] has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        if self.assembled == 0 {
            self.begin = self.at;
        }
        if self.begin == self.end {
            (self.begin, self.at, self.end) = (0, 0, 0);
        }
        // A whole record fits behind the middle.
        if self.begin > self.memory.len() / 2 {
            self.memory.copy_within(self.begin..self.end, 0);
            self.at -= self.begin;
            self.end -= self.begin;
            self.begin = 0;
        }
        &mut self.memory[self.end..]
    }

    /// The number of bytes that were written to [`Self::room`].
    ///
    /// # Panics
    /// There was no such room.
    pub fn received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.memory.len(), "the room is limited");
    }

    /// The next whole record, without its marks; `None` if it has not arrived yet.
    ///
    /// # Errors
    /// It exceeds a limit. The connection cannot be used any further.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<&[u8]>, RecordError> {
        loop {
            let arrived = &self.memory[self.at..self.end];
            let Some(mark) = arrived.first_chunk::<MARK_BYTES>() else {
                return Ok(None);
            };
            let mut record = self.record;
            let fragment = record.add(*mark)?;
            let length = fragment.length as usize;
            if arrived.len() - MARK_BYTES < length {
                return Ok(None);
            }
            let from = self.at + MARK_BYTES;
            if self.assembled == 0 {
                self.begin = from;
            } else {
                let to = self.begin + self.assembled;
                self.memory.copy_within(from..from + length, to);
            }
            self.assembled += length;
            self.record = record;
            self.at = from + length;
            if fragment.is_last {
                let end = self.begin + std::mem::take(&mut self.assembled);
                self.record = Record::default();
                return Ok(Some(&self.memory[self.begin..end]));
            }
        }
    }

    /// Whether a part of a record has arrived.
    #[must_use]
    pub const fn is_within_record(&self) -> bool {
        self.at < self.end || self.assembled > 0
    }
}

#[cfg(test)]
mod tests {
    use files_spec::rpc::Fragment;

    use super::*;

    fn fragment(data: &[u8], is_last: bool) -> Vec<u8> {
        let length = data.len() as u32;
        [&Fragment { is_last, length }.encode()[..], data].concat()
    }

    /// All records of a stream that arrives in pieces of this size.
    fn records(bytes: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, RecordError> {
        let mut stream = ReplyStream::default();
        let mut found = Vec::new();
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                let room = stream.room();
                let length = room.len().min(piece.len());
                assert!(length > 0, "there is always room");
                room[..length].copy_from_slice(&piece[..length]);
                stream.received(length);
                piece = &piece[length..];
                while let Some(record) = stream.next_record()? {
                    found.push(record.to_vec());
                }
            }
        }
        assert!(!stream.is_within_record());
        Ok(found)
    }

    #[test]
    fn records_beyond_the_limits_are_refused() {
        let long = Fragment {
            is_last: true,
            length: RECORD_BYTES_MAX as u32 + 1,
        };
        assert_eq!(records(&long.encode(), 4), Err(RecordError::TooLong));
        // An empty fragment is valid, but no record has so many.
        let many = fragment(b"", false).repeat(FRAGMENTS_MAX as usize + 1);
        assert_eq!(records(&many, 7), Err(RecordError::TooManyFragments));
        let half = vec![1; RECORD_BYTES_MAX / 2 + 1];
        let sum = [fragment(&half, false), fragment(&half, true)].concat();
        assert_eq!(records(&sum, 9999), Err(RecordError::TooLong));
    }

    #[test]
    fn records_are_the_same_for_any_pieces_and_fragments() {
        let long: Vec<u8> = (0..RECORD_BYTES_MAX).map(|it| (it % 251) as u8).collect();
        let mut bytes = Vec::new();
        for _ in 0..3 {
            bytes.extend(fragment(b"one", true));
            bytes.extend(fragment(b"", true));
            bytes.extend(fragment(b"tw", false));
            bytes.extend(fragment(b"", false));
            bytes.extend(fragment(b"o", true));
            bytes.extend(fragment(&long[..1000], false));
            bytes.extend(fragment(&long[1000..], true));
            bytes.extend(fragment(b"end", true));
        }
        let one = [
            b"one".to_vec(),
            Vec::new(),
            b"two".to_vec(),
            long,
            b"end".to_vec(),
        ];
        let expected = [one.clone(), one.clone(), one].concat();
        for piece in [1, 3, 4096, 1 << 20, 1 << 24] {
            assert!(records(&bytes, piece) == Ok(expected.clone()), "{piece}");
        }
    }
}
