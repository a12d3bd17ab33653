//! The file behind a region: created and mapped, or received from the process that used it before.
//!
//! A memory file is sealed against other sizes (`fcntl(2)`), so that no page below a mapping can
//! disappear; a file in a private tmpfs does not support seals. The descriptor stays writable,
//! because a process that continues with the memory maps it for writing. It is passed to no other
//! process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FsWord, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::fs::{fcntl_add_seals, fstat, fstatfs, ftruncate, memfd_create, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The file system of memory files in hugepages (`statfs(2)`).
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;

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

    /// The descriptor, after the size was made unchangeable.
    pub(super) fn into_sealed(self) -> Result<OwnedFd, Failure> {
        if self.sealable {
            fcntl_add_seals(&self.descriptor, SEALS).map_err(|e| ("fcntl(F_ADD_SEALS)", e))?;
        }
        Ok(self.descriptor)
    }
}

/// The length of a file that another process created, and the bytes of its hugepages if it
/// consists of them.
pub(super) fn examine(file: BorrowedFd<'_>) -> Result<(u64, Option<u64>), Failure> {
    let length = fstat(file).map_err(|e| ("fstat", e))?.st_size;
    let system = fstatfs(file).map_err(|e| ("fstatfs", e))?;
    let is_huge = system.f_type == HUGETLBFS_MAGIC;
    let page = is_huge.then(|| u64::try_from(system.f_bsize).unwrap_or(0));
    Ok((u64::try_from(length).unwrap_or(0), page))
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
