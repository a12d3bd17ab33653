//! Writing of XDR items into memory of the user.

use super::{Xdr, padding};

/// Limit of the holes in one message.
pub const HOLES_MAX: usize = 4;

/// Why an item cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The memory is exhausted.
    NoSpace,
    /// The message has [`HOLES_MAX`] holes already.
    TooManyHoles,
    /// The value has no XDR form: a length exceeds its limit, or a failure has the status OK.
    Value,
}

/// A gap in an encoded message, to be filled from other memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hole {
    /// Number of encoded bytes before it.
    pub at: usize,
    /// Length of the gap in bytes. Padding behind it is part of the encoded bytes.
    pub length: u32,
}

/// An encoder's state, to which it can return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    at: usize,
    holes: usize,
}

/// A message that is being written.
#[derive(Debug)]
pub struct Encoder<'m> {
    memory: &'m mut [u8],
    at: usize,
    holes: [Hole; HOLES_MAX],
    hole_count: usize,
}

impl<'m> Encoder<'m> {
    /// An encoder that writes at the beginning of `memory`.
    #[must_use]
    pub fn new(memory: &'m mut [u8]) -> Self {
        Self {
            memory,
            at: 0,
            holes: [Hole::default(); HOLES_MAX],
            hole_count: 0,
        }
    }

    /// The bytes written so far, without holes.
    #[must_use]
    pub fn written(&self) -> &[u8] {
        &self.memory[..self.at]
    }

    /// The holes in ascending order.
    #[must_use]
    pub fn holes(&self) -> &[Hole] {
        &self.holes[..self.hole_count]
    }

    /// Length of the message in bytes, with holes.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        let holes = self.holes().iter().map(|hole| hole.length as usize);
        self.at + holes.sum::<usize>()
    }

    /// Number of bytes that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.memory.len() - self.at
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark {
            at: self.at,
            holes: self.hole_count,
        }
    }

    /// Removes what was written since the mark.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.at = mark.at;
        self.hole_count = mark.holes;
    }

    /// Number of bytes written since the mark, without holes.
    pub(crate) fn since(&self, mark: Mark) -> usize {
        self.at - mark.at
    }

    /// Replaces the unit at a mark.
    pub(crate) fn patch(&mut self, mark: Mark, value: u32) {
        self.memory[mark.at..mark.at + 4].copy_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let rest = &mut self.memory[self.at..];
        let place = rest.get_mut(..bytes.len()).ok_or(EncodeError::NoSpace)?;
        place.copy_from_slice(bytes);
        self.at += bytes.len();
        Ok(())
    }

    fn pad(&mut self, length: usize) -> Result<(), EncodeError> {
        self.bytes(&[0; 3][..padding(length)])
    }

    pub(crate) fn opaque(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let length = u32::try_from(bytes.len()).map_err(|_| EncodeError::Value)?;
        length.encode(self)?;
        self.bytes(bytes)?;
        self.pad(bytes.len())
    }

    /// Opaque data whose bytes are a hole.
    pub(crate) fn hole(&mut self, length: u32) -> Result<(), EncodeError> {
        length.encode(self)?;
        if length == 0 {
            return Ok(());
        }
        let hole = self.holes.get_mut(self.hole_count);
        *hole.ok_or(EncodeError::TooManyHoles)? = Hole {
            at: self.at,
            length,
        };
        self.hole_count += 1;
        self.pad(length as usize)
    }
}
