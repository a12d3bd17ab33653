//! The records of clients with state, which outlive the server: only these clients may reclaim their
//! state after a restart (RFC 8881 §8.4.3).
//!
//! A client is recorded before it is told of its first open or lock, and its record is removed
//! before another client is told of anything that its state has prevented. So no reply is complete
//! before the records that it depends on are stored. Records of clients without state are removed
//! later, so that a restart does not wait for them.

use std::collections::{BTreeMap, HashSet};

use crate::limits::UNUSED_RECORD_MS;

/// The records, and which version of them is stored.
#[derive(Debug)]
pub(crate) struct Records {
    /// Owners of clients, with the time at which each was last seen with state.
    owners: BTreeMap<Box<[u8]>, u64>,
    /// Whether the user stores them.
    is_kept: bool,
    version: u64,
    /// The version that replies wait for.
    required: u64,
    /// The last version that the user has taken, and the last that it has stored.
    taken: u64,
    stored: u64,
    pub(crate) now_ms: u64,
}

impl Records {
    pub(crate) fn new(owners: &[Box<[u8]>], is_kept: bool, now_ms: u64) -> Self {
        Self {
            owners: owners.iter().map(|it| (it.clone(), now_ms)).collect(),
            is_kept,
            version: 0,
            required: 0,
            taken: 0,
            stored: 0,
            now_ms,
        }
    }

    /// Records a client that has state.
    pub(crate) fn add(&mut self, owner: &[u8]) {
        if !self.owners.contains_key(owner) {
            self.owners.insert(owner.into(), self.now_ms);
            self.change();
        }
    }

    pub(crate) fn contains(&self, owner: &[u8]) -> bool {
        self.owners.contains_key(owner)
    }

    /// Removes the record of a client that has lost its state.
    pub(crate) fn remove(&mut self, owner: &[u8]) {
        if self.owners.remove(owner).is_some() {
            self.change();
        }
    }

    fn change(&mut self) {
        self.version += 1;
        self.required = self.version;
    }

    /// Removes the records of clients that have had no state for a while. No reply waits for that.
    pub(crate) fn remove_unused(&mut self, with_state: &HashSet<&[u8]>) {
        let (now_ms, before) = (self.now_ms, self.owners.len());
        self.owners.retain(|owner, seen_ms| {
            if with_state.contains(&**owner) {
                *seen_ms = now_ms;
            }
            now_ms.saturating_sub(*seen_ms) < UNUSED_RECORD_MS
        });
        self.version += u64::from(self.owners.len() != before);
    }

    /// The version that a reply of now waits for.
    pub(crate) fn required(&self) -> u64 {
        self.required
    }

    /// Whether a version is stored.
    pub(crate) fn is_stored(&self, version: u64) -> bool {
        !self.is_kept || self.stored >= version
    }

    /// The user stores them from now on.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// The version that the user has not stored yet.
    pub(crate) fn take(&mut self) -> Option<(u64, Vec<Box<[u8]>>)> {
        if !self.is_kept || self.taken == self.version {
            return None;
        }
        self.taken = self.version;
        Some((self.version, self.owners.keys().cloned().collect()))
    }

    /// The user has stored a version.
    pub(crate) fn set_stored(&mut self, version: u64) {
        self.stored = self.stored.max(version);
    }
}
