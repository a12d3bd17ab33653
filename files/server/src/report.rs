//! What an operator sees of the server's clients, and their eviction.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::server::{Now, Server};
use crate::states::StateKind;
use crate::table::Key;

/// A client as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientReport {
    /// Its number, which no other client of the server has had.
    pub number: u64,
    /// The name that it gives itself.
    pub owner: Box<[u8]>,
    /// Where its latest request came from.
    pub address: IpAddr,
    /// Time since its latest request in milliseconds.
    pub silent_ms: u64,
    /// Whether its lease has expired, so that it loses its state when another client needs it.
    pub is_expired: bool,
    /// Sessions.
    pub sessions: usize,
    /// Open states.
    pub opens: usize,
    /// Byte-range locks.
    pub locks: usize,
}

impl Server {
    /// All clients that have created a session. Takes time in proportion to their opens and locks.
    #[must_use]
    pub fn clients(&self, now: &Now) -> Vec<ClientReport> {
        let mut locks: HashMap<Key, usize> = HashMap::new();
        let of_files = self.states.files.values().flat_map(|it| it.locks.iter());
        for client in of_files.filter_map(|it| self.states.table.get(it.state)) {
            *locks.entry(client.client).or_default() += 1;
        }
        let is_open = |key: &&Key| {
            let state = self.states.table.get(**key);
            state.is_some_and(|it| matches!(it.kind, StateKind::Open(_)))
        };
        let confirmed = self.clients.iter().filter(|(_, it)| it.is_confirmed);
        let report = confirmed.map(|(key, client)| ClientReport {
            number: key.to_u64(),
            owner: client.owner.clone(),
            address: client.address,
            silent_ms: now.monotonic_ms.saturating_sub(client.renewed_ms),
            is_expired: client.is_expired(now),
            sessions: client.sessions.len(),
            opens: client.states.iter().filter(is_open).count(),
            locks: locks.get(&key).copied().unwrap_or_default(),
        });
        report.collect()
    }

    /// Removes a client with its sessions, opens and locks, as if its lease had expired, and does not
    /// let it reclaim them after a restart. Its next request gets `NFS4ERR_BADSESSION`, and it may
    /// begin anew. Returns false if there is no such client.
    pub fn evict_client(&mut self, number: u64) -> bool {
        let key = Key::from_u64(number);
        let Some(client) = self.clients.get(key) else {
            return false;
        };
        self.grace.forbid(&client.owner);
        self.records.remove(&client.owner);
        self.counters.clients_evicted.add(1);
        self.remove_client(key);
        true
    }

    /// Publishes the levels.
    pub(crate) fn set_levels(&self) {
        let counters = &self.counters;
        counters.clients.set(self.clients.len() as u64);
        counters.sessions.set(self.sessions.len() as u64);
        counters.opens.set(self.states.open_count as u64);
        counters.locks.set(self.states.lock_count as u64);
        counters.grace.set(u64::from(self.grace.is_active()));
    }
}
