//! The controller's view of queue pairs: heads, tails, phases, shadow doorbells.

use nvme_spec::{Cqe, Sqe};

use super::bus::Bus;

/// Bytes of a submission queue entry.
pub(super) const SUBMISSION_BYTES: u64 = size_of::<Sqe>() as u64;
/// Bytes of a completion queue entry.
pub(super) const COMPLETION_BYTES: u64 = size_of::<Cqe>() as u64;

/// Addresses of a queue's shadow doorbell and event index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shadow {
    pub(super) doorbell: u64,
    pub(super) event_index: u64,
}

/// A submission queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SubmissionQueue {
    pub(super) live: bool,
    pub(super) base: u64,
    pub(super) entries: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) completion_queue: u16,
    pub(super) shadow: Option<Shadow>,
    /// Identifier of the command that completed last, for faults that repeat it.
    pub(super) completed_last: Option<u16>,
}

impl SubmissionQueue {
    pub(super) fn new(base: u64, entries: u32, completion_queue: u16) -> Self {
        Self {
            live: true,
            base,
            entries,
            completion_queue,
            ..Self::default()
        }
    }

    pub(super) fn next_address(&self) -> u64 {
        self.base + u64::from(self.head) * SUBMISSION_BYTES
    }

    pub(super) fn advance_head(&mut self) {
        self.head = next(self.head, self.entries);
    }

    /// Sets the tail. Fails if there is no such entry or the queue would overflow (PCIe 1.1
    /// §3.1.2.1).
    pub(super) fn set_tail(&mut self, tail: u32) -> Result<(), InvalidDoorbell> {
        if tail >= self.entries {
            return Err(InvalidDoorbell);
        }
        let held = distance(self.head, self.tail, self.entries);
        let added = distance(self.tail, tail, self.entries);
        if held + added >= self.entries {
            return Err(InvalidDoorbell);
        }
        self.tail = tail;
        Ok(())
    }
}

/// A completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompletionQueue {
    pub(super) live: bool,
    pub(super) base: u64,
    pub(super) entries: u32,
    pub(super) tail: u32,
    /// The head that the host reported.
    pub(super) head: u32,
    pub(super) phase: bool,
    pub(super) vector: Option<u16>,
    pub(super) shadow: Option<Shadow>,
    /// Number of submission queues that complete here.
    pub(super) users: u16,
}

impl CompletionQueue {
    pub(super) fn new(base: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            live: true,
            base,
            entries,
            phase: true,
            vector,
            ..Self::default()
        }
    }

    pub(super) fn is_full(&self) -> bool {
        next(self.tail, self.entries) == self.head
    }

    pub(super) fn tail_address(&self) -> u64 {
        self.base + u64::from(self.tail) * COMPLETION_BYTES
    }

    pub(super) fn advance_tail(&mut self) {
        self.tail = next(self.tail, self.entries);
        self.phase ^= self.tail == 0;
    }

    /// Sets the head. Fails if it would pass the tail (PCIe 1.1 §3.1.2.2).
    pub(super) fn set_head(&mut self, head: u32) -> Result<(), InvalidDoorbell> {
        if head >= self.entries {
            return Err(InvalidDoorbell);
        }
        let held = distance(self.head, self.tail, self.entries);
        if distance(self.head, head, self.entries) > held {
            return Err(InvalidDoorbell);
        }
        self.head = head;
        Ok(())
    }

    /// Updates the head from the shadow doorbell, if the queue has one.
    pub(super) fn refresh_head(&mut self, bus: &Bus) -> Result<(), InvalidDoorbell> {
        let Some(shadow) = self.shadow else {
            return Ok(());
        };
        match bus.load_u32(shadow.doorbell) {
            Some(head) => self.set_head(head),
            None => Ok(()),
        }
    }
}

/// A doorbell value that the specification forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidDoorbell;

fn next(index: u32, entries: u32) -> u32 {
    if index + 1 == entries { 0 } else { index + 1 }
}

fn distance(from: u32, to: u32, entries: u32) -> u32 {
    if to >= from {
        to - from
    } else {
        to + entries - from
    }
}
