//! This thread's queue pairs, by drive and reactor: the namespaces of a drive share one.

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

/// The pair of a drive and a reactor on this thread, made where there is none. (One thread may play
/// several reactors: tests do.)
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

/// Forgets a pair that nobody uses.
pub(crate) fn forget(drive: u64, reactor: usize) {
    // On a thread that is going away the table may be gone before.
    let forgotten = PAIRS.try_with(|pairs| {
        let mut pairs = pairs.try_borrow_mut().ok()?;
        let index = pairs
            .iter()
            .position(|entry| entry.drive == drive && entry.reactor == reactor)?;
        Some(pairs.swap_remove(index))
    });
    drop(forgotten);
}

/// Forgets every pair of this thread.
#[cfg(any(test, feature = "emulated"))]
pub(crate) fn forget_all() {
    drop(PAIRS.take());
}
