//! Opens a file for a device: finds or creates it, locks it, sets its size, and detects the
//! capabilities of the file system.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, fallocate,
    flock, fstatfs, fsync, ftruncate, ioctl_blksszget, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

use super::direct::make_direct;
use super::notice::{FileNotice, FileSystem};
use super::system::length;
use super::{DirectIo, FileError, FileOptions};
use crate::shape::{block_count, check_block_size};

/// An open file, ready to be served.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) block_count: u64,
    /// Preferred I/O size of the file system in bytes.
    pub(super) preferred_bytes: u32,
    pub(super) direct: bool,
    pub(super) deallocates: bool,
    pub(super) notices: Vec<FileNotice>,
}

pub(super) fn open(options: &FileOptions) -> Result<Opened, FileError> {
    check_shape(options)?;
    let location = FileLocation::of(options)?;
    let (file, created) = find_or_create(options, &location)?;
    lock(&file, options)?;
    let opened = prepare(file, options, &location);
    if opened.is_err() && created {
        // It was created and locked here, so no other process uses it.
        let _ = unlinkat(location.directory(), &location.name, AtFlags::empty());
    }
    opened
}

/// The capabilities of an open file, which an earlier process has detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCapabilities {
    /// Its description bypasses the page cache.
    pub direct: bool,
    /// Its file system deallocates ranges.
    pub deallocates: bool,
}

/// Examines a file that an earlier process has opened, locked and serves. Neither reads nor changes
/// it: an attempt to deallocate would wait for that process's writes.
pub(super) fn adopt(
    options: &FileOptions,
    file: OwnedFd,
    capabilities: FileCapabilities,
) -> Result<Opened, FileError> {
    check_shape(options)?;
    let path = options.path.as_path();
    let found = rustix::fs::fstat(&file).map_err(failed(path, "examine"))?;
    let length = length(&file, &found).map_err(failed(path, "find the length of"))?;
    let size_bytes = fixed_size(length, options)?;
    let shape = |source| FileError::Shape {
        path: path.into(),
        source,
    };
    Ok(Opened {
        block_count: block_count(size_bytes, options.block_size).map_err(shape)?,
        file,
        preferred_bytes: u32::try_from(found.st_blksize).unwrap_or(0),
        direct: capabilities.direct,
        deallocates: capabilities.deallocates,
        notices: Vec::new(),
    })
}

/// Location of a file.
struct FileLocation {
    /// The directory that must contain the file; `None`: any.
    parent: Option<OwnedFd>,
    /// The file's name in that directory, otherwise its path.
    name: PathBuf,
}

impl FileLocation {
    fn of(options: &FileOptions) -> Result<Self, FileError> {
        let path = &options.path;
        let Some(directory) = &options.below else {
            let name = path.clone();
            return Ok(Self { parent: None, name });
        };
        let elsewhere = || FileError::Elsewhere {
            path: path.clone(),
            directory: directory.clone(),
        };
        let relative = path.strip_prefix(directory).map_err(|_| elsewhere())?;
        let name = relative.file_name().ok_or_else(elsewhere)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags | OFlags::PATH, Mode::empty())
            .map_err(failed(directory, "open"))?;
        let parent = relative.parent().filter(|it| !it.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let parent = openat2(
            &root,
            parent,
            flags | OFlags::RDONLY,
            Mode::empty(),
            resolve,
        );
        let parent = parent.map_err(|errno| match errno {
            // Errors of openat2(2) for a path that leads out of the directory.
            Errno::XDEV | Errno::LOOP => elsewhere(),
            errno => failed(path, "find the directory of")(errno),
        })?;
        Ok(Self {
            parent: Some(parent),
            name: name.into(),
        })
    }

    fn directory(&self) -> BorrowedFd<'_> {
        self.parent.as_ref().map_or(CWD, AsFd::as_fd)
    }

    /// A symbolic link is followed only if the file may be in any directory.
    fn is_confined(&self) -> bool {
        self.parent.is_some()
    }
}

/// The checks that do not access the file.
fn check_shape(options: &FileOptions) -> Result<(), FileError> {
    let checked = match options.size_bytes {
        Some(size_bytes) => block_count(size_bytes, options.block_size).map(drop),
        None => check_block_size(options.block_size),
    };
    checked.map_err(|source| FileError::Shape {
        path: options.path.clone(),
        source,
    })
}

fn failed(path: &Path, step: &'static str) -> impl FnOnce(Errno) -> FileError {
    move |errno| FileError::System {
        path: path.into(),
        step,
        source: errno.into(),
    }
}

fn access(options: &FileOptions, location: &FileLocation) -> OFlags {
    let links = match location.is_confined() {
        true => OFlags::NOFOLLOW,
        false => OFlags::empty(),
    };
    let access = if options.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    access | OFlags::CLOEXEC | OFlags::NOCTTY | links
}

/// Opens a partition or a logical volume. For writing it is claimed (`O_EXCL`, `open(2)`): a device
/// that is mounted, or that is part of a volume, is in use.
fn open_block_device(options: &FileOptions, location: &FileLocation) -> Result<OwnedFd, FileError> {
    let path = options.path.as_path();
    let mut flags = access(options, location);
    if !options.read_only {
        flags |= OFlags::EXCL;
    }
    let file = openat(location.directory(), &location.name, flags, Mode::empty());
    let file = file.map_err(|errno| match errno {
        Errno::BUSY => FileError::InUse { path: path.into() },
        errno => failed(path, "open")(errno),
    })?;
    let sector = ioctl_blksszget(&file).map_err(failed(path, "find the sector size of"))?;
    if !options.block_size.is_multiple_of(sector) {
        return Err(FileError::SectorSize {
            path: path.into(),
            sector,
            block_size: options.block_size,
        });
    }
    Ok(file)
}

/// The open file, and whether this call created it.
fn find_or_create(
    options: &FileOptions,
    location: &FileLocation,
) -> Result<(OwnedFd, bool), FileError> {
    let path = options.path.as_path();
    let at = match location.is_confined() {
        true => AtFlags::SYMLINK_NOFOLLOW,
        false => AtFlags::empty(),
    };
    // The file is examined before it is opened: opening a FIFO or a device can block or have side
    // effects.
    match statat(location.directory(), &location.name, at) {
        Ok(found) => match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => {}
            FileType::BlockDevice => return Ok((open_block_device(options, location)?, false)),
            FileType::Symlink => {
                return Err(FileError::Elsewhere {
                    path: path.into(),
                    directory: options.below.clone().unwrap_or_default(),
                });
            }
            _ => return Err(FileError::NotAFile { path: path.into() }),
        },
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(path, "find")(errno)),
    }
    let flags = access(options, location);
    match openat(location.directory(), &location.name, flags, Mode::empty()) {
        Ok(file) => return Ok((file, false)),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(path, "open")(errno)),
    }
    if options.shared {
        return Err(FileError::MissingShared { path: path.into() });
    }
    if options.size_bytes.is_none() || options.read_only {
        return Err(FileError::Missing { path: path.into() });
    }
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let file = openat(location.directory(), &location.name, flags, mode);
    let file = file.map_err(failed(path, "create"))?;
    Ok((file, true))
}

/// Time to wait for a lock that another process holds. When a process is killed with requests in
/// its rings, the kernel closes its files shortly after the process has ended.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Locks the file while it is open: a shared lock for a read-only or a shared device, otherwise an
/// exclusive one. The kernel does not distinguish the two kinds of shared locks, so a read-only
/// device is not kept from a file that shared devices write.
fn lock(file: &OwnedFd, options: &FileOptions) -> Result<(), FileError> {
    let operation = if options.read_only || options.shared {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
            Err(Errno::WOULDBLOCK) => {
                return Err(FileError::InUse {
                    path: options.path.clone(),
                });
            }
            Err(errno) => return Err(failed(&options.path, "lock")(errno)),
        }
    }
}

fn prepare(
    file: OwnedFd,
    options: &FileOptions,
    location: &FileLocation,
) -> Result<Opened, FileError> {
    let path = options.path.as_path();
    let found = rustix::fs::fstat(&file).map_err(failed(path, "examine"))?;
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    if !kind.is_file() && !kind.is_block_device() {
        return Err(FileError::NotAFile { path: path.into() });
    }
    let length = length(&file, &found).map_err(failed(path, "find the length of"))?;
    let size_bytes = if kind.is_block_device() {
        fixed_size(length, options)?
    } else {
        prepare_size(&file, length, options, location)?
    };
    let block_count =
        block_count(size_bytes, options.block_size).map_err(|source| FileError::Shape {
            path: path.into(),
            source,
        })?;
    let file_system = if kind.is_block_device() {
        FileSystem::BLOCK_DEVICE
    } else {
        let found = fstatfs(&file).map_err(failed(path, "examine the file system of"))?;
        FileSystem(found.f_type as u64)
    };
    let mut notices = Vec::new();
    let direct = prepare_direct_io(&file, size_bytes, file_system, options, &mut notices)?;
    let deallocates = !options.read_only
        && if kind.is_block_device() {
            supports_discard(found.st_rdev)
        } else {
            punches_holes(&file, size_bytes, options.block_size)
        };
    if !deallocates && !options.read_only {
        notices.push(FileNotice::NoDeallocate {
            path: path.into(),
            file_system,
        });
    }
    let preferred_bytes = u32::try_from(found.st_blksize).unwrap_or(0);
    Ok(Opened {
        file,
        block_count,
        preferred_bytes,
        direct,
        deallocates,
        notices,
    })
}

/// The size of a block device, or of a file in use, which cannot be changed here.
fn fixed_size(found: u64, options: &FileOptions) -> Result<u64, FileError> {
    match options.size_bytes {
        Some(wanted) if wanted != found => Err(FileError::Size {
            path: options.path.clone(),
            found,
            wanted,
        }),
        _ => Ok(found),
    }
}

/// Determines the device's size. Sets the size of an empty file, and syncs the file and its
/// directory entry.
fn prepare_size(
    file: &OwnedFd,
    found: u64,
    options: &FileOptions,
    location: &FileLocation,
) -> Result<u64, FileError> {
    let path = options.path.as_path();
    match options.size_bytes {
        None => Ok(found),
        Some(wanted) if found == wanted => Ok(found),
        Some(wanted) if found == 0 && !options.read_only && !options.shared => {
            ftruncate(file, wanted).map_err(failed(path, "set the size of"))?;
            fsync(file).map_err(failed(path, "write out"))?;
            sync_directory(path, location)?;
            Ok(wanted)
        }
        Some(wanted) => Err(FileError::Size {
            path: path.into(),
            found,
            wanted,
        }),
    }
}

/// Extends an open file to the wanted size and syncs it; without a wanted size, returns the current
/// one. Never shrinks the file.
pub(super) fn grow(
    file: impl AsFd + Copy,
    path: &Path,
    wanted: Option<u64>,
    may_resize: bool,
) -> Result<u64, FileError> {
    let stat = rustix::fs::fstat(file).map_err(failed(path, "examine"))?;
    let found = length(file, &stat).map_err(failed(path, "find the length of"))?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    match wanted {
        None => Ok(found),
        Some(wanted) if found == wanted => Ok(found),
        Some(wanted) if found < wanted && may_resize && is_file => {
            ftruncate(file, wanted).map_err(failed(path, "set the size of"))?;
            fsync(file).map_err(failed(path, "write out"))?;
            Ok(wanted)
        }
        Some(wanted) => Err(FileError::Size {
            path: path.into(),
            found,
            wanted,
        }),
    }
}

fn sync_directory(path: &Path, location: &FileLocation) -> Result<(), FileError> {
    let step = "write out the directory of";
    if let Some(parent) = &location.parent {
        return fsync(parent).map_err(failed(path, step));
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let synced = File::open(parent.unwrap_or(Path::new("."))).and_then(|file| file.sync_all());
    synced.map_err(|source| FileError::System {
        path: path.into(),
        step,
        source,
    })
}

fn prepare_direct_io(
    file: &OwnedFd,
    size_bytes: u64,
    file_system: FileSystem,
    options: &FileOptions,
    notices: &mut Vec<FileNotice>,
) -> Result<bool, FileError> {
    if options.direct == DirectIo::Never {
        return Ok(false);
    }
    let path = options.path.clone();
    match make_direct(file, size_bytes, options.block_size) {
        Ok(()) => Ok(true),
        Err(reason) if options.direct == DirectIo::Require => Err(FileError::NoDirect {
            path,
            file_system,
            reason,
        }),
        Err(reason) => {
            notices.push(FileNotice::Buffered {
                path,
                file_system,
                reason,
            });
            Ok(false)
        }
    }
}

/// Whether the file system can punch holes. Tries it beyond the end of the file, where no data is
/// lost.
fn punches_holes(file: impl AsFd, size_bytes: u64, block_size: u32) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, mode, size_bytes, u64::from(block_size)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => false,
        // Any other error concerns this range: a file of the maximum size has no range beyond its
        // end.
        Ok(()) | Err(_) => true,
    }
}

/// Whether a block device can zero a range without a transfer of zeroes, which `fallocate(2)`
/// requires to punch a hole in it. An attempt would lose data, so the kernel's description of the
/// queue is read (`Documentation/ABI/stable/sysfs-block`); a partition has the queue of its disk.
fn supports_discard(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = format!("/sys/dev/block/{major}:{minor}");
    let queues = ["queue", "../queue"].map(|queue| format!("{folder}/{queue}"));
    let limit = queues
        .iter()
        .find_map(|queue| std::fs::read_to_string(format!("{queue}/write_zeroes_max_bytes")).ok());
    limit.is_some_and(|limit| limit.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0))
}
