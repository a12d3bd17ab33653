//! Queues and controllers end, and commands are given up.
//!
//! Two steps: the core hands a [`Close`] out, and the transport, once it has sent what was queued,
//! says [`TargetCore::close_queue`]. A connection that broke begins with the second. What is in a
//! device stays there: the queue's slot is held until the last of it came back.

use block::{ClientId, DeviceSet, WaitId};
use nvme_spec::Status;
use reactors::Nanos;
use reactors::sim::planted;

use super::executions::{Command, DeviceTag, ExecutionState, Owner};
use super::queue::{QueueEvent, QueueKind, QueueState};
use super::{FailedCommand, TargetCore};
use crate::controller::state::ControllerEvent;
use crate::interface::{Close, CloseReason, Completed, QueueId};
use crate::status::Fault;

impl TargetCore {
    /// The queue's connection is gone. Commands in devices are orphaned: their leases come home
    /// when the devices are done. When it was an admin queue its whole association ends.
    pub fn close_queue(&mut self, queue: QueueId, now: Nanos) {
        let slot = queue.slot;
        let Some(entry) = self.queues.get_mut(slot, queue.generation) else {
            self.counters.stale_queues.add(1);
            return;
        };
        entry.apply(QueueEvent::ConnectionGone);
        let controller = entry.controller();
        entry.fenced = 0;
        let (kind, cntlid) = (entry.kind, entry.shared.identity.cntlid);
        self.queues.retire(slot);
        let abandoned = self
            .executions
            .abandon(slot, &mut cancelling(&self.devices, self.client));
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
        if planted("neighbour-closed") {
            self.end_queue(slot ^ 1, CloseReason::AssociationLost);
        }
        if let Some(controller) = controller {
            self.end_controller(controller, CloseReason::AssociationLost, now);
            self.controllers.remove(controller);
            self.set_timer(controller);
        }
        if let Some(entry) = self.queues.at_mut(slot) {
            entry.executing -= abandoned.freed;
            if entry.executing == 0 || planted("queue-freed-early") {
                self.release_queue(slot);
            }
        }
    }

    /// Frees the slot of a queue whose connection is gone and whose last command came back, and
    /// forgets it in the registry: from now on a reset may complete, and the queue's identifier may
    /// be used again.
    pub(super) fn release_queue(&mut self, slot: u32) {
        let Some(queue) = self.queues.remove(slot) else {
            return;
        };
        if !(planted("reservation-kept") && queue.qid > 0) {
            self.reserved.give_back(&queue.claimant, queue.slot_quota);
        }
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
            // A reset, or an end that waits for answers, may be over.
            self.target.notify(identity.admin_reactor);
        }
        for reactor in lifted {
            self.target.notify(reactor);
        }
    }

    /// Asks the transport to end a queue's connection.
    pub(super) fn end_queue(&mut self, slot: u32, reason: CloseReason) {
        if self
            .queues
            .at_mut(slot)
            .is_some_and(|queue| queue.apply(QueueEvent::End))
        {
            self.push_close(slot, reason);
        }
    }

    /// Hands a close out.
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

    /// Ends an association: no command passes any more, and every core that holds one of its queues
    /// is called to end it.
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
        if admin.is_some_and(|queue| queue.state != QueueState::Gone) {
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

    /// Abort (Base 2.1 §5.1.1): gives up a command that waits here, an event request or one that
    /// its device put off. What is in a device, on its way from the host, or on another core is not
    /// aborted, which the answer says.
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
        // Of before a reset, or on its way out: its commands are not answered one by one.
        let serves = |slot: &u32| {
            let queue = self.queues.at(*slot);
            queue.is_some_and(|queue| queue.must_end().is_none())
        };
        let found = found.filter(serves);
        let Some(slot) = found else { return false };
        let wanted = command_id ^ u16::from(planted("abort-of-another"));
        let Some(execution) = self.executions.find(slot, wanted) else {
            return false;
        };
        let removed = self
            .executions
            .remove_waiting(execution, &mut cancelling(&self.devices, self.client));
        let Some(execution) = removed else {
            return false;
        };
        let Owner::Command(Command { tag, id, .. }) = execution.owner else {
            return false;
        };
        if let Some(queue) = self.queues.at_mut(slot) {
            queue.executing -= 1;
            queue.fenced -= u32::from(execution.state == ExecutionState::Fenced);
        }
        let failed = FailedCommand::of_work(&execution.work, id);
        let response = self.fail(slot, &failed, Fault::retry(Status::ABORT_REQUESTED));
        self.push_completion(slot, Completed::without_data(tag, response));
        self.answered(slot);
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
        if !planted("event-abort-unanswered") {
            self.answer_event_request(slot, request.tag, command_id);
        }
        true
    }

    /// A reset: event requests that wait are answered as aborted, so that the host's slots are
    /// free.
    pub(super) fn abort_event_requests(&mut self, controller_slot: u32) {
        let Some(controller) = self.controllers.at_mut(controller_slot) else {
            return;
        };
        let slot = controller.queue.slot;
        for request in controller.events.reset() {
            self.answer_event_request(slot, request.tag, request.command_id);
        }
    }

    /// An event request that is given up is no error, so it is not logged.
    fn answer_event_request(&mut self, slot: u32, tag: u64, command_id: u16) {
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        let response = queue.respond(command_id, Status::ABORT_REQUESTED);
        self.push_completion(slot, Completed::without_data(tag, response));
    }
}

/// Takes requests of a client that wait for a device out of its line.
fn cancelling(
    devices: &DeviceSet,
    client: ClientId,
) -> impl FnMut(WaitId, DeviceTag) -> bool + use<'_> {
    move |waiting, tag| devices.cancel(client, waiting, tag.into_bits())
}
