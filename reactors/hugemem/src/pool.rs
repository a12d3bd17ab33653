//! One reactor's share of the arena, and the FIFO of its waiting requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::arena::Arena;
use crate::class::{CLASSES, class_for};
use crate::lease::Lease;
use crate::sync::Ordering;

/// What a waiting request is known by; chosen by whoever waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterToken(pub u64);

#[derive(Debug, Clone, Copy)]
struct Waiter {
    token: WaiterToken,
    class: usize,
    len: usize,
}

/// A handle to one reactor's share of an [`Arena`]: cheap to clone, bound to its thread.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Rc<PoolInner>,
}

#[derive(Debug)]
pub(crate) struct PoolInner {
    arena: Arc<Arena>,
    waiters: RefCell<VecDeque<Waiter>>,
    waiters_max: usize,
}

impl PoolInner {
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn give_back(&self, class: usize, slice: u32) {
        let shared = &self.arena.classes[class];
        shared.taken.fetch_sub(1, Ordering::Relaxed);
        shared.depot.push_batch(&[slice]);
    }
}

impl Pool {
    pub(crate) fn new(arena: Arc<Arena>, waiters_max: usize) -> Pool {
        let waiters = RefCell::new(VecDeque::with_capacity(waiters_max));
        Pool {
            inner: Rc::new(PoolInner {
                arena,
                waiters,
                waiters_max,
            }),
        }
    }

    fn class_of(&self, len: usize) -> usize {
        let fits = class_for(len).filter(|_| len <= self.max_transfer());
        let Some(class) = fits else {
            panic!("a lease of {len} bytes, {} at most", self.max_transfer());
        };
        class
    }

    /// The smallest free slice of `class` or above, not passing a larger class that is waited for.
    fn grab(&self, class: usize, len: usize) -> Option<Lease> {
        for candidate in class..CLASSES {
            let shared = &self.inner.arena.classes[candidate];
            if candidate > class && shared.waiting.load(Ordering::Relaxed) > 0 {
                return None;
            }
            if let Some(slice) = shared.depot.pop() {
                shared.taken.fetch_add(1, Ordering::Relaxed);
                return Some(Lease::new(Rc::clone(&self.inner), candidate, slice, len));
            }
        }
        None
    }

    /// A lease of `len` bytes, or `None` when no slice of that size or above is free or a request
    /// of the same size waits.
    ///
    /// # Panics
    /// When `len` exceeds [`Pool::max_transfer`].
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Lease> {
        let class = self.class_of(len);
        if self
            .inner
            .waiters
            .borrow()
            .iter()
            .any(|waiter| waiter.class == class)
        {
            return None;
        }
        self.grab(class, len)
    }

    /// A lease of `len` bytes, or `None` when `token` was queued: [`Pool::next_grant`] will hand
    /// out its lease.
    ///
    /// # Panics
    /// When `len` exceeds [`Pool::max_transfer`], or more than `waiters_max` requests wait: the
    /// owner sizes `waiters_max` by the requests that it admits.
    #[must_use]
    pub fn take_or_wait(&self, len: usize, token: WaiterToken) -> Option<Lease> {
        let lease = self.take(len);
        if lease.is_none() {
            let class = self.class_of(len);
            let mut waiters = self.inner.waiters.borrow_mut();
            assert!(
                waiters.len() < self.inner.waiters_max,
                "more waiters than were announced"
            );
            waiters.push_back(Waiter { token, class, len });
            let shared = &self.inner.arena.classes[class];
            shared.waiting.fetch_add(1, Ordering::Relaxed);
            shared.waits.fetch_add(1, Ordering::Relaxed);
        }
        lease
    }

    /// The next waiting request that can be served now, in the order in which they came; a request
    /// of one size does not hold up those of another. Called on each poll until `None`.
    #[must_use]
    pub fn next_grant(&self) -> Option<(WaiterToken, Lease)> {
        let mut tried = [false; CLASSES];
        let mut waiters = self.inner.waiters.borrow_mut();
        for index in 0..waiters.len() {
            let Waiter { token, class, len } = waiters[index];
            if std::mem::replace(&mut tried[class], true) {
                continue;
            }
            if let Some(lease) = self.grab(class, len) {
                waiters.remove(index);
                self.inner.arena.classes[class]
                    .waiting
                    .fetch_sub(1, Ordering::Relaxed);
                return Some((token, lease));
            }
        }
        None
    }

    /// Forgets the waiting requests for which `predicate` holds. It must not call this pool.
    pub fn cancel_waits(&self, mut predicate: impl FnMut(WaiterToken) -> bool) {
        self.inner.waiters.borrow_mut().retain(|waiter| {
            let cancelled = predicate(waiter.token);
            if cancelled {
                self.inner.arena.classes[waiter.class]
                    .waiting
                    .fetch_sub(1, Ordering::Relaxed);
            }
            !cancelled
        });
    }

    /// Requests that wait in this pool. While there are any its owner keeps polling.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.waiters.borrow().len()
    }

    /// The largest lease that can be had, in bytes.
    #[must_use]
    pub fn max_transfer(&self) -> usize {
        self.inner.arena.max_transfer()
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        for waiter in self.waiters.borrow().iter() {
            self.arena.classes[waiter.class]
                .waiting
                .fetch_sub(1, Ordering::Relaxed);
        }
    }
}
