//! A device that answers later than it could.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactors::{Clock, Nanos};

use crate::device::{Device, DeviceIdentity, DeviceQueue, Drain, Geometry, QueueOptions};
use crate::error::OpenError;
use crate::health::Health;
use crate::ledger::check_depth;
use crate::request::{Completion, CompletionBatch, Refusal, Request};
use crate::seeded::Seeded;

/// What is added to each completion's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// Always the same. Zero makes the wrapper transparent.
    Fixed(Nanos),
    /// Anything from `min` to `max`, both included, by seed: completions overtake each other.
    Range {
        /// The least.
        min: Nanos,
        /// The most.
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

/// Wraps a device and holds each completion back for some time after the device gave it.
pub struct DelayDevice {
    inner: Arc<dyn Device>,
    latency: Latency,
    seed: u64,
    queues_opened: AtomicU64,
    clock: Box<ClockMaker>,
}

impl DelayDevice {
    /// Adds `latency` to the completions of `inner`. `clock` makes the clock of each queue, on the
    /// queue's own thread.
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

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        let depth = options.depth;
        check_depth(depth)?;
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
    /// Completions and when they are due, in the order in which the device gave them.
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
    fn lends_reads(&self) -> bool {
        self.inner.lends_reads()
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        // The inner queue forgets what it has delivered, so the depth is counted here.
        if !self.closing && self.in_flight() >= self.depth {
            return Err(Refusal::Later(request));
        }
        self.inner.submit(request)
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
        // No descriptor tells of the clock.
        !self.held.is_empty() || self.inner.has_ready()
    }

    fn drain(&mut self) -> Drain {
        self.closing = true;
        // Continues the inner queue's closing too; what it has delivered is still to come from here.
        let _ = self.inner.drain();
        match self.in_flight() {
            0 => Drain::Done,
            left => Drain::Outstanding(left),
        }
    }
}
