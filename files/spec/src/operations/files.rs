//! Operations on files and directories (RFC 8881 §18.1 to §18.32).

use super::Failure;
use crate::attributes::Attributes;
use crate::bitmap::Bitmap;
use crate::name::Name;
use crate::status::Status;
use crate::types::{ChangeInfo, CreateType, Stable, StateId, Verifier};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Payload, Xdr};

xdr_struct! {
    /// Arguments of ACCESS: the permissions to check ([`crate::types::access`]).
    pub struct AccessArgs {
        access: u32,
    }
}

xdr_struct! {
    /// Result of ACCESS.
    pub struct AccessOk {
        supported: u32,
        access: u32,
    }
}

xdr_struct! {
    /// Arguments of COMMIT. A count of 0 is the rest of the file (RFC 8881 §18.3).
    pub struct CommitArgs {
        offset: u64,
        count: u32,
    }
}

xdr_struct! {
    /// Arguments of CREATE, which creates objects other than regular files.
    pub struct CreateArgs<'a> {
        objtype: CreateType<'a>,
        objname: Name<'a>,
        createattrs: Attributes<'a>,
    }
}

xdr_struct! {
    /// Result of CREATE.
    pub struct CreateOk {
        cinfo: ChangeInfo,
        attrset: Bitmap,
    }
}

xdr_struct! {
    /// Arguments of READ.
    pub struct ReadArgs {
        stateid: StateId,
        offset: u64,
        count: u32,
    }
}

xdr_struct! {
    /// Result of READ.
    pub struct ReadOk<'a> {
        eof: bool,
        data: Payload<'a>,
    }
}

xdr_struct! {
    /// Arguments of RENAME: from the saved to the current directory.
    pub struct RenameArgs<'a> {
        oldname: Name<'a>,
        newname: Name<'a>,
    }
}

xdr_struct! {
    /// Result of RENAME.
    pub struct RenameOk {
        source_cinfo: ChangeInfo,
        target_cinfo: ChangeInfo,
    }
}

xdr_struct! {
    /// Arguments of SETATTR.
    pub struct SetattrArgs<'a> {
        stateid: StateId,
        obj_attributes: Attributes<'a>,
    }
}

xdr_struct! {
    /// Result of SETATTR.
    pub struct SetattrOk {
        attrsset: Bitmap,
    }
}

xdr_struct! {
    /// Failure of SETATTR. Some attributes may have been set (RFC 8881 §18.30).
    pub struct SetattrFailure {
        status: Status,
        attrsset: Bitmap,
    }
}

impl<'a> Failure<'a> for SetattrFailure {
    fn of(status: Status) -> Self {
        Self {
            status,
            attrsset: Bitmap::EMPTY,
        }
    }

    fn status(&self) -> Status {
        self.status
    }

    fn decode_body(status: Status, from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let attrsset = Bitmap::decode(from)?;
        Ok(Self { status, attrsset })
    }

    fn encode_body(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        self.attrsset.encode(to)
    }
}

xdr_struct! {
    /// Arguments of WRITE.
    pub struct WriteArgs<'a> {
        stateid: StateId,
        offset: u64,
        stable: Stable,
        data: Payload<'a>,
    }
}

xdr_struct! {
    /// Result of WRITE.
    pub struct WriteOk {
        count: u32,
        committed: Stable,
        writeverf: Verifier,
    }
}
