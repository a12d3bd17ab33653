//! The production appliance in virtual time: target, cores and transports on reactors that all run
//! on one thread.

mod access;
mod accounts;
mod copying;
mod drive_memory;
mod handing_over;
mod listening;
mod opening;
mod watched;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use appliance::headless::{
    AnaOperator, Control, CopyOperator, HeadlessAppliance, Listening, Parts, PortMessages,
};
use appliance_config::{Config, Listener, Transport};
use block::{DataPath, Device, DeviceSet, HealthState, OpenError, QueueOptions};
use hugemem::{Arena, DmaViolation, Region};
use nvme_driver::{DriveCounters, DriveOwner, DriveState};
use nvme_rdma::{
    ConnectionSet as RdmaSet, Listeners, RdmaConfig, RdmaCounters, RdmaTransport, SetParts,
};
use nvme_target::{
    ControllerKind, ControllerSnapshot, ControllerState, CoreLimits, DeviceIndex, PaceSnapshot,
    PortId, Target, TargetCore,
};
use nvme_tcp::{ConnectionAudit, ConnectionSet, Handoff, TcpConfig, TcpCounters, TcpTransport};
use rdma::{Domains, Provider};
use rdma_testing::fake::Fake;
use reactors::mesh::Port;
use reactors::ring::Receiver;
use reactors::sim::Simulation;
use reactors::{Clock, Nanos, Placement, Poller, Progress, ReactorConfig, ReactorHandle};

use crate::drive::Opened;
use crate::environment::{self, Environment};
use crate::fabric::RdmaNetwork;
use crate::network::{Listener as SimListener, SimNetwork, Socket, TargetStream, WireId};
use crate::oracle::Served;
use crate::plan::{device_name, tcp_address};
use crate::storage::Storage;
use crate::store::StoreResult;
use crate::swarm::Swarm;
use crate::time::SharedTime;
pub use accounts::Held;
pub use handing_over::{HandingOver, Passed, Successor};
use listening::{RdmaListening, SentSettings, TcpListening};
use opening::Disks;
pub use opening::Shelf;
use watched::Watched;

/// Maximum outstanding commands of one reactor.
pub const COMMANDS_MAX: usize = 2048;
/// Maximum connections of one reactor and transport; it refuses more.
pub const CONNECTIONS_MAX: usize = 64;

/// NVMe/TCP over simulated streams.
type SimTcp = TcpTransport<SimNetwork>;

/// A running appliance.
pub struct Appliance {
    simulation: Simulation,
    target: Arc<Target>,
    arena: Arc<Arena>,
    /// The devices of drives, by disk number.
    devices: Vec<(usize, Arc<dyn Device>)>,
    /// By disk: how its data takes its way.
    data_paths: Vec<DataPath>,
    cores: Vec<Rc<RefCell<TargetCore>>>,
    /// The NVMe/TCP transport of each reactor.
    tcp: Vec<Rc<RefCell<SimTcp>>>,
    tcp_listening: Arc<TcpListening>,
    /// The NVMe/RDMA transport of each reactor, if there is one.
    rdma: Vec<Rc<RefCell<RdmaTransport<Fake>>>>,
    /// The RDMA devices, which register memory of drives.
    domains: Option<Arc<Domains<Fake>>>,
    /// The control thread's state; `None` while a configuration change uses it.
    control: Option<Control>,
    ana_operator: AnaOperator,
    copies: CopyOperator,
    drives: Vec<Opened>,
    placement: Placement,
    /// The port settings that the transports received last.
    sent_settings: SentSettings,
    sim_listeners: Vec<SimListener>,
    /// Disks that are read-only by themselves.
    protected: Vec<usize>,
    /// Bytes that an earlier process had not sent, which connections keep until they have sent them.
    unsent: BTreeMap<WireId, usize>,
    time: SharedTime,
}

impl Appliance {
    /// Starts the configuration of an environment at the current time.
    ///
    /// # Errors
    /// The resource that is not available, as text.
    pub fn start(seed: u64, env: &Environment) -> Result<Self, String> {
        Self::start_with(seed, env, None)
    }

    /// Like [`start`](Self::start), with what an earlier process has passed on.
    fn start_with(seed: u64, env: &Environment, passed: Option<&Passed>) -> Result<Self, String> {
        let Environment {
            swarm, time, disks, ..
        } = env;
        let text = |error: &dyn std::error::Error| error.to_string();
        let config = match passed {
            Some(passed) => passed.config.clone(),
            None => env.serving.config(swarm)?,
        };
        let arena = match &env.arena {
            Some(arena) => Arc::clone(arena),
            None => environment::arena(swarm).map_err(|error| text(&error))?,
        };
        let (devices, opened) = open(swarm, disks, &arena, time)?;
        let mut headless = HeadlessAppliance::new(Parts {
            drives: places_of(&config, &devices),
            opener: Box::new(disks_by_name(disks, &env.shelf)),
            identities: env.identities.clone(),
            reactors: swarm.reactors,
            transfer_max: arena.max_transfer().min(swarm.transfer_max),
            queue_depth: swarm.device_queue_depth,
            config: config.clone(),
            continued: passed.map(|it| it.continued.clone()),
        })?;
        let target = Arc::clone(headless.target());
        restore_reservations(env, &config, &target, passed)?;
        let configs = vec![ReactorConfig::default(); swarm.reactors];
        let mut simulation = Simulation::new(seed, configs).map_err(|error| text(&error))?;
        simulation.clock().advance_to(time.now());
        let mut drives = Vec::new();
        for (drive, owner) in opened {
            let reactor = simulation.reactor(drive.owner);
            let registered = reactor.register(Box::new(owner));
            registered.map_err(|error| text(&error))?;
            drives.push(drive);
        }
        let handles: Vec<_> = (0..swarm.reactors)
            .map(|index| simulation.reactor(index).handle())
            .collect();
        let placement = Placement::new(swarm.reactors);
        let listeners = match passed {
            Some(passed) => Ports::numbered(passed.continued.listeners(&config)),
            None => Ports::of(&config),
        };
        let numbered = listeners.tcp.iter().chain(&listeners.rdma);
        let settings = numbered.map(|(port, it)| (*port, listening::setting(it)));
        let settings: SentSettings = Arc::new(Mutex::new(settings.collect()));
        let mut tcp = Tcp::new(env, &listeners, &placement, &handles, &settings);
        let mut rdma = match &env.rdma {
            // As in the appliance, there is no RDMA transport if no listener needs it at start.
            Some(network) if !listeners.rdma.is_empty() => {
                let regions = headless.regions(&arena);
                let settings = Arc::clone(&settings);
                Some(Rdma::new(
                    network, swarm, &regions, &placement, &listeners, settings,
                )?)
            }
            _ => None,
        };
        let (mut cores, mut watched, mut rdma_watched) = (Vec::new(), Vec::new(), Vec::new());
        for (index, part) in headless.take_reactor_parts().into_iter().enumerate() {
            let core = core(swarm, &target, &arena, index).map_err(|error| text(&error))?;
            let core = Rc::new(RefCell::new(core));
            cores.push(Rc::clone(&core));
            let bind = match passed {
                Some(_) => listening::duplicate,
                None => listening::bind,
            };
            let transport = tcp.transport(index, &core, &arena, bind)?;
            let transport = Rc::new(RefCell::new(transport));
            let mut pollers: Vec<Box<dyn Poller>> = vec![Box::new(Watched::new(&transport))];
            watched.push(transport);
            if let Some(rdma) = &mut rdma {
                let transport = rdma.transport(index, &core, &arena, &handles)?;
                let transport = Rc::new(RefCell::new(transport));
                pollers.push(Box::new(Watched::new(&transport)));
                rdma_watched.push(transport);
            }
            let behind = part.pollers(core, &arena, COMMANDS_MAX);
            pollers.extend(behind.map_err(|error| text(&error))?);
            let reactor = simulation.reactor(index);
            for poller in pollers {
                reactor.register(poller).map_err(|error| text(&error))?;
            }
        }
        let domains = rdma.as_ref().map(|it| Arc::clone(&it.domains));
        let tcp_listening = Arc::new(tcp.listening);
        let mut transports: Vec<Arc<dyn Listening>> = vec![Arc::clone(&tcp_listening) as _];
        transports.extend(rdma.map(Rdma::listening));
        let all = swarm.disks.iter().enumerate();
        let protected = all.filter(|(_, it)| it.read_only).map(|(number, _)| number);
        let control = headless.begin(transports, &handles);
        Ok(Self {
            ana_operator: control.ana_operator(),
            copies: control.copy_operator(),
            control: Some(control),
            simulation,
            target,
            arena,
            devices,
            data_paths: swarm.data_paths.clone(),
            cores,
            tcp: watched,
            tcp_listening,
            rdma: rdma_watched,
            domains,
            drives,
            placement,
            sent_settings: settings,
            sim_listeners: env.listeners.clone(),
            protected: protected.collect(),
            unsent: BTreeMap::new(),
            time: time.clone(),
        })
    }

    /// Runs one turn of every reactor.
    pub fn run_turn(&mut self) -> Progress {
        for drive in &self.drives {
            drive.advance_to(self.time.now());
        }
        self.register_drive_memory();
        // The thread of the exponentiations computes one in the time of a turn.
        self.target.run_exponentiation();
        let progress = self.simulation.round();
        self.time.set(self.simulation.clock().now());
        progress
    }

    /// Whether no message between reactors is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.simulation.is_idle()
    }

    /// Whether the target uses a disk's device.
    #[must_use]
    pub fn has_device(&self, disk: usize) -> bool {
        let name = device_name(disk).parse();
        let control = self.control.as_ref();
        control.is_some_and(|it| name.is_ok_and(|name| it.place_of(&name).is_some()))
    }

    /// Takes the control thread's state for the duration of a change.
    pub fn take_control(&mut self) -> Option<Control> {
        self.control.take()
    }

    /// Returns the control thread's state after a change.
    pub fn give_control(&mut self, control: Control) {
        self.control = Some(control);
    }

    /// Whether a disk's drive is removed, as far as its driver knows.
    #[must_use]
    pub fn is_gone(&self, disk: usize) -> bool {
        let drive = self.devices.iter().find(|(number, _)| *number == disk);
        drive.is_some_and(|(_, it)| it.health().state == HealthState::Removed)
    }

    /// Does what the pacing thread does. Returns the paces.
    pub fn adjust_paces(&self, now: Nanos) -> Vec<PaceSnapshot> {
        if self.target.has_paces() {
            self.target.adjust_paces(now);
        }
        self.target.paces()
    }

    /// Runs the control thread's periodic checks, unless a change is in progress.
    pub fn run_control_checks(&mut self) {
        if let Some(control) = &mut self.control {
            control.poll();
        }
    }

    /// Advances the time to `to`.
    pub fn advance_to(&mut self, to: Nanos) {
        self.simulation.clock().advance_to(to);
        self.time.set(self.simulation.clock().now());
    }

    /// The earliest timer of the reactors.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.simulation.next_deadline()
    }

    /// Begins a shutdown that must end by `deadline`.
    pub fn begin_stop(&mut self, deadline: Nanos) {
        self.target.shut_down();
        self.simulation.request_stop(deadline);
    }

    /// Whether the shutdown is complete.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.simulation.is_finished()
    }

    /// The objects that did not end during the shutdown.
    pub fn outstanding(&mut self) -> Vec<String> {
        let reactors = self.target.reactors();
        (0..reactors)
            .flat_map(|index| self.simulation.reactor(index).outstanding())
            .map(|outstanding| outstanding.to_string())
            .collect()
    }

    /// Reports the result of storing reservations.
    pub fn reservations_stored(&self, result: StoreResult) {
        let StoreResult {
            device,
            number,
            is_stored,
            ..
        } = result;
        self.target.reservations_stored(device, number, is_stored);
    }

    /// Ends the appliance immediately, in any state. Returns the number of leases that remain
    /// unreturned after all owners are dropped.
    #[must_use]
    pub fn end(self) -> u64 {
        let Self {
            simulation,
            arena,
            target,
            devices,
            drives,
            cores,
            tcp,
            tcp_listening,
            rdma,
            control,
            ana_operator,
            copies,
            ..
        } = self;
        drop((
            simulation,
            tcp,
            tcp_listening,
            rdma,
            cores,
            control,
            ana_operator,
            copies,
            target,
            devices,
            drives,
        ));
        let classes = arena.counters().classes;
        classes.iter().map(|class| class.taken).sum()
    }

    /// A DMA access of a drive to memory that was not posted to it, if there was one since the last
    /// call.
    #[must_use]
    pub fn take_dma_violation(&self) -> Option<DmaViolation> {
        self.arena.take_dma_violation()
    }

    /// The memory that each TCP connection holds, apart from what an earlier process had not sent.
    #[must_use]
    pub fn held_by_connections(&self) -> Vec<(WireId, ConnectionAudit)> {
        let mut held = Vec::new();
        for transport in &self.tcp {
            let transport = transport.borrow();
            held.extend(transport.audit().map(|(stream, mut it)| {
                let unsent = self.unsent.get(&stream.id()).copied();
                it.own_bytes = it.own_bytes.saturating_sub(unsent.unwrap_or(0));
                (stream.id(), it)
            }));
        }
        held
    }

    /// The memory that each RDMA connection holds.
    #[must_use]
    pub fn held_by_queue_pairs(&self) -> Vec<nvme_rdma::ConnectionAudit> {
        let transports = self.rdma.iter().map(|it| it.borrow());
        let audits = transports.map(|it| it.audit().collect::<Vec<_>>());
        audits.flatten().collect()
    }

    /// Bytes and number of the arena's slices of each size.
    pub fn slices(&self) -> impl Iterator<Item = (usize, u64)> {
        let classes = self.arena.counters().classes.into_iter();
        classes.map(|class| (class.slice_bytes, class.total))
    }

    /// Number of requests that had to wait for memory.
    #[must_use]
    pub fn waits_for_memory(&self) -> u64 {
        let classes = self.arena.counters().classes;
        classes.iter().map(|class| class.waits).sum()
    }

    /// Completions for unknown requests and uses of stale queues, which are defects.
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        let cores = (0..self.target.reactors()).filter_map(|it| self.target.core_counters(it));
        cores.map(|core| core.stale_completions.get()).sum()
    }

    /// The states of the drives.
    pub fn drive_states(&self) -> impl Iterator<Item = DriveState> {
        self.drives.iter().map(Opened::state)
    }

    /// The drivers' counters, by disk number.
    pub fn drive_counters(&self) -> impl Iterator<Item = (usize, DriveCounters)> {
        self.drives.iter().map(|it| (it.number, it.counters()))
    }

    /// The current associations: host name, subsystem name and controller identifier.
    #[must_use]
    pub fn associations(&self) -> Vec<(String, String, u16)> {
        let controllers = self.target.snapshot().controllers.into_iter();
        let live = controllers
            .filter(|it| it.kind == ControllerKind::Io && it.state != ControllerState::Ended);
        live.map(|it| (it.host_nqn, it.subsystem_nqn, it.controller_id))
            .collect()
    }

    /// The served state, as the control thread sees it during a change. `absent`: disks that are
    /// pulled out.
    #[must_use]
    pub fn served(&self, control: &Control, absent: &[usize]) -> Served {
        let sent_settings = self
            .sent_settings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let sim_listeners = self.sim_listeners.iter().enumerate();
        let bound = sim_listeners.filter(|(_, listener)| listener.is_bound());
        let names = control.config().devices.iter().map(|it| &it.name);
        let absent = absent.iter().filter_map(|it| device_name(*it).parse().ok());
        let protected = self.protected.iter();
        let protected = protected.filter_map(|it| device_name(*it).parse().ok());
        Served {
            target: self.target.configuration(),
            places: names
                .filter_map(|name| Some((name.clone(), control.place_of(name)?)))
                .collect(),
            settings: sent_settings.clone(),
            bound: bound.map(|(number, _)| tcp_address(number)).collect(),
            protected: protected.collect(),
            absent: absent.collect::<BTreeSet<_>>(),
        }
    }

    /// The controllers of all hosts.
    #[must_use]
    pub fn controllers(&self) -> Vec<ControllerSnapshot> {
        self.target.snapshot().controllers
    }
}

/// The devices of drives by disk number, and the drives with their owners.
type Drives = (Vec<(usize, Arc<dyn Device>)>, Vec<(Opened, DriveOwner)>);

/// Opens every drive; virtual time advances while they start.
fn open(
    swarm: &Swarm,
    storages: &[Storage],
    arena: &Arc<Arena>,
    time: &SharedTime,
) -> Result<Drives, String> {
    let (mut devices, mut drives) = (Vec::new(), Vec::new());
    let mut now = time.now();
    for storage in storages {
        if let Storage::Drive(drive) = storage {
            let depth = swarm.device_queue_depth;
            let (opened, owner) = drive.open(arena, swarm.reactors, depth, &mut now)?;
            devices.extend(opened.devices.iter().cloned());
            drives.push((opened, owner));
        }
    }
    time.set(now);
    Ok((devices, drives))
}

/// Gives devices whose content survives the reservations that were stored.
fn restore_reservations(
    env: &Environment,
    config: &Config,
    target: &Target,
    passed: Option<&Passed>,
) -> Result<(), String> {
    let can_persist = env.can_persist_reservations();
    for disk in (0..can_persist.len()).filter(|disk| can_persist[*disk]) {
        let name = device_name(disk);
        if passed.is_some_and(|it| it.without_store.contains(&name)) {
            continue;
        }
        let mut devices = config.devices.iter();
        if let Some(place) = devices.position(|it| it.name.as_str() == name) {
            let device = DeviceIndex(place as u16);
            target.set_reservations(device, env.store.initial(disk)?);
        }
    }
    target.set_reservation_store(Box::new(env.store.clone()));
    Ok(())
}

/// The devices of drives, by their index in the configuration.
fn places_of(
    config: &Config,
    drives: &[(usize, Arc<dyn Device>)],
) -> Vec<(usize, Arc<dyn Device>)> {
    let devices = drives.iter().filter_map(|(disk, device)| {
        let name = device_name(*disk);
        let mut all = config.devices.iter();
        let place = all.position(|it| it.name.as_str() == name)?;
        Some((place, Arc::clone(device)))
    });
    devices.collect()
}

fn disks_by_name(storages: &[Storage], shelf: &Shelf) -> Disks {
    let (mut files, mut ram) = (Vec::new(), Vec::new());
    for (number, storage) in storages.iter().enumerate() {
        match storage {
            Storage::File(file) => files.push(file.clone()),
            Storage::Ram(it) => ram.push((device_name(number), it.clone())),
            // The shelf contains the disks.
            Storage::Disk(_) | Storage::Drive(_) | Storage::Neighbour(_) => {}
        }
    }
    Disks {
        shelf: shelf.clone(),
        files,
        ram,
    }
}

/// The listeners of a configuration, with their port numbers.
struct Ports {
    tcp: Vec<(PortId, Listener)>,
    rdma: Vec<(PortId, Listener)>,
}

impl Ports {
    fn of(config: &Config) -> Self {
        // Numbered as in the appliance.
        let numbered = (0..).map(PortId).zip(config.listeners.iter().cloned());
        Self::numbered(numbered.collect())
    }

    fn numbered(listeners: Vec<(PortId, Listener)>) -> Self {
        let is_tcp = |it: &(PortId, Listener)| it.1.transport == Transport::Tcp;
        let (tcp, rdma) = listeners.into_iter().partition(is_tcp);
        Self { tcp, rdma }
    }
}

/// The parts from which the reactors' NVMe/TCP transports are created.
struct Tcp<'s> {
    swarm: &'s Swarm,
    ports: &'s [(PortId, Listener)],
    placement: Placement,
    handles: Vec<ReactorHandle>,
    listening: TcpListening,
    /// The part of each reactor, until its transport takes it.
    own: Vec<Option<TcpOwn>>,
}

/// The part of one reactor: its ring port to the other reactors, and its control messages.
type TcpOwn = (
    Port<Handoff<TargetStream>>,
    Receiver<nvme_tcp::PortMessage<Socket, TargetStream>>,
);

impl<'s> Tcp<'s> {
    fn new(
        env: &'s Environment,
        ports: &'s Ports,
        placement: &Placement,
        handles: &[ReactorHandle],
        sent_settings: &SentSettings,
    ) -> Self {
        let reactors = env.swarm.reactors;
        let (port_messages, receivers) = PortMessages::new(reactors);
        let mesh = reactors::mesh::mesh(reactors, 64);
        Self {
            swarm: &env.swarm,
            ports: &ports.tcp,
            placement: placement.clone(),
            handles: handles.to_vec(),
            listening: TcpListening {
                port_messages,
                sim_listeners: env.listeners.clone(),
                sent_settings: Arc::clone(sent_settings),
            },
            own: mesh.into_iter().zip(receivers).map(Some).collect(),
        }
    }

    /// Creates the transport of reactor `index`. Listeners are distributed over the reactors.
    fn transport(
        &mut self,
        index: usize,
        core: &Rc<RefCell<TargetCore>>,
        arena: &Arc<Arena>,
        bind: Bind,
    ) -> Result<SimTcp, String> {
        let own = self.own[index].take();
        let (handoffs, port_messages) = own.ok_or("a reactor has one transport")?;
        let connections = ConnectionSet::new(
            Rc::clone(core),
            arena.pool(COMMANDS_MAX),
            self.config(),
            Arc::new(TcpCounters::default()),
        );
        let (placement, handles) = (self.placement.clone(), self.handles.clone());
        let network = SimNetwork::new();
        let mut transport =
            TcpTransport::with_network(network, connections, handoffs, placement, handles);
        transport.receive_port_messages(port_messages);
        let mine = self.ports.iter().enumerate();
        let mine = mine.filter(|(turn, _)| turn % self.swarm.reactors == index);
        for (_, (port, listener)) in mine {
            let bound = bind(
                &self.listening.sim_listeners,
                listener.address.socket_addr(),
            );
            let listened = bound.and_then(|socket| transport.listen(socket, *port));
            listened.map_err(|error| error.to_string())?;
        }
        Ok(transport)
    }

    fn config(&self) -> TcpConfig {
        let ports = self.ports.iter();
        TcpConfig {
            ports: ports
                .map(|(port, listener)| (*port, listening::tcp_settings(listener)))
                .collect(),
            host_data_bytes_max: self.swarm.host_data_bytes_max,
            success_flag: self.swarm.success_flag,
            connections_max: self.swarm.limits.connections,
            ..TcpConfig::default()
        }
    }
}

/// Gets the listening socket of an address.
type Bind = fn(&[SimListener], SocketAddr) -> std::io::Result<Socket>;

fn core(
    swarm: &Swarm,
    target: &Arc<Target>,
    arena: &Arc<Arena>,
    index: usize,
) -> Result<TargetCore, OpenError> {
    let devices = Rc::new(DeviceSet::new());
    for (place, device) in target.devices() {
        let options = QueueOptions::new(index, swarm.device_queue_depth, arena.pool(COMMANDS_MAX));
        devices.attach(usize::from(place.0), &*device, options)?;
    }
    let limits = CoreLimits {
        // The limit covers the connections of both transports.
        queues_max: swarm.limits.connections.max(CONNECTIONS_MAX) + CONNECTIONS_MAX,
        executions_max: swarm.limits.executions,
    };
    let mut core = TargetCore::new(Arc::clone(target), index, devices, limits);
    core.set_device_transfer_bytes_min(swarm.rdma.device_transfer_bytes_min);
    Ok(core)
}

/// The parts from which the reactors' NVMe/RDMA transports are created.
struct Rdma {
    provider: Fake,
    domains: Arc<Domains<Fake>>,
    config: RdmaConfig,
    ports: Vec<(PortId, Listener)>,
    listening: RdmaListening,
    /// The part of each reactor, until its transport takes it.
    own: Vec<Option<RdmaOwn>>,
    placement: Placement,
}

/// The part of one reactor: its ring port to the other reactors, and its control messages.
type RdmaOwn = (
    Port<nvme_rdma::Message<Fake>>,
    Receiver<nvme_rdma::PortMessage>,
);

impl Rdma {
    /// Registers the memory of an appliance with its RDMA devices.
    fn new(
        network: &RdmaNetwork,
        swarm: &Swarm,
        regions: &[&Region],
        placement: &Placement,
        ports: &Ports,
        sent_settings: SentSettings,
    ) -> Result<Self, String> {
        let provider = network.target().clone();
        let domains = Domains::new();
        for device in provider.devices().map_err(|error| error.to_string())? {
            let added = domains.add(&device, regions);
            added.map_err(|error| error.to_string())?;
        }
        let settings = ports.rdma.iter();
        let settings = settings.map(|(port, it)| (*port, listening::rdma_settings(it)));
        let (port_messages, receivers) = PortMessages::new(swarm.reactors);
        let mesh = reactors::mesh::mesh(swarm.reactors, 64);
        let domains = Arc::new(domains);
        Ok(Self {
            provider,
            domains: Arc::clone(&domains),
            config: RdmaConfig {
                ports: settings.collect(),
                receives: swarm.rdma.receives,
                reactors: swarm.reactors,
                connections_max: CONNECTIONS_MAX,
                ..RdmaConfig::default()
            },
            ports: ports.rdma.clone(),
            listening: RdmaListening {
                port_messages,
                domains,
                sent_settings,
            },
            own: mesh.into_iter().zip(receivers).map(Some).collect(),
            placement: placement.clone(),
        })
    }

    /// The interface that adds and removes its listeners.
    fn listening(self) -> Arc<dyn Listening> {
        Arc::new(self.listening)
    }

    /// Creates the transport of reactor `index`. Listeners are distributed over the reactors.
    fn transport(
        &mut self,
        index: usize,
        core: &Rc<RefCell<TargetCore>>,
        arena: &Arc<Arena>,
        handles: &[ReactorHandle],
    ) -> Result<RdmaTransport<Fake>, String> {
        let listeners = Listeners::new(&self.provider, index);
        let mut listeners = listeners.map_err(|error| error.to_string())?;
        let mine = self.ports.iter().enumerate();
        let mine = mine.filter(|(turn, _)| turn % self.own.len() == index);
        for (_, (port, listener)) in mine {
            let listening = listeners.listen(listener.address.socket_addr(), *port);
            listening.map_err(|error| error.to_string())?;
        }
        let parts = SetParts {
            listeners,
            domains: Arc::clone(&self.domains),
            arena: Arc::clone(arena),
            commands_max: COMMANDS_MAX,
            config: self.config.clone(),
            counters: Arc::new(RdmaCounters::default()),
        };
        let connections = RdmaSet::new(Rc::clone(core), parts);
        let own = self.own[index].take();
        let (messages, port_messages) = own.ok_or("a reactor has one transport")?;
        let (placement, handles) = (self.placement.clone(), handles.to_vec());
        let mut transport = RdmaTransport::new(connections, messages, placement, handles);
        transport.receive_port_messages(port_messages);
        Ok(transport)
    }
}
