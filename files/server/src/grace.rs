//! The grace period after a restart, in which clients reclaim their opens and locks
//! (RFC 8881 §8.4.2).

use std::collections::HashSet;

use crate::limits::GRACE_MS;
use crate::server::Now;

/// The clients that may reclaim, and until when.
#[derive(Debug)]
pub(crate) struct Grace {
    /// Owners that had state before the restart and have not reclaimed all of it.
    waiting: HashSet<Box<[u8]>>,
    /// Owners that had state before the restart.
    known: HashSet<Box<[u8]>>,
    end_ms: u64,
}

impl Grace {
    /// The period of clients that had state before the restart. It is over if there are none.
    pub(crate) fn new(owners: impl IntoIterator<Item = Box<[u8]>>, now: &Now) -> Self {
        let known: HashSet<_> = owners.into_iter().collect();
        Self {
            waiting: known.clone(),
            known,
            end_ms: now.monotonic_ms + GRACE_MS,
        }
    }

    /// Whether only reclaims are possible. It ends with the last client that has reclaimed.
    pub(crate) fn is_active(&self, now: &Now) -> bool {
        !self.waiting.is_empty() && now.monotonic_ms < self.end_ms
    }

    /// Whether a client had state before the restart.
    pub(crate) fn may_reclaim(&self, owner: &[u8], now: &Now) -> bool {
        self.is_active(now) && self.known.contains(owner)
    }

    /// A client has nothing to reclaim any more.
    pub(crate) fn forget(&mut self, owner: &[u8]) {
        self.waiting.remove(owner);
    }
}
