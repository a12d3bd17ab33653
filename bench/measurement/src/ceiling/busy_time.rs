//! Measures how much of its time a polling loop is busy.

use std::time::{Duration, Instant};

/// Divides the time of a polling loop. It reads the clock only in passes that find nothing, so a
/// loop that is always busy has no overhead.
#[derive(Debug)]
pub(super) struct BusyTime {
    began: Instant,
    idle: Duration,
    /// The end of the first and of the latest of consecutive passes that found nothing.
    idle_span: Option<(Instant, Instant)>,
}

impl BusyTime {
    /// Starts the measurement.
    pub(super) fn begin() -> Self {
        Self {
            began: Instant::now(),
            idle: Duration::ZERO,
            idle_span: None,
        }
    }

    /// Notes the end of a pass that transferred something or found nothing.
    #[inline]
    pub(super) fn end_pass(&mut self, moved: bool) {
        if !moved {
            let now = Instant::now();
            let since = self.idle_span.map_or(now, |(since, _)| since);
            self.idle_span = Some((since, now));
        } else if let Some((since, until)) = self.idle_span.take() {
            self.idle += until - since;
        }
    }

    /// The busy share of the time until now; the first pass of each idle period counts as busy.
    pub(super) fn busy_share(mut self) -> f64 {
        self.end_pass(true);
        let whole = self.began.elapsed().as_secs_f64();
        if whole > 0.0 {
            1.0 - self.idle.as_secs_f64() / whole
        } else {
            1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_passes_count_as_idle_time() {
        let mut busy_time = BusyTime::begin();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(2) {
            busy_time.end_pass(false);
        }
        let rested = begin.elapsed();
        busy_time.end_pass(true);
        assert!(busy_time.idle <= rested);
        assert!(busy_time.idle > Duration::ZERO && busy_time.idle_span.is_none());
        let idle = busy_time.idle;
        busy_time.end_pass(true);
        assert_eq!(busy_time.idle, idle);
        let share = busy_time.busy_share();
        assert!((0.0..1.0).contains(&share), "{share}");
    }

    #[test]
    fn loop_without_idle_passes_is_fully_busy() {
        let mut busy_time = BusyTime::begin();
        busy_time.end_pass(true);
        assert_eq!(busy_time.busy_share(), 1.0);
    }
}
