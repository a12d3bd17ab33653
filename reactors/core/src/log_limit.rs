//! Limits log lines that external input can cause, and counts the suppressed ones, so that external
//! input cannot flood the log.

use std::cell::Cell;

use crate::time::Nanos;

/// Maximum number of lines per second.
const LINES_PER_SECOND_MAX: u32 = 10;

/// Decides which lines are written: by default one per reactor for all lines that its hosts can
/// cause.
#[derive(Debug)]
pub struct LogLimit {
    lines_max: u32,
    period: Nanos,
    period_ends: Cell<Nanos>,
    written: Cell<u32>,
    suppressed: Cell<u64>,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new(LINES_PER_SECOND_MAX, Nanos::from_secs(1))
    }
}

impl LogLimit {
    /// Admits at most `lines_max` lines in each `period`.
    #[must_use]
    pub fn new(lines_max: u32, period: Nanos) -> Self {
        Self {
            lines_max,
            period,
            period_ends: Cell::default(),
            written: Cell::default(),
            suppressed: Cell::default(),
        }
    }

    /// Returns the number of suppressed lines if a line may be written now, otherwise `None`.
    #[must_use]
    pub fn admit(&self, now: Nanos) -> Option<u64> {
        if now >= self.period_ends.get() {
            self.period_ends.set(now.saturating_add(self.period));
            self.written.set(0);
        }
        if self.written.get() == self.lines_max {
            self.suppressed.set(self.suppressed.get() + 1);
            return None;
        }
        self.written.set(self.written.get() + 1);
        Some(self.suppressed.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_limited_and_suppressed_lines_are_reported_once() {
        let limit = LogLimit::default();
        let now = Nanos::from_secs(5);
        let written = (0..1000).filter(|_| limit.admit(now).is_some()).count();
        assert_eq!(written, LINES_PER_SECOND_MAX as usize);
        let later = now.saturating_add(Nanos::from_secs(1));
        assert_eq!(
            limit.admit(later),
            Some(1000 - u64::from(LINES_PER_SECOND_MAX))
        );
        assert_eq!(limit.admit(later), Some(0));
    }
}
