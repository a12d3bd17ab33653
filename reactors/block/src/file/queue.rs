//! One reactor's ring on a file, and the steps of requests that take more than one operation.
//!
//! A compare reads pieces of the file into a second lease; zeroes that the file system cannot
//! create itself are written from one; zeroes with FUA are followed by a sync. The second lease
//! comes from the pool, or is the queue's own reserve. Such requests therefore wait for one another
//! when the pool is empty, but always make progress.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hugemem::{Data, Lease, Pool};
use rustix::io::Errno;
use uring::{AllocateMode, Done, Failure, FileId, Operation as FileOperation};

use super::Shared;
use super::condition::ConditionWord;
use super::store::{DoneBatch, FileRing, FileStore};
use super::sync_order::SyncOrder;
use crate::bounds::byte_range;
use crate::device::{Deallocate, DeviceQueue, Drain, QueueOptions};
use crate::error::{DeviceError, Direction, OpenError};
use crate::health::DamageCause;
use crate::ledger::{EndedRequest, Ledger};
use crate::request::{CompletionBatch, Operation, Refusal, Request};

/// Size in bytes of the lease that a queue reserves for itself: the smallest, so that many queues
/// leave enough for requests.
const RESERVE_BYTES: usize = hugemem::UNIT_BYTES;

/// The current step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A single operation, which ends the request.
    Transfer,
    /// Zeroing or hole punching by the file system.
    Allocate(AllocateMode),
    /// Waiting for a second lease, to compare with or to write zeroes from.
    Scratch,
    /// Reading a piece of the file to compare.
    Comparing,
    /// Writing a piece of zeroes.
    WritingZeroes,
    /// The sync after zeroes.
    Syncing,
    /// Done, but syncs that overlapped this request's sync have not ended.
    Held,
}

/// Whether a request ended before its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyEnd {
    /// It has not ended.
    None,
    /// It has ended. The operation cannot change the file.
    Harmless,
    /// It has ended, and the operation may still change the file.
    Stuck,
}

/// A request that is in the ring or waits for a second lease.
struct Job {
    ended: EndedRequest,
    stage: Stage,
    /// Byte range of the file that is not done yet.
    offset: u64,
    left: u64,
    /// A compare's data; or the data of a write whose success is held back.
    data: Option<Lease>,
    /// Its effect is no longer wanted: no further operation begins.
    given_up: bool,
    /// Whether its request ended before its operation.
    early_end: EarlyEnd,
    /// The number of its sync in flight.
    sync: Option<u64>,
}

impl Job {
    /// Whether its operation may change the file.
    fn may_still_write(&self) -> bool {
        let writes = match self.stage {
            Stage::Transfer | Stage::Allocate(_) | Stage::WritingZeroes => true,
            Stage::Scratch | Stage::Comparing | Stage::Syncing | Stage::Held => false,
        };
        writes && self.ended.operation.changes_medium()
    }
}

/// The queue. `S` is the system below it: the kernel or a simulation.
pub(super) struct FileQueue<S: FileStore> {
    ledger: Ledger,
    ring: S::Ring,
    /// Indexed by the tag of their operation. One request has one operation at a time.
    jobs: Box<[Option<Job>]>,
    free: Vec<u32>,
    /// Jobs that wait for a second lease, oldest first.
    waiting: VecDeque<u32>,
    reserve: Option<Lease>,
    pool: Pool,
    /// False once the file system has refused the operation.
    can_punch: bool,
    can_zero: bool,
    /// Operations were submitted to the ring since the last poll began.
    sent: bool,
    /// The last flush left operations in the submission queue.
    unflushed: bool,
    /// Since the last flush, the file was found to be as long as the device.
    is_whole: bool,
    /// The device's condition when the ring received its file.
    known: ConditionWord,
    syncs: SyncOrder,
    /// Writes with FUA are held back like flushes, because their errors are reported through the
    /// page cache.
    holds_back_fua: bool,
    shared: Arc<Shared<S>>,
}

impl<S: FileStore> FileQueue<S> {
    pub(super) fn open(shared: Arc<Shared<S>>, options: QueueOptions) -> Result<Self, OpenError> {
        let QueueOptions { depth, pool, .. } = options;
        let counters = shared.counters.open_queue();
        let geometry = shared.geometry.now();
        let ledger = Ledger::new(depth, geometry, false, counters)?;
        let bytes = RESERVE_BYTES;
        let reserve = pool.take_permanent(bytes);
        let reserve = reserve.ok_or(OpenError::NoMemory { bytes })?;
        let known = shared.condition.now().undamaged();
        let ring = shared.store.open_ring(depth as u32);
        let ring = ring.map_err(OpenError::Ring)?;
        let holds_back_fua = !shared.store.is_direct();
        Ok(Self {
            ledger,
            ring,
            jobs: (0..depth).map(|_| None).collect(),
            free: (0..depth as u32).rev().collect(),
            waiting: VecDeque::with_capacity(depth),
            reserve: Some(reserve),
            pool,
            can_punch: geometry.deallocate != Deallocate::Unsupported,
            can_zero: true,
            sent: false,
            unflushed: false,
            is_whole: false,
            known,
            syncs: SyncOrder::new(depth),
            holds_back_fua,
            shared,
        })
    }

    /// Submits a job's next operation to the ring, which has room for one operation of each job.
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

    /// Submits an operation that syncs.
    fn send_sync(&mut self, index: u32, operation: FileOperation) {
        let number = self.syncs.start();
        self.job(index).sync = Some(number);
        self.send(index, operation);
    }

    fn start(&mut self, index: u32, request: Request, offset: u64) {
        let file = FileId::FIRST;
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
                let write = FileOperation::Write {
                    file,
                    offset,
                    lease,
                    sync: fua,
                };
                if fua {
                    self.send_sync(index, write);
                } else {
                    self.send(index, write);
                }
            }
            (Operation::Flush, _) => self.send_sync(index, SYNC),
            (Operation::Compare, Some(lease)) => {
                self.job(index).data = Some(lease);
                self.wait_for_scratch(index);
            }
            (Operation::WriteZeroes { .. } | Operation::Deallocate, _) => self.zero(index),
            (Operation::Read | Operation::Write { .. } | Operation::Compare, None) => {
                unreachable!("admission checked that the request has its data")
            }
        }
    }

    /// Submits the best way to zero the job's range that the file system has not refused yet.
    fn zero(&mut self, index: u32) {
        let (can_punch, can_zero, file) = (self.can_punch, self.can_zero, FileId::FIRST);
        let job = self.job(index);
        if job.given_up {
            return self.end(index, Err(DeviceError::Aborted), None);
        }
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
            return self.wait_for_scratch(index);
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

    /// Queues the job for a second lease; [`serve_waiting`](Self::serve_waiting) assigns them.
    fn wait_for_scratch(&mut self, index: u32) {
        self.job(index).stage = Stage::Scratch;
        self.waiting.push_back(index);
        self.serve_waiting();
        if self.waiting.back() == Some(&index) {
            self.ledger.waited();
        }
    }

    fn serve_waiting(&mut self) {
        while let Some(&index) = self.waiting.front() {
            if self.is_damaged_since_start(index) {
                self.waiting.pop_front();
                self.end(index, Err(DeviceError::Damaged), None);
                continue;
            }
            if self.job(index).given_up {
                self.waiting.pop_front();
                let data = self.job(index).data.take();
                self.end(index, Err(DeviceError::Aborted), data);
                continue;
            }
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

    /// Submits the next piece of a compare or of zeroes.
    fn send_piece(&mut self, index: u32, mut scratch: Lease) {
        let file = FileId::FIRST;
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

    /// Returns a second lease: to the queue if its reserve is in use, otherwise to the pool.
    fn release_scratch(&mut self, scratch: Lease) {
        if self.reserve.is_none() && scratch.capacity() <= RESERVE_BYTES {
            self.reserve = Some(scratch);
        }
    }

    /// Advances a job after its operation ended.
    fn advance(&mut self, done: Done) {
        let index = done.tag as u32;
        let job = self.job(index);
        let (stage, operation, sync) = (job.stage, job.ended.operation, job.sync.take());
        if let Err(failure) = done.result {
            self.note_damage(stage, operation, failure);
        }
        if let Some(number) = sync {
            self.syncs.end(number);
        }
        let direction = match (stage, operation) {
            (Stage::Comparing, _) | (Stage::Transfer, Operation::Read) => Direction::Read,
            _ => Direction::Write,
        };
        let result = done
            .result
            .map_err(|failure| DeviceError::from_errno(failure.errno(), direction));
        match stage {
            Stage::Transfer | Stage::Syncing if sync.is_some() && result.is_ok() => {
                self.synced(index, operation, done.lease);
            }
            Stage::Transfer | Stage::Syncing => self.end(index, result, done.lease),
            Stage::Allocate(mode) => self.allocated(index, mode, result),
            Stage::Comparing => self.compared(index, result, done.lease),
            Stage::WritingZeroes => self.wrote_zeroes(index, result, done.lease),
            Stage::Scratch | Stage::Held => unreachable!("a waiting job has no operation"),
        }
        if sync.is_some() {
            while let Some(held) = self.syncs.release() {
                let data = self.job(held).data.take();
                self.end(held, Ok(()), data);
            }
        }
    }

    /// Handles a successful sync, see [`SyncOrder`].
    fn synced(&mut self, index: u32, operation: Operation, data: Option<Lease>) {
        let is_write = matches!(operation, Operation::Write { .. });
        if is_write && !self.holds_back_fua {
            return self.end(index, Ok(()), data);
        }
        let job = self.job(index);
        (job.stage, job.data) = (Stage::Held, data);
        self.syncs.hold(index);
    }

    /// Marks the device as damaged if a failure means that data accepted earlier may be lost, or
    /// that the file's content differs from what was reported.
    #[cold]
    fn note_damage(&mut self, stage: Stage, operation: Operation, failure: Failure) {
        let direct = self.shared.store.is_direct();
        if let Some(cause) = damage_of(stage, operation, failure, direct) {
            self.shared.condition.note_damage(cause);
        }
    }

    /// Whether the device was damaged after the job began, so that the job's changes are uncertain.
    fn is_damaged_since_start(&self, index: u32) -> bool {
        let now = self.shared.condition.now();
        if now == self.known {
            return false;
        }
        let job = self.jobs[index as usize].as_ref();
        let damaged = now.cause().is_some() || !now.same_generation(self.known);
        damaged && job.is_some_and(|job| promises_durability(job.ended.operation))
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
            // Writing the zeroes shows whether the range can be written. A block device refuses to
            // zero a range of which the page cache has dirty pages (`EBUSY`).
            Err(DeviceError::MediaWrite) => self.wait_for_scratch(index),
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

    /// Continues after a piece of the scratch lease's length, or ends the job.
    fn next_piece(&mut self, index: u32, result: Result<(), DeviceError>, scratch: Lease) {
        let job = self.job(index);
        job.offset += scratch.len() as u64;
        job.left -= scratch.len() as u64;
        let (left, given_up) = (job.left, job.given_up);
        let result = match result {
            Ok(()) if left > 0 && self.is_damaged_since_start(index) => Err(DeviceError::Damaged),
            Ok(()) if left > 0 && given_up => Err(DeviceError::Aborted),
            result => result,
        };
        if result.is_ok() && left > 0 {
            return self.send_piece(index, scratch);
        }
        let data = self.job(index).data.take();
        self.release_scratch(scratch);
        if result.is_ok() && data.is_none() {
            self.zeroed(index);
        } else {
            self.end(index, result, data);
        }
    }

    /// The range reads as zeroes. With FUA they have to be synced to the medium.
    fn zeroed(&mut self, index: u32) {
        let job = self.job(index);
        if let Operation::WriteZeroes { fua: true, .. } = job.ended.operation {
            job.stage = Stage::Syncing;
            self.send_sync(index, SYNC);
        } else {
            self.end(index, Ok(()), None);
        }
    }

    fn end(&mut self, index: u32, result: Result<(), DeviceError>, data: Option<Lease>) {
        let overtaken = result.is_ok() && self.is_damaged_since_start(index);
        let Some(job) = self.jobs[index as usize].take() else {
            unreachable!("a job ends once");
        };
        self.free.push(index);
        match job.early_end {
            EarlyEnd::None => {}
            EarlyEnd::Harmless | EarlyEnd::Stuck => {
                if job.early_end == EarlyEnd::Stuck {
                    self.shared.condition.clear_stuck();
                }
                return self.ledger.operation_returned();
            }
        }
        let result = match result {
            Ok(()) if overtaken => Err(DeviceError::Damaged),
            Err(DeviceError::Removed) => {
                self.shared.condition.set_removed();
                result
            }
            _ => result,
        };
        self.ledger.end(job.ended, result, data.map(Data::Lease));
    }

    /// Checks before the first write of a turn that the file is as long as the device. A write
    /// beyond the end of a truncated file would extend it again, with zeroes in place of the lost
    /// data, and the loss would stay undetected. A truncation between this check and the write is
    /// detected by the next check, unless the write reaches the device's last block.
    fn check_length(&mut self) {
        let wanted = self.ledger.geometry().bytes();
        self.is_whole = true;
        if self.ring.length().is_ok_and(|length| length < wanted) {
            self.is_whole = false;
            self.shared.condition.note_damage(DamageCause::Truncated);
        }
    }

    /// Whether a request may continue although the device's condition is `now` and not the one that
    /// the queue knows. Switches to the new file of a reopened device.
    #[cold]
    fn admit_changed_condition(
        &mut self,
        request: Request,
        now: ConditionWord,
    ) -> Result<Request, Refusal> {
        if now.is_removed() {
            return Err(Refusal::Never(request, DeviceError::Removed));
        }
        if now.cause().is_some() && promises_durability(request.operation) {
            return Err(Refusal::Never(request, DeviceError::Damaged));
        }
        if !now.same_generation(self.known) {
            // The ring switches to the new file when no operation on the old one is in flight.
            if self.ring.in_flight() > 0 {
                return Err(Refusal::Later(request));
            }
            self.shared.store.renew(&mut self.ring);
            self.known = now.undamaged();
        }
        Ok(request)
    }
}

/// The sync of a flush and of zeroes with FUA.
const SYNC: FileOperation = FileOperation::Sync {
    file: FileId::FIRST,
    data_only: true,
};

/// Whether success of the operation promises that data is in the file or on the medium.
fn promises_durability(operation: Operation) -> bool {
    operation.changes_medium() || operation == Operation::Flush
}

/// The damage caused by a failed operation, if any.
fn damage_of(
    stage: Stage,
    operation: Operation,
    failure: Failure,
    direct: bool,
) -> Option<DamageCause> {
    let syncs = match (stage, operation) {
        (Stage::Syncing, _) | (Stage::Transfer, Operation::Flush) => true,
        (Stage::Transfer, Operation::Write { fua }) => fua,
        _ => false,
    };
    let writes = matches!(
        (stage, operation),
        (Stage::Transfer, Operation::Write { .. }) | (Stage::WritingZeroes, _)
    );
    let errno = match failure {
        // A device is never longer than its file was.
        Failure::EndOfFile => return Some(DamageCause::Truncated),
        Failure::Errno(errno) | Failure::ShortWrite(errno) => errno,
    };
    let is_short = matches!(failure, Failure::ShortWrite(_));
    match errno {
        // Not executed: a later sync reports any error.
        Errno::CANCELED | Errno::AGAIN | Errno::INTR if !is_short => None,
        // A file system that is full or became read-only refuses a write before it does anything.
        // The error is late only when data is written back from the page cache.
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::ROFS if writes => {
            (syncs && !direct).then_some(DamageCause::SyncFailed)
        }
        // Refused without any effect.
        Errno::INVAL | Errno::BADF | Errno::FAULT | Errno::PERM | Errno::OPNOTSUPP
            if writes && !is_short =>
        {
            None
        }
        _ if syncs => Some(DamageCause::SyncFailed),
        _ if writes && is_short => Some(DamageCause::ShortWrite),
        // Without the page cache the error concerns only this write, which is not acknowledged.
        _ if writes && !direct => Some(DamageCause::WriteFailed),
        _ => None,
    }
}

impl<S: FileStore> DeviceQueue for FileQueue<S> {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if !self.is_whole && promises_durability(request.operation) {
            self.check_length();
        }
        let now = self.shared.condition.now();
        let request = if now == self.known {
            request
        } else {
            self.admit_changed_condition(request, now)?
        };
        let request = self.ledger.admit(request)?;
        let ended = EndedRequest::of(&request, self.ledger.geometry());
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
            given_up: false,
            early_end: EarlyEnd::None,
            sync: None,
        });
        self.start(index, request, offset);
        Ok(())
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        for job in self.jobs.iter_mut().flatten() {
            // A transfer is a single operation, which the kernel already has.
            job.given_up |= job.stage != Stage::Transfer && is_unwanted(job.ended.tag);
        }
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop_front() else {
                break;
            };
            if self.job(index).given_up {
                let data = self.job(index).data.take();
                self.end(index, Err(DeviceError::Aborted), data);
            } else {
                self.waiting.push_back(index);
            }
        }
    }

    #[cold]
    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        for job in self.jobs.iter_mut().flatten() {
            if job.early_end != EarlyEnd::None || !is_overdue(job.ended.tag) {
                continue;
            }
            job.given_up = true;
            if job.may_still_write() {
                // Damage is recorded first, so that no write is acknowledged after the end that
                // this write could overwrite.
                self.shared.condition.note_stuck();
                job.early_end = EarlyEnd::Stuck;
            } else {
                job.early_end = EarlyEnd::Harmless;
            }
            self.ledger.end_early(job.ended);
        }
    }

    fn flush(&mut self) {
        self.is_whole = false;
        self.ring.flush();
        self.unflushed = self.ring.has_unflushed();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        self.sent = false;
        if self.ring.in_flight() > 0 {
            let mut done = DoneBatch::new();
            self.ring.poll(&mut done);
            for ended in done {
                self.advance(ended);
            }
        }
        self.serve_waiting();
        // Second steps are submitted here: the caller flushes only after its own submissions.
        if self.sent || self.unflushed {
            self.flush();
        }
        self.ledger.take_ready(completions)
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.ring.wake_source()
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
