//! The ports of a transport on one reactor: its listeners, and the control messages that add,
//! change and close ports at run time.

use std::sync::mpsc::Sender;

use nvme_target::PortId;
use reactors::Nanos;
use reactors::ring::Receiver;

/// A control message to one reactor's part of a transport. The transport reports completion to the
/// sender, which may have stopped waiting.
///
/// `L` is what the transport listens with, `S` its settings for the hosts of a port, `A` the
/// result of listening, and `H` a message about its hand-over to a new process.
#[derive(Debug)]
pub enum ListenerMessage<L, S, A, H = NoHandover> {
    /// Accept connections on a port.
    Listen {
        /// The listener.
        listener: L,
        /// The port.
        port: PortId,
        /// Receives the result.
        reply: Sender<A>,
    },
    /// Apply these settings to the hosts of these ports, and the defaults to hosts of other ports.
    Settings {
        /// The settings for the hosts of each port.
        ports: Vec<(PortId, S)>,
        /// Receives the confirmation.
        reply: Sender<()>,
    },
    /// Accept no more connections on a port, and close the existing ones.
    Close {
        /// The port.
        port: PortId,
        /// Receives the confirmation that no connection is left.
        reply: Sender<()>,
    },
    /// Hand over to a new process, or continue what an earlier one has handed over.
    Handover(H),
}

/// The messages of a transport whose connections belong to the process.
#[derive(Clone, Copy, Debug)]
pub enum NoHandover {}

/// The control messages that a reactor's part of a transport has to carry out.
#[derive(Debug)]
pub struct PortControl<L, S, A, H = NoHandover> {
    messages: Option<Receiver<ListenerMessage<L, S, A, H>>>,
    /// Ports whose connections are being closed, with the senders to notify.
    closing: Vec<(PortId, Sender<()>)>,
}

impl<L, S, A, H> Default for PortControl<L, S, A, H> {
    fn default() -> Self {
        Self {
            messages: None,
            closing: Vec::new(),
        }
    }
}

impl<L: Send, S: Send, A: Send, H: Send> PortControl<L, S, A, H> {
    /// Receives control messages from `messages` from now on. Their sender wakes this reactor.
    pub fn receive_from(&mut self, messages: Receiver<ListenerMessage<L, S, A, H>>) {
        self.messages = Some(messages);
    }

    /// Whether a control message waits.
    #[must_use]
    pub fn has_messages(&self) -> bool {
        self.messages.as_ref().is_some_and(|it| !it.is_empty())
    }
}

/// The control messages of a transport.
pub type ControlOf<T> = PortControl<
    <T as Ports>::Listener,
    <T as Ports>::Settings,
    <T as Ports>::Reply,
    <T as Ports>::Handover,
>;

/// A control message to a transport.
pub type MessageOf<T> = ListenerMessage<
    <T as Ports>::Listener,
    <T as Ports>::Settings,
    <T as Ports>::Reply,
    <T as Ports>::Handover,
>;

/// A transport whose ports can be changed at run time.
pub trait Ports {
    /// What the transport listens with.
    type Listener: Send;
    /// The settings for the hosts of a port.
    type Settings: Send;
    /// The result of listening.
    type Reply: Send;
    /// A message about its hand-over to a new process.
    type Handover: Send;

    /// The transport's control messages.
    fn port_control(&mut self) -> &mut ControlOf<Self>;
    /// Accepts connections on `port`.
    fn open_port(&mut self, listener: Self::Listener, port: PortId) -> Self::Reply;
    /// Applies settings to hosts that connect from now on.
    fn set_ports(&mut self, ports: Vec<(PortId, Self::Settings)>);
    /// Accepts no more connections on `port`.
    fn stop_listening(&mut self, port: PortId);
    /// Closes the connections of `port`. Returns how many are open; called again until none is.
    fn close_connections(&mut self, port: PortId, now: Nanos) -> usize;
    /// Carries out a message about its hand-over.
    fn hand_over(&mut self, message: Self::Handover, now: Nanos);

    /// Carries out pending control messages; returns their number.
    #[inline]
    fn poll_ports(&mut self, now: Nanos) -> u32 {
        let mut handled = 0;
        while let Some(message) = self
            .port_control()
            .messages
            .as_mut()
            .and_then(Receiver::recv)
        {
            self.handle_message(message, now);
            handled += 1;
        }
        if !self.port_control().closing.is_empty() {
            self.close_ports(now);
        }
        handled
    }

    /// Carries out one control message.
    fn handle_message(&mut self, message: MessageOf<Self>, now: Nanos) {
        // A send fails if the sender of the message has stopped waiting, which is no error.
        match message {
            ListenerMessage::Listen {
                listener,
                port,
                reply,
            } => {
                let _ = reply.send(self.open_port(listener, port));
            }
            ListenerMessage::Settings { ports, reply } => {
                self.set_ports(ports);
                let _ = reply.send(());
            }
            ListenerMessage::Close { port, reply } => {
                self.stop_listening(port);
                self.port_control().closing.push((port, reply));
            }
            ListenerMessage::Handover(message) => self.hand_over(message, now),
        }
    }

    /// Closes the connections of closing ports, and reports ports that have none left.
    fn close_ports(&mut self, now: Nanos) {
        let mut closing = std::mem::take(&mut self.port_control().closing);
        closing.retain(|(port, reply)| {
            let is_open = self.close_connections(*port, now) > 0;
            if !is_open {
                let _ = reply.send(());
            }
            is_open
        });
        self.port_control().closing = closing;
    }
}

/// The listeners of one reactor, by number. A listener that fails is tried again later.
#[derive(Debug)]
pub struct ListenerTable<L> {
    entries: Vec<Option<Listening<L>>>,
}

#[derive(Debug)]
struct Listening<L> {
    listener: L,
    port: PortId,
    retry_at: Option<Nanos>,
}

impl<L> Default for ListenerTable<L> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

impl<L> ListenerTable<L> {
    /// The number that [`insert`](Self::insert) gives to the next listener.
    #[must_use]
    pub fn next_index(&self) -> u16 {
        let free = self.entries.iter().position(Option::is_none);
        free.unwrap_or(self.entries.len()) as u16
    }

    /// Inserts a listener of `port`.
    pub fn insert(&mut self, listener: L, port: PortId) {
        let index = usize::from(self.next_index());
        let listening = Some(Listening {
            listener,
            port,
            retry_at: None,
        });
        match self.entries.get_mut(index) {
            Some(entry) => *entry = listening,
            None => self.entries.push(listening),
        }
    }

    /// Drops the listeners of `port`.
    pub fn remove_port(&mut self, port: PortId) {
        for entry in &mut self.entries {
            entry.take_if(|it| it.port == port);
        }
    }

    /// Drops the listener of that number.
    pub fn remove(&mut self, index: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            *entry = None;
        }
    }

    /// The port of each listener.
    pub fn ports(&self) -> impl Iterator<Item = PortId> {
        self.entries.iter().flatten().map(|it| it.port)
    }

    /// The number of each listener, the listener and its port.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut L, PortId)> {
        let entries = (0..).zip(&mut self.entries);
        entries.filter_map(|(index, entry)| {
            let it = entry.as_mut()?;
            Some((index, &mut it.listener, it.port))
        })
    }

    /// Drops all listeners.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// The listener of that number and its port.
    #[must_use]
    pub fn get(&self, index: u16) -> Option<(&L, PortId)> {
        let listening = self.entries.get(usize::from(index))?.as_ref()?;
        Some((&listening.listener, listening.port))
    }

    /// The listener of that number.
    #[must_use]
    pub fn get_mut(&mut self, index: u16) -> Option<&mut L> {
        let listening = self.entries.get_mut(usize::from(index))?.as_mut()?;
        Some(&mut listening.listener)
    }

    /// Number of listeners that have failed and wait to be tried again.
    #[must_use]
    pub fn failed(&self) -> usize {
        let listening = self.entries.iter().flatten();
        listening.filter(|it| it.retry_at.is_some()).count()
    }

    /// Marks a listener as failed, to be tried again at `retry_at`.
    pub fn fail(&mut self, index: u16, retry_at: Nanos) {
        if let Some(Some(listening)) = self.entries.get_mut(usize::from(index)) {
            listening.retry_at = Some(retry_at);
        }
    }

    /// The number of a failed listener whose time has come. It no longer counts as failed.
    #[inline]
    pub fn take_due(&mut self, now: Nanos) -> Option<u16> {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if let Some(listening) = entry
                && listening.retry_at.take_if(|at| *at <= now).is_some()
            {
                return Some(index as u16);
            }
        }
        None
    }

    /// When the first failed listener is to be tried again.
    #[must_use]
    pub fn next_retry(&self) -> Option<Nanos> {
        self.entries
            .iter()
            .flatten()
            .filter_map(|it| it.retry_at)
            .min()
    }
}

/// The settings of `port`, or the default.
#[must_use]
pub fn settings_of<S: Copy + Default>(ports: &[(PortId, S)], port: PortId) -> S {
    let found = ports.iter().find(|(id, _)| *id == port);
    found.map_or_else(S::default, |(_, settings)| *settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_listeners_are_used_again() {
        let mut listeners = ListenerTable::default();
        for (name, port) in [("a", 0), ("b", 1), ("c", 1)] {
            listeners.insert(name, PortId(port));
        }
        listeners.remove_port(PortId(1));
        assert_eq!(listeners.get(1), None);
        assert_eq!(listeners.next_index(), 1);
        listeners.insert("d", PortId(2));
        assert_eq!(listeners.get(1), Some((&"d", PortId(2))));
    }

    #[test]
    fn a_failed_listener_is_due_once() {
        let mut listeners = ListenerTable::default();
        listeners.insert("a", PortId(0));
        listeners.insert("b", PortId(1));
        listeners.fail(1, Nanos(10));
        assert_eq!(
            (listeners.failed(), listeners.next_retry()),
            (1, Some(Nanos(10)))
        );
        assert_eq!(listeners.take_due(Nanos(9)), None);
        assert_eq!(listeners.take_due(Nanos(10)), Some(1));
        assert_eq!(
            (listeners.take_due(Nanos(10)), listeners.failed()),
            (None, 0)
        );
    }
}
