//! Latency heat maps: the number of commands per latency and second of the last hour, for all
//! exports together and for the first [`HEATMAPS_MAX`] of them, in rings of 705,600 bytes each (12
//! MB together).

use std::collections::BTreeMap;

use nvme_target::{LATENCY_BUCKETS, LatencyCounts, Stage, TargetLatency, latency_bucket_start};

use super::STEP;
use super::history::STEPS;
use super::model::Heatmap;

/// Most exports with a heat map of their own.
pub(crate) const HEATMAPS_MAX: usize = 16;
/// Lower latencies are in the first bucket.
const FIRST_BOUND_NS: u64 = 1 << 10;
/// The histogram's bucket that starts at this bound.
const FIRST_BUCKET: usize = 64;
/// Number of histogram buckets in a heat map's bucket: half a power of two.
const JOINED: usize = 4;
/// Buckets of a heat map.
const BUCKETS: usize = 1 + (LATENCY_BUCKETS - FIRST_BUCKET) / JOINED;
/// Marks a step without a sample, in its first bucket.
const UNKNOWN: u32 = u32::MAX;

const _: () = assert!(latency_bucket_start(FIRST_BUCKET) == FIRST_BOUND_NS);
const _: () = assert!((LATENCY_BUCKETS - FIRST_BUCKET).is_multiple_of(JOINED));
const _: () = assert!((HEATMAPS_MAX + 1) * STEPS * BUCKETS * size_of::<u32>() < 12 << 20);

/// The counts of one export or of all: [`STEPS`] rows of [`BUCKETS`].
struct Map {
    rows: Box<[u32]>,
    /// The last step with counts.
    seen: u64,
}

impl Map {
    fn new() -> Self {
        let mut map = Self {
            rows: vec![0; STEPS * BUCKETS].into_boxed_slice(),
            seen: 0,
        };
        for row in map.rows.chunks_exact_mut(BUCKETS) {
            row[0] = UNKNOWN;
        }
        map
    }

    fn row(&mut self, step: u64) -> &mut [u32] {
        let place = (step % STEPS as u64) as usize;
        &mut self.rows[place * BUCKETS..][..BUCKETS]
    }

    fn put(&mut self, step: u64, counts: &LatencyCounts) {
        self.seen = step;
        let row = self.row(step);
        row.fill(0);
        for (bucket, count) in counts.buckets.iter().enumerate() {
            let place = bucket
                .checked_sub(FIRST_BUCKET)
                .map_or(0, |above| 1 + above / JOINED);
            let count = u32::try_from(*count).unwrap_or(UNKNOWN - 1);
            row[place] = row[place].saturating_add(count).min(UNKNOWN - 1);
        }
    }
}

/// All heat maps.
pub(crate) struct Heatmaps {
    combined: Map,
    by_export: BTreeMap<String, Map>,
    step: u64,
    unix_ms: u64,
}

/// The export has no heat map.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no heat map for export {export}: it is not active, or not among the first {HEATMAPS_MAX}; \
     omit export= for all exports together"
)]
pub(crate) struct NoHeatmap {
    export: String,
}

impl Heatmaps {
    pub(crate) fn new() -> Self {
        Self {
            combined: Map::new(),
            by_export: BTreeMap::new(),
            step: 0,
            unix_ms: 0,
        }
    }

    /// Records the commands between two samples in `step`, which is that of the second. Steps
    /// without a sample stay unknown.
    pub(crate) fn record(
        &mut self,
        step: u64,
        unix_ms: u64,
        before: &TargetLatency,
        after: &TargetLatency,
    ) {
        let step = step.max(self.step);
        let maps = std::iter::once(&mut self.combined).chain(self.by_export.values_mut());
        for map in maps {
            for passed in (self.step + 1..=step).rev().take(STEPS) {
                map.row(passed)[0] = UNKNOWN;
            }
        }
        (self.step, self.unix_ms) = (step, unix_ms);
        // Removes maps whose counts are all older than the ring.
        self.by_export
            .retain(|_, map| map.seen + STEPS as u64 > step);
        let mut sum = LatencyCounts::default();
        for (nqn, counts) in &after.subsystems {
            let counts = counts[Stage::Total].together();
            let moved = match before.subsystem(nqn) {
                Some(before) => counts.since(&before[Stage::Total].together()),
                None => counts,
            };
            sum.add(&moved);
            if let Some(map) = self.by_export.get_mut(nqn) {
                map.put(step, &moved);
            } else if self.by_export.len() < HEATMAPS_MAX {
                let map = self.by_export.entry(nqn.clone()).or_insert_with(Map::new);
                map.put(step, &moved);
            }
        }
        self.combined.put(step, &sum);
    }

    /// The last `seconds` of one export, or of all together.
    ///
    /// # Errors
    /// The export has no heat map.
    pub(crate) fn last(&self, seconds: usize, export: Option<&str>) -> Result<Heatmap, NoHeatmap> {
        let map = match export {
            None => &self.combined,
            Some(nqn) => self.by_export.get(nqn).ok_or_else(|| NoHeatmap {
                export: nqn.to_owned(),
            })?,
        };
        let ages = (0..seconds.clamp(1, STEPS) as u64).rev();
        let rows = ages.map(|age| {
            let step = self.step.checked_sub(age)?;
            let place = (step % STEPS as u64) as usize;
            let row = &map.rows[place * BUCKETS..][..BUCKETS];
            (row[0] != UNKNOWN).then(|| row.to_vec())
        });
        let bounds = (FIRST_BUCKET..=LATENCY_BUCKETS).step_by(JOINED);
        Ok(Heatmap {
            step: self.step,
            now_unix_ms: self.unix_ms,
            step_ms: STEP.as_millis() as u64,
            bounds_ns: bounds.map(latency_bucket_start).collect(),
            counts: rows.collect(),
        })
    }
}

#[cfg(test)]
mod tests;
