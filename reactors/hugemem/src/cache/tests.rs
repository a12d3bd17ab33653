//! The cache on one thread; `exchange/models.rs` and `tests/stress.rs` test it on several.

use super::{Cache, Top};

#[test]
fn cache_takes_lifo_and_steals_fifo() {
    let (cache, top) = (Cache::new(3), Top::default());
    assert_eq!((cache.take(&top), cache.steal()), (None, None));
    assert!([7, 8, 9].iter().all(|&slice| cache.put(&top, slice)));
    assert!(!cache.put(&top, 10), "full");
    assert_eq!(cache.steal(), Some(7));
    assert_eq!(cache.take(&top), Some(9));
    assert_eq!(cache.take(&top), Some(8));
    assert_eq!(
        (cache.take(&top), cache.steal()),
        (None, None),
        "the stolen slot is passed over"
    );
    assert!(cache.put(&top, 11), "and room again");
    assert_eq!(cache.steal(), Some(11));
    assert_eq!(cache.take(&top), None);
}
