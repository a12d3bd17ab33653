//! The poller of the service: receives and executes in `poll`, sends in `flush`.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use files_service::ConnectionKey;
use files_service::limits::RETRY_INTERVAL;
use reactors::{Nanos, Poller, Progress, StopState};

use crate::network::{EVENTS_MAX, Network, Ready, Sockets};
use crate::service::FileService;

/// How often replies are sent in one turn: those that are sent make room for requests, whose replies
/// may be complete at once.
const FLUSHES_PER_TURN_MAX: usize = 2;

/// Polls the connections of a [`FileService`]. Register it before the devices' poller.
pub struct FilePoller<N: Network = Sockets> {
    service: Rc<RefCell<FileService<N>>>,
    ready: Vec<Ready>,
    polled_at: Nanos,
    /// Descriptor of the service's events.
    source: Option<OwnedFd>,
}

impl<N: Network> FilePoller<N> {
    /// The poller of a service.
    ///
    /// # Errors
    /// The system provides no further descriptor.
    pub fn new(service: Rc<RefCell<FileService<N>>>) -> std::io::Result<Self> {
        let source = service.borrow().wake_source()?;
        Ok(Self {
            service,
            ready: Vec::with_capacity(EVENTS_MAX),
            polled_at: Nanos::ZERO,
            source,
        })
    }
}

impl<N: Network> Poller for FilePoller<N> {
    fn name(&self) -> &str {
        "files"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.polled_at = now;
        let mut service = self.service.borrow_mut();
        service.poll_network(&mut self.ready);
        service.tick(now);
        let mut work = service.core_mut().carry_out_messages(now);
        if work > 0 {
            work += service.change_listeners() + service.change_records();
        }
        for ready in &self.ready {
            work += match *ready {
                Ready::Listeners => service.accept(now),
                Ready::Signal => {
                    service.core_mut().clear_records_signal();
                    1
                }
                Ready::Connection { number, writable } => {
                    let key = ConnectionKey::from_u64(number);
                    if writable {
                        service.send_to(key, now);
                    }
                    1 + service.receive(key, now)
                }
            };
        }
        Progress::from_count(work)
    }

    /// Sends the replies, and executes requests that had to wait for that.
    fn flush(&mut self, now: Nanos) {
        let mut service = self.service.borrow_mut();
        for _ in 0..FLUSHES_PER_TURN_MAX {
            if !service.has_to_send() {
                break;
            }
            service.send(now);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let service = self.service.borrow();
        let tick = service.tick_at();
        match service.core_mut().has_waiting() {
            true => Some(tick.min(self.polled_at.saturating_add(RETRY_INTERVAL))),
            false => Some(tick),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(|it| it.as_fd())
    }

    fn prepare_sleep(&mut self) -> bool {
        let service = self.service.borrow();
        let core = service.core_mut();
        let is_idle = !core.has_waiting() && !core.has_messages();
        drop(core);
        is_idle && !service.has_to_send()
    }

    fn stop(&mut self, _now: Nanos) -> StopState {
        match self.service.borrow_mut().end() {
            0 => StopState::Stopped,
            count => StopState::Outstanding(count as u32),
        }
    }
}
