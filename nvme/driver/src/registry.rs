//! The queue pairs of this thread by drive and reactor. All namespaces of a drive share one.

use std::cell::RefCell;
use std::rc::Rc;

use crate::pair::Pair;

struct Entry {
    drive: u64,
    reactor: usize,
    pair: Rc<RefCell<Pair>>,
}

thread_local! {
    static PAIRS: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// Returns the pair of a drive and a reactor on this thread, and creates it if there is none. In
/// tests one thread acts as several reactors.
pub(crate) fn pair(drive: u64, reactor: usize, make: impl FnOnce() -> Pair) -> Rc<RefCell<Pair>> {
    PAIRS.with_borrow_mut(|pairs| {
        let known = pairs
            .iter()
            .find(|entry| entry.drive == drive && entry.reactor == reactor);
        if let Some(entry) = known {
            return Rc::clone(&entry.pair);
        }
        let pair = Rc::new(RefCell::new(make()));
        pairs.push(Entry {
            drive,
            reactor,
            pair: Rc::clone(&pair),
        });
        pair
    })
}

/// Removes an unused pair.
pub(crate) fn forget(drive: u64, reactor: usize) {
    // When the thread ends, the table may have been dropped already.
    let forgotten = PAIRS.try_with(|pairs| {
        let mut pairs = pairs.try_borrow_mut().ok()?;
        let index = pairs
            .iter()
            .position(|entry| entry.drive == drive && entry.reactor == reactor)?;
        Some(pairs.swap_remove(index))
    });
    drop(forgotten);
}

/// Removes every pair of this thread.
#[cfg(any(test, feature = "emulated"))]
pub(crate) fn forget_all() {
    drop(PAIRS.take());
}
