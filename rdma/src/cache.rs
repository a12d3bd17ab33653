//! A registration cache (pin-down cache) for memory outside the arena.
//!
//! Registering costs a system call and pins pages, and applications reuse their buffers. So a
//! registration outlives its use, until its room is needed or the memory is reassigned. After
//! Tezuka, O'Carroll, Hori, Ishikawa: Pin-down cache (IPPS 1998).
//!
//! The cache owns the registrations, an index by interval, and the order of their use. It never
//! pins more than its limit, and never ends a registration in use. It does not know when memory is
//! unmapped: the caller then calls [`RegistrationCache::invalidate`]. The cache belongs to one
//! thread; the ranges that it returns may move to others.
#![expect(
    unsafe_code,
    reason = "passes on the promise that memory is named under"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::memory::{Access, MemoryRange};
use crate::provider::{Domain, Provider, Registration};
use crate::request::{RemoteAddress, Sge};

/// Limits of a [`RegistrationCache`].
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Bytes that may be pinned at the same time, including registrations that were removed but are
    /// still in use.
    pub pinned_bytes_max: usize,
    /// The largest number of cached registrations.
    pub entries_max: usize,
    /// Ranges are extended to multiples of this, in bytes: a power of two, at least the machine's
    /// page size.
    pub granule_bytes: usize,
}

/// Counters and current contents of a [`RegistrationCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Acquired ranges that were already registered.
    pub hits: u64,
    /// Acquired ranges that were not registered.
    pub misses: u64,
    /// Registrations removed to make room.
    pub evictions: u64,
    /// Registrations removed because their memory was invalidated.
    pub invalidations: u64,
    /// Registrations replaced by a larger one that covers the same memory.
    pub merges: u64,
    /// Ranges that could not be registered: no room, or the device refused.
    pub failures: u64,
    /// Registrations currently cached.
    pub entries: usize,
    /// Bytes currently pinned.
    pub pinned_bytes: usize,
}

/// A registration with its share of the pinned bytes.
#[derive(Debug)]
struct Pinned<P: Provider> {
    registration: P::Registration,
    /// Dropped after the registration, so that its bytes count until the registration has ended.
    _share: Share,
}

/// A part of the pinned bytes, which it returns when dropped.
#[derive(Debug)]
struct Share {
    bytes: usize,
    pinned_bytes: Arc<AtomicUsize>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pinned_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A registered range in use. Keep it until the work requests that name it have completed.
#[derive(Debug)]
pub struct RegisteredRange<P: Provider> {
    pinned: Arc<Pinned<P>>,
    address: usize,
    len: usize,
}

impl<P: Provider> RegisteredRange<P> {
    /// The range as one piece for a local work request.
    ///
    /// # Panics
    /// Panics if it is 4 GiB or longer: such a range takes several pieces, see
    /// [`piece`](Self::piece).
    ///
    /// # Safety
    /// As for [`Sge::new`].
    #[must_use]
    pub unsafe fn sge(&self) -> Sge {
        // SAFETY: the caller promises the same.
        unsafe { self.piece(0, self.len) }
    }

    /// A part of the range for a local work request.
    ///
    /// # Panics
    /// Panics if it exceeds the range, or is 4 GiB or longer.
    ///
    /// # Safety
    /// As for [`Sge::new`].
    #[must_use]
    pub unsafe fn piece(&self, offset: usize, len: usize) -> Sge {
        let length = u32::try_from(len);
        assert!(
            length.is_ok() && offset <= self.len && len <= self.len - offset,
            "{len} bytes at {offset} of {}",
            self.len
        );
        Sge {
            address: (self.address + offset) as u64,
            length: length.unwrap_or(0),
            lkey: self.pinned.registration.lkey(),
        }
    }

    /// The remote address of the range, with the cache's rights. The key gives access to the whole
    /// registration, which is larger than the range: do not send it to peers that must not access
    /// the adjacent memory.
    #[must_use]
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            address: self.address as u64,
            rkey: self.pinned.registration.rkey(),
        }
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Whether the error is a shortage, so that ending another registration may help.
fn is_shortage(error: &Error) -> bool {
    match error {
        Error::Limit { .. } => true,
        Error::System { source, .. } => source.kind() == std::io::ErrorKind::OutOfMemory,
        Error::Unavailable(_)
        | Error::Misuse(_)
        | Error::PrivateDataTooLong { .. }
        | Error::NoDeviceMemory(_)
        | Error::DeviceGone => false,
    }
}

/// No entry, as an index.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Entry<P: Provider> {
    start: usize,
    end: usize,
    pinned: Arc<Pinned<P>>,
    /// Neighbours in the order of use.
    older: usize,
    newer: usize,
}

impl<P: Provider> Entry<P> {
    /// Whether only the cache references it. Only the cache can add references, so this stays true.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.pinned) == 1
    }
}

/// The cache of one protection domain.
#[derive(Debug)]
pub struct RegistrationCache<P: Provider> {
    /// Index into `entries` by first address; entries do not overlap.
    by_start: BTreeMap<usize, usize>,
    entries: Vec<Option<Entry<P>>>,
    free: Vec<usize>,
    oldest: usize,
    newest: usize,
    domain: P::Domain,
    access: Access,
    config: CacheConfig,
    pinned_bytes: Arc<AtomicUsize>,
    counters: CacheCounters,
}

impl<P: Provider> RegistrationCache<P> {
    /// Creates an empty cache, which registers with the rights `access`.
    ///
    /// # Panics
    /// Panics if the granule is not a power of two, or `entries_max` is 0.
    #[must_use]
    pub fn new(domain: P::Domain, access: Access, config: CacheConfig) -> Self {
        assert!(config.granule_bytes.is_power_of_two(), "{config:?}");
        assert!(config.entries_max > 0, "{config:?}");
        Self {
            by_start: BTreeMap::new(),
            entries: Vec::with_capacity(config.entries_max),
            free: Vec::with_capacity(config.entries_max),
            oldest: NONE,
            newest: NONE,
            domain,
            access,
            config,
            pinned_bytes: Arc::new(AtomicUsize::new(0)),
            counters: CacheCounters::default(),
        }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        CacheCounters {
            entries: self.by_start.len(),
            pinned_bytes: self.pinned_bytes.load(Ordering::Relaxed),
            ..self.counters
        }
    }

    /// Returns the registered range, from the cache or newly registered. A hit does not allocate
    /// and does not enter the kernel.
    ///
    /// A miss registers the range extended to whole granules; if that overlaps existing
    /// registrations, one registration replaces all of them. Room is made by ending the least
    /// recently used registrations that are not in use.
    ///
    /// # Errors
    /// [`Error::Limit`] if the range does not fit beside the registrations in use: copy through
    /// registered memory instead. Otherwise the error of [`Domain::register`]; if it is a shortage,
    /// only after everything idle was removed.
    pub fn acquire(&mut self, range: MemoryRange<'_>) -> Result<RegisteredRange<P>, Error> {
        let (address, end) = (range.address(), range.address() + range.len());
        if let Some(entry_index) = self.covering(address, end) {
            self.counters.hits += 1;
            self.touch(entry_index);
            return Ok(self.acquired(entry_index, &range));
        }
        self.counters.misses += 1;
        let entry_index = self.insert(&range);
        let entry_index = entry_index.inspect_err(|_| self.counters.failures += 1)?;
        Ok(self.acquired(entry_index, &range))
    }

    /// Removes the registrations that overlap these addresses, because their memory is being
    /// unmapped or reassigned. A registration in use ends with its last [`RegisteredRange`], but is
    /// no longer found. Returns the number of removed registrations.
    pub fn invalidate(&mut self, address: usize, len: usize) -> usize {
        let mut count = 0;
        while let Some(entry_index) = self.overlapping(address, address.saturating_add(len)) {
            self.remove(entry_index);
            count += 1;
        }
        self.counters.invalidations += count as u64;
        count
    }

    /// Removes all registrations that are not in use, without counting them as evictions.
    pub fn trim(&mut self) {
        while self.evict_oldest_idle() {
            self.counters.evictions -= 1;
        }
    }

    fn acquired(&self, entry_index: usize, range: &MemoryRange<'_>) -> RegisteredRange<P> {
        RegisteredRange {
            pinned: Arc::clone(&self.entry(entry_index).pinned),
            address: range.address(),
            len: range.len(),
        }
    }

    fn entry(&self, entry_index: usize) -> &Entry<P> {
        let entry = self.entries[entry_index].as_ref();
        entry.expect("places in the tables have entries")
    }

    fn entry_mut(&mut self, entry_index: usize) -> &mut Entry<P> {
        let entry = self.entries[entry_index].as_mut();
        entry.expect("places in the tables have entries")
    }

    /// The entry that covers the whole range.
    fn covering(&self, address: usize, end: usize) -> Option<usize> {
        let (_, entry_index) = self.by_start.range(..=address).next_back()?;
        (self.entry(*entry_index).end >= end).then_some(*entry_index)
    }

    /// The last entry that overlaps the range.
    fn overlapping(&self, address: usize, end: usize) -> Option<usize> {
        // Entries do not overlap each other, so the last that begins before the end is the one.
        let (_, entry_index) = self.by_start.range(..end).next_back()?;
        (address < end && self.entry(*entry_index).end > address).then_some(*entry_index)
    }

    /// The range extended to whole granules, within its memory.
    fn rounded<'a>(&self, range: &MemoryRange<'a>) -> MemoryRange<'a> {
        let granule = self.config.granule_bytes;
        let start = range.address() & !(granule - 1);
        let end = (range.address() + range.len()).checked_next_multiple_of(granule);
        let rounded = end.and_then(|end| range.expanded(start, end));
        rounded.unwrap_or(*range)
    }

    /// The rounded range extended over the entries that it overlaps, within its memory.
    fn merged<'a>(&self, rounded: &MemoryRange<'a>) -> Option<MemoryRange<'a>> {
        let (address, end) = (rounded.address(), rounded.address() + rounded.len());
        let first = self.by_start.range(..=address).next_back();
        let start = match first {
            Some((start, entry_index)) if self.entry(*entry_index).end > address => *start,
            _ => address,
        };
        let last = self.overlapping(address, end)?;
        let end = end.max(self.entry(last).end);
        rounded.expanded(start, end)
    }

    /// Registers a range that is not covered; returns the index of its entry.
    fn insert(&mut self, range: &MemoryRange<'_>) -> Result<usize, Error> {
        let rounded = self.rounded(range);
        let merged = self.merged(&rounded);
        let mut removed_count = 0;
        let (start, end) = (rounded.address(), rounded.address() + rounded.len());
        while let Some(entry_index) = self.overlapping(start, end) {
            self.remove(entry_index);
            removed_count += 1;
        }
        let merged = merged.map(|merged| self.register(&merged));
        let registered = match merged {
            Some(Ok(registered)) => {
                self.counters.merges += removed_count;
                registered
            }
            // All together may be more than the cap, or what was beside the range unmapped by now.
            Some(Err(_)) | None => {
                self.counters.evictions += removed_count;
                self.register(&rounded)?
            }
        };
        Ok(self.add(registered))
    }

    /// Registers a range, after making room for it.
    fn register(&mut self, range: &MemoryRange<'_>) -> Result<Entry<P>, Error> {
        let bytes = range.len();
        let limit = self.config.pinned_bytes_max;
        loop {
            let pinned = self.pinned_bytes.load(Ordering::Relaxed);
            let fits = bytes <= limit.saturating_sub(pinned);
            let refusal = if self.by_start.len() >= self.config.entries_max {
                Error::Limit {
                    what: "registrations kept at once",
                    wanted: self.by_start.len() as u64 + 1,
                    limit: self.config.entries_max as u64,
                }
            } else if !fits {
                Error::Limit {
                    what: "bytes pinned at once",
                    wanted: pinned as u64 + bytes as u64,
                    limit: limit as u64,
                }
            } else {
                match self.domain.register(*range, self.access) {
                    Ok(registration) => {
                        return Ok(self.pin(registration, range));
                    }
                    Err(error) if is_shortage(&error) => error,
                    Err(error) => return Err(error),
                }
            };
            // A range that can never fit is no reason to give anything up.
            if bytes > limit || !self.evict_oldest_idle() {
                return Err(refusal);
            }
        }
    }

    fn pin(&self, registration: P::Registration, range: &MemoryRange<'_>) -> Entry<P> {
        self.pinned_bytes.fetch_add(range.len(), Ordering::Relaxed);
        Entry {
            start: range.address(),
            end: range.address() + range.len(),
            pinned: Arc::new(Pinned {
                registration,
                _share: Share {
                    bytes: range.len(),
                    pinned_bytes: Arc::clone(&self.pinned_bytes),
                },
            }),
            older: NONE,
            newer: NONE,
        }
    }

    fn add(&mut self, entry: Entry<P>) -> usize {
        let entry_index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.by_start.insert(entry.start, entry_index);
        self.entries[entry_index] = Some(entry);
        self.append(entry_index);
        entry_index
    }

    /// Removes an entry; its registration ends when it is no longer in use.
    fn remove(&mut self, entry_index: usize) {
        self.unlink(entry_index);
        if let Some(entry) = self.entries[entry_index].take() {
            self.by_start.remove(&entry.start);
            self.free.push(entry_index);
        }
    }

    /// Removes the least recently used entry that is not in use.
    fn evict_oldest_idle(&mut self) -> bool {
        let mut entry_index = self.oldest;
        while entry_index != NONE {
            let entry = self.entry(entry_index);
            if entry.is_idle() {
                self.remove(entry_index);
                self.counters.evictions += 1;
                return true;
            }
            entry_index = entry.newer;
        }
        false
    }

    /// Makes an entry the most recently used one.
    fn touch(&mut self, entry_index: usize) {
        if self.newest != entry_index {
            self.unlink(entry_index);
            self.append(entry_index);
        }
    }

    fn append(&mut self, entry_index: usize) {
        let newest = self.newest;
        let entry = self.entry_mut(entry_index);
        entry.older = newest;
        entry.newer = NONE;
        match newest {
            NONE => self.oldest = entry_index,
            before => self.entry_mut(before).newer = entry_index,
        }
        self.newest = entry_index;
    }

    fn unlink(&mut self, entry_index: usize) {
        let Entry { older, newer, .. } = *self.entry(entry_index);
        match older {
            NONE => self.oldest = newer,
            before => self.entry_mut(before).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            behind => self.entry_mut(behind).older = older,
        }
    }
}
