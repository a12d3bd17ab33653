//! The file behind a region: created, mapped once for writing, then protected against all other
//! writers.
//!
//! A memory file is sealed (`fcntl(2)`, `F_SEAL_FUTURE_WRITE` and the resizing seals). A file in a
//! private tmpfs, which does not support seals, is opened again read-only. In both cases a process
//! that receives the descriptor can read and map it, but can neither change bytes under a Rust
//! reference nor punch a hole under one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// A failed call and the kernel's error.
pub(super) type Failure = (&'static str, Errno);

/// A new file without a name, still open for writing.
#[derive(Debug)]
pub(super) struct MemoryFile {
    descriptor: OwnedFd,
    sealable: bool,
}

impl MemoryFile {
    /// Creates a memory file of `len` bytes; `pages` selects hugepages, or is empty.
    pub(super) fn sealable(len: usize, pages: MemfdFlags) -> Result<MemoryFile, Failure> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
        let descriptor = memfd_create("windlass", flags).map_err(|e| ("memfd_create", e))?;
        MemoryFile {
            descriptor,
            sealable: true,
        }
        .with_len(len)
    }

    /// Creates a file of `len` bytes in its own tmpfs, which uses transparent hugepages regardless
    /// of the machine's setting for memory files (tmpfs(5), `huge=always`). Needs CAP_SYS_ADMIN.
    /// The mount has no path and is removed with the file.
    pub(super) fn transparent(len: usize) -> Result<MemoryFile, Failure> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| ("fsopen", e))?;
        let configure = |key, value: &str| {
            fsconfig_set_string(context.as_fd(), key, value).map_err(|e| ("fsconfig", e))
        };
        configure("huge", "always")?;
        configure("mode", "0700")?;
        // The default size of a tmpfs is half of the machine's memory; it counts whole hugepages.
        let size = len.next_multiple_of(2 << 20);
        configure("size", &size.to_string())?;
        fsconfig_create(context.as_fd()).map_err(|e| ("fsconfig", e))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(|e| ("fsmount", e))?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let descriptor = openat(&mount, ".", flags, mode).map_err(|e| ("openat", e))?;
        MemoryFile {
            descriptor,
            sealable: false,
        }
        .with_len(len)
    }

    fn with_len(self, len: usize) -> Result<MemoryFile, Failure> {
        let len = u64::try_from(len).map_err(|_| ("ftruncate", Errno::FBIG))?;
        ftruncate(&self.descriptor, len).map_err(|e| ("ftruncate", e))?;
        Ok(self)
    }

    /// The descriptor for other users, which cannot write through it.
    pub(super) fn into_read_only(self) -> Result<OwnedFd, Failure> {
        if self.sealable {
            fcntl_add_seals(&self.descriptor, SEALS).map_err(|e| ("fcntl(F_ADD_SEALS)", e))?;
            return Ok(self.descriptor);
        }
        let path = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| ("openat(O_RDONLY)", e))
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
