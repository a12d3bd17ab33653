//! The end of queues and controllers, and the abort of commands.
//!
//! A queue ends in two steps: the core issues a [`Close`], and the transport, after it has sent the
//! queued responses, calls [`TargetCore::close_queue`]. A broken connection starts with the second
//! step. Requests in a device stay there, and the queue keeps its slot until the last of them has
//! completed.

use block::{ClientId, DeviceSet, WaitingId};
use nvme_spec::Status;
use reactors::Nanos;

use super::executions::{Command, DeviceTag, ExecutionState, Owner};
use super::queue::{QueueEvent, QueueKind, QueueState};
use super::{FailedCommand, TargetCore};
use crate::controller::state::ControllerEvent;
use crate::interface::{Close, CloseReason, Completed, QueueId};
use crate::io::IoOperation;
use crate::status::Fault;

impl TargetCore {
    /// Closes a queue after its connection has ended. Commands in devices become orphans, whose
    /// leases are returned when the devices complete them. An admin queue ends its whole
    /// association.
    pub fn close_queue(&mut self, queue: QueueId, now: Nanos) {
        let slot = queue.slot;
        self.close_authentication(queue);
        let Some(entry) = self.queues.get_mut(slot, queue.generation) else {
            self.counters.stale_queues.add(1);
            return;
        };
        entry.apply(QueueEvent::ConnectionClosed);
        let controller = entry.controller();
        entry.fenced = 0;
        let (kind, cntlid) = (entry.kind, entry.shared.identity.cntlid);
        self.queues.retire(slot);
        self.forget_waiting(slot);
        let abandoned = self
            .executions
            .abandon(slot, &mut cancelling(&self.devices, self.client));
        self.abandon_pairs(slot);
        self.counters.orphaned.add(u64::from(abandoned.orphaned));
        self.give_up_orphans(abandoned.devices);
        if abandoned.orphaned > 0 {
            self.await_orphans(slot, now);
        }
        if let QueueKind::Io { token } = kind
            && abandoned.orphaned > 0
        {
            self.target.registry().orphan_io(cntlid, token);
            self.update_fences(cntlid);
        }
        if let Some(controller) = controller {
            self.end_controller(controller, CloseReason::AssociationLost, now);
            self.controllers.remove(controller);
            self.set_timer(controller);
        }
        if let Some(entry) = self.queues.at_mut(slot) {
            entry.executing -= abandoned.freed;
            if entry.executing == 0 {
                self.release_queue(slot);
            }
        }
    }

    /// Frees the slot of a closed queue after its last command has completed, and removes the queue
    /// from the registry: a reset may now complete, and the queue's identifier may be used again.
    pub(super) fn release_queue(&mut self, slot: u32) {
        let Some(queue) = self.queues.remove(slot) else {
            return;
        };
        self.reserved
            .return_share(&queue.share_holder, queue.slot_quota);
        self.counters.queues.set(self.queues.len() as u64);
        if queue.overdue_at.is_some() {
            self.orphaned_queues -= 1;
            if self.orphaned_queues == 0 {
                self.orphans_due = None;
                self.set_core_timer();
            }
        }
        let identity = &queue.shared.identity;
        let lifted = {
            let mut registry = self.target.registry();
            if let Some(counters) = self.counters.queue_slots.get(slot as usize) {
                queue.shared.closed_queues().add(counters.totals());
            }
            match queue.kind {
                QueueKind::Io { token } => registry.remove_io(identity.cntlid, token),
                QueueKind::Admin { .. } => {
                    registry.remove_admin(identity.cntlid);
                    Vec::new()
                }
            }
        };
        if queue.controller().is_none() {
            // A reset, or a disconnect that waits for responses, may be complete.
            self.target.notify(identity.admin_reactor);
        }
        for reactor in lifted {
            self.target.notify(reactor);
        }
    }

    /// Requests that the transport close a queue's connection.
    pub(super) fn end_queue(&mut self, slot: u32, reason: CloseReason) {
        if self
            .queues
            .at_mut(slot)
            .is_some_and(|queue| queue.apply(QueueEvent::End))
        {
            self.push_close(slot, reason);
        }
    }

    /// Queues a close for the transport.
    pub(super) fn push_close(&mut self, slot: u32, reason: CloseReason) {
        let id = self.queue_id(slot);
        let Some(queue) = self.queues.at(slot) else {
            return;
        };
        let close = Close {
            connection: queue.connection,
            queue: id,
            reason,
        };
        if let Some(inbox) = self.inboxes.get_mut(usize::from(queue.transport)) {
            inbox.closes.push_back(close);
        }
    }

    /// Ends an association: closes its gate, and notifies every core that has one of its queues.
    pub(super) fn end_controller(&mut self, slot: u32, reason: CloseReason, now: Nanos) {
        let Some(controller) = self.controllers.at_mut(slot) else {
            return;
        };
        controller.shared.end(reason);
        let cntlid = controller.shared.identity.cntlid;
        tracing::debug!(cntlid, ?reason, "association ends");
        let effect = controller.apply(ControllerEvent::End, now);
        self.carry_out(slot, effect, now);
        self.update_fences(cntlid);
        self.notify_queues(slot);
    }

    /// Notifies every core that has a connected queue of a controller.
    pub(super) fn notify_queues(&self, slot: u32) {
        let Some(controller) = self.controllers.at(slot) else {
            return;
        };
        let cntlid = controller.shared.identity.cntlid;
        let mut reactors = Vec::new();
        let admin = self.queues.at(controller.queue.slot);
        if admin.is_some_and(|queue| queue.state != QueueState::Closed) {
            reactors.push(self.reactor);
        }
        {
            let registry = self.target.registry();
            let queues = registry.entry(cntlid).map(|entry| &entry.io_queues);
            reactors.extend(queues.into_iter().flatten().map(|queue| queue.reactor));
        }
        reactors.sort_unstable();
        reactors.dedup();
        for reactor in reactors {
            self.target.notify(reactor);
        }
    }

    /// Abort (Base 2.1 §5.1.1): aborts an event request, or a command that waits in this core for
    /// its device or for a fence. A command that is in a device, whose data is being fetched, or
    /// that is on another core is not aborted, which the response reports.
    pub(super) fn abort(&mut self, controller_slot: u32, sqid: u16, command_id: u16) -> bool {
        if sqid == 0 {
            return self.abort_event_request(controller_slot, command_id);
        }
        let Some(controller) = self.controllers.at(controller_slot) else {
            return false;
        };
        let cntlid = controller.shared.identity.cntlid;
        let found = {
            let registry = self.target.registry();
            let queues = registry.entry(cntlid).map(|entry| &entry.io_queues);
            let mut queues = queues.into_iter().flatten();
            queues
                .find(|queue| queue.qid == sqid && queue.reactor == self.reactor)
                .map(|queue| queue.slot)
        };
        // A queue from before a reset, or one that is ending: its commands are not completed one by
        // one.
        let serves = |slot: &u32| {
            let queue = self.queues.at(*slot);
            queue.is_some_and(|queue| queue.end_reason().is_none())
        };
        let found = found.filter(serves);
        let Some(slot) = found else { return false };
        if self.abort_throttled(slot, command_id) {
            return true;
        }
        let Some(execution) = self.executions.find(slot, command_id) else {
            return false;
        };
        self.abort_execution(execution, Status::ABORT_REQUESTED)
    }

    /// Completes a command that no device has with the status `status`. Returns whether it did.
    pub(super) fn abort_execution(&mut self, execution_slot: u32, status: Status) -> bool {
        let removed = self
            .executions
            .remove_waiting(execution_slot, &mut cancelling(&self.devices, self.client));
        let Some(execution) = removed else {
            return false;
        };
        let Owner::Command(Command {
            queue: slot,
            tag,
            id,
        }) = execution.owner
        else {
            return false;
        };
        if let Some(queue) = self.queues.at_mut(slot) {
            queue.executing -= 1;
            queue.fenced -= u32::from(execution.state == ExecutionState::Fenced);
        }
        let failed = FailedCommand::of_work(&execution.work, id);
        let response = self.fail(slot, &failed, Fault::retry(status));
        self.push_completion(slot, Completed::without_data(tag, response));
        self.command_completed(slot);
        if let IoOperation::Fused(part) = execution.work.operation {
            self.part_aborted(execution_slot, part);
        }
        true
    }

    fn abort_event_request(&mut self, controller_slot: u32, command_id: u16) -> bool {
        let Some(controller) = self.controllers.at_mut(controller_slot) else {
            return false;
        };
        let slot = controller.queue.slot;
        let Some(request) = controller.events.abort(command_id) else {
            return false;
        };
        let awaits_event = controller.events.has_requests();
        controller.shared.set_awaits_event(awaits_event);
        self.abort_response(slot, request.tag, command_id);
        true
    }

    /// Completes the waiting event requests as aborted for a reset, so that the host's slots become
    /// free.
    pub(super) fn abort_event_requests(&mut self, controller_slot: u32) {
        let Some(controller) = self.controllers.at_mut(controller_slot) else {
            return;
        };
        let slot = controller.queue.slot;
        for request in controller.events.reset() {
            self.abort_response(slot, request.tag, request.command_id);
        }
    }

    /// Completes an event request as aborted. This is not an error, so it is not logged.
    fn abort_response(&mut self, slot: u32, tag: u64, command_id: u16) {
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        let response = queue.respond(command_id, Status::ABORT_REQUESTED);
        self.push_completion(slot, Completed::without_data(tag, response));
    }
}

/// A function that removes a client's request from a device's wait queue.
fn cancelling(
    devices: &DeviceSet,
    client: ClientId,
) -> impl FnMut(WaitingId, DeviceTag) -> bool + use<'_> {
    move |waiting, tag| devices.cancel(client, waiting, tag.into_bits())
}
