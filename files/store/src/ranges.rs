//! Sets of disjoint ranges of numbers, as the written bytes of a file.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The ranges in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// The first range that ends after `from`.
    #[inline]
    pub(crate) fn next(&self, from: u64) -> Option<Range<u64>> {
        // Most files have one range, or are read behind the others.
        if let Some((&start, &end)) = self.0.last_key_value()
            && start <= from
        {
            return (end > from).then_some(start..end);
        }
        let before = self.0.range(..=from).next_back();
        let before = before.filter(|&(_, &end)| end > from);
        let found = before.or_else(|| self.0.range(from..).next())?;
        Some(*found.0..*found.1)
    }

    /// Adds the numbers of a range.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        let before = self.0.range(..=start).next_back();
        if let Some((&first, &last)) = before.filter(|&(_, &last)| last >= start) {
            if last >= end {
                return;
            }
            (start, end) = (first, end.max(last));
        }
        while let Some((&first, &last)) = self.0.range(start..=end).next() {
            self.0.remove(&first);
            end = end.max(last);
        }
        self.0.insert(start, end);
    }

    /// Removes the numbers of a range.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some(found) = self.next(range.start).filter(|it| it.start < range.end) {
            self.0.remove(&found.start);
            if found.start < range.start {
                self.0.insert(found.start, range.start);
            }
            if found.end > range.end {
                self.0.insert(range.end, found.end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_the_set_of_their_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 0..40),
        ) {
            let mut ranges = Ranges::default();
            let mut model = BTreeSet::new();
            for (inserts, start, length) in steps {
                let range = start..start + length;
                if inserts {
                    ranges.insert(range.clone());
                    model.extend(range.clone());
                } else {
                    ranges.remove(range.clone());
                    model.retain(|number| !range.contains(number));
                }
                let numbers: BTreeSet<u64> = ranges.iter().flatten().collect();
                prop_assert_eq!(&numbers, &model);
                let ends: Vec<_> = ranges.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].end < pair[1].start));
                let next = ranges.next(start).map(|it| it.start.max(start));
                prop_assert_eq!(next, model.range(start..).next().copied());
            }
        }
    }
}
