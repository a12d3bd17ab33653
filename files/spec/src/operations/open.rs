//! Opens and delegations (RFC 8881 §18.2, §18.16 and §18.18).

use crate::attributes::Attributes;
use crate::bitmap::Bitmap;
use crate::name::Name;
use crate::types::{ChangeInfo, Owner, Principal, StateId, Verifier};

/// Share access and share deny of OPEN (RFC 8881 §18.16).
pub mod share {
    /// Access to read.
    pub const ACCESS_READ: u32 = 1;
    /// Access to write.
    pub const ACCESS_WRITE: u32 = 2;
    /// The bits of the access itself.
    pub const ACCESS_MASK: u32 = 3;
    /// The bits with the wish for a delegation.
    pub const WANT_DELEGATION_MASK: u32 = 0xff00;
    /// Wish: no delegation.
    pub const WANT_NO_DELEGATION: u32 = 0x400;
    /// Deny nothing.
    pub const DENY_NONE: u32 = 0;
    /// Deny others to read.
    pub const DENY_READ: u32 = 1;
    /// Deny others to write.
    pub const DENY_WRITE: u32 = 2;
    /// Deny others to read and write.
    pub const DENY_BOTH: u32 = 3;
}

/// Flags in the result of OPEN (RFC 8881 §18.16).
pub mod result_flags {
    /// The server supports POSIX locks.
    pub const LOCKTYPE_POSIX: u32 = 4;
    /// An unlinked file stays accessible while it is open.
    pub const PRESERVE_UNLINKED: u32 = 8;
    /// The server sends CB_NOTIFY_LOCK.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_struct! {
    /// Arguments of CLOSE.
    pub struct CloseArgs {
        seqid: u32,
        open_stateid: StateId,
    }
}

xdr_struct! {
    /// Arguments of OPEN.
    pub struct OpenArgs<'a> {
        seqid: u32,
        share_access: u32,
        share_deny: u32,
        owner: Owner<'a>,
        openhow: OpenHow<'a>,
        claim: Claim<'a>,
    }
}

xdr_union! {
    /// Whether the file is created, `openflag4`.
    #[expect(clippy::large_enum_variant, reason = "the value is not stored; it has no allocation")]
    pub enum OpenHow<'a> {
        0 => NoCreate,
        1 => Create(CreateHow<'a>),
    }
}

xdr_union! {
    /// How a file is created, `createhow4`.
    pub enum CreateHow<'a> {
        0 => Unchecked(Attributes<'a>),
        1 => Guarded(Attributes<'a>),
        2 => Exclusive(Verifier),
        3 => Exclusive41(ExclusiveCreate<'a>),
    }
}

xdr_struct! {
    /// Verifier and attributes of an exclusive creation, `creatverfattr`.
    pub struct ExclusiveCreate<'a> {
        verf: Verifier,
        attrs: Attributes<'a>,
    }
}

xdr_union! {
    /// What is opened, `open_claim4`.
    pub enum Claim<'a> {
        0 => Null(Name<'a>),
        1 => Previous(u32),
        2 => DelegateCur(DelegationClaim<'a>),
        3 => DelegatePrev(Name<'a>),
        4 => FileHandle,
        5 => DelegateCurFh(StateId),
        6 => DelegatePrevFh,
    }
}

xdr_struct! {
    /// A file that was opened under a delegation, `open_claim_delegate_cur4`.
    pub struct DelegationClaim<'a> {
        delegate_stateid: StateId,
        file: Name<'a>,
    }
}

xdr_struct! {
    /// Result of OPEN.
    pub struct OpenOk<'a> {
        stateid: StateId,
        cinfo: ChangeInfo,
        rflags: u32,
        attrset: Bitmap,
        delegation: Delegation<'a>,
    }
}

xdr_union! {
    /// The delegation of an opened file, `open_delegation4`.
    pub enum Delegation<'a> {
        0 => None,
        1 => Read(ReadDelegation<'a>),
        2 => Write(WriteDelegation<'a>),
        3 => NoneExt(NoDelegation),
    }
}

xdr_struct! {
    /// A read delegation, `open_read_delegation4`.
    pub struct ReadDelegation<'a> {
        stateid: StateId,
        recall: bool,
        permissions: DelegationAce<'a>,
    }
}

xdr_struct! {
    /// A write delegation, `open_write_delegation4`.
    pub struct WriteDelegation<'a> {
        stateid: StateId,
        recall: bool,
        space_limit: SpaceLimit,
        permissions: DelegationAce<'a>,
    }
}

xdr_union! {
    /// The growth that a write delegation permits, `nfs_space_limit4`.
    pub enum SpaceLimit {
        1 => FileSize(u64),
        2 => Blocks(SpaceBlocks),
    }
}

xdr_struct! {
    /// Limit in blocks, `nfs_modified_limit4`.
    pub struct SpaceBlocks {
        num_blocks: u32,
        bytes_per_block: u32,
    }
}

xdr_struct! {
    /// An access control entry, `nfsace4`.
    pub struct DelegationAce<'a> {
        acetype: u32,
        flag: u32,
        access_mask: u32,
        who: Principal<'a>,
    }
}

xdr_union! {
    /// Why there is no delegation, `open_none_delegation4`.
    pub enum NoDelegation {
        1 => Contention(bool),
        2 => Resource(bool),
        _ => Other,
    }
}

xdr_struct! {
    /// Arguments of OPEN_DOWNGRADE.
    pub struct DowngradeArgs {
        open_stateid: StateId,
        seqid: u32,
        share_access: u32,
        share_deny: u32,
    }
}
