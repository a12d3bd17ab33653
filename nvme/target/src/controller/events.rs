//! Asynchronous events of one controller: pending and reported events, and the requests that wait
//! for them.
//!
//! Base 2.1 §5.1.2: an event is reported once and then masked until the host reads the event's log
//! page with Retain Asynchronous Event cleared.

mod handover;

use arrayvec::ArrayVec;
use nvme_spec::command::LogPageId;
use nvme_spec::event::AsyncEvent;
use nvme_spec::features::AsyncEventConfiguration;

/// Asynchronous Event Requests that may be outstanding; AERL is one less (Base 2.1 §5.1.13.2.1).
pub(crate) const EVENT_REQUESTS_MAX: usize = 4;

/// The kinds of events that this target raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A device returned an internal error.
    InternalError,
    /// Health: reliability degraded, or media in read-only mode.
    Reliability,
    /// Health: a temperature threshold was crossed.
    Temperature,
    /// Health: the available spare fell below its threshold.
    Spare,
    /// Namespaces were added, removed or changed.
    NamespaceAttribute,
    /// The discovery log changed.
    DiscoveryLog,
    /// A Reservation Notification log page is available.
    ReservationLog,
    /// ANA states or groups changed.
    Ana,
}

/// All kinds, in the order in which they are reported.
const KINDS: [EventKind; 8] = [
    EventKind::InternalError,
    EventKind::Reliability,
    EventKind::Temperature,
    EventKind::Spare,
    EventKind::NamespaceAttribute,
    EventKind::DiscoveryLog,
    EventKind::ReservationLog,
    EventKind::Ana,
];

impl EventKind {
    const fn index(self) -> usize {
        match self {
            Self::InternalError => 0,
            Self::Reliability => 1,
            Self::Temperature => 2,
            Self::Spare => 3,
            Self::NamespaceAttribute => 4,
            Self::DiscoveryLog => 5,
            Self::ReservationLog => 6,
            Self::Ana => 7,
        }
    }

    /// Dword 0 of the completion (Base 2.1 §5.1.2.1).
    pub(crate) const fn event(self) -> AsyncEvent {
        match self {
            Self::InternalError => AsyncEvent::TRANSIENT_INTERNAL_ERROR,
            Self::Reliability => AsyncEvent::RELIABILITY,
            Self::Temperature => AsyncEvent::TEMPERATURE_THRESHOLD,
            Self::Spare => AsyncEvent::SPARE_BELOW_THRESHOLD,
            Self::NamespaceAttribute => AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED,
            Self::DiscoveryLog => AsyncEvent::DISCOVERY_LOG_CHANGED,
            Self::ReservationLog => AsyncEvent::RESERVATION_LOG_AVAILABLE,
            Self::Ana => AsyncEvent::ANA_CHANGED,
        }
    }

    /// Whether the host has enabled it (Base 2.1 §5.1.25.1.5). Error events cannot be disabled, and
    /// reservation notifications are masked one by one (Base 2.1 §5.1.25.1.29).
    const fn is_enabled(self, configuration: AsyncEventConfiguration) -> bool {
        match self {
            Self::InternalError | Self::ReservationLog => true,
            Self::Reliability => {
                configuration.reliability()
                    || configuration.read_only()
                    || configuration.backup_failed()
            }
            Self::Temperature => configuration.temperature(),
            Self::Spare => configuration.spare(),
            Self::NamespaceAttribute => configuration.namespace_attribute(),
            Self::DiscoveryLog => configuration.discovery_log(),
            Self::Ana => configuration.ana_change(),
        }
    }
}

/// The state of one kind of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EventState {
    /// No event.
    #[default]
    Clear,
    /// Raised; the next request reports it.
    Pending,
    /// Reported; masked until the log page is read.
    Reported,
}

/// An outstanding Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventRequest {
    pub(crate) tag: u64,
    pub(crate) command_id: u16,
}

/// The result of a new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// It completes immediately with this event.
    Event(AsyncEvent),
    /// It waits.
    Held,
    /// The limit of outstanding requests is reached.
    LimitExceeded,
}

/// The events of one controller.
#[derive(Debug, Default)]
pub(crate) struct Events {
    states: [EventState; KINDS.len()],
    requests: ArrayVec<EventRequest, EVENT_REQUESTS_MAX>,
}

impl Events {
    /// Raises an event. Suppressed while an event of its kind is pending or masked, because the
    /// host still has to read the log page that shows it.
    pub(crate) fn raise(&mut self, kind: EventKind, configuration: AsyncEventConfiguration) {
        let state = &mut self.states[kind.index()];
        if *state == EventState::Clear && kind.is_enabled(configuration) {
            *state = EventState::Pending;
        }
    }

    /// The next event that a waiting request can report.
    pub(crate) fn next_report(&mut self) -> Option<(EventRequest, AsyncEvent)> {
        if self.requests.is_empty() {
            return None;
        }
        let event = self.take_pending()?;
        // The oldest request completes first.
        Some((self.requests.remove(0), event))
    }

    /// Handles a new request.
    pub(crate) fn request(&mut self, request: EventRequest) -> RequestOutcome {
        if let Some(event) = self.take_pending() {
            return RequestOutcome::Event(event);
        }
        match self.requests.try_push(request) {
            Ok(()) => RequestOutcome::Held,
            Err(_) => RequestOutcome::LimitExceeded,
        }
    }

    fn take_pending(&mut self) -> Option<AsyncEvent> {
        let pending = |kind: &&EventKind| self.states[kind.index()] == EventState::Pending;
        let kind = *KINDS.iter().find(pending)?;
        self.states[kind.index()] = EventState::Reported;
        Some(kind.event())
    }

    /// Unmasks the events of a log page that the host read without retaining them.
    pub(crate) fn log_read(&mut self, page: LogPageId) {
        for kind in KINDS {
            if kind.event().log_page() == page {
                self.states[kind.index()] = EventState::Clear;
            }
        }
    }

    /// Whether a request is outstanding.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Removes and returns an outstanding request by its command identifier.
    pub(crate) fn abort(&mut self, command_id: u16) -> Option<EventRequest> {
        let index = self
            .requests
            .iter()
            .position(|request| request.command_id == command_id)?;
        Some(self.requests.remove(index))
    }

    /// Clears all events and returns the outstanding requests.
    pub(crate) fn reset(&mut self) -> ArrayVec<EventRequest, EVENT_REQUESTS_MAX> {
        std::mem::take(self).requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: AsyncEventConfiguration = AsyncEventConfiguration::new()
        .with_namespace_attribute(true)
        .with_temperature(true);

    fn request(command_id: u16) -> EventRequest {
        EventRequest {
            tag: u64::from(command_id),
            command_id,
        }
    }

    /// Base 2.1 §5.1.2: reported once, masked until the log is read, then raised again.
    #[test]
    fn an_event_is_masked_until_its_log_is_read() {
        let mut events = Events::default();
        assert_eq!(events.request(request(1)), RequestOutcome::Held);
        assert_eq!(events.request(request(2)), RequestOutcome::Held);
        assert_eq!(events.next_report(), None);
        events.raise(EventKind::NamespaceAttribute, ALL);
        let event = AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED;
        assert_eq!(events.next_report(), Some((request(1), event)));
        events.raise(EventKind::NamespaceAttribute, ALL);
        assert_eq!(events.next_report(), None, "masked");
        events.log_read(LogPageId::SMART_HEALTH);
        events.raise(EventKind::NamespaceAttribute, ALL);
        assert_eq!(
            events.next_report(),
            None,
            "another page's reading changes nothing"
        );
        events.log_read(LogPageId::CHANGED_ATTACHED_NAMESPACES);
        assert_eq!(
            events.next_report(),
            None,
            "reading the page reports nothing by itself"
        );
        events.raise(EventKind::NamespaceAttribute, ALL);
        assert_eq!(events.next_report(), Some((request(2), event)));
    }

    /// Base 2.1 §5.1.2: without a request an event stays pending, and reading its log clears it.
    #[test]
    fn an_event_stays_pending_until_a_request_arrives() {
        let mut events = Events::default();
        events.raise(EventKind::Temperature, ALL);
        let event = AsyncEvent::TEMPERATURE_THRESHOLD;
        assert_eq!(events.request(request(1)), RequestOutcome::Event(event));
        events.log_read(LogPageId::SMART_HEALTH);
        events.raise(EventKind::Temperature, ALL);
        events.log_read(LogPageId::SMART_HEALTH);
        assert_eq!(events.request(request(2)), RequestOutcome::Held);
    }

    /// Base 2.1 §5.1.25.1.5: an event that the host did not enable is not reported.
    #[test]
    fn disabled_events_are_not_reported() {
        let mut events = Events::default();
        let none = AsyncEventConfiguration::new();
        for kind in KINDS
            .into_iter()
            .filter(|it| *it != EventKind::ReservationLog)
        {
            events.raise(kind, none);
        }
        let event = AsyncEvent::TRANSIENT_INTERNAL_ERROR;
        assert_eq!(events.request(request(1)), RequestOutcome::Event(event));
        assert_eq!(events.request(request(2)), RequestOutcome::Held);
    }

    /// Base 2.1 §5.1.2: requests beyond AERL are refused.
    #[test]
    fn event_requests_beyond_aerl_are_refused() {
        let mut events = Events::default();
        for id in 0..4 {
            assert_eq!(events.request(request(id)), RequestOutcome::Held);
        }
        assert_eq!(events.request(request(4)), RequestOutcome::LimitExceeded);
        assert_eq!(events.abort(2), Some(request(2)));
        assert_eq!(events.abort(2), None);
        assert_eq!(events.request(request(4)), RequestOutcome::Held);
        assert_eq!(events.reset().len(), 4);
        assert_eq!(events.request(request(5)), RequestOutcome::Held);
    }

    #[test]
    fn event_kinds_have_distinct_indices() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
        }
    }
}
