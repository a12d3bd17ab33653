//! One reactor's ring on a file, and the steps of the requests that take more than one operation.
//!
//! A compare reads pieces of the file into a second lease; zeroes that the file system cannot make
//! itself are written from one; zeroes with FUA are followed by a sync. The second lease is taken
//! from the pool, or is the queue's own, which it keeps for itself from start to end: so such
//! requests wait for one another when the pool is empty, but never for ever.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use hugemem::{Data, Lease, Pool};
use uring::{AllocateMode, Done, FileId, Operation as FileOperation, Ring, RingConfig};

use super::Shared;
use crate::bounds::byte_range;
use crate::device::{Deallocate, DeviceQueue, Drain, QueueOptions};
use crate::error::{DeviceError, Direction, OpenError};
use crate::ledger::{Ended, Ledger};
use crate::request::{CompletionBatch, Operation, Refusal, Request};

/// The lease that a queue keeps for itself, in bytes (or the arena's largest, if that is less).
const RESERVE_BYTES: usize = 64 * 1024;

/// Operations taken from the ring by one poll at most.
const DONE_PER_POLL_MAX: usize = 64;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// One operation, whose end is the request's.
    Transfer,
    /// The file system's own zeroing or hole.
    Allocate(AllocateMode),
    /// A second lease, to compare with or to write zeroes from.
    Scratch,
    /// A piece of the file, to be compared.
    Comparing,
    /// A piece of zeroes.
    WritingZeroes,
    /// The sync after zeroes.
    Syncing,
}

/// A request in the ring's hands, or waiting for its turn.
struct Job {
    ended: Ended,
    stage: Stage,
    /// Bytes of the file that are left to do.
    offset: u64,
    left: u64,
    /// A compare's data, kept aside.
    data: Option<Lease>,
}

pub(super) struct FileQueue {
    ledger: Ledger,
    ring: Ring,
    file: FileId,
    /// By the tag of their operation. One request has one operation at a time.
    jobs: Box<[Option<Job>]>,
    free: Vec<u32>,
    /// Jobs that wait for a second lease, oldest first.
    waiting: VecDeque<u32>,
    reserve: Option<Lease>,
    pool: Pool,
    /// What the file system was not found unable to do.
    can_punch: bool,
    can_zero: bool,
    /// Operations were put into the ring since the last poll began.
    sent: bool,
    /// The last flush left operations behind.
    unflushed: bool,
    shared: Arc<Shared>,
}

impl FileQueue {
    pub(super) fn open(shared: Arc<Shared>, options: QueueOptions) -> Result<Self, OpenError> {
        let QueueOptions { depth, pool, .. } = options;
        let counters = shared.counters.open_queue();
        let geometry = shared.geometry.now();
        let ledger = Ledger::new(depth, geometry, false, counters)?;
        let bytes = RESERVE_BYTES.min(pool.max_transfer());
        let reserve = pool.take(bytes).ok_or(OpenError::NoMemory { bytes })?;
        let config = RingConfig::new(depth as u32);
        let mut ring = Ring::new(&config, shared.arena.as_ref()).map_err(OpenError::Ring)?;
        let file = ring
            .add_file(Arc::clone(&shared.file))
            .map_err(OpenError::Ring)?;
        Ok(Self {
            ledger,
            ring,
            file,
            jobs: (0..depth).map(|_| None).collect(),
            free: (0..depth as u32).rev().collect(),
            waiting: VecDeque::with_capacity(depth),
            reserve: Some(reserve),
            pool,
            can_punch: geometry.deallocate != Deallocate::Unsupported,
            can_zero: true,
            sent: false,
            unflushed: false,
            shared,
        })
    }

    /// Puts a job's next operation into the ring, which has room for one of each.
    fn send(&mut self, index: u32, operation: FileOperation) {
        let sent = self.ring.submit(u64::from(index), operation);
        assert!(sent.is_ok(), "the ring is as deep as the queue");
        self.sent = true;
    }

    fn job(&mut self, index: u32) -> &mut Job {
        self.jobs[index as usize]
            .as_mut()
            .expect("a job that has an operation or waits")
    }

    fn start(&mut self, index: u32, request: Request, offset: u64) {
        let file = self.file;
        match (request.operation, request.data) {
            (Operation::Read, Some(lease)) => {
                self.send(
                    index,
                    FileOperation::Read {
                        file,
                        offset,
                        lease,
                    },
                );
            }
            (Operation::Write { fua }, Some(lease)) => {
                self.send(
                    index,
                    FileOperation::Write {
                        file,
                        offset,
                        lease,
                        sync: fua,
                    },
                );
            }
            (Operation::Flush, _) => {
                self.send(
                    index,
                    FileOperation::Sync {
                        file,
                        data_only: true,
                    },
                );
            }
            (Operation::Compare, Some(lease)) => {
                self.job(index).data = Some(lease);
                self.want_scratch(index);
            }
            (Operation::WriteZeroes { .. } | Operation::Deallocate, _) => self.zero(index),
            (Operation::Read | Operation::Write { .. } | Operation::Compare, None) => {
                unreachable!("admission checked that the request has its data")
            }
        }
    }

    /// Sends the best way to zero the job's range that the file system has not refused yet.
    fn zero(&mut self, index: u32) {
        let (can_punch, can_zero, file) = (self.can_punch, self.can_zero, self.file);
        let job = self.job(index);
        if job.left == 0 {
            return self.end(index, Ok(()), None);
        }
        let mode = match job.ended.operation {
            Operation::Deallocate => Some(AllocateMode::PunchHole),
            Operation::WriteZeroes {
                deallocate: true, ..
            } if can_punch => Some(AllocateMode::PunchHole),
            _ if can_zero => Some(AllocateMode::ZeroRange),
            _ => None,
        };
        let Some(mode) = mode else {
            return self.want_scratch(index);
        };
        job.stage = Stage::Allocate(mode);
        let (offset, len) = (job.offset, job.left);
        self.send(
            index,
            FileOperation::Allocate {
                file,
                mode,
                offset,
                len,
            },
        );
    }

    /// Lines up for a second lease; [`serve_waiting`](Self::serve_waiting) hands them out.
    fn want_scratch(&mut self, index: u32) {
        self.job(index).stage = Stage::Scratch;
        self.waiting.push_back(index);
        self.serve_waiting();
        if self.waiting.back() == Some(&index) {
            self.ledger.waited();
        }
    }

    fn serve_waiting(&mut self) {
        while let Some(&index) = self.waiting.front() {
            let left = usize::try_from(self.job(index).left).unwrap_or(usize::MAX);
            let wanted = left.min(self.pool.max_transfer());
            let Some(mut scratch) = self.pool.take(wanted).or_else(|| self.reserve.take()) else {
                return;
            };
            self.waiting.pop_front();
            if self.job(index).data.is_none() {
                scratch.resize(scratch.capacity().min(wanted));
                scratch.fill(0);
            }
            self.send_piece(index, scratch);
        }
    }

    /// Sends the next piece of a compare or of zeroes.
    fn send_piece(&mut self, index: u32, mut scratch: Lease) {
        let file = self.file;
        let job = self.job(index);
        let offset = job.offset;
        scratch.resize((scratch.capacity() as u64).min(job.left) as usize);
        let operation = if job.data.is_some() {
            job.stage = Stage::Comparing;
            FileOperation::Read {
                file,
                offset,
                lease: scratch,
            }
        } else {
            job.stage = Stage::WritingZeroes;
            FileOperation::Write {
                file,
                offset,
                lease: scratch,
                sync: false,
            }
        };
        self.send(index, operation);
    }

    /// Gives a second lease back: to the queue if its own is out, else to the pool.
    fn release_scratch(&mut self, scratch: Lease) {
        match &self.reserve {
            Some(reserve) if reserve.capacity() >= scratch.capacity() => {}
            Some(_) | None => self.reserve = Some(scratch),
        }
    }

    /// Moves a job on after its operation ended.
    fn advance(&mut self, done: Done) {
        let index = done.tag as u32;
        let job = self.job(index);
        let (stage, operation) = (job.stage, job.ended.operation);
        let direction = match (stage, operation) {
            (Stage::Comparing, _) | (Stage::Transfer, Operation::Read) => Direction::Read,
            _ => Direction::Write,
        };
        let result = done
            .result
            .map_err(|errno| DeviceError::from_errno(errno, direction));
        match stage {
            Stage::Transfer | Stage::Syncing => self.end(index, result, done.lease),
            Stage::Allocate(mode) => self.allocated(index, mode, result),
            Stage::Comparing => self.compared(index, result, done.lease),
            Stage::WritingZeroes => self.wrote_zeroes(index, result, done.lease),
            Stage::Scratch => unreachable!("a waiting job has no operation"),
        }
    }

    fn allocated(&mut self, index: u32, mode: AllocateMode, result: Result<(), DeviceError>) {
        let operation = self.job(index).ended.operation;
        match result {
            Ok(()) => self.zeroed(index),
            Err(DeviceError::Unsupported) if operation != Operation::Deallocate => {
                match mode {
                    AllocateMode::PunchHole => self.can_punch = false,
                    AllocateMode::ZeroRange => self.can_zero = false,
                }
                self.zero(index);
            }
            Err(_) => self.end(index, result, None),
        }
    }

    fn compared(&mut self, index: u32, result: Result<(), DeviceError>, scratch: Option<Lease>) {
        let scratch = scratch.expect("a read gives its lease back");
        let job = self.job(index);
        let result = result.and_then(|()| {
            let data = job.data.as_deref().unwrap_or_default();
            let from = data.len() - job.left as usize;
            if data[from..from + scratch.len()] == *scratch {
                Ok(())
            } else {
                Err(DeviceError::CompareMismatch)
            }
        });
        self.next_piece(index, result, scratch);
    }

    fn wrote_zeroes(
        &mut self,
        index: u32,
        result: Result<(), DeviceError>,
        scratch: Option<Lease>,
    ) {
        let scratch = scratch.expect("a write gives its lease back");
        self.next_piece(index, result, scratch);
    }

    /// Goes on after a piece of the scratch lease's length, or ends.
    fn next_piece(&mut self, index: u32, result: Result<(), DeviceError>, scratch: Lease) {
        let job = self.job(index);
        job.offset += scratch.len() as u64;
        job.left -= scratch.len() as u64;
        if result.is_ok() && job.left > 0 {
            return self.send_piece(index, scratch);
        }
        let data = job.data.take();
        self.release_scratch(scratch);
        if result.is_ok() && data.is_none() {
            self.zeroed(index);
        } else {
            self.end(index, result, data);
        }
    }

    /// The range reads as zeroes; with FUA that has to reach the medium.
    fn zeroed(&mut self, index: u32) {
        let file = self.file;
        let job = self.job(index);
        if let Operation::WriteZeroes { fua: true, .. } = job.ended.operation {
            job.stage = Stage::Syncing;
            self.send(
                index,
                FileOperation::Sync {
                    file,
                    data_only: true,
                },
            );
        } else {
            self.end(index, Ok(()), None);
        }
    }

    fn end(&mut self, index: u32, result: Result<(), DeviceError>, data: Option<Lease>) {
        let Some(job) = self.jobs[index as usize].take() else {
            unreachable!("a job ends once");
        };
        self.free.push(index);
        if result == Err(DeviceError::Removed) {
            self.shared.gone.store(true, Ordering::Relaxed);
        }
        self.ledger.end(job.ended, result, data.map(Data::Lease));
    }
}

impl DeviceQueue for FileQueue {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if self.shared.is_gone() {
            return Err(Refusal::Never(request, DeviceError::Removed));
        }
        let request = self.ledger.admit(request)?;
        let ended = Ended::of(&request, self.ledger.geometry());
        let (offset, left) = byte_range(&request, self.ledger.geometry());
        let index = self
            .free
            .pop()
            .expect("a free job for every request admitted");
        self.jobs[index as usize] = Some(Job {
            ended,
            stage: Stage::Transfer,
            offset,
            left,
            data: None,
        });
        self.start(index, request, offset);
        Ok(())
    }

    fn flush(&mut self) {
        self.ring.flush();
        self.unflushed = self.ring.has_unflushed();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        self.sent = false;
        if self.ring.in_flight() > 0 {
            let mut done = ArrayVec::<Done, DONE_PER_POLL_MAX>::new();
            self.ring.poll(&mut done);
            for ended in done {
                self.advance(ended);
            }
        }
        self.serve_waiting();
        // Second steps go at once: the caller's flush is for what the caller submits.
        if self.sent || self.unflushed {
            self.flush();
        }
        self.ledger.deliver(completions)
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }

    fn has_ready(&self) -> bool {
        self.ledger.has_ready() || self.ring.has_unflushed()
    }

    fn device_grew(&mut self) {
        self.ledger.set_geometry(self.shared.geometry.now());
    }

    fn drain(&mut self) -> Drain {
        self.ledger.drain()
    }
}

#[cfg(test)]
mod tests;
