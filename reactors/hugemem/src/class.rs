//! The fixed sizes of leases, and the division of an arena among them.

use std::ops::Range;

use crate::UNIT_BYTES;

/// Number of slice sizes.
pub(crate) const CLASSES: usize = 5;
/// Bytes of a slice of each class: 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB.
pub(crate) const CLASS_BYTES: [usize; CLASSES] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Parts of the arena's bytes for each class. If an arena does not use the larger classes, their
/// parts go to the others in the same proportion. The remainder goes to the smallest class.
pub(crate) const CLASS_SHARES: [usize; CLASSES] = [4, 3, 3, 3, 3];

const _: () = {
    assert!(CLASS_BYTES[0] == UNIT_BYTES);
    let mut class = 1;
    while class < CLASSES {
        assert!(CLASS_BYTES[class] > CLASS_BYTES[class - 1]);
        assert!(CLASS_BYTES[class].is_multiple_of(CLASS_BYTES[class - 1]));
        class += 1;
    }
};

/// The smallest class whose slices fit `len` bytes.
pub(crate) fn class_for(len: usize) -> Option<usize> {
    CLASS_BYTES.iter().position(|bytes| len <= *bytes)
}

/// Layout of the slices of each class: the largest first, each aligned to its own size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carving {
    /// Number of slices of each class.
    pub(crate) counts: [u32; CLASSES],
    /// Offset of the first slice of each class in the region, in bytes.
    pub(crate) offsets: [usize; CLASSES],
}

impl Carving {
    /// Divides `bytes` among the classes up to the one that fits `max_transfer`, which has at least
    /// one slice. `None` if not even that fits, or `max_transfer` exceeds all classes.
    pub(crate) fn new(bytes: usize, max_transfer: usize) -> Option<Carving> {
        let top = class_for(max_transfer)?;
        let mut carving = Carving {
            counts: [0; CLASSES],
            offsets: [0; CLASSES],
        };
        let mut offset = 0;
        let mut shares: usize = CLASS_SHARES[..=top].iter().sum();
        for class in (0..=top).rev() {
            let left = bytes - offset;
            let share = left / shares * CLASS_SHARES[class];
            let least = usize::from(class == top);
            let all = if class == 0 { left } else { share };
            let count = (all / CLASS_BYTES[class]).max(least);
            if count * CLASS_BYTES[class] > left {
                return None;
            }
            carving.counts[class] = u32::try_from(count).ok()?;
            carving.offsets[class] = offset;
            offset += count * CLASS_BYTES[class];
            shares -= CLASS_SHARES[class];
        }
        Some(carving)
    }

    /// Number of slices of each class that make up about `bytes` in proportion, at least one each.
    pub(crate) fn part(&self, bytes: usize) -> [u32; CLASSES] {
        let slices = |class: usize| u128::from(self.counts[class]) * CLASS_BYTES[class] as u128;
        let all: u128 = (0..CLASSES).map(slices).sum();
        self.counts.map(|count| {
            let share = u128::from(count) * bytes as u128 / all.max(1);
            let share = u32::try_from(share).unwrap_or(u32::MAX);
            share.clamp(count.min(1), count)
        })
    }

    /// Byte ranges of the first `slices` of each class in the region.
    pub(crate) fn ranges(&self, slices: [u32; CLASSES]) -> Vec<Range<usize>> {
        let range = |class: usize| {
            let start = self.offsets[class];
            start..start + slices[class] as usize * CLASS_BYTES[class]
        };
        (0..CLASSES)
            .map(range)
            .filter(|it| !it.is_empty())
            .collect()
    }

    /// Offset of one slice in the region, in bytes.
    pub(crate) fn offset(&self, class: usize, slice: u32) -> usize {
        debug_assert!(slice < self.counts[class]);
        self.offsets[class] + slice as usize * CLASS_BYTES[class]
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
