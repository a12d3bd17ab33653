//! Attributes of objects: those that clients read, and those that they set (RFC 8881 §5).

use files_spec::attributes::{Attributes, SETTABLE, number};
use files_spec::limits::{NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use files_spec::types::{DeviceNumber, FileSystemId, FileType, SetTime, Time};
use files_spec::xdr::{Opaque, Text};
use files_spec::{Bitmap, Status};
use files_store::limits::{BLOCK_BYTES, FILE_BYTES_MAX, LINKS_MAX};
use files_store::{Kind, SetAttributes, ShareUse, VolumeUse};

use crate::limits::LEASE_MS;
use crate::place::{HandleBytes, Place, Share};
use crate::refusal::Refusal;
use crate::server::Server;

/// The bits of a mode that clients set.
const MODE_MASK: u32 = 0o7777;
/// The mode of an object whose creator states none.
const DEFAULT_MODE: u32 = 0o600;

/// Attributes that this server does not have.
const UNSUPPORTED: Bitmap = Bitmap::of(&[
    number::ARCHIVE,
    number::HIDDEN,
    number::SYSTEM,
    number::TIME_BACKUP,
    number::FS_CHARSET_CAP,
    number::SPACE_FREED,
]);

/// Attributes of minor version 2.
const MINOR_VERSION_2: Bitmap = Bitmap::of(&[
    number::CLONE_BLKSIZE,
    number::SPACE_FREED,
    number::CHANGE_ATTR_TYPE,
    number::MODE_UMASK,
    number::XATTR_SUPPORT,
]);

/// Attributes that are only set.
const WRITE_ONLY: Bitmap = Bitmap::of(&[
    number::TIME_ACCESS_SET,
    number::TIME_MODIFY_SET,
    number::MODE_SET_MASKED,
    number::MODE_UMASK,
]);

/// The attributes of a server with this minor version.
pub(crate) fn supported(minor_version: u32) -> Bitmap {
    let all = files_spec::attributes::ALL.difference(UNSUPPORTED);
    match minor_version {
        1 => all.difference(MINOR_VERSION_2),
        _ => all,
    }
}

/// The attributes that clients of a minor version can set. The time of creation is only read.
fn settable(minor_version: u32) -> Bitmap {
    let read_only = Bitmap::of(&[number::TIME_CREATE]);
    supported(minor_version)
        .intersection(SETTABLE)
        .difference(read_only)
}

/// Attributes that an exclusive creation can set: its verifier occupies the times
/// (RFC 8881 §5.8.1.14).
pub(crate) fn settable_by_exclusive_creation(minor_version: u32) -> Bitmap {
    let times = Bitmap::of(&[number::TIME_ACCESS_SET, number::TIME_MODIFY_SET]);
    settable(minor_version).difference(times)
}

/// The text of a user or group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digits {
    bytes: [u8; 10],
    length: usize,
}

impl Digits {
    pub(crate) fn of(number: u32) -> Self {
        let mut digits = Self::default();
        let mut rest = number;
        loop {
            digits.bytes[digits.length] = b'0' + (rest % 10) as u8;
            digits.length += 1;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        digits.bytes[..digits.length].reverse();
        digits
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

/// The number of a user or group. Clients send numbers unless they map names.
fn number_of(text: &str) -> Result<u32, Status> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse().ok()).flatten();
    number.ok_or(Status::BADOWNER)
}

/// Memory that encoded attributes refer to.
#[derive(Debug)]
pub(crate) struct AttributeText {
    handle: HandleBytes,
    owner: Digits,
    group: Digits,
}

fn time(time: files_store::Time) -> Time {
    Time {
        seconds: time.seconds,
        nseconds: time.nanoseconds,
    }
}

fn file_type(kind: Kind) -> (FileType, DeviceNumber) {
    let device = |it: files_store::Device| DeviceNumber {
        major: it.major,
        minor: it.minor,
    };
    let none = DeviceNumber { major: 0, minor: 0 };
    match kind {
        Kind::File => (FileType::REGULAR, none),
        Kind::Directory => (FileType::DIRECTORY, none),
        Kind::Link => (FileType::LINK, none),
        Kind::Block(it) => (FileType::BLOCK, device(it)),
        Kind::Character(it) => (FileType::CHARACTER, device(it)),
        Kind::Socket => (FileType::SOCKET, none),
        Kind::Fifo => (FileType::FIFO, none),
    }
}

/// How the change attribute changes, `change_attr_type4` of RFC 7863.
mod change_type {
    /// It only grows.
    pub(super) const MONOTONIC_INCR: u32 = 0;
    /// It differs after each change.
    pub(super) const UNDEFINED: u32 = 4;
}

/// Space and objects of a file system: those of its volume, within the quotas of its share.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// Bytes for data, used ones included.
    total: u64,
    /// Bytes that can be allocated.
    free: u64,
    /// Bytes that are allocated.
    used: u64,
    /// Objects.
    files: u64,
    /// Objects that can be created.
    files_free: u64,
}

impl Room {
    fn of(volume: VolumeUse, share: ShareUse) -> Self {
        // An estimate: what a small file takes of the memory for metadata.
        const FILE_MEMORY_BYTES: u64 = 1024;
        let memory = volume.memory_bytes_max.saturating_sub(volume.memory_bytes);
        let (used, quota) = (
            share.blocks * BLOCK_BYTES,
            share.blocks_max.saturating_mul(BLOCK_BYTES),
        );
        let files_free = share.inodes_max.saturating_sub(share.inodes);
        Self {
            total: volume.data_bytes.min(quota),
            free: volume.free_bytes.min(quota.saturating_sub(used)),
            used,
            files: match share.inodes_max {
                u64::MAX => volume.inodes,
                _ => share.inodes,
            },
            files_free: files_free.min(memory / FILE_MEMORY_BYTES),
        }
    }
}

/// Attributes of a file system.
fn of_file_system<'t>(room: Room, minor_version: u32) -> Attributes<'t> {
    Attributes {
        supported_attrs: Some(supported(minor_version)),
        fh_expire_type: Some(0),
        link_support: Some(true),
        symlink_support: Some(true),
        named_attr: Some(false),
        unique_handles: Some(false),
        lease_time: Some((LEASE_MS / 1000) as u32),
        rdattr_error: Some(Status::OK),
        aclsupport: Some(0),
        cansettime: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        files_avail: Some(room.files_free),
        files_free: Some(room.files_free),
        files_total: Some(room.files + room.files_free),
        homogeneous: Some(true),
        maxfilesize: Some(FILE_BYTES_MAX),
        maxlink: Some(LINKS_MAX),
        maxname: Some(NAME_BYTES_MAX as u32),
        maxread: Some(PAYLOAD_BYTES_MAX as u64),
        maxwrite: Some(PAYLOAD_BYTES_MAX as u64),
        no_trunc: Some(true),
        quota_avail_hard: Some(room.free),
        quota_avail_soft: Some(room.free),
        quota_used: Some(room.used),
        space_avail: Some(room.free),
        space_free: Some(room.free),
        space_total: Some(room.total),
        time_delta: Some(Time {
            seconds: 0,
            nseconds: 1,
        }),
        suppattr_exclcreat: Some(settable_by_exclusive_creation(minor_version)),
        clone_blksize: Some(BLOCK_BYTES as u32),
        xattr_support: Some(true),
        ..Attributes::default()
    }
}

/// The file system of a share; that of the root has number 0.
fn file_system_id(share: &Share, volume: [u8; 16]) -> FileSystemId {
    let (begin, _) = volume.split_at(8);
    FileSystemId {
        major: u64::from(share.number.0) + 1,
        minor: begin.try_into().map_or(0, u64::from_be_bytes),
    }
}

/// The number that the directory of a share has as an entry of the root.
fn number_in_root(share: usize) -> u64 {
    share as u64 + 2
}

/// The number of the root.
const ROOT_NUMBER: u64 = 1;

impl Server {
    /// The file handle of an object.
    pub(crate) fn handle(&self, place: Place) -> Result<HandleBytes, Refusal> {
        let Place::Object { share, inode } = place else {
            return Ok(HandleBytes::ROOT);
        };
        let share = &self.shares[share];
        let attributes = self.volumes[share.volume.0].attributes(inode)?;
        Ok(HandleBytes::object(share.number, &attributes.handle))
    }

    /// What the attributes of an object refer to.
    pub(crate) fn attribute_text(&self, place: Place) -> Result<AttributeText, Refusal> {
        let (owner, group) = match place {
            Place::Root => (0, 0),
            Place::Object { .. } => {
                let (_, attributes) = self.object(place)?;
                (attributes.uid, attributes.gid)
            }
        };
        Ok(AttributeText {
            handle: self.handle(place)?,
            owner: Digits::of(owner),
            group: Digits::of(group),
        })
    }

    /// The attributes of an object that are in `chosen`.
    ///
    /// # Errors
    /// `NFS4ERR_INVAL` if one of them can only be set (RFC 8881 §18.7).
    pub(crate) fn attributes_of<'t>(
        &self,
        place: Place,
        chosen: &Bitmap,
        minor_version: u32,
        text: &'t AttributeText,
    ) -> Result<Attributes<'t>, Refusal> {
        if !chosen.intersection(WRITE_ONLY).is_empty() {
            return Err(Status::INVAL.into());
        }
        let chosen = chosen.intersection(supported(minor_version));
        let all = match place {
            Place::Root => self.root_attributes(minor_version, text),
            Place::Object { .. } => self.object_attributes(place, minor_version, text)?,
        };
        Ok(all.only(&chosen))
    }

    /// The change attribute of the root: changes with the shares, also across restarts.
    pub(crate) fn root_change(&self) -> u64 {
        let files_store::Time {
            seconds,
            nanoseconds,
        } = self.shared;
        let seconds = u64::try_from(seconds).unwrap_or_default();
        seconds.wrapping_mul(1_000_000_000) + u64::from(nanoseconds)
    }

    fn root_attributes<'t>(&self, minor_version: u32, text: &'t AttributeText) -> Attributes<'t> {
        let (started, shared) = (time(self.started), time(self.shared));
        Attributes {
            file_type: Some(FileType::DIRECTORY),
            change: Some(self.root_change()),
            size: Some(0),
            fsid: Some(FileSystemId { major: 0, minor: 0 }),
            filehandle: Some(Opaque(text.handle.as_bytes())),
            fileid: Some(ROOT_NUMBER),
            mode: Some(0o555),
            numlinks: Some(2 + self.shares.len() as u32),
            owner: Some(Text(text.owner.as_str())),
            owner_group: Some(Text(text.group.as_str())),
            rawdev: Some(DeviceNumber { major: 0, minor: 0 }),
            space_used: Some(0),
            time_access: Some(started),
            time_create: Some(started),
            time_metadata: Some(shared),
            time_modify: Some(shared),
            mounted_on_fileid: Some(ROOT_NUMBER),
            change_attr_type: Some(change_type::MONOTONIC_INCR),
            ..of_file_system(Room::default(), minor_version)
        }
    }

    fn object_attributes<'t>(
        &self,
        place: Place,
        minor_version: u32,
        text: &'t AttributeText,
    ) -> Result<Attributes<'t>, Refusal> {
        let (found, it) = self.object(place)?;
        let share = &self.shares[found.share];
        let volume = &self.volumes[share.volume.0];
        let (file_type, rawdev) = file_type(it.kind);
        let is_mounted = found.inode == share.directory;
        let mounted_on = match is_mounted {
            true => number_in_root(found.share),
            false => found.inode.0,
        };
        Ok(Attributes {
            file_type: Some(file_type),
            change: Some(it.change),
            size: Some(it.size),
            fsid: Some(file_system_id(share, volume.uuid().0)),
            filehandle: Some(Opaque(text.handle.as_bytes())),
            fileid: Some(found.inode.0),
            mode: Some(it.mode),
            numlinks: Some(it.links),
            owner: Some(Text(text.owner.as_str())),
            owner_group: Some(Text(text.group.as_str())),
            rawdev: Some(rawdev),
            space_used: Some(it.used),
            time_access: Some(time(it.accessed)),
            time_create: Some(time(it.created)),
            time_metadata: Some(time(it.changed)),
            time_modify: Some(time(it.modified)),
            mounted_on_fileid: Some(mounted_on),
            change_attr_type: Some(match volume.is_volatile() {
                true => change_type::MONOTONIC_INCR,
                // What a client has seen of changes that a restart has lost is not repeated, but
                // the attribute goes back.
                false => change_type::UNDEFINED,
            }),
            ..of_file_system(
                Room::of(volume.usage(), volume.share_use(share.part)),
                minor_version,
            )
        })
    }
}

/// Checks that modes have only bits that are defined, which is required (attribute `mode` of
/// RFC 8881).
///
/// # Errors
/// `NFS4ERR_INVAL` otherwise.
pub(crate) fn check_modes(args: &Attributes<'_>) -> Result<(), Status> {
    let masked = args.mode_set_masked;
    let masked = masked.map(|it| it.value_to_set | it.mask_bits);
    let with_umask = args.mode_umask.map(|it| it.mode | it.umask);
    let modes = [args.mode, masked, with_umask];
    match modes.iter().flatten().any(|it| it & !MODE_MASK != 0) {
        true => Err(Status::INVAL),
        false => Ok(()),
    }
}

/// Attributes that a request sets, as a volume takes them.
///
/// # Errors
/// `NFS4ERR_ATTRNOTSUPP` for attributes that the server does not have, `NFS4ERR_INVAL` for those that
/// cannot be set (RFC 8881 §5.5) and for invalid values, `NFS4ERR_BADOWNER` for owners that are no
/// numbers.
pub(crate) fn to_set(
    args: &Attributes<'_>,
    old_mode: u32,
    minor_version: u32,
) -> Result<SetAttributes, Status> {
    let numbers = args.numbers();
    if !numbers.difference(supported(minor_version)).is_empty() {
        return Err(Status::ATTRNOTSUPP);
    }
    if !numbers.difference(settable(minor_version)).is_empty() {
        return Err(Status::INVAL);
    }
    check_modes(args)?;
    let masked = args
        .mode_set_masked
        .map(|it| old_mode & !it.mask_bits | it.value_to_set & it.mask_bits);
    let with_umask = args.mode_umask.map(|it| it.mode & !it.umask);
    let modes = [args.mode, masked, with_umask];
    if modes.iter().flatten().count() > 1 {
        return Err(Status::INVAL);
    }
    let set_time = |it: Option<SetTime>| match it {
        None => Ok(None),
        Some(SetTime::ServerTime) => Ok(Some(files_store::SetTime::Now)),
        Some(SetTime::ClientTime(time)) if time.is_valid() => {
            Ok(Some(files_store::SetTime::To(files_store::Time {
                seconds: time.seconds,
                nanoseconds: time.nseconds,
            })))
        }
        Some(SetTime::ClientTime(_)) => Err(Status::INVAL),
    };
    Ok(SetAttributes {
        size: args.size,
        mode: modes.into_iter().flatten().next(),
        uid: args.owner.map(|it| number_of(it.0)).transpose()?,
        gid: args.owner_group.map(|it| number_of(it.0)).transpose()?,
        accessed: set_time(args.time_access_set)?,
        modified: set_time(args.time_modify_set)?,
    })
}

/// The mode of a new object, and what remains to be set.
pub(crate) fn split_mode(mut set: SetAttributes) -> (u32, SetAttributes) {
    let mode = set.mode.take().unwrap_or(DEFAULT_MODE);
    (mode, set)
}

const _: () = assert!(BLOCK_BYTES <= PAYLOAD_BYTES_MAX as u64);

#[cfg(test)]
mod tests {
    use files_spec::types::{ModeMasked, ModeUmask};

    use super::*;

    #[test]
    fn numbers_have_their_digits() {
        for number in [0, 7, 65_534, u32::MAX] {
            assert_eq!(Digits::of(number).as_str(), number.to_string());
            assert_eq!(number_of(&number.to_string()), Ok(number));
        }
        for text in ["root", "-1", "4294967296", "+5", "1 "] {
            assert_eq!(number_of(text), Err(Status::BADOWNER), "{text}");
        }
    }

    #[test]
    fn attributes_that_cannot_be_set_are_refused() {
        let set = |args: &Attributes<'_>| to_set(args, 0o644, 2);
        let readable = Attributes {
            fileid: Some(5),
            ..Attributes::default()
        };
        assert_eq!(set(&readable), Err(Status::INVAL));
        let unsupported = Attributes {
            hidden: Some(true),
            ..Attributes::default()
        };
        assert_eq!(set(&unsupported), Err(Status::ATTRNOTSUPP));
        let umask = Attributes {
            mode_umask: Some(ModeUmask {
                mode: 0o777,
                umask: 0o22,
            }),
            ..Attributes::default()
        };
        assert_eq!(to_set(&umask, 0, 1), Err(Status::ATTRNOTSUPP));
        assert_eq!(set(&umask).map(|it| it.mode), Ok(Some(0o755)));
        let late = Attributes {
            time_modify_set: Some(SetTime::ClientTime(Time {
                seconds: 0,
                nseconds: 1_000_000_000,
            })),
            ..Attributes::default()
        };
        assert_eq!(set(&late), Err(Status::INVAL));
        let masked = Attributes {
            mode_set_masked: Some(ModeMasked {
                value_to_set: 0o4111,
                mask_bits: 0o7100,
            }),
            ..Attributes::default()
        };
        assert_eq!(set(&masked).map(|it| it.mode), Ok(Some(0o4744)));
        let twice = Attributes {
            mode: Some(0),
            ..masked
        };
        assert_eq!(set(&twice), Err(Status::INVAL));
    }
}
