//! The I/O queue pair of a drive on one reactor: submission of commands and processing of
//! completions.
//!
//! It owns the slots of requests in flight, with their leases. It uses no locks, allocation, system
//! calls or waits; dynamic dispatch only for doorbells (and for queues in the controller memory
//! buffer). All namespaces of a drive on one reactor share it, each through a [`NamespaceQueue`].
//!
//! Commands are written when they are submitted, and `flush` rings the doorbell once per turn;
//! completions are acknowledged once per poll. The pair uses at most one slot less than the queues
//! have entries, so neither queue can overflow, and it does not have to track the submission queue
//! head.
//!
//! [`NamespaceQueue`]: crate::queue::NamespaceQueue

mod copying;
mod data;
mod in_device;
mod parts;
mod recovery;
mod sleep;
mod slot;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{
    Completion, CompletionBatch, CopyLimits, DeviceError, Operation, QueueCounters, Refusal,
    Request,
};
use hugemem::{AddressSpace, Data, DeviceMemory, DmaBuffer, DmaLease, Lease};
use nvme_spec::completion::StatusField;
use nvme_spec::{Sqe, U16};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::backing::{ControllerMemory, DeviceBacking};
use crate::data_pages::DataPages;
use crate::doorbell::Doorbell;
use crate::identity::Limits;
use crate::memory::{CQE_BYTES, PairMemory, SQE_BYTES};
use crate::shared::{FaultKind, Shared, StateWord, count};
use data::Pointers;
use parts::Scratch;
use sleep::Sleep;
pub(crate) use sleep::borrow;
use slot::{NvmeDma, ORPHAN, SlotState, SlotTable};

/// Maximum number of namespace queues of one pair.
pub(crate) const QUEUES_MAX: usize = ORPHAN as usize;

/// Whether requests may be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// Not now: the drive is starting or being reset.
    Later,
    /// Never: the drive is gone or about to be.
    Never,
}

/// The second half of a completion queue entry, which is read as one word, so that the rest of the
/// word is as recent as its phase tag (Base 2.1 §4.2.1).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CompletionTail {
    sqhd: U16,
    sqid: U16,
    cid: U16,
    status: StatusField,
}

/// The location of the submission queue: the arena or the controller memory buffer.
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
    /// Maximum blocks of one Read, Write or Compare.
    pub(crate) part_blocks: u32,
    /// Whether the drive supports Compare.
    pub(crate) compare: bool,
    /// Maximum bytes of one read for a compare by the driver.
    pub(crate) scratch_bytes: u32,
    /// Maximum blocks of one Write Zeroes, or `None` if the driver writes zeroes instead.
    pub(crate) zeroes_blocks: Option<u32>,
    /// Maximum blocks of one write of zeroes.
    pub(crate) written_blocks: u32,
    /// Whether Write Zeroes may deallocate.
    pub(crate) zeroes_deallocate: bool,
    /// Maximum blocks of one range of Deallocate.
    pub(crate) deallocate_blocks: u32,
    /// What one Copy may have, if the drive supports it.
    pub(crate) copy: Option<CopyLimits>,
    /// What one Copy from another namespace or to it may have, if the drive supports it.
    pub(crate) copy_across: Option<CopyLimits>,
}

/// A namespace queue that is registered with a pair.
struct RegisteredQueue {
    open: bool,
    /// Completed requests, for the queue's next poll.
    done: VecDeque<u16>,
}

/// An I/O queue pair. See the module documentation.
pub(crate) struct Pair {
    seen: StateWord,
    /// The submission time of this turn's commands.
    tick: u32,
    gate: Gate,
    /// How often the drive went away.
    pub(crate) absences: u32,
    /// Whether doorbells may be rung and the completion queue may be polled.
    running: bool,
    /// Expected phase tag.
    phase: bool,
    tail: u16,
    /// The tail that the drive was notified of.
    rung: u16,
    head: u16,
    entries: u16,
    qid: u16,
    table: SlotTable,
    memory: Arc<PairMemory>,
    pointers: Pointers,
    /// Difference between a lease's device address and its virtual address.
    delta: u64,
    submission: SubmissionQueue,
    /// The part of the controller memory buffer for data.
    pub(crate) data_memory: Option<Arc<DeviceMemory>>,
    /// The PRP entries of its pages.
    data_pages: Option<DataPages>,
    /// The address space of the drive, whose shared memory it can use.
    pub(crate) space: Option<AddressSpace>,
    backing: Option<Arc<dyn DeviceBacking>>,
    shadow: Option<Arc<DmaBuffer>>,
    sq_doorbell: Doorbell,
    cq_doorbell: Doorbell,
    registered: Vec<RegisteredQueue>,
    scratch: Scratch,
    /// Compares that wait for the scratch lease.
    compares: VecDeque<u16>,
    sleep: Sleep,
    /// Whether this poll wrote further commands of split requests.
    wrote_parts: bool,
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

    /// Submits a request that is valid for its namespace, or returns it.
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
            // The first command of a turn: the reactor may have slept since it last read the clock.
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
                Sqe::read(namespace_limits.nsid, lba, zero_based(blocks))
            }
            Operation::Write { fua } if blocks <= namespace_limits.part_blocks => {
                Sqe::write(namespace_limits.nsid, lba, zero_based(blocks), fua)
            }
            Operation::Compare
                if blocks <= namespace_limits.part_blocks && namespace_limits.compare =>
            {
                Sqe::compare(namespace_limits.nsid, lba, zero_based(blocks))
            }
            Operation::Flush => Sqe::flush(namespace_limits.nsid),
            _ => return self.submit_split(queue, namespace_limits, request),
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
        self.submit_whole(index, queue, (request.tag, operation, bytes), data, sqe);
        Ok(())
    }

    /// Submits the command of a whole request in a slot that was free.
    #[inline(always)]
    fn submit_whole(
        &mut self,
        index: u16,
        queue: u8,
        (tag, operation, bytes): (u64, Operation, u32),
        data: Option<DmaLease<NvmeDma>>,
        sqe: Sqe,
    ) {
        let cid = self
            .table
            .identifiers
            .next(self.table.slots[usize::from(index)].cid);
        let slot = &mut self.table.slots[usize::from(index)];
        slot.cid = cid;
        slot.data = data;
        slot.tag = tag;
        slot.bytes = bytes;
        slot.submitted = self.tick;
        slot.operation = operation;
        slot.state = SlotState::Whole;
        slot.queue = queue;
        slot.overdue = false;
        self.write(sqe.with_cid(cid));
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
        self.tick = self.shared.state_word().tick();
    }

    /// Writes a command to the submission queue. Always inlined, so that the entry is built in
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

    /// Rings the doorbell for all commands written since the last flush.
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

    /// Moves completed requests of `queue` into `batch` and counts them in `counters`. Returns
    /// their number.
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
        let state_word = self.shared.state_word();
        if state_word != self.seen {
            self.notice(state_word);
        }
        if !self.registered[usize::from(queue)].done.is_empty() {
            self.deliver(queue, batch, counters);
        }
        if self.wrote_parts {
            // Commands of split requests that this poll wrote: the flush of their requests is in
            // the past.
            self.wrote_parts = false;
            self.flush();
        }
        batch.len() - before
    }

    /// The second half of the next completion, if it has been posted.
    #[inline]
    fn completion(&self) -> Option<CompletionTail> {
        let offset = usize::from(self.head) * CQE_BYTES + 8;
        // Acquire: data that the drive wrote to leases is in memory before the completion is.
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
            let slot = self.table.slots.get(index);
            let known = slot.is_some_and(|slot| slot.cid == cid && slot.has_command());
            if !known || tail.sqhd.get() >= self.entries || tail.sqid.get() != self.qid {
                self.reject_completion(cid, known);
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
                self.command_completed(index, status);
            }
        }
        if self.head != old {
            self.acknowledge(old);
        }
    }

    /// Frees completion queue entries for the drive.
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

    /// Handles an invalid completion: the drive must be reset, and its completions are ignored
    /// until then.
    #[cold]
    fn reject_completion(&mut self, cid: u16, known: bool) {
        let exists = self.table.identifiers.index(cid) < self.table.slots.len();
        let kind = match (known, exists) {
            (true, _) => FaultKind::BadHead,
            (false, true) => FaultKind::StaleIdentifier,
            (false, false) => FaultKind::UnknownIdentifier,
        };
        self.running = false;
        self.gate = Gate::Later;
        self.report_for_reset(kind, cid);
    }

    /// Handles the completion of a command that failed, belongs to another queue, or is part of a
    /// split request.
    fn command_completed(&mut self, index: usize, status: nvme_spec::Status) {
        let slot = &self.table.slots[index];
        let result = if status.is_success() {
            Ok(())
        } else {
            let changes = slot.operation.changes_medium();
            Err(crate::status::device_error(status, changes))
        };
        match slot.state {
            SlotState::Part => self.part_completed(index, result),
            SlotState::Whole | SlotState::Free | SlotState::Parent | SlotState::Done => {
                self.finish(index, result);
            }
        }
    }

    /// Completes a request: keeps it for its queue, or frees it if its queue was dropped.
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

    /// Moves requests that completed earlier into the batch.
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
        // If another queue's poll counted last, its count included these requests.
        let own = self.own();
        own.in_flight
            .store(self.table.used() as u32, Ordering::Relaxed);
    }

    /// Whether a poll for `queue` has work for which no descriptor becomes readable.
    pub(crate) fn has_ready(&self, queue: u8) -> bool {
        let unannounced = self.running && self.tail != self.rung;
        let polled_only = self.table.used() > 0 && !self.sleep.has_interrupt();
        !self.registered[usize::from(queue)].done.is_empty()
            || unannounced
            || polled_only
            || (self.running && self.completion().is_some())
            || self.shared.state_word().state() != self.seen.state()
    }
}

/// NLB is zero-based. Commands are at most `part_blocks` long, and never empty.
#[inline]
fn zero_based(blocks: u32) -> u16 {
    blocks.wrapping_sub(1) as u16
}
