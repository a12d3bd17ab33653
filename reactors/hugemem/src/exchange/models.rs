//! Every interleaving of the exchange's operations, by loom: `RUSTFLAGS="--cfg loom" cargo test -p
//! hugemem --release --lib`. The owner of a slice number writes the slice's cell, so loom fails if
//! two threads own it, or if the writes of one owner are not visible to the next.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::{Exchange, Member};
use crate::account::Account;

const SYSTEM: Account = Account::SYSTEM;

struct Bench {
    exchange: Exchange,
    slices: Vec<UnsafeCell<u32>>,
}

fn bench(slices: u32) -> Arc<Bench> {
    Arc::new(Bench {
        exchange: Exchange::new([slices, 0, 0, 0, 0], [slices, 0, 0, 0, 0]),
        slices: (0..slices).map(|_| UnsafeCell::new(0)).collect(),
    })
}

fn use_slice(bench: &Bench, slice: u32) {
    bench.slices[slice as usize].with_mut(|_| ());
}

fn take_and_give_back(bench: &Bench, member: &Member, rounds: usize) {
    for _ in 0..rounds {
        if let Some(slice) = bench.exchange.take(member, 0, SYSTEM) {
            use_slice(bench, slice);
            bench.exchange.give_back(member, 0, slice, SYSTEM);
        }
    }
}

fn all_come_home(bench: &Bench, member: &Member) {
    let home: Vec<u32> = std::iter::from_fn(|| bench.exchange.take(member, 0, SYSTEM)).collect();
    assert_eq!(home.len(), bench.slices.len());
    for slice in home {
        use_slice(bench, slice);
        bench.exchange.give_back(member, 0, slice, SYSTEM);
    }
    let tally = bench.exchange.tally(0);
    assert_eq!((tally.taken, tally.waiting), (0, 0));
}

#[test]
fn two_reactors_never_hold_the_same_slice() {
    loom::model(|| {
        let bench = bench(2);
        let here = bench.exchange.join();
        let there = bench.exchange.join();
        let other = Arc::clone(&bench);
        let thread = thread::spawn(move || {
            take_and_give_back(&other, &there, 2);
        });
        take_and_give_back(&bench, &here, 2);
        thread.join().unwrap();
        all_come_home(&bench, &here);
    });
}

#[test]
fn stealing_from_a_leaving_reactors_cache_is_safe() {
    loom::model(|| {
        let bench = bench(2);
        let here = bench.exchange.join();
        let there = bench.exchange.join();
        let slices: Vec<u32> =
            std::iter::from_fn(|| bench.exchange.take(&there, 0, SYSTEM)).collect();
        for slice in slices {
            bench.exchange.give_back(&there, 0, slice, SYSTEM);
        }
        let other = Arc::clone(&bench);
        let thread = thread::spawn(move || other.exchange.leave(&there));
        take_and_give_back(&bench, &here, 1);
        thread.join().unwrap();
        all_come_home(&bench, &here);
    });
}

#[test]
fn a_waiter_gets_a_slice_returned_by_another_reactor() {
    loom::model(|| {
        let bench = bench(1);
        let here = bench.exchange.join();
        let there = bench.exchange.join();
        let held = bench
            .exchange
            .take(&there, 0, SYSTEM)
            .expect("the only slice");
        let other = Arc::clone(&bench);
        let thread = thread::spawn(move || {
            use_slice(&other, held);
            other.exchange.give_back(&there, 0, held, SYSTEM);
        });
        bench.exchange.begin_wait(&here, 0);
        let slice = loop {
            match bench.exchange.take(&here, 0, SYSTEM) {
                Some(slice) => break slice,
                None => thread::yield_now(),
            }
        };
        bench.exchange.end_wait(&here, 0);
        use_slice(&bench, slice);
        bench.exchange.give_back(&here, 0, slice, SYSTEM);
        thread.join().unwrap();
        all_come_home(&bench, &here);
    });
}
