//! What happened, for people: the last [`EVENTS_MAX`] events, each of bounded length.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::model::{Event, Severity};

/// Events that are kept.
pub(crate) const EVENTS_MAX: usize = 1024;
/// Bytes of an event's subject and of its text, each.
pub(crate) const EVENT_TEXT_BYTES_MAX: usize = 512;

/// The list. Written by any thread but a reactor's.
#[derive(Default)]
pub(crate) struct Events(Mutex<List>);

#[derive(Default)]
struct List {
    last_id: u64,
    events: VecDeque<Event>,
}

impl Events {
    /// Adds an event; the oldest one makes room.
    pub(crate) fn add(&self, severity: Severity, what: &'static str, subject: &str, text: &str) {
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
        list.events.push_back(event);
    }

    /// The events behind the one with that number, oldest first.
    pub(crate) fn after(&self, id: u64) -> Vec<Event> {
        let list = self.lock();
        let later = list.events.iter().filter(|event| event.id > id);
        later.cloned().collect()
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
    fn the_oldest_makes_room_and_numbers_go_on() {
        let events = Events::default();
        for number in 0..EVENTS_MAX as u64 + 10 {
            events.add(Severity::Info, "host", "a", &number.to_string());
        }
        let kept = events.after(0);
        assert_eq!(kept.len(), EVENTS_MAX);
        assert_eq!((kept[0].id, kept[0].text.as_str()), (11, "10"));
        let last = kept.last().expect("many");
        assert_eq!(events.after(last.id), []);
        assert_eq!(events.after(last.id - 1), std::slice::from_ref(last));
        assert_eq!(events.after(u64::MAX), []);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let events = Events::default();
        events.add(
            Severity::Error,
            "host",
            &"語".repeat(1000),
            &"x".repeat(1 << 20),
        );
        let event = &events.after(0)[0];
        assert_eq!(event.subject, "語".repeat(EVENT_TEXT_BYTES_MAX / 3));
        assert_eq!(event.text.len(), EVENT_TEXT_BYTES_MAX);
    }
}
