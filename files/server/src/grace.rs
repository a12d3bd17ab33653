//! The grace period after a restart, in which clients reclaim their opens and locks
//! (RFC 8881 §8.4.2).

use std::collections::HashSet;

use crate::limits::GRACE_MS;
use crate::server::{Now, Server};

/// How far the period is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Clients reclaim. Ended by the last of them or by time.
    Reclaiming,
    /// Nothing can be reclaimed or opened until this version of the records is stored, without the
    /// clients that have not reclaimed: after another restart they must not either.
    Ending(u64),
    Over,
}

/// The clients that may reclaim, and until when.
#[derive(Debug)]
pub(crate) struct Grace {
    /// Owners that had state before the restart and have not reclaimed all of it.
    waiting: HashSet<Box<[u8]>>,
    /// Owners that had state before the restart.
    known: HashSet<Box<[u8]>>,
    end_ms: u64,
    phase: Phase,
}

impl Grace {
    /// The period of clients that had state before the restart. It is over if there are none.
    pub(crate) fn new(owners: impl IntoIterator<Item = Box<[u8]>>, now: &Now) -> Self {
        let known: HashSet<_> = owners.into_iter().collect();
        Self {
            phase: match known.is_empty() {
                true => Phase::Over,
                false => Phase::Reclaiming,
            },
            waiting: known.clone(),
            known,
            end_ms: now.monotonic_ms + GRACE_MS,
        }
    }

    /// Whether nothing new can be opened.
    pub(crate) fn is_active(&self) -> bool {
        self.phase != Phase::Over
    }

    /// Whether a client can reclaim what it had before the restart.
    pub(crate) fn may_reclaim(&self, owner: &[u8]) -> bool {
        self.phase == Phase::Reclaiming && self.known.contains(owner)
    }

    /// A client has nothing to reclaim any more.
    pub(crate) fn forget(&mut self, owner: &[u8]) {
        self.waiting.remove(owner);
    }

    /// A client can reclaim nothing any more.
    pub(crate) fn forbid(&mut self, owner: &[u8]) {
        self.waiting.remove(owner);
        self.known.remove(owner);
    }

    /// Whether the last client has reclaimed, or the time is over.
    fn is_due(&self, now: &Now) -> bool {
        self.waiting.is_empty() || now.monotonic_ms >= self.end_ms
    }
}

impl Server {
    /// Ends the grace period when it is due. Called before anything that depends on it.
    pub(crate) fn advance_grace(&mut self, now: &Now) {
        self.records.now_ms = now.monotonic_ms;
        if self.grace.phase == Phase::Reclaiming && self.grace.is_due(now) {
            for owner in self.grace.waiting.drain() {
                self.records.remove(&owner);
            }
            self.grace.known.clear();
            self.grace.phase = Phase::Ending(self.records.required());
        }
        if let Phase::Ending(version) = self.grace.phase
            && self.records.is_stored(version)
        {
            self.grace.phase = Phase::Over;
        }
    }
}
