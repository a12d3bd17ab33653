//! A target on real sockets and real reactors: one RAM namespace of 512-byte blocks, one export.

pub(crate) mod wire;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::{
    Device, DevicePoller, DeviceSet, MemoryDevice, MemoryOptions, QueueOptions, ReactorDevices,
};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::Status;
use nvme_target::{
    CONTROLLER_IDS, CoreLimits, DeviceIndex, NamespaceConfig, PortConfig, PortId, PortSecurity,
    SubsystemConfig, Target, TargetConfig, TargetCore, TargetLimits, TransportKind,
};
use nvme_tcp::{
    Acceptor, AcceptorPort, CONNECTIONS_PER_REACTOR_MAX, ConnectionSet, PortSettings, TcpConfig,
    TcpCounters, TcpTransport,
};
use reactors::{IdlePolicy, InitError, Nanos, Placement, ReactorConfig, ReactorSetup, Reactors};

/// Time limit of waits in tests; a working target needs less even on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const NQN: &str = "nqn.2026-11.org.windlass:test";
pub(crate) const HOST: &str = "nqn.2026-11.org.windlass:host";
/// NQN of the host that occupies all it can and makes no progress.
pub(crate) const GREEDY: &str = "nqn.2026-11.org.windlass:greedy";
/// NQN of the host beside it.
pub(crate) const MODEST: &str = "nqn.2026-11.org.windlass:modest";
pub(crate) const STRANGER: &str = "nqn.2026-11.org.windlass:stranger";
pub(crate) const BLOCK_BYTES: usize = 512;
pub(crate) const NAMESPACE_BYTES: u64 = 16 << 20;

/// Options of a test target.
pub(crate) struct Setup {
    pub(crate) reactors: usize,
    pub(crate) arena_bytes: usize,
    pub(crate) tcp: TcpConfig,
    pub(crate) port: PortSettings,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) idle: IdlePolicy,
    /// Connections of all reactors together at most.
    pub(crate) connections_max: Option<usize>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            reactors: 1,
            arena_bytes: 16 << 20,
            tcp: TcpConfig::default(),
            port: PortSettings {
                in_capsule_bytes: 4096,
                ..PortSettings::default()
            },
            device: ram(),
            idle: IdlePolicy::default(),
            connections_max: None,
        }
    }
}

/// A running target.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) arena: Arc<Arena>,
    pub(crate) target: Arc<Target>,
    pub(crate) counters: Vec<Arc<TcpCounters>>,
    reactors: Option<Reactors>,
    /// Accepts and closes connections while the reactors run.
    _acceptor: Acceptor,
}

impl Server {
    pub(crate) fn start(setup: Setup) -> Self {
        let Setup {
            reactors,
            arena_bytes,
            tcp,
            port,
            device,
            idle,
            connections_max,
        } = setup;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("a bound socket");
        let arena = Arena::new(ArenaConfig {
            bytes: arena_bytes,
            pages: PagePolicy::Ordinary,
            max_transfer: 1 << 20,
        })
        .expect("a small arena");
        let target = target_over(&arena, &device, address, reactors);
        let tcp = TcpConfig {
            ports: vec![(PortId(0), port)],
            ..tcp
        };
        let counters: Vec<_> = (0..reactors)
            .map(|_| Arc::new(TcpCounters::default()))
            .collect();
        let acceptor = Acceptor::start(reactors, || {});
        let (acceptor, acceptor_ports) = acceptor.expect("a thread");
        let parts = Parts {
            arena: Arc::clone(&arena),
            device,
            target: Arc::clone(&target),
            tcp,
            counters: counters.clone(),
            placement: {
                let connections_max = connections_max.unwrap_or(usize::MAX);
                Placement::with_limit(reactors, connections_max, CONNECTIONS_PER_REACTOR_MAX)
            },
            ports: Mutex::new(
                reactors::mesh::mesh(reactors, 64)
                    .into_iter()
                    .map(Some)
                    .collect(),
            ),
            acceptor_ports: Mutex::new(acceptor_ports.into_iter().map(Some).collect()),
            listener: Mutex::new(Some(listener)),
        };
        let config = ReactorConfig {
            idle,
            ..ReactorConfig::default()
        };
        let configs = vec![config; reactors];
        let running = Reactors::start(configs, move |index, setup| set_up(&parts, index, setup))
            .expect("unpinned reactors");
        let handles = running.handles().to_vec();
        target.set_waker(Box::new(move |reactor| handles[reactor].wake()));
        Self {
            address,
            arena,
            target,
            counters,
            reactors: Some(running),
            _acceptor: acceptor,
        }
    }

    pub(crate) fn client(&self) -> RawClient {
        RawClient::connect(self.address, LIMIT).expect("the listener accepts")
    }

    /// A counter's sum over the reactors.
    pub(crate) fn count(&self, value: impl Fn(&TcpCounters) -> u64) -> u64 {
        self.counters.iter().map(|counters| value(counters)).sum()
    }

    /// Number of slices of the arena that are leased.
    pub(crate) fn leases_out(&self) -> u64 {
        self.arena
            .counters()
            .classes
            .iter()
            .map(|class| class.taken)
            .sum()
    }

    /// Waits until `holds` returns true.
    #[track_caller]
    pub(crate) fn await_that(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(
                began.elapsed() < LIMIT,
                "{what} did not come true in {LIMIT:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the target. Everything must end in order, and no lease may be left.
    pub(crate) fn stop(mut self) {
        self.target.shut_down();
        let reactors = self.reactors.take().expect("stopped once");
        let report = reactors.stop(Nanos::from_secs(10));
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(self.leases_out(), 0, "leases are still out");
    }
}

pub(crate) fn names() -> Names {
    names_of(HOST)
}

pub(crate) fn names_of(host: &str) -> Names {
    Names {
        host: host.to_owned(),
        host_id: [7; 16],
        subsystem: NQN.to_owned(),
    }
}

/// An admin connection and one I/O queue, both ready.
pub(crate) struct Attached {
    pub(crate) admin: RawClient,
    pub(crate) io: RawClient,
    pub(crate) cntlid: u16,
}

pub(crate) fn attach(server: &Server) -> Attached {
    let mut admin = server.client();
    let cntlid = admin
        .open_admin(&names())
        .expect("the export takes the host");
    let mut io = server.client();
    io.open_io(&names(), cntlid, 1).expect("queue 1 is free");
    Attached { admin, io, cntlid }
}

impl Attached {
    /// Checks that this connection works: writes a block and reads it back.
    #[track_caller]
    pub(crate) fn check_io(&mut self, lba: u64, fill: u8) {
        let data = [fill; BLOCK_BYTES];
        let write = nvme_spec::Sqe::write(1, lba, 0, false);
        let (cqe, _) = self
            .io
            .command(write, &data, 0)
            .expect("a write is answered");
        assert_eq!(cqe.status(), Status::SUCCESS);
        let read = nvme_spec::Sqe::read(1, lba, 0);
        let (cqe, found) = self
            .io
            .command(read, &[], BLOCK_BYTES as u32)
            .expect("a read is answered");
        assert_eq!(cqe.status(), Status::SUCCESS);
        assert_eq!(found, data);
    }
}

struct Parts {
    arena: Arc<Arena>,
    device: Arc<dyn Device>,
    target: Arc<Target>,
    tcp: TcpConfig,
    counters: Vec<Arc<TcpCounters>>,
    placement: Placement,
    ports: Mutex<Vec<Option<reactors::mesh::Port<nvme_tcp::Handoff>>>>,
    acceptor_ports: Mutex<Vec<Option<AcceptorPort>>>,
    listener: Mutex<Option<TcpListener>>,
}

pub(crate) fn ram() -> Arc<dyn Device> {
    let device = MemoryDevice::new(MemoryOptions {
        name: "ram".to_owned(),
        uuid: [1; 16],
        size_bytes: NAMESPACE_BYTES,
        block_size: BLOCK_BYTES as u32,
        pages: PagePolicy::Ordinary,
        read_only: false,
    })
    .expect("a small RAM device");
    Arc::new(device)
}

/// Namespace 1 on the only device.
pub(crate) fn namespace(geometry: block::Geometry) -> NamespaceConfig {
    NamespaceConfig {
        nsid: 1,
        device: DeviceIndex(0),
        geometry,
        uuid: [2; 16],
        nguid: [3; 16],
        eui64: [4; 8],
        read_only: false,
        ana_group: 1,
        reservations: true,
    }
}

pub(crate) fn target_over(
    arena: &Arena,
    device: &Arc<dyn Device>,
    address: SocketAddr,
    reactors: usize,
) -> Arc<Target> {
    let subsystem = SubsystemConfig {
        nqn: NQN.to_owned(),
        serial: "TEST".to_owned(),
        model: "Windlass".to_owned(),
        firmware: "0".to_owned(),
        allow_any_host: false,
        hosts: [HOST, GREEDY, MODEST].map(str::to_owned).to_vec(),
        namespaces: vec![namespace(device.geometry())],
        io_queues_max: 8,
        queue_depth_max: 128,
        ports: vec![PortId(0)],
        masks: Vec::new(),
        authentication: BTreeMap::new(),
        secure_hosts: BTreeSet::new(),
        ana_states: BTreeMap::new(),
        controller_ids: CONTROLLER_IDS,
    };
    let port = PortConfig {
        id: PortId(0),
        transport: TransportKind::Tcp,
        address: address.ip().to_string(),
        service: address.port().to_string(),
        ipv6: false,
        security: PortSecurity::None,
    };
    let limits = TargetLimits {
        transfer_max: arena.max_transfer(),
        ..TargetLimits::default()
    };
    let config = TargetConfig {
        subsystems: vec![subsystem],
        ports: vec![port],
        limits,
    };
    Target::new(config, reactors, vec![Arc::clone(device)]).expect("a valid configuration")
}

fn set_up(parts: &Parts, index: usize, setup: &mut ReactorSetup<'_>) -> Result<(), InitError> {
    let pool = parts.arena.pool(4096);
    let options = QueueOptions::new(index, 256, pool.clone());
    let set = Rc::new(DeviceSet::new());
    set.attach(0, &*parts.device, options)?;
    let core = TargetCore::new(
        Arc::clone(&parts.target),
        index,
        Rc::clone(&set),
        CoreLimits::default(),
    );
    let core = Rc::new(RefCell::new(core));
    let devices = ReactorDevices::new(set);
    devices.add(core.clone());
    let connections = ConnectionSet::new(
        core,
        pool,
        parts.tcp.clone(),
        Arc::clone(&parts.counters[index]),
    );
    let port = parts.ports.lock().expect("no panic holds it")[index].take();
    let mut port = port.expect("each reactor is set up once");
    port.attach_all(&setup.wakers());
    let reactors = setup.handles().to_vec();
    let acceptor = parts.acceptor_ports.lock().expect("no panic holds it")[index].take();
    let acceptor = acceptor.expect("each reactor is set up once");
    let placement = parts.placement.clone();
    let mut transport = TcpTransport::new(connections, port, acceptor, placement, reactors)?;
    if index == 0
        && let Some(listener) = parts.listener.lock().expect("no panic holds it").take()
    {
        transport.listen(listener, PortId(0))?;
    }
    setup.register(Box::new(transport))?;
    setup.register(Box::new(DevicePoller::new(devices)?))?;
    Ok(())
}
