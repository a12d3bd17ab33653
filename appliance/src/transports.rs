//! The transports of the configuration's listeners: bound at start, then set up on every reactor
//! around that reactor's one target core.
//!
//! A transport to come is one module here, one field of [`Listeners`], and one arm in its `bind`
//! and `into_transports`. NVMe/TCP is always set up, so that a listener can be added while the
//! appliance runs; NVMe/RDMA only where a listener asked for it at start.

#[cfg_attr(not(feature = "verbs"), path = "transports/without_rdma.rs")]
mod rdma;
mod tcp;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use appliance_config::{Config, Listener, Transport as TransportName};
use hugemem::{Arena, Region};
use nvme_target::{PortId, TargetCore};
use nvme_tcp::CONNECTIONS_PER_REACTOR_MAX;
use reactors::{InitError, Placement, Poller, ReactorHandle, ReactorSetup};

use crate::error::Failure;
use crate::event_loop::EventLoop;
use crate::exports::port_id;
use crate::observe::sources::TransportCounters;
use crate::orders::Answers;

/// One transport of the whole appliance. Each reactor gets a poller of it.
pub(crate) trait Transport: Listening {
    /// Connections that one reactor may have over it: the reactor's target core makes room for as
    /// many queues.
    fn connections_max(&self) -> usize;

    /// What it counts, for whoever wants to know.
    fn counters(&self) -> TransportCounters;

    /// Makes the poller of the calling reactor. Called once on each reactor.
    ///
    /// # Errors
    /// What the reactor cannot have; the appliance does not start then.
    fn set_up(
        &self,
        shared: &Shared,
        setup: &mut ReactorSetup<'_>,
    ) -> Result<Box<dyn Poller>, InitError>;
}

/// What a transport can change while it serves.
pub trait Listening: Send + Sync {
    /// Which one it is.
    fn name(&self) -> TransportName;

    /// From now on orders wake the reactors that they are for.
    fn set_wakers(&self, handles: &[ReactorHandle]);

    /// Lowers what a listener asks for to what the network cards allow.
    fn lower_limits(&self, listener: &mut Listener) {
        let _ = listener;
    }

    /// Binds a listener, whose connections come in by `port` at once; returns what it is bound to.
    ///
    /// # Errors
    /// It cannot be bound; nothing is left of it.
    fn listen(
        &self,
        port: PortId,
        listener: &Listener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure>;

    /// What hosts of each port get that connect from now on.
    ///
    /// # Errors
    /// A reactor does not answer, or a setting cannot be had.
    fn apply_settings(
        &self,
        ports: &[(PortId, &Listener)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure>;

    /// Closes a listener and ends its connections; each reactor answers when it has none left.
    ///
    /// # Errors
    /// A reactor takes no orders.
    fn close(&self, port: PortId) -> Result<Answers<()>, Failure>;

    /// Lets network cards reach more memory.
    ///
    /// # Errors
    /// One cannot; none can then.
    fn attach_memory(&self, region: &Region) -> Result<(), Failure> {
        let _ = region;
        Ok(())
    }

    /// Takes memory back from network cards, of which nothing is on its way any more.
    fn detach_memory(&self, region: &Region) {
        let _ = region;
    }
}

/// What all transports of one reactor share.
pub(crate) struct Shared {
    /// The reactor's target core. A transport registers with it and so gets its own
    /// [`TransportId`](nvme_target::TransportId), by which its completions are kept apart.
    pub(crate) core: Rc<RefCell<TargetCore>>,
    /// Where a transport takes its own pool: grants go to whoever waits in that pool's line.
    pub(crate) arena: Arc<Arena>,
    /// Commands that the reactor may have outstanding, over all transports.
    pub(crate) commands_max: usize,
}

/// What only one reactor takes, once, by its number.
pub(crate) struct Portions<T>(Vec<Mutex<Option<T>>>);

impl<T> Portions<T> {
    /// In the order of the reactors.
    pub(crate) fn new(portions: impl IntoIterator<Item = T>) -> Self {
        let portions = portions.into_iter();
        Self(portions.map(|it| Mutex::new(Some(it))).collect())
    }

    /// The portion of this reactor, unless it was taken before.
    pub(crate) fn take(&self, reactor: usize) -> Option<T> {
        let portion = self.0[reactor].lock();
        portion.unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The listeners of a configuration, bound.
pub(crate) struct Listeners {
    tcp: Vec<tcp::Bound>,
    rdma: Option<rdma::Bound>,
    addresses: Vec<SocketAddr>,
}

impl Listeners {
    /// Binds every listener of `config`, for `reactors` reactors.
    ///
    /// # Errors
    /// The first one that cannot be had, by name.
    pub(crate) fn bind(config: &Config, reactors: usize) -> Result<Self, Failure> {
        let mut listeners = Self {
            tcp: Vec::new(),
            rdma: None,
            addresses: Vec::new(),
        };
        for (index, listener) in config.listeners.iter().enumerate() {
            let address = match listener.transport {
                appliance_config::Transport::Tcp => {
                    let bound = tcp::Bound::new(port_id(index), listener)?;
                    let address = bound.address()?;
                    listeners.tcp.push(bound);
                    address
                }
                appliance_config::Transport::Rdma => {
                    let bound = match &mut listeners.rdma {
                        Some(bound) => bound,
                        none => none.insert(rdma::Bound::new(listener, reactors)?),
                    };
                    bound.listen(port_id(index), listener)?
                }
            };
            listeners.addresses.push(address);
        }
        Ok(listeners)
    }

    /// What each listener is bound to, in the order of the configuration.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// `config` with what the network cards of its listeners allow, where that is less.
    pub(crate) fn lower_limits(&self, config: &Config) -> Config {
        let mut config = config.clone();
        if let Some(rdma) = &self.rdma {
            rdma.lower_queue_depths(&mut config);
        }
        config
    }

    /// The transports that the listeners need, each with its own. Data moves through `regions`.
    ///
    /// # Errors
    /// A network card does not take the memory.
    pub(crate) fn into_transports(
        self,
        config: &Config,
        reactors: usize,
        regions: &[&Region],
    ) -> Result<Vec<Arc<dyn Transport>>, Failure> {
        // One for all, so that connections of one transport count when another places its own.
        let placement = placement(config, reactors);
        let tcp = tcp::Tcp::new(config, self.tcp, reactors, placement.clone());
        let mut transports: Vec<Arc<dyn Transport>> = vec![Arc::new(tcp)];
        if let Some(bound) = self.rdma {
            transports.push(Arc::new(rdma::Rdma::new(
                config, bound, reactors, placement, regions,
            )?));
        }
        Ok(transports)
    }
}

/// The placement of connections on `reactors` reactors, which keeps to `limits.max_connections` over
/// all of them and all transports.
fn placement(config: &Config, reactors: usize) -> Placement {
    let connections_max = config.limits.max_connections as usize;
    Placement::with_limit(reactors, connections_max, CONNECTIONS_PER_REACTOR_MAX)
}

/// Why an RDMA listener of `config` cannot be had here, if one is wanted and so it is: what `check`
/// says. Touches nothing.
pub(crate) fn rdma_problem(config: &Config) -> Option<String> {
    rdma::problem(config)
}

/// What a network card with RDMA allows.
pub(crate) struct RdmaCard {
    pub(crate) name: String,
    /// Entries of an I/O queue.
    pub(crate) queue_depth_max: u16,
    /// Pieces of memory that it registers.
    pub(crate) registrations: u32,
    /// Bytes of one such piece.
    pub(crate) registration_bytes: u64,
}

/// The network cards with RDMA that this process may use. Touches nothing.
pub(crate) fn rdma_cards() -> Vec<RdmaCard> {
    rdma::cards()
}
