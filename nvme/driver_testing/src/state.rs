//! The controller state behind its lock, and the processing of a command: fetch, optional delay,
//! execution, completion.

use block_testing::Latency;
use nvme_spec::command::{IoOpcode, Sqe};
use nvme_spec::completion::StatusField;
use nvme_spec::event::AsyncEvent;
use nvme_spec::{Cqe, Status, U16};
use reactors::Nanos;
use reactors::sim::Seeded;
use zerocopy::{FromZeros, IntoBytes};

use super::bus::Bus;
use super::counters::EmulatorCounters;
use super::events::Events;
use super::fault::{Fault, Faults, Site};
use super::features::Features;
use super::logs::ErrorLog;
use super::namespaces::Namespace;
use super::options::{EmulatedOptions, ShadowDoorbells};
use super::queues::{CompletionQueue, Shadow, SubmissionQueue};
use super::registers::Registers;
use super::transfer::Transfer;

/// A command that was fetched and has not been completed.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub(super) queue_id: u16,
    pub(super) sqe: Sqe,
    due: Nanos,
    sequence: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Executes when due, with this fault in its completion.
    Execute(Option<Fault>),
    /// Waits for an abort or a release.
    Hung { abortable: bool },
    /// Never completes, and transfers its data until the controller stops.
    NeverCompletes,
    /// Executed; waits for room in the completion queue.
    Post(Cqe),
}

/// Interval at which a command that never completes transfers its data.
const TRANSFER_INTERVAL: Nanos = Nanos::from_millis(2);

/// The result of executing a command.
pub(super) enum Outcome {
    Done(Status, u64),
    /// An Asynchronous Event Request, which completes at the next event.
    Waiting,
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        Self::Done(status, 0)
    }
}

impl From<Result<(), Status>> for Outcome {
    fn from(result: Result<(), Status>) -> Self {
        Self::Done(result.err().unwrap_or(Status::SUCCESS), 0)
    }
}

/// A doorbell write that is deferred to the next tick.
#[derive(Clone, Copy)]
pub(super) struct DeferredDoorbell {
    pub(super) index: u32,
    pub(super) value: u32,
}

pub(super) struct State {
    pub(super) options: EmulatedOptions,
    pub(super) now: Nanos,
    /// Whether the drive is in its slot and has power.
    pub(super) present: bool,
    pub(super) registers: Registers,
    pub(super) submission: Vec<SubmissionQueue>,
    pub(super) completion: Vec<CompletionQueue>,
    /// Addresses of shadow doorbells and event indices, if configured.
    pub(super) shadow: Option<Shadow>,
    pub(super) pending: Vec<Pending>,
    /// Number of commands in `pending` that wait for room in a completion queue.
    waiting_to_post: usize,
    sequence: u64,
    pub(super) deferred_doorbells: Vec<DeferredDoorbell>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) transfer: Transfer,
    pub(super) features: Features,
    pub(super) events: Events,
    pub(super) errors: ErrorLog,
    pub(super) faults: Faults,
    pub(super) latency: Latency,
    pub(super) counters: EmulatorCounters,
    pub(super) health: super::logs::HealthModel,
    pub(super) seeded: Seeded,
}

impl State {
    pub(super) fn new(options: EmulatedOptions) -> Self {
        let pairs = usize::from(options.io_queues_max) + 1;
        let mut seeded = Seeded::at(options.seed);
        let namespaces = options
            .namespaces
            .iter()
            .map(|namespace| Namespace::new(namespace, &options, seeded.draw()))
            .collect();
        Self {
            now: Nanos::ZERO,
            present: true,
            registers: Registers::new(&options),
            submission: vec![SubmissionQueue::default(); pairs],
            completion: vec![CompletionQueue::default(); pairs],
            shadow: None,
            pending: Vec::with_capacity(options.outstanding_max),
            waiting_to_post: 0,
            sequence: 0,
            deferred_doorbells: Vec::with_capacity(2 * pairs),
            namespaces,
            transfer: Transfer::new(),
            features: Features::new(&options),
            events: Events::new(options.event_requests_max),
            errors: ErrorLog::new(),
            faults: Faults::new(seeded.draw()),
            latency: options.latency,
            counters: EmulatorCounters::default(),
            health: super::logs::HealthModel::default(),
            seeded,
            options,
        }
    }

    /// Whether commands are fetched, executed and completed.
    #[inline]
    pub(super) fn runs(&self, bus: &Bus) -> bool {
        self.present && self.registers.is_running() && bus.is_master()
    }

    /// Advances the time, and processes everything that is due or new in memory.
    pub(super) fn tick(&mut self, bus: &Bus, now: Nanos) {
        self.now = self.now.max(now);
        if !self.present {
            return;
        }
        self.advance_registers(bus);
        while let Some(doorbell) = self.deferred_doorbells.pop() {
            self.ring(bus, doorbell.index, doorbell.value);
        }
        self.progress(bus);
        self.repeat_transfers(bus);
    }

    /// Repeats the data transfer of commands that never complete.
    fn repeat_transfers(&mut self, bus: &Bus) {
        for index in 0..self.pending.len() {
            let Pending { sqe, stage, .. } = self.pending[index];
            if stage == Stage::NeverCompletes && self.runs(bus) {
                self.transfer_only(bus, &sqe);
            }
        }
    }

    /// Executes due commands and fetches new ones, until there are no more.
    pub(super) fn progress(&mut self, bus: &Bus) {
        loop {
            if !self.runs(bus) {
                return;
            }
            let posted = self.waiting_to_post > 0 && self.post_waiting(bus);
            let executed = self.execute_due(bus);
            let mut fetched = false;
            for queue_id in 0..self.submission.len() as u16 {
                fetched |= self.process(bus, queue_id);
            }
            if !posted && !executed && !fetched {
                return;
            }
        }
    }

    /// Fetches the commands of one submission queue, and executes those without a delay. Returns
    /// whether there were any.
    pub(super) fn process(&mut self, bus: &Bus, queue_id: u16) -> bool {
        let mut any = false;
        while self.fetch_one(bus, queue_id) {
            any = true;
        }
        any
    }

    fn fetch_one(&mut self, bus: &Bus, queue_id: u16) -> bool {
        let queue = &self.submission[usize::from(queue_id)];
        if !queue.live || !self.registers.is_enabled() || !self.runs(bus) {
            return false;
        }
        if queue.head == queue.tail && !self.refresh_tail(bus, queue_id) {
            return false;
        }
        let queue = self.submission[usize::from(queue_id)];
        if self.pending.len() == self.pending.capacity()
            || !self.has_room(bus, queue.completion_queue)
        {
            return false;
        }
        let mut sqe = Sqe::new_zeroed();
        if bus.read(queue.next_address(), sqe.as_mut_bytes()).is_none() {
            self.registers.fail();
            return false;
        }
        self.submission[usize::from(queue_id)].advance_head();
        self.counters.commands += 1;
        self.begin(bus, queue_id, sqe);
        true
    }

    /// Reads the tail from the shadow doorbell. Returns whether there are new entries.
    fn refresh_tail(&mut self, bus: &Bus, queue_id: u16) -> bool {
        let queue = &mut self.submission[usize::from(queue_id)];
        let Some(shadow) = queue.shadow else {
            return false;
        };
        let Some(mut tail) = bus.load_u32(shadow.doorbell) else {
            return false;
        };
        if tail == queue.tail {
            if self.options.shadow_doorbells != ShadowDoorbells::Ring
                || bus.load_u32(shadow.event_index) == Some(tail)
            {
                return false;
            }
            // The host writes the register when it passes the event index. It did not for an entry
            // that it added meanwhile, so read the tail again (Base 2.1 §B.5).
            if bus.store_u32(shadow.event_index, tail).is_none() {
                return false;
            }
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            tail = bus.load_u32(shadow.doorbell).unwrap_or(tail);
            if tail == queue.tail {
                return false;
            }
        }
        if queue.set_tail(tail).is_err() {
            self.invalid_doorbell(bus, AsyncEvent::INVALID_DOORBELL_VALUE);
            return false;
        }
        true
    }

    fn has_room(&mut self, bus: &Bus, completion_queue: u16) -> bool {
        let queue = &mut self.completion[usize::from(completion_queue)];
        if !queue.is_full() {
            return true;
        }
        if queue.refresh_head(bus).is_err() {
            self.invalid_doorbell(bus, AsyncEvent::INVALID_DOORBELL_VALUE);
            return false;
        }
        let queue = &self.completion[usize::from(completion_queue)];
        if queue.is_full() {
            // A host with shadow doorbells has to write the register when it frees the next entry.
            if let Some(shadow) = queue.shadow {
                let _ = bus.store_u32(shadow.event_index, queue.head);
            }
            return false;
        }
        true
    }

    fn begin(&mut self, bus: &Bus, queue_id: u16, sqe: Sqe) {
        let fault = self
            .faults
            .matching_fault(Site::Command, queue_id, Some(&sqe));
        let mut wait = self.draw_latency(queue_id);
        match fault {
            Some(Fault::Fatal) => return self.registers.fail(),
            Some(Fault::Remove) => return self.remove(bus),
            Some(Fault::Hang { abortable }) => {
                return self.keep(queue_id, sqe, Nanos::MAX, Stage::Hung { abortable });
            }
            Some(Fault::NeverCompletes) if queue_id != 0 => {
                self.keep(queue_id, sqe, Nanos::MAX, Stage::NeverCompletes);
                return self.transfer_only(bus, &sqe);
            }
            Some(Fault::Delay(delay)) => wait += delay,
            _ => {}
        }
        if wait == Nanos::ZERO {
            self.finish(bus, queue_id, &sqe, fault);
        } else {
            self.keep(queue_id, sqe, self.now + wait, Stage::Execute(fault));
        }
    }

    fn draw_latency(&mut self, queue_id: u16) -> Nanos {
        match self.latency {
            _ if queue_id == 0 => Nanos::ZERO,
            Latency::Fixed(span) => span,
            Latency::Range { min, max } => {
                min + Nanos(self.seeded.below((max - min).0.saturating_add(1)))
            }
        }
    }

    fn keep(&mut self, queue_id: u16, sqe: Sqe, due: Nanos, stage: Stage) {
        self.sequence += 1;
        self.pending.push(Pending {
            queue_id,
            sqe,
            due,
            sequence: self.sequence,
            stage,
        });
    }

    /// Executes and completes a command, as its fault permits.
    fn finish(&mut self, bus: &Bus, queue_id: u16, sqe: &Sqe, fault: Option<Fault>) {
        let outcome = match fault {
            Some(Fault::Status(status)) => Outcome::Done(status, 0),
            _ if queue_id == 0 => self.execute_admin(bus, sqe),
            Some(Fault::CopyFailsAt(range))
                if queue_id != 0 && sqe.io_opcode() == IoOpcode::COPY =>
            {
                self.copy(bus, sqe, None, Some(range))
            }
            _ => self.execute_io(bus, sqe),
        };
        let Outcome::Done(status, result) = outcome else {
            return;
        };
        if !status.is_success() {
            self.record_error(queue_id, sqe, status);
        }
        let cid = sqe.cid.get();
        let others = self.pending.iter().filter(|it| it.queue_id == queue_id);
        let mut others = others.map(|it| it.sqe.cid.get());
        let other = others.find(|it| *it != cid).unwrap_or(cid);
        let queue = &mut self.submission[usize::from(queue_id)];
        let mut cqe = Cqe::new(cid, status).with_result(result);
        cqe.sqid = U16::new(queue_id);
        cqe.sqhd = U16::new(queue.head as u16);
        match fault {
            Some(Fault::DropCompletion) => return,
            Some(Fault::WrongIdentifier(bits)) => cqe.cid = U16::new(cid ^ bits),
            Some(Fault::OtherIdentifier(bits)) => cqe.cid = U16::new(other ^ bits),
            Some(Fault::StaleIdentifier) => {
                cqe.cid = U16::new(queue.completed_last.unwrap_or(cid));
            }
            Some(Fault::WrongQueue(other)) => cqe.sqid = U16::new(other),
            Some(Fault::WrongHead(head)) => cqe.sqhd = U16::new(head),
            _ => {}
        }
        queue.completed_last = Some(cid);
        self.post(bus, queue_id, sqe, cqe);
        if fault == Some(Fault::Duplicate) {
            self.post(bus, queue_id, sqe, cqe);
        }
    }

    /// Posts a completion, or keeps it until its queue has room.
    pub(super) fn post(&mut self, bus: &Bus, queue_id: u16, sqe: &Sqe, cqe: Cqe) {
        let completion_queue = self.submission[usize::from(queue_id)].completion_queue;
        if !self.has_room(bus, completion_queue) {
            if self.pending.len() < self.pending.capacity() {
                self.keep(queue_id, *sqe, Nanos::MAX, Stage::Post(cqe));
                self.waiting_to_post += 1;
            }
            return;
        }
        self.write_completion(bus, completion_queue, cqe);
    }

    /// Writes a completion, the dword with the phase tag last.
    fn write_completion(&mut self, bus: &Bus, completion_queue: u16, mut cqe: Cqe) {
        const LAST: usize = 12;
        let queue = &mut self.completion[usize::from(completion_queue)];
        let field = StatusField::from_status(cqe.status());
        cqe.status = field.with_phase(queue.phase);
        let (front, last) = cqe.as_bytes().split_at(LAST);
        let last = u32::from_le_bytes([last[0], last[1], last[2], last[3]]);
        let address = queue.tail_address();
        let written = bus.write(address, front);
        let written = written.and_then(|()| bus.store_u32(address + LAST as u64, last));
        if written.is_none() {
            return self.registers.fail();
        }
        queue.advance_tail();
        self.counters.completions += 1;
        if let Some(vector) = queue.vector
            && bus.fire(vector)
        {
            self.counters.interrupts += 1;
        }
    }

    /// Posts completions that waited for room. Returns whether there were any.
    fn post_waiting(&mut self, bus: &Bus) -> bool {
        let mut any = false;
        let mut index = 0;
        while index < self.pending.len() {
            let pending = self.pending[index];
            let Stage::Post(cqe) = pending.stage else {
                index += 1;
                continue;
            };
            let queue = &self.submission[usize::from(pending.queue_id)];
            let completion_queue = queue.completion_queue;
            if !self.has_room(bus, completion_queue) {
                index += 1;
                continue;
            }
            self.pending.remove(index);
            self.waiting_to_post -= 1;
            self.write_completion(bus, completion_queue, cqe);
            any = true;
        }
        any
    }

    /// Executes due commands in the order of their due times. Returns whether there were any.
    fn execute_due(&mut self, bus: &Bus) -> bool {
        let mut any = false;
        while self.runs(bus) {
            let due = |pending: &Pending| {
                matches!(pending.stage, Stage::Execute(_)) && pending.due <= self.now
            };
            let next = self.pending.iter().enumerate();
            let next = next.filter(|(_, pending)| due(pending));
            let next = next.min_by_key(|(_, pending)| (pending.due, pending.sequence));
            let Some((index, _)) = next else {
                break;
            };
            let pending = self.pending.swap_remove(index);
            if let Stage::Execute(fault) = pending.stage {
                self.finish(bus, pending.queue_id, &pending.sqe, fault);
            }
            any = true;
        }
        any
    }

    /// The time at which the next delayed command executes.
    pub(super) fn next_due(&self, bus: &Bus) -> Option<Nanos> {
        let transfers = |pending: &Pending| pending.stage == Stage::NeverCompletes;
        let again = self.runs(bus) && self.pending.iter().any(transfers);
        let again = again.then(|| self.now + TRANSFER_INTERVAL);
        self.next_timed().into_iter().chain(again).min()
    }

    fn next_timed(&self) -> Option<Nanos> {
        let timed = |pending: &&Pending| matches!(pending.stage, Stage::Execute(_));
        let dues = self.pending.iter().filter(timed).map(|pending| pending.due);
        // A command that was due earlier waits for the controller, not for a time.
        dues.filter(|due| *due > self.now).min()
    }

    /// Aborts a command that has not executed. Returns whether it was found.
    pub(super) fn abort(&mut self, bus: &Bus, queue_id: u16, cid: u16) -> bool {
        let abortable = |pending: &Pending| {
            let right = pending.queue_id == queue_id && pending.sqe.cid.get() == cid;
            right
                && match pending.stage {
                    Stage::Execute(fault) => fault != Some(Fault::DropCompletion),
                    Stage::Hung { abortable } => abortable,
                    Stage::NeverCompletes | Stage::Post(_) => false,
                }
        };
        let Some(index) = self.pending.iter().position(abortable) else {
            let named =
                |pending: &Pending| pending.queue_id == queue_id && pending.sqe.cid.get() == cid;
            // Reports success, but the command continues.
            let transfers = |pending: &Pending| pending.stage == Stage::NeverCompletes;
            return self.pending.iter().any(|it| named(it) && transfers(it));
        };
        let Pending { sqe, .. } = self.pending.swap_remove(index);
        self.complete_with(bus, queue_id, &sqe, Status::ABORT_REQUESTED, 0);
        true
    }

    /// Completes a command without executing it.
    pub(super) fn complete_with(
        &mut self,
        bus: &Bus,
        queue_id: u16,
        sqe: &Sqe,
        status: Status,
        result: u64,
    ) {
        let queue = &mut self.submission[usize::from(queue_id)];
        let mut cqe = Cqe::new(sqe.cid.get(), status).with_result(result);
        cqe.sqid = U16::new(queue_id);
        cqe.sqhd = U16::new(queue.head as u16);
        queue.completed_last = Some(sqe.cid.get());
        self.post(bus, queue_id, sqe, cqe);
    }

    /// Releases all hung commands. Returns their number.
    pub(super) fn release(&mut self) -> usize {
        let now = self.now;
        let mut released = 0;
        for pending in &mut self.pending {
            if let Stage::Hung { .. } = pending.stage {
                pending.stage = Stage::Execute(None);
                pending.due = now;
                released += 1;
            }
        }
        released
    }

    /// Discards the commands of one submission queue.
    pub(super) fn forget_commands_of(&mut self, queue_id: u16) {
        self.pending.retain(|pending| pending.queue_id != queue_id);
        self.count_waiting();
    }

    fn count_waiting(&mut self) {
        let waiting = |pending: &&Pending| matches!(pending.stage, Stage::Post(_));
        self.waiting_to_post = self.pending.iter().filter(waiting).count();
    }

    /// Discards queues, commands, events and settings, as a controller reset does (Base 2.1
    /// §3.7.2). Registers and data are kept.
    pub(super) fn forget_all(&mut self) {
        self.submission.fill(SubmissionQueue::default());
        self.completion.fill(CompletionQueue::default());
        self.shadow = None;
        self.pending.clear();
        self.waiting_to_post = 0;
        self.deferred_doorbells.clear();
        self.features = Features::new(&self.options);
        self.events.reset();
    }

    /// Cuts the power: data that was not flushed may be lost, and some of the writes in progress
    /// are executed in part.
    pub(super) fn cut_power(&mut self, bus: &Bus) {
        if !self.present {
            return;
        }
        self.write_pending_in_part(bus);
        for namespace in &mut self.namespaces {
            self.counters.blocks_lost += namespace.medium.power_cut();
        }
        let clean = self.registers.is_shut_down();
        self.health.unsafe_shutdowns += u64::from(!clean);
        self.present = false;
        self.forget_all();
        self.registers = Registers::new(&self.options);
        bus.set_master(false);
        bus.disarm_all();
        bus.place_memory(None);
        bus.set_present(false);
    }

    fn write_pending_in_part(&mut self, bus: &Bus) {
        if !self.runs(bus) {
            return;
        }
        for index in 0..self.pending.len() {
            let pending = self.pending[index];
            let under_way = matches!(pending.stage, Stage::Execute(_) | Stage::Hung { .. });
            if under_way && pending.queue_id != 0 {
                self.write_in_part(bus, &pending.sqe);
            }
        }
    }

    /// Removes the drive from its slot, which also cuts its power.
    pub(super) fn remove(&mut self, bus: &Bus) {
        self.counters.removals += 1;
        self.cut_power(bus);
    }

    /// Inserts the drive again, or restores its power.
    pub(super) fn appear(&mut self, bus: &Bus) {
        if self.present {
            return;
        }
        self.present = true;
        bus.set_present(true);
        self.health.power_cycles += 1;
        for namespace in &mut self.namespaces {
            namespace.power_on();
        }
        self.place_memory_at_power_on(bus);
    }
}
