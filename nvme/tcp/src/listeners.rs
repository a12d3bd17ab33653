//! The listeners of one reactor by number, from their opening until the network has closed them.

use nvme_target::PortId;

/// The state of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerState {
    /// Its connections are served.
    Open,
    /// It is being closed: connections that were accepted before are closed.
    Closing,
}

/// The port and the state of each listener. A number is used again after the network has reported
/// that its listener is closed, so a connection is never attributed to a later listener.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    entries: Vec<Option<(PortId, ListenerState)>>,
}

impl Listeners {
    /// The number that [`insert`](Self::insert) gives to the next listener.
    pub(crate) fn next_index(&self) -> u16 {
        let free = self.entries.iter().position(Option::is_none);
        free.unwrap_or(self.entries.len()) as u16
    }

    /// Inserts an open listener of `port`.
    pub(crate) fn insert(&mut self, port: PortId) {
        let index = usize::from(self.next_index());
        let entry = Some((port, ListenerState::Open));
        match self.entries.get_mut(index) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
    }

    /// The port of that listener, if it is open.
    pub(crate) fn open_port(&self, index: u16) -> Option<PortId> {
        match self.entries.get(usize::from(index)) {
            Some(Some((port, ListenerState::Open))) => Some(*port),
            _ => None,
        }
    }

    /// Begins to close the open listeners of the ports that `selects` selects; calls `close` for
    /// each.
    pub(crate) fn close(&mut self, selects: impl Fn(PortId) -> bool, mut close: impl FnMut(u16)) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if let Some((port, state @ ListenerState::Open)) = entry
                && selects(*port)
            {
                *state = ListenerState::Closing;
                close(index as u16);
            }
        }
    }

    /// Removes a listener that is closed.
    pub(crate) fn remove(&mut self, index: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            *entry = None;
        }
    }

    /// Number of listeners that are not closed.
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    /// Number of listeners of `port` that are not closed.
    pub(crate) fn count(&self, port: PortId) -> usize {
        let ports = self.entries.iter().flatten();
        ports.filter(|(it, _)| *it == port).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_listener_is_free_when_it_is_closed() {
        let mut listeners = Listeners::default();
        listeners.insert(PortId(0));
        listeners.insert(PortId(1));
        let mut closing = Vec::new();
        for _ in 0..2 {
            listeners.close(|port| port == PortId(0), |index| closing.push(index));
        }
        assert_eq!(closing, [0], "a listener is closed once");
        assert_eq!(
            (listeners.open_port(0), listeners.open_port(1)),
            (None, Some(PortId(1)))
        );
        assert_eq!(
            (
                listeners.next_index(),
                listeners.count(PortId(0)),
                listeners.len()
            ),
            (2, 1, 2)
        );
        listeners.remove(0);
        assert_eq!(
            (
                listeners.next_index(),
                listeners.count(PortId(0)),
                listeners.len()
            ),
            (0, 0, 1)
        );
        listeners.insert(PortId(2));
        assert_eq!(listeners.open_port(0), Some(PortId(2)));
    }
}
