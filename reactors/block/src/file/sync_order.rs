//! Determines when the success of a sync is reliable.
//!
//! Linux reports a failed writeback to one of the calls that sync through an open file description.
//! If two calls overlap, one fails and the other may succeed, although both cover the lost data,
//! and the successful one may be reaped first. A success is therefore reliable only after every
//! sync that was in flight at its end has ended too.

use std::collections::VecDeque;

/// Syncs of one open file description.
#[derive(Debug)]
pub(super) struct SyncOrder {
    /// Whether each sync has ended, oldest first.
    ended: VecDeque<bool>,
    /// The number of the first entry of `ended`.
    first: u64,
    /// Jobs whose sync succeeded, each with the number below which all syncs must have ended.
    held: VecDeque<(u32, u64)>,
}

impl SyncOrder {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            ended: VecDeque::with_capacity(depth),
            first: 0,
            held: VecDeque::with_capacity(depth),
        }
    }

    /// Starts a sync and returns its number.
    pub(super) fn start(&mut self) -> u64 {
        self.ended.push_back(false);
        self.first + self.ended.len() as u64 - 1
    }

    /// Ends the sync with this number.
    pub(super) fn end(&mut self, number: u64) {
        self.ended[(number - self.first) as usize] = true;
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
            self.first += 1;
        }
    }

    /// Holds back the success of `job`, whose own sync has ended.
    pub(super) fn hold(&mut self, job: u32) {
        let next = self.first + self.ended.len() as u64;
        self.held.push_back((job, next));
    }

    /// Returns a job whose success is reliable now.
    pub(super) fn release(&mut self) -> Option<u32> {
        let (job, until) = *self.held.front()?;
        if self.first < until {
            return None;
        }
        self.held.pop_front();
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_success_waits_only_for_overlapping_syncs() {
        let mut order = SyncOrder::new(4);
        let (one, two) = (order.start(), order.start());
        order.end(two);
        order.hold(2);
        assert_eq!(order.release(), None, "the first sync may report the error");
        let three = order.start();
        order.end(one);
        order.hold(1);
        assert_eq!(order.release(), Some(2));
        assert_eq!(order.release(), None, "the third one overlaps the first");
        order.end(three);
        order.hold(3);
        assert_eq!((order.release(), order.release()), (Some(1), Some(3)));
        assert_eq!(order.release(), None);
    }
}
