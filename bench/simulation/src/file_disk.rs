//! The production file device in virtual time, on a simulated file system and a simulated io_uring.
//!
//! The file system has a page cache. Written pages reach the medium by a sync or by chance. A
//! writeback can fail: then the page counts as clean although the medium does not have it, reads
//! return it until it is evicted, and each open file description reports the error once (Linux
//! `errseq_t`, `fsync(2)`). Transfers are cut short, entries end with EAGAIN, EINTR, EIO or ENOSPC,
//! the file becomes shorter, and holes and zero ranges may be unsupported. An operator reopens a
//! damaged device after a while.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use block::{
    Deallocate, Device, DoneBatch, FileRing, FileStore, Geometry, HealthState, ReopenError,
    StoreDevice,
};
use reactors::Nanos;
use rustix::io::Errno;
use uring::{AllocateMode, Operation, Outcome, Pending, RingError, Step};

use crate::disk::{DiskBehaviour, DiskFigures, DiskShape};
use crate::random::Random;
use crate::time::SharedTime;

/// The behaviour of a file in addition to its disk. All shares are per thousand entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileBehaviour {
    /// Transfers bypass the page cache, as far as the device can tell.
    pub direct: bool,
    /// Share of entries that end with EAGAIN or EINTR.
    pub again_permille: u32,
    /// Share of transfers that are cut short.
    pub short_permille: u32,
    /// Share of entries that fail with EIO.
    pub error_permille: u32,
    /// Share of writes that fail with ENOSPC.
    pub full_permille: u32,
    /// Share of writebacks that fail.
    pub sync_error_permille: u32,
    /// Share of entries after which the file is shorter.
    pub shrink_permille: u32,
    /// Punching holes is supported.
    pub can_punch: bool,
    /// Zeroing ranges is supported.
    pub can_zero: bool,
}

impl FileBehaviour {
    /// The behaviour of the files of a seed; with `errors`, it includes rare faults.
    #[must_use]
    pub fn of(random: &mut Random, errors: bool) -> Self {
        let mut share = |permilles: &[u32]| {
            let drawn = random.pick(permilles);
            if errors { drawn } else { 0 }
        };
        Self {
            error_permille: share(&[0, 0, 5]),
            full_permille: share(&[0, 0, 20]),
            sync_error_permille: share(&[0, 20, 100]),
            shrink_permille: share(&[0, 0, 1]),
            again_permille: random.pick(&[0, 10, 100]),
            short_permille: random.pick(&[0, 20, 200]),
            direct: random.coin(),
            can_punch: random.coin(),
            can_zero: random.coin(),
        }
    }

    /// The effect of deallocations on the device.
    #[must_use]
    pub fn deallocate(self) -> Deallocate {
        if self.can_punch {
            Deallocate::ReadsZero
        } else {
            Deallocate::Unsupported
        }
    }

    /// Whether requests may fail.
    #[must_use]
    pub fn fails(self) -> bool {
        let Self {
            error_permille,
            full_permille,
            sync_error_permille,
            shrink_permille,
            ..
        } = self;
        error_permille + full_permille + sync_error_permille + shrink_permille > 0
    }
}

/// Interval at which the operator checks whether the device is damaged.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(1);
/// Maximum time until the operator reopens a damaged device.
const REOPEN_MAX: Nanos = Nanos::from_millis(100);
/// Share of partial writes whose remainder fails with ENOSPC, per thousand, if ENOSPC is simulated.
const FULL_AFTER_PART_PERMILLE: u32 = 300;

struct State {
    shape: DiskShape,
    behaviour: FileBehaviour,
    disk_behaviour: DiskBehaviour,
    random: Random,
    medium: Vec<u8>,
    /// By block: the data written since the last write to the medium, oldest first.
    dirty: BTreeMap<u64, Vec<Box<[u8]>>>,
    /// By block: clean pages in the page cache whose data the medium does not have.
    lost: BTreeMap<u64, Box<[u8]>>,
    /// The file's length in bytes.
    length: u64,
    /// Number of failed writebacks, and whether a description has reported the last one.
    errors: u64,
    reported: bool,
    dues: BTreeSet<(Nanos, u64)>,
    next_number: u64,
    figures: DiskFigures,
    device: Weak<StoreDevice<FileDisk>>,
    checked_at: Nanos,
    reopen_at: Option<Nanos>,
    /// The next write takes effect at this time.
    stuck_until: Option<Nanos>,
}

impl State {
    fn block_bytes(&self) -> usize {
        self.shape.block_size as usize
    }

    fn size(&self) -> u64 {
        self.medium.len() as u64
    }

    /// The error count that a new open file description has seen. An error that was not reported
    /// yet counts as new.
    fn sample(&self) -> u64 {
        if self.reported {
            self.errors
        } else {
            self.errors.wrapping_sub(1)
        }
    }

    fn content(&self, lba: u64) -> &[u8] {
        let start = lba as usize * self.block_bytes();
        let newest = self.dirty.get(&lba).and_then(|chain| chain.last());
        match newest.or_else(|| self.lost.get(&lba)) {
            Some(page) => page,
            None => &self.medium[start..start + self.block_bytes()],
        }
    }

    fn write(&mut self, lba: u64, data: &[u8]) {
        self.lost.remove(&lba);
        self.dirty.entry(lba).or_default().push(data.into());
    }

    /// Reads from byte `start`, which is within a page if the file ended there before.
    fn read(&self, start: u64, mut into: &mut [u8]) {
        let size = self.block_bytes();
        let (mut page, mut from) = (start / size as u64, (start % size as u64) as usize);
        while !into.is_empty() {
            let (part, rest) = into.split_at_mut((size - from).min(into.len()));
            part.copy_from_slice(&self.content(page)[from..from + part.len()]);
            (page, from, into) = (page + 1, 0, rest);
        }
    }

    /// Writes a page back, or loses it.
    fn write_back(&mut self, lba: u64, fails: bool) {
        let Some(newest) = self.dirty.remove(&lba).and_then(|mut chain| chain.pop()) else {
            return;
        };
        if fails {
            self.lost.insert(lba, newest);
            (self.errors, self.reported) = (self.errors + 1, false);
            self.figures.errors += 1;
        } else {
            let start = lba as usize * self.block_bytes();
            self.medium[start..start + newest.len()].copy_from_slice(&newest);
        }
    }

    /// Writes a range of pages back, and reports errors that the description has not reported yet.
    fn sync(&mut self, blocks: std::ops::Range<u64>, seen: &mut u64) -> Outcome {
        let failing = self.random.permille(self.behaviour.sync_error_permille);
        let dirty: Vec<u64> = self.dirty.range(blocks).map(|(lba, _)| *lba).collect();
        for lba in dirty {
            let fails = failing && self.random.coin();
            self.write_back(lba, fails);
        }
        if *seen == self.errors {
            return Ok(0);
        }
        (*seen, self.reported) = (self.errors, true);
        Err(Errno::IO)
    }

    /// Number of the `len` bytes that one entry transfers: whole blocks, at least one.
    fn cut(&mut self, len: usize) -> usize {
        let blocks = (len / self.block_bytes()) as u64;
        if blocks < 2 || !self.random.permille(self.behaviour.short_permille) {
            return len;
        }
        self.random.between(1, blocks - 1) as usize * self.block_bytes()
    }

    /// Number of the `len` bytes of a write for which there is space. A file system that runs full
    /// accepts the first part of a write and rejects the rest (`write(2)`, ENOSPC).
    fn room(&mut self, len: usize, is_rest: bool) -> Result<usize, Errno> {
        let full_permille = match self.behaviour.full_permille {
            0 => 0,
            _ if is_rest => FULL_AFTER_PART_PERMILLE,
            permille => permille,
        };
        let blocks = (len / self.block_bytes()) as u64;
        if !self.random.permille(full_permille) {
            return Ok(self.cut(len));
        }
        if is_rest || blocks < 2 || self.random.coin() {
            return Err(Errno::NOSPC);
        }
        Ok(self.random.between(1, blocks - 1) as usize * self.block_bytes())
    }

    /// Executes an entry; with `parts`, only a random part of it.
    fn apply(&mut self, pending: &mut Pending, seen: &mut u64, parts: bool) -> Outcome {
        if self.random.permille(self.behaviour.again_permille) {
            return Err(self.random.pick(&[Errno::AGAIN, Errno::INTR]));
        }
        if self.random.permille(self.behaviour.shrink_permille) {
            self.length = self.random.below(self.size());
        }
        let (size, all) = (self.block_bytes(), 0..self.shape.block_count);
        let done = pending.transferred() as usize;
        let outcome = match &mut pending.operation {
            Operation::Read { offset, lease, .. } => {
                let start = *offset + done as u64;
                let there = self.length.saturating_sub(start) as usize;
                let len = self.cut(lease.len() - done).min(there);
                let failing = self.random.permille(self.behaviour.error_permille);
                self.read(start, &mut lease[done..done + len]);
                if failing {
                    Err(Errno::IO)
                } else {
                    Ok(len as u32)
                }
            }
            Operation::Write {
                offset,
                lease,
                sync,
                ..
            } => {
                let first = (*offset + done as u64) / size as u64;
                let len = self.room(lease.len() - done, done > 0)?;
                let failing = self.random.permille(self.behaviour.error_permille);
                for (index, page) in lease[done..done + len].chunks(size).enumerate() {
                    if (failing || parts) && self.random.coin() {
                        continue;
                    }
                    self.write(first + index as u64, page);
                }
                if failing {
                    Err(Errno::IO)
                } else if *sync && !parts {
                    let range = first..first + (len / size) as u64;
                    self.sync(range, seen).map(|_| len as u32)
                } else {
                    Ok(len as u32)
                }
            }
            Operation::Sync { .. } if parts => Ok(0),
            Operation::Sync { .. } => self.sync(all.clone(), seen),
            Operation::Allocate {
                mode, offset, len, ..
            } => {
                let able = match mode {
                    AllocateMode::PunchHole => self.behaviour.can_punch,
                    AllocateMode::ZeroRange => self.behaviour.can_zero,
                };
                if !able {
                    return Err(Errno::OPNOTSUPP);
                }
                let first = *offset / size as u64;
                let failing = self.random.permille(self.behaviour.error_permille);
                for lba in first..first + *len / size as u64 {
                    if !(failing || parts) || self.random.coin() {
                        self.write(lba, &vec![0; size]);
                    }
                }
                if failing { Err(Errno::IO) } else { Ok(0) }
            }
        };
        if self
            .random
            .permille(self.disk_behaviour.write_back_permille)
            && !self.dirty.is_empty()
        {
            let chosen = self.random.below(self.dirty.len() as u64) as usize;
            let fails = self.random.permille(self.behaviour.sync_error_permille);
            if let Some(lba) = self.dirty.keys().nth(chosen).copied() {
                self.write_back(lba, fails);
            }
        }
        self.figures.errors += u64::from(outcome.is_err());
        outcome
    }
}

/// A file. It outlives the appliances that use it.
#[derive(Clone)]
pub struct FileDisk {
    state: Arc<Mutex<State>>,
    time: SharedTime,
    path: PathBuf,
}

impl FileDisk {
    /// A file full of zeroes.
    #[must_use]
    pub fn new(
        path: PathBuf,
        shape: DiskShape,
        behaviour: FileBehaviour,
        disk_behaviour: DiskBehaviour,
        random: Random,
        time: SharedTime,
    ) -> Self {
        let bytes = shape.block_count as usize * shape.block_size as usize;
        let state = State {
            shape,
            behaviour,
            disk_behaviour,
            random,
            medium: vec![0; bytes],
            dirty: BTreeMap::new(),
            lost: BTreeMap::new(),
            length: bytes as u64,
            errors: 0,
            reported: true,
            dues: BTreeSet::new(),
            next_number: 0,
            figures: DiskFigures::default(),
            device: Weak::new(),
            checked_at: Nanos::ZERO,
            reopen_at: None,
            stuck_until: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            time,
            path,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configured path.
    #[must_use]
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The production device on the file.
    #[must_use]
    pub fn open(&self, name: String) -> Arc<StoreDevice<Self>> {
        let mut state = self.state();
        let shape = state.shape;
        let deallocate = state.behaviour.deallocate();
        let geometry = Geometry {
            block_size: shape.block_size,
            block_count: shape.block_count,
            volatile_write_cache: true,
            optimal_io_blocks: 1,
            deallocate,
            max_transfer_blocks: shape.transfer_blocks_max,
            read_only: false,
            atomic: block::AtomicWrites::BLOCK,
        };
        state.length = state.size();
        state.stuck_until = None;
        let device = StoreDevice::new(name, [0x77; 16], geometry, self.clone());
        let device = Arc::new(device);
        state.device = Arc::downgrade(&device);
        device
    }

    /// Delays the next write until `until`, as if the kernel held it back.
    pub fn hold_next_write(&self, until: Nanos) {
        self.state().stuck_until = Some(until);
    }

    /// Whether requests may fail.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.state().behaviour.fails()
    }

    /// Turns off all further faults.
    pub fn disable_faults(&self) {
        let mut state = self.state();
        let FileBehaviour {
            direct,
            can_punch,
            can_zero,
            ..
        } = state.behaviour;
        state.behaviour = FileBehaviour {
            direct,
            can_punch,
            can_zero,
            ..FileBehaviour::default()
        };
        state.length = state.size();
        state.stuck_until = None;
        state.disk_behaviour.slow_permille = 0;
    }

    /// Runs the operator's check, which reopens a device that has been damaged for a while. Returns
    /// whether the device was reopened, which may lose data that was not durable.
    #[must_use]
    pub fn run_operator(&self, now: Nanos) -> bool {
        let mut state = self.state();
        if now < state.checked_at + CHECK_INTERVAL {
            return false;
        }
        state.checked_at = now;
        let Some(device) = state.device.upgrade() else {
            return false;
        };
        drop(state);
        let damaged = device.health().state == HealthState::Damaged;
        let mut state = self.state();
        match state.reopen_at {
            _ if !damaged => {
                // The device was reopened by other means.
                state.reopen_at = None;
                return false;
            }
            None => {
                let wait = state.random.below(REOPEN_MAX.as_nanos());
                state.reopen_at = Some(now + Nanos(wait));
                return false;
            }
            Some(at) if now < at => return false,
            Some(_) => state.reopen_at = None,
        }
        // The operator restores the length and content of the file.
        state.length = state.size();
        drop(state);
        device.reopen().is_ok()
    }

    /// Evicts clean pages. Returns whether reads may return other data from now on.
    #[must_use]
    pub fn evict(&self) -> bool {
        let mut state = self.state();
        let lost = !state.lost.is_empty();
        state.lost.clear();
        lost
    }

    /// Cuts the power. Each block keeps any state that it had since the last write to the medium.
    pub fn cut_power(&self) {
        let mut state = self.state();
        state.lost.clear();
        while let Some((lba, chain)) = state.dirty.pop_first() {
            let kept = state.random.below(chain.len() as u64 + 1) as usize;
            state.figures.lost_blocks += u64::from(kept < chain.len());
            if let Some(index) = kept.checked_sub(1) {
                let start = lba as usize * state.block_bytes();
                let page = &chain[index];
                state.medium[start..start + page.len()].copy_from_slice(page);
            }
        }
    }

    /// Calls `inspect` with the content of the medium and the size of a block in bytes.
    pub fn with_medium<T>(&self, inspect: impl FnOnce(&[u8], usize) -> T) -> T {
        let state = self.state();
        inspect(&state.medium, state.block_bytes())
    }

    /// Entries in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state().dues.len()
    }

    /// The time of the next event.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let state = self.state();
        let entry = state.dues.first().map(|(due, _)| *due);
        let operator = state.reopen_at.filter(|_| state.device.strong_count() > 0);
        entry.into_iter().chain(operator).min()
    }

    /// Its counters.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        self.state().figures
    }
}

impl FileStore for FileDisk {
    type Ring = SimulatedRing;

    fn is_direct(&self) -> bool {
        self.state().behaviour.direct
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.state().length)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        let (all, mut seen) = (0..state.shape.block_count, state.errors);
        Ok(state.sync(all, &mut seen).map(drop)?)
    }

    fn open_ring(&self, depth: u32) -> Result<SimulatedRing, RingError> {
        Ok(SimulatedRing {
            file: self.clone(),
            depth: depth as usize,
            entries: Vec::new(),
            seen: self.state().sample(),
        })
    }

    fn reopen(&self, bytes: u64) -> Result<(), ReopenError> {
        let mut state = self.state();
        if state.length < bytes {
            return Err(ReopenError::Shorter {
                path: self.path.clone(),
                found: state.length,
                wanted: bytes,
            });
        }
        while let Some((&lba, _)) = state.dirty.first_key_value() {
            state.write_back(lba, false);
        }
        state.lost.clear();
        state.reported = true;
        Ok(())
    }

    fn renew(&self, ring: &mut SimulatedRing) {
        ring.seen = self.state().sample();
    }
}

struct Entry {
    number: u64,
    pending: Pending,
    /// When it takes effect, and when it completes. `None`: it was not submitted to the kernel.
    times: Option<(Nanos, Nanos)>,
    outcome: Option<Outcome>,
}

/// An io_uring with its own open file description.
pub struct SimulatedRing {
    file: FileDisk,
    depth: usize,
    entries: Vec<Entry>,
    /// The last failed writeback that the description has reported.
    seen: u64,
}

impl SimulatedRing {
    fn enter(state: &mut State, entry: &mut Entry, now: Nanos) {
        let State {
            disk_behaviour,
            random,
            figures,
            ..
        } = &mut *state;
        let latency = disk_behaviour.draw_latency(random, figures);
        let effect = state.random.below(latency.as_nanos() + 1);
        let is_write = matches!(entry.pending.operation, Operation::Write { .. });
        let (effect, due) = match state.stuck_until.take_if(|_| is_write) {
            Some(until) if until > now => (until.saturating_sub(now).as_nanos(), until),
            _ => (effect, now + latency),
        };
        entry.number = state.next_number;
        state.next_number += 1;
        state.dues.insert((due, entry.number));
        (entry.times, entry.outcome) = (Some((now + Nanos(effect), due)), None);
    }

    /// Executes entries that are due, in the order of their times.
    fn take_effect(&mut self, state: &mut State, now: Nanos) {
        let mut due: Vec<(Nanos, usize)> = (self.entries.iter().enumerate())
            .filter_map(|(index, entry)| {
                let (effect_at, _) = entry.times.filter(|_| entry.outcome.is_none())?;
                (effect_at <= now).then_some((effect_at, index))
            })
            .collect();
        due.sort_unstable();
        for (_, index) in due {
            let Entry {
                pending, outcome, ..
            } = &mut self.entries[index];
            *outcome = Some(state.apply(pending, &mut self.seen, false));
        }
    }
}

impl FileRing for SimulatedRing {
    fn submit(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.entries.len() == self.depth {
            return Err(operation);
        }
        self.entries.push(Entry {
            number: 0,
            pending: Pending::new(tag, operation),
            times: None,
            outcome: None,
        });
        Ok(())
    }

    fn flush(&mut self) {
        let file = self.file.clone();
        let (now, mut state) = (file.time.now(), file.state());
        for entry in self.entries.iter_mut().filter(|it| it.times.is_none()) {
            Self::enter(&mut state, entry, now);
        }
    }

    fn poll(&mut self, done: &mut DoneBatch) {
        let file = self.file.clone();
        let (now, mut state) = (file.time.now(), file.state());
        self.take_effect(&mut state, now);
        let mut index = 0;
        while index < self.entries.len() && !done.is_full() {
            let entry = &mut self.entries[index];
            let (Some((_, due)), Some(outcome)) = (entry.times, entry.outcome) else {
                index += 1;
                continue;
            };
            if due > now {
                index += 1;
                continue;
            }
            state.dues.remove(&(due, entry.number));
            match entry.pending.advance(outcome) {
                Step::Continue | Step::Retry => {
                    Self::enter(&mut state, entry, now);
                    index += 1;
                }
                Step::End(result) => done.push(self.entries.remove(index).pending.end(result)),
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.entries.len()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.state().length)
    }

    /// There is no descriptor that would wake a reactor, so the reactor has to keep polling.
    fn has_unflushed(&self) -> bool {
        !self.entries.is_empty()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for SimulatedRing {
    /// When the appliance ends, entries in flight have taken effect completely, partially or not at
    /// all.
    fn drop(&mut self) {
        let file = self.file.clone();
        let mut state = file.state();
        for entry in &mut self.entries {
            if let Some((_, due)) = entry.times {
                state.dues.remove(&(due, entry.number));
            }
            if entry.outcome.is_none() && state.random.coin() {
                // The result is not reported.
                let _ = state.apply(&mut entry.pending, &mut self.seen, true);
            }
        }
    }
}
