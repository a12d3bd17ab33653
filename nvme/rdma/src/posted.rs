//! What is posted to a connection's send queue, and what of ours the device may still touch.
//!
//! The rule by which leases and loans come home: work requests of one send queue end in order, so a
//! completion of any of them ends all that were posted before it, signalled or not. What was posted
//! together is done with the completion of its last work request, whatever its status, or of any
//! later one. Nothing else frees it but the queue pair's own end. So only the last answer of a turn
//! has to be signalled, and nothing is given back on a guess.

use hugemem::Data;

/// What was posted together.
#[derive(Debug)]
struct Posted {
    /// What an answer sends, kept until the device is done with it.
    data: Option<Data>,
    /// Places in the send queue.
    requests: u32,
    kind: PostedKind,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostedKind {
    /// Writes data to the host, and sends the response.
    Answer,
    /// Reads some of the host's data into the lease of a slot.
    Read {
        /// The slot.
        slot: u16,
        /// Reads.
        requests: u8,
    },
    /// Reads the data of the Connect command.
    Connect,
}

/// A send queue as its owner knows it. Its storage is taken once.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// By sequence number, modulo their count: a power of two, and at least the capacity.
    posted: Box<[Posted]>,
    /// Their count less one.
    mask: u32,
    /// Sequence number of the first that is not done.
    first: u32,
    /// Sequence number of the next to be posted.
    next: u32,
    capacity: u32,
    vacant: u32,
}

impl SendQueue {
    /// An empty queue of `capacity` places.
    pub(crate) fn new(capacity: u32) -> Self {
        let unused = || Posted {
            data: None,
            requests: 0,
            kind: PostedKind::Answer,
        };
        let count = capacity.next_power_of_two();
        Self {
            posted: (0..count).map(|_| unused()).collect(),
            mask: count - 1,
            first: 0,
            next: 0,
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
        self.first == self.next
    }

    /// Sequence number of what is posted next.
    #[inline]
    pub(crate) fn next_sequence(&self) -> u32 {
        self.next
    }

    /// Notes what has been posted with [`next_sequence`](Self::next_sequence), and keeps its data.
    ///
    /// # Panics
    /// When there are not so many places: the caller looks first.
    #[inline(always)]
    pub(crate) fn push(&mut self, requests: u32, kind: PostedKind, data: Option<Data>) {
        debug_assert!(requests > 0, "what takes no place cannot be counted");
        assert!(self.vacant >= requests, "more work requests than places");
        let posted = &mut self.posted[(self.next & self.mask) as usize];
        assert!(
            posted.data.is_none(),
            "a place is used again before its end"
        );
        *posted = Posted {
            data,
            requests,
            kind,
        };
        self.vacant -= requests;
        self.next = self.next.wrapping_add(1);
    }

    /// The next of what a completion ends: all before `sequence`, and with `last` that itself. Call
    /// until `None`. A number of something long done ends nothing. Data that it kept goes home.
    #[inline(always)]
    pub(crate) fn end_next(&mut self, sequence: u32, last: bool) -> Option<PostedKind> {
        let ahead = sequence.wrapping_sub(self.first);
        let known = ahead < self.next.wrapping_sub(self.first);
        if !known || (ahead == 0 && !last) {
            return None;
        }
        let posted = &mut self.posted[(self.first & self.mask) as usize];
        self.first = self.first.wrapping_add(1);
        posted.data = None;
        self.vacant += posted.requests;
        Some(posted.kind)
    }
}

#[cfg(test)]
mod tests {
    use hugemem::{Arena, ArenaConfig, Lease, PagePolicy};

    use super::*;

    fn queue(entries: u16) -> SendQueue {
        let mut queue = SendQueue::new(64);
        (queue.first, queue.next) = (u32::MAX - 1, u32::MAX - 1);
        for slot in 0..entries {
            queue.push(2, PostedKind::Read { slot, requests: 2 }, None);
        }
        queue
    }

    fn done(queue: &mut SendQueue, sequence: u32, last: bool) -> Vec<u16> {
        std::iter::from_fn(|| queue.end_next(sequence, last))
            .map(|kind| match kind {
                PostedKind::Read { slot, .. } => slot,
                PostedKind::Answer | PostedKind::Connect => unreachable!(),
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
    fn data_goes_home_with_the_end_of_its_answer() {
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        let pool = Arena::new(config).expect("memory").pool(0);
        let take_all = || -> Vec<Lease> { std::iter::from_fn(|| pool.take(4096)).collect() };
        let mut queue = SendQueue::new(64);
        let mut all = take_all();
        for lease in all.split_off(all.len() - 8) {
            queue.push(2, PostedKind::Answer, Some(Data::Lease(lease)));
        }
        assert!(take_all().is_empty());
        while queue.end_next(2, true).is_some() {}
        assert_eq!(take_all().len(), 3);
        drop(queue);
        assert_eq!(take_all().len(), 8);
    }

    #[test]
    #[should_panic(expected = "more work requests than places")]
    fn more_than_there_is_room_for_is_our_own_mistake() {
        queue(33);
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
