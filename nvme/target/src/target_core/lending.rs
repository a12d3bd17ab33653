//! Reads whose data the device lends at once, and writes that it takes at once, which never are in
//! execution; and parts of writes that it takes before they are.

use hugemem::Data;
use nvme_spec::command::IoOpcode;
use nvme_spec::{Cqe, Sqe, Status};
use reactors::Nanos;
use reactors::recorder::Recorder;
use reactors::sim::planted;

use super::TargetCore;
use super::admission::{Fence, context};
use super::queue::{Queue, QueueState};
use super::timing::{Departures, Served};
use crate::counters::{CoreCounters, IoCounters};
use crate::interface::{Completed, LentRead, QueueId, Work, WorkKind};
use crate::io::{IoOperation, IoWork, is_transfer, lendable_read, write_in_capsule};
use crate::stages::Measured;

impl TargetCore {
    /// Admits and executes a read in one look, where its device lends the data and nothing is in
    /// the way: such a command needs neither a tag nor a [`Work`]. `None`: nothing has
    /// happened, and [`admit`](Self::admit) says what is to be done. The answer is counted as
    /// handed to the network in this turn.
    #[inline(always)]
    pub fn read_lent(&mut self, id: QueueId, sqe: &Sqe, now: Nanos) -> Option<LentRead> {
        let queue = self.queues.get_mut(id.slot, id.generation)?;
        if sqe.io_opcode() != IoOpcode::READ || !is_transfer(sqe) || !queue.takes_io() {
            return None;
        }
        let context = context(queue, &self.view, self.devices.lending(), Fence::Stops).ok()?;
        let read = lendable_read(sqe, &context)?;
        let device = usize::from(read.device);
        let data = self.devices.lend(device, read.lba, read.blocks)?;
        self.counters.commands.add(1);
        queue.shared.note_traffic();
        count(&self.counters, id, device, |counters| {
            counters.read(read.bytes);
        });
        let served = Served::new(Measured::Read, sqe, now);
        note_served(&self.recorder, &mut self.departures, queue, id.slot, served);
        Some(LentRead {
            response: queue.respond(sqe.cid.get(), Status::SUCCESS),
            data,
            keyed: read.keyed,
            served,
        })
    }

    /// Admits and executes a write whose data came in its capsule, in one look, where its device
    /// takes the data at once and nothing is in the way: its response. `None`: nothing
    /// has happened, and [`admit`](Self::admit) says what is to be done. The answer is counted as
    /// handed to the network in this turn.
    #[inline]
    pub fn write_at_once(
        &mut self,
        id: QueueId,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> Option<(Cqe, Served)> {
        let queue = self.queues.get_mut(id.slot, id.generation)?;
        if sqe.io_opcode() != IoOpcode::WRITE || !is_transfer(sqe) || !queue.takes_io() {
            return None;
        }
        let context = context(queue, &self.view, self.devices.lending(), Fence::Stops).ok()?;
        let (device, lba) = write_in_capsule(sqe, data.len(), &context)?;
        let device = usize::from(device);
        if !self.devices.write_at_once(device, lba, data) {
            return None;
        }
        self.counters.commands.add(1);
        queue.shared.note_traffic();
        // No more than a capsule carries.
        let bytes = data.len() as u32;
        count(&self.counters, id, device, |counters| counters.wrote(bytes));
        let served = Served::new(Measured::Write, sqe, now);
        note_served(&self.recorder, &mut self.departures, queue, id.slot, served);
        Some((queue.respond(sqe.cid.get(), Status::SUCCESS), served))
    }

    /// Bytes of a block of the device that a write goes to, where
    /// [`fill_at_once`](Self::fill_at_once) may take the write's data; `None`: it never does.
    #[must_use]
    pub fn block_to_fill(&self, id: QueueId, work: &Work) -> Option<usize> {
        let WorkKind::Io(io) = &work.kind else {
            return None;
        };
        // With Force Unit Access a flush may be needed, which the device itself takes care of.
        if io.operation != (IoOperation::Write { fua: false })
            || !self.devices.fills_at_once(usize::from(io.device))
        {
            return None;
        }
        let queue = self.queues.get(id.slot, id.generation)?;
        let subsystem = self.view.subsystem(queue.subsystem)?;
        Some(1 << subsystem.namespace(io.nsid)?.block_shift)
    }

    /// Has `fill` write the first `bytes` bytes that are left of a write's data, whole blocks,
    /// straight into the device's memory, where nothing is in the way: `work` is then of what
    /// follows them, and may be of nothing. Each block changes as a whole. `false`: `fill` was not
    /// called; more may be taken later, and [`execute`](Self::execute) takes what is left.
    pub fn fill_at_once(
        &mut self,
        id: QueueId,
        work: &mut Work,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let Some(block) = self.block_to_fill(id, work) else {
            return false;
        };
        let (WorkKind::Io(io), Some(queue)) =
            (&mut work.kind, self.queues.get(id.slot, id.generation))
        else {
            return false;
        };
        let serves = queue.state == QueueState::Live && queue.shared.gate() == queue.gate;
        // What changed since the command was checked is looked at when it is executed.
        if !serves || io.epoch != self.view.epoch {
            return false;
        }
        debug_assert!(bytes.is_multiple_of(block) && bytes <= work.bytes as usize);
        let device = usize::from(io.device);
        let filled = self.devices.fill_at_once(device, io.lba, bytes, fill);
        if filled {
            // No more than the command's own blocks and bytes, which have these types.
            let blocks = (bytes / block) as u32;
            if !planted("fill-in-one-place") {
                io.lba += u64::from(blocks);
            }
            io.blocks -= blocks;
            work.bytes -= bytes as u32;
        }
        filled
    }

    /// [`read_lent`](Self::read_lent) for a read that was admitted. `None`: there is more to it.
    #[inline]
    pub(super) fn execute_lent(
        &mut self,
        id: QueueId,
        tag: u64,
        command_id: u16,
        work: &IoWork,
        now: Nanos,
    ) -> Option<Completed> {
        let queue = self.queues.get_mut(id.slot, id.generation)?;
        let serves = queue.state == QueueState::Live && queue.shared.gate() == queue.gate;
        if !serves || work.epoch != self.view.epoch {
            return None;
        }
        let device = usize::from(work.device);
        let loan = self.devices.lend(device, work.lba, work.blocks)?;
        count(&self.counters, id, device, |counters| {
            counters.read(work.bytes);
        });
        debug_assert!(queue.unanswered > 0, "an answer has a command");
        // A live queue has no Disconnect that waits for its last answer.
        queue.unanswered = queue.unanswered.saturating_sub(1);
        Some(Completed {
            tag,
            response: queue.respond(command_id, Status::SUCCESS),
            data: Some(Data::Loan(loan)),
            bytes: work.bytes,
            timing: queue.served(command_id, now),
        })
    }
}

/// Notes down and counts a command as served: answered, with its answer gone in the turn that goes
/// on.
#[inline(always)]
fn note_served(
    recorder: &Recorder,
    departures: &mut Departures,
    queue: &mut Queue,
    slot: u32,
    served: Served,
) {
    let note = queue.served_note[served.operation];
    recorder.note(served.came, note.with_command(served.command_id));
    if !cfg!(uncounted) {
        let count = &mut queue.served[served.operation];
        if *count == 0 {
            departures.serves(slot, served);
        }
        *count += 1;
    }
}

/// Counts a command that was answered, for its device and its queue.
#[inline(always)]
fn count(counters: &CoreCounters, queue: QueueId, device: usize, add: impl Fn(&IoCounters)) {
    if let Some(counters) = counters.devices.get(device) {
        add(counters);
    }
    if let Some(counters) = counters.queue_slots.get(queue.slot as usize) {
        add(counters);
    }
}
