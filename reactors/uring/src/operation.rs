//! File operations: their parameters, their state while the kernel executes them, and the rules for
//! results that are neither success nor failure.

use std::fmt;

use hugemem::Lease;
use rustix::io::Errno;

/// Maximum number of files of one ring.
pub const FILES_MAX: usize = 16;

/// Maximum number of retries of one operation without progress (`EAGAIN`, `EINTR`).
const RETRIES_MAX: u8 = 16;
/// Bytes of a sector. The kernel cuts reads short within one only at the end of the file.
const SECTOR_BYTES: u32 = 512;

/// A file that was added to a ring, see [`Ring::add_file`](crate::Ring::add_file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub(crate) u32);

impl FileId {
    /// The first file of any ring.
    pub const FIRST: Self = Self(0);
}

/// What happens to the allocated space of a file range. Neither mode changes the file's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocateMode {
    /// Deallocate the space; the range reads as zeroes (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Keep or allocate the space; the range reads as zeroes (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange,
}

impl AllocateMode {
    pub(crate) fn flags(self) -> i32 {
        match self {
            Self::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Self::ZeroRange => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        }
    }
}

/// An operation on a file. Offsets and lengths are in bytes.
pub enum Operation {
    /// Read from the file into the whole lease. A read that reaches the end of the file fails with
    /// [`Failure::EndOfFile`].
    Read {
        /// The file.
        file: FileId,
        /// First byte in the file.
        offset: u64,
        /// The destination; its length is the length of the read.
        lease: Lease,
    },
    /// Write the whole lease to the file.
    Write {
        /// The file.
        file: FileId,
        /// First byte in the file.
        offset: u64,
        /// The data; its length is the length of the write.
        lease: Lease,
        /// The data is on the medium when the operation ends (`RWF_DSYNC`).
        sync: bool,
    },
    /// Sync the file's written data to the medium.
    Sync {
        /// The file.
        file: FileId,
        /// `fdatasync`: omits metadata that is not needed to read the data.
        data_only: bool,
    },
    /// Change the allocated space of a range.
    Allocate {
        /// The file.
        file: FileId,
        /// The change.
        mode: AllocateMode,
        /// First byte in the file.
        offset: u64,
        /// Length in bytes, at least 1.
        len: u64,
    },
}

impl Operation {
    /// The file of the operation.
    #[must_use]
    pub fn file(&self) -> FileId {
        match self {
            Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Sync { file, .. }
            | Self::Allocate { file, .. } => *file,
        }
    }

    /// Whether the operation may change the file's content.
    #[must_use]
    pub fn changes_file(&self) -> bool {
        match self {
            Self::Write { .. } | Self::Allocate { .. } => true,
            Self::Read { .. } | Self::Sync { .. } => false,
        }
    }

    /// The lease of the operation.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Read { lease, .. } | Self::Write { lease, .. } => Some(lease),
            Self::Sync { .. } | Self::Allocate { .. } => None,
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { offset, lease, .. } => write!(formatter, "Read({}@{offset})", lease.len()),
            Self::Write {
                offset,
                lease,
                sync,
                ..
            } => {
                write!(formatter, "Write({}@{offset}, sync: {sync})", lease.len())
            }
            Self::Sync { data_only, .. } => write!(formatter, "Sync(data_only: {data_only})"),
            Self::Allocate {
                mode, offset, len, ..
            } => {
                write!(formatter, "{mode:?}({len}@{offset})")
            }
        }
    }
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The kernel refused the operation, or it failed before any data was transferred. A read may
    /// have transferred some data.
    Errno(Errno),
    /// A read reached the end of the file before its lease was full.
    EndOfFile,
    /// A write transferred some data, then the kernel refused the rest. `EIO` if it gave no reason.
    ShortWrite(Errno),
}

impl Failure {
    /// The kernel's error number; `EIO` for a read past the end of the file.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Self::Errno(errno) | Self::ShortWrite(errno) => errno,
            Self::EndOfFile => Errno::IO,
        }
    }
}

/// An ended operation.
#[derive(Debug)]
pub struct Done {
    /// The tag of the submission.
    pub tag: u64,
    /// The result. After an error the content of a read's lease is undefined.
    pub result: Result<(), Failure>,
    /// The operation's lease.
    pub lease: Option<Lease>,
}

/// The kernel's result of one entry: bytes transferred, or an error number.
pub type Outcome = Result<u32, Errno>;

/// Decodes a completion's result: a count, or a negated error number.
pub(crate) fn outcome(raw: i32) -> Outcome {
    const ERRNO_MAX: i32 = 4095;
    match u32::try_from(raw) {
        Ok(count) => Ok(count),
        Err(_) if raw >= -ERRNO_MAX => Err(Errno::from_raw_os_error(-raw)),
        Err(_) => Err(Errno::IO),
    }
}

/// The next step after an entry's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Some bytes were transferred: submit an entry for the rest.
    Continue,
    /// None were transferred: submit the same entry again.
    Retry,
    /// The operation has ended.
    End(Result<(), Failure>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Succeeds or fails as a whole.
    Atomic,
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug)]
struct Extent {
    kind: Kind,
    /// Bytes to transfer.
    len: u32,
    /// Bytes transferred.
    done: u32,
    retries: u8,
}

impl Extent {
    fn advance(&mut self, outcome: Outcome) -> Step {
        match outcome {
            Err(Errno::AGAIN | Errno::INTR) if self.retries < RETRIES_MAX => {
                self.retries += 1;
                Step::Retry
            }
            Err(errno) => Step::End(Err(self.failure(errno))),
            Ok(count) => self.transferred(count),
        }
    }

    fn failure(&self, errno: Errno) -> Failure {
        if self.kind == Kind::Write && self.done > 0 {
            Failure::ShortWrite(errno)
        } else {
            Failure::Errno(errno)
        }
    }

    fn transferred(&mut self, count: u32) -> Step {
        match self.kind {
            Kind::Atomic => Step::End(Ok(())),
            Kind::Read | Kind::Write if count > self.len - self.done => {
                Step::End(Err(self.failure(Errno::IO)))
            }
            Kind::Read if count == 0 && self.done < self.len => Step::End(Err(Failure::EndOfFile)),
            Kind::Write if count == 0 && self.done < self.len => {
                Step::End(Err(Failure::ShortWrite(Errno::IO)))
            }
            Kind::Read | Kind::Write => {
                self.done += count;
                self.retries = 0;
                if self.done == self.len {
                    Step::End(Ok(()))
                } else if self.kind == Kind::Read && !self.done.is_multiple_of(SECTOR_BYTES) {
                    // A file that grows again meanwhile would return two parts of one block that
                    // were read at different times.
                    Step::End(Err(Failure::EndOfFile))
                } else {
                    Step::Continue
                }
            }
        }
    }
}

/// An operation in progress: the transferred bytes, and the rules for results that are neither
/// success nor failure. Used by the kernel's ring, and by simulated ones.
pub struct Pending {
    tag: u64,
    /// The submitted operation.
    pub operation: Operation,
    extent: Extent,
}

impl Pending {
    /// Creates the state of a new operation.
    #[must_use]
    pub fn new(tag: u64, operation: Operation) -> Self {
        let (kind, len) = match &operation {
            Operation::Read { lease, .. } => (Kind::Read, lease.len()),
            Operation::Write { lease, .. } => (Kind::Write, lease.len()),
            Operation::Sync { .. } | Operation::Allocate { .. } => (Kind::Atomic, 0),
        };
        let len = u32::try_from(len).expect("a lease is shorter than 4 GiB");
        Self {
            tag,
            operation,
            extent: Extent {
                kind,
                len,
                done: 0,
                retries: 0,
            },
        }
    }

    /// Bytes transferred so far.
    #[must_use]
    pub fn transferred(&self) -> u32 {
        self.extent.done
    }

    /// Processes the result of an entry for the rest of the operation.
    pub fn advance(&mut self, outcome: Outcome) -> Step {
        self.extent.advance(outcome)
    }

    pub(crate) fn holds_memory(&self) -> bool {
        self.extent.kind != Kind::Atomic
    }

    /// Ends the operation after its last completion.
    #[must_use]
    pub fn end(self, result: Result<(), Failure>) -> Done {
        Done {
            tag: self.tag,
            result,
            lease: self.operation.into_lease(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(kind: Kind, len: u32) -> Extent {
        Extent {
            kind,
            len,
            done: 0,
            retries: 0,
        }
    }

    #[test]
    fn cqe_results_are_counts_or_negated_errnos() {
        assert_eq!(outcome(7), Ok(7));
        assert_eq!(outcome(-5), Err(Errno::IO));
        assert_eq!(outcome(-4095), Err(Errno::from_raw_os_error(4095)));
        assert_eq!(outcome(-4096), Err(Errno::IO));
        assert_eq!(outcome(i32::MIN), Err(Errno::IO));
    }

    #[test]
    fn short_transfers_continue_until_complete() {
        for kind in [Kind::Read, Kind::Write] {
            let mut extent = extent(kind, 8192);
            assert_eq!(extent.advance(Ok(4096)), Step::Continue);
            assert_eq!(extent.advance(Ok(3584)), Step::Continue);
            assert_eq!(extent.advance(Ok(512)), Step::End(Ok(())));
        }
    }

    #[test]
    fn zero_result_is_end_of_file_or_short_write() {
        assert_eq!(
            extent(Kind::Read, 512).advance(Ok(0)),
            Step::End(Err(Failure::EndOfFile))
        );
        assert_eq!(
            extent(Kind::Write, 512).advance(Ok(0)),
            Step::End(Err(Failure::ShortWrite(Errno::IO)))
        );
    }

    #[test]
    fn unaligned_short_read_is_end_of_file() {
        let mut extent = extent(Kind::Read, 4096);
        assert_eq!(
            extent.advance(Err(Errno::INVAL)),
            Step::End(Err(Failure::Errno(Errno::INVAL)))
        );
        assert_eq!(extent.advance(Ok(512)), Step::Continue);
        assert_eq!(extent.advance(Ok(100)), Step::End(Err(Failure::EndOfFile)));
    }

    #[test]
    fn short_write_never_becomes_success() {
        let mut extent = extent(Kind::Write, 4096);
        assert_eq!(extent.advance(Ok(100)), Step::Continue);
        assert_eq!(
            extent.advance(Err(Errno::INVAL)),
            Step::End(Err(Failure::ShortWrite(Errno::INVAL)))
        );
    }

    #[test]
    fn result_above_the_requested_length_is_an_error() {
        for kind in [Kind::Read, Kind::Write] {
            assert_eq!(
                extent(kind, 512).advance(Ok(513)),
                Step::End(Err(Failure::Errno(Errno::IO)))
            );
        }
    }

    #[test]
    fn eagain_is_retried_a_limited_number_of_times() {
        let mut extent = extent(Kind::Atomic, 0);
        for _ in 0..RETRIES_MAX {
            assert_eq!(extent.advance(Err(Errno::AGAIN)), Step::Retry);
        }
        assert_eq!(
            extent.advance(Err(Errno::AGAIN)),
            Step::End(Err(Failure::Errno(Errno::AGAIN)))
        );
    }

    #[test]
    fn progress_resets_the_retry_limit() {
        let mut extent = extent(Kind::Write, 1024);
        for _ in 0..RETRIES_MAX {
            assert_eq!(extent.advance(Err(Errno::INTR)), Step::Retry);
        }
        assert_eq!(extent.advance(Ok(512)), Step::Continue);
        assert_eq!(extent.advance(Err(Errno::INTR)), Step::Retry);
    }
}
