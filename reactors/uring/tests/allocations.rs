//! Operations allocate nothing in steady state.

use std::sync::Arc;

use arrayvec::ArrayVec;
use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use uring::{Done, Operation, Ring, RingConfig};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn ten_thousand_operations_do_not_allocate() {
    const DEPTH: u64 = 16;
    let config = ArenaConfig {
        bytes: 4 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 64 * 1024,
    };
    let arena = Arena::new(config).unwrap();
    let pool = arena.pool(0);
    let mut ring = Ring::new(&RingConfig::new(DEPTH as u32), Some(&arena)).unwrap();
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(1 << 20).unwrap();
    let file = ring
        .add_file(Arc::new(std::os::fd::OwnedFd::from(file)))
        .unwrap();
    let mut left = 10_000_u64;
    let before = allocations_on_this_thread();
    let mut done = ArrayVec::<Done, 8>::new();
    while left > 0 || ring.in_flight() > 0 {
        while left > 0 && (ring.in_flight() as u64) < DEPTH {
            let lease = pool.take(4096).unwrap();
            let offset = left % 256 * 4096;
            let operation = if left.is_multiple_of(2) {
                Operation::Read {
                    file,
                    offset,
                    lease,
                }
            } else {
                Operation::Write {
                    file,
                    offset,
                    lease,
                    sync: false,
                }
            };
            ring.submit(left, operation).unwrap();
            left -= 1;
        }
        ring.flush();
        ring.poll(&mut done);
        assert!(done.iter().all(|ended| ended.result.is_ok()));
        done.clear();
    }
    assert_eq!(allocations_on_this_thread() - before, 0);
}
