//! Tables by numbers that this program assigns one after the other: nobody else can choose them so
//! that they collide.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// 2^64 divided by the golden ratio, which distributes sequences of numbers evenly.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hasher of such numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(FACTOR);
        // The table uses bits of both ends.
        self.0 = product ^ product >> 32;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// A map by such numbers.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// A set of such numbers.
pub type NumberSet<K> = HashSet<K, BuildHasherDefault<NumberHasher>>;

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, Hash};

    use super::*;

    /// Numbers of each of 256 values of the first and of the last bits of the hashes.
    fn fewest_and_most<K: Hash>(keys: impl Iterator<Item = K>) -> (u32, u32) {
        let (mut first, mut last) = ([0_u32; 256], [0_u32; 256]);
        let build = BuildHasherDefault::<NumberHasher>::default();
        for key in keys {
            let hash = build.hash_one(key);
            first[(hash >> 56) as usize] += 1;
            last[(hash & 255) as usize] += 1;
        }
        let all = || first.iter().chain(&last).copied();
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }

    #[test]
    fn sequences_of_numbers_are_distributed() {
        let count: u64 = 256 * 100;
        for step in [1, 2, 8, 4096, 1 << 32] {
            let (fewest, most) = fewest_and_most((0..count).map(|it| it * step));
            assert!(fewest >= 20 && most <= 300, "{step}: {fewest} to {most}");
        }
        let pairs = (0..count).map(|it| (it as usize % 4, it / 4));
        let (fewest, most) = fewest_and_most(pairs);
        assert!(fewest >= 20 && most <= 300, "{fewest} to {most}");
    }
}
