//! Tracks free slices: in one depot per class, and in the caches of the reactors' seats.
//!
//! Owns: the numbers of all slices that are not leased, each in exactly one place. It has no access
//! to memory and knows no requests; it only moves numbers, so that loom can test every
//! interleaving.
//!
//! A returned slice goes to its reactor's cache or, if another reactor waits, to the depot, where
//! the first reactor that polls takes it. A reactor that finds its cache and the depot empty steals
//! from the caches of the others. Every reactor can therefore reach every free slice, also those in
//! the cache of a sleeping reactor.
//!
//! Each seat counts the slices that its reactor took, by account. The sum over the seats is the
//! number of slices of an account. [`Exchange::admits`] compares it with the account's share (see
//! `share`), but only while a class is scarce; otherwise each reactor has a budget of slices that
//! it may take unchecked.

#[cfg(all(test, loom))]
mod models;

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::account::{ACCOUNTS, Account, ROW};
use crate::cache::{Cache, Top};
use crate::class::CLASSES;
use crate::depot::Depot;
use crate::share::ClassUsage;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Maximum number of cached slices of each class per reactor; few under loom, which tracks each
/// slot.
const CACHE_SLICES: [usize; CLASSES] = if cfg!(loom) {
    [2; CLASSES]
} else {
    [64, 32, 16, 8, 4]
};
/// Maximum number of slices moved between a cache and the depot in one operation.
const BATCH_MAX: usize = 32;
/// One batch takes at most 1/n of a class, so that a few slices are not all in one cache.
const BATCH_PART: usize = 32;

const _: () = {
    let mut class = 0;
    while class < CLASSES {
        assert!(CACHE_SLICES[class] >= 2 && CACHE_SLICES[class] / 2 <= BATCH_MAX);
        class += 1;
    }
};

/// The time since which a new request has waited: every waiting one precedes it.
pub(crate) const NOT_WAITING: u64 = u64::MAX;

/// The free slices of an arena, shared by all reactors.
#[derive(Debug)]
pub(crate) struct Exchange {
    classes: [CachePadded<Class>; CLASSES],
    /// Number of waiting requests of all classes and reactors. Checked when a slice is returned.
    waiting: CachePadded<AtomicU32>,
    /// Number of slices returned while requests waited; a change is a reason to retry them.
    returns: CachePadded<AtomicU64>,
    seats: OnceLock<Arc<ReactorSeat>>,
}

#[derive(Debug)]
struct Class {
    depot: Depot,
    /// Slices available so far.
    total: AtomicU32,
    /// Number of slices that a reactor with an empty cache fetches in one operation.
    batch: usize,
    /// Requests waiting for this class in all reactors.
    waiting: AtomicU32,
    /// Promised slices.
    promised: AtomicU32,
    /// So few slices are free that shares are enforced. Reactors then ignore their budgets.
    scarce: AtomicBool,
}

/// The caches and counters of one reactor, which alone writes the counters. Seats are never
/// removed, only reused, so that iterating over them needs no lock.
#[derive(Debug)]
struct ReactorSeat {
    caches: [Cache; CLASSES],
    taken: [AtomicU32; CLASSES],
    waits: [AtomicU64; CLASSES],
    /// Slices leased by this reactor, by account and class.
    held: Box<[AtomicU32]>,
    /// Accounts that have no slice of a class and wait for one in this reactor.
    starved_accounts: [AtomicU32; CLASSES],
    /// Since when the one of them that has waited longest waits, if there are any.
    starved_since_ns: [AtomicU64; CLASSES],
    /// Current wait time of the longest-waiting request.
    oldest_wait_ns: AtomicU64,
    /// Maximum wait time of any request so far.
    longest_wait_ns: AtomicU64,
    in_use: AtomicU32,
    next: OnceLock<Arc<ReactorSeat>>,
}

/// One reactor's membership: its seat and its private state.
#[derive(Debug)]
pub(crate) struct Member {
    seat: Arc<ReactorSeat>,
    tops: [Top; CLASSES],
    waiting: Cell<u32>,
    /// Slices of each class that may be taken without checking shares, while the class is not
    /// scarce.
    budgets: [Cell<u32>; CLASSES],
}

/// The counters of one class, not read as an atomic snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassTally {
    pub(crate) total: u32,
    pub(crate) taken: u32,
    pub(crate) waits: u64,
    pub(crate) waiting: u32,
}

impl Exchange {
    /// Creates `counts` slices of each class, of which the first `open` are available now, all
    /// free.
    pub(crate) fn new(counts: [u32; CLASSES], open: [u32; CLASSES]) -> Exchange {
        let mut class = 0;
        let classes = counts.map(|total| {
            let batch = (total as usize / BATCH_PART).clamp(1, CACHE_SLICES[class] / 2);
            class += 1;
            CachePadded::new(Class {
                depot: Depot::new(total, open[class - 1]),
                total: AtomicU32::new(open[class - 1]),
                batch,
                waiting: AtomicU32::new(0),
                promised: AtomicU32::new(0),
                scarce: AtomicBool::new(false),
            })
        });
        Exchange {
            classes,
            waiting: CachePadded::new(AtomicU32::new(0)),
            returns: CachePadded::new(AtomicU64::new(0)),
            seats: OnceLock::new(),
        }
    }

    /// Makes the slices of `new` available. Called in order, once for each slice.
    pub(crate) fn open(&self, class: usize, new: Range<u32>) {
        let Class { depot, total, .. } = &*self.classes[class];
        total.fetch_add(new.end - new.start, Ordering::Relaxed);
        let mut slices = [0; BATCH_MAX];
        for first in new.clone().step_by(BATCH_MAX) {
            let batch = first..new.end.min(first + BATCH_MAX as u32);
            let count = batch.len();
            for (entry, slice) in slices.iter_mut().zip(batch) {
                *entry = slice;
            }
            depot.push_batch(&slices[..count]);
        }
        self.returns.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes an unused seat, or adds one.
    pub(crate) fn join(&self) -> Member {
        let mut link = &self.seats;
        let seat = loop {
            let mut added = false;
            let seat = link.get_or_init(|| {
                added = true;
                Arc::new(ReactorSeat::new())
            });
            if added || seat.occupy() {
                break Arc::clone(seat);
            }
            link = &seat.next;
        };
        Member {
            seat,
            tops: Default::default(),
            waiting: Cell::new(0),
            budgets: Default::default(),
        }
    }

    /// Gives up a seat and moves its cached slices to the depots. No slice may be leased.
    pub(crate) fn leave(&self, member: &Member) {
        for class in 0..CLASSES {
            while self.spill(member, class) > 0 {}
            debug_assert_eq!(member.seat.taken[class].load(Ordering::Relaxed), 0);
            self.set_starving(member, class, 0, 0);
        }
        debug_assert_eq!(member.waiting.get(), 0);
        member.seat.oldest_wait_ns.store(0, Ordering::Relaxed);
        member.seat.in_use.store(0, Ordering::Release);
    }

    /// Takes a free slice of exactly `class` for `account`, without checking its share: from the
    /// own cache, the depot, or another reactor's cache.
    #[inline(always)]
    pub(crate) fn take(&self, member: &Member, class: usize, account: Account) -> Option<u32> {
        let slice = member.seat.caches[class]
            .take(&member.tops[class])
            .or_else(|| self.fetch(member, class))?;
        member.seat.count_taken(class, 1);
        member.seat.count_held(class, account, 1);
        Some(slice)
    }

    /// Returns a slice that this member took for `account`.
    pub(crate) fn give_back(&self, member: &Member, class: usize, slice: u32, account: Account) {
        member.seat.count_taken(class, -1);
        member.seat.count_held(class, account, -1);
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > member.waiting.get() {
            self.classes[class].depot.push_batch(&[slice]);
        } else if !member.seat.caches[class].put(&member.tops[class], slice) {
            self.spill(member, class);
            let room = member.seat.caches[class].put(&member.tops[class], slice);
            assert!(room, "a cache that was spilled has room");
        }
        if waiting > 0 {
            self.returns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Charges a slice that this member took to another account.
    #[inline]
    pub(crate) fn recharge(&self, member: &Member, class: usize, from: Account, to: Account) {
        member.seat.count_held(class, from, -1);
        member.seat.count_held(class, to, 1);
    }

    /// Whether the share of `account` allows one more slice of `class`. It has waited since
    /// `since_ns`; [`NOT_WAITING`] if it has not.
    #[inline]
    pub(crate) fn admits(
        &self,
        member: &Member,
        class: usize,
        account: Account,
        since_ns: u64,
    ) -> bool {
        if account.is_unlimited() {
            return true;
        }
        let budget = &member.budgets[class];
        if budget.get() > 0 && !self.classes[class].scarce.load(Ordering::Relaxed) {
            budget.set(budget.get() - 1);
            return true;
        }
        self.admits_by_share(member, class, account, since_ns)
    }

    #[inline(never)]
    fn admits_by_share(
        &self,
        member: &Member,
        class: usize,
        account: Account,
        since_ns: u64,
    ) -> bool {
        let shared = &*self.classes[class];
        let (class_usage, seats) = self.class_usage(class);
        let surplus = class_usage.surplus();
        if shared.scarce.load(Ordering::Relaxed) != (surplus == 0) {
            shared.scarce.store(surplus == 0, Ordering::Relaxed);
        }
        if surplus > 0 {
            // The budgets of all reactors together must not exceed the plentiful slices.
            member.budgets[class].set(surplus / (2 * seats));
            return true;
        }
        let held = self.held(class, account);
        let uses_reserve = account.uses_reserve();
        let for_others = match held {
            0 if uses_reserve => 0,
            0 => self.starved_longer(member, class, since_ns),
            _ => self.starved_accounts(class),
        };
        class_usage.admits(held, uses_reserve, for_others)
    }

    /// Other reactors in which an account without a slice of `class` has waited since before
    /// `since_ns`. Without this order, a reactor could always give the slice that it just received
    /// back to another account of its own.
    fn starved_longer(&self, member: &Member, class: usize, since_ns: u64) -> u32 {
        let others = self.seats().filter(|seat| {
            !std::ptr::eq(*seat, &raw const *member.seat)
                && seat.starved_accounts[class].load(Ordering::Relaxed) > 0
                && seat.starved_since_ns[class].load(Ordering::Relaxed) < since_ns
        });
        others.count() as u32
    }

    /// Distribution of the slices of a class, and the number of seats.
    fn class_usage(&self, class: usize) -> (ClassUsage, u32) {
        let Class {
            total, promised, ..
        } = &*self.classes[class];
        let (mut taken, mut of_system, mut under_promises, mut seats) = (0, 0, 0, 0);
        for seat in self.seats() {
            taken += seat.taken[class].load(Ordering::Relaxed);
            of_system += seat.held(class, Account::SYSTEM);
            under_promises += seat.held(class, Account::PROMISED);
            seats += 1;
        }
        let (total, promised) = (
            total.load(Ordering::Relaxed),
            promised.load(Ordering::Relaxed),
        );
        let class_usage = ClassUsage::new(total, taken, of_system, promised, under_promises);
        (class_usage, seats.max(1))
    }

    /// Slices of a class that an account has, in all reactors.
    pub(crate) fn held(&self, class: usize, account: Account) -> u32 {
        // A lease that changes its account during the summation may be counted for neither or both.
        self.seats()
            .fold(0, |sum, seat| sum + seat.held(class, account))
    }

    /// Accounts that have no slice of a class and wait for one, in all reactors.
    pub(crate) fn starved_accounts(&self, class: usize) -> u32 {
        self.seats().fold(0, |sum, seat| {
            sum + seat.starved_accounts[class].load(Ordering::Relaxed)
        })
    }

    /// Publishes the number of accounts that have no slice of a class and wait for one in this
    /// reactor, and since when the first of them waits.
    pub(crate) fn set_starving(&self, member: &Member, class: usize, accounts: u32, since_ns: u64) {
        let starved_accounts = &member.seat.starved_accounts[class];
        let starved_since_ns = &member.seat.starved_since_ns[class];
        if accounts > 0 && starved_since_ns.load(Ordering::Relaxed) != since_ns {
            starved_since_ns.store(since_ns, Ordering::Relaxed);
        }
        if starved_accounts.load(Ordering::Relaxed) != accounts {
            starved_accounts.store(accounts, Ordering::Relaxed);
        }
    }

    /// A counter that changes whenever a waiting request may find a slice.
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }

    /// Publishes the wait time of the longest-waiting request of this reactor.
    pub(crate) fn set_oldest_wait(&self, member: &Member, waited_ns: u64) {
        member
            .seat
            .oldest_wait_ns
            .store(waited_ns, Ordering::Relaxed);
        self.note_wait(member, waited_ns);
    }

    /// Records the wait time of a request.
    pub(crate) fn note_wait(&self, member: &Member, waited_ns: u64) {
        let longest = &member.seat.longest_wait_ns;
        if waited_ns > longest.load(Ordering::Relaxed) {
            longest.store(waited_ns, Ordering::Relaxed);
        }
    }

    /// The longest wait of a waiting request, and of any request so far, in nanoseconds.
    pub(crate) fn longest_waits(&self) -> (u64, u64) {
        self.seats().fold((0, 0), |(oldest, longest), seat| {
            let now = seat.oldest_wait_ns.load(Ordering::Relaxed);
            let ever = seat.longest_wait_ns.load(Ordering::Relaxed);
            (oldest.max(now), longest.max(ever))
        })
    }

    /// Publishes the number of promised slices of a class after a change.
    pub(crate) fn set_promised(&self, class: usize, slices: u32) {
        self.classes[class]
            .promised
            .store(slices, Ordering::Relaxed);
    }

    /// Counts another request of this member that waits for `class`.
    pub(crate) fn begin_wait(&self, member: &Member, class: usize) {
        member.waiting.set(member.waiting.get() + 1);
        let waits = &member.seat.waits[class];
        waits.store(waits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.classes[class].waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes one waiting request of this member from the counts.
    pub(crate) fn end_wait(&self, member: &Member, class: usize) {
        member.waiting.set(member.waiting.get() - 1);
        self.classes[class].waiting.fetch_sub(1, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a request of any reactor waits for `class`.
    pub(crate) fn waited_for(&self, class: usize) -> bool {
        self.classes[class].waiting.load(Ordering::Relaxed) > 0
    }

    /// The counters of one class. May be called by any thread.
    pub(crate) fn tally(&self, class: usize) -> ClassTally {
        let Class { total, waiting, .. } = &*self.classes[class];
        let mut tally = ClassTally {
            total: total.load(Ordering::Relaxed),
            taken: 0,
            waits: 0,
            waiting: waiting.load(Ordering::Relaxed),
        };
        for seat in self.seats() {
            tally.taken += seat.taken[class].load(Ordering::Relaxed);
            tally.waits += seat.waits[class].load(Ordering::Relaxed);
        }
        // A lease that moves between the counts of two reactors during the summation may be counted
        // twice.
        tally.taken = tally.taken.min(tally.total);
        tally
    }

    fn seats(&self) -> impl Iterator<Item = &ReactorSeat> {
        let first = self.seats.get().map(Arc::as_ref);
        std::iter::successors(first, |seat| seat.next.get().map(Arc::as_ref))
    }

    /// The order of this check and another reactor's wait does not matter: if a slice goes to this
    /// cache while the other begins to wait, the other's next poll steals it.
    fn others_wait(&self, member: &Member) -> bool {
        self.waiting.load(Ordering::Relaxed) > member.waiting.get()
    }

    #[inline(never)]
    fn fetch(&self, member: &Member, class: usize) -> Option<u32> {
        self.refill(member, class)
            .or_else(|| self.steal(member, class))
    }

    fn refill(&self, member: &Member, class: usize) -> Option<u32> {
        let shared = &self.classes[class];
        let wanted = if self.others_wait(member) {
            1
        } else {
            shared.batch
        };
        let mut slices = [0; BATCH_MAX];
        let got = shared.depot.pop_batch(&mut slices[..wanted]);
        let (&first, rest) = slices[..got].split_first()?;
        for &slice in rest {
            let room = member.seat.caches[class].put(&member.tops[class], slice);
            assert!(room, "an empty cache has room for a batch");
        }
        Some(first)
    }

    fn steal(&self, member: &Member, class: usize) -> Option<u32> {
        self.seats()
            .filter(|seat| !std::ptr::eq(*seat, &raw const *member.seat))
            .find_map(|seat| seat.caches[class].steal())
    }

    /// Moves half of a cache to the depot; returns the number of slices.
    fn spill(&self, member: &Member, class: usize) -> usize {
        let cache = &member.seat.caches[class];
        let mut slices = [0; BATCH_MAX];
        let mut count = 0;
        while count < cache.capacity() / 2
            && let Some(slice) = cache.take(&member.tops[class])
        {
            slices[count] = slice;
            count += 1;
        }
        self.classes[class].depot.push_batch(&slices[..count]);
        count
    }
}

impl ReactorSeat {
    fn new() -> ReactorSeat {
        ReactorSeat {
            caches: CACHE_SLICES.map(Cache::new),
            taken: Default::default(),
            waits: Default::default(),
            held: (0..ACCOUNTS * ROW).map(|_| AtomicU32::new(0)).collect(),
            starved_accounts: Default::default(),
            starved_since_ns: Default::default(),
            oldest_wait_ns: AtomicU64::new(0),
            longest_wait_ns: AtomicU64::new(0),
            in_use: AtomicU32::new(1),
            next: OnceLock::new(),
        }
    }

    fn occupy(&self) -> bool {
        self.in_use
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Only the seat's own reactor writes its counters, so a load and a store suffice.
    fn count_taken(&self, class: usize, change: i32) {
        let taken = &self.taken[class];
        let now = taken.load(Ordering::Relaxed).checked_add_signed(change);
        taken.store(now.expect("a slice comes back once"), Ordering::Relaxed);
    }

    #[inline]
    fn held(&self, class: usize, account: Account) -> u32 {
        self.held[account.place(class)].load(Ordering::Relaxed)
    }

    /// As for `taken`, only the seat's own reactor writes these.
    #[inline]
    fn count_held(&self, class: usize, account: Account, change: i32) {
        let held = &self.held[account.place(class)];
        let now = held.load(Ordering::Relaxed).wrapping_add_signed(change);
        debug_assert!(now < u32::MAX / 2, "a slice is given back by its account");
        held.store(now, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
