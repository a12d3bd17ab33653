//! What a device answers when it does not succeed, and where each answer comes from.
//!
//! The kernel's error numbers become [`DeviceError`]s in exactly one place,
//! [`DeviceError::from_errno`]; whatever serves the device turns a [`DeviceError`] into its own
//! status in exactly one table too.

use std::path::PathBuf;

use rustix::io::Errno;

/// Which way an operation moved data when the kernel refused it: `EIO` means different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data came from the medium.
    Read,
    /// Data, zeroes or cached writes went to the medium.
    Write,
}

/// Why a request did not succeed. The data it names is undefined, except after
/// [`CompareMismatch`](Self::CompareMismatch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DeviceError {
    /// The range does not lie within the device.
    #[error("the range lies outside the device")]
    OutOfRange,
    /// The back end needs a coarser alignment than the request has.
    #[error("the request is not aligned as the back end needs it")]
    Unaligned,
    /// The medium could not be read.
    #[error("the medium could not be read")]
    MediaRead,
    /// The medium could not be written.
    #[error("the medium could not be written")]
    MediaWrite,
    /// A compare found different data: the one error after which nothing is wrong with the device.
    #[error("the compared data differs")]
    CompareMismatch,
    /// The back end has no room left for data that it had promised to hold.
    #[error("the back end is full")]
    NoSpace,
    /// The device does not take writes.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device lost data that it had accepted. Requests that change the medium or flush are
    /// refused until [`Device::reopen`](crate::Device::reopen) succeeds; reads continue.
    #[error("the device is damaged: reopen it")]
    Damaged,
    /// The device is gone or its queue is closing: no request will succeed again on this queue.
    #[error("the device is gone")]
    Removed,
    /// The back end was reset with the request in flight: whether it was carried out is not known,
    /// and it may be sent again, best by another path.
    #[error("the device was reset while the request was in flight")]
    Interrupted,
    /// The request was given up before it was carried out, or part of the way through.
    #[error("the request was aborted")]
    Aborted,
    /// The device has no such operation.
    #[error("the device does not support the operation")]
    Unsupported,
    /// Our own mistake or an answer from below that fits no other kind.
    #[error("internal error")]
    Internal,
}

impl DeviceError {
    /// The device's answer for a kernel error number, given which way the data went.
    ///
    /// Numbers that the table does not name are media errors: the kernel failed the transfer, and
    /// whoever sent the request must not believe that its data is safe.
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

    /// Whether the error says that the medium failed (counted in [`Health`](crate::Health)).
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

/// Why a device was not reopened. Its state is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReopenError {
    /// Devices of this kind cannot be reopened.
    #[error("a device of this kind cannot be reopened")]
    Unsupported,
    /// The device is not damaged.
    #[error("the device is not damaged: there is nothing to reopen")]
    NotDamaged,
    /// A write was abandoned that the kernel may still carry out.
    #[error("the kernel may still carry out an abandoned write: restart the appliance")]
    WriteAbandoned,
    /// The kernel has not finished writes that are overdue.
    #[error(
        "the kernel has not finished {writes} overdue writes: repair what the file lies on, or \
         restart the appliance"
    )]
    WriteStuck {
        /// How many.
        writes: u64,
    },
    /// The path names another file than the one that the device was opened with.
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
    /// The kernel refused a step.
    #[error("{}: cannot {step}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb.
        step: &'static str,
        /// What the kernel answered.
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
        /// What was asked for.
        depth: usize,
        /// The largest depth that a queue may have.
        max: usize,
    },
    /// The pool had no lease for the queue's own buffer that requests can do without.
    #[error(
        "the arena has too few leases of {bytes} bytes for the queue's own buffer: \
         configure more `memory`, or fewer devices or cores"
    )]
    NoMemory {
        /// What the queue wanted to reserve.
        bytes: usize,
    },
    /// The device is gone.
    #[error("the device is gone")]
    Removed,
    /// The kernel gave no ring.
    #[error("no io_uring for the queue")]
    Ring(#[source] uring::RingError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table() {
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
    fn no_errno_is_taken_for_success_or_for_a_mismatch() {
        for raw in 1..=133 {
            for direction in [Direction::Read, Direction::Write] {
                let error = DeviceError::from_errno(Errno::from_raw_os_error(raw), direction);
                assert_ne!(error, DeviceError::CompareMismatch);
                assert_ne!(error, DeviceError::OutOfRange);
            }
        }
    }
}
