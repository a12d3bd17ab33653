//! One copy: its pieces, and the transitions of its state.

mod by_device;
mod in_device;

use arrayvec::ArrayVec;
use std::sync::Arc;

use hugemem::{Data, DeviceLease, Lease};
use reactors::Nanos;

use super::{
    Access, COPY_MEMORY_TIME_MAX, COPY_PIECES_MAX, COPY_REQUEST_TIME_MAX, CopyEnd, CopyError,
    CopyFailure, CopyPlan, CopyProgress, CopyStart, CopyStep, CopyStop, PIECE_BITS,
};
use crate::device::GIVEN_UP_MAX;
use crate::error::DeviceError;
use crate::request::{Completion, Operation, Request};
use crate::set::{Submitted, WaitingId};

/// Interval of the attempts to get memory.
const MEMORY_RETRY_INTERVAL: Nanos = Nanos::from_millis(1);
/// Interval of the attempts to submit a request whose data is in the device.
const DEFERRED_RETRY_INTERVAL: Nanos = Nanos::from_micros(50);
/// Interval in which overdue requests are ended by force.
const ABANDON_INTERVAL: Nanos = Nanos::from_secs(1);
/// Maximum number of ranges that are copied again: by two ways, from the pieces that were in flight together.
const AGAIN_MAX: usize = 2 * COPY_PIECES_MAX;

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Pieces are read and written. Woken by completions, and while it has no memory by time.
    Copying,
    /// The destination is flushed. Woken by the completion of the flush.
    Flushing,
    /// No request is begun, except for those of pieces before a failed one. Woken by the completions
    /// of the requests in flight; those that remain at `abandon_at` are ended by force.
    Stopping { cause: CopyStop, abandon_at: Nanos },
    /// The result is reported, and no request is in flight.
    Ended,
}

/// The request of a piece.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    step: CopyStep,
    /// From the beginning of the range.
    block: u64,
    blocks: u32,
    since: Nanos,
    /// Set if the device did not take it at once.
    waiting: Option<WaitingId>,
    /// For data in the device and its own copies: when it is submitted again, because the device did not
    /// take it.
    deferred_until: Option<Nanos>,
}

/// The first way that is left for a range. Those behind it are left, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The devices copy by themselves.
    ByDevice,
    /// The data is in memory of one of the devices.
    DeviceMemory,
    /// The data is in the arena.
    Arena,
}

/// Blocks from the beginning of the range of the copy.
#[derive(Clone, Copy, Debug)]
struct Range {
    block: u64,
    blocks: u64,
    way: Way,
}

pub(super) struct Job {
    number: u32,
    plan: CopyPlan,
    piece_blocks: u32,
    progress: Arc<CopyProgress>,
    began: Nanos,
    phase: Phase,
    pieces: [Option<InFlight>; COPY_PIECES_MAX],
    /// The memory of pieces whose data is in the device.
    device_leases: [Option<DeviceLease>; COPY_PIECES_MAX],
    /// The lists of sources of the devices' own copies that they have not taken yet.
    lists: [Option<Lease>; COPY_PIECES_MAX],
    /// Ranges that are copied again by the next way, in the order of their blocks. Meanwhile, the devices
    /// begin no copies by themselves, and while one is left to the arena, no piece begins in memory of
    /// devices: so each piece in flight finds room, besides those before it.
    again: ArrayVec<Range, AGAIN_MAX>,
    /// Failures of copies by the devices.
    own_copy_failures: u32,
    /// Failures of pieces in memory of devices.
    device_memory_failures: u32,
    /// First block that no piece has had, from the beginning of the range.
    next: u64,
    /// The lowest block that was in a piece and is not going to be written, from the beginning of
    /// the range.
    lost: Option<u64>,
    /// Since when there is no memory, and the time of the last attempt.
    without_memory: Option<(Nanos, Nanos)>,
}

impl Job {
    pub(super) fn new(start: CopyStart, piece_bytes: usize, now: Nanos) -> Self {
        let CopyStart {
            number,
            plan,
            progress,
        } = start;
        let fits = u32::try_from(piece_bytes).unwrap_or(u32::MAX) / plan.block_bytes.max(1);
        Self {
            number,
            plan,
            piece_blocks: fits.min(plan.max_transfer_blocks).max(1),
            progress,
            began: now,
            phase: Phase::Copying,
            pieces: [None; COPY_PIECES_MAX],
            device_leases: [const { None }; COPY_PIECES_MAX],
            lists: [const { None }; COPY_PIECES_MAX],
            again: ArrayVec::new(),
            own_copy_failures: 0,
            device_memory_failures: 0,
            next: 0,
            lost: None,
            without_memory: None,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    pub(super) fn uses(&self, place: usize) -> bool {
        [self.plan.source, self.plan.destination].contains(&place)
    }

    /// Begins what can be begun. Returns the amount of work done.
    pub(super) fn advance(&mut self, access: &Access<'_>) -> usize {
        self.check_deadlines(access);
        self.submit_deferred(access);
        match self.phase {
            Phase::Copying | Phase::Stopping { .. } => self.begin_pieces(access),
            Phase::Flushing | Phase::Ended => 0,
        }
    }

    fn begin_pieces(&mut self, access: &Access<'_>) -> usize {
        let mut begun = 0;
        for index in 0..COPY_PIECES_MAX {
            if self.pieces[index].is_some() {
                continue;
            }
            let Some(range) = self.next_range() else {
                break;
            };
            if !self.begin_piece(index, range, access) {
                break;
            }
            begun += 1;
        }
        if self.phase == Phase::Copying && !self.has_more() && self.is_idle() {
            self.phase = Phase::Flushing;
            self.submit(0, CopyStep::Flush, (0, 0), None, access);
            begun += 1;
        }
        begun
    }

    /// What is to be begun next.
    fn next_range(&self) -> Option<Range> {
        let left = self.plan.blocks - self.next;
        let rest = (self.phase == Phase::Copying && left > 0).then_some(Range {
            block: self.next,
            blocks: left,
            way: Way::ByDevice,
        });
        self.again.first().copied().or(rest)
    }

    /// Takes the first blocks of the range that is to be begun next.
    fn take_blocks(&mut self, blocks: u32) {
        let blocks = u64::from(blocks);
        let Some(again) = self.again.first_mut() else {
            self.next += blocks;
            return;
        };
        again.block += blocks;
        again.blocks -= blocks;
        if again.blocks == 0 {
            self.again.remove(0);
        }
    }

    /// Begins a piece at the beginning of the range. Returns false if there is no memory for it.
    fn begin_piece(&mut self, index: usize, range: Range, access: &Access<'_>) -> bool {
        if let Some(blocks) = self.blocks_by_device(range, access) {
            return self.begin_by_device(index, (range.block, blocks), access);
        }
        let blocks = u64::from(self.piece_blocks).min(range.blocks) as u32;
        let (blocks, data) = match self.take_device_memory(access) {
            Some((lease, most)) => {
                self.device_leases[index] = Some(lease);
                (blocks.min(most), None)
            }
            None => {
                let bytes = blocks as usize * self.plan.block_bytes as usize;
                let Some(lease) = self.take_memory((range.block, blocks), bytes, access) else {
                    return false;
                };
                (blocks, Some(lease))
            }
        };
        self.take_blocks(blocks);
        self.submit(index, CopyStep::Read, (range.block, blocks), data, access);
        true
    }

    /// Submits requests again that the device did not take.
    fn submit_deferred(&mut self, access: &Access<'_>) {
        for index in 0..COPY_PIECES_MAX {
            let is_due = |it: &mut InFlight| it.deferred_until.is_some_and(|at| access.now >= at);
            let Some(piece) = self.pieces[index].take_if(is_due) else {
                continue;
            };
            if self.wants(piece.block) {
                let range = (piece.block, piece.blocks);
                match self.lists[index].take() {
                    Some(list) => self.submit_by_device(index, range, list, access),
                    None => self.submit(index, piece.step, range, None, access),
                }
                if let Some(again) = &mut self.pieces[index] {
                    again.since = piece.since;
                }
            } else {
                self.drop_memory(index);
                self.lose(piece.block);
                self.end_if_stopped(access);
            }
        }
    }

    fn drop_memory(&mut self, index: usize) {
        self.device_leases[index] = None;
        self.lists[index] = None;
    }

    /// Memory for a piece. Fails the copy if there has been none for too long.
    fn take_memory(
        &mut self,
        (block, blocks): (u64, u32),
        bytes: usize,
        access: &Access<'_>,
    ) -> Option<Lease> {
        let is_idle = self.is_idle();
        // What others wait for is left to them, unless the copy would stand still.
        let may_take = is_idle || !access.pool.is_waited_for(bytes);
        let lease = may_take.then(|| access.pool.take(bytes)).flatten();
        if lease.is_some() {
            self.without_memory = None;
            return lease;
        }
        self.progress.count_memory_wait();
        let since = match self.without_memory {
            Some((since, _)) if is_idle => since,
            _ => access.now,
        };
        self.without_memory = Some((since, access.now));
        if access.now >= since + COPY_MEMORY_TIME_MAX {
            let failure = self.failure(CopyStep::Read, block, blocks, CopyError::NoMemory);
            self.stop(CopyStop::Failed(failure), access);
        }
        None
    }

    fn submit(
        &mut self,
        index: usize,
        step: CopyStep,
        (block, blocks): (u64, u32),
        data: Option<Lease>,
        access: &Access<'_>,
    ) {
        let (place, operation) = match step {
            CopyStep::Read => (self.plan.source, Operation::Read),
            CopyStep::Write | CopyStep::Copy => {
                (self.plan.destination, Operation::Write { fua: false })
            }
            CopyStep::Flush => (self.plan.destination, Operation::Flush),
        };
        let request = Request {
            tag: self.tag(index),
            operation,
            lba: match step {
                CopyStep::Read | CopyStep::Write | CopyStep::Copy => self.plan.first_block + block,
                CopyStep::Flush => 0,
            },
            blocks,
            data,
        };
        let mut in_flight = InFlight {
            step,
            block,
            blocks,
            since: access.now,
            waiting: None,
            deferred_until: None,
        };
        if let Some(lease) = &mut self.device_leases[index] {
            let submitted =
                (access.set).submit_in_device(access.client, place, request, (lease, 0), false);
            match submitted {
                Ok(is_taken) => {
                    let again = access.now + DEFERRED_RETRY_INTERVAL;
                    in_flight.deferred_until = (!is_taken).then_some(again);
                    self.pieces[index] = Some(in_flight);
                }
                Err(error) => {
                    let is_valid = lease.is_valid();
                    self.device_leases[index] = None;
                    self.failed_in_device(&in_flight, (error, is_valid), access);
                }
            }
            return;
        }
        match access.set.submit(access.client, place, request) {
            Ok(Submitted::Taken) => self.pieces[index] = Some(in_flight),
            Ok(Submitted::Waiting(waiting)) => {
                in_flight.waiting = Some(waiting);
                self.pieces[index] = Some(in_flight);
            }
            Err(error) => self.piece_failed(&in_flight, CopyError::Device(error), access),
        }
    }

    /// Continues with a piece whose request has completed.
    pub(super) fn completed(&mut self, index: usize, completion: Completion, access: &Access<'_>) {
        let Some(done) = self.pieces.get_mut(index).and_then(Option::take) else {
            return;
        };
        if let Some(lease) = &mut self.device_leases[index] {
            lease.complete();
        }
        let in_device = self.device_leases[index]
            .as_ref()
            .map(DeviceLease::is_valid);
        match (completion.result, done.step, completion.data) {
            (Err(error), CopyStep::Copy, _) => self.failed_by_device(&done, error, access),
            (Ok(()), CopyStep::Copy, _) => {
                self.progress.add_copied_by_device(u64::from(done.blocks));
            }
            (Err(error), ..) => match in_device {
                Some(is_valid) => self.failed_in_device(&done, (error, is_valid), access),
                None => self.piece_failed(&done, CopyError::Device(error), access),
            },
            (Ok(()), CopyStep::Read, None) if in_device == Some(true) => {
                self.write_piece(index, &done, None, access);
            }
            // The device that has the memory was reset, and the data is lost. If another one was
            // written, its blocks have any content now.
            (Ok(()), CopyStep::Read | CopyStep::Write, None) if in_device == Some(false) => {
                let lost = (DeviceError::Interrupted, false);
                self.failed_in_device(&done, lost, access);
            }
            (Ok(()), CopyStep::Read, Some(Data::Lease(lease))) => {
                self.write_piece(index, &done, Some(lease), access);
            }
            // Only a completion of an abandoned request has no data.
            (Ok(()), CopyStep::Read, _) => {
                self.piece_failed(&done, CopyError::Device(DeviceError::Internal), access);
            }
            (Ok(()), CopyStep::Write, _) => {
                let blocks = u64::from(done.blocks);
                self.progress.add_written(blocks, in_device.is_some());
            }
            (Ok(()), CopyStep::Flush, _) => self.end(CopyEnd::Complete, access),
        }
        if self.pieces[index].is_none() {
            self.device_leases[index] = None;
        }
        self.end_if_stopped(access);
    }

    /// Writes a piece that was read, if it is still wanted.
    fn write_piece(
        &mut self,
        index: usize,
        read: &InFlight,
        data: Option<Lease>,
        access: &Access<'_>,
    ) {
        if self.wants(read.block) {
            let range = (read.block, read.blocks);
            self.submit(index, CopyStep::Write, range, data, access);
        } else {
            self.lose(read.block);
        }
    }

    /// Whether a piece that was read is written.
    fn wants(&self, block: u64) -> bool {
        match self.phase {
            Phase::Copying => true,
            Phase::Stopping {
                cause: CopyStop::Failed(failure),
                ..
            } => self.plan.first_block + block < failure.first_block,
            Phase::Flushing | Phase::Stopping { .. } | Phase::Ended => false,
        }
    }

    fn lose(&mut self, block: u64) {
        self.lost = Some(self.lost.map_or(block, |lost| lost.min(block)));
    }

    fn failure(&self, step: CopyStep, block: u64, blocks: u32, error: CopyError) -> CopyFailure {
        let (block, blocks) = match step {
            CopyStep::Read | CopyStep::Write | CopyStep::Copy => (block, u64::from(blocks)),
            CopyStep::Flush => (0, self.plan.blocks),
        };
        CopyFailure {
            step,
            first_block: self.plan.first_block + block,
            blocks,
            error,
        }
    }

    fn piece_failed(&mut self, piece: &InFlight, error: CopyError, access: &Access<'_>) {
        if piece.step != CopyStep::Flush {
            self.lose(piece.block);
        }
        let failure = |error| self.failure(piece.step, piece.block, piece.blocks, error);
        let failed = match &self.phase {
            Phase::Copying | Phase::Flushing => failure(error),
            // It is part of what stops the copy.
            Phase::Stopping {
                cause: CopyStop::Failed(first),
                ..
            } => match error {
                CopyError::Device(DeviceError::Aborted) => failure(first.error),
                error => failure(error),
            },
            // The result of an aborted copy tells the blocks that are written.
            Phase::Stopping { .. } | Phase::Ended => return,
        };
        self.stop(CopyStop::Failed(failed), access);
    }

    /// Stops the copy. Of several failures, the one with the lowest range is kept.
    pub(super) fn stop(&mut self, cause: CopyStop, access: &Access<'_>) {
        let abandon_at = access.now + GIVEN_UP_MAX;
        match (&mut self.phase, cause) {
            (Phase::Copying | Phase::Flushing, cause) => {
                self.phase = Phase::Stopping { cause, abandon_at };
            }
            (
                Phase::Stopping {
                    cause: CopyStop::Failed(first),
                    ..
                },
                CopyStop::Failed(other),
            ) => {
                if other.first_block < first.first_block {
                    *first = other;
                }
            }
            // The first cause is kept.
            (Phase::Stopping { .. } | Phase::Ended, _) => {}
        }
        self.lose_unwanted();
        let is_overdue =
            matches!(cause, CopyStop::Failed(failure) if failure.error == CopyError::Overdue);
        match cause {
            CopyStop::Failed(_) if !is_overdue => {}
            CopyStop::Failed(_) | CopyStop::Aborted | CopyStop::ReactorStops => {
                self.give_up(access);
            }
        }
        self.end_if_stopped(access);
    }

    /// Cancels the requests in flight, as far as that is possible at once.
    fn give_up(&mut self, access: &Access<'_>) {
        for index in 0..COPY_PIECES_MAX {
            if let Some(piece) = self.pieces[index]
                && self.is_cancelled(&piece, index, access)
            {
                self.pieces[index] = None;
                self.drop_memory(index);
                self.lose(piece.block);
            }
        }
        let devices = 1 << self.plan.source | 1 << self.plan.destination;
        access
            .set
            .give_up(access.client, devices, &mut self.is_own());
    }

    /// Cancels a request that the device has not taken. Returns whether it had not.
    fn is_cancelled(&self, piece: &InFlight, index: usize, access: &Access<'_>) -> bool {
        let tag = self.tag(index);
        let cancel = |waiting| access.set.cancel(access.client, waiting, tag);
        piece.deferred_until.is_some() || piece.waiting.is_some_and(cancel)
    }

    fn check_deadlines(&mut self, access: &Access<'_>) {
        match self.phase {
            Phase::Copying | Phase::Flushing => {
                let pieces = self.pieces.iter().flatten();
                let overdue = pieces.filter(|it| access.now >= it.since + COPY_REQUEST_TIME_MAX);
                let Some(first) = overdue.min_by_key(|it| it.block).copied() else {
                    return;
                };
                let failure =
                    self.failure(first.step, first.block, first.blocks, CopyError::Overdue);
                if first.step != CopyStep::Flush {
                    // It may complete after all, but it is what is reported as failed.
                    self.lose(first.block);
                }
                self.stop(CopyStop::Failed(failure), access);
            }
            Phase::Stopping { cause, abandon_at } if access.now >= abandon_at => {
                self.phase = Phase::Stopping {
                    cause,
                    abandon_at: access.now + ABANDON_INTERVAL,
                };
                self.lose_again();
                self.give_up(access);
                access.set.abandon(access.client, &mut self.is_own());
                self.end_if_stopped(access);
            }
            Phase::Stopping { .. } | Phase::Ended => {}
        }
    }

    /// Ends the requests of a device that was removed with them.
    pub(super) fn device_removed(&mut self, place: usize, access: &Access<'_>) {
        if !self.uses(place) {
            return;
        }
        for index in 0..COPY_PIECES_MAX {
            let is_there = |piece: &mut InFlight| match piece.step {
                CopyStep::Read => place == self.plan.source,
                CopyStep::Write | CopyStep::Copy | CopyStep::Flush => {
                    place == self.plan.destination
                }
            };
            if let Some(piece) = self.pieces[index].take_if(is_there) {
                // A slice with a request in flight is lost.
                self.drop_memory(index);
                self.piece_failed(&piece, CopyError::Device(DeviceError::Removed), access);
            }
        }
        let step = match place == self.plan.source {
            true => CopyStep::Read,
            false => CopyStep::Write,
        };
        let error = CopyError::Device(DeviceError::Removed);
        let rest = Range {
            block: self.next,
            blocks: self.plan.blocks - self.next,
            way: Way::ByDevice,
        };
        let range = self.again.first().copied().unwrap_or(rest);
        let blocks = u64::from(self.piece_blocks).min(range.blocks) as u32;
        let failure = self.failure(step, range.block, blocks, error);
        self.stop(CopyStop::Failed(failure), access);
    }

    /// Time at which [`advance`](Self::advance) must be called at the latest.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Copying | Phase::Flushing => {
                let retry = self.without_memory.filter(|_| self.has_more());
                let retry = retry.map(|(_, last)| last + MEMORY_RETRY_INTERVAL);
                let pieces = self.pieces.iter().flatten();
                let deadlines = pieces.map(|it| it.since + COPY_REQUEST_TIME_MAX);
                deadlines.chain(retry).chain(self.deferred()).min()
            }
            Phase::Stopping { abandon_at, .. } => {
                let retry = self.without_memory.filter(|_| !self.again.is_empty());
                let retry = retry.map(|(_, last)| last + MEMORY_RETRY_INTERVAL);
                self.deferred().chain(retry).chain([abandon_at]).min()
            }
            Phase::Ended => None,
        }
    }

    /// When requests are submitted again that the device did not take.
    fn deferred(&self) -> impl Iterator<Item = Nanos> {
        let pieces = self.pieces.iter().flatten();
        pieces.filter_map(|it| it.deferred_until)
    }

    fn has_more(&self) -> bool {
        self.next < self.plan.blocks || !self.again.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.pieces.iter().all(Option::is_none)
    }

    fn end_if_stopped(&mut self, access: &Access<'_>) {
        if let Phase::Stopping { cause, .. } = self.phase
            && self.is_idle()
            && self.again.is_empty()
        {
            let written_blocks = self.lost.map_or(self.next, |lost| lost.min(self.next));
            let end = CopyEnd::Stopped {
                written_blocks,
                cause,
            };
            self.end(end, access);
        }
    }

    fn end(&mut self, end: CopyEnd, access: &Access<'_>) {
        self.phase = Phase::Ended;
        self.progress
            .set_end(end, access.now.saturating_sub(self.began));
    }

    /// Whether a tag is that of one of its requests.
    fn is_own(&self) -> impl FnMut(u64) -> bool + use<> {
        let number = u64::from(self.number);
        move |tag| tag >> PIECE_BITS == number
    }

    fn tag(&self, index: usize) -> u64 {
        u64::from(self.number) << PIECE_BITS | index as u64
    }
}
