//! Arrays of variable length (RFC 4506 §4.13).

use core::fmt;

use super::{DecodeError, Decoder, EncodeError, Encoder, UNIT_BYTES, Xdr};

/// An array of at most `MAX` items, in memory of the sender or in a received record.
///
/// Decoding checks every item once and keeps only the bytes; the iterator decodes them again, so
/// that no memory is needed.
#[derive(Clone, Copy)]
pub struct List<'a, T, const MAX: usize>(Items<'a, T>);

#[derive(Clone, Copy)]
enum Items<'a, T> {
    Slice(&'a [T]),
    Encoded { count: usize, bytes: &'a [u8] },
}

impl<'a, T, const MAX: usize> List<'a, T, MAX> {
    /// A list of the items of a slice.
    #[must_use]
    pub const fn new(items: &'a [T]) -> Self {
        Self(Items::Slice(items))
    }

    /// Number of items.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            Items::Slice(items) => items.len(),
            Items::Encoded { count, .. } => count,
        }
    }

    /// Whether there are no items.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Xdr<'a> + Copy, const MAX: usize> List<'a, T, MAX> {
    /// The items.
    #[must_use]
    pub const fn iter(&self) -> ListItems<'a, T> {
        ListItems(match self.0 {
            Items::Slice(items) => Rest::Slice(items),
            Items::Encoded { count, bytes } => Rest::Encoded {
                count,
                from: Decoder::new(bytes),
            },
        })
    }
}

/// The items of a [`List`].
pub struct ListItems<'a, T>(Rest<'a, T>);

enum Rest<'a, T> {
    Slice(&'a [T]),
    Encoded { count: usize, from: Decoder<'a> },
}

impl<'a, T: Xdr<'a> + Copy> Iterator for ListItems<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Rest::Slice(items) => {
                let (first, rest) = items.split_first()?;
                *items = rest;
                Some(*first)
            }
            Rest::Encoded { count, from } => {
                *count = count.checked_sub(1)?;
                // The items were decoded without an error before.
                T::decode(from).ok()
            }
        }
    }
}

impl<'a, T: Xdr<'a> + Copy, const MAX: usize> IntoIterator for &List<'a, T, MAX> {
    type Item = T;
    type IntoIter = ListItems<'a, T>;

    fn into_iter(self) -> ListItems<'a, T> {
        self.iter()
    }
}

impl<'a, T: Xdr<'a> + Copy, const MAX: usize> Xdr<'a> for List<'a, T, MAX> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let count = from.length(MAX)?;
        // Every item has at least one unit.
        if count > from.remaining() / UNIT_BYTES {
            return Err(DecodeError::Truncated);
        }
        let begin = from.position();
        for _ in 0..count {
            T::decode(from)?;
        }
        let bytes = from.since(begin);
        Ok(Self(Items::Encoded { count, bytes }))
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        if self.len() > MAX {
            return Err(EncodeError::Value);
        }
        u32::try_from(self.len())
            .map_err(|_| EncodeError::Value)?
            .encode(to)?;
        match self.0 {
            Items::Slice(items) => items.iter().try_for_each(|item| item.encode(to)),
            Items::Encoded { bytes, .. } => to.bytes(bytes),
        }
    }
}

impl<'a, T: Xdr<'a> + Copy + PartialEq, const MAX: usize> PartialEq for List<'a, T, MAX> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Xdr<'a> + Copy + Eq, const MAX: usize> Eq for List<'a, T, MAX> {}

impl<'a, T: Xdr<'a> + Copy + fmt::Debug, const MAX: usize> fmt::Debug for List<'a, T, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
