//! Hand-over of asynchronous events.

use nvme_handover::{EventRecord, EventStateRecord};

use super::{EVENT_REQUESTS_MAX, EventRequest, EventState, Events, KINDS};

impl Events {
    /// The events that are pending or masked.
    pub(crate) fn export(&self) -> Vec<EventRecord> {
        let states = KINDS.iter().filter_map(|kind| {
            let state = match self.states[kind.index()] {
                EventState::Clear => return None,
                EventState::Pending => EventStateRecord::Pending,
                EventState::Reported => EventStateRecord::Reported,
            };
            let event = kind.event().into_bits();
            Some(EventRecord { event, state })
        });
        states.collect()
    }

    /// The command identifiers of the outstanding requests, oldest first.
    pub(crate) fn export_requests(&self) -> Vec<u16> {
        self.requests.iter().map(|it| it.command_id).collect()
    }

    /// Events as recorded, with the outstanding requests. `new_tag` returns a tag of the transport
    /// for each.
    ///
    /// # Errors
    /// The first problem of the records.
    pub(crate) fn restored(
        events: &[EventRecord],
        requests: &[u16],
        new_tag: &mut dyn FnMut() -> Option<u64>,
    ) -> Result<Self, &'static str> {
        let mut restored = Self::default();
        for record in events {
            let kind = KINDS
                .iter()
                .find(|it| it.event().into_bits() == record.event);
            let kind = kind.ok_or("an unknown event")?;
            restored.states[kind.index()] = match record.state {
                EventStateRecord::Pending => EventState::Pending,
                EventStateRecord::Reported => EventState::Reported,
            };
        }
        if requests.len() > EVENT_REQUESTS_MAX {
            return Err("too many event requests");
        }
        for command_id in requests {
            let tag = new_tag().ok_or("more event requests than its queue has entries")?;
            restored.requests.push(EventRequest {
                tag,
                command_id: *command_id,
            });
        }
        Ok(restored)
    }
}
