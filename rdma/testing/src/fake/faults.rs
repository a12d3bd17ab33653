//! Faults, selected by pattern and seed.

use std::io;

use crate::fake::counters::Operation;
use crate::fake::random::Random;
use rdma::{CompletionStatus, RejectReason};

/// The value of the bytes that a stuck read writes to its local memory.
pub const LATE_BYTE: u8 = 0xdb;

/// A fault of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request fails with this status and transfers nothing. Its queue pair enters the error
    /// state, as does the peer's if the status is a failure of the peer.
    Fail(CompletionStatus),
    /// The connection breaks: both queue pairs flush, and both sides are notified.
    DropConnection,
    /// The peer is not ready for this many ticks, even with receives posted.
    NotReady(u32),
    /// The request starts this many ticks later, and so do those behind it.
    DelayRequest(u32),
    /// The request executes, but completes this many ticks later, and so do those behind it.
    DelayCompletion(u32),
    /// The device is stuck on the request: neither it nor those behind it are executed or flushed.
    /// Once its queue pair is in the error state, the data of a read arrives late, as bytes of
    /// [`LATE_BYTE`], repeatedly, until the queue pair is destroyed.
    Wedge,
    /// The queue pair fails: a device event is sent, and all its requests are flushed.
    QueuePairFatal,
}

/// A fault of connection setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFault {
    /// The address cannot be resolved.
    AddressFailed(io::ErrorKind),
    /// The route cannot be resolved.
    RouteFailed(io::ErrorKind),
    /// The peer does not respond.
    Unreachable,
    /// The connection manager rejects it.
    Rejected(RejectReason),
    /// The response takes this many ticks longer.
    Delay(u32),
}

/// Selects the occasions to which a fault rule applies.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Only this operation; `None` for any. Ignored for connections.
    pub operation: Option<Operation>,
    /// Only this machine, by [`Fake::machine`](super::Fake::machine).
    pub machine: Option<usize>,
    /// Only this queue pair, by its number in completions. Ignored for connections.
    pub queue_pair: Option<u32>,
    /// Number of matching occasions that are skipped first.
    pub skip: u64,
    /// Of the remaining ones, every n-th, starting with the first; at least 1.
    pub every: u64,
    /// Of these, this many per thousand, chosen by the fabric's seed.
    pub permille: u16,
    /// The largest number of faults.
    pub times: u64,
}

impl Pattern {
    /// All occasions.
    pub const ALWAYS: Self = Self {
        operation: None,
        machine: None,
        queue_pair: None,
        skip: 0,
        every: 1,
        permille: 1000,
        times: u64::MAX,
    };

    /// Only the first occasion.
    pub const ONCE: Self = Self {
        times: 1,
        ..Self::ALWAYS
    };

    /// Restricts the pattern to one operation.
    #[must_use]
    pub const fn of(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Restricts the pattern to one machine.
    #[must_use]
    pub const fn on(mut self, machine: usize) -> Self {
        self.machine = Some(machine);
        self
    }

    /// Restricts the pattern to one queue pair.
    #[must_use]
    pub const fn by(mut self, queue_pair: u32) -> Self {
        self.queue_pair = Some(queue_pair);
        self
    }

    /// Skips the first `skip` occasions.
    #[must_use]
    pub const fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }
}

/// An event to which a fault rule may apply.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultPoint {
    pub(super) machine: usize,
    pub(super) queue_pair: Option<u32>,
    pub(super) operation: Option<Operation>,
}

impl FaultPoint {
    /// The setup of a connection.
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

/// The rules of one kind. The first rule that fires applies; all rules that match count the
/// occasion.
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

    /// Selects the fault for this occasion, among those that `eligible` accepts. Removes rules that
    /// can no longer fire.
    pub(super) fn choose(
        &mut self,
        random: &mut Random,
        fault_point: FaultPoint,
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
            let is_other = operation.is_some() && operation != fault_point.operation
                || queue_pair.is_some() && queue_pair != fault_point.queue_pair
                || machine.is_some_and(|machine| machine != fault_point.machine);
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
