//! Faults, chosen by pattern and seed.

use std::io;

use crate::completion::CompletionStatus;
use crate::connection::RejectReason;
use crate::fake::counters::Operation;
use crate::fake::random::Random;

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

    /// The same after the first `skip` occasions.
    #[must_use]
    pub const fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
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

    /// What goes wrong on this occasion, among the faults that `eligible` names.
    pub(super) fn choose(
        &mut self,
        random: &mut Random,
        machine: usize,
        operation: Option<Operation>,
        eligible: impl Fn(&F) -> bool,
    ) -> Option<F> {
        let mut chosen = None;
        for rule in &mut self.rules {
            let Pattern {
                operation: only,
                machine: at,
                skip,
                every,
                permille,
                times,
            } = rule.pattern;
            let other_operation = only.is_some() && only != operation;
            if other_operation || at.is_some_and(|at| at != machine) || !eligible(&rule.fault) {
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
        chosen
    }
}
