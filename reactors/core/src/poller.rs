//! What runs on a reactor.

use std::os::fd::BorrowedFd;

use crate::time::Nanos;

/// What one call of [`Poller::poll`] or one turn of a reactor achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was nothing to do: counts as idle time and lets the reactor rest.
    Idle,
    /// Work was done; the number is how many items, in the poller's own measure. `Busy(0)` still
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

    /// Both together: busy if either was.
    #[must_use]
    pub fn and(self, other: Progress) -> Progress {
        match (self, other) {
            (Progress::Idle, other) | (other, Progress::Idle) => other,
            (Progress::Busy(a), Progress::Busy(b)) => Progress::Busy(a.saturating_add(b)),
        }
    }
}

/// How far a poller is with stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopState {
    /// Nothing is in flight any more.
    Stopped,
    /// That many items (requests, connections, …) still have to end.
    Outstanding(u32),
}

/// A source of work that a reactor polls. It lives on one thread, so it need not be `Send`.
///
/// No method may block, take a lock that another thread can hold for long, or allocate in the
/// steady state.
pub trait Poller {
    /// The name that statistics, warnings and stop reports use. It is read once, at registration.
    fn name(&self) -> &str;

    /// Does the work that is there, within limits of its own: a poller that could find work without
    /// end stops after a named number of items, so that the others get their turn. `now` is the
    /// reactor's clock just before the call.
    fn poll(&mut self, now: Nanos) -> Progress;

    /// End of the turn: ring doorbells, send what is ready. Called in every turn, after every
    /// poller was polled.
    fn flush(&mut self, now: Nanos) {
        let _ = now;
    }

    /// The reactor must not sleep past this point of its clock.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// A descriptor that is readable while there is work: a socket's epoll, a ring's descriptor.
    /// A sleeping reactor waits on it, level-triggered.
    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called just before sleeping, after the reactor announced its sleep: from then on other
    /// reactors' messages wake it. Arm interrupts or notifications here, then look once more:
    /// `false` means "there is work, do not sleep". The reactor may go on without having slept even
    /// after `true` (another poller refused), so armed notifications must be harmless while
    /// polling. Not called by the policy [`Poll`](crate::IdlePolicy::Poll).
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Shutdown: take in nothing new and let what is in flight end. Called in every turn, between
    /// ordinary polls, until every poller of every reactor says [`StopState::Stopped`] or the
    /// deadline has passed.
    fn stop(&mut self, now: Nanos) -> StopState {
        let _ = now;
        StopState::Stopped
    }
}
