//! Event requests beyond the limit, again and again, some of which are aborted, with other commands
//! between them (Base 2.1 §5.1.2).
//!
//! A request may be refused only where as many as the controller reported wait in front of it; those
//! stay, until an event or an Abort answers them or their controller goes. Of so many that one more
//! would be refused, one more is refused in time.

use nvme_spec::{Sqe, Status};

use super::connection::{Connection, Outstanding, Queue};
use super::{ADMIN_DEPTH, Command, Ground, Host, Phase};
use crate::judge::Violation;

/// Requests of one flood beyond the limit, at most.
const BEYOND_MAX: u64 = 6;

impl Queue {
    /// Event requests that wait in front of a place.
    pub(super) fn event_requests_before(&self, place: u64) -> usize {
        let waiting = self.outstanding.values().chain(self.twins.values());
        let requests = waiting.filter(|it| matches!(it.command, Command::EventRequest));
        requests.filter(|it| it.place < place).count()
    }
}

impl Host {
    /// Sends event requests, more than may wait most of the time, and aborts some.
    pub(super) fn flood_events(&mut self, ground: &mut Ground<'_>) -> Option<()> {
        let limit = self.admin_state.event_limit?;
        let count = self.random.between(1, limit as u64 + BEYOND_MAX);
        if let Some(admin) = &mut self.admin {
            admin.may_be_overtaken_by(u64::from(ADMIN_DEPTH));
        }
        for _ in 0..count {
            if !self.has_admin_room() {
                break;
            }
            self.ask_for_another_event(ground);
            if self.random.permille(300) {
                self.send_admin(ground, Sqe::keep_alive(), Command::KeepAlive);
            }
            if self.random.permille(200) {
                self.abort_event_request(ground);
            }
        }
        for _ in 0..self.random.below(4) {
            self.abort_event_request(ground);
        }
        Some(())
    }

    /// Event requests that wait, with their identifiers, in the order in which they were sent.
    fn event_requests(&self) -> Vec<(u16, &Outstanding)> {
        let admin = self.admin.iter().flat_map(Connection::outstanding);
        let requests = admin.filter(|(_, it)| matches!(it.command, Command::EventRequest));
        let mut requests: Vec<(u16, &Outstanding)> = requests.collect();
        requests.sort_by_key(|(_, it)| it.place);
        requests
    }

    fn abort_event_request(&mut self, ground: &mut Ground<'_>) -> Option<()> {
        let admin = self.admin.as_ref()?;
        let opened_at = admin.opened_at;
        let requests = self.event_requests();
        let alone = requests
            .into_iter()
            .filter(|(cid, _)| !admin.queue.twins.contains_key(cid));
        let alone: Vec<(u16, u64)> = alone.map(|(cid, it)| (cid, it.place)).collect();
        if alone.is_empty() || !self.has_admin_room() {
            return None;
        }
        let (cid, place) = self.random.pick(&alone);
        self.note_aborted_request(place);
        self.send_abort(ground, 0, cid, Some((0, opened_at, place)));
        Some(())
    }

    /// Whether a request must be answered in time: there are as many as may be in front of it, or an
    /// Abort says that it gave it up.
    pub(super) fn is_due(&self, outstanding: &Outstanding) -> bool {
        let (Some(admin), place) = (&self.admin, outstanding.place) else {
            return false;
        };
        let before = admin.queue.event_requests_before(place);
        let limit = self.admin_state.event_limit;
        let is_beyond_limit = limit.is_some_and(|limit| before >= limit);
        is_beyond_limit || self.is_given_up((0, admin.opened_at, place))
    }

    /// An event request was refused or given up.
    pub(super) fn event_request_failed(
        &mut self,
        ground: &mut Ground<'_>,
        outstanding: &Outstanding,
        status: Status,
    ) -> Result<(), Violation> {
        let is_serving = self.phase == Phase::Serving;
        let is_right = if status.is(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED) {
            let limit = self.admin_state.event_limit;
            limit.is_none_or(|limit| outstanding.waiting >= limit)
        } else if status.is(Status::ABORT_REQUESTED) {
            self.was_aborted(outstanding.place) || !is_serving
        } else {
            status.is(Status::COMMAND_SEQUENCE_ERROR)
        };
        if !is_right && !self.is_excused(ground, 0) {
            let before = outstanding.waiting;
            let what = format!("an event request was answered {status}, with {before} in front");
            return Err(self.violation(ground, &what));
        }
        if is_serving && self.event_requests().is_empty() {
            self.ask_for_events(ground);
        }
        Ok(())
    }
}
