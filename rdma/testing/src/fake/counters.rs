//! Counters of a machine's devices, by operation.

use std::ops::AddAssign;

/// An operation, for counters and fault patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Send of a message.
    Send,
    /// Send of a message that invalidates a key of the peer.
    SendWithInvalidate,
    /// Write of data to the peer's memory.
    Write,
    /// Read of data from the peer's memory.
    Read,
    /// Binding of a memory window.
    BindWindow,
    /// Invalidation of a local key.
    LocalInvalidate,
    /// Receive of a message.
    Receive,
}

/// Number of kinds of [`Operation`].
pub(super) const OPERATIONS: usize = Operation::Receive as usize + 1;

/// Counters of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounters {
    /// Work requests posted.
    pub posted: u64,
    /// Work requests that succeeded.
    pub succeeded: u64,
    /// Work requests that failed.
    pub failed: u64,
    /// Work requests that were flushed.
    pub flushed: u64,
    /// Bytes transferred by the successful ones.
    pub bytes: u64,
}

/// Counters of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FakeCounters {
    pub(super) operations: [OperationCounters; OPERATIONS],
    /// Completions that were polled.
    pub completions: u64,
    /// Flushes with requests to post, one per kind of queue.
    pub doorbells: u64,
    /// Messages that found no receive posted; each try counts.
    pub not_ready: u64,
    /// Sends posted with inline bytes.
    pub inline: u64,
}

impl FakeCounters {
    /// Counters of one operation.
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
