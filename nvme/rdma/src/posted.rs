//! What is posted to a connection's send queue, and what of ours the device may still touch.
//!
//! The rule by which leases and loans come home: work requests of one send queue end in order, so a
//! completion of any of them ends all that were posted before it, signalled or not. What was posted
//! together is done with the completion of its last work request, whatever its status, or of any
//! later one. Nothing else frees it but the queue pair's own end. So only the last answer of a turn
//! has to be signalled, and nothing is given back on a guess.

use std::collections::VecDeque;

use hugemem::Data;

/// What was posted together.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Places in the send queue.
    pub(crate) requests: u32,
    pub(crate) kind: PostedKind,
}

/// What it does.
#[derive(Debug)]
pub(crate) enum PostedKind {
    /// Writes data to the host, and sends the response.
    Answer {
        /// Kept until the device is done with it.
        #[expect(dead_code, reason = "held, not looked at")]
        data: Option<Data>,
    },
    /// Reads some of the host's data into the lease of a slot.
    Read {
        /// The slot.
        slot: u16,
    },
    /// Reads the data of the Connect command.
    Connect,
}

/// A send queue as its owner knows it. Its storage is taken once.
#[derive(Debug)]
pub(crate) struct SendQueue {
    posted: VecDeque<Posted>,
    /// Sequence number of the first of them.
    first: u32,
    capacity: u32,
    vacant: u32,
}

impl SendQueue {
    /// An empty queue of `capacity` places.
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            posted: VecDeque::with_capacity(capacity as usize),
            first: 0,
            capacity,
            vacant: capacity,
        }
    }

    /// Places that are free.
    #[inline]
    pub(crate) fn vacant(&self) -> u32 {
        self.vacant
    }

    /// Places there are.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Sequence number of what is posted next.
    #[inline]
    pub(crate) fn next_sequence(&self) -> u32 {
        self.first.wrapping_add(self.posted.len() as u32)
    }

    /// Notes what has been posted with [`next_sequence`](Self::next_sequence).
    ///
    /// # Panics
    /// When there are not so many places: the caller looks first.
    #[inline(always)]
    pub(crate) fn push(&mut self, requests: u32, kind: PostedKind) {
        self.vacant = self
            .vacant
            .checked_sub(requests)
            .unwrap_or_else(|| panic!("{requests} work requests for fewer places"));
        self.posted.push_back(Posted { requests, kind });
    }

    /// The next of what a completion ends: all before `sequence`, and with `last` that itself. Call
    /// until `None`. A number of something long done ends nothing.
    #[inline]
    pub(crate) fn pop_done(&mut self, sequence: u32, last: bool) -> Option<Posted> {
        let ahead = sequence.wrapping_sub(self.first);
        let known = (ahead as usize) < self.posted.len();
        if !known || (ahead == 0 && !last) {
            return None;
        }
        let posted = self.posted.pop_front()?;
        self.first = self.first.wrapping_add(1);
        self.vacant += posted.requests;
        Some(posted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(entries: u16) -> SendQueue {
        let mut queue = SendQueue::new(64);
        queue.first = u32::MAX - 1;
        for slot in 0..entries {
            queue.push(2, PostedKind::Read { slot });
        }
        queue
    }

    fn done(queue: &mut SendQueue, sequence: u32, last: bool) -> Vec<u16> {
        std::iter::from_fn(|| queue.pop_done(sequence, last))
            .map(|posted| match posted.kind {
                PostedKind::Read { slot } => slot,
                PostedKind::Answer { .. } | PostedKind::Connect => unreachable!(),
            })
            .collect()
    }

    #[test]
    fn a_completion_ends_what_came_before_it_across_the_end_of_numbers() {
        let mut queue = queue(5);
        assert_eq!(queue.vacant(), 54);
        assert_eq!(done(&mut queue, 0, true), vec![0, 1, 2]);
        assert_eq!(queue.vacant(), 60);
        assert_eq!(queue.next_sequence(), 3);
    }

    #[test]
    fn what_failed_before_its_last_request_stays() {
        let mut queue = queue(3);
        assert_eq!(done(&mut queue, u32::MAX, false), vec![0]);
        assert_eq!(done(&mut queue, u32::MAX, false), vec![]);
        assert_eq!(done(&mut queue, u32::MAX, true), vec![1]);
    }

    #[test]
    fn strange_numbers_end_nothing() {
        let mut queue = queue(3);
        for sequence in [u32::MAX - 2, 1, 100, 1 << 31] {
            assert_eq!(done(&mut queue, sequence, true), vec![], "{sequence}");
        }
        assert_eq!(done(&mut queue, 0, true), vec![0, 1, 2]);
        assert_eq!(done(&mut queue, 0, true), vec![]);
    }
}
