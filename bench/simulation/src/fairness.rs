//! Fairness between hosts that wait for memory.
//!
//! The rule (`reactors/hugemem`): each reactor serves the hosts that wait for memory of one size in
//! turns, so that a host with many waiting requests delays another host by one request. A free slice
//! goes to hosts that have none before it goes to others, whichever reactors they use.
//!
//! The judge knows only what hosts send and receive. A write waits until the target requests its
//! data: by R2T, or by the first RDMA read of it. While a host waits that has no memory of the
//! target, the requests of every other host for data of the same size are counted. Time that a
//! message may be on its way belongs to neither.

use std::collections::{BTreeMap, VecDeque};

use reactors::Nanos;

use crate::judge::Violation;

/// Sizes of slices in bytes.
const SLICE_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Time after which the grants of the past are irrelevant.
const MEMORY: Nanos = Nanos::from_secs(20);
/// Requests for data of one size that a host may receive while another one waits that has none: on
/// each of up to three reactors one in its turn, and one until the wait is known there.
const OVERTAKEN_MAX: u64 = 6;
/// Time of a few turns of a reactor.
const TURNS: Nanos = Nanos::from_micros(100);

/// The number of the slice size for data of `bytes`.
#[must_use]
pub fn size_of_slice(bytes: usize) -> usize {
    let fits = SLICE_BYTES.iter().position(|slice| bytes <= *slice);
    fits.unwrap_or(SLICE_BYTES.len())
}

/// A write: its queue, when the queue was opened, and its position there.
pub type WriteKey = (u16, Nanos, u64);

/// A write whose data the target has not requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingWrite {
    /// Which it is.
    pub key: WriteKey,
    /// Bytes of its data.
    pub bytes: usize,
    /// Since when only the target delays it.
    pub since: Nanos,
}

/// Data that the target has requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Bytes of the data.
    pub bytes: usize,
    /// The disk that they are for.
    pub disk: usize,
    /// When the command was sent, if only that bounds the time of the grant: over RDMA, reads wait
    /// for each other.
    pub sent_at: Option<Nanos>,
}

/// What one path of a host knows after a turn.
#[derive(Clone, Debug, Default)]
pub struct PathReport {
    /// The path.
    pub path: usize,
    /// The host; its paths have one share.
    pub identity: usize,
    /// Its waiting writes.
    pub waiting: Vec<WaitingWrite>,
    /// The data that the target has requested in this turn.
    pub granted: Vec<Granted>,
    /// Until when it may have other memory of the target.
    pub holds_until: Nanos,
}

/// A request for data.
#[derive(Clone, Copy, Debug)]
struct Grant {
    /// When the request for data arrived, and when it can have been sent at the earliest, with the
    /// time of a message.
    at: Nanos,
    earliest: Nanos,
    identity: usize,
    size: usize,
}

/// A wait for memory.
#[derive(Clone, Copy, Debug)]
struct Wait {
    identity: usize,
    size: usize,
    since: Nanos,
}

/// Another host that received grants during a wait, and their number.
struct Overtaking {
    wait: Wait,
    other: usize,
    count: u64,
}

/// The judge.
#[derive(Debug, Default)]
pub struct Fairness {
    grants: VecDeque<Grant>,
    /// By identity: until when it had memory of the target, or may have had.
    held_until: BTreeMap<usize, Nanos>,
    /// By path and write.
    waits: BTreeMap<(usize, WriteKey), Wait>,
    /// Number of waits that were long enough to be judged.
    pub waits_judged: u64,
    /// The largest number of grants of another host during a wait.
    pub overtaken_max: u64,
}

impl Fairness {
    /// Forgets everything, because the appliance has ended.
    pub fn reset(&mut self) {
        self.grants.clear();
        self.waits.clear();
    }

    /// Judges a turn. `latency_max`: the longest time of a message.
    ///
    /// # Errors
    /// A host waits for memory while another one receives too much.
    pub fn turn_ended(
        &mut self,
        now: Nanos,
        reports: &[PathReport],
        latency_max: Nanos,
    ) -> Result<(), Violation> {
        // A message needs this time to the target, and the other one this time from it.
        let on_its_way = latency_max + TURNS;
        let mut ended = std::mem::take(&mut self.waits);
        self.note_waits(reports);
        ended.retain(|key, _| !self.waits.contains_key(key));
        let has_shown = |it: &&Wait| it.since + on_its_way + on_its_way + on_its_way < now;
        self.waits_judged += ended.values().filter(has_shown).count() as u64;
        // Writes that wait no more are judged by the grants until the turn before.
        let waits = self.waits.values().chain(ended.values());
        let worst = waits
            .filter_map(|wait| self.most_grants(wait, now, on_its_way))
            .max_by_key(|it| it.count);
        self.note_grants(now, reports);
        let Some(Overtaking { wait, other, count }) = worst else {
            return Ok(());
        };
        self.overtaken_max = self.overtaken_max.max(count);
        if count > OVERTAKEN_MAX {
            let Wait {
                identity, since, ..
            } = wait;
            return Err(Violation::Rule(format!(
                "host {identity} waits for memory since {since} and has none, and host {other} \
                 received memory of that size {count} times since, {OVERTAKEN_MAX} at most"
            )));
        }
        Ok(())
    }

    fn note_waits(&mut self, reports: &[PathReport]) {
        for report in reports {
            let held_until = self.held_until.entry(report.identity).or_default();
            *held_until = report.holds_until.max(*held_until);
        }
        for report in reports {
            let held_until = self.held_until[&report.identity];
            self.waits.extend(report.waiting.iter().map(|write| {
                let wait = Wait {
                    identity: report.identity,
                    size: size_of_slice(write.bytes),
                    since: write.since.max(held_until),
                };
                ((report.path, write.key), wait)
            }));
        }
    }

    fn note_grants(&mut self, now: Nanos, reports: &[PathReport]) {
        while self.grants.front().is_some_and(|it| it.at + MEMORY < now) {
            self.grants.pop_front();
        }
        for report in reports {
            self.grants
                .extend(report.granted.iter().map(|granted| Grant {
                    at: now,
                    earliest: granted.sent_at.unwrap_or(now),
                    identity: report.identity,
                    size: size_of_slice(granted.bytes),
                }));
        }
    }

    /// The host that received the most grants of the size during a wait.
    fn most_grants(&self, wait: &Wait, now: Nanos, on_its_way: Nanos) -> Option<Overtaking> {
        let mut counts = BTreeMap::new();
        for grant in &self.grants {
            let is_during = wait.since + on_its_way + on_its_way < grant.earliest
                && grant.at + on_its_way < now;
            if is_during && grant.size == wait.size && grant.identity != wait.identity {
                *counts.entry(grant.identity).or_insert(0) += 1;
            }
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(other, count)| Overtaking {
            wait: *wait,
            other,
            count,
        })
    }
}
