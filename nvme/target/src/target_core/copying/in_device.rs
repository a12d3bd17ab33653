//! Copies whose data stays in memory of a device, such as a drive's controller memory buffer, and does
//! not enter the arena.
//!
//! The devices of all source ranges and of the destination allow it and reach one memory. A slice of it
//! holds the data of the whole Copy: each range is read to its place in the slice, and then the
//! destination is written by one request, as through the lease. The lease keeps the list of source
//! ranges meanwhile, so that a Copy whose data is lost, or whose request no device takes, starts again
//! through the lease. No memory is waited for.

use block::{DeviceError, NoDeviceMemory, Operation, Request};
use hugemem::{Data, DeviceLease};
use nvme_spec::command::CopyRange;
use zerocopy::FromBytes;

use super::{NO_LEASE, TargetCore, WRITES};
use crate::counters::HostPathReason;
use crate::io::{IoWork, overlaps};
use crate::status::Fault;
use crate::target_core::executions::DeviceTag;

/// The memory of an execution whose data is in a device.
pub(crate) struct DeviceData {
    pub(crate) lease: DeviceLease,
    /// Of a Copy: the place of the data of the latest request. Of a read or write: that of the first
    /// piece that is not submitted.
    pub(crate) offset: usize,
}

impl DeviceData {
    pub(crate) fn new(lease: DeviceLease) -> Self {
        Self { lease, offset: 0 }
    }

    /// No device has a request in the memory. Returns whether it is still valid.
    #[inline]
    pub(crate) fn complete(&mut self) -> bool {
        self.lease.complete();
        self.lease.is_valid()
    }
}

impl TargetCore {
    /// Takes memory of a device for the data of a Copy, if its devices allow it and there is any.
    pub(super) fn take_copy_memory(&mut self, tag: DeviceTag, work: &IoWork) {
        let own = 1 << work.device;
        if !self.devices.allow_device_memory(own) {
            return;
        }
        let devices = self.executions.extra(tag.slot).devices | own;
        let taken = match self.devices.allow_device_memory(devices) {
            false => Err(HostPathReason::SourceOnHostPath),
            true => {
                let taken = self.devices.take_device_memory(devices, work.blocks);
                taken.map_err(|why| match why {
                    NoDeviceMemory::Unreachable | NoDeviceMemory::Unusable => {
                        HostPathReason::Unreachable
                    }
                    NoDeviceMemory::TooSmall => HostPathReason::TooSmall,
                    NoDeviceMemory::Exhausted => HostPathReason::Exhausted,
                })
            }
        };
        match taken {
            Ok((lease, _)) => {
                let memory = DeviceData::new(lease);
                self.executions.extra(tag.slot).device_data = Some(memory);
            }
            Err(reason) => self.counters.copies[usize::from(work.device)].count_reason(reason),
        }
    }

    /// Ends the requests in flight of an execution whose data is in a device, after their completion.
    #[cold]
    pub(in crate::target_core) fn complete_in_device(&mut self, tag: DeviceTag) {
        if let Some(memory) = self.executions.device_data(tag) {
            memory.lease.complete();
        }
    }

    /// Gives up the memory of an execution whose requests never complete: their slices are lost,
    /// because the device may still access them.
    #[cold]
    pub(in crate::target_core) fn lose_device_data(&mut self, tag: DeviceTag) {
        if self.executions.device_data(tag).is_some() {
            self.executions.extra(tag.slot).device_data = None;
        }
        if self.is_in_device(tag)
            && let Some(execution) = self.executions.get_mut(tag)
        {
            execution.step = 0;
        }
    }

    /// Makes a Copy whose data is in a device start again through its lease, because its request has
    /// completed with an error. Returns false if the error would be the same, or the sources may have changed.
    #[cold]
    pub(in crate::target_core) fn restart_copy(
        &mut self,
        tag: DeviceTag,
        error: DeviceError,
    ) -> bool {
        if self.is_copied_by_drive(tag) {
            return self.restart_from_drive(tag, error);
        }
        let Some(memory) = self.executions.device_data(tag) else {
            return false;
        };
        memory.lease.complete();
        let is_of_memory = error.is_of_memory(memory.lease.is_valid());
        is_of_memory && self.use_lease(tag, HostPathReason::Failed)
    }

    /// Whether the data of a Copy is in a device. One whose data was lost there starts again through
    /// its lease.
    ///
    /// # Errors
    /// The data was lost, and the Copy cannot start again.
    pub(super) fn is_copied_in_device(&mut self, tag: DeviceTag) -> Result<bool, Fault> {
        let Some(memory) = self.executions.device_data(tag) else {
            return Ok(false);
        };
        memory.lease.complete();
        // A write that succeeded may have taken anything from a memory that has ended since.
        if memory.lease.is_valid() {
            return Ok(true);
        }
        match self.use_lease(tag, HostPathReason::Failed) {
            true => Ok(false),
            false => Err(NO_LEASE),
        }
    }

    /// Makes a Copy whose data is in a device start again through its lease. Returns false if it must
    /// not, because its write may have changed its sources.
    fn use_lease(&mut self, tag: DeviceTag, reason: HostPathReason) -> bool {
        let Some(execution) = self.executions.get(tag) else {
            return false;
        };
        let (work, step) = (execution.work, execution.step);
        let extra = self.executions.extra(tag.slot);
        let Some(Data::Lease(list)) = &extra.data else {
            return false;
        };
        let Ok(ranges) = <[CopyRange]>::ref_from_bytes(list) else {
            return false;
        };
        // Those of other namespaces do not overlap it, and format 2h allows no overlap.
        if step == WRITES
            && ranges
                .iter()
                .any(|range| overlaps(&work, work.blocks, range))
        {
            return false;
        }
        // At most 16.
        let count = ranges.len() as u16;
        extra.device_data = None;
        extra.may_be_written |= step == WRITES;
        if let Some(execution) = self.executions.get_mut(tag) {
            execution.step = count;
        }
        self.counters.copies[usize::from(work.device)].count_reason(reason);
        true
    }

    /// The read of the last of the `left` ranges that are not read yet, or the write, of a Copy whose
    /// data is in a device.
    pub(super) fn continue_in_device(
        &mut self,
        tag: DeviceTag,
        work: &IoWork,
        (left, fua): (u16, bool),
        slot: u32,
    ) -> Result<(u8, Request), Fault> {
        let Some(Data::Lease(list)) = &self.executions.extra(tag.slot).data else {
            return Err(NO_LEASE);
        };
        let ranges = <[CopyRange]>::ref_from_bytes(list).map_err(|_| NO_LEASE)?;
        let ranges = ranges.get(..usize::from(left)).ok_or(NO_LEASE)?;
        let next = ranges.split_last().map(|(next, before)| {
            let blocks_before: u32 = before.iter().map(CopyRange::blocks).sum();
            (*next, blocks_before)
        });
        let (device, operation, lba, blocks, blocks_before, step) = match next {
            Some((range, blocks_before)) => {
                let device = self.pass_source(slot, work, &range)?;
                let lba = range.slba.get();
                let read = Operation::Read;
                (device, read, lba, range.blocks(), blocks_before, left - 1)
            }
            None => {
                let write = Operation::Write { fua };
                (work.device, write, work.lba, work.blocks, 0, WRITES)
            }
        };
        let block_bytes = work.bytes as usize / work.blocks.max(1) as usize;
        let memory = self.executions.device_data(tag).ok_or(NO_LEASE)?;
        memory.offset = blocks_before as usize * block_bytes;
        if let Some(execution) = self.executions.get_mut(tag) {
            execution.step = step;
        }
        let request = Request {
            tag: tag.into_bits(),
            operation,
            lba,
            blocks,
            data: None,
        };
        Ok((device, request))
    }

    /// Submits a request of a Copy whose data is in a device. Returns false if no device takes it now:
    /// the Copy continues with the request of [`next_of_copy`](Self::next_of_copy).
    #[cold]
    pub(in crate::target_core) fn submit_in_device(
        &mut self,
        tag: DeviceTag,
        device: u8,
        request: Request,
    ) -> bool {
        if self.is_copied_by_drive(tag) {
            return self.submit_by_drive(tag, device, request);
        }
        let Some(memory) = self.executions.device_data(tag) else {
            return false;
        };
        let DeviceData { lease, offset } = memory;
        let place = usize::from(device);
        let submitted =
            (self.devices).submit_in_device(self.client, place, request, (lease, *offset), false);
        let reason = match submitted {
            Ok(true) => return true,
            Ok(false) => HostPathReason::Busy,
            Err(_) => HostPathReason::Failed,
        };
        // Nothing is written.
        if let Some(execution) = self.executions.get_mut(tag)
            && execution.step == WRITES
        {
            execution.step = 0;
        }
        self.use_lease(tag, reason);
        false
    }
}
