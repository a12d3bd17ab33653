//! Moments until which something must have happened.

use std::time::{Duration, Instant};

use crate::error::HostError;

/// A moment until which something must have happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
    what: &'static str,
}

impl Deadline {
    /// `limit` from now; `what` is what will not have come.
    pub(crate) fn after(limit: Duration, what: &'static str) -> Self {
        let now = Instant::now();
        // A limit beyond what the clock can count is a year.
        let at = now
            .checked_add(limit)
            .unwrap_or(now + Duration::from_secs(31_536_000));
        Self { at, limit, what }
    }

    /// What is left of it.
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
