//! The sending direction: seals content into records.

use std::io::IoSlice;

use aws_lc_rs::aead::Aad;

use crate::ContentType;
use crate::key_schedule::{RecordKeys, TrafficSecret};
use crate::record::{
    HEADER_BYTES, PLAINTEXT_BYTES_MAX, SEALED_OVERHEAD_BYTES, TAG_BYTES, TYPE_BYTES,
    protected_header,
};

/// Most records that one key seals: AES-GCM is safe for 2^24.5 records of full size (RFC 8446 §5.5).
pub const RECORDS_PER_KEY_MAX: u64 = 23_726_566;

/// Data that is not sealed yet: the rest of a list of buffers.
#[derive(Debug)]
pub struct Unsealed<'a> {
    pieces: &'a [IoSlice<'a>],
    /// Bytes of the first piece that are sealed.
    skipped: usize,
    sealed_bytes: usize,
}

impl<'a> Unsealed<'a> {
    /// All of `pieces`.
    #[must_use]
    pub fn new(pieces: &'a [IoSlice<'a>]) -> Self {
        let mut unsealed = Self {
            pieces,
            skipped: 0,
            sealed_bytes: 0,
        };
        unsealed.skip_empty();
        unsealed
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that are sealed.
    #[must_use]
    pub const fn sealed_bytes(&self) -> usize {
        self.sealed_bytes
    }

    /// Bytes left, counted up to at least `limit`.
    fn len_up_to(&self, limit: usize) -> usize {
        let mut bytes = 0;
        for piece in self.pieces {
            bytes += piece.len();
            if bytes >= limit + self.skipped {
                break;
            }
        }
        bytes - self.skipped
    }

    /// The rest of the first piece.
    fn first(&self) -> &'a [u8] {
        match self.pieces.first() {
            Some(piece) => &piece[self.skipped..],
            None => &[],
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.skipped += bytes;
        self.sealed_bytes += bytes;
        self.skip_empty();
    }

    fn skip_empty(&mut self) {
        while let Some(piece) = self.pieces.first()
            && piece.len() == self.skipped
        {
            self.pieces = &self.pieces[1..];
            self.skipped = 0;
        }
    }

    /// Moves the next bytes into `destination`, which is not longer than the rest.
    fn copy_into(&mut self, destination: &mut [u8]) {
        let mut copied = 0;
        while copied < destination.len() {
            let first = self.first();
            let bytes = first.len().min(destination.len() - copied);
            destination[copied..copied + bytes].copy_from_slice(&first[..bytes]);
            copied += bytes;
            self.advance(bytes);
        }
    }
}

/// Seals the records of one direction.
#[derive(Debug)]
pub struct Sealer {
    keys: RecordKeys,
}

impl Sealer {
    /// Begins with `secret`, at the record with the number 0.
    #[must_use]
    pub fn new(secret: TrafficSecret) -> Self {
        Self {
            keys: RecordKeys::new(secret),
        }
    }

    /// Records that the current key has sealed.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.keys.sequence
    }

    /// Replaces the key, after a KeyUpdate was sealed with the previous one.
    pub fn update(&mut self) {
        self.keys.update();
    }

    /// Seals the next bytes of `data` as one record at the front of `room`; returns its length. A
    /// record has as many bytes as it, the data and the room permit. Returns `None`, and seals
    /// nothing, if there is no data, no room for a byte of it, or if the key is used up
    /// ([`RECORDS_PER_KEY_MAX`]).
    ///
    /// If one piece fills the record, its memory is sealed directly. Smaller ones are gathered in
    /// `room` first, because the cipher accepts one piece only.
    pub fn seal_data(&mut self, data: &mut Unsealed<'_>, room: &mut [u8]) -> Option<usize> {
        let room_bytes = room.len().checked_sub(SEALED_OVERHEAD_BYTES)?;
        let limit = room_bytes.min(PLAINTEXT_BYTES_MAX);
        let bytes = data.len_up_to(limit).min(limit);
        if bytes == 0 || self.keys.sequence >= RECORDS_PER_KEY_MAX {
            return None;
        }
        let (header, body, tail) = split(room, bytes);
        let extra = [ContentType::ApplicationData.code()];
        let aad = Aad::from(header);
        let nonce = self.keys.nonce();
        let key = &self.keys.key;
        let sealed = if let Some(first) = data.first().get(..bytes) {
            let sealed = key.seal_out_of_place_scatter(nonce, aad, first, body, &extra, tail);
            data.advance(bytes);
            sealed
        } else {
            data.copy_into(body);
            key.seal_in_place_scatter(nonce, aad, body, &extra, tail)
        };
        sealed.expect("the lengths are right");
        self.keys.sequence += 1;
        Some(SEALED_OVERHEAD_BYTES + bytes)
    }

    /// Seals a record with `content` at the front of `room`; returns its length. `None`, and seals
    /// nothing, if the room is too small or the key used up.
    pub fn seal(&mut self, kind: ContentType, content: &[u8], room: &mut [u8]) -> Option<usize> {
        let bytes = content.len();
        let is_possible = room.len() >= SEALED_OVERHEAD_BYTES + bytes
            && bytes <= PLAINTEXT_BYTES_MAX
            && self.keys.sequence < RECORDS_PER_KEY_MAX;
        if !is_possible {
            return None;
        }
        let (header, body, tail) = split(room, bytes);
        let (aad, nonce) = (Aad::from(header), self.keys.nonce());
        let extra = [kind.code()];
        self.keys
            .key
            .seal_out_of_place_scatter(nonce, aad, content, body, &extra, tail)
            .expect("the lengths are right");
        self.keys.sequence += 1;
        Some(SEALED_OVERHEAD_BYTES + bytes)
    }

    /// The same direction after `sequence` records of its key.
    #[cfg(test)]
    pub(crate) fn at(mut self, sequence: u64) -> Self {
        self.keys.sequence = sequence;
        self
    }
}

/// Writes the header of a record with `bytes` of content at the front of `room`. Returns the header,
/// and the places of the content, and of its type and the tag.
fn split(room: &mut [u8], bytes: usize) -> (&[u8], &mut [u8], &mut [u8]) {
    let (header, behind) = room.split_at_mut(HEADER_BYTES);
    header.copy_from_slice(&protected_header(bytes + TYPE_BYTES + TAG_BYTES));
    let (body, behind) = behind.split_at_mut(bytes);
    (header, body, &mut behind[..TYPE_BYTES + TAG_BYTES])
}

#[cfg(test)]
pub(crate) mod tests;
