//! The arena: one region, divided into slices of fixed sizes at start.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::account::Account;
use crate::class::{CLASS_BYTES, CLASSES, Carving, class_for};
use crate::dma::DmaBuffer;
use crate::dma_check::{DmaCheck, DmaViolation};
use crate::exchange::{Exchange, Member};
use crate::pool::{Pool, SlicePromise};
use crate::region::{DmaMap, DmaMapError, PagePolicy, Region, RegionError};
use crate::slices::Slices;

/// Bytes of one class that are added per step. A concurrent mmap call waits until one step is
/// populated.
const POPULATE_AT_A_TIME: usize = 4 << 20;

/// Parameters of an [`Arena`].
#[derive(Debug, Clone, Copy)]
pub struct ArenaConfig {
    /// Size in bytes.
    pub bytes: usize,
    /// Page size policy.
    pub pages: PagePolicy,
    /// Maximum size of a lease in bytes, at most 1 MiB. Larger slices are not created.
    pub max_transfer: usize,
}

/// Why an arena could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The size is too small for one lease of the maximum transfer.
    #[error(
        "an arena of {bytes} bytes cannot hold one transfer of {max_transfer} bytes: \
         use at least {least} bytes"
    )]
    TooSmall {
        /// Bytes requested.
        bytes: usize,
        /// The maximum transfer in bytes.
        max_transfer: usize,
        /// The minimum size in bytes.
        least: usize,
    },
    /// The maximum transfer exceeds the largest slice.
    #[error("transfers of {max_transfer} bytes are larger than the largest slice, {limit} bytes")]
    TransferTooLarge {
        /// The maximum transfer in bytes.
        max_transfer: usize,
        /// The largest slice in bytes.
        limit: usize,
    },
    /// The memory could not be allocated.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The counters of one class of slices, not read as an atomic snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassCounters {
    /// Bytes of one slice.
    pub slice_bytes: usize,
    /// Number of slices.
    pub total: u64,
    /// Free slices.
    pub free: u64,
    /// Leased slices.
    pub taken: u64,
    /// Number of times that a request of this size had to wait, since start.
    pub waits: u64,
    /// Requests of this size that wait now.
    pub waiting: u64,
}

/// The counters of an arena, smallest class first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArenaCounters {
    /// One entry per class; a class that this arena does not use has a total of 0.
    pub classes: [ClassCounters; CLASSES],
    /// Wait time of the longest-waiting request, in nanoseconds; up to a tenth of a second old. 0
    /// if no request waits.
    pub oldest_wait_ns: u64,
    /// The longest wait of a request since start, in nanoseconds.
    pub longest_wait_ns: u64,
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
    control: Mutex<Control>,
    max_transfer: usize,
    dma_check: Arc<DmaCheck>,
}

/// The origin of an arena's memory.
enum Memory {
    New,
    /// An earlier process has passed its descriptor.
    Passed(OwnedFd),
}

/// State of the control path, used by any thread: slices for [`DmaBuffer`]s, and promises.
#[derive(Debug)]
struct Control {
    member: Member,
    slices: Slices,
}

impl Arena {
    /// Allocates the memory and divides it.
    ///
    /// # Errors
    /// [`ArenaError`]: nothing remains mapped.
    pub fn new(config: ArenaConfig) -> Result<Arc<Arena>, ArenaError> {
        Self::begin(config, usize::MAX).map(|(arena, _)| arena)
    }

    /// Maps the memory and divides it, but populates only about `populate_now_bytes` bytes of it.
    /// The other slices become available when [`ArenaPopulation::populate`] has populated them. At
    /// least one slice for the maximum transfer is available immediately.
    ///
    /// # Errors
    /// [`ArenaError`]: nothing remains mapped.
    pub fn begin(
        config: ArenaConfig,
        populate_now_bytes: usize,
    ) -> Result<(Arc<Arena>, ArenaPopulation), ArenaError> {
        Self::over(Memory::New, config, populate_now_bytes)
    }

    /// Continues with the memory of an earlier process's arena: see [`Region::adopt`]. All slices
    /// are free.
    ///
    /// # Errors
    /// [`ArenaError`]: nothing remains mapped.
    pub fn adopt(
        descriptor: OwnedFd,
        config: ArenaConfig,
    ) -> Result<(Arc<Arena>, ArenaPopulation), ArenaError> {
        Self::over(Memory::Passed(descriptor), config, usize::MAX)
    }

    fn over(
        memory: Memory,
        config: ArenaConfig,
        populate_now_bytes: usize,
    ) -> Result<(Arc<Arena>, ArenaPopulation), ArenaError> {
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
        let region = match memory {
            Memory::New => Region::map_and_populate(bytes, pages, |len| {
                let carving = Carving::new(len, max_transfer);
                carving.map_or_else(Vec::new, |carving| {
                    carving.ranges(carving.part(populate_now_bytes))
                })
            })?,
            Memory::Passed(descriptor) => Region::adopt(descriptor, bytes)?,
        };
        let Some(carving) = Carving::new(region.len(), max_transfer) else {
            return Err(too_small);
        };
        let open = carving.part(populate_now_bytes);
        let exchange = Exchange::new(carving.counts, open);
        let control = Mutex::new(Control {
            member: exchange.join(),
            slices: Slices::new(&carving),
        });
        let arena = Arc::new(Arena {
            dma_check: region.check_dma(),
            region,
            carving,
            exchange,
            control,
            max_transfer: least,
        });
        let rest = ArenaPopulation {
            arena: Arc::clone(&arena),
            open,
        };
        Ok((arena, rest))
    }

    /// The memory of the arena.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Maximum size of a lease in bytes.
    #[must_use]
    pub fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    /// Maps the whole arena once for an IOMMU or a protection domain.
    ///
    /// # Errors
    /// The error of `map`.
    pub fn attach(&self, map: &dyn DmaMap) -> Result<(), DmaMapError> {
        self.region.attach(map)
    }

    /// Creates one reactor's pool, with room for `waiters_max` waiting requests.
    #[must_use]
    pub fn pool(self: &Arc<Arena>, waiters_max: usize) -> Pool {
        Pool::new(Arc::clone(self), waiters_max)
    }

    /// A zeroed slice of `len` bytes for queues and similar structures, counted as taken until it
    /// is dropped. `None` if no free slice is large enough; the last slice of a class with promises
    /// is not used. For the control path: takes a lock.
    #[must_use]
    pub fn dma_buffer(self: &Arc<Arena>, len: usize) -> Option<DmaBuffer> {
        DmaBuffer::take(self, len)
    }

    /// Promises up to `count` slices of `len` bytes for buffers that stay allocated while no
    /// request uses them. The caller is one of `sharers` that request as many. Grants at least one,
    /// and few enough that the other slices suffice for requests. `None` if no slice can be
    /// promised. For the control path: takes a lock.
    #[must_use]
    pub fn promise(
        self: &Arc<Arena>,
        len: usize,
        count: u32,
        sharers: u32,
    ) -> Option<SlicePromise> {
        let mut control = self.control();
        let (class, count) = control.slices.promise_of_class(len, count, sharers)?;
        self.exchange
            .set_promised(class, control.slices.promised(class));
        drop(control);
        Some(SlicePromise::new(Arc::clone(self), class, count))
    }

    pub(crate) fn end_promise(&self, class: usize, count: u32) {
        let mut control = self.control();
        control.slices.end_promise(class, count);
        self.exchange
            .set_promised(class, control.slices.promised(class));
    }

    pub(crate) fn take_slice(&self, class: usize) -> Option<u32> {
        let mut control = self.control();
        let Control { member, slices } = &mut *control;
        let free = slices
            .spares_buffer(class)
            .then(|| self.exchange.take(member, class, Account::SYSTEM));
        let slice = free??;
        slices.add_buffer(class);
        Some(slice)
    }

    pub(crate) fn give_slice_back(&self, class: usize, slice: u32) {
        let mut control = self.control();
        control.slices.remove_buffer(class);
        self.exchange
            .give_back(&control.member, class, slice, Account::SYSTEM);
    }

    /// Whether enough slices of `class` remain for requests if one more is kept.
    pub(crate) fn spares_permanent(&self, class: usize) -> bool {
        let control = self.control();
        let permanent = self.exchange.held(class, Account::SYSTEM);
        control.slices.spares_permanent(class, permanent)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // Each change is a single addition, so the counts stay valid after a panic elsewhere.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current counters. May be called by any thread.
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
        (counters.oldest_wait_ns, counters.longest_wait_ns) = self.exchange.longest_waits();
        counters
    }

    /// The first access since the last call that a [`DmaView::of_arena`](crate::DmaView::of_arena)
    /// made to memory that was not posted. Always `None` in release builds, which do not check.
    #[must_use]
    pub fn take_dma_violation(&self) -> Option<DmaViolation> {
        self.dma_check.take_violation()
    }

    /// Allows or forbids device access to a slice, for the check in debug builds.
    #[inline(always)]
    pub(crate) fn set_device_access(&self, class: usize, slice: u32, allowed: bool) {
        if cfg!(debug_assertions) {
            let start = self.carving.offset(class, slice);
            let range = start..start + CLASS_BYTES[class];
            self.dma_check.allow(range, allowed);
        }
    }

    /// Slices of each class charged to `account`, smallest class first. May be called by any
    /// thread.
    #[must_use]
    pub fn held_by(&self, account: Account) -> [u32; CLASSES] {
        std::array::from_fn(|class| self.exchange.held(class, account))
    }

    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    pub(crate) fn carving(&self) -> &Carving {
        &self.carving
    }
}

/// Memory of an arena that is not populated yet and whose slices are not available yet.
#[derive(Debug)]
#[must_use = "the arena stays as small as it began"]
pub struct ArenaPopulation {
    arena: Arc<Arena>,
    /// Slices of each class that are available.
    open: [u32; CLASSES],
}

impl ArenaPopulation {
    /// Bytes of the slices that are not available yet.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let missing = |class: usize| (self.arena.carving.counts[class] - self.open[class]) as usize;
        (0..CLASSES)
            .map(|class| missing(class) * CLASS_BYTES[class])
            .sum()
    }

    /// Populates the memory and adds its slices, some of each class in turn. Takes about a tenth of
    /// a second per 1 GiB: for a thread without other work.
    ///
    /// # Errors
    /// [`RegionError::System`]: the machine has no more memory. The arena keeps the slices added so
    /// far.
    pub fn populate(&mut self) -> Result<(), RegionError> {
        let counts = self.arena.carving.counts;
        while self.open != counts {
            for (class, &count) in counts.iter().enumerate() {
                let first = self.open[class];
                let slices = u32::try_from(POPULATE_AT_A_TIME / CLASS_BYTES[class]);
                let end = first.saturating_add(slices.unwrap_or(1)).min(count);
                if first == end {
                    continue;
                }
                let (from, to) = (first as usize, end as usize);
                let at = |slice| self.arena.carving.offsets[class] + slice * CLASS_BYTES[class];
                self.arena.region.populate(at(from)..at(to))?;
                self.arena.exchange.open(class, first..end);
                self.open[class] = end;
            }
        }
        Ok(())
    }
}
