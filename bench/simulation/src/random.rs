//! What chance decides, by seed.

use reactors::sim::Seeded;

/// One stream of choices of a seed.
#[derive(Clone, Debug)]
pub struct Random(Seeded);

impl Random {
    /// The stream of this number of a seed. What has a stream of its own draws the same whatever
    /// else is drawn, so a run that is made smaller stays like itself.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Seeded::new(seed, stream))
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True so many times of a thousand.
    pub fn permille(&mut self, share: u32) -> bool {
        self.below(1000) < u64::from(share)
    }

    /// Heads.
    pub fn coin(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// One of these, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
