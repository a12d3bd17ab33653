//! How listeners come and go while their transport serves.

use nvme_target::{PortId, PortOrder};
use reactors::ReactorHandle;
use reactors::ring::Receiver;

use super::{Answers, Orders, Unanswered};
use crate::event_loop::EventLoop;

/// The way to one transport's part on every reactor, where its listeners are concerned.
pub struct PortOrders<L, S, A> {
    orders: Orders<PortOrder<L, S, A>>,
    reactors: usize,
}

/// The reactors' ends.
type Ends<L, S, A> = Vec<Receiver<PortOrder<L, S, A>>>;

impl<L: Send, S: Clone + Send, A: Send> PortOrders<L, S, A> {
    /// The rings, and each reactor's end.
    #[must_use]
    pub fn new(reactors: usize) -> (Self, Ends<L, S, A>) {
        let (orders, receivers) = Orders::new(reactors);
        (Self { orders, reactors }, receivers)
    }

    /// From now on an order wakes its reactor.
    pub fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.orders.set_wakers(handles);
    }

    /// Has a reactor take in the connections of a port; returns what it answers.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn listen(
        &self,
        port: PortId,
        listener: L,
        event_loop: &mut dyn EventLoop,
    ) -> Result<A, Unanswered> {
        // Any will do, since each hands its connections on; the ports take them in turn.
        let reactor = usize::from(port.0) % self.reactors;
        self.orders
            .ask(reactor, event_loop, |answer| PortOrder::Listen {
                listener,
                port,
                answer,
            })
    }

    /// Has hosts that connect from now on get what is said of their port.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn apply_settings(
        &self,
        ports: &[(PortId, S)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Unanswered> {
        self.orders
            .ask_all(event_loop, |answer| PortOrder::Settings {
                ports: ports.to_vec(),
                answer,
            })?;
        Ok(())
    }

    /// Closes a port; each reactor answers when it has no connection of it left.
    ///
    /// # Errors
    /// [`Unanswered::Full`].
    pub fn close(&self, port: PortId) -> Result<Answers<()>, Unanswered> {
        self.orders
            .tell_all(|answer| PortOrder::Close { port, answer })
    }
}
