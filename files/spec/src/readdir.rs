//! READDIR (RFC 8881 §18.23): its entries are a linked list, and its reply has a size limit that
//! the client chooses.

use core::fmt;

use crate::attributes::Attributes;
use crate::bitmap::Bitmap;
use crate::name::Name;
use crate::operations::OperationNumber;
use crate::status::Status;
use crate::types::Verifier;
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Xdr};

/// Bytes behind the entries: no further entry, and whether the directory ends.
const END_BYTES: usize = 8;

xdr_struct! {
    /// Arguments of READDIR.
    pub struct ReaddirArgs {
        cookie: u64,
        cookieverf: Verifier,
        dircount: u32,
        maxcount: u32,
        attr_request: Bitmap,
    }
}

xdr_struct! {
    /// Result of READDIR.
    pub struct ReaddirOk<'a> {
        cookieverf: Verifier,
        entries: Entries<'a>,
        eof: bool,
    }
}

xdr_struct! {
    /// An entry of a directory, `entry4` without its link.
    pub struct Entry<'a> {
        cookie: u64,
        name: Name<'a>,
        attrs: Attributes<'a>,
    }
}

/// Entries in memory of the sender or in a received record.
#[derive(Clone, Copy)]
pub struct Entries<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Slice(&'a [Entry<'a>]),
    Encoded(&'a [u8]),
}

impl<'a> Entries<'a> {
    /// The entries of a slice.
    #[must_use]
    pub const fn new(entries: &'a [Entry<'a>]) -> Self {
        Self(Source::Slice(entries))
    }

    /// The entries.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut source = self.0;
        core::iter::from_fn(move || match &mut source {
            Source::Slice(entries) => {
                let (first, rest) = entries.split_first()?;
                *entries = rest;
                Some(*first)
            }
            Source::Encoded(bytes) => {
                let mut from = Decoder::new(bytes);
                // The entries were decoded without an error before.
                let entry = Option::<Entry<'a>>::decode(&mut from).ok()??;
                *bytes = &bytes[from.position()..];
                Some(entry)
            }
        })
    }
}

impl<'a> Xdr<'a> for Entries<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let begin = from.position();
        while Option::<Entry<'a>>::decode(from)?.is_some() {}
        Ok(Self(Source::Encoded(from.since(begin))))
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        for entry in self.iter() {
            Some(entry).encode(to)?;
        }
        None::<Entry<'_>>.encode(to)
    }
}

impl PartialEq for Entries<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Entries<'_> {}

impl fmt::Debug for Entries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
impl<'a> crate::arbitrary::Arbitrary<'a> for Entries<'a> {
    fn arbitrary(from: &mut crate::arbitrary::Source<'_>) -> Self {
        let mut entries = Vec::new();
        while from.one_in(2) && entries.len() < 3 {
            entries.push(crate::arbitrary::Arbitrary::arbitrary(from));
        }
        Self::new(entries.leak())
    }
}

/// Writes the result of a READDIR entry by entry, within the limit of the client.
#[derive(Debug)]
pub struct ReaddirWriter<'e, 'm> {
    to: &'e mut Encoder<'m>,
    /// Bytes of the result that may still be used.
    room: usize,
}

impl<'e, 'm> ReaddirWriter<'e, 'm> {
    /// Begins a result of at most `maxcount` bytes, counted from the verifier (RFC 8881 §18.23).
    ///
    /// # Errors
    /// Returns an error if even an empty result does not fit.
    pub fn begin(
        to: &'e mut Encoder<'m>,
        cookieverf: Verifier,
        maxcount: u32,
    ) -> Result<Self, EncodeError> {
        OperationNumber::READDIR.encode(to)?;
        Status::OK.encode(to)?;
        let limit = to.room().min(maxcount as usize);
        let room = limit
            .checked_sub(END_BYTES + cookieverf.len())
            .ok_or(EncodeError::NoSpace)?;
        cookieverf.encode(to)?;
        Ok(Self { to, room })
    }

    /// Appends an entry. Returns false if it does not fit; the result is then unchanged.
    ///
    /// # Errors
    /// Returns an error if the entry has no XDR form.
    pub fn push(&mut self, entry: &Entry<'_>) -> Result<bool, EncodeError> {
        let mark = self.to.mark();
        let encoded = Some(*entry).encode(self.to);
        let bytes = self.to.since(mark);
        match encoded {
            Ok(()) if bytes <= self.room => {
                self.room -= bytes;
                Ok(true)
            }
            Ok(()) | Err(EncodeError::NoSpace) => {
                self.to.rewind(mark);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the result.
    ///
    /// # Errors
    /// Returns no error: the room for the end is reserved.
    pub fn finish(self, eof: bool) -> Result<(), EncodeError> {
        None::<Entry<'_>>.encode(self.to)?;
        eof.encode(self.to)
    }
}
