//! Pieces that the devices of a copy copy by themselves: one request to the destination, which names the
//! source. What they do not copy is copied by the next way, through memory of a device or the arena.

use arrayvec::ArrayVec;
use hugemem::Lease;

use super::{Access, CopyError, CopyStep, DEFERRED_RETRY_INTERVAL, InFlight, Job, Range, Way};
use crate::copier::{COPY_PIECE_SOURCES_MAX, OWN_COPY_FAILURES_MAX};
use crate::copying::{COPY_SOURCE_BYTES, CopyLimits, CopySource};
use crate::error::DeviceError;
use crate::request::{Operation, Refusal, Request};

impl Job {
    fn limits_by_device(&self, access: &Access<'_>) -> Option<CopyLimits> {
        let (source, destination) = (self.plan.source, self.plan.destination);
        access.set.copy_limits_between(source, destination)
    }

    /// How many blocks at the beginning of a range the devices copy by themselves; `None` if they copy none:
    /// it is not wanted, they cannot, or they failed, with this range or too often.
    pub(super) fn blocks_by_device(&self, range: Range, access: &Access<'_>) -> Option<u32> {
        let is_tried = self.plan.by_device
            && self.again.is_empty()
            && self.own_copy_failures < OWN_COPY_FAILURES_MAX;
        let limits = is_tried.then(|| self.limits_by_device(access)).flatten()?;
        let most = limits.consecutive_blocks(COPY_PIECE_SOURCES_MAX);
        let blocks = u64::from(most.min(self.piece_blocks)).min(range.blocks) as u32;
        (blocks > 0).then_some(blocks)
    }

    /// Begins a piece that the devices copy. Returns false if there is no memory for the list of its sources.
    pub(super) fn begin_by_device(
        &mut self,
        index: usize,
        range: (u64, u32),
        access: &Access<'_>,
    ) -> bool {
        let bytes = COPY_PIECE_SOURCES_MAX as usize * COPY_SOURCE_BYTES;
        let Some(list) = self.take_memory(range, bytes, access) else {
            return false;
        };
        self.take_blocks(range.1);
        self.submit_by_device(index, range, list, access);
        true
    }

    /// The source ranges of a piece: as few as its devices allow.
    fn sources(
        &self,
        (block, blocks): (u64, u32),
        limits: &CopyLimits,
    ) -> ArrayVec<CopySource, { COPY_PIECE_SOURCES_MAX as usize }> {
        let mut sources = ArrayVec::new();
        let (mut lba, mut left) = (self.plan.first_block + block, blocks);
        while left > 0 && !sources.is_full() {
            let blocks = left.min(limits.source_blocks_max.max(1));
            sources.push(CopySource { lba, blocks });
            lba += u64::from(blocks);
            left -= blocks;
        }
        sources
    }

    pub(super) fn submit_by_device(
        &mut self,
        index: usize,
        (block, blocks): (u64, u32),
        list: Lease,
        access: &Access<'_>,
    ) {
        let mut in_flight = InFlight {
            step: CopyStep::Copy,
            block,
            blocks,
            since: access.now,
            waiting: None,
            deferred_until: None,
        };
        let Some(limits) = self.limits_by_device(access) else {
            // The source or the destination has changed meanwhile.
            self.failed_by_device(&in_flight, DeviceError::Unsupported, access);
            return;
        };
        let request = Request {
            tag: self.tag(index),
            operation: Operation::Write { fua: false },
            lba: self.plan.first_block + block,
            blocks,
            data: Some(list),
        };
        let places = (self.plan.source, self.plan.destination);
        let sources = self.sources((block, blocks), &limits);
        match access
            .set
            .submit_copy_from(access.client, places, request, (&sources, 0))
        {
            Ok(()) => self.pieces[index] = Some(in_flight),
            Err(Refusal::Later(request)) => {
                in_flight.deferred_until = Some(access.now + DEFERRED_RETRY_INTERVAL);
                self.lists[index] = request.data;
                self.pieces[index] = Some(in_flight);
            }
            Err(Refusal::Never(_, error)) => self.failed_by_device(&in_flight, error, access),
        }
    }

    /// Leaves a piece that its devices have not copied to the next way. The error is that of the copy if the
    /// next way would have the same one, or the drive may still execute the request.
    pub(super) fn failed_by_device(
        &mut self,
        piece: &InFlight,
        error: DeviceError,
        access: &Access<'_>,
    ) {
        let is_final = matches!(
            error,
            DeviceError::Removed | DeviceError::Aborted | DeviceError::Damaged
        );
        if self.leave_to(Way::DeviceMemory, piece, (error, !is_final), access) {
            self.own_copy_failures += 1;
            self.progress.count_own_copy_failure();
        }
    }

    /// Leaves a piece that has failed to a way, if that `has` another result, and the piece is still wanted.
    /// Otherwise, fails the copy and returns false.
    pub(super) fn leave_to(
        &mut self,
        way: Way,
        piece: &InFlight,
        (error, has): (DeviceError, bool),
        access: &Access<'_>,
    ) -> bool {
        if !has || !self.wants(piece.block) || self.again.is_full() {
            self.piece_failed(piece, CopyError::Device(error), access);
            return false;
        }
        let range = Range {
            block: piece.block,
            blocks: u64::from(piece.blocks),
            way,
        };
        let place = self.again.partition_point(|it| it.block < range.block);
        self.again.insert(place, range);
        true
    }

    /// Drops ranges for the next way that are not wanted any more.
    pub(super) fn lose_unwanted(&mut self) {
        for index in (0..self.again.len()).rev() {
            if !self.wants(self.again[index].block) {
                let range = self.again.remove(index);
                self.lose(range.block);
            }
        }
    }

    /// Drops all ranges for the next way.
    pub(super) fn lose_again(&mut self) {
        while let Some(range) = self.again.pop() {
            self.lose(range.block);
        }
    }
}
