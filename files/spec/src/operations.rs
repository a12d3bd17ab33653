//! The operations of COMPOUND: one table of their numbers, arguments and results.
//!
//! The table has every operation that Linux's client uses on 4.1 without delegations of
//! directories and layouts, and of 4.2 space management, server-side copies and extended
//! attributes. Other numbers are kept as [`Operation::Unsupported`]; a server answers them with
//! `NFS4ERR_NOTSUPP` or `NFS4ERR_OP_ILLEGAL` ([`OperationNumber::unsupported_status`]) and does not
//! need their arguments, because the COMPOUND ends there.

mod files;
mod locks;
mod open;
mod outcome;
mod sessions;
mod version_2;

pub use files::{
    AccessArgs, AccessOk, CommitArgs, CreateArgs, CreateOk, ReadArgs, ReadOk, RenameArgs, RenameOk,
    SetattrArgs, SetattrFailure, SetattrOk, WriteArgs, WriteOk,
};
pub use locks::{
    ExistingLockOwner, LockArgs, LockDenied, LockFailure, LockTestArgs, Locker, NewLockOwner,
    UnlockArgs,
};
pub use open::{
    Claim, CloseArgs, CreateHow, Delegation, DelegationAce, DelegationClaim, DowngradeArgs,
    ExclusiveCreate, NoDelegation, OpenArgs, OpenHow, OpenOk, ReadDelegation, SpaceBlocks,
    SpaceLimit, WriteDelegation, result_flags, share,
};
pub use outcome::{Failure, Outcome};
pub use sessions::{
    BackchannelArgs, BindArgs, CallbackGss, CallbackSecurity, ChannelAttributes, ClientOwner,
    CreateSessionArgs, CreateSessionOk, ExchangeIdArgs, ExchangeIdOk, GssInfo, Implementation,
    ProtectionArgs, ProtectionOk, ProtectionOperations, Security, SequenceArgs, SequenceOk,
    ServerOwner, SsvArgs, SsvOk, exchange_flags, session_flags, status_flags,
};
pub use version_2::{
    CloneArgs, CopyArgs, CopyFailure, CopyOk, CopyRequirements, GetXattrOk, ListXattrsArgs,
    ListXattrsOk, NetworkAddress, NetworkLocation, RangeArgs, SeekArgs, SeekOk, SetXattrArgs,
    SetXattrOption, WriteResponse, seek_what,
};

use crate::attributes::Attributes;
use crate::bitmap::Bitmap;
use crate::limits::{SHORT_LIST_MAX, STATE_IDS_MAX};
use crate::name::{Name, XattrName};
use crate::readdir::{ReaddirArgs, ReaddirOk};
use crate::status::Status;
use crate::types::{ChangeInfo, FileHandle, LinkText, SessionId, StateId};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, List, Xdr};

open_enum! {
    /// The number of an operation (`nfs_opnum4`).
    pub struct OperationNumber {
        ACCESS = 3, "ACCESS";
        CLOSE = 4, "CLOSE";
        COMMIT = 5, "COMMIT";
        CREATE = 6, "CREATE";
        DELEGPURGE = 7, "DELEGPURGE";
        DELEGRETURN = 8, "DELEGRETURN";
        GETATTR = 9, "GETATTR";
        GETFH = 10, "GETFH";
        LINK = 11, "LINK";
        LOCK = 12, "LOCK";
        LOCKT = 13, "LOCKT";
        LOCKU = 14, "LOCKU";
        LOOKUP = 15, "LOOKUP";
        LOOKUPP = 16, "LOOKUPP";
        NVERIFY = 17, "NVERIFY";
        OPEN = 18, "OPEN";
        OPENATTR = 19, "OPENATTR";
        OPEN_CONFIRM = 20, "OPEN_CONFIRM";
        OPEN_DOWNGRADE = 21, "OPEN_DOWNGRADE";
        PUTFH = 22, "PUTFH";
        PUTPUBFH = 23, "PUTPUBFH";
        PUTROOTFH = 24, "PUTROOTFH";
        READ = 25, "READ";
        READDIR = 26, "READDIR";
        READLINK = 27, "READLINK";
        REMOVE = 28, "REMOVE";
        RENAME = 29, "RENAME";
        RENEW = 30, "RENEW";
        RESTOREFH = 31, "RESTOREFH";
        SAVEFH = 32, "SAVEFH";
        SECINFO = 33, "SECINFO";
        SETATTR = 34, "SETATTR";
        SETCLIENTID = 35, "SETCLIENTID";
        SETCLIENTID_CONFIRM = 36, "SETCLIENTID_CONFIRM";
        VERIFY = 37, "VERIFY";
        WRITE = 38, "WRITE";
        RELEASE_LOCKOWNER = 39, "RELEASE_LOCKOWNER";
        BACKCHANNEL_CTL = 40, "BACKCHANNEL_CTL";
        BIND_CONN_TO_SESSION = 41, "BIND_CONN_TO_SESSION";
        EXCHANGE_ID = 42, "EXCHANGE_ID";
        CREATE_SESSION = 43, "CREATE_SESSION";
        DESTROY_SESSION = 44, "DESTROY_SESSION";
        FREE_STATEID = 45, "FREE_STATEID";
        GET_DIR_DELEGATION = 46, "GET_DIR_DELEGATION";
        GETDEVICEINFO = 47, "GETDEVICEINFO";
        GETDEVICELIST = 48, "GETDEVICELIST";
        LAYOUTCOMMIT = 49, "LAYOUTCOMMIT";
        LAYOUTGET = 50, "LAYOUTGET";
        LAYOUTRETURN = 51, "LAYOUTRETURN";
        SECINFO_NO_NAME = 52, "SECINFO_NO_NAME";
        SEQUENCE = 53, "SEQUENCE";
        SET_SSV = 54, "SET_SSV";
        TEST_STATEID = 55, "TEST_STATEID";
        WANT_DELEGATION = 56, "WANT_DELEGATION";
        DESTROY_CLIENTID = 57, "DESTROY_CLIENTID";
        RECLAIM_COMPLETE = 58, "RECLAIM_COMPLETE";
        ALLOCATE = 59, "ALLOCATE";
        COPY = 60, "COPY";
        COPY_NOTIFY = 61, "COPY_NOTIFY";
        DEALLOCATE = 62, "DEALLOCATE";
        IO_ADVISE = 63, "IO_ADVISE";
        LAYOUTERROR = 64, "LAYOUTERROR";
        LAYOUTSTATS = 65, "LAYOUTSTATS";
        OFFLOAD_CANCEL = 66, "OFFLOAD_CANCEL";
        OFFLOAD_STATUS = 67, "OFFLOAD_STATUS";
        READ_PLUS = 68, "READ_PLUS";
        SEEK = 69, "SEEK";
        WRITE_SAME = 70, "WRITE_SAME";
        CLONE = 71, "CLONE";
        GETXATTR = 72, "GETXATTR";
        SETXATTR = 73, "SETXATTR";
        LISTXATTRS = 74, "LISTXATTRS";
        REMOVEXATTR = 75, "REMOVEXATTR";
        ILLEGAL = 10044, "ILLEGAL";
    }
}

impl OperationNumber {
    /// The last operation of a minor version; `None` for versions that this crate does not know.
    #[must_use]
    pub const fn last_of(minor_version: u32) -> Option<Self> {
        match minor_version {
            1 => Some(Self::RECLAIM_COMPLETE),
            // RFC 8276 adds its operations to minor version 2.
            2 => Some(Self::REMOVEXATTR),
            _ => None,
        }
    }

    /// Whether the number belongs to an operation of a minor version.
    #[must_use]
    pub fn is_in(self, minor_version: u32) -> bool {
        let last = Self::last_of(minor_version);
        self >= Self::ACCESS && last.is_some_and(|last| self <= last)
    }

    /// Number and status of the result of an operation that a server does not support
    /// (RFC 8881 §15.1.3.4, §15.1.1.5).
    #[must_use]
    pub fn unsupported_status(self, minor_version: u32) -> (Self, Status) {
        match self.is_in(minor_version) {
            true => (self, Status::NOTSUPP),
            false => (Self::ILLEGAL, Status::OP_ILLEGAL),
        }
    }
}

macro_rules! operations {
    ($($variant:ident $number:ident ($args:ty) -> $outcome:ty;)*) => {
        /// An operation with its arguments (`nfs_argop4`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the variants are the operations of the table")]
        pub enum Operation<'a> {
            $($variant($args),)*
            Unsupported(OperationNumber),
        }

        impl<'a> Operation<'a> {
            /// Its number.
            #[must_use]
            pub const fn number(&self) -> OperationNumber {
                match self {
                    $(Self::$variant(_) => OperationNumber::$number,)*
                    Self::Unsupported(number) => *number,
                }
            }
        }

        impl<'a> Xdr<'a> for Operation<'a> {
            fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                let number = OperationNumber::decode(from)?;
                match number {
                    $(
                        OperationNumber::$number => {
                            Xdr::decode(from).map(Self::$variant)
                        }
                    )*
                    number => Ok(Self::Unsupported(number)),
                }
            }

            fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
                self.number().encode(to)?;
                match self {
                    $(Self::$variant(args) => args.encode(to),)*
                    Self::Unsupported(_) => Ok(()),
                }
            }
        }

        /// The result of an operation (`nfs_resop4`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the variants are the operations of the table")]
        #[expect(clippy::large_enum_variant, reason = "the value is encoded where it is made")]
        pub enum OperationResult<'a> {
            $($variant($outcome),)*
            Unsupported(OperationNumber, Status),
        }

        impl<'a> OperationResult<'a> {
            /// The number of the operation.
            #[must_use]
            pub const fn number(&self) -> OperationNumber {
                match self {
                    $(Self::$variant(_) => OperationNumber::$number,)*
                    Self::Unsupported(number, _) => *number,
                }
            }

            /// Its status.
            #[must_use]
            pub fn status(&self) -> Status {
                match self {
                    $(Self::$variant(outcome) => outcome.status(),)*
                    Self::Unsupported(_, status) => *status,
                }
            }

            /// The result of an operation that failed without further information.
            #[must_use]
            pub fn failed(number: OperationNumber, status: Status) -> Self {
                match number {
                    $(OperationNumber::$number => Self::$variant(Outcome::failed(status)),)*
                    number => Self::Unsupported(number, status),
                }
            }
        }

        impl<'a> Xdr<'a> for OperationResult<'a> {
            fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                let number = OperationNumber::decode(from)?;
                match number {
                    $(
                        OperationNumber::$number => {
                            Xdr::decode(from).map(Self::$variant)
                        }
                    )*
                    // The body of an unknown operation that succeeded is unknown.
                    number => match Status::decode(from)? {
                        Status::OK => Err(DecodeError::Discriminant),
                        status => Ok(Self::Unsupported(number, status)),
                    },
                }
            }

            fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
                self.number().encode(to)?;
                match self {
                    $(Self::$variant(outcome) => outcome.encode(to),)*
                    Self::Unsupported(_, Status::OK) => Err(EncodeError::Value),
                    Self::Unsupported(_, status) => status.encode(to),
                }
            }
        }

        /// Every operation of the table, with its arguments and results for the tests.
        #[cfg(test)]
        pub(crate) const SAMPLES: &[(
            OperationNumber,
            fn(&mut crate::arbitrary::Source<'_>) -> Operation<'static>,
            fn(&mut crate::arbitrary::Source<'_>) -> OperationResult<'static>,
        )] = &[$((
            OperationNumber::$number,
            |from| Operation::$variant(crate::arbitrary::Arbitrary::arbitrary(from)),
            |from| OperationResult::$variant(crate::arbitrary::Arbitrary::arbitrary(from)),
        ),)*];
    };
}

operations! {
    Access ACCESS(AccessArgs) -> Outcome<AccessOk>;
    Close CLOSE(CloseArgs) -> Outcome<StateId>;
    Commit COMMIT(CommitArgs) -> Outcome<[u8; 8]>;
    Create CREATE(CreateArgs<'a>) -> Outcome<CreateOk>;
    DelegPurge DELEGPURGE(u64) -> Outcome<()>;
    DelegReturn DELEGRETURN(StateId) -> Outcome<()>;
    GetAttr GETATTR(Bitmap) -> Outcome<Attributes<'a>>;
    GetFh GETFH(()) -> Outcome<FileHandle<'a>>;
    Link LINK(Name<'a>) -> Outcome<ChangeInfo>;
    Lock LOCK(LockArgs<'a>) -> Outcome<StateId, LockFailure<'a>>;
    LockT LOCKT(LockTestArgs<'a>) -> Outcome<(), LockFailure<'a>>;
    LockU LOCKU(UnlockArgs) -> Outcome<StateId>;
    Lookup LOOKUP(Name<'a>) -> Outcome<()>;
    LookupP LOOKUPP(()) -> Outcome<()>;
    NVerify NVERIFY(Attributes<'a>) -> Outcome<()>;
    Open OPEN(OpenArgs<'a>) -> Outcome<OpenOk<'a>>;
    OpenAttr OPENATTR(bool) -> Outcome<()>;
    OpenDowngrade OPEN_DOWNGRADE(DowngradeArgs) -> Outcome<StateId>;
    PutFh PUTFH(FileHandle<'a>) -> Outcome<()>;
    PutPubFh PUTPUBFH(()) -> Outcome<()>;
    PutRootFh PUTROOTFH(()) -> Outcome<()>;
    Read READ(ReadArgs) -> Outcome<ReadOk<'a>>;
    ReadDir READDIR(ReaddirArgs) -> Outcome<ReaddirOk<'a>>;
    ReadLink READLINK(()) -> Outcome<LinkText<'a>>;
    Remove REMOVE(Name<'a>) -> Outcome<ChangeInfo>;
    Rename RENAME(RenameArgs<'a>) -> Outcome<RenameOk>;
    RestoreFh RESTOREFH(()) -> Outcome<()>;
    SaveFh SAVEFH(()) -> Outcome<()>;
    SecInfo SECINFO(Name<'a>) -> Outcome<List<'a, Security<'a>, SHORT_LIST_MAX>>;
    SetAttr SETATTR(SetattrArgs<'a>) -> Outcome<SetattrOk, SetattrFailure>;
    Verify VERIFY(Attributes<'a>) -> Outcome<()>;
    Write WRITE(WriteArgs<'a>) -> Outcome<WriteOk>;
    BackchannelCtl BACKCHANNEL_CTL(BackchannelArgs<'a>) -> Outcome<()>;
    BindConnToSession BIND_CONN_TO_SESSION(BindArgs) -> Outcome<BindArgs>;
    ExchangeId EXCHANGE_ID(ExchangeIdArgs<'a>) -> Outcome<ExchangeIdOk<'a>>;
    CreateSession CREATE_SESSION(CreateSessionArgs<'a>) -> Outcome<CreateSessionOk>;
    DestroySession DESTROY_SESSION(SessionId) -> Outcome<()>;
    FreeStateId FREE_STATEID(StateId) -> Outcome<()>;
    SecInfoNoName SECINFO_NO_NAME(u32) -> Outcome<List<'a, Security<'a>, SHORT_LIST_MAX>>;
    Sequence SEQUENCE(SequenceArgs) -> Outcome<SequenceOk>;
    TestStateId TEST_STATEID(List<'a, StateId, STATE_IDS_MAX>)
        -> Outcome<List<'a, Status, STATE_IDS_MAX>>;
    DestroyClientId DESTROY_CLIENTID(u64) -> Outcome<()>;
    ReclaimComplete RECLAIM_COMPLETE(bool) -> Outcome<()>;
    Allocate ALLOCATE(RangeArgs) -> Outcome<()>;
    Copy COPY(CopyArgs<'a>) -> Outcome<CopyOk, CopyFailure>;
    Deallocate DEALLOCATE(RangeArgs) -> Outcome<()>;
    Seek SEEK(SeekArgs) -> Outcome<SeekOk>;
    Clone CLONE(CloneArgs) -> Outcome<()>;
    GetXattr GETXATTR(XattrName<'a>) -> Outcome<GetXattrOk<'a>>;
    SetXattr SETXATTR(SetXattrArgs<'a>) -> Outcome<ChangeInfo>;
    ListXattrs LISTXATTRS(ListXattrsArgs) -> Outcome<ListXattrsOk<'a>>;
    RemoveXattr REMOVEXATTR(XattrName<'a>) -> Outcome<ChangeInfo>;
}

#[cfg(test)]
mod tests;
