//! Two observations of an appliance and the rates between them.

use crate::observe::model::{Status, Totals};

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) reads: f64,
    pub(crate) bytes_read: f64,
    pub(crate) writes: f64,
    pub(crate) bytes_written: f64,
    /// Flush, Compare, Write Zeroes, Dataset Management.
    pub(crate) others: f64,
    pub(crate) errors: f64,
}

/// The state of an appliance, and its activity since an earlier observation.
#[derive(Clone, Debug)]
pub(crate) struct StatusDelta {
    /// The earlier observation. None: rates are averages since the start.
    before: Option<Status>,
    pub(crate) now: Status,
}

impl StatusDelta {
    pub(crate) fn new(before: Option<Status>, now: Status) -> Self {
        // An appliance that was restarted in between counts from zero.
        let before = before.filter(|then| {
            then.appliance.pid == now.appliance.pid && then.now_unix_ms <= now.now_unix_ms
        });
        Self { before, now }
    }

    /// The length of the interval, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        let seconds = match &self.before {
            Some(before) => (self.now.now_unix_ms - before.now_unix_ms) as f64 / 1000.0,
            None => self.now.appliance.uptime_s as f64,
        };
        seconds.max(0.001)
    }

    /// The rates of one object, from its current totals and a function that finds its earlier
    /// totals.
    pub(crate) fn rates(
        &self,
        now: Totals,
        earlier: impl FnOnce(&Status) -> Option<Totals>,
    ) -> Rates {
        // An object that did not exist before starts from zero.
        let then = self.before.as_ref().and_then(earlier).unwrap_or_default();
        let seconds = self.seconds();
        let rate = |then: u64, now: u64| {
            // A smaller total means that counting restarted.
            let moved = if now < then { now } else { now - then };
            moved as f64 / seconds
        };
        Rates {
            reads: rate(then.reads, now.reads),
            bytes_read: rate(then.bytes_read, now.bytes_read),
            writes: rate(then.writes, now.writes),
            bytes_written: rate(then.bytes_written, now.bytes_written),
            others: rate(then.others, now.others),
            errors: rate(then.errors, now.errors),
        }
    }

    /// The rates of all devices together.
    pub(crate) fn total_rates(&self) -> Rates {
        self.rates(all_devices(&self.now), |then| Some(all_devices(then)))
    }

    /// The share of time in which the reactor at `index` was busy, in thousandths.
    pub(crate) fn busy_permille(&self, index: usize) -> Option<u32> {
        let now = self.now.reactors.get(index)?;
        let before = self.before.as_ref().and_then(|it| it.reactors.get(index));
        let then = before.map_or(0, |it| it.busy_ns);
        let busy = now.busy_ns.saturating_sub(then) as f64 / 1e9;
        Some((busy / self.seconds() * 1000.0).min(1000.0) as u32)
    }

    /// The growth per second of a counter.
    pub(crate) fn rate_of(&self, counter: impl Fn(&Status) -> u64) -> f64 {
        let then = self.before.as_ref().map_or(0, &counter);
        counter(&self.now).saturating_sub(then) as f64 / self.seconds()
    }
}

fn all_devices(status: &Status) -> Totals {
    let mut all = Totals::default();
    for device in &status.devices {
        all.add(device.totals);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::status;
    use super::*;

    fn totals(reads: u64) -> Totals {
        Totals {
            reads,
            bytes_read: reads * 4096,
            ..Totals::default()
        }
    }

    /// An interval of two seconds in which the first device's reads change from `then` to `now`.
    fn delta_of(then: u64, now: u64) -> StatusDelta {
        let (mut before, mut after) = (status(), status());
        before.devices[0].totals = totals(then);
        after.devices[0].totals = totals(now);
        after.now_unix_ms = before.now_unix_ms + 2000;
        StatusDelta::new(Some(before), after)
    }

    #[test]
    fn rates_are_per_second_between_samples() {
        let rates = delta_of(100, 300).total_rates();
        assert_eq!((rates.reads, rates.bytes_read), (100.0, 409_600.0));
        // Counting restarted.
        assert_eq!(delta_of(300, 100).total_rates().reads, 50.0);
    }

    #[test]
    fn a_restarted_appliance_counts_from_zero() {
        let (mut before, mut after) = (status(), status());
        before.devices[0].totals = totals(1_000_000);
        before.appliance.pid += 1;
        after.devices[0].totals = totals(500);
        after.appliance.uptime_s = 5;
        let delta = StatusDelta::new(Some(before), after);
        assert_eq!(delta.seconds(), 5.0);
        assert_eq!(delta.total_rates().reads, 100.0);
    }

    #[test]
    fn elapsed_time_is_positive_after_a_clock_step_back() {
        let (before, mut after) = (status(), status());
        after.now_unix_ms = before.now_unix_ms - 10;
        after.appliance.uptime_s = 0;
        let delta = StatusDelta::new(Some(before), after);
        assert!(delta.seconds() > 0.0);
    }

    #[test]
    fn reactor_busy_share_is_computed_from_busy_time() {
        let (before, mut after) = (status(), status());
        after.now_unix_ms = before.now_unix_ms + 1000;
        after.reactors[0].busy_ns = before.reactors[0].busy_ns + 250_000_000;
        let delta = StatusDelta::new(Some(before), after);
        assert_eq!(delta.busy_permille(0), Some(250));
        assert_eq!(delta.busy_permille(7), None);
    }
}
