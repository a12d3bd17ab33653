//! Hand-over of the part of a controller that all cores share.

use std::sync::atomic::Ordering;

use super::{ControllerShared, Gate};

impl Gate {
    /// The gate at which a queue that was created since the last reset executes commands.
    pub(crate) fn open_since_reset(self) -> Self {
        Self(self.unconditional().0 | Self::OPEN)
    }
}

impl ControllerShared {
    /// Whether a command was received since the keep-alive timer was checked last.
    pub(crate) fn has_traffic(&self) -> bool {
        self.traffic.load(Ordering::Relaxed)
    }

    /// Whether the admin queue's core has not handled messages of other threads yet.
    pub(crate) fn has_messages(&self) -> bool {
        self.internal_errors.load(Ordering::Acquire) != 0
            || self.has_notices.load(Ordering::Acquire)
    }
}
