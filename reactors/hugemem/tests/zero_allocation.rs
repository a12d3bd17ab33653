//! No allocation after start: leases, waits, grants, cancellations, borrows.

use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use hugemem::{Account, Arena, ArenaConfig, Lease, PagePolicy, Store, WaiterToken};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CYCLES: u64 = 100_000;

#[test]
fn a_hundred_thousand_lease_cycles_do_not_allocate() {
    let config = ArenaConfig {
        bytes: 1 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 65536,
    };
    let arena = Arena::new(config).unwrap();
    let pool = arena.pool(64);
    let neighbour = arena.pool(64);
    let store = Store::new(1 << 20, PagePolicy::Ordinary).unwrap();
    let handle = store.handle();
    let mut held: Vec<Lease> = Vec::with_capacity(1 << 10);
    let (mut waited, mut granted, mut cancelled) = (0u64, 0u64, 0u64);

    let before = allocations_on_this_thread();
    for cycle in 0..CYCLES {
        let len = [512, 4096, 9000, 65536][cycle as usize % 4];
        let from = if cycle % 5 == 0 { &neighbour } else { &pool };
        match from.take_or_wait(Account::SYSTEM, len, WaiterToken(cycle), 0) {
            Some(lease) => held.push(lease),
            None => waited += 1,
        }
        if pool.waiting() + neighbour.waiting() >= 32 {
            pool.cancel_waits(None, |token| {
                cancelled += u64::from(token.0 % 7 == 0);
                token.0 % 7 == 0
            });
            held.clear();
            for pool in [&pool, &neighbour] {
                while let Some((_, lease)) = pool.next_grant(0) {
                    held.push(lease);
                    granted += 1;
                }
            }
        }
        let offset = cycle as usize * 512 % (1 << 19);
        let borrow = handle
            .try_borrow_read(offset, 4096)
            .expect("no writer is there");
        assert!(
            !handle.try_write(offset, &[1; 512]),
            "the range is borrowed"
        );
        drop(borrow);
        assert!(handle.try_write(offset, &[1; 512]) && handle.try_zero(offset, 8192));
    }
    let allocated = allocations_on_this_thread() - before;

    assert_eq!(allocated, 0, "heap allocations in {CYCLES} cycles");
    assert!(
        waited > CYCLES / 100 && granted > CYCLES / 100 && cancelled > 0,
        "all paths ran"
    );
    let counted: u64 = arena
        .counters()
        .classes
        .iter()
        .map(|class| class.waits)
        .sum();
    assert_eq!(counted, waited);
}

#[test]
fn allocation_counter_counts_allocations() {
    let before = allocations_on_this_thread();
    let mut bytes: Vec<u8> = std::hint::black_box(Vec::with_capacity(10));
    assert_eq!(allocations_on_this_thread() - before, 1);
    bytes.reserve(1000);
    assert_eq!(allocations_on_this_thread() - before, 2, "growing counts");
    drop(bytes);
    assert_eq!(allocations_on_this_thread() - before, 2, "freeing does not");
}
