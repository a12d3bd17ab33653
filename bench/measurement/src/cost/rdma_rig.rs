//! The target with its RDMA transport at one end and a host at the other, connected by the
//! in-process fabric, on one thread.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::{Device, DevicePoller, DeviceSet, QueueOptions, ReactorDevices, SharedQueues};
use hugemem::allocation_counter::allocations_on_this_thread;
use hugemem::{Arena, ArenaConfig, DeviceMemory, PagePolicy, Region};
use nvme_host_testing::HostSteps;
use nvme_host_testing::Names;
use nvme_host_testing::rdma::{RawOptions, RawRdmaClient, RawReceived};
use nvme_rdma::{
    ConnectionSet, Listeners, PortSettings, RdmaConfig, RdmaCounters, RdmaTransport, SetParts,
};
use nvme_spec::{Cqe, Sqe};
use nvme_target::{CoreLimits, PortId, TargetCore, TransportKind};
use rdma::{Domains, Provider};
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use reactors::{Nanos, Placement, Poller};
use zerocopy::{FromBytes, IntoBytes};

use crate::cost::measure::CostError;
use crate::cost::rig::{Extent, HOST_NQN, NQN, setup, target};

const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

/// Virtual time of one turn.
const TURN: Nanos = Nanos::from_micros(50);

/// Real time between two turns while a host attaches.
const ATTACH_PAUSE: Duration = Duration::from_millis(1);

/// Executions of the target, and commands of its transport.
const COMMANDS_MAX: usize = 4096;

/// The target's memory for requests.
///
/// # Errors
/// [`CostError::Setup`].
pub(super) fn arena() -> Result<Arc<Arena>, CostError> {
    let config = ArenaConfig {
        bytes: 32 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    Arena::new(config).map_err(|error| setup("memory", &error))
}

/// What the target has beside its arena.
#[derive(Default)]
pub(super) struct Parts<'a> {
    /// The devices, exported as namespaces 1, 2 and so on.
    pub(super) devices: Vec<Arc<dyn Device>>,
    /// Memory of devices in the arena's process.
    pub(super) region: Option<&'a Region>,
    /// Memory of drives.
    pub(super) memory: Vec<Arc<DeviceMemory>>,
    /// The owner of a drive.
    pub(super) owner: Option<Box<dyn Poller>>,
    /// Requests in flight of a host at most.
    pub(super) depth: usize,
}

/// The target, and the address of its host.
pub(super) struct Rig {
    transport: Box<dyn Poller>,
    devices: Box<dyn Poller>,
    owner: Option<Box<dyn Poller>>,
    pub(super) counters: Arc<RdmaCounters>,
    address: SocketAddr,
    host: Fake,
    now: Nanos,
    /// Allocations of the target's turns.
    pub(super) allocations: u64,
    depth: usize,
}

impl Rig {
    /// # Errors
    /// [`CostError::Setup`].
    pub(super) fn new(arena: Arc<Arena>, parts: Parts<'_>, now: Nanos) -> Result<Self, CostError> {
        let fabric = Fabric::new(FabricConfig::IMMEDIATE);
        let machine = |name, address| {
            fabric
                .machine(&[DeviceConfig::new(name, address)])
                .map_err(|error| setup("the fabric", &error))
        };
        let (here, host) = (machine("target0", TARGET)?, machine("host0", HOST)?);
        let domains = Arc::new(Domains::new());
        for one in here.devices().map_err(|error| setup("devices", &error))? {
            let regions: Vec<_> = [arena.region()].into_iter().chain(parts.region).collect();
            domains
                .add(&one, &regions)
                .map_err(|error| setup("the device", &error))?;
        }
        domains.set_device_memory(parts.memory);
        let wrong = |error: rdma::Error| setup("the listener", &error);
        let mut listeners = Listeners::new(&here, 0).map_err(wrong)?;
        let address = listeners
            .listen(SocketAddr::new(TARGET, 0), PortId(0))
            .map_err(wrong)?;
        let (core, devices) = core(&arena, &parts.devices, parts.depth, address)?;
        let counters = Arc::new(RdmaCounters::default());
        let port = PortSettings {
            in_capsule_bytes: 4096,
            queue_depth_max: 2 * entries(parts.depth),
        };
        let set_parts = SetParts {
            listeners,
            domains,
            arena,
            commands_max: COMMANDS_MAX,
            config: RdmaConfig {
                ports: vec![(PortId(0), port)],
                ..RdmaConfig::default()
            },
            counters: Arc::clone(&counters),
        };
        let set = ConnectionSet::new(core, set_parts);
        let messages = reactors::mesh::mesh(1, 64).remove(0);
        let transport = RdmaTransport::new(set, messages, Placement::new(1), Vec::new());
        Ok(Self {
            transport: Box::new(transport),
            devices,
            owner: parts.owner,
            counters,
            address,
            host,
            now,
            allocations: 0,
            depth: parts.depth,
        })
    }

    /// One turn of a reactor.
    pub(super) fn turn(&mut self) {
        self.now += TURN;
        let before = allocations_on_this_thread();
        self.transport.poll(self.now);
        self.devices.poll(self.now);
        if let Some(owner) = &mut self.owner {
            owner.poll(self.now);
        }
        self.transport.flush(self.now);
        self.devices.flush(self.now);
        if let Some(owner) = &mut self.owner {
            owner.flush(self.now);
        }
        self.allocations += allocations_on_this_thread() - before;
    }

    /// Attaches a host, which waits for its responses on a separate thread.
    ///
    /// # Errors
    /// [`CostError::Setup`].
    pub(super) fn attach(&mut self) -> Result<Host, CostError> {
        let (provider, address) = (self.host.clone(), self.address);
        let entries = entries(self.depth);
        let opening = std::thread::spawn(move || {
            let names = Names {
                host: HOST_NQN.to_owned(),
                host_id: [5; 16],
                subsystem: NQN.to_owned(),
            };
            let (admin, cntlid) = RawRdmaClient::open_admin(&provider, address, &names)?;
            let options = RawOptions::queue(1, entries, cntlid);
            let mut io = RawRdmaClient::connect(&provider, address, &options)?;
            let connected = io.connect_queue(&names, cntlid, 1, entries - 1)?;
            Ok((admin, io, connected.status()))
        });
        while !opening.is_finished() {
            self.turn();
            // The pause keeps the number of turns low; it varies between runs and is not counted.
            std::thread::sleep(ATTACH_PAUSE);
        }
        let opened: Result<_, nvme_host_testing::rdma::RawRdmaError> = opening
            .join()
            .map_err(|_| CostError::Setup("the host panicked".to_owned()))?;
        let (admin, io, status) = opened.map_err(|error| setup("the host", &error))?;
        if !status.is_success() {
            return Err(setup("Connect", &status));
        }
        Ok(Host {
            _admin: admin,
            io,
            free: (0..self.depth as u16).collect(),
        })
    }

    /// Lets a host send requests of `bytes` bytes until `requests` have completed. `next` returns each
    /// request.
    ///
    /// # Errors
    /// [`CostError::Setup`].
    pub(super) fn drive(
        &mut self,
        host: &mut Host,
        (requests, bytes): (u64, usize),
        mut next: impl FnMut() -> Sqe,
    ) -> Result<u64, CostError> {
        let mut ended = 0;
        while ended < requests {
            host.submit(bytes, &mut next)?;
            self.turn();
            ended += host.collect()?;
        }
        Ok(ended)
    }

    /// Completes what is in flight. Returns the number of requests.
    ///
    /// # Errors
    /// [`CostError::Setup`].
    pub(super) fn settle(&mut self, host: &mut Host) -> Result<u64, CostError> {
        let mut ended = 0;
        while host.free.len() < self.depth {
            self.turn();
            ended += host.collect()?;
        }
        Ok(ended)
    }
}

/// Entries of the I/O queue: one more than requests in flight.
fn entries(depth: usize) -> u16 {
    depth as u16 + 1
}

type Core = Rc<RefCell<TargetCore>>;

/// The target's core, and the poller of its devices.
fn core(
    arena: &Arc<Arena>,
    devices: &[Arc<dyn Device>],
    depth: usize,
    address: SocketAddr,
) -> Result<(Core, Box<dyn Poller>), CostError> {
    let extent = Extent {
        namespaces: devices.len(),
        ..Extent::ONE
    };
    let entries_max = 2 * entries(depth);
    let kind = TransportKind::Rdma;
    let target = target(arena, &extent, devices.to_vec(), kind, address, entries_max)?;
    let attached = Rc::new(DeviceSet::new());
    let shared = SharedQueues::default();
    for (place, device) in devices.iter().enumerate() {
        let mut options = QueueOptions::new(0, 2 * depth, arena.pool(4096));
        options.shared = shared.clone();
        let opened = attached.attach(place, &**device, options);
        opened.map_err(|error| setup("the device's queue", &error))?;
    }
    let limits = CoreLimits {
        queues_max: 8,
        executions_max: COMMANDS_MAX,
    };
    let core = TargetCore::new(target, 0, Rc::clone(&attached), limits);
    let core = Rc::new(RefCell::new(core));
    let devices = ReactorDevices::new(attached);
    devices.add(core.clone());
    let devices = DevicePoller::new(devices).map_err(|error| setup("the devices", &error))?;
    Ok((core, Box::new(devices)))
}

/// Both connections of the host.
pub(super) struct Host {
    _admin: RawRdmaClient<Fake>,
    pub(super) io: RawRdmaClient<Fake>,
    free: Vec<u16>,
}

impl Host {
    /// Submits requests until the queue is full.
    fn submit(&mut self, bytes: usize, next: &mut impl FnMut() -> Sqe) -> Result<(), CostError> {
        while let Some(cid) = self.free.pop() {
            let place = usize::from(cid) * bytes;
            let sgl = self.io.keyed_descriptor(place, bytes, false);
            let sqe = next().with_cid(cid).with_sgl(sgl);
            let sent = self.io.send(sqe.as_bytes());
            sent.map_err(|error| setup("a request", &error))?;
        }
        Ok(())
    }

    /// Handles all available responses.
    fn collect(&mut self) -> Result<u64, CostError> {
        let mut ended = 0;
        while let Some(next) = self
            .io
            .try_receive()
            .map_err(|error| setup("a response", &error))?
        {
            let RawReceived::Message { bytes, .. } = next else {
                return Err(CostError::Setup("the connection ended".to_owned()));
            };
            match Cqe::read_from_bytes(&bytes) {
                Ok(cqe) if cqe.status().is_success() => self.free.push(cqe.cid.get()),
                _ => return Err(CostError::Setup(format!("a response: {bytes:02x?}"))),
            }
            ended += 1;
        }
        Ok(ended)
    }
}
