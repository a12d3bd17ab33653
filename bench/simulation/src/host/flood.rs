//! Floods of event requests beyond the limit, some of which are aborted, with other commands
//! between them (Base 2.1 §5.1.2).
//!
//! A request may be refused only if the reported limit of requests is outstanding before it. Those
//! stay outstanding until an event or an Abort completes them or their controller ends. A request
//! beyond the limit must be refused in time.

use nvme_spec::{Sqe, Status};

use super::connection::{Connection, Outstanding, Queue};
use super::{Command, Host, HostEnv, Phase};
use crate::judge::Violation;

/// Maximum number of requests of one flood beyond the limit.
const BEYOND_MAX: u64 = 6;

impl Queue {
    /// Number of outstanding event requests before a position.
    pub(super) fn event_requests_before(&self, position: u64) -> usize {
        let waiting = self.outstanding.values().chain(self.twins.values());
        let requests = waiting.filter(|it| matches!(it.command, Command::EventRequest));
        requests.filter(|it| it.position < position).count()
    }
}

impl Host {
    /// Sends event requests, usually more than the limit, and aborts some.
    pub(super) fn flood_events(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let limit = self.admin_state.event_limit?;
        let count = self.random.between(1, limit as u64 + BEYOND_MAX);
        for _ in 0..count {
            if !self.has_admin_room() {
                break;
            }
            self.ask_for_another_event(env);
            if self.random.permille(300) {
                self.send_admin(env, Sqe::keep_alive(), Command::KeepAlive);
            }
            if self.random.permille(200) {
                self.abort_event_request(env);
            }
        }
        for _ in 0..self.random.below(4) {
            self.abort_event_request(env);
        }
        Some(())
    }

    /// Outstanding event requests with their identifiers, in the order of submission.
    fn event_requests(&self) -> Vec<(u16, &Outstanding)> {
        let admin = self.admin.iter().flat_map(Connection::outstanding);
        let requests = admin.filter(|(_, it)| matches!(it.command, Command::EventRequest));
        let mut requests: Vec<(u16, &Outstanding)> = requests.collect();
        requests.sort_by_key(|(_, it)| it.position);
        requests
    }

    fn abort_event_request(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let admin = self.admin.as_ref()?;
        let opened_at = admin.opened_at;
        let requests = self.event_requests();
        let alone = requests
            .into_iter()
            .filter(|(cid, _)| !admin.queue.twins.contains_key(cid));
        let alone: Vec<(u16, u64)> = alone.map(|(cid, it)| (cid, it.position)).collect();
        if alone.is_empty() || !self.has_admin_room() {
            return None;
        }
        let (cid, position) = self.random.pick(&alone);
        self.note_aborted_request(position);
        self.send_abort(env, 0, cid, Some((0, opened_at, position)));
        Some(())
    }

    /// Whether a request must be completed in time: the limit of requests is outstanding before it,
    /// or an Abort reports that it aborted it.
    pub(super) fn is_due(&self, outstanding: &Outstanding) -> bool {
        let (Some(admin), position) = (&self.admin, outstanding.position) else {
            return false;
        };
        let before = admin.queue.event_requests_before(position);
        let limit = self.admin_state.event_limit;
        let is_beyond_limit = limit.is_some_and(|limit| before >= limit);
        is_beyond_limit || self.is_given_up((0, admin.opened_at, position))
    }

    /// Checks the failure of an event request that was refused or aborted.
    pub(super) fn event_request_failed(
        &mut self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
        status: Status,
    ) -> Result<(), Violation> {
        let is_serving = self.phase == Phase::ServedConfig;
        let is_right = if status.is(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED) {
            let limit = self.admin_state.event_limit;
            limit.is_none_or(|limit| outstanding.waiting >= limit)
        } else if status.is(Status::ABORT_REQUESTED) {
            self.was_aborted(outstanding.position) || !is_serving
        } else {
            status.is(Status::COMMAND_SEQUENCE_ERROR)
        };
        if !is_right && !self.is_excused(env, 0) {
            let before = outstanding.waiting;
            let what = format!("an event request completed with {status}, with {before} in front");
            return Err(self.violation(env, &what));
        }
        if is_serving && self.event_requests().is_empty() {
            self.ask_for_events(env);
        }
        Ok(())
    }
}
