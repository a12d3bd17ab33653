//! The work posted to a connection's send queue, and the memory that the device may still access.
//!
//! Rule for releasing leases and borrows: work requests of one send queue complete in order, so the
//! completion of any of them completes all that were posted before it, signalled or not. Work
//! posted together is done with the completion of its last work request, whatever its status, or of
//! any later one. Only this, or the destruction of the queue pair, releases memory. Therefore only
//! the last response of a turn must be signalled.

use hugemem::{DmaData, DmaDriver, DmaLease, Lease};
use rdma::{QueuePair, SharedReceiveQueue, WorkCompletion};
use reactors::Nanos;

/// The owner of posted memory.
#[derive(Debug)]
pub(crate) enum TargetDma {}

impl DmaDriver for TargetDma {
    type Done = WorkDone;
}

/// Proof that no posted work request refers to the memory. Created only in this file.
pub(crate) struct WorkDone(());

/// Proof that the device has destroyed a queue pair or a shared receive queue.
pub(crate) struct QueueDestroyed(());

impl QueueDestroyed {
    /// Destroys a queue pair.
    pub(crate) fn queue_pair(queue: &mut impl QueuePair) -> Result<Self, rdma::Error> {
        queue.destroy().map(|()| Self(()))
    }

    /// Destroys a shared receive queue.
    pub(crate) fn receives(queue: &mut impl SharedReceiveQueue) -> Result<Self, rdma::Error> {
        queue.destroy().map(|()| Self(()))
    }
}

/// A lease into which the host's data is read.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    lease: Option<DmaLease<TargetDma>>,
    /// Groups of posted reads that have not completed.
    outstanding: u8,
}

impl ReadBuffer {
    /// A lease without posted reads.
    pub(crate) fn new(lease: Lease) -> Self {
        Self {
            lease: Some(lease.into_dma()),
            outstanding: 0,
        }
    }

    /// No lease: the data is read into memory of a device.
    pub(crate) fn without_lease() -> Self {
        Self {
            lease: None,
            outstanding: 0,
        }
    }

    /// The memory for reads.
    pub(crate) fn memory(&self) -> Option<&DmaLease<TargetDma>> {
        self.lease.as_ref()
    }

    /// Bytes of the lease.
    pub(crate) fn len(&self) -> usize {
        self.lease.as_ref().map_or(0, DmaLease::len)
    }

    /// Records a group of reads that was posted.
    pub(crate) fn begin(&mut self) {
        self.outstanding += 1;
    }

    /// Records that a group of reads completed or was flushed. Returns whether none is left.
    pub(crate) fn end(&mut self) -> bool {
        debug_assert!(self.outstanding > 0, "what ended was posted");
        self.outstanding -= 1;
        self.outstanding == 0
    }

    /// The lease, once no read is outstanding.
    pub(crate) fn take(&mut self) -> Option<Lease> {
        if self.outstanding > 0 {
            return None;
        }
        let lease = self.lease.take()?;
        Some(lease.returned(&WorkDone(())))
    }

    /// Its queue pair was destroyed, so no read is outstanding.
    pub(crate) fn queue_destroyed(&mut self, _proof: &QueueDestroyed) {
        self.outstanding = 0;
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        // A lease that a read may still write to is never reused.
        drop(self.take());
    }
}

/// The lease of a receive, posted or not.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    lease: DmaLease<TargetDma>,
}

impl ReceiveBuffer {
    pub(crate) fn new(lease: Lease) -> Self {
        Self {
            lease: lease.into_dma(),
        }
    }

    pub(crate) fn memory(&self) -> &DmaLease<TargetDma> {
        &self.lease
    }

    /// The lease of a receive that has completed and was not posted again.
    pub(crate) fn completed(self, _receive: &CompletedReceive) -> Lease {
        self.lease.returned(&WorkDone(()))
    }

    /// The lease after the shared receive queue was destroyed.
    pub(crate) fn queue_destroyed(self, _proof: &QueueDestroyed) -> Lease {
        self.lease.returned(&WorkDone(()))
    }
}

/// Proof that a receive has completed and was not posted again. Created from its completion,
/// consumed by posting it again.
#[derive(Debug)]
pub(crate) struct CompletedReceive(u16);

impl CompletedReceive {
    /// The receive of that number, of which this is the completion.
    pub(crate) fn of(_completion: &WorkCompletion, index: u16) -> Self {
        Self(index)
    }

    pub(crate) fn index(&self) -> u16 {
        self.0
    }
}

/// A coarse clock of posts: units of 2^20 ns, about a millisecond. It wraps after 52 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PostTick(u32);

impl PostTick {
    const SHIFT: u32 = 20;

    #[inline(always)]
    fn at(now: Nanos) -> Self {
        Self((now.0 >> Self::SHIFT) as u32)
    }

    /// Time since `self`, at most one unit too short.
    fn age(self, now: Nanos) -> Nanos {
        let units = Self::at(now).0.wrapping_sub(self.0);
        Nanos(u64::from(units.saturating_sub(1)) << Self::SHIFT)
    }
}

/// Work requests that were posted together.
#[derive(Debug)]
struct Posted {
    /// The data of a response, kept until the device no longer accesses it.
    data: Option<DmaData<TargetDma>>,
    /// Entries of the send queue.
    requests: u32,
    posted_at: PostTick,
    kind: PostedKind,
}

/// The purpose of posted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostedKind {
    /// Writes data to the host and sends the response.
    Response,
    /// The same with data in memory of a device.
    ResponseInDevice {
        /// The place of that memory in the connection's table.
        place: u8,
    },
    /// Reads data of the host into the lease of a slot.
    Read {
        /// The slot.
        slot: u16,
        /// Number of reads.
        requests: u8,
    },
    /// Reads the data of the Connect command.
    Connect,
}

/// The owner's record of a send queue. Its storage is allocated once.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Indexed by sequence number modulo its length, a power of two that is at least the capacity.
    posted: Box<[Posted]>,
    /// Its length minus one.
    mask: u32,
    /// Sequence number of the first outstanding post.
    first: u32,
    /// Sequence number of the next post.
    next: u32,
    capacity: u32,
    vacant: u32,
}

impl SendQueue {
    /// An empty queue of `capacity` entries.
    pub(crate) fn new(capacity: u32) -> Self {
        let unused = || Posted {
            data: None,
            requests: 0,
            posted_at: PostTick(0),
            kind: PostedKind::Response,
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

    /// Number of free entries.
    #[inline]
    pub(crate) fn vacant(&self) -> u32 {
        self.vacant
    }

    /// Number of entries.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes of its own storage.
    pub(crate) fn own_bytes(&self) -> usize {
        size_of_val(&*self.posted)
    }

    /// Bytes of the leases of outstanding posts.
    pub(crate) fn leased_bytes(&self) -> usize {
        let leases = self.posted.iter().map(|posted| match &posted.data {
            Some(DmaData::Lease(lease)) => lease.len(),
            Some(DmaData::Borrow(_)) | None => 0,
        });
        leases.sum()
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.next
    }

    /// Sequence number of the next post.
    #[inline]
    pub(crate) fn next_sequence(&self) -> u32 {
        self.next
    }

    /// Records work that was posted with [`next_sequence`](Self::next_sequence), and keeps its
    /// data.
    ///
    /// # Panics
    /// If the queue does not have as many free entries. The caller checks that first.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        requests: u32,
        kind: PostedKind,
        data: Option<DmaData<TargetDma>>,
        now: Nanos,
    ) {
        debug_assert!(requests > 0, "what takes no place cannot be counted");
        let Some(vacant) = self.vacant.checked_sub(requests) else {
            panic!("more work requests than places");
        };
        let posted = &mut self.posted[(self.next & self.mask) as usize];
        let before = std::mem::replace(&mut posted.data, data);
        debug_assert!(before.is_none(), "a place is used again before its end");
        // The place is empty. If it were not, posted memory must not be released.
        std::mem::forget(before);
        posted.requests = requests;
        posted.posted_at = PostTick::at(now);
        posted.kind = kind;
        self.vacant = vacant;
        self.next = self.next.wrapping_add(1);
    }

    /// Age of the oldest outstanding post.
    pub(crate) fn oldest_age(&self, now: Nanos) -> Option<Nanos> {
        let oldest = &self.posted[(self.first & self.mask) as usize];
        (!self.is_empty()).then(|| oldest.posted_at.age(now))
    }

    /// Whether a post that is at least `age` old borrows blocks that a writer waits for. Checks
    /// every outstanding post, so it is only for connections without progress.
    pub(crate) fn delays_writer(&self, age: Nanos, now: Nanos) -> bool {
        let outstanding = self.next.wrapping_sub(self.first);
        (0..outstanding)
            .map(|ahead| &self.posted[(self.first.wrapping_add(ahead) & self.mask) as usize])
            // Posts are in order of age, so the first younger one ends the search.
            .take_while(|posted| posted.posted_at.age(now) >= age)
            .any(|posted| matches!(&posted.data, Some(DmaData::Borrow(it)) if it.is_awaited()))
    }

    /// Takes the next post that a completion ends: all posts before `sequence`, and with `last`
    /// also `sequence`. Releases its data. Call until `None`. A stale number ends nothing.
    #[inline(always)]
    pub(crate) fn end_next(&mut self, sequence: u32, last: bool) -> Option<PostedKind> {
        let ahead = sequence.wrapping_sub(self.first);
        let known = ahead < self.next.wrapping_sub(self.first);
        if !known || (ahead == 0 && !last) {
            return None;
        }
        let posted = &mut self.posted[(self.first & self.mask) as usize];
        self.first = self.first.wrapping_add(1);
        DmaData::drop_after_completion(&mut posted.data, &WorkDone(()));
        self.vacant += posted.requests;
        Some(posted.kind)
    }
}

impl SendQueue {
    /// Releases the memory of all outstanding posts.
    pub(crate) fn queue_destroyed(&mut self, _proof: &QueueDestroyed) {
        for posted in &mut self.posted {
            if let Some(data) = posted.data.take() {
                drop(data.returned(&WorkDone(())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hugemem::{Arena, ArenaConfig, Data, Lease, PagePolicy};

    use super::*;

    fn queue(entries: u16) -> SendQueue {
        let mut queue = SendQueue::new(64);
        (queue.first, queue.next) = (u32::MAX - 1, u32::MAX - 1);
        for slot in 0..entries {
            queue.push(2, PostedKind::Read { slot, requests: 2 }, None, Nanos::ZERO);
        }
        queue
    }

    fn done(queue: &mut SendQueue, sequence: u32, last: bool) -> Vec<u16> {
        std::iter::from_fn(|| queue.end_next(sequence, last))
            .map(|kind| match kind {
                PostedKind::Read { slot, .. } => slot,
                PostedKind::Response
                | PostedKind::ResponseInDevice { .. }
                | PostedKind::Connect => unreachable!(),
            })
            .collect()
    }

    #[test]
    fn a_completion_ends_earlier_posts_across_sequence_wraparound() {
        let mut queue = queue(5);
        assert_eq!(queue.vacant(), 54);
        assert_eq!(done(&mut queue, 0, true), vec![0, 1, 2]);
        assert_eq!(queue.vacant(), 60);
        assert_eq!(queue.next_sequence(), 3);
    }

    #[test]
    fn a_failure_before_the_last_request_completes_nothing() {
        let mut queue = queue(3);
        assert_eq!(done(&mut queue, u32::MAX, false), vec![0]);
        assert_eq!(done(&mut queue, u32::MAX, false), vec![]);
        assert_eq!(done(&mut queue, u32::MAX, true), vec![1]);
    }

    #[test]
    fn data_is_released_when_its_response_completes() {
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
            queue.push(
                2,
                PostedKind::Response,
                Some(Data::Lease(lease).into_dma()),
                Nanos::ZERO,
            );
        }
        assert!(take_all().is_empty());
        while queue.end_next(2, true).is_some() {}
        assert_eq!(take_all().len(), 3);
        queue.queue_destroyed(&QueueDestroyed(()));
        assert_eq!(take_all().len(), 8);
    }

    #[test]
    fn data_of_an_undestroyed_queue_is_not_reused() {
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        let pool = Arena::new(config).expect("memory").pool(0);
        let all: Vec<Lease> = std::iter::from_fn(|| pool.take(4096)).collect();
        let count = all.len();
        let mut queue = SendQueue::new(1024);
        for lease in all {
            let data = Data::Lease(lease).into_dma();
            queue.push(1, PostedKind::Response, Some(data), Nanos::ZERO);
        }
        assert_eq!(queue.end_next(0, true), Some(PostedKind::Response));
        drop(queue);
        let left: Vec<Lease> = std::iter::from_fn(|| pool.take(4096)).collect();
        assert_eq!((left.len(), count > 1), (1, true));
    }

    #[test]
    fn a_read_buffer_is_returned_after_its_last_read() {
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        let pool = Arena::new(config).expect("memory").pool(0);
        let mut buffer = ReadBuffer::new(pool.take(4096).expect("a lease"));
        buffer.begin();
        buffer.begin();
        assert!(!buffer.end());
        assert!(buffer.take().is_none());
        assert!(buffer.end());
        assert!(buffer.take().is_some());
    }

    #[test]
    #[should_panic(expected = "more work requests than places")]
    fn exceeding_the_send_queue_panics() {
        queue(33);
    }

    #[test]
    fn ages_are_those_of_the_oldest_outstanding_post() {
        let mut queue = SendQueue::new(8);
        assert_eq!(queue.oldest_age(Nanos::from_secs(1)), None);
        // The coarse clock wraps between the two times.
        let first = Nanos((1 << 52) - (1 << 20));
        let second = first.saturating_add(Nanos::from_millis(50));
        queue.push(1, PostedKind::Response, None, first);
        queue.push(1, PostedKind::Response, None, second);
        let now = first.saturating_add(Nanos::from_millis(100));
        let age = queue.oldest_age(now).expect("outstanding");
        assert!(age > Nanos::from_millis(97) && age <= Nanos::from_millis(100));
        assert_eq!(queue.end_next(0, true), Some(PostedKind::Response));
        let age = queue.oldest_age(now).expect("outstanding");
        assert!(age > Nanos::from_millis(47) && age <= Nanos::from_millis(50));
        assert_eq!(queue.end_next(1, true), Some(PostedKind::Response));
        assert_eq!(queue.oldest_age(now), None);
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
