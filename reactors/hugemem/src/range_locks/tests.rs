//! Range locks on one thread; `models.rs` tests them on several.

use super::{READERS, RangeLocks, YIELD, YIELDS};

#[test]
fn refused_lock_leaves_no_unit_locked() {
    let locks = RangeLocks::new(4);
    assert!(locks.try_lock_read(2, 1));
    assert!(!locks.try_lock_write(0, 4), "one unit is read");
    assert!(!locks.try_lock_write(1, 2));
    assert!(
        locks.try_lock_write(0, 2) && locks.try_lock_write(3, 1),
        "the others are free"
    );
    assert!(!locks.try_lock_read(1, 3) && !locks.try_lock_read(0, 1));
    locks.unlock_write(0, 2);
    locks.unlock_write(3, 1);
    locks.unlock_read(2, 1);
    assert!(locks.try_lock_write(0, 4));
    locks.unlock_write(0, 4);
    assert!(
        locks.try_lock_read(0, 4) && locks.try_lock_read(0, 4),
        "readers share the lock"
    );
}

#[test]
fn reader_count_is_limited() {
    let locks = RangeLocks::new(1);
    for _ in 0..READERS {
        assert!(locks.try_lock_read(0, 1));
    }
    assert!(!locks.try_lock_read(0, 1) && !locks.try_lock_write(0, 1));
    locks.unlock_read(0, 1);
    // The refusals owed to the writer above come first.
    while !locks.try_lock_read(0, 1) {}
    for _ in 0..READERS {
        locks.unlock_read(0, 1);
    }
    assert!(locks.try_lock_write(0, 1));
}

#[test]
fn overlapping_readers_do_not_starve_a_writer() {
    let locks = RangeLocks::new(2);
    assert!(locks.try_lock_read(0, 2));
    assert!(!locks.try_lock_write(0, 2));
    assert!(!locks.try_lock_read(0, 1), "the writer is next");
    locks.unlock_read(0, 2);
    assert!(locks.try_lock_write(0, 2));
    locks.unlock_write(0, 2);
    assert!(locks.try_lock_read(0, 2), "nobody waits any more");
}

#[test]
fn readers_yield_all_units_of_a_waiting_writer() {
    let locks = RangeLocks::new(3);
    assert!(locks.try_lock_read(2, 1));
    assert!(!locks.try_lock_write(0, 3));
    assert!((0..3).all(|unit| !locks.try_lock_read(unit, 1)));
    locks.unlock_read(2, 1);
    assert!(locks.try_lock_write(0, 3));
}

/// Readers may take a while to unlock their units, so they do it at the same time.
#[test]
fn waiting_writer_notifies_all_readers_of_its_range() {
    let locks = RangeLocks::new(4);
    assert!(locks.try_lock_read(1, 1) && locks.try_lock_read(3, 1));
    assert!(!locks.try_lock_write(0, 4));
    assert!(locks.is_awaited(1, 1) && locks.is_awaited(3, 1));
    assert!(!locks.is_awaited(2, 1), "nobody reads there");
    locks.withdraw(0, 4);
    assert!(!locks.is_awaited(0, 4));
}

#[test]
fn readers_yield_a_bounded_number_of_times_to_an_absent_writer() {
    let locks = RangeLocks::new(1);
    assert!(locks.try_lock_read(0, 1));
    assert!(!locks.try_lock_write(0, 1));
    let refusals = (0..).take_while(|_| !locks.try_lock_read(0, 1)).count();
    assert_eq!(refusals, (YIELDS / YIELD - 1) as usize);
    assert!(locks.try_lock_read(0, 1), "and is then forgotten");
}

#[test]
fn insisting_writer_does_not_starve_readers() {
    let locks = RangeLocks::new(1);
    assert!(locks.try_lock_read(0, 1));
    let mut admitted = 0;
    for _ in 0..3 * (YIELDS / YIELD) {
        assert!(!locks.try_lock_write(0, 1));
        admitted += u32::from(locks.try_lock_read(0, 1));
    }
    assert_eq!(admitted, 3);
}
