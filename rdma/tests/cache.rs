//! The registration cache on the in-process fabric.
#![expect(unsafe_code, reason = "takes pieces of memory that is posted nowhere")]

use std::net::{IpAddr, Ipv4Addr};

use hugemem::allocation_counter::allocations_on_this_thread;
use hugemem::{PagePolicy, Region};
use proptest::prelude::*;

use rdma::*;
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake};

fn sge(held: &RegisteredRange<Fake>) -> Sge {
    // SAFETY: the piece is only compared and never posted.
    unsafe { held.sge() }
}

fn piece(held: &RegisteredRange<Fake>, offset: usize, len: usize) -> Sge {
    // SAFETY: as above.
    unsafe { held.piece(offset, len) }
}

/// A range by address.
fn foreign(address: usize, len: usize) -> MemoryRange<'static> {
    // SAFETY: the tests hold no references to this memory, and keep its region until they end.
    unsafe { MemoryRange::foreign(address, len) }
}

const PAGE: usize = 4096;

struct Setup {
    fabric: Fabric,
    domain: <Fake as Provider>::Domain,
    region: Region,
}

/// A device with this limit of registrations, and memory of this many pages.
fn setup(pages: usize, registrations: u32) -> Setup {
    let fabric = Fabric::new(FabricConfig::IMMEDIATE);
    let mut device = DeviceConfig::new("fake0", IpAddr::V4(Ipv4Addr::LOCALHOST));
    device.limits.registrations = registrations;
    let provider = fabric.machine(&[device]).expect("a machine");
    let devices = provider.devices().expect("one");
    Setup {
        domain: devices[0].create_domain().expect("a domain"),
        region: Region::map(pages * PAGE, PagePolicy::Ordinary).expect("memory"),
        fabric,
    }
}

impl Setup {
    fn cache(&self, pinned_pages: usize, entries_max: usize) -> RegistrationCache<Fake> {
        let config = CacheConfig {
            pinned_bytes_max: pinned_pages * PAGE,
            entries_max,
            granule_bytes: PAGE,
        };
        RegistrationCache::new(self.domain.clone(), Access::REMOTE, config)
    }

    fn range(&self, offset: usize, len: usize) -> MemoryRange<'_> {
        MemoryRange::of_region(&self.region, offset..offset + len)
    }

    fn registrations(&self) -> usize {
        self.fabric.objects().registrations
    }
}

#[test]
fn repeated_buffer_is_a_cache_hit() {
    let setup = setup(16, 100);
    let mut cache = setup.cache(16, 16);
    let base = setup.region.base_address();
    let first = cache.acquire(setup.range(100, 5000)).expect("registered");
    assert_eq!(
        (sge(&first).address(), sge(&first).length()),
        ((base + 100) as u64, 5000)
    );
    assert_eq!(first.remote().address, (base + 100) as u64);
    // Within the registered pages, even beyond the first range.
    let second = cache.acquire(setup.range(0, 8192)).expect("registered");
    assert_eq!(sge(&first).lkey(), sge(&second).lkey());
    assert_eq!(piece(&second, 4096, 4096).address(), (base + 4096) as u64);
    let counters = cache.counters();
    assert_eq!((counters.hits, counters.misses), (1, 1));
    assert_eq!((counters.entries, counters.pinned_bytes), (1, 2 * PAGE));
    assert_eq!(setup.registrations(), 1);
    drop((first, second));
    assert_eq!(setup.registrations(), 1, "kept for the next use");
    drop(cache);
    assert_eq!(setup.registrations(), 0);
}

#[test]
fn cache_hit_does_not_allocate() {
    let setup = setup(64, 100);
    let mut cache = setup.cache(64, 64);
    for page in 0..32 {
        let _ = cache.acquire(setup.range(page * 2 * PAGE, 100));
    }
    let before = allocations_on_this_thread();
    for page in (0..32).rev() {
        let held = cache.acquire(setup.range(page * 2 * PAGE, 100));
        assert!(held.is_ok());
    }
    assert_eq!(allocations_on_this_thread() - before, 0);
    assert_eq!(cache.counters().hits, 32);
}

#[test]
fn least_recently_used_idle_registration_is_evicted() {
    let setup = setup(16, 100);
    let mut cache = setup.cache(3, 16);
    let one = cache.acquire(setup.range(0, 1)).expect("room");
    drop(cache.acquire(setup.range(2 * PAGE, 1)).expect("room"));
    drop(cache.acquire(setup.range(4 * PAGE, 1)).expect("room"));
    drop(cache.acquire(setup.range(2 * PAGE, 1)).expect("a hit"));
    // The first is in use, the second was used after the third.
    drop(
        cache
            .acquire(setup.range(6 * PAGE, 1))
            .expect("room for it"),
    );
    assert_eq!(cache.counters().evictions, 1);
    drop(cache.acquire(setup.range(2 * PAGE, 1)).expect("a hit"));
    assert_eq!(cache.counters().hits, 2);
    drop(
        cache
            .acquire(setup.range(4 * PAGE, 1))
            .expect("room for it"),
    );
    assert_eq!(cache.counters().evictions, 2);
    assert_eq!(cache.counters().pinned_bytes, 3 * PAGE);
    drop(one);
}

#[test]
fn registration_that_does_not_fit_beside_used_ones_is_refused() {
    let setup = setup(16, 100);
    let mut cache = setup.cache(4, 16);
    let held = cache.acquire(setup.range(0, 3 * PAGE)).expect("room");
    let refused = cache.acquire(setup.range(8 * PAGE, 2 * PAGE));
    let limit = matches!(
        refused,
        Err(Error::Limit { wanted, limit, .. })
            if wanted == 5 * PAGE as u64 && limit == 4 * PAGE as u64
    );
    assert!(limit, "{refused:?}");
    drop(held);
    let held = cache.acquire(setup.range(8 * PAGE, 2 * PAGE));
    drop(held.expect("room now"));
    // Exceeds the cap alone: nothing is evicted for it.
    let evictions = cache.counters().evictions;
    let refused = cache.acquire(setup.range(0, 5 * PAGE));
    assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
    assert_eq!(cache.counters().evictions, evictions);
    assert_eq!(cache.counters().failures, 2);
}

#[test]
fn idle_registrations_are_evicted_if_the_device_refuses() {
    let setup = setup(16, 2);
    let mut cache = setup.cache(16, 16);
    drop(cache.acquire(setup.range(0, 1)).expect("the first"));
    let second = cache.acquire(setup.range(2 * PAGE, 1)).expect("the second");
    let third = cache.acquire(setup.range(4 * PAGE, 1));
    let third = third.expect("in place of the first");
    assert_eq!(cache.counters().evictions, 1);
    let refused = cache.acquire(setup.range(6 * PAGE, 1));
    assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
    drop((second, third));
    cache.acquire(setup.range(6 * PAGE, 1)).expect("room now");
}

#[test]
fn invalid_address_evicts_no_registration() {
    let setup = setup(16, 100);
    let mut cache = setup.cache(16, 16);
    drop(cache.acquire(setup.range(0, 1)).expect("room"));
    let nobodys = foreign(PAGE, 64);
    let refused = cache.acquire(nobodys);
    assert!(matches!(refused, Err(Error::System { .. })), "{refused:?}");
    let counters = cache.counters();
    assert_eq!((counters.entries, counters.evictions), (1, 0));
    assert_eq!(counters.failures, 1);
}

#[test]
fn foreign_memory_is_cached_like_any_other() {
    let setup = setup(16, 100);
    setup
        .fabric
        .add_foreign_memory(&setup.region)
        .expect("a second view");
    let mut cache = setup.cache(16, 16);
    let base = setup.region.base_address();
    let range = foreign(base + 10, 20);
    let held = cache.acquire(range).expect("known memory");
    assert_eq!((sge(&held).address(), held.len()), ((base + 10) as u64, 20));
    let beside = foreign(base + 4000, 96);
    cache.acquire(beside).expect("on the same page");
    assert_eq!(cache.counters().hits, 1);
}

#[test]
fn overlapping_ranges_become_one_registration() {
    let setup = setup(16, 100);
    let mut cache = setup.cache(16, 16);
    drop(cache.acquire(setup.range(0, 2 * PAGE)).expect("room"));
    let middle = cache.acquire(setup.range(3 * PAGE, PAGE)).expect("room");
    let all = cache.acquire(setup.range(PAGE, 3 * PAGE)).expect("room");
    let counters = cache.counters();
    assert_eq!((counters.merges, counters.entries), (2, 1));
    assert_eq!(counters.pinned_bytes, 5 * PAGE, "one more page is in use");
    assert_ne!(sge(&middle).lkey(), sge(&all).lkey());
    let hit = cache.acquire(setup.range(0, 4 * PAGE)).expect("a hit");
    assert_eq!(sge(&hit).lkey(), sge(&all).lkey());
    drop(middle);
    assert_eq!(cache.counters().pinned_bytes, 4 * PAGE);
    assert_eq!(setup.registrations(), 1);
}

#[test]
fn invalidated_range_is_kept_only_while_in_use() {
    let setup = setup(16, 100);
    let mut cache = setup.cache(16, 16);
    let held = cache.acquire(setup.range(0, 4 * PAGE)).expect("room");
    drop(cache.acquire(setup.range(8 * PAGE, PAGE)).expect("room"));
    let base = setup.region.base_address();
    assert_eq!(
        cache.invalidate(base + 4 * PAGE, 4 * PAGE),
        0,
        "between the two"
    );
    assert_eq!(cache.invalidate(base, 0), 0);
    assert_eq!(cache.invalidate(base + 4 * PAGE - 1, 1), 1);
    assert_eq!(setup.registrations(), 2, "one in use, one kept");
    let anew = cache.acquire(setup.range(0, PAGE)).expect("room");
    assert_ne!(sge(&anew).lkey(), sge(&held).lkey());
    drop(held);
    assert_eq!(setup.registrations(), 2);
    assert_eq!(cache.invalidate(0, usize::MAX), 2);
    drop(anew);
    assert_eq!(
        (setup.registrations(), cache.counters().pinned_bytes),
        (0, 0)
    );
    assert_eq!(cache.counters().invalidations, 3);
}

#[test]
fn trim_keeps_registrations_in_use() {
    let setup = setup(16, 100);
    let mut cache = setup.cache(16, 16);
    let held = cache.acquire(setup.range(0, 1)).expect("room");
    drop(cache.acquire(setup.range(2 * PAGE, 1)).expect("room"));
    cache.trim();
    let counters = cache.counters();
    assert_eq!((counters.entries, counters.evictions), (1, 0));
    drop(held);
}

/// A reference model of the cache: a list that is searched linearly.
#[derive(Default)]
struct Model {
    entries: Vec<ModelEntry>,
    counters: CacheCounters,
    clock: u64,
    next: u64,
}

#[derive(Clone)]
struct ModelEntry {
    name: u64,
    start: usize,
    end: usize,
    used: u64,
    held: usize,
    /// Still in the cache.
    cached: bool,
}

/// The cap and the number of entries of the tests below, in pages.
const CAP: usize = 12;
const ENTRIES: usize = 5;

impl Model {
    fn pinned(&self) -> usize {
        self.entries.iter().map(|one| one.end - one.start).sum()
    }

    fn cached(&self) -> usize {
        self.entries.iter().filter(|one| one.cached).count()
    }

    fn sweep(&mut self) {
        self.entries.retain(|one| one.cached || one.held > 0);
    }

    fn room(&mut self, pages: usize) -> bool {
        loop {
            self.sweep();
            if self.cached() < ENTRIES && self.pinned() + pages <= CAP {
                return true;
            }
            let idle = self.entries.iter_mut();
            let idle = idle.filter(|one| one.cached && one.held == 0);
            let Some(oldest) = idle.min_by_key(|one| one.used) else {
                return false;
            };
            if pages > CAP {
                return false;
            }
            oldest.cached = false;
            self.counters.evictions += 1;
        }
    }

    /// Acquires pages `start..end`; returns the identifier of the registration.
    fn acquire(&mut self, start: usize, end: usize) -> Option<u64> {
        self.clock += 1;
        let clock = self.clock;
        let hit = (self.entries.iter_mut())
            .find(|one| one.cached && one.start <= start && one.end >= end);
        if let Some(hit) = hit {
            self.counters.hits += 1;
            (hit.used, hit.held) = (clock, hit.held + 1);
            return Some(hit.name);
        }
        self.counters.misses += 1;
        let (mut low, mut high, mut replaced) = (start, end, 0);
        for one in &mut self.entries {
            if one.cached && one.start < end && one.end > start {
                low = low.min(one.start);
                high = high.max(one.end);
                one.cached = false;
                replaced += 1;
            }
        }
        let merged = replaced > 0 && high - low <= CAP && self.room(high - low);
        if merged {
            self.counters.merges += replaced;
        } else {
            self.counters.evictions += replaced;
            (low, high) = (start, end);
            if !self.room(high - low) {
                self.sweep();
                self.counters.failures += 1;
                return None;
            }
        }
        self.next += 1;
        self.entries.push(ModelEntry {
            name: self.next,
            start: low,
            end: high,
            used: clock,
            held: 1,
            cached: true,
        });
        Some(self.next)
    }

    fn release(&mut self, name: u64) {
        let one = self.entries.iter_mut().find(|one| one.name == name);
        one.expect("held").held -= 1;
        self.sweep();
    }

    fn invalidate(&mut self, start: usize, end: usize) -> usize {
        let mut count = 0;
        for one in &mut self.entries {
            if one.cached && one.start < end && one.end > start {
                one.cached = false;
                count += 1;
            }
        }
        self.counters.invalidations += count as u64;
        self.sweep();
        count
    }
}

#[derive(Clone, Debug)]
enum CacheOperation {
    Acquire { offset: usize, len: usize },
    Release { which: usize },
    Invalidate { offset: usize, len: usize },
}

/// Pages of memory in the property test.
const PAGES: usize = 24;

fn cache_operations() -> impl Strategy<Value = Vec<CacheOperation>> {
    let range = (0..PAGES * PAGE, 1..6 * PAGE).prop_map(|(offset, len)| {
        let len = len.min(PAGES * PAGE - offset);
        (offset, len)
    });
    let act = prop_oneof![
        6 => range.clone().prop_map(|(offset, len)| CacheOperation::Acquire { offset, len }),
        5 => (0usize..8).prop_map(|which| CacheOperation::Release { which }),
        1 => range.prop_map(|(offset, len)| CacheOperation::Invalidate { offset, len }),
    ];
    prop::collection::vec(act, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn cache_matches_the_reference_model(cache_operations in cache_operations()) {
        let setup = setup(PAGES, 1000);
        let mut cache = setup.cache(CAP, ENTRIES);
        let mut model = Model::default();
        let mut held: Vec<(u64, RegisteredRange<Fake>)> = Vec::new();
        for act in cache_operations {
            match act {
                CacheOperation::Acquire { offset, len } => {
                    let pages = (offset / PAGE, (offset + len).div_ceil(PAGE));
                    let expected = model.acquire(pages.0, pages.1);
                    let got = cache.acquire(setup.range(offset, len));
                    prop_assert_eq!(got.is_ok(), expected.is_some());
                    if let (Ok(got), Some(name)) = (got, expected) {
                        // Two ranges have the same key if and only if they share a registration.
                        for (other, one) in &held {
                            let same = sge(one).lkey() == sge(&got).lkey();
                            prop_assert_eq!(same, *other == name);
                        }
                        held.push((name, got));
                    }
                }
                CacheOperation::Release { which } if !held.is_empty() => {
                    let which = which % held.len();
                    model.release(held.swap_remove(which).0);
                }
                CacheOperation::Release { .. } => {}
                CacheOperation::Invalidate { offset, len } => {
                    // `invalidate` works on addresses; entries are whole pages.
                    let pages = (offset / PAGE, (offset + len).div_ceil(PAGE));
                    let address = setup.region.base_address() + offset;
                    prop_assert_eq!(
                        cache.invalidate(address, len),
                        model.invalidate(pages.0, pages.1)
                    );
                }
            }
            let expected = CacheCounters {
                entries: model.cached(),
                pinned_bytes: model.pinned() * PAGE,
                ..model.counters
            };
            prop_assert_eq!(cache.counters(), expected);
            prop_assert!(expected.pinned_bytes <= CAP * PAGE);
            prop_assert_eq!(setup.registrations(), model.entries.len());
        }
    }
}
