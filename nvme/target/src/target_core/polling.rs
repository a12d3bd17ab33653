//! Polling of a core: notifications by other threads, and timers.

use std::sync::Arc;

use reactors::Nanos;

use super::TargetCore;
use super::executions::{Execution, Owner};
use super::queue::LOGGED_ERRORS_MAX;
use crate::controller::events::EventKind;
use crate::controller::state::{ControllerEvent, ControllerState};
use crate::controller::{DisconnectMode, Effect};
use crate::interface::Completed;
use crate::io::{IoOperation, IoWork};
use crate::status::Fault;

impl TargetCore {
    /// Handles timers and notifications after the devices were polled. Returns the amount of work
    /// done.
    pub fn poll(&mut self, now: Nanos) -> usize {
        self.polled_at = now;
        self.turn = self.turn.wrapping_add(1);
        let mut moved = 0;
        if self.target.notifications(self.reactor) != self.notifications_seen {
            self.handle_notifications(now);
            moved += 1;
        }
        if self.target.exclusion_messages(self.reactor) != self.exclusion_messages_seen {
            self.handle_exclusion_messages(now);
            moved += 1;
        }
        if self.transfers.has_unsubmitted() {
            self.retry_pieces();
        }
        self.report_clear_blocks();
        if !self.endings.is_empty() {
            self.end_preempted();
        }
        if !self.awaited.is_empty() {
            self.report_ended_commands();
        }
        if self.has_draining {
            self.drain_queues(now);
        }
        self.advance_pairs();
        if self.timer.is_some_and(|timer| timer <= now) {
            moved += self.check_timers(now);
        }
        while let Some(slot) = self.reporting.pop() {
            self.report_events(slot);
        }
        if self.log_refill_at.is_some_and(|refill| refill <= now) {
            self.refill_logs();
        }
        let strays = self.devices.take_stale_completions();
        if strays > 0 {
            self.counters.stale_completions.add(strays);
        }
        self.counters.executions.set(self.executions.len() as u64);
        moved
    }

    /// Handles everything that another thread may have changed.
    pub(super) fn handle_notifications(&mut self, now: Nanos) {
        // Read first, so that a change during the call causes another one.
        self.notifications_seen = self.target.notifications(self.reactor);
        if self.target.epoch() != self.view.epoch {
            let before = std::mem::replace(&mut self.view, self.target.published());
            self.adopt_view(before.epoch, now);
            let registry = self.target.registry();
            self.awaited = registry.ana_transitions.awaited_from(self.reactor);
        }
        self.handle_reservation_messages();
        self.handle_computed(now);
        let health_changes = self.target.health_changes();
        let health_changed = health_changes != self.health_changes_seen;
        self.health_changes_seen = health_changes;
        for slot in 0..self.controllers.capacity() {
            self.check_controller(slot, now);
            if health_changed {
                self.check_controller_health(slot, now);
            }
        }
        for slot in 0..self.queues.capacity() {
            let Some(queue) = self.queues.at(slot) else {
                continue;
            };
            let (reason, holds_commands) = (queue.end_reason(), queue.fenced > 0);
            match reason {
                Some(reason) => self.end_queue(slot, reason),
                None if holds_commands => self.start_fenced(slot),
                None => {}
            }
        }
        self.recheck_pairs();
        self.drain_queues(now);
        if self.target.is_shutting_down() {
            self.begin_shutdown(now);
        }
    }

    /// Applies a changed configuration to every controller. The core had that of epoch `before`.
    fn adopt_view(&mut self, before: u32, now: Nanos) {
        let view = Arc::clone(&self.view);
        for slot in 0..self.queues.capacity() {
            if let Some(queue) = self.queues.at_mut(slot) {
                queue.adopt_view(&view);
                self.adopt_rates(slot, &view, now);
            }
        }
        for slot in 0..self.controllers.capacity() {
            let Some(controller) = self.controllers.at_mut(slot) else {
                continue;
            };
            match controller.adopt_view(&view) {
                None => {}
                Some(DisconnectMode::AfterResponses(reason)) => {
                    controller.shared.drain_association(reason);
                    self.notify_queues(slot);
                }
                Some(DisconnectMode::Immediate(reason)) => self.end_controller(slot, reason, now),
            }
            self.report_events(slot);
        }
        self.require_authentication();
        self.end_revoked(before);
    }

    fn check_controller(&mut self, slot: u32, now: Nanos) {
        let Some(controller) = self.controllers.at_mut(slot) else {
            return;
        };
        let mut has_events = controller.adopt_reservation_notices();
        if controller.shared.take_internal_errors() {
            let configuration = controller.features.async_events;
            controller
                .events
                .raise(EventKind::InternalError, configuration);
            has_events = true;
        }
        if has_events {
            self.report_events(slot);
        }
        self.check_reset(slot, now);
        self.check_enabling(slot, now);
        let Some(controller) = self.controllers.at_mut(slot) else {
            return;
        };
        if controller.shared.ending().is_some() && controller.state != ControllerState::Ended {
            let cntlid = controller.shared.identity.cntlid;
            let effect = controller.apply(ControllerEvent::End, now);
            self.carry_out(slot, effect, now);
            self.update_fences(cntlid);
        }
    }

    /// Makes a controller check health without waiting for its next regular check.
    fn check_controller_health(&mut self, slot: u32, now: Nanos) {
        let Some((controller, context)) = self.controller(slot, now) else {
            return;
        };
        if controller.watches_health() {
            controller.check_health(&context);
            self.report_events(slot);
        }
    }

    /// Completes a reset after the last earlier I/O queue has ended.
    fn check_reset(&mut self, slot: u32, now: Nanos) {
        let Some(controller) = self.controllers.at_mut(slot) else {
            return;
        };
        if controller.state != ControllerState::Resetting {
            return;
        }
        let cntlid = controller.shared.identity.cntlid;
        let queues_left = {
            let registry = self.target.registry();
            registry
                .entry(cntlid)
                .is_some_and(|entry| !entry.io_queues.is_empty())
        };
        if !queues_left {
            let effect = controller.reset_done(now);
            self.carry_out(slot, effect, now);
            self.arm_timers_and_report(slot);
        }
    }

    /// Applies an event to a controller and carries out the effect.
    pub(super) fn controller_event(&mut self, slot: u32, event: ControllerEvent, now: Nanos) {
        let Some(controller) = self.controllers.at_mut(slot) else {
            return;
        };
        let effect = controller.apply(event, now);
        self.carry_out(slot, effect, now);
        self.arm_timers_and_report(slot);
    }

    /// Carries out the effect of a controller's change of state.
    pub(super) fn carry_out(&mut self, slot: u32, effect: Effect, now: Nanos) {
        match effect {
            Effect::None => {}
            Effect::Reset => {
                self.counters.controller_resets.add(1);
                self.abort_event_requests(slot);
                if let Some(controller) = self.controllers.at(slot) {
                    self.update_fences(controller.shared.identity.cntlid);
                }
                self.notify_queues(slot);
                self.check_reset(slot, now);
            }
            Effect::Flush => self.flush_for_shutdown(slot),
            Effect::AwaitOrphans => self.check_enabling(slot, now),
        }
        self.set_timer(slot);
    }

    /// Flushes the caches of a controller's subsystem, then completes its shutdown.
    fn flush_for_shutdown(&mut self, slot: u32) {
        let generation = self.controllers.generation(slot);
        let Some(controller) = self.controllers.at(slot) else {
            return;
        };
        let devices = controller
            .subsystem(&self.view)
            .map_or(0, |view| view.volatile_devices);
        let owner = Owner::Shutdown {
            controller: slot,
            generation,
        };
        if let Some(result) = self.start_flush(owner, devices) {
            self.flushed_for_shutdown(slot, result);
        }
    }

    /// Handles the end of a shutdown's flush. CSTS.CFS reports its failure, because no command of
    /// the host can (Base 2.1 §3.1.4.6).
    pub(super) fn flushed_for_shutdown(&mut self, slot: u32, result: Result<(), Fault>) {
        let event = match result {
            Ok(()) => ControllerEvent::Flushed,
            Err(_) => {
                if let Some(controller) = self.controllers.at(slot) {
                    let host = &controller.shared.identity.host_nqn;
                    tracing::warn!(%host, "flushing the caches failed during the host's shutdown");
                }
                ControllerEvent::FlushFailed
            }
        };
        self.controller_event(slot, event, self.polled_at);
    }

    /// Flushes a set of devices, not for a host's command. Returns `None` while the flush is under
    /// way.
    pub(super) fn start_flush(&mut self, owner: Owner, devices: u128) -> Option<Result<(), Fault>> {
        let work = IoWork {
            operation: IoOperation::FlushAll,
            device: 0,
            blocks: 0,
            lba: 0,
            bytes: 0,
            nsid: nvme_spec::NSID_BROADCAST,
            epoch: self.view.epoch,
        };
        let execution = Execution::new(owner, work, self.polled_at, self.polled_at);
        let Some(tag) = self.executions.insert(execution) else {
            debug_assert!(
                false,
                "an admin queue reserves room for its controller's flush"
            );
            return Some(Err(Fault::retry(nvme_spec::Status::INTERNAL_ERROR)));
        };
        self.executions.extra(tag.slot).devices = devices;
        let result = self.proceed(tag);
        if result.is_some() {
            self.executions.remove(tag);
        }
        result
    }

    /// Completes waiting event requests with pending events.
    pub(super) fn report_events(&mut self, slot: u32) {
        while let Some(controller) = self.controllers.at_mut(slot) {
            let Some((request, event)) = controller.events.next_report() else {
                let awaits_event = controller.events.has_requests();
                controller.shared.set_awaits_event(awaits_event);
                return;
            };
            let queue_slot = controller.queue.slot;
            let Some(queue) = self.queues.at_mut(queue_slot) else {
                return;
            };
            let response = queue.respond(request.command_id, nvme_spec::Status::SUCCESS);
            let response = response.with_dw0(event.into_bits());
            self.counters.events.add(1);
            let completed = Completed::without_data(request.tag, response);
            self.push_completion(queue_slot, completed);
        }
    }

    /// Handles due controller timers and overdue orphans; returns their number.
    fn check_timers(&mut self, now: Nanos) -> usize {
        let mut looked_at = 0;
        if self.orphans_due.is_some_and(|due| due <= now) {
            self.end_overdue(now);
            looked_at += 1;
        }
        looked_at += self.check_authentications(now);
        looked_at += self.release_due(now);
        while let Some(slot) = self.timers.next_due(now) {
            looked_at += 1;
            let transport = self.controllers.at(slot).map(|it| it.transport);
            let receive_stalled_at = transport.and_then(|kind| self.receive_stalled_at(kind, now));
            let Some((controller, context)) = self.controller(slot, now) else {
                continue;
            };
            if let Some(reason) = controller.check_timers(&context, receive_stalled_at) {
                if reason == crate::CloseReason::KeepAliveExpired {
                    self.counters.keep_alive_expired.add(1);
                }
                self.end_controller(slot, reason, now);
            }
            self.arm_timers_and_report(slot);
        }
        self.set_core_timer();
        looked_at
    }

    fn refill_logs(&mut self) {
        self.log_refill_at = None;
        for slot in 0..self.queues.capacity() {
            if let Some(queue) = self.queues.at_mut(slot) {
                queue.log_allowance = LOGGED_ERRORS_MAX;
            }
        }
    }
}
