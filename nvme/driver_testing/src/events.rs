//! Asynchronous events: pending requests, pending events, and the event kinds that are masked until
//! their log page is read (Base 2.1 §5.1.2).

use nvme_spec::Status;
use nvme_spec::command::Sqe;
use nvme_spec::event::AsyncEvent;
use nvme_spec::log::LogPageId;

use super::bus::Bus;
use super::state::{Outcome, State};

/// Maximum number of events that wait for a request; further events are lost.
const EVENTS_MAX: usize = 64;

pub(super) struct Events {
    requests: Vec<Sqe>,
    limit: usize,
    waiting: Vec<AsyncEvent>,
    /// By log page: an event was reported and its page has not been read since.
    masked: [bool; 256],
}

impl Events {
    pub(super) fn new(limit: u16) -> Self {
        Self {
            requests: Vec::with_capacity(usize::from(limit)),
            limit: usize::from(limit),
            waiting: Vec::with_capacity(EVENTS_MAX),
            masked: [false; 256],
        }
    }

    pub(super) fn reset(&mut self) {
        self.requests.clear();
        self.waiting.clear();
        self.masked = [false; 256];
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Unmasks the events of a log page that was read.
    pub(super) fn unmask(&mut self, page: LogPageId) {
        self.masked[usize::from(page.0)] = false;
    }

    fn offer(&mut self, event: AsyncEvent) {
        if self.waiting.len() < EVENTS_MAX && !self.waiting.contains(&event) {
            self.waiting.push(event);
        }
    }

    /// Takes a pending request and the event that completes it.
    fn take(&mut self) -> Option<(Sqe, AsyncEvent)> {
        if self.requests.is_empty() {
            return None;
        }
        let masked = &mut self.masked;
        let free = |event: &AsyncEvent| !masked[usize::from(event.log_page().0)];
        let index = self.waiting.iter().position(free)?;
        let event = self.waiting.remove(index);
        masked[usize::from(event.log_page().0)] = true;
        Some((self.requests.remove(0), event))
    }

    /// Removes the request with this identifier.
    fn abort(&mut self, cid: u16) -> Option<Sqe> {
        let found = |sqe: &Sqe| sqe.cid.get() == cid;
        let index = self.requests.iter().position(found)?;
        Some(self.requests.remove(index))
    }
}

impl State {
    pub(super) fn request_event(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        if self.events.requests.len() == self.events.limit {
            return Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED.with_dnr().into();
        }
        self.events.requests.push(*sqe);
        self.report_events(bus);
        Outcome::Waiting
    }

    /// Reports an event, now or when the host sends the next event request.
    pub(super) fn raise(&mut self, bus: &Bus, event: AsyncEvent) {
        if !self.present || !self.registers.is_running() {
            return;
        }
        self.events.offer(event);
        self.report_events(bus);
    }

    pub(super) fn report_events(&mut self, bus: &Bus) {
        while self.runs(bus)
            && let Some((sqe, event)) = self.events.take()
        {
            let result = u64::from(event.into_bits());
            self.complete_with(bus, 0, &sqe, Status::SUCCESS, result);
        }
    }

    pub(super) fn abort_event_request(&mut self, bus: &Bus, cid: u16) -> bool {
        let Some(sqe) = self.events.abort(cid) else {
            return false;
        };
        self.complete_with(bus, 0, &sqe, Status::ABORT_REQUESTED, 0);
        true
    }

    pub(super) fn invalid_doorbell(&mut self, bus: &Bus, event: AsyncEvent) {
        self.counters.invalid_doorbells += 1;
        self.raise(bus, event);
    }
}
