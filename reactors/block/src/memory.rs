//! A device in RAM. Reads borrow the memory without a copy; writes copy once. A device that grew
//! has its memory in several extents; a read across the boundary of two extents is copied too.
//!
//! A borrowed range cannot be written until the borrow is dropped, and vice versa. A request that
//! meets such a range lock waits in the queue, is retried by polls, and holds back later requests
//! of the queue that touch the same memory, so that a stream of reads cannot starve a write.
//! Requests for other memory overtake it. See [`parked`] for the cost.

mod extents;
mod parked;

use std::sync::Arc;

use hugemem::{Data, Loan, PagePolicy, RegionError, Store, UNIT_BYTES};
use reactors::sim::planted;

use crate::bounds::byte_range;
use crate::device::{
    Deallocate, Device, DeviceIdentity, DeviceQueue, Drain, Geometry, QueueOptions,
};
use crate::error::{DeviceError, OpenError};
use crate::health::{Health, HealthCounters, HealthState};
use crate::ledger::{Ended, Ledger};
use crate::request::{CompletionBatch, Operation, Refusal, Request};
use crate::shape::{GrowingGeometry, ShapeError, block_count, max_transfer_blocks};
use extents::{Extents, ExtentsHandle};
use parked::{MOVES_PER_POLL_MAX, Parked, TRIES_PER_POLL_MAX};

/// Maximum number of bytes zeroed by one poll, so that clearing a whole device does not stall its
/// reactor.
const ZERO_BYTES_PER_POLL_MAX: usize = 1 << 20;

/// Parameters of a [`MemoryDevice`].
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Name from the configuration.
    pub name: String,
    /// The device's UUID.
    pub uuid: [u8; 16],
    /// Capacity in bytes: a multiple of the block size.
    pub size_bytes: u64,
    /// Bytes per block: 512 or 4096.
    pub block_size: u32,
    /// Page size policy for the memory.
    pub pages: PagePolicy,
    /// Refuse all operations that change the medium.
    pub read_only: bool,
}

/// Why a memory device could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The size is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The memory could not be allocated.
    #[error("no memory for a RAM device of {size_bytes} bytes")]
    Memory {
        /// The requested size in bytes.
        size_bytes: u64,
        /// The allocation error.
        source: RegionError,
    },
}

/// A device in RAM, initially all zeroes. Its content is lost when the process ends.
pub struct MemoryDevice {
    name: String,
    identity: DeviceIdentity,
    pages: PagePolicy,
    shape: Arc<GrowingGeometry>,
    extents: Arc<Extents>,
    counters: Arc<HealthCounters>,
}

impl MemoryDevice {
    /// Allocates the memory and creates the device.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn new(options: MemoryOptions) -> Result<Self, MemoryError> {
        let size_bytes = options.size_bytes;
        let block_count = block_count(size_bytes, options.block_size)?;
        let len = usize::try_from(size_bytes).map_err(|_| ShapeError::TooLarge { size_bytes })?;
        let store = Store::new(len, options.pages)
            .map_err(|source| MemoryError::Memory { size_bytes, source })?;
        let geometry = Geometry {
            block_size: options.block_size,
            block_count,
            volatile_write_cache: false,
            optimal_io_blocks: UNIT_BYTES as u32 / options.block_size,
            deallocate: Deallocate::ReadsZero,
            max_transfer_blocks: max_transfer_blocks(options.block_size),
            read_only: options.read_only,
        };
        Ok(Self {
            name: options.name,
            identity: DeviceIdentity {
                uuid: options.uuid,
                model: "Windlass memory".into(),
            },
            pages: options.pages,
            shape: Arc::new(GrowingGeometry::new(geometry)),
            extents: Arc::new(Extents::new(store)),
            counters: Arc::default(),
        })
    }

    /// The device's initial memory, for its notices and for mapping it to a network card.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        self.extents.first()
    }

    /// Allocates the memory missing to `size_bytes`, for [`grow`](Self::grow) once it is mapped to
    /// the network cards; `None`: no memory is missing. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`MemoryError`]: the device is unchanged.
    pub fn take_missing(&self, size_bytes: u64) -> Result<Option<Arc<Store>>, MemoryError> {
        self.shape.larger(size_bytes)?;
        let missing = size_bytes - self.shape.now().bytes();
        if missing == 0 {
            return Ok(None);
        }
        let too_large = |_| ShapeError::TooLarge { size_bytes };
        let len = usize::try_from(missing).map_err(too_large)?;
        let store = Store::new(len, self.pages);
        store
            .map(Some)
            .map_err(|source| MemoryError::Memory { size_bytes, source })
    }

    /// Appends memory from [`take_missing`](Self::take_missing) to the device; queues are notified
    /// by [`DeviceQueue::device_grew`].
    pub fn grow(&self, more: Arc<Store>) {
        let now = self.shape.now();
        let blocks = more.len() as u64 / u64::from(now.block_size);
        self.extents.add(more);
        self.shape.grow(now.block_count + blocks);
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.shape.now()
    }

    fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    fn health(&self) -> Health {
        let read_only = self.shape.now().read_only;
        self.counters.sum(if read_only {
            HealthState::ReadOnly
        } else {
            HealthState::Ready
        })
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        let counters = self.counters.open_queue();
        Ok(Box::new(MemoryQueue {
            ledger: Ledger::new(options.depth, self.shape.now(), true, counters)?,
            memory: self.extents.handle(),
            extents: Arc::clone(&self.extents),
            shape: Arc::clone(&self.shape),
            parked: Parked::new(),
        }))
    }
}

/// A request and its progress.
#[derive(Debug)]
struct Attempt {
    request: Request,
    /// Byte range of the device that is not done yet.
    offset: usize,
    len: usize,
}

/// Result of one attempt.
enum Tried {
    Ended(Result<(), DeviceError>, Option<Data>),
    /// A range lock prevents progress.
    Held,
    /// The zeroing limit of this poll is reached.
    Unfinished,
}

impl Attempt {
    fn new(request: Request, geometry: &Geometry) -> Self {
        let (offset, len) = byte_range(&request, geometry);
        // The device is in memory, so its offsets fit into `usize`.
        Self {
            request,
            offset: offset as usize,
            len: len as usize,
        }
    }

    fn is_write(&self) -> bool {
        matches!(self.request.operation, Operation::Write { .. })
    }

    /// Whether it is a read that borrows the device's memory.
    fn borrows(&self) -> bool {
        self.request.operation == Operation::Read && self.request.data.is_none()
    }

    /// Whether both touch the same unit of memory; a range lock covers whole units.
    fn meets(&self, other: &Self) -> bool {
        let units = |attempt: &Self| {
            let first = attempt.offset / UNIT_BYTES;
            first..(attempt.offset + attempt.len).div_ceil(UNIT_BYTES)
        };
        let (one, two) = (units(self), units(other));
        self.len > 0 && other.len > 0 && one.start < two.end && two.start < one.end
    }

    fn go_on(&mut self, store: &ExtentsHandle, zero_budget: &mut usize) -> Tried {
        let data = &mut self.request.data;
        let done = match (self.request.operation, data.as_mut()) {
            (Operation::Read, None) => match store.try_lend(self.offset, self.len) {
                Some(loan) => return Tried::Ended(Ok(()), Some(Data::Loan(loan))),
                None => false,
            },
            (Operation::Read, Some(lease)) => store.try_read(self.offset, lease),
            (Operation::Write { .. }, Some(lease)) => store.try_write(self.offset, lease),
            (Operation::Compare, Some(lease)) => match store.try_equal(self.offset, lease) {
                Some(true) => true,
                Some(false) => {
                    let data = data.take().map(Data::Lease);
                    return Tried::Ended(Err(DeviceError::CompareMismatch), data);
                }
                None => false,
            },
            (Operation::Flush, _) => true,
            (Operation::WriteZeroes { deallocate, .. }, _) => {
                return self.zero(store, deallocate, zero_budget);
            }
            (Operation::Deallocate, _) => return self.zero(store, true, zero_budget),
            (Operation::Write { .. } | Operation::Compare, None) => {
                unreachable!("admission checked that the request has its data")
            }
        };
        if done {
            Tried::Ended(Ok(()), data.take().map(Data::Lease))
        } else {
            Tried::Held
        }
    }

    fn zero(&mut self, store: &ExtentsHandle, discard: bool, budget: &mut usize) -> Tried {
        while self.len > 0 {
            // Pieces end at unit boundaries, so that no unit is locked twice.
            let piece_end = (self.offset + ZERO_PIECE_BYTES) / ZERO_PIECE_BYTES * ZERO_PIECE_BYTES;
            let piece = self.len.min(piece_end - self.offset);
            if piece > *budget {
                return Tried::Unfinished;
            }
            let zeroed = if discard {
                store.try_discard(self.offset, piece)
            } else {
                store.try_zero(self.offset, piece)
            };
            if !zeroed {
                if planted("zeroes-stop-at-hold") {
                    return Tried::Ended(Ok(()), None);
                }
                return Tried::Held;
            }
            *budget -= piece;
            self.offset += piece;
            self.len -= piece;
        }
        Tried::Ended(Ok(()), None)
    }
}

/// Bytes zeroed under one write lock.
const ZERO_PIECE_BYTES: usize = 64 * 1024;
const _: () = assert!(ZERO_PIECE_BYTES.is_multiple_of(UNIT_BYTES));
const _: () = assert!(ZERO_PIECE_BYTES <= ZERO_BYTES_PER_POLL_MAX);

struct MemoryQueue {
    ledger: Ledger,
    memory: ExtentsHandle,
    extents: Arc<Extents>,
    shape: Arc<GrowingGeometry>,
    /// Requests that met a range lock or are not finished. They do not count against the depth, so
    /// that a host that keeps memory borrowed cannot block other requests.
    parked: Parked,
}

impl MemoryQueue {
    /// Retries some of the deferred requests.
    #[cold]
    fn retry(&mut self) {
        let mut zero_budget = ZERO_BYTES_PER_POLL_MAX;
        self.parked.move_up(MOVES_PER_POLL_MAX);
        let mut moves_left = MOVES_PER_POLL_MAX;
        // Each once, plus those that become ready meanwhile.
        let mut tries_left = TRIES_PER_POLL_MAX;
        let mut held = 0;
        while tries_left > 0 && held < self.parked.front_len() && self.ledger.has_room() {
            let Some(index) = self.parked.next() else {
                return;
            };
            tries_left -= 1;
            let attempt = self.parked.attempt(index);
            let left = attempt.len;
            match attempt.go_on(&self.memory, &mut zero_budget) {
                Tried::Held | Tried::Unfinished => {
                    let progress = attempt.len < left;
                    self.parked.put_back(index, progress);
                    held += 1;
                }
                Tried::Ended(result, data) => {
                    let ended = Ended::of(&attempt.request, self.ledger.geometry());
                    self.ledger.unpark();
                    self.ledger.end(ended, result, data);
                    self.parked.remove(index);
                    if moves_left > 0 {
                        moves_left -= 1;
                        self.parked.move_up(1);
                    }
                }
            }
        }
    }

    fn park(&mut self, attempt: Attempt) {
        self.ledger.park();
        self.parked.park(attempt);
    }

    /// Whether a deferred request may touch the range, such as a write that later readers must not
    /// starve.
    #[inline]
    fn is_awaited(&self, offset: usize, len: usize) -> bool {
        !self.parked.is_empty() && self.parked.may_touch(offset, len)
    }

    /// The slow path of [`DeviceQueue::lend`], for more than one unlocked unit or while requests
    /// are deferred. Separate, so that the fast path saves no registers for it.
    #[inline(never)]
    fn lend_any(&mut self, lba: u64, blocks: u32) -> Option<Loan> {
        let (offset, len) = self.ledger.range_to_lend(lba, blocks)?;
        if self.is_awaited(offset, len) {
            return None;
        }
        let loan = self.memory.try_lend(offset, len)?;
        self.ledger.lent(len);
        Some(loan)
    }
}

impl DeviceQueue for MemoryQueue {
    fn lends_read(&self, lba: u64, blocks: u32) -> bool {
        let range = self.ledger.range_to_lend(lba, blocks);
        range.is_some_and(|(offset, len)| self.memory.is_whole(offset, len))
    }

    #[inline]
    fn lend(&mut self, lba: u64, blocks: u32) -> Option<Loan> {
        // The slow path starts over, so that the fast path keeps no state across the call.
        if self.parked.is_empty()
            && let Some((offset, len)) = self.ledger.range_to_lend(lba, blocks)
            && let Some(loan) = self.memory.try_lend_idle(offset, len)
        {
            self.ledger.lent(len);
            return Some(loan);
        }
        self.lend_any(lba, blocks)
    }

    #[inline]
    fn write_at_once(&mut self, lba: u64, data: &[u8]) -> bool {
        let Some(offset) = self.ledger.offset_to_write(lba, data.len()) else {
            return false;
        };
        if self.is_awaited(offset, data.len()) {
            return false;
        }
        let written = self.memory.try_write(offset, data);
        if written {
            self.ledger.written(data.len());
        } else {
            // The write may wait for an execution or a lease before it returns as a request.
            self.memory.withdraw(offset, data.len());
        }
        written
    }

    fn fills_at_once(&self) -> bool {
        true
    }

    fn fill_at_once(&mut self, lba: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(offset) = self.ledger.offset_to_write(lba, bytes) else {
            return false;
        };
        if self.is_awaited(offset, bytes) {
            return false;
        }
        let filled = self.memory.try_fill(offset, bytes, fill);
        if filled {
            self.ledger.filled(bytes);
        } else {
            // The connection may end before the rest of the write is received.
            self.memory.withdraw(offset, bytes);
        }
        filled
    }

    fn count_filled(&mut self) {
        self.ledger.written(0);
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if self.parked.is_full() {
            return Err(Refusal::Later(request));
        }
        let request = self.ledger.admit(request)?;
        let ended = Ended::of(&request, self.ledger.geometry());
        let mut attempt = Attempt::new(request, self.ledger.geometry());
        if attempt.borrows() && !self.memory.is_whole(attempt.offset, attempt.len) {
            debug_assert!(
                false,
                "a read over the edge of an extent has a lease: {attempt:?}"
            );
            self.ledger.end(ended, Err(DeviceError::Internal), None);
            return Ok(());
        }
        // Zeroing here takes time from the next poll, so it is limited to one piece.
        let mut zero_budget = ZERO_PIECE_BYTES;
        let tried = if !self.parked.is_empty() && self.parked.touches(&attempt) {
            Tried::Held
        } else {
            attempt.go_on(&self.memory, &mut zero_budget)
        };
        match tried {
            Tried::Ended(result, data) => self.ledger.end(ended, result, data),
            Tried::Held if planted("held-write-dropped") && attempt.is_write() => {
                self.ledger
                    .end(ended, Ok(()), attempt.request.data.take().map(Data::Lease));
            }
            Tried::Held => {
                self.ledger.waited();
                self.park(attempt);
            }
            Tried::Unfinished => self.park(attempt),
        }
        Ok(())
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let Self {
            parked,
            ledger,
            memory,
            ..
        } = self;
        parked.give_up(is_unwanted, |attempt| {
            if attempt.request.operation.changes_medium() {
                // Otherwise readers would yield to the cancelled write thousands of times for each
                // unit.
                memory.withdraw(attempt.offset, attempt.len);
            }
            let ended = Ended::of(&attempt.request, ledger.geometry());
            let data = attempt.request.data.map(Data::Lease);
            ledger.unpark();
            ledger.end(ended, Err(DeviceError::Aborted), data);
        });
    }

    fn flush(&mut self) {
        self.memory.settle();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        if !self.parked.is_empty() {
            self.retry();
        }
        self.ledger.deliver(completions)
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    fn has_ready(&self) -> bool {
        self.ledger.has_ready() || !self.parked.is_empty()
    }

    fn device_grew(&mut self) {
        self.memory = self.extents.handle();
        self.ledger.set_geometry(self.shape.now());
    }

    fn drain(&mut self) -> Drain {
        self.ledger.drain()
    }
}

#[cfg(test)]
mod tests;
