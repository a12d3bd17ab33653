//! Pseudorandom numbers, determined by a seed.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014).
#[derive(Clone, Debug)]
pub(super) struct Seeded(u64);

/// The generator's step: an odd number near 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Seeded {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mixed(self.0)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// A pseudorandom bit for a number, determined by the number and a salt.
pub(super) fn random_bit(salt: u64, number: u64) -> bool {
    mixed(salt ^ number.wrapping_mul(STEP)) & 1 == 1
}

fn mixed(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
