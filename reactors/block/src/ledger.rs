//! Accounting of every queue in this crate: admission, requests in flight, completions that were
//! not polled yet, and counters.

use std::collections::VecDeque;

use hugemem::Data;

use crate::device::{Drain, Geometry, QUEUE_DEPTH_MAX};
use crate::error::{DeviceError, OpenError};
use crate::health::QueueCounters;
use crate::request::{Completion, CompletionBatch, Operation, Refusal, Request};

pub(crate) struct Ledger {
    ready: VecDeque<Completion>,
    in_flight: usize,
    /// Number of requests in flight that do not count against the depth.
    deferred: usize,
    /// Requests that have ended although the layer below still has their operation. They count
    /// against the depth.
    ended_early: usize,
    depth: usize,
    closing: bool,
    lends_reads: bool,
    geometry: Geometry,
    counters: QueueCounters,
}

/// Checks a queue's depth.
pub(crate) fn check_depth(depth: usize) -> Result<(), OpenError> {
    if (1..=QUEUE_DEPTH_MAX).contains(&depth) {
        Ok(())
    } else {
        Err(OpenError::Depth {
            depth,
            max: QUEUE_DEPTH_MAX,
        })
    }
}

impl Ledger {
    pub(crate) fn new(
        depth: usize,
        geometry: Geometry,
        lends_reads: bool,
        counters: QueueCounters,
    ) -> Result<Self, OpenError> {
        check_depth(depth)?;
        let ready = VecDeque::with_capacity(depth);
        Ok(Self {
            ready,
            in_flight: 0,
            deferred: 0,
            ended_early: 0,
            depth,
            closing: false,
            lends_reads,
            geometry,
            counters,
        })
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Replaces the geometry.
    pub(crate) fn set_geometry(&mut self, geometry: Geometry) {
        self.geometry = geometry;
    }

    /// Admits a request, which [`end`](Self::end) must end later, or refuses it.
    pub(crate) fn admit(&mut self, request: Request) -> Result<Request, Refusal> {
        if self.closing {
            return Err(Refusal::Never(request, DeviceError::Removed));
        }
        if let Err(error) = request.check(&self.geometry, self.lends_reads) {
            return Err(Refusal::Never(request, error));
        }
        if !self.has_room() {
            return Err(Refusal::Later(request));
        }
        self.in_flight += 1;
        Ok(request)
    }

    /// Whether fewer requests than the depth are in flight and not deferred.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight - self.deferred + self.ended_early < self.depth
    }

    /// Ends a request although the layer below still has its operation.
    pub(crate) fn end_early(&mut self, ended: EndedRequest) {
        self.ended_early += 1;
        self.end(ended, Err(DeviceError::Aborted), None);
    }

    /// The layer below completed the operation of a request that has ended before.
    pub(crate) fn operation_returned(&mut self) {
        self.ended_early -= 1;
    }

    /// A request in flight waits inside the device and does not count against the depth.
    pub(crate) fn defer(&mut self) {
        self.deferred += 1;
    }

    /// A deferred request is about to end.
    pub(crate) fn undefer(&mut self) {
        self.deferred -= 1;
    }

    /// Counts a completed request and queues its completion for the next poll.
    pub(crate) fn end(
        &mut self,
        ended: EndedRequest,
        result: Result<(), DeviceError>,
        data: Option<Data>,
    ) {
        self.counters
            .completed(ended.operation, ended.bytes, result);
        debug_assert!(self.ready.len() < self.in_flight, "more ends than requests");
        self.ready.push_back(Completion {
            tag: ended.tag,
            result,
            data,
        });
    }

    /// The byte range of a read that could complete without admission; `None` if it would be
    /// refused.
    #[inline]
    pub(crate) fn readable_range(&self, lba: u64, blocks: u32) -> Option<(usize, usize)> {
        let Geometry {
            block_size,
            block_count,
            max_transfer_blocks,
            ..
        } = self.geometry;
        let in_range = lba
            .checked_add(u64::from(blocks))
            .is_some_and(|end| end <= block_count);
        if self.closing || blocks == 0 || blocks > max_transfer_blocks || !in_range {
            return None;
        }
        let block_bytes = u64::from(block_size);
        let len = usize::try_from(u64::from(blocks) * block_bytes).ok()?;
        Some((usize::try_from(lba * block_bytes).ok()?, len))
    }

    /// Counts a read that completed without admission.
    #[inline]
    pub(crate) fn count_read(&self, bytes: usize) {
        self.counters
            .completed(Operation::Read, bytes as u64, Ok(()));
    }

    /// The first byte of a write that could complete without admission; `None` if it would be
    /// refused.
    #[inline]
    pub(crate) fn writable_offset(&self, lba: u64, bytes: usize) -> Option<usize> {
        let blocks = u32::try_from(bytes).ok()? / self.geometry.block_size;
        let (offset, len) = self.readable_range(lba, blocks)?;
        (len == bytes && !self.geometry.read_only).then_some(offset)
    }

    /// Counts a write that completed without admission.
    #[inline]
    pub(crate) fn count_write(&self, bytes: usize) {
        let operation = Operation::Write { fua: false };
        self.counters.completed(operation, bytes as u64, Ok(()));
    }

    /// Counts the bytes of a part of a write.
    pub(crate) fn count_placed_bytes(&self, bytes: usize) {
        self.counters.count_partial_write(bytes as u64);
    }

    /// Counts a request that has to wait inside the device.
    pub(crate) fn waited(&self) {
        self.counters.waited();
    }

    /// Moves completions to the batch, as many as it has room for.
    pub(crate) fn take_ready(&mut self, completions: &mut CompletionBatch) -> usize {
        let count = completions.remaining_capacity().min(self.ready.len());
        completions.extend(self.ready.drain(..count));
        self.in_flight -= count;
        count
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Requests and operations that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight + self.ended_early
    }

    pub(crate) fn drain(&mut self) -> Drain {
        self.closing = true;
        match self.in_flight() {
            0 => Drain::Done,
            left => Drain::Outstanding(left),
        }
    }
}

/// The parts of a request that its completion and the counters need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRequest {
    pub(crate) tag: u64,
    pub(crate) operation: Operation,
    pub(crate) bytes: u64,
}

impl EndedRequest {
    pub(crate) fn of(request: &Request, geometry: &Geometry) -> Self {
        let bytes = u64::from(request.blocks) * u64::from(geometry.block_size);
        Self {
            tag: request.tag,
            operation: request.operation,
            bytes,
        }
    }
}
