//! The ring's interface: set-up with the features of the kernel, notices of missing features, and
//! the calls of a turn.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use hugemem::Arena;
use io_uring::IoUring;
use rustix::io::Errno;

use crate::kernel::{FIXED_BUFFER_BYTES_MAX, Kernel, RingCounters, RingFile};
use crate::operation::{Done, FileId, Operation};

/// Maximum depth of a ring, in operations in flight.
pub const RING_DEPTH_MAX: u32 = 4096;

/// Configuration of a ring.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// Maximum number of operations in flight, 1 ..= [`RING_DEPTH_MAX`].
    pub depth: u32,
    /// Pin the arena once in the kernel, instead of the pages of each transfer.
    pub fixed_buffers: bool,
    /// Time to wait for operations in flight when the ring is dropped, before their leases are
    /// leaked.
    pub drop_wait: Duration,
}

impl RingConfig {
    /// A ring of `depth` with fixed buffers and a wait of 5 s when it is dropped.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        Self {
            depth,
            fixed_buffers: true,
            drop_wait: Duration::from_secs(5),
        }
    }
}

/// Why a ring or another file on it could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The depth is out of bounds.
    #[error("ring depth {depth} is not between 1 and {RING_DEPTH_MAX}")]
    Depth {
        /// The requested depth.
        depth: u32,
    },
    /// The kernel was built without io_uring.
    #[error("this kernel has no io_uring: it needs Linux 5.6 or newer with CONFIG_IO_URING")]
    Unsupported,
    /// The kernel has io_uring, but not for this process.
    #[error(
        "io_uring is forbidden for this process: see sysctl kernel.io_uring_disabled, \
         or the container's seccomp profile"
    )]
    Forbidden,
    /// The memory for the ring cannot be locked.
    #[error(
        "no memory for a ring of {depth} operations: raise the limit on locked memory (ulimit -l)"
    )]
    NoMemory {
        /// The requested depth.
        depth: u32,
    },
    /// Any other error.
    #[error("the kernel refused an io_uring: {0}")]
    Refused(Errno),
    /// The ring has [`FILES_MAX`](crate::FILES_MAX) files already.
    #[error("the ring has its maximum of {max} files", max = crate::FILES_MAX)]
    TooManyFiles,
}

/// A missing feature of a ring, its cost and the fix. Displays as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The kernel cannot leave completions to the polling thread.
    OlderKernel,
    /// The arena could not be registered as fixed buffers.
    NoFixedBuffers {
        /// The arena's length in bytes.
        bytes: usize,
        /// The kernel's error.
        errno: Errno,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OlderKernel => formatter.write_str(
                "file completions interrupt the reactor: \
                 Linux 5.19 or newer leaves them to its own poll",
            ),
            Self::NoFixedBuffers { bytes, errno } => {
                let mib = bytes.div_ceil(1 << 20);
                write!(
                    formatter,
                    "the arena ({mib} MiB) is not registered with io_uring ({errno}): each file \
                     transfer pins its pages again"
                )?;
                match *errno {
                    Errno::NOMEM => formatter.write_str(
                        "; fix: LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`",
                    ),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// How the kernel runs completions, best first. Each needs a newer kernel than the next.
///
/// `IORING_SETUP_DEFER_TASKRUN` is not used: deferred completions do not wake a thread that already
/// sleeps in `ppoll(2)` on the ring's descriptor (found on Linux 6.18), and the descriptor exists
/// to wake a sleeping reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompletionMode {
    /// Linux 6.0: on this thread, the ring's only user, at its next system call.
    SingleIssuer,
    /// Linux 5.19: on this thread, at its next system call.
    Cooperative,
    /// Linux 5.6: by interrupting this thread.
    Plain,
}

impl CompletionMode {
    const ALL: [Self; 3] = [Self::SingleIssuer, Self::Cooperative, Self::Plain];

    fn build(self, entries: u32) -> std::io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.dontfork();
        match self {
            Self::SingleIssuer | Self::Cooperative => {
                builder
                    .setup_submit_all()
                    .setup_coop_taskrun()
                    .setup_taskrun_flag();
            }
            Self::Plain => {}
        }
        if self == Self::SingleIssuer {
            builder.setup_single_issuer();
        }
        builder.build(entries)
    }

    fn notice(self) -> Option<Notice> {
        match self {
            Self::SingleIssuer | Self::Cooperative => None,
            Self::Plain => Some(Notice::OlderKernel),
        }
    }
}

/// An io_uring for files. Belongs to the thread that created it.
///
/// Dropping it with operations in flight cancels them and waits until the kernel has released their
/// memory; leases that are not released in time are leaked and counted ([`crate::leaked_leases`]).
#[derive(Debug)]
pub struct Ring {
    kernel: Kernel,
    notices: Vec<Notice>,
}

impl Ring {
    /// Creates a ring, with `arena` as its fixed buffers if the configuration enables them.
    ///
    /// # Errors
    /// [`RingError`]: the depth is out of bounds, or the kernel provides no ring.
    pub fn new(config: &RingConfig, arena: Option<&Arc<Arena>>) -> Result<Self, RingError> {
        Self::with_completion_modes(config, arena, &CompletionMode::ALL)
    }

    fn with_completion_modes(
        config: &RingConfig,
        arena: Option<&Arc<Arena>>,
        completion_modes: &[CompletionMode],
    ) -> Result<Self, RingError> {
        if !(1..=RING_DEPTH_MAX).contains(&config.depth) {
            return Err(RingError::Depth {
                depth: config.depth,
            });
        }
        let (ring, completion_mode) = set_up(config.depth, completion_modes)?;
        let mut kernel = Kernel::new(ring, config.depth, config.drop_wait);
        let mut notices: Vec<Notice> = completion_mode.notice().into_iter().collect();
        if let Some(arena) = arena.filter(|_| config.fixed_buffers)
            && let Err(errno) = kernel.register_arena(Arc::clone(arena), FIXED_BUFFER_BYTES_MAX)
        {
            notices.push(Notice::NoFixedBuffers {
                bytes: arena.region().len(),
                errno,
            });
        }
        Ok(Self { kernel, notices })
    }

    /// Missing features of the ring.
    #[must_use]
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Whether transfers to and from the arena need no pinning of pages.
    #[must_use]
    pub fn has_fixed_buffers(&self) -> bool {
        self.kernel.has_fixed_buffers()
    }

    /// Adds a file, which the ring keeps open until it is dropped.
    ///
    /// # Errors
    /// [`RingError::TooManyFiles`].
    pub fn add_file(&mut self, file: Arc<dyn RingFile>) -> Result<FileId, RingError> {
        self.kernel.add_file(file).ok_or(RingError::TooManyFiles)
    }

    /// Replaces the file of `id`, which the ring closes, by `file`.
    ///
    /// # Panics
    /// If operations are in flight.
    pub fn replace_file(&mut self, id: FileId, file: Arc<dyn RingFile>) {
        self.kernel.replace_file(id, file);
    }

    /// Takes an operation, which ends exactly once, with `tag`, through [`poll`](Self::poll). The
    /// next [`flush`](Self::flush) submits it to the kernel.
    ///
    /// # Errors
    /// The unchanged operation, if the ring is full.
    ///
    /// # Panics
    /// If the operation uses a file of another ring.
    pub fn submit(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        self.kernel.start(tag, operation)
    }

    /// Submits all queued operations in one system call; does nothing if there are none.
    pub fn flush(&mut self) {
        self.kernel.submit_pending();
    }

    /// Moves ended operations into `done` until it is full. Returns their number.
    ///
    /// Makes a system call only if the kernel reports deferred completions, or to submit the rest
    /// of short transfers.
    pub fn poll<const N: usize>(&mut self, done: &mut ArrayVec<Done, N>) -> usize {
        let before = done.len();
        self.reap(done);
        if self.kernel.has_resubmitted() || (!done.is_full() && self.kernel.has_deferred()) {
            self.kernel.submit_pending();
            self.reap(done);
        }
        done.len() - before
    }

    fn reap<const N: usize>(&mut self, done: &mut ArrayVec<Done, N>) {
        while !done.is_full()
            && let Some(ended) = self.kernel.reap()
        {
            done.push(ended);
        }
    }

    /// Number of operations submitted whose end has not been polled.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.kernel.in_flight()
    }

    /// Whether there are operations that the kernel has not received. After a
    /// [`flush`](Self::flush): that it was too busy to take.
    #[must_use]
    pub fn has_unflushed(&self) -> bool {
        self.kernel.unsubmitted()
    }

    /// Counters of events other than plain success.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        self.kernel.counters()
    }
}

impl AsFd for Ring {
    /// Readable when [`Ring::poll`] has ended operations.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

fn set_up(
    depth: u32,
    completion_modes: &[CompletionMode],
) -> Result<(IoUring, CompletionMode), RingError> {
    let mut last_error = Errno::INVAL;
    for &completion_mode in completion_modes {
        match completion_mode.build(depth) {
            Ok(ring) => return Ok((ring, completion_mode)),
            Err(error) => last_error = Errno::from_io_error(&error).unwrap_or(Errno::IO),
        }
        // Only for an unknown flag can fewer flags succeed.
        if last_error != Errno::INVAL {
            break;
        }
    }
    Err(set_up_error(last_error, depth))
}

fn set_up_error(errno: Errno, depth: u32) -> RingError {
    match errno {
        Errno::NOSYS => RingError::Unsupported,
        Errno::PERM | Errno::ACCESS => RingError::Forbidden,
        Errno::NOMEM => RingError::NoMemory { depth },
        _ => RingError::Refused(errno),
    }
}

#[cfg(test)]
mod tests;
