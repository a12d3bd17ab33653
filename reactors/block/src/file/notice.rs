//! Missing capabilities of a file system, as messages.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

/// A type of file system, identified by its `statfs(2)` magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSystem(pub u64);

impl FileSystem {
    /// No file system: the device is a block device (`BDEVFS_MAGIC`, `linux/magic.h`).
    pub const BLOCK_DEVICE: Self = Self(0x6264_6576);

    /// The common name, if this table has it (`statfs(2)`, `linux/magic.h`).
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x6264_6576 => "a block device",
            0xEF53 => "ext4",
            0x5846_5342 => "xfs",
            0x9123_683E => "btrfs",
            0xF2F5_2010 => "f2fs",
            0xCA45_1A4E => "bcachefs",
            0x2FC1_2FC1 => "zfs",
            0x0102_1994 => "tmpfs",
            0x8584_58F6 => "ramfs",
            0x794C_7630 => "overlayfs",
            0x6573_5546 => "fuse",
            0x6969 => "nfs",
            0xFF53_4D42 | 0xFE53_4D42 => "smb",
            0x0102_1997 => "9p",
            0x4D44 => "vfat",
            0x2011_BAB0 => "exfat",
            _ => return None,
        })
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "a file system of type {:#x}", self.0),
        }
    }
}

/// Why a file is accessed through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferedReason {
    /// The file system does not support direct I/O on this file.
    Unsupported,
    /// The file system requires larger units than the device's blocks.
    Alignment {
        /// The required unit in bytes.
        unit: u32,
        /// The device's block size in bytes.
        block_size: u32,
    },
    /// The file system cannot use direct I/O with the arena's alignment.
    MemoryAlignment {
        /// The required alignment in bytes.
        unit: u32,
    },
    /// The file system claims support, but an attempt failed.
    Refused(Errno),
}

impl fmt::Display for BufferedReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => formatter.write_str("the file system does not support it"),
            Self::Alignment { unit, block_size } => write!(
                formatter,
                "it needs blocks of {unit} bytes, the device has blocks of {block_size}"
            ),
            Self::MemoryAlignment { unit } => {
                write!(formatter, "it needs memory aligned to {unit} bytes")
            }
            Self::Refused(errno) => write!(formatter, "the file system refused it ({errno})"),
        }
    }
}

/// A capability that a file device lacks. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileNotice {
    /// Data goes through the page cache.
    Buffered {
        /// The file.
        path: PathBuf,
        /// The file system.
        file_system: FileSystem,
        /// The reason.
        reason: BufferedReason,
    },
    /// Holes cannot be punched.
    NoDeallocate {
        /// The file.
        path: PathBuf,
        /// The file system.
        file_system: FileSystem,
    },
}

impl fmt::Display for FileNotice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffered {
                path,
                file_system,
                reason,
            } => write!(
                formatter,
                "{}: no direct I/O on {file_system}: {reason}; data is copied through the page \
                 cache, which costs memory and processor time",
                path.display()
            ),
            Self::NoDeallocate { path, file_system } => write!(
                formatter,
                "{}: {file_system} cannot punch holes: deallocated blocks keep their space, and \
                 deallocation is reported as unsupported to hosts",
                path.display()
            ),
        }
    }
}
