//! Arena, pools and leases: sizes, order, counters and misuse.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hugemem::{
    Account, Arena, ArenaConfig, ArenaError, Data, Lease, PagePolicy, Pool, Region, Slices, Store,
    StoreHandle, WaiterToken,
};

fn arena(bytes: usize, max_transfer: usize) -> Arc<Arena> {
    Arena::new(ArenaConfig {
        bytes,
        pages: PagePolicy::Ordinary,
        max_transfer,
    })
    .unwrap()
}

fn drain(pool: &Pool, len: usize) -> Vec<Lease> {
    std::iter::from_fn(|| pool.take(len)).collect()
}

macro_rules! assert_thread_bound {
    ($($bound:ty: $auto:ident),* $(,)?) => {$(
        const _: fn() = || {
            // If the type has the trait, the inferred parameter has two candidates, which is a
            // compile error.
            trait Ambiguous<Marker> {
                fn pick() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct Has;
            impl<T: ?Sized + $auto> Ambiguous<Has> for T {}
            <$bound as Ambiguous<_>>::pick();
        };
    )*};
}
assert_thread_bound!(
    Pool: Send, Pool: Sync, Lease: Send, Lease: Sync, Data: Send, Data: Sync,
    StoreHandle: Send, StoreHandle: Sync, hugemem::Borrow: Send, hugemem::Borrow: Sync,
);
const fn assert_shared<T: Send + Sync>() {}
const _: () = {
    assert_shared::<Region>();
    assert_shared::<Arena>();
    assert_shared::<Store>();
};

#[test]
fn too_small_arena_error_names_the_minimum() {
    for (max_transfer, least) in [
        (1, 4096),
        (4097, 16384),
        (131_072, 262_144),
        (1 << 20, 1 << 20),
    ] {
        for bytes in [0, 1, least - 1] {
            let config = ArenaConfig {
                bytes,
                pages: PagePolicy::Auto,
                max_transfer,
            };
            let error = Arena::new(config).expect_err("too small");
            let ArenaError::TooSmall { least: named, .. } = error else {
                panic!("{error}")
            };
            assert_eq!(named, least);
            assert!(error.to_string().contains(&least.to_string()), "{error}");
        }
        let pool = arena(least, max_transfer).pool(0);
        assert!(pool.take(max_transfer).is_some(), "the least size does");
    }
    let huge = ArenaConfig {
        bytes: 1 << 24,
        pages: PagePolicy::Auto,
        max_transfer: (1 << 20) + 1,
    };
    let error = Arena::new(huge).expect_err("no slice is that large");
    assert!(
        matches!(
            error,
            ArenaError::TransferTooLarge {
                limit: 1_048_576,
                ..
            }
        ),
        "{error}"
    );
    let config = ArenaConfig {
        bytes: 1 << 45,
        pages: PagePolicy::Auto,
        max_transfer: 4096,
    };
    assert!(matches!(Arena::new(config), Err(ArenaError::Region(_))));
}

#[test]
fn small_arena_omits_large_classes() {
    let arena = arena(1 << 20, 128 << 10);
    assert_eq!(arena.max_transfer(), 256 << 10);
    assert_eq!(arena.pool(0).max_transfer(), 256 << 10);
    let classes = arena.counters().classes;
    assert_eq!(
        classes.map(|class| class.slice_bytes),
        [4096, 16384, 65536, 262_144, 1 << 20]
    );
    assert!(classes[..4].iter().all(|class| class.total > 0) && classes[4].total == 0);
    let bytes: u64 = classes
        .iter()
        .map(|class| class.total * class.slice_bytes as u64)
        .sum();
    assert_eq!(bytes, 1 << 20, "nothing is left over");
}

#[test]
fn leases_are_aligned_disjoint_and_within_the_region() {
    let arena = arena(8 << 20, 1 << 20);
    let pool = arena.pool(0);
    let mut leases = Vec::new();
    for len in [1 << 20, 200_000, 65536, 5000, 1] {
        leases.extend(drain(&pool, len));
    }
    let mut ranges: Vec<(usize, usize)> = leases
        .iter_mut()
        .map(|lease| {
            let start = lease.as_mut_ptr().addr();
            assert_eq!(start, lease.as_ptr().addr());
            assert_eq!(start - arena.region().base_address(), lease.region_offset());
            assert_eq!(lease.region_offset() % lease.capacity(), 0);
            (start, start + lease.capacity())
        })
        .collect();
    ranges.sort_unstable();
    assert!(
        ranges.windows(2).all(|pair| pair[0].1 == pair[1].0),
        "no overlap and no gap"
    );
    assert_eq!(ranges[0].0, arena.region().base_address());
    assert_eq!(
        ranges[ranges.len() - 1].1,
        arena.region().base_address() + (8 << 20)
    );
    assert!(
        arena
            .counters()
            .classes
            .iter()
            .all(|c| c.free == 0 && c.taken == c.total)
    );
    drop(leases);
    assert!(
        arena
            .counters()
            .classes
            .iter()
            .all(|c| c.taken == 0 && c.free == c.total)
    );
}

#[test]
fn lease_has_the_requested_length_and_resizes_within_its_slice() {
    let pool = arena(1 << 20, 65536).pool(0);
    let mut lease = pool.take(5000).unwrap();
    assert_eq!(
        (lease.len(), lease.capacity(), lease.is_empty()),
        (5000, 16384, false)
    );
    lease.resize(16384);
    lease.fill(3);
    lease.resize(0);
    assert!(lease.is_empty() && lease[..].is_empty());
    lease.resize(16384);
    assert!(lease.iter().all(|&byte| byte == 3), "the bytes stay");
    assert!(catch_unwind(AssertUnwindSafe(|| lease.resize(16385))).is_err());
    assert_eq!(lease.len(), 16384);
    let data = Data::from(lease);
    assert_eq!(data.len(), 16384);
    assert!(
        catch_unwind(AssertUnwindSafe(|| pool.take(65537))).is_err(),
        "larger than any"
    );
}

#[test]
fn larger_slice_is_used_if_the_class_is_exhausted() {
    let arena = arena(2 << 20, 65536);
    let pool = arena.pool(4);
    let all = drain(&pool, 4096);
    let counters = arena.counters().classes;
    assert_eq!(
        all.len() as u64,
        counters.iter().map(|class| class.total).sum::<u64>()
    );
    let capacities: Vec<usize> = all.iter().map(Lease::capacity).collect();
    assert!(
        capacities.is_sorted(),
        "the smallest that is free comes first"
    );
    assert!(pool.take(1).is_none());
}

#[test]
fn waiting_requests_are_served_in_order() {
    let arena = arena(1 << 20, 65536);
    let pool = arena.pool(8);
    let mut all = drain(&pool, 1);
    for token in 1..=3 {
        assert!(
            pool.take_or_wait(Account::SYSTEM, 512, WaiterToken(token), 0)
                .is_none()
        );
    }
    assert_eq!(pool.waiting(), 3);
    assert!(pool.next_grant(0).is_none(), "nothing came back");
    all.retain(|lease| lease.capacity() > 4096);
    assert!(pool.take(4096).is_none(), "a newcomer does not overtake");
    assert!(
        pool.take_or_wait(Account::SYSTEM, 4096, WaiterToken(4), 0)
            .is_none()
    );
    for token in 1..=4 {
        let (granted, lease) = pool.next_grant(0).unwrap();
        let len = if token < 4 { 512 } else { 4096 };
        assert_eq!((granted, lease.len()), (WaiterToken(token), len));
    }
    assert!(pool.next_grant(0).is_none() && pool.waiting() == 0);
    assert!(
        pool.take(4096).is_some(),
        "and then newcomers are served at once"
    );
    let class = arena.counters().classes[0];
    assert_eq!((class.waits, class.waiting), (4, 0));
}

#[test]
fn waiting_sizes_do_not_block_or_starve_each_other() {
    let arena = arena(2 << 20, 262_144);
    let (pool, other) = (arena.pool(8), arena.pool(8));
    let mut all = drain(&pool, 1);
    assert!(
        pool.take_or_wait(Account::SYSTEM, 262_144, WaiterToken(1), 0)
            .is_none()
    );
    assert!(
        pool.take_or_wait(Account::SYSTEM, 4096, WaiterToken(2), 0)
            .is_none()
    );
    let largest = all.pop().unwrap();
    assert_eq!(largest.capacity(), 262_144);
    let smallest = all.swap_remove(0);
    assert_eq!(smallest.capacity(), 4096);
    drop(smallest);
    assert_eq!(
        pool.next_grant(0).map(|grant| grant.0),
        Some(WaiterToken(2))
    );
    let small = drain(&pool, 4096);
    assert!(small.iter().all(|lease| lease.capacity() == 4096));
    assert!(
        pool.take_or_wait(Account::SYSTEM, 4096, WaiterToken(3), 0)
            .is_none()
    );
    drop(largest);
    assert!(
        other.take(4096).is_none(),
        "no small request takes what a large one waits for"
    );
    let (token, lease) = pool.next_grant(0).unwrap();
    assert_eq!((token, lease.capacity()), (WaiterToken(1), 262_144));
    assert!(pool.next_grant(0).is_none());
    drop(lease);
    let (token, lease) = pool
        .next_grant(0)
        .expect("nobody waits for the large one any more");
    assert_eq!(
        (token, lease.len(), lease.capacity()),
        (WaiterToken(3), 4096, 262_144)
    );
}

#[test]
fn promised_slices_are_served_in_turn_from_their_class() {
    let arena = arena(2 << 20, 65_536);
    let pool = arena.pool(8);
    let promise = arena.promise(4096, 3, 1).expect("half of a class");
    assert_eq!((promise.count(), promise.bytes()), (3, 4096));
    let first = pool.take_promised(&promise, 4096, WaiterToken(1), 0);
    assert_eq!(first.expect("the class is free").capacity(), 4096);
    let mut small = drain(&pool, 4096);
    let large = small.split_off(small.partition_point(|lease| lease.capacity() == 4096));
    assert!(
        pool.take_promised(&promise, 100, WaiterToken(2), 0)
            .is_none(),
        "other classes are none of its business"
    );
    assert!(
        pool.take_or_wait(Account::SYSTEM, 4096, WaiterToken(3), 0)
            .is_none()
    );
    drop(large);
    let (token, lease) = pool.next_grant(0).expect("for a request without a promise");
    assert_eq!(token, WaiterToken(3));
    assert!(lease.capacity() > 4096);
    assert!(
        pool.next_grant(0).is_none(),
        "other classes are not promised"
    );
    small.truncate(small.len() - 2);
    let (token, lease) = pool.next_grant(0).expect("a slice of the class is back");
    assert_eq!(
        (token, lease.capacity(), lease.len()),
        (WaiterToken(2), 4096, 100)
    );
    assert_eq!(lease.account(), Account::PROMISED);
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn promises_and_buffers_leave_requests_a_slice_of_each_class() {
    let arena = arena(1 << 20, 65_536);
    let whole = arena.counters().classes.map(|class| class.total);
    let promises: Vec<_> = std::iter::from_fn(|| arena.promise(1, u32::MAX, 1)).collect();
    let promised: u64 = promises.iter().map(|it| u64::from(it.count())).sum();
    assert_eq!(promised, whole.map(|total| total / 2).iter().sum());
    let buffers: Vec<_> = std::iter::from_fn(|| arena.dma_buffer(1)).collect();
    let counters = arena.counters().classes;
    for (class, whole) in counters.iter().zip(whole).filter(|(_, whole)| *whole > 0) {
        assert_eq!(class.free, whole / 2 + 1, "{} bytes", class.slice_bytes);
    }
    drop((promises, buffers));
    let again = arena.promise(1, u32::MAX, 1).expect("all came back");
    assert_eq!(u64::from(again.count()), whole[0] / 2);
}

#[test]
fn cancelled_waits_are_removed() {
    let arena = arena(1 << 20, 16384);
    let pool = arena.pool(6);
    let all = drain(&pool, 1);
    for token in 0..6 {
        let len = if token < 3 { 4096 } else { 16384 };
        assert!(
            pool.take_or_wait(Account::SYSTEM, len, WaiterToken(token), 0)
                .is_none()
        );
    }
    pool.cancel_waits(None, |token| token.0 % 2 == 0);
    assert_eq!(pool.waiting(), 3);
    let waiting = arena.counters().classes.map(|class| class.waiting);
    assert_eq!(waiting, [1, 2, 0, 0, 0]);
    drop(all);
    let order: Vec<u64> = std::iter::from_fn(|| pool.next_grant(0))
        .map(|g| g.0.0)
        .collect();
    assert_eq!(order, [1, 3, 5]);
    assert!(
        arena
            .counters()
            .classes
            .iter()
            .all(|class| class.waiting == 0)
    );
}

#[test]
fn exceeding_the_announced_waiters_panics() {
    let pool = arena(4096, 4096).pool(1);
    let held = pool.take(4096);
    assert!(held.is_some());
    assert!(
        pool.take_or_wait(Account::SYSTEM, 4096, WaiterToken(1), 0)
            .is_none()
    );
    let over = AssertUnwindSafe(|| pool.take_or_wait(Account::SYSTEM, 4096, WaiterToken(2), 0));
    assert!(catch_unwind(over).is_err());
    assert_eq!(pool.waiting(), 1);
    drop(held);
    assert_eq!(
        pool.next_grant(0).map(|grant| grant.0),
        Some(WaiterToken(1))
    );
}

#[test]
fn dropped_pool_returns_slices_and_removes_waiters() {
    let arena = arena(1 << 20, 4096);
    let total = arena.counters().classes[0].total;
    for _ in 0..3 {
        let pool = arena.pool(2);
        let all = drain(&pool, 4096);
        assert_eq!(all.len() as u64, total);
        assert!(
            pool.take_or_wait(Account::SYSTEM, 1, WaiterToken(7), 0)
                .is_none()
        );
        drop(pool);
        assert_eq!(arena.counters().classes[0].waiting, 1, "its leases keep it");
        drop(all);
        let class = arena.counters().classes[0];
        assert_eq!((class.free, class.waiting), (total, 0));
    }
}

#[test]
fn a_lease_outlives_its_pool_and_arena() {
    let mut lease = {
        let arena = arena(1 << 20, 4096);
        arena.pool(0).take(4096).unwrap()
    };
    lease.fill(9);
    assert!(lease.iter().all(|&byte| byte == 9));
}

#[test]
fn arena_grows_to_all_its_slices() {
    let config = ArenaConfig {
        bytes: 64 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    let totals = |arena: &Arena| arena.counters().classes.map(|class| class.total);
    let (arena, mut rest) = Arena::begin(config, 8 << 20).unwrap();
    let whole = Slices::of(64 << 20, 1 << 20)
        .unwrap()
        .left()
        .map(|(_, count)| u64::from(count));
    let begun = (8_usize << 20).abs_diff((64 << 20) - rest.bytes());
    assert!(begun < 2 << 20, "{begun} bytes beside what was asked for");
    assert!(totals(&arena).into_iter().all(|total| total > 0));
    let pool = arena.pool(4);
    let all = |totals: [u64; 5]| totals.iter().sum::<u64>();
    let mut held = drain(&pool, 4096);
    assert_eq!(held.len() as u64, all(totals(&arena)));

    rest.populate().unwrap();

    assert_eq!(rest.bytes(), 0);
    assert_eq!(totals(&arena), whole);
    held.extend(drain(&pool, 4096));
    assert_eq!(held.len() as u64, all(whole));
    let mut starts: Vec<_> = held.iter().map(Lease::region_offset).collect();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len(), held.len(), "no slice twice");
}

#[test]
fn waiting_request_gets_an_added_slice() {
    let config = ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    let (arena, mut rest) = Arena::begin(config, 0).unwrap();
    let pool = arena.pool(4);
    let first = pool.take(1 << 20).expect("one is there at once");
    assert!(
        pool.take_or_wait(Account::SYSTEM, 1 << 20, WaiterToken(7), 0)
            .is_none()
    );
    assert!(pool.next_grant(0).is_none());
    std::thread::scope(|scope| scope.spawn(|| rest.populate()).join().unwrap()).unwrap();
    let (token, second) = pool.next_grant(0).expect("another one has come");
    assert_eq!(token, WaiterToken(7));
    assert_ne!(first.region_offset(), second.region_offset());
}
