//! The receiving direction: opens records in place.

use std::ops::Range;

use aws_lc_rs::aead::Aad;

use crate::key_schedule::{RecordKeys, TrafficSecret};
use crate::record::{HEADER_BYTES, PLAINTEXT_BYTES_MAX, TYPE_BYTES};
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
        if record_body_bytes(*header)? != body.len() {
            return Err(Alert::DECODE_ERROR);
        }
        // Sequence numbers do not wrap (RFC 8446 §5.3).
        let next = self
            .keys
            .sequence
            .checked_add(1)
            .ok_or(Alert::BAD_RECORD_MAC)?;
        let nonce = self.keys.nonce();
        let aad = Aad::from(&*header);
        let opened = self.keys.key.open_in_place(nonce, aad, body);
        let inner = opened.map_err(|_| Alert::BAD_RECORD_MAC)?;
        self.keys.sequence = next;
        if inner.len() > PLAINTEXT_BYTES_MAX + TYPE_BYTES {
            return Err(Alert::RECORD_OVERFLOW);
        }
        // Zeros behind the type are padding (RFC 8446 §5.4).
        let content_bytes = inner.iter().rposition(|byte| *byte != 0);
        let content_bytes = content_bytes.ok_or(Alert::UNEXPECTED_MESSAGE)?;
        let kind = match ContentType::from_code(inner[content_bytes]) {
            None | Some(ContentType::ChangeCipherSpec) => return Err(Alert::UNEXPECTED_MESSAGE),
            Some(kind) => kind,
        };
        // Only data may be empty (RFC 8446 §5.1).
        if content_bytes == 0 && kind != ContentType::ApplicationData {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        Ok((kind, HEADER_BYTES..HEADER_BYTES + content_bytes))
    }

    /// The same direction after `sequence` records of its key.
    #[cfg(test)]
    pub(crate) fn at(mut self, sequence: u64) -> Self {
        self.keys.sequence = sequence;
        self
    }
}

#[cfg(test)]
mod tests;
