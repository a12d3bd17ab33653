//! What an operator does with a running server: sees its clients, evicts them, and changes shares.

use std::collections::HashMap;
use std::net::IpAddr;

use files_store::Error;
use files_store::limits::BLOCK_BYTES;

use crate::place::{Clients, Part, PartOptions, Share};
use crate::server::{Now, Server};
use crate::states::{FileId, StateKind};
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

    /// Makes directories for shares, and sets their quotas ([`PartOptions::prepare_all`]).
    ///
    /// # Errors
    /// The index of the first one that cannot be made, and why.
    pub fn prepare_parts(
        &mut self,
        parts: &[PartOptions],
        now: &Now,
    ) -> Result<Vec<Part>, (usize, Error)> {
        PartOptions::prepare_all(parts, &mut self.volumes, now.time)
    }

    /// Replaces the shares. Those with the same number stay what clients have as a handle. Others
    /// end: their handles are stale, and what clients have open in a part of a volume that no share has
    /// any more is closed. Requests that have begun are completed.
    ///
    /// # Panics
    /// Panics if a share refers to no volume.
    pub fn set_shares(&mut self, shares: Vec<Share>, now: &Now) {
        assert!(shares.iter().all(|it| it.volume.0 < self.volumes.len()));
        self.shared = self.shared.max(now.time);
        for ended in &mut self.shares {
            // Executions refer to it by its place.
            ended.clients = Clients::In(Vec::new());
            ended.name.clear();
        }
        for share in shares {
            // A request that has begun must not find an object of another volume.
            let is_same = |it: &&mut Share| (it.number, it.volume) == (share.number, share.volume);
            match self.shares.iter_mut().find(is_same) {
                Some(place) => *place = share,
                None => self.shares.push(share),
            }
        }
        let is_shared = |(volume, inode): FileId| {
            let (is_lost, part) = {
                let volume = &self.volumes[volume.0];
                (volume.is_lost(), volume.share(inode))
            };
            let mut shares = self.shares.iter();
            let is_of = |it: &Share| is_lost || Ok(it.part) == part;
            shares.any(|it| it.volume == volume && is_of(it) && !it.name.is_empty())
        };
        let states = self.states.table.iter();
        let ended = states.filter(|(_, state)| !is_shared(state.file));
        let ended: Vec<Key> = ended.map(|(key, _)| key).collect();
        for key in ended {
            self.drop_state(key);
        }
        self.set_levels();
    }

    /// Publishes the levels.
    pub(crate) fn set_levels(&self) {
        let counters = &self.counters;
        counters.clients.set(self.clients.len() as u64);
        counters.sessions.set(self.sessions.len() as u64);
        counters.opens.set(self.states.open_count as u64);
        counters.locks.set(self.states.lock_count as u64);
        counters.grace.set(u64::from(self.grace.is_active()));
        for share in &self.shares {
            let used = self.volumes[share.volume.0].share_use(share.part);
            share.counters.inodes.set(used.inodes);
            share.counters.bytes_used.set(used.blocks * BLOCK_BYTES);
        }
    }
}
