//! Pollers, the units of work that run on a reactor.

use std::os::fd::BorrowedFd;

use crate::time::Nanos;

/// Result of one call of [`Poller::poll`] or of one turn of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was no work: counts as idle time and lets the reactor rest.
    Idle,
    /// Work was done. The number is the number of items in the poller's own unit. `Busy(0)` still
    /// counts as busy.
    Busy(u32),
}

impl Progress {
    /// `Idle` for zero items, `Busy` otherwise.
    #[must_use]
    pub fn from_count(items: usize) -> Progress {
        match u32::try_from(items) {
            Ok(0) => Progress::Idle,
            Ok(items) => Progress::Busy(items),
            Err(_) => Progress::Busy(u32::MAX),
        }
    }

    /// Whether work was done.
    #[must_use]
    pub fn is_busy(self) -> bool {
        matches!(self, Progress::Busy(_))
    }

    /// Combines two results: busy if either was.
    #[must_use]
    pub fn and(self, other: Progress) -> Progress {
        match (self, other) {
            (Progress::Idle, other) | (other, Progress::Idle) => other,
            (Progress::Busy(a), Progress::Busy(b)) => Progress::Busy(a.saturating_add(b)),
        }
    }
}

/// Progress of a poller's stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopState {
    /// Nothing is in flight.
    Stopped,
    /// Number of items (requests, connections, …) that have not ended.
    Outstanding(u32),
}

/// A source of work that a reactor polls. It lives on one thread, so it need not be `Send`.
///
/// No method may block, take a lock that another thread can hold for long, or allocate in the
/// steady state.
pub trait Poller {
    /// The name that statistics, warnings and stop reports use. It is read once, at registration.
    fn name(&self) -> &str;

    /// Does the available work, within the poller's own limits: a poller that could find unlimited
    /// work stops after a fixed number of items, so that the others get their turn. `now` is the
    /// reactor's clock just before the call.
    fn poll(&mut self, now: Nanos) -> Progress;

    /// Ends the turn: rings doorbells and sends queued data. Called in every turn, after all
    /// pollers were polled.
    fn flush(&mut self, now: Nanos) {
        let _ = now;
    }

    /// Time of the reactor's clock by which it must take another turn.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// A descriptor that is readable while there is work, for example a socket's epoll or a ring's
    /// descriptor. A sleeping reactor waits on it, level-triggered.
    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called just before a sleep, after the reactor announced it: from then on messages of other
    /// reactors wake it. Enable interrupts or notifications here, then check for work once more:
    /// `false` means that there is work and the reactor does not sleep. It may continue without a
    /// sleep even after `true` (if another poller returned false), so enabled notifications must be
    /// harmless while polling. Not called with the policy [`Poll`](crate::IdlePolicy::Poll).
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Shutdown: accept no new work and let work in flight end. Called in every turn, between
    /// regular polls, until every poller of every reactor returns [`StopState::Stopped`] or the
    /// deadline has passed.
    fn stop(&mut self, now: Nanos) -> StopState {
        let _ = now;
        StopState::Stopped
    }
}
