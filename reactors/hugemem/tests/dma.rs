//! Buffers shared with devices, and a device's views of a region.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(debug_assertions)]
use hugemem::DmaViolation;
use hugemem::{Arena, ArenaConfig, DmaDriver, DmaView, PagePolicy, leaked_dma};
use proptest::prelude::*;

fn arena(bytes: usize) -> Arc<Arena> {
    let config = ArenaConfig {
        bytes,
        pages: PagePolicy::Ordinary,
        max_transfer: 64 << 10,
    };
    Arena::new(config).expect("memory")
}

fn free(arena: &Arena) -> u64 {
    arena
        .counters()
        .classes
        .iter()
        .map(|class| class.free)
        .sum()
}

#[test]
fn dma_buffer_is_zeroed_exclusive_and_returned() {
    let arena = arena(1 << 20);
    let before = free(&arena);
    let first = arena.dma_buffer(5000).expect("a slice");
    first.write(0, &[0xa5; 5000]);
    assert_eq!(free(&arena), before - 1);
    assert_eq!(first.region_offset() % 4096, 0);
    assert_eq!(
        first.address(),
        arena.region().base_address() + first.region_offset()
    );
    let place = first.region_offset();
    drop(first);
    assert_eq!(free(&arena), before);
    let again = arena.dma_buffer(5000).expect("a slice");
    assert_eq!(
        again.region_offset(),
        place,
        "the slice that was last given back"
    );
    let mut bytes = [1; 5000];
    again.read(0, &mut bytes);
    assert_eq!(bytes, [0; 5000]);
}

#[test]
fn full_arena_returns_no_dma_buffer() {
    let arena = arena(256 << 10);
    assert!(
        arena.dma_buffer((1 << 20) + 1).is_none(),
        "no slice is that large"
    );
    let mut taken = Vec::new();
    while let Some(buffer) = arena.dma_buffer(4096) {
        taken.push(buffer);
    }
    assert_eq!(free(&arena), 0);
    let pool = arena.pool(0);
    assert!(pool.take(4096).is_none());
    taken.pop();
    assert!(
        pool.take(4096).is_some(),
        "what came back is within a pool's reach"
    );
}

#[test]
fn dma_buffers_can_be_shared_between_threads() {
    let arena = arena(1 << 20);
    let buffer = Arc::new(arena.dma_buffer(4096).expect("a slice"));
    let writer = Arc::clone(&buffer);
    let thread = std::thread::spawn(move || {
        writer.store_u64(8, 42, Relaxed);
        writer.store_u32(0, 1, Release);
    });
    while buffer.load_u32(0, Acquire) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(buffer.load_u64(8, Relaxed), 42);
    thread.join().expect("it ended");
}

#[test]
fn dma_view_reads_and_writes_leases() {
    let arena = arena(1 << 20);
    let view = DmaView::of_arena(arena.region()).expect("a second mapping");
    assert_eq!(view.len(), arena.region().len());
    assert_eq!(view.base_address(), arena.region().base_address());
    let mut lease = arena.pool(0).take(4096).expect("a lease");
    lease.fill(7);
    let mut seen = [0; 16];
    view.read(lease.region_offset(), &mut seen);
    assert_eq!(seen, [7; 16]);
    view.write(lease.region_offset() + 3, b"device");
    assert_eq!(&lease[..10], b"\x07\x07\x07device\x07");
}

/// Accesses of a software device are checked against the posted memory.
#[test]
#[cfg(debug_assertions)]
fn an_access_to_unposted_memory_is_recorded() {
    struct Nic;
    impl DmaDriver for Nic {
        type Done = ();
    }
    let arena = arena(1 << 20);
    let view = DmaView::of_arena(arena.region()).expect("a second mapping");
    let buffer = arena.dma_buffer(4096).expect("a slice");
    let posted = arena.pool(0).take(4096).expect("a lease").into_dma::<Nic>();
    let offset = posted.region_offset();
    view.write(offset, &[1; 4096]);
    view.write(buffer.region_offset(), &[1; 4096]);
    assert_eq!(arena.take_dma_violation(), None);
    let lease = posted.returned(&());
    view.store_u16(offset + 8, 7, Relaxed);
    let violation = DmaViolation {
        offset: offset + 8,
        len: 2,
        wrote: true,
    };
    assert_eq!(arena.take_dma_violation(), Some(violation));
    assert_eq!(arena.take_dma_violation(), None);
    drop(lease);
    let place = buffer.region_offset();
    drop(buffer);
    view.read(place, &mut [0; 8]);
    let violation = arena.take_dma_violation().expect("it was given back");
    assert!(!violation.wrote);
}

/// Memory that is dropped without a proof is never reused.
#[test]
fn dropped_posted_memory_is_never_reused() {
    struct Nic;
    impl DmaDriver for Nic {
        type Done = ();
    }
    let arena = arena(1 << 20);
    let pool = arena.pool(0);
    let before = leaked_dma();
    let posted = pool.take(4096).expect("a lease").into_dma::<Nic>();
    let address = posted.address();
    drop(posted);
    assert_eq!(leaked_dma(), before + 1);
    let rest: Vec<_> = std::iter::from_fn(|| pool.take(4096)).collect();
    assert!(rest.iter().all(|lease| lease.as_ptr().addr() != address));
}

#[test]
fn dma_view_outlives_the_region() {
    let arena = arena(1 << 20);
    let view = DmaView::of_arena(arena.region()).expect("a second mapping");
    drop(arena);
    view.store_u16(2, 9, Relaxed);
    assert_eq!(view.load_u16(2, Relaxed), 9);
}

#[test]
fn word_array_access_matches_single_access() {
    let arena = arena(1 << 20);
    let buffer = arena.dma_buffer(4096).expect("a slice");
    let view = DmaView::of_arena(arena.region()).expect("a second mapping");
    let words = [1, 2, 3, u64::MAX, 5, 6, 7, 8];
    buffer.store_words(64, &words);
    assert_eq!(buffer.load_words(64), words);
    for (at, word) in words.into_iter().enumerate() {
        assert_eq!(buffer.load_u64(64 + 8 * at, Relaxed), word);
    }
    assert_eq!(view.load_words(buffer.region_offset() + 64), words);
    assert_eq!(
        (buffer.load_words(56), buffer.load_words(128)),
        ([0], [0]),
        "nothing beside them changed"
    );
    view.store_words(buffer.region_offset() + 4088, &[9]);
    assert_eq!(buffer.load_words(4088), [9]);
}

#[test]
fn word_array_access_out_of_bounds_panics() {
    let arena = arena(1 << 20);
    let buffer = arena.dma_buffer(100).expect("a slice");
    let attempts: [&dyn Fn(); 6] = [
        &|| _ = buffer.load_words::<12>(0),
        &|| _ = buffer.load_words::<1>(96),
        &|| _ = buffer.load_words::<1>(4),
        &|| _ = buffer.load_words::<13>(0),
        &|| _ = buffer.load_words::<1>(usize::MAX - 7),
        &|| buffer.store_words(96, &[0]),
    ];
    let refused = attempts.map(|attempt| catch_unwind(AssertUnwindSafe(attempt)).is_err());
    assert_eq!(refused, [false, true, true, true, true, true]);
}

#[test]
fn dma_access_out_of_bounds_panics() {
    let arena = arena(1 << 20);
    let buffer = arena.dma_buffer(100).expect("a slice");
    let view = DmaView::of_arena(arena.region()).expect("a second mapping");
    let end = view.len();
    let attempts: [&dyn Fn(); 6] = [
        &|| _ = buffer.load_u32(96, Relaxed),
        &|| _ = buffer.load_u64(96, Relaxed),
        &|| _ = buffer.load_u32(2, Relaxed),
        &|| buffer.write(99, &[0; 2]),
        &|| view.store_u16(end, 0, Relaxed),
        &|| view.read(usize::MAX, &mut [0; 2]),
    ];
    let refused = attempts.map(|attempt| catch_unwind(AssertUnwindSafe(attempt)).is_err());
    assert_eq!(refused, [false, true, true, true, true, true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn copies_are_exact_at_any_offset(
        from in 0_usize..40, to in 0_usize..40, bytes in proptest::collection::vec(any::<u8>(), 0..1200)
    ) {
        let arena = arena(256 << 10);
        let view = DmaView::of_arena(arena.region()).expect("a second mapping");
        let other = DmaView::of_arena(arena.region()).expect("a third mapping");
        view.write(from, &bytes);
        view.copy_to(from, &other, 8192 + to, bytes.len());
        let mut seen = vec![0; bytes.len()];
        other.read(8192 + to, &mut seen);
        prop_assert_eq!(&seen, &bytes);
        let mut before = [1];
        other.read(8192 + to + bytes.len(), &mut before);
        prop_assert_eq!(before, [0]);
    }
}
