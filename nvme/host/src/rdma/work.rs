//! Work request identifiers, and the number of requests that a completion retires.

/// The kind and index of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A receive into the response buffer of this index.
    Response(u16),
    /// The capsule of this slot was sent from memory, which it needs until then.
    Command(u16),
    /// The capsule of this slot was sent inline; the slot may belong to another command when it
    /// completes.
    Copied(u16),
    /// This side invalidated the key of this slot's window.
    Invalidation(u16),
    /// A window was bound for this slot. Completes only on failure.
    Binding(u16),
}

impl Work {
    /// A description for errors.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Response(_) => "receiving a response",
            Self::Command(_) | Self::Copied(_) => "sending a command",
            Self::Invalidation(_) => "invalidating a key",
            Self::Binding(_) => "binding a memory window",
        }
    }

    /// The identifier of the work request; its completion retires `retires` requests of the send
    /// queue.
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

    /// Decodes an identifier: the work, and the number of requests that it retires.
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

/// The occupancy of a send queue. An unsignalled request is retired when a later one completes.
#[derive(Debug)]
pub(crate) struct SendQueueUsage {
    entries: u16,
    used: u16,
    /// Requests since the last signalled one.
    unsignalled: u16,
    /// One request in `every` is signalled.
    every: u16,
}

impl SendQueueUsage {
    /// A send queue with `entries` entries.
    pub(crate) fn new(entries: u16) -> Self {
        Self {
            entries,
            used: 0,
            unsignalled: 0,
            every: (entries / 4).clamp(1, 64),
        }
    }

    /// Whether `wanted` more requests fit.
    pub(crate) fn have_room(&self, wanted: u16) -> bool {
        self.entries - self.used >= wanted
    }

    /// Takes an entry. If `must_signal` is set, or signalling is due, the request is signalled, and
    /// the number of requests that its completion retires is returned.
    pub(crate) fn take(&mut self, must_signal: bool) -> Option<u16> {
        self.used += 1;
        self.unsignalled += 1;
        if !must_signal && self.unsignalled < self.every && self.used < self.entries {
            return None;
        }
        Some(std::mem::take(&mut self.unsignalled))
    }

    /// Frees the entries that a completion retires.
    pub(crate) fn retire(&mut self, requests: u16) {
        debug_assert!(requests <= self.used, "more retired than posted");
        self.used = self.used.saturating_sub(requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_identifiers_round_trip() {
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
    fn a_full_send_queue_has_a_signalled_request() {
        for entries in 1..300 {
            let mut queue = SendQueueUsage::new(entries);
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
