//! What changes while the rest is served: the configuration, and queues that answer what they have
//! before they end.

use reactors::Nanos;
use reactors::sim::planted;

use super::TargetCore;
use super::executions::{Command, Owner};
use super::queue::{Queue, QueueEvent, QueueState};
use crate::config::DeviceIndex;
use crate::interface::CloseReason;

/// Commands of one queue that hold up something that is to go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outstanding {
    /// The subsystem.
    pub subsystem_nqn: String,
    /// The host that waits for the answers.
    pub host_nqn: String,
    /// The queue's identifier.
    pub qid: u16,
    /// How many commands.
    pub commands: usize,
}

impl TargetCore {
    /// Takes over what was published by now, without waiting for the next [`poll`](Self::poll).
    pub fn catch_up(&mut self, now: Nanos) {
        let is_told = self.reactor == 0 || !planted("one-reactor-told");
        if self.target.epoch() != self.view.epoch && is_told {
            self.look(now);
        }
    }

    /// The commands that queues on their way out wait for, and those that these devices have.
    /// Looks through all commands: not for every turn.
    #[must_use]
    pub fn outstanding(&self, devices: &[DeviceIndex]) -> Vec<Outstanding> {
        let leaving = self.queues.iter().filter(|(_, queue)| {
            queue.state == QueueState::Leaving || queue.shared.leaves().is_some()
        });
        let mut all: Vec<_> = leaving
            .map(|(_, queue)| outstanding(queue, queue.unanswered as usize))
            .collect();
        for device in devices {
            // Fewer than 128 devices.
            for (_, execution) in self.executions.of_device(device.0 as u8) {
                let Owner::Command(Command { queue, .. }) = execution.owner else {
                    continue;
                };
                let Some(queue) = self.queues.at(queue) else {
                    continue;
                };
                let one = outstanding(queue, 1);
                let is_same = |other: &&mut Outstanding| {
                    let names = |it: &Outstanding| (it.host_nqn.clone(), it.qid);
                    other.subsystem_nqn == one.subsystem_nqn && names(other) == names(&one)
                };
                match all.iter_mut().find(is_same) {
                    Some(known) => known.commands += 1,
                    None => all.push(one),
                }
            }
        }
        all.retain(|queue| queue.commands > 0);
        all
    }

    /// Moves queues and controllers on that have to leave.
    pub(super) fn look_at_leaving(&mut self, now: Nanos) {
        self.has_leaving = false;
        for slot in 0..self.queues.capacity() {
            let reason = self.queues.at(slot).and_then(Queue::must_leave);
            if let Some(reason) = reason {
                self.leave_queue(slot, reason);
            }
        }
        for slot in 0..self.controllers.capacity() {
            self.leave_controller(slot, now);
        }
    }

    fn leave_queue(&mut self, slot: u32, reason: CloseReason) {
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        queue.apply(QueueEvent::Leave);
        if queue.state != QueueState::Leaving {
            return;
        }
        if queue.unanswered == 0 {
            self.end_queue(slot, reason);
        } else {
            self.has_leaving = true;
        }
    }

    /// Ends the association of a controller that has to leave, once its I/O queues are gone.
    fn leave_controller(&mut self, slot: u32, now: Nanos) {
        let Some(controller) = self.controllers.at(slot) else {
            return;
        };
        let shared = &controller.shared;
        let Some(reason) = shared.leaves().filter(|_| shared.ending().is_none()) else {
            return;
        };
        let has_queues = {
            let registry = self.target.registry();
            let entry = registry.entry(shared.identity.cntlid);
            entry.is_some_and(|entry| !entry.io_queues.is_empty())
        };
        // The last queue's end calls this core again.
        if has_queues {
            return;
        }
        let admin = self.queues.at(controller.queue.slot);
        if admin.is_some_and(|queue| queue.unanswered > 0) {
            self.has_leaving = true;
        } else {
            self.end_controller(slot, reason, now);
        }
    }
}

fn outstanding(queue: &Queue, commands: usize) -> Outstanding {
    let identity = &queue.shared.identity;
    Outstanding {
        subsystem_nqn: identity.subsystem_nqn.clone(),
        host_nqn: identity.host_nqn.clone(),
        qid: queue.qid,
        commands,
    }
}
