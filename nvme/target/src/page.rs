//! A window on a log page or data structure, which is generated from front to back and never
//! buffered completely.

use zerocopy::{Immutable, IntoBytes};

/// Writes the part of a page that a host requested: `window.len()` bytes from `offset`.
pub(crate) struct Page<'a> {
    window: &'a mut [u8],
    offset: u64,
    /// Number of bytes of the page generated so far.
    position: u64,
}

impl<'a> Page<'a> {
    /// A window over a page of which nothing is generated yet. Zeroes the window, so that bytes
    /// after the end of the page are zero.
    pub(crate) fn new(window: &'a mut [u8], offset: u64) -> Self {
        window.fill(0);
        Self {
            window,
            offset,
            position: 0,
        }
    }

    /// Generates the next bytes of the page.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let begin = self.position;
        self.position += bytes.len() as u64;
        let window_end = self.offset.saturating_add(self.window.len() as u64);
        let from = begin.max(self.offset);
        let to = self.position.min(window_end);
        if from < to {
            // All four lie within slices that are in memory.
            let source = (from - begin) as usize..(to - begin) as usize;
            let target = (from - self.offset) as usize..(to - self.offset) as usize;
            self.window[target].copy_from_slice(&bytes[source]);
        }
    }

    /// Generates the next `size_of::<T>()` bytes of the page. Calls `make` only if the window
    /// contains some of them.
    pub(crate) fn put_with<T: IntoBytes + Immutable>(&mut self, make: impl FnOnce() -> T) {
        let length = size_of::<T>() as u64;
        let window_end = self.offset.saturating_add(self.window.len() as u64);
        let end = self.position + length;
        if end <= self.offset || self.position >= window_end {
            self.position = end;
        } else {
            self.put(make().as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Page;

    proptest! {
        #[test]
        fn page_window_equals_a_slice_of_the_page(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            offset in 0_usize..200,
            length in 0_usize..200,
        ) {
            let whole: Vec<u8> = pieces.concat();
            let mut window = vec![0xaa; length];
            let mut page = Page::new(&mut window, offset as u64);
            for piece in &pieces {
                page.put(piece);
            }
            let expected: Vec<u8> = (offset..offset + length)
                .map(|index| whole.get(index).copied().unwrap_or(0))
                .collect();
            prop_assert_eq!(window, expected);
        }

        /// Parts outside of the window are not generated.
        #[test]
        fn page_parts_outside_the_window_are_not_generated(
            pieces in prop::collection::vec(any::<[u8; 16]>(), 0..16),
            offset in 0_usize..300,
            length in 0_usize..300,
        ) {
            let whole: Vec<u8> = pieces.concat();
            let mut window = vec![0xaa; length];
            let mut page = Page::new(&mut window, offset as u64);
            let mut made = 0;
            for piece in &pieces {
                page.put_with(|| {
                    made += 1;
                    *piece
                });
            }
            let expected: Vec<u8> = (offset..offset + length)
                .map(|index| whole.get(index).copied().unwrap_or(0))
                .collect();
            prop_assert_eq!(window, expected);
            prop_assert!(made <= length.div_ceil(16) + 1);
        }
    }
}
