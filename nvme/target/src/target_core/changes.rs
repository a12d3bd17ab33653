//! Configuration changes under I/O, and queues that complete their commands before they end.

use reactors::Nanos;

use super::TargetCore;
use super::executions::{Command, Execution, Owner};
use super::queue::{Queue, QueueEvent, QueueState};
use crate::ana::EarlierCommands;
use crate::config::DeviceIndex;
use crate::interface::CloseReason;

/// Commands of one queue that delay a removal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outstanding {
    /// The subsystem.
    pub subsystem_nqn: String,
    /// The host that waits for the responses.
    pub host_nqn: String,
    /// The queue's identifier.
    pub qid: u16,
    /// Number of commands.
    pub commands: usize,
}

impl TargetCore {
    /// Adopts the latest published configuration without waiting for the next [`poll`](Self::poll).
    pub fn adopt_configuration(&mut self, now: Nanos) {
        if self.target.epoch() != self.view.epoch {
            self.handle_notifications(now);
        }
    }

    /// Reports the end of commands from before changes of ANA states.
    #[cold]
    pub(super) fn report_ended_commands(&mut self) {
        let awaited = std::mem::take(&mut self.awaited);
        let (left, ended): (Vec<_>, Vec<_>) =
            awaited.into_iter().partition(|it| self.has_any_of(it));
        self.awaited = left;
        for commands in ended {
            let mut registry = self.target.registry();
            registry
                .ana_transitions
                .ended(commands.number, self.reactor);
        }
    }

    /// Whether devices, or their wait queues, have any of these commands.
    fn has_any_of(&self, commands: &EarlierCommands) -> bool {
        let is_included = |(used, execution): (u128, &Execution)| {
            let Owner::Command(Command { queue, .. }) = execution.owner else {
                return false;
            };
            let queue = self.queues.at(queue);
            let devices = queue.map_or(0, |queue| commands.devices(&queue.shared.identity));
            devices & used != 0 && commands.includes(execution.work.epoch)
        };
        self.executions.iter().any(is_included)
    }

    /// The outstanding commands of queues that are draining, and those that these devices have.
    /// Searches all executions, so it is not for every turn.
    #[must_use]
    pub fn outstanding(&self, devices: &[DeviceIndex]) -> Vec<Outstanding> {
        let draining = self.queues.iter().filter(|(_, queue)| {
            queue.state == QueueState::Draining || queue.shared.drain_requested().is_some()
        });
        let mut all: Vec<_> = draining
            .map(|(_, queue)| outstanding(queue, queue.outstanding_commands as usize))
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

    /// Drains the queues and controllers that have to end after their responses.
    pub(super) fn drain_queues(&mut self, now: Nanos) {
        self.has_draining = false;
        for slot in 0..self.queues.capacity() {
            let reason = self.queues.at(slot).and_then(Queue::drain_reason);
            if let Some(reason) = reason {
                self.drain_queue(slot, reason);
            }
        }
        for slot in 0..self.controllers.capacity() {
            self.drain_controller(slot, now);
        }
    }

    fn drain_queue(&mut self, slot: u32, reason: CloseReason) {
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        queue.apply(QueueEvent::StartDrain);
        if queue.state != QueueState::Draining {
            return;
        }
        self.end_expectation(slot);
        // The end of the queue does not wait for the rates.
        self.release_waiting(slot, None);
        let Some(queue) = self.queues.at(slot) else {
            return;
        };
        if queue.outstanding_commands == 0 {
            self.end_queue(slot, reason);
        } else {
            self.has_draining = true;
        }
    }

    /// Ends the association of a draining controller after its I/O queues have ended.
    fn drain_controller(&mut self, slot: u32, now: Nanos) {
        let Some(controller) = self.controllers.at(slot) else {
            return;
        };
        let shared = &controller.shared;
        let Some(reason) = shared
            .drain_requested()
            .filter(|_| shared.ending().is_none())
        else {
            return;
        };
        let has_queues = {
            let registry = self.target.registry();
            let entry = registry.entry(shared.identity.cntlid);
            entry.is_some_and(|entry| !entry.io_queues.is_empty())
        };
        // The end of the last queue notifies this core again.
        if has_queues {
            return;
        }
        let admin = self.queues.at(controller.queue.slot);
        if admin.is_some_and(|queue| queue.outstanding_commands > 0) {
            self.has_draining = true;
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
