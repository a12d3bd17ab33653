//! One reactor's I/O queue pair of a drive: commands out, completions in.
//!
//! Owns the slots of what is in flight, with their leases. Refuses locks, allocation, system calls
//! and waiting; dynamic dispatch is for doorbells (and for queues that lie on the drive). All
//! namespaces of a drive on one reactor share it, each through a [`NamespaceQueue`].
//!
//! Commands are written as they are submitted and announced once per turn by `flush`; completions
//! are acknowledged once per poll. One slot less than the queues have entries is in use at most, so
//! neither queue can overflow and no head needs to be followed.
//!
//! [`NamespaceQueue`]: crate::queue::NamespaceQueue

mod data;
mod parts;
mod recovery;
mod sleep;
mod slot;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{Completion, CompletionBatch, DeviceError, Operation, QueueCounters, Refusal, Request};
use hugemem::{Data, DmaBuffer, DmaLease, Lease};
use nvme_spec::completion::StatusField;
use nvme_spec::{Sqe, U16};
use reactors::sim::planted;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::backing::{ControllerMemory, DeviceBacking};
use crate::doorbell::Doorbell;
use crate::identity::Limits;
use crate::memory::{CQE_BYTES, PairMemory, SQE_BYTES};
use crate::shared::{Attention, FaultKind, Shared, count};
use data::Pointers;
use parts::Scratch;
use sleep::Sleep;
pub(crate) use sleep::borrow;
use slot::{NvmeDma, ORPHAN, SlotState, SlotTable};

/// Namespace queues of one pair at most.
pub(crate) const QUEUES_MAX: usize = ORPHAN as usize;

/// What may be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// The drive is starting or being reset.
    Later,
    /// The drive is gone or about to go.
    Never,
}

/// The second half of a completion queue entry, which is read as one word: whoever sees the new
/// phase tag sees the rest of the word too (Base 2.1 §4.2.1).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CompletionTail {
    sqhd: U16,
    sqid: U16,
    cid: U16,
    status: StatusField,
}

/// The submission queue, in the arena or on the drive.
enum SubmissionQueue {
    Arena,
    Drive {
        memory: Arc<dyn ControllerMemory>,
        offset: usize,
    },
}

/// Per-namespace I/O limits: transfer size, and supported commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceLimits {
    pub(crate) nsid: u32,
    /// log2 of the block size.
    pub(crate) shift: u8,
    /// Blocks of one read, write or compare.
    pub(crate) part_blocks: u32,
    /// Whether the drive compares.
    pub(crate) compare: bool,
    /// Bytes that are read at once for a compare where it does not.
    pub(crate) scratch_bytes: u32,
    /// Blocks of one Write Zeroes, or `None` where zeroes are written.
    pub(crate) zeroes_blocks: Option<u32>,
    /// Blocks of one write of zeroes.
    pub(crate) written_blocks: u32,
    /// Whether Write Zeroes may deallocate.
    pub(crate) zeroes_deallocate: bool,
    /// Blocks of one range to deallocate.
    pub(crate) deallocate_blocks: u32,
}

/// A namespace queue that is registered with a pair.
struct RegisteredQueue {
    open: bool,
    /// Requests that are over, for the queue's next poll.
    done: VecDeque<u16>,
}

/// See the module.
pub(crate) struct Pair {
    seen: Attention,
    /// The time of this turn's submissions.
    tick: u32,
    gate: Gate,
    /// Whether doorbells may be rung and the completion queue looked at.
    running: bool,
    /// Expected phase tag.
    phase: bool,
    tail: u16,
    /// The tail that the drive was told of.
    rung: u16,
    head: u16,
    entries: u16,
    qid: u16,
    table: SlotTable,
    memory: Arc<PairMemory>,
    pointers: Pointers,
    /// The difference of a lease's device address and its address here.
    delta: u64,
    submission: SubmissionQueue,
    backing: Option<Arc<dyn DeviceBacking>>,
    shadow: Option<Arc<DmaBuffer>>,
    sq_doorbell: Doorbell,
    cq_doorbell: Doorbell,
    registered: Vec<RegisteredQueue>,
    scratch: Scratch,
    /// Compares that wait for it.
    compares: VecDeque<u16>,
    sleep: Sleep,
    /// Whether this poll wrote parts.
    followed: bool,
    epoch: u32,
    limits: Limits,
    reactor: usize,
    shared: Arc<Shared>,
}

impl Pair {
    #[inline]
    fn own(&self) -> &crate::shared::PairShared {
        &self.shared.pairs[self.reactor]
    }

    /// Takes a request that fits its namespace, or hands it back.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        queue: u8,
        namespace_limits: &NamespaceLimits,
        request: Request,
    ) -> Result<(), Refusal> {
        if self.gate != Gate::Open {
            return Err(self.refuse(request));
        }
        if self.tail == self.rung {
            // The first of a turn: the reactor may have slept since it last looked at the clock.
            self.refresh_tick();
        }
        let Request {
            operation,
            lba,
            blocks,
            ..
        } = request;
        let sqe = match operation {
            Operation::Read if blocks <= namespace_limits.part_blocks => {
                Sqe::read(namespace_limits.nsid, lba, last(blocks))
            }
            Operation::Write { fua } if blocks <= namespace_limits.part_blocks => {
                let fua = fua && !planted("drive-fua-ignored");
                Sqe::write(namespace_limits.nsid, lba, last(blocks), fua)
            }
            Operation::Compare
                if blocks <= namespace_limits.part_blocks && namespace_limits.compare =>
            {
                Sqe::compare(namespace_limits.nsid, lba, last(blocks))
            }
            Operation::Flush => Sqe::flush(namespace_limits.nsid),
            _ => return self.submit_in_parts(queue, namespace_limits, request),
        };
        let Some(index) = self.table.free.pop() else {
            return Err(Refusal::Later(request));
        };
        let bytes = if operation.has_data() {
            blocks << namespace_limits.shift
        } else {
            0
        };
        let data = request.data.map(Lease::into_dma);
        let sqe = match &data {
            Some(lease) => {
                let address = self.address(lease);
                let bytes = u64::from(bytes);
                self.pointers
                    .point(sqe, &self.memory, index, address, bytes)
            }
            None => sqe,
        };
        let cid = self
            .table
            .identifiers
            .next(self.table.slots[usize::from(index)].cid);
        let slot = &mut self.table.slots[usize::from(index)];
        slot.cid = cid;
        slot.data = data;
        slot.tag = request.tag;
        slot.bytes = bytes;
        slot.submitted = self.tick;
        slot.operation = operation;
        slot.state = SlotState::Whole;
        slot.queue = queue;
        slot.overdue = false;
        self.write(sqe.with_cid(cid));
        Ok(())
    }

    /// The device address of a lease.
    #[inline]
    fn address(&self, lease: &DmaLease<NvmeDma>) -> u64 {
        (lease.address() as u64).wrapping_add(self.delta)
    }

    #[cold]
    fn refuse(&self, request: Request) -> Refusal {
        match self.gate {
            Gate::Never => Refusal::Never(request, DeviceError::Removed),
            Gate::Later | Gate::Open => Refusal::Later(request),
        }
    }

    #[inline]
    fn refresh_tick(&mut self) {
        self.tick = self.shared.attention().tick();
    }

    /// Writes a command behind the last one. Always inlined, so that the entry is built in
    /// registers.
    #[inline(always)]
    fn write(&mut self, sqe: Sqe) {
        let words: [u64; SQE_BYTES / 8] = transmute!(sqe);
        let start = usize::from(self.tail) * SQE_BYTES;
        match &self.submission {
            SubmissionQueue::Arena => self.memory.sq.store_words(start, &words),
            SubmissionQueue::Drive { memory, offset } => {
                for (at, word) in words.into_iter().enumerate() {
                    memory.write_u64(offset + start + at * 8, word);
                }
            }
        }
        self.tail = self.next(self.tail);
    }

    #[inline]
    fn next(&self, index: u16) -> u16 {
        if index + 1 == self.entries {
            0
        } else {
            index + 1
        }
    }

    /// Tells the drive of everything that was written.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.tail != self.rung && self.running {
            self.ring();
        }
    }

    fn ring(&mut self) {
        let Some(backing) = &self.backing else {
            return;
        };
        if let SubmissionQueue::Drive { memory, .. } = &self.submission {
            memory.flush_writes();
        }
        let (old, new) = (self.rung, self.tail);
        let shadow = self.shadow.as_deref();
        let rang = self.sq_doorbell.ring(&**backing, shadow, old, new);
        self.rung = new;
        let written = if new > old {
            new - old
        } else {
            new + self.entries - old
        };
        let own = self.own();
        count(&own.commands, u64::from(written));
        count(&own.doorbells, u64::from(rang));
        own.in_flight
            .store(self.table.used() as u32, Ordering::Relaxed);
    }

    /// Moves what is over into `batch`, counted in `counters`, as far as it belongs to `queue`.
    /// Returns how many came.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        queue: u8,
        batch: &mut CompletionBatch,
        counters: &QueueCounters,
    ) -> usize {
        let before = batch.len();
        if self.sleep.is_armed() {
            self.wake_up();
        }
        if self.running {
            self.reap(queue, batch, counters);
        }
        let attention = self.shared.attention();
        if attention != self.seen {
            self.notice(attention);
        }
        if !self.registered[usize::from(queue)].done.is_empty() {
            self.deliver(queue, batch, counters);
        }
        if self.followed {
            // Parts that followed others: their request's flush is long past.
            self.followed = false;
            self.flush();
        }
        batch.len() - before
    }

    /// The tail of the next completion, once it is there.
    #[inline]
    fn completion(&self) -> Option<CompletionTail> {
        let offset = usize::from(self.head) * CQE_BYTES + 8;
        // Acquire: what the drive read into leases lies in memory before the completion does.
        let word = self.memory.cq.load_u64(offset, Ordering::Acquire);
        let tail: CompletionTail = transmute!(word);
        (tail.status.phase() == self.phase).then_some(tail)
    }

    #[inline]
    fn reap(&mut self, queue: u8, batch: &mut CompletionBatch, counters: &QueueCounters) {
        let old = self.head;
        while !batch.is_full()
            && let Some(tail) = self.completion()
        {
            let cid = tail.cid.get();
            let index = self.table.identifiers.index(cid);
            let known = self.table.slots.get(index).is_some_and(|slot| {
                let same = slot.cid == cid || planted("drive-generation-ignored");
                same && slot.has_command()
            });
            if !known || tail.sqhd.get() >= self.entries || tail.sqid.get() != self.qid {
                self.distrust(cid, known);
                return;
            }
            self.head = self.next(self.head);
            self.phase ^= self.head == 0;
            let slot = &mut self.table.slots[index];
            let status = tail.status.status();
            if slot.state == SlotState::Whole && slot.queue == queue && status.is_success() {
                counters.completed(slot.operation, u64::from(slot.bytes), Ok(()));
                let data = slot.take_completed(&tail).map(Data::Lease);
                batch.push(Completion {
                    tag: slot.tag,
                    result: Ok(()),
                    data,
                });
                self.table.release(index);
            } else {
                self.command_over(index, status);
            }
        }
        if self.head != old {
            self.acknowledge(old);
        }
    }

    /// Gives the drive its completion queue entries back.
    fn acknowledge(&mut self, old: u16) {
        let Some(backing) = &self.backing else {
            return;
        };
        let shadow = self.shadow.as_deref();
        let rang = self.cq_doorbell.ring(&**backing, shadow, old, self.head);
        let own = self.own();
        count(&own.doorbells, u64::from(rang));
        own.in_flight
            .store(self.table.used() as u32, Ordering::Relaxed);
    }

    /// A completion that makes no sense: the drive must be reset, and nothing that it says is
    /// believed until then.
    #[cold]
    fn distrust(&mut self, cid: u16, known: bool) {
        let exists = self.table.identifiers.index(cid) < self.table.slots.len();
        let kind = match (known, exists) {
            (true, _) => FaultKind::BadHead,
            (false, true) => FaultKind::StaleIdentifier,
            (false, false) => FaultKind::UnknownIdentifier,
        };
        self.running = false;
        self.gate = Gate::Later;
        self.report_until_heard(kind, cid);
    }

    /// A command is over that is not simply a success of the polling queue.
    fn command_over(&mut self, index: usize, status: nvme_spec::Status) {
        let slot = &self.table.slots[index];
        let result = if status.is_success() {
            Ok(())
        } else {
            let changes = slot.operation.changes_medium();
            Err(crate::status::device_error(status, changes))
        };
        match slot.state {
            SlotState::Part => self.part_over(index, result),
            SlotState::Whole | SlotState::Free | SlotState::Parent | SlotState::Done => {
                self.finish(index, result);
            }
        }
    }

    /// A request is over: keeps it for its queue, or frees it where nobody asks.
    fn finish(&mut self, index: usize, result: Result<(), DeviceError>) {
        let slot = &mut self.table.slots[index];
        slot.state = SlotState::Done;
        if slot.queue == ORPHAN {
            drop(slot.take_data());
            self.table.release(index);
            return;
        }
        slot.result = result;
        self.registered[usize::from(slot.queue)]
            .done
            .push_back(index as u16);
    }

    /// Moves requests that were over before into the batch.
    fn deliver(&mut self, queue: u8, batch: &mut CompletionBatch, counters: &QueueCounters) {
        while !batch.is_full()
            && let Some(index) = self.registered[usize::from(queue)].done.pop_front()
        {
            let slot = &mut self.table.slots[usize::from(index)];
            counters.completed(slot.operation, u64::from(slot.bytes), slot.result);
            batch.push(Completion {
                tag: slot.tag,
                result: slot.result,
                data: slot.take_data().map(Data::Lease),
            });
            self.table.release(usize::from(index));
        }
        // Another queue's poll may have been the last to count, and these were still among them.
        let own = self.own();
        own.in_flight
            .store(self.table.used() as u32, Ordering::Relaxed);
    }

    /// Whether a poll for `queue` has something to do that no descriptor will tell.
    pub(crate) fn has_ready(&self, queue: u8) -> bool {
        let unannounced = self.running && self.tail != self.rung;
        let polled_only = self.table.used() > 0 && !self.sleep.has_interrupt();
        !self.registered[usize::from(queue)].done.is_empty()
            || unannounced
            || polled_only
            || (self.running && self.completion().is_some())
            || self.shared.attention().state() != self.seen.state()
    }
}

/// NLB counts from zero; requests are at most a part long, and never empty.
#[inline]
fn last(blocks: u32) -> u16 {
    blocks.wrapping_sub(1) as u16
}
