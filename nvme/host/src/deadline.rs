//! Deadlines of the control path.

use std::time::{Duration, Instant};

use crate::error::HostError;

/// A deadline for an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
    what: &'static str,
}

impl Deadline {
    /// A deadline at `limit` from now; `what` names the event in the error.
    pub(crate) fn after(limit: Duration, what: &'static str) -> Self {
        let now = Instant::now();
        // A limit beyond the clock's range counts as a year.
        let at = now
            .checked_add(limit)
            .unwrap_or(now + Duration::from_secs(31_536_000));
        Self { at, limit, what }
    }

    /// The remaining time, or an error after the deadline.
    pub(crate) fn left(&self) -> Result<Duration, HostError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(HostError::TimedOut {
                what: self.what,
                limit: self.limit,
            })
        } else {
            Ok(left)
        }
    }
}
