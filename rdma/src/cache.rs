//! The registration cache (pin-down cache) for memory that is not ours.
//!
//! Registering costs a system call and pins pages; applications use the same buffers again and
//! again. So a registration outlives its use, until room is needed or the memory changes hands.
//! After Tezuka, O'Carroll, Hori, Ishikawa: Pin-down cache (IPPS 1998).
//!
//! Owns: the registrations, found by interval, and the order in which they were used. Refuses: to
//! pin more than it is told to, to end a registration in use, and to know when memory is unmapped:
//! whoever sees that calls [`RegistrationCache::invalidate`]. One owner, one thread; what it hands
//! out may travel.
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

#[cfg(test)]
mod tests;

/// How much a [`RegistrationCache`] may hold.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Bytes that may be pinned at once, those of registrations that ended but are still in use
    /// included.
    pub pinned_bytes_max: usize,
    /// Registrations that are kept.
    pub entries_max: usize,
    /// Ranges are rounded out to multiples of this, in bytes: a power of two, the machine's page
    /// size or more.
    pub granule_bytes: usize,
}

/// What a [`RegistrationCache`] did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Ranges that were registered already.
    pub hits: u64,
    /// Ranges that were not.
    pub misses: u64,
    /// Registrations that were given up for room.
    pub evictions: u64,
    /// Registrations that were given up because their memory was said to change.
    pub invalidations: u64,
    /// Registrations that a larger one, over the same memory and more, took the place of.
    pub merges: u64,
    /// Ranges that could not be had: no room, or the device refused.
    pub failures: u64,
    /// Registrations that are kept now.
    pub entries: usize,
    /// Bytes pinned now.
    pub pinned_bytes: usize,
}

/// A registration of the cache.
#[derive(Debug)]
struct Pinned<P: Provider> {
    registration: P::Registration,
    /// Behind the registration, so that its bytes count until it has ended.
    _share: Share,
}

/// A part in the bytes that are pinned.
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

/// A registered range in use: keep it until the work that names it has completed.
#[derive(Debug)]
pub struct Held<P: Provider> {
    pinned: Arc<Pinned<P>>,
    address: usize,
    len: usize,
}

impl<P: Provider> Held<P> {
    /// The range as local work requests name it.
    ///
    /// # Panics
    /// When it is 4 GiB or longer: such a range takes several pieces, see [`piece`](Self::piece).
    ///
    /// # Safety
    /// As for [`Sge::new`].
    #[must_use]
    pub unsafe fn sge(&self) -> Sge {
        // SAFETY: the caller promises the same.
        unsafe { self.piece(0, self.len) }
    }

    /// A part of the range as local work requests name it.
    ///
    /// # Panics
    /// When it exceeds the range, or is 4 GiB or longer.
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

    /// The range as the peer names it, as far as the cache's rights allow. The key opens the whole
    /// registration, which is rounded out: not for peers that are not to be trusted with what lies
    /// beside the range.
    #[must_use]
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            address: self.address as u64,
            rkey: self.pinned.registration.rkey(),
        }
    }

    /// Bytes of the range.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Whether ending another registration may help.
fn is_shortage(error: &Error) -> bool {
    match error {
        Error::Limit { .. } => true,
        Error::System { source, .. } => source.kind() == std::io::ErrorKind::OutOfMemory,
        Error::Unavailable(_)
        | Error::Misuse(_)
        | Error::PrivateDataTooLong { .. }
        | Error::DeviceGone => false,
    }
}

/// No entry.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Entry<P: Provider> {
    start: usize,
    end: usize,
    pinned: Arc<Pinned<P>>,
    /// Its neighbours by use.
    older: usize,
    newer: usize,
}

impl<P: Provider> Entry<P> {
    /// Whether nobody but the cache holds it. Only the cache hands it out, so this stays true.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.pinned) == 1
    }
}

/// The cache of one protection domain.
#[derive(Debug)]
pub struct RegistrationCache<P: Provider> {
    /// Places of the entries by their first address; entries do not overlap.
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
    /// An empty cache, which registers with `access`.
    ///
    /// # Panics
    /// When the granule is no power of two, or no registration may be kept.
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

    /// What it did and holds.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        CacheCounters {
            entries: self.by_start.len(),
            pinned_bytes: self.pinned_bytes.load(Ordering::Relaxed),
            ..self.counters
        }
    }

    /// The range registered: from the cache, or anew. A hit allocates nothing and enters no kernel.
    ///
    /// A miss registers the range rounded out; where it overlaps registrations that there are, one
    /// registration takes the place of all. Room is made by ending those that were not used for
    /// longest and are not in use.
    ///
    /// # Errors
    /// [`Error::Limit`] when the range does not fit beside what is in use: copying through memory
    /// of one's own is then the way. What [`Domain::register`] answers; where that is a shortage,
    /// after everything that is not in use was ended in vain.
    pub fn acquire(&mut self, range: MemoryRange<'_>) -> Result<Held<P>, Error> {
        let (address, end) = (range.address(), range.address() + range.len());
        if let Some(place) = self.covering(address, end) {
            self.counters.hits += 1;
            self.touch(place);
            return Ok(self.held(place, &range));
        }
        self.counters.misses += 1;
        let place = self.insert(&range);
        let place = place.inspect_err(|_| self.counters.failures += 1)?;
        Ok(self.held(place, &range))
    }

    /// Ends what touches these addresses: their memory is being unmapped, or will mean something
    /// else. What is in use ends with its last [`Held`], but is not found any more. Returns how
    /// many that were.
    pub fn invalidate(&mut self, address: usize, len: usize) -> usize {
        let mut count = 0;
        while let Some(place) = self.overlapping(address, address.saturating_add(len)) {
            self.remove(place);
            count += 1;
        }
        self.counters.invalidations += count as u64;
        count
    }

    /// Ends everything that is not in use, without counting it; the rest stays.
    pub fn trim(&mut self) {
        while self.evict_oldest_idle() {
            self.counters.evictions -= 1;
        }
    }

    fn held(&self, place: usize, range: &MemoryRange<'_>) -> Held<P> {
        Held {
            pinned: Arc::clone(&self.entry(place).pinned),
            address: range.address(),
            len: range.len(),
        }
    }

    fn entry(&self, place: usize) -> &Entry<P> {
        let entry = self.entries[place].as_ref();
        entry.expect("places in the tables have entries")
    }

    fn entry_mut(&mut self, place: usize) -> &mut Entry<P> {
        let entry = self.entries[place].as_mut();
        entry.expect("places in the tables have entries")
    }

    /// The entry that has all of a range.
    fn covering(&self, address: usize, end: usize) -> Option<usize> {
        let (_, place) = self.by_start.range(..=address).next_back()?;
        (self.entry(*place).end >= end).then_some(*place)
    }

    /// An entry that has any of a range.
    fn overlapping(&self, address: usize, end: usize) -> Option<usize> {
        // Entries do not overlap each other, so the last that begins before the end is the one.
        let (_, place) = self.by_start.range(..end).next_back()?;
        (address < end && self.entry(*place).end > address).then_some(*place)
    }

    /// The range rounded out to whole granules, as far as its memory goes.
    fn rounded<'a>(&self, range: &MemoryRange<'a>) -> MemoryRange<'a> {
        let granule = self.config.granule_bytes;
        let start = range.address() & !(granule - 1);
        let end = (range.address() + range.len()).checked_next_multiple_of(granule);
        let rounded = end.and_then(|end| range.expanded(start, end));
        rounded.unwrap_or(*range)
    }

    /// The rounded range together with the entries that it overlaps, as far as its memory goes.
    fn united<'a>(&self, rounded: &MemoryRange<'a>) -> Option<MemoryRange<'a>> {
        let (address, end) = (rounded.address(), rounded.address() + rounded.len());
        let first = self.by_start.range(..=address).next_back();
        let start = match first {
            Some((start, place)) if self.entry(*place).end > address => *start,
            _ => address,
        };
        let last = self.overlapping(address, end)?;
        let end = end.max(self.entry(last).end);
        rounded.expanded(start, end)
    }

    /// Registers what is not there yet; returns its place.
    fn insert(&mut self, range: &MemoryRange<'_>) -> Result<usize, Error> {
        let rounded = self.rounded(range);
        let united = self.united(&rounded);
        let mut gone = 0;
        let (start, end) = (rounded.address(), rounded.address() + rounded.len());
        while let Some(place) = self.overlapping(start, end) {
            self.remove(place);
            gone += 1;
        }
        let united = united.map(|united| self.register(&united));
        let registered = match united {
            Some(Ok(registered)) => {
                self.counters.merges += gone;
                registered
            }
            // All together may be more than the cap, or what was beside the range unmapped by now.
            Some(Err(_)) | None => {
                self.counters.evictions += gone;
                self.register(&rounded)?
            }
        };
        Ok(self.add(registered))
    }

    /// Registers a range, making room for it.
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
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.by_start.insert(entry.start, place);
        self.entries[place] = Some(entry);
        self.append(place);
        place
    }

    /// Ends an entry; its registration ends when nobody holds it.
    fn remove(&mut self, place: usize) {
        self.unlink(place);
        if let Some(entry) = self.entries[place].take() {
            self.by_start.remove(&entry.start);
            self.free.push(place);
        }
    }

    /// Ends the entry that was not used for longest among those that are not in use.
    fn evict_oldest_idle(&mut self) -> bool {
        let mut place = self.oldest;
        while place != NONE {
            let entry = self.entry(place);
            if entry.is_idle() {
                self.remove(place);
                self.counters.evictions += 1;
                return true;
            }
            place = entry.newer;
        }
        false
    }

    /// Makes an entry the newest.
    fn touch(&mut self, place: usize) {
        if self.newest != place {
            self.unlink(place);
            self.append(place);
        }
    }

    fn append(&mut self, place: usize) {
        let newest = self.newest;
        let entry = self.entry_mut(place);
        entry.older = newest;
        entry.newer = NONE;
        match newest {
            NONE => self.oldest = place,
            before => self.entry_mut(before).newer = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: usize) {
        let Entry { older, newer, .. } = *self.entry(place);
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
