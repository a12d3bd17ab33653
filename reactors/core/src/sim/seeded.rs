//! Pseudorandom numbers, reproducible by seed.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014).
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Creates the stream with this number from a seed: the streams of one seed differ from each
    /// other.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03));
        Self(mixed.draw())
    }

    /// The next number, uniform over 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0; the bias is below 2⁻⁶⁴ × `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_streams_differ() {
        let numbers = |seed, stream| {
            let mut seeded = Seeded::new(seed, stream);
            [(); 8].map(|()| seeded.draw())
        };
        assert_eq!(numbers(1, 0), numbers(1, 0));
        assert_ne!(numbers(1, 0), numbers(1, 1));
        assert_ne!(numbers(1, 0), numbers(2, 0));
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut seeded = Seeded::new(3, 0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[seeded.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(seeded.below(1), 0);
    }
}
