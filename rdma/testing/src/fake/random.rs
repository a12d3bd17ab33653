//! The fabric's pseudorandom numbers: one seed gives one sequence.

use reactors::sim::Seeded;

/// The numbers of a seed. Bounds are applied by remainder: recorded seeds depend on it.
#[derive(Clone, Debug)]
pub(super) struct Random(Seeded);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Seeded::at(seed))
    }

    /// A number below `bound`, which is at least 1.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.draw() % bound
    }

    /// Shuffles the entries.
    pub(super) fn shuffle<T>(&mut self, entries: &mut [T]) {
        for last in (1..entries.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            entries.swap(last, other);
        }
    }
}
