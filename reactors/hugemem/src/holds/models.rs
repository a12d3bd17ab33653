//! Every interleaving of locking and unlocking units, by loom: `RUSTFLAGS="--cfg loom" cargo test
//! -p hugemem --release --lib`. Lock owners read and write a unit's cell as they would its bytes,
//! so loom fails if a writer overlaps another owner or earlier writes are not visible.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::Holds;

struct Bench {
    holds: Holds,
    units: Vec<UnsafeCell<u32>>,
}

fn bench(units: usize) -> Arc<Bench> {
    let cells = (0..units).map(|_| UnsafeCell::new(0)).collect();
    Arc::new(Bench {
        holds: Holds::new(units),
        units: cells,
    })
}

fn read(bench: &Bench, first: usize, count: usize) {
    if bench.holds.try_share(first, count) {
        for unit in &bench.units[first..first + count] {
            unit.with(|_| ());
        }
        bench.holds.unshare(first, count);
    }
}

/// Reads one unit like a store does.
fn read_one(bench: &Bench, unit: usize) {
    if bench.holds.try_share_idle(unit) || bench.holds.try_share(unit, 1) {
        bench.units[unit].with(|_| ());
        bench.holds.unshare_one(unit);
    }
}

fn write(bench: &Bench, first: usize, count: usize) -> bool {
    let owned = bench.holds.try_own(first, count);
    if owned {
        for unit in &bench.units[first..first + count] {
            unit.with_mut(|_| ());
        }
        bench.holds.disown(first, count);
    }
    owned
}

#[test]
fn a_reader_and_a_writer_of_two_units_never_meet() {
    loom::model(|| {
        let bench = bench(2);
        let other = Arc::clone(&bench);
        let thread = thread::spawn(move || {
            read(&other, 0, 2);
            read_one(&other, 1);
        });
        write(&bench, 0, 2);
        write(&bench, 1, 1);
        thread.join().unwrap();
        assert!(write(&bench, 0, 2), "all holds ended");
    });
}

#[test]
fn overlapping_writers_and_a_reader_never_meet() {
    loom::model(|| {
        let bench = bench(3);
        let (second, third) = (Arc::clone(&bench), Arc::clone(&bench));
        let writer = thread::spawn(move || write(&second, 1, 2));
        let reader = thread::spawn(move || read(&third, 1, 1));
        write(&bench, 0, 2);
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(write(&bench, 0, 3), "all holds ended");
    });
}

#[test]
fn a_writer_that_retries_gets_in() {
    loom::model(|| {
        let bench = bench(1);
        assert!(bench.holds.try_share(0, 1));
        let other = Arc::clone(&bench);
        let reader = thread::spawn(move || other.holds.unshare(0, 1));
        while !write(&bench, 0, 1) {
            thread::yield_now();
        }
        reader.join().unwrap();
    });
}
