//! Reads and writes whose data stays in memory of their device, such as a drive's controller memory
//! buffer, and does not enter the arena. The transport moves it between that memory and the host.
//!
//! The transport takes a lease for the whole request before it moves anything, so that no request
//! waits for memory while it holds some. The device gets one request for each slice of it, all at
//! once. A piece that the device does not take yet is submitted as soon as it has room, before the
//! requests that wait for the device: there are few of them, and they hold memory.
//!
//! A request whose memory has ended, or of which a piece fails, fails with a status that makes the
//! host send it again. The device's memory is then not used for [`SUSPENSION`], so that the repeated
//! command takes the way through the arena.

use block::{DeviceError, NoDeviceMemory, Operation, Request};
use hugemem::{DeviceLease, DeviceMemory};
use reactors::Nanos;

use super::copying::DeviceData;
use super::executions::{Command, DeviceTag, Execution, ExecutionState, Owner};
use super::gate::GateDecision;
use super::{FailedCommand, TRANSFERS_MAX, TargetCore};
use crate::counters::TransferReason;
use crate::interface::{Completed, KEYED_BLOCKS_MAX, QueueId, TransportId, Work, WorkKind};
use crate::io::{IoOperation, IoWork};
use crate::status::{Fault, LOCATION_NONE, from_device};

/// The smallest read or write whose data goes through memory of its device, in bytes, unless
/// [`TargetCore::set_device_transfer_bytes_min`] sets another one.
pub const DEVICE_TRANSFER_BYTES_MIN: u32 = 128 << 10;

/// Most slices of one request, and most work requests that move its data.
pub const DEVICE_PIECES_MAX: usize = KEYED_BLOCKS_MAX;

/// Time for which a device's memory is not used after a request failed there.
const SUSPENSION: Nanos = Nanos::from_secs(1);

/// Interval of the tries of pieces that a device does not take, if nothing else wakes the reactor.
pub(super) const RETRY_INTERVAL: Nanos = Nanos::from_micros(50);

/// The fault of a request whose data was lost in memory of a device, or has none.
const LOST: Fault = Fault {
    status: from_device(DeviceError::Interrupted),
    location: LOCATION_NONE,
};

/// What the core knows about requests whose data is in memory of devices.
pub(super) struct Transfers {
    /// The smallest request, in bytes.
    bytes_min: u32,
    /// Executions with pieces that are not submitted, oldest first. Some may have ended meanwhile.
    unsubmitted: Vec<DeviceTag>,
    /// Devices whose memory is not used.
    suspended: u128,
    /// When the last suspension ends.
    resumes_at: Nanos,
}

impl Transfers {
    pub(super) fn new() -> Self {
        Self {
            bytes_min: DEVICE_TRANSFER_BYTES_MIN,
            unsubmitted: Vec::with_capacity(TRANSFERS_MAX),
            suspended: 0,
            resumes_at: Nanos::ZERO,
        }
    }

    pub(super) fn has_unsubmitted(&self) -> bool {
        !self.unsubmitted.is_empty()
    }
}

impl TargetCore {
    /// Sets the smallest read or write whose data goes through memory of its device, in bytes. For
    /// simulations, whose requests are small.
    pub fn set_device_transfer_bytes_min(&mut self, bytes: u32) {
        self.transfers.bytes_min = bytes;
    }

    /// Whether a command may have its data in memory of its device: [`take_device_memory`](Self::take_device_memory).
    #[inline]
    #[must_use]
    pub fn may_use_device_memory(&self, work: &Work) -> bool {
        match &work.kind {
            WorkKind::Io(io) => {
                work.bytes >= self.transfers.bytes_min
                    && self.devices.allow_device_memory(1 << io.device)
            }
            _ => false,
        }
    }

    /// Takes memory of its device for the data of a command, which then has to be executed by
    /// [`execute_in_device`](Self::execute_in_device) with this memory, or rejected. `None`: it has to
    /// take the way through the arena, which is counted. `blocks`: number of blocks of the host's
    /// memory. `check`: why the transport does not access a memory for this host, if so.
    #[inline(never)]
    pub fn take_device_memory(
        &mut self,
        work: &mut Work,
        blocks: usize,
        check: impl FnOnce(&DeviceMemory) -> Result<(), TransferReason>,
    ) -> Option<DeviceLease> {
        let WorkKind::Io(io) = &mut work.kind else {
            return None;
        };
        let operation = match io.operation {
            IoOperation::Read => Ok(IoOperation::ReadInDevice),
            IoOperation::Write { fua } => Ok(IoOperation::WriteInDevice { fua }),
            _ => Err(TransferReason::Command),
        };
        let place = usize::from(io.device);
        let is_suspended = self.transfers.suspended & 1 << io.device != 0;
        let taken = operation.and_then(|operation| {
            if is_suspended && self.polled_at < self.transfers.resumes_at {
                return Err(TransferReason::Suspended);
            }
            let size = (io.blocks, io.bytes);
            let most = DEVICE_PIECES_MAX as u32;
            let mut checked = Ok(());
            let is_usable = |memory: &DeviceMemory| {
                checked = check(memory);
                checked.is_ok()
            };
            let taken = self.devices.take_own_memory(place, size, most, is_usable);
            checked?;
            let lease = taken.map_err(|why| match why {
                NoDeviceMemory::Unreachable | NoDeviceMemory::Unusable => TransferReason::NoMemory,
                NoDeviceMemory::TooSmall => TransferReason::TooSmall,
                NoDeviceMemory::Exhausted => TransferReason::Exhausted,
            })?;
            // A work request is within a slice and within a block of the host.
            let slices = lease.slices();
            match blocks + slices - 1 > DEVICE_PIECES_MAX {
                true => Err(TransferReason::Scattered),
                false => Ok((lease, operation)),
            }
        });
        match taken {
            Ok((lease, operation)) => {
                io.operation = operation;
                work.needs_lease = false;
                Some(lease)
            }
            Err(reason) => {
                self.counters.transfers[place].count_reason(reason);
                None
            }
        }
    }

    /// Counts a read or write that takes the way through the arena without having asked for memory.
    #[cold]
    pub(super) fn note_host_path(&self, slot: u32, work: &IoWork) {
        match work.operation {
            IoOperation::Read | IoOperation::DurableRead | IoOperation::Write { .. } => {}
            _ => return,
        }
        let is_keyed = self.queues.at(slot).is_some_and(|it| it.data.keyed);
        let reason = match work.bytes >= self.transfers.bytes_min {
            true if is_keyed => return,
            true => TransferReason::Transport,
            false => TransferReason::Small,
        };
        self.counters.transfers[usize::from(work.device)].count_reason(reason);
    }

    /// Executes a command whose data is, or will be, in `lease`, which
    /// [`take_device_memory`](Self::take_device_memory) returned: of a write, the transport has moved
    /// it there. No request is in flight on the lease. Returns the completion if there is no wait. That
    /// of a successful read has [`Completed::bytes`] and no data:
    /// [`take_read_memory`](Self::take_read_memory) returns the memory.
    #[inline(never)]
    pub fn execute_in_device(
        &mut self,
        queue: QueueId,
        tag: u64,
        work: Work,
        lease: DeviceLease,
        now: Nanos,
    ) -> Option<Completed> {
        self.count_fetch(queue, &work, now);
        let Work {
            kind,
            command_id,
            received_at,
            ..
        } = work;
        let command = Command {
            queue: queue.slot,
            id: command_id,
            tag,
        };
        if self.queues.get(queue.slot, queue.generation).is_none() {
            let response = self.stale(command.id);
            return Some(Completed::without_data(tag, response));
        }
        let WorkKind::Io(io) = kind else {
            return None;
        };
        let (state, decision) = match self.pass_admitted(command.queue, &io) {
            GateDecision::Open if !self.exclusions.hold(&io) => {
                (ExecutionState::Submitted, GateDecision::Open)
            }
            GateDecision::Open | GateDecision::Held => (ExecutionState::Fenced, GateDecision::Held),
            refused @ GateDecision::Refused(_) => (ExecutionState::Fenced, refused),
        };
        let fault = match decision {
            GateDecision::Refused(fault) => Some(fault),
            GateDecision::Open | GateDecision::Held => None,
        };
        let owner = Owner::Command(command);
        let execution = match state {
            ExecutionState::Fenced => Execution::fenced(owner, io, received_at, now),
            _ => Execution::new(owner, io, received_at, now),
        };
        let data = DeviceData::new(lease);
        let inserted = match fault {
            None => (self.executions.insert_in_device(execution, data)).ok_or(LOST),
            Some(fault) => Err(fault),
        };
        let device_tag = match inserted {
            Ok(device_tag) => device_tag,
            Err(fault) => {
                let failed = FailedCommand::of_work(&io, command.id);
                return Some(self.fail_command(command, &failed, fault));
            }
        };
        let is_held = state == ExecutionState::Fenced;
        if let Some(queue) = self.queues.at_mut(command.queue) {
            queue.executing += 1;
            queue.fenced += u32::from(is_held);
        }
        if is_held {
            self.exclusions.add_held(device_tag);
            self.counters.deferred.add(1);
            return None;
        }
        self.trace_start(command.queue, &io, command.id, now);
        let over = self.submit_pieces(device_tag, false)?;
        let (slot, completed) = self.finish(device_tag, over, None)?;
        self.command_completed(slot);
        Some(completed)
    }

    /// Moves the memory with the data of a read, whose completion the transport has just taken, `into` its
    /// place there. No request is in flight on it.
    #[inline]
    pub fn take_read_memory(
        &mut self,
        transport: TransportId,
        tag: u64,
        into: &mut Option<DeviceLease>,
    ) {
        let Some(inbox) = self.inboxes.get_mut(usize::from(transport.0)) else {
            return;
        };
        // Those of closed queues, whose completions nobody has taken, are dropped.
        while let Some((of, lease)) = inbox.read_memory.pop_front() {
            if of == tag {
                *into = Some(lease);
                return;
            }
        }
    }

    /// Whether the data of an execution is in memory of its device.
    #[inline]
    pub(super) fn is_in_device(&self, tag: DeviceTag) -> bool {
        let execution = self.executions.get(tag);
        execution.is_some_and(|it| it.work.operation.is_in_device())
    }

    /// Submits the pieces that are not submitted yet. Returns the result if the execution is over.
    #[inline(never)]
    pub(super) fn submit_pieces(
        &mut self,
        tag: DeviceTag,
        is_overdue: bool,
    ) -> Option<Result<(), Fault>> {
        loop {
            let Some((execution, data)) = self.executions.with_device_data(tag) else {
                let execution = self.executions.get(tag);
                return execution.map(|_| Err(LOST));
            };
            let work = &execution.work;
            let operation = match work.operation {
                IoOperation::WriteInDevice { fua } => Operation::Write { fua },
                _ => Operation::Read,
            };
            if data.offset >= work.bytes as usize {
                return None;
            }
            if !data.lease.is_valid() {
                return self.end_pieces(tag, DeviceError::Interrupted);
            }
            let left = work.bytes as usize - data.offset;
            let bytes = left.min(data.lease.memory().slice_bytes());
            // Most commands have one piece.
            let (before, blocks) = match bytes == work.bytes as usize {
                true => (0, work.blocks),
                // At most the blocks of the command.
                false => {
                    let block_bytes = work.bytes / work.blocks.max(1);
                    (data.offset as u32 / block_bytes, bytes as u32 / block_bytes)
                }
            };
            let request = Request {
                tag: tag.into_bits(),
                operation,
                lba: work.lba + u64::from(before),
                blocks,
                data: None,
            };
            let place = usize::from(work.device);
            let part = (&mut data.lease, data.offset);
            let submitted =
                (self.devices).submit_in_device(self.client, place, request, part, is_overdue);
            match submitted {
                Ok(true) => {
                    data.offset += bytes;
                    execution.step += 1;
                    if data.offset >= execution.work.bytes as usize {
                        return None;
                    }
                }
                Ok(false) if is_overdue => return None,
                Ok(false) if self.transfers.unsubmitted.len() == TRANSFERS_MAX => {
                    return self.end_pieces(tag, DeviceError::Interrupted);
                }
                Ok(false) => {
                    self.counters.deferred.add(1);
                    self.transfers.unsubmitted.push(tag);
                    return None;
                }
                Err(error) => return self.end_pieces(tag, error),
            }
        }
    }

    /// Submits no further piece of an execution. Returns the result if no device has one.
    fn end_pieces(&mut self, tag: DeviceTag, error: DeviceError) -> Option<Result<(), Fault>> {
        let (fault, execution) = (
            self.piece_fault(tag, error),
            self.executions
                .get(tag)
                .map(|it| (it.work.device, it.work.bytes, it.step)),
        );
        let (place, bytes, in_device) = execution?;
        let extra = self.executions.extra(tag.slot);
        if extra.failed.is_none() {
            self.counters.transfers[usize::from(place)].failed.add(1);
        }
        let fault = *extra.failed.get_or_insert(fault);
        if let Some(data) = &mut extra.device_data {
            data.offset = bytes as usize;
        }
        (in_device == 0).then_some(Err(fault))
    }

    /// The fault of a piece. Suspends the memory of the device, unless the error says nothing of it.
    fn piece_fault(&mut self, tag: DeviceTag, error: DeviceError) -> Fault {
        let Some(place) = self.executions.get(tag).map(|it| it.work.device) else {
            return LOST;
        };
        match error {
            DeviceError::MediaRead
            | DeviceError::MediaWrite
            | DeviceError::NoSpace
            | DeviceError::ReadOnly
            | DeviceError::Removed
            | DeviceError::Aborted
            | DeviceError::Damaged => {}
            DeviceError::OutOfRange
            | DeviceError::Unaligned
            | DeviceError::CompareMismatch
            | DeviceError::Interrupted
            | DeviceError::Unsupported
            | DeviceError::Internal => {
                let Transfers {
                    suspended,
                    resumes_at,
                    ..
                } = &mut self.transfers;
                if *resumes_at <= self.polled_at {
                    *suspended = 0;
                }
                *suspended |= 1 << place;
                *resumes_at = self.polled_at + SUSPENSION;
            }
        }
        match error {
            DeviceError::Aborted => Fault::retry(self.cancelled_status(tag)),
            // The same request succeeds through the arena.
            DeviceError::OutOfRange
            | DeviceError::Unaligned
            | DeviceError::CompareMismatch
            | DeviceError::Unsupported => LOST,
            _ => self.device_fault(tag, error),
        }
    }

    /// Handles the success of a piece. That of the last one completes the command.
    #[inline(never)]
    pub(super) fn piece_succeeded(&mut self, tag: DeviceTag) {
        let Some(mut last) = self.executions.last_in_device(tag) else {
            return self.piece_done(tag, Ok(()));
        };
        // A drive that was reset meanwhile has lost what it read, and has written anything.
        let is_there = last.complete();
        let execution = last.execution();
        let (is_read, owner) = (execution.work.operation.is_read(), execution.owner);
        let (place, bytes) = (usize::from(execution.work.device), execution.work.bytes);
        let is_kept = match owner {
            Owner::Command(command) if is_there && is_read => {
                let transport = self.queues.at(command.queue).map(|it| it.transport);
                let inbox = transport.and_then(|it| self.inboxes.get_mut(usize::from(it)));
                let inbox = inbox.filter(|it| it.read_memory.len() < TRANSFERS_MAX);
                // For its transport.
                inbox.is_some_and(|it| last.move_to(&mut it.read_memory, command.tag))
            }
            Owner::Command(_) | Owner::Shutdown { .. } => is_there,
        };
        let counters = &self.counters.transfers[place];
        if !is_kept {
            counters.failed.add(1);
            return self.finish_later(tag, Err(LOST), None);
        }
        counters.count_completed(is_read, bytes);
        // Inlined for this result alone.
        if let Some((slot, completed)) = self.finish_here(tag, Ok(()), None) {
            self.push_completion_here(slot, completed);
            self.command_completed(slot);
        }
    }

    /// Handles the completion of a piece that does not complete its command by its success.
    #[inline(never)]
    pub(super) fn piece_done(&mut self, tag: DeviceTag, result: Result<(), DeviceError>) {
        if let Err(error) = result
            && let Some(Err(fault)) = self.end_pieces(tag, error)
        {
            // It has no piece in its device any more, which was removed.
            return self.fail_pieces(tag, fault);
        }
        let Some(execution) = self.executions.get_mut(tag) else {
            return;
        };
        execution.step = execution.step.saturating_sub(1);
        if execution.step > 0 {
            return;
        }
        let extra = self.executions.extra(tag.slot);
        match (extra.failed, &extra.device_data) {
            (Some(fault), _) => self.fail_pieces(tag, fault),
            // A piece waits until the device takes it.
            (None, Some(_)) => {}
            (None, None) => self.fail_pieces(tag, LOST),
        }
    }

    /// Ends an execution of which no device has a piece, and one has failed.
    #[cold]
    fn fail_pieces(&mut self, tag: DeviceTag, fault: Fault) {
        self.complete_in_device(tag);
        self.finish_later(tag, Err(fault), None);
    }

    /// Whether devices have more pieces of an orphan than the one that has just completed.
    pub(super) fn has_more_pieces(&mut self, tag: DeviceTag) -> bool {
        let Some(execution) = self.executions.get_mut(tag) else {
            return false;
        };
        if !execution.work.operation.is_in_device() {
            return false;
        }
        execution.step = execution.step.saturating_sub(1);
        execution.step > 0
    }

    /// Submits the pieces that devices have not taken.
    #[cold]
    pub(super) fn retry_pieces(&mut self) {
        let mut place = 0;
        while let Some(tag) = self.transfers.unsubmitted.get(place).copied() {
            let state = self.executions.get(tag).map(|it| (it.state, it.step));
            let over = match state {
                Some((ExecutionState::Submitted, _)) => self.submit_pieces(tag, true),
                // No device has a piece whose completion would end it.
                Some((ExecutionState::Orphan, 0)) => {
                    self.transfers.unsubmitted.remove(place);
                    self.finish_orphan(tag);
                    continue;
                }
                Some(_) | None => None,
            };
            if let Some(Err(fault)) = over {
                self.fail_pieces(tag, fault);
            }
            let is_waiting = (state.is_some_and(|(it, _)| it == ExecutionState::Submitted))
                && self.has_unsubmitted_piece(tag);
            match is_waiting {
                true => place += 1,
                false => drop(self.transfers.unsubmitted.remove(place)),
            }
        }
    }

    fn has_unsubmitted_piece(&mut self, tag: DeviceTag) -> bool {
        let bytes = self.executions.get(tag).map(|it| it.work.bytes as usize);
        let data = self.executions.device_data(tag);
        data.is_some_and(|data| Some(data.offset) < bytes)
    }
}
