//! Copy within a namespace (NVM 1.1 §3.3.2): reads the source ranges one after the other into the
//! command's lease, and then writes their data by one request.
//!
//! The lease holds the list of source ranges first. It has room for all blocks that a Copy may have,
//! so that a Copy needs no second lease and never waits for memory while it holds some. A device
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

use block::{Operation, Request};
use hugemem::{Data, Lease};
use nvme_spec::Status;
use nvme_spec::command::CopyRange;
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::executions::{Command, DeviceTag, Owner};
use super::gate::GateDecision;
use super::throttle::charge_started;
use super::{FailedCommand, TargetCore};
use crate::interface::Completed;
use crate::io::{COPY_RANGES_MAX, CopyWork, IoOperation, IoWork, check_copy_ranges, namespace};
use crate::rates::Charge;
use crate::status::Fault;

/// The step of a Copy whose write was submitted.
const WRITES: u16 = u16::MAX;

const _: () = assert!(COPY_RANGES_MAX < WRITES as usize);

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
                if let (Some(queue), Some(charge)) =
                    (self.queues.at(command.queue), Charge::of(&io))
                {
                    charge_started(queue, charge, true, now);
                }
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
        let work = check_copy_ranges(work, ranges, namespace(subsystem, work.nsid)?)?;
        if work.bytes as usize > list.capacity() {
            return Err(NO_LEASE);
        }
        Ok(work)
    }

    /// Begins the reads of a Copy.
    #[cold]
    pub(super) fn begin_copy(&mut self, tag: DeviceTag, list: Lease, ranges: u8) {
        self.executions.extra(tag.slot).data = Some(list.into());
        if let Some(execution) = self.executions.get_mut(tag) {
            execution.step = u16::from(ranges);
        }
    }

    /// The next device request of a Copy; `None` after the write, or if the Copy fails.
    #[cold]
    pub(super) fn next_of_copy(&mut self, tag: DeviceTag) -> Option<Request> {
        let execution = self.executions.get(tag)?;
        let (work, left, owner) = (execution.work, execution.step, execution.owner);
        if left == WRITES {
            return None;
        }
        match self.continue_copy(tag, &work, left, owner) {
            Ok(request) => Some(request),
            Err(fault) => {
                self.executions.extra(tag.slot).failed = Some(fault);
                None
            }
        }
    }

    /// The read of the last of the `left` ranges that are not read yet, or the write.
    fn continue_copy(
        &mut self,
        tag: DeviceTag,
        work: &IoWork,
        left: u16,
        owner: Owner,
    ) -> Result<Request, Fault> {
        // The gate may have closed since the last request. A fence that was raised meanwhile is for
        // commands that the host sent later.
        if let Owner::Command(command) = owner
            && let GateDecision::Refused(fault) = self.pass_admitted(command.queue, work)
        {
            return Err(fault);
        }
        let IoOperation::Copy { ranges, fua } = work.operation else {
            return Err(NO_LEASE);
        };
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
        let (operation, lba, blocks, step) = match next {
            Some(range) => (Operation::Read, range.slba.get(), range.blocks(), left - 1),
            None => (Operation::Write { fua }, work.lba, work.blocks, WRITES),
        };
        lease.resize(blocks as usize * block_bytes);
        if let Some(execution) = self.executions.get_mut(tag) {
            execution.step = step;
        }
        Ok(Request {
            tag: tag.into_bits(),
            operation,
            lba,
            blocks,
            data: Some(lease),
        })
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
