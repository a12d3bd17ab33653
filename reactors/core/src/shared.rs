//! What other threads hold of a reactor: its inbox, its waker, its statistics.

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
    /// The inbox is full now; the job comes back for another try.
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

/// The reactors that stop together: each goes on until all are quiet, since one may wait for
/// another's answer.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: usize,
    pub(crate) quiet: AtomicUsize,
    /// All were quiet at once: set and never cleared.
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

/// No stop was asked for.
const RUNNING: u64 = u64::MAX;

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
            stop_at: AtomicU64::new(RUNNING),
        }))
    }

    /// The reactor will run no more jobs: those that wait are dropped, so that whoever waits for
    /// their effect learns it.
    pub(crate) fn close(&self) {
        self.inbox.close();
    }

    /// Until when the stop that was asked for may take.
    #[inline]
    pub(crate) fn stop_deadline(&self) -> Option<Nanos> {
        match self.stop_at.load(Ordering::Relaxed) {
            RUNNING => None,
            deadline => Some(Nanos(deadline)),
        }
    }
}

/// Another thread's way to a reactor. Cheap to clone; may outlive the reactor.
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

    /// Has `job` run on the reactor's thread, after the jobs accepted before it. Allocates: for the
    /// control path. Ok means accepted; a job that the reactor does not reach before it ends is
    /// dropped.
    ///
    /// # Errors
    /// [`RunError::Full`] gives the job back, [`RunError::Stopped`] drops it.
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

    /// What wakes this reactor, to attach to a ring or a mesh.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.shared.waker
    }

    /// The reactor's counters.
    #[must_use]
    pub fn stats(&self) -> &ReactorStats {
        &self.shared.stats
    }

    /// What the reactor noted down last.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.shared.recording
    }

    /// What the reactor is in at this moment and has been in for at least `threshold` before `now`
    /// (of the reactor's clock). `None` while it moves or sleeps.
    #[must_use]
    pub fn stuck_in(&self, now: Nanos, threshold: Nanos) -> Option<StuckPoller> {
        self.shared.stats.stuck_in(now, threshold)
    }

    /// Whether the reactor takes jobs: false once it has ended, for whatever reason.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.shared.inbox.is_closed()
    }

    /// Asks the reactor to stop its pollers, and to end when they have stopped or at `deadline` of
    /// its clock.
    pub fn request_stop(&self, deadline: Nanos) {
        self.shared
            .stop_at
            .fetch_min(deadline.0.min(RUNNING - 1), Ordering::Relaxed);
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
