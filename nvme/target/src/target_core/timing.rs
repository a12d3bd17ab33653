//! Trace events and latencies of commands.
//!
//! Nothing here reads a clock. Responses that were sent in one turn and have equal times are
//! counted together, when the next turn supplies the time at which they were sent.

use arrayvec::ArrayVec;
use nvme_spec::Sqe;
use reactors::Nanos;
use reactors::recorder::{Recorder, TraceRecord};

use super::executions::Execution;
use super::queue::Queue;
use super::slots::Slots;
use super::{TRANSPORTS_MAX, TargetCore};
use crate::interface::{Direction, QueueId, Work, WorkKind, WorkProgress};
use crate::io::{IoOperation, IoWork};
use crate::stages::{Measured, StageHistograms};
use crate::trace_events::{CommandTrace, TraceEvent};

/// Most runs of equal responses in one turn. Responses beyond them count as sent immediately.
const SENT_RUNS_MAX: usize = 256;
/// Detail of the trace event of a response that had to wait.
const DEFERRED: u16 = 1;

/// When a command was received and completed. Accompanies the completion, and returns to the core
/// when the response is sent: [`TargetCore::sent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Timing {
    received_at: Nanos,
    done: Nanos,
    /// The trace event to record; kind 0 for commands that are not measured.
    note: TraceRecord,
}

impl Timing {
    /// The timing of a response that is not measured.
    pub const NONE: Self = Self {
        received_at: Nanos::ZERO,
        done: Nanos::ZERO,
        note: TraceRecord::new(reactors::recorder::TraceRecordKind(0), 0, 0, 0),
    };

    /// Time from the receipt of an I/O command to its completion; 0 for other commands.
    #[must_use]
    pub fn latency(self) -> Nanos {
        self.done - self.received_at
    }
}

/// An inline completion, which is counted as sent in the same turn. If its response is not sent
/// then: [`TargetCore::inline_response_deferred`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineTiming {
    pub(super) received_at: Nanos,
    pub(super) command_id: u16,
    pub(super) operation: Measured,
}

impl InlineTiming {
    #[inline(always)]
    pub(super) fn new(operation: Measured, sqe: &Sqe, now: Nanos) -> Self {
        Self {
            received_at: now,
            command_id: sqe.cid.get(),
            operation,
        }
    }
}

/// Responses sent in one turn, of commands of one class that were received together and completed
/// together.
#[derive(Clone, Copy, Debug)]
struct SentRun {
    received_at: Nanos,
    done: Nanos,
    /// The argument of their trace events: subsystem and operation.
    class: u32,
    count: u32,
}

/// Responses sent in this turn, and before them those of the previous turn.
pub(super) struct SentResponses {
    latest: SentRun,
    /// The flush of each transport can add one beyond `SENT_RUNS_MAX`.
    others: ArrayVec<SentRun, { SENT_RUNS_MAX + TRANSPORTS_MAX }>,
    /// Number of the others whose turn has ended: the next poll's time is when they were sent.
    sent_len: usize,
    /// Queues with inline completions in this turn, and the first of them. The queue counts them,
    /// so that each costs only an increment.
    inline_queues: Vec<(u32, InlineTiming)>,
    /// Runs of inline completions whose turn has ended.
    inline_runs: Vec<SentRun>,
}

impl SentResponses {
    /// For a core with at most `queues_max` queues.
    pub(super) fn new(queues_max: usize) -> Self {
        Self {
            // For reads and writes; doubled, because a queue may take the slot of one that is
            // closed in the same turn.
            inline_queues: Vec::with_capacity(4 * queues_max),
            inline_runs: Vec::with_capacity(4 * queues_max),
            latest: SentRun {
                received_at: Nanos::ZERO,
                done: Nanos::ZERO,
                class: 0,
                count: 0,
            },
            others: ArrayVec::new(),
            sent_len: 0,
        }
    }

    /// Whether a poll has something to count.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        let none =
            self.others.is_empty() && self.inline_queues.is_empty() && self.inline_runs.is_empty();
        !none || self.latest.count > 0
    }

    /// Adds a queue's first inline read or write of the turn. The capacity exceeds their possible
    /// number.
    #[inline(never)]
    pub(super) fn add_inline(&mut self, slot: u32, first: InlineTiming) {
        if self.inline_queues.len() < self.inline_queues.capacity() {
            self.inline_queues.push((slot, first));
        }
    }

    /// Ends the turn's sends.
    #[inline]
    pub(super) fn flushed(&mut self, queues: &mut Slots<Queue>) {
        // Runs that do not fit are counted with the next turn.
        let room = self.inline_runs.capacity() - self.inline_runs.len();
        for (slot, first) in self
            .inline_queues
            .drain(..room.min(self.inline_queues.len()))
        {
            if let Some(queue) = queues.at_mut(slot) {
                self.inline_runs.push(SentRun {
                    received_at: first.received_at,
                    done: first.received_at,
                    class: queue.inline_trace[first.operation].argument(),
                    count: std::mem::take(&mut queue.inline_count[first.operation]),
                });
            }
        }
        if self.latest.count > 0 && self.others.try_push(self.latest).is_ok() {
            self.latest.count = 0;
        }
        self.sent_len = self.others.len();
    }

    /// Counts one response. Returns a run for which there is no room; it counts as sent
    /// immediately.
    #[inline]
    fn add(&mut self, received_at: Nanos, done: Nanos, class: u32) -> Option<SentRun> {
        let latest = &mut self.latest;
        if latest.class == class && latest.received_at == received_at && latest.done == done {
            latest.count += 1;
            return None;
        }
        self.begin(SentRun {
            received_at,
            done,
            class,
            count: 1,
        })
    }

    #[inline(never)]
    fn begin(&mut self, run: SentRun) -> Option<SentRun> {
        let before = std::mem::replace(&mut self.latest, run);
        if before.count == 0 {
            return None;
        }
        if self.others.len() >= SENT_RUNS_MAX {
            return Some(before);
        }
        self.others.push(before);
        None
    }
}

impl TargetCore {
    /// Sets the recorder of this thread for trace events.
    pub fn set_recorder(&mut self, recorder: Recorder) {
        self.recorder = recorder;
    }

    /// Records that the whole response of a command was passed to the network in this turn.
    #[inline]
    pub fn sent(&mut self, timing: Timing, now: Nanos) {
        if cfg!(uncounted) || timing.note.kind().0 == 0 {
            return;
        }
        let Timing {
            received_at,
            done,
            note,
        } = timing;
        let is_served = note.kind() == TraceEvent::CompletedInline.kind();
        self.recorder
            .record(if is_served { received_at } else { now }, note);
        if let Some(run) = self.sent_responses.add(received_at, done, note.argument()) {
            self.count_sent_run(&run, now);
        }
    }

    /// Records that a response is not passed to the network in the turn of its completion. Has an
    /// effect once per command, and replaces its single trace event by several.
    #[cold]
    pub fn response_deferred(&self, timing: &mut Timing) {
        let Timing {
            received_at,
            done,
            note,
        } = *timing;
        if note.kind().0 == 0 || CommandTrace::of_argument(note.argument()).detail() == DEFERRED {
            return;
        }
        if note.kind() == TraceEvent::CompletedInline.kind() {
            self.recorder
                .record(received_at, TraceEvent::Received.replacing(note));
        }
        self.recorder
            .record(done, TraceEvent::Completed.replacing(note));
        timing.note = TraceEvent::Sent
            .replacing(note)
            .with_argument(u32::from(DEFERRED));
    }

    /// Cancels the count of an inline completion whose response is not passed to the network in
    /// this turn. [`sent`](Self::sent) counts it when it is sent.
    #[cold]
    pub fn inline_response_deferred(&mut self, queue: QueueId, served: InlineTiming) -> Timing {
        let Some(queue) = self.queues.get_mut(queue.slot, queue.generation) else {
            return Timing::NONE;
        };
        let InlineTiming {
            received_at,
            command_id,
            operation,
        } = served;
        let count = &mut queue.inline_count[operation];
        if cfg!(uncounted) || *count == 0 {
            return Timing::NONE;
        }
        *count -= 1;
        let note = queue.inline_trace[operation].with_command(command_id);
        self.recorder
            .record(received_at, TraceEvent::Completed.replacing(note));
        Timing {
            received_at,
            done: received_at,
            note: TraceEvent::Sent
                .replacing(note)
                .with_argument(u32::from(DEFERRED)),
        }
    }

    /// Begins a transport's turn: counts the responses sent in the turn that ended at `now`.
    #[inline]
    pub fn begin_turn(&mut self, now: Nanos) {
        if self.sent_responses.sent_len > 0 || !self.sent_responses.inline_runs.is_empty() {
            self.count_sent_responses(now);
        }
    }

    fn count_sent_responses(&mut self, now: Nanos) {
        for place in 0..self.sent_responses.sent_len {
            let run = self.sent_responses.others[place];
            self.count_sent_run(&run, now);
        }
        self.sent_responses
            .others
            .drain(..self.sent_responses.sent_len);
        self.sent_responses.sent_len = 0;
        for place in 0..self.sent_responses.inline_runs.len() {
            let run = self.sent_responses.inline_runs[place];
            self.count_sent_run(&run, now);
        }
        self.sent_responses.inline_runs.clear();
        self.recorder
            .record(now, TraceRecord::new(TraceEvent::TurnEnded.kind(), 0, 0, 0));
    }

    fn count_sent_run(&self, run: &SentRun, now: Nanos) {
        let note = CommandTrace::of_argument(run.class);
        if let Some(measured) = note.measured()
            && let Some(stages) = self.stages(note.subsystem())
        {
            let count = u64::from(run.count);
            stages.total[measured].record(now - run.received_at, count);
            stages.send[measured].record(now - run.done, count);
        }
    }

    /// This reactor's histograms of a subsystem.
    fn stages(&self, subsystem: u32) -> Option<&StageHistograms> {
        let view = self.view.subsystem(subsystem)?;
        Some(&view.measures.of(self.reactor)?.stages)
    }

    /// Records the progress of an admitted command before [`execute`](Self::execute).
    #[inline]
    pub fn record_progress(
        &mut self,
        queue: QueueId,
        work: &mut Work,
        event: WorkProgress,
        now: Nanos,
    ) {
        match event {
            WorkProgress::AwaitsBuffer => {
                self.trace_wait(queue, work, TraceEvent::AwaitsBuffer, now);
            }
            WorkProgress::GotBuffer => self.count_buffer_wait(queue, work, now),
            WorkProgress::Fetches => self.trace_wait(queue, work, TraceEvent::Fetches, now),
        }
    }

    fn count_buffer_wait(&self, queue: QueueId, work: &mut Work, now: Nanos) {
        if let Some((queue, measured)) = self.measured(queue, work)
            && let Some(stages) = self.stages(queue.subsystem_slot)
            && !cfg!(uncounted)
        {
            stages.buffer[measured].record(now - work.since, 1);
        }
        work.since = now;
    }

    fn trace_wait(&self, queue: QueueId, work: &Work, event: TraceEvent, now: Nanos) {
        if let WorkKind::Io(io) = &work.kind
            && let Some(queue) = self.queues.get(queue.slot, queue.generation)
        {
            let note = note_of(queue, io, work.command_id);
            self.recorder.record(now, event.of(note));
        }
    }

    fn measured(&self, queue: QueueId, work: &Work) -> Option<(&Queue, Measured)> {
        let WorkKind::Io(io) = &work.kind else {
            return None;
        };
        let queue = self.queues.get(queue.slot, queue.generation)?;
        Some((queue, measured(io.operation)?))
    }

    /// Counts the time for which a command's data was fetched, if it took more than a turn.
    #[inline]
    pub(super) fn count_fetch(&mut self, queue: QueueId, work: &Work, now: Nanos) {
        if now > work.since && work.direction == Direction::FromHost {
            self.count_fetched(queue, work, now);
        }
    }

    #[inline(never)]
    fn count_fetched(&mut self, queue: QueueId, work: &Work, now: Nanos) {
        if let Some((queue, measured)) = self.measured(queue, work)
            && let Some(stages) = self.stages(queue.subsystem_slot)
            && !cfg!(uncounted)
        {
            stages.fetch[measured].record(now - work.since, 1);
        }
    }

    /// Records that a command on an admin queue was received.
    pub(super) fn trace_admin(&self, slot: u32, sqe: &Sqe, now: Nanos) {
        if let Some(queue) = self.queues.at(slot) {
            let note = queue.note.with_detail(u16::from(sqe.opcode));
            let note = note.with_command(sqe.cid.get());
            self.recorder.record(now, TraceEvent::Admin.of(note));
        }
    }

    /// Records that a command is submitted to its device.
    #[inline]
    pub(super) fn trace_start(&self, slot: u32, work: &IoWork, command_id: u16, now: Nanos) {
        if let Some(queue) = self.queues.at(slot) {
            let note = note_of(queue, work, command_id).with_detail(u16::from(work.device));
            self.recorder.record(now, TraceEvent::InDevice.of(note));
        }
    }

    /// Counts the time of a command in its device, and returns the timing of its response.
    #[inline]
    pub(super) fn time(&self, execution: &Execution, queue: &Queue, command_id: u16) -> Timing {
        let Execution {
            received_at,
            started,
            work,
            ..
        } = execution;
        // A command that completes as soon as it starts completes in this turn, whose time may be
        // later than the last poll's.
        let done = self.polled_at.max(*started);
        if cfg!(uncounted) {
            return Timing {
                received_at: *received_at,
                done,
                ..Timing::NONE
            };
        }
        if let Some(measured) = measured(work.operation)
            && let Some(device) = self.counters.device_latency.get(usize::from(work.device))
        {
            device[measured].record(done - *started, 1);
        }
        Timing {
            received_at: *received_at,
            done,
            note: TraceEvent::Sent.of(note_of(queue, work, command_id)),
        }
    }
}

impl Queue {
    /// The timing of a read that was received, executed and completed in the turn of `now`.
    #[inline]
    pub(super) fn inline_timing(&self, command_id: u16, now: Nanos) -> Timing {
        Timing {
            received_at: now,
            done: now,
            note: self.inline_trace.read.with_command(command_id),
        }
    }
}

#[inline]
fn note_of(queue: &Queue, work: &IoWork, command_id: u16) -> CommandTrace {
    queue
        .note
        .with_operation(measured(work.operation))
        .with_command(command_id)
}

/// The operation as which it is measured.
#[inline]
fn measured(operation: IoOperation) -> Option<Measured> {
    match operation {
        IoOperation::Read | IoOperation::DurableRead | IoOperation::ReadInDevice => {
            Some(Measured::Read)
        }
        IoOperation::Write { .. } | IoOperation::WriteInDevice { .. } => Some(Measured::Write),
        IoOperation::Compare
        | IoOperation::Fused(_)
        | IoOperation::Verify { .. }
        | IoOperation::Flush
        | IoOperation::FlushAll
        | IoOperation::Reserve(_)
        | IoOperation::WriteZeroes { .. }
        | IoOperation::Copy { .. }
        | IoOperation::Deallocate { .. } => None,
    }
}
