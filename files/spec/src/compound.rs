//! COMPOUND (RFC 8881 §16.2): a sequence of operations and a sequence of their results.
//!
//! Operations are decoded one at a time, so that those before a malformed one are executed.

use core::marker::PhantomData;

use crate::limits::{OPERATIONS_MAX, TAG_BYTES_MAX};
use crate::operations::{Operation, OperationNumber, OperationResult};
use crate::rpc::{Call, NFS_PROGRAM, Procedure};
use crate::status::Status;
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Mark, Opaque, Placement, Xdr};

#[cfg(test)]
mod tests;

/// The minor versions that this crate knows.
pub const MINOR_VERSIONS: core::ops::RangeInclusive<u32> = 1..=2;

/// The tag of a COMPOUND, which the reply repeats.
pub type Tag<'a> = Opaque<'a, TAG_BYTES_MAX>;

/// The operations of a request.
pub type Operations<'a> = Sequence<'a, Operation<'a>>;
/// The results of a reply.
pub type Results<'a> = Sequence<'a, OperationResult<'a>>;

/// A request. If its header is malformed, the RPC fails with `GARBAGE_ARGS`.
#[derive(Clone, Debug)]
pub struct CompoundArgs<'a> {
    /// The tag.
    pub tag: Tag<'a>,
    /// The minor version.
    pub minor_version: u32,
    /// The operations.
    pub operations: Operations<'a>,
}

impl<'a> CompoundArgs<'a> {
    /// Decodes the header; the operations are decoded by their iterator.
    ///
    /// # Errors
    /// Returns the error of the first malformed part of the header.
    pub fn decode(mut from: Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            tag: Tag::decode(&mut from)?,
            minor_version: u32::decode(&mut from)?,
            operations: Sequence::decode(from)?,
        })
    }

    /// The status of the whole request, before its first operation.
    ///
    /// # Errors
    /// Returns `NFS4ERR_MINOR_VERS_MISMATCH` for an unknown minor version (RFC 8881 §15.1.3.2),
    /// `NFS4ERR_TOO_MANY_OPS` for more than [`OPERATIONS_MAX`] operations (RFC 8881 §15.1.3.11), and
    /// `NFS4ERR_INVAL` for a tag that is not UTF-8 (RFC 8881 §14.5).
    pub fn check(&self) -> Result<(), Status> {
        check(self.minor_version, self.operations.left())?;
        match core::str::from_utf8(self.tag.0) {
            Ok(_) => Ok(()),
            Err(_) => Err(Status::INVAL),
        }
    }
}

/// The status of a request with this minor version and number of operations.
pub(crate) fn check(minor_version: u32, operations: usize) -> Result<(), Status> {
    if !MINOR_VERSIONS.contains(&minor_version) {
        return Err(Status::MINOR_VERS_MISMATCH);
    }
    match operations <= OPERATIONS_MAX {
        true => Ok(()),
        false => Err(Status::TOO_MANY_OPS),
    }
}

/// A reply.
#[derive(Clone, Debug)]
pub struct CompoundOk<'a> {
    /// The status of the last operation.
    pub status: Status,
    /// The tag of the request.
    pub tag: Tag<'a>,
    /// The results of the operations up to the first that failed.
    pub results: Results<'a>,
}

impl<'a> CompoundOk<'a> {
    /// Decodes the header; the results are decoded by their iterator.
    ///
    /// # Errors
    /// Returns the error of the first malformed part of the header.
    pub fn decode(mut from: Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            status: Status::decode(&mut from)?,
            tag: Tag::decode(&mut from)?,
            results: Sequence::decode(from)?,
        })
    }
}

/// An item that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The number of the operation; [`OperationNumber::ILLEGAL`] if the record ends before it.
    pub number: OperationNumber,
    /// What is wrong.
    pub error: DecodeError,
}

/// An array of operations or results that is decoded item by item and ends at the first error.
#[derive(Clone, Debug)]
pub struct Sequence<'a, T> {
    left: usize,
    from: Decoder<'a>,
    items: PhantomData<T>,
}

impl<'a, T> Sequence<'a, T> {
    pub(crate) fn decode(mut from: Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            left: u32::decode(&mut from)? as usize,
            from,
            items: PhantomData,
        })
    }

    /// Number of items that are not decoded yet. It is the sender's claim and unbounded.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// The bytes of the items that are not decoded yet, and of what follows them.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.from.rest()
    }

    /// Checks that no bytes follow the last item.
    ///
    /// # Errors
    /// Returns [`DecodeError::Trailing`] otherwise.
    pub const fn finish(&self) -> Result<(), DecodeError> {
        self.from.finish()
    }
}

impl<'a> Operations<'a> {
    /// The number of the next operation; `None` behind the last one, or if the record ends before
    /// it.
    #[must_use]
    pub fn peek(&self) -> Option<OperationNumber> {
        let word = self.from.u32_at(self.from.position());
        word.filter(|_| self.left > 0).map(OperationNumber)
    }

    /// Decodes the arguments of the next operation, whose number [`Self::peek`] has told. An
    /// [`Operation`] has room for the arguments of every one, and these need only their own.
    ///
    /// # Errors
    /// As the iterator returns.
    #[inline(always)]
    pub fn args<T: Xdr<'a>>(&mut self) -> Result<T, Malformed> {
        self.left = self.left.saturating_sub(1);
        let number = OperationNumber::decode(&mut self.from);
        let number = number.unwrap_or(OperationNumber::ILLEGAL);
        T::decode(&mut self.from).map_err(|error| {
            self.left = 0;
            Malformed { number, error }
        })
    }
}

impl<'a, T: Xdr<'a>> Iterator for Sequence<'a, T> {
    type Item = Result<T, Malformed>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let begin = self.from.position();
        // A large item is not moved.
        match T::decode(&mut self.from) {
            Ok(item) => Some(Ok(item)),
            Err(error) => {
                self.left = 0;
                let number = self.from.u32_at(begin).map(OperationNumber);
                Some(Err(Malformed {
                    number: number.unwrap_or(OperationNumber::ILLEGAL),
                    error,
                }))
            }
        }
    }
}

/// Writes a COMPOUND: its header, items, and finally their number and status.
#[derive(Debug)]
pub struct Writer<'e, 'm> {
    to: &'e mut Encoder<'m>,
    status: Option<Mark>,
    length: Mark,
    count: u32,
}

impl<'e, 'm> Writer<'e, 'm> {
    /// Begins a request.
    ///
    /// # Errors
    /// Returns an error if the header does not fit.
    pub fn request(
        to: &'e mut Encoder<'m>,
        tag: Tag<'_>,
        minor_version: u32,
    ) -> Result<Self, EncodeError> {
        tag.encode(to)?;
        minor_version.encode(to)?;
        Self::begin(to, None)
    }

    /// Begins the request of a callback (RFC 8881 §20). Its identifier is 0 since minor version 1.
    ///
    /// # Errors
    /// Returns an error if the header does not fit.
    pub fn callback(
        to: &'e mut Encoder<'m>,
        tag: Tag<'_>,
        minor_version: u32,
    ) -> Result<Self, EncodeError> {
        tag.encode(to)?;
        minor_version.encode(to)?;
        0_u32.encode(to)?;
        Self::begin(to, None)
    }

    /// Begins a reply. Its status is set at the end.
    ///
    /// # Errors
    /// Returns an error if the header does not fit.
    pub fn reply(to: &'e mut Encoder<'m>, tag: Tag<'_>) -> Result<Self, EncodeError> {
        let status = to.mark();
        Status::OK.encode(to)?;
        tag.encode(to)?;
        Self::begin(to, Some(status))
    }

    fn begin(to: &'e mut Encoder<'m>, status: Option<Mark>) -> Result<Self, EncodeError> {
        let length = to.mark();
        0_u32.encode(to)?;
        Ok(Self {
            to,
            status,
            length,
            count: 0,
        })
    }

    /// Appends an item.
    ///
    /// # Errors
    /// Returns an error if it does not fit or has no XDR form; the message is then unchanged.
    pub fn push<'a>(&mut self, item: &impl Xdr<'a>) -> Result<(), EncodeError> {
        self.push_with(|to| item.encode(to))
    }

    /// Appends an item that `encode` writes, such as a result of READDIR.
    ///
    /// # Errors
    /// Returns the error of `encode`; the message is then unchanged.
    pub fn push_with(
        &mut self,
        encode: impl FnOnce(&mut Encoder<'m>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mark = self.to.mark();
        if let Err(error) = encode(self.to) {
            self.to.rewind(mark);
            return Err(error);
        }
        self.count += 1;
        Ok(())
    }

    /// Number of bytes that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.to.room()
    }

    /// Ends a request.
    pub fn finish(self) {
        self.to.patch(self.length, self.count);
    }

    /// Ends a reply with the status of its last operation.
    pub fn finish_with(self, status: Status) {
        if let Some(mark) = self.status {
            self.to.patch(mark, status.0);
        }
        self.finish();
    }
}

/// Where a request has its first payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadSearch {
    /// More bytes of the record are needed to know.
    Incomplete,
    /// The record has no payload, or is malformed; it is received as a whole.
    None,
    /// The payload of the first WRITE, as a place in the record.
    At(Placement),
}

/// Finds the payload of the first WRITE in the beginning of a record of `record_bytes` bytes, so
/// that a transport can receive it into other memory.
#[must_use]
pub fn find_payload(beginning: &[u8], record_bytes: usize) -> PayloadSearch {
    let incomplete = match beginning.len() < record_bytes {
        true => PayloadSearch::Incomplete,
        false => PayloadSearch::None,
    };
    let mut from = Decoder::prefix(beginning, record_bytes);
    let Ok(call) = Call::decode(&mut from) else {
        return incomplete;
    };
    if call.program != NFS_PROGRAM || call.procedure != Procedure::COMPOUND {
        return PayloadSearch::None;
    }
    let args = match CompoundArgs::decode(from) {
        Ok(args) => args,
        Err(DecodeError::Truncated) => return incomplete,
        Err(_) => return PayloadSearch::None,
    };
    for operation in args.operations.take(OPERATIONS_MAX) {
        match operation {
            Ok(Operation::Unsupported(_)) => break,
            Ok(_) => {}
            Err(Malformed { error, .. }) => {
                return match error {
                    DecodeError::Awaiting(placement) => PayloadSearch::At(placement),
                    DecodeError::Truncated => incomplete,
                    _ => PayloadSearch::None,
                };
            }
        }
    }
    PayloadSearch::None
}
