//! Adds and closes listeners while their transport serves.

use std::sync::mpsc::Sender;

use nvme_fabrics::{ListenerMessage, NoHandover};
use nvme_target::PortId;
use reactors::ReactorHandle;
use reactors::ring::Receiver;

use super::{MessageRings, NoResponse, PendingResponses};
use crate::event_loop::EventLoop;

/// Messages about listeners to one transport's part on every reactor.
pub struct PortMessages<L, S, A, H = NoHandover> {
    messages: MessageRings<ListenerMessage<L, S, A, H>>,
    reactors: usize,
}

/// The reactors' receivers.
type Ends<L, S, A, H> = Vec<Receiver<ListenerMessage<L, S, A, H>>>;

impl<L: Send, S: Clone + Send, A: Send, H: Send> PortMessages<L, S, A, H> {
    /// Creates the rings. Returns the receiver of each reactor.
    #[must_use]
    pub fn new(reactors: usize) -> (Self, Ends<L, S, A, H>) {
        let (messages, receivers) = MessageRings::new(reactors);
        (Self { messages, reactors }, receivers)
    }

    /// Makes every message wake its reactor from now on.
    pub fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.messages.set_wakers(handles);
    }

    /// Makes a reactor accept the connections of a port. Returns its response.
    ///
    /// # Errors
    /// [`NoResponse`].
    pub fn listen(
        &self,
        port: PortId,
        listener: L,
        event_loop: &mut dyn EventLoop,
    ) -> Result<A, NoResponse> {
        // Any reactor will do, because each distributes its connections; ports are assigned
        // round-robin.
        let reactor = usize::from(port.0) % self.reactors;
        self.messages
            .ask(reactor, event_loop, |reply| ListenerMessage::Listen {
                listener,
                port,
                reply,
            })
    }

    /// Applies the settings of ports to hosts that connect from now on.
    ///
    /// # Errors
    /// [`NoResponse`].
    pub fn apply_settings(
        &self,
        ports: &[(PortId, S)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), NoResponse> {
        self.messages
            .request_all(event_loop, |reply| ListenerMessage::Settings {
                ports: ports.to_vec(),
                reply,
            })?;
        Ok(())
    }

    /// Closes a port. Each reactor responds when it has no connection of the port left.
    ///
    /// # Errors
    /// [`NoResponse::Full`].
    pub fn close(&self, port: PortId) -> Result<PendingResponses<()>, NoResponse> {
        self.messages
            .send_all(|reply| ListenerMessage::Close { port, reply })
    }

    /// Sends every reactor a message about a hand-over, which `make` creates from the number of the
    /// reactor and the sender of its response. Returns the responses.
    ///
    /// # Errors
    /// [`NoResponse`].
    pub fn hand_over<R>(
        &self,
        event_loop: &mut dyn EventLoop,
        make: impl FnMut(usize, Sender<R>) -> H,
    ) -> Result<Vec<R>, NoResponse> {
        let mut make = make;
        let make = |reactor, reply| ListenerMessage::Handover(make(reactor, reply));
        self.messages.request_each(event_loop, make)
    }
}
