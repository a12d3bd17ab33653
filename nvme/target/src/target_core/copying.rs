//! Copy within a namespace and across those of a subsystem (NVM 1.1 §3.3.2): reads the source ranges
//! one after the other into the command's lease, and then writes their data by one request.
//!
//! The gate decides about the destination as about that of a write. For each source, it decides when
//! the list of source ranges is there, and again before its range is read.
//!
//! A drive that copies within itself does so if it is allowed to ([`by_drive`]), and no data moves.
//!
//! The lease holds the list of source ranges first. It has room for all blocks that a Copy may have,
//! so that a Copy needs no second lease and never waits for memory while it holds some. Unless the
//! devices move the data by memory of one of them ([`in_device`]), it is read into the lease: a device
//! fills a lease from its first byte, so the last range is read first, and its data is moved to its
//! place behind that of the ranges before it. The list of these ranges is meanwhile between the data
//! that is being read and the data that was read: each range has at least as many bytes as its entry.
//!
//! ```text
//! ┌──────────────┬─────────────────┬ ─ ─ ─ ┬──────────────────────────┐
//! │ range being  │ list of ranges  │       │ data of ranges behind it │
//! │ read         │ before it       │       │ at its place             │
//! └──────────────┴─────────────────┴ ─ ─ ─ ┴──────────────────────────┘
//! ```

mod by_drive;
mod in_device;

use block::{Operation, Request};
use hugemem::{Data, Lease};
use nvme_spec::Status;
use nvme_spec::command::CopyRange;
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::executions::{Command, DeviceTag, Owner};
use super::gate::{self, GateDecision};
use super::throttle::charge_started;
use super::{FailedCommand, TargetCore};
use crate::counters::CopyWay;
use crate::interface::Completed;
use crate::io::{
    COPY_RANGES_MAX, CopyWork, IoOperation, IoWork, check_copy_ranges, check_copy_source,
    copy_source,
};
use crate::rates::Charge;
use crate::reservations::restrictions::AccessKind;
use crate::status::Fault;
use crate::view::NamespaceView;
pub(super) use in_device::DeviceData;

/// The step of a Copy whose write was submitted.
const WRITES: u16 = u16::MAX;

const _: () = assert!(COPY_RANGES_MAX < WRITES as usize);

/// The fault of a Copy that the gate refuses when it starts again. A refusal would say that nothing is
/// written.
const PARTLY_WRITTEN: Fault = Fault::retry(Status::COMMAND_INTERRUPTED);

/// The fault of a Copy whose lease is missing or too small.
const NO_LEASE: Fault = Fault::retry(Status::INTERNAL_ERROR);

impl TargetCore {
    /// Executes a Copy whose list of source ranges is there.
    #[cold]
    pub(super) fn execute_copy(
        &mut self,
        command: Command,
        work: &CopyWork,
        list: Lease,
        received_at: Nanos,
        now: Nanos,
    ) -> Option<Completed> {
        match self.check_copy(command.queue, &work.io, &list) {
            Ok(io) => {
                self.charge_copy(command.queue, &io, &list, now);
                self.execute_io(command, io, Some(list), received_at, now)
            }
            Err(fault) => {
                let failed = FailedCommand::of_work(&work.io, command.id);
                Some(self.fail_command(command, &failed, fault))
            }
        }
    }

    /// Checks the source ranges of a Copy. Returns the command with the blocks that it writes.
    fn check_copy(&self, slot: u32, work: &IoWork, list: &Lease) -> Result<IoWork, Fault> {
        if let GateDecision::Refused(fault) = self.pass_admitted(slot, work) {
            return Err(fault);
        }
        let queue = self.queues.at(slot).ok_or(NO_LEASE)?;
        let subsystem = queue.subsystem(&self.view).ok_or(NO_LEASE)?;
        let ranges = <[CopyRange]>::ref_from_bytes(list).map_err(|_| NO_LEASE)?;
        let checked = check_copy_ranges(work, ranges, subsystem)?;
        for range in ranges {
            let source = copy_source(work, range, subsystem)?;
            gate::check_source(queue, &self.view, work, source)?;
        }
        if checked.bytes as usize > list.capacity() {
            return Err(NO_LEASE);
        }
        Ok(checked)
    }

    /// Takes the cost of a Copy from the rates that apply to its destination, and that of each read
    /// of another device from the rates of that device.
    fn charge_copy(&self, slot: u32, io: &IoWork, list: &Lease, now: Nanos) {
        let (Some(queue), Some(charge)) = (self.queues.at(slot), Charge::of(io)) else {
            return;
        };
        charge_started(queue, charge, true, now);
        for (range, source) in self.sources(slot, io, list) {
            if let Some(rates) = queue.rates()
                && source.device != io.device
            {
                let charge = Charge {
                    device: source.device,
                    access: AccessKind::Read,
                    bytes: range.blocks() << source.block_shift,
                };
                rates.reserve_of_device(charge, now);
            }
        }
    }

    /// The source ranges of a checked Copy, with their namespaces.
    fn sources<'a>(
        &'a self,
        slot: u32,
        work: &'a IoWork,
        list: &'a [u8],
    ) -> impl Iterator<Item = (&'a CopyRange, &'a NamespaceView)> {
        let queue = self.queues.at(slot);
        let subsystem = queue.and_then(|queue| queue.subsystem(&self.view));
        let ranges = <[CopyRange]>::ref_from_bytes(list).unwrap_or_default();
        ranges.iter().filter_map(move |range| {
            let source = copy_source(work, range, subsystem?);
            Some((range, source.ok()?))
        })
    }

    /// Notes the devices of a Copy's sources, so that whatever happens to them concerns the Copy.
    #[cold]
    pub(super) fn note_sources(&mut self, tag: DeviceTag, work: &IoWork, list: &[u8]) {
        let Some(Owner::Command(command)) = self.executions.get(tag).map(|it| it.owner) else {
            return;
        };
        let sources = self.sources(command.queue, work, list);
        let devices = sources.fold(0, |all, (_, source)| all | 1 << source.device);
        self.executions.extra(tag.slot).devices = devices;
    }

    /// Begins the reads of a Copy.
    #[cold]
    pub(super) fn begin_copy(&mut self, tag: DeviceTag, work: &IoWork, list: Lease, ranges: u8) {
        self.note_sources(tag, work, &list);
        let extra = self.executions.extra(tag.slot);
        extra.data = Some(list.into());
        extra.copies_in = work.device;
        if let Some(execution) = self.executions.get_mut(tag) {
            execution.step = u16::from(ranges);
        }
        match self.may_copy_by_drive(tag, work) {
            true => self.executions.extra(tag.slot).by_drive = true,
            false => self.take_copy_memory(tag, work),
        }
    }

    /// The next device request of a Copy, and its device; `None` after the write, or if the Copy
    /// fails. A read or write without data is for [`submit_in_device`](Self::submit_in_device).
    #[cold]
    pub(super) fn next_of_copy(&mut self, tag: DeviceTag) -> Option<(u8, Request)> {
        let in_device = match self.is_copied_in_device(tag) {
            Ok(in_device) => in_device,
            Err(fault) => {
                self.executions.extra(tag.slot).failed = Some(fault);
                return None;
            }
        };
        let execution = self.executions.get(tag)?;
        let (work, left, owner) = (execution.work, execution.step, execution.owner);
        if left == WRITES {
            let way = match self.is_copied_by_drive(tag) {
                true => CopyWay::Drive,
                false if in_device => CopyWay::DeviceMemory,
                false => CopyWay::Host,
            };
            self.counters.copies[usize::from(work.device)].count_completed(way);
            return None;
        }
        match self.continue_copy(tag, &work, (left, in_device), owner) {
            Ok((device, request)) => {
                self.executions.extra(tag.slot).copies_in = device;
                Some((device, request))
            }
            Err(fault) => {
                let extra = self.executions.extra(tag.slot);
                extra.failed = Some(match extra.may_be_written {
                    true => PARTLY_WRITTEN,
                    false => fault,
                });
                None
            }
        }
    }

    /// The read of the last of the `left` ranges that are not read yet, or the write.
    fn continue_copy(
        &mut self,
        tag: DeviceTag,
        work: &IoWork,
        (left, in_device): (u16, bool),
        owner: Owner,
    ) -> Result<(u8, Request), Fault> {
        let (IoOperation::Copy { ranges, fua, .. }, Owner::Command(command)) =
            (work.operation, owner)
        else {
            return Err(NO_LEASE);
        };
        // The gate may have closed since the last request. A fence that was raised meanwhile is for
        // commands that the host sent later.
        if let GateDecision::Refused(fault) = self.pass_admitted(command.queue, work) {
            return Err(fault);
        }
        if in_device {
            return self.continue_in_device(tag, work, (left, fua), command.queue);
        }
        if self.is_copied_by_drive(tag) {
            return self.continue_by_drive(tag, work, fua, command.queue);
        }
        let Some(Data::Lease(mut lease)) = self.executions.extra(tag.slot).data.take() else {
            return Err(NO_LEASE);
        };
        let read_bytes = match left == u16::from(ranges) {
            true => 0,
            false => lease.len(),
        };
        lease.resize(work.bytes as usize);
        let block_bytes = work.bytes as usize / work.blocks.max(1) as usize;
        let next = next_range(&mut lease, read_bytes, usize::from(left), block_bytes)?;
        let (device, operation, lba, blocks, step) = match next {
            Some(range) => {
                let (lba, blocks) = (range.slba.get(), range.blocks());
                let device = self.pass_source(command.queue, work, &range)?;
                (device, Operation::Read, lba, blocks, left - 1)
            }
            None => {
                let operation = Operation::Write { fua };
                (work.device, operation, work.lba, work.blocks, WRITES)
            }
        };
        lease.resize(blocks as usize * block_bytes);
        if let Some(execution) = self.executions.get_mut(tag) {
            execution.step = step;
        }
        let request = Request {
            tag: tag.into_bits(),
            operation,
            lba,
            blocks,
            data: Some(lease),
        };
        Ok((device, request))
    }

    /// Asks the gate about a source range that is read next. Returns its device. The configuration
    /// may have changed since the list was checked.
    fn pass_source(&self, slot: u32, work: &IoWork, range: &CopyRange) -> Result<u8, Fault> {
        let queue = self.queues.at(slot).ok_or(gate::CLOSED)?;
        let subsystem = queue.subsystem(&self.view).ok_or(gate::CLOSED)?;
        let source = check_copy_source(work, range, subsystem)?;
        gate::check_source(queue, &self.view, work, source)?;
        Ok(source.device)
    }
}

/// Moves the data of the range that was read to its place: the first `read_bytes` bytes of the
/// buffer, behind which are the `left` ranges before it. Returns the last of these, which is to be
/// read next, and makes room for it; `None` if all were read.
fn next_range(
    buffer: &mut [u8],
    read_bytes: usize,
    left: usize,
    block_bytes: usize,
) -> Result<Option<CopyRange>, Fault> {
    let mut list = [CopyRange::default(); COPY_RANGES_MAX];
    let list = list.get_mut(..left).ok_or(NO_LEASE)?;
    let bytes = list.as_mut_bytes();
    let listed = buffer.get(read_bytes..read_bytes + bytes.len());
    bytes.copy_from_slice(listed.ok_or(NO_LEASE)?);
    let bytes_of = |range: &CopyRange| range.blocks() as usize * block_bytes;
    let place: usize = list.iter().map(bytes_of).sum();
    buffer.copy_within(..read_bytes, place);
    let Some((next, before)) = list.split_last() else {
        return Ok(None);
    };
    let begin = bytes_of(next);
    let before = before.as_bytes();
    let room = buffer.get_mut(begin..begin + before.len());
    room.ok_or(NO_LEASE)?.copy_from_slice(before);
    Ok(Some(*next))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;

    /// Reads ranges of these lengths from a disk of which each block has its number as content, in
    /// the order of [`next_range`]. Returns the first byte of each block of the buffer.
    fn copied(ranges: &[(u64, u16)]) -> Vec<u8> {
        let list: Vec<CopyRange> = ranges
            .iter()
            .map(|(lba, blocks)| CopyRange::new(*lba, blocks - 1))
            .collect();
        let total: usize = ranges.iter().map(|(_, blocks)| usize::from(*blocks)).sum();
        let mut buffer = vec![0xee; total * BLOCK];
        let bytes = list.as_bytes();
        buffer[..bytes.len()].copy_from_slice(bytes);
        let (mut read_bytes, mut left) = (0, list.len());
        while let Ok(Some(range)) = next_range(&mut buffer, read_bytes, left, BLOCK) {
            left -= 1;
            assert_eq!(range, list[left]);
            read_bytes = range.blocks() as usize * BLOCK;
            for (lba, block) in (range.slba.get()..).zip(buffer[..read_bytes].chunks_mut(BLOCK)) {
                block.fill(lba as u8);
            }
        }
        assert_eq!(left, 0, "the list was overwritten");
        let blocks = buffer.chunks(BLOCK);
        let firsts = blocks.map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]));
            block[0]
        });
        firsts.collect()
    }

    #[test]
    fn data_is_in_the_order_of_the_ranges() {
        assert_eq!(copied(&[(7, 1)]), [7]);
        assert_eq!(copied(&[(7, 3)]), [7, 8, 9]);
        assert_eq!(copied(&[(7, 1), (9, 2), (1, 1)]), [7, 9, 10, 1]);
        assert_eq!(copied(&[(7, 3), (20, 1), (20, 1)]), [7, 8, 9, 20, 20]);
        let ones: Vec<(u64, u16)> = (0..16).map(|lba| (3 * lba, 1)).collect();
        let wanted: Vec<u8> = ones.iter().map(|(lba, _)| *lba as u8).collect();
        assert_eq!(copied(&ones), wanted);
    }

    #[test]
    fn ranges_of_any_length_keep_the_list() {
        let mut random = 99_u64;
        for _ in 0..2000 {
            let mut below = |count: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % count
            };
            let count = 1 + below(COPY_RANGES_MAX as u64);
            let ranges: Vec<(u64, u16)> = (0..count)
                .map(|_| (below(200), 1 + below(5) as u16))
                .collect();
            let blocks = ranges
                .iter()
                .flat_map(|(lba, blocks)| (*lba..).take(usize::from(*blocks)));
            let wanted: Vec<u8> = blocks.map(|lba| lba as u8).collect();
            assert_eq!(copied(&ranges), wanted, "{ranges:?}");
        }
    }
}
