//! Work request identifiers, and how many requests a completion retires.

/// What a work request of this host was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A receive into the response buffer of this index.
    Response(u16),
    /// The command of this slot was sent, from memory that it needs until then.
    Command(u16),
    /// A command was sent from a copy; its slot may be another command's by now.
    Copied(u16),
    /// The key of this slot's window was invalidated from this side.
    Invalidation(u16),
    /// A window was bound for this slot; completes only when it failed.
    Binding(u16),
}

impl Work {
    /// What it was, for errors.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Response(_) => "receiving a response",
            Self::Command(_) | Self::Copied(_) => "sending a command",
            Self::Invalidation(_) => "invalidating a key",
            Self::Binding(_) => "binding a memory window",
        }
    }

    /// The identifier; `retires` requests of the send queue are over with it.
    pub(crate) fn id(self, retires: u16) -> u64 {
        let (kind, index) = match self {
            Self::Response(index) => (0, index),
            Self::Command(index) => (1, index),
            Self::Invalidation(index) => (2, index),
            Self::Binding(index) => (3, index),
            Self::Copied(index) => (4, index),
        };
        kind << 32 | u64::from(retires) << 16 | u64::from(index)
    }

    /// The work of an identifier, and how many requests it retires.
    pub(crate) fn of(id: u64) -> (Self, u16) {
        let (index, retires) = (id as u16, (id >> 16) as u16);
        let work = match id >> 32 {
            0 => Self::Response(index),
            1 => Self::Command(index),
            2 => Self::Invalidation(index),
            3 => Self::Binding(index),
            _ => Self::Copied(index),
        };
        (work, retires)
    }
}

/// The places of a send queue: a request without a completion of its own is over when a later one
/// completes.
#[derive(Debug)]
pub(crate) struct SendPlaces {
    places: u16,
    used: u16,
    /// Requests since the last one that was signalled.
    unsignalled: u16,
    /// A request in so many is signalled.
    every: u16,
}

impl SendPlaces {
    /// Of a queue with `places` places.
    pub(crate) fn new(places: u16) -> Self {
        Self {
            places,
            used: 0,
            unsignalled: 0,
            every: (places / 4).clamp(1, 64),
        }
    }

    /// Whether `wanted` more requests fit.
    pub(crate) fn have_room(&self, wanted: u16) -> bool {
        self.places - self.used >= wanted
    }

    /// Takes a place. With `must_signal`, or when it is time, the request is signalled: then gives
    /// how many requests its completion retires.
    pub(crate) fn take(&mut self, must_signal: bool) -> Option<u16> {
        self.used += 1;
        self.unsignalled += 1;
        if !must_signal && self.unsignalled < self.every && self.used < self.places {
            return None;
        }
        Some(std::mem::take(&mut self.unsignalled))
    }

    /// A completion has retired so many.
    pub(crate) fn retire(&mut self, requests: u16) {
        debug_assert!(requests <= self.used, "more retired than posted");
        self.used = self.used.saturating_sub(requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_says_what_it_was() {
        for work in [
            Work::Response(0),
            Work::Command(65_535),
            Work::Copied(1),
            Work::Invalidation(7),
            Work::Binding(9),
        ] {
            for retires in [0, 1, 65_535] {
                assert_eq!(Work::of(work.id(retires)), (work, retires));
            }
        }
    }

    #[test]
    fn a_queue_never_fills_without_a_completion_to_come() {
        for places in 1..300 {
            let mut queue = SendPlaces::new(places);
            let mut signalled = std::collections::VecDeque::new();
            for round in 0..2000_u32 {
                while queue.have_room(1) {
                    signalled.extend(queue.take(round.is_multiple_of(3)));
                }
                let retired = signalled.pop_front();
                queue.retire(retired.expect("a completion is to come"));
            }
        }
    }
}
