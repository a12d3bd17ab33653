//! Operations of minor version 2: space management and copies (RFC 7862), extended attributes
//! (RFC 8276).

use super::Failure;
use crate::limits::{PRINCIPAL_BYTES_MAX, SHORT_LIST_MAX, XATTR_BYTES_MAX, XATTR_NAMES_MAX};
use crate::name::XattrName;
use crate::status::Status;
use crate::types::{Stable, StateId, Verifier};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, List, Opaque, Text, Xdr};

/// What SEEK looks for (`data_content4` of RFC 7863).
pub mod seek_what {
    /// Data.
    pub const DATA: u32 = 0;
    /// A hole.
    pub const HOLE: u32 = 1;
}

xdr_struct! {
    /// Arguments of ALLOCATE and DEALLOCATE.
    pub struct RangeArgs {
        stateid: StateId,
        offset: u64,
        length: u64,
    }
}

xdr_struct! {
    /// Arguments of CLONE. A count of 0 is the rest of the source.
    pub struct CloneArgs {
        src_stateid: StateId,
        dst_stateid: StateId,
        src_offset: u64,
        dst_offset: u64,
        count: u64,
    }
}

xdr_struct! {
    /// Arguments of COPY. A count of 0 is the rest of the source.
    pub struct CopyArgs<'a> {
        src_stateid: StateId,
        dst_stateid: StateId,
        src_offset: u64,
        dst_offset: u64,
        count: u64,
        consecutive: bool,
        synchronous: bool,
        source_server: List<'a, NetworkLocation<'a>, SHORT_LIST_MAX>,
    }
}

xdr_union! {
    /// The location of another server, `netloc4`.
    pub enum NetworkLocation<'a> {
        1 => Name(Text<'a, PRINCIPAL_BYTES_MAX>),
        2 => Url(Text<'a, PRINCIPAL_BYTES_MAX>),
        3 => Address(NetworkAddress<'a>),
    }
}

xdr_struct! {
    /// A network address, `netaddr4`.
    pub struct NetworkAddress<'a> {
        netid: Text<'a, PRINCIPAL_BYTES_MAX>,
        addr: Text<'a, PRINCIPAL_BYTES_MAX>,
    }
}

xdr_struct! {
    /// How a copy is performed, `copy_requirements4`.
    pub struct CopyRequirements {
        consecutive: bool,
        synchronous: bool,
    }
}

xdr_struct! {
    /// What a copy wrote, `write_response4`. An array of at most one item has the form of optional
    /// data.
    pub struct WriteResponse {
        callback_id: Option<StateId>,
        count: u64,
        committed: Stable,
        writeverf: Verifier,
    }
}

xdr_struct! {
    /// Result of COPY.
    pub struct CopyOk {
        response: WriteResponse,
        requirements: CopyRequirements,
    }
}

/// Failure of COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFailure {
    /// `NFS4ERR_OFFLOAD_NO_REQS`: the server can copy only in this way.
    Requirements(CopyRequirements),
    /// Another status.
    Status(Status),
}

impl<'a> Failure<'a> for CopyFailure {
    fn of(status: Status) -> Self {
        Self::Status(status)
    }

    fn status(&self) -> Status {
        match self {
            Self::Requirements(_) => Status::OFFLOAD_NO_REQS,
            Self::Status(status) => *status,
        }
    }

    fn decode_body(status: Status, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match status {
            Status::OFFLOAD_NO_REQS => Xdr::decode(from).map(Self::Requirements),
            status => Ok(Self::Status(status)),
        }
    }

    fn encode_body(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Requirements(requirements) => requirements.encode(to),
            // The body of this status are the requirements.
            Self::Status(Status::OFFLOAD_NO_REQS) => Err(EncodeError::Value),
            Self::Status(_) => Ok(()),
        }
    }
}

#[cfg(test)]
impl<'a> crate::arbitrary::Arbitrary<'a> for CopyFailure {
    fn arbitrary(from: &mut crate::arbitrary::Source<'_>) -> Self {
        match from.one_in(2) {
            true => Self::Requirements(crate::arbitrary::Arbitrary::arbitrary(from)),
            false => Self::Status(Status::NOSPC),
        }
    }
}

xdr_struct! {
    /// Arguments of SEEK ([`seek_what`]).
    pub struct SeekArgs {
        stateid: StateId,
        offset: u64,
        what: u32,
    }
}

xdr_struct! {
    /// Result of SEEK.
    pub struct SeekOk {
        eof: bool,
        offset: u64,
    }
}

xdr_struct! {
    /// Result of GETXATTR.
    pub struct GetXattrOk<'a> {
        value: Opaque<'a, XATTR_BYTES_MAX>,
    }
}

open_enum! {
    /// Whether an extended attribute is created or replaced, `setxattr_option4`.
    pub struct SetXattrOption {
        EITHER = 0, "SETXATTR4_EITHER";
        CREATE = 1, "SETXATTR4_CREATE";
        REPLACE = 2, "SETXATTR4_REPLACE";
    }
}

xdr_struct! {
    /// Arguments of SETXATTR.
    pub struct SetXattrArgs<'a> {
        option: SetXattrOption,
        key: XattrName<'a>,
        value: Opaque<'a, XATTR_BYTES_MAX>,
    }
}

xdr_struct! {
    /// Arguments of LISTXATTRS.
    pub struct ListXattrsArgs {
        cookie: u64,
        maxcount: u32,
    }
}

xdr_struct! {
    /// Result of LISTXATTRS.
    pub struct ListXattrsOk<'a> {
        cookie: u64,
        names: List<'a, XattrName<'a>, XATTR_NAMES_MAX>,
        eof: bool,
    }
}
