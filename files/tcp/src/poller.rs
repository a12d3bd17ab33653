//! The poller of the service: receives and executes in `poll`, sends in `flush`.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use reactors::{Nanos, Poller, Progress, StopState};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};

use crate::connection::ConnectionKey;
use crate::service::{FileService, LISTENERS, RECORDS};

/// Events taken from epoll at once.
const EVENTS_MAX: usize = 64;
/// How often replies are sent in one turn: those that are sent make room for requests, whose replies
/// may be complete at once.
const FLUSHES_PER_TURN_MAX: usize = 2;
/// Interval of the attempts of requests that wait for memory.
const RETRY_INTERVAL: Nanos = Nanos::from_micros(200);

/// Polls the connections of a [`FileService`]. Register it before the devices' poller.
pub struct FilePoller {
    service: Rc<RefCell<FileService>>,
    events: Vec<epoll::Event>,
    polled_at: Nanos,
    /// Descriptor of the service's events.
    source: std::os::fd::OwnedFd,
}

impl FilePoller {
    /// The poller of a service.
    ///
    /// # Errors
    /// The system provides no further descriptor.
    pub fn new(service: Rc<RefCell<FileService>>) -> std::io::Result<Self> {
        let source = service.borrow().epoll().try_clone_to_owned()?;
        Ok(Self {
            service,
            events: Vec::with_capacity(EVENTS_MAX),
            polled_at: Nanos::ZERO,
            source,
        })
    }

    fn poll_events(&mut self) {
        self.events.clear();
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.source, buffer, Some(&no_wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
    }
}

impl Poller for FilePoller {
    fn name(&self) -> &str {
        "files"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.polled_at = now;
        self.poll_events();
        let mut service = self.service.borrow_mut();
        service.tick(now);
        let mut work = service.carry_out_messages(now);
        for event in &self.events {
            let epoll::Event { flags, data } = *event;
            if data.u64() == LISTENERS {
                work += service.accept(now);
                continue;
            }
            if data.u64() == RECORDS {
                service.clear_records_signal();
                work += 1;
                continue;
            }
            let key = ConnectionKey::from_u64(data.u64());
            if flags.contains(EventFlags::OUT) {
                service.send_to(key, now);
            }
            work += 1 + service.receive(key, now);
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
        match service.has_waiting() {
            true => Some(tick.min(self.polled_at.saturating_add(RETRY_INTERVAL))),
            false => Some(tick),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(&self.source))
    }

    fn prepare_sleep(&mut self) -> bool {
        let service = self.service.borrow();
        !service.has_waiting() && !service.has_to_send() && !service.has_messages()
    }

    fn stop(&mut self, _now: Nanos) -> StopState {
        match self.service.borrow_mut().end() {
            0 => StopState::Stopped,
            count => StopState::Outstanding(count as u32),
        }
    }
}
