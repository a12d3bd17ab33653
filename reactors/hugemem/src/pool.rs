//! One reactor's share of the arena, and the FIFO of its waiting requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::arena::Arena;
use crate::class::{CLASS_BYTES, CLASSES, class_for};
use crate::exchange::Member;
use crate::lease::Lease;
use crate::waiters::{Waiter, Waiters};

/// What a waiting request is known by; chosen by whoever waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterToken(pub u64);

/// A handle to one reactor's share of an [`Arena`]: cheap to clone, bound to its thread.
///
/// A request takes the smallest slice that holds it, else a larger one, unless somebody waits for
/// the larger one. Requests of one size are served in the order in which they came. While requests
/// wait the owner keeps polling [`Pool::next_grant`]: nothing wakes a sleeping reactor for it.
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<hugemem::Pool>();
/// ```
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Rc<PoolInner>,
}

/// The right to hold slices of one size for as long as one likes: where messages will arrive, say.
/// An arena promises so few that requests get by with the others ([`Arena::promise`]); whoever has
/// the promise holds no more leases without a request than it says. It ends when it is dropped.
#[derive(Debug)]
pub struct SlicePromise {
    arena: Arc<Arena>,
    class: usize,
    count: u32,
}

impl SlicePromise {
    pub(crate) fn new(arena: Arc<Arena>, class: usize, count: u32) -> Self {
        Self {
            arena,
            class,
            count,
        }
    }

    /// Slices that may be held.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of one.
    #[must_use]
    pub fn bytes(&self) -> usize {
        CLASS_BYTES[self.class]
    }
}

impl Drop for SlicePromise {
    fn drop(&mut self) {
        self.arena.end_promise(self.class, self.count);
    }
}

/// What the handles and the leases of one pool share.
#[derive(Debug)]
pub(crate) struct PoolInner {
    arena: Arc<Arena>,
    member: Member,
    waiting: Cell<usize>,
    waiters: RefCell<Waiters>,
}

impl PoolInner {
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn give_back(&self, class: usize, slice: u32) {
        self.arena.exchange().give_back(&self.member, class, slice);
    }

    fn end_wait(&self, class: usize) {
        self.waiting.set(self.waiting.get() - 1);
        self.arena.exchange().end_wait(&self.member, class);
    }
}

impl Pool {
    pub(crate) fn new(arena: Arc<Arena>, waiters_max: usize) -> Pool {
        let member = arena.exchange().join();
        let waiters = RefCell::new(Waiters::new(waiters_max));
        Pool {
            inner: Rc::new(PoolInner {
                arena,
                member,
                waiting: Cell::new(0),
                waiters,
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

    /// The smallest free slice of `class` or above, not passing a larger class that is waited for:
    /// else small requests would keep a large one waiting for ever.
    fn grab(&self, class: usize, len: usize) -> Option<Lease> {
        let exchange = self.inner.arena.exchange();
        for candidate in class..CLASSES {
            if candidate > class && exchange.waited_for(candidate) {
                return None;
            }
            if let Some(slice) = exchange.take(&self.inner.member, candidate) {
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
        if self.waiting() > 0 && !self.inner.waiters.borrow().is_empty(class) {
            return None;
        }
        self.grab(class, len)
    }

    /// A lease of `len` bytes, or `None` when `token` was queued: [`Pool::next_grant`] will hand
    /// out its lease.
    ///
    /// # Panics
    /// When `len` exceeds [`Pool::max_transfer`], or when more than `waiters_max` requests wait:
    /// the owner sizes `waiters_max` by the requests that it admits.
    #[must_use]
    pub fn take_or_wait(&self, len: usize, token: WaiterToken) -> Option<Lease> {
        let lease = self.take(len);
        if lease.is_none() {
            let waiter = Waiter {
                token,
                len,
                is_promised: false,
            };
            self.wait(self.class_of(len), waiter);
        }
        lease
    }

    /// A lease of `len` bytes under `promise`, or `None` when `token` was queued as by
    /// [`take_or_wait`](Self::take_or_wait), among requests of that size. The slice is of the
    /// promise's class and of no larger one.
    ///
    /// # Panics
    /// When `len` exceeds [`SlicePromise::bytes`], or when more than `waiters_max` requests wait.
    #[must_use]
    pub fn take_promised(
        &self,
        promise: &SlicePromise,
        len: usize,
        token: WaiterToken,
    ) -> Option<Lease> {
        let class = promise.class;
        let is_first = self.waiting() == 0 || self.inner.waiters.borrow().is_empty(class);
        let lease = is_first.then(|| self.grab_of_class(class, len)).flatten();
        if lease.is_none() {
            let waiter = Waiter {
                token,
                len,
                is_promised: true,
            };
            self.wait(class, waiter);
        }
        lease
    }

    fn grab_of_class(&self, class: usize, len: usize) -> Option<Lease> {
        let exchange = self.inner.arena.exchange();
        let slice = exchange.take(&self.inner.member, class)?;
        Some(Lease::new(Rc::clone(&self.inner), class, slice, len))
    }

    fn wait(&self, class: usize, waiter: Waiter) {
        let queued = self.inner.waiters.borrow_mut().push(class, waiter);
        assert!(
            queued,
            "more requests wait than the pool was made for: {}",
            self.waiting()
        );
        self.inner.waiting.set(self.waiting() + 1);
        let exchange = self.inner.arena.exchange();
        exchange.begin_wait(&self.inner.member, class);
    }

    /// The next waiting request that can be served now: the one that has waited longest, unless
    /// there is no slice for its size but one for another's. Called on each poll until `None`.
    #[must_use]
    pub fn next_grant(&self) -> Option<(WaiterToken, Lease)> {
        if self.waiting() == 0 {
            return None;
        }
        let mut waiters = self.inner.waiters.borrow_mut();
        let mut tried = [false; CLASSES];
        while let Some((class, waiter)) = waiters.oldest(tried) {
            let lease = if waiter.is_promised {
                self.grab_of_class(class, waiter.len)
            } else {
                self.grab(class, waiter.len)
            };
            if let Some(lease) = lease {
                waiters.pop(class);
                self.inner.end_wait(class);
                return Some((waiter.token, lease));
            }
            tried[class] = true;
        }
        None
    }

    /// Forgets the waiting requests for which `predicate` holds. It must not call this pool.
    pub fn cancel_waits(&self, predicate: impl FnMut(WaiterToken) -> bool) {
        let mut waiters = self.inner.waiters.borrow_mut();
        waiters.cancel(predicate, |class| self.inner.end_wait(class));
    }

    /// Requests that wait in this pool.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.waiting.get()
    }

    /// The largest lease that can be had, in bytes.
    #[must_use]
    pub fn max_transfer(&self) -> usize {
        self.inner.arena.max_transfer()
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let PoolInner {
            arena,
            member,
            waiters,
            ..
        } = self;
        let exchange = arena.exchange();
        waiters
            .get_mut()
            .cancel(|_| true, |class| exchange.end_wait(member, class));
        exchange.leave(member);
    }
}
