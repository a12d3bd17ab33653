//! A store compared with a plain vector, and its range locks between threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use hugemem::{Data, PagePolicy, STORE_BYTES_MAX, Store, UNIT_BYTES};
use proptest::prelude::*;

fn store(len: usize) -> Arc<Store> {
    Store::new(len, PagePolicy::Ordinary).unwrap()
}

#[test]
fn ranges_beyond_the_store_panic() {
    let handle = store(5000).handle();
    for (offset, len) in [
        (5000, 1),
        (0, 5001),
        (4999, 2),
        (usize::MAX, 1),
        (1, usize::MAX),
    ] {
        assert!(catch_unwind(AssertUnwindSafe(|| handle.try_borrow_read(offset, len))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| handle.try_zero(offset, len))).is_err());
    }
    assert!(handle.try_borrow_read(4999, 1).is_some() && handle.try_borrow_read(5000, 0).is_some());
    assert!(handle.try_write(0, &[1; 5000]), "a panic leaves no hold");
    assert!(Store::new(0, PagePolicy::Auto).is_err());
    assert!(Store::new(STORE_BYTES_MAX + 1, PagePolicy::Auto).is_err());
}

#[test]
fn borrow_admits_readers_and_blocks_writers_of_its_units_only() {
    let store = store(4 * UNIT_BYTES);
    let (handle, other) = (store.handle(), store.handle());
    assert!(handle.try_write(0, &[5; 4 * UNIT_BYTES]));
    let borrow = handle.try_borrow_read(UNIT_BYTES + 512, 512).unwrap();
    assert_eq!(borrow.region_offset(), UNIT_BYTES + 512);
    let second = other.try_borrow_read(UNIT_BYTES, 2 * UNIT_BYTES).unwrap();
    drop(second);
    assert_eq!(other.try_equal(UNIT_BYTES, &[5; 1]), Some(true));
    assert!(
        other.try_write(0, &[1; UNIT_BYTES]),
        "the unit below is free"
    );
    assert!(
        other.try_zero(2 * UNIT_BYTES, UNIT_BYTES),
        "and the one above"
    );
    assert!(
        !other.try_write(2 * UNIT_BYTES - 1, &[1]),
        "the same unit, other bytes"
    );
    assert!(!other.try_discard(0, 4 * UNIT_BYTES));
    assert_eq!(*borrow, [5; 512]);
    drop(borrow);
    assert!(other.try_discard(0, 4 * UNIT_BYTES));
    assert_eq!(handle.try_equal(0, &[0; 4 * UNIT_BYTES]), Some(true));
}

#[test]
fn empty_range_locks_nothing() {
    let handle = store(UNIT_BYTES).handle();
    let nothing = handle.try_borrow_read(0, 0).unwrap();
    assert!(nothing.is_empty() && handle.try_write(0, &[1]));
    assert!(handle.try_write(7, &[]) && handle.try_equal(9, &[]) == Some(true));
}

#[test]
fn a_borrow_outlives_its_handle_and_store() {
    let borrow = {
        let handle = store(UNIT_BYTES).handle();
        assert!(handle.try_write(0, &[4; 16]));
        handle.try_borrow_read(0, 16).unwrap()
    };
    let data = Data::from(borrow);
    assert_eq!(*data, [4; 16]);
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8),
    Zero,
    Discard,
    Read,
    Equal { flip: Option<usize> },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<u8>().prop_map(Step::Write),
        1 => Just(Step::Zero),
        1 => Just(Step::Discard),
        2 => Just(Step::Read),
        2 => any::<Option<usize>>().prop_map(|flip| Step::Equal { flip }),
    ]
}

const MODEL_BYTES: usize = 3 * UNIT_BYTES + 512;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn store_matches_a_vector_model(
        steps in prop::collection::vec(
            (step(), 0..=MODEL_BYTES, 0..=MODEL_BYTES, any::<bool>()),
            1..60,
        ),
    ) {
        let handle = store(MODEL_BYTES).handle();
        let mut model = vec![0u8; MODEL_BYTES];
        for (step, one, other, whole_blocks) in steps {
            let unit = if whole_blocks { 512 } else { 1 };
            let (start, end) = (one.min(other) / unit * unit, one.max(other) / unit * unit);
            let range = start..end;
            match step {
                Step::Write(byte) => {
                    let bytes: Vec<u8> = range.clone().map(|at| byte ^ at as u8).collect();
                    prop_assert!(handle.try_write(start, &bytes));
                    model[range].copy_from_slice(&bytes);
                }
                Step::Zero => {
                    prop_assert!(handle.try_zero(start, range.len()));
                    model[range].fill(0);
                }
                Step::Discard => {
                    prop_assert!(handle.try_discard(start, range.len()));
                    model[range].fill(0);
                }
                Step::Read => {
                    let mut bytes = vec![0xEE; range.len()];
                    prop_assert!(handle.try_read(start, &mut bytes));
                    prop_assert_eq!(&bytes[..], &model[range.clone()]);
                    let borrow = handle.try_borrow_read(start, range.len()).unwrap();
                    prop_assert_eq!(&*borrow, &model[range]);
                }
                Step::Equal { flip } => {
                    let mut bytes = model[range].to_vec();
                    let flip = flip.filter(|_| !bytes.is_empty()).map(|at| at % bytes.len());
                    if let Some(at) = flip {
                        bytes[at] ^= 1;
                    }
                    prop_assert_eq!(handle.try_equal(start, &bytes), Some(flip.is_none()));
                }
            }
        }
        prop_assert_eq!(handle.try_equal(0, &model), Some(true));
    }

    #[test]
    fn borrow_blocks_exactly_the_writes_that_share_a_unit(
        (lent, lent_len) in (0..MODEL_BYTES, 1..=UNIT_BYTES),
        (wrote, wrote_len) in (0..MODEL_BYTES, 1..=UNIT_BYTES),
    ) {
        let handle = store(MODEL_BYTES).handle();
        let lent_len = lent_len.min(MODEL_BYTES - lent);
        let wrote_len = wrote_len.min(MODEL_BYTES - wrote);
        let last = |start: usize, len: usize| (start + len - 1) / UNIT_BYTES;
        let apart = last(lent, lent_len) < wrote / UNIT_BYTES
            || last(wrote, wrote_len) < lent / UNIT_BYTES;
        let borrow = handle.try_borrow_read(lent, lent_len).unwrap();
        prop_assert_eq!(handle.try_zero(wrote, wrote_len), apart);
        drop(borrow);
        prop_assert!(handle.try_zero(0, MODEL_BYTES));
    }
}

/// Each writer fills whole ranges with one byte; a reader that sees two values has seen a torn
/// write.
#[test]
fn no_reader_sees_a_torn_write() {
    const ROUNDS: usize = 4000;
    const UNITS: usize = 4;
    let store = store(UNITS * UNIT_BYTES);
    thread::scope(|scope| {
        for writer in 1..=2u8 {
            let store = &store;
            scope.spawn(move || {
                let handle = store.handle();
                for round in 0..ROUNDS {
                    let bytes = [writer.wrapping_mul(round as u8 | 1); UNITS * UNIT_BYTES];
                    while !handle.try_write(0, &bytes) {
                        thread::yield_now();
                    }
                }
            });
        }
        for reader in 0..2 {
            let store = &store;
            scope.spawn(move || {
                let handle = store.handle();
                for _ in 0..ROUNDS {
                    let borrow = loop {
                        match handle.try_borrow_read(reader * 512, UNITS * UNIT_BYTES - 512) {
                            Some(borrow) => break borrow,
                            None => thread::yield_now(),
                        }
                    };
                    let first = borrow[0];
                    assert!(borrow.iter().all(|&byte| byte == first), "a torn write");
                }
            });
        }
    });
    assert!(
        store.handle().try_zero(0, UNITS * UNIT_BYTES),
        "every hold ended"
    );
}

/// Size of a store with non-temporal writes, in bytes.
const STREAMED: usize = 32 << 20;

#[test]
fn streamed_ranges_stay_locked_until_the_fence() {
    let store = store(STREAMED);
    let (handle, other) = (store.handle(), store.handle());
    let data: Vec<u8> = (0..3 * UNIT_BYTES).map(|it| (it % 251) as u8).collect();
    assert!(handle.try_write(UNIT_BYTES + 5, &data));
    assert!(other.try_borrow_read(UNIT_BYTES, 1).is_none());
    assert!(!other.try_write(4 * UNIT_BYTES, &[1]));
    assert!(
        other.try_borrow_read(5 * UNIT_BYTES, 1).is_some(),
        "behind it"
    );
    handle.fence_writes();
    assert_eq!(other.try_equal(UNIT_BYTES + 5, &data), Some(true));
    assert_eq!(other.try_equal(UNIT_BYTES, &[0; 5]), Some(true));
    let behind = 4 * UNIT_BYTES + 5;
    assert_eq!(other.try_equal(behind, &[0; UNIT_BYTES - 5]), Some(true));
}

/// A read of another range does not wait for the copy; a read of this range does.
#[test]
fn only_overlapping_reads_fence_a_streamed_write() {
    let store = store(STREAMED);
    let (handle, other) = (store.handle(), store.handle());
    assert!(handle.try_write(0, &[1; 600]));
    let elsewhere = handle.try_borrow_read(2 * UNIT_BYTES, 512);
    assert!(elsewhere.is_some_and(|borrow| borrow.is_uncached()));
    assert!(
        other.try_borrow_read(0, 600).is_none(),
        "it is still on its way"
    );
    assert_eq!(*handle.try_borrow_read(0, 600).expect("its own"), [1; 600]);
    assert_eq!(*other.try_borrow_read(0, 600).expect("settled"), [1; 600]);
}

#[test]
fn prefetch_accepts_any_range_without_effect() {
    let store = store(2 * UNIT_BYTES);
    let handle = store.handle();
    assert!(handle.try_write(0, &[7; 2 * UNIT_BYTES]));
    let borrow = handle
        .try_borrow_read(0, 2 * UNIT_BYTES)
        .expect("nobody writes");
    assert!(!borrow.is_uncached(), "a small store may be in a cache");
    for len in [0, 1, 63, 64, 511, 512, 513, UNIT_BYTES, 2 * UNIT_BYTES] {
        // Up to the last byte, after which nothing may be mapped.
        hugemem::prefetch(&borrow[2 * UNIT_BYTES - len..]);
    }
    assert_eq!(*borrow, [7; 2 * UNIT_BYTES]);
}

#[test]
fn writer_reads_its_own_streamed_data() {
    let handle = store(STREAMED).handle();
    for (round, offset) in [(1, 0), (2, 512), (3, UNIT_BYTES - 1), (4, 0)] {
        assert!(handle.try_write(offset, &[round; 600]));
        assert_eq!(handle.try_equal(offset, &[round; 600]), Some(true));
        assert!(handle.try_write(offset, &[round + 10; 600]));
        assert!(handle.try_write(offset, &[round + 20; 600]), "over its own");
        assert_eq!(
            &*handle.try_borrow_read(offset, 600).unwrap(),
            [round + 20; 600]
        );
        assert!(handle.try_write(offset, &[round; 600]));
        assert!(handle.try_zero(offset, 600));
        assert_eq!(handle.try_equal(offset, &[0; 600]), Some(true));
    }
}

#[test]
fn dropped_handle_releases_its_locks() {
    let store = store(STREAMED);
    let handle = store.handle();
    let borrow = handle.try_borrow_read(0, 1).unwrap();
    assert!(handle.try_write(2 * UNIT_BYTES, &[1; UNIT_BYTES]));
    drop(handle);
    assert!(store.handle().try_write(2 * UNIT_BYTES, &[2; UNIT_BYTES]));
    drop(borrow);
}

/// Readers on other threads see only whole units, each as one of the writers wrote it.
#[test]
fn concurrent_streamed_writes_are_not_torn() {
    const UNITS: usize = 4;
    const WRITES: u32 = 4000;
    let store = store(STREAMED);
    thread::scope(|scope| {
        for writer in 0..2_u8 {
            let store = &store;
            scope.spawn(move || {
                let handle = store.handle();
                let mut written = 0;
                while written < WRITES {
                    let round = (written % 100) as u8 * 2 + writer;
                    let offset = written as usize % UNITS * UNIT_BYTES;
                    written += u32::from(handle.try_write(offset, &[round; UNIT_BYTES]));
                    if written % 3 == 0 {
                        handle.fence_writes();
                    }
                    thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            let handle = store.handle();
            for turn in 0..4 * WRITES as usize {
                if let Some(borrow) = handle.try_borrow_read(turn % UNITS * UNIT_BYTES, UNIT_BYTES)
                {
                    assert!(borrow.iter().all(|byte| *byte == borrow[0]), "a torn unit");
                }
                thread::yield_now();
            }
        });
    });
}
