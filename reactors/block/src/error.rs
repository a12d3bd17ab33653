//! Errors of devices and their mapping from kernel errors.
//!
//! [`DeviceError::from_errno`] alone maps kernel error numbers to [`DeviceError`]s. Each protocol
//! maps a [`DeviceError`] to its own status in one table.

use std::path::PathBuf;

use rustix::io::Errno;

/// Direction of the failed transfer: `EIO` has a different meaning for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data was read from the medium.
    Read,
    /// Data, zeroes or cached writes were written to the medium.
    Write,
}

/// Why a request failed. Its data is undefined, except after
/// [`CompareMismatch`](Self::CompareMismatch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DeviceError {
    /// The range does not lie within the device.
    #[error("the range lies outside the device")]
    OutOfRange,
    /// The back end requires a coarser alignment than the request has.
    #[error("the request is not aligned as the back end needs it")]
    Unaligned,
    /// The medium could not be read.
    #[error("the medium could not be read")]
    MediaRead,
    /// The medium could not be written.
    #[error("the medium could not be written")]
    MediaWrite,
    /// A compare found different data. The only error that does not indicate a fault.
    #[error("the compared data differs")]
    CompareMismatch,
    /// The back end has no space left for data that it should be able to hold.
    #[error("the back end is full")]
    NoSpace,
    /// The device does not take writes.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device lost data that it had accepted. Requests that change the medium or flush are
    /// refused until [`Device::reopen`](crate::Device::reopen) succeeds; reads continue.
    #[error("the device is damaged: reopen it")]
    Damaged,
    /// The device is gone or its queue is closing: no request on this queue can succeed again.
    #[error("the device is gone")]
    Removed,
    /// The back end was reset with the request in flight. Whether it was executed is unknown; it
    /// may be sent again, preferably on another path.
    #[error("the device was reset while the request was in flight")]
    Interrupted,
    /// The request was given up before or during its execution.
    #[error("the request was aborted")]
    Aborted,
    /// The device does not support the operation.
    #[error("the device does not support the operation")]
    Unsupported,
    /// A bug, or an error of a lower layer that fits no other kind.
    #[error("internal error")]
    Internal,
}

impl DeviceError {
    /// Whether a request whose data was in memory of a device may succeed through the arena.
    /// `is_valid`: whether that memory still has its content.
    #[must_use]
    pub fn is_of_memory(self, is_valid: bool) -> bool {
        match self {
            // They say more about the device than about the memory, or the device may still execute
            // the request.
            Self::Removed | Self::Aborted | Self::Damaged => false,
            Self::MediaRead | Self::MediaWrite | Self::NoSpace | Self::ReadOnly => !is_valid,
            Self::OutOfRange
            | Self::Unaligned
            | Self::CompareMismatch
            | Self::Interrupted
            | Self::Unsupported
            | Self::Internal => true,
        }
    }

    /// Maps a kernel error number, given the direction of the transfer.
    ///
    /// Numbers that the table does not name are media errors: the kernel failed the transfer, and
    /// the sender must not assume that its data is safe.
    #[must_use]
    pub fn from_errno(errno: Errno, direction: Direction) -> Self {
        match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::NoSpace,
            Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::TXTBSY => Self::ReadOnly,
            Errno::NODEV | Errno::NXIO | Errno::STALE | Errno::NOMEDIUM | Errno::SHUTDOWN => {
                Self::Removed
            }
            Errno::OPNOTSUPP | Errno::NOSYS => Self::Unsupported,
            Errno::CANCELED
            | Errno::TIMEDOUT
            | Errno::INTR
            | Errno::AGAIN
            | Errno::NOMEM
            | Errno::NOBUFS => Self::Aborted,
            Errno::INVAL => Self::Unaligned,
            Errno::BADF | Errno::FAULT => Self::Internal,
            _ => match direction {
                Direction::Read => Self::MediaRead,
                Direction::Write => Self::MediaWrite,
            },
        }
    }

    /// Whether the medium failed (counted in [`Health`](crate::Health)).
    #[must_use]
    pub fn is_media(self) -> bool {
        match self {
            Self::MediaRead | Self::MediaWrite => true,
            Self::OutOfRange
            | Self::Unaligned
            | Self::CompareMismatch
            | Self::NoSpace
            | Self::ReadOnly
            | Self::Damaged
            | Self::Removed
            | Self::Interrupted
            | Self::Aborted
            | Self::Unsupported
            | Self::Internal => false,
        }
    }
}

/// Why a device was not reopened. Its state is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReopenError {
    /// The device type does not support reopening.
    #[error("a device of this kind cannot be reopened")]
    Unsupported,
    /// The device is not damaged.
    #[error("the device is not damaged: there is nothing to reopen")]
    NotDamaged,
    /// A write was abandoned that the kernel may still execute.
    #[error("the kernel may still execute an abandoned write: restart the appliance")]
    WriteAbandoned,
    /// The kernel has not completed overdue writes.
    #[error(
        "the kernel has not completed {writes} overdue writes: repair the storage of the file, or \
         restart the appliance"
    )]
    WriteStuck {
        /// Number of overdue writes.
        writes: u64,
    },
    /// The path names a different file than when the device was opened.
    #[error("{}: the path names another file now: restore the file, or restart", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than the device.
    #[error(
        "{}: the file has {found} bytes, the device {wanted}: restore its length first",
        path.display()
    )]
    Shorter {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The device's length in bytes.
        wanted: u64,
    },
    /// A system call failed.
    #[error("{}: cannot {step}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The failed step, as a verb.
        step: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// Why a queue could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The depth is zero or above [`QUEUE_DEPTH_MAX`](crate::QUEUE_DEPTH_MAX).
    #[error("queue depth {depth} is not between 1 and {max}")]
    Depth {
        /// The requested depth.
        depth: usize,
        /// The maximum depth.
        max: usize,
    },
    /// The pool had no lease for the queue's own buffer, beyond those that requests need.
    #[error(
        "the arena has too few leases of {bytes} bytes for the queue's own buffer: \
         configure more `memory`, or fewer devices or cores"
    )]
    NoMemory {
        /// Size of the buffer in bytes.
        bytes: usize,
    },
    /// The device is gone.
    #[error("the device is gone")]
    Removed,
    /// The kernel provided no ring.
    #[error("no io_uring for the queue")]
    Ring(#[source] uring::RingError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_mapping_table() {
        let rows = [
            (Errno::NOSPC, DeviceError::NoSpace, DeviceError::NoSpace),
            (Errno::DQUOT, DeviceError::NoSpace, DeviceError::NoSpace),
            (Errno::FBIG, DeviceError::NoSpace, DeviceError::NoSpace),
            (Errno::ROFS, DeviceError::ReadOnly, DeviceError::ReadOnly),
            (Errno::PERM, DeviceError::ReadOnly, DeviceError::ReadOnly),
            (Errno::ACCESS, DeviceError::ReadOnly, DeviceError::ReadOnly),
            (Errno::TXTBSY, DeviceError::ReadOnly, DeviceError::ReadOnly),
            (Errno::NODEV, DeviceError::Removed, DeviceError::Removed),
            (Errno::NXIO, DeviceError::Removed, DeviceError::Removed),
            (Errno::STALE, DeviceError::Removed, DeviceError::Removed),
            (Errno::NOMEDIUM, DeviceError::Removed, DeviceError::Removed),
            (Errno::SHUTDOWN, DeviceError::Removed, DeviceError::Removed),
            (
                Errno::OPNOTSUPP,
                DeviceError::Unsupported,
                DeviceError::Unsupported,
            ),
            (
                Errno::NOSYS,
                DeviceError::Unsupported,
                DeviceError::Unsupported,
            ),
            (Errno::CANCELED, DeviceError::Aborted, DeviceError::Aborted),
            (Errno::TIMEDOUT, DeviceError::Aborted, DeviceError::Aborted),
            (Errno::INTR, DeviceError::Aborted, DeviceError::Aborted),
            (Errno::AGAIN, DeviceError::Aborted, DeviceError::Aborted),
            (Errno::NOMEM, DeviceError::Aborted, DeviceError::Aborted),
            (Errno::NOBUFS, DeviceError::Aborted, DeviceError::Aborted),
            (Errno::INVAL, DeviceError::Unaligned, DeviceError::Unaligned),
            (Errno::BADF, DeviceError::Internal, DeviceError::Internal),
            (Errno::FAULT, DeviceError::Internal, DeviceError::Internal),
            (Errno::IO, DeviceError::MediaRead, DeviceError::MediaWrite),
            (
                Errno::NODATA,
                DeviceError::MediaRead,
                DeviceError::MediaWrite,
            ),
            (
                Errno::REMOTEIO,
                DeviceError::MediaRead,
                DeviceError::MediaWrite,
            ),
            (
                Errno::ILSEQ,
                DeviceError::MediaRead,
                DeviceError::MediaWrite,
            ),
        ];
        for (errno, read, write) in rows {
            assert_eq!(
                DeviceError::from_errno(errno, Direction::Read),
                read,
                "{errno}"
            );
            assert_eq!(
                DeviceError::from_errno(errno, Direction::Write),
                write,
                "{errno}"
            );
        }
    }

    #[test]
    fn no_errno_maps_to_compare_mismatch_or_out_of_range() {
        for raw in 1..=133 {
            for direction in [Direction::Read, Direction::Write] {
                let error = DeviceError::from_errno(Errno::from_raw_os_error(raw), direction);
                assert_ne!(error, DeviceError::CompareMismatch);
                assert_ne!(error, DeviceError::OutOfRange);
            }
        }
    }
}
