//! Class selection and division of an arena.

use proptest::prelude::*;

use super::{CLASS_BYTES, CLASSES, Carving, class_for};
use crate::UNIT_BYTES;

#[test]
fn smallest_sufficient_class_is_chosen() {
    let expected = [
        (0, 0),
        (1, 0),
        (4096, 0),
        (4097, 1),
        (16384, 1),
        (16385, 2),
        (65536, 2),
        (65537, 3),
        (262_144, 3),
        (262_145, 4),
        (1 << 20, 4),
    ];
    for (len, class) in expected {
        assert_eq!(class_for(len), Some(class), "{len}");
    }
    assert_eq!(class_for((1 << 20) + 1), None);
    assert_eq!(class_for(usize::MAX), None);
}

#[test]
fn arena_is_divided_by_class_shares() {
    let carving = Carving::new(256 << 20, 1 << 20).unwrap();
    assert_eq!(carving.counts, [16384, 3072, 768, 192, 48]);
    let without = Carving::new(16 << 20, 65536).unwrap();
    assert_eq!(without.counts[3..], [0, 0]);
}

#[test]
fn arena_needs_one_slice_of_the_largest_class() {
    for (class, &bytes) in CLASS_BYTES.iter().enumerate() {
        let carving = Carving::new(bytes, bytes).unwrap();
        let mut counts = [0; CLASSES];
        counts[class] = 1;
        assert_eq!(carving.counts, counts);
        assert_eq!(Carving::new(bytes - UNIT_BYTES, bytes), None);
    }
    assert_eq!(
        Carving::new(1 << 30, (1 << 20) + 1),
        None,
        "no class is that large"
    );
    assert_eq!(Carving::new(0, 1), None);
}

proptest! {
    #[test]
    fn slices_fill_the_arena_without_overlap(
        units in 0usize..100_000,
        max_transfer in 0usize..=1 << 20,
    ) {
        let bytes = units * UNIT_BYTES;
        let top = class_for(max_transfer).unwrap();
        let Some(carving) = Carving::new(bytes, max_transfer) else {
            prop_assert!(bytes < CLASS_BYTES[top]);
            return Ok(());
        };
        prop_assert!(carving.counts[top] >= 1);
        prop_assert!(carving.counts[top + 1..].iter().all(|&count| count == 0));
        let mut end = 0;
        for class in (0..=top).rev() {
            let count = carving.counts[class];
            if count > 0 {
                prop_assert_eq!(carving.offset(class, 0), end);
                prop_assert_eq!(end % CLASS_BYTES[class], 0, "aligned to its size");
                end = carving.offset(class, count - 1) + CLASS_BYTES[class];
            }
        }
        prop_assert_eq!(end, bytes, "nothing is left over");
    }
}
