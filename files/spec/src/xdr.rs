//! External Data Representation (RFC 4506): items of four-byte units in big-endian order.
//!
//! A [`Decoder`] reads a record that has arrived and borrows from it; an [`Encoder`] writes into
//! memory of its user. Both are bounded by that memory.

mod decode;
mod encode;
mod list;
mod payload;
#[cfg(test)]
mod tests;

pub use decode::{DecodeError, Decoder};
pub(crate) use encode::Mark;
pub use encode::{EncodeError, Encoder, HOLES_MAX, Hole};
pub use list::{List, ListItems};
pub use payload::{Payload, Placement};

/// Size of XDR's unit in bytes; every item is a multiple of it (RFC 4506 §3).
pub const UNIT_BYTES: usize = 4;

/// An item with an XDR form. The lifetime is that of the record that it is decoded from.
pub trait Xdr<'a>: Sized {
    /// Decodes the item at the decoder's position.
    ///
    /// # Errors
    /// Returns the error of the first malformed part.
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError>;

    /// Appends the item.
    ///
    /// # Errors
    /// Returns an error if the memory does not suffice, or if the value has no XDR form.
    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError>;
}

/// Number of bytes that complete `length` to a multiple of the unit.
#[must_use]
pub const fn padding(length: usize) -> usize {
    (UNIT_BYTES - length % UNIT_BYTES) % UNIT_BYTES
}

macro_rules! integers {
    ($($type:ident,)*) => {
        $(
            impl<'a> Xdr<'a> for $type {
                fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                    from.array().map(Self::from_be_bytes)
                }

                fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
                    to.bytes(&self.to_be_bytes())
                }
            }
        )*
    };
}

integers! { u32, u64, i64, }

impl<'a> Xdr<'a> for bool {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match u32::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Discriminant),
        }
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        u32::from(*self).encode(to)
    }
}

impl<'a> Xdr<'a> for () {
    fn decode(_: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(())
    }

    fn encode(&self, _: &mut Encoder<'_>) -> Result<(), EncodeError> {
        Ok(())
    }
}

/// Opaque data of fixed length, without padding because its length is a multiple of the unit.
impl<'a, const N: usize> Xdr<'a> for [u8; N] {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        const { assert!(N.is_multiple_of(UNIT_BYTES)) };
        from.array()
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        to.bytes(self)
    }
}

/// Opaque data of variable length, at most `MAX` bytes (RFC 4506 §4.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opaque<'a, const MAX: usize>(pub &'a [u8]);

impl<'a, const MAX: usize> Xdr<'a> for Opaque<'a, MAX> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        from.opaque(MAX).map(Self)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        if self.0.len() > MAX {
            return Err(EncodeError::Value);
        }
        to.opaque(self.0)
    }
}

/// Text in UTF-8 of at most `MAX` bytes (RFC 8881 §14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text<'a, const MAX: usize>(pub &'a str);

impl<'a, const MAX: usize> Xdr<'a> for Text<'a, MAX> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let bytes = from.opaque(MAX)?;
        core::str::from_utf8(bytes)
            .map(Self)
            .map_err(|_| DecodeError::NotUtf8)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        Opaque::<MAX>(self.0.as_bytes()).encode(to)
    }
}

/// Optional data: an array of at most one item (RFC 4506 §4.19).
impl<'a, T: Xdr<'a>> Xdr<'a> for Option<T> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(match bool::decode(from)? {
            true => Some(T::decode(from)?),
            false => None,
        })
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        self.is_some().encode(to)?;
        self.as_ref().map_or(Ok(()), |item| item.encode(to))
    }
}
