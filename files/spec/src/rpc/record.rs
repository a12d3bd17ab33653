//! Record marking on byte streams (RFC 5531 §11): a record is one or more fragments, each with a
//! mark of its length.

use crate::limits::{FRAGMENTS_MAX, RECORD_BYTES_MAX};

/// Size of a mark in bytes.
pub const MARK_BYTES: usize = 4;

const LAST: u32 = 1 << 31;

/// The mark of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Whether the record ends with this fragment.
    pub is_last: bool,
    /// Number of bytes that follow the mark; less than 2³¹.
    pub length: u32,
}

impl Fragment {
    /// The mark of a record in one fragment.
    ///
    /// # Panics
    /// Panics if the record exceeds [`RECORD_BYTES_MAX`]; own records do not.
    #[must_use]
    pub const fn whole(record_bytes: usize) -> Self {
        assert!(record_bytes <= RECORD_BYTES_MAX);
        Self {
            is_last: true,
            length: record_bytes as u32,
        }
    }

    /// Decodes a mark.
    #[must_use]
    pub const fn decode(mark: [u8; MARK_BYTES]) -> Self {
        let word = u32::from_be_bytes(mark);
        Self {
            is_last: word & LAST != 0,
            length: word & !LAST,
        }
    }

    /// The bytes of the mark.
    #[must_use]
    pub const fn encode(self) -> [u8; MARK_BYTES] {
        let last = if self.is_last { LAST } else { 0 };
        (last | self.length & !LAST).to_be_bytes()
    }
}

/// Why a stream cannot be divided into records any further; the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The record exceeds [`RECORD_BYTES_MAX`].
    TooLong,
    /// The record has more than [`FRAGMENTS_MAX`] fragments.
    TooManyFragments,
}

/// The fragments of the record that is being received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    bytes: usize,
    fragments: u32,
}

impl Record {
    /// Takes the mark of the next fragment. After the last one, begin with a new `Record`.
    ///
    /// # Errors
    /// Returns an error if the record exceeds a limit.
    pub fn add(&mut self, mark: [u8; MARK_BYTES]) -> Result<Fragment, RecordError> {
        let fragment = Fragment::decode(mark);
        self.fragments += 1;
        if self.fragments > FRAGMENTS_MAX {
            return Err(RecordError::TooManyFragments);
        }
        self.bytes += fragment.length as usize;
        match self.bytes <= RECORD_BYTES_MAX {
            true => Ok(fragment),
            false => Err(RecordError::TooLong),
        }
    }

    /// Length of the record up to the end of the latest fragment in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}
