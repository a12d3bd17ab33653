//! A disk in virtual time. It has a volatile cache and a medium, is slow, fails, and is pulled out.
//! A power cut preserves durable data and a random part of the rest.
//!
//! Its atomic unit is one block, as every namespace of the target promises: a longer write may be
//! partially written after a power cut or an error.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{
    Completion, CompletionBatch, Deallocate, Device, DeviceError, DeviceIdentity, DeviceQueue,
    Drain, Geometry, Health, HealthState, OpenError, Operation, QueueOptions, Refusal, Request,
};
use hugemem::Data;
use reactors::Nanos;

use crate::content::{self, Content};
use crate::random::Random;
use crate::time::SharedTime;

/// Time for which a disk remembers its lingering writes: longer than any command may wait.
const LINGERING_KEPT: Nanos = Nanos::from_secs(20);

/// The properties of a disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskShape {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks.
    pub block_count: u64,
    /// Whether completed writes may be lost in a power cut.
    pub volatile: bool,
    /// The effect of deallocations.
    pub deallocate: Deallocate,
    /// Largest transfer in blocks.
    pub transfer_blocks_max: u32,
    /// Whether it reports to be read-only.
    pub read_only: bool,
}

/// The behaviour of a disk. All shares are per thousand requests.
#[derive(Clone, Copy, Debug)]
pub struct DiskBehaviour {
    /// Minimum latency of a request.
    pub latency_min: Nanos,
    /// Maximum latency of most requests.
    pub latency_max: Nanos,
    /// Share of requests that take up to [`slow_max`](Self::slow_max) instead.
    pub slow_permille: u32,
    /// Maximum latency of a slow request.
    pub slow_max: Nanos,
    /// Share of requests that fail.
    pub error_permille: u32,
    /// Share of flushes and of writes with Force Unit Access that fail.
    pub flush_error_permille: u32,
    /// Share of requests that are deferred.
    pub later_permille: u32,
    /// Share of modifying requests that take up to [`linger_max`](Self::linger_max).
    pub linger_permille: u32,
    /// Maximum latency of such a request.
    pub linger_max: Nanos,
    /// Share of requests after which the cache writes a block back.
    pub write_back_permille: u32,
    /// A flush that fails forgets blocks before this one that it could not write: they can be read,
    /// but later flushes do not write them, and succeed.
    pub forgotten_before: u64,
}

impl DiskBehaviour {
    /// The latency of the next request.
    pub(crate) fn draw_latency(&self, random: &mut Random, figures: &mut DiskFigures) -> Nanos {
        let (least, most) = if random.permille(self.slow_permille) {
            figures.slow += 1;
            (self.latency_max, self.slow_max)
        } else {
            (self.latency_min, self.latency_max)
        };
        Nanos(random.between(least.as_nanos(), most.as_nanos()))
    }
}

/// Counters of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFigures {
    /// Failed requests.
    pub errors: u64,
    /// Flushes and durable writes that failed because of their own error rate.
    pub flush_errors: u64,
    /// Deferred requests.
    pub later: u64,
    /// Slow requests.
    pub slow: u64,
    /// Cached blocks that were lost in a power cut.
    pub lost_blocks: u64,
}

struct State {
    shape: DiskShape,
    behaviour: DiskBehaviour,
    random: Random,
    medium: Vec<u8>,
    /// By block: the data written since the last write to the medium, oldest first.
    cache: BTreeMap<u64, Vec<Box<[u8]>>>,
    /// Cached blocks that are not written to the medium any more.
    forgotten: BTreeSet<u64>,
    removed: bool,
    /// How often it was pulled out.
    removals: u32,
    /// The next open fails.
    next_open_fails: bool,
    /// The last sync failed.
    is_sync_failed: bool,
    held_until: Nanos,
    /// When each request in flight completes, with its number.
    dues: BTreeSet<(Nanos, u64)>,
    /// The versions of writes in flight, by number.
    writing: BTreeMap<u64, u64>,
    /// Submission and completion of the last lingering requests with data.
    lingering: Vec<(Nanos, Nanos)>,
    next_number: u64,
    figures: DiskFigures,
}

impl State {
    fn bytes_of(&self, lba: u64) -> std::ops::Range<usize> {
        let size = self.shape.block_size as usize;
        let start = lba as usize * size;
        start..start + size
    }

    fn read(&self, lba: u64, into: &mut [u8]) {
        match self.cache.get(&lba).and_then(|chain| chain.last()) {
            Some(newest) => into.copy_from_slice(newest),
            None => into.copy_from_slice(&self.medium[self.bytes_of(lba)]),
        }
    }

    fn write(&mut self, lba: u64, data: &[u8], durable: bool) {
        if durable || !self.shape.volatile {
            let range = self.bytes_of(lba);
            self.medium[range].copy_from_slice(data);
            self.cache.remove(&lba);
            self.forgotten.remove(&lba);
        } else if self.forgotten.remove(&lba) {
            self.cache.insert(lba, vec![data.into()]);
        } else {
            self.cache.entry(lba).or_default().push(data.into());
        }
    }

    /// A flush has failed.
    fn forget(&mut self) {
        for (lba, _) in self.cache.range(..self.behaviour.forgotten_before) {
            if self.random.coin() {
                self.forgotten.insert(*lba);
            }
        }
    }

    fn write_back(&mut self, lba: u64) {
        if !self.forgotten.contains(&lba)
            && let Some(chain) = self.cache.remove(&lba)
            && let Some(newest) = chain.last()
        {
            let range = self.bytes_of(lba);
            self.medium[range].copy_from_slice(newest);
        }
    }

    fn write_all_back(&mut self) {
        let cached: Vec<u64> = self.cache.keys().copied().collect();
        for lba in cached {
            self.write_back(lba);
        }
    }

    /// Executes a request; with `parts`, only a random part of it.
    fn apply(&mut self, request: &mut Request, parts: bool) -> Result<(), DeviceError> {
        let size = self.shape.block_size as usize;
        let zeroes = vec![0; size];
        for block in 0..u64::from(request.blocks) {
            let lba = request.lba + block;
            if parts && self.random.coin() {
                continue;
            }
            let at = block as usize * size..(block as usize + 1) * size;
            let data = request.data.as_deref_mut().map(|data| &mut data[at]);
            match (request.operation, data) {
                (Operation::Read, Some(data)) => self.read(lba, data),
                (Operation::Write { fua }, Some(data)) => self.write(lba, data, fua),
                (Operation::WriteZeroes { fua, .. }, _) => self.write(lba, &zeroes, fua),
                (Operation::Deallocate, _) => self.write(lba, &zeroes, false),
                (Operation::Compare, Some(data)) => {
                    let mut found = zeroes.clone();
                    self.read(lba, &mut found);
                    if *data != found[..] {
                        return Err(DeviceError::CompareMismatch);
                    }
                }
                (Operation::Flush | Operation::Read | Operation::Write { .. }, _)
                | (Operation::Compare, None) => {}
            }
        }
        if request.operation == Operation::Flush && !parts {
            self.write_all_back();
        }
        if self.random.permille(self.behaviour.write_back_permille) {
            let cached = self.cache.len() as u64;
            if cached > 0 {
                let chosen = self.random.below(cached) as usize;
                if let Some(&lba) = self.cache.keys().nth(chosen) {
                    self.write_back(lba);
                }
            }
        }
        Ok(())
    }

    fn lingers(&mut self) -> bool {
        let share = self.behaviour.linger_permille;
        share > 0 && self.random.permille(share)
    }
}

/// Whether the success of an operation guarantees that data is on the medium.
fn is_durable(operation: Operation) -> bool {
    match operation {
        Operation::Flush => true,
        Operation::Write { fua } | Operation::WriteZeroes { fua, .. } => fua,
        Operation::Read | Operation::Deallocate | Operation::Compare => false,
    }
}

/// A random error that is possible for an operation.
pub(crate) fn draw_error(random: &mut Random, operation: Operation) -> DeviceError {
    let media = match operation {
        Operation::Read | Operation::Compare => DeviceError::MediaRead,
        Operation::Write { .. }
        | Operation::Flush
        | Operation::WriteZeroes { .. }
        | Operation::Deallocate => DeviceError::MediaWrite,
    };
    let others = [
        media,
        media,
        DeviceError::Interrupted,
        DeviceError::Aborted,
        DeviceError::Internal,
    ];
    random.pick(&others)
}

/// A disk. It outlives the appliances that use it.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    time: SharedTime,
    number: u32,
    name: String,
    identity: DeviceIdentity,
}

impl Disk {
    /// A disk full of zeroes.
    #[must_use]
    pub fn new(
        number: u32,
        shape: DiskShape,
        behaviour: DiskBehaviour,
        random: Random,
        time: SharedTime,
    ) -> Self {
        let bytes = shape.block_count as usize * shape.block_size as usize;
        let state = State {
            shape,
            behaviour,
            random,
            medium: vec![0; bytes],
            cache: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            removed: false,
            removals: 0,
            next_open_fails: false,
            is_sync_failed: false,
            held_until: Nanos::ZERO,
            dues: BTreeSet::new(),
            writing: BTreeMap::new(),
            lingering: Vec::new(),
            next_number: 0,
            figures: DiskFigures::default(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            time,
            number,
            name: format!("disk{number}"),
            identity: DeviceIdentity {
                uuid: [number as u8 + 1; 16],
                model: "simulated disk".to_owned(),
            },
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The properties of the disk.
    #[must_use]
    pub fn shape(&self) -> DiskShape {
        self.state().shape
    }

    /// Changes its behaviour.
    pub fn set_behaviour(&self, behaviour: DiskBehaviour) {
        self.state().behaviour = behaviour;
    }

    /// Delays all completions until `until`.
    pub fn hold(&self, until: Nanos) {
        self.state().held_until = until;
    }

    /// Pulls it out: everything fails until [`reinsert`](Self::reinsert).
    pub fn remove(&self) {
        let mut state = self.state();
        (state.removed, state.removals) = (true, state.removals + 1);
    }

    /// Puts it back, so that an appliance that starts finds it.
    pub fn reinsert(&self) {
        let mut state = self.state();
        (state.removed, state.next_open_fails) = (false, false);
    }

    /// Makes the next open fail, as if another process used the disk.
    pub fn fail_next_open(&self) {
        self.state().next_open_fails = true;
    }

    /// Whether this open fails because another process uses the disk; only once.
    #[must_use]
    pub fn take_open_failure(&self) -> bool {
        std::mem::take(&mut self.state().next_open_fails)
    }

    /// Makes acknowledged data durable, like `fsync` on a file.
    ///
    /// # Errors
    /// It was pulled out, or a flush failed.
    pub fn sync(&self) -> Result<(), &'static str> {
        let mut state = self.state();
        let share = state.behaviour.flush_error_permille;
        let fails = state.random.permille(share);
        state.is_sync_failed = fails || state.removed;
        state.figures.flush_errors += u64::from(fails);
        if state.is_sync_failed {
            return Err("what is cached of it may be lost");
        }
        state.write_all_back();
        Ok(())
    }

    /// Whether the last [`sync`](Self::sync) failed.
    #[must_use]
    pub fn is_sync_failed(&self) -> bool {
        self.state().is_sync_failed
    }

    /// Whether it was pulled out.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.state().removed
    }

    /// Cuts its power. Each cached block keeps any state that it had since the last write to the
    /// medium.
    pub fn cut_power(&self) {
        let mut state = self.state();
        while let Some((lba, chain)) = state.cache.pop_first() {
            let kept = match state.forgotten.remove(&lba) {
                true => 0,
                false => state.random.below(chain.len() as u64 + 1) as usize,
            };
            state.figures.lost_blocks += u64::from(kept < chain.len());
            if let Some(index) = kept.checked_sub(1) {
                let range = state.bytes_of(lba);
                state.medium[range].copy_from_slice(&chain[index]);
            }
        }
    }

    /// Calls `inspect` with the content of the medium and the size of a block in bytes.
    pub fn with_medium<T>(&self, inspect: impl FnOnce(&[u8], usize) -> T) -> T {
        let state = self.state();
        inspect(&state.medium, state.shape.block_size as usize)
    }

    /// Extends it to this size; the new blocks are zeroes. Its queues have to be notified
    /// separately.
    ///
    /// # Errors
    /// It is larger, or the size is not a multiple of the block size.
    pub fn extend(&self, bytes: u64) -> Result<(), &'static str> {
        let mut state = self.state();
        if bytes < state.medium.len() as u64 {
            return Err("it is never made shorter");
        }
        let size = u64::from(state.shape.block_size);
        if !bytes.is_multiple_of(size) {
            return Err("that is no number of blocks");
        }
        state.medium.resize(bytes as usize, 0);
        state.shape.block_count = bytes / size;
        Ok(())
    }

    /// Whether a write of this version is in flight.
    #[must_use]
    pub fn is_writing(&self, version: u64) -> bool {
        self.state().writing.values().any(|it| *it == version)
    }

    /// The versions of the writes that it has not completed.
    #[must_use]
    pub fn writing(&self) -> Vec<u64> {
        self.state().writing.values().copied().collect()
    }

    /// Submission and completion of its last lingering requests with data, which occupy memory of
    /// the target meanwhile.
    #[must_use]
    pub fn lingering(&self) -> Vec<(Nanos, Nanos)> {
        self.state().lingering.clone()
    }

    /// The version of the data that a request writes, if it can be determined.
    fn version_of(&self, request: &Request, block_bytes: usize) -> Option<u64> {
        let block = request.data.as_deref()?.get(..block_bytes)?;
        match (
            request.operation,
            content::read(block, self.number, request.lba),
        ) {
            (Operation::Write { .. }, Content::Written(version)) => Some(version),
            _ => None,
        }
    }

    /// Requests in its queues.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state().dues.len()
    }

    /// When the next request completes.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let state = self.state();
        let (due, _) = state.dues.first()?;
        Some((*due).max(state.held_until))
    }

    /// Its counters.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        self.state().figures
    }
}

impl Device for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        let shape = self.shape();
        Geometry {
            block_size: shape.block_size,
            block_count: shape.block_count,
            volatile_write_cache: shape.volatile,
            optimal_io_blocks: 1,
            deallocate: shape.deallocate,
            max_transfer_blocks: shape.transfer_blocks_max,
            read_only: shape.read_only,
            atomic: block::AtomicWrites::BLOCK,
        }
    }

    fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    fn health(&self) -> Health {
        Health {
            state: if self.state().removed {
                HealthState::Removed
            } else {
                HealthState::Ready
            },
            ..Health::default()
        }
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        if self.is_removed() {
            return Err(OpenError::Removed);
        }
        Ok(Box::new(DiskQueue {
            disk: self.clone(),
            block_count: self.shape().block_count,
            removals: self.state().removals,
            depth: options.depth,
            pending: Vec::new(),
            closing: false,
        }))
    }
}

struct Pending {
    number: u64,
    request: Request,
    /// When it takes effect.
    effect_at: Nanos,
    /// When it completes.
    due: Nanos,
    result: Option<Result<(), DeviceError>>,
}

struct DiskQueue {
    disk: Disk,
    /// The number of blocks that the queue knows of.
    block_count: u64,
    /// How often the disk had been pulled out when the queue was opened.
    removals: u32,
    depth: usize,
    pending: Vec<Pending>,
    closing: bool,
}

impl DiskQueue {
    /// Executes requests that are due, in the order of their times.
    fn take_effect(&mut self, state: &mut State, now: Nanos) {
        let removed = state.removed;
        let mut due: Vec<usize> = (0..self.pending.len())
            .filter(|index| {
                let pending = &self.pending[*index];
                pending.result.is_none() && (pending.effect_at <= now || removed)
            })
            .collect();
        due.sort_by_key(|index| self.pending[*index].effect_at);
        for index in due {
            let pending = &mut self.pending[index];
            let operation = pending.request.operation;
            let flush_fails = is_durable(operation)
                && state.behaviour.flush_error_permille > 0
                && state.random.permille(state.behaviour.flush_error_permille);
            state.figures.flush_errors += u64::from(flush_fails);
            if flush_fails {
                state.forget();
            }
            let fails =
                removed || flush_fails || state.random.permille(state.behaviour.error_permille);
            let result = if fails {
                // A failed request may be partially executed. A failed read returns meaningless
                // data.
                let applied = if operation == Operation::Read {
                    if let Some(data) = &mut pending.request.data {
                        data.fill(0xEE);
                    }
                    Ok(())
                } else {
                    state.apply(&mut pending.request, true)
                };
                state.figures.errors += 1;
                match applied {
                    _ if removed => Err(DeviceError::Removed),
                    _ => Err(draw_error(&mut state.random, operation)),
                }
            } else {
                state.apply(&mut pending.request, false)
            };
            pending.result = Some(result);
        }
    }
}

impl DeviceQueue for DiskQueue {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        let geometry = Geometry {
            block_count: self.block_count,
            ..self.disk.geometry()
        };
        let now = self.disk.time.now();
        let mut state = self.disk.state();
        if state.removed || self.closing {
            return Err(Refusal::Never(request, DeviceError::Removed));
        }
        if let Err(error) = request.check(&geometry, false) {
            return Err(Refusal::Never(request, error));
        }
        let later = state.behaviour.later_permille;
        if self.pending.len() >= self.depth || state.random.permille(later) {
            state.figures.later += 1;
            return Err(Refusal::Later(request));
        }
        let lingers = request.operation.changes_medium() && state.lingers();
        let latency = if lingers {
            let longest = state.behaviour.linger_max.as_nanos();
            Nanos(state.random.between(longest / 4, longest))
        } else {
            let State {
                behaviour,
                random,
                figures,
                ..
            } = &mut *state;
            behaviour.draw_latency(random, figures)
        };
        let effect = if lingers {
            state
                .random
                .between(latency.as_nanos() / 2, latency.as_nanos())
        } else {
            state.random.below(latency.as_nanos() + 1)
        };
        let number = state.next_number;
        state.next_number += 1;
        let due = now + latency;
        state.dues.insert((due, number));
        if lingers && request.data.is_some() {
            let is_recent = |(_, due): &(Nanos, Nanos)| *due + LINGERING_KEPT >= now;
            state.lingering.retain(is_recent);
            state.lingering.push((now, due));
        }
        if let Some(version) = self.disk.version_of(&request, geometry.block_size as usize) {
            state.writing.insert(number, version);
        }
        drop(state);
        self.pending.push(Pending {
            number,
            request,
            effect_at: now + Nanos(effect),
            due,
            result: None,
        });
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let disk = self.disk.clone();
        let now = disk.time.now();
        let mut state = disk.state();
        if now < state.held_until && !state.removed {
            return 0;
        }
        self.take_effect(&mut state, now);
        let (removed, mut count) = (state.removed, 0);
        let mut index = 0;
        while index < self.pending.len() && !completions.is_full() {
            let pending = &self.pending[index];
            if pending.result.is_none() || (pending.due > now && !removed) {
                index += 1;
                continue;
            }
            let Pending {
                number,
                request,
                due,
                result,
                ..
            } = self.pending.remove(index);
            state.dues.remove(&(due, number));
            state.writing.remove(&number);
            completions.push(Completion {
                tag: request.tag,
                result: result.unwrap_or(Err(DeviceError::Internal)),
                data: request.data.map(Data::Lease),
            });
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn absences(&self) -> u32 {
        self.disk.state().removals - self.removals
    }

    fn has_ready(&self) -> bool {
        !self.pending.is_empty()
    }

    fn device_grew(&mut self) {
        self.block_count = self.disk.shape().block_count;
    }

    fn drain(&mut self) -> Drain {
        self.closing = true;
        match self.pending.len() {
            0 => Drain::Done,
            outstanding => Drain::Outstanding(outstanding),
        }
    }
}

impl Drop for DiskQueue {
    /// When the appliance ends, requests in flight have taken effect completely, partially or not
    /// at all.
    fn drop(&mut self) {
        let mut state = self.disk.state();
        state.lingering.clear();
        for pending in &mut self.pending {
            state.dues.remove(&(pending.due, pending.number));
            state.writing.remove(&pending.number);
            let changes = pending.request.operation.changes_medium();
            if pending.result.is_none() && changes && state.random.coin() {
                // The result is not reported.
                let _ = state.apply(&mut pending.request, true);
            }
        }
    }
}

#[cfg(test)]
mod tests;
