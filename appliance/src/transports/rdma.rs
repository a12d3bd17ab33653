//! NVMe/RDMA: its listeners, the network cards with their registered memory, and the per-reactor
//! parts for connections.
//!
//! Nothing of it exists until the first listener, at start or later. The control thread then opens
//! the libraries, creates the event channel of each reactor, registers all memory with the network
//! cards, and gives each reactor its part through a [`LatePoller`]. The parts stay. The cards are
//! released with the last listener, and used again when they return after a loss.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use appliance_config::{Config, Listener, Transport as TransportName};
use hugemem::{DeviceMemory, Region};
use nvme_rdma::{
    ConnectionSet, ListenAddress, Listeners, Message, PortMessage, PortSettings, RdmaConfig,
    RdmaCounters, RdmaTransport, SetParts, check_fitness, queue_depth_max,
};
use nvme_target::PortId;
use rdma::{Device, DeviceEvents, Domains, Provider, Unavailable, Verbs};
use reactors::mesh::Port;
use reactors::ring::Receiver;
use reactors::{InitError, Placement, Poller, ReactorHandle, ReactorSetup};

use super::{LateTransport, Listening, PerReactor, RdmaCard, Transport, TransportContext};
use crate::error::{Failure, with_causes};
use crate::event_loop::{EventLoop, aside};
use crate::exports;
use crate::late_poller::{Fill, LatePoller};
use crate::messages::{MessageRings, PendingResponses, PortMessages};
use crate::observe::sources::{Counts, TransportCounters};
use crate::rdma_devices::{ListenError, Search, register};

/// Connection requests and events that may be in flight between two reactors.
const MESSAGES_MAX: usize = 256;

#[derive(Debug, thiserror::Error)]
#[error("its part was handed out before")]
struct SetUpTwice;

/// The verbs of this system, or a replacement.
pub(crate) struct System<P: Provider> {
    /// Opens the provider, which looks for libraries.
    pub(crate) open: Box<dyn Fn() -> Result<P, Unavailable> + Send + Sync>,
    /// Makes a poller; not generic, so that its code is compiled once.
    pub(crate) into_poller: fn(RdmaTransport<P>) -> Box<dyn Poller>,
    /// The events of its devices, which other services use, too.
    pub(crate) events: Arc<DeviceEvents>,
}

/// NVMe/RDMA for a number of reactors, over the verbs of this system.
pub(super) fn system(reactors: usize, events: Arc<DeviceEvents>) -> Rdma<Verbs> {
    let system = System {
        open: Box::new(Verbs::open),
        into_poller: RdmaTransport::into_poller,
        events,
    };
    Rdma::new(reactors, system)
}

/// The provider and the event channels of all reactors, with their listeners.
struct Channels<P: Provider> {
    provider: P,
    listeners: Vec<Listeners<P>>,
}

impl<P: Provider> Channels<P> {
    fn open(system: &System<P>, reactors: usize) -> Result<Self, rdma::Error> {
        let provider = (system.open)()?;
        let listeners = (0..reactors).map(|reactor| Listeners::new(&provider, reactor));
        Ok(Self {
            listeners: listeners.collect::<Result<_, _>>()?,
            provider,
        })
    }
}

/// The largest supported queue depth, and the network card with this limit.
type DepthMax = (u16, String);

fn depth_max<D: Device>(devices: &[D]) -> Option<DepthMax> {
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
    let name = format!("listener {}", listener.name);
    ListenError::new(name, listener.address.socket_addr(), cause)
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

/// The listeners that reactors take control messages about.
type RdmaPortMessages = PortMessages<ListenAddress, PortSettings, Result<SocketAddr, rdma::Error>>;

/// The NVMe/RDMA transport of the whole appliance.
pub(crate) struct Rdma<P: Provider> {
    system: System<P>,
    reactors: usize,
    domains: Arc<Domains<P>>,
    counters: Vec<Arc<RdmaCounters>>,
    /// Whether there has ever been a listener.
    is_used: Arc<AtomicBool>,
    /// The limit of the network cards that were registered last, also while they are lost.
    depth_max: Mutex<Option<DepthMax>>,
    settings: OnceLock<(RdmaConfig, Placement)>,
    /// Set when the reactors run.
    handles: OnceLock<Vec<ReactorHandle>>,
    fills: MessageRings<Fill<TransportContext>>,
    slots: PerReactor<Receiver<Fill<TransportContext>>>,
    /// The parts that reactors take at start, if there are listeners.
    own: OnceLock<PerReactor<ReactorPart<P>>>,
    /// Used by the control thread only.
    state: Mutex<State<P>>,
}

/// How far the transport is set up. It advances only.
enum State<P: Provider> {
    /// No listener has existed.
    Unused,
    /// Listeners are bound, or will be, and the reactors do not run yet.
    Bound(Channels<P>, usize),
    /// Every reactor has its part.
    Serving(Arc<Serving<P>>),
}

/// The control thread's part of a transport whose reactors have theirs.
struct Serving<P: Provider> {
    provider: P,
    port_messages: RdmaPortMessages,
    search: Mutex<Search>,
}

/// The part that one reactor takes.
struct ReactorPart<P: Provider> {
    messages: Port<Message<P>>,
    port_messages: Receiver<PortMessage>,
    listeners: Listeners<P>,
    domains: Arc<Domains<P>>,
    config: RdmaConfig,
    counters: Arc<RdmaCounters>,
    placement: Placement,
    into_poller: fn(RdmaTransport<P>) -> Box<dyn Poller>,
}

impl<P: Provider> ReactorPart<P> {
    /// Creates the poller, on the reactor that the part is for.
    fn into_poller(
        mut self,
        shared: &TransportContext,
        reactors: &[ReactorHandle],
    ) -> Box<dyn Poller> {
        let wakers: Vec<_> = reactors.iter().map(|it| it.waker().clone()).collect();
        self.messages.attach_all(&wakers);
        let parts = SetParts {
            listeners: self.listeners,
            domains: self.domains,
            arena: Arc::clone(&shared.arena),
            commands_max: shared.commands_max,
            config: self.config,
            counters: self.counters,
        };
        let connections = ConnectionSet::new(shared.core.clone(), parts);
        let reactors = reactors.to_vec();
        let mut transport =
            RdmaTransport::new(connections, self.messages, self.placement, reactors);
        transport.receive_port_messages(self.port_messages);
        (self.into_poller)(transport)
    }
}

impl<P: Provider> Rdma<P> {
    /// NVMe/RDMA without a listener.
    pub(crate) fn new(reactors: usize, system: System<P>) -> Self {
        let (fills, slots) = MessageRings::new(reactors);
        let domains = Domains::with_check(check_fitness).with_events(Arc::clone(&system.events));
        Self {
            system,
            reactors,
            domains: Arc::new(domains),
            counters: (0..reactors).map(|_| Arc::default()).collect(),
            is_used: Arc::default(),
            depth_max: Mutex::default(),
            settings: OnceLock::new(),
            handles: OnceLock::new(),
            fills,
            slots: PerReactor::new(slots),
            own: OnceLock::new(),
            state: Mutex::new(State::Unused),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serving(&self) -> Option<Arc<Serving<P>>> {
        match &*self.state() {
            State::Serving(serving) => Some(Arc::clone(serving)),
            State::Unused | State::Bound(..) => None,
        }
    }

    /// The parts of the reactors, and that of the control thread.
    fn parts(&self, channels: Channels<P>) -> Result<(Vec<ReactorPart<P>>, Serving<P>), NotBegun> {
        let (config, placement) = self.settings.get().ok_or(NotBegun)?;
        let ports = reactors::mesh::mesh(self.reactors, MESSAGES_MAX);
        let (port_messages, receivers) = PortMessages::new(self.reactors);
        let own = ports.into_iter().zip(receivers).zip(channels.listeners);
        let parts = own.zip(&self.counters);
        let parts = parts.map(
            |(((messages, port_messages), listeners), counters)| ReactorPart {
                messages,
                port_messages,
                listeners,
                domains: Arc::clone(&self.domains),
                config: config.clone(),
                counters: Arc::clone(counters),
                placement: placement.clone(),
                into_poller: self.system.into_poller,
            },
        );
        let serving = Serving {
            provider: channels.provider,
            port_messages,
            search: Mutex::default(),
        };
        Ok((parts.collect(), serving))
    }

    /// Sets the transport up while the reactors run, for its first listener. Blocks, except for the
    /// registration of memory.
    ///
    /// # Errors
    /// The system lacks something, or a reactor does not respond. Nothing remains in the first case.
    fn set_up_late(
        &self,
        port: PortId,
        listener: &Listener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let handles = self.handles.get().ok_or(NotBegun)?;
        debug_assert_eq!(handles.len(), self.reactors);
        let failed = |cause| no_rdma(listener, cause);
        let mut channels = Channels::open(&self.system, self.reactors).map_err(failed)?;
        // An address that is not of an RDMA device is found before memory is registered.
        let address = listener.address.socket_addr();
        let probe = PortId(u16::MAX);
        channels.listeners[0]
            .listen(address, probe)
            .map_err(failed)?;
        channels.listeners[0].close_port(probe);
        self.register_all(&channels.provider, memory, event_loop)?;
        let (mut parts, serving) = self.parts(channels)?;
        for part in &mut parts {
            part.config.ports = port_settings(std::iter::once((port, listener)));
        }
        serving.port_messages.set_wakers(handles);
        self.is_used.store(true, Ordering::Release);
        // From here on the parts exist, also if a reactor responds late.
        *self.state() = State::Serving(Arc::new(serving));
        for (reactor, part) in parts.into_iter().enumerate() {
            let reactors = handles.clone();
            let make =
                Box::new(move |shared: &TransportContext| part.into_poller(shared, &reactors));
            self.fills
                .ask(reactor, event_loop, |reply| Fill { make, reply })?;
        }
        tracing::info!("RDMA is set up on {} reactors", self.reactors);
        Ok(())
    }

    /// Registers `memory` with every network card, beside the event loop.
    fn register_all(
        &self,
        provider: &P,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let domains = &self.domains;
        let registered = aside(event_loop, || {
            register(provider, domains, memory).map_err(|error| with_causes(&error))
        });
        if registered.is_ok() {
            *self.depth_max() = depth_max(&domains.devices());
        }
        registered
    }

    fn depth_max(&self) -> MutexGuard<'_, Option<DepthMax>> {
        self.depth_max
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The transport is used before it is prepared.
#[derive(Debug, thiserror::Error)]
#[error("the reactors have not started")]
struct NotBegun;

impl<P: Provider> Transport for Rdma<P> {
    /// 0 if there is no listener at start: the limit of the placement holds for all transports
    /// together, and NVMe/TCP reserves as many queues.
    fn connections_max(&self) -> usize {
        let settings = self.settings.get();
        settings
            .filter(|_| self.own.get().is_some())
            .map_or(0, |(config, _)| config.connections_max)
    }

    fn counters(&self) -> TransportCounters {
        let domains = Arc::clone(&self.domains) as Arc<dyn Counts>;
        TransportCounters::new("rdma", &self.counters)
            .with_whole(domains)
            .once_used(&self.is_used)
    }

    fn set_up(
        &self,
        shared: &TransportContext,
        setup: &mut ReactorSetup<'_>,
    ) -> Result<Box<dyn Poller>, InitError> {
        let index = setup.index();
        if let Some(own) = self.own.get() {
            let part = own.take(index).ok_or(SetUpTwice)?;
            return Ok(part.into_poller(shared, setup.handles()));
        }
        let messages = self.slots.take(index).ok_or(SetUpTwice)?;
        let slot = LatePoller::new("nvme-rdma", shared.clone(), messages);
        Ok(Box::new(slot))
    }
}

impl<P: Provider> LateTransport for Rdma<P> {
    fn open(&self, listener: &Listener) -> Result<(), Failure> {
        let mut state = self.state();
        if let State::Unused = *state {
            let channels = Channels::open(&self.system, self.reactors);
            *state = State::Bound(channels.map_err(|cause| no_rdma(listener, cause))?, 0);
        }
        Ok(())
    }

    fn bind(&self, port: PortId, listener: &Listener) -> Result<SocketAddr, Failure> {
        self.open(listener)?;
        let failed = |cause| no_rdma(listener, cause);
        let mut state = self.state();
        let State::Bound(channels, count) = &mut *state else {
            return Err(SetUpTwice.into());
        };
        // Listeners are assigned to reactors round-robin.
        let reactor = *count % channels.listeners.len();
        *count += 1;
        let address = listener.address.socket_addr();
        let bound = channels.listeners[reactor].listen(address, port);
        Ok(bound.map_err(failed)?)
    }

    fn begin(
        &self,
        config: &Config,
        placement: Placement,
        regions: &[&Region],
    ) -> Result<(), Failure> {
        let settings = (rdma_config(config, self.reactors), placement);
        self.settings.set(settings).map_err(|_| SetUpTwice)?;
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Unused) {
            State::Bound(channels, _) => {
                register(&channels.provider, &self.domains, regions)?;
                *self.depth_max() = depth_max(&self.domains.devices());
                let (parts, serving) = self.parts(channels)?;
                self.own
                    .set(PerReactor::new(parts))
                    .map_err(|_| SetUpTwice)?;
                self.is_used.store(true, Ordering::Release);
                *state = State::Serving(Arc::new(serving));
            }
            other @ (State::Unused | State::Serving(_)) => *state = other,
        }
        Ok(())
    }
}

impl<P: Provider> Listening for Rdma<P> {
    fn name(&self) -> TransportName {
        TransportName::Rdma
    }

    fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.fills.set_wakers(handles);
        if self.handles.set(handles.to_vec()).is_err() {
            return;
        }
        if let Some(serving) = self.serving() {
            serving.port_messages.set_wakers(handles);
        }
    }

    /// Lowers the queue depth to what every network card supports, because hosts rely on the
    /// reported depth.
    fn lower_limits(&self, listener: &mut Listener) {
        let bound = match &*self.state() {
            State::Bound(channels, _) => {
                depth_max(&channels.provider.devices().unwrap_or_default())
            }
            State::Unused | State::Serving(_) => None,
        };
        let is_told = bound.is_some();
        if let Some(limit) = bound.or_else(|| self.depth_max().clone()) {
            lower_queue_depth(listener, &limit, is_told);
        }
    }

    fn prepare(
        &self,
        port: PortId,
        listener: &Listener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let Some(serving) = self.serving() else {
            return self.set_up_late(port, listener, memory, event_loop);
        };
        if self.domains.devices().is_empty() {
            // The reactors take the cards in with the settings.
            self.register_all(&serving.provider, memory, event_loop)?;
        }
        Ok(())
    }

    fn listen(
        &self,
        port: PortId,
        listener: &Listener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        let serving = self.serving().ok_or(NotBegun)?;
        let address = ListenAddress::New(listener.address.socket_addr());
        let bound = serving.port_messages.listen(port, address, event_loop)?;
        Ok(bound.map_err(|cause| no_rdma(listener, cause))?)
    }

    fn passes_connections(&self) -> bool {
        false
    }

    fn listen_on_known(
        &self,
        port: PortId,
        address: SocketAddr,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let serving = self.serving().ok_or(NotBegun)?;
        let address = ListenAddress::Known(address);
        // A failure is logged, and tried again.
        let _ = serving.port_messages.listen(port, address, event_loop)?;
        Ok(())
    }

    fn release(&self, event_loop: &mut dyn EventLoop) {
        let Some(serving) = self.serving() else {
            return;
        };
        if self.domains.devices().is_empty() && self.domains.lost().is_empty() {
            return;
        }
        let memory = self.domains.clear();
        // The reactors release their queues, and this thread the memory: that takes time for each
        // page, in which a reactor would serve no host.
        let released = serving.port_messages.apply_settings(&[], event_loop);
        let deregistered = aside(event_loop, move || {
            drop(memory);
            Ok(())
        });
        match released
            .map_err(|error| error.to_string())
            .and(deregistered)
        {
            Ok(()) => {
                tracing::info!("no RDMA listener is left: the memory is no longer registered");
            }
            Err(error) => tracing::error!("memory is still registered: {error}"),
        }
    }

    fn use_device_memory(&self, memory: &[Arc<DeviceMemory>], event_loop: &mut dyn EventLoop) {
        if self.serving().is_none() || !self.domains.lacks_device_memory(memory) {
            return;
        }
        let set = || {
            self.domains.set_device_memory(memory.to_vec());
            Ok(())
        };
        if let Err(error) = aside(event_loop, set) {
            tracing::error!("memory of drives is not registered: {error}");
        }
    }

    fn restore(
        &self,
        ports: &[(PortId, &Listener)],
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) {
        let Some(serving) = self.serving() else {
            return;
        };
        let mut search = serving
            .search
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let devices = (&serving.provider, &*self.domains);
        if !search.look(devices, !ports.is_empty(), memory, event_loop) {
            return;
        }
        *self.depth_max() = depth_max(&self.domains.devices());
        let settings = port_settings(ports.iter().copied());
        // The reactors take the cards in.
        if let Err(error) = serving.port_messages.apply_settings(&settings, event_loop) {
            tracing::error!("an RDMA device that has returned is not used: {error}");
        }
    }

    fn apply_settings(
        &self,
        ports: &[(PortId, &Listener)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let Some(serving) = self.serving() else {
            return Ok(());
        };
        let settings = port_settings(ports.iter().copied());
        Ok(serving
            .port_messages
            .apply_settings(&settings, event_loop)?)
    }

    fn close(&self, port: PortId) -> Result<PendingResponses<()>, Failure> {
        match self.serving() {
            Some(serving) => Ok(serving.port_messages.close(port)?),
            None => Ok(PendingResponses::none()),
        }
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
