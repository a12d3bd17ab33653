//! Shares of a bounded resource: how much of it one host may use while others may need some.
//!
//! Hosts may use the resource until only a reserve is left, which is for hosts that use little. A
//! single host can therefore use most of the resource, and some is always left for the next hosts.
//! Hosts that no export lists can choose any name. Together they leave a part to the listed hosts,
//! and each of their addresses is limited as well.

mod handover;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// The reserve: 1/8 of the resource.
const RESERVED_PART: usize = 8;

/// A host that uses at most 1/64 of the resource may use the reserve.
const SMALL_PART: usize = 64;

const _: () = assert!(
    RESERVED_PART < SMALL_PART,
    "the reserve is for several hosts"
);

/// The part that is kept for hosts that exports list: 1/4 of the resource.
const LISTED_PART: usize = 4;

/// Resources smaller than this are first come, first served.
const SHARED_CAPACITY_MIN: usize = 128;

/// A host that uses a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareHolder {
    /// Hash of the host NQN. A host that changes its host identifier stays the same holder, and
    /// two hosts with the same hash have one share.
    host: u64,
    /// The address of a host that no export lists.
    address: Option<IpAddr>,
    /// Whether an export lists the host.
    listed: bool,
}

impl ShareHolder {
    /// The host of a Connect, with its `address` if the transport knows it.
    pub(crate) fn new(host_nqn: &str, listed: bool, address: Option<IpAddr>) -> Self {
        let mut hasher = DefaultHasher::new();
        host_nqn.hash(&mut hasher);
        Self {
            host: hasher.finish(),
            address: address.filter(|_| !listed),
            listed,
        }
    }

    /// Whether an export lists the host.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }
}

/// The use of a resource by host.
#[derive(Debug)]
pub(crate) struct Shares {
    capacity: usize,
    used: usize,
    /// Amount used by hosts that no export lists.
    unlisted: usize,
    hosts: BTreeMap<u64, usize>,
    addresses: BTreeMap<IpAddr, usize>,
}

impl Shares {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            used: 0,
            unlisted: 0,
            hosts: BTreeMap::new(),
            addresses: BTreeMap::new(),
        }
    }

    /// Changes the capacity; amounts in use stay.
    pub(crate) fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// The capacity.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The total amount in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether a host may use `amount` more. `has_lists`: an export lists hosts.
    pub(crate) fn admits(&self, who: &ShareHolder, amount: usize, has_lists: bool) -> bool {
        let Some(free) = self.capacity.checked_sub(self.used + amount) else {
            return false;
        };
        if self.capacity < SHARED_CAPACITY_MIN {
            return true;
        }
        let leaves_reserve = free >= self.capacity / RESERVED_PART;
        let within = |held: usize| leaves_reserve || held + amount <= self.capacity / SMALL_PART;
        let of_host = self.hosts.get(&who.host).copied().unwrap_or(0);
        if who.listed {
            return within(of_host);
        }
        let of_address = who.address.and_then(|it| self.addresses.get(&it).copied());
        let unlisted_max = if has_lists {
            self.capacity - self.capacity / LISTED_PART
        } else {
            self.capacity
        };
        within(of_host) && within(of_address.unwrap_or(0)) && self.unlisted + amount <= unlisted_max
    }

    /// Adds `amount` to the use of a host.
    pub(crate) fn take(&mut self, who: &ShareHolder, amount: usize) {
        self.used += amount;
        *self.hosts.entry(who.host).or_default() += amount;
        if !who.listed {
            self.unlisted += amount;
        }
        if let Some(address) = who.address {
            *self.addresses.entry(address).or_default() += amount;
        }
    }

    /// Subtracts `amount` from the use of a host.
    pub(crate) fn return_share(&mut self, who: &ShareHolder, amount: usize) {
        self.used -= amount;
        release(&mut self.hosts, &who.host, amount);
        if !who.listed {
            self.unlisted -= amount;
        }
        if let Some(address) = &who.address {
            release(&mut self.addresses, address, amount);
        }
    }
}

/// Subtracts `amount` from an entry and removes the entry at zero.
fn release<K: Ord>(held: &mut BTreeMap<K, usize>, key: &K, amount: usize) {
    let Some(entry) = held.get_mut(key) else {
        debug_assert!(false, "more is given back than was taken");
        return;
    };
    *entry -= amount;
    if *entry == 0 {
        held.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8, listed: bool) -> ShareHolder {
        ShareHolder::new(&format!("nqn.host-{number}"), listed, None)
    }

    fn take_all(shares: &mut Shares, who: &ShareHolder, has_lists: bool) -> usize {
        let mut taken = 0;
        while shares.admits(who, 1, has_lists) {
            shares.take(who, 1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn one_host_cannot_take_the_shares_of_the_next() {
        let mut shares = Shares::new(1024);
        assert_eq!(take_all(&mut shares, &host(0, true), true), 896);
        for number in 1..=8 {
            assert_eq!(take_all(&mut shares, &host(number, true), true), 16);
        }
        assert_eq!(shares.used(), 1024);
        shares.return_share(&host(0, true), 896);
        assert_eq!(take_all(&mut shares, &host(9, true), true), 768);
    }

    #[test]
    fn unlisted_hosts_leave_a_reserve_to_listed_hosts() {
        let mut shares = Shares::new(256);
        let mut taken = 0;
        for number in 0..=255 {
            taken += take_all(&mut shares, &host(number, false), true);
        }
        assert_eq!(taken, 192);
        assert!(take_all(&mut shares, &host(0, true), true) >= 32);
        // Nothing is kept if no export lists hosts.
        let mut shares = Shares::new(256);
        let taken: usize = (0..=255)
            .map(|number| take_all(&mut shares, &host(number, false), false))
            .sum();
        assert!(taken > 192);
    }

    #[test]
    fn invented_host_names_at_one_address_share_one_share() {
        let mut shares = Shares::new(1024);
        let at = |number: u8, address: [u8; 4]| {
            let name = format!("nqn.host-{number}");
            ShareHolder::new(&name, false, Some(address.into()))
        };
        let mut taken = 0;
        for number in 0..=255 {
            taken += take_all(&mut shares, &at(number, [192, 0, 2, 1]), false);
        }
        assert_eq!(taken, 896);
        assert!(shares.admits(&at(1, [192, 0, 2, 2]), 16, false));
    }

    #[test]
    fn small_resources_are_not_divided_into_shares() {
        let mut shares = Shares::new(127);
        assert_eq!(take_all(&mut shares, &host(0, false), true), 127);
        shares.resize(126);
        assert!(!shares.admits(&host(0, false), 1, true));
        shares.return_share(&host(0, false), 2);
        assert!(shares.admits(&host(0, false), 1, true));
        assert_eq!(shares.used(), 125);
    }
}
