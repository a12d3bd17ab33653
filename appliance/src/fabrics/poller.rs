//! The poller of a reactor's target core: control messages and shutdown.

use std::cell::RefCell;
use std::rc::Rc;

use nvme_target::{CoreDrain, TargetCore};
use reactors::{Nanos, Poller, Progress, StopState};

use super::control_queue::ControlQueue;

/// Passes control messages to the core, and drains the core when the reactor stops. The devices'
/// poller polls the core.
pub(super) struct TargetPoller {
    core: Rc<RefCell<TargetCore>>,
    control_queue: ControlQueue,
}

impl TargetPoller {
    pub(super) fn new(core: Rc<RefCell<TargetCore>>, control_queue: ControlQueue) -> Self {
        Self {
            core,
            control_queue,
        }
    }
}

impl Poller for TargetPoller {
    fn name(&self) -> &str {
        "target"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        Progress::from_count(self.control_queue.poll(now))
    }

    fn prepare_sleep(&mut self) -> bool {
        self.control_queue.is_idle()
    }

    /// The devices' poller drains the core too; this one reports what is outstanding.
    fn stop(&mut self, now: Nanos) -> StopState {
        match self.core.borrow_mut().drain(now) {
            CoreDrain::Done => StopState::Stopped,
            CoreDrain::Outstanding { queues, executions } => {
                let items = queues + executions;
                StopState::Outstanding(u32::try_from(items).unwrap_or(u32::MAX).max(1))
            }
        }
    }
}
