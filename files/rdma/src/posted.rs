//! The work posted to a connection's send queue, and the memory that the device may still access.
//!
//! Rule for releasing memory: work requests of one send queue complete in order, so the completion
//! of a group's last request completes the group and all earlier ones. Only this, or the destruction
//! of the queue pair, releases memory.

use std::collections::VecDeque;

use bitfield_struct::bitfield;
use files_service::JobKey;
use hugemem::{Data, DmaData, DmaDriver, Lease};
use rdma::{QueuePair, WorkCompletion};
use reactors::Nanos;

/// The owner of posted memory.
#[derive(Debug)]
pub(crate) enum FilesDma {}

impl DmaDriver for FilesDma {
    type Done = WorkDone;
}

/// Proof that no posted work request refers to the memory. Created only in this file.
pub(crate) struct WorkDone(());

/// Proof that the device has destroyed a queue pair.
pub(crate) struct QueueDestroyed(());

impl QueueDestroyed {
    /// Destroys a queue pair.
    pub(crate) fn of(queue_pair: &mut impl QueuePair) -> Result<Self, rdma::Error> {
        queue_pair.destroy().map(|()| Self(()))
    }
}

/// Identifies a work request.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(crate) struct WorkId {
    /// The number of the group of a send queue, or of the receive.
    #[bits(32)]
    pub(crate) number: u32,
    /// The place of the connection.
    #[bits(16)]
    pub(crate) place: u16,
    /// The low bits of the generation of the place.
    #[bits(15)]
    pub(crate) generation: u16,
    pub(crate) is_receive: bool,
}

/// The bits of a generation that a [`WorkId`] holds.
pub(crate) const GENERATION_MASK: u16 = (1 << 15) - 1;

/// What a group of work requests is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Writes data to the client and sends a reply from a send buffer.
    Reply {
        /// Bytes of memory that count for the connection.
        held_bytes: usize,
        /// The send buffer.
        buffer: u16,
    },
    /// Reads data of a WRITE.
    Fetch {
        /// The request.
        job: JobKey,
        /// The part of its data.
        piece: usize,
    },
    /// Reads a call, or an item of it.
    Pull {
        /// The call.
        call: u16,
    },
}

/// Work requests that were posted together.
#[derive(Debug)]
struct Posted {
    number: u32,
    /// Entries of the send queue.
    requests: u32,
    at: Nanos,
    purpose: Purpose,
    memory: Vec<DmaData<FilesDma>>,
}

/// A group that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) purpose: Purpose,
    /// The lease that data were read into.
    pub(crate) lease: Option<Lease>,
}

/// The owner's record of a send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    posted: VecDeque<Posted>,
    next: u32,
    vacant: u32,
    /// Memory of groups that have ended.
    unused: Vec<Vec<DmaData<FilesDma>>>,
}

impl SendQueue {
    /// An empty queue of `entries` entries.
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            posted: VecDeque::with_capacity(entries as usize),
            next: 0,
            vacant: entries,
            unused: Vec::new(),
        }
    }

    /// Number of free entries.
    pub(crate) fn vacant(&self) -> usize {
        self.vacant as usize
    }

    /// Begins a group. Its requests carry the number that is returned.
    pub(crate) fn begin(&mut self, purpose: Purpose, now: Nanos) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.posted.push_back(Posted {
            number,
            requests: 0,
            at: now,
            purpose,
            memory: self.unused.pop().unwrap_or_default(),
        });
        number
    }

    /// Keeps memory until the group that was begun last has ended. Returns its index.
    pub(crate) fn keep(&mut self, data: Data) -> usize {
        let last = self.posted.back_mut().expect("a group was begun");
        last.memory.push(data.into_dma());
        last.memory.len() - 1
    }

    /// Memory of the group that was begun last.
    pub(crate) fn memory(&self, index: usize) -> Option<&DmaData<FilesDma>> {
        self.posted.back()?.memory.get(index)
    }

    /// Counts a request of the group that was begun last.
    ///
    /// # Panics
    /// The queue is full. The caller checks that first.
    pub(crate) fn count(&mut self) {
        let vacant = self.vacant.checked_sub(1);
        self.vacant = vacant.expect("a group has as many entries as were checked");
        if let Some(last) = self.posted.back_mut() {
            last.requests += 1;
        }
    }

    /// The next group that the completion of a group's last request ends. Call until `None`.
    pub(crate) fn end_next(&mut self, completion: &WorkCompletion) -> Option<Ended> {
        let number = WorkId::from_bits(completion.wr_id).number();
        let first = self.posted.front()?;
        // A stale number ends nothing.
        let ahead = number.wrapping_sub(first.number);
        match (ahead as usize) < self.posted.len() {
            true => self.end_first(&WorkDone(())),
            false => None,
        }
    }

    /// The next group, which the destruction of the queue pair has ended. Call until `None`.
    pub(crate) fn destroyed(&mut self, _proof: &QueueDestroyed) -> Option<Ended> {
        self.end_first(&WorkDone(()))
    }

    fn end_first(&mut self, done: &WorkDone) -> Option<Ended> {
        let Posted {
            requests,
            purpose,
            mut memory,
            ..
        } = self.posted.pop_front()?;
        self.vacant += requests;
        let mut lease = None;
        for data in memory.drain(..) {
            match (data.returned(done), purpose) {
                (_, Purpose::Reply { .. }) | (Data::Borrow(_), _) => {}
                (Data::Lease(it), _) => lease = Some(it),
            }
        }
        self.unused.push(memory);
        Some(Ended { purpose, lease })
    }

    /// The requests and parts whose data are being read.
    pub(crate) fn fetches(&self) -> impl Iterator<Item = (JobKey, usize)> {
        self.posted.iter().filter_map(|it| match it.purpose {
            Purpose::Fetch { job, piece } => Some((job, piece)),
            Purpose::Reply { .. } | Purpose::Pull { .. } => None,
        })
    }

    /// Age of the oldest group.
    pub(crate) fn oldest_age(&self, now: Nanos) -> Option<Nanos> {
        let oldest = self.posted.front()?;
        Some(Nanos(now.0.saturating_sub(oldest.at.0)))
    }

    /// Whether a group borrows blocks that a writer waits for.
    pub(crate) fn delays_writer(&self) -> bool {
        let memory = self.posted.iter().flat_map(|it| &it.memory);
        let mut borrows = memory.filter_map(|it| match it {
            DmaData::Borrow(borrow) => Some(borrow),
            DmaData::Lease(_) => None,
        });
        borrows.any(hugemem::DmaBorrow::is_awaited)
    }
}

#[cfg(test)]
mod tests {
    use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};

    use super::*;

    fn pool() -> Pool {
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        Arena::new(config).expect("memory").pool(0)
    }

    /// Number of free leases.
    fn free(pool: &Pool) -> usize {
        let all: Vec<Lease> = std::iter::from_fn(|| pool.take(4096)).collect();
        all.len()
    }

    fn reply() -> Purpose {
        Purpose::Reply {
            held_bytes: 0,
            buffer: 0,
        }
    }

    fn completion(number: u32) -> WorkCompletion {
        WorkCompletion {
            wr_id: WorkId::new().with_number(number).into_bits(),
            ..WorkCompletion::default()
        }
    }

    #[test]
    fn a_completion_ends_its_group_and_earlier_ones_across_wraparound() {
        let mut queue = SendQueue::new(8);
        queue.next = u32::MAX;
        let numbers = [(); 3].map(|()| {
            let number = queue.begin(reply(), Nanos::ZERO);
            queue.count();
            queue.count();
            number
        });
        assert_eq!((numbers, queue.vacant()), ([u32::MAX, 0, 1], 2));
        // Numbers that were not given out, and later ones that have ended, end nothing.
        assert!(queue.end_next(&completion(2)).is_none());
        assert!(queue.end_next(&completion(u32::MAX - 1)).is_none());
        assert!(queue.end_next(&completion(0)).is_some());
        assert!(queue.end_next(&completion(0)).is_some());
        assert!(queue.end_next(&completion(0)).is_none());
        assert_eq!(queue.vacant(), 6);
    }

    #[test]
    fn memory_is_released_at_the_end_of_its_group_only() {
        let pool = pool();
        let all = free(&pool);
        let mut queue = SendQueue::new(8);
        for purpose in [reply(), Purpose::Pull { call: 3 }] {
            queue.begin(purpose, Nanos::ZERO);
            let lease = pool.take(4096).expect("memory");
            assert_eq!(queue.keep(Data::Lease(lease)), 0);
        }
        assert_eq!(free(&pool), all - 2);
        let ended = queue.end_next(&completion(0)).expect("one");
        assert!(ended.lease.is_none());
        assert_eq!(free(&pool), all - 1);
        let ended = queue.destroyed(&QueueDestroyed(())).expect("one");
        assert_eq!(ended.purpose, Purpose::Pull { call: 3 });
        drop(ended.lease.expect("data were read into it"));
        assert_eq!(free(&pool), all);
    }

    #[test]
    fn memory_of_a_queue_that_was_not_destroyed_is_not_used_again() {
        let pool = pool();
        let mut queue = SendQueue::new(8);
        queue.begin(reply(), Nanos::ZERO);
        let before = free(&pool);
        let lease = pool.take(4096).expect("memory");
        queue.keep(Data::Lease(lease));
        drop(queue);
        assert_eq!(free(&pool), before - 1);
    }

    #[test]
    #[should_panic(expected = "as many entries as were checked")]
    fn exceeding_the_queue_panics() {
        let mut queue = SendQueue::new(1);
        queue.begin(reply(), Nanos::ZERO);
        queue.count();
        queue.count();
    }
}
