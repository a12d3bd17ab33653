//! Why an operation on a volume fails, and why a volume cannot be opened.

/// Why an operation fails. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No entry with this name.
    #[error("no such entry")]
    NotFound,
    /// An entry with this name exists.
    #[error("the entry exists")]
    Exists,
    /// The object is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The object is a directory.
    #[error("a directory")]
    IsDirectory,
    /// The object is not a regular file.
    #[error("not a regular file")]
    NotFile,
    /// The object is not a symbolic link.
    #[error("not a symbolic link")]
    NotLink,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// An argument is not valid.
    #[error("invalid argument")]
    Invalid,
    /// A name or link target is too long.
    #[error("the name is too long")]
    NameTooLong,
    /// The device or the memory for metadata is full.
    #[error("no space in the volume")]
    NoSpace,
    /// A quota of the share is exhausted.
    #[error("the quota of the share is exhausted")]
    Quota,
    /// The handle belongs to an object that does not exist any more, or to another volume.
    #[error("stale handle")]
    Stale,
    /// The objects belong to different shares.
    #[error("the objects belong to different shares")]
    CrossShare,
    /// The file has too many links.
    #[error("too many links")]
    TooManyLinks,
    /// The size of a file would exceed its limit.
    #[error("the file would be too large")]
    FileTooBig,
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoXattr,
    /// The value of an extended attribute is too long.
    #[error("the extended attribute is too large")]
    XattrTooBig,
    /// A write in flight overlaps, or the log waits for the device. Try again after a completion.
    #[error("busy: try again")]
    Busy,
    /// The device failed to store metadata; the volume accepts no changes any more.
    #[error("the device failed")]
    Io,
    /// The device was gone, and may have lost what it had not made durable: the volume has to be
    /// opened again.
    #[error("the device is gone")]
    Lost,
}

/// Why a volume cannot be opened or formatted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The device has no superblock.
    #[error("the device has no volume: format it first")]
    NoVolume,
    /// The superblock has an unknown version.
    #[error("the volume has format version {0}, which this version cannot open")]
    Version(u32),
    /// The device is smaller than the volume.
    #[error("the device has {device} bytes, and the volume {volume}: a part of it is missing")]
    DeviceTooSmall {
        /// Size of the device in bytes.
        device: u64,
        /// Size of the volume in bytes.
        volume: u64,
    },
    /// The device is too small for a volume with these options.
    #[error("a volume with these options needs {needed} bytes, and the device has {device}")]
    NoRoom {
        /// Size of the device in bytes.
        device: u64,
        /// Least size in bytes.
        needed: u64,
    },
    /// Metadata on the device are damaged.
    #[error("the volume is damaged: {0}")]
    Damaged(&'static str),
    /// The device failed.
    #[error("the device failed to read or write {length} bytes at {offset}")]
    Io {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        length: usize,
    },
}
