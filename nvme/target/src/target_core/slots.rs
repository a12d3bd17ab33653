//! A table of fixed size whose entries are identified by slot and generation.
//!
//! All memory is allocated when the table is created. The generation identifies a stale handle.

/// A fixed table of `T`.
pub(crate) struct Slots<T> {
    entries: Box<[Slot<T>]>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// A table with room for `capacity` entries.
    pub(crate) fn new(capacity: usize) -> Self {
        let count = u32::try_from(capacity).expect("a table of fewer than 2^32 entries");
        let entries = (0..count)
            .map(|_| Slot {
                generation: 0,
                value: None,
            })
            .collect();
        // Slots are taken from the end, so low slots are used first and stay in the cache.
        Self {
            entries,
            free: (0..count).rev().collect(),
        }
    }

    /// Number of entries in use.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether another entry fits.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// The slot that the next insertion takes.
    pub(crate) fn next_slot(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Inserts a value into a free slot. Returns `None` and drops the value if the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Option<(u32, u32)> {
        let index = self.free.pop()?;
        let slot = &mut self.entries[index as usize];
        debug_assert!(slot.value.is_none(), "a free slot holds nothing");
        slot.value = Some(value);
        Some((index, slot.generation))
    }

    /// The entry in `slot`, if it has this generation.
    #[inline]
    pub(crate) fn get(&self, slot: u32, generation: u32) -> Option<&T> {
        let entry = self.entries.get(slot as usize)?;
        if entry.generation == generation {
            entry.value.as_ref()
        } else {
            None
        }
    }

    /// The entry in `slot`, if it has this generation.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32, generation: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut(slot as usize)?;
        if entry.generation == generation {
            entry.value.as_mut()
        } else {
            None
        }
    }

    /// The entry in `slot`, whatever its generation.
    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.value.as_ref()
    }

    /// The entry in `slot`, whatever its generation.
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.value.as_mut()
    }

    /// The entry in `slot`, whatever its generation, and its generation.
    #[inline]
    pub(crate) fn entry_mut(&mut self, slot: u32) -> Option<(&mut T, u32)> {
        let entry = self.entries.get_mut(slot as usize)?;
        Some((entry.value.as_mut()?, entry.generation))
    }

    /// The current generation of `slot`.
    pub(crate) fn generation(&self, slot: u32) -> u32 {
        self.entries
            .get(slot as usize)
            .map_or(0, |entry| entry.generation)
    }

    /// Makes every handle to the entry in `slot` stale; the entry stays.
    pub(crate) fn retire(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.generation = entry.generation.wrapping_add(1);
        }
    }

    /// Removes the entry from `slot` and makes every handle to it stale.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.entries.get_mut(slot as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(value)
    }

    /// Number of slots, in use or not.
    pub(crate) fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.entries)
            .filter_map(|(slot, entry)| Some((slot, entry.value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn stale_handles_are_rejected() {
        let mut slots = Slots::new(2);
        let (slot, generation) = slots.insert('a').expect("room");
        assert_eq!(slots.get(slot, generation), Some(&'a'));
        assert_eq!(slots.get(slot, generation + 1), None);
        assert_eq!(slots.get(7, 0), None);
        slots.retire(slot);
        assert_eq!(slots.get(slot, generation), None);
        assert_eq!(slots.at(slot), Some(&'a'));
        assert_eq!(slots.remove(slot), Some('a'));
        assert_eq!(slots.remove(slot), None);
        assert_eq!(slots.remove(9), None);
        let (again, newer) = slots.insert('b').expect("room");
        assert_eq!(again, slot);
        assert_ne!(newer, generation);
        assert_eq!(slots.get(slot, generation), None);
    }

    #[test]
    fn full_table_rejects_inserts() {
        let mut slots = Slots::new(2);
        assert!(slots.insert(1).is_some() && slots.insert(2).is_some());
        assert!(!slots.has_room());
        assert_eq!(slots.insert(3), None);
        assert_eq!((slots.len(), slots.next_slot()), (2, None));
        assert_eq!(
            slots.iter().map(|(slot, _)| slot).collect::<Vec<_>>(),
            [0, 1]
        );
    }
}
