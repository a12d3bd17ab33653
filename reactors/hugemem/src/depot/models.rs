//! Every interleaving of two threads at one depot, by loom: `RUSTFLAGS="--cfg loom" cargo test -p
//! hugemem --lib`. As in `exchange/models.rs`, the owner of a slice number writes the slice's cell.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::Depot;

struct Bench {
    depot: Depot,
    slices: Vec<UnsafeCell<u32>>,
}

impl Bench {
    fn new(slices: u32) -> Arc<Bench> {
        let cells = (0..slices).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Bench {
            depot: Depot::new(slices, slices),
            slices: cells,
        })
    }

    fn pop(&self) -> Option<u32> {
        let mut one = [0];
        (self.depot.pop_batch(&mut one) == 1).then(|| {
            self.slices[one[0] as usize].with_mut(|_| ());
            one[0]
        })
    }

    fn count(&self) -> usize {
        std::iter::from_fn(|| self.pop()).count()
    }
}

/// One thread is interrupted in `pop` while the top slice is taken and returned with another below
/// it.
#[test]
fn depot_pop_is_safe_against_aba() {
    loom::model(|| {
        let bench = Bench::new(3);
        let other = Arc::clone(&bench);
        let thread = thread::spawn(move || {
            let (first, second) = (other.pop(), other.pop());
            if let Some(first) = first {
                other.depot.push_batch(&[first]);
            }
            second
        });
        let here = bench.pop();
        let there = thread.join().unwrap();
        assert!(here.is_some() && there.is_some() && here != there);
        assert_eq!(bench.count(), 1);
    });
}

#[test]
fn batches_move_whole_between_threads() {
    loom::model(|| {
        let bench = Bench::new(3);
        let other = Arc::clone(&bench);
        let thread = thread::spawn(move || {
            let mut slices = [0; 2];
            let count = other.depot.pop_batch(&mut slices);
            for slice in &slices[..count] {
                other.slices[*slice as usize].with_mut(|_| ());
            }
            other.depot.push_batch(&slices[..count]);
        });
        if let Some(slice) = bench.pop() {
            bench.depot.push_batch(&[slice]);
        }
        thread.join().unwrap();
        assert_eq!(bench.count(), 3);
    });
}
