//! A queue under observation: tracks the requests in flight and checks every result.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use block::{
    Completion, CompletionBatch, DeviceError, DeviceQueue, Drain, Geometry, Operation,
    QueueOptions, Refusal, Request, SharedQueues,
};
use hugemem::{Data, Lease, Pool};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Subject;

/// Time after which the suite treats a request as lost. Generous, because machines are shared.
const PATIENCE: Duration = Duration::from_secs(60);

/// Depth of a case's initial queue.
pub(super) const DEPTH: usize = 8;

pub(super) struct Harness {
    pub(super) pool: Pool,
    pub(super) geometry: Geometry,
    queue: Option<Box<dyn DeviceQueue>>,
    /// Objects that the queues of the case share, as those of a reactor do.
    shared: SharedQueues,
    /// Requests in flight, and whether each must return a lease.
    outstanding: HashMap<u64, bool>,
    next_tag: u64,
    taken_before: u64,
    pub(super) subject: Subject,
}

impl Harness {
    pub(super) fn new(subject: Subject) -> Self {
        let pool = subject.arena.pool(0);
        let taken_before = taken(&subject);
        let geometry = subject.device.geometry();
        let mut harness = Self {
            pool,
            geometry,
            queue: None,
            shared: SharedQueues::default(),
            outstanding: HashMap::new(),
            next_tag: 1 << 40,
            taken_before,
            subject,
        };
        harness.reopen(DEPTH);
        harness
    }

    pub(super) fn options(&self, depth: usize) -> QueueOptions {
        QueueOptions {
            shared: self.shared.clone(),
            ..QueueOptions::new(0, depth, self.pool.clone())
        }
    }

    /// Closes the queue and opens another one.
    pub(super) fn reopen(&mut self, depth: usize) {
        self.close();
        let options = self.options(depth);
        let queue = self.subject.device.open_queue(options).expect("a queue");
        assert_eq!(queue.in_flight(), 0);
        self.queue = Some(queue);
    }

    pub(super) fn queue(&mut self) -> &mut dyn DeviceQueue {
        self.queue.as_mut().expect("an open queue").as_mut()
    }

    /// Replaces the idle queue and returns it.
    pub(super) fn swap_queue(&mut self, queue: Box<dyn DeviceQueue>) -> Box<dyn DeviceQueue> {
        assert!(self.outstanding.is_empty());
        self.queue.replace(queue).expect("an open queue")
    }

    /// Drops the queue without draining it.
    pub(super) fn abandon(&mut self) {
        self.queue = None;
        self.outstanding.clear();
    }

    fn close(&mut self) {
        if self.queue.is_none() {
            return;
        }
        let deadline = Instant::now() + PATIENCE;
        while let Drain::Outstanding(left) = self.queue().drain() {
            assert_eq!(
                left,
                self.outstanding.len(),
                "drain counts what is in flight"
            );
            assert!(Instant::now() < deadline, "the queue does not drain");
            self.poll_or_sleep();
        }
        self.check_in_flight();
        assert!(
            self.outstanding.is_empty(),
            "drained with requests in flight"
        );
        self.queue = None;
    }

    /// Ends a case: checks that all leases have returned.
    pub(super) fn finish(mut self) {
        self.close();
        assert_eq!(
            taken(&self.subject),
            self.taken_before,
            "leases did not come home"
        );
    }

    /// Polls until the leases of a dropped queue have returned.
    pub(super) fn wait_for_leases(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.leases_taken() > 0 {
            assert!(Instant::now() < deadline, "a dropped queue keeps leases");
            let ended = self.poll(CompletionBatch::new().capacity());
            assert!(ended.is_empty(), "a completion of a dropped queue");
        }
    }

    pub(super) fn leases_taken(&self) -> u64 {
        taken(&self.subject) - self.taken_before
    }

    pub(super) fn bytes(&self, blocks: u32) -> usize {
        blocks as usize * self.geometry.block_size as usize
    }

    /// Maximum transfer of both device and pool, in blocks.
    pub(super) fn blocks_max(&self) -> u32 {
        let pool = self.pool.max_transfer() / self.geometry.block_size as usize;
        let device = u32::try_from(self.geometry.block_count).unwrap_or(u32::MAX);
        self.geometry
            .max_transfer_blocks
            .min(pool as u32)
            .min(device)
    }

    /// A lease with a copy of `data`.
    pub(super) fn lease(&self, data: &[u8]) -> Lease {
        let mut lease = self
            .pool
            .take(data.len())
            .expect("the suite's arena is large enough");
        lease.copy_from_slice(data);
        lease
    }

    pub(super) fn request(
        &mut self,
        operation: Operation,
        lba: u64,
        blocks: u32,
        data: Option<&[u8]>,
    ) -> Request {
        self.next_tag += 1;
        let data = data.map(|data| self.lease(data));
        Request {
            tag: self.next_tag,
            operation,
            lba,
            blocks,
            data,
        }
    }

    pub(super) fn try_submit(&mut self, request: Request) -> Result<u64, Refusal> {
        let (tag, has_lease) = (request.tag, request.data.is_some());
        let result = self.queue().submit(request);
        if result.is_ok() {
            assert!(self.outstanding.insert(tag, has_lease).is_none());
        }
        self.check_in_flight();
        result.map(|()| tag)
    }

    /// Submits a request that the device must take.
    pub(super) fn submit(
        &mut self,
        operation: Operation,
        lba: u64,
        blocks: u32,
        data: Option<&[u8]>,
    ) -> u64 {
        let request = self.request(operation, lba, blocks, data);
        self.try_submit(request)
            .unwrap_or_else(|refusal| panic!("refused: {refusal:?}"))
    }

    fn check_in_flight(&mut self) {
        let (counted, outstanding) = (self.queue().in_flight(), self.outstanding.len());
        assert_eq!(counted, outstanding, "in_flight is exact");
    }

    /// Ends a turn and polls once, with room for `room` completions.
    pub(super) fn poll(&mut self, room: usize) -> Vec<Completion> {
        (self.subject.step)();
        self.queue().flush();
        let mut batch = CompletionBatch::new();
        let fillers = batch.capacity() - room;
        for tag in 0..fillers as u64 {
            batch.push(Completion {
                tag,
                result: Ok(()),
                data: None,
            });
        }
        let count = self.queue().poll(&mut batch);
        assert_eq!(batch.len(), fillers + count, "poll returns how many came");
        let fresh: Vec<Completion> = batch.drain(fillers..).collect();
        for completion in &fresh {
            let has_lease = self.outstanding.remove(&completion.tag);
            let has_lease = has_lease.expect("a completion of a request in flight, once");
            match &completion.data {
                Some(Data::Lease(_)) => assert!(has_lease, "a lease that was never given"),
                Some(Data::Borrow(_)) => assert!(!has_lease && completion.result.is_ok()),
                None => assert!(!has_lease, "the lease did not come back"),
            }
        }
        self.check_in_flight();
        fresh
    }

    /// Polls; without completions, sleeps as a reactor does.
    pub(super) fn poll_or_sleep(&mut self) -> Vec<Completion> {
        let fresh = self.poll(CompletionBatch::new().capacity());
        if fresh.is_empty() && !self.outstanding.is_empty() && self.queue().prepare_sleep() {
            let Some(source) = self.queue.as_ref().and_then(|queue| queue.wake_source()) else {
                panic!("in flight, not ready, and nothing that wakes");
            };
            let mut polled = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
            let timeout = Timespec {
                tv_sec: PATIENCE.as_secs().cast_signed(),
                tv_nsec: 0,
            };
            let woken = rustix::event::poll(&mut polled, Some(&timeout)).expect("poll");
            assert_eq!(woken, 1, "the wake source does not wake");
        }
        fresh
    }

    /// Waits for one completion and drops the completions of other requests.
    pub(super) fn wait(&mut self, tag: u64) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let fresh = self.poll_or_sleep();
            if let Some(found) = fresh.into_iter().find(|completion| completion.tag == tag) {
                return found;
            }
            assert!(Instant::now() < deadline, "request {tag} does not complete");
        }
    }

    /// Waits until no request is in flight.
    pub(super) fn wait_all(&mut self) -> Vec<Completion> {
        let deadline = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        while !self.outstanding.is_empty() {
            all.extend(self.poll_or_sleep());
            assert!(Instant::now() < deadline, "requests do not complete");
        }
        all
    }

    /// Runs one request to completion.
    pub(super) fn run(
        &mut self,
        operation: Operation,
        lba: u64,
        blocks: u32,
        data: Option<&[u8]>,
    ) -> Completion {
        let tag = self.submit(operation, lba, blocks, data);
        self.wait(tag)
    }

    /// Runs one request that must succeed.
    pub(super) fn succeed(&mut self, operation: Operation, lba: u64, blocks: u32) {
        assert_eq!(
            self.run(operation, lba, blocks, None).result,
            Ok(()),
            "{operation:?}"
        );
    }

    pub(super) fn write(&mut self, lba: u64, data: &[u8]) {
        let blocks = (data.len() / self.geometry.block_size as usize) as u32;
        let completion = self.run(Operation::Write { fua: false }, lba, blocks, Some(data));
        assert_eq!(
            completion.result,
            Ok(()),
            "write of {blocks} blocks at {lba}"
        );
        assert_eq!(
            completion.data.as_deref(),
            Some(data),
            "a write leaves its data alone"
        );
    }

    pub(super) fn read(&mut self, lba: u64, blocks: u32) -> Vec<u8> {
        let garbage = vec![0xEE; self.bytes(blocks)];
        let completion = self.run(Operation::Read, lba, blocks, Some(&garbage));
        assert_eq!(
            completion.result,
            Ok(()),
            "read of {blocks} blocks at {lba}"
        );
        completion.data.expect("a read's lease").to_vec()
    }

    /// Submits a request that the device must refuse permanently, and checks that it is returned
    /// unchanged.
    pub(super) fn refused_for_good(
        &mut self,
        operation: Operation,
        lba: u64,
        blocks: u32,
        data: Option<&[u8]>,
    ) -> DeviceError {
        let request = self.request(operation, lba, blocks, data);
        let tag = request.tag;
        match self.try_submit(request) {
            Err(Refusal::Never(request, error)) => {
                check_intact(&request, tag, operation, (lba, blocks), data);
                error
            }
            other => panic!("{operation:?} of {blocks} blocks at {lba}: {other:?}"),
        }
    }
}

/// Checks that a returned request is unchanged.
pub(super) fn check_intact(
    request: &Request,
    tag: u64,
    operation: Operation,
    (lba, blocks): (u64, u32),
    data: Option<&[u8]>,
) {
    assert_eq!(request.tag, tag);
    assert_eq!(request.operation, operation);
    assert_eq!((request.lba, request.blocks), (lba, blocks));
    assert_eq!(request.data.as_deref(), data);
}

fn taken(subject: &Subject) -> u64 {
    subject
        .arena
        .counters()
        .classes
        .iter()
        .map(|class| class.taken)
        .sum()
}

/// Data that differs between blocks and between numbers.
pub(super) fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    let mut seeded = reactors::sim::Seeded::new(number, 0);
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&seeded.draw().to_le_bytes());
    }
    data.truncate(bytes);
    data
}
