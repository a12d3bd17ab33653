//! Tables of objects, by index and generation: the key of a removed object does not match its
//! successor.

/// Identifies an object in a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) index: u32,
    generation: u32,
}

/// Objects of one kind.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    object: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, object: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                generation: 0,
                object: None,
            });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.object = Some(object);
        Key {
            index,
            generation: place.generation,
        }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let object = place.object.take()?;
        place.generation += 1;
        self.free.push(key.index);
        Some(object)
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        place
            .object
            .as_ref()
            .filter(|_| place.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        place
            .object
            .as_mut()
            .filter(|_| place.generation == key.generation)
    }

    /// All objects with their keys, by index.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key {
                index: index as u32,
                generation: place.generation,
            };
            place.object.as_ref().map(|object| (key, object))
        })
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
