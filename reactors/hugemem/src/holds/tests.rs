//! Range locks on one thread; `models.rs` tests them on several.

use super::{Holds, READERS, YIELD, YIELDS};

#[test]
fn a_refused_range_leaves_nothing_held() {
    let holds = Holds::new(4);
    assert!(holds.try_share(2, 1));
    assert!(!holds.try_own(0, 4), "one unit is read");
    assert!(!holds.try_own(1, 2));
    assert!(
        holds.try_own(0, 2) && holds.try_own(3, 1),
        "the others are free"
    );
    assert!(!holds.try_share(1, 3) && !holds.try_share(0, 1));
    holds.disown(0, 2);
    holds.disown(3, 1);
    holds.unshare(2, 1);
    assert!(holds.try_own(0, 4));
    holds.disown(0, 4);
    assert!(
        holds.try_share(0, 4) && holds.try_share(0, 4),
        "readers share"
    );
}

#[test]
fn the_last_countable_reader_is_the_last() {
    let holds = Holds::new(1);
    for _ in 0..READERS {
        assert!(holds.try_share(0, 1));
    }
    assert!(!holds.try_share(0, 1) && !holds.try_own(0, 1));
    holds.unshare(0, 1);
    // The refusals owed to the writer above come first.
    while !holds.try_share(0, 1) {}
    for _ in 0..READERS {
        holds.unshare(0, 1);
    }
    assert!(holds.try_own(0, 1));
}

#[test]
fn overlapping_readers_cannot_keep_a_writer_out() {
    let holds = Holds::new(2);
    assert!(holds.try_share(0, 2));
    assert!(!holds.try_own(0, 2));
    assert!(!holds.try_share(0, 1), "the writer is next");
    holds.unshare(0, 2);
    assert!(holds.try_own(0, 2));
    holds.disown(0, 2);
    assert!(holds.try_share(0, 2), "nobody waits any more");
}

#[test]
fn units_that_a_writer_had_stay_free_while_it_waits_for_the_rest() {
    let holds = Holds::new(3);
    assert!(holds.try_share(2, 1));
    assert!(!holds.try_own(0, 3));
    assert!((0..3).all(|unit| !holds.try_share(unit, 1)));
    holds.unshare(2, 1);
    assert!(holds.try_own(0, 3));
}

/// Readers may take a while to unlock their units, so they do it at the same time.
#[test]
fn a_writer_asks_the_readers_of_its_whole_range_at_once() {
    let holds = Holds::new(4);
    assert!(holds.try_share(1, 1) && holds.try_share(3, 1));
    assert!(!holds.try_own(0, 4));
    assert!(holds.is_awaited(1, 1) && holds.is_awaited(3, 1));
    assert!(!holds.is_awaited(2, 1), "nobody reads there");
    holds.withdraw(0, 4);
    assert!(!holds.is_awaited(0, 4));
}

#[test]
fn a_writer_that_never_returns_keeps_readers_out_only_so_often() {
    let holds = Holds::new(1);
    assert!(holds.try_share(0, 1));
    assert!(!holds.try_own(0, 1));
    let refusals = (0..).take_while(|_| !holds.try_share(0, 1)).count();
    assert_eq!(refusals, (YIELDS / YIELD - 1) as usize);
    assert!(holds.try_share(0, 1), "and is then forgotten");
}

#[test]
fn readers_get_through_between_the_refusals_even_while_a_writer_insists() {
    let holds = Holds::new(1);
    assert!(holds.try_share(0, 1));
    let mut admitted = 0;
    for _ in 0..3 * (YIELDS / YIELD) {
        assert!(!holds.try_own(0, 1));
        admitted += u32::from(holds.try_share(0, 1));
    }
    assert_eq!(admitted, 3);
}
