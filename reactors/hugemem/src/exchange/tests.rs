//! The exchange on one thread, where each member represents a reactor.

use super::{CACHE_SLICES, Exchange, Member};
use crate::account::Account;

const SYSTEM: Account = Account::SYSTEM;

fn drain(exchange: &Exchange, member: &Member, class: usize) -> Vec<u32> {
    std::iter::from_fn(|| exchange.take(member, class, SYSTEM)).collect()
}

#[test]
fn slices_in_another_cache_can_be_stolen() {
    let exchange = Exchange::new([8, 0, 0, 0, 2], [8, 0, 0, 0, 2]);
    let (here, there) = (exchange.join(), exchange.join());
    for slice in drain(&exchange, &there, 0) {
        exchange.give_back(&there, 0, slice, SYSTEM);
    }
    let mut all = drain(&exchange, &here, 0);
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(exchange.take(&there, 0, SYSTEM), None);
    assert_eq!(exchange.tally(0).taken, 8);
}

#[test]
fn full_cache_spills_to_the_depot_without_loss() {
    let total = 4 * CACHE_SLICES[0] as u32;
    let exchange = Exchange::new([total, 0, 0, 0, 0], [total, 0, 0, 0, 0]);
    let member = exchange.join();
    for _ in 0..3 {
        let slices = drain(&exchange, &member, 0);
        assert_eq!(slices.len(), total as usize);
        for slice in slices {
            exchange.give_back(&member, 0, slice, SYSTEM);
        }
    }
    exchange.leave(&member);
    assert_eq!(drain(&exchange, &exchange.join(), 0).len(), total as usize);
}

#[test]
fn returned_slice_goes_to_the_depot_if_another_reactor_waits() {
    let exchange = Exchange::new([2, 0, 0, 0, 0], [2, 0, 0, 0, 0]);
    let (here, there) = (exchange.join(), exchange.join());
    let slices = drain(&exchange, &here, 0);
    exchange.begin_wait(&here, 0);
    assert!(!exchange.others_wait(&here), "one's own wait is no reason");
    exchange.give_back(&here, 0, slices[0], SYSTEM);
    assert_eq!(
        exchange.classes[0].depot.pop_batch(&mut [0]),
        0,
        "it is in the own cache"
    );
    assert_eq!(exchange.take(&here, 0, SYSTEM), Some(slices[0]));
    exchange.end_wait(&here, 0);
    exchange.begin_wait(&there, 0);
    exchange.give_back(&here, 0, slices[1], SYSTEM);
    assert!(
        exchange
            .seats()
            .all(|seat| seat.caches[0].steal().is_none()),
        "in no cache"
    );
    assert_eq!(exchange.take(&there, 0, SYSTEM), Some(slices[1]));
    exchange.end_wait(&there, 0);
    let tally = exchange.tally(0);
    assert_eq!((tally.waits, tally.waiting, tally.taken), (2, 0, 2));
}

#[test]
fn released_seat_is_reused() {
    let exchange = Exchange::new([4, 0, 0, 0, 0], [4, 0, 0, 0, 0]);
    let first = exchange.join();
    let second = exchange.join();
    assert_eq!(exchange.seats().count(), 2);
    exchange.leave(&first);
    let third = exchange.join();
    assert!(std::ptr::eq(&raw const *third.seat, &raw const *first.seat));
    assert_eq!(exchange.seats().count(), 2);
    exchange.leave(&second);
    exchange.leave(&third);
}
