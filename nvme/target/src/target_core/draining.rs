//! A core comes to rest: connections are closed, and commands end.

use reactors::Nanos;

use super::TargetCore;
use crate::interface::CloseReason;

/// How far a core is on its way to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not on its way.
    Serving,
    /// Every connection was handed out for closing, and no Connect is accepted.
    Closing,
}

/// Whether a core has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CoreDrain {
    /// No queue and no command is left.
    Done,
    /// What is still there.
    Outstanding {
        /// Queues whose connections have not been closed, or whose last command is in a device.
        queues: usize,
        /// Commands in execution.
        executions: usize,
    },
}

impl TargetCore {
    /// Begins to shut down: new Connects are refused, and every connection is handed out for
    /// closing.
    pub fn begin_shutdown(&mut self, _now: Nanos) {
        if self.phase != Phase::Serving {
            return;
        }
        self.phase = Phase::Closing;
        for slot in 0..self.queues.capacity() {
            self.end_queue(slot, CloseReason::TargetShutdown);
        }
    }

    /// Whether Connects are refused because this core is coming to rest.
    pub(super) fn is_closing(&self) -> bool {
        self.phase != Phase::Serving
    }

    /// Goes on shutting down. Call it between polls until it says [`CoreDrain::Done`].
    pub fn drain(&mut self, now: Nanos) -> CoreDrain {
        self.begin_shutdown(now);
        let (queues, executions) = (self.queues.len(), self.executions.len());
        if queues > 0 || executions > 0 {
            return CoreDrain::Outstanding { queues, executions };
        }
        CoreDrain::Done
    }
}
