//! Success or failure of an operation: a union over its status.

use crate::status::Status;
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Xdr};

/// A failure: a status other than OK, and what some operations add to it.
pub trait Failure<'a>: Sized {
    /// The failure with this status and without further information.
    fn of(status: Status) -> Self;

    /// Its status.
    fn status(&self) -> Status;

    /// Decodes what follows the status.
    ///
    /// # Errors
    /// Returns the error of the first malformed part.
    fn decode_body(status: Status, from: &mut Decoder<'a>) -> Result<Self, DecodeError>;

    /// Encodes what follows the status.
    ///
    /// # Errors
    /// Returns an error if the memory does not suffice.
    fn encode_body(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError>;
}

impl<'a> Failure<'a> for Status {
    fn of(status: Status) -> Self {
        status
    }

    fn status(&self) -> Status {
        *self
    }

    fn decode_body(status: Status, _: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(status)
    }

    fn encode_body(&self, _: &mut Encoder<'_>) -> Result<(), EncodeError> {
        Ok(())
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T, F = Status> {
    /// The operation succeeded.
    Ok(T),
    /// The operation failed.
    Failed(F),
}

impl<'a, T, F: Failure<'a>> Outcome<T, F> {
    /// A failure without further information.
    #[must_use]
    pub fn failed(status: Status) -> Self {
        Self::Failed(F::of(status))
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::OK,
            Self::Failed(failure) => failure.status(),
        }
    }
}

impl<'a, T: Xdr<'a>, F: Failure<'a>> Xdr<'a> for Outcome<T, F> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match Status::decode(from)? {
            Status::OK => T::decode(from).map(Self::Ok),
            status => F::decode_body(status, from).map(Self::Failed),
        }
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Ok(body) => {
                Status::OK.encode(to)?;
                body.encode(to)
            }
            Self::Failed(failure) => {
                let status = failure.status();
                if status == Status::OK {
                    return Err(EncodeError::Value);
                }
                status.encode(to)?;
                failure.encode_body(to)
            }
        }
    }
}

#[cfg(test)]
impl<'a, T, F> crate::arbitrary::Arbitrary<'a> for Outcome<T, F>
where
    T: crate::arbitrary::Arbitrary<'a>,
    F: Failure<'a> + crate::arbitrary::Arbitrary<'a>,
{
    fn arbitrary(from: &mut crate::arbitrary::Source<'_>) -> Self {
        if from.one_in(3) {
            let failure = F::arbitrary(from);
            return match failure.status() {
                Status::OK => Self::failed(Status::IO),
                _ => Self::Failed(failure),
            };
        }
        Self::Ok(T::arbitrary(from))
    }
}
