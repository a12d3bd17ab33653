//! A device that fails on command: by pattern, by count or by seed.
//!
//! A [`FaultPlan`] is a list of rules; the first rule that matches a request and fires determines
//! the effect on it. The plan's `Debug` text and its seed reproduce a failure. Rules are fixed when
//! the device is created; [`FaultControl`] arms them, releases held completions and removes the
//! device while requests run, from any thread.

mod queue;

use std::ops::{BitOr, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::{
    Device, DeviceError, DeviceIdentity, DeviceQueue, ErrorRecord, Geometry, Health, HealthState,
    OpenError, Operation, QueueOptions, ReopenError, Request,
};
use reactors::sim::Seeded;

/// A set of operation kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationKinds(u8);

impl OperationKinds {
    /// Reads.
    pub const READ: Self = Self(1);
    /// Writes, with and without FUA.
    pub const WRITE: Self = Self(1 << 1);
    /// Flushes.
    pub const FLUSH: Self = Self(1 << 2);
    /// Write zeroes.
    pub const WRITE_ZEROES: Self = Self(1 << 3);
    /// Deallocations.
    pub const DEALLOCATE: Self = Self(1 << 4);
    /// Compares.
    pub const COMPARE: Self = Self(1 << 5);
    /// Every kind.
    pub const ALL: Self = Self((1 << 6) - 1);

    /// Whether the set contains the operation's kind.
    #[must_use]
    pub fn contains(self, operation: Operation) -> bool {
        let kind = match operation {
            Operation::Read => Self::READ,
            Operation::Write { .. } => Self::WRITE,
            Operation::Flush => Self::FLUSH,
            Operation::WriteZeroes { .. } => Self::WRITE_ZEROES,
            Operation::Deallocate => Self::DEALLOCATE,
            Operation::Compare => Self::COMPARE,
        };
        self.0 & kind.0 != 0
    }
}

impl BitOr for OperationKinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The matches on which a rule fires. A [`FaultPlan`] counts over all queues, and draws random
/// numbers from its seed and the queue's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All matches.
    Always,
    /// A single match, counted from 1.
    Nth(u64),
    /// The first n matches.
    First(u64),
    /// Every nth match, counted from 1; never for 0.
    Every(u64),
    /// A fraction of the matches in millionths, chosen by seed.
    PerMillion(u32),
}

impl When {
    /// Whether to fire on match number `count`. `below` draws a number below its argument.
    pub fn fires(self, count: u64, below: impl FnOnce(u64) -> u64) -> bool {
        match self {
            Self::Always => true,
            Self::Nth(nth) => count == nth,
            Self::First(first) => count <= first,
            Self::Every(every) => every > 0 && count.is_multiple_of(every),
            Self::PerMillion(share) => below(1_000_000) < u64::from(share),
        }
    }
}

/// The effect on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The request does not reach the device and completes with this error.
    Fail(DeviceError),
    /// The device executes the request; its completion is held until [`FaultControl::release`].
    Hold,
    /// The request is refused for now.
    Later,
    /// The device is removed: this request and all later ones are refused, those in flight end with
    /// [`DeviceError::Removed`].
    Remove,
}

/// One rule of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Operation kinds that it matches.
    pub operations: OperationKinds,
    /// Blocks that it matches: requests that touch any of them. A flush touches all.
    pub blocks: Range<u64>,
    /// The matches on which it fires.
    pub when: When,
    /// The effect.
    pub effect: Effect,
}

impl FaultRule {
    /// Creates a rule for every request that touches any block of the device.
    #[must_use]
    pub fn new(operations: OperationKinds, when: When, effect: Effect) -> Self {
        Self {
            operations,
            blocks: 0..u64::MAX,
            when,
            effect,
        }
    }

    fn matches(&self, request: &Request) -> bool {
        let end = request.lba.saturating_add(u64::from(request.blocks));
        let touches = request.operation == Operation::Flush
            || (request.lba < self.blocks.end && self.blocks.start < end);
        touches && self.operations.contains(request.operation)
    }
}

/// The rules of a faulty device, and the seed of random choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// In order of precedence.
    pub rules: Vec<FaultRule>,
    /// Reproduces every choice of [`When::PerMillion`] if requests arrive in the same order.
    pub seed: u64,
}

struct ArmedRule {
    rule: FaultRule,
    armed: AtomicBool,
    matched: AtomicU64,
    fired: AtomicU64,
}

/// The state of a running plan. Atomics only: requests on every reactor use it.
struct RunningPlan {
    rules: Vec<ArmedRule>,
    seed: u64,
    queues_opened: AtomicU64,
    /// Number of releases so far; a held completion waits for the next one.
    releases: AtomicU64,
    removed: AtomicBool,
}

impl RunningPlan {
    /// The effect on a request, if a rule fires.
    fn effect_on(&self, request: &Request, seeded: &mut Seeded) -> Option<Effect> {
        for armed in &self.rules {
            if !armed.armed.load(Ordering::Relaxed) || !armed.rule.matches(request) {
                continue;
            }
            let count = armed.matched.fetch_add(1, Ordering::Relaxed) + 1;
            if armed.rule.when.fires(count, |bound| seeded.below(bound)) {
                armed.fired.fetch_add(1, Ordering::Relaxed);
                return Some(armed.rule.effect);
            }
        }
        None
    }

    fn has_armed(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|it| it.armed.load(Ordering::Relaxed))
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }
}

/// Controls a running [`FaultDevice`].
#[derive(Clone)]
pub struct FaultControl(Arc<RunningPlan>);

impl FaultControl {
    /// Releases all completions that are held now.
    pub fn release(&self) {
        self.0.releases.fetch_add(1, Ordering::Release);
    }

    /// Removes the device permanently.
    pub fn remove(&self) {
        self.0.removed.store(true, Ordering::Release);
    }

    /// Enables or disables a rule. Initially all are enabled. A disabled rule counts no matches.
    ///
    /// # Panics
    /// The plan has no rule of this index.
    pub fn arm(&self, rule: usize, on: bool) {
        self.0.rules[rule].armed.store(on, Ordering::Relaxed);
    }

    /// Number of times that a rule has fired.
    ///
    /// # Panics
    /// The plan has no rule of this index.
    #[must_use]
    pub fn fired(&self, rule: usize) -> u64 {
        self.0.rules[rule].fired.load(Ordering::Relaxed)
    }
}

/// Wraps a device and makes its requests fail by a plan. Transparent with an empty plan.
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    running: Arc<RunningPlan>,
}

impl FaultDevice {
    /// Creates a device that makes requests to `inner` fail by `plan`.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> Self {
        let arm = |rule| ArmedRule {
            rule,
            armed: AtomicBool::new(true),
            matched: AtomicU64::new(0),
            fired: AtomicU64::new(0),
        };
        let running = RunningPlan {
            rules: plan.rules.into_iter().map(arm).collect(),
            seed: plan.seed,
            queues_opened: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            removed: AtomicBool::new(false),
        };
        Self {
            inner,
            running: Arc::new(running),
        }
    }

    /// A handle to control the faults.
    #[must_use]
    pub fn control(&self) -> FaultControl {
        FaultControl(Arc::clone(&self.running))
    }
}

impl Device for FaultDevice {
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
        let health = self.inner.health();
        if self.running.is_removed() {
            Health {
                state: HealthState::Removed,
                ..health
            }
        } else {
            health
        }
    }

    fn error_log(&self, records: &mut Vec<ErrorRecord>) {
        self.inner.error_log(records);
    }

    fn reopen(&self) -> Result<(), ReopenError> {
        self.inner.reopen()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        if self.running.is_removed() {
            return Err(OpenError::Removed);
        }
        let depth = options.depth;
        let inner = self.inner.open_queue(options)?;
        let stream = self.running.queues_opened.fetch_add(1, Ordering::Relaxed);
        let seeded = Seeded::new(self.running.seed, stream);
        let (running, geometry) = (Arc::clone(&self.running), self.inner.geometry());
        Ok(Box::new(queue::FaultQueue::new(
            inner, running, seeded, depth, geometry,
        )))
    }
}

#[cfg(test)]
mod tests;
