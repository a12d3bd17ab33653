//! What a machine's devices did, by operation.

use std::ops::AddAssign;

/// An operation, as the fabric counts it and as faults choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A message sent.
    Send,
    /// A message sent that invalidates a key of the peer.
    SendWithInvalidate,
    /// Data written to the peer's memory.
    Write,
    /// Data read from the peer's memory.
    Read,
    /// A memory window bound.
    BindWindow,
    /// A local key invalidated.
    LocalInvalidate,
    /// A message received.
    Receive,
}

/// Kinds of [`Operation`].
pub(super) const OPERATIONS: usize = Operation::Receive as usize + 1;

/// The counts of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounters {
    /// Work requests posted.
    pub posted: u64,
    /// Of these, done with success.
    pub succeeded: u64,
    /// Of these, failed.
    pub failed: u64,
    /// Of these, flushed.
    pub flushed: u64,
    /// Bytes that were moved by those with success.
    pub bytes: u64,
}

/// The counts of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FakeCounters {
    pub(super) operations: [OperationCounters; OPERATIONS],
    /// Completions that were polled.
    pub completions: u64,
    /// Flushes that had something to post, one per kind of queue.
    pub doorbells: u64,
    /// Messages that came while no receive was posted, each try counted.
    pub not_ready: u64,
    /// Sends posted with inline bytes.
    pub inline: u64,
}

impl FakeCounters {
    /// The counts of one operation.
    #[must_use]
    pub fn of(&self, operation: Operation) -> OperationCounters {
        self.operations[operation as usize]
    }

    /// Work requests posted to send queues.
    #[must_use]
    pub fn sends_posted(&self) -> u64 {
        let sends = &self.operations[..Operation::Receive as usize];
        sends.iter().map(|counters| counters.posted).sum()
    }

    pub(super) fn at(&mut self, operation: Operation) -> &mut OperationCounters {
        &mut self.operations[operation as usize]
    }
}

impl AddAssign for FakeCounters {
    fn add_assign(&mut self, other: Self) {
        for (sum, one) in self.operations.iter_mut().zip(other.operations) {
            sum.posted += one.posted;
            sum.succeeded += one.succeeded;
            sum.failed += one.failed;
            sum.flushed += one.flushed;
            sum.bytes += one.bytes;
        }
        self.completions += other.completions;
        self.doorbells += other.doorbells;
        self.not_ready += other.not_ready;
        self.inline += other.inline;
    }
}
