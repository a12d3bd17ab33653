//! The depot on one thread; `exchange/models.rs` and `tests/stress.rs` test it on several.

use super::Depot;

#[test]
fn empty_depot_returns_no_slices() {
    let depot = Depot::new(0, 0);
    assert_eq!(depot.pop_batch(&mut [0; 4]), 0);
    depot.push_batch(&[]);
    assert_eq!(Depot::new(3, 3).pop_batch(&mut []), 0);
}

#[test]
fn batches_are_pushed_and_popped_whole() {
    let depot = Depot::new(5, 5);
    let mut slices = [9; 4];
    assert_eq!(depot.pop_batch(&mut slices), 4);
    assert_eq!(slices, [0, 1, 2, 3]);
    assert_eq!(depot.pop_batch(&mut [9; 4]), 1, "only one is left");
    depot.push_batch(&[2, 0]);
    depot.push_batch(&[3]);
    assert_eq!(depot.pop_batch(&mut slices), 3);
    assert_eq!(slices[..3], [3, 2, 0], "what came last goes first");
    assert_eq!(depot.pop_batch(&mut slices), 0);
}

#[test]
fn depot_tag_wraps() {
    let depot = Depot::new(2, 2);
    depot.head.store(
        super::pack(0, u32::MAX),
        std::sync::atomic::Ordering::Relaxed,
    );
    assert_eq!(depot.pop_batch(&mut [9]), 1);
    assert_eq!(
        super::unpack(depot.head.load(std::sync::atomic::Ordering::Relaxed)),
        (1, 0)
    );
    depot.push_batch(&[0]);
    let mut slices = [9; 2];
    assert_eq!((depot.pop_batch(&mut slices), slices), (2, [0, 1]));
}
