//! The records of a stream (RFC 5531 §11).

use std::io::{self, Read};

use files_spec::rpc::{MARK_BYTES, Record, RecordError};

use crate::limits::RECEIVE_BYTES;

/// Most bytes that are read into a record at once.
const DIRECT_BYTES_MAX: usize = 256 << 10;

/// A record, if one has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received<'b> {
    /// None, or only a part of one.
    Nothing,
    /// It is in the buffer.
    InBuffer(&'b [u8]),
    /// It is in the memory that was given for it.
    InMemory,
}

/// Receives the records of one connection. The default one has no buffer.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    buffer: Box<[u8]>,
    /// The received bytes that do not belong to a record yet.
    begin: usize,
    end: usize,
    fragments: Record,
    /// Bytes of the fragment that are missing, and whether the record ends with it; `None` if its
    /// mark is missing.
    fragment: Option<(usize, bool)>,
    record: Vec<u8>,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            begin: 0,
            end: 0,
            fragments: Record::default(),
            fragment: None,
            record: Vec::new(),
        }
    }

    /// Whether a part of a record has arrived.
    pub(crate) fn is_within_record(&self) -> bool {
        self.fragment.is_some() || !self.record.is_empty() || self.begin < self.end
    }

    /// Reads once from the stream: into the record if much of it is missing, or into the buffer.
    /// The buffer must have been used up ([`Self::next`] returned nothing).
    ///
    /// # Errors
    /// The stream's error. The end of the stream is 0 bytes.
    pub(crate) fn fill(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        if let Some((missing, _)) = self.fragment
            && self.begin == self.end
            && missing > self.buffer.len()
        {
            let before = self.record.len();
            self.record
                .resize(before + missing.min(DIRECT_BYTES_MAX), 0);
            let read = stream.read(&mut self.record[before..]);
            let count = *read.as_ref().unwrap_or(&0);
            self.record.truncate(before + count);
            if let Some((missing, _)) = &mut self.fragment {
                *missing -= count;
            }
            return read;
        }
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let read = stream.read(&mut self.buffer[self.end..])?;
        self.end += read;
        Ok(read)
    }

    /// Takes a whole record, if one has arrived: from the buffer if it is there in one fragment, or
    /// in exchange for memory.
    ///
    /// # Errors
    /// A record exceeds its limits: the connection must be closed.
    #[inline]
    pub(crate) fn next(&mut self, memory: &mut Vec<u8>) -> Result<Received<'_>, RecordError> {
        loop {
            let arrived = &self.buffer[self.begin..self.end];
            let Some((missing, is_last)) = &mut self.fragment else {
                let Some(mark) = arrived.first_chunk::<MARK_BYTES>() else {
                    return Ok(Received::Nothing);
                };
                let fragment = self.fragments.add(*mark)?;
                self.begin += MARK_BYTES;
                let length = fragment.length as usize;
                let is_first = self.record.is_empty();
                if is_first && fragment.is_last && self.end - self.begin >= length {
                    self.fragments = Record::default();
                    let begin = self.begin;
                    self.begin += length;
                    return Ok(Received::InBuffer(&self.buffer[begin..][..length]));
                }
                self.fragment = Some((length, fragment.is_last));
                continue;
            };
            let taken = arrived.len().min(*missing);
            self.record.extend_from_slice(&arrived[..taken]);
            self.begin += taken;
            *missing -= taken;
            if *missing > 0 {
                return Ok(Received::Nothing);
            }
            let is_complete = *is_last;
            self.fragment = None;
            if is_complete {
                self.fragments = Record::default();
                std::mem::swap(&mut self.record, memory);
                self.record.clear();
                return Ok(Received::InMemory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fragments: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, fragment) in fragments.iter().enumerate() {
            let last = u32::from(index + 1 == fragments.len()) << 31;
            bytes.extend((last | fragment.len() as u32).to_be_bytes());
            bytes.extend_from_slice(fragment);
        }
        bytes
    }

    /// The records of bytes that arrive in parts of this size.
    fn received(bytes: &[u8], part: usize) -> Result<Vec<Vec<u8>>, RecordError> {
        let mut receiver = Receiver::new();
        let mut records = Vec::new();
        for mut part in bytes.chunks(part) {
            while !part.is_empty() {
                receiver.fill(&mut part).expect("memory has no errors");
                let mut memory = Vec::new();
                loop {
                    match receiver.next(&mut memory)? {
                        Received::Nothing => break,
                        Received::InBuffer(record) => records.push(record.to_vec()),
                        Received::InMemory => records.push(std::mem::take(&mut memory)),
                    }
                }
            }
        }
        Ok(records)
    }

    #[test]
    fn records_beyond_the_limits_end_the_connection() {
        let long = (1_u32 << 31 | 2 << 20).to_be_bytes();
        assert_eq!(received(&long, 4), Err(RecordError::TooLong));
        let fragments: Vec<&[u8]> = vec![b"x"; 65];
        let many = record(&fragments);
        assert_eq!(received(&many, 7), Err(RecordError::TooManyFragments));
        // Without bytes between them, fragments are counted, too.
        let empty = [0; 4 * 65];
        assert_eq!(received(&empty, 4), Err(RecordError::TooManyFragments));
    }

    #[test]
    fn records_arrive_in_any_parts_and_fragments() {
        let long = vec![7; 300_000];
        let whole = [
            record(&[b"first"]),
            record(&[b"", b"sec", b"ond", b""]),
            record(&[b""]),
            record(&[&long[..100_000], &long[100_000..]]),
            record(&[b"last"]),
        ];
        let expected: [&[u8]; 5] = [b"first", b"second", b"", &long, b"last"];
        let bytes = whole.concat();
        for part in [1, 3, 5000, 65_536, bytes.len()] {
            assert_eq!(received(&bytes, part).expect("valid"), expected, "{part}");
        }
    }
}
