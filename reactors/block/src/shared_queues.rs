//! Objects that queues of several devices on one reactor share.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

struct Entry {
    key: u64,
    object: Rc<dyn Any>,
}

/// Objects that queues of several devices on one reactor share, such as the queue pair of an NVMe
/// drive, which all of its namespaces use. Belongs to one reactor; a clone refers to the same objects.
///
/// An object stays until it is [removed](Self::remove), also while no queue uses it: a drive may still
/// access memory that its queue pair holds.
#[derive(Clone, Default)]
pub struct SharedQueues(Rc<RefCell<Vec<Entry>>>);

impl SharedQueues {
    /// Returns the object of type `T` with this key, and makes it where there is none.
    pub fn get_or_insert_with<T: 'static>(&self, key: u64, make: impl FnOnce() -> T) -> Rc<T> {
        let found = self.0.borrow().iter().find_map(|entry| {
            let object = Rc::clone(&entry.object).downcast().ok()?;
            (entry.key == key).then_some(object)
        });
        found.unwrap_or_else(|| {
            let object = Rc::new(make());
            let entry = Entry {
                key,
                object: Rc::clone(&object) as Rc<dyn Any>,
            };
            self.0.borrow_mut().push(entry);
            object
        })
    }

    /// Removes the object of type `T` with this key, if it exists.
    pub fn remove<T: 'static>(&self, key: u64) {
        let removed = {
            let mut entries = self.0.borrow_mut();
            let index = entries
                .iter()
                .position(|entry| entry.key == key && entry.object.is::<T>());
            index.map(|index| entries.swap_remove(index))
        };
        // Dropped here, because the object's destructor may use this table.
        drop(removed);
    }

    /// Removes the objects of type `T` that `keep` does not keep.
    pub fn retain<T: 'static>(&self, mut keep: impl FnMut(&T) -> bool) {
        let removed: Vec<Entry> = {
            let mut entries = self.0.borrow_mut();
            let is_removed = |entry: &mut Entry| {
                let object = entry.object.downcast_ref::<T>();
                object.is_some_and(|object| !keep(object))
            };
            entries.extract_if(.., is_removed).collect()
        };
        drop(removed);
    }
}

impl fmt::Debug for SharedQueues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self
            .0
            .borrow()
            .iter()
            .map(|entry| entry.key)
            .collect::<Vec<_>>();
        formatter.debug_tuple("SharedQueues").field(&keys).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn queues_share_an_object_by_key_and_type() {
        let shared = SharedQueues::default();
        let made = Cell::new(0);
        let make = || {
            made.set(made.get() + 1);
            made.get()
        };
        let first = shared.get_or_insert_with::<u32>(7, make);
        assert_eq!(*shared.clone().get_or_insert_with::<u32>(7, make), 1);
        assert_eq!(*shared.get_or_insert_with::<u32>(8, make), 2);
        assert_eq!(*shared.get_or_insert_with::<String>(7, String::new), "");
        shared.remove::<u32>(7);
        assert_eq!(*first, 1, "its users keep it");
        assert_eq!(*shared.get_or_insert_with::<u32>(7, make), 3);
        shared.remove::<u32>(9);
    }

    #[test]
    fn objects_that_are_not_kept_are_removed() {
        let shared = SharedQueues::default();
        for key in 0..4 {
            shared.get_or_insert_with::<u64>(key, || key);
            shared.get_or_insert_with::<String>(key, String::new);
        }
        shared.retain(|number: &u64| [0, 2].contains(number));
        let found = |key| *shared.get_or_insert_with::<u64>(key, || 9);
        assert_eq!([0, 1, 2, 3].map(found), [0, 9, 2, 9]);
        shared.retain(|_: &String| false);
        assert_eq!(shared.0.borrow().len(), 4);
    }

    #[test]
    fn shared_object_may_access_the_table_in_drop() {
        struct Nested(SharedQueues);
        impl Drop for Nested {
            fn drop(&mut self) {
                self.0.remove::<u32>(1);
            }
        }
        let shared = SharedQueues::default();
        shared.get_or_insert_with::<u32>(1, || 1);
        shared.get_or_insert_with(2, || Nested(shared.clone()));
        shared.remove::<Nested>(2);
        assert_eq!(*shared.get_or_insert_with::<u32>(1, || 5), 5);
    }
}
