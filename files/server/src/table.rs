//! Tables of bounded size whose keys carry a generation, so that a key of a removed entry is
//! never that of another one.

/// The key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Its number on the wire.
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key of a number, which may be unknown.
    pub(crate) fn from_u64(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of at most `max` entries.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    max: usize,
    first_generation: u32,
}

impl<T> Table<T> {
    /// An empty table. Tables of different starts begin with different generations.
    pub(crate) fn new(max: usize, first_generation: u32) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            max,
            first_generation: first_generation.max(1),
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether no entry can be added.
    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.max
    }

    /// Adds an entry; `None` if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<Key> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                generation: self.first_generation,
                value: None,
            });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        Some(Key {
            index,
            generation: place.generation,
        })
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        place
            .value
            .as_ref()
            .filter(|_| place.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        match place.generation == key.generation {
            true => place.value.as_mut(),
            false => None,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = place.value.take()?;
        // Generation 0 is left out: with index 0 it is the number of a special state identifier.
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        self.free.push(key.index);
        Some(value)
    }

    /// The entries with their keys.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|it| it.value.as_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key {
                index: index as u32,
                generation: place.generation,
            };
            place.value.as_ref().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_key_is_not_the_key_of_the_next_entry() {
        let mut table = Table::new(2, 7);
        let first = table.insert('a').expect("room");
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b').expect("room");
        assert_ne!(first, second);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!(Key::from_u64(second.to_u64()), second);
        assert_eq!(table.get(Key::from_u64(u64::MAX)), None);
    }

    #[test]
    fn a_full_table_refuses_entries() {
        let mut table = Table::new(1, 0);
        let key = table.insert(()).expect("room");
        assert_ne!(key.to_u64(), 0);
        assert_eq!(table.insert(()), None);
        table.remove(key);
        assert!(table.insert(()).is_some());
    }
}
