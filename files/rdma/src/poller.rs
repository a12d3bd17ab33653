//! The poller of the service over RDMA.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use files_service::limits::RETRY_INTERVAL;
use rdma::Provider;
use reactors::{Nanos, Poller, Progress, StopState};

use crate::service::RdmaFileService;

/// Turns between two looks for events of the connection manager: a system call.
const TURNS_PER_LOOK: u32 = 32;

/// Polls the connections of a [`RdmaFileService`]. Register it before the devices' poller.
pub struct RdmaFilePoller<P: Provider> {
    service: Rc<RefCell<RdmaFileService<P>>>,
    /// Descriptor of the service's events.
    source: Arc<OwnedFd>,
    turns: u32,
    polled_at: Nanos,
}

#[cfg(feature = "verbs")]
impl RdmaFilePoller<rdma::Verbs> {
    /// The poller of a reactor. This function is not generic, so that the service over verbs is
    /// compiled with this crate.
    #[must_use]
    pub fn into_poller(self) -> Box<dyn Poller> {
        Box::new(self)
    }
}

impl<P: Provider> RdmaFilePoller<P> {
    /// The poller of a service.
    #[must_use]
    pub fn new(service: Rc<RefCell<RdmaFileService<P>>>) -> Self {
        let source = Arc::clone(service.borrow().descriptor());
        Self {
            service,
            source,
            turns: 0,
            polled_at: Nanos::ZERO,
        }
    }
}

impl<P: Provider> Poller for RdmaFilePoller<P> {
    fn name(&self) -> &str {
        "files-rdma"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        // After a sleep, events may wait.
        let has_slept = now.0.saturating_sub(self.polled_at.0) > RETRY_INTERVAL.0;
        self.polled_at = now;
        let mut service = self.service.borrow_mut();
        let mut count = service.carry_out_changes(now);
        service.tick(now);
        count += service.poll_completions(now);
        self.turns += 1;
        if has_slept || self.turns >= TURNS_PER_LOOK {
            self.turns = 0;
            count += service.poll_events(now);
        }
        Progress::from_count(count)
    }

    fn flush(&mut self, now: Nanos) {
        self.service.borrow_mut().flush(now);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let service = self.service.borrow();
        let retry = service
            .is_waiting()
            .then(|| self.polled_at.saturating_add(RETRY_INTERVAL));
        let tick = service.tick_at();
        match (retry, tick) {
            (Some(retry), Some(tick)) => Some(retry.min(tick)),
            (retry, tick) => retry.or(tick),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.source.as_fd())
    }

    fn prepare_sleep(&mut self) -> bool {
        let mut service = self.service.borrow_mut();
        service.arm();
        // What arrived before is not notified.
        let now = self.polled_at;
        let is_idle = service.poll_completions(now) == 0 && service.poll_events(now) == 0;
        self.turns = TURNS_PER_LOOK;
        let waits = service.has_changes() || service.has_device_events();
        is_idle && !waits && !service.has_work() && !service.is_waiting()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        let mut service = self.service.borrow_mut();
        service.end(now);
        match service.connections() {
            0 => StopState::Stopped,
            count => StopState::Outstanding(count as u32),
        }
    }
}
