//! The whole path once: arena, pool, lease, store, loan.

use hugemem::{Arena, ArenaConfig, PagePolicy, Store, WaiterToken};

#[test]
fn a_lease_is_taken_written_and_comes_home() {
    let config = ArenaConfig {
        bytes: 1 << 20,
        pages: PagePolicy::Auto,
        max_transfer: 1 << 18,
    };
    let arena = Arena::new(config).expect("1 MiB of memory");
    let pool = arena.pool(4);
    let mut lease = pool.take(5000).expect("a slice");
    assert_eq!(
        (lease.len(), lease.capacity(), lease.as_ptr().addr() % 4096),
        (5000, 16384, 0)
    );
    lease.fill(7);
    drop(lease);
    assert!(
        arena
            .counters()
            .classes
            .iter()
            .all(|class| class.taken == 0)
    );
    let all: Vec<_> = std::iter::from_fn(|| pool.take(4096)).collect();
    assert!(pool.take_or_wait(4096, WaiterToken(9)).is_none());
    assert!(pool.next_grant().is_none());
    drop(all);
    assert_eq!(
        pool.next_grant().map(|(token, _)| token),
        Some(WaiterToken(9))
    );
}

#[test]
fn a_loan_keeps_writers_out() {
    let store = Store::new(1 << 20, PagePolicy::Auto).expect("1 MiB of memory");
    let handle = store.handle();
    assert!(handle.try_write(512, &[1; 1024]));
    let loan = handle.try_lend(1024, 512).expect("nothing is held");
    assert_eq!(*loan, [1; 512]);
    assert!(!handle.try_write(0, &[2; 512]));
    drop(loan);
    assert!(handle.try_write(0, &[2; 512]));
    assert_eq!(handle.try_equal(0, &[2; 512]), Some(true));
    assert!(handle.try_discard(0, 1 << 20));
    assert_eq!(handle.try_equal(512, &[0; 1024]), Some(true));
}
