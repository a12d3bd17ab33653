//! Admission of received commands: checks each once, and completes it or returns it as work.

use block::DeviceSet;
use nvme_spec::command::{AdminOpcode, Fuse, IoOpcode};
use nvme_spec::fabrics::FabricsType;
use nvme_spec::{Cqe, Sqe, Status};
use reactors::Nanos;

use super::authentication::{AUTHENTICATION_REQUIRED, is_authentication};
use super::executions::Command;
use super::gate;
use super::queue::{InlinePath, Queue, QueueEvent, QueueKind, QueueState};
use super::{FailedCommand, TargetCore};
use crate::admin::{AdminStep, with_result};
use crate::config::ADMIN_EXECUTIONS_MAX;
use crate::controller::AdminContext;
use crate::interface::{Admission, Completed, QueueId, Work, WorkKind};
use crate::io::{
    CopyWork, IoContext, IoOperation, IoWork, Plan, check, check_transfer, is_transfer,
};
use crate::reservations::restrictions::AccessKind;
use crate::reservations::work::{self, is_reservation};
use crate::status::{Fault, byte};
use crate::view::TargetView;

impl TargetCore {
    /// Decodes and checks one command. `tag` is the transport's own and is returned with the
    /// completion if the command is held.
    #[inline]
    pub fn admit(&mut self, queue: QueueId, tag: u64, sqe: &Sqe, now: Nanos) -> Admission {
        let Some(entry) = self.queues.get_mut(queue.slot, queue.generation) else {
            return Admission::Respond(self.stale(sqe.cid.get()));
        };
        self.counters.commands.add(1);
        entry.shared.note_traffic();
        // Separate from other commands, so that the work is built in place for the caller.
        if is_transfer(sqe) && entry.inline_path() == InlinePath::Unlimited {
            return match plan_transfer(entry, &self.view, sqe) {
                Ok(plan) => {
                    entry.outstanding_commands += 1;
                    let lends = can_lend(&self.devices, &plan.work);
                    Admission::Work(plan.admit(sqe.cid.get(), lends, now))
                }
                Err(fault) => self.refuse(queue.slot, sqe, fault),
            };
        }
        self.admit_special(queue.slot, tag, sqe, now)
    }

    /// Admits all commands except reads, writes and compares on a live I/O queue without rate limits.
    #[inline(never)]
    fn admit_special(&mut self, slot: u32, tag: u64, sqe: &Sqe, now: Nanos) -> Admission {
        let kind = self.queues.at(slot).map(|queue| queue.kind);
        let admitted = match kind {
            Some(QueueKind::Io { .. }) => self.admit_io_special(slot, tag, sqe, now),
            Some(QueueKind::Admin { controller }) => {
                self.counters.admin_commands.add(1);
                self.trace_admin(slot, sqe, now);
                self.admit_admin(slot, controller, tag, sqe, now)
            }
            None => Err(Fault::retry(Status::ABORTED_SQ_DELETION)),
        };
        match admitted {
            Ok(Admission::Work(mut work)) => {
                (work.received_at, work.since) = (now, now);
                Admission::Work(work)
            }
            Ok(admission) => admission,
            Err(fault) => self.refuse(slot, sqe, fault),
        }
    }

    /// The work of the Copy that [`admit`](Self::admit) has just admitted, or of the command that it
    /// has just found to be throttled; `None` otherwise.
    #[cold]
    pub fn take_set_aside(&mut self) -> Option<Work> {
        self.set_aside.take()
    }

    #[cold]
    fn refuse(&mut self, slot: u32, sqe: &Sqe, fault: Fault) -> Admission {
        Admission::Respond(self.fail(slot, &FailedCommand::of(sqe), fault))
    }

    fn admit_io_special(
        &mut self,
        slot: u32,
        tag: u64,
        sqe: &Sqe,
        now: Nanos,
    ) -> Result<Admission, Fault> {
        // Not processed: the end of the connection makes the host send it again, on another path or
        // later.
        if self.queues.at(slot).map(|queue| queue.state) == Some(QueueState::Draining) {
            return Ok(Admission::Held);
        }
        if self.queues.at(slot).is_some_and(Queue::expects_second)
            && (sqe.is_fabrics() || sqe.flags.fuse() != Fuse::SECOND)
        {
            self.end_expectation(slot);
        }
        let live = self.queues.at_mut(slot).filter(|queue| queue.is_live_io());
        // Base 2.1 §6.4: no command is processed after a Disconnect.
        let Some(queue) = live else {
            return self.refuse_on_ended_queue(slot, tag, sqe);
        };
        if sqe.is_fabrics() {
            return self.admit_io_fabrics(slot, tag, sqe);
        }
        if sqe.flags.fuse() != Fuse::NORMAL && !is_reservation(sqe) {
            return self.admit_fused(slot, sqe, now);
        }
        gate::admit(queue)?;
        let context = context(queue, &self.view)?;
        let (nsid, is_open) = (sqe.nsid.get(), gate::is_open(queue));
        if is_reservation(sqe) {
            let work = work::check(sqe, &context, self.target.transfer_max_bytes())?;
            gate::admit_restricted(queue, context.subsystem, nsid, None)?;
            queue.outstanding_commands += 1;
            return Ok(Admission::Work(work));
        }
        check_copy_format(queue, sqe)?;
        let plan = check(sqe, &context)?;
        // A command without a plan is a Flush or a hint, which conflict like writes.
        let access = plan.map_or(Some(AccessKind::Write), |it| it.work.operation.access());
        if !is_open {
            gate::admit_restricted(queue, context.subsystem, nsid, access)?;
        }
        let Some(plan) = plan else {
            return Ok(succeed(queue, sqe, 0));
        };
        queue.outstanding_commands += 1;
        let is_limited = queue.rates().is_some();
        if matches!(plan.work.operation, IoOperation::Copy { .. }) {
            let work = admit_copy(plan, &context, sqe.cid.get(), now);
            if is_limited {
                return Ok(self.admit_by_rates(slot, work, now));
            }
            self.set_aside = Some(work);
            return Ok(Admission::Copy);
        }
        let lends = can_lend(&self.devices, &plan.work);
        let work = plan.admit(sqe.cid.get(), lends, now);
        if is_limited {
            return Ok(self.admit_by_rates(slot, work, now));
        }
        Ok(Admission::Work(work))
    }

    /// Refuses a command on a queue that has stopped. If all earlier commands are complete, the
    /// response to a Disconnect may have been queued in this turn. This response is queued after
    /// it.
    #[cold]
    fn refuse_on_ended_queue(
        &mut self,
        slot: u32,
        tag: u64,
        sqe: &Sqe,
    ) -> Result<Admission, Fault> {
        let fault = Fault::retry(Status::ABORTED_SQ_DELETION);
        let queue = self.queues.at(slot);
        let is_over =
            queue.is_some_and(|it| it.state == QueueState::Ending && it.outstanding_commands == 0);
        if !is_over {
            return Err(fault);
        }
        let response = self.fail(slot, &FailedCommand::of(sqe), fault);
        self.push_completion(slot, Completed::without_data(tag, response));
        Ok(Admission::Held)
    }

    /// Fabrics commands on an I/O queue (Base 2.1 §6): Disconnect and authentication.
    fn admit_io_fabrics(&mut self, slot: u32, tag: u64, sqe: &Sqe) -> Result<Admission, Fault> {
        if is_authentication(sqe) {
            return self.admit_authentication(slot, sqe);
        }
        if self
            .queues
            .at(slot)
            .is_some_and(|it| it.gate.is_unauthenticated())
        {
            return Err(AUTHENTICATION_REQUIRED);
        }
        match sqe.fctype() {
            FabricsType::DISCONNECT => self.disconnect(slot, tag, sqe),
            // Base 2.1 §6.3: the queue already exists.
            FabricsType::CONNECT => Err(Fault::new(Status::COMMAND_SEQUENCE_ERROR).at(byte::NSID)),
            // Base 2.1 §6.5, §6.6: properties belong to the admin queue.
            _ => Err(Fault::new(Status::INVALID_OPCODE).at(byte::NSID)),
        }
    }

    /// Disconnect (Base 2.1 §6.4): the queue stops. Outstanding commands complete first, then the
    /// Disconnect, and then the connection is closed.
    fn disconnect(&mut self, slot: u32, tag: u64, sqe: &Sqe) -> Result<Admission, Fault> {
        if sqe.disconnect().recfmt.get() != 0 {
            return Err(Fault::new(Status::CONNECT_INCOMPATIBLE_FORMAT).at(byte::CDW10));
        }
        let Some(queue) = self.queues.at_mut(slot) else {
            return Err(Fault::retry(Status::ABORTED_SQ_DELETION));
        };
        let command_id = sqe.cid.get();
        if queue.outstanding_commands > 0 {
            queue.apply(QueueEvent::Disconnect { tag, command_id });
            self.release_waiting(slot, Some(Status::ABORTED_SQ_DELETION));
            return Ok(Admission::Held);
        }
        let admission = succeed(queue, sqe, 0);
        self.end_queue(slot, crate::CloseReason::Disconnected);
        Ok(admission)
    }

    fn admit_admin(
        &mut self,
        slot: u32,
        controller_slot: u32,
        tag: u64,
        sqe: &Sqe,
        now: Nanos,
    ) -> Result<Admission, Fault> {
        let queue_closed = Fault::retry(Status::ABORTED_SQ_DELETION);
        let Some(queue) = self.queues.at_mut(slot) else {
            return Err(queue_closed);
        };
        if queue.state != QueueState::Live {
            return Err(queue_closed);
        }
        if is_authentication(sqe) {
            return self.admit_authentication(slot, sqe);
        }
        if queue.gate.is_unauthenticated() {
            return Err(AUTHENTICATION_REQUIRED);
        }
        let Some(controller) = self.controllers.at_mut(controller_slot) else {
            return Err(queue_closed);
        };
        let context = AdminContext {
            target: &self.target,
            view: &self.view,
            counters: &self.counters,
            now,
        };
        controller.shared.note_command(now);
        let step = controller.admit(tag, sqe, queue.data, &context);
        let awaits_event = controller.events.has_requests();
        controller.shared.set_awaits_event(awaits_event);
        let step = step?;
        match step {
            AdminStep::Complete(result) => {
                let admission = succeed(queue, sqe, result);
                self.arm_timers_and_report(controller_slot);
                Ok(admission)
            }
            AdminStep::Work(work) => {
                queue.outstanding_commands += 1;
                Ok(Admission::Work(work))
            }
            AdminStep::Held => Ok(Admission::Held),
            AdminStep::Changed(effect) => {
                let admission = succeed(queue, sqe, 0);
                self.arm_timers_and_report(controller_slot);
                self.carry_out(controller_slot, effect, now);
                Ok(admission)
            }
            AdminStep::FlushAll => self.flush_for_command(slot, tag, sqe, now),
            AdminStep::SetPersistence(change) => self.set_persistence(slot, tag, sqe, change, now),
            AdminStep::Abort { sqid, command_id } => {
                if !controller.permits_abort(self.turn) {
                    return Err(Fault::retry(Status::ABORT_LIMIT_EXCEEDED).at(byte::OPCODE));
                }
                let aborted = self.abort(controller_slot, sqid, command_id);
                let Some(queue) = self.queues.at_mut(slot) else {
                    return Err(queue_closed);
                };
                let result = nvme_spec::command::AbortResult::new().with_not_aborted(!aborted);
                Ok(succeed(queue, sqe, u64::from(result.into_bits())))
            }
        }
    }

    /// Arms a controller's timers, and has its pending events reported. Commands of the same turn
    /// may still read the log pages of these events; their responses are sent first.
    pub(super) fn arm_timers_and_report(&mut self, controller_slot: u32) {
        self.set_timer(controller_slot);
        if !self.reporting.contains(&controller_slot) {
            self.reporting.push(controller_slot);
        }
    }

    /// Starts a command that succeeds after every volatile cache of the subsystem is flushed.
    fn flush_for_command(
        &mut self,
        slot: u32,
        tag: u64,
        sqe: &Sqe,
        now: Nanos,
    ) -> Result<Admission, Fault> {
        self.add_admin_execution(slot)?;
        let work = IoWork {
            operation: IoOperation::FlushAll,
            device: 0,
            blocks: 0,
            lba: 0,
            bytes: 0,
            nsid: nvme_spec::NSID_BROADCAST,
            epoch: self.view.epoch,
        };
        let command = Command {
            queue: slot,
            id: sqe.cid.get(),
            tag,
        };
        match self.start_command(command, work, None, now, now) {
            Some(completed) => Ok(Admission::Respond(completed.response)),
            None => Ok(Admission::Held),
        }
    }

    /// Counts an admin command that needs an execution slot.
    pub(super) fn add_admin_execution(&mut self, slot: u32) -> Result<(), Fault> {
        if let Some(queue) = self.queues.at_mut(slot) {
            // The slot quota of an admin queue, which does not depend on its depth.
            if queue.executing >= u32::from(ADMIN_EXECUTIONS_MAX.min(queue.depth)) {
                return Err(Fault::retry(Status::COMMAND_INTERRUPTED).at(byte::OPCODE));
            }
            queue.outstanding_commands += 1;
        }
        Ok(())
    }

    /// Completes a checked command without executing it, because its data could not be moved: for a
    /// digest error, [`Status::TRANSIENT_TRANSPORT_ERROR`].
    pub fn reject(&mut self, queue: QueueId, work: Work, status: Status) -> Cqe {
        if self.queues.get(queue.slot, queue.generation).is_none() {
            return self.stale(work.command_id);
        }
        let Work {
            kind, command_id, ..
        } = work;
        let failed = match &kind {
            WorkKind::Io(io) => FailedCommand::of_work(io, command_id),
            WorkKind::Fused(work) => {
                self.reject_part(work);
                FailedCommand::of_work(&work.io, command_id)
            }
            WorkKind::Copy(work) => FailedCommand::of_work(&work.io, command_id),
            WorkKind::Reservation(work) => FailedCommand::of_work(&work.io(), command_id),
            WorkKind::Authentication(_) => FailedCommand {
                opcode: AdminOpcode::FABRICS.0,
                command_id,
                nsid: 0,
                lba: 0,
            },
            WorkKind::Admin(admin) => FailedCommand {
                opcode: admin.opcode.0,
                command_id,
                nsid: admin.nsid,
                lba: 0,
            },
        };
        let fault = Fault {
            status,
            location: crate::status::LOCATION_NONE,
        };
        let response = self.fail(queue.slot, &failed, fault);
        self.command_completed(queue.slot);
        response
    }
}

/// Base 2.1 §5.1.25.1.14, CDFE: a format of Copy that the host has not enabled is not supported.
fn check_copy_format(queue: &Queue, sqe: &Sqe) -> Result<(), Fault> {
    let is_enabled = sqe.io_opcode() != IoOpcode::COPY
        || !sqe.copy().control.format().names_namespaces()
        || queue.shared.copies_namespaces();
    match is_enabled {
        true => Ok(()),
        false => Err(Fault::field(byte::CDW12)),
    }
}

/// The work of a Copy, with a lease for as many blocks as it may copy.
fn admit_copy(plan: Plan, context: &IoContext<'_>, command_id: u16, now: Nanos) -> Work {
    let io = plan.work;
    let namespace = context.subsystem.namespace(io.nsid);
    let blocks = namespace.map_or(0, |it| it.copy_max_blocks << it.block_shift);
    let mut work = plan.admit(command_id, false, now);
    work.kind = WorkKind::Copy(CopyWork {
        io,
        lease_bytes: blocks.max(io.bytes),
    });
    work
}

/// Whether the device of a read can lend its memory.
#[inline(always)]
fn can_lend(devices: &DeviceSet, work: &IoWork) -> bool {
    let device = usize::from(work.device);
    work.operation.is_read() && devices.can_borrow_read(device, work.lba, work.blocks)
}

/// Checks a Read, Write or Compare of a live queue.
#[inline(always)]
fn plan_transfer(queue: &Queue, view: &TargetView, sqe: &Sqe) -> Result<Plan, Fault> {
    let context = context(queue, view)?;
    let plan = match check_transfer(sqe, &context) {
        Ok(plan) => plan,
        Err(fault) => return Err(gate::refusal(queue, fault)),
    };
    if !gate::is_open(queue) {
        let access = plan.work.operation.access();
        gate::admit_restricted(queue, context.subsystem, plan.work.nsid, access)?;
    }
    Ok(plan)
}

/// The context against which I/O commands of a live queue are checked.
#[inline]
pub(super) fn context<'a>(queue: &Queue, view: &'a TargetView) -> Result<IoContext<'a>, Fault> {
    let Some(subsystem) = queue.subsystem(view) else {
        return Err(Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID));
    };
    Ok(IoContext {
        subsystem,
        epoch: view.epoch,
        write_through: queue.shared.write_through(),
        data: queue.data,
    })
}

/// The response to a command that succeeded immediately.
fn succeed(queue: &mut Queue, sqe: &Sqe, result: u64) -> Admission {
    Admission::Respond(with_result(
        queue.respond(sqe.cid.get(), Status::SUCCESS),
        result,
    ))
}
