//! Executes commands: I/O commands by one or several device requests, admin commands by the
//! controller.

use block::{Completion, DeviceError, Operation, Request, Submitted};
use hugemem::{Data, Lease};
use nvme_spec::Status;
use nvme_spec::command::DatasetRange;
use reactors::Nanos;
use zerocopy::FromBytes;

use super::executions::{Command, DeviceTag, Execution, ExecutionState, Owner};
use super::gate::{self, GateDecision};
use super::queue::{Queue, QueueEvent, QueueState};
use super::{FailedCommand, TargetCore};
use crate::admin::AdminWork;
use crate::counters::IoCounters;
use crate::interface::{CloseReason, Completed, QueueId, Work, WorkKind};
use crate::io::{FusedPart, IoOperation, IoWork};
use crate::status::{Fault, byte, from_device};

impl TargetCore {
    /// Executes a checked command. `data` is a lease of exactly [`Work::bytes`] bytes, filled for
    /// [`Direction::FromHost`](crate::Direction::FromHost), or `None` when
    /// [`Work::needs_lease`] is false. Returns the completion if there is no wait; otherwise
    /// [`next_completion`](Self::next_completion) returns it later.
    #[inline]
    pub fn execute(
        &mut self,
        queue: QueueId,
        tag: u64,
        work: Work,
        data: Option<Lease>,
        now: Nanos,
    ) -> Option<Completed> {
        if let WorkKind::Io(io) = &work.kind
            && io.operation == IoOperation::Read
            && data.is_none()
            && let Some(done) = self.execute_borrowed(queue, tag, work.command_id, io, now)
        {
            return Some(done);
        }
        self.execute_any(queue, tag, work, data, now)
    }

    #[inline(never)]
    fn execute_any(
        &mut self,
        queue: QueueId,
        tag: u64,
        work: Work,
        data: Option<Lease>,
        now: Nanos,
    ) -> Option<Completed> {
        self.count_fetch(queue, &work, now);
        let Work {
            kind,
            bytes,
            command_id,
            needs_lease,
            received_at,
            ..
        } = work;
        if self.queues.get(queue.slot, queue.generation).is_none() {
            let response = self.stale(command_id);
            return Some(Completed::without_data(tag, response));
        }
        let command = Command {
            queue: queue.slot,
            id: command_id,
            tag,
        };
        let lease_fits = match &data {
            Some(lease) => lease.len() == bytes as usize,
            None => !needs_lease,
        };
        debug_assert!(lease_fits, "the lease holds exactly the work's bytes");
        match kind {
            WorkKind::Io(io) if lease_fits => self.execute_io(command, io, data, received_at, now),
            other => {
                let data = if lease_fits { data } else { None };
                self.execute_other(command, other, data, received_at, now)
            }
        }
    }

    /// Executes what accesses no blocks, and refuses work without its lease.
    #[cold]
    #[inline(never)]
    fn execute_other(
        &mut self,
        command: Command,
        kind: WorkKind,
        data: Option<Lease>,
        received_at: Nanos,
        now: Nanos,
    ) -> Option<Completed> {
        match (kind, data) {
            (WorkKind::Reservation(work), Some(data)) => {
                self.execute_reservation(command, work, data, received_at, now)
            }
            (WorkKind::Fused(work), Some(data)) => {
                self.execute_fused(command, &work, data, received_at, now)
            }
            (WorkKind::Copy(work), Some(list)) => {
                self.execute_copy(command, &work, list, received_at, now)
            }
            (WorkKind::Admin(admin), Some(data)) => {
                Some(self.execute_admin(command, &admin, data, now))
            }
            (WorkKind::Authentication(work), Some(data)) => {
                self.execute_authentication(command, work, data, now)
            }
            (kind, _) => {
                if let WorkKind::Fused(work) = &kind {
                    self.reject_part(work);
                }
                let failed = FailedCommand {
                    opcode: 0,
                    command_id: command.id,
                    nsid: 0,
                    lba: 0,
                };
                let fault = Fault::retry(Status::INTERNAL_ERROR);
                Some(self.fail_command(command, &failed, fault))
            }
        }
    }

    #[inline]
    pub(super) fn execute_io(
        &mut self,
        command: Command,
        work: IoWork,
        data: Option<Lease>,
        received_at: Nanos,
        now: Nanos,
    ) -> Option<Completed> {
        if self.devices.allow_device_memory(1 << work.device) {
            self.note_host_path(command.queue, &work);
        }
        match self.pass_admitted(command.queue, &work) {
            GateDecision::Open if !self.exclusions.hold(&work) => {
                self.start_command(command, work, data, received_at, now)
            }
            GateDecision::Open | GateDecision::Held => {
                self.hold_command(command, work, data, received_at, now)
            }
            GateDecision::Refused(fault) => {
                let failed = FailedCommand::of_work(&work, command.id);
                Some(self.fail_command(command, &failed, fault))
            }
        }
    }

    /// Asks the gate about an admitted command.
    #[inline(always)]
    pub(super) fn pass_admitted(&self, slot: u32, work: &IoWork) -> GateDecision {
        let decision = self
            .queues
            .at(slot)
            .map(|queue| gate::pass(queue, &self.view, work));
        decision.unwrap_or(GateDecision::Refused(gate::CLOSED))
    }

    /// Starts the execution of a command that was received in the turn of `received_at`. Returns
    /// its completion if there is no wait.
    #[inline]
    pub(super) fn start_command(
        &mut self,
        command: Command,
        work: IoWork,
        data: Option<Lease>,
        received_at: Nanos,
        now: Nanos,
    ) -> Option<Completed> {
        let execution = Execution::new(Owner::Command(command), work, received_at, now);
        let Some(device_tag) = self.executions.insert(execution) else {
            // Each queue has its slot quota, so the host exceeds its queue size.
            let failed = FailedCommand::of_work(&work, command.id);
            let fault = Fault::retry(Status::COMMAND_INTERRUPTED);
            return Some(self.fail_command(command, &failed, fault));
        };
        if let Some(queue) = self.queues.at_mut(command.queue) {
            queue.executing += 1;
        }
        self.trace_start(command.queue, &work, command.id, now);
        let over = self.begin(device_tag, &work, data);
        let (slot, completed) = self.finish(device_tag, over?, None)?;
        self.command_completed(slot);
        Some(completed)
    }

    /// Submits the first device request of an execution. Returns the result if the execution is
    /// over.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        tag: DeviceTag,
        work: &IoWork,
        data: Option<Lease>,
    ) -> Option<Result<(), Fault>> {
        match self.first_request(tag, work, data) {
            Ok(Some(request)) => self.submit(tag, work.device, request).err().map(Err),
            Ok(None) => self.proceed(tag),
            Err(fault) => Some(Err(fault)),
        }
    }

    /// The device request of an execution with exactly one; `None` if it has several or none.
    #[inline(always)]
    fn first_request(
        &mut self,
        tag: DeviceTag,
        work: &IoWork,
        data: Option<Lease>,
    ) -> Result<Option<Request>, Fault> {
        let (operation, data) = match work.operation {
            // The flush that may follow covers all data that the read returned.
            IoOperation::Read | IoOperation::DurableRead | IoOperation::Verify { .. } => {
                (Operation::Read, data)
            }
            IoOperation::Write { .. } if work.blocks == 0 => {
                self.devices.count_placed_write(usize::from(work.device));
                return Ok(None);
            }
            IoOperation::Write { fua } | IoOperation::Fused(FusedPart::Write { fua }) => {
                (Operation::Write { fua }, data)
            }
            IoOperation::Compare | IoOperation::Fused(FusedPart::Compare) => {
                (Operation::Compare, data)
            }
            IoOperation::Flush => (Operation::Flush, None),
            IoOperation::WriteZeroes { fua, deallocate } => {
                (Operation::WriteZeroes { fua, deallocate }, None)
            }
            IoOperation::FlushAll => {
                self.set_flush_targets(tag);
                return Ok(None);
            }
            IoOperation::Copy { ranges, .. } => {
                let list = data.ok_or(Fault::retry(Status::INTERNAL_ERROR))?;
                self.begin_copy(tag, work, list, ranges);
                return Ok(None);
            }
            // Submitted in pieces.
            IoOperation::ReadInDevice | IoOperation::WriteInDevice { .. } => return Ok(None),
            // Only the registry's table executes them.
            IoOperation::Reserve(_) => return Err(Fault::retry(Status::INTERNAL_ERROR)),
            IoOperation::Deallocate { ranges } => {
                let lease = data.ok_or(Fault::retry(Status::INTERNAL_ERROR))?;
                self.check_ranges(tag, &lease, ranges)?;
                self.executions.extra(tag.slot).data = Some(lease.into());
                return Ok(None);
            }
        };
        let flush = operation == Operation::Flush;
        let (lba, blocks) = if flush {
            (0, 0)
        } else {
            (work.lba, work.blocks)
        };
        Ok(Some(Request {
            tag: tag.into_bits(),
            operation,
            lba,
            blocks,
            data,
        }))
    }

    /// NVM 1.1 §3.3.3: no range is deallocated if one is outside of the namespace.
    fn check_ranges(&self, tag: DeviceTag, list: &[u8], ranges: u16) -> Result<(), Fault> {
        let blocks = self.namespace_blocks(tag).unwrap_or(0);
        let fits = |range: &DatasetRange| {
            let end = range.slba.get().checked_add(u64::from(range.length.get()));
            end.is_some_and(|end| end <= blocks)
        };
        match <[DatasetRange]>::ref_from_prefix_with_elems(list, usize::from(ranges)) {
            Ok((ranges, _)) if ranges.iter().all(fits) => Ok(()),
            Ok(_) => Err(Fault::new(Status::LBA_OUT_OF_RANGE)),
            Err(_) => Err(Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL)),
        }
    }

    /// Size of the namespace of an execution's command.
    fn namespace_blocks(&self, tag: DeviceTag) -> Option<u64> {
        let execution = self.executions.get(tag)?;
        let Owner::Command(command) = execution.owner else {
            return None;
        };
        let subsystem = self.queues.at(command.queue)?.subsystem(&self.view)?;
        Some(subsystem.namespace(execution.work.nsid)?.block_count)
    }

    /// Sets the devices that a Flush of all namespaces has to flush.
    fn set_flush_targets(&mut self, tag: DeviceTag) {
        let Some(execution) = self.executions.get(tag) else {
            return;
        };
        let queue = match execution.owner {
            Owner::Command(command) => self.queues.at(command.queue),
            Owner::Shutdown { .. } => None,
        };
        if let Some(queue) = queue {
            let subsystem = queue.subsystem(&self.view);
            let devices = subsystem.map_or(0, |view| view.volatile_devices);
            self.executions.extra(tag.slot).devices = devices;
        }
    }

    /// Submits the next device request of an execution. Returns the result if the execution is
    /// over.
    pub(super) fn proceed(&mut self, tag: DeviceTag) -> Option<Result<(), Fault>> {
        if self.is_in_device(tag) {
            return self.submit_pieces(tag, false);
        }
        while let Some((device, request)) = self.next_request(tag) {
            if is_of_copy_in_device(&request) {
                if self.submit_in_device(tag, device, request) {
                    return None;
                }
                continue;
            }
            let Err(fault) = self.submit(tag, device, request) else {
                return None;
            };
            if let Some(fault) = self.give_up(tag, fault) {
                return Some(Err(fault));
            }
        }
        let failed = self.executions.extra(tag.slot).failed;
        Some(failed.map_or(Ok(()), Err))
    }

    /// Handles a failed step. Returns the fault if the execution ends with it. A flush of several
    /// devices continues with the others.
    fn give_up(&mut self, tag: DeviceTag, fault: Fault) -> Option<Fault> {
        let execution = self.executions.get_mut(tag)?;
        if execution.work.operation != IoOperation::FlushAll {
            return Some(fault);
        }
        self.executions.extra(tag.slot).failed.get_or_insert(fault);
        None
    }

    /// The next device request of an execution with several, and its device; `None` after the last.
    fn next_request(&mut self, tag: DeviceTag) -> Option<(u8, Request)> {
        let execution = self.executions.get_mut(tag)?;
        let device = execution.work.device;
        let bits = tag.into_bits();
        let flush = Request {
            tag: bits,
            operation: Operation::Flush,
            lba: 0,
            blocks: 0,
            data: None,
        };
        match execution.work.operation {
            IoOperation::Read
            | IoOperation::Write { .. }
            | IoOperation::ReadInDevice
            | IoOperation::WriteInDevice { .. }
            | IoOperation::Compare
            | IoOperation::Fused(_)
            | IoOperation::Flush
            | IoOperation::Reserve(_)
            | IoOperation::WriteZeroes { .. }
            | IoOperation::Verify { durable: false } => None,
            IoOperation::DurableRead | IoOperation::Verify { durable: true } => {
                if execution.step > 0 {
                    return None;
                }
                execution.step = 1;
                Some((device, flush))
            }
            IoOperation::FlushAll => {
                let devices = &mut self.executions.extra(tag.slot).devices;
                *devices &= self.devices.attached();
                if *devices == 0 {
                    return None;
                }
                // At most 127.
                let device = devices.trailing_zeros() as u8;
                *devices &= *devices - 1;
                self.executions.get_mut(tag)?.work.device = device;
                Some((device, flush))
            }
            IoOperation::Copy { .. } => self.next_of_copy(tag),
            IoOperation::Deallocate { ranges } => {
                let mut step = execution.step;
                let lease = self.executions.extra(tag.slot).data.as_deref()?;
                let (list, _) =
                    <[DatasetRange]>::ref_from_prefix_with_elems(lease, usize::from(ranges))
                        .ok()?;
                let next = list.get(usize::from(step)..)?.iter().find(|range| {
                    step += 1;
                    range.length.get() > 0
                })?;
                let (lba, blocks) = (next.slba.get(), next.length.get());
                self.executions.get_mut(tag)?.step = step;
                let operation = Operation::Deallocate;
                let request = Request {
                    tag: bits,
                    operation,
                    lba,
                    blocks,
                    data: None,
                };
                Some((device, request))
            }
        }
    }

    /// Submits a request to its device, or queues it for the device. `Err`: the execution fails.
    #[inline]
    fn submit(&mut self, tag: DeviceTag, device: u8, request: Request) -> Result<(), Fault> {
        let Some(execution) = self.executions.get_mut(tag) else {
            return Ok(());
        };
        let device = usize::from(device);
        match self.devices.submit(self.client, device, request) {
            Ok(Submitted::Taken) => Ok(()),
            Ok(Submitted::Waiting(waiting)) => {
                self.counters.deferred.add(1);
                execution.waiting = Some(waiting);
                Ok(())
            }
            Err(error) => Err(self.device_fault(tag, error)),
        }
    }

    /// The fault of a device's error. An internal one is also an event (Base 2.1 §5.1.2.1).
    #[cold]
    pub(super) fn device_fault(&mut self, tag: DeviceTag, error: DeviceError) -> Fault {
        if error == DeviceError::Internal
            && let Some(execution) = self.executions.get_mut(tag)
            && let Owner::Command(command) = execution.owner
            && let Some(queue) = self.queues.at(command.queue)
        {
            queue.shared.note_internal_error();
            self.target.notify(queue.shared.identity.admin_reactor);
        }
        Fault {
            status: from_device(error),
            location: crate::status::LOCATION_NONE,
        }
    }

    /// Handles a device completion: submits the next step, or completes the command.
    #[inline]
    pub(super) fn device_done(&mut self, mut completion: Completion) {
        let tag = DeviceTag::from_bits(completion.tag);
        if completion.result.is_err() {
            self.keep_copy_list(tag, &mut completion.data);
        }
        let Some(execution) = self.executions.get_mut(tag) else {
            self.counters.stale_completions.add(1);
            return;
        };
        // The device never took the request.
        if let Some(waiting) = execution.waiting
            && (self.devices).is_waiting(self.client, waiting, tag.into_bits())
        {
            self.counters.stale_completions.add(1);
            return;
        }
        match (execution.state, completion.result) {
            (ExecutionState::Submitted, Ok(())) => {
                if execution.work.operation.is_single() {
                    self.finish_later(tag, Ok(()), completion.data);
                } else if execution.work.operation.is_in_device() {
                    self.piece_succeeded(tag);
                } else {
                    self.step_done(tag, completion.data);
                }
            }
            (ExecutionState::Submitted, Err(error)) => self.device_failed(tag, error),
            (ExecutionState::Orphan, _) => self.finish_orphan(tag),
            // No device has the request yet.
            (ExecutionState::Fenced | ExecutionState::Paired, _) => {
                self.counters.stale_completions.add(1);
            }
        }
    }

    /// Continues an execution with several steps after one of them.
    fn step_done(&mut self, tag: DeviceTag, data: Option<Data>) {
        if self.is_fused(tag) {
            return self.part_done(tag, Ok(()));
        }
        if data.is_some() {
            self.executions.extra(tag.slot).data = data;
        }
        if let Some(result) = self.proceed(tag) {
            let data = self.executions.extra(tag.slot).data.take();
            self.finish_later(tag, result, data);
        }
    }

    fn is_fused(&self, tag: DeviceTag) -> bool {
        let operation = self.executions.get(tag).map(|it| it.work.operation);
        matches!(operation, Some(IoOperation::Fused(_)))
    }

    /// Ends the requests of an execution whose device was removed.
    pub(super) fn device_lost(&mut self, tag: DeviceTag, error: DeviceError) {
        self.lose_device_data(tag);
        match self.executions.get(tag).map(|execution| execution.state) {
            Some(ExecutionState::Submitted) => self.device_failed(tag, error),
            Some(ExecutionState::Orphan) => self.finish_orphan(tag),
            Some(ExecutionState::Fenced | ExecutionState::Paired) | None => {}
        }
    }

    /// Handles a device error.
    #[cold]
    fn device_failed(&mut self, tag: DeviceTag, error: DeviceError) {
        if self.is_in_device(tag) {
            return self.piece_done(tag, Err(error));
        }
        if self.restart_copy(tag, error) {
            if let Some(result) = self.proceed(tag) {
                self.finish_later(tag, result, None);
            }
            return;
        }
        let fault = match error {
            DeviceError::Aborted => Fault::retry(self.cancelled_status(tag)),
            _ => self.device_fault(tag, error),
        };
        if self.is_fused(tag) {
            return self.part_done(tag, Err(fault));
        }
        let over = match self.give_up(tag, fault) {
            Some(fault) => Some(Err(fault)),
            None => self.proceed(tag),
        };
        if let Some(result) = over {
            self.finish_later(tag, result, None);
        }
    }

    /// Ends an execution, and queues its completion for the transport.
    #[inline]
    pub(super) fn finish_later(
        &mut self,
        tag: DeviceTag,
        result: Result<(), Fault>,
        data: Option<Data>,
    ) {
        if let Some((slot, completed)) = self.finish(tag, result, data) {
            // This response is sent before that of a Disconnect that waits for it.
            self.push_completion(slot, completed);
            self.command_completed(slot);
        }
    }

    /// Ends an execution: frees its slot, counts it, and makes the completion of its command. The
    /// caller calls [`command_completed`](Self::command_completed) when it passes the completion
    /// on.
    #[inline]
    pub(super) fn finish(
        &mut self,
        tag: DeviceTag,
        result: Result<(), Fault>,
        data: Option<Data>,
    ) -> Option<(u32, Completed)> {
        self.finish_here(tag, result, data)
    }

    /// The same, always inlined: the completion is made where it is needed.
    #[inline(always)]
    pub(super) fn finish_here(
        &mut self,
        tag: DeviceTag,
        result: Result<(), Fault>,
        data: Option<Data>,
    ) -> Option<(u32, Completed)> {
        let execution = self.executions.remove(tag)?;
        let work = execution.work;
        let command = match execution.owner {
            Owner::Command(command) => command,
            Owner::Shutdown {
                controller,
                generation,
            } => {
                if self.controllers.get(controller, generation).is_some() {
                    self.flushed_for_shutdown(controller, result);
                }
                return None;
            }
        };
        let Command {
            queue: slot,
            id,
            tag,
        } = command;
        let success = result.is_ok();
        self.count(slot, &work, success);
        let timing = self.time(&execution, self.queues.at(slot)?, id);
        let queue = self.queues.at_mut(slot)?;
        queue.executing -= 1;
        let response = match result {
            Ok(()) => queue.respond(id, Status::SUCCESS),
            Err(fault) => self.fail(slot, &FailedCommand::of_work(&work, id), fault),
        };
        let to_host = success && work.operation.is_read();
        let (data, bytes) = if to_host {
            (data, work.bytes)
        } else {
            (None, 0)
        };
        Some((
            slot,
            Completed {
                tag,
                response,
                data,
                bytes,
                timing,
            },
        ))
    }

    /// Counts a finished I/O command for its queue and its device.
    #[inline]
    fn count(&self, slot: u32, work: &IoWork, success: bool) {
        let device = &self.counters.devices[usize::from(work.device)];
        count(device, work, success);
        if let Some(queue) = self.counters.queue_slots.get(slot as usize) {
            count(queue, work, success);
        }
    }

    /// Ends an execution whose queue's connection is closed.
    pub(super) fn finish_orphan(&mut self, tag: DeviceTag) {
        if self.has_more_pieces(tag) {
            return;
        }
        self.complete_in_device(tag);
        let Some(execution) = self.executions.remove(tag) else {
            return;
        };
        let Owner::Command(Command { queue: slot, .. }) = execution.owner else {
            return;
        };
        if let IoOperation::Fused(part) = execution.work.operation {
            self.part_aborted(tag.slot, part);
        }
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        queue.executing -= 1;
        if queue.executing == 0 && queue.state == QueueState::Closed {
            self.release_queue(slot);
        }
    }

    /// Counts the response to a command. The last one lets a waiting Disconnect complete.
    #[inline]
    pub(super) fn command_completed(&mut self, slot: u32) {
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        debug_assert!(queue.outstanding_commands > 0, "an answer has a command");
        queue.outstanding_commands = queue.outstanding_commands.saturating_sub(1);
        if queue.outstanding_commands == 0 && queue.state != QueueState::Live {
            self.complete_disconnect(slot);
        }
    }

    /// Answers a Disconnect that waited for the last command before it (Base 2.1 §6.4).
    #[cold]
    fn complete_disconnect(&mut self, slot: u32) {
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        let QueueState::Disconnecting { tag, command_id } = queue.state else {
            return;
        };
        let response = queue.respond(command_id, Status::SUCCESS);
        queue.apply(QueueEvent::AllCompleted);
        self.push_completion(slot, Completed::without_data(tag, response));
        self.push_close(slot, CloseReason::Disconnected);
    }

    /// Queues a completion for its transport. Other commands of the queue may complete inline before
    /// the transport takes it, so its SQHD is set when it is taken.
    #[inline]
    pub(super) fn push_completion(&mut self, slot: u32, completed: Completed) {
        self.push_completion_here(slot, completed);
    }

    /// The same, always inlined.
    #[inline(always)]
    pub(super) fn push_completion_here(&mut self, slot: u32, completed: Completed) {
        let Some((queue, generation)) = self.queues.entry_mut(slot) else {
            return;
        };
        queue.move_head_back();
        if let Some(inbox) = self.inboxes.get_mut(usize::from(queue.transport)) {
            inbox
                .completions
                .push_back((QueueId { slot, generation }, completed));
        }
    }

    /// The completion of a command that fails before it is executed.
    #[cold]
    pub(super) fn fail_command(
        &mut self,
        command: Command,
        failed: &FailedCommand,
        fault: Fault,
    ) -> Completed {
        let response = self.fail(command.queue, failed, fault);
        self.command_completed(command.queue);
        Completed::without_data(command.tag, response)
    }

    fn execute_admin(
        &mut self,
        command: Command,
        work: &AdminWork,
        mut data: Lease,
        now: Nanos,
    ) -> Completed {
        let controller_slot = self.queues.at(command.queue).and_then(Queue::controller);
        let found = controller_slot.and_then(|slot| self.controller(slot, now));
        let result = match found {
            Some((controller, context)) => {
                let executed = controller.execute(work, &mut data, &context);
                executed.map(|()| data)
            }
            None => Err(Fault::retry(Status::ABORTED_SQ_DELETION)),
        };
        let completed = self.complete_admin(command, work, result);
        // Its events follow its response, which the transport sends first.
        if let Some(controller_slot) = controller_slot {
            self.arm_timers_and_report(controller_slot);
        }
        completed
    }

    fn complete_admin(
        &mut self,
        command: Command,
        work: &AdminWork,
        result: Result<Lease, Fault>,
    ) -> Completed {
        let Command {
            queue: slot,
            id: command_id,
            tag,
        } = command;
        let queue_closed = Fault::retry(Status::ABORTED_SQ_DELETION);
        let queue = self.queues.at_mut(slot).ok_or(queue_closed);
        let done = result.and_then(|data| {
            let response = queue?.respond(command_id, Status::SUCCESS);
            Ok((data, response))
        });
        let (data, response) = match done {
            Ok(done) => done,
            Err(fault) => {
                let failed = FailedCommand {
                    opcode: work.opcode.0,
                    command_id,
                    nsid: work.nsid,
                    lba: 0,
                };
                return self.fail_command(command, &failed, fault);
            }
        };
        self.command_completed(slot);
        if !work.is_to_host() {
            return Completed::without_data(tag, response);
        }
        Completed::with_lease(tag, response, data)
    }
}

/// Whether the data of a later request of an execution is in memory of a device: a read or a write of
/// a Copy that has none.
#[inline]
fn is_of_copy_in_device(request: &Request) -> bool {
    let moves_data = matches!(request.operation, Operation::Read | Operation::Write { .. });
    moves_data && request.data.is_none()
}

#[inline]
fn count(counters: &IoCounters, work: &IoWork, success: bool) {
    if !success {
        counters.errors.add(1);
        return;
    }
    match work.operation {
        IoOperation::Read | IoOperation::DurableRead | IoOperation::ReadInDevice => {
            counters.count_read(work.bytes);
        }
        IoOperation::Write { .. }
        | IoOperation::WriteInDevice { .. }
        | IoOperation::Fused(FusedPart::Write { .. }) => {
            counters.count_write(work.bytes);
        }
        IoOperation::Compare
        | IoOperation::Fused(FusedPart::Compare)
        | IoOperation::Verify { .. }
        | IoOperation::Flush
        | IoOperation::FlushAll
        | IoOperation::Reserve(_)
        | IoOperation::WriteZeroes { .. }
        | IoOperation::Copy { .. }
        | IoOperation::Deallocate { .. } => counters.others.add(1),
    }
}
