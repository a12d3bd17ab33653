//! The numbers of the hosts' accounts in the arena. Control path only.
//!
//! A host is identified by its NQN: host lists contain NQNs, and a host that uses a new Host ID for
//! each association would otherwise get a share of the memory for each.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use hugemem::ACCOUNT_HOSTS_MAX;

/// A host that has controllers.
#[derive(Debug)]
struct Host {
    number: u16,
    controllers: u32,
}

/// The account number of each host.
#[derive(Debug, Default)]
pub(crate) struct HostAccounts {
    hosts: BTreeMap<String, Host>,
    /// Numbers that were used before, the one that is unused for longest first. By the time a
    /// number is used again, leases that outlived its previous host's last controller have most
    /// likely been returned.
    free: VecDeque<u16>,
    /// Number of hosts per account number that was used so far, from 1.
    users: Vec<u32>,
}

impl HostAccounts {
    /// Adds a controller of the host with this NQN and returns the host's account number. If there
    /// are more hosts than numbers, some hosts share one.
    pub(crate) fn add_controller(&mut self, nqn: &str) -> u16 {
        if let Some(host) = self.hosts.get_mut(nqn) {
            host.controllers += 1;
            return host.number;
        }
        let number = self.unused_number().unwrap_or_else(|| shared_number(nqn));
        self.users[usize::from(number) - 1] += 1;
        let host = Host {
            number,
            controllers: 1,
        };
        self.hosts.insert(nqn.to_owned(), host);
        number
    }

    /// Whether no host has controllers.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    fn unused_number(&mut self) -> Option<u16> {
        if self.users.len() < usize::from(ACCOUNT_HOSTS_MAX) {
            self.users.push(0);
            return Some(self.users.len() as u16);
        }
        self.free.pop_front()
    }

    /// Removes a controller of the host with this NQN.
    pub(crate) fn remove_controller(&mut self, nqn: &str) {
        let Some(host) = self.hosts.get_mut(nqn) else {
            debug_assert!(false, "{nqn} has no controller");
            return;
        };
        host.controllers -= 1;
        if host.controllers > 0 {
            return;
        }
        let number = host.number;
        self.hosts.remove(nqn);
        let users = &mut self.users[usize::from(number) - 1];
        *users -= 1;
        if *users == 0 {
            self.free.push_back(number);
        }
    }
}

fn shared_number(nqn: &str) -> u16 {
    let mut hasher = DefaultHasher::new();
    nqn.hash(&mut hasher);
    // The remainder is less than `ACCOUNT_HOSTS_MAX`.
    (hasher.finish() % u64::from(ACCOUNT_HOSTS_MAX)) as u16 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_one_host_have_one_account() {
        let mut accounts = HostAccounts::default();
        let first = accounts.add_controller("nqn.a");
        assert_eq!(accounts.add_controller("nqn.a"), first);
        let second = accounts.add_controller("nqn.b");
        assert_ne!(first, second);
        accounts.remove_controller("nqn.a");
        assert_eq!(accounts.add_controller("nqn.a"), first);
    }

    #[test]
    fn account_numbers_are_reused_in_fifo_order() {
        let mut accounts = HostAccounts::default();
        let mut seen = Vec::new();
        for _ in 0..2 * ACCOUNT_HOSTS_MAX {
            seen.push(accounts.add_controller("nqn.a"));
            accounts.remove_controller("nqn.a");
        }
        let max = usize::from(ACCOUNT_HOSTS_MAX);
        assert!(seen[..max].iter().copied().eq(1..=ACCOUNT_HOSTS_MAX));
        assert_eq!(seen[..max], seen[max..]);
    }

    #[test]
    fn hosts_share_account_numbers_when_none_is_free() {
        let mut accounts = HostAccounts::default();
        let nqns: Vec<_> = (0..ACCOUNT_HOSTS_MAX + 100)
            .map(|host| format!("nqn.{host}"))
            .collect();
        for nqn in &nqns {
            let number = accounts.add_controller(nqn);
            assert!((1..=ACCOUNT_HOSTS_MAX).contains(&number));
        }
        for nqn in &nqns {
            accounts.remove_controller(nqn);
        }
        assert!(accounts.hosts.is_empty());
        let mut free: Vec<_> = accounts.free.iter().copied().collect();
        free.sort_unstable();
        assert!(free.into_iter().eq(1..=ACCOUNT_HOSTS_MAX), "each once");
    }
}
