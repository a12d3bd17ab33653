//! Copies that a drive executes by itself: one request with the source ranges, and no data moves.
//!
//! Only those whose sources are all of one device, the destination or another namespace of its drive, if
//! both allow other ways than through the arena, and whose ranges are within the drive's limits and do not
//! overlap the destination. The latter makes it safe to start again: a drive that fails may have written
//! any part of the destination, but no source. So a failed one takes the way through the lease, whose
//! result is the result of the command.

use arrayvec::ArrayVec;
use block::{COPY_SOURCE_BYTES, CopyLimits, CopySource, DeviceError, Operation, Refusal, Request};
use hugemem::{Data, Lease};
use nvme_spec::command::CopyRange;
use zerocopy::FromBytes;

use super::{NO_LEASE, TargetCore, WRITES};
use crate::counters::HostPathReason;
use crate::io::{COPY_RANGES_MAX, IoOperation, IoWork};
use crate::status::Fault;
use crate::target_core::executions::DeviceTag;

// The lease keeps the list of the host, and behind it that of the device. It has room for the data, of
// which each range has a block at least.
const _: () = assert!(size_of::<CopyRange>() + COPY_SOURCE_BYTES <= crate::io::BLOCK_BYTES_MIN);

type Sources = ArrayVec<CopySource, COPY_RANGES_MAX>;

/// The source ranges of a checked Copy, whose list is at the beginning of its lease.
fn sources(list: &[u8]) -> Sources {
    let ranges = <[CopyRange]>::ref_from_bytes(list).unwrap_or_default();
    let source = |range: &CopyRange| CopySource {
        lba: range.slba.get(),
        blocks: range.blocks(),
    };
    ranges.iter().take(COPY_RANGES_MAX).map(source).collect()
}

/// Whether a drive takes a copy of these sources of a device, and can be trusted with it: none of them may be
/// in the range that is written.
fn fits(sources: &Sources, device: u8, work: &IoWork, limits: &CopyLimits) -> bool {
    let end = work.lba + u64::from(work.blocks);
    let overlaps = |it: &CopySource| {
        let source_end = it.lba.saturating_add(u64::from(it.blocks));
        device == work.device && it.lba < end && work.lba < source_end
    };
    sources.len() <= limits.sources_max as usize
        && work.blocks <= limits.blocks_max
        && sources
            .iter()
            .all(|it| it.blocks <= limits.source_blocks_max && !overlaps(it))
}

impl TargetCore {
    /// Whether the drive of a Copy executes it by itself. Its list of source ranges is there.
    pub(super) fn may_copy_by_drive(&mut self, tag: DeviceTag, work: &IoWork) -> bool {
        if !self.devices.allow_device_memory(1 << work.device) {
            return false;
        }
        let Some(source) = self.only_source(tag) else {
            return false;
        };
        let places = (usize::from(source), usize::from(work.device));
        let Some(limits) = self.devices.copy_limits(places.0, places.1) else {
            return false;
        };
        let Some(Data::Lease(list)) = &self.executions.extra(tag.slot).data else {
            return false;
        };
        fits(&sources(list), source, work, &limits)
    }

    /// The device of all sources of a Copy; `None` if they are of several ones.
    fn only_source(&mut self, tag: DeviceTag) -> Option<u8> {
        let devices = self.executions.extra(tag.slot).devices;
        // At most 127.
        (devices.count_ones() == 1).then(|| devices.trailing_zeros() as u8)
    }

    /// Whether the drive executes a Copy by itself.
    pub(super) fn is_copied_by_drive(&mut self, tag: DeviceTag) -> bool {
        self.executions.extra(tag.slot).by_drive
    }

    /// The request of a Copy that the drive executes by itself.
    pub(super) fn continue_by_drive(
        &mut self,
        tag: DeviceTag,
        work: &IoWork,
        fua: bool,
        slot: u32,
    ) -> Result<(u8, Request), Fault> {
        let Some(Data::Lease(list)) = &self.executions.extra(tag.slot).data else {
            return Err(NO_LEASE);
        };
        let mut ranges = [CopyRange::default(); COPY_RANGES_MAX];
        let listed = <[CopyRange]>::ref_from_bytes(list).map_err(|_| NO_LEASE)?;
        let ranges = ranges.get_mut(..listed.len()).ok_or(NO_LEASE)?;
        ranges.copy_from_slice(listed);
        let source = self.only_source(tag).ok_or(NO_LEASE)?;
        for range in &*ranges {
            if self.pass_source(slot, work, range)? != source {
                return Err(NO_LEASE);
            }
        }
        if let Some(execution) = self.executions.get_mut(tag) {
            execution.step = WRITES;
        }
        let request = Request {
            tag: tag.into_bits(),
            operation: Operation::Write { fua },
            lba: work.lba,
            blocks: work.blocks,
            data: None,
        };
        Ok((work.device, request))
    }

    /// Submits the request of a Copy that the drive executes by itself. Returns false if the drive does
    /// not take it: the Copy continues with another way.
    pub(super) fn submit_by_drive(
        &mut self,
        tag: DeviceTag,
        device: u8,
        mut request: Request,
    ) -> bool {
        let Some(Data::Lease(mut list)) = self.executions.extra(tag.slot).data.take() else {
            return false;
        };
        let (sources, list_bytes) = (sources(&list), list.len());
        list.resize(list_bytes + sources.len() * COPY_SOURCE_BYTES);
        request.data = Some(list);
        let source = usize::from(self.only_source(tag).unwrap_or(device));
        let place = usize::from(device);
        let copy = (&sources[..], list_bytes);
        let submitted = match source == place {
            true => (self.devices).submit_copy(self.client, place, request, copy),
            false => (self.devices).submit_copy_from(self.client, (source, place), request, copy),
        };
        let (request, reason) = match submitted {
            Ok(()) => return true,
            Err(Refusal::Later(request)) => (request, HostPathReason::Busy),
            Err(Refusal::Never(request, _)) => (request, HostPathReason::Failed),
        };
        self.take_other_way(tag, request.data, reason);
        false
    }

    /// Keeps the list of source ranges of a Copy that has failed in its drive.
    #[cold]
    pub(in crate::target_core) fn keep_copy_list(
        &mut self,
        tag: DeviceTag,
        data: &mut Option<Data>,
    ) {
        if self.executions.get(tag).is_some() && self.is_copied_by_drive(tag) {
            self.executions.extra(tag.slot).data = data.take();
        }
    }

    /// Makes a Copy that has failed in its drive start again through its lease. Returns false if the error
    /// would be the same, or the drive may still execute it.
    pub(super) fn restart_from_drive(&mut self, tag: DeviceTag, error: DeviceError) -> bool {
        match error {
            DeviceError::Removed | DeviceError::Aborted | DeviceError::Damaged => return false,
            DeviceError::MediaRead
            | DeviceError::MediaWrite
            | DeviceError::NoSpace
            | DeviceError::ReadOnly
            | DeviceError::OutOfRange
            | DeviceError::Unaligned
            | DeviceError::CompareMismatch
            | DeviceError::Interrupted
            | DeviceError::Unsupported
            | DeviceError::Internal => {}
        }
        let lease = match self.executions.extra(tag.slot).data.take() {
            Some(Data::Lease(lease)) => Some(lease),
            Some(Data::Borrow(_)) | None => None,
        };
        self.executions.extra(tag.slot).may_be_written = true;
        self.take_other_way(tag, lease, HostPathReason::Failed)
    }

    /// Makes a Copy start again through its lease. Returns false if that is lost.
    fn take_other_way(
        &mut self,
        tag: DeviceTag,
        lease: Option<Lease>,
        reason: HostPathReason,
    ) -> bool {
        let Some(execution) = self.executions.get_mut(tag) else {
            return false;
        };
        let (IoOperation::Copy { ranges, .. }, Some(mut list)) = (execution.work.operation, lease)
        else {
            return false;
        };
        execution.step = u16::from(ranges);
        let device = execution.work.device;
        list.resize(usize::from(ranges) * size_of::<CopyRange>());
        let extra = self.executions.extra(tag.slot);
        extra.by_drive = false;
        extra.data = Some(list.into());
        self.counters.copies[usize::from(device)].count_reason(reason);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CopyLimits = CopyLimits {
        sources_max: 2,
        source_blocks_max: 8,
        blocks_max: 12,
    };

    const COPY: IoWork = IoWork {
        operation: IoOperation::Copy {
            ranges: 1,
            fua: false,
            names_sources: false,
        },
        device: 0,
        blocks: 1,
        lba: 0,
        bytes: 512,
        nsid: 1,
        epoch: 0,
    };

    fn sources_of(list: &[(u64, u32)]) -> Sources {
        let source = |(lba, blocks): &(u64, u32)| CopySource {
            lba: *lba,
            blocks: *blocks,
        };
        list.iter().map(source).collect()
    }

    #[test]
    fn drive_gets_no_copy_beyond_its_limits_or_over_its_sources() {
        let fits_at = |lba, list: &[(u64, u32)]| {
            let blocks = list.iter().map(|(_, blocks)| blocks).sum();
            let work = IoWork {
                lba,
                blocks,
                ..COPY
            };
            fits(&sources_of(list), work.device, &work, &LIMITS)
        };
        assert!(fits_at(100, &[(0, 8), (8, 4)]));
        assert!(!fits_at(100, &[(0, 9)]), "a range");
        assert!(!fits_at(100, &[(0, 8), (8, 5)]), "all blocks");
        assert!(!fits_at(100, &[(0, 1), (8, 1), (9, 1)]), "ranges");
        // The destination is behind the source, overlaps it, and is before it.
        assert!(fits_at(8, &[(0, 8)]));
        assert!(!fits_at(7, &[(0, 8)]));
        assert!(!fits_at(0, &[(20, 4), (7, 8)]));
        assert!(fits_at(0, &[(20, 4), (12, 8)]));
        let none = CopyLimits {
            sources_max: 0,
            ..LIMITS
        };
        let work = IoWork {
            lba: 100,
            blocks: 1,
            ..COPY
        };
        assert!(!fits(&sources_of(&[(0, 1)]), work.device, &work, &none));
        // The same blocks of another device.
        let sources = sources_of(&[(100, 1)]);
        assert!(fits(&sources, work.device + 1, &work, &LIMITS));
        assert!(!fits(&sources, work.device, &work, &LIMITS));
    }
}
