//! Measures how much of its time a polling loop is busy.

use std::time::{Duration, Instant};

/// Divides the time of a polling loop. It reads the clock only in passes that find nothing, so a
/// loop that is always busy has no overhead.
#[derive(Debug)]
pub(super) struct Occupation {
    began: Instant,
    idle: Duration,
    /// The end of the first and of the latest of consecutive passes that found nothing.
    resting: Option<(Instant, Instant)>,
}

impl Occupation {
    /// Starts the measurement.
    pub(super) fn begin() -> Self {
        Self {
            began: Instant::now(),
            idle: Duration::ZERO,
            resting: None,
        }
    }

    /// Notes the end of a pass that transferred something or found nothing.
    #[inline]
    pub(super) fn passed(&mut self, moved: bool) {
        if !moved {
            let now = Instant::now();
            let since = self.resting.map_or(now, |(since, _)| since);
            self.resting = Some((since, now));
        } else if let Some((since, until)) = self.resting.take() {
            self.idle += until - since;
        }
    }

    /// The busy share of the time until now; the first pass of each idle period counts as busy.
    pub(super) fn busy_share(mut self) -> f64 {
        self.passed(true);
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
    fn passes_that_find_nothing_are_idle_time_and_others_are_not() {
        let mut occupation = Occupation::begin();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(2) {
            occupation.passed(false);
        }
        let rested = begin.elapsed();
        occupation.passed(true);
        assert!(occupation.idle <= rested);
        assert!(occupation.idle > Duration::ZERO && occupation.resting.is_none());
        let idle = occupation.idle;
        occupation.passed(true);
        assert_eq!(occupation.idle, idle);
        let share = occupation.busy_share();
        assert!((0.0..1.0).contains(&share), "{share}");
    }

    #[test]
    fn a_loop_that_never_rests_is_busy() {
        let mut occupation = Occupation::begin();
        occupation.passed(true);
        assert_eq!(occupation.busy_share(), 1.0);
    }
}
