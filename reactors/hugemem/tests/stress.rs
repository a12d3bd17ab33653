//! Several reactors on one small arena: no slice is owned twice, and all are returned.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use hugemem::{Account, Arena, ArenaConfig, Lease, PagePolicy, Pool, WaiterToken};

const REACTORS: u64 = 4;
const REQUESTS: u64 = 100_000;
const WINDOW: usize = 24;
const ARENA_BYTES: usize = 1 << 20;
const SLOT: usize = 4096;

/// A simple random generator to vary sizes, the same in every run (xorshift).
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// One flag per 4 KiB of the arena, set while a lease owns it.
struct Owned(Vec<AtomicBool>);

impl Owned {
    fn claim(&self, lease: &mut Lease, stamp: u64) {
        for slot in slots(lease) {
            assert!(
                !self.0[slot].swap(true, Ordering::Relaxed),
                "slot {slot} is owned twice"
            );
        }
        lease.resize(lease.capacity());
        lease[..8].copy_from_slice(&stamp.to_le_bytes());
        let end = lease.len() - 8;
        lease[end..].copy_from_slice(&stamp.to_le_bytes());
    }

    fn release(&self, lease: Lease, stamp: u64) {
        let end = lease.len() - 8;
        assert_eq!(lease[..8], stamp.to_le_bytes(), "somebody else wrote here");
        assert_eq!(
            lease[end..],
            stamp.to_le_bytes(),
            "somebody else wrote here"
        );
        for slot in slots(&lease) {
            assert!(self.0[slot].swap(false, Ordering::Relaxed));
        }
        drop(lease);
    }
}

fn slots(lease: &Lease) -> std::ops::Range<usize> {
    let first = lease.region_offset() / SLOT;
    first..first + lease.capacity() / SLOT
}

/// The account of each reactor's requests: two reactors serve the same host.
fn account(seed: u64) -> Account {
    Account::io(seed as u16 % 3 + 1)
}

/// Issues requests of all sizes, keeps a window of them, and cancels a few waiting ones.
fn reactor(pool: &Pool, owned: &Owned, seed: u64) -> u64 {
    let (account, began) = (account(seed), Instant::now());
    let now_ns = || began.elapsed().as_nanos() as u64;
    let mut random = Seeded(seed);
    let mut held: VecDeque<(u64, Lease)> = VecDeque::new();
    let (mut served, mut cancelled) = (0, 0);
    for request in 0..REQUESTS {
        let len = 1usize << (random.next() % 19);
        let stamp = seed << 32 | request;
        if let Some(mut lease) = pool.take_or_wait(account, len, WaiterToken(stamp), now_ns()) {
            assert!(lease.len() == len);
            owned.claim(&mut lease, stamp);
            held.push_back((stamp, lease));
        }
        if random.next().is_multiple_of(64) {
            pool.cancel_waits(None, |token| {
                let hit = token.0.is_multiple_of(3);
                cancelled += u64::from(hit);
                hit
            });
        }
        loop {
            while let Some((token, mut lease)) = pool.next_grant(now_ns()) {
                owned.claim(&mut lease, token.0);
                held.push_back((token.0, lease));
            }
            let full = held.len() + pool.waiting() >= WINDOW;
            let Some((stamp, lease)) =
                held.pop_front_if(|_| full || random.next().is_multiple_of(4))
            else {
                if full {
                    thread::yield_now();
                    continue;
                }
                break;
            };
            owned.release(lease, stamp);
            served += 1;
        }
    }
    while pool.waiting() > 0 || !held.is_empty() {
        if let Some((stamp, lease)) = held.pop_front() {
            owned.release(lease, stamp);
            served += 1;
        }
        match pool.next_grant(now_ns()) {
            Some((token, mut lease)) => {
                owned.claim(&mut lease, token.0);
                held.push_back((token.0, lease));
            }
            None => thread::yield_now(),
        }
    }
    served + cancelled
}

#[test]
fn no_slice_is_owned_twice_and_all_are_returned() {
    let config = ArenaConfig {
        bytes: ARENA_BYTES,
        pages: PagePolicy::Ordinary,
        max_transfer: 256 << 10,
    };
    let arena = Arena::new(config).unwrap();
    let owned = Owned(
        (0..ARENA_BYTES / SLOT)
            .map(|_| AtomicBool::new(false))
            .collect(),
    );
    thread::scope(|scope| {
        for seed in 1..=REACTORS {
            let (arena, owned) = (&arena, &owned);
            scope.spawn(move || {
                let pool = arena.pool(WINDOW);
                let answered = reactor(&pool, owned, seed * 0x9E37_79B9);
                assert_eq!(answered, REQUESTS, "every request is served or cancelled");
            });
        }
    });
    let classes = arena.counters().classes;
    assert!(
        classes.iter().map(|class| class.waits).sum::<u64>() > 0,
        "the arena was scarce"
    );
    assert!(
        classes
            .iter()
            .all(|class| class.taken == 0 && class.waiting == 0)
    );
    let pool = arena.pool(0);
    let all: Vec<Lease> = std::iter::from_fn(|| pool.take(1)).collect();
    assert_eq!(all.iter().map(Lease::capacity).sum::<usize>(), ARENA_BYTES);
    assert!(owned.0.iter().all(|slot| !slot.load(Ordering::Relaxed)));
}
