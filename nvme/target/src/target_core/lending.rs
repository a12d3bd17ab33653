//! Reads whose data the device lends at once: they never are in execution.

use hugemem::Data;
use nvme_spec::command::IoOpcode;
use nvme_spec::{Sqe, Status};
use reactors::Nanos;

use super::TargetCore;
use super::admission::context;
use super::queue::QueueState;
use crate::counters::CoreCounters;
use crate::interface::{Completed, LentRead, QueueId};
use crate::io::{IoWork, is_transfer, lendable_read};

impl TargetCore {
    /// Admits and executes a read in one look, where its device lends the data and nothing is in
    /// the way: such a command needs neither a tag nor a [`Work`](crate::Work). `None`: nothing has
    /// happened, and [`admit`](Self::admit) says what is to be done. The answer is counted as
    /// handed to the network in this turn.
    #[inline(always)]
    pub fn read_lent(&mut self, id: QueueId, sqe: &Sqe, now: Nanos) -> Option<LentRead> {
        let queue = self.queues.get_mut(id.slot, id.generation)?;
        if sqe.io_opcode() != IoOpcode::READ || !is_transfer(sqe) || !queue.takes_io() {
            return None;
        }
        let context = context(queue, &self.view, &self.lending).ok()?;
        let read = lendable_read(sqe, &context)?;
        let device = usize::from(read.device);
        let data = self.devices.get_mut(device)?.lend(read.lba, read.blocks)?;
        self.counters.commands.add(1);
        queue.shared.note_traffic();
        count(&self.counters, id, device, read.bytes);
        let command_id = sqe.cid.get();
        self.recorder
            .note(now, queue.served_note.with_command(command_id));
        if !cfg!(uncounted) {
            if queue.served == 0 {
                self.departures.serves(id.slot, now);
            }
            queue.served += 1;
        }
        Some(LentRead {
            response: queue.respond(command_id, Status::SUCCESS),
            data,
            keyed: read.keyed,
        })
    }

    /// The same for a read that was admitted. `None`: there is more to it.
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
        let loan = self.devices.get_mut(device)?.lend(work.lba, work.blocks)?;
        count(&self.counters, id, device, work.bytes);
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

/// Counts a read that was answered.
#[inline(always)]
fn count(counters: &CoreCounters, queue: QueueId, device: usize, bytes: u32) {
    if let Some(counters) = counters.devices.get(device) {
        counters.read(bytes);
    }
    if let Some(counters) = counters.queue_slots.get(queue.slot as usize) {
        counters.read(bytes);
    }
}
