//! NVMe/RDMA: its listeners, the network cards with their registered memory, and the per-reactor
//! parts for connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use appliance_config::{Config, Listener, Transport as TransportName};
use hugemem::Region;
use nvme_rdma::{
    ConnectionSet, Domains, Listeners, Message, PortMessage, PortSettings, RdmaConfig,
    RdmaCounters, RdmaTransport, SetParts, queue_depth_max,
};
use nvme_target::PortId;
use rdma::{Device, Provider, Unavailable, Verbs};
use reactors::mesh::Port;
use reactors::ring::Receiver;
use reactors::{InitError, Placement, Poller, ReactorHandle, ReactorSetup};

use super::{Listening, PerReactor, RdmaCard, Transport, TransportContext};
use crate::error::Failure;
use crate::event_loop::EventLoop;
use crate::exports;
use crate::messages::{PendingResponses, PortMessages};
use crate::observe::sources::{Counts, TransportCounters};

/// Connection requests and events that may be in flight between two reactors.
const MESSAGES_MAX: usize = 256;

#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    #[error("listener {name}: {cause}: {}", .cause.remedy())]
    NoRdma { name: String, cause: Unavailable },
    #[error("listener {name} cannot listen on {address}")]
    Bind {
        name: String,
        address: SocketAddr,
        #[source]
        cause: rdma::Error,
    },
    #[error("no RDMA device can be used: {reasons}")]
    NoFitDevice { reasons: String },
}

#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error("its listeners were handed out before")]
    Twice,
    #[error("its queues cannot be watched")]
    Descriptors(#[from] std::io::Error),
}

/// The bound addresses of all reactors' listeners.
pub(super) struct Bound {
    provider: Verbs,
    listeners: Vec<Listeners<Verbs>>,
    /// Number of listeners, which are assigned to reactors round-robin.
    count: usize,
}

impl Bound {
    /// Checks whether there is RDMA, for the first listener that needs it.
    ///
    /// # Errors
    /// [`ListenError::NoRdma`], with its remedy.
    pub(super) fn new(listener: &Listener, reactors: usize) -> Result<Self, ListenError> {
        let failed = |cause| no_rdma(listener, cause);
        let provider = Verbs::open().map_err(|cause| failed(cause.into()))?;
        let listeners = (0..reactors).map(|reactor| Listeners::new(&provider, reactor));
        let listeners: Result<Vec<_>, _> = listeners.collect();
        Ok(Self {
            listeners: listeners.map_err(failed)?,
            provider,
            count: 0,
        })
    }

    /// Binds `listener` to `port`; returns its address with the bound port number.
    ///
    /// # Errors
    /// The address is taken, or belongs to no RDMA device.
    pub(super) fn listen(
        &mut self,
        port: PortId,
        listener: &Listener,
    ) -> Result<SocketAddr, ListenError> {
        let reactor = self.count % self.listeners.len();
        self.count += 1;
        let address = listener.address.socket_addr();
        let bound = self.listeners[reactor].listen(address, port);
        bound.map_err(|cause| no_rdma(listener, cause))
    }

    /// Lowers the queue depth of listeners to what every network card supports, because hosts rely
    /// on the reported depth.
    pub(super) fn lower_queue_depths(&self, config: &mut Config) {
        let Some(depth_max) = depth_max(&self.provider) else {
            return;
        };
        for listener in &mut config.listeners {
            lower_queue_depth(listener, &depth_max, true);
        }
    }
}

/// The largest supported queue depth, and the network card with this limit.
type DepthMax = (u16, String);

fn depth_max(provider: &Verbs) -> Option<DepthMax> {
    let devices = provider.devices().unwrap_or_default();
    let depths = devices.iter().map(|device| {
        let depth = queue_depth_max(device.limits());
        (depth, device.name().to_owned())
    });
    depths.filter(|(depth, _)| *depth >= 2).min()
}

fn lower_queue_depth(listener: &mut Listener, (depth_max, device): &DepthMax, is_told: bool) {
    if listener.transport != TransportName::Rdma || listener.queue_depth <= *depth_max {
        return;
    }
    if is_told {
        tracing::warn!(
            "listener {}: queue depth lowered to {depth_max} from {}, the limit of {device}",
            listener.name.as_str(),
            listener.queue_depth
        );
    }
    listener.queue_depth = *depth_max;
}

fn no_rdma(listener: &Listener, cause: rdma::Error) -> ListenError {
    let name = listener.name.as_str().to_owned();
    match cause {
        rdma::Error::Unavailable(cause) => ListenError::NoRdma { name, cause },
        cause => ListenError::Bind {
            name,
            address: listener.address.socket_addr(),
            cause,
        },
    }
}

/// Why the RDMA listeners of `config` cannot work on this machine.
pub(super) fn problem(config: &Config) -> Option<String> {
    let mut listeners = config.listeners.iter();
    let listener = listeners.find(|listener| listener.transport == TransportName::Rdma)?;
    let found = Verbs::open()
        .map_err(rdma::Error::from)
        .and_then(|provider| provider.devices());
    let cause = found.err()?;
    Some(no_rdma(listener, cause).to_string())
}

/// The limits of the network cards, if there are any.
pub(super) fn cards() -> Vec<RdmaCard> {
    let devices = Verbs::open().ok().and_then(|it| it.devices().ok());
    let devices = devices.unwrap_or_default();
    let card = |device: &<Verbs as Provider>::Device| {
        let limits = device.limits();
        RdmaCard {
            name: device.name().to_owned(),
            queue_depth_max: queue_depth_max(limits),
            registrations: limits.registrations,
            registration_bytes: limits.registration_bytes,
        }
    };
    devices.iter().map(card).collect()
}

/// The NVMe/RDMA transport of the whole appliance.
pub(super) struct Rdma {
    config: RdmaConfig,
    domains: Arc<Domains<Verbs>>,
    counters: Vec<Arc<RdmaCounters>>,
    placement: Placement,
    own: PerReactor<ReactorListeners>,
    port_messages: PortMessages<SocketAddr, PortSettings, Result<SocketAddr, rdma::Error>>,
    depth_max: Option<DepthMax>,
}

/// The part that one reactor takes.
struct ReactorListeners {
    messages: Port<Message<Verbs>>,
    port_messages: Receiver<PortMessage>,
    listeners: Listeners<Verbs>,
}

impl Rdma {
    /// Registers `regions` with every network card, and distributes the listeners; `placement`
    /// distributes connections.
    ///
    /// # Errors
    /// No network card is usable, with the reason for each.
    pub(super) fn new(
        config: &Config,
        bound: Bound,
        reactors: usize,
        placement: Placement,
        regions: &[&Region],
    ) -> Result<Self, ListenError> {
        let domains = Arc::new(register(&bound.provider, regions)?);
        let ports = reactors::mesh::mesh(reactors, MESSAGES_MAX);
        let (port_messages, receivers) = PortMessages::new(reactors);
        let own = ports.into_iter().zip(receivers).zip(bound.listeners);
        Ok(Self {
            port_messages,
            depth_max: depth_max(&bound.provider),
            config: rdma_config(config, reactors),
            domains,
            counters: (0..reactors)
                .map(|_| Arc::new(RdmaCounters::default()))
                .collect(),
            placement,
            own: PerReactor::new(own.map(|((messages, port_messages), listeners)| {
                ReactorListeners {
                    messages,
                    port_messages,
                    listeners,
                }
            })),
        })
    }
}

/// Registers all memory with every usable network card; logs the others.
fn register(provider: &Verbs, regions: &[&Region]) -> Result<Domains<Verbs>, ListenError> {
    let domains = Domains::new();
    let mut reasons = BTreeSet::new();
    let devices = provider.devices().unwrap_or_default();
    for device in &devices {
        let name = device.name();
        match domains.add(device, regions) {
            Ok(()) => tracing::info!("RDMA device {name}: memory registered"),
            Err(error) => {
                let reason = crate::error::with_causes(&error);
                tracing::warn!("RDMA device {name} is not used: {reason}");
                reasons.insert(format!("{name}: {reason}"));
            }
        }
    }
    if domains.devices().is_empty() {
        let mut reasons: Vec<String> = reasons.into_iter().collect();
        if reasons.is_empty() {
            reasons.push("this machine has none".to_owned());
        }
        let reasons = reasons.join("; ");
        return Err(ListenError::NoFitDevice { reasons });
    }
    Ok(domains)
}

impl Transport for Rdma {
    fn connections_max(&self) -> usize {
        self.config.connections_max
    }

    fn counters(&self) -> TransportCounters {
        let domains = Arc::clone(&self.domains) as Arc<dyn Counts>;
        TransportCounters::new("rdma", &self.counters).with_whole(domains)
    }

    fn set_up(
        &self,
        shared: &TransportContext,
        setup: &mut ReactorSetup<'_>,
    ) -> Result<Box<dyn Poller>, InitError> {
        let index = setup.index();
        let ReactorListeners {
            mut messages,
            port_messages,
            listeners,
        } = self.own.take(index).ok_or(SetupError::Twice)?;
        messages.attach_all(&setup.wakers());
        let parts = SetParts {
            listeners,
            domains: Arc::clone(&self.domains),
            arena: Arc::clone(&shared.arena),
            commands_max: shared.commands_max,
            config: self.config.clone(),
            counters: Arc::clone(&self.counters[index]),
        };
        let connections = ConnectionSet::new(shared.core.clone(), parts);
        let reactors = setup.handles().to_vec();
        let placement = self.placement.clone();
        let mut transport = RdmaTransport::new(connections, messages, placement, reactors)
            .map_err(SetupError::Descriptors)?;
        transport.receive_port_messages(port_messages);
        Ok(transport.into_poller())
    }
}

impl Listening for Rdma {
    fn name(&self) -> TransportName {
        TransportName::Rdma
    }

    fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.port_messages.set_wakers(handles);
    }

    fn lower_limits(&self, listener: &mut Listener) {
        if let Some(depth_max) = &self.depth_max {
            lower_queue_depth(listener, depth_max, false);
        }
    }

    fn listen(
        &self,
        port: PortId,
        listener: &Listener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        let address = listener.address.socket_addr();
        let bound = self.port_messages.listen(port, address, event_loop)?;
        Ok(bound.map_err(|cause| no_rdma(listener, cause))?)
    }

    fn apply_settings(
        &self,
        ports: &[(PortId, &Listener)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let settings = port_settings(ports.iter().copied());
        Ok(self.port_messages.apply_settings(&settings, event_loop)?)
    }

    fn close(&self, port: PortId) -> Result<PendingResponses<()>, Failure> {
        Ok(self.port_messages.close(port)?)
    }

    fn attach_memory(&self, region: &Region) -> Result<(), Failure> {
        Ok(self.domains.attach(region)?)
    }

    fn detach_memory(&self, region: &Region) {
        self.domains.detach(region);
    }
}

fn rdma_config(config: &Config, reactors: usize) -> RdmaConfig {
    let connections = config.limits.max_connections as usize;
    RdmaConfig {
        ports: port_settings(exports::numbered(config)),
        // All connections may be on one reactor; the placement enforces the limit for all reactors.
        connections_max: connections,
        reactors,
        ..RdmaConfig::default()
    }
}

/// The settings of each listener.
fn port_settings<'c>(
    listeners: impl Iterator<Item = (PortId, &'c Listener)>,
) -> Vec<(PortId, PortSettings)> {
    let settings = |listener: &Listener| PortSettings {
        in_capsule_bytes: listener.in_capsule_data.bytes() as u32,
        queue_depth_max: listener.queue_depth,
    };
    listeners
        .filter(|(_, listener)| listener.transport == TransportName::Rdma)
        .map(|(port, listener)| (port, settings(listener)))
        .collect()
}
