//! One queue and its part of the namespace: chooses requests, keeps the queue full, and checks the
//! data that it reads.

use std::time::{Duration, Instant};

use hugemem::Lease;
use nvme_host::{ConnectionCounters, HostCompletion, HostCompletions, Refusal};

use crate::load::initiator::Initiator;
use crate::load::options::{CheckedWorkload, Pattern};
use crate::load::pacing::Pacer;
use crate::load::phase::{PhaseKind, PhaseStats, RunError};
use crate::load::zipf::ZipfPlaces;
use crate::random::Random;
use crate::verify::Model;

/// Maximum number of attempts to find blocks that no request in flight touches.
const CONFLICT_TRIES_MAX: usize = 16;

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct Request {
    in_flight: bool,
    read: bool,
    lba: u64,
    blocks: u32,
    started: Instant,
}

/// One queue and its part of the namespace.
#[derive(Debug)]
pub struct Lane<I> {
    queue: I,
    nsid: u32,
    block_bytes: u32,
    sizes_blocks: Vec<u32>,
    read_percent: u64,
    pattern: Pattern,
    /// For Zipf's law: the popular positions for each of `sizes_blocks`.
    popular: Vec<ZipfPlaces>,
    /// For a limited rate.
    pacer: Option<Pacer>,
    first_lba: u64,
    blocks: u64,
    model: Option<Model>,
    random: Random,
    kind: PhaseKind,
    /// Position of the next request of a sequential phase, relative to `first_lba`.
    cursor: u64,
    /// Requests issued in this phase.
    issued: u64,
    requests: Box<[Request]>,
    free: Vec<u16>,
    /// Leases of requests that are not in flight; each has room for the largest request.
    buffers: Vec<Lease>,
    /// `None` only while it is being read.
    completions: Option<Box<HostCompletions>>,
    /// Whether something was sent or received since the last call of `take_moved`.
    moved: bool,
    /// The queue's receive counter at the last poll.
    receives: u64,
    /// When completions were last received in this phase, or its begin.
    completed_at: Instant,
}

fn popular_places(suited: &CheckedWorkload) -> Vec<ZipfPlaces> {
    let Pattern::Zipf(exponent) = suited.workload.pattern else {
        return Vec::new();
    };
    let places = |&blocks: &u32| suited.blocks_per_lane / u64::from(blocks.max(1));
    let sizes = suited.sizes_blocks.iter();
    sizes
        .filter_map(|blocks| ZipfPlaces::new(places(blocks), exponent))
        .collect()
}

impl<I: Initiator> Lane<I> {
    /// Lane `index` of a workload with `queue` and one buffer for each request in flight.
    pub fn new(queue: I, suited: &CheckedWorkload, index: u16, buffers: Vec<Lease>) -> Self {
        let workload = &suited.workload;
        let first_lba = u64::from(index) * suited.blocks_per_lane;
        let seed = workload.seed;
        let model = workload.verify.then(|| {
            let blocks = usize::try_from(suited.blocks_per_lane).unwrap_or(usize::MAX);
            Model::new(seed, first_lba, blocks, suited.block_bytes as usize)
        });
        let idle = Request {
            in_flight: false,
            read: false,
            lba: 0,
            blocks: 0,
            started: Instant::now(),
        };
        Self {
            queue,
            nsid: suited.nsid,
            block_bytes: suited.block_bytes,
            sizes_blocks: suited.sizes_blocks.clone(),
            read_percent: u64::from(workload.read_percent),
            pattern: workload.pattern,
            popular: popular_places(suited),
            pacer: workload
                .rate
                .map(|rate| Pacer::new(rate, index, workload.queues)),
            first_lba,
            blocks: suited.blocks_per_lane,
            model,
            random: Random::new(seed ^ reactors::sim::mix(u64::from(index) + 1)),
            kind: PhaseKind::Main,
            cursor: 0,
            issued: 0,
            requests: vec![idle; buffers.len()].into_boxed_slice(),
            free: (0..buffers.len() as u16).rev().collect(),
            buffers,
            completions: Some(Box::default()),
            moved: false,
            receives: 0,
            completed_at: idle.started,
        }
    }

    /// Begins a phase. No request may be in flight.
    pub fn begin(&mut self, kind: PhaseKind, now: Instant) {
        if let Some(pacer) = &mut self.pacer {
            pacer.restart(now);
        }
        self.kind = kind;
        self.cursor = 0;
        self.issued = 0;
        self.completed_at = now;
    }

    /// The pacer, if it applies: filling and reading back run at full speed.
    fn pacer(&self) -> Option<&Pacer> {
        let paced = matches!(self.kind, PhaseKind::WarmUp | PhaseKind::Main);
        self.pacer.as_ref().filter(|_| paced)
    }

    /// When the next request is due, if the rate is limited and `quota` is not reached.
    pub(crate) fn next_due(&self, quota: u64) -> Option<Instant> {
        let pacer = self.pacer()?;
        (self.issued < quota).then(|| pacer.due())
    }

    /// Number of requests that were due before `end` and were not sent.
    pub(crate) fn missed_requests(&self, end: Instant) -> u64 {
        self.pacer().map_or(0, |pacer| pacer.missed_requests(end))
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// Waits until there is something to collect.
    pub(crate) fn wait(&mut self, limit: Duration) {
        self.queue.wait(limit);
    }

    /// The counters of the queue.
    pub fn counters(&self) -> ConnectionCounters {
        self.queue.counters()
    }

    /// Whether something was sent or received since the last call.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Keeps the queue full, up to `quota` requests in this phase, and sends.
    pub fn issue(&mut self, quota: u64, now: Instant) -> Result<(), RunError> {
        while self.issued < quota && !self.free.is_empty() {
            let due = self.pacer().map_or(now, Pacer::due);
            if due > now {
                break;
            }
            let Some((read, lba, blocks)) = self.choose() else {
                break;
            };
            if !self.submit(read, lba, blocks, due) {
                break;
            }
            self.issued += 1;
            self.moved = true;
            if let Some(pacer) = &mut self.pacer {
                pacer.advance();
            }
        }
        self.queue.flush()
    }

    /// The next request, or `None` if the phase has none or none that can be sent now. The model
    /// reserves a read's blocks here, and a write's when its data is generated.
    fn choose(&mut self) -> Option<(bool, u64, u32)> {
        match self.kind {
            PhaseKind::Fill | PhaseKind::ReadBack => {
                let largest = self.sizes_blocks.iter().copied().max().unwrap_or(1);
                let left = self.blocks - self.cursor;
                let blocks = u64::from(largest).min(left) as u32;
                let read = self.kind == PhaseKind::ReadBack;
                (blocks > 0).then_some((read, self.first_lba + self.cursor, blocks))
            }
            PhaseKind::WarmUp | PhaseKind::Main => {
                let read = self.random.below(100) < self.read_percent;
                let pick = self.random.below(self.sizes_blocks.len() as u64) as usize;
                let blocks = self.sizes_blocks.get(pick).copied()?;
                (0..CONFLICT_TRIES_MAX).find_map(|_| {
                    let lba = self.place(pick, blocks);
                    self.is_free(read, lba, blocks)
                        .then_some((read, lba, blocks))
                })
            }
        }
    }

    /// The position of a request of the main phase.
    fn place(&mut self, size: usize, blocks: u32) -> u64 {
        let blocks = u64::from(blocks);
        match self.pattern {
            Pattern::Zipf(_) => {
                let places = self.popular.get(size);
                let place = places.map_or(0, |places| places.draw(&mut self.random));
                self.first_lba + place * blocks
            }
            Pattern::Sequential => {
                if self.cursor + blocks > self.blocks {
                    self.cursor = 0;
                }
                self.first_lba + self.cursor
            }
            // Any block boundary if data is checked, to cover overlaps of every kind; otherwise
            // aligned, as in a file system.
            Pattern::Random if self.model.is_some() => {
                self.first_lba + self.random.below(self.blocks - blocks + 1)
            }
            Pattern::Random => self.first_lba + self.random.below(self.blocks / blocks) * blocks,
        }
    }

    fn is_free(&self, read: bool, lba: u64, blocks: u32) -> bool {
        self.model
            .as_ref()
            .is_none_or(|model| model.is_free(read, lba, blocks))
    }

    /// Submits a request. Returns false if the queue or the model does not accept it now.
    fn submit(&mut self, read: bool, lba: u64, blocks: u32, now: Instant) -> bool {
        let (Some(&index), Some(mut data)) = (self.free.last(), self.buffers.pop()) else {
            return false;
        };
        data.resize(blocks as usize * self.block_bytes as usize);
        let taken = match &mut self.model {
            Some(model) if read => model.begin_read(lba, blocks),
            Some(model) => model.begin_write(lba, &mut data),
            None => true,
        };
        if !taken {
            self.buffers.push(data);
            return false;
        }
        let token = u64::from(index);
        let submitted = if read {
            self.queue.submit_read(self.nsid, lba, blocks, data, token)
        } else {
            self.queue.submit_write(self.nsid, lba, blocks, data, token)
        };
        if let Err(refused) = submitted {
            debug_assert!(
                refused.refusal != Refusal::Length,
                "sizes are checked before"
            );
            self.undo(read, lba, blocks);
            self.buffers.extend(refused.data);
            return false;
        }
        self.free.pop();
        if let Some(request) = self.requests.get_mut(usize::from(index)) {
            *request = Request {
                in_flight: true,
                read,
                lba,
                blocks,
                started: now,
            };
        }
        let in_order = matches!(self.kind, PhaseKind::Fill | PhaseKind::ReadBack);
        if in_order || self.pattern == Pattern::Sequential {
            self.cursor += u64::from(blocks);
        }
        true
    }

    /// Reverts the model after a request that was not submitted.
    fn undo(&mut self, read: bool, lba: u64, blocks: u32) {
        if let Some(model) = &mut self.model {
            if read {
                // Without data nothing can mismatch.
                let _ = model.finish_read(lba, blocks, None);
            } else {
                model.cancel_write(lba, blocks);
            }
        }
    }

    /// Collects completions and returns their number. Records a problem with one request in
    /// `stats`, and returns one with the queue.
    pub fn collect(&mut self, stats: &mut PhaseStats) -> Result<usize, RunError> {
        let mut completions = self.completions.take().unwrap_or_default();
        let polled = self.queue.poll(&mut completions);
        let ended = completions.len();
        // Received R2Ts count too, although they complete nothing.
        let receives = self.queue.counters().receives;
        self.moved |= ended > 0 || receives > self.receives;
        self.receives = receives;
        if ended > 0 {
            let now = Instant::now();
            stats.gaps.record(now - self.completed_at);
            self.completed_at = now;
            for completion in completions.drain(..) {
                if let Err(trouble) = self.finish(completion, now, stats) {
                    stats.trouble.get_or_insert(trouble);
                }
            }
        }
        self.completions = Some(completions);
        polled?;
        Ok(ended)
    }

    fn finish(
        &mut self,
        completion: HostCompletion,
        now: Instant,
        stats: &mut PhaseStats,
    ) -> Result<(), RunError> {
        let token = completion.token;
        let index = usize::try_from(token).unwrap_or(usize::MAX);
        let request = match self.requests.get_mut(index) {
            Some(request) if request.in_flight => {
                request.in_flight = false;
                *request
            }
            _ => return Err(RunError::UnknownToken(token)),
        };
        self.free.push(index as u16);
        let status = completion.status();
        let Request {
            read,
            lba,
            blocks,
            started,
            ..
        } = request;
        let good = status.is_success();
        let mut checked = Ok(());
        if let Some(model) = &mut self.model {
            if read {
                let data = completion.data.as_deref().filter(|_| good);
                match model.finish_read(lba, blocks, data) {
                    Ok(found) => {
                        stats.checked.right += found.right;
                        stats.checked.unknown += found.unknown;
                    }
                    Err(mismatch) => checked = Err(RunError::Mismatch(mismatch)),
                }
            } else {
                model.finish_write(lba, blocks, good);
            }
        }
        if let Some(data) = completion.data {
            self.buffers.push(data);
        }
        if !good {
            let operation = if read { "read" } else { "write" };
            return Err(RunError::Command {
                operation,
                lba,
                blocks,
                status,
            });
        }
        checked?;
        let bytes = u64::from(blocks) * u64::from(self.block_bytes);
        let operations = if read {
            &mut stats.reads
        } else {
            &mut stats.writes
        };
        operations.record(bytes, now - started);
        Ok(())
    }
}
