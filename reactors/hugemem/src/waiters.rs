//! The requests of one reactor that wait for memory. All storage is allocated at start.
//!
//! Each class has a FIFO per account, and a ring of the accounts with requests. The ring is served
//! round robin, so a host with many waiting requests delays another host by one grant.

use crate::account::{ACCOUNTS, Account, ROW};
use crate::class::CLASSES;
use crate::pool::WaiterToken;

/// The end of a list. Nodes and accounts are stored as their number plus 1, so that zeroed tables
/// are empty, which the system provides without touching them.
const NONE: u32 = 0;

/// A waiting request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) token: WaiterToken,
    pub(crate) account: Account,
    pub(crate) len: usize,
    /// Time at which it began to wait.
    pub(crate) since_ns: u64,
    /// It waits under a promise, which is of one class.
    pub(crate) is_promised: bool,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    waiter: Waiter,
    next: u32,
}

/// The accounts with requests in a class: a circular list through `Waiters::successors`.
#[derive(Debug, Clone, Copy, Default)]
struct Ring {
    /// The account before the one that is served next.
    last: u32,
    len: u32,
}

/// Linked lists in one table of nodes: one per account and class, and one of unused nodes.
#[derive(Debug)]
pub(crate) struct Waiters {
    nodes: Box<[Node]>,
    unused: u32,
    heads: Box<[u32]>,
    tails: Box<[u32]>,
    successors: Box<[u32]>,
    /// When each account's last request was served.
    served_at_ns: Box<[u64]>,
    rings: [Ring; CLASSES],
}

impl Waiters {
    /// Creates room for `max` requests.
    pub(crate) fn new(max: usize) -> Waiters {
        let max = u32::try_from(max)
            .ok()
            .filter(|max| *max < u32::MAX)
            .expect("fewer than 2^32 - 1");
        let waiter = Waiter {
            token: WaiterToken(0),
            account: Account::SYSTEM,
            len: 0,
            since_ns: 0,
            is_promised: false,
        };
        let nodes = (1..=max).map(|number| Node {
            waiter,
            next: if number == max { NONE } else { number + 1 },
        });
        let places = if max == 0 { 0 } else { ACCOUNTS * ROW };
        let table = || vec![NONE; places].into_boxed_slice();
        Waiters {
            nodes: nodes.collect(),
            unused: u32::from(max > 0),
            heads: table(),
            tails: table(),
            successors: table(),
            served_at_ns: vec![0; places].into_boxed_slice(),
            rings: [Ring::default(); CLASSES],
        }
    }

    /// Whether no request waits for `class`.
    pub(crate) fn is_empty(&self, class: usize) -> bool {
        self.rings[class].len == 0
    }

    /// Whether a request of `account` waits for `class`.
    pub(crate) fn has_any_of(&self, class: usize, account: Account) -> bool {
        let head = self.heads.get(account.place(class));
        head.is_some_and(|head| *head != NONE)
    }

    /// Number of accounts with requests waiting for `class`.
    pub(crate) fn accounts(&self, class: usize) -> u32 {
        self.rings[class].len
    }

    /// Queues a request after all others of its class and account; returns false if there is no
    /// room.
    pub(crate) fn push(&mut self, class: usize, waiter: Waiter) -> bool {
        let number = self.unused;
        if number == NONE {
            return false;
        }
        let node = &mut self.nodes[number as usize - 1];
        self.unused = node.next;
        *node = Node { waiter, next: NONE };
        let place = waiter.account.place(class);
        match std::mem::replace(&mut self.tails[place], number) {
            NONE => {
                self.heads[place] = number;
                self.join(class, waiter.account);
            }
            tail => self.nodes[tail as usize - 1].next = number,
        }
        true
    }

    /// The next request of `class` to be served.
    pub(crate) fn next(&self, class: usize) -> Option<Waiter> {
        let account = self.next_account(class)?;
        let head = self.heads[account.place(class)];
        Some(self.nodes[head as usize - 1].waiter)
    }

    /// When the last request of `account` was served, of those that waited for `class`; 0 if none
    /// was.
    pub(crate) fn served_at_ns(&self, class: usize, account: Account) -> u64 {
        self.served_at_ns
            .get(account.place(class))
            .copied()
            .unwrap_or(0)
    }

    /// Removes the next request, which is served at `now_ns`, and advances to the next account.
    pub(crate) fn pop(&mut self, class: usize, now_ns: u64) {
        let Some(account) = self.next_account(class) else {
            return;
        };
        self.served_at_ns[account.place(class)] = now_ns;
        self.unlink(class, account, NONE);
        if self.heads[account.place(class)] == NONE {
            self.leave(class, account);
        } else {
            self.advance_account(class);
        }
    }

    /// Advances to the next account.
    pub(crate) fn advance_account(&mut self, class: usize) {
        if let Some(account) = self.next_account(class) {
            self.rings[class].last = number_of(account);
        }
    }

    /// Start time of the longest wait.
    pub(crate) fn oldest_since_ns(&self) -> Option<u64> {
        let heads = (0..CLASSES).flat_map(|class| {
            let first = self.next_account(class);
            let following = move |account: &Account| {
                let next = self.successor(class, *account);
                (Some(next) != first).then_some(next)
            };
            std::iter::successors(first, following).map(move |account| {
                let head = self.heads[account.place(class)];
                self.nodes[head as usize - 1].waiter.since_ns
            })
        });
        heads.min()
    }

    /// Removes the requests of `account`, or of all accounts, for which `cancelled` holds; calls
    /// `removed` with the class of each.
    pub(crate) fn cancel(
        &mut self,
        account: Option<Account>,
        mut cancelled: impl FnMut(WaiterToken) -> bool,
        mut removed: impl FnMut(usize),
    ) {
        for class in 0..CLASSES {
            let mut left = self.rings[class].len;
            let mut next = account.or_else(|| self.next_account(class));
            while let Some(of) = next
                && left > 0
            {
                left -= 1;
                // The account may leave the ring with its last request.
                next = account.is_none().then(|| self.successor(class, of));
                self.cancel_of(class, of, &mut cancelled, &mut removed);
                if account.is_some() {
                    break;
                }
            }
        }
    }

    fn cancel_of(
        &mut self,
        class: usize,
        account: Account,
        cancelled: &mut impl FnMut(WaiterToken) -> bool,
        removed: &mut impl FnMut(usize),
    ) {
        let place = account.place(class);
        let mut before = NONE;
        let mut number = self.heads.get(place).copied().unwrap_or(NONE);
        let had_any = number != NONE;
        while number != NONE {
            let Node { waiter, next } = self.nodes[number as usize - 1];
            if cancelled(waiter.token) {
                self.unlink(class, account, before);
                removed(class);
            } else {
                before = number;
            }
            number = next;
        }
        if had_any && self.heads[place] == NONE {
            self.leave(class, account);
        }
    }

    /// Removes the request after `before` from its FIFO.
    fn unlink(&mut self, class: usize, account: Account, before: u32) {
        let place = account.place(class);
        let number = match before {
            NONE => self.heads[place],
            before => self.nodes[before as usize - 1].next,
        };
        let next = self.nodes[number as usize - 1].next;
        if self.tails[place] == number {
            self.tails[place] = before;
        }
        match before {
            NONE => self.heads[place] = next,
            before => self.nodes[before as usize - 1].next = next,
        }
        self.nodes[number as usize - 1].next = self.unused;
        self.unused = number;
    }

    fn next_account(&self, class: usize) -> Option<Account> {
        let Ring { last, len } = self.rings[class];
        (len > 0).then(|| self.successor(class, account_of(last)))
    }

    fn successor(&self, class: usize, account: Account) -> Account {
        account_of(self.successors[account.place(class)])
    }

    /// Adds an account to a ring, to be served after all others.
    fn join(&mut self, class: usize, account: Account) {
        let number = number_of(account);
        let Ring { last, len } = &mut self.rings[class];
        let place = account.place(class);
        if *len == 0 {
            self.successors[place] = number;
        } else {
            let before = account_of(*last).place(class);
            self.successors[place] = self.successors[before];
            self.successors[before] = number;
        }
        *last = number;
        *len += 1;
    }

    fn leave(&mut self, class: usize, account: Account) {
        let number = number_of(account);
        let mut before = account;
        while self.successors[before.place(class)] != number {
            before = self.successor(class, before);
        }
        self.successors[before.place(class)] = self.successors[account.place(class)];
        let ring = &mut self.rings[class];
        ring.len -= 1;
        if ring.last == number {
            ring.last = number_of(before);
        }
    }
}

/// The stored form of an account.
fn number_of(account: Account) -> u32 {
    account.index() as u32 + 1
}

fn account_of(number: u32) -> Account {
    Account::from_index(number - 1)
}

#[cfg(all(test, not(loom)))]
mod tests;
