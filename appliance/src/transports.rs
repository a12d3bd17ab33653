//! The transports of the configuration's listeners: bound at start, then set up on every reactor
//! with that reactor's target core.
//!
//! A new transport is one module here, one field of [`Listeners`], and one arm in its `bind` and
//! `into_transports`. NVMe/TCP is set up at start. NVMe/RDMA is set up when the first listener
//! requires it, at start or later, because it needs libraries, a network card and locked memory.

#[cfg_attr(not(feature = "verbs"), path = "transports/without_rdma.rs")]
mod rdma;
mod tcp;

#[cfg(all(test, feature = "verbs"))]
pub(crate) use rdma::{Rdma, System};
pub(crate) use tcp::{ExportError, Tcp};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use ::rdma::DeviceEvents;
use appliance_config::{Config, Listener, Name, Transport as TransportName};
use hugemem::{Arena, DeviceMemory, Region};
use nvme_target::{PortId, TargetCore};
use nvme_tcp::CONNECTIONS_PER_REACTOR_MAX;
use reactors::{InitError, Placement, Poller, ReactorHandle, ReactorSetup};

use crate::error::Failure;
use crate::event_loop::EventLoop;
use crate::exports::{Ports, port_id};
use crate::messages::PendingResponses;
use crate::observe::sources::TransportCounters;

/// One transport of the whole appliance. Each reactor gets a poller of it.
pub(crate) trait Transport: Listening {
    /// Most connections of one reactor over this transport; the target core reserves that many
    /// queues.
    fn connections_max(&self) -> usize;

    /// Its counters.
    fn counters(&self) -> TransportCounters;

    /// Creates the poller of the calling reactor. Called once on each reactor.
    ///
    /// # Errors
    /// A resource is not available to the reactor; the appliance does not start then.
    fn set_up(
        &self,
        shared: &TransportContext,
        setup: &mut ReactorSetup<'_>,
    ) -> Result<Box<dyn Poller>, InitError>;
}

/// Operations of a transport while it serves.
pub trait Listening: Send + Sync {
    /// The transport's name.
    fn name(&self) -> TransportName;

    /// Makes messages wake their reactors from now on. Called once, when the reactors run.
    fn set_wakers(&self, handles: &[ReactorHandle]);

    /// Lowers the settings of a listener to the limits of the network cards.
    fn lower_limits(&self, listener: &mut Listener) {
        let _ = listener;
    }

    /// Prepares the transport for a listener that will be bound as `port`: registers `memory` with
    /// network cards if none is in use. [`apply_settings`](Self::apply_settings) follows, and then
    /// [`listen`](Self::listen). If they fail and there is no other listener,
    /// [`release`](Self::release) ends the registration.
    ///
    /// # Errors
    /// The system lacks what the transport needs; nothing remains.
    fn prepare(
        &self,
        port: PortId,
        listener: &Listener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let _ = (port, listener, memory, event_loop);
        Ok(())
    }

    /// Binds a listener and accepts connections on `port` immediately. Returns its bound address.
    ///
    /// # Errors
    /// It cannot be bound; nothing remains of it.
    fn listen(
        &self,
        port: PortId,
        listener: &Listener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure>;

    /// Whether another process can continue its connections with their descriptors. Others are
    /// closed before a hand-over, and the listeners opened again after it.
    fn passes_connections(&self) -> bool {
        true
    }

    /// Listens again on an address that hosts know, as `port`. If that fails, it is tried again
    /// until it succeeds.
    ///
    /// # Errors
    /// A reactor does not respond.
    fn listen_on_known(
        &self,
        port: PortId,
        address: SocketAddr,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let _ = (port, address, event_loop);
        Err(ConnectionsPass.into())
    }

    /// Releases the network cards and their registered memory, because no listener is left.
    fn release(&self, event_loop: &mut dyn EventLoop) {
        let _ = event_loop;
    }

    /// Registers memory of drives with the network cards, in place of what was given before. Called
    /// often; does nothing without a change.
    fn use_device_memory(&self, memory: &[Arc<DeviceMemory>], event_loop: &mut dyn EventLoop) {
        let _ = (memory, event_loop);
    }

    /// Uses network cards again that were lost and have returned, and registers `memory` with them.
    /// `ports` are the bound listeners. Called often; looks at intervals.
    fn restore(
        &self,
        ports: &[(PortId, &Listener)],
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) {
        let _ = (ports, memory, event_loop);
    }

    /// Applies the settings of ports to hosts that connect from now on.
    ///
    /// # Errors
    /// A reactor does not respond, or a setting is not available.
    fn apply_settings(
        &self,
        ports: &[(PortId, &Listener)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure>;

    /// Closes a listener and its connections; each reactor responds when it has none left.
    ///
    /// # Errors
    /// A reactor accepts no messages.
    fn close(&self, port: PortId) -> Result<PendingResponses<()>, Failure>;

    /// Gives network cards access to more memory.
    ///
    /// # Errors
    /// A card refuses it; then no card has access.
    fn attach_memory(&self, region: &Region) -> Result<(), Failure> {
        let _ = region;
        Ok(())
    }

    /// Ends the network cards' access to memory. No transfer from or to it is in progress.
    fn detach_memory(&self, region: &Region) {
        let _ = region;
    }
}

/// The listeners of the transport pass to the next process.
#[derive(Debug, thiserror::Error)]
#[error("the transport's listeners pass to the next process")]
struct ConnectionsPass;

/// The resources that all transports of one reactor share.
#[derive(Clone)]
pub(crate) struct TransportContext {
    /// The reactor's target core. A transport registers with it to get its own
    /// [`TransportId`](nvme_target::TransportId), which identifies its completions.
    pub(crate) core: Rc<RefCell<TargetCore>>,
    /// Each transport takes its own pool, because a pool grants buffers to the requests in its own
    /// wait queue.
    pub(crate) arena: Arc<Arena>,
    /// Most commands that the reactor may have outstanding, over all transports.
    pub(crate) commands_max: usize,
}

/// A transport that is set up with its first listener.
pub(crate) trait LateTransport: Transport {
    /// Binds a listener before the reactors run. Returns its bound address.
    ///
    /// # Errors
    /// It cannot be bound, or the system lacks what the transport needs.
    fn bind(&self, port: PortId, listener: &Listener) -> Result<SocketAddr, Failure>;

    /// Opens what listeners need, before the reactors run. They are bound later: an earlier process
    /// has their addresses.
    ///
    /// # Errors
    /// The system lacks what `listener` needs.
    fn open(&self, listener: &Listener) -> Result<(), Failure>;

    /// Prepares the transport, before the reactors run: registers `regions` if a listener is bound
    /// or the transport [opened](Self::open). `placement` distributes connections.
    ///
    /// # Errors
    /// No network card is usable, with the reason for each.
    fn begin(
        &self,
        config: &Config,
        placement: Placement,
        regions: &[&Region],
    ) -> Result<(), Failure>;
}

/// Creates NVMe/RDMA for a number of reactors, over the verbs of this system, whose devices have these
/// events.
pub(crate) fn system_rdma(reactors: usize, events: Arc<DeviceEvents>) -> Arc<dyn LateTransport> {
    Arc::new(rdma::system(reactors, events))
}

/// Values of which each reactor takes one, once, by its number.
pub(crate) struct PerReactor<T>(Vec<Mutex<Option<T>>>);

impl<T> PerReactor<T> {
    /// The values in the order of the reactors.
    pub(crate) fn new(portions: impl IntoIterator<Item = T>) -> Self {
        let portions = portions.into_iter();
        Self(portions.map(|it| Mutex::new(Some(it))).collect())
    }

    /// The value of this reactor, unless it is already taken.
    pub(crate) fn take(&self, reactor: usize) -> Option<T> {
        let portion = self.0[reactor].lock();
        portion.unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The bound listeners of a configuration.
pub(crate) struct Listeners {
    tcp: Vec<tcp::Bound>,
    rdma: Arc<dyn LateTransport>,
    /// In the order of the configuration.
    bound: Vec<(PortId, SocketAddr)>,
    accepting: tcp::Accepting,
}

/// The transports of an appliance.
pub(crate) struct Transports {
    pub(crate) all: Vec<Arc<dyn Transport>>,
    /// The one that can be handed over to a new process.
    pub(crate) tcp: Arc<tcp::Tcp>,
}

/// A listener that an earlier process has not passed.
#[derive(Debug, thiserror::Error)]
#[error("the old process has not passed listener {0}")]
struct NotPassed(Name);

/// A listener that an earlier process has passed.
#[derive(Debug)]
pub(crate) struct PassedListener {
    /// The number by which hosts' controllers know it.
    pub(crate) port: PortId,
    pub(crate) place: PassedPlace,
}

/// How a passed listener goes on.
#[derive(Debug)]
pub(crate) enum PassedPlace {
    /// With the socket of the earlier process.
    Socket(TcpListener),
    /// The address is bound when the earlier process has closed its listener.
    Address(SocketAddr),
}

impl Listeners {
    /// Binds every listener of `config`.
    ///
    /// # Errors
    /// The first one that cannot be bound, by name.
    pub(crate) fn bind(config: &Config, rdma: Arc<dyn LateTransport>) -> Result<Self, Failure> {
        let mut listeners = Self {
            tcp: Vec::new(),
            rdma,
            bound: Vec::new(),
            accepting: tcp::Accepting::AtStart,
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
                    listeners.rdma.bind(port_id(index), listener)?
                }
            };
            listeners.bound.push((port_id(index), address));
        }
        Ok(listeners)
    }

    /// Continues with the listeners of an earlier process. No connection is accepted until the
    /// transports are resumed.
    ///
    /// # Errors
    /// The first listener that was not passed, or that this machine cannot serve.
    pub(crate) fn adopt(
        config: &Config,
        mut passed: BTreeMap<Name, PassedListener>,
        rdma: Arc<dyn LateTransport>,
    ) -> Result<Self, Failure> {
        let (mut tcp, mut bound) = (Vec::new(), Vec::new());
        for listener in &config.listeners {
            let found = passed.remove(&listener.name);
            let PassedListener { port, place } =
                found.ok_or_else(|| NotPassed(listener.name.clone()))?;
            let address = match (listener.transport, place) {
                (TransportName::Tcp, PassedPlace::Socket(socket)) => {
                    let listening = tcp::Bound::adopt(port, socket);
                    let address = listening.address()?;
                    tcp.push(listening);
                    address
                }
                (TransportName::Rdma, PassedPlace::Address(address)) => {
                    rdma.open(listener)?;
                    address
                }
                _ => return Err(NotPassed(listener.name.clone()).into()),
            };
            bound.push((port, address));
        }
        Ok(Self {
            tcp,
            rdma,
            bound,
            accepting: tcp::Accepting::Later,
        })
    }

    /// The bound listeners of `config`.
    pub(crate) fn ports(&self, config: &Config) -> Ports {
        Ports::of_bound(config, self.bound.iter().copied())
    }

    /// `config` with its settings lowered to the limits of the network cards.
    pub(crate) fn lower_limits(&self, config: &Config) -> Config {
        let mut config = config.clone();
        for listener in &mut config.listeners {
            if listener.transport == self.rdma.name() {
                self.rdma.lower_limits(listener);
            }
        }
        config
    }

    /// The transports, for a reactor on each of `cores`. Data moves through `regions`.
    ///
    /// # Errors
    /// A network card does not register the memory, or the acceptor's thread does not start.
    pub(crate) fn into_transports(
        self,
        config: &Config,
        cores: &[usize],
        regions: &[&Region],
    ) -> Result<Transports, Failure> {
        let reactors = cores.len();
        // All transports share one placement, so that it counts the connections of all.
        let placement = placement(config, reactors);
        let tcp = tcp::Tcp::new(config, self.tcp, cores, placement.clone(), self.accepting)?;
        let tcp = Arc::new(tcp);
        self.rdma.begin(config, placement, regions)?;
        Ok(Transports {
            all: vec![Arc::clone(&tcp) as _, self.rdma],
            tcp,
        })
    }
}

/// The placement of connections on `reactors` reactors, with `limits.max_connections` for all
/// reactors and transports together.
fn placement(config: &Config, reactors: usize) -> Placement {
    let connections_max = config.limits.max_connections as usize;
    Placement::with_limit(reactors, connections_max, CONNECTIONS_PER_REACTOR_MAX)
}

/// Why the RDMA listeners of `config` cannot work here, if there are any, for `check`. Changes
/// nothing.
pub(crate) fn rdma_problem(config: &Config) -> Option<String> {
    rdma::problem(config)
}

/// The limits of a network card with RDMA.
pub(crate) struct RdmaCard {
    pub(crate) name: String,
    /// Entries of an I/O queue.
    pub(crate) queue_depth_max: u16,
    /// Most memory regions that it registers.
    pub(crate) registrations: u32,
    /// Largest memory region in bytes.
    pub(crate) registration_bytes: u64,
}

/// The network cards with RDMA that this process may use. Changes nothing.
pub(crate) fn rdma_cards() -> Vec<RdmaCard> {
    rdma::cards()
}
