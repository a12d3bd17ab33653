//! A bounded mailbox that is closed once: what is sent is taken out, or dropped at the closing, and
//! never kept.
//!
//! `tests/loom.rs` explores every interleaving of it.

use crate::sync::Queue;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Why something was not taken.
pub(crate) enum PushError<T> {
    /// There is no room now.
    Full(T),
    /// Nobody will look any more; it was dropped.
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

    /// Puts `value` in.
    pub(crate) fn push(&self, value: T) -> Result<(), PushError<T>> {
        if self.is_closed() {
            return Err(PushError::Closed);
        }
        self.queue.push(value).map_err(PushError::Full)?;
        // Pairs with the fence in `close`: either the receiver's last look sees the value or this
        // sees the closing.
        fence(Ordering::SeqCst);
        if self.is_closed() {
            self.close();
            return Err(PushError::Closed);
        }
        Ok(())
    }

    /// Takes the oldest out.
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

    /// Takes nothing more, and drops what waits, so that whoever waits for its effect learns it.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.queue.pop().is_some() {}
    }
}
