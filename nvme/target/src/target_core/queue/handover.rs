//! Hand-over of a queue's own state.

use super::{LOGGED_ERRORS_MAX, Queue};

impl Queue {
    /// The submission queue head that the last response reported.
    pub(crate) fn head(&self) -> u16 {
        self.head
    }

    /// Continues from this head, which is below the queue's size.
    pub(crate) fn continue_from(&mut self, head: u16, log_allowance: u8) {
        debug_assert!(head < self.depth);
        self.head = head;
        self.log_allowance = log_allowance.min(LOGGED_ERRORS_MAX);
    }
}
