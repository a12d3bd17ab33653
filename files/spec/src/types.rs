//! Basic types of the protocol (RFC 8881 §3.2 and §3.3).

use crate::limits::{
    FILE_HANDLE_BYTES_MAX, LINK_TEXT_BYTES_MAX, OPAQUE_BYTES_MAX, PRINCIPAL_BYTES_MAX,
};
use crate::xdr::{Opaque, Text};

/// A file handle.
pub type FileHandle<'a> = Opaque<'a, FILE_HANDLE_BYTES_MAX>;
/// The target of a symbolic link. It is not checked: the server stores what the client sends.
pub type LinkText<'a> = Opaque<'a, LINK_TEXT_BYTES_MAX>;
/// An opaque identifier of a client, server or owner.
pub type Identifier<'a> = Opaque<'a, OPAQUE_BYTES_MAX>;
/// A user or group as text, or as a number in decimal digits.
pub type Principal<'a> = Text<'a, PRINCIPAL_BYTES_MAX>;
/// A verifier, compared for equality only.
pub type Verifier = [u8; 8];
/// The identifier of a session.
pub type SessionId = [u8; 16];

xdr_struct! {
    /// A state identifier, `stateid4`.
    pub struct StateId {
        seqid: u32,
        other: [u8; 12],
    }
}

impl StateId {
    /// The anonymous state identifier (RFC 8881 §8.2.3).
    pub const ANONYMOUS: Self = Self::special(0, 0);
    /// The READ bypass state identifier (RFC 8881 §8.2.3).
    pub const BYPASS: Self = Self::special(u32::MAX, 0xff);
    /// The current state identifier (RFC 8881 §8.2.3).
    pub const CURRENT: Self = Self::special(1, 0);
    /// The invalid state identifier (RFC 8881 §8.2.3).
    pub const INVALID: Self = Self::special(u32::MAX, 0);

    const fn special(seqid: u32, byte: u8) -> Self {
        Self {
            seqid,
            other: [byte; 12],
        }
    }
}

/// Nanoseconds of a second.
pub const NANOSECONDS: u32 = 1_000_000_000;

xdr_struct! {
    /// A time since 1970, `nfstime4`.
    pub struct Time {
        seconds: i64,
        nseconds: u32,
    }
}

impl Time {
    /// Whether the nanoseconds are less than a second; otherwise an operation fails with
    /// `NFS4ERR_INVAL` (RFC 8881 §3.3.1).
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.nseconds < NANOSECONDS
    }
}

xdr_union! {
    /// A time to set, `settime4`.
    pub enum SetTime {
        0 => ServerTime,
        1 => ClientTime(Time),
    }
}

xdr_struct! {
    /// The identifier of a file system, `fsid4`.
    pub struct FileSystemId {
        major: u64,
        minor: u64,
    }
}

xdr_struct! {
    /// Major and minor number of a device, `specdata4`.
    pub struct DeviceNumber {
        major: u32,
        minor: u32,
    }
}

xdr_struct! {
    /// Change attributes of a directory around an operation, `change_info4`.
    pub struct ChangeInfo {
        atomic: bool,
        before: u64,
        after: u64,
    }
}

xdr_struct! {
    /// The mode bits to set and the mask of those that are set, `mode_masked4`.
    pub struct ModeMasked {
        value_to_set: u32,
        mask_bits: u32,
    }
}

xdr_struct! {
    /// Mode and umask of a new object, `mode_umask4` (RFC 8275).
    pub struct ModeUmask {
        mode: u32,
        umask: u32,
    }
}

xdr_struct! {
    /// A client and one of its owners: `open_owner4`, `lock_owner4`.
    pub struct Owner<'a> {
        clientid: u64,
        owner: Identifier<'a>,
    }
}

open_enum! {
    /// The type of a file system object, `nfs_ftype4`.
    pub struct FileType {
        REGULAR = 1, "regular file";
        DIRECTORY = 2, "directory";
        BLOCK = 3, "block device";
        CHARACTER = 4, "character device";
        LINK = 5, "symbolic link";
        SOCKET = 6, "socket";
        FIFO = 7, "FIFO";
        ATTRIBUTE_DIRECTORY = 8, "named attribute directory";
        NAMED_ATTRIBUTE = 9, "named attribute";
    }
}

xdr_union! {
    /// The type of an object to create with what it requires, `createtype4`.
    pub enum CreateType<'a> {
        5 => Link(LinkText<'a>),
        3 => Block(DeviceNumber),
        4 => Character(DeviceNumber),
        6 => Socket,
        7 => Fifo,
        2 => Directory,
        _ => Other,
    }
}

open_enum! {
    /// How stable written data is, `stable_how4`.
    pub struct Stable {
        UNSTABLE = 0, "UNSTABLE4";
        DATA_SYNC = 1, "DATA_SYNC4";
        FILE_SYNC = 2, "FILE_SYNC4";
    }
}

open_enum! {
    /// The kind of a byte-range lock, `nfs_lock_type4`.
    pub struct LockType {
        READ = 1, "READ_LT";
        WRITE = 2, "WRITE_LT";
        READ_WAIT = 3, "READW_LT";
        WRITE_WAIT = 4, "WRITEW_LT";
    }
}

/// Permissions of ACCESS (RFC 8881 §18.1, RFC 8276).
pub mod access {
    /// Read data of a file or read a directory.
    pub const READ: u32 = 0x1;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x2;
    /// Rewrite data of a file or modify entries of a directory.
    pub const MODIFY: u32 = 0x4;
    /// Write new data or add entries.
    pub const EXTEND: u32 = 0x8;
    /// Remove an entry of a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// Read extended attributes.
    pub const XATTR_READ: u32 = 0x40;
    /// Write extended attributes.
    pub const XATTR_WRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XATTR_LIST: u32 = 0x100;
}
