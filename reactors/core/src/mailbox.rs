//! A bounded mailbox that can be closed: each value sent is received, or dropped when the mailbox
//! closes, and never leaks.
//!
//! `tests/loom.rs` explores every interleaving of it.

use crate::sync::Queue;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Why a value was not accepted.
pub(crate) enum PushError<T> {
    /// The mailbox is full now.
    Full(T),
    /// The mailbox is closed; the value was dropped.
    Closed,
}

/// Many senders, one receiver.
pub(crate) struct Mailbox<T> {
    queue: Queue<T>,
    closed: AtomicBool,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: Queue::new(capacity),
            closed: AtomicBool::new(false),
        }
    }

    /// Sends `value`.
    pub(crate) fn push(&self, value: T) -> Result<(), PushError<T>> {
        if self.is_closed() {
            return Err(PushError::Closed);
        }
        self.queue.push(value).map_err(PushError::Full)?;
        // Pairs with the fence in `close`: either the closing thread sees the value or this thread
        // sees the flag.
        fence(Ordering::SeqCst);
        if self.is_closed() {
            self.close();
            return Err(PushError::Closed);
        }
        Ok(())
    }

    /// Receives the oldest value.
    pub(crate) fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Closes the mailbox and drops the queued values, so that a thread that waits for their effect
    /// is notified.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.queue.pop().is_some() {}
    }
}
