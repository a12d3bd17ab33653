//! Hand-over of a controller.

use nvme_handover::{ControllerRecord, ControllerStateRecord};
use nvme_spec::log::CriticalWarning;
use nvme_spec::nqn::{DISCOVERY_NQN, validate_size};
use nvme_spec::registers::Cc;
use reactors::Nanos;

use super::events::Events;
use super::features::Features;
use super::{
    Controller, ControllerKind, ControllerState, HEALTH_INTERVAL, INACTIVITY_MAX,
    KEEP_ALIVE_IO_MAX_MS,
};
use crate::config::{IO_QUEUES_MAX, NAMESPACE_ID_MAX, QUEUE_DEPTH_MAX};
use crate::error_log::ErrorLog;
use crate::handover::{IN_CAPSULE_MAX_BYTES, device_name, device_place, transport_record};
use crate::reservations::notices::ReservationLog;
use crate::shares::ShareHolder;
use crate::view::TargetView;

/// Longest remaining time of a keep-alive timer: it may have been prolonged by one timeout.
const KEEP_ALIVE_REMAINING_MAX: Nanos = Nanos::from_millis(2 * KEEP_ALIVE_IO_MAX_MS as u64);

const _: () = assert!(INACTIVITY_MAX.as_nanos() <= KEEP_ALIVE_REMAINING_MAX.as_nanos());

/// The record of a state, unless the controller waits for something in it.
fn state_record(state: ControllerState) -> Option<ControllerStateRecord> {
    match state {
        ControllerState::Disabled => Some(ControllerStateRecord::Disabled),
        ControllerState::Ready => Some(ControllerStateRecord::Ready),
        ControllerState::ShutDown { ready: true } => Some(ControllerStateRecord::ShutDown),
        ControllerState::ShutDown { ready: false } => Some(ControllerStateRecord::ShutDownDisabled),
        ControllerState::ShutDownUnflushed => Some(ControllerStateRecord::ShutDownUnflushed),
        ControllerState::Failed => Some(ControllerStateRecord::Failed),
        ControllerState::Enabling
        | ControllerState::Resetting
        | ControllerState::ShuttingDown
        | ControllerState::Ended => None,
    }
}

fn restored_state(record: ControllerStateRecord) -> ControllerState {
    match record {
        ControllerStateRecord::Disabled => ControllerState::Disabled,
        ControllerStateRecord::Ready => ControllerState::Ready,
        ControllerStateRecord::ShutDown => ControllerState::ShutDown { ready: true },
        ControllerStateRecord::ShutDownDisabled => ControllerState::ShutDown { ready: false },
        ControllerStateRecord::ShutDownUnflushed => ControllerState::ShutDownUnflushed,
        ControllerStateRecord::Failed => ControllerState::Failed,
    }
}

/// The kind of a recorded controller.
pub(crate) fn kind_of(record: &ControllerRecord) -> ControllerKind {
    if record.subsystem_nqn == DISCOVERY_NQN {
        ControllerKind::Discovery
    } else {
        ControllerKind::Io
    }
}

/// Checks what a record states about a controller by itself.
///
/// # Errors
/// The first problem of the record.
pub(crate) fn check(record: &ControllerRecord) -> Result<(), &'static str> {
    if !record.host_nqn.is_empty() && validate_size(&record.host_nqn).is_err() {
        return Err("an invalid host NQN");
    }
    if !(2..=QUEUE_DEPTH_MAX).contains(&record.queue_depth_max) {
        return Err("an invalid limit of the queue size");
    }
    if record.io_queues_granted > IO_QUEUES_MAX {
        return Err("too many I/O queues");
    }
    if record.in_capsule_max_bytes > IN_CAPSULE_MAX_BYTES {
        return Err("too much in-capsule data");
    }
    let is_ready = record.state == ControllerStateRecord::Ready;
    if is_ready && !Cc::from_bits(record.cc).en() {
        return Err("a ready controller that is not enabled");
    }
    let mut changed = record.changed_namespaces.iter();
    if changed.any(|nsid| !(1..=NAMESPACE_ID_MAX).contains(nsid)) {
        return Err("a changed namespace with an invalid identifier");
    }
    Features::restored(&record.features, kind_of(record), Nanos::ZERO)?;
    Events::restored(&record.events, &record.event_requests, &mut || Some(0))?;
    ReservationLog::restored(&record.reservation_log)?;
    ErrorLog::check(&record.errors)
}

impl Controller {
    /// The record of this controller; `None` if it waits for devices, queues or its end.
    pub(crate) fn export(
        &self,
        view: &TargetView,
        share: &ShareHolder,
        now: Nanos,
    ) -> Option<ControllerRecord> {
        let (shared, identity) = (&self.shared, &self.shared.identity);
        if shared.ending().is_some()
            || shared.drain_requested().is_some()
            || shared.has_messages()
            || shared.gate().is_fenced()
            || self.known.epoch != view.epoch
        {
            return None;
        }
        let remaining = |at: Nanos| at.saturating_sub(now).as_nanos();
        Some(ControllerRecord {
            controller_id: identity.cntlid,
            subsystem_nqn: identity.subsystem_nqn.clone(),
            host_nqn: identity.host_nqn.clone(),
            host_id: identity.host_id,
            port: self.port.0,
            transport: transport_record(self.transport),
            target_address: self.target_address,
            // The registry adds it.
            host_address: None,
            share: share.export(),
            in_capsule_max_bytes: self.in_capsule_max,
            queue_depth_max: identity.queue_depth_max,
            io_queues_granted: shared.io_queues_granted(),
            state: state_record(self.state)?,
            cc: self.cc.into_bits(),
            features: self.features.export(now),
            events: self.events.export(),
            event_requests: self.events.export_requests(),
            reservation_log: self.reservation_log.export(),
            changed_namespaces: self.changed_namespaces.iter().copied().collect(),
            ana_changes: self.ana_changes,
            warnings: self.warnings.into_bits(),
            keep_alive_remaining_ns: self.keep_alive_deadline.map(remaining),
            was_prolonged: self.was_prolonged,
            health_remaining_ns: self.health_due_at.map(remaining),
            has_traffic: shared.has_traffic(),
            host_shutdown: shared.is_shut_down_by_host(),
            idle_ns: now.saturating_sub(shared.last_command()).as_nanos(),
            errors: shared.errors.export(|place| device_name(view, place)),
            closed_queues: (*shared.closed_queues()).into(),
        })
    }

    /// Continues from a record that [`check`] accepts. The time between the export and `now` does
    /// not count towards the keep-alive timeout, because the host could not be heard.
    ///
    /// # Errors
    /// The first problem of the record.
    pub(crate) fn restore(
        &mut self,
        record: &ControllerRecord,
        new_tag: &mut dyn FnMut() -> Option<u64>,
        exported_at: Nanos,
        now: Nanos,
    ) -> Result<(), &'static str> {
        let events = Events::restored(&record.events, &record.event_requests, new_tag)?;
        let features = Features::restored(&record.features, self.kind, exported_at)?;
        let reservation_log = ReservationLog::restored(&record.reservation_log)?;
        let shared = &self.shared;
        let known = &self.known;
        shared
            .errors
            .restore(&record.errors, |name| device_place(known, name))?;
        self.state = restored_state(record.state);
        self.cc = Cc::from_bits(record.cc);
        self.features = features;
        self.events = events;
        self.reservation_log = reservation_log;
        self.changed_namespaces = record.changed_namespaces.iter().copied().collect();
        self.ana_changes = record.ana_changes;
        self.warnings = CriticalWarning::from_bits(record.warnings);
        self.rearm(now);
        self.was_prolonged = record.was_prolonged;
        let at = |remaining: u64, longest: Nanos| now + Nanos(remaining).min(longest);
        if let Some(remaining) = record.keep_alive_remaining_ns {
            let deadline = at(remaining, KEEP_ALIVE_REMAINING_MAX);
            self.keep_alive_deadline = self.keep_alive_deadline.map(|_| deadline);
        }
        if let Some(remaining) = record.health_remaining_ns {
            let due_at = at(remaining, HEALTH_INTERVAL);
            self.health_due_at = self.health_due_at.map(|_| due_at);
        }
        let shared = &self.shared;
        shared.grant_io_queues(record.io_queues_granted);
        shared.set_write_through(self.features.is_write_through());
        shared.set_copies_namespaces(self.features.copies_namespaces());
        shared.set_awaits_event(self.events.has_requests());
        shared.note_command(now.saturating_sub(Nanos(record.idle_ns)));
        *shared.closed_queues() = record.closed_queues.into();
        if record.host_shutdown {
            shared.note_host_shutdown();
        }
        if record.has_traffic {
            shared.note_traffic();
        }
        shared.set_state_code(self.state.code());
        if self.state == ControllerState::Ready {
            shared.open_gate();
        }
        Ok(())
    }
}
