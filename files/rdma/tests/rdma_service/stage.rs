//! A server of one volatile volume on a RAM device, and a machine for its clients.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use block::{Device as _, DeviceSet, MemoryDevice, MemoryOptions, QueueOptions, ReactorDevices};
use files_client_testing::{RdmaClient, World};
use files_rdma::{
    Endpoint, RdmaChange, RdmaCounters, RdmaFileOptions, RdmaFilePoller, RdmaFileService,
};
use files_server::{Clients, Now, Server, ServerOptions, Share, ShareNumber, Squash, VolumeIndex};
use files_service::{CoreOptions, DeviceOfVolume, FileCore, ServiceCounters};
use files_store::{InodeId, ShareId, Time, Uuid, VolatileOptions, Volume};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use rdma::{ConnectionEvent, Domains, Provider as _};
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use reactors::ring::{self, Sender};
use reactors::{Counter, Nanos, Poller as _, StopState};

const DEVICE_BYTES: u64 = 64 << 20;
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Any port of the server.
pub(crate) const ANY: SocketAddr = SocketAddr::new(SERVER, 0);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The number of the first listener.
pub(crate) const FIRST: u32 = 0;
/// The time that a turn takes.
const TURN: Nanos = Nanos::from_micros(10);

pub(crate) type Client = RdmaClient<Fake, Stage>;

/// The server and the fabric.
pub(crate) struct Stage {
    pub(crate) fabric: Fabric,
    pub(crate) service: Rc<RefCell<RdmaFileService<Fake>>>,
    pub(crate) core: Rc<RefCell<FileCore>>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) counters: Arc<ServiceCounters>,
    pub(crate) of_rdma: Arc<RdmaCounters>,
    pub(crate) now: Nanos,
    pub(crate) domains: Arc<Domains<Fake>>,
    pub(crate) memory: MemoryDevice,
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    changes: Sender<RdmaChange>,
    poller: RdmaFilePoller<Fake>,
    devices: ReactorDevices,
    pub(crate) server: Fake,
    clients: Fake,
}

impl World for Stage {
    fn turn(&mut self) {
        self.now = self.now.saturating_add(TURN);
        self.fabric.progress();
        self.service.borrow_mut().poll_events(self.now);
        self.poller.poll(self.now);
        self.devices.poll(self.now);
        self.poller.flush(self.now);
        self.devices.flush();
    }
}

pub(crate) fn stage() -> Rc<RefCell<Stage>> {
    stage_with(32 << 20, FabricConfig::IMMEDIATE)
}

pub(crate) fn stage_with(arena_bytes: usize, fabric: FabricConfig) -> Rc<RefCell<Stage>> {
    stage_of(arena_bytes, 1 << 20, fabric)
}

/// A stage with leases of at most this size.
pub(crate) fn stage_of(
    arena_bytes: usize,
    max_transfer: usize,
    fabric: FabricConfig,
) -> Rc<RefCell<Stage>> {
    let stage = stage_registering(arena_bytes, max_transfer, fabric);
    {
        let stage = stage.borrow();
        let attached = stage.domains.attach(stage.memory.store().region());
        attached.expect("registered");
    }
    stage
}

/// A stage whose RAM device is not registered.
pub(crate) fn stage_of_arena() -> Rc<RefCell<Stage>> {
    stage_registering(32 << 20, 1 << 20, FabricConfig::IMMEDIATE)
}

/// A stage of which only the arena is registered.
fn stage_registering(
    arena_bytes: usize,
    max_transfer: usize,
    fabric: FabricConfig,
) -> Rc<RefCell<Stage>> {
    let fabric = Fabric::new(fabric);
    let server = fabric.machine(&[DeviceConfig::new("server0", SERVER)]);
    let server = server.expect("descriptors");
    let clients = fabric.machine(&[DeviceConfig::new("client0", CLIENT)]);
    let arena = Arena::new(ArenaConfig {
        bytes: arena_bytes,
        pages: PagePolicy::Ordinary,
        max_transfer,
    });
    let arena = arena.expect("memory");
    let device = MemoryDevice::new(MemoryOptions {
        name: "ram".to_owned(),
        uuid: [1; 16],
        size_bytes: DEVICE_BYTES,
        block_size: 512,
        pages: PagePolicy::Ordinary,
        read_only: false,
    });
    let device = device.expect("memory");
    let set = Rc::new(DeviceSet::new());
    let options = QueueOptions::new(0, 1024, arena.pool(16));
    set.attach(0, &device, options).expect("a queue");
    let devices = ReactorDevices::new(Rc::clone(&set));
    let counters = Arc::<ServiceCounters>::default();
    let geometry = device.geometry();
    let core = FileCore::new(CoreOptions {
        server: server_core(),
        devices: vec![DeviceOfVolume {
            place: 0,
            block_bytes: geometry.block_size,
            transfer_bytes: (geometry.max_transfer_blocks * geometry.block_size) as usize,
            keeps_cache: false,
            levels: Arc::default(),
        }],
        set,
        pool: arena.pool(16),
        time_of_day: |_| Time::default(),
        records: None,
        counters: Arc::clone(&counters),
        messages: None,
    });
    let core = Rc::new(RefCell::new(core));
    devices.add(core.clone());
    let domains = Arc::new(Domains::new());
    let regions = [arena.region()];
    for rdma_device in server.devices().expect("devices") {
        domains.add(&rdma_device, &regions).expect("a fit device");
    }
    let mut endpoint = Endpoint::new(&server, Arc::clone(&domains)).expect("descriptors");
    let address = endpoint.listen(FIRST, ANY).expect("a free port");
    endpoint.open(FIRST);
    let (changes, of_changes) = ring::channel(8);
    let of_rdma = Arc::<RdmaCounters>::default();
    let service = RdmaFileService::new(RdmaFileOptions {
        core: Rc::clone(&core),
        arena: Arc::clone(&arena),
        endpoint,
        counters: Arc::clone(&of_rdma),
        changes: Some(of_changes),
    });
    let service = Rc::new(RefCell::new(service));
    let poller = RdmaFilePoller::new(Rc::clone(&service));
    Rc::new(RefCell::new(Stage {
        fabric,
        service,
        core,
        arena,
        counters,
        of_rdma,
        now: Nanos::from_secs(100),
        domains,
        memory: device,
        address,
        changes,
        poller,
        devices,
        server,
        clients: clients.expect("descriptors"),
    }))
}

fn server_core() -> Server {
    let now = Now {
        monotonic_ms: 0,
        time: Time::default(),
    };
    let volume = Volume::volatile(&VolatileOptions {
        uuid: Uuid([3; 16]),
        device_bytes: DEVICE_BYTES,
        memory_bytes: 16 << 20,
    });
    let share = Share {
        number: ShareNumber(1),
        name: "data".to_owned(),
        volume: VolumeIndex(0),
        directory: InodeId(1),
        part: ShareId(0),
        is_read_only: false,
        squash: Squash::None,
        clients: Clients::Any,
        counters: Arc::default(),
    };
    let options = ServerOptions {
        identity: b"test".to_vec(),
        instance: 77,
        volumes: vec![volume],
        shares: vec![share],
        reclaiming: Vec::new(),
        keeps_records: false,
        counters: Arc::default(),
    };
    Server::new(options, &now)
}

/// A client of the server.
pub(crate) fn client(stage: &Rc<RefCell<Stage>>) -> Client {
    try_client(stage).expect("a connection")
}

/// A client of the server, if it accepts the connection.
pub(crate) fn try_client(stage: &Rc<RefCell<Stage>>) -> Result<Client, Box<ConnectionEvent>> {
    let (machine, address) = {
        let stage = stage.borrow();
        (stage.clients.clone(), stage.address)
    };
    RdmaClient::connect(&machine, address, Rc::clone(stage))
}

/// Changes listeners or devices, as the control thread does. Returns the response.
pub(crate) fn change<A>(
    stage: &Rc<RefCell<Stage>>,
    make: impl FnOnce(mpsc::Sender<A>) -> RdmaChange,
) -> A {
    let (reply, response) = mpsc::channel();
    let sent = stage.borrow_mut().changes.send(make(reply));
    assert!(sent.is_ok(), "the ring has room");
    stage.borrow_mut().turn();
    response.try_recv().expect("a response")
}

/// Turns until something is so.
pub(crate) fn turn_until(stage: &Rc<RefCell<Stage>>, is_so: impl Fn(&Stage) -> bool) {
    for _ in 0..2_000_000 {
        if is_so(&stage.borrow()) {
            return;
        }
        stage.borrow_mut().turn();
    }
    panic!("it never is so");
}

/// Lets time pass without turns.
pub(crate) fn pass(stage: &Rc<RefCell<Stage>>, time: Nanos) {
    let mut stage = stage.borrow_mut();
    stage.now = stage.now.saturating_add(time);
}

/// Free slices of the arena of each size.
pub(crate) fn free(stage: &Rc<RefCell<Stage>>) -> Vec<u64> {
    let counters = stage.borrow().arena.counters();
    counters.classes.iter().map(|it| it.free).collect()
}

/// Bytes of READs that were borrowed and copied, and of WRITEs that were read by RDMA, passed on
/// and copied.
pub(crate) fn moved(stage: &Rc<RefCell<Stage>>) -> [u64; 5] {
    let stage = stage.borrow();
    let it = &stage.counters;
    let counters = [
        &it.read_bytes_borrowed,
        &it.read_bytes_copied,
        &it.write_bytes_fetched,
        &it.write_bytes_inline,
        &it.write_bytes_copied,
    ];
    counters.map(Counter::get)
}

/// Ends the service and its connections.
pub(crate) fn stop(stage: &Rc<RefCell<Stage>>) {
    for _ in 0..1000 {
        let mut stage = stage.borrow_mut();
        let now = stage.now;
        if stage.poller.stop(now) == StopState::Stopped {
            return;
        }
        stage.turn();
    }
    panic!("it does not stop");
}
