//! Random numbers, determined by the seed.

use reactors::sim::Seeded;

/// One stream of random numbers of a seed.
#[derive(Clone, Debug)]
pub struct Random(Seeded);

impl Random {
    /// Stream number `stream` of a seed. Streams are independent: other draws do not change what
    /// this stream draws, so a shrunk run stays similar to the original.
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

    /// Returns true with a probability of `share` per thousand.
    pub fn permille(&mut self, share: u32) -> bool {
        self.below(1000) < u64::from(share)
    }

    /// Returns true with a probability of one half.
    pub fn coin(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// One of these choices; there must be at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
