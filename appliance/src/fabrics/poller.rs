//! The poller of a reactor's target core: orders, and the stop.

use std::cell::RefCell;
use std::rc::Rc;

use nvme_target::{CoreDrain, TargetCore};
use reactors::{Nanos, Poller, Progress, StopState};

use super::desk::Desk;

/// Has a core do what it is asked to, and brings it to rest when its reactor stops. The devices'
/// poller polls the core.
pub(super) struct TargetPoller {
    core: Rc<RefCell<TargetCore>>,
    desk: Desk,
}

impl TargetPoller {
    pub(super) fn new(core: Rc<RefCell<TargetCore>>, desk: Desk) -> Self {
        Self { core, desk }
    }
}

impl Poller for TargetPoller {
    fn name(&self) -> &str {
        "target"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        Progress::from_count(self.desk.poll(now))
    }

    fn prepare_sleep(&mut self) -> bool {
        self.desk.is_idle()
    }

    /// The devices' poller stops the core too; this one says in reports what it still has.
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
