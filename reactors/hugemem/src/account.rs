//! Accounts: the hosts and internal users that leases are charged to.
//!
//! Every leased slice is charged to one account. A host has two: one for the data of its I/O
//! commands and one for its admin commands, which may also use the reserve of each class.
//! `exchange` computes the shares from the counts.

use crate::class::CLASSES;

/// Maximum number of hosts with separate accounts. Further hosts share them.
pub const ACCOUNT_HOSTS_MAX: u16 = if cfg!(loom) { 1 } else { 1023 };
/// Accounts of an arena: two per host, one for the appliance, one for promised slices.
pub(crate) const ACCOUNTS: usize = 2 * (ACCOUNT_HOSTS_MAX as usize + 1);
/// Bits of an account's number, which a lease stores beside its length.
pub(crate) const ACCOUNT_BITS: u32 = 11;

/// Counters per account: at least [`CLASSES`], a power of two so that the index is a shift.
pub(crate) const ROW: usize = 8;

const _: () = assert!(CLASSES <= ROW && ACCOUNTS <= 1 << ACCOUNT_BITS);

/// The account that a lease is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Account(u16);

impl Account {
    /// The appliance itself, without a share limit.
    pub const SYSTEM: Account = Account(0);
    /// Slices taken under a [`SlicePromise`](crate::SlicePromise), limited by the promise.
    pub const PROMISED: Account = Account(1);

    /// The account of a host's I/O commands.
    ///
    /// # Panics
    /// When `host` is 0 or exceeds [`ACCOUNT_HOSTS_MAX`].
    #[must_use]
    pub const fn io(host: u16) -> Account {
        assert!(host > 0 && host <= ACCOUNT_HOSTS_MAX, "no such host");
        Account(2 * host)
    }

    /// The account of a host's admin commands, which may use the reserve of each class.
    ///
    /// # Panics
    /// When `host` is 0 or exceeds [`ACCOUNT_HOSTS_MAX`].
    #[must_use]
    pub const fn admin(host: u16) -> Account {
        assert!(host > 0 && host <= ACCOUNT_HOSTS_MAX, "no such host");
        Account(2 * host + 1)
    }

    /// The host whose account this is.
    #[must_use]
    pub const fn host(self) -> Option<u16> {
        match self.0 / 2 {
            0 => None,
            host => Some(host),
        }
    }

    /// Whether no share limits the account.
    #[inline]
    pub(crate) const fn is_unlimited(self) -> bool {
        self.0 < 2
    }

    /// Whether the account may use the reserve of a class.
    pub(crate) const fn uses_reserve(self) -> bool {
        self.0 % 2 == 1
    }

    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub(crate) const fn from_index(index: u32) -> Account {
        Account(index as u16)
    }

    /// Index of the count of this account's slices of `class`.
    #[inline]
    pub(crate) const fn place(self, class: usize) -> usize {
        self.index() * ROW + class
    }
}
