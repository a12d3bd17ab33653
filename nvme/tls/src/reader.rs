//! Reads the fields of a message.

use crate::Alert;

/// The rest of a message, or of one of its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The position of the next byte in the bytes of [`new`](Self::new).
    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// The next `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Alert> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or(Alert::DECODE_ERROR)?;
        self.at += count;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Alert> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Alert> {
        let bytes = self.bytes(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(crate) fn u24(&mut self) -> Result<usize, Alert> {
        let bytes = self.bytes(3)?;
        Ok(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize)
    }

    /// A field with a length of one byte in front.
    pub(crate) fn short_field(&mut self) -> Result<&'a [u8], Alert> {
        let count = self.u8()?;
        self.bytes(count.into())
    }

    /// A field with a length of two bytes in front.
    pub(crate) fn field(&mut self) -> Result<&'a [u8], Alert> {
        let count = self.u16()?;
        self.bytes(count.into())
    }

    /// # Errors
    ///
    /// Bytes are left.
    pub(crate) fn finish(self) -> Result<(), Alert> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(Alert::DECODE_ERROR)
        }
    }
}
