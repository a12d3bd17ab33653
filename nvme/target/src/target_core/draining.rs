//! Shutdown of a core: closes its connections and waits for its commands.

use reactors::Nanos;

use super::TargetCore;
use crate::interface::CloseReason;

/// Progress of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not shutting down.
    Serving,
    /// The close of every connection was requested, and Connects are refused.
    Closing,
}

/// The result of draining a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CoreDrain {
    /// No queue and no command remains.
    Done,
    /// Some remain.
    Outstanding {
        /// Queues whose connections are open, or whose last command is still in a device.
        queues: usize,
        /// Commands in execution.
        executions: usize,
    },
}

impl TargetCore {
    /// Starts the shutdown: refuses new Connects, and requests the close of every connection.
    pub fn begin_shutdown(&mut self, _now: Nanos) {
        if self.phase != Phase::Serving {
            return;
        }
        self.phase = Phase::Closing;
        for slot in 0..self.queues.capacity() {
            self.end_queue(slot, CloseReason::TargetShutdown);
        }
    }

    /// Whether Connects are refused because this core is shutting down.
    pub(super) fn is_closing(&self) -> bool {
        self.phase != Phase::Serving
    }

    /// Continues the shutdown. The caller repeats it between polls until it returns
    /// [`CoreDrain::Done`].
    pub fn drain(&mut self, now: Nanos) -> CoreDrain {
        self.begin_shutdown(now);
        let (queues, executions) = (self.queues.len(), self.executions.len());
        if queues > 0 || executions > 0 {
            return CoreDrain::Outstanding { queues, executions };
        }
        CoreDrain::Done
    }
}
