//! The rules by which the speed of paces changes. Nothing here reads a clock or a counter.
//!
//! **Latency.** When a subsystem misses its target, the limit of each subsystem without one falls by
//! [`SLOWER`], from what it has done. Commands from before that are not counted a second time.
//! While all targets are kept with some distance ([`KEPT`]), limits rise by [`FASTER`] until close
//! to where the target was missed ([`CLOSE`]), then by [`CAREFUL`], and fall back by [`EASED`] when
//! the distance becomes small: a queue that has become long takes more commands of the target's
//! subsystem with it than one in a hundred. Beyond [`PAST`] the disk has become faster. Limits end
//! when they have delayed nothing for a while.
//!
//! **Shares.** A disk is the bottleneck while [`FULL_DISK`] commands are in it on average. Then its
//! users share what it has just done by their weights. One that needs less than its share leaves
//! the rest to the others. What is shared rises or falls until about that many commands are in the
//! disk: enough to keep it busy, and none waits there for others.

use std::collections::BTreeMap;

use reactors::Nanos;

use super::PaceReason;
use crate::latency::LatencyCounts;

/// The factor of a limit while a latency target is missed.
const SLOWER: Ratio = Ratio(7, 10);

/// The factor of a limit while all latency targets are kept, or while a disk has room.
const FASTER: Ratio = Ratio(17, 16);

/// The part of the speed at which a target was missed from which a limit rises by [`CAREFUL`].
const CLOSE: Ratio = Ratio(9, 10);

/// The factor of that speed beyond which it is no longer known.
const PAST: Ratio = Ratio(11, 10);

/// The factor of a limit close to where a target was missed, while all are kept.
const CAREFUL: Ratio = Ratio(513, 512);

/// The factor of a limit there, while a target is kept with little distance.
const EASED: Ratio = Ratio(31, 32);

/// The part of its target that a percentile stays below if the target is kept with some distance.
/// Above it there is a queue, which becomes longer within a few comparisons.
const KEPT: Ratio = Ratio(5, 10);

/// The factor of what a disk has done while more commands are in it than necessary.
const DRAINING: Ratio = Ratio(9, 10);

/// What a user of a full disk may do more than it has done, although it needs less than its share.
const HEADROOM: Ratio = Ratio(5, 4);

/// The slowest pace in bytes of a second.
pub(super) const SLOWEST: u64 = 1 << 20;

/// The commands in a disk, on average over an interval, at which it is the bottleneck. It is the
/// depth at which current drives reach most of their speed.
pub(super) const FULL_DISK: u64 = 64;

/// The values of a percentile, at least, before it is compared with its target.
const VALUES_MIN: u64 = 100;

/// The time after which it is compared with fewer values.
const VALUES_TIME: Nanos = Nanos::from_secs(1);

/// The longest time for which commands from before a change are not counted.
const DRAIN_MAX: Nanos = Nanos::from_millis(500);

/// Intervals after which a limit that delays nothing ends.
const CALM: u32 = 10;

/// The percentile of latency targets, in a thousand.
const PERMILLE: u32 = 990;

/// A factor.
#[derive(Clone, Copy)]
struct Ratio(u64, u64);

impl Ratio {
    fn of(self, value: u64) -> u64 {
        let Self(numerator, denominator) = self;
        let product = u128::from(value) * u128::from(numerator) / u128::from(denominator);
        u64::try_from(product).unwrap_or(u64::MAX)
    }
}

/// What has been counted until a time. All counts are since the start.
pub(super) struct Sample {
    pub(super) at: Nanos,
    pub(super) targets: Vec<TargetSample>,
    pub(super) disks: Vec<DiskSample>,
    pub(super) paces: Vec<PaceSample>,
}

/// The latencies of a subsystem with a target.
pub(super) struct TargetSample {
    pub(super) subsystem: String,
    pub(super) target: Nanos,
    pub(super) counts: LatencyCounts,
}

/// A disk that subsystems share.
pub(super) struct DiskSample {
    pub(super) disk: String,
    /// The sum of the times, in nanoseconds, for which completed commands were in it.
    pub(super) in_device: u64,
}

/// A pace.
pub(super) struct PaceSample {
    pub(super) subsystem: String,
    pub(super) reason: PaceReason,
    pub(super) weight: u32,
    /// The bytes that it let start.
    pub(super) admitted: u64,
    /// The commands that it delayed.
    pub(super) throttled: u64,
}

/// The name of a pace.
type Key = (String, PaceReason);

/// What is known of a pace.
#[derive(Default)]
struct PaceState {
    admitted: u64,
    throttled: u64,
    limit: Option<u64>,
    /// The speed at which a latency target was missed last.
    missed_at: Option<u64>,
    /// Intervals since it delayed a command.
    calm: u32,
}

/// The values of a percentile since it was compared last.
struct Window {
    /// When it begins: after a missed target, once the commands from before the change have ended.
    since: Nanos,
    counts: LatencyCounts,
    /// The window before had no values: others need not wait for the next ones.
    is_idle: bool,
}

/// What a pace has done in an interval.
#[derive(Clone, Copy)]
struct Done {
    /// Bytes in a second.
    speed: u64,
    was_delayed: bool,
}

/// The relation of a percentile to its target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Kept,
    Near,
    Missed,
}

/// The state of all paces.
#[derive(Default)]
pub(crate) struct Control {
    at: Option<Nanos>,
    windows: BTreeMap<String, Window>,
    in_device: BTreeMap<String, u64>,
    paces: BTreeMap<Key, PaceState>,
    missed_by: Option<String>,
}

impl Control {
    /// The limit of a pace.
    pub(super) fn limit(&self, subsystem: &str, reason: &PaceReason) -> Option<u64> {
        let key = (subsystem.to_owned(), reason.clone());
        self.paces.get(&key)?.limit
    }

    /// The subsystem that missed its target last.
    pub(super) fn missed_by(&self) -> Option<&str> {
        self.missed_by.as_deref()
    }

    /// The limit of each pace until the next sample.
    pub(super) fn adjust(&mut self, sample: &Sample) -> Vec<Option<u64>> {
        let before = self.at.replace(sample.at);
        let span = before.map_or(Nanos::ZERO, |before| sample.at.saturating_sub(before));
        let key = |it: &PaceSample| (it.subsystem.clone(), it.reason.clone());
        self.paces
            .retain(|kept, _| sample.paces.iter().any(|it| key(it) == *kept));
        let done: Vec<Option<Done>> = sample
            .paces
            .iter()
            .map(|it| self.done(key(it), it, span))
            .collect();
        let verdict = self.verdict(sample);
        for (it, done) in sample.paces.iter().zip(&done) {
            if let (PaceReason::Latency, Some(done)) = (&it.reason, done)
                && let Some(pace) = self.paces.get_mut(&key(it))
            {
                pace.follow(verdict, *done);
            }
        }
        for disk in &sample.disks {
            let in_device = self.in_device.insert(disk.disk.clone(), disk.in_device);
            let in_device = in_device.map(|before| disk.in_device.wrapping_sub(before));
            let users = sample.paces.iter().zip(&done);
            let users = users.filter_map(|(it, done)| {
                let is_user = it.reason == PaceReason::Share(disk.disk.clone());
                is_user.then_some((key(it), it.weight, (*done)?))
            });
            if let Some(in_device) = in_device.filter(|_| span > Nanos::ZERO) {
                self.share(in_device / span.0.max(1), &users.collect::<Vec<_>>());
            }
        }
        self.in_device
            .retain(|disk, _| sample.disks.iter().any(|it| it.disk == *disk));
        let limits = sample.paces.iter();
        limits
            .map(|it| self.paces.get(&key(it)).and_then(|pace| pace.limit))
            .collect()
    }

    /// What a pace has done since the last sample; `None` at its first one.
    fn done(&mut self, key: Key, sample: &PaceSample, span: Nanos) -> Option<Done> {
        let is_known = self.paces.contains_key(&key) && span > Nanos::ZERO;
        let pace = self.paces.entry(key).or_default();
        // A command may give back what was counted before the last sample.
        let admitted = sample.admitted.saturating_sub(pace.admitted);
        let was_delayed = sample.throttled != pace.throttled;
        (pace.admitted, pace.throttled) = (sample.admitted, sample.throttled);
        pace.calm = match was_delayed {
            true => 0,
            false => pace.calm.saturating_add(1),
        };
        is_known.then(|| Done {
            speed: Ratio(Nanos::from_secs(1).0, span.0).of(admitted),
            was_delayed,
        })
    }

    /// The worst verdict of the percentiles that can be compared now; `None` if none can.
    fn verdict(&mut self, sample: &Sample) -> Option<Verdict> {
        let windows = &mut self.windows;
        windows.retain(|name, _| sample.targets.iter().any(|it| it.subsystem == *name));
        let mut worst = None;
        for it in &sample.targets {
            let new = |is_idle, drain| Window {
                since: sample.at + drain,
                counts: it.counts.clone(),
                is_idle,
            };
            let Some(window) = windows.get_mut(&it.subsystem) else {
                windows.insert(it.subsystem.clone(), new(false, Nanos::ZERO));
                continue;
            };
            if sample.at <= window.since {
                window.counts = it.counts.clone();
                continue;
            }
            let counts = it.counts.since(&window.counts);
            let values = counts.count();
            let is_over = sample.at.saturating_sub(window.since) >= VALUES_TIME;
            let stays_idle = window.is_idle && values == 0;
            if values < VALUES_MIN && !is_over && !stays_idle {
                continue;
            }
            let value = counts.percentile(PERMILLE);
            let missed = value.filter(|value| *value > it.target);
            let drain = missed.map_or(Nanos::ZERO, |value| value.min(DRAIN_MAX));
            *window = new(values == 0, drain);
            let verdict = match value {
                Some(value) if value > it.target => Verdict::Missed,
                Some(value) if value.0 > KEPT.of(it.target.0) => Verdict::Near,
                Some(_) | None => Verdict::Kept,
            };
            if verdict == Verdict::Missed {
                self.missed_by = Some(it.subsystem.clone());
            }
            worst = worst.max(Some(verdict));
        }
        match sample.targets.is_empty() {
            true => Some(Verdict::Kept),
            false => worst,
        }
    }

    /// Shares a disk with `in_flight` commands in it between its users.
    fn share(&mut self, in_flight: u64, users: &[(Key, u32, Done)]) {
        let is_limited = |(key, _, _): &(Key, u32, Done)| {
            self.paces.get(key).is_some_and(|pace| pace.limit.is_some())
        };
        let is_shared = users.iter().any(is_limited);
        let active: Vec<&(Key, u32, Done)> =
            users.iter().filter(|(_, _, done)| done.speed > 0).collect();
        let all_calm = users
            .iter()
            .all(|(key, _, _)| self.paces.get(key).is_none_or(|pace| pace.calm >= CALM));
        let begins = in_flight >= FULL_DISK && active.len() > 1;
        let ends = is_shared && (all_calm || active.len() < 2);
        if ends || !(is_shared || begins) {
            for (key, _, _) in users {
                self.set_limit(key, None);
            }
            return;
        }
        let total: u64 = active.iter().map(|(_, _, done)| done.speed).sum();
        let total = match in_flight {
            0..FULL_DISK => FASTER.of(total),
            in_flight if in_flight > 2 * FULL_DISK => DRAINING.of(total),
            _ => total,
        };
        let wanted_of = |(_, _, done): &(Key, u32, Done)| {
            // One that waits for its share, or before anything was shared, may want all.
            (is_shared && !done.was_delayed).then_some(done.speed)
        };
        let wanted: Vec<(u32, Option<u64>)> =
            active.iter().map(|it| (it.1, wanted_of(it))).collect();
        for (it, part) in active.iter().zip(divide(total, &wanted)) {
            // One that needs less has room to grow, and gets its share once it waits.
            let limit = match wanted_of(it) {
                Some(speed) if speed == part => HEADROOM.of(speed),
                Some(_) | None => part,
            };
            let limit = limit.max(SLOWEST);
            self.set_limit(&it.0, Some(limit));
        }
        // One that begins now gets a share in the next interval.
        for (key, _, done) in users {
            if done.speed == 0 {
                self.set_limit(key, None);
            }
        }
    }

    fn set_limit(&mut self, key: &Key, limit: Option<u64>) {
        if let Some(pace) = self.paces.get_mut(key) {
            pace.limit = limit;
        }
    }
}

impl PaceState {
    /// Changes the limit of a subsystem without a latency target.
    fn follow(&mut self, verdict: Option<Verdict>, done: Done) {
        match (verdict, self.limit) {
            (Some(Verdict::Missed), limit) if done.speed > 0 => {
                let from = limit.map_or(done.speed, |limit| limit.min(done.speed));
                self.missed_at = Some(from);
                self.limit = Some(SLOWER.of(from).max(SLOWEST));
            }
            (Some(Verdict::Kept | Verdict::Near), Some(_)) if self.calm >= CALM => {
                (self.limit, self.missed_at) = (None, None);
            }
            (Some(Verdict::Near), Some(limit)) => {
                let close = self.missed_at.map_or(0, |speed| CLOSE.of(speed));
                self.limit = Some(match limit > close {
                    true => EASED.of(limit).max(close).max(SLOWEST),
                    false => CAREFUL.of(limit),
                });
            }
            (Some(Verdict::Kept), Some(limit)) => self.limit = Some(self.risen(limit)),
            _ => {}
        }
    }

    /// A limit after an interval in which all targets were kept.
    fn risen(&self, limit: u64) -> u64 {
        let faster = FASTER.of(limit);
        match self.missed_at {
            Some(speed) if limit < CLOSE.of(speed) => faster.min(CLOSE.of(speed)),
            Some(speed) if limit < PAST.of(speed) => CAREFUL.of(limit),
            Some(_) | None => faster,
        }
    }
}

/// Divides `total` by weights. One that wants less than its part gets what it wants, and the others
/// the rest.
fn divide(total: u64, wanted: &[(u32, Option<u64>)]) -> Vec<u64> {
    let mut parts: Vec<Option<u64>> = vec![None; wanted.len()];
    loop {
        let open = || (0..wanted.len()).filter(|place| parts[*place].is_none());
        let given: u64 = parts.iter().flatten().sum();
        let rest = total.saturating_sub(given);
        let weights: u64 = open().map(|place| u64::from(wanted[place].0)).sum();
        let part = |place: usize| Ratio(u64::from(wanted[place].0), weights.max(1)).of(rest);
        let modest: Vec<(usize, u64)> = open()
            .filter_map(|place| Some((place, wanted[place].1?)))
            .filter(|(place, wanted)| *wanted < part(*place))
            .collect();
        if modest.is_empty() {
            let all = (0..wanted.len()).map(|place| parts[place].unwrap_or_else(|| part(place)));
            return all.collect();
        }
        for (place, wanted) in modest {
            parts[place] = Some(wanted);
        }
    }
}

#[cfg(test)]
mod tests;
