//! One reactor's access to the arena, and the queue of its waiting requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::account::Account;
use crate::arena::Arena;
use crate::class::{CLASS_BYTES, CLASSES, class_for};
use crate::exchange::{Member, NOT_WAITING};
use crate::lease::Lease;
use crate::waiters::{Waiter, Waiters};

/// Interval in which waiting requests are retried without a signal. It bounds the wait for a slice
/// that another reactor returned at the moment at which the request began to wait.
const RETRY_NS: u64 = 1_000_000;
/// Interval in which the longest wait is published.
const PUBLISH_NS: u64 = 100_000_000;
/// Maximum number of accounts of one class that one call of `next_grant` tries.
const TRIES_MAX: u32 = 64;

/// Identifies a waiting request; chosen by its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterToken(pub u64);

/// A handle to one reactor's part of an [`Arena`]: cheap to clone, bound to its thread.
///
/// A request takes the smallest slice that fits, otherwise a larger one, unless a request waits for
/// the larger size. Its account must be within its share of the class (see [`Account`]); requests
/// of [`Account::SYSTEM`] have no share. Waiting requests are served round robin by host; those of
/// one host and size are served in FIFO order. While requests wait, the owner calls
/// [`Pool::next_grant`] on each poll and at [`Pool::retry_at_ns`].
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<hugemem::Pool>();
/// ```
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Rc<PoolInner>,
}

/// The right to keep slices of one size for any time, for example as receive buffers. An arena
/// promises few enough that the other slices suffice for requests ([`Arena::promise`]). The holder
/// keeps at most as many leases without a request as the promise states. The promise ends when it
/// is dropped.
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

    /// Number of slices that may be kept.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of one slice.
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

/// State shared by the handles and the leases of one pool.
#[derive(Debug)]
pub(crate) struct PoolInner {
    arena: Arc<Arena>,
    member: Member,
    waiting: Cell<usize>,
    waiters: RefCell<Waiters>,
    /// Waiting requests have to be tried even if no slice was returned.
    needs_retry: Cell<bool>,
    /// The exchange's count of returns when all waiting requests had been tried.
    returns_seen: Cell<u64>,
    retry_at_ns: Cell<u64>,
    publish_at_ns: Cell<u64>,
}

impl PoolInner {
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn give_back(&self, class: usize, slice: u32, account: Account) {
        let exchange = self.arena.exchange();
        exchange.give_back(&self.member, class, slice, account);
    }

    pub(crate) fn recharge(&self, class: usize, from: Account, to: Account) {
        let exchange = self.arena.exchange();
        exchange.recharge(&self.member, class, from, to);
    }

    fn end_wait(&self, class: usize) {
        self.waiting.set(self.waiting.get() - 1);
        let exchange = self.arena.exchange();
        exchange.end_wait(&self.member, class);
        if self.waiting.get() == 0 {
            self.none_wait();
        }
    }

    #[cold]
    fn none_wait(&self) {
        let exchange = self.arena.exchange();
        for class in 0..CLASSES {
            exchange.set_starving(&self.member, class, 0, 0);
        }
        exchange.set_oldest_wait(&self.member, 0);
        self.publish_at_ns.set(0);
        self.retry_at_ns.set(0);
    }

    /// Whether a waiting request may find a slice now.
    fn may_grant(&self) -> bool {
        self.needs_retry.get() || self.arena.exchange().returns() != self.returns_seen.get()
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
                needs_retry: Cell::new(false),
                returns_seen: Cell::new(0),
                retry_at_ns: Cell::new(0),
                publish_at_ns: Cell::new(0),
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

    /// Takes the smallest free slice of `class` or above that the account's share allows. Does not
    /// take from a larger class that requests wait for: otherwise small requests could starve a
    /// large one.
    #[inline(always)]
    fn take_any_class(
        &self,
        class: usize,
        account: Account,
        len: usize,
        since_ns: u64,
    ) -> Option<Lease> {
        let lease = self.take_from_class(class, account, len, since_ns);
        if lease.is_some() {
            return lease;
        }
        self.take_larger_class(class, account, len, since_ns)
    }

    #[inline(never)]
    fn take_larger_class(
        &self,
        class: usize,
        account: Account,
        len: usize,
        since_ns: u64,
    ) -> Option<Lease> {
        let exchange = self.inner.arena.exchange();
        for candidate in class + 1..CLASSES {
            if exchange.waited_for(candidate) {
                return None;
            }
            if let Some(lease) = self.take_from_class(candidate, account, len, since_ns) {
                return Some(lease);
            }
        }
        None
    }

    #[inline(always)]
    fn take_from_class(
        &self,
        class: usize,
        account: Account,
        len: usize,
        since_ns: u64,
    ) -> Option<Lease> {
        let (exchange, member) = (self.inner.arena.exchange(), &self.inner.member);
        if !exchange.admits(member, class, account, since_ns) {
            return None;
        }
        let slice = exchange.take(member, class, account)?;
        let pool = Rc::clone(&self.inner);
        Some(Lease::new(pool, account, class, slice, len))
    }

    /// A lease of `len` bytes for the appliance itself: [`take_for`](Self::take_for) with
    /// [`Account::SYSTEM`].
    ///
    /// # Panics
    /// When `len` exceeds [`Pool::max_transfer`].
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Lease> {
        self.take_for(Account::SYSTEM, len)
    }

    /// A lease of `len` bytes that the appliance keeps, such as the buffer of a device queue.
    /// `None` if no slice of that size is free, or too few would be left for requests. For the
    /// control path: takes a lock.
    ///
    /// # Panics
    /// When `len` exceeds [`Pool::max_transfer`].
    #[must_use]
    pub fn take_permanent(&self, len: usize) -> Option<Lease> {
        let class = self.class_of(len);
        let spares = self.inner.arena.spares_permanent(class);
        spares
            .then(|| self.take_from_class(class, Account::SYSTEM, len, NOT_WAITING))
            .flatten()
    }

    /// A lease of `len` bytes charged to `account`. `None` if no slice of that size or above is
    /// free, the account has reached its share, or an earlier request waits.
    ///
    /// # Panics
    /// When `len` exceeds [`Pool::max_transfer`].
    #[must_use]
    pub fn take_for(&self, account: Account, len: usize) -> Option<Lease> {
        self.take_of_class(account, self.class_of(len), len)
    }

    #[inline(always)]
    fn take_of_class(&self, account: Account, class: usize, len: usize) -> Option<Lease> {
        if self.waiting() > 0 && self.has_to_wait(class, account) {
            return None;
        }
        self.take_any_class(class, account, len, NOT_WAITING)
    }

    /// Whether a request that waits for `class` precedes a new one of `account`.
    #[cold]
    fn has_to_wait(&self, class: usize, account: Account) -> bool {
        let waiters = self.inner.waiters.borrow();
        // Requests of other accounts that failed, and for which no slice was returned since, cannot
        // use a slice that this one may find.
        waiters.has_any_of(class, account) || (!waiters.is_empty(class) && self.inner.may_grant())
    }

    /// A lease of `len` bytes charged to `account`. `None` if `token` was queued:
    /// [`Pool::next_grant`] returns its lease later.
    ///
    /// # Panics
    /// If `len` exceeds [`Pool::max_transfer`], or more than `waiters_max` requests wait: the owner
    /// sizes `waiters_max` by the requests that it admits.
    #[must_use]
    pub fn take_or_wait(
        &self,
        account: Account,
        len: usize,
        token: WaiterToken,
        now_ns: u64,
    ) -> Option<Lease> {
        let class = self.class_of(len);
        let lease = self.take_of_class(account, class, len);
        if lease.is_none() {
            let waiter = Waiter {
                token,
                account,
                len,
                since_ns: now_ns,
                is_promised: false,
            };
            self.wait(class, waiter);
        }
        lease
    }

    /// A lease of `len` bytes under `promise`. `None` if `token` was queued as in
    /// [`take_or_wait`](Self::take_or_wait), among requests of that size. The slice is of the
    /// promise's class, never larger, and charged to [`Account::PROMISED`].
    ///
    /// # Panics
    /// When `len` exceeds [`SlicePromise::bytes`], or when more than `waiters_max` requests wait.
    #[must_use]
    pub fn take_promised(
        &self,
        promise: &SlicePromise,
        len: usize,
        token: WaiterToken,
        now_ns: u64,
    ) -> Option<Lease> {
        let (class, account) = (promise.class, Account::PROMISED);
        let is_first = self.waiting() == 0 || !self.has_to_wait(class, account);
        let lease = is_first
            .then(|| self.take_from_class(class, account, len, NOT_WAITING))
            .flatten();
        if lease.is_none() {
            let waiter = Waiter {
                token,
                account,
                len,
                since_ns: now_ns,
                is_promised: true,
            };
            self.wait(class, waiter);
        }
        lease
    }

    #[inline(never)]
    fn wait(&self, class: usize, waiter: Waiter) {
        let queued = self.inner.waiters.borrow_mut().push(class, waiter);
        assert!(
            queued,
            "more requests wait than the pool's limit of {}",
            self.waiting()
        );
        self.inner.waiting.set(self.waiting() + 1);
        let exchange = self.inner.arena.exchange();
        exchange.begin_wait(&self.inner.member, class);
        // A slice may have been returned between the attempt and the registration of the wait.
        self.inner.needs_retry.set(true);
    }

    /// The next waiting request that can be served now. The accounts of a class take turns, and
    /// each account's requests of one size are served in order. The owner calls it on each poll
    /// until `None`, with the time since a fixed moment. Returns immediately if no slice was
    /// returned since the last `None`.
    #[inline]
    #[must_use]
    pub fn next_grant(&self, now_ns: u64) -> Option<(WaiterToken, Lease)> {
        if self.waiting() == 0 {
            return None;
        }
        self.grant_any(now_ns)
    }

    #[inline(never)]
    fn grant_any(&self, now_ns: u64) -> Option<(WaiterToken, Lease)> {
        let inner = &*self.inner;
        if now_ns >= inner.publish_at_ns.get() {
            self.publish_waits(now_ns);
        }
        if now_ns >= inner.retry_at_ns.get() {
            inner.retry_at_ns.set(now_ns.saturating_add(RETRY_NS));
            inner.needs_retry.set(true);
        }
        if !inner.may_grant() {
            return None;
        }
        // Read before the search for slices: a slice returned meanwhile causes another attempt.
        let returns = inner.arena.exchange().returns();
        let mut all_tried = true;
        for class in 0..CLASSES {
            let (grant, tried) = self.grant_of_class(class, now_ns);
            if grant.is_some() {
                return grant;
            }
            all_tried &= tried;
        }
        inner.needs_retry.set(!all_tried);
        inner.returns_seen.set(returns);
        None
    }

    /// The next request of one class that can be served, and whether all accounts were tried.
    fn grant_of_class(&self, class: usize, now_ns: u64) -> (Option<(WaiterToken, Lease)>, bool) {
        let (exchange, member) = (self.inner.arena.exchange(), &self.inner.member);
        let mut waiters = self.inner.waiters.borrow_mut();
        let accounts = waiters.accounts(class);
        let (mut starved_accounts, mut starved_since_ns) = (0, u64::MAX);
        for _ in 0..accounts.min(TRIES_MAX) {
            let Some(waiter) = waiters.next(class) else {
                break;
            };
            let Waiter { account, len, .. } = waiter;
            let since_ns = waiter.since_ns.max(waiters.served_at_ns(class, account));
            let lease = if waiter.is_promised {
                self.take_from_class(class, account, len, since_ns)
            } else {
                self.take_any_class(class, account, len, since_ns)
            };
            if let Some(lease) = lease {
                waiters.pop(class, now_ns);
                drop(waiters);
                let waited_ns = now_ns.saturating_sub(waiter.since_ns);
                exchange.note_wait(member, waited_ns);
                self.inner.end_wait(class);
                return (Some((waiter.token, lease)), false);
            }
            if account.host().is_some() && exchange.held(class, account) == 0 {
                starved_accounts += 1;
                starved_since_ns = starved_since_ns.min(since_ns);
            }
            waiters.advance_account(class);
        }
        exchange.set_starving(member, class, starved_accounts, starved_since_ns);
        (None, accounts <= TRIES_MAX)
    }

    #[cold]
    fn publish_waits(&self, now_ns: u64) {
        let inner = &*self.inner;
        inner.publish_at_ns.set(now_ns.saturating_add(PUBLISH_NS));
        let oldest = inner.waiters.borrow().oldest_since_ns();
        let waited_ns = oldest.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        let exchange = inner.arena.exchange();
        exchange.set_oldest_wait(&inner.member, waited_ns);
    }

    /// Removes the waiting requests of `account`, or of all accounts if `None`, for which
    /// `predicate` holds. `predicate` must not call this pool.
    pub fn cancel_waits(
        &self,
        account: Option<Account>,
        predicate: impl FnMut(WaiterToken) -> bool,
    ) {
        if self.waiting() == 0 {
            return;
        }
        let mut waiters = self.inner.waiters.borrow_mut();
        waiters.cancel(account, predicate, |class| self.inner.end_wait(class));
        // The number of waiting accounts may have changed, and with it their shares.
        self.inner.needs_retry.set(true);
    }

    /// Number of requests that wait in this pool.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.waiting.get()
    }

    /// Whether [`next_grant`](Self::next_grant) may find a slice for a waiting request. Otherwise
    /// the owner may sleep until [`retry_at_ns`](Self::retry_at_ns).
    #[must_use]
    pub fn may_grant(&self) -> bool {
        self.waiting() > 0 && self.inner.may_grant()
    }

    /// Time at which waiting requests have to be retried, if any.
    #[must_use]
    pub fn retry_at_ns(&self) -> Option<u64> {
        (self.waiting() > 0).then(|| self.inner.retry_at_ns.get())
    }

    /// Whether an account without a slice of the class of `lease` waits for one, in any reactor. A
    /// lease without progress should then be returned soon.
    #[must_use]
    pub fn is_scarce(&self, lease: &Lease) -> bool {
        self.inner.arena.exchange().starved_accounts(lease.class()) > 0
    }

    /// Whether a request of any reactor waits for a slice of the size that `len` bytes take. What can
    /// be done later should not take one then.
    ///
    /// # Panics
    /// When `len` exceeds [`Pool::max_transfer`].
    #[must_use]
    pub fn is_waited_for(&self, len: usize) -> bool {
        self.inner.arena.exchange().waited_for(self.class_of(len))
    }

    /// Maximum size of a lease in bytes.
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
            .cancel(None, |_| true, |class| exchange.end_wait(member, class));
        exchange.leave(member);
    }
}
