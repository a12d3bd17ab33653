//! What comes and goes while the rest is served: devices, and queues that answer what they have
//! before they end.

use block::{DeviceError, DeviceQueue};
use reactors::Nanos;
use reactors::sim::planted;

use super::TargetCore;
use super::absent::AbsentQueue;
use super::executions::{Command, ExecutionEvent, Owner};
use super::queue::{Queue, QueueEvent, QueueState};
use crate::config::DeviceIndex;
use crate::interface::CloseReason;

/// Whether a core is done with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum DeviceDrain {
    /// Its queue is closed.
    Done,
    /// So many requests are still in it or in its line.
    Outstanding(usize),
}

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
    /// Takes in the queue of a device that [`Target::add_device`](crate::Target::add_device) gave a
    /// place. Every core needs one before a namespace may name the device.
    pub fn attach_device(&mut self, device: DeviceIndex, queue: Box<dyn DeviceQueue>) {
        let place = usize::from(device.0);
        self.make_places(place + 1);
        self.lending[place] = queue.lends_reads();
        self.counters.devices[place].reset();
        self.counters.device_latency[place].reset();
        self.present |= 1 << place;
        self.devices[place] = queue;
        self.device_changes = self.device_changes.wrapping_add(1);
    }

    /// Begins (and continues) letting a device go that no namespace names any more: requests that
    /// it has go on to their end. Call it between polls until it says [`DeviceDrain::Done`].
    pub fn detach_device(&mut self, device: DeviceIndex) -> DeviceDrain {
        let place = usize::from(device.0);
        let Some(queue) = self.devices.get(place) else {
            return DeviceDrain::Done;
        };
        // What was checked against an older configuration is refused from now on.
        if self.target.epoch() != self.view.epoch {
            return DeviceDrain::Outstanding(queue.in_flight());
        }
        self.present &= !(1 << place);
        let requests = queue.in_flight();
        // Fewer than 128 devices.
        let is_busy = requests > 0 || self.executions.has_line(place as u8);
        if is_busy && !planted("device-leaves-early") {
            return DeviceDrain::Outstanding(requests.max(1));
        }
        self.vacate(place);
        DeviceDrain::Done
    }

    /// Lets a device go at once: what it has not answered is a path error for the host.
    pub fn cut_device(&mut self, device: DeviceIndex, now: Nanos) {
        let place = usize::from(device.0);
        if place >= self.devices.len() {
            return;
        }
        self.look(now);
        self.present &= !(1 << place);
        // Fewer than 128 devices.
        let device = place as u8;
        while let Some((tag, _)) = self.executions.unpark(device) {
            if let Some(execution) = self.executions.get_mut(tag) {
                execution.apply(ExecutionEvent::Taken);
            }
        }
        // Its completions will not come any more.
        self.vacate(place);
        let cut = self.executions.of_device(device).map(|(tag, _)| tag);
        let cut: Vec<_> = cut.collect();
        for tag in cut {
            self.device_lost(tag, DeviceError::Removed);
        }
    }

    /// Takes over what was published by now, without waiting for the next [`poll`](Self::poll).
    pub fn catch_up(&mut self, now: Nanos) {
        let is_told = self.reactor == 0 || !planted("one-reactor-told");
        if self.target.epoch() != self.view.epoch && is_told {
            self.look(now);
        }
    }

    /// Tells the queue of a device that the device has grown.
    pub fn device_grew(&mut self, device: DeviceIndex) {
        let is_told = !planted("growth-untold");
        if let Some(queue) = self
            .devices
            .get_mut(usize::from(device.0))
            .filter(|_| is_told)
        {
            queue.device_grew();
        }
    }

    /// Counts the times that a device came or went: descriptors that were not watched before may
    /// have to be.
    #[must_use]
    pub fn device_changes(&self) -> u32 {
        self.device_changes
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

    /// Has a place for each of so many devices.
    pub(super) fn make_places(&mut self, count: usize) {
        while self.devices.len() < count {
            self.devices.push(Box::new(AbsentQueue));
        }
    }

    /// Closes the queue of a device.
    fn vacate(&mut self, place: usize) {
        self.devices[place] = Box::new(AbsentQueue);
        self.rota.rests(place);
        self.lending[place] = false;
        self.device_changes = self.device_changes.wrapping_add(1);
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
