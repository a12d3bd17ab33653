//! A wrapper that delays the completions of a device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactors::{Clock, Nanos};

use block::{
    Completion, CompletionBatch, Device, DeviceIdentity, DeviceQueue, Drain, ErrorRecord, Geometry,
    Health, OpenError, QUEUE_DEPTH_MAX, QueueOptions, Refusal, ReopenError, Request,
};
use reactors::sim::Seeded;

/// Delay added to each completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// A constant. Zero makes the wrapper transparent.
    Fixed(Nanos),
    /// A random delay from `min` to `max`, both included, by seed: completions overtake each other.
    Range {
        /// Minimum.
        min: Nanos,
        /// Maximum.
        max: Nanos,
    },
}

impl Latency {
    fn draw(self, seeded: &mut Seeded) -> Nanos {
        match self {
            Self::Fixed(latency) => latency,
            Self::Range { min, max } => {
                let span = max.saturating_sub(min).as_nanos().saturating_add(1);
                min + Nanos(seeded.below(span))
            }
        }
    }
}

type ClockMaker = dyn Fn() -> Box<dyn Clock> + Send + Sync;

/// Wraps a device and delays each of its completions.
pub struct DelayDevice {
    inner: Arc<dyn Device>,
    latency: Latency,
    seed: u64,
    queues_opened: AtomicU64,
    clock: Box<ClockMaker>,
}

impl DelayDevice {
    /// Adds `latency` to the completions of `inner`. `clock` creates the clock of each queue, on
    /// the queue's own thread.
    pub fn new<C: Clock + 'static>(
        inner: Arc<dyn Device>,
        latency: Latency,
        seed: u64,
        clock: impl Fn() -> C + Send + Sync + 'static,
    ) -> Self {
        let clock = Box::new(move || Box::new(clock()) as Box<dyn Clock>);
        Self {
            inner,
            latency,
            seed,
            queues_opened: AtomicU64::new(0),
            clock,
        }
    }
}

impl Device for DelayDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> &DeviceIdentity {
        self.inner.identity()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn error_log(&self, records: &mut Vec<ErrorRecord>) {
        self.inner.error_log(records);
    }

    fn reopen(&self) -> Result<(), ReopenError> {
        self.inner.reopen()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        let depth = options.depth;
        if !(1..=QUEUE_DEPTH_MAX).contains(&depth) {
            let max = QUEUE_DEPTH_MAX;
            return Err(OpenError::Depth { depth, max });
        }
        let inner = self.inner.open_queue(options)?;
        let stream = self.queues_opened.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(DelayQueue {
            inner,
            held: Vec::with_capacity(depth),
            depth,
            closing: false,
            latency: self.latency,
            seeded: Seeded::new(self.seed, stream),
            clock: (self.clock)(),
        }))
    }
}

struct DelayQueue {
    inner: Box<dyn DeviceQueue>,
    /// Completions with their due times, in the order in which the device delivered them.
    held: Vec<(Nanos, Completion)>,
    depth: usize,
    closing: bool,
    latency: Latency,
    seeded: Seeded,
    clock: Box<dyn Clock>,
}

impl DelayQueue {
    fn collect(&mut self, now: Nanos) {
        let mut batch = CompletionBatch::new();
        while self.inner.poll(&mut batch) > 0 {
            for completion in batch.drain(..) {
                let due = now + self.latency.draw(&mut self.seeded);
                self.held.push((due, completion));
            }
        }
    }
}

impl DeviceQueue for DelayQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        self.inner.can_borrow_read(lba, blocks)
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        // The inner queue does not count the delayed completions, so the depth is checked here.
        if !self.closing && self.in_flight() >= self.depth {
            return Err(Refusal::Later(request));
        }
        self.inner.submit(request)
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        self.inner.give_up(is_unwanted);
    }

    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        self.inner.abandon(is_overdue);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let now = self.clock.now();
        self.collect(now);
        let before = completions.len();
        let mut index = 0;
        while index < self.held.len() && !completions.is_full() {
            if self.held[index].0 <= now {
                completions.push(self.held.remove(index).1);
            } else {
                index += 1;
            }
        }
        completions.len() - before
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_source()
    }

    fn has_ready(&self) -> bool {
        // No descriptor signals that a delay has ended.
        !self.held.is_empty() || self.inner.has_ready()
    }

    fn prepare_sleep(&mut self) -> bool {
        !self.has_ready() && self.inner.prepare_sleep()
    }

    fn drain(&mut self) -> Drain {
        self.closing = true;
        // Also continues the inner queue's drain; this queue still has to deliver the delayed
        // completions.
        let _ = self.inner.drain();
        match self.in_flight() {
            0 => Drain::Done,
            left => Drain::Outstanding(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use hugemem::{Arena, ArenaConfig, PagePolicy};

    use super::*;
    use block::Operation;
    use block::{NullDevice, NullOptions};

    thread_local! {
        static NOW: Rc<Cell<Nanos>> = Rc::default();
    }

    struct ManualClock(Rc<Cell<Nanos>>);

    impl Clock for ManualClock {
        fn now(&self) -> Nanos {
            self.0.get()
        }
    }

    fn queue(latency: Latency, seed: u64) -> Box<dyn DeviceQueue> {
        NOW.with(|now| now.set(Nanos::ZERO));
        let options = NullOptions {
            name: "null".into(),
            uuid: [0; 16],
            size_bytes: 1 << 30,
            block_size: 512,
        };
        let inner = Arc::new(NullDevice::new(options).unwrap());
        let device = DelayDevice::new(inner, latency, seed, || ManualClock(NOW.with(Rc::clone)));
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        let pool = Arena::new(config).unwrap().pool(0);
        device.open_queue(QueueOptions::new(0, 32, pool)).unwrap()
    }

    /// Time in microseconds and tag of each completion, in the order of arrival.
    fn arrivals(latency: Latency, seed: u64) -> Vec<(u64, u64)> {
        let mut queue = queue(latency, seed);
        for tag in 0..32 {
            let request = Request {
                tag,
                operation: Operation::Flush,
                lba: 0,
                blocks: 0,
                data: None,
            };
            queue.submit(request).unwrap();
        }
        let mut arrivals = Vec::new();
        for micros in 0..200 {
            NOW.with(|now| now.set(Nanos::from_micros(micros)));
            let mut batch = CompletionBatch::new();
            queue.poll(&mut batch);
            arrivals.extend(batch.iter().map(|completion| (micros, completion.tag)));
            assert_eq!(queue.in_flight(), 32 - arrivals.len());
            assert_eq!(queue.has_ready(), arrivals.len() < 32);
        }
        assert_eq!(arrivals.len(), 32);
        arrivals
    }

    #[test]
    fn fixed_latency_preserves_order() {
        let latency = Latency::Fixed(Nanos::from_micros(50));
        let expected: Vec<(u64, u64)> = (0..32).map(|tag| (50, tag)).collect();
        assert_eq!(arrivals(latency, 1), expected);
    }

    #[test]
    fn latency_range_is_respected_and_reproducible() {
        let (min, max) = (Nanos::from_micros(20), Nanos::from_micros(120));
        let first = arrivals(Latency::Range { min, max }, 1);
        assert!(
            first
                .iter()
                .all(|&(micros, _)| (20..=120).contains(&micros))
        );
        assert!(
            !first.is_sorted_by_key(|&(_, tag)| tag),
            "none overtook another"
        );
        assert_eq!(first, arrivals(Latency::Range { min, max }, 1));
        assert_ne!(first, arrivals(Latency::Range { min, max }, 2));
    }

    #[test]
    fn full_delay_queue_refuses_and_counts_outstanding() {
        let mut queue = queue(Latency::Fixed(Nanos::MAX), 1);
        let request = |tag| Request {
            tag,
            operation: Operation::Flush,
            lba: 0,
            blocks: 0,
            data: None,
        };
        for tag in 0..32 {
            queue.submit(request(tag)).unwrap();
            queue.poll(&mut CompletionBatch::new());
        }
        assert!(matches!(queue.submit(request(32)), Err(Refusal::Later(_))));
        assert_eq!(queue.drain(), Drain::Outstanding(32));
    }
}
