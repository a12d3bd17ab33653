//! Adds and closes listeners while their transport serves.

use nvme_fabrics::PortOrder;
use nvme_target::PortId;
use reactors::ReactorHandle;
use reactors::ring::Receiver;

use super::{Answers, Orders, Unanswered};
use crate::event_loop::EventLoop;

/// Messages about listeners to one transport's part on every reactor.
pub struct PortOrders<L, S, A> {
    orders: Orders<PortOrder<L, S, A>>,
    reactors: usize,
}

/// The reactors' receivers.
type Ends<L, S, A> = Vec<Receiver<PortOrder<L, S, A>>>;

impl<L: Send, S: Clone + Send, A: Send> PortOrders<L, S, A> {
    /// Creates the rings. Returns the receiver of each reactor.
    #[must_use]
    pub fn new(reactors: usize) -> (Self, Ends<L, S, A>) {
        let (orders, receivers) = Orders::new(reactors);
        (Self { orders, reactors }, receivers)
    }

    /// Makes every message wake its reactor from now on.
    pub fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.orders.set_wakers(handles);
    }

    /// Makes a reactor accept the connections of a port. Returns its response.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn listen(
        &self,
        port: PortId,
        listener: L,
        event_loop: &mut dyn EventLoop,
    ) -> Result<A, Unanswered> {
        // Any reactor will do, because each distributes its connections; ports are assigned
        // round-robin.
        let reactor = usize::from(port.0) % self.reactors;
        self.orders
            .ask(reactor, event_loop, |answer| PortOrder::Listen {
                listener,
                port,
                answer,
            })
    }

    /// Applies the settings of ports to hosts that connect from now on.
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

    /// Closes a port. Each reactor responds when it has no connection of the port left.
    ///
    /// # Errors
    /// [`Unanswered::Full`].
    pub fn close(&self, port: PortId) -> Result<Answers<()>, Unanswered> {
        self.orders
            .tell_all(|answer| PortOrder::Close { port, answer })
    }
}
