//! The event list for people: the last [`EVENTS_MAX`] events, each of bounded length.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::model::{Event, Severity};
use super::pseudonyms::Pseudonyms;

/// Most events that are kept.
pub(crate) const EVENTS_MAX: usize = 1024;
/// Most bytes of an event's subject, and of its text.
pub(crate) const EVENT_TEXT_BYTES_MAX: usize = 512;

/// The list. Any thread except a reactor's may write to it.
#[derive(Default)]
pub(crate) struct Events(Mutex<List>);

#[derive(Default)]
struct List {
    last_id: u64,
    events: VecDeque<Entry>,
}

/// An event, as clients that may see hosts get it.
struct Entry {
    event: Event,
    /// For an event about a host: the text for all other clients.
    public_text: Option<String>,
}

impl Events {
    /// Adds an event that identifies no host; the oldest one is dropped if the list is full.
    pub(crate) fn add(&self, severity: Severity, what: &'static str, subject: &str, text: &str) {
        self.push(severity, what, subject, text, None);
    }

    /// Adds an event about the host with that NQN: `text`, and data that identifies the host in
    /// `details`.
    pub(crate) fn add_of_host(&self, severity: Severity, nqn: &str, text: &str, details: &str) {
        let full = format!("{text} {details}");
        self.push(severity, "host", nqn, &full, Some(shortened(text)));
    }

    fn push(
        &self,
        severity: Severity,
        what: &'static str,
        subject: &str,
        text: &str,
        public_text: Option<String>,
    ) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        let mut list = self.lock();
        list.last_id += 1;
        let event = Event {
            id: list.last_id,
            unix_ms,
            severity,
            what: what.to_owned(),
            subject: shortened(subject),
            text: shortened(text),
        };
        if list.events.len() == EVENTS_MAX {
            list.events.pop_front();
        }
        list.events.push_back(Entry { event, public_text });
    }

    /// The events after the one with that number, oldest first; with `pseudonyms` in place of data
    /// that identifies hosts, if given.
    pub(crate) fn after(&self, id: u64, pseudonyms: Option<&Pseudonyms>) -> Vec<Event> {
        let list = self.lock();
        let later = list.events.iter().filter(|entry| entry.event.id > id);
        let reported = later.map(|entry| {
            let mut event = entry.event.clone();
            if let (Some(pseudonyms), Some(text)) = (pseudonyms, &entry.public_text) {
                pseudonyms.apply_to_event(&mut event, text);
            }
            event
        });
        reported.collect()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(EVENT_TEXT_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_event_is_dropped_and_numbering_continues() {
        let events = Events::default();
        for number in 0..EVENTS_MAX as u64 + 10 {
            events.add(Severity::Info, "host", "a", &number.to_string());
        }
        let stored = events.after(0, None);
        assert_eq!(stored.len(), EVENTS_MAX);
        assert_eq!((stored[0].id, stored[0].text.as_str()), (11, "10"));
        let last = stored.last().expect("many");
        assert_eq!(events.after(last.id, None), []);
        assert_eq!(events.after(last.id - 1, None), std::slice::from_ref(last));
        assert_eq!(events.after(u64::MAX, None), []);
    }

    #[test]
    fn events_name_hosts_only_to_authorized_readers() {
        let (events, pseudonyms) = (Events::default(), Pseudonyms::new());
        events.add_of_host(Severity::Info, "nqn.a", "attached x", "(controller 7)");
        events.add(Severity::Info, "device", "ram", "is ready");
        let full = events.after(0, None);
        assert_eq!(
            (&*full[0].subject, &*full[0].text),
            ("nqn.a", "attached x (controller 7)")
        );
        let public = events.after(0, Some(&pseudonyms));
        assert_eq!(
            (&public[0].subject, &*public[0].text),
            (&pseudonyms.host("nqn.a"), "attached x")
        );
        assert_eq!(public[1], full[1]);
    }

    #[test]
    fn long_event_texts_are_cut_at_character_boundaries() {
        let events = Events::default();
        events.add(
            Severity::Error,
            "host",
            &"語".repeat(1000),
            &"x".repeat(1 << 20),
        );
        let event = &events.after(0, None)[0];
        assert_eq!(event.subject, "語".repeat(EVENT_TEXT_BYTES_MAX / 3));
        assert_eq!(event.text.len(), EVENT_TEXT_BYTES_MAX);
    }
}
