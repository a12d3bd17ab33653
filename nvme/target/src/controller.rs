//! One controller, owned by the core of its admin queue: configuration and status, features, events
//! and keep-alive.
//!
//! All of this is control path: it may allocate and take the registry's lock, and it accesses no
//! device. Actions outside the controller are returned as an [`Effect`].

mod ana_log;
pub(crate) mod discovery;
pub(crate) mod effects;
pub(crate) mod events;
pub(crate) mod features;
pub(crate) mod handover;
pub(crate) mod identify;
pub(crate) mod logs;
pub(crate) mod property;
pub(crate) mod smart;
pub(crate) mod state;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nvme_spec::log::CriticalWarning;
use nvme_spec::registers::Cc;
use reactors::Nanos;

use crate::config::{PortId, TransportKind};
use crate::counters::CoreCounters;
use crate::interface::{CloseReason, QueueId};
use crate::reservations::notices::ReservationLog;
use crate::shared::ControllerShared;
use crate::target::Target;
use crate::view::{SubsystemView, TargetView};
use events::{EventKind, Events};
use features::Features;
use state::{ControllerEvent, ControllerState, transition};

/// How long a controller may stay disabled, failed or shut down, or a discovery controller without
/// keep-alive may be idle, before its association ends (Base 2.1 §3.1.3.3: two minutes).
pub(crate) const INACTIVITY_MAX: Nanos = Nanos::from_secs(120);

/// Interval between health checks of the devices while a host has health events enabled.
pub(crate) const HEALTH_INTERVAL: Nanos = Nanos::from_secs(10);

/// Keep Alive Support: granularity of the timer in units of 100 ms (Base 2.1 §5.1.13.2.1, KAS).
pub(crate) const KEEP_ALIVE_GRANULARITY_100MS: u16 = 1;

/// Longest Keep Alive Timeout of an I/O controller in milliseconds: a host that has disappeared
/// does not keep its queues longer. 0, no timer, is accepted too, because the transport closes the
/// connection of a host that no longer acknowledges data.
pub(crate) const KEEP_ALIVE_IO_MAX_MS: u32 = 5 * 60 * 1000;

/// Longest Keep Alive Timeout of a discovery controller in milliseconds, no longer than one without
/// a timer may be idle.
pub(crate) const KEEP_ALIVE_DISCOVERY_MAX_MS: u32 = 2 * 60 * 1000;

const _: () = assert!(KEEP_ALIVE_DISCOVERY_MAX_MS as u64 <= INACTIVITY_MAX.as_millis());

/// The kind of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControllerKind {
    /// Serves namespaces.
    Io,
    /// Serves the discovery log.
    Discovery,
}

/// The environment in which a controller processes a command.
pub(crate) struct AdminContext<'a> {
    pub(crate) target: &'a Target,
    pub(crate) view: &'a TargetView,
    pub(crate) counters: &'a CoreCounters,
    pub(crate) now: Nanos,
}

/// An action outside of a controller that its state change requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// Abort waiting event requests and end the I/O queues.
    Reset,
    /// Flush the caches of the subsystem, then apply [`ControllerEvent::Flushed`] or
    /// [`ControllerEvent::FlushFailed`].
    Flush,
    /// Wait for the requests of the host's earlier associations, then apply
    /// [`ControllerEvent::OrphansDone`].
    AwaitOrphans,
}

/// How to disconnect an association that a changed configuration no longer permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum DisconnectMode {
    /// After the responses to its commands.
    AfterResponses(CloseReason),
    /// Immediately, because the subsystem of its commands no longer exists.
    Immediate(CloseReason),
}

/// Parameters of a new controller.
pub(crate) struct ControllerSetup {
    pub(crate) kind: ControllerKind,
    pub(crate) queue: QueueId,
    pub(crate) transport: TransportKind,
    pub(crate) port: PortId,
    /// The target's own address to which the host connected.
    pub(crate) target_address: Option<IpAddr>,
    pub(crate) in_capsule_max: u32,
    pub(crate) keep_alive_ms: u32,
    pub(crate) view: Arc<TargetView>,
    pub(crate) now: Nanos,
}

/// One controller.
pub(crate) struct Controller {
    pub(crate) shared: Arc<ControllerShared>,
    pub(crate) kind: ControllerKind,
    pub(crate) state: ControllerState,
    pub(crate) cc: Cc,
    pub(crate) features: Features,
    pub(crate) events: Events,
    pub(crate) queue: QueueId,
    pub(crate) transport: TransportKind,
    pub(crate) port: PortId,
    /// The target's own address to which the host connected.
    pub(crate) target_address: Option<IpAddr>,
    pub(crate) in_capsule_max: u32,
    /// Reservation notifications that the host has not read yet.
    reservation_log: ReservationLog,
    /// Namespaces that changed since the host last read the Changed Namespace List.
    pub(crate) changed_namespaces: BTreeSet<u32>,
    /// The last configuration for which the host was sent events.
    known: Arc<TargetView>,
    /// Changes of the ANA log since the last reset.
    pub(crate) ana_changes: u64,
    /// Health warnings at the last check.
    warnings: CriticalWarning,
    keep_alive_deadline: Option<Nanos>,
    /// Whether the running keep-alive timer was already prolonged because receiving had stalled.
    was_prolonged: bool,
    health_due_at: Option<Nanos>,
    /// Abort commands of one turn of the core: the turn and their number.
    aborts: (u32, u8),
}

/// Longest Keep Alive Timeout of a kind of controller in milliseconds. It is compared with the
/// value that the host requests. Both limits are multiples of the granularity, so the rounded value
/// stays within them.
pub(crate) fn keep_alive_max_ms(kind: ControllerKind) -> u32 {
    match kind {
        ControllerKind::Io => KEEP_ALIVE_IO_MAX_MS,
        ControllerKind::Discovery => KEEP_ALIVE_DISCOVERY_MAX_MS,
    }
}

/// A Keep Alive Timeout rounded up to the granularity, in milliseconds.
pub(crate) fn keep_alive_rounded_ms(milliseconds: u32) -> u64 {
    u64::from(milliseconds).next_multiple_of(u64::from(KEEP_ALIVE_GRANULARITY_100MS) * 100)
}

impl Controller {
    pub(crate) fn new(shared: Arc<ControllerShared>, setup: ControllerSetup) -> Self {
        let mut controller = Self {
            shared,
            kind: setup.kind,
            state: ControllerState::Disabled,
            cc: Cc::new(),
            features: Features::new(setup.keep_alive_ms, setup.now),
            events: Events::default(),
            queue: setup.queue,
            transport: setup.transport,
            port: setup.port,
            target_address: setup.target_address,
            in_capsule_max: setup.in_capsule_max,
            reservation_log: ReservationLog::default(),
            changed_namespaces: BTreeSet::new(),
            known: setup.view,
            ana_changes: 0,
            warnings: CriticalWarning::new(),
            keep_alive_deadline: None,
            was_prolonged: false,
            health_due_at: None,
            aborts: (0, 0),
        };
        controller.rearm(setup.now);
        controller
    }

    /// The subsystem, if it is still configured, as its host sees it. Discovery controllers have
    /// none.
    pub(crate) fn subsystem<'a>(&self, view: &'a TargetView) -> Option<&'a SubsystemView> {
        let identity = &self.shared.identity;
        let subsystem = view.subsystem(identity.subsystem)?;
        Some(subsystem.seen_by_host(&identity.host_nqn))
    }

    /// Changes the state and returns the effect.
    pub(crate) fn apply(&mut self, event: ControllerEvent, now: Nanos) -> Effect {
        let Some(state) = transition(self.state, event) else {
            return Effect::None;
        };
        let before = std::mem::replace(&mut self.state, state);
        self.shared.set_state_code(state.code());
        let effect = match state {
            ControllerState::Ready => {
                self.shared.open_gate();
                Effect::None
            }
            ControllerState::Resetting => {
                self.shared.reset_gate();
                self.features.reset(now);
                self.reservation_log.clear();
                self.ana_changes = 0;
                self.shared.set_write_through(false);
                self.shared.set_copies_namespaces(false);
                self.warnings = CriticalWarning::new();
                Effect::Reset
            }
            ControllerState::ShuttingDown => {
                self.shared.note_host_shutdown();
                self.shared.close_gate();
                Effect::Flush
            }
            ControllerState::ShutDown { .. }
            | ControllerState::ShutDownUnflushed
            | ControllerState::Failed => {
                self.shared.close_gate();
                Effect::None
            }
            ControllerState::Enabling => Effect::AwaitOrphans,
            ControllerState::Disabled | ControllerState::Ended => Effect::None,
        };
        tracing::debug!(
            cntlid = self.shared.identity.cntlid,
            ?before,
            after = ?state,
            "controller state"
        );
        self.rearm(now);
        effect
    }

    /// How long the host may be silent in the current state, and the reason for closing after that.
    fn keep_alive_limit(&self) -> Option<(Nanos, CloseReason)> {
        let keep_alive = Nanos::from_millis(keep_alive_rounded_ms(self.features.keep_alive_ms));
        match self.state {
            // Base 2.1 §3.9: the timer runs while the controller is enabled, ready and not shut
            // down.
            ControllerState::Ready if keep_alive > Nanos::ZERO => {
                Some((keep_alive, CloseReason::KeepAliveExpired))
            }
            // Base 2.1 §3.1.3.3: without keep-alive, an idle discovery controller ends.
            ControllerState::Ready if self.kind == ControllerKind::Discovery => {
                Some((INACTIVITY_MAX, CloseReason::Inactive))
            }
            ControllerState::Disabled
            | ControllerState::Enabling
            | ControllerState::Failed
            | ControllerState::ShutDown { .. }
            | ControllerState::ShutDownUnflushed => Some((INACTIVITY_MAX, CloseReason::Inactive)),
            ControllerState::Ready
            | ControllerState::Resetting
            | ControllerState::ShuttingDown
            | ControllerState::Ended => None,
        }
    }

    /// Whether health events are to be raised in the current state.
    pub(crate) fn watches_health(&self) -> bool {
        self.state == ControllerState::Ready && self.features.wants_health_events()
    }

    /// Restarts the timers for the current state and features.
    pub(crate) fn rearm(&mut self, now: Nanos) {
        self.restart_keep_alive(now);
        self.health_due_at = self.watches_health().then_some(now + HEALTH_INTERVAL);
    }

    /// Restarts the keep-alive timer after a Keep Alive command.
    pub(crate) fn restart_keep_alive(&mut self, now: Nanos) {
        self.was_prolonged = false;
        self.keep_alive_deadline = self.keep_alive_limit().map(|(span, _)| now + span);
    }

    /// When [`check_timers`](Self::check_timers) has to be called next.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        match (self.keep_alive_deadline, self.health_due_at) {
            (Some(keep_alive), Some(health)) => Some(keep_alive.min(health)),
            (one, other) => one.or(other),
        }
    }

    /// Checks the timers. A host that sent any command on any of its queues since the last check is
    /// alive (Base 2.1 §3.9, traffic based keep-alive: CTRATT.TBKAS is 1). A receive that was
    /// stalled at `receive_stalled_at` prolongs the timer by one timeout at most, so that a host
    /// that has disappeared does not keep its controller while other hosts exhaust the receive
    /// buffers.
    pub(crate) fn check_timers(
        &mut self,
        context: &AdminContext<'_>,
        receive_stalled_at: Option<Nanos>,
    ) -> Option<CloseReason> {
        let now = context.now;
        if self.health_due_at.is_some_and(|due| due <= now) {
            self.health_due_at = Some(now + HEALTH_INTERVAL);
            self.check_health(context);
        }
        if self.keep_alive_deadline.is_none_or(|end| end > now) {
            return None;
        }
        let (span, reason) = self.keep_alive_limit()?;
        if self.shared.take_traffic() {
            self.keep_alive_deadline = Some(now + span);
            self.was_prolonged = false;
            return None;
        }
        if let Some(kept_alive_until) = receive_stalled_at.map(|time| time + span)
            && kept_alive_until > now
            && !self.was_prolonged
        {
            self.was_prolonged = true;
            self.keep_alive_deadline = Some(kept_alive_until);
            return None;
        }
        self.keep_alive_deadline = None;
        Some(reason)
    }

    /// Raises health events for new warnings (Base 2.1 §5.1.2.1).
    pub(crate) fn check_health(&mut self, context: &AdminContext<'_>) {
        let Some(subsystem) = self.subsystem(context.view) else {
            return;
        };
        let warnings = smart::warnings(subsystem, context.target, &self.features);
        let before = std::mem::replace(&mut self.warnings, warnings);
        let configuration = self.features.async_events;
        if warnings.temperature() && !before.temperature() {
            self.events.raise(EventKind::Temperature, configuration);
        }
        if warnings.spare() && !before.spare() {
            self.events.raise(EventKind::Spare, configuration);
        }
        // Base 2.1 §5.1.2.1, NVM subsystem Reliability: one event for three warnings, each of which
        // the host enables separately.
        let reliability = warnings.reliability() && !before.reliability();
        let read_only = warnings.read_only() && !before.read_only();
        let backup_failed = warnings.backup_failed() && !before.backup_failed();
        if (reliability && configuration.reliability())
            || (read_only && configuration.read_only())
            || (backup_failed && configuration.backup_failed())
        {
            self.events.raise(EventKind::Reliability, configuration);
        }
    }

    /// Adds reservation notifications of other threads to the log, unless the host masks them (Base
    /// 2.1 §5.1.25.1.29). Returns whether there was one.
    pub(crate) fn adopt_reservation_notices(&mut self) -> bool {
        let mut is_changed = false;
        for notice in self.shared.take_notices().into_iter() {
            if self.features.masks(notice) {
                continue;
            }
            self.reservation_log.push(notice);
            is_changed = true;
        }
        if is_changed {
            let configuration = self.features.async_events;
            self.events.raise(EventKind::ReservationLog, configuration);
        }
        is_changed
    }

    /// Whether another Abort is permitted in this turn of the core. An Abort is outstanding until
    /// its response is sent at the end of the turn that received it, so all Aborts of one turn are
    /// outstanding together (Base 2.1 §5.1.1: more than ACL + 1 exceed the Abort Command Limit).
    pub(crate) fn permits_abort(&mut self, turn: u32) -> bool {
        let (last, count) = self.aborts;
        let count = if last == turn { count } else { 0 };
        self.aborts = (turn, count.saturating_add(1));
        count <= identify::ABORT_LIMIT_Z
    }

    /// Adopts a changed configuration: raises the resulting events, or returns how the association
    /// must be disconnected.
    pub(crate) fn adopt_view(&mut self, view: &Arc<TargetView>) -> Option<DisconnectMode> {
        let before = std::mem::replace(&mut self.known, Arc::clone(view));
        let configuration = self.features.async_events;
        if self.kind == ControllerKind::Discovery {
            let host = &self.shared.identity.host_nqn;
            if discovery::differs(&before, view, host, self.port) {
                self.events.raise(EventKind::DiscoveryLog, configuration);
            }
            let is_closed = before.port(self.port).is_some() && view.port(self.port).is_none();
            return is_closed.then_some(DisconnectMode::AfterResponses(CloseReason::Revoked));
        }
        let Some(subsystem) = view.subsystem(self.shared.identity.subsystem) else {
            return Some(DisconnectMode::Immediate(CloseReason::Revoked));
        };
        let allows = subsystem.allows(&self.shared.identity.host_nqn);
        if !allows || !subsystem.is_at(self.port) {
            return Some(DisconnectMode::AfterResponses(CloseReason::Revoked));
        }
        let before = before.subsystem(self.shared.identity.subsystem);
        if before.is_some_and(|before| std::ptr::eq(before, subsystem)) {
            return None;
        }
        if before.is_some_and(|before| !before.has_identity_of(subsystem)) {
            return Some(DisconnectMode::AfterResponses(CloseReason::Reconfigured));
        }
        let host = &self.shared.identity.host_nqn;
        let before = before.map(|before| before.seen_by_host(host));
        let subsystem = subsystem.seen_by_host(host);
        let highest = before
            .map_or(0, |old| old.namespaces.len())
            .max(subsystem.namespaces.len());
        let mut changed = false;
        // At most NAMESPACE_ID_MAX.
        for nsid in 1..=highest as u32 {
            let old = before.and_then(|old| old.namespace_config(nsid));
            let new = subsystem.namespace_config(nsid);
            if old != new {
                self.changed_namespaces.insert(nsid);
                changed = true;
            }
        }
        let ana_groups = |view: &SubsystemView| view.ana_groups(self.port);
        let ana_changed = before.is_some_and(|before| {
            let may_differ = changed || before.config.ana_states != subsystem.config.ana_states;
            may_differ && ana_groups(before) != ana_groups(subsystem)
        });
        if changed {
            self.events
                .raise(EventKind::NamespaceAttribute, configuration);
        }
        if ana_changed {
            self.ana_changes += 1;
            self.events.raise(EventKind::Ana, configuration);
        }
        None
    }
}
