//! How a reactor's target core comes to rest: after its transports' last connection the devices'
//! volatile caches are flushed and their queues emptied.

use std::cell::RefCell;
use std::rc::Rc;

use nvme_target::{CoreDrain, TargetCore};
use reactors::{Nanos, Poller, Progress, StopState};

/// Brings a core to rest when its reactor stops. The transports poll the core meanwhile.
pub(super) struct Rest {
    core: Rc<RefCell<TargetCore>>,
}

impl Rest {
    pub(super) fn new(core: Rc<RefCell<TargetCore>>) -> Self {
        Self { core }
    }
}

impl Poller for Rest {
    fn name(&self) -> &str {
        "target"
    }

    fn poll(&mut self, _now: Nanos, _budget: u32) -> Progress {
        Progress::Idle
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        match self.core.borrow_mut().drain(now) {
            CoreDrain::Done => StopState::Stopped,
            CoreDrain::Outstanding {
                queues,
                executions,
                device_requests,
            } => {
                // Each request belongs to an execution, save those of queues that are gone.
                let items = queues + executions.max(device_requests);
                StopState::Outstanding(u32::try_from(items).unwrap_or(u32::MAX).max(1))
            }
        }
    }
}
