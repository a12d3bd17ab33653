//! Copies of one device to another while both are in use: a client of a reactor's devices.
//!
//! A copy reads pieces of its range into leases of the arena and writes them to the same place of the
//! destination, a few at a time, and ends with a flush of the destination. The devices move the data
//! into and out of the leases; the copier accesses none of it. If one of them has memory of its own that
//! the other one reaches, the data may stay there, and no lease of the arena is used. Devices of one drive
//! may copy pieces by themselves. A copy is not a snapshot: a piece has what the source has when it is read.
//!
//! Requests of others come first: while one waits for memory of the size of a piece, a copy has one
//! piece in flight. Every request has a deadline. After the first failure, only pieces before the
//! failed one are completed, so that the reported range is the lowest that failed.

mod job;

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use hugemem::Pool;
use reactors::{Nanos, ring};

use crate::error::DeviceError;
use crate::set::{ClientId, Completions, DeviceClient, DeviceSet};
use job::Job;

/// Maximum number of copies that run at the same time.
pub const COPIES_MAX: usize = 4;

/// Maximum size of one request of a copy in bytes: one slice of the arena.
pub const COPY_PIECE_BYTES: usize = 256 << 10;

/// Maximum number of requests that a copy has in flight.
pub const COPY_PIECES_MAX: usize = 4;

/// Time after which a copy whose request has not completed fails.
pub const COPY_REQUEST_TIME_MAX: Nanos = Nanos::from_secs(30);

/// Time after which a copy that has no request in flight and gets no memory fails.
pub const COPY_MEMORY_TIME_MAX: Nanos = Nanos::from_secs(30);

/// Messages that are processed in one turn.
const MESSAGES_PER_POLL_MAX: usize = 4;

/// Bits of a tag that number the piece; those above are the number of the copy.
const PIECE_BITS: u32 = 8;

/// Maximum number of source ranges of a piece that a device copies by itself.
pub const COPY_PIECE_SOURCES_MAX: u32 = 64;

/// Failures of a device's own copies after which a copy no longer uses them.
pub const OWN_COPY_FAILURES_MAX: u32 = 4;

/// Failures of pieces in memory of devices after which a copy no longer uses such memory.
pub const DEVICE_MEMORY_FAILURES_MAX: u32 = 16;

const _: () = assert!(COPY_PIECES_MAX <= 1 << PIECE_BITS);
const _: () = assert!(u32::BITS + PIECE_BITS <= crate::set::CLIENT_TAG_BITS);

/// A range of one device that is copied to the same range of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// The place of the device that is read.
    pub source: usize,
    /// The place of the device that is written: another one.
    pub destination: usize,
    /// First block of the range, on both devices.
    pub first_block: u64,
    /// Length of the range in blocks.
    pub blocks: u64,
    /// Size of a block of both devices in bytes.
    pub block_bytes: u32,
    /// The smaller limit of both devices on one request in blocks.
    pub max_transfer_blocks: u32,
    /// Move data through memory of one of the devices that the other one reaches, while there is any
    /// ([`DeviceSet::take_device_memory`]).
    pub in_device: bool,
    /// Let the devices copy by themselves what they can ([`DeviceSet::copy_limits_between`]).
    pub by_device: bool,
}

/// Which request of a copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// A read of the source.
    Read,
    /// A write to the destination.
    Write,
    /// A copy that the devices execute by themselves.
    Copy,
    /// The flush of the destination at the end.
    Flush,
}

/// Why a request of a copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The device's error.
    #[error("{0}")]
    Device(DeviceError),
    /// The device did not complete it in time.
    #[error("the device did not complete a request within {} s", COPY_REQUEST_TIME_MAX.as_secs())]
    Overdue,
    /// There was no memory for it.
    #[error("the arena had no memory for {} s: configure more `memory`", COPY_MEMORY_TIME_MAX.as_secs())]
    NoMemory,
}

/// The lowest range of a copy that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFailure {
    /// What failed.
    pub step: CopyStep,
    /// First block of the range.
    pub first_block: u64,
    /// Length of the range in blocks.
    pub blocks: u64,
    /// Why.
    pub error: CopyError,
}

/// Why a copy ended before its range was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStop {
    /// A request failed.
    Failed(CopyFailure),
    /// The copy was aborted.
    Aborted,
    /// The reactor stops.
    ReactorStops,
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// The range is written, and the destination was flushed.
    Complete,
    /// It ended before.
    Stopped {
        /// Blocks from the beginning of the range that are all written, and not flushed.
        written_blocks: u64,
        /// Why.
        cause: CopyStop,
    },
}

/// The progress of a copy. The copier writes it, and any thread may read it.
#[derive(Debug, Default)]
pub struct CopyProgress {
    written_blocks: AtomicU64,
    in_device_blocks: AtomicU64,
    by_device_blocks: AtomicU64,
    own_copy_failures: AtomicU64,
    device_memory_failures: AtomicU64,
    memory_waits: AtomicU64,
    /// The result, and how long it took.
    end: OnceLock<(CopyEnd, Nanos)>,
}

impl CopyProgress {
    /// Number of blocks that are written.
    #[must_use]
    pub fn written_blocks(&self) -> u64 {
        self.written_blocks.load(Ordering::Relaxed)
    }

    /// Number of those blocks whose data was in memory of a device and not in the arena.
    #[must_use]
    pub fn in_device_blocks(&self) -> u64 {
        self.in_device_blocks.load(Ordering::Relaxed)
    }

    /// Number of written blocks that the devices have copied by themselves.
    #[must_use]
    pub fn by_device_blocks(&self) -> u64 {
        self.by_device_blocks.load(Ordering::Relaxed)
    }

    /// Number of copies by the devices themselves that failed. Their ranges are copied by the next way.
    #[must_use]
    pub fn own_copy_failures(&self) -> u64 {
        self.own_copy_failures.load(Ordering::Relaxed)
    }

    /// Number of pieces whose data was lost in memory of a device, or which failed there. They are copied
    /// through the arena.
    #[must_use]
    pub fn device_memory_failures(&self) -> u64 {
        self.device_memory_failures.load(Ordering::Relaxed)
    }

    /// Number of times that it left memory to requests of others.
    #[must_use]
    pub fn memory_waits(&self) -> u64 {
        self.memory_waits.load(Ordering::Relaxed)
    }

    /// The result; `None` while it runs.
    #[must_use]
    pub fn end(&self) -> Option<CopyEnd> {
        self.end.get().map(|(end, _)| *end)
    }

    /// How long it took; `None` while it runs.
    #[must_use]
    pub fn took(&self) -> Option<Nanos> {
        self.end.get().map(|(_, took)| *took)
    }

    fn add_written(&self, blocks: u64, in_device: bool) {
        if in_device {
            self.in_device_blocks.fetch_add(blocks, Ordering::Relaxed);
        }
        self.written_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    fn add_copied_by_device(&self, blocks: u64) {
        self.by_device_blocks.fetch_add(blocks, Ordering::Relaxed);
        self.add_written(blocks, false);
    }

    fn count_own_copy_failure(&self) {
        self.own_copy_failures.fetch_add(1, Ordering::Relaxed);
    }

    fn count_device_memory_failure(&self) {
        self.device_memory_failures.fetch_add(1, Ordering::Relaxed);
    }

    fn count_memory_wait(&self) {
        self.memory_waits.fetch_add(1, Ordering::Relaxed);
    }

    fn set_end(&self, end: CopyEnd, took: Nanos) {
        // A copy ends once.
        let _ = self.end.set((end, took));
    }
}

/// A copy to begin.
#[derive(Debug)]
pub struct CopyStart {
    /// Its number, which no other copy of this copier has had.
    pub number: u32,
    /// What is copied. The devices are attached, and the range lies within both.
    pub plan: CopyPlan,
    /// Where progress and result are reported.
    pub progress: Arc<CopyProgress>,
}

/// A message to the copier.
#[derive(Debug)]
pub enum CopyMessage {
    /// Begin a copy. Beyond [`COPIES_MAX`], it ends as aborted.
    Start(CopyStart),
    /// Abort the copy with this number. One that has ended is ignored.
    Abort(u32),
}

/// What a job needs to submit requests.
struct Access<'a> {
    client: ClientId,
    set: &'a DeviceSet,
    pool: &'a Pool,
    now: Nanos,
}

/// The copies of one reactor.
pub struct Copier {
    client: ClientId,
    set: Rc<DeviceSet>,
    pool: Pool,
    messages: ring::Receiver<CopyMessage>,
    jobs: ArrayVec<Job, COPIES_MAX>,
    is_stopping: bool,
}

impl Copier {
    /// Creates a copier without copies, and registers it with the devices.
    #[must_use]
    pub fn new(set: Rc<DeviceSet>, pool: Pool, messages: ring::Receiver<CopyMessage>) -> Self {
        Self {
            client: set.register(COPIES_MAX * COPY_PIECES_MAX),
            set,
            pool,
            messages,
            jobs: ArrayVec::new(),
            is_stopping: false,
        }
    }

    /// Calls `act` for each copy, and forgets those that have ended.
    fn for_each(&mut self, now: Nanos, mut act: impl FnMut(&mut Job, &Access<'_>)) {
        let access = Access {
            client: self.client,
            set: &self.set,
            pool: &self.pool,
            now,
        };
        self.jobs.iter_mut().for_each(|job| act(job, &access));
        self.jobs.retain(|job| !job.has_ended());
    }

    /// Processes messages; returns their number.
    fn receive(&mut self, now: Nanos) -> usize {
        let mut received = 0;
        while received < MESSAGES_PER_POLL_MAX
            && let Some(message) = self.messages.recv()
        {
            received += 1;
            match message {
                CopyMessage::Start(start) => self.start(start, now),
                CopyMessage::Abort(number) => self.for_each(now, |job, access| {
                    if job.number() == number {
                        job.stop(CopyStop::Aborted, access);
                    }
                }),
            }
        }
        received
    }

    fn start(&mut self, start: CopyStart, now: Nanos) {
        let cause = match self.is_stopping {
            true => CopyStop::ReactorStops,
            false => CopyStop::Aborted,
        };
        if self.is_stopping || self.jobs.is_full() {
            let end = CopyEnd::Stopped {
                written_blocks: 0,
                cause,
            };
            start.progress.set_end(end, Nanos::ZERO);
            return;
        }
        let piece_bytes = self.pool.max_transfer().min(COPY_PIECE_BYTES);
        let job = Job::new(start, piece_bytes, now);
        self.jobs.push(job);
    }
}

impl DeviceClient for Copier {
    fn id(&self) -> ClientId {
        self.client
    }

    fn completed(&mut self, completions: Completions<'_>, now: Nanos) {
        let access = Access {
            client: self.client,
            set: &self.set,
            pool: &self.pool,
            now,
        };
        for completion in completions {
            let number = completion.tag >> PIECE_BITS;
            let piece = completion.tag & ((1 << PIECE_BITS) - 1);
            let mut jobs = self.jobs.iter_mut();
            // A copy is kept until its last request has completed.
            if let Some(job) = jobs.find(|job| u64::from(job.number()) == number) {
                job.completed(piece as usize, completion, &access);
            }
        }
    }

    fn poll(&mut self, now: Nanos) -> usize {
        if self.jobs.is_empty() && self.messages.is_empty() {
            return 0;
        }
        let mut moved = self.receive(now);
        self.for_each(now, |job, access| moved += job.advance(access));
        moved
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.jobs.iter().filter_map(Job::next_deadline).min()
    }

    fn has_ready(&self) -> bool {
        !self.messages.is_empty()
    }

    fn has_released_device(&self, place: usize) -> bool {
        !self.jobs.iter().any(|job| job.uses(place))
    }

    fn device_removed(&mut self, place: usize, now: Nanos) {
        self.for_each(now, |job, access| job.device_removed(place, access));
    }

    fn stop(&mut self, now: Nanos) -> bool {
        if !std::mem::replace(&mut self.is_stopping, true) {
            self.for_each(now, |job, access| job.stop(CopyStop::ReactorStops, access));
        }
        self.jobs.is_empty() && self.messages.is_empty()
    }
}
