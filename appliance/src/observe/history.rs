//! One value per second and series for the last hour, in bounded memory: a series is a ring of
//! [`STEPS`] four-byte numbers (14,400 bytes), and there are at most [`SERIES_MAX`] (14,745,600
//! bytes together). One export of two devices on one reactor takes 53 series, 763 kB.

use std::collections::BTreeMap;
use std::time::Instant;

use nvme_target::Stage;

use super::STEP;
use super::latency;
use super::model::{History, HistoryKey, HistoryKind, Totals};
use super::observation::Observation;

/// Values of a series: an hour of seconds.
pub(crate) const STEPS: usize = 3600;
/// Most series.
pub(crate) const SERIES_MAX: usize = 1024;
/// Most values in one response, about ten bytes each.
pub(crate) const VALUES_MAX: usize = 1_000_000;
/// Most series of one object.
const SERIES_OF_KEY_MAX: usize = 10;
/// Most bytes of all rings together.
const BYTES_MAX: usize = SERIES_MAX * STEPS * size_of::<f32>();

const _: () = assert!(BYTES_MAX < 16 << 20);
const _: () = assert!(VALUES_MAX >= 10 * STEPS * SERIES_OF_KEY_MAX);

/// The values of one object in one step.
type Values = Vec<(&'static str, f32)>;

/// The series of one object.
struct Series {
    what: Vec<&'static str>,
    /// `what.len()` consecutive rings of [`STEPS`] values; NaN: unknown.
    rings: Box<[f32]>,
    /// The last step with a value.
    seen: u64,
}

impl Series {
    fn new(values: &Values, step: u64) -> Self {
        Self {
            what: values.iter().map(|(what, _)| *what).collect(),
            rings: vec![f32::NAN; values.len() * STEPS].into_boxed_slice(),
            seen: step,
        }
    }

    fn clear(&mut self, step: u64) {
        for ring in self.rings.chunks_exact_mut(STEPS) {
            ring[place(step)] = f32::NAN;
        }
    }

    fn put(&mut self, step: u64, values: &Values) {
        self.seen = step;
        for (what, value) in values {
            let ring = self.what.iter().position(|known| known == what);
            if let Some(ring) = ring {
                self.rings[ring * STEPS + place(step)] = *value;
            }
        }
    }
}

fn place(step: u64) -> usize {
    // Less than STEPS.
    (step % STEPS as u64) as usize
}

/// All series.
pub(crate) struct Recorder {
    began: Instant,
    /// The step of the last value.
    step: u64,
    unix_ms: u64,
    all: BTreeMap<HistoryKey, Series>,
    left_out: u64,
}

/// Why a query is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer would hold {values} values, more than {VALUES_MAX}: ask for at most {fits} seconds, \
     or for one kind of series (kind=export)"
)]
pub(crate) struct TooMuch {
    values: usize,
    fits: usize,
}

impl Recorder {
    pub(crate) fn new(began: Instant) -> Self {
        Self {
            began,
            step: 0,
            unix_ms: 0,
            all: BTreeMap::new(),
            left_out: 0,
        }
    }

    /// Records the values of the step that ends with `after`, and returns that step. Steps without
    /// a sample stay unknown.
    pub(crate) fn record(&mut self, before: &Observation, after: &Observation) -> u64 {
        let values = rates(before, after);
        let elapsed = after.at.duration_since(self.began);
        self.put(
            (elapsed.as_millis() / STEP.as_millis()) as u64,
            after.unix_ms,
            values,
        );
        self.step
    }

    fn put(&mut self, step: u64, unix_ms: u64, values: Vec<(HistoryKey, Values)>) {
        // Of two samples within one step, the later one counts.
        let step = step.max(self.step);
        let skipped = (step - self.step).min(STEPS as u64);
        for passed in 0..skipped {
            for series in self.all.values_mut() {
                series.clear(step - passed);
            }
        }
        (self.step, self.unix_ms) = (step, unix_ms);
        // Removes series whose values are all older than the ring.
        self.all
            .retain(|_, series| series.seen + STEPS as u64 > step);
        self.left_out = 0;
        for (key, values) in values {
            let used: usize = self.all.values().map(|series| series.what.len()).sum();
            let room = SERIES_MAX - used;
            if let Some(series) = self.all.get_mut(&key) {
                series.put(step, &values);
            } else if values.len() <= room {
                let mut series = Series::new(&values, step);
                series.put(step, &values);
                self.all.insert(key, series);
            } else {
                self.left_out += 1;
            }
        }
    }

    /// The last `seconds` values of all series, or of those of one kind.
    ///
    /// # Errors
    /// The response would be too large.
    pub(crate) fn history(
        &self,
        seconds: usize,
        kind: Option<HistoryKind>,
    ) -> Result<History, TooMuch> {
        let seconds = seconds.clamp(1, STEPS);
        let wanted = || {
            let all = self.all.iter();
            all.filter(|(key, _)| kind.is_none_or(|kind| key.kind == kind))
        };
        let count: usize = wanted().map(|(_, series)| series.what.len()).sum();
        if count * seconds > VALUES_MAX {
            return Err(TooMuch {
                values: count * seconds,
                fits: VALUES_MAX / count,
            });
        }
        let mut series = BTreeMap::new();
        for (key, one) in wanted() {
            for (what, ring) in one.what.iter().zip(one.rings.chunks_exact(STEPS)) {
                let name = format!("{}/{}/{what}", key.kind.word(), key.name);
                series.insert(name, self.last(ring, seconds));
            }
        }
        Ok(History {
            now_unix_ms: self.unix_ms,
            step: self.step,
            step_ms: STEP.as_millis() as u64,
            keys: wanted().map(|(key, _)| key.clone()).collect(),
            left_out: self.left_out,
            series,
        })
    }

    fn last(&self, ring: &[f32], count: usize) -> Vec<Option<f32>> {
        let ages = (0..count as u64).rev();
        ages.map(|age| {
            let step = self.step.checked_sub(age)?;
            let value = ring[place(step)];
            (!value.is_nan()).then_some(value)
        })
        .collect()
    }
}

/// The rates of all objects between two observations.
fn rates(before: &Observation, after: &Observation) -> Vec<(HistoryKey, Values)> {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(0.001);
    let mut all = Vec::new();
    let mut add = |kind, name: &str, values| {
        let name = name.to_owned();
        all.push((HistoryKey { kind, name }, values));
    };
    let sum = |seen: &Observation| {
        let mut sum = Totals::default();
        let devices = seen.target.devices.iter();
        devices.for_each(|totals| sum.add((*totals).into()));
        sum
    };
    let mut total = moved(sum(before), sum(after), seconds);
    let depths = after
        .reactors
        .iter()
        .map(|reactor| reactor.counters.executions);
    total.push(("depth", depths.sum::<u64>() as f32));
    let (then, now) = (
        latency::of_all(&before.latency),
        latency::of_all(&after.latency),
    );
    total.extend(latency::series(Some(&then), Some(&now)));
    add(HistoryKind::Total, "", total);
    let moved_by = moved_by_reactors(before, after);
    for (index, (then, now)) in before.reactors.iter().zip(&after.reactors).enumerate() {
        let busy = now.stats.busy.0.saturating_sub(then.stats.busy.0) as f64;
        let permille = (busy / (seconds * 1e9) * 1000.0).min(1000.0);
        let (totals_then, totals_now) = moved_by[index];
        let mut values = moved(totals_then, totals_now, seconds);
        values.push(("busy_permille", permille as f32));
        values.push(("depth", now.counters.executions as f32));
        let of = |seen: &Observation| seen.latency.reactors.get(index).cloned();
        values.extend(latency::series(of(before).as_ref(), of(after).as_ref()));
        add(HistoryKind::Reactor, &index.to_string(), values);
    }
    for class in after
        .memory
        .counters
        .classes
        .iter()
        .filter(|class| class.total > 0)
    {
        let free = 1000.0 * class.free as f64 / class.total as f64;
        let name = class.slice_bytes.to_string();
        add(
            HistoryKind::Pool,
            &name,
            vec![("free_permille", free as f32)],
        );
    }
    for export in &after.config.exports {
        let (then, now) = (before.export_totals(export), after.export_totals(export));
        let mut values = moved(then, now, seconds);
        let nqn = export.nqn.as_str();
        let of = |seen: &Observation| Some(seen.latency.subsystem(nqn)?[Stage::Total].clone());
        let (then, now) = (of(before), of(after));
        let depth = latency::depth(then.as_ref(), now.as_ref(), seconds);
        values.push(("depth", depth));
        values.extend(latency::series(then.as_ref(), now.as_ref()));
        add(HistoryKind::Export, nqn, values);
    }
    for device in &after.devices {
        let totals = |seen: &Observation| seen.device_totals(&device.name);
        let mut values = moved(totals(before), totals(after), seconds);
        let of = |seen: &Observation| seen.device_latency(&device.name);
        values.extend(latency::series(of(before).as_ref(), of(after).as_ref()));
        add(HistoryKind::Device, &device.name, values);
    }
    let (then, now) = (hosts(before), hosts(after));
    for (host, totals) in &now {
        // A new host starts from zero.
        let before = then.get(host).copied().unwrap_or_default();
        add(HistoryKind::Host, host, moved(before, *totals, seconds));
    }
    all
}

/// The totals of each reactor's I/O queues, before and after, over the queues that exist now. The
/// last step of a closed queue is counted for no reactor.
fn moved_by_reactors(before: &Observation, after: &Observation) -> Vec<(Totals, Totals)> {
    let queues = |seen: &Observation| -> Vec<((u16, u16), usize, Totals)> {
        let controllers = seen.target.controllers.iter();
        let queues = controllers.flat_map(|controller| {
            let of = |queue: &nvme_target::QueueSnapshot| {
                let name = (controller.controller_id, queue.qid);
                (name, queue.reactor, queue.totals.into())
            };
            controller.io_queues.iter().map(of)
        });
        queues.collect()
    };
    let known = queues(before).into_iter();
    let known: BTreeMap<_, _> = known.map(|(name, _, totals)| (name, totals)).collect();
    let mut moved = vec![(Totals::default(), Totals::default()); after.reactors.len()];
    for (name, reactor, now) in queues(after) {
        let Some((sum_then, sum_now)) = moved.get_mut(reactor) else {
            continue;
        };
        sum_now.add(now);
        // A smaller count means a new queue with the same identifiers.
        if let Some(then) = known.get(&name)
            && then.reads <= now.reads
            && then.writes <= now.writes
        {
            sum_then.add(*then);
        }
    }
    moved
}

/// The totals of each host, over all its controllers.
fn hosts(seen: &Observation) -> BTreeMap<&str, Totals> {
    let mut hosts: BTreeMap<&str, Totals> = BTreeMap::new();
    for controller in &seen.target.controllers {
        let totals = hosts.entry(&controller.host_nqn).or_default();
        totals.add(controller.totals.into());
    }
    hosts
}

/// Rates per second. A smaller total means that counting restarted.
fn moved(before: Totals, after: Totals, seconds: f64) -> Values {
    let rate = |then: u64, now: u64| {
        let moved = if now < then { now } else { now - then };
        (moved as f64 / seconds) as f32
    };
    vec![
        ("read_iops", rate(before.reads, after.reads)),
        ("write_iops", rate(before.writes, after.writes)),
        ("read_bytes", rate(before.bytes_read, after.bytes_read)),
        (
            "write_bytes",
            rate(before.bytes_written, after.bytes_written),
        ),
        ("errors", rate(before.errors, after.errors)),
    ]
}

#[cfg(test)]
mod tests;
