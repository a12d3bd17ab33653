//! The listeners of one reactor by number, from their opening until the network has closed them.

use nvme_fabrics::ListenerTable;
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
    table: ListenerTable<ListenerState>,
}

impl Listeners {
    /// The number that [`insert`](Self::insert) gives to the next listener.
    pub(crate) fn next_index(&self) -> u16 {
        self.table.next_index()
    }

    /// Inserts an open listener of `port`.
    pub(crate) fn insert(&mut self, port: PortId) {
        self.table.insert(ListenerState::Open, port);
    }

    /// The port of that listener, if it is open.
    pub(crate) fn open_port(&self, index: u16) -> Option<PortId> {
        let (state, port) = self.table.get(index)?;
        (*state == ListenerState::Open).then_some(port)
    }

    /// The number and the port of each open listener.
    pub(crate) fn open(&mut self) -> impl Iterator<Item = (u16, PortId)> {
        let listeners = self.table.iter_mut();
        listeners.filter_map(|(index, state, port)| {
            (*state == ListenerState::Open).then_some((index, port))
        })
    }

    /// Begins to close the open listeners of the ports that `selects` selects; calls `close` for
    /// each.
    pub(crate) fn close(&mut self, selects: impl Fn(PortId) -> bool, mut close: impl FnMut(u16)) {
        for (index, state, port) in self.table.iter_mut() {
            if *state == ListenerState::Open && selects(port) {
                *state = ListenerState::Closing;
                close(index);
            }
        }
    }

    /// Removes a listener that is closed.
    pub(crate) fn remove(&mut self, index: u16) {
        self.table.remove(index);
    }

    /// Number of listeners that are not closed.
    pub(crate) fn len(&self) -> usize {
        self.table.ports().count()
    }

    /// Number of listeners of `port` that are not closed.
    pub(crate) fn count(&self, port: PortId) -> usize {
        self.table.ports().filter(|it| *it == port).count()
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
