//! A pair's reactions to the owner's word, and the only code that returns leases without a
//! completion.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::DeviceError;
use hugemem::Pool;

use super::data::Pointers;
use super::parts::Scratch;
use super::sleep::Sleep;
use super::slot::{ORPHAN, SlotState, SlotTable};
use super::{Gate, Pair, QUEUES_MAX, RegisteredQueue, SubmissionQueue};
use crate::doorbell::Doorbell;
use crate::drive_access::{queue_id, vector};
use crate::identity::Limits;
use crate::memory::PairMemory;
use crate::shared::{Fault, FaultKind, Phase, Position, Shared, StateWord};

/// How many times an empty completion queue is polled when a queue is dropped with requests in
/// flight: well below a millisecond.
const FINAL_POLLS_MAX: usize = 1 << 12;

impl Pair {
    /// Creates a pair that is not attached yet.
    ///
    /// # Panics
    /// When the reactor has a pair of this drive already.
    pub(crate) fn new(
        shared: Arc<Shared>,
        reactor: usize,
        limits: Limits,
        memory: Arc<PairMemory>,
    ) -> Self {
        let existed = shared.pairs[reactor].exists.swap(true, Ordering::AcqRel);
        assert!(
            !existed,
            "reactor {reactor} opens a second queue pair of a drive"
        );
        Self {
            seen: StateWord::new(),
            tick: 0,
            gate: Gate::Later,
            absences: 0,
            running: false,
            phase: true,
            tail: 0,
            rung: 0,
            head: 0,
            entries: limits.slots + 1,
            qid: queue_id(reactor),
            table: SlotTable::new(limits.slots),
            memory,
            pointers: Pointers::new(limits.slots, limits.sgl),
            delta: 0,
            submission: SubmissionQueue::Arena,
            data_memory: None,
            data_pages: None,
            space: None,
            backing: None,
            shadow: None,
            sq_doorbell: Doorbell::default(),
            cq_doorbell: Doorbell::default(),
            registered: Vec::new(),
            scratch: Scratch::Unneeded,
            compares: VecDeque::with_capacity(usize::from(limits.slots)),
            sleep: Sleep::new(),
            wrote_parts: false,
            epoch: 0,
            limits,
            reactor,
            shared,
        }
    }

    /// Registers another namespace queue. Returns `None` if there are too many.
    pub(crate) fn register_queue(&mut self) -> Option<u8> {
        if self.registered.iter().all(|member| !member.open) {
            self.attach();
        }
        let free = self.registered.iter().position(|member| !member.open);
        let index = match free {
            Some(index) => index,
            None if self.registered.len() < QUEUES_MAX => {
                self.registered.push(RegisteredQueue {
                    open: false,
                    done: VecDeque::with_capacity(self.table.slots.len()),
                });
                self.registered.len() - 1
            }
            None => return None,
        };
        self.registered[index].open = true;
        Some(index as u8)
    }

    /// Takes a lease for compares if the drive lacks Compare. Returns false if the pool is empty.
    pub(crate) fn provide_scratch(&mut self, pool: &Pool, bytes: usize) -> bool {
        if self.limits.compare || !matches!(self.scratch, Scratch::Unneeded) {
            return true;
        }
        match pool.take_permanent(bytes) {
            Some(lease) => {
                self.scratch = Scratch::Free(lease);
                true
            }
            None => false,
        }
    }

    /// Ends a namespace queue; its requests in flight become orphans. Returns whether the pair is
    /// unused and may be dropped.
    pub(crate) fn unregister_queue(&mut self, queue: u8) -> bool {
        self.flush();
        while let Some(index) = self.registered[usize::from(queue)].done.pop_front() {
            drop(self.table.slots[usize::from(index)].take_data());
            self.table.release(usize::from(index));
        }
        for (slot, work) in self
            .table
            .slots
            .iter_mut()
            .zip(&mut self.table.split_requests)
        {
            if slot.queue == queue {
                slot.queue = ORPHAN;
                work.left = 0;
            }
        }
        self.registered[usize::from(queue)].open = false;
        let orphans = |pair: &Self| {
            let slots = pair.table.slots.iter();
            let over = [SlotState::Free, SlotState::Part];
            slots
                .filter(|slot| slot.queue == ORPHAN && !over.contains(&slot.state))
                .count()
        };
        let mut polls = 0;
        while self.running && orphans(self) > 0 && polls < FINAL_POLLS_MAX {
            polls += 1;
            self.reap_orphans();
            std::hint::spin_loop();
        }
        if self.registered.iter().any(|member| member.open) {
            return false;
        }
        if self.table.used() == 0 {
            self.scratch = Scratch::Unneeded;
        }
        self.detach();
        self.table.used() == 0
    }

    /// Processes completions of orphans. Those of other queues wait for their polls.
    fn reap_orphans(&mut self) {
        let old = self.head;
        while let Some(tail) = self.completion() {
            let cid = tail.cid.get();
            let index = self.table.identifiers.index(cid);
            let slot = self.table.slots.get(index);
            let known = slot.is_some_and(|slot| slot.cid == cid && slot.has_command());
            if !known {
                self.reject_completion(cid, known);
                return;
            }
            self.head = self.next(self.head);
            self.phase ^= self.head == 0;
            self.command_completed(index, tail.status.status());
        }
        if self.head != old {
            self.acknowledge(old);
        }
        if std::mem::take(&mut self.wrote_parts) {
            self.flush();
        }
    }

    /// Whether the pair has no queue, and only holds the leases of requests that were in a drive
    /// which has stopped since: a device was closed before its requests had ended.
    pub(crate) fn is_left_over(&self) -> bool {
        let is_open = self.registered.iter().any(|member| member.open);
        !is_open && !self.shared.dma_running.load(Ordering::Acquire)
    }

    /// Attaches the pair: a reactor polls it from now on.
    fn attach(&mut self) {
        let state_word = self.shared.attach(self.own());
        self.seen = state_word;
        self.tick = state_word.tick();
        self.change(state_word);
    }

    /// Detaches the pair, which is no longer polled. The drive may still execute commands in
    /// flight.
    fn detach(&mut self) {
        if let Some(backing) = self.backing.take() {
            self.sleep.disconnect(&*backing);
        }
        self.gate = Gate::Later;
        self.running = false;
        let own = self.own();
        *lock(&own.position) = Position {
            epoch: self.epoch,
            tail: self.rung,
            head: self.head,
            phase: self.phase,
        };
        own.in_flight.store(0, Ordering::Relaxed);
        own.asleep.store(0, Ordering::Relaxed);
        own.presence.detach();
    }

    /// Handles a change of the owner's word.
    #[cold]
    pub(super) fn notice(&mut self, state_word: StateWord) {
        let before = self.seen;
        self.seen = state_word;
        self.tick = state_word.tick();
        if state_word.state() != before.state() {
            self.change(state_word);
        } else if self.table.used() > 0 && self.running {
            self.check_ages();
        }
    }

    /// Applies a change of the drive's state and acknowledges it.
    fn change(&mut self, state_word: StateWord) {
        if state_word.epoch() != self.epoch {
            // The controller was stopped in between: no earlier command is in flight.
            self.end_all(DeviceError::Interrupted);
        }
        match state_word.phase() {
            Phase::Starting | Phase::Quiesce => {
                self.gate = Gate::Later;
                self.running = false;
            }
            Phase::Active => self.activate(state_word.epoch(), Gate::Open),
            Phase::Draining => {
                self.count_absence();
                self.activate(state_word.epoch(), Gate::Never);
            }
            Phase::Stopped => {
                self.gate = Gate::Later;
                self.running = false;
                self.end_all(DeviceError::Interrupted);
                self.release_backing();
            }
            Phase::Gone => {
                self.count_absence();
                self.gate = Gate::Never;
                self.running = false;
                self.end_all(DeviceError::Removed);
                self.release_backing();
            }
        }
        let state = state_word.state().into_bits();
        self.own().presence.acknowledge(state);
        if state_word.phase() != Phase::Active {
            self.shared.wake_owner();
        }
    }

    /// Counts that the drive is going away or gone, once for each time.
    fn count_absence(&mut self) {
        if self.gate != Gate::Never {
            self.absences = self.absences.wrapping_add(1);
        }
    }

    /// Uses the queues of an epoch: new queues from the start, known ones from their last position.
    fn activate(&mut self, epoch: u32, gate: Gate) {
        self.gate = gate;
        self.running = true;
        if self.backing.is_some() && self.epoch == epoch {
            return;
        }
        let Some(drive_access) = self.shared.control().drive_access.clone() else {
            self.gate = Gate::Later;
            self.running = false;
            return;
        };
        if self.epoch != epoch {
            self.epoch = epoch;
            let position = self.position_in(epoch);
            (self.tail, self.rung) = (position.tail, position.tail);
            (self.head, self.phase) = (position.head, position.phase);
            self.pointers.reset(drive_access.dma_base);
        }
        let base = self.shared.arena.region().base_address() as u64;
        self.delta = drive_access.dma_base.wrapping_sub(base);
        let (sq, cq) = drive_access.doorbells(queue_id(self.reactor));
        (self.sq_doorbell, self.cq_doorbell) = (Doorbell::at(sq), Doorbell::at(cq));
        let memory = self.shared.memory.get();
        let shadow = memory.and_then(|memory| memory.shadow.clone());
        self.shadow = shadow.filter(|_| drive_access.shadow);
        self.submission = match drive_access.place(self.reactor) {
            Some((memory, offset)) => SubmissionQueue::Drive { memory, offset },
            None => SubmissionQueue::Arena,
        };
        self.data_memory = drive_access.data_memory.clone();
        self.data_pages = drive_access.data_pages;
        self.space = drive_access.backing.address_space();
        let vector = vector(&*drive_access.backing, self.reactor);
        self.sleep.connect(&*drive_access.backing, vector);
        self.backing = Some(Arc::clone(&drive_access.backing));
    }

    /// The position in an epoch's queues for a pair that has not used them: that of the previous
    /// pair, otherwise the start.
    fn position_in(&self, epoch: u32) -> Position {
        let left = *lock(&self.own().position);
        if left.epoch == epoch {
            return left;
        }
        Position {
            epoch,
            tail: 0,
            head: 0,
            phase: true,
        }
    }

    /// Drops all references to the drive, so that it can be closed.
    fn release_backing(&mut self) {
        if let Some(backing) = self.backing.take() {
            self.sleep.disconnect(&*backing);
        }
        self.submission = SubmissionQueue::Arena;
        self.data_memory = None;
        self.data_pages = None;
        self.space = None;
        self.own().asleep.store(0, Ordering::Relaxed);
    }

    /// Ends all requests in flight and returns their leases. Only for a controller that has
    /// stopped.
    fn end_all(&mut self, error: DeviceError) {
        self.compares.clear();
        for index in 0..self.table.slots.len() {
            let slot = &mut self.table.slots[index];
            match slot.state {
                SlotState::Free | SlotState::Done => {}
                SlotState::Part => {
                    slot.state = SlotState::Done;
                    if let Some(lease) = slot.take_data() {
                        self.scratch = Scratch::Free(lease);
                    }
                    self.table.release(index);
                }
                SlotState::Whole | SlotState::Parent => self.finish(index, Err(error)),
            }
        }
        let used = self.table.used() as u32;
        self.own().in_flight.store(used, Ordering::Relaxed);
    }

    /// Checks for overdue commands, once per tick.
    fn check_ages(&mut self) {
        let deadlines = self.shared.options.deadlines;
        let overdue = deadlines.ticks(deadlines.command);
        let stuck = overdue.saturating_add(deadlines.ticks(deadlines.abort));
        let now = self.seen.tick();
        for index in 0..self.table.slots.len() {
            let slot = &self.table.slots[index];
            if !slot.has_command() {
                continue;
            }
            let age = now.wrapping_sub(slot.submitted);
            let cid = slot.cid;
            if age >= stuck {
                self.report_for_reset(FaultKind::Stuck, cid);
                return;
            }
            if age >= overdue && !slot.overdue {
                // One at a time; the others are found at the next tick.
                self.table.slots[index].overdue = self.report(FaultKind::Overdue, cid);
                return;
            }
        }
    }

    fn fault(&self, kind: FaultKind, cid: u16) -> Fault {
        Fault::new()
            .with_kind(kind)
            .with_cid(cid)
            .with_epoch(self.epoch)
    }

    fn report(&self, kind: FaultKind, cid: u16) -> bool {
        let reported = self.own().report(self.fault(kind, cid));
        self.shared.wake_owner();
        reported
    }

    /// Reports a fault that requires a reset. Overwrites a lesser fault.
    pub(super) fn report_for_reset(&self, kind: FaultKind, cid: u16) {
        let fault = self.fault(kind, cid);
        self.own().fault.store(fault.into_bits(), Ordering::Release);
        self.shared.wake_owner();
    }
}

fn lock(position: &Mutex<Position>) -> MutexGuard<'_, Position> {
    position.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Pair {
    fn drop(&mut self) {
        let stopped = !self.shared.dma_running.load(Ordering::Acquire)
            || self.shared.state_word().epoch() != self.epoch;
        for slot in &mut self.table.slots {
            if stopped && slot.state != SlotState::Free {
                slot.state = SlotState::Done;
            }
            if slot.state == SlotState::Done {
                drop(slot.take_data());
            }
        }
        // Leases of commands that the drive may still execute are never reused: dropping a
        // `DmaLease` leaks its memory.
        self.own().exists.store(false, Ordering::Release);
    }
}
