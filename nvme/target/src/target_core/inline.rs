//! Inline completion of reads and writes that a device executes without waiting, and direct
//! placement of write data in a device's memory. Neither uses an execution slot.

use block::DeviceSet;
use hugemem::Data;
use nvme_spec::command::IoOpcode;
use nvme_spec::{Sqe, Status};
use reactors::Nanos;
use reactors::recorder::Recorder;

use super::TargetCore;
use super::admission::context;
use super::gate::{self, GateDecision};
use super::queue::{InlinePath, Queue, QueueState};
use super::slots::Slots;
use super::timing::{InlineTiming, SentResponses};
use crate::counters::{CoreCounters, IoCounters};
use crate::interface::{
    Completed, DataSource, Direction, InlineCompletion, QueueId, Work, WorkKind,
};
use crate::io::{IoOperation, IoWork, check_blocks, check_source, is_transfer};
use crate::rates::{Charge, QueueRates};
use crate::reservations::restrictions::AccessKind;
use crate::stages::Measured;
use crate::view::TargetView;

impl TargetCore {
    /// Admits, executes and completes a command in one step, if its device does not have to wait: a
    /// read that borrows the device's memory, or a write whose data was received with its capsule
    /// (`in_capsule`). Such a command needs neither a tag nor a [`Work`]. Returns `None` if the
    /// command cannot complete inline; nothing has happened then, and the caller calls
    /// [`admit`](Self::admit). The response counts as sent in this turn.
    #[inline(always)]
    pub fn complete_inline(
        &mut self,
        id: QueueId,
        sqe: &Sqe,
        in_capsule: Option<&[u8]>,
        now: Nanos,
    ) -> Option<InlineCompletion> {
        let queue = self.queues.get_mut(id.slot, id.generation)?;
        let opcode = match in_capsule {
            None => IoOpcode::READ,
            Some(_) => IoOpcode::WRITE,
        };
        let is_limited = match queue.inline_path() {
            InlinePath::Unlimited => false,
            InlinePath::Limited => true,
            InlinePath::Closed => return None,
        };
        if sqe.io_opcode() != opcode || !is_transfer(sqe) {
            return None;
        }
        let context = context(queue, &self.view).ok()?;
        let work = check_blocks(opcode, sqe, &context).ok()?;
        let access = match in_capsule {
            None => AccessKind::Read,
            Some(_) => AccessKind::Write,
        };
        if !gate::is_open(queue) && !gate::permits(queue, work.device, access) {
            return None;
        }
        let device = usize::from(work.device);
        let (measured, data, keyed) = match (work.operation, in_capsule) {
            (IoOperation::Read, None) => {
                let direction = Direction::ToHost;
                let source = check_source(sqe, direction, work.bytes, context.data).ok()?;
                let keyed = source.one_block()?;
                let charge = charge(&work, access);
                if is_limited
                    && !self
                        .advances
                        .start(queue, id.slot, &self.devices, charge, now)
                {
                    return None;
                }
                let Some(borrow) = self.devices.borrow_read(device, work.lba, work.blocks) else {
                    if is_limited {
                        return_charge(queue, charge);
                    }
                    return None;
                };
                (Measured::Read, Some(borrow), keyed)
            }
            (IoOperation::Write { fua: false }, Some(data)) => {
                let direction = Direction::FromHost;
                let source = check_source(sqe, direction, work.bytes, context.data).ok()?;
                let is_whole = matches!(source, DataSource::InCapsule { offset: 0 })
                    && work.bytes as usize == data.len();
                let is_held = self.exclusions.hold(&work);
                if !is_whole || is_held {
                    return None;
                }
                let charge = charge(&work, access);
                if is_limited
                    && !self
                        .advances
                        .start(queue, id.slot, &self.devices, charge, now)
                {
                    return None;
                }
                if !self.devices.write_inline(device, work.lba, data) {
                    if is_limited {
                        return_charge(queue, charge);
                    }
                    return None;
                }
                (Measured::Write, None, None)
            }
            _ => return None,
        };
        self.counters.commands.add(1);
        queue.shared.note_traffic();
        count(&self.counters, id, device, |counters| match measured {
            Measured::Read => counters.count_read(work.bytes),
            Measured::Write => counters.count_write(work.bytes),
        });
        let inline_timing = InlineTiming::new(measured, sqe, now);
        trace_inline(
            &self.recorder,
            &mut self.sent_responses,
            queue,
            id.slot,
            inline_timing,
        );
        Some(InlineCompletion {
            response: queue.respond(sqe.cid.get(), Status::SUCCESS),
            data,
            keyed,
            inline_timing,
        })
    }

    /// Block size of a write's device in bytes, if [`place_directly`](Self::place_directly) can
    /// place the write's data directly; `None` if it never can.
    #[must_use]
    pub fn block_to_fill(&self, id: QueueId, work: &Work) -> Option<usize> {
        let WorkKind::Io(io) = &work.kind else {
            return None;
        };
        // With Force Unit Access a flush may have to follow, which `execute` does.
        if io.operation != (IoOperation::Write { fua: false })
            || !self
                .devices
                .supports_direct_placement(usize::from(io.device))
        {
            return None;
        }
        let queue = self.queues.get(id.slot, id.generation)?;
        let subsystem = queue.subsystem(&self.view)?;
        Some(1 << subsystem.namespace(io.nsid)?.block_shift)
    }

    /// Calls `fill` to write the next `bytes` bytes of a write's data, whole blocks, directly into
    /// the device's memory, if the range is free. `work` then describes the remaining blocks,
    /// possibly none. Each block changes as a whole. Returns false if `fill` was not called; a
    /// later call may succeed, and [`execute`](Self::execute) writes what remains.
    pub fn place_directly(
        &mut self,
        id: QueueId,
        work: &mut Work,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let (WorkKind::Io(io), Some(queue)) =
            (&mut work.kind, self.queues.get(id.slot, id.generation))
        else {
            return false;
        };
        // With Force Unit Access a flush may have to follow, which `execute` does. It also handles any
        // other decision of the gate.
        if io.operation != (IoOperation::Write { fua: false })
            || !is_open(queue, &self.view, io)
            || self.exclusions.hold(io)
        {
            return false;
        }
        // What remains of the command is whole blocks.
        let Some(block) = work.bytes.checked_div(io.blocks).filter(|it| *it > 0) else {
            return false;
        };
        debug_assert!(bytes.is_multiple_of(block as usize) && bytes <= work.bytes as usize);
        let device = usize::from(io.device);
        let filled = self.devices.place_directly(device, io.lba, bytes, fill);
        if filled {
            // At most the command's blocks and bytes, which have these types.
            let blocks = bytes as u32 / block;
            io.lba += u64::from(blocks);
            io.blocks -= blocks;
            work.bytes -= bytes as u32;
        }
        filled
    }

    /// [`complete_inline`](Self::complete_inline) for a read that was admitted.
    #[inline]
    pub(super) fn execute_borrowed(
        &mut self,
        id: QueueId,
        tag: u64,
        command_id: u16,
        work: &IoWork,
        now: Nanos,
    ) -> Option<Completed> {
        let queue = self.queues.get_mut(id.slot, id.generation)?;
        // In other states the last response completes a Disconnect.
        if queue.state != QueueState::Live || !is_open(queue, &self.view, work) {
            return None;
        }
        let device = usize::from(work.device);
        let borrow = self.devices.borrow_read(device, work.lba, work.blocks)?;
        count(&self.counters, id, device, |counters| {
            counters.count_read(work.bytes);
        });
        debug_assert!(queue.outstanding_commands > 0, "an answer has a command");
        queue.outstanding_commands = queue.outstanding_commands.saturating_sub(1);
        Some(Completed {
            tag,
            response: queue.respond(command_id, Status::SUCCESS),
            data: Some(Data::Borrow(borrow)),
            bytes: work.bytes,
            timing: queue.inline_timing(command_id, now),
        })
    }
}

/// What the rates count of a read or write.
#[inline(always)]
fn charge(work: &IoWork, access: AccessKind) -> Charge {
    Charge {
        device: work.device,
        access,
        bytes: work.bytes,
    }
}

/// Queues whose rates were charged in advance in this turn.
pub(super) struct Advances(Vec<u32>);

impl Advances {
    pub(super) fn new(queues_max: usize) -> Self {
        Self(Vec::with_capacity(queues_max))
    }

    /// Takes the cost of a command from the rates of its queue if it may start now. For a device that
    /// does not complete commands inline, [`TargetCore::admit`] takes it.
    #[inline(always)]
    fn start(
        &mut self,
        queue: &mut Queue,
        slot: u32,
        devices: &DeviceSet,
        charge: Charge,
        now: Nanos,
    ) -> bool {
        let Some(rates) = queue.rates_mut() else {
            return false;
        };
        rates.start_advanced(charge) || self.begin(rates, slot, devices, charge, now)
    }

    #[cold]
    #[inline(never)]
    fn begin(
        &mut self,
        rates: &mut QueueRates,
        slot: u32,
        devices: &DeviceSet,
        charge: Charge,
        now: Nanos,
    ) -> bool {
        if !devices.supports_direct_placement(usize::from(charge.device)) {
            return false;
        }
        // A queue is here several times only in a turn in which it renews its advance.
        let has_room = self.0.len() < self.0.capacity();
        match has_room {
            true => {
                if self.0.last() != Some(&slot) {
                    self.0.push(slot);
                }
                rates.take_advance(charge, now)
            }
            false => rates.take(charge, now),
        }
    }

    /// Ends the turn.
    #[inline]
    pub(super) fn end(&mut self, queues: &mut Slots<Queue>) {
        while let Some(slot) = self.0.pop() {
            if let Some(rates) = queues.at_mut(slot).and_then(Queue::rates_mut) {
                rates.end_advance();
            }
        }
    }
}

/// Returns the cost of a command that does not complete inline.
#[cold]
#[inline(never)]
fn return_charge(queue: &Queue, charge: Charge) {
    if let Some(rates) = queue.rates() {
        rates.give_back(charge);
    }
}

/// Whether an admitted command may go to its device now.
#[inline(always)]
fn is_open(queue: &Queue, view: &TargetView, work: &IoWork) -> bool {
    matches!(gate::pass(queue, view, work), GateDecision::Open)
}

/// Traces and counts an inline completion whose response is sent in this turn.
#[inline(always)]
fn trace_inline(
    recorder: &Recorder,
    sent_responses: &mut SentResponses,
    queue: &mut Queue,
    slot: u32,
    inline_timing: InlineTiming,
) {
    let note = queue.inline_trace[inline_timing.operation];
    recorder.record(
        inline_timing.received_at,
        note.with_command(inline_timing.command_id),
    );
    if !cfg!(uncounted) {
        let count = &mut queue.inline_count[inline_timing.operation];
        if *count == 0 {
            sent_responses.add_inline(slot, inline_timing);
        }
        *count += 1;
    }
}

/// Counts a completed command for its device and its queue.
#[inline(always)]
fn count(counters: &CoreCounters, queue: QueueId, device: usize, add: impl Fn(&IoCounters)) {
    if let Some(counters) = counters.devices.get(device) {
        add(counters);
    }
    if let Some(counters) = counters.queue_slots.get(queue.slot as usize) {
        add(counters);
    }
}
