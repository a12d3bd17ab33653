//! Maps queue pair numbers to connections. Every capsule needs a lookup, so this is a flat table of
//! fixed size with a simple hash function.

/// No entry. Queue pair numbers have 24 bits and devices 16, so no key has this value.
const EMPTY: u64 = u64::MAX;

/// A map from device and number to a connection's place. Open addressing, linear probing.
#[derive(Debug)]
pub(crate) struct QueuePairTable {
    keys: Vec<u64>,
    places: Vec<u16>,
    mask: usize,
}

impl QueuePairTable {
    /// A table for `entries` queue pairs. Allocates twice as much.
    pub(crate) fn new(entries: usize) -> Self {
        let size = (entries.max(1) * 2).next_power_of_two();
        Self {
            keys: vec![EMPTY; size],
            places: vec![0; size],
            mask: size - 1,
        }
    }

    fn key(device: u16, number: u32) -> u64 {
        u64::from(device) << 32 | u64::from(number)
    }

    /// The position where the search for a key begins. Numbers are assigned consecutively or with a
    /// stride; a multiplication by an odd constant spreads both.
    #[inline]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & self.mask
    }

    #[inline]
    fn position(&self, key: u64) -> Option<usize> {
        let mut position = self.home(key);
        loop {
            match self.keys[position] {
                found if found == key => return Some(position),
                EMPTY => return None,
                _ => position = (position + 1) & self.mask,
            }
        }
    }

    /// The connection of a queue pair.
    #[inline]
    pub(crate) fn find(&self, device: u16, number: u32) -> Option<u16> {
        self.position(Self::key(device, number))
            .map(|position| self.places[position])
    }

    /// Inserts a queue pair and replaces one of the same number. The caller respects the number of
    /// entries.
    pub(crate) fn insert(&mut self, device: u16, number: u32, place: u16) {
        let key = Self::key(device, number);
        let mut position = self.home(key);
        while self.keys[position] != EMPTY && self.keys[position] != key {
            position = (position + 1) & self.mask;
        }
        self.keys[position] = key;
        self.places[position] = place;
    }

    /// Removes a queue pair and moves displaced entries closer to their home positions.
    pub(crate) fn remove(&mut self, device: u16, number: u32) {
        let Some(mut hole) = self.position(Self::key(device, number)) else {
            return;
        };
        let mut position = hole;
        loop {
            position = (position + 1) & self.mask;
            let key = self.keys[position];
            if key == EMPTY {
                break;
            }
            let from_home = position.wrapping_sub(self.home(key)) & self.mask;
            let from_hole = position.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.keys[hole] = key;
                self.places[hole] = self.places[position];
                hole = position;
            }
        }
        self.keys[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn it_is_a_map(
            steps in proptest::collection::vec((0u16..2, 0u32..40, any::<bool>()), 0..300),
        ) {
            let mut table = QueuePairTable::new(80);
            let mut model = HashMap::new();
            for (place, (device, number, insert)) in steps.into_iter().enumerate() {
                if insert {
                    table.insert(device, number, place as u16);
                    model.insert((device, number), place as u16);
                } else {
                    table.remove(device, number);
                    model.remove(&(device, number));
                }
                for device in 0..2 {
                    for number in 0..40 {
                        let expected = model.get(&(device, number)).copied();
                        prop_assert_eq!(table.find(device, number), expected);
                    }
                }
            }
        }
    }
}
