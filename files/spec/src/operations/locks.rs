//! Byte-range locks (RFC 8881 §18.10 to §18.12).

use super::Failure;
use crate::status::Status;
use crate::types::{LockType, Owner, StateId};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Xdr};

xdr_struct! {
    /// Arguments of LOCK. A length of all ones is the rest of the file.
    pub struct LockArgs<'a> {
        locktype: LockType,
        reclaim: bool,
        offset: u64,
        length: u64,
        locker: Locker<'a>,
    }
}

xdr_union! {
    /// The owner of a lock, `locker4`: with a lock state already, or with an open state only.
    pub enum Locker<'a> {
        0 => Existing(ExistingLockOwner),
        1 => New(NewLockOwner<'a>),
    }
}

xdr_struct! {
    /// An owner with a lock state.
    pub struct ExistingLockOwner {
        lock_stateid: StateId,
        lock_seqid: u32,
    }
}

xdr_struct! {
    /// An owner that has opened the file.
    pub struct NewLockOwner<'a> {
        open_seqid: u32,
        open_stateid: StateId,
        lock_seqid: u32,
        lock_owner: Owner<'a>,
    }
}

xdr_struct! {
    /// The conflicting lock.
    pub struct LockDenied<'a> {
        offset: u64,
        length: u64,
        locktype: LockType,
        owner: Owner<'a>,
    }
}

/// Failure of LOCK and LOCKT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockFailure<'a> {
    /// `NFS4ERR_DENIED`: another owner has a lock.
    Denied(LockDenied<'a>),
    /// Another status.
    Status(Status),
}

impl<'a> Failure<'a> for LockFailure<'a> {
    fn of(status: Status) -> Self {
        Self::Status(status)
    }

    fn status(&self) -> Status {
        match self {
            Self::Denied(_) => Status::DENIED,
            Self::Status(status) => *status,
        }
    }

    fn decode_body(status: Status, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match status {
            Status::DENIED => Xdr::decode(from).map(Self::Denied),
            status => Ok(Self::Status(status)),
        }
    }

    fn encode_body(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Denied(denied) => denied.encode(to),
            // The body of this status is the conflicting lock.
            Self::Status(Status::DENIED) => Err(EncodeError::Value),
            Self::Status(_) => Ok(()),
        }
    }
}

#[cfg(test)]
impl<'a> crate::arbitrary::Arbitrary<'a> for LockFailure<'a> {
    fn arbitrary(from: &mut crate::arbitrary::Source<'_>) -> Self {
        match from.one_in(2) {
            true => Self::Denied(crate::arbitrary::Arbitrary::arbitrary(from)),
            false => Self::Status(Status::GRACE),
        }
    }
}

xdr_struct! {
    /// Arguments of LOCKT.
    pub struct LockTestArgs<'a> {
        locktype: LockType,
        offset: u64,
        length: u64,
        owner: Owner<'a>,
    }
}

xdr_struct! {
    /// Arguments of LOCKU.
    pub struct UnlockArgs {
        locktype: LockType,
        seqid: u32,
        lock_stateid: StateId,
        offset: u64,
        length: u64,
    }
}
