//! Reading of XDR items from a record.

use super::payload::{Placement, Receiving};
use super::{Payload, Xdr, padding};
use crate::name::NameError;
use crate::status::Status;

/// Why bytes are not the expected item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The record ends within the item, or an array has more items than the record has room for.
    Truncated,
    /// Opaque data, text or an array exceeds its limit.
    TooLong,
    /// A boolean or the discriminant of a union has an undefined value.
    Discriminant,
    /// Bytes follow the last item.
    Trailing,
    /// Text is not UTF-8.
    NotUtf8,
    /// A file name is not valid.
    Name(NameError),
    /// An attribute is not in the table of this crate.
    UnknownAttribute,
    /// The payload at this place has not arrived yet ([`Decoder::prefix`]).
    Awaiting(Placement),
}

impl DecodeError {
    /// The status of the operation whose arguments have this error.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            // RFC 8881 §15.1.1.1.
            Self::Truncated
            | Self::TooLong
            | Self::Discriminant
            | Self::Trailing
            | Self::Awaiting(_) => Status::BADXDR,
            // RFC 8881 §14.
            Self::NotUtf8 => Status::INVAL,
            Self::Name(error) => error.status(),
            // RFC 8881 §15.1.15.1.
            Self::UnknownAttribute => Status::ATTRNOTSUPP,
        }
    }
}

/// A position in the bytes of a record.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    receiving: Receiving,
}

impl<'a> Decoder<'a> {
    /// A decoder of a whole record.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self::with(bytes, Receiving::Inline)
    }

    /// A decoder of a record without the payload at `placement`, which is elsewhere. Its padding is
    /// part of `bytes`.
    #[must_use]
    pub const fn without_payload(bytes: &'a [u8], placement: Placement) -> Self {
        Self::with(bytes, Receiving::Placed(placement))
    }

    /// A decoder of the beginning of a record of `record_bytes` bytes. A payload returns
    /// [`DecodeError::Awaiting`] with its place.
    #[must_use]
    pub const fn prefix(bytes: &'a [u8], record_bytes: usize) -> Self {
        Self::with(bytes, Receiving::Prefix { record_bytes })
    }

    const fn with(bytes: &'a [u8], receiving: Receiving) -> Self {
        Self {
            bytes,
            at: 0,
            receiving,
        }
    }

    /// A decoder whose position is `bytes` further.
    ///
    /// # Errors
    /// Returns [`DecodeError::Truncated`] if that is behind the end.
    pub fn behind(mut self, bytes: usize) -> Result<Self, DecodeError> {
        self.take(bytes)?;
        Ok(self)
    }

    /// The position in the bytes of the decoder.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Number of bytes that are not decoded yet.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Checks that no bytes remain.
    ///
    /// # Errors
    /// Returns [`DecodeError::Trailing`] otherwise.
    pub const fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            _ => Err(DecodeError::Trailing),
        }
    }

    /// The word at a position of the bytes; `None` behind their end.
    pub(crate) fn u32_at(&self, position: usize) -> Option<u32> {
        let word = self.bytes.get(position..)?.first_chunk()?;
        Some(u32::from_be_bytes(*word))
    }

    /// The bytes that are not decoded yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// The bytes from an earlier position to this one.
    pub(crate) fn since(&self, position: usize) -> &'a [u8] {
        &self.bytes[position..self.at]
    }

    /// Takes `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..length).ok_or(DecodeError::Truncated)?;
        self.at += length;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.at += N;
        Ok(*taken)
    }

    /// A length or count of at most `max`.
    pub(crate) fn length(&mut self, max: usize) -> Result<usize, DecodeError> {
        let length = u32::decode(self)? as usize;
        if length > max {
            return Err(DecodeError::TooLong);
        }
        Ok(length)
    }

    /// Opaque data of at most `max` bytes. The values of the padding bytes are not checked, because
    /// other implementations do not check them either.
    pub(crate) fn opaque(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.length(max)?;
        let bytes = self.take(length)?;
        self.take(padding(length))?;
        Ok(bytes)
    }

    /// Payload of at most `max` bytes, in the record or elsewhere.
    pub(crate) fn payload(&mut self, max: usize) -> Result<Payload<'a>, DecodeError> {
        let length = self.length(max)?;
        let here = Placement {
            at: self.at,
            length,
        };
        match self.receiving {
            Receiving::Placed(placement) if placement == here => {
                self.take(padding(length))?;
                // `length` came from 32 bits.
                Ok(Payload::Elsewhere(length as u32))
            }
            Receiving::Prefix { record_bytes } => {
                let room = record_bytes.saturating_sub(self.at);
                match length + padding(length) <= room {
                    true => Err(DecodeError::Awaiting(here)),
                    false => Err(DecodeError::TooLong),
                }
            }
            Receiving::Inline | Receiving::Placed(_) => {
                let bytes = self.take(length)?;
                self.take(padding(length))?;
                Ok(Payload::Inline(bytes))
            }
        }
    }
}
