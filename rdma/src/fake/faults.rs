//! Faults, chosen by pattern and seed.

use std::io;

use crate::completion::CompletionStatus;
use crate::connection::RejectReason;
use crate::fake::counters::Operation;
use crate::fake::random::Random;

/// What a request that is stuck writes to its local memory.
pub const LATE_BYTE: u8 = 0xdb;

/// What goes wrong with a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this status; nothing is moved. Its queue pair goes into the error state, and
    /// for the peer's failures the peer's does too.
    Fail(CompletionStatus),
    /// The connection is gone: both queue pairs flush, both sides are told.
    DropConnection,
    /// The peer is not ready for that many ticks, whatever it has posted.
    NotReady(u32),
    /// It starts that many ticks later; so do those behind it.
    DelayRequest(u32),
    /// It is done, but completes that many ticks later; so do those behind it.
    DelayCompletion(u32),
    /// The device is stuck on it: it is neither done nor flushed, nor is what is behind it. Once its
    /// queue pair is in the error state, the data of a read arrives late, as bytes of [`LATE_BYTE`]:
    /// again and again, until the queue pair is destroyed.
    Wedge,
    /// The device gives up on the queue pair: a device event, and everything is flushed.
    QueuePairFatal,
}

/// What goes wrong with a connection being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFault {
    /// The address cannot be resolved.
    AddressFailed(io::ErrorKind),
    /// The route cannot be resolved.
    RouteFailed(io::ErrorKind),
    /// The peer does not answer.
    Unreachable,
    /// The connection manager rejects it.
    Rejected(RejectReason),
    /// The answer takes that many ticks more.
    Delay(u32),
}

/// Which occasions a rule is about, among those that match what it names.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Only this operation; any when none is named. Without meaning for connections.
    pub operation: Option<Operation>,
    /// Only this machine's, by the number of [`Fake::machine`](super::Fake::machine).
    pub machine: Option<usize>,
    /// Only this queue pair's, by the number that its completions have. Without meaning for
    /// connections.
    pub queue_pair: Option<u32>,
    /// The first so many are spared.
    pub skip: u64,
    /// Of the others every so many-th, the first of them included; at least 1.
    pub every: u64,
    /// And of these that many in a thousand, by the fabric's seed.
    pub permille: u16,
    /// At most so many in all.
    pub times: u64,
}

impl Pattern {
    /// Every occasion.
    pub const ALWAYS: Self = Self {
        operation: None,
        machine: None,
        queue_pair: None,
        skip: 0,
        every: 1,
        permille: 1000,
        times: u64::MAX,
    };

    /// The first occasion and no other.
    pub const ONCE: Self = Self {
        times: 1,
        ..Self::ALWAYS
    };

    /// The same for one operation only.
    #[must_use]
    pub const fn of(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// The same for one machine only.
    #[must_use]
    pub const fn on(mut self, machine: usize) -> Self {
        self.machine = Some(machine);
        self
    }

    /// The same for one queue pair only.
    #[must_use]
    pub const fn by(mut self, queue_pair: u32) -> Self {
        self.queue_pair = Some(queue_pair);
        self
    }

    /// The same after the first `skip` occasions.
    #[must_use]
    pub const fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }
}

/// What a rule may be about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occasion {
    pub(super) machine: usize,
    pub(super) queue_pair: Option<u32>,
    pub(super) operation: Option<Operation>,
}

impl Occasion {
    /// Of a connection being made.
    pub(super) fn connecting(machine: usize) -> Self {
        Self {
            machine,
            queue_pair: None,
            operation: None,
        }
    }
}

#[derive(Debug)]
struct Rule<F> {
    pattern: Pattern,
    fault: F,
    seen: u64,
    fired: u64,
}

/// The rules of one kind; the first that fires wins, and all that match count the occasion.
#[derive(Debug)]
pub(super) struct Rules<F> {
    rules: Vec<Rule<F>>,
}

impl<F> Default for Rules<F> {
    fn default() -> Self {
        Self { rules: Vec::new() }
    }
}

impl<F: Copy> Rules<F> {
    pub(super) fn add(&mut self, pattern: Pattern, fault: F) {
        self.rules.push(Rule {
            pattern,
            fault,
            seen: 0,
            fired: 0,
        });
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// What goes wrong on this occasion, among the faults that `eligible` names. A rule that may
    /// fire no more is forgotten.
    pub(super) fn choose(
        &mut self,
        random: &mut Random,
        occasion: Occasion,
        eligible: impl Fn(&F) -> bool,
    ) -> Option<F> {
        let mut chosen = None;
        for rule in &mut self.rules {
            let Pattern {
                operation,
                machine,
                queue_pair,
                skip,
                every,
                permille,
                times,
            } = rule.pattern;
            let is_other = operation.is_some() && operation != occasion.operation
                || queue_pair.is_some() && queue_pair != occasion.queue_pair
                || machine.is_some_and(|machine| machine != occasion.machine);
            if is_other || !eligible(&rule.fault) {
                continue;
            }
            let nth = rule.seen;
            rule.seen += 1;
            let due = nth >= skip && (nth - skip).is_multiple_of(every.max(1));
            let left = chosen.is_none() && rule.fired < times;
            if due && left && (permille >= 1000 || random.below(1000) < u64::from(permille)) {
                rule.fired += 1;
                chosen = Some(rule.fault);
            }
        }
        self.rules.retain(|rule| rule.fired < rule.pattern.times);
        chosen
    }
}
