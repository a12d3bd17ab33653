//! Split requests, which take more than one command: longer than the drive's limit, or of a kind
//! that the drive lacks.
//!
//! Such a request uses a slot for itself and one for each of its commands. A few commands are in
//! flight at the same time, and the next one takes the slot of a completed one, so a request that
//! has started always makes progress. If a command fails, the request ends after the others
//! complete. A split write is not atomic; hosts were promised no atomicity, because the drive's
//! atomic units are not reported to them.

use block::{DeviceError, Operation, Refusal, Request};
use hugemem::{DmaLease, Lease};
use nvme_spec::Sqe;
use nvme_spec::command::{DatasetRange, WriteZeroesControl};
use zerocopy::transmute;

use super::slot::{NvmeDma, SlotState, SplitKind, SplitRequest};
use super::{NamespaceLimits, ORPHAN, Pair, zero_based};
use crate::shared::FaultKind;

/// Maximum number of commands of one request in flight.
const PARTS_IN_FLIGHT_MAX: u8 = 8;

/// The pair's own lease for compares on a drive without Compare: one compare at a time.
pub(super) enum Scratch {
    /// The drive supports Compare.
    Unneeded,
    Free(Lease),
    /// In flight, or about to be compared.
    Busy,
}

impl Pair {
    /// Submits a request that takes more or other than one command.
    #[cold]
    pub(super) fn submit_split(
        &mut self,
        queue: u8,
        namespace_limits: &NamespaceLimits,
        request: Request,
    ) -> Result<(), Refusal> {
        let nothing = request.blocks == 0;
        // One slot for the request, and one for its first command.
        if self.table.free.len() < 2 {
            return Err(Refusal::Later(request));
        }
        let (kind, step) = plan(request.operation, namespace_limits);
        let Some(index) = self.table.free.pop() else {
            return Err(Refusal::Later(request));
        };
        self.table.split_requests[usize::from(index)] = SplitRequest {
            kind,
            nsid: namespace_limits.nsid,
            lba: request.lba,
            left: request.blocks,
            step,
            offset: 0,
            shift: namespace_limits.shift,
            outstanding: 0,
            result: Ok(()),
        };
        let slot = &mut self.table.slots[usize::from(index)];
        slot.data = request.data.map(Lease::into_dma);
        slot.tag = request.tag;
        slot.bytes = if request.operation.has_data() {
            request.blocks << namespace_limits.shift
        } else {
            0
        };
        slot.operation = request.operation;
        slot.state = SlotState::Parent;
        slot.queue = queue;
        slot.overdue = false;
        if nothing {
            self.finish(usize::from(index), Ok(()));
        } else if kind == SplitKind::ReadAndCompare && !matches!(self.scratch, Scratch::Free(_)) {
            self.compares.push_back(index);
        } else {
            self.send_parts(index);
        }
        Ok(())
    }

    /// Starts the next compare if the scratch lease is free.
    fn next_compare(&mut self) {
        while matches!(self.scratch, Scratch::Free(_))
            && self.running
            && let Some(index) = self.compares.pop_front()
        {
            if self.table.split_requests[usize::from(index)].left == 0 {
                // Its queue was dropped.
                self.finish(usize::from(index), Ok(()));
            } else {
                self.send_parts(index);
                self.wrote_parts = true;
            }
        }
    }

    /// Ends split requests of a queue that are no longer wanted: no further command is sent.
    /// Commands in flight complete.
    pub(crate) fn give_up(&mut self, queue: u8, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        for index in 0..self.table.slots.len() {
            let slot = &self.table.slots[index];
            let is_split = slot.state == SlotState::Parent && slot.queue == queue;
            let work = &mut self.table.split_requests[index];
            if !is_split || work.left == 0 || !is_unwanted(slot.tag) {
                continue;
            }
            work.left = 0;
            work.result = work.result.and(Err(DeviceError::Aborted));
            if work.outstanding == 0 {
                // A compare that waits for the scratch lease.
                self.compares
                    .retain(|waiting| usize::from(*waiting) != index);
                self.finish(index, Err(DeviceError::Aborted));
            }
        }
    }

    /// Requests a controller reset if the drive still has a request that is overdue, because only a
    /// reset ends it for certain. Independent of the deadline of commands: hosts were told the
    /// maximum duration.
    #[cold]
    pub(crate) fn abandon(&mut self, queue: u8, is_overdue: &mut dyn FnMut(u64) -> bool) {
        let mut slots = self.table.slots.iter();
        let overdue = slots.find(|slot| {
            let is_request = matches!(slot.state, SlotState::Whole | SlotState::Parent);
            is_request && slot.queue == queue && is_overdue(slot.tag)
        });
        if let Some(cid) = overdue.map(|slot| slot.cid) {
            self.report_for_reset(FaultKind::Stuck, cid);
        }
    }

    /// Sends as many commands of a request as may be in flight.
    fn send_parts(&mut self, parent: u16) {
        loop {
            let work = self.table.split_requests[usize::from(parent)];
            let alone = work.kind == SplitKind::ReadAndCompare;
            if work.left == 0 || work.outstanding >= if alone { 1 } else { PARTS_IN_FLIGHT_MAX } {
                return;
            }
            let Some(index) = self.table.free.pop() else {
                return;
            };
            self.send_part(parent, index, work);
        }
    }

    fn send_part(&mut self, parent: u16, index: u16, work: SplitRequest) {
        let blocks = work.left.min(work.step);
        let bytes = blocks << work.shift;
        let lease = match work.kind {
            SplitKind::ReadAndCompare => self.take_scratch(),
            _ => None,
        };
        let scratch = lease.as_ref().map_or(0, |lease| self.address(lease));
        let sqe = self.part_command(parent, index, &work, (blocks, scratch));
        let tick = self.tick;
        let operation = self.table.slots[usize::from(parent)].operation;
        let cid = self
            .table
            .identifiers
            .next(self.table.slots[usize::from(index)].cid);
        let slot = &mut self.table.slots[usize::from(index)];
        slot.data = lease;
        slot.tag = u64::from(work.offset);
        slot.bytes = bytes;
        slot.submitted = tick;
        slot.cid = cid;
        slot.parent = parent;
        slot.operation = operation;
        slot.state = SlotState::Part;
        slot.queue = ORPHAN;
        slot.overdue = false;
        let work = &mut self.table.split_requests[usize::from(parent)];
        work.lba += u64::from(blocks);
        work.left -= blocks;
        work.offset = work.offset.wrapping_add(bytes);
        work.outstanding += 1;
        self.write(sqe.with_cid(cid));
    }

    /// The command for the next `blocks` blocks, with the device address `scratch` of its data if
    /// it does not use the request's data.
    fn part_command(
        &mut self,
        parent: u16,
        index: u16,
        work: &SplitRequest,
        (blocks, scratch): (u32, u64),
    ) -> Sqe {
        let SplitRequest { nsid, lba, .. } = *work;
        let bytes = u64::from(blocks) << work.shift;
        let operation = self.table.slots[usize::from(parent)].operation;
        let data = self.table.slots[usize::from(parent)].data.as_ref();
        let data = data.map(|lease| self.address(lease) + u64::from(work.offset));
        match work.kind {
            SplitKind::Transfer => {
                let sqe = match operation {
                    Operation::Write { fua } => Sqe::write(nsid, lba, zero_based(blocks), fua),
                    Operation::Compare => Sqe::compare(nsid, lba, zero_based(blocks)),
                    _ => Sqe::read(nsid, lba, zero_based(blocks)),
                };
                self.point_part(sqe, index, data.unwrap_or_default(), bytes)
            }
            SplitKind::Zeroes { fua, deallocate } => {
                let control = WriteZeroesControl::new()
                    .with_nlb_z(zero_based(blocks))
                    .with_deac(deallocate)
                    .with_fua(fua);
                Sqe::write_zeroes_range(nsid, lba, control)
            }
            SplitKind::WriteOfZeroes { fua } => {
                let zeroes = self.zeroes_address();
                let sqe = Sqe::write(nsid, lba, zero_based(blocks), fua);
                self.point_part(sqe, index, zeroes, bytes)
            }
            SplitKind::Deallocate => {
                let range: [u64; 2] = transmute!(DatasetRange::new(lba, blocks));
                let address = self.pointers.small(&self.memory, index, range);
                Sqe::deallocate(nsid, 0).with_prp(address, 0)
            }
            SplitKind::ReadAndCompare => {
                let sqe = Sqe::read(nsid, lba, zero_based(blocks));
                self.point_part(sqe, index, scratch, bytes)
            }
        }
    }

    fn point_part(&mut self, sqe: Sqe, index: u16, address: u64, bytes: u64) -> Sqe {
        self.pointers
            .point(sqe, &self.memory, index, address, bytes)
    }

    fn zeroes_address(&self) -> u64 {
        let memory = self.shared.memory.get();
        let zeroes = memory.and_then(|memory| memory.zeroes.as_ref());
        let zeroes = zeroes.expect("taken for drives without Write Zeroes");
        self.pointers.dma_base + zeroes.region_offset() as u64
    }

    fn take_scratch(&mut self) -> Option<DmaLease<NvmeDma>> {
        match std::mem::replace(&mut self.scratch, Scratch::Busy) {
            Scratch::Free(lease) => Some(lease.into_dma()),
            other => {
                self.scratch = other;
                None
            }
        }
    }

    /// Handles the completion of one command of a split request: continues or completes the
    /// request.
    pub(super) fn part_completed(&mut self, index: usize, result: Result<(), DeviceError>) {
        let part = &mut self.table.slots[index];
        let (parent, offset, bytes) = (usize::from(part.parent), part.tag, part.bytes);
        part.state = SlotState::Done;
        let own = part.take_data();
        self.table.release(index);
        let mut result = result;
        if let Some(scratch) = own {
            if result.is_ok() {
                result = self.compare_part(parent, offset as usize, &scratch[..bytes as usize]);
            }
            self.scratch = Scratch::Free(scratch);
        }
        let work = &mut self.table.split_requests[parent];
        work.outstanding -= 1;
        if let Err(error) = result {
            work.left = 0;
            work.result = work.result.and(Err(error));
        }
        if work.left > 0 {
            // The slot that was just freed is available for the next command.
            self.send_parts(parent as u16);
            self.wrote_parts = true;
        }
        let work = self.table.split_requests[parent];
        if work.outstanding == 0 {
            debug_assert_eq!(work.left, 0, "a request without a part in flight is over");
            self.finish(parent, work.result);
            self.next_compare();
        }
    }

    /// Compares data read from the drive with a part of a request's data.
    fn compare_part(
        &mut self,
        parent: usize,
        offset: usize,
        found: &[u8],
    ) -> Result<(), DeviceError> {
        let same = self.table.slots[parent].read_unposted(|data| {
            let wanted = data.get(offset..offset + found.len());
            wanted.is_some_and(|wanted| wanted == found)
        });
        if same == Some(true) {
            Ok(())
        } else {
            Err(DeviceError::CompareMismatch)
        }
    }
}

/// The way to execute a request, and the maximum number of blocks per command.
fn plan(operation: Operation, namespace_limits: &NamespaceLimits) -> (SplitKind, u32) {
    match operation {
        Operation::Read | Operation::Write { .. } | Operation::Flush => {
            (SplitKind::Transfer, namespace_limits.part_blocks)
        }
        Operation::Compare if namespace_limits.compare => {
            (SplitKind::Transfer, namespace_limits.part_blocks)
        }
        Operation::Compare => (SplitKind::ReadAndCompare, namespace_limits.scratch_blocks()),
        Operation::WriteZeroes { fua, deallocate } => match namespace_limits.zeroes_blocks {
            Some(blocks) => {
                let deallocate = deallocate && namespace_limits.zeroes_deallocate;
                (SplitKind::Zeroes { fua, deallocate }, blocks)
            }
            None => (
                SplitKind::WriteOfZeroes { fua },
                namespace_limits.written_blocks,
            ),
        },
        Operation::Deallocate => (SplitKind::Deallocate, namespace_limits.deallocate_blocks),
    }
}

impl NamespaceLimits {
    fn scratch_blocks(&self) -> u32 {
        self.scratch_bytes >> self.shift
    }
}
