//! Due times of the requests of a rate-limited workload.
//!
//! A request is due at its time regardless of the target's speed, and its latency counts from then.
//! A stall of the target therefore affects the latency of every request that was due during the
//! stall, not only of those in flight; otherwise most of a stall would not be visible ("coordinated
//! omission").

use std::time::{Duration, Instant};

/// The requests of one lane, evenly spaced.
#[derive(Debug, Clone)]
pub(crate) struct Pacer {
    interval_ns: f64,
    /// Offset of this lane's first request in an interval, so that lanes do not send
    /// simultaneously.
    offset_ns: f64,
    start: Instant,
    begun: u64,
}

impl Pacer {
    /// The pacer of lane `index` of `lanes`, which together send `per_second` requests per second.
    pub(crate) fn new(per_second: f64, index: u16, lanes: u16) -> Self {
        let interval_ns = 1e9 * f64::from(lanes) / per_second;
        Self {
            interval_ns,
            offset_ns: interval_ns * f64::from(index) / f64::from(lanes),
            start: Instant::now(),
            begun: 0,
        }
    }

    /// Restarts at `start`.
    pub(crate) fn restart(&mut self, start: Instant) {
        (self.start, self.begun) = (start, 0);
    }

    /// When the next request is due.
    pub(crate) fn due(&self) -> Instant {
        let after = self.offset_ns + self.interval_ns * self.begun as f64;
        self.start + Duration::from_nanos(after as u64)
    }

    /// Notes that the due request was sent.
    pub(crate) fn advance(&mut self) {
        self.begun += 1;
    }

    /// Number of requests that were due before `end` and were not sent.
    pub(crate) fn missed_requests(&self, end: Instant) -> u64 {
        let span = end.saturating_duration_since(self.start).as_nanos() as f64;
        let due = ((span - self.offset_ns) / self.interval_ns).ceil().max(0.0);
        (due as u64).saturating_sub(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_a_rate_in_turns() {
        let start = Instant::now();
        let mut dues = Vec::new();
        for lane in 0..4 {
            let mut pacer = Pacer::new(1000.0, lane, 4);
            pacer.restart(start);
            for _ in 0..250 {
                dues.push(pacer.due() - start);
                pacer.advance();
            }
            assert_eq!(pacer.missed_requests(start + Duration::from_secs(1)), 0);
        }
        dues.sort();
        let expected: Vec<Duration> = (0..1000).map(Duration::from_millis).collect();
        assert_eq!(dues, expected);
    }

    #[test]
    fn missed_requests_are_counted() {
        let start = Instant::now();
        let mut pacer = Pacer::new(100.0, 0, 1);
        pacer.restart(start);
        assert_eq!(pacer.missed_requests(start), 0);
        assert_eq!(pacer.missed_requests(start + Duration::from_secs(1)), 100);
        for _ in 0..30 {
            pacer.advance();
        }
        assert_eq!(pacer.missed_requests(start + Duration::from_secs(1)), 70);
        assert_eq!(pacer.due(), start + Duration::from_millis(300));
    }
}
