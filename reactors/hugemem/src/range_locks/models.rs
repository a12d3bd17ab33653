//! Every interleaving of locking and unlocking units, by loom: `RUSTFLAGS="--cfg loom" cargo test
//! -p hugemem --release --lib`. Lock owners read and write a unit's cell as they would its bytes,
//! so loom fails if a writer overlaps another owner or earlier writes are not visible.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::RangeLocks;

struct Bench {
    locks: RangeLocks,
    units: Vec<UnsafeCell<u32>>,
}

fn bench(units: usize) -> Arc<Bench> {
    let cells = (0..units).map(|_| UnsafeCell::new(0)).collect();
    Arc::new(Bench {
        locks: RangeLocks::new(units),
        units: cells,
    })
}

fn read(bench: &Bench, first: usize, count: usize) {
    if bench.locks.try_lock_read(first, count) {
        for unit in &bench.units[first..first + count] {
            unit.with(|_| ());
        }
        bench.locks.unlock_read(first, count);
    }
}

/// Reads one unit like a store does.
fn read_one(bench: &Bench, unit: usize) {
    if bench.locks.try_lock_read_idle(unit) || bench.locks.try_lock_read(unit, 1) {
        bench.units[unit].with(|_| ());
        bench.locks.unlock_read_one(unit);
    }
}

fn write(bench: &Bench, first: usize, count: usize) -> bool {
    let owned = bench.locks.try_lock_write(first, count);
    if owned {
        for unit in &bench.units[first..first + count] {
            unit.with_mut(|_| ());
        }
        bench.locks.unlock_write(first, count);
    }
    owned
}

#[test]
fn reader_and_writer_of_two_units_exclude_each_other() {
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
        assert!(write(&bench, 0, 2), "all locks are released");
    });
}

#[test]
fn overlapping_writers_and_a_reader_exclude_each_other() {
    loom::model(|| {
        let bench = bench(3);
        let (second, third) = (Arc::clone(&bench), Arc::clone(&bench));
        let writer = thread::spawn(move || write(&second, 1, 2));
        let reader = thread::spawn(move || read(&third, 1, 1));
        write(&bench, 0, 2);
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(write(&bench, 0, 3), "all locks are released");
    });
}

#[test]
fn retrying_writer_gets_the_lock() {
    loom::model(|| {
        let bench = bench(1);
        assert!(bench.locks.try_lock_read(0, 1));
        let other = Arc::clone(&bench);
        let reader = thread::spawn(move || other.locks.unlock_read(0, 1));
        while !write(&bench, 0, 1) {
            thread::yield_now();
        }
        reader.join().unwrap();
    });
}
