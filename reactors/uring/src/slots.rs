//! A fixed table whose keys carry a generation, so that a stale key finds no entry.

/// Identifies an entry of a [`SlotTable`]: the index in the low half, the generation in the high
/// half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotKey(pub(crate) u64);

impl SlotKey {
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

/// Entries with stable keys; all memory is allocated when it is created.
pub(crate) struct SlotTable<T> {
    slots: Box<[Slot<T>]>,
    free: Vec<u32>,
}

impl<T> SlotTable<T> {
    pub(crate) fn new(capacity: u32) -> Self {
        let slots = (0..capacity)
            .map(|_| Slot {
                generation: 1,
                entry: None,
            })
            .collect();
        Self {
            slots,
            free: (0..capacity).rev().collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Stores an entry; returns it if the table is full.
    pub(crate) fn insert(&mut self, entry: T) -> Result<SlotKey, T> {
        let Some(index) = self.free.pop() else {
            return Err(entry);
        };
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.entry.is_none(), "a free slot holds an entry");
        slot.entry = Some(entry);
        Ok(SlotKey::new(index, slot.generation))
    }

    pub(crate) fn get_mut(&mut self, key: SlotKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index())?;
        if slot.generation == key.generation() {
            slot.entry.as_mut()
        } else {
            None
        }
    }

    /// Removes an entry; its key is stale from now on.
    pub(crate) fn remove(&mut self, key: SlotKey) -> Option<T> {
        let slot = self.slots.get_mut(key.index())?;
        if slot.generation != key.generation() {
            return None;
        }
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index() as u32);
        Some(entry)
    }

    /// Removes all entries.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.slots.iter_mut().filter_map(|slot| slot.entry.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_foreign_keys_are_rejected() {
        let mut table = SlotTable::new(2);
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b').unwrap();
        assert_eq!(second.index(), first.index());
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.get_mut(SlotKey(u64::MAX)), None);
        assert_eq!(table.get_mut(SlotKey(0)), None);
        assert_eq!(table.get_mut(SlotKey::new(2, 1)), None);
        assert_eq!(table.get_mut(second), Some(&mut 'b'));
    }

    #[test]
    fn full_table_returns_the_entry() {
        let mut table = SlotTable::new(1);
        let key = table.insert(1).unwrap();
        assert!(table.is_full());
        assert_eq!(table.insert(2), Err(2));
        table.remove(key);
        assert_eq!(table.len(), 0);
        assert!(table.insert(3).is_ok());
    }

    #[test]
    fn generations_wrap_without_panic() {
        let mut table = SlotTable::new(1);
        table.slots[0].generation = u32::MAX;
        let key = table.insert(1).unwrap();
        assert_eq!(table.remove(key), Some(1));
        let key = table.insert(2).unwrap();
        assert_eq!(key.generation(), 0);
        assert_eq!(table.remove(key), Some(2));
    }
}
