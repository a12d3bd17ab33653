//! The listeners for files over RDMA, with the network cards and their registered memory: what the
//! file service needs of a provider.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use appliance_config::FileListener;
use files_rdma::RdmaCounters;
use files_service::FileCore;
use hugemem::{Arena, Region};
use reactors::{InitError, Poller, ReactorHandle};

use crate::error::Failure;
use crate::event_loop::EventLoop;

/// What the poller of files over RDMA shares with the reactor's other pollers.
pub(crate) struct FileContext {
    pub(crate) core: Rc<RefCell<FileCore>>,
    pub(crate) arena: Arc<Arena>,
}

/// Listeners over RDMA. Nothing of it exists until the first one, at start or later: then the control
/// thread opens the libraries, registers the memory with all network cards, and gives the reactor its
/// part. The part stays. The cards are released with the last listener.
pub(crate) trait RdmaListeners: Send + Sync {
    /// Listens before the reactor runs, as `number`, which no other listener has. Registers `memory`
    /// if it is the first listener. Returns the address with the assigned port.
    ///
    /// # Errors
    /// It cannot be bound, or the system lacks what it needs.
    fn bind(
        &self,
        number: u32,
        listener: &FileListener,
        memory: &[&Region],
    ) -> Result<SocketAddr, Failure>;

    /// Creates the poller, on its reactor, once.
    ///
    /// # Errors
    /// It was created before.
    fn poller(&self, context: FileContext) -> Result<Box<dyn Poller>, InitError>;

    /// Makes messages wake the reactor from now on.
    fn set_wakers(&self, reactor: &[ReactorHandle]);

    /// Listens as `number` while the reactor runs. Connections are rejected until it is
    /// [opened](Self::open). Registers `memory` if no network card is in use. If it fails and there is
    /// no other listener, [`release`](Self::release) ends the registration.
    ///
    /// # Errors
    /// It cannot be bound, or the system lacks what it needs; nothing remains of it.
    fn listen(
        &self,
        number: u32,
        listener: &FileListener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure>;

    /// Accepts the connections of a listener.
    ///
    /// # Errors
    /// The reactor does not respond.
    fn open(&self, number: u32, event_loop: &mut dyn EventLoop) -> Result<(), Failure>;

    /// Closes a listener with its connections, whose requests continue.
    ///
    /// # Errors
    /// The reactor does not respond.
    fn close(&self, number: u32, event_loop: &mut dyn EventLoop) -> Result<(), Failure>;

    /// Releases the network cards and their registered memory, because no listener is left.
    fn release(&self, event_loop: &mut dyn EventLoop);

    /// Uses network cards again that were lost and have returned, and registers `memory` with them.
    /// Called often; looks at intervals.
    fn restore(&self, has_listeners: bool, memory: &[&Region], event_loop: &mut dyn EventLoop);

    /// Registers memory with the network cards in use, unless it is.
    ///
    /// # Errors
    /// A card refuses it.
    fn attach_memory(&self, region: &Region) -> Result<(), Failure>;

    /// Ends the registration of memory that nothing is sent from any more.
    fn detach_memory(&self, region: &Region);

    /// Number of network cards that failed or were removed and have not returned.
    fn missing(&self) -> usize;

    fn counters(&self) -> &RdmaCounters;
}
