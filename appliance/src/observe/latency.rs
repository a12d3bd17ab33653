//! Computes percentiles from histograms, for the last seconds and for the history's steps.

use nvme_target::{LatencyCounts, OperationCounts, Stage, StageCounts, TargetLatency};

use super::model::{Latency, Percentiles};
use super::observation::Observation;

/// The names of the history's percentiles, with their value in thousandths.
const SERIES: [(&str, u32); 3] = [("p50_ns", 500), ("p99_ns", 990), ("p999_ns", 999)];

/// Percentiles of the commands between two samples, for the history; unknown if there were none.
pub(crate) fn series(
    before: Option<&OperationCounts>,
    after: Option<&OperationCounts>,
) -> impl Iterator<Item = (&'static str, f32)> {
    let moved = after.map(|after| since(before, after).together());
    SERIES.into_iter().map(move |(what, permille)| {
        let found = moved.as_ref().and_then(|it| it.percentile(permille));
        (what, found.map_or(f32::NAN, |nanos| nanos.0 as f32))
    })
}

/// The latencies of all exports together.
pub(crate) fn of_all(latency: &TargetLatency) -> OperationCounts {
    let mut sum = OperationCounts::default();
    let reactors = latency.reactors.iter();
    reactors.for_each(|reactor| sum.add(reactor));
    sum
}

/// The mean number of commands in flight between two samples: the sum of their latencies divided by
/// the interval.
pub(crate) fn depth(
    before: Option<&OperationCounts>,
    after: Option<&OperationCounts>,
    seconds: f64,
) -> f32 {
    let taken = after.map_or(0, |after| since(before, after).together().sum_ns);
    (taken as f64 / (seconds * 1e9)) as f32
}

fn since(before: Option<&OperationCounts>, after: &OperationCounts) -> OperationCounts {
    before.map_or_else(|| after.clone(), |before| after.since(before))
}

impl Observation {
    /// Percentiles of the last seconds. `of` selects the counts.
    pub(crate) fn latency_of(
        &self,
        of: impl Fn(&TargetLatency) -> Option<OperationCounts>,
    ) -> Option<Latency> {
        let after = of(&self.latency)?;
        let moved = since(of(&self.before.latency).as_ref(), &after);
        let window = self.at.saturating_duration_since(self.before.at);
        Some(Latency {
            window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
            read: percentiles(&moved.read),
            write: percentiles(&moved.write),
        })
    }

    /// Percentiles of one stage of an export's commands.
    pub(crate) fn export_latency(&self, nqn: &str, stage: Stage) -> Option<Latency> {
        let counts = |stages: &StageCounts| stages[stage].clone();
        self.latency_of(|latency| latency.subsystem(nqn).map(counts))
    }

    /// The time that commands have spent in the device of that name since the start.
    pub(crate) fn device_latency(&self, name: &str) -> Option<OperationCounts> {
        let place = self.device(name)?.place;
        self.latency.devices.get(usize::from(place.0)).cloned()
    }
}

fn percentiles(counts: &LatencyCounts) -> Percentiles {
    let ns = |permille| counts.percentile(permille).map(|nanos| nanos.0);
    Percentiles {
        count: counts.count(),
        p50_ns: ns(500),
        p99_ns: ns(990),
        p999_ns: ns(999),
    }
}
