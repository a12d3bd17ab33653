//! The receiving direction: opens records, in place or into their destination.

use std::ops::Range;

use aws_lc_rs::aead::Aad;

use crate::key_schedule::{RecordKeys, TrafficSecret};
use crate::record::{HEADER_BYTES, PLAINTEXT_BYTES_MAX, TAG_BYTES, TYPE_BYTES};
use crate::{Alert, ContentType, record_body_bytes};

/// Opens the records of one direction.
#[derive(Debug)]
pub struct Opener {
    keys: RecordKeys,
}

impl Opener {
    /// Begins with `secret`, at the record with the number 0.
    #[must_use]
    pub fn new(secret: TrafficSecret) -> Self {
        Self {
            keys: RecordKeys::new(secret),
        }
    }

    /// Records that the current key has opened.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.keys.sequence
    }

    /// Replaces the key, after a KeyUpdate was received.
    pub fn update(&mut self) {
        self.keys.update();
    }

    /// Opens a whole record in place. Returns its type and the place of its content in `record`.
    ///
    /// # Errors
    ///
    /// The alert that ends the connection: the record was changed, is not the next one, or has an
    /// invalid length, type or padding.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(ContentType, Range<usize>), Alert> {
        let (header, body) = record
            .split_first_chunk_mut::<HEADER_BYTES>()
            .ok_or(Alert::DECODE_ERROR)?;
        let next = self.next(header, body)?;
        let nonce = self.keys.nonce();
        let aad = Aad::from(&*header);
        let opened = self.keys.key.open_in_place(nonce, aad, body);
        let inner = opened.map_err(|_| Alert::BAD_RECORD_MAC)?;
        self.keys.sequence = next;
        let (kind, bytes) = content(inner)?;
        Ok((kind, HEADER_BYTES..HEADER_BYTES + bytes))
    }

    /// Opens a whole record into the front of `destination`. Returns its type and the length of its
    /// content; `None`, and opens nothing, if the content, its type and its padding have no room
    /// there. The destination holds data that is not verified until this returns, and anything after
    /// an error.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_into(
        &mut self,
        record: &[u8],
        destination: &mut [u8],
    ) -> Result<Option<(ContentType, usize)>, Alert> {
        let (header, body) = record
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(Alert::DECODE_ERROR)?;
        let next = self.next(header, body)?;
        let inner_bytes = body.len() - TAG_BYTES;
        let Some(inner) = destination.get_mut(..inner_bytes) else {
            return Ok(None);
        };
        let (sealed, tag) = body.split_at(inner_bytes);
        let nonce = self.keys.nonce();
        let aad = Aad::from(header);
        let opened = self
            .keys
            .key
            .open_separate_gather(nonce, aad, sealed, tag, inner);
        opened.map_err(|_| Alert::BAD_RECORD_MAC)?;
        self.keys.sequence = next;
        content(inner).map(Some)
    }

    /// Checks the length of the next record. Returns the number of the one after it.
    fn next(&self, header: &[u8; HEADER_BYTES], body: &[u8]) -> Result<u64, Alert> {
        if record_body_bytes(*header)? != body.len() {
            return Err(Alert::DECODE_ERROR);
        }
        // Sequence numbers do not wrap (RFC 8446 §5.3).
        let next = self.keys.sequence.checked_add(1);
        next.ok_or(Alert::BAD_RECORD_MAC)
    }

    /// The same direction after `sequence` records of its key.
    #[cfg(test)]
    pub(crate) fn at(mut self, sequence: u64) -> Self {
        self.keys.sequence = sequence;
        self
    }
}

/// The type of an opened record, and the length of its content.
fn content(inner: &[u8]) -> Result<(ContentType, usize), Alert> {
    if inner.len() > PLAINTEXT_BYTES_MAX + TYPE_BYTES {
        return Err(Alert::RECORD_OVERFLOW);
    }
    // Zeros behind the type are padding (RFC 8446 §5.4).
    let bytes = inner.iter().rposition(|byte| *byte != 0);
    let bytes = bytes.ok_or(Alert::UNEXPECTED_MESSAGE)?;
    let kind = match ContentType::from_code(inner[bytes]) {
        None | Some(ContentType::ChangeCipherSpec) => return Err(Alert::UNEXPECTED_MESSAGE),
        Some(kind) => kind,
    };
    // Only data may be empty (RFC 8446 §5.1).
    if bytes == 0 && kind != ContentType::ApplicationData {
        return Err(Alert::UNEXPECTED_MESSAGE);
    }
    Ok((kind, bytes))
}

#[cfg(test)]
mod tests;
