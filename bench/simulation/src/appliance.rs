//! The production appliance on virtual time: target, cores and transports on reactors that all turn
//! on one thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use block::{Device, DeviceQueue, OpenError, QueueOptions};
use hugemem::Arena;
use nvme_driver::emulated::end_of_process;
use nvme_driver::{DriveOwner, DriveState};
use nvme_rdma::{
    ConnectionSet as RdmaSet, Domains, Listeners, PortSettings as RdmaPortSettings, RdmaConfig,
    RdmaCounters, RdmaTransport, SetParts,
};
use nvme_target::{
    CoreDrain, CoreLimits, DeviceDrain, DeviceIndex, NamespaceConfig, PortConfig, PortId,
    SubsystemConfig, Target, TargetConfig, TargetCore, TargetLimits, TransportKind,
};
use nvme_tcp::{ConnectionSet, PortSettings, TcpConfig, TcpCounters, TcpTransport};
use rdma::Provider;
use rdma::fake::Fake;
use reactors::mesh::Port;
use reactors::sim::Simulation;
use reactors::{
    Clock, Nanos, Placement, Poller, Progress, ReactorConfig, ReactorHandle, StopState,
};

use crate::drive::Opened;
use crate::fabric::{RdmaNetwork, TARGET_ADDRESS};
use crate::network::SimNetwork;
use crate::scene::{self, Scene};
use crate::storage::Storage;
use crate::swarm::Swarm;
use crate::time::SharedTime;

/// The subsystem that is exported.
pub const SUBSYSTEM: &str = "nqn.2026-11.org.windlass:simulated";
/// The port that hosts come by over TCP.
const PORT: PortId = PortId(1);
/// The port that hosts come by over RDMA.
const RDMA_PORT: PortId = PortId(2);
/// Entries of an I/O queue at most.
pub const QUEUE_DEPTH_MAX: u16 = 64;
/// I/O queues of a controller at most.
pub const IO_QUEUES_MAX: u16 = 4;
/// Commands that one reactor may have outstanding.
const COMMANDS_MAX: usize = 2048;
/// Connections of one reactor and transport; it refuses more.
pub const CONNECTIONS_MAX: usize = 64;

/// The name of host `number`.
#[must_use]
pub fn host_name(number: usize) -> String {
    format!("nqn.2026-11.org.windlass:host{number}")
}

/// What of the configuration changes during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// By disk: whether its namespace is there.
    pub namespaces: Vec<bool>,
    /// By host: whether it may connect.
    pub hosts: Vec<bool>,
}

impl Serving {
    fn hosts(&self) -> Vec<String> {
        let allowed = self
            .hosts
            .iter()
            .enumerate()
            .filter(|(_, allowed)| **allowed);
        allowed.map(|(number, _)| host_name(number)).collect()
    }

    /// The namespaces on devices with these places in the target.
    fn namespaces(
        &self,
        devices: &[Arc<dyn Device>],
        places: &[Option<DeviceIndex>],
    ) -> Vec<NamespaceConfig> {
        let present = self.namespaces.iter().enumerate().filter(|(_, on)| **on);
        present
            .filter_map(|(disk, _)| Some((disk, places[disk]?)))
            .map(|(disk, device)| NamespaceConfig {
                nsid: disk as u32 + 1,
                device,
                geometry: devices[disk].geometry(),
                uuid: [disk as u8 + 1; 16],
                nguid: [disk as u8 + 0x21; 16],
                eui64: [disk as u8 + 0x41; 8],
                read_only: false,
            })
            .collect()
    }
}

/// A running appliance.
pub struct Appliance {
    simulation: Simulation,
    target: Arc<Target>,
    arena: Arc<Arena>,
    devices: Vec<Arc<dyn Device>>,
    /// By disk: its place in the target.
    places: Vec<Option<DeviceIndex>>,
    /// Devices on their way out.
    leaving: Vec<Leaving>,
    cores: Vec<Rc<RefCell<TargetCore>>>,
    device_queue_depth: usize,
    drives: Vec<Opened>,
    time: SharedTime,
}

/// A device that is on its way out of the target.
struct Leaving {
    disk: usize,
    place: DeviceIndex,
    /// The cores that are not done with it.
    cores: Vec<usize>,
}

impl Appliance {
    /// Starts it in a scene, at the present time.
    ///
    /// # Errors
    /// What could not be had, in words.
    pub fn start(seed: u64, scene: &Scene) -> Result<Self, String> {
        let Scene {
            swarm,
            serving,
            listener,
            time,
            disks,
            ..
        } = scene;
        let told = |error: &dyn std::error::Error| error.to_string();
        let arena = match &scene.arena {
            Some(arena) => Arc::clone(arena),
            None => scene::arena(swarm).map_err(|error| told(&error))?,
        };
        let (devices, opened) = open(swarm, disks, &arena, time)?;
        let places: Vec<_> = (0..devices.len() as u16)
            .map(|it| Some(DeviceIndex(it)))
            .collect();
        let namespaces = serving.namespaces(&devices, &places);
        let target = Target::new(
            target_config(swarm, serving, namespaces, arena.max_transfer()),
            swarm.reactors,
            devices.clone(),
        )
        .map_err(|error| told(&error))?;
        let configs = vec![ReactorConfig::default(); swarm.reactors];
        let mut simulation = Simulation::new(seed, configs).map_err(|error| told(&error))?;
        simulation.clock().advance_to(time.now());
        let mut drives = Vec::new();
        for (drive, owner) in opened {
            let reactor = simulation.reactor(drive.owner);
            let registered = reactor.register(Box::new(owner));
            registered.map_err(|error| told(&error))?;
            drives.push(drive);
        }
        let handles: Vec<_> = (0..swarm.reactors)
            .map(|index| simulation.reactor(index).handle())
            .collect();
        let placement = Placement::new(swarm.reactors);
        let mut cores = Vec::new();
        let ports = reactors::mesh::mesh(swarm.reactors, 64);
        let mut rdma = match &scene.rdma {
            None => None,
            Some(network) => Some(Rdma::new(network, swarm, &arena, &placement)?),
        };
        for (index, port) in ports.into_iter().enumerate() {
            let core = core(swarm, &target, &arena, index).map_err(|error| told(&error))?;
            let core = Rc::new(RefCell::new(core));
            cores.push(Rc::clone(&core));
            let connections = ConnectionSet::new(
                Rc::clone(&core),
                arena.pool(COMMANDS_MAX),
                tcp_config(swarm),
                Arc::new(TcpCounters::default()),
            );
            let network = SimNetwork::new();
            let mut transport = TcpTransport::over(
                network,
                connections,
                port,
                placement.clone(),
                handles.clone(),
            );
            if index == 0 {
                let listening = transport.listen(listener.clone(), PORT);
                listening.map_err(|error| told(&error))?;
            }
            let mut pollers: Vec<Box<dyn Poller>> = vec![Box::new(transport)];
            if let Some(rdma) = &mut rdma {
                pollers.push(Box::new(rdma.transport(index, &core, &arena, &handles)?));
            }
            pollers.push(Box::new(Rest { core }));
            let reactor = simulation.reactor(index);
            for poller in pollers {
                reactor.register(poller).map_err(|error| told(&error))?;
            }
        }
        Ok(Self {
            simulation,
            target,
            arena,
            devices,
            places,
            leaving: Vec::new(),
            cores,
            device_queue_depth: swarm.device_queue_depth,
            drives,
            time: time.clone(),
        })
    }

    /// One turn of every reactor.
    pub fn round(&mut self) -> Progress {
        for drive in &self.drives {
            drive.tend(self.time.now());
        }
        let progress = self.simulation.round();
        self.time.set(self.simulation.clock().now());
        self.tend_leaving();
        progress
    }

    /// Takes a disk's device out of the target, as live changes do once no namespace names it: each
    /// core ends with it between its turns, then its place is free.
    pub fn remove_device(&mut self, disk: usize) {
        if let Some(place) = self.places[disk].take() {
            let cores = (0..self.cores.len()).collect();
            self.leaving.push(Leaving { disk, place, cores });
        }
    }

    /// Ends at once what a device on its way out is waited for: its deadline is over.
    pub fn cut_device(&mut self, disk: usize) {
        let now = self.simulation.clock().now();
        for leaving in self.leaving.iter().filter(|it| it.disk == disk) {
            for core in &self.cores {
                core.borrow_mut().cut_device(leaving.place, now);
            }
        }
    }

    /// Gives a disk's device a place in the target, and every core a queue of it.
    ///
    /// # Errors
    /// The target's or the device's, in words.
    pub fn add_device(&mut self, disk: usize) -> Result<(), String> {
        if self.places[disk].is_some() {
            return Ok(());
        }
        let device = &self.devices[disk];
        let place = self.target.add_device(Arc::clone(device));
        let place = place.map_err(|error| error.to_string())?;
        for (index, core) in self.cores.iter().enumerate() {
            let queue = queue(device, &self.arena, index, self.device_queue_depth);
            let queue = queue.map_err(|error| error.to_string())?;
            core.borrow_mut().attach_device(place, queue);
        }
        self.places[disk] = Some(place);
        Ok(())
    }

    /// Whether a disk's device has a place in the target.
    #[must_use]
    pub fn has_device(&self, disk: usize) -> bool {
        self.places[disk].is_some()
    }

    /// Whether a disk's device is on its way out.
    #[must_use]
    pub fn is_leaving(&self, disk: usize) -> bool {
        self.leaving.iter().any(|it| it.disk == disk)
    }

    fn tend_leaving(&mut self) {
        let (cores, target) = (&self.cores, &self.target);
        self.leaving.retain_mut(|leaving| {
            let place = leaving.place;
            let is_left =
                |core: &usize| cores[*core].borrow_mut().detach_device(place) != DeviceDrain::Done;
            leaving.cores.retain(is_left);
            if leaving.cores.is_empty() {
                target.remove_device(place).expect("no namespace names it");
            }
            !leaving.cores.is_empty()
        });
    }

    /// Moves time on to `to`.
    pub fn advance_to(&mut self, to: Nanos) {
        self.simulation.clock().advance_to(to);
        self.time.set(self.simulation.clock().now());
    }

    /// When a reactor wants a turn although nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.simulation.next_deadline()
    }

    /// Begins an orderly stop, to be over by `deadline`.
    pub fn begin_stop(&mut self, deadline: Nanos) {
        self.target.shut_down();
        self.simulation.request_stop(deadline);
    }

    /// Whether the stop is over.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.simulation.is_finished()
    }

    /// What did not end, after a stop.
    pub fn outstanding(&mut self) -> Vec<String> {
        let reactors = self.target.reactors();
        (0..reactors)
            .flat_map(|index| self.simulation.reactor(index).outstanding())
            .map(|outstanding| outstanding.to_string())
            .collect()
    }

    /// Takes over a changed configuration.
    ///
    /// # Errors
    /// The target's, in words.
    pub fn reconfigure(&self, serving: &Serving) -> Result<(), String> {
        let namespaces = serving.namespaces(&self.devices, &self.places);
        self.target
            .update_namespaces(SUBSYSTEM, namespaces)
            .and_then(|()| self.target.update_hosts(SUBSYSTEM, false, serving.hosts()))
            .map_err(|error| error.to_string())
    }

    /// Ends it at once, whatever is in flight; returns how many slices of the arena are out when
    /// nobody is left to hold them.
    #[must_use]
    pub fn end(self) -> u64 {
        let Self {
            simulation,
            arena,
            target,
            devices,
            drives,
            cores,
            ..
        } = self;
        drop((simulation, cores, target, devices, drives));
        end_of_process();
        let classes = arena.counters().classes;
        classes.iter().map(|class| class.taken).sum()
    }

    /// How often a request has had to wait for memory.
    #[must_use]
    pub fn waits_for_memory(&self) -> u64 {
        let classes = self.arena.counters().classes;
        classes.iter().map(|class| class.waits).sum()
    }

    /// Answers of devices that nobody waited for, and uses of queues that were gone: mistakes.
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        let cores = (0..self.target.reactors()).filter_map(|it| self.target.core_counters(it));
        cores.map(|core| core.stale_completions.get()).sum()
    }

    /// The states of the drives.
    pub fn drive_states(&self) -> impl Iterator<Item = DriveState> {
        self.drives.iter().map(Opened::state)
    }

    /// Controllers that hosts have.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.target.snapshot().controllers.len()
    }
}

type Devices = (Vec<Arc<dyn Device>>, Vec<(Opened, DriveOwner)>);

/// Opens every disk and drive; time goes on while drives start.
fn open(
    swarm: &Swarm,
    storages: &[Storage],
    arena: &Arc<Arena>,
    time: &SharedTime,
) -> Result<Devices, String> {
    let (mut devices, mut drives) = (Vec::new(), Vec::new());
    let mut now = time.now();
    for storage in storages {
        devices.push(match storage {
            Storage::Disk(disk) => Arc::new(disk.clone()) as Arc<dyn Device>,
            Storage::Drive(drive) => {
                let depth = swarm.device_queue_depth;
                let (opened, owner) = drive.open(arena, swarm.reactors, depth, &mut now)?;
                let device = Arc::clone(&opened.device);
                drives.push((opened, owner));
                device
            }
        });
    }
    time.set(now);
    Ok((devices, drives))
}

fn core(
    swarm: &Swarm,
    target: &Arc<Target>,
    arena: &Arc<Arena>,
    index: usize,
) -> Result<TargetCore, OpenError> {
    let mut queues = Vec::new();
    for (_, device) in target.devices() {
        queues.push(queue(&device, arena, index, swarm.device_queue_depth)?);
    }
    let limits = CoreLimits {
        // Those of either transport.
        queues_max: 2 * CONNECTIONS_MAX,
        executions_max: COMMANDS_MAX,
    };
    Ok(TargetCore::new(Arc::clone(target), index, queues, limits))
}

/// A core's queue of a device.
fn queue(
    device: &Arc<dyn Device>,
    arena: &Arc<Arena>,
    core: usize,
    depth: usize,
) -> Result<Box<dyn DeviceQueue>, OpenError> {
    device.open_queue(QueueOptions {
        core,
        depth,
        pool: arena.pool(COMMANDS_MAX),
    })
}

fn target_config(
    swarm: &Swarm,
    serving: &Serving,
    namespaces: Vec<NamespaceConfig>,
    transfer_max: usize,
) -> TargetConfig {
    TargetConfig {
        subsystems: vec![SubsystemConfig {
            nqn: SUBSYSTEM.to_owned(),
            serial: "SIM".to_owned(),
            model: "Windlass".to_owned(),
            firmware: "0".to_owned(),
            allow_any_host: false,
            hosts: serving.hosts(),
            namespaces,
            io_queues_max: IO_QUEUES_MAX,
            queue_depth_max: QUEUE_DEPTH_MAX,
            ports: vec![PORT, RDMA_PORT],
        }],
        ports: vec![
            PortConfig {
                id: PORT,
                transport: TransportKind::Tcp,
                address: "127.0.0.1".to_owned(),
                service: "4420".to_owned(),
                ipv6: false,
                secure: false,
            },
            PortConfig {
                id: RDMA_PORT,
                transport: TransportKind::Rdma,
                address: TARGET_ADDRESS.ip().to_string(),
                service: TARGET_ADDRESS.port().to_string(),
                ipv6: false,
                secure: false,
            },
        ],
        limits: TargetLimits {
            transfer_max: transfer_max.min(swarm.transfer_max),
            ..TargetLimits::default()
        },
    }
}

fn tcp_config(swarm: &Swarm) -> TcpConfig {
    let settings = PortSettings {
        in_capsule_bytes: swarm.in_capsule_bytes,
        ..PortSettings::default()
    };
    TcpConfig {
        ports: vec![(PORT, settings)],
        host_data_bytes_max: swarm.host_data_bytes_max,
        success_flag: swarm.success_flag,
        connections_max: CONNECTIONS_MAX,
        ..TcpConfig::default()
    }
}

/// What the reactors' NVMe/RDMA is made of.
struct Rdma {
    provider: Fake,
    domains: Arc<Domains<Fake>>,
    config: RdmaConfig,
    /// Each reactor's way to the others, until it has been taken.
    messages: Vec<Option<Port<nvme_rdma::Message<Fake>>>>,
    placement: Placement,
}

impl Rdma {
    /// Registers the memory of an appliance with its devices.
    fn new(
        network: &RdmaNetwork,
        swarm: &Swarm,
        arena: &Arena,
        placement: &Placement,
    ) -> Result<Self, String> {
        let provider = network.target().clone();
        let domains = Domains::new();
        for device in provider.devices().map_err(|error| error.to_string())? {
            let added = domains.add(&device, &[arena.region()]);
            added.map_err(|error| error.to_string())?;
        }
        let settings = RdmaPortSettings {
            in_capsule_bytes: swarm.in_capsule_bytes,
            queue_depth_max: QUEUE_DEPTH_MAX,
        };
        let messages = reactors::mesh::mesh(swarm.reactors, 64);
        Ok(Self {
            provider,
            domains: Arc::new(domains),
            config: RdmaConfig {
                ports: vec![(RDMA_PORT, settings)],
                receives: swarm.rdma.receives,
                reactors: swarm.reactors,
                connections_max: CONNECTIONS_MAX,
                ..RdmaConfig::default()
            },
            messages: messages.into_iter().map(Some).collect(),
            placement: placement.clone(),
        })
    }

    /// The transport of reactor `index`; the first one listens.
    fn transport(
        &mut self,
        index: usize,
        core: &Rc<RefCell<TargetCore>>,
        arena: &Arc<Arena>,
        handles: &[ReactorHandle],
    ) -> Result<RdmaTransport<Fake>, String> {
        let listeners = Listeners::new(&self.provider, index);
        let mut listeners = listeners.map_err(|error| error.to_string())?;
        if index == 0 {
            let listening = listeners.listen(TARGET_ADDRESS, RDMA_PORT);
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
        let messages = self.messages[index]
            .take()
            .ok_or("a reactor has one transport")?;
        let (placement, handles) = (self.placement.clone(), handles.to_vec());
        let transport = RdmaTransport::new(connections, messages, placement, handles);
        transport.map_err(|error| error.to_string())
    }
}

/// Brings a core to rest when its reactor stops, as the appliance's own poller does.
struct Rest {
    core: Rc<RefCell<TargetCore>>,
}

impl Poller for Rest {
    fn name(&self) -> &str {
        "target"
    }

    fn poll(&mut self, _now: Nanos, _budget: u32) -> Progress {
        Progress::Idle
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        match self.core.borrow_mut().drain(now) {
            CoreDrain::Done => StopState::Stopped,
            CoreDrain::Outstanding { .. } => StopState::Outstanding(1),
        }
    }
}
