//! How a reactor comes to rest: after its transports' last connection its target core flushes the
//! devices' volatile caches and empties their queues; when all reactors have done so, drives are
//! shut down.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvme_target::{CoreDrain, TargetCore};
use reactors::{Nanos, Poller, Progress, StopState};

use super::desk::Desk;

/// Has a core do what it is asked to, and brings it to rest when its reactor stops. The transports
/// poll the core meanwhile.
pub(crate) struct Rest {
    core: Rc<RefCell<TargetCore>>,
    /// Reactors whose cores are not at rest, this one among them until it is.
    undrained: Arc<AtomicUsize>,
    is_drained: bool,
    desk: Desk,
}

impl Rest {
    pub(crate) fn new(
        core: Rc<RefCell<TargetCore>>,
        undrained: Arc<AtomicUsize>,
        desk: Desk,
    ) -> Self {
        Self {
            core,
            undrained,
            is_drained: false,
            desk,
        }
    }
}

impl Poller for Rest {
    fn name(&self) -> &str {
        "target"
    }

    fn poll(&mut self, now: Nanos, _budget: u32) -> Progress {
        Progress::from_count(self.desk.poll(now))
    }

    fn prepare_sleep(&mut self) -> bool {
        self.desk.is_idle()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        match self.core.borrow_mut().drain(now) {
            CoreDrain::Done => {
                if !std::mem::replace(&mut self.is_drained, true) {
                    self.undrained.fetch_sub(1, Ordering::AcqRel);
                }
                StopState::Stopped
            }
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

/// A poller that goes on as ever until every core has come to rest, and only then hears of the
/// stop: a drive's owner, since a core's last flush needs the drive.
pub(super) struct Last<P> {
    inner: P,
    undrained: Arc<AtomicUsize>,
}

impl<P: Poller> Last<P> {
    pub(super) fn new(inner: P, undrained: Arc<AtomicUsize>) -> Self {
        Self { inner, undrained }
    }
}

impl<P: Poller> Poller for Last<P> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn poll(&mut self, now: Nanos, budget: u32) -> Progress {
        self.inner.poll(now, budget)
    }

    fn flush(&mut self, now: Nanos) {
        self.inner.flush(now);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.inner.next_deadline()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_source()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        match self.undrained.load(Ordering::Acquire) {
            0 => self.inner.stop(now),
            _ => StopState::Outstanding(1),
        }
    }
}
