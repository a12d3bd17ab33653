//! Opening a file to serve it: find or create, lock, size, and ask what the file system can do.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, fstatfs, fsync, ftruncate,
};
use rustix::io::Errno;

use super::direct::make_direct;
use super::notice::{FileNotice, FileSystem};
use super::{DirectIo, FileError, FileOptions};
use crate::shape::{block_count, check_block_size};

/// A file that is ready to be served.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) block_count: u64,
    /// What the file system likes to be given at once, in bytes.
    pub(super) preferred_bytes: u32,
    pub(super) direct: bool,
    pub(super) deallocates: bool,
    pub(super) notices: Vec<FileNotice>,
}

pub(super) fn open(options: &FileOptions) -> Result<Opened, FileError> {
    check_shape(options)?;
    let (file, created) = find_or_create(options)?;
    lock(&file, options)?;
    let opened = prepare(file, options);
    if opened.is_err() && created {
        // It is ours and locked, so nobody else can have begun to use it.
        let _ = std::fs::remove_file(&options.path);
    }
    opened
}

/// What can be told without touching the file.
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

/// The open file, and whether it was created just now.
fn find_or_create(options: &FileOptions) -> Result<(OwnedFd, bool), FileError> {
    let path = options.path.as_path();
    // Looked at before it is opened: opening a FIFO or a device can block or act.
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => return Err(FileError::NotAFile { path: path.into() }),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(FileError::System {
                path: path.into(),
                step: "find",
                source,
            });
        }
    }
    let access = if options.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => return Ok((file, false)),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(path, "open")(errno)),
    }
    if options.size_bytes.is_none() || options.read_only {
        return Err(FileError::Missing { path: path.into() });
    }
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode)
        .map_err(failed(path, "create"))?;
    Ok((file, true))
}

/// How long a lock that somebody else has is waited for: the kernel closes the files of a process
/// that was killed with requests in its rings a moment after the process is gone.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Locks the file for as long as it is open: shared if it is only read, else for us alone.
fn lock(file: &OwnedFd, options: &FileOptions) -> Result<(), FileError> {
    let operation = if options.read_only {
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

fn prepare(file: OwnedFd, options: &FileOptions) -> Result<Opened, FileError> {
    let path = options.path.as_path();
    let found = rustix::fs::fstat(&file).map_err(failed(path, "examine"))?;
    if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() {
        return Err(FileError::NotAFile { path: path.into() });
    }
    let size_bytes = settle_size(&file, u64::try_from(found.st_size).unwrap_or(0), options)?;
    let block_count =
        block_count(size_bytes, options.block_size).map_err(|source| FileError::Shape {
            path: path.into(),
            source,
        })?;
    let file_system = fstatfs(&file).map_err(failed(path, "examine the file system of"))?;
    let file_system = FileSystem(file_system.f_type as u64);
    let mut notices = Vec::new();
    let direct = settle_direct(&file, size_bytes, file_system, options, &mut notices)?;
    let deallocates = !options.read_only && punches_holes(&file, size_bytes, options.block_size);
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

/// The device's size. Gives an empty file its length, and brings that and its name to the medium.
fn settle_size(file: &OwnedFd, found: u64, options: &FileOptions) -> Result<u64, FileError> {
    let path = options.path.as_path();
    match options.size_bytes {
        None => Ok(found),
        Some(wanted) if found == wanted => Ok(found),
        Some(wanted) if found == 0 && !options.read_only => {
            ftruncate(file, wanted).map_err(failed(path, "set the size of"))?;
            fsync(file).map_err(failed(path, "write out"))?;
            sync_directory(path)?;
            Ok(wanted)
        }
        Some(wanted) => Err(FileError::Size {
            path: path.into(),
            found,
            wanted,
        }),
    }
}

/// Gives an open file the length that is wanted, and brings that to the medium; without one, finds
/// out how long it is now. Never makes it shorter.
pub(super) fn grow(
    file: &OwnedFd,
    path: &Path,
    wanted: Option<u64>,
    read_only: bool,
) -> Result<u64, FileError> {
    let found = rustix::fs::fstat(file).map_err(failed(path, "examine"))?;
    let found = u64::try_from(found.st_size).unwrap_or(0);
    match wanted {
        None => Ok(found),
        Some(wanted) if found == wanted => Ok(found),
        Some(wanted) if found < wanted && !read_only => {
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

fn sync_directory(path: &Path) -> Result<(), FileError> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let synced = File::open(parent.unwrap_or(Path::new("."))).and_then(|file| file.sync_all());
    let step = "write out the directory of";
    synced.map_err(|source| FileError::System {
        path: path.into(),
        step,
        source,
    })
}

fn settle_direct(
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

/// Tries it past the end of the file, where there is nothing to lose.
fn punches_holes(file: impl AsFd, size_bytes: u64, block_size: u32) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, mode, size_bytes, u64::from(block_size)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => false,
        // Any other answer is about that range: the largest file has nothing past its end.
        Ok(()) | Err(_) => true,
    }
}
