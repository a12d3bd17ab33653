//! The target with its RDMA transport at one end and a host at the other, connected by the
//! in-process fabric, on one thread.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::{DevicePoller, DeviceSet, MemoryDevice, QueueOptions, ReactorDevices};
use hugemem::allocation_counter::allocations_on_this_thread;
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host_testing::HostSteps;
use nvme_host_testing::Names;
use nvme_host_testing::rdma::{RawOptions, RawRdmaClient, RawReceived};
use nvme_rdma::{
    ConnectionSet, Domains, Listeners, PortSettings, RdmaConfig, RdmaCounters, RdmaTransport,
    SetParts,
};
use nvme_spec::{Cqe, Sqe};
use nvme_target::{CoreLimits, PortId, TargetCore, TransportKind};
use rdma::Provider;
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use reactors::{Nanos, Placement, Poller};
use zerocopy::{FromBytes, IntoBytes};

use crate::cost::measure::CostError;
use crate::cost::rig::{BLOCK_BYTES, DEVICE_BYTES, Extent, HOST_NQN, NQN, ram, setup, target};
use crate::cost::{DEPTH, LoopCounts, REQUEST_BYTES, WARM_UP_REQUESTS};
use bench::random::Random;

const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

/// Entries of the I/O queue: one more than requests in flight.
const ENTRIES: u16 = DEPTH as u16 + 1;

/// Virtual time of one turn.
const TURN: Nanos = Nanos::from_micros(50);

/// Real time between two turns while a host attaches.
const ATTACH_PAUSE: Duration = Duration::from_millis(1);

struct Rig {
    transport: Box<dyn Poller>,
    devices: Box<dyn Poller>,
    counters: Arc<RdmaCounters>,
    address: SocketAddr,
    host: Fake,
    now: Nanos,
    allocations: u64,
}

fn rig() -> Result<Rig, CostError> {
    let fabric = Fabric::new(FabricConfig::IMMEDIATE);
    let machine = |name, address| {
        fabric
            .machine(&[DeviceConfig::new(name, address)])
            .map_err(|error| setup("the fabric", &error))
    };
    let (here, host) = (machine("target0", TARGET)?, machine("host0", HOST)?);
    let arena = Arena::new(ArenaConfig {
        bytes: 32 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    })
    .map_err(|error| setup("memory", &error))?;
    let device = ram(DEVICE_BYTES)?;
    let domains = Arc::new(Domains::new());
    for one in here.devices().map_err(|error| setup("devices", &error))? {
        let regions = [arena.region(), device.store().region()];
        domains
            .add(&one, &regions)
            .map_err(|error| setup("the device", &error))?;
    }
    let mut listeners = Listeners::new(&here, 0).map_err(|error| setup("the listener", &error))?;
    let address = listeners
        .listen(SocketAddr::new(TARGET, 0), PortId(0))
        .map_err(|error| setup("the listener", &error))?;
    let devices: Vec<Arc<dyn block::Device>> = vec![Arc::<MemoryDevice>::clone(&device)];
    let target = target(
        &arena,
        &Extent::ONE,
        devices,
        TransportKind::Rdma,
        address,
        2 * ENTRIES,
    )?;
    let options = QueueOptions::new(0, 2 * DEPTH, arena.pool(4096));
    let attached = Rc::new(DeviceSet::new());
    let opened = attached.attach(0, &*device, options);
    opened.map_err(|error| setup("the device's queue", &error))?;
    let limits = CoreLimits {
        queues_max: 8,
        executions_max: 4096,
    };
    let core = TargetCore::new(target, 0, Rc::clone(&attached), limits);
    let core = Rc::new(RefCell::new(core));
    let devices = ReactorDevices::new(attached);
    devices.add(core.clone());
    let devices = DevicePoller::new(devices).map_err(|error| setup("the devices", &error))?;
    let counters = Arc::new(RdmaCounters::default());
    let set = ConnectionSet::new(
        core,
        SetParts {
            listeners,
            domains,
            arena,
            commands_max: 4096,
            config: RdmaConfig {
                ports: vec![(PortId(0), port_settings())],
                ..RdmaConfig::default()
            },
            counters: Arc::clone(&counters),
        },
    );
    let messages = reactors::mesh::mesh(1, 64).remove(0);
    let transport = RdmaTransport::new(set, messages, Placement::new(1), Vec::new());
    Ok(Rig {
        transport: Box::new(transport),
        devices: Box::new(devices),
        counters,
        address,
        host,
        now: Nanos::from_secs(1),
        allocations: 0,
    })
}

fn port_settings() -> PortSettings {
    PortSettings {
        in_capsule_bytes: 4096,
        queue_depth_max: 2 * ENTRIES,
    }
}

/// Both connections of the host.
struct Host {
    _admin: RawRdmaClient<Fake>,
    io: RawRdmaClient<Fake>,
    free: Vec<u16>,
}

impl Rig {
    /// One turn of a reactor.
    fn turn(&mut self) {
        self.now += TURN;
        let before = allocations_on_this_thread();
        self.transport.poll(self.now);
        self.devices.poll(self.now);
        self.transport.flush(self.now);
        self.devices.flush(self.now);
        self.allocations += allocations_on_this_thread() - before;
    }

    /// Attaches a host, which waits for its responses on a separate thread.
    fn attach(&mut self) -> Result<Host, CostError> {
        let (provider, address) = (self.host.clone(), self.address);
        let opening = std::thread::spawn(move || {
            let names = Names {
                host: HOST_NQN.to_owned(),
                host_id: [5; 16],
                subsystem: NQN.to_owned(),
            };
            let (admin, cntlid) = RawRdmaClient::open_admin(&provider, address, &names)?;
            let options = RawOptions::queue(1, ENTRIES, cntlid);
            let mut io = RawRdmaClient::connect(&provider, address, &options)?;
            let connected = io.connect_queue(&names, cntlid, 1, ENTRIES - 1)?;
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
            free: (0..DEPTH as u16).collect(),
        })
    }
}

impl Host {
    /// Submits requests until the queue is full.
    fn submit(&mut self, random: &mut Random) -> Result<(), CostError> {
        let blocks = REQUEST_BYTES as u64 / u64::from(BLOCK_BYTES);
        while let Some(cid) = self.free.pop() {
            let lba = random.below(DEVICE_BYTES / REQUEST_BYTES as u64) * blocks;
            let place = usize::from(cid) * REQUEST_BYTES;
            let sgl = self.io.keyed_descriptor(place, REQUEST_BYTES, false);
            let sqe = Sqe::read(1, lba, blocks as u16 - 1)
                .with_cid(cid)
                .with_sgl(sgl);
            let sent = self.io.send(sqe.as_bytes());
            sent.map_err(|error| setup("a read", &error))?;
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

/// Runs `requests` requests after a warm-up.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(requests: u64) -> Result<LoopCounts, CostError> {
    let mut rig = rig()?;
    let mut host = rig.attach()?;
    let mut random = Random::new(1);
    let mut drive = |rig: &mut Rig, requests: u64| {
        let mut ended = 0;
        while ended < requests {
            host.submit(&mut random)?;
            rig.turn();
            ended += host.collect()?;
        }
        Ok::<u64, CostError>(ended)
    };
    drive(&mut rig, WARM_UP_REQUESTS)?;
    let before: Vec<(&str, u64)> = rig.counters.each().collect();
    rig.allocations = 0;
    let counted = drive(&mut rig, requests)?;
    let after: Vec<(&str, u64)> = rig.counters.each().collect();
    let beyond = |name: &str| {
        let value = |list: &[(&str, u64)]| {
            let found = list.iter().find(|(one, _)| *one == name);
            found.map_or(0, |(_, value)| *value)
        };
        value(&after) - value(&before)
    };
    let work_requests = beyond("reads") + beyond("writes") + beyond("sends");
    Ok(LoopCounts {
        requests: counted,
        allocations: rig.allocations,
        counted: vec![
            ("work requests".to_owned(), work_requests),
            ("completions".to_owned(), beyond("completions")),
            ("doorbells".to_owned(), beyond("doorbells")),
            ("bytes copied".to_owned(), beyond("bytes_copied")),
        ],
    })
}
