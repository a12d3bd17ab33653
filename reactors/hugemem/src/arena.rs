//! The arena: one region, divided at start into slices of fixed sizes.

use std::sync::{Arc, Mutex, PoisonError};

use crate::class::{CLASS_BYTES, CLASSES, Carving, class_for};
use crate::dma::DmaBuffer;
use crate::exchange::{Exchange, Member};
use crate::pool::Pool;
use crate::region::{DmaMap, DmaMapError, PagePolicy, Region, RegionError};

/// What an [`Arena`] is to be.
#[derive(Debug, Clone, Copy)]
pub struct ArenaConfig {
    /// Bytes to take from the machine.
    pub bytes: usize,
    /// Which pages to take.
    pub pages: PagePolicy,
    /// The largest single lease wanted, in bytes, at most 1 MiB: larger slices are not made.
    pub max_transfer: usize,
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Not even one lease of the largest transfer fits.
    #[error(
        "an arena of {bytes} bytes cannot hold one transfer of {max_transfer} bytes: \
         {least} bytes would do"
    )]
    TooSmall {
        /// Bytes asked for.
        bytes: usize,
        /// The largest lease wanted.
        max_transfer: usize,
        /// The least size that would do, in bytes.
        least: usize,
    },
    /// No slice is that large.
    #[error("transfers of {max_transfer} bytes are larger than the largest slice, {limit} bytes")]
    TransferTooLarge {
        /// The largest lease wanted.
        max_transfer: usize,
        /// The largest slice there can be, in bytes.
        limit: usize,
    },
    /// The memory could not be had.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The counters of one class of slices, read at one moment but not atomically together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassCounters {
    /// Bytes of one slice.
    pub slice_bytes: usize,
    /// Slices there are.
    pub total: u64,
    /// Slices that nobody holds.
    pub free: u64,
    /// Slices out as leases.
    pub taken: u64,
    /// How often a request of this size had to wait, since start.
    pub waits: u64,
    /// Requests of this size that wait now.
    pub waiting: u64,
}

/// The counters of an arena, smallest class first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArenaCounters {
    /// One entry per class; a class that this arena does not have has a total of 0.
    pub classes: [ClassCounters; CLASSES],
}

/// Memory for all data in flight, shared by all reactors through their [`Pool`]s.
///
/// Slices come in five sizes, 4, 16, 64, 256 KiB and 1 MiB, which get 4, 3, 3, 3 and 3 sixteenths
/// of the arena; sizes above the one that holds [`ArenaConfig::max_transfer`] are left out.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    carving: Carving,
    exchange: Exchange,
    /// Who takes slices for [`DmaBuffer`]s, from any thread.
    control: Mutex<Member>,
    max_transfer: usize,
}

impl Arena {
    /// Takes the memory and divides it.
    ///
    /// # Errors
    /// [`ArenaError`]: nothing stays mapped.
    pub fn new(config: ArenaConfig) -> Result<Arc<Arena>, ArenaError> {
        let ArenaConfig {
            bytes,
            pages,
            max_transfer,
        } = config;
        let limit = CLASS_BYTES[CLASSES - 1];
        let Some(top) = class_for(max_transfer) else {
            return Err(ArenaError::TransferTooLarge {
                max_transfer,
                limit,
            });
        };
        let least = CLASS_BYTES[top];
        let too_small = ArenaError::TooSmall {
            bytes,
            max_transfer,
            least,
        };
        if bytes < least {
            return Err(too_small);
        }
        let region = Region::map(bytes, pages)?;
        let Some(carving) = Carving::new(region.len(), max_transfer) else {
            return Err(too_small);
        };
        let exchange = Exchange::new(carving.counts);
        let control = Mutex::new(exchange.join());
        Ok(Arc::new(Arena {
            region,
            carving,
            exchange,
            control,
            max_transfer: least,
        }))
    }

    /// The slices that an arena of `bytes` and transfers of `max_transfer` bytes would have: bytes of
    /// one, and how many, smallest class first. `None` when there would be no arena.
    #[must_use]
    pub fn slices(bytes: usize, max_transfer: usize) -> Option<[(usize, u32); CLASSES]> {
        let carving = Carving::new(bytes, max_transfer)?;
        Some(std::array::from_fn(|class| {
            (CLASS_BYTES[class], carving.counts[class])
        }))
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The largest single lease that can be had, in bytes.
    #[must_use]
    pub fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    /// Makes the arena known to an IOMMU or a protection domain, whole and once.
    ///
    /// # Errors
    /// What `map` answers.
    pub fn attach(&self, map: &dyn DmaMap) -> Result<(), DmaMapError> {
        self.region.attach(map)
    }

    /// This reactor's share of the arena, with room for `waiters_max` waiting requests.
    #[must_use]
    pub fn pool(self: &Arc<Arena>, waiters_max: usize) -> Pool {
        Pool::new(Arc::clone(self), waiters_max)
    }

    /// A zeroed slice of `len` bytes for queues and the like, counted as taken until it is dropped;
    /// `None` when none is free that is large enough. For the control path: takes a lock.
    #[must_use]
    pub fn dma_buffer(self: &Arc<Arena>, len: usize) -> Option<DmaBuffer> {
        DmaBuffer::take(self, len)
    }

    pub(crate) fn take_slice(&self, class: usize) -> Option<u32> {
        let member = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        self.exchange.take(&member, class)
    }

    pub(crate) fn give_slice_back(&self, class: usize, slice: u32) {
        let member = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        self.exchange.give_back(&member, class, slice);
    }

    /// The counters as they are now, from any thread.
    #[must_use]
    pub fn counters(&self) -> ArenaCounters {
        let mut counters = ArenaCounters::default();
        for (class, entry) in counters.classes.iter_mut().enumerate() {
            let tally = self.exchange.tally(class);
            *entry = ClassCounters {
                slice_bytes: CLASS_BYTES[class],
                total: u64::from(tally.total),
                free: u64::from(tally.total - tally.taken),
                taken: u64::from(tally.taken),
                waits: tally.waits,
                waiting: u64::from(tally.waiting),
            };
        }
        counters
    }

    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    pub(crate) fn carving(&self) -> &Carving {
        &self.carving
    }
}
