//! Rate limits: the rules of the configuration, and those that apply to one queue.
//!
//! A rule limits the commands and bytes of a device, of a host, or of a host at a subsystem. All
//! reactors share its rates (`rate.rs`). A queue keeps the rates that apply to it, which it finds
//! when its core adopts a configuration; a queue without any pays one branch for each command.

use std::sync::Arc;

use reactors::Nanos;

use crate::config::{DeviceIndex, RATE_LIMITS_MAX, TargetError};
use crate::io::IoWork;
use crate::rate::Rate;
use crate::reservations::restrictions::AccessKind;
use crate::shared::ControllerIdentity;
use crate::view::{SubsystemView, TargetView};

/// The commands that a rate limit counts together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RateScope {
    /// Those of all hosts for a device.
    Device(DeviceIndex),
    /// Those of a host for all subsystems, by its NQN.
    Host(String),
    /// Those of a host for one subsystem.
    HostAt {
        /// The host's NQN.
        host: String,
        /// The subsystem's NQN.
        subsystem: String,
    },
}

/// A rate limit. Commands above it wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// The commands that are counted together.
    pub scope: RateScope,
    /// Whether commands that only read are counted.
    pub reads: bool,
    /// Whether commands that change data are counted.
    pub writes: bool,
    /// Most commands in a second.
    pub iops: Option<u64>,
    /// Most bytes in a second.
    pub bandwidth: Option<u64>,
    /// The unused time for which commands are caught up at once.
    pub burst: Nanos,
}

/// What one rate of a limit has delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// Number of commands.
    pub commands: u64,
    /// The sum of the times for which they waited.
    pub waited: Nanos,
}

/// A rate limit and its effect so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitSnapshot {
    /// The limit.
    pub limit: RateLimit,
    /// What its limit of commands has delayed.
    pub by_iops: Throttled,
    /// What its limit of bytes has delayed.
    pub by_bandwidth: Throttled,
}

/// A rate limit with its rates.
pub(crate) struct RateRule {
    limit: RateLimit,
    iops: Option<Arc<Rate>>,
    bandwidth: Option<Arc<Rate>>,
}

impl RateRule {
    fn new(limit: RateLimit) -> Self {
        let of_commands = |rate| Arc::new(Rate::of_commands(rate, limit.burst));
        let of_bytes = |rate| Arc::new(Rate::of_bytes(rate, limit.burst));
        Self {
            iops: limit.iops.map(of_commands),
            bandwidth: limit.bandwidth.map(of_bytes),
            limit,
        }
    }

    /// Its device, or [`ANY_DEVICE`], if it applies to a queue.
    fn device_for(&self, identity: &ControllerIdentity, seen: &SubsystemView) -> Option<u8> {
        let is_host = |host: &str| host == identity.host_nqn;
        match &self.limit.scope {
            RateScope::Device(device) => {
                let mut namespaces = seen.namespaces.iter().flatten();
                let is_seen = namespaces.any(|it| it.device == device.place());
                is_seen.then_some(device.place())
            }
            RateScope::Host(host) => is_host(host).then_some(ANY_DEVICE),
            RateScope::HostAt { host, subsystem } => {
                let applies = is_host(host) && *subsystem == identity.subsystem_nqn;
                applies.then_some(ANY_DEVICE)
            }
        }
    }
}

/// The rules of a configuration. A rule that does not change keeps its rates.
#[derive(Clone, Default)]
pub(crate) struct RateRules(Arc<Vec<Arc<RateRule>>>);

impl RateRules {
    /// The rules for `limits`.
    pub(crate) fn changed(&self, limits: Vec<RateLimit>) -> Result<Self, TargetError> {
        if limits.len() > RATE_LIMITS_MAX {
            let count = limits.len();
            return Err(TargetError::TooManyRateLimits { count });
        }
        let rules = limits.into_iter().map(|limit| {
            let same = self.0.iter().find(|rule| rule.limit == limit);
            same.map_or_else(|| Arc::new(RateRule::new(limit)), Arc::clone)
        });
        Ok(Self(Arc::new(rules.collect())))
    }

    /// What the rules have delayed so far.
    pub(crate) fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        let throttled = |rate: &Option<Arc<Rate>>| {
            let (commands, waited) = rate.as_ref().map_or((0, Nanos::ZERO), |it| it.throttled());
            Throttled { commands, waited }
        };
        let rules = self.0.iter().map(|rule| RateLimitSnapshot {
            limit: rule.limit.clone(),
            by_iops: throttled(&rule.iops),
            by_bandwidth: throttled(&rule.bandwidth),
        });
        rules.collect()
    }
}

/// The device of a rate for all devices. There are fewer than 128.
const ANY_DEVICE: u8 = u8::MAX;

/// A rate that applies to some commands of a queue.
struct QueueRate {
    rate: Arc<Rate>,
    /// The device whose commands it counts, or [`ANY_DEVICE`].
    device: u8,
}

impl QueueRate {
    #[inline(always)]
    fn counts(&self, device: u8) -> bool {
        self.device == ANY_DEVICE || self.device == device
    }
}

/// What a rate counts of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) device: u8,
    pub(crate) access: AccessKind,
    pub(crate) bytes: u32,
}

impl Charge {
    /// Of a command that is executed by a device; `None` for others.
    #[inline]
    pub(crate) fn of(work: &IoWork) -> Option<Self> {
        let access = match work.operation.changes_medium() {
            true => AccessKind::Write,
            // Not a Flush.
            false => work
                .operation
                .access()
                .filter(|it| *it == AccessKind::Read)?,
        };
        Some(Self {
            device: work.device,
            access,
            bytes: work.bytes,
        })
    }
}

/// Most commands whose cost a queue takes from its rates at once.
const ADVANCE_COMMANDS_MAX: u32 = 32;

/// Commands of a queue whose cost was taken together with that of one before them, in the same turn
/// of the core. The rates would have let each of them start then, so they start like any others.
struct Advance {
    charge: Charge,
    /// Those that have not started.
    commands: u32,
    /// For how many commands the queue takes the cost the next time.
    next: u32,
}

/// The rates that apply to one queue: at least one.
pub(crate) struct QueueRates {
    /// Ends with the turn: [`end_advance`](Self::end_advance). None while commands wait.
    advance: Advance,
    reads: Box<[QueueRate]>,
    writes: Box<[QueueRate]>,
    /// Number of its commands that wait. While there are some, later ones wait too.
    pub(crate) waiting: u32,
}

impl QueueRates {
    /// Those of a controller's queues; `None` if there are none.
    pub(crate) fn find(
        view: &TargetView,
        identity: &ControllerIdentity,
        seen: Option<&SubsystemView>,
    ) -> Option<Box<Self>> {
        let seen = seen?;
        let rules = view.rate_rules.0.iter();
        let rules = rules.filter_map(|it| Some((it, it.device_for(identity, seen)?)));
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (rule, device) in rules {
            for rate in rule.iops.iter().chain(&rule.bandwidth) {
                let rate = || QueueRate {
                    rate: Arc::clone(rate),
                    device,
                };
                reads.extend(rule.limit.reads.then(rate));
                writes.extend(rule.limit.writes.then(rate));
            }
        }
        for pace in view.pace_rules.of(&identity.subsystem_nqn) {
            let devices = pace.devices_of(seen).unwrap_or_else(|| vec![ANY_DEVICE]);
            for device in devices {
                let rate = || QueueRate {
                    rate: Arc::clone(&pace.rate),
                    device,
                };
                reads.push(rate());
                writes.push(rate());
            }
        }
        let has_some = !reads.is_empty() || !writes.is_empty();
        has_some.then(|| {
            let charge = Charge {
                device: ANY_DEVICE,
                access: AccessKind::Read,
                bytes: 0,
            };
            Box::new(Self {
                advance: Advance {
                    charge,
                    commands: 0,
                    next: 1,
                },
                reads: reads.into_boxed_slice(),
                writes: writes.into_boxed_slice(),
                waiting: 0,
            })
        })
    }

    /// Whether both have the same rates.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = |one: &[QueueRate], other: &[QueueRate]| {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| {
                    Arc::ptr_eq(&one.rate, &other.rate) && one.device == other.device
                })
        };
        is_same(&self.reads, &other.reads) && is_same(&self.writes, &other.writes)
    }

    #[inline(always)]
    fn of(&self, access: AccessKind) -> &[QueueRate] {
        match access {
            AccessKind::Read => &self.reads,
            AccessKind::Write => &self.writes,
        }
    }

    /// Starts a command whose cost was taken in advance.
    #[inline(always)]
    pub(crate) fn start_advanced(&mut self, charge: Charge) -> bool {
        let advance = &mut self.advance;
        let starts = advance.commands > 0 && advance.charge == charge;
        advance.commands -= u32::from(starts);
        starts
    }

    /// Takes the cost of a command from every rate if it may start now.
    pub(crate) fn take(&mut self, charge: Charge, now: Nanos) -> bool {
        self.end_advance();
        self.waiting == 0 && self.take_from_all(charge, 1, now)
    }

    /// The same, with the cost of more commands like it if its queue has sent several in this turn
    /// and no rate delays any of them. The caller calls [`end_advance`](Self::end_advance) at the
    /// end of the turn.
    pub(crate) fn take_advance(&mut self, charge: Charge, now: Nanos) -> bool {
        let is_used_up = self.advance.commands == 0 && self.advance.charge == charge;
        self.end_advance();
        if self.waiting > 0 {
            return false;
        }
        let next = match is_used_up {
            true => (self.advance.next * 2).min(ADVANCE_COMMANDS_MAX),
            false => self.advance.next,
        };
        let commands = match next > 1 && self.take_from_all(charge, next, now) {
            true => next,
            false if self.take_from_all(charge, 1, now) => 1,
            false => return false,
        };
        self.advance = Advance {
            charge,
            commands: commands - 1,
            next: commands,
        };
        true
    }

    /// Takes the cost of `commands` commands from every rate if all may start now.
    fn take_from_all(&self, charge: Charge, commands: u32, now: Nanos) -> bool {
        let rates = self.of(charge.access);
        let refuses =
            |it: &QueueRate| it.counts(charge.device) && !it.rate.take(charge.bytes, commands, now);
        match rates.iter().position(refuses) {
            None => true,
            Some(taken) => {
                give_back(&rates[..taken], charge, commands);
                false
            }
        }
    }

    /// Returns the cost of the commands that were taken in advance and have not started.
    pub(crate) fn end_advance(&mut self) {
        let Advance {
            charge, commands, ..
        } = self.advance;
        if commands > 0 {
            give_back(self.of(charge.access), charge, commands);
            self.advance.commands = 0;
            self.advance.next = (self.advance.next / 2).max(1);
        }
    }

    /// Takes the cost of a command that waits. Returns when it may start, for adapted rates at
    /// `latest`, and the position of the rate that lets it start last.
    pub(crate) fn reserve(&self, charge: Charge, latest: Nanos, now: Nanos) -> (Nanos, usize) {
        let mut last = (Nanos::ZERO, usize::MAX);
        for (place, rate) in self.of(charge.access).iter().enumerate() {
            if rate.counts(charge.device) {
                let start = rate.rate.reserve(charge.bytes, latest, now);
                if last.1 == usize::MAX || start > last.0 {
                    last = (start, place);
                }
            }
        }
        last
    }

    /// Takes the cost of a part of a command that accesses another device than the command, from the
    /// rates of that device only.
    #[cold]
    pub(crate) fn reserve_of_device(&self, charge: Charge, now: Nanos) {
        let rates = self.of(charge.access).iter();
        for rate in rates.filter(|it| it.device == charge.device) {
            rate.rate.reserve(charge.bytes, now, now);
        }
    }

    /// Returns the cost of a command that does not start.
    #[cold]
    pub(crate) fn give_back(&self, charge: Charge) {
        give_back(self.of(charge.access), charge, 1);
    }

    /// Counts a command that the rate at `place` delayed.
    pub(crate) fn count_throttled(&self, access: AccessKind, place: usize, waited: Nanos) {
        if let Some(rate) = self.of(access).get(place) {
            rate.rate.count_throttled(waited);
        }
    }
}

impl Drop for QueueRates {
    fn drop(&mut self) {
        self.end_advance();
    }
}

#[cold]
#[inline(never)]
fn give_back(rates: &[QueueRate], charge: Charge, commands: u32) {
    for rate in rates.iter().filter(|it| it.counts(charge.device)) {
        rate.rate.give_back(charge.bytes, commands);
    }
}
