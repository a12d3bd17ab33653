//! Data of READ and WRITE, which need not be in the same memory as the rest of a record.

use super::{DecodeError, Decoder, EncodeError, Encoder, Xdr};
use crate::limits::PAYLOAD_BYTES_MAX;

/// Payload of a READ or WRITE.
///
/// A sender encodes [`Payload::Elsewhere`] and leaves a hole ([`Encoder::holes`]) that the
/// transport fills from other memory. A receiver that places payload finds its position by
/// [`Decoder::prefix`] and decodes the remaining bytes by [`Decoder::without_payload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// The bytes are in the record.
    Inline(&'a [u8]),
    /// This number of bytes is in other memory.
    Elsewhere(u32),
}

impl Payload<'_> {
    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Elsewhere(length) => *length as usize,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Xdr<'a> for Payload<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        from.payload(PAYLOAD_BYTES_MAX)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        if self.len() > PAYLOAD_BYTES_MAX {
            return Err(EncodeError::Value);
        }
        match self {
            Self::Inline(bytes) => to.opaque(bytes),
            Self::Elsewhere(length) => to.hole(*length),
        }
    }
}

/// The place of a payload in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Position of its first byte.
    pub at: usize,
    /// Number of bytes, without padding.
    pub length: usize,
}

/// Where a decoder finds payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Receiving {
    /// In the record.
    Inline,
    /// In other memory, if it is at this place.
    Placed(Placement),
    /// Nowhere yet: only the beginning of the record has arrived.
    Prefix {
        /// Length of the whole record.
        record_bytes: usize,
    },
}
