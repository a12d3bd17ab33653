//! Asynchronous events: a host waits for them and reads their log pages (Base 2.1 §5.1.2).
//!
//! Some hosts leave no request outstanding for a while, read log pages late, or read them first
//! with Retain Asynchronous Event. A pending event remains pending, is reported once, and stays
//! masked until its page is read without that bit.

use std::collections::{BTreeMap, BTreeSet};

use nvme_spec::command::{LogPageId, LogPageSelect};
use nvme_spec::event::{AsyncEvent, EventType};
use nvme_spec::log::ChangedNamespaces;
use nvme_spec::{Cqe, Sqe};
use reactors::Nanos;
use zerocopy::FromBytes;

use super::connection::{Connection, Outstanding, Transfer};
use super::{Command, Host, HostEnv};
use crate::environment::CHANGING;
use crate::faults::Fault;
use crate::judge::Violation;

/// Bytes of a log page to read in order to clear an event.
pub(super) const LOG_BYTES: usize = 4096;
/// Maximum time from an event request to a pending event.
pub(super) const EVENT_MAX: Nanos = Nanos::from_secs(2);
/// Maximum delay of the next request or of reading a log page by a slow host.
const SLOW_MAX: Nanos = Nanos::from_millis(1500);

/// A log page to read because of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventLog {
    pub(super) page: LogPageId,
    /// Whether its events stay masked.
    pub(super) retains: bool,
}

/// The event state of a host.
#[derive(Default)]
pub(super) struct EventState {
    /// A namespace event was reported, but its log page was not read yet.
    unread: bool,
    /// When a namespace event must have been reported, if a request was outstanding.
    due: Option<Nanos>,
    /// When the last request was sent.
    asked_at: Nanos,
    /// When the next request is sent.
    ask_at: Option<Nanos>,
    /// When a log page is read.
    read_at: Option<(Nanos, EventLog)>,
    /// Reported events whose pages were not read yet.
    masked: BTreeMap<u32, LogPageId>,
    /// Disks whose namespaces a change in progress may change.
    changing: BTreeSet<usize>,
    /// Disks with changed namespaces, and when the change ended: the list must contain them.
    changed: BTreeMap<usize, Nanos>,
    /// When the list was last read and cleared.
    listed_at: Nanos,
    /// Aborted event requests, by their positions in the admin queue.
    aborted: BTreeSet<u64>,
}

impl Host {
    /// Sends an event request.
    pub(super) fn ask_for_events(&mut self, env: &mut HostEnv<'_>) {
        if self.send_admin(env, Sqe::async_event_request(), Command::EventRequest) {
            self.events.asked_at = env.now;
        }
    }

    /// Sends an event request, even if others are outstanding.
    pub(super) fn ask_for_another_event(&mut self, env: &mut HostEnv<'_>) {
        match self.awaits_event() {
            true => {
                self.send_admin(env, Sqe::async_event_request(), Command::EventRequest);
            }
            false => self.ask_for_events(env),
        }
    }

    /// Notes that an event request is about to be aborted.
    pub(super) fn note_aborted_request(&mut self, position: u64) {
        self.events.aborted.insert(position);
    }

    /// Whether an event request may have been aborted.
    pub(super) fn was_aborted(&self, position: u64) -> bool {
        self.events.aborted.contains(&position)
    }

    /// Starts an association: changed namespaces are listed from now on.
    pub(super) fn begin_events(&mut self, now: Nanos) {
        self.events = EventState {
            listed_at: now,
            ..EventState::default()
        };
        self.begin_ana(now);
        self.reset_notices(now);
    }

    /// Forgets the expected event: a reset drops the events that a controller has not reported.
    pub(super) fn forget_due_event(&mut self) {
        self.events.due = None;
        self.forget_due_ana_event();
        self.forget_due_notice();
    }

    /// Resets the event state: a reset drops pending events and masks.
    pub(super) fn reset_events(&mut self) {
        self.events.due = None;
        self.events.unread = false;
        self.events.masked.clear();
        self.events.ask_at = None;
        self.events.read_at = None;
    }

    /// The next time at which it acts for its events.
    pub(super) fn next_event_step(&self) -> Option<Nanos> {
        let read_at = self.events.read_at.map(|(at, _)| at);
        [self.events.ask_at, read_at, self.next_notice_step()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Performs the steps that are due.
    pub(super) fn run_event_steps(&mut self, env: &mut HostEnv<'_>) {
        if self.events.ask_at.is_some_and(|at| at <= env.now) {
            self.events.ask_at = None;
            self.ask_for_events(env);
        }
        if let Some((at, log)) = self.events.read_at
            && at <= env.now
        {
            self.events.read_at = None;
            self.read_event_log(env, log);
        }
        self.run_notice_step(env);
    }

    fn awaits_event(&self) -> bool {
        let mut admin = self.admin.iter().flat_map(Connection::outstanding);
        admin.any(|(_, it)| matches!(it.command, Command::EventRequest))
    }

    /// Handles a reported event or an aborted event request.
    pub(super) fn event(
        &mut self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        if !cqe.status().is_success() {
            return self.event_request_failed(env, outstanding, cqe.status());
        }
        // The host has ended the association at a completion that arrived together with this one.
        if self.admin.is_none() {
            return Ok(());
        }
        let event = AsyncEvent::from_bits(cqe.dw0.get());
        let (kind, page) = (event.event_type(), event.log_page());
        let mut reads_now = true;
        if event == AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED {
            self.events.due = None;
        } else if event == AsyncEvent::ANA_CHANGED && env.swarm.faults.has(Fault::Ana) {
            self.ana_event(env)?;
        } else if event == AsyncEvent::RESERVATION_LOG_AVAILABLE {
            reads_now = self.note_notice_event(env.now);
        } else if kind == EventType::NOTICE {
            let what = format!("an event notice that was not enabled: {event:?}");
            return Err(self.violation(env, &what));
        } else if kind == EventType::ERROR
            && !env.disk_failed
            && !env.disk_fails.contains(&true)
            && env.swarm.disk_behaviour.flush_error_permille == 0
        {
            return Err(self.violation(env, "an error event without an error"));
        }
        if self.events.masked.insert(event.into_bits(), page).is_some() {
            let what = format!("{event:?} is reported again before its log page was read");
            return Err(self.violation(env, &what));
        }
        self.events.unread |= page == LogPageId::CHANGED_ATTACHED_NAMESPACES;
        let slow = env.swarm.faults.has(Fault::Deaf);
        let log = EventLog {
            page,
            retains: slow && self.random.permille(300),
        };
        if !reads_now {
            // It reads the log later.
        } else if slow && self.events.read_at.is_none() && self.random.permille(400) {
            self.events.read_at = Some((self.later(env.now), log));
        } else {
            self.read_event_log(env, log);
        }
        if slow && self.random.permille(600) {
            self.events.ask_at = Some(self.later(env.now));
        } else {
            self.ask_for_events(env);
        }
        Ok(())
    }

    fn later(&mut self, now: Nanos) -> Nanos {
        now + Nanos(self.random.below(SLOW_MAX.as_nanos()))
    }

    pub(super) fn read_event_log(&mut self, env: &mut HostEnv<'_>, log: EventLog) {
        let select = LogPageSelect::new()
            .with_lid(log.page)
            .with_rae(log.retains)
            .with_numd_z((LOG_BYTES / 4 - 1) as u32);
        let sqe = Sqe::log_page(nvme_spec::NSID_BROADCAST, select, 0);
        let command = Command::ReadLog(log);
        let sent = self.send_admin_moving(env, sqe, command, Transfer::In(LOG_BYTES));
        if sent && !log.retains {
            self.unmask(log.page);
            if log.page == LogPageId::ANA {
                self.note_ana_read();
            }
            if log.page == LogPageId::RESERVATION_NOTIFICATION {
                self.note_notice_read();
            }
        }
    }

    /// Notes that the events of a log page may be reported again.
    pub(super) fn unmask(&mut self, read: LogPageId) {
        self.events.masked.retain(|_, page| *page != read);
    }

    /// Handles a log page that was read because of an event.
    pub(super) fn log_read(
        &mut self,
        env: &mut HostEnv<'_>,
        log: EventLog,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        if log.page == LogPageId::CHANGED_ATTACHED_NAMESPACES {
            self.check_changed(env, log, outstanding)?;
        }
        if log.page == LogPageId::ANA {
            self.ana_log_read(env, log, outstanding)?;
        }
        if log.page == LogPageId::RESERVATION_NOTIFICATION {
            self.notice_read(env, log, outstanding)?;
        }
        if log.retains {
            let log = EventLog {
                retains: false,
                ..log
            };
            // The event stays masked until then, whatever else changes.
            self.events.read_at = Some((self.later(env.now), log));
        } else if log.page == LogPageId::CHANGED_ATTACHED_NAMESPACES {
            self.identify(env, false);
            self.events.unread = false;
        }
        Ok(())
    }

    /// Compares the Changed Attached Namespace List with the changes since it was last read (Base
    /// 2.1 §5.1.12.1.5).
    fn check_changed(
        &mut self,
        env: &mut HostEnv<'_>,
        log: EventLog,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let Ok((list, _)) = ChangedNamespaces::read_from_prefix(&outstanding.data) else {
            return Err(self.violation(env, "a log page is shorter than requested"));
        };
        let listed: Vec<u32> = list.0.iter().collect();
        if !listed.is_sorted_by(|one, next| one < next) {
            let what = format!("the changed namespaces are out of order: {listed:?}");
            return Err(self.violation(env, &what));
        }
        let disks = 0..env.swarm.disks.len();
        let is_listed = |disk: usize| listed.contains(&self.nsid(env, disk));
        let are_listed: Vec<bool> = disks.map(is_listed).collect();
        let is_listed = |disk: usize| are_listed[disk];
        let issued_at = outstanding.issued_at;
        let mut changed = self.events.changed.iter();
        let missing = changed.find(|(disk, over_at)| **over_at < issued_at && !is_listed(**disk));
        if let Some(disk) = missing.map(|(disk, _)| *disk) {
            let what = format!("disk {disk} changed, and is not in {listed:?}");
            return Err(self.violation(env, &what));
        }
        // The target may know earlier about a device that was pulled out.
        let faults = env.swarm.faults;
        let may_be_gone = faults.has(Fault::Removal) || faults.has(Fault::Drive);
        let since = self.events.listed_at;
        let stale = {
            let mut disks = env.swarm.disks_of(self.shape.subsystem);
            let identity = self.shape.identity;
            disks.find(|disk| is_listed(*disk) && env.changed_at(identity, *disk) < since)
        };
        if let Some(disk) = stale.filter(|_| !may_be_gone) {
            let what = format!("disk {disk} did not change, and is in {listed:?}");
            return Err(self.violation(env, &what));
        }
        let hidden = {
            let mut disks = env.swarm.disks_of(self.shape.subsystem);
            disks.find(|disk| is_listed(*disk) && self.is_hidden_since(env, *disk, since))
        };
        // A swap gives a hidden disk the identifier of one that was visible.
        let swaps = env.swarm.faults.has(Fault::Swap);
        if let Some(disk) = hidden.filter(|_| !swaps) {
            let what = format!("disk {disk} is hidden, and is in {listed:?}");
            return Err(self.violation(env, &what));
        }
        if !log.retains {
            self.events.changing.retain(|disk| !is_listed(*disk));
            self.events.changed.retain(|disk, _| !is_listed(*disk));
            self.events.listed_at = issued_at;
        }
        Ok(())
    }

    /// Expects a namespace event: a disk's namespace is added, removed or changed, and a host in
    /// service must be notified.
    pub fn expect_namespace_event(&mut self, disk: usize, by: Nanos) {
        if !self.is_serving() {
            return;
        }
        self.events.changing.insert(disk);
        let admin = self.admin.as_ref();
        let calm = admin.is_some_and(|admin| admin.queue.disturbed_until == Nanos::ZERO);
        if calm && !self.events.unread {
            self.events.due.get_or_insert(by);
        }
    }

    /// Notes the end of a change: its event is reported by `by`, or nothing was changed.
    pub fn changed_by(&mut self, now: Nanos, by: Option<Nanos>) {
        if self.events.due == Some(CHANGING) {
            self.events.due = by;
        }
        for disk in std::mem::take(&mut self.events.changing) {
            if by.is_some() {
                self.events.changed.insert(disk, now);
            }
        }
    }

    /// Checks that an event is reported in time if a request is outstanding.
    pub(super) fn check_event(&mut self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        let asked_by = self.events.asked_at + EVENT_MAX;
        let late = self.events.due.is_some_and(|due| due < env.now);
        if late && self.awaits_event() && asked_by < env.now && !self.is_leaving(env) {
            return Err(self.violation(env, "no event reports the changed namespace"));
        }
        let late = self.lacks_ana_event(env.now);
        if late && self.awaits_event() && asked_by < env.now && !self.is_leaving(env) {
            return Err(self.violation(env, "no event reports the changed ANA state"));
        }
        let late = self.lacks_notice_event(env.now);
        if late && self.awaits_event() && asked_by < env.now && !self.is_leaving(env) {
            return Err(self.violation(env, "no event reports a reservation notification"));
        }
        Ok(())
    }
}
