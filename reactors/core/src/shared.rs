//! The part of a reactor that other threads access: its inbox, its waker, its statistics.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::mailbox::{Mailbox, PushError};
use crate::reactor::Reactor;
use crate::recorder::Recording;
use crate::stats::{ReactorStats, StuckPoller};
use crate::time::Nanos;
use crate::wake::Waker;

/// A control message: runs once on the reactor's thread, between polls.
pub type Job = Box<dyn FnOnce(&mut Reactor) + Send>;

/// Why a job was not accepted.
#[derive(thiserror::Error)]
pub enum RunError {
    /// The inbox is full now; the job is returned.
    #[error("the reactor's inbox is full")]
    Full(Job),
    /// The reactor has ended; the job was dropped.
    #[error("the reactor has stopped")]
    Stopped,
}

impl fmt::Debug for RunError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            RunError::Full(_) => "Full",
            RunError::Stopped => "Stopped",
        })
    }
}

/// The reactors that stop together. Each continues until all are quiet, because one may wait for
/// the reply of another.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: usize,
    pub(crate) quiet: AtomicUsize,
    /// All were quiet at the same time. Set once and never cleared.
    pub(crate) finish: AtomicBool,
}

impl Group {
    pub(crate) fn new(members: usize) -> Arc<Group> {
        Arc::new(Group {
            members,
            quiet: AtomicUsize::new(0),
            finish: AtomicBool::new(false),
        })
    }
}

/// No stop was requested.
const NO_STOP_REQUESTED: u64 = u64::MAX;

pub(crate) struct Shared {
    pub(crate) index: usize,
    pub(crate) stats: ReactorStats,
    pub(crate) recording: Recording,
    pub(crate) waker: Waker,
    pub(crate) inbox: Mailbox<Job>,
    pub(crate) group: Arc<Group>,
    stop_at: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        index: usize,
        inbox_capacity: usize,
        group: Arc<Group>,
    ) -> io::Result<Arc<Shared>> {
        Ok(Arc::new(Shared {
            index,
            stats: ReactorStats::new(),
            recording: Recording::new(),
            waker: Waker::new()?,
            inbox: Mailbox::new(inbox_capacity.max(1)),
            group,
            stop_at: AtomicU64::new(NO_STOP_REQUESTED),
        }))
    }

    /// Closes the inbox of an ended reactor. Queued jobs are dropped, so that a thread that waits
    /// for their effect is notified.
    pub(crate) fn close(&self) {
        self.inbox.close();
    }

    /// Deadline of the requested stop, if any.
    #[inline]
    pub(crate) fn stop_deadline(&self) -> Option<Nanos> {
        match self.stop_at.load(Ordering::Relaxed) {
            NO_STOP_REQUESTED => None,
            deadline => Some(Nanos(deadline)),
        }
    }
}

/// A handle to a reactor for other threads. Cheap to clone; may outlive the reactor.
#[derive(Clone)]
pub struct ReactorHandle {
    pub(crate) shared: Arc<Shared>,
}

impl ReactorHandle {
    /// The reactor's number.
    #[must_use]
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// Runs `job` on the reactor's thread, after all jobs accepted before. Allocates: for the
    /// control path. Ok means accepted; a job that the reactor does not reach before it ends is
    /// dropped.
    ///
    /// # Errors
    /// [`RunError::Full`] returns the job, [`RunError::Stopped`] drops it.
    pub fn run(&self, job: Job) -> Result<(), RunError> {
        self.shared.inbox.push(job).map_err(|error| match error {
            PushError::Full(job) => RunError::Full(job),
            PushError::Closed => RunError::Stopped,
        })?;
        self.shared.waker.wake();
        Ok(())
    }

    /// Makes the reactor take another turn if it sleeps.
    pub fn wake(&self) {
        self.shared.waker.wake();
    }

    /// The waker of this reactor, to attach to a ring or a mesh.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.shared.waker
    }

    /// The reactor's counters.
    #[must_use]
    pub fn stats(&self) -> &ReactorStats {
        &self.shared.stats
    }

    /// The reactor's latest trace events.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.shared.recording
    }

    /// The current activity of the reactor if it has lasted for at least `threshold` before `now`
    /// (of the reactor's clock). `None` while it makes progress or sleeps.
    #[must_use]
    pub fn stuck_in(&self, now: Nanos, threshold: Nanos) -> Option<StuckPoller> {
        self.shared.stats.stuck_in(now, threshold)
    }

    /// Whether the reactor accepts jobs: false after it has ended for any reason.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.shared.inbox.is_closed()
    }

    /// Requests the reactor to stop its pollers, and to end when they have stopped or at `deadline`
    /// of its clock.
    pub fn request_stop(&self, deadline: Nanos) {
        self.shared
            .stop_at
            .fetch_min(deadline.0.min(NO_STOP_REQUESTED - 1), Ordering::Relaxed);
        self.shared.waker.wake();
    }
}

impl fmt::Debug for ReactorHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ReactorHandle")
            .field("index", &self.index())
            .field("running", &self.is_running())
            .finish()
    }
}
