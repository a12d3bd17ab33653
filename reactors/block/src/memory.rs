//! A device in RAM. Reads borrow the memory without a copy; writes copy once. A device that grew
//! has its memory in several extents; a read across the boundary of two extents is copied too.
//!
//! A borrowed range cannot be written until the borrow is dropped, and vice versa. A request that
//! meets such a range lock waits in the queue, is retried by polls, and holds back later requests
//! of the queue that touch the same memory, so that a stream of reads cannot starve a write.
//! Requests for other memory overtake it. See [`deferred`] for the cost.

mod deferred;
mod extents;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hugemem::{Borrow, Data, PagePolicy, RegionError, Store, UNIT_BYTES};

use crate::bounds::byte_range;
use crate::device::{
    Deallocate, Device, DeviceIdentity, DeviceQueue, Drain, Geometry, QueueOptions,
};
use crate::error::{DeviceError, OpenError};
use crate::health::{Health, HealthCounters, HealthState};
use crate::ledger::{EndedRequest, Ledger};
use crate::request::{CompletionBatch, Operation, Refusal, Request};
use crate::shape::{GrowingGeometry, ShapeError, block_count, max_transfer_blocks};
use deferred::{DeferredRequests, PROMOTIONS_PER_POLL_MAX, TRIES_PER_POLL_MAX};
use extents::{Extents, ExtentsHandle};

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
    /// The memory that an earlier process passed has another size.
    #[error("a RAM device of {size_bytes} bytes, but memory of {passed_bytes} bytes was passed")]
    OtherMemory {
        /// The requested size in bytes.
        size_bytes: u64,
        /// Bytes of the passed memory.
        passed_bytes: u64,
    },
    /// The memory could not be allocated.
    #[error("no memory for a RAM device of {size_bytes} bytes")]
    Memory {
        /// The requested size in bytes.
        size_bytes: u64,
        /// The allocation error.
        source: RegionError,
    },
}

/// A device in RAM, initially all zeroes. Its content is lost when the process ends, unless the
/// next one continues with its memory.
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
        block_count(size_bytes, options.block_size)?;
        let len = usize::try_from(size_bytes).map_err(|_| ShapeError::TooLarge { size_bytes })?;
        let store = Store::new(len, options.pages)
            .map_err(|source| MemoryError::Memory { size_bytes, source })?;
        Self::over(options, vec![store])
    }

    /// Continues with the memory of an earlier process's device, whose extents it has passed in
    /// their order, each with its length in bytes. See [`hugemem::Region::adopt`].
    ///
    /// # Errors
    /// [`MemoryError`]: the descriptors are not those of a device of this size.
    pub fn adopt(
        options: MemoryOptions,
        extents: Vec<(OwnedFd, u64)>,
    ) -> Result<Self, MemoryError> {
        let size_bytes = options.size_bytes;
        let lengths = extents.iter().map(|(_, len)| *len);
        let passed_bytes = lengths.fold(0, u64::saturating_add);
        if extents.is_empty() || passed_bytes != size_bytes {
            return Err(MemoryError::OtherMemory {
                size_bytes,
                passed_bytes,
            });
        }
        let mut stores = Vec::with_capacity(extents.len());
        for (descriptor, len) in extents {
            let len = usize::try_from(len).map_err(|_| ShapeError::TooLarge { size_bytes })?;
            let store = Store::adopt(descriptor, len);
            stores.push(store.map_err(|source| MemoryError::Memory { size_bytes, source })?);
        }
        Self::over(options, stores)
    }

    /// `stores` has at least one store.
    fn over(options: MemoryOptions, stores: Vec<Arc<Store>>) -> Result<Self, MemoryError> {
        let geometry = Geometry {
            block_size: options.block_size,
            block_count: block_count(options.size_bytes, options.block_size)?,
            volatile_write_cache: false,
            optimal_io_blocks: UNIT_BYTES as u32 / options.block_size,
            deallocate: Deallocate::ReadsZero,
            max_transfer_blocks: max_transfer_blocks(options.block_size),
            read_only: options.read_only,
            atomic: crate::AtomicWrites::BLOCK,
        };
        let mut stores = stores.into_iter();
        let first = stores.next();
        let extents = Extents::new(first.unwrap_or_else(|| unreachable!("there is one")));
        stores.for_each(|store| extents.add(store));
        Ok(Self {
            name: options.name,
            identity: DeviceIdentity {
                uuid: options.uuid,
                model: "Windlass memory".into(),
            },
            pages: options.pages,
            shape: Arc::new(GrowingGeometry::new(geometry)),
            extents: Arc::new(extents),
            counters: Arc::default(),
        })
    }

    /// The device's initial memory, for its notices and for mapping it to a network card.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        self.extents.first()
    }

    /// All its memory, in order.
    #[must_use]
    pub fn stores(&self) -> Vec<Arc<Store>> {
        self.extents.all()
    }

    /// Allocates the memory missing to `size_bytes`, for [`grow`](Self::grow) once it is mapped to
    /// the network cards; `None`: no memory is missing. Blocking: for the control plane.
    ///
    /// # Errors
    /// [`MemoryError`]: the device is unchanged.
    pub fn allocate_growth(&self, size_bytes: u64) -> Result<Option<Arc<Store>>, MemoryError> {
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

    /// Appends memory from [`allocate_growth`](Self::allocate_growth) to the device; queues are
    /// notified by [`DeviceQueue::device_grew`].
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
            deferred: DeferredRequests::new(),
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
enum AttemptResult {
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

    /// Whether it is a read that borrows the device's memory.
    fn borrows(&self) -> bool {
        self.request.operation == Operation::Read && self.request.data.is_none()
    }

    /// Whether both touch the same unit of memory; a range lock covers whole units.
    fn overlaps(&self, other: &Self) -> bool {
        let units = |attempt: &Self| {
            let first = attempt.offset / UNIT_BYTES;
            first..(attempt.offset + attempt.len).div_ceil(UNIT_BYTES)
        };
        let (one, two) = (units(self), units(other));
        self.len > 0 && other.len > 0 && one.start < two.end && two.start < one.end
    }

    fn try_continue(&mut self, store: &ExtentsHandle, zero_budget: &mut usize) -> AttemptResult {
        let data = &mut self.request.data;
        let done = match (self.request.operation, data.as_mut()) {
            (Operation::Read, None) => match store.try_borrow_read(self.offset, self.len) {
                Some(borrow) => return AttemptResult::Ended(Ok(()), Some(Data::Borrow(borrow))),
                None => false,
            },
            (Operation::Read, Some(lease)) => store.try_read(self.offset, lease),
            (Operation::Write { .. }, Some(lease)) => store.try_write(self.offset, lease),
            (Operation::Compare, Some(lease)) => match store.try_equal(self.offset, lease) {
                Some(true) => true,
                Some(false) => {
                    let data = data.take().map(Data::Lease);
                    return AttemptResult::Ended(Err(DeviceError::CompareMismatch), data);
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
            AttemptResult::Ended(Ok(()), data.take().map(Data::Lease))
        } else {
            AttemptResult::Held
        }
    }

    fn zero(&mut self, store: &ExtentsHandle, discard: bool, budget: &mut usize) -> AttemptResult {
        while self.len > 0 {
            // Pieces end at unit boundaries, so that no unit is locked twice.
            let piece_end = (self.offset + ZERO_PIECE_BYTES) / ZERO_PIECE_BYTES * ZERO_PIECE_BYTES;
            let piece = self.len.min(piece_end - self.offset);
            if piece > *budget {
                return AttemptResult::Unfinished;
            }
            let zeroed = if discard {
                store.try_discard(self.offset, piece)
            } else {
                store.try_zero(self.offset, piece)
            };
            if !zeroed {
                return AttemptResult::Held;
            }
            *budget -= piece;
            self.offset += piece;
            self.len -= piece;
        }
        AttemptResult::Ended(Ok(()), None)
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
    deferred: DeferredRequests,
}

impl MemoryQueue {
    /// Retries some of the deferred requests.
    #[cold]
    fn retry(&mut self) {
        let mut zero_budget = ZERO_BYTES_PER_POLL_MAX;
        self.deferred.promote(PROMOTIONS_PER_POLL_MAX);
        let mut promotions_left = PROMOTIONS_PER_POLL_MAX;
        // Each once, plus those that become ready meanwhile.
        let mut tries_left = TRIES_PER_POLL_MAX;
        let mut held = 0;
        while tries_left > 0 && held < self.deferred.front_len() && self.ledger.has_room() {
            let Some(index) = self.deferred.next() else {
                return;
            };
            tries_left -= 1;
            let attempt = self.deferred.attempt(index);
            let left = attempt.len;
            match attempt.try_continue(&self.memory, &mut zero_budget) {
                AttemptResult::Held | AttemptResult::Unfinished => {
                    let progress = attempt.len < left;
                    self.deferred.put_back(index, progress);
                    held += 1;
                }
                AttemptResult::Ended(result, data) => {
                    let ended = EndedRequest::of(&attempt.request, self.ledger.geometry());
                    self.ledger.undefer();
                    self.ledger.end(ended, result, data);
                    self.deferred.remove(index);
                    if promotions_left > 0 {
                        promotions_left -= 1;
                        self.deferred.promote(1);
                    }
                }
            }
        }
    }

    fn defer(&mut self, attempt: Attempt) {
        self.ledger.defer();
        self.deferred.defer(attempt);
    }

    /// Whether a deferred request may touch the range, such as a write that later readers must not
    /// starve.
    #[inline]
    fn may_be_waited_for(&self, offset: usize, len: usize) -> bool {
        !self.deferred.is_empty() && self.deferred.may_touch(offset, len)
    }

    /// The slow path of [`DeviceQueue::borrow_read`], for more than one unlocked unit or while
    /// requests are deferred. Separate, so that the fast path saves no registers for it.
    #[inline(never)]
    fn borrow_read_slow(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        let (offset, len) = self.ledger.readable_range(lba, blocks)?;
        if self.may_be_waited_for(offset, len) {
            return None;
        }
        let borrow = self.memory.try_borrow_read(offset, len)?;
        self.ledger.count_read(len);
        Some(borrow)
    }
}

impl DeviceQueue for MemoryQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        let range = self.ledger.readable_range(lba, blocks);
        range.is_some_and(|(offset, len)| self.memory.is_whole(offset, len))
    }

    #[inline]
    fn borrow_read(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        // The slow path starts over, so that the fast path keeps no state across the call.
        if self.deferred.is_empty()
            && let Some((offset, len)) = self.ledger.readable_range(lba, blocks)
            && let Some(borrow) = self.memory.try_borrow_read_idle(offset, len)
        {
            self.ledger.count_read(len);
            return Some(borrow);
        }
        self.borrow_read_slow(lba, blocks)
    }

    #[inline]
    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        let Some(offset) = self.ledger.writable_offset(lba, data.len()) else {
            return false;
        };
        if self.may_be_waited_for(offset, data.len()) {
            return false;
        }
        let written = self.memory.try_write(offset, data);
        if written {
            self.ledger.count_write(data.len());
        } else {
            // The write may wait for an execution or a lease before it returns as a request.
            self.memory.withdraw(offset, data.len());
        }
        written
    }

    fn supports_direct_placement(&self) -> bool {
        true
    }

    fn place_directly(&mut self, lba: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(offset) = self.ledger.writable_offset(lba, bytes) else {
            return false;
        };
        if self.may_be_waited_for(offset, bytes) {
            return false;
        }
        let filled = self.memory.try_fill(offset, bytes, fill);
        if filled {
            self.ledger.count_placed_bytes(bytes);
        } else {
            // The connection may end before the rest of the write is received.
            self.memory.withdraw(offset, bytes);
        }
        filled
    }

    fn count_placed_write(&mut self) {
        self.ledger.count_write(0);
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if self.deferred.is_full() {
            return Err(Refusal::Later(request));
        }
        let request = self.ledger.admit(request)?;
        let ended = EndedRequest::of(&request, self.ledger.geometry());
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
        let tried = if !self.deferred.is_empty() && self.deferred.touches(&attempt) {
            AttemptResult::Held
        } else {
            attempt.try_continue(&self.memory, &mut zero_budget)
        };
        match tried {
            AttemptResult::Ended(result, data) => self.ledger.end(ended, result, data),
            AttemptResult::Held => {
                self.ledger.waited();
                self.defer(attempt);
            }
            AttemptResult::Unfinished => self.defer(attempt),
        }
        Ok(())
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let Self {
            deferred,
            ledger,
            memory,
            ..
        } = self;
        deferred.give_up(is_unwanted, |attempt| {
            if attempt.request.operation.changes_medium() {
                // Otherwise readers would yield to the cancelled write thousands of times for each
                // unit.
                memory.withdraw(attempt.offset, attempt.len);
            }
            let ended = EndedRequest::of(&attempt.request, ledger.geometry());
            let data = attempt.request.data.map(Data::Lease);
            ledger.undefer();
            ledger.end(ended, Err(DeviceError::Aborted), data);
        });
    }

    fn flush(&mut self) {
        self.memory.fence_writes();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        if !self.deferred.is_empty() {
            self.retry();
        }
        self.ledger.take_ready(completions)
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    fn has_ready(&self) -> bool {
        self.ledger.has_ready() || !self.deferred.is_empty()
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
