//! When commands came, were done and went: noted down, and counted by how long it took.
//!
//! Nothing here reads a clock. Answers that went in one turn and began together are counted
//! together, once the next turn tells when theirs ended.

use arrayvec::ArrayVec;
use nvme_spec::Sqe;
use reactors::Nanos;
use reactors::recorder::{Note, Recorder};

use super::executions::Execution;
use super::queue::Queue;
use super::slots::Slots;
use super::{TRANSPORTS_MAX, TargetCore};
use crate::interface::{Direction, QueueId, Work, WorkEvent, WorkKind};
use crate::io::{IoOperation, IoWork};
use crate::notes::{CommandNote, Moment};
use crate::stages::{Measured, StageHistograms};

/// Kinds of answers of one turn that are told apart: what comes beyond counts as gone at once.
const RUNS_MAX: usize = 256;
/// Detail of a note of an answer that was told to wait.
const WAITED: u16 = 1;

/// When a command came and was done. Comes with its answer and goes back to the core when the
/// answer went: [`TargetCore::sent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Timing {
    came: Nanos,
    done: Nanos,
    /// What will be noted down; kind 0 for commands that are not measured.
    note: Note,
}

impl Timing {
    /// Of an answer that is not measured.
    pub const NONE: Self = Self {
        came: Nanos::ZERO,
        done: Nanos::ZERO,
        note: Note::new(reactors::recorder::NoteKind(0), 0, 0, 0),
    };
}

/// A command that was executed and answered as soon as it came, and counted as gone in that turn.
/// Where its answer does not go then: [`TargetCore::served_waits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub(super) came: Nanos,
    pub(super) command_id: u16,
    pub(super) operation: Measured,
}

impl Served {
    #[inline(always)]
    pub(super) fn new(operation: Measured, sqe: &Sqe, now: Nanos) -> Self {
        Self {
            came: now,
            command_id: sqe.cid.get(),
            operation,
        }
    }
}

/// Answers that went in one turn, of commands of one kind that came together and were done
/// together.
#[derive(Clone, Copy, Debug)]
struct Run {
    came: Nanos,
    done: Nanos,
    /// Argument of their notes: subsystem and operation.
    class: u32,
    count: u32,
}

/// Answers that went in this turn, and before them those of the turn that has ended.
pub(super) struct Departures {
    latest: Run,
    /// The flush of each transport adds one to what there is room for.
    others: ArrayVec<Run, { RUNS_MAX + TRANSPORTS_MAX }>,
    /// Of the others, those of turns whose sends are over: the next poll's time is when they were.
    gone: usize,
    /// Queues that served reads or writes in this turn, with the first of them. How many is with
    /// the queue: counting one more there is all that a served command costs.
    serving: Vec<(u32, Served)>,
    /// Runs of these, of turns whose sends are over.
    served: Vec<Run>,
}

impl Departures {
    /// For a core with at most so many queues.
    pub(super) fn new(queues_max: usize) -> Self {
        Self {
            // Reads and writes; twice, since a queue may take the slot of one that closes in the
            // same turn.
            serving: Vec::with_capacity(4 * queues_max),
            served: Vec::with_capacity(4 * queues_max),
            latest: Run {
                came: Nanos::ZERO,
                done: Nanos::ZERO,
                class: 0,
                count: 0,
            },
            others: ArrayVec::new(),
            gone: 0,
        }
    }

    /// Whether a poll has something to count.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        let none = self.others.is_empty() && self.serving.is_empty() && self.served.is_empty();
        !none || self.latest.count > 0
    }

    /// A queue serves its first read or write of the turn. A turn has fewer of these than there is
    /// room for.
    #[inline(never)]
    pub(super) fn serves(&mut self, slot: u32, first: Served) {
        if self.serving.len() < self.serving.capacity() {
            self.serving.push((slot, first));
        }
    }

    /// The turn's sends are over.
    #[inline]
    pub(super) fn flushed(&mut self, queues: &mut Slots<Queue>) {
        // What does not fit is counted with the next turn.
        let room = self.served.capacity() - self.served.len();
        for (slot, first) in self.serving.drain(..room.min(self.serving.len())) {
            if let Some(queue) = queues.at_mut(slot) {
                self.served.push(Run {
                    came: first.came,
                    done: first.came,
                    class: queue.served_note[first.operation].argument(),
                    count: std::mem::take(&mut queue.served[first.operation]),
                });
            }
        }
        if self.latest.count > 0 && self.others.try_push(self.latest).is_ok() {
            self.latest.count = 0;
        }
        self.gone = self.others.len();
    }

    /// Counts one more. `Some`: there is no room for another run, which is over at once.
    #[inline]
    fn add(&mut self, came: Nanos, done: Nanos, class: u32) -> Option<Run> {
        let latest = &mut self.latest;
        if latest.class == class && latest.came == came && latest.done == done {
            latest.count += 1;
            return None;
        }
        self.begin(Run {
            came,
            done,
            class,
            count: 1,
        })
    }

    #[inline(never)]
    fn begin(&mut self, run: Run) -> Option<Run> {
        let before = std::mem::replace(&mut self.latest, run);
        if before.count == 0 {
            return None;
        }
        if self.others.len() >= RUNS_MAX {
            return Some(before);
        }
        self.others.push(before);
        None
    }
}

impl TargetCore {
    /// Notes down from now on with `recorder`, which is this thread's.
    pub fn set_recorder(&mut self, recorder: Recorder) {
        self.recorder = recorder;
    }

    /// The whole answer of a command was handed to the network, in the turn that goes on.
    #[inline]
    pub fn sent(&mut self, timing: Timing, now: Nanos) {
        if cfg!(uncounted) || timing.note.kind().0 == 0 {
            return;
        }
        let Timing { came, done, note } = timing;
        let is_served = note.kind() == Moment::Served.kind();
        self.recorder.note(if is_served { came } else { now }, note);
        if let Some(run) = self.departures.add(came, done, note.argument()) {
            self.count_departure(&run, now);
        }
    }

    /// An answer is not handed to the network in the turn in which it was made. Says so once; what
    /// one note would have said of its command takes several.
    #[cold]
    pub fn waits_to_send(&self, timing: &mut Timing) {
        let Timing { came, done, note } = *timing;
        if note.kind().0 == 0 || CommandNote::of_argument(note.argument()).detail() == WAITED {
            return;
        }
        if note.kind() == Moment::Served.kind() {
            self.recorder.note(came, Moment::Came.instead(note));
        }
        self.recorder.note(done, Moment::Done.instead(note));
        timing.note = Moment::Sent.instead(note).with_argument(u32::from(WAITED));
    }

    /// The answer of a command that was counted as served in the turn that goes on is not handed to
    /// the network in it: not counted after all. [`sent`](Self::sent) counts it when it has gone.
    #[cold]
    pub fn served_waits(&mut self, queue: QueueId, served: Served) -> Timing {
        let Some(queue) = self.queues.get_mut(queue.slot, queue.generation) else {
            return Timing::NONE;
        };
        let Served {
            came,
            command_id,
            operation,
        } = served;
        let count = &mut queue.served[operation];
        if cfg!(uncounted) || *count == 0 {
            return Timing::NONE;
        }
        *count -= 1;
        let note = queue.served_note[operation].with_command(command_id);
        self.recorder.note(came, Moment::Done.instead(note));
        Timing {
            came,
            done: came,
            note: Moment::Sent.instead(note).with_argument(u32::from(WAITED)),
        }
    }

    /// A transport begins its turn: counts what went in the turn that ended at `now`.
    #[inline]
    pub fn begin_turn(&mut self, now: Nanos) {
        if self.departures.gone > 0 || !self.departures.served.is_empty() {
            self.count_departures(now);
        }
    }

    fn count_departures(&mut self, now: Nanos) {
        for place in 0..self.departures.gone {
            let run = self.departures.others[place];
            self.count_departure(&run, now);
        }
        self.departures.others.drain(..self.departures.gone);
        self.departures.gone = 0;
        for place in 0..self.departures.served.len() {
            let run = self.departures.served[place];
            self.count_departure(&run, now);
        }
        self.departures.served.clear();
        self.recorder
            .note(now, Note::new(Moment::TurnEnded.kind(), 0, 0, 0));
    }

    fn count_departure(&self, run: &Run, now: Nanos) {
        let note = CommandNote::of_argument(run.class);
        if let Some(measured) = note.measured()
            && let Some(stages) = self.stages(note.subsystem())
        {
            let count = u64::from(run.count);
            stages.total[measured].record(now - run.came, count);
            stages.send[measured].record(now - run.done, count);
        }
    }

    /// This reactor's histograms of a subsystem.
    fn stages(&self, subsystem: u32) -> Option<&StageHistograms> {
        let view = self.view.subsystem(subsystem)?;
        Some(&view.measures.of(self.reactor)?.stages)
    }

    /// Notes what an admitted command waits for on its way to [`execute`](Self::execute).
    #[inline]
    pub fn note_work(&mut self, queue: QueueId, work: &mut Work, event: WorkEvent, now: Nanos) {
        match event {
            WorkEvent::AwaitsBuffer => self.note_wait(queue, work, Moment::AwaitsBuffer, now),
            WorkEvent::GotBuffer => self.count_buffer_wait(queue, work, now),
            WorkEvent::Fetches => self.note_wait(queue, work, Moment::Fetches, now),
        }
    }

    fn count_buffer_wait(&self, queue: QueueId, work: &mut Work, now: Nanos) {
        if let Some((queue, measured)) = self.measured(queue, work)
            && let Some(stages) = self.stages(queue.subsystem)
            && !cfg!(uncounted)
        {
            stages.buffer[measured].record(now - work.since, 1);
        }
        work.since = now;
    }

    fn note_wait(&self, queue: QueueId, work: &Work, moment: Moment, now: Nanos) {
        if let WorkKind::Io(io) = &work.kind
            && let Some(queue) = self.queues.get(queue.slot, queue.generation)
        {
            let note = note_of(queue, io, work.command_id);
            self.recorder.note(now, moment.of(note));
        }
    }

    fn measured(&self, queue: QueueId, work: &Work) -> Option<(&Queue, Measured)> {
        let WorkKind::Io(io) = &work.kind else {
            return None;
        };
        let queue = self.queues.get(queue.slot, queue.generation)?;
        Some((queue, measured(io.operation)?))
    }

    /// Counts how long a command's data took to come, where it took more than a turn.
    #[inline]
    pub(super) fn count_fetch(&mut self, queue: QueueId, work: &Work, now: Nanos) {
        if now > work.since && work.direction == Direction::FromHost {
            self.count_fetched(queue, work, now);
        }
    }

    #[inline(never)]
    fn count_fetched(&mut self, queue: QueueId, work: &Work, now: Nanos) {
        if let Some((queue, measured)) = self.measured(queue, work)
            && let Some(stages) = self.stages(queue.subsystem)
            && !cfg!(uncounted)
        {
            stages.fetch[measured].record(now - work.since, 1);
        }
    }

    /// A command on an admin queue has come.
    pub(super) fn note_admin(&self, slot: u32, sqe: &Sqe, now: Nanos) {
        if let Some(queue) = self.queues.at(slot) {
            let note = queue.note.with_detail(u16::from(sqe.opcode));
            let note = note.with_command(sqe.cid.get());
            self.recorder.note(now, Moment::Admin.of(note));
        }
    }

    /// A command goes to its device.
    #[inline]
    pub(super) fn note_start(&self, slot: u32, work: &IoWork, command_id: u16, now: Nanos) {
        if let Some(queue) = self.queues.at(slot) {
            let note = note_of(queue, work, command_id).with_detail(u16::from(work.device));
            self.recorder.note(now, Moment::InDevice.of(note));
        }
    }

    /// Counts how long a command was in its device, and makes the timing of its answer.
    #[inline]
    pub(super) fn time(&self, execution: &Execution, queue: &Queue, command_id: u16) -> Timing {
        if cfg!(uncounted) {
            return Timing::NONE;
        }
        let Execution {
            came,
            started,
            work,
            ..
        } = execution;
        // A command that is done as soon as it is started is done in the turn that goes on, whose
        // time may be later than the last poll's.
        let done = self.polled_at.max(*started);
        if let Some(measured) = measured(work.operation)
            && let Some(device) = self.counters.device_latency.get(usize::from(work.device))
        {
            device[measured].record(done - *started, 1);
        }
        Timing {
            came: *came,
            done,
            note: Moment::Sent.of(note_of(queue, work, command_id)),
        }
    }
}

impl Queue {
    /// The timing of a read that came, was executed and is answered in the turn of `now`.
    #[inline]
    pub(super) fn served(&self, command_id: u16, now: Nanos) -> Timing {
        Timing {
            came: now,
            done: now,
            note: self.served_note.read.with_command(command_id),
        }
    }
}

#[inline]
fn note_of(queue: &Queue, work: &IoWork, command_id: u16) -> CommandNote {
    queue
        .note
        .with_operation(measured(work.operation))
        .with_command(command_id)
}

/// As what an operation is measured.
#[inline]
fn measured(operation: IoOperation) -> Option<Measured> {
    match operation {
        IoOperation::Read | IoOperation::DurableRead => Some(Measured::Read),
        IoOperation::Write { .. } => Some(Measured::Write),
        IoOperation::Compare
        | IoOperation::Flush
        | IoOperation::FlushAll
        | IoOperation::WriteZeroes { .. }
        | IoOperation::Deallocate { .. } => None,
    }
}
