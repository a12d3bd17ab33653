//! Orphaned requests: those of an ended association, from before a reset, or of a closed
//! connection.
//!
//! They must not take effect after newer commands of the same host. So devices cancel those that
//! they have not started; a new controller of the host becomes ready only after the others have
//! completed; and the host's other controllers meanwhile hold back commands that change data (a
//! fence in their gates, raised and lifted under the registry's lock).

use block::GIVEN_UP_MAX;
use hugemem::{Data, Lease};
use nvme_spec::Status;
use reactors::Nanos;

use super::executions::{Command, DeviceTag, Execution, ExecutionEvent, Owner};
use super::gate::GateDecision;
use super::{FailedCommand, TargetCore};
use crate::controller::state::{ControllerEvent, ControllerState};
use crate::interface::Completed;
use crate::io::{IoOperation, IoWork};
use crate::status::Fault;

/// Interval at which devices are asked again to end overdue requests.
const OVERDUE_INTERVAL: Nanos = Nanos::from_secs(1);

impl TargetCore {
    /// Makes devices cancel requests of ended queues where possible, because the host may meanwhile
    /// send new commands by another association or another path.
    pub(super) fn give_up_orphans(&mut self, devices: u128) {
        let executions = &self.executions;
        let is_orphan = &mut |tag| executions.is_orphan(DeviceTag::from_bits(tag));
        self.devices.give_up(self.client, devices, is_orphan);
    }

    /// Sets the time after which a queue's orphans are ended by force.
    pub(super) fn await_orphans(&mut self, slot: u32, now: Nanos) {
        let due = now + GIVEN_UP_MAX;
        if let Some(queue) = self.queues.at_mut(slot) {
            queue.overdue_at = Some(due);
            self.orphaned_queues += 1;
            self.orphans_due = Some(self.orphans_due.map_or(due, |first| first.min(due)));
            self.set_core_timer();
        }
    }

    /// Makes devices end overdue orphans by force: CQT reports to hosts how long a new controller
    /// waits for them at most (Base 2.1 §5.1.13.2.1).
    #[cold]
    pub(super) fn end_overdue(&mut self, now: Nanos) {
        self.orphans_due = None;
        for slot in 0..self.queues.capacity() {
            let Some(queue) = self.queues.at_mut(slot) else {
                continue;
            };
            let Some(due) = queue.overdue_at else {
                continue;
            };
            let mut next = due;
            if due <= now {
                let identity = &queue.shared.identity;
                tracing::warn!(
                    host = %identity.host_nqn,
                    requests = queue.executing,
                    "requests of an ended association are overdue: ending them by force"
                );
                next = now + OVERDUE_INTERVAL;
                queue.overdue_at = Some(next);
                let executions = &self.executions;
                let is_overdue =
                    &mut |tag| executions.is_orphan_of(slot, DeviceTag::from_bits(tag));
                self.devices.abandon(self.client, is_overdue);
            }
            self.orphans_due = Some(self.orphans_due.map_or(next, |first| first.min(next)));
        }
    }

    /// Makes an enabling controller ready once no device has orphaned requests of its host. The
    /// last of them notifies this core again.
    pub(super) fn check_enabling(&mut self, slot: u32, now: Nanos) {
        let Some(controller) = self.controllers.at_mut(slot) else {
            return;
        };
        if controller.state != ControllerState::Enabling {
            return;
        }
        let effect = {
            // Locked until the gate is open, so that an association that ends later raises the
            // fence.
            let registry = self.target.registry();
            let entry = registry.entry(controller.shared.identity.cntlid);
            let waits = entry.is_some_and(|entry| registry.has_orphans(entry));
            if waits {
                return;
            }
            controller.apply(ControllerEvent::OrphansDone, now)
        };
        self.carry_out(slot, effect, now);
        self.arm_timers_and_report(slot);
    }

    /// Raises or lifts the fences of a controller's host after a relevant change.
    pub(super) fn update_fences(&self, cntlid: u16) {
        let reactors = self.target.registry().update_fences(cntlid);
        for reactor in reactors {
            self.target.notify(reactor);
        }
    }

    /// Holds a command back until its host's fence is lifted, or no exclusion concerns its blocks.
    #[cold]
    pub(super) fn hold_command(
        &mut self,
        command: Command,
        work: IoWork,
        data: Option<Lease>,
        received_at: Nanos,
        now: Nanos,
    ) -> Option<Completed> {
        let execution = Execution::fenced(Owner::Command(command), work, received_at, now);
        let Some(tag) = self.executions.insert(execution) else {
            let failed = FailedCommand::of_work(&work, command.id);
            let fault = Fault::retry(Status::COMMAND_INTERRUPTED);
            return Some(self.fail_command(command, &failed, fault));
        };
        if let (IoOperation::Copy { .. }, Some(list)) = (work.operation, &data) {
            self.note_sources(tag, &work, list);
        }
        self.executions.extra(tag.slot).data = data.map(Data::Lease);
        self.exclusions.add_held(tag);
        if let Some(queue) = self.queues.at_mut(command.queue) {
            queue.executing += 1;
            queue.fenced += 1;
        }
        self.counters.deferred.add(1);
        None
    }

    /// Starts a queue's commands that the fence held back, oldest first, after it was lifted.
    #[inline(never)]
    pub(super) fn start_fenced(&mut self, slot: u32) {
        let mut next = self.executions.first_fenced(slot);
        while let Some(tag) = next {
            next = self.executions.next_fenced(tag);
            let Some(execution) = self.executions.get_mut(tag) else {
                return;
            };
            let work = execution.work;
            match self.pass_admitted(slot, &work) {
                // Raised again. Lifting it notifies this core again.
                GateDecision::Held => return,
                GateDecision::Open if self.exclusions.hold(&work) => {
                    self.exclusions.add_held(tag);
                }
                decision => self.start_held_command(slot, tag, &work, decision),
            }
        }
    }

    /// Starts a command that was held back, or completes it if the gate refuses it.
    pub(super) fn start_held_command(
        &mut self,
        slot: u32,
        tag: DeviceTag,
        work: &IoWork,
        decision: GateDecision,
    ) {
        let over = match decision {
            GateDecision::Held => return,
            GateDecision::Refused(fault) => Some(Err(fault)),
            GateDecision::Open => {
                if let Some(execution) = self.executions.get_mut(tag) {
                    execution.apply(ExecutionEvent::Started);
                }
                let data = match self.executions.extra(tag.slot).data.take() {
                    Some(Data::Lease(lease)) => Some(lease),
                    Some(Data::Borrow(_)) | None => None,
                };
                self.begin(tag, work, data)
            }
        };
        if let Some(queue) = self.queues.at_mut(slot) {
            queue.fenced -= 1;
        }
        if let Some(result) = over {
            self.finish_later(tag, result, None);
        }
    }
}
