//! A target on the in-process fabric, on one thread and in virtual time: one RAM namespace of
//! 512-byte blocks, one export; and a raw host that may violate the protocol.

pub(crate) mod host;
pub(crate) mod world;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use block::{
    DataPath, Device as _, DeviceError, DeviceSet, MemoryDevice, MemoryOptions, QueueOptions,
    ReactorDevices,
};
use block_testing::{
    Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, MemoryUser, MemoryUserControl,
    OperationKinds, TestMemory, When,
};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_rdma::{ConnectionSet, Listeners, PortSettings, RdmaConfig, RdmaCounters, SetParts};
use nvme_target::{
    CONTROLLER_IDS, CoreLimits, DeviceIndex, NamespaceConfig, PortConfig, PortId, PortSecurity,
    SubsystemConfig, Target, TargetConfig, TargetCore, TargetLimits, TransportKind,
};
use rdma::{Device as _, Domains, Event, Provider};
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use reactors::Nanos;
pub(crate) use world::{HOST, NQN, World};

pub(crate) const BLOCK_BYTES: usize = 512;
pub(crate) const NAMESPACE_BYTES: u64 = 16 << 20;
pub(crate) const IN_CAPSULE_BYTES: u32 = 4096;
/// Turns after which a wait has failed.
pub(crate) const TURNS_MAX: usize = 20_000;
/// The target's machine on the fabric, and the host's.
pub(crate) const TARGET_MACHINE: usize = 0;
pub(crate) const HOST_MACHINE: usize = 1;

pub(crate) const TARGET_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(crate) const HOST_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The target's other device, if it has one.
pub(crate) const SECOND_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));

impl World for Stage {
    type Provider = Fake;

    const TURNS: usize = TURNS_MAX;

    fn host_machine(&self) -> Fake {
        self.host_machine.clone()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn turn(&mut self) {
        Stage::turn(self);
    }
}

/// Options of a test target.
pub(crate) struct Setup {
    pub(crate) fabric: FabricConfig,
    pub(crate) device: DeviceConfig,
    /// Another device of the target.
    pub(crate) second: Option<DeviceConfig>,
    pub(crate) arena_bytes: usize,
    /// Existing memory, for tests that start many targets.
    pub(crate) memory: Option<(Arc<Arena>, Arc<MemoryDevice>)>,
    pub(crate) rdma: RdmaConfig,
    pub(crate) queues_max: usize,
    /// Memory of the block device in which requests may have their data, if it has any. The device then
    /// does not lend blocks, like a drive.
    pub(crate) device_memory: Option<Arc<TestMemory>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            fabric: FabricConfig::IMMEDIATE,
            device: DeviceConfig::new("target0", TARGET_IP),
            second: None,
            arena_bytes: 16 << 20,
            memory: None,
            rdma: RdmaConfig {
                ports: vec![(PortId(0), port_settings())],
                receives: 64,
                connections_max: 16,
                ..RdmaConfig::default()
            },
            queues_max: 32,
            device_memory: None,
        }
    }
}

/// The rule of a block device with memory by which requests fail once.
pub(crate) const FAIL: usize = 0;
/// The rule by which completions are held.
pub(crate) const HOLD: usize = 1;
/// The rule by which requests fail once with an error of the medium.
pub(crate) const FAIL_MEDIUM: usize = 2;

/// What a test changes of a block device with memory.
pub(crate) struct DeviceParts {
    pub(crate) memory: Arc<TestMemory>,
    pub(crate) user: Arc<MemoryUserControl>,
    pub(crate) faults: FaultControl,
}

/// A block device over RAM that has data of requests in memory of its own.
fn with_memory(ram: &Arc<MemoryDevice>, memory: Arc<TestMemory>) -> (MemoryUser, DeviceParts) {
    let rule = |when, effect| FaultRule::new(OperationKinds::ALL, when, effect);
    let rules = vec![
        rule(When::First(1), Effect::Fail(DeviceError::Internal)),
        rule(When::Always, Effect::Hold),
        rule(When::First(1), Effect::Fail(DeviceError::MediaRead)),
    ];
    let inner = Arc::<MemoryDevice>::clone(ram);
    let inner = FaultDevice::new(inner, FaultPlan { rules, seed: 1 });
    let faults = inner.control();
    for rule in [FAIL, HOLD, FAIL_MEDIUM] {
        faults.arm(rule, false);
    }
    let own = block_testing::conformance::arena();
    let user = MemoryUser::new(Arc::new(inner), &memory, &own, DataPath::DeviceMemory);
    let parts = DeviceParts {
        memory,
        user: user.control(),
        faults,
    };
    (user, parts)
}

pub(crate) fn port_settings() -> PortSettings {
    PortSettings {
        in_capsule_bytes: IN_CAPSULE_BYTES,
        queue_depth_max: 128,
    }
}

/// A host on the fabric.
pub(crate) type FakeHost = host::Host<Fake>;

/// A target and the fabric.
pub(crate) struct Stage {
    pub(crate) set: ConnectionSet<Fake>,
    pub(crate) fabric: Fabric,
    pub(crate) target_machine: Fake,
    pub(crate) host_machine: Fake,
    pub(crate) target: Arc<Target>,
    pub(crate) core: Rc<RefCell<TargetCore>>,
    pub(crate) devices: ReactorDevices,
    pub(crate) parts: Option<DeviceParts>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) domains: Arc<Domains<Fake>>,
    pub(crate) counters: Arc<RdmaCounters>,
    pub(crate) address: SocketAddr,
    pub(crate) second_address: Option<SocketAddr>,
    pub(crate) now: Nanos,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let fabric = Fabric::new(setup.fabric);
        let has_second = setup.second.is_some();
        let devices: Vec<_> = [setup.device].into_iter().chain(setup.second).collect();
        let target_machine = fabric.machine(&devices).expect("descriptors");
        let host_device = DeviceConfig::new("host0", HOST_IP);
        let host_machine = fabric.machine(&[host_device]).expect("descriptors");
        let (arena, device) = setup.memory.unwrap_or_else(|| {
            let config = ArenaConfig {
                bytes: setup.arena_bytes,
                pages: PagePolicy::Ordinary,
                max_transfer: 1 << 20,
            };
            let arena = Arena::new(config).expect("a small arena");
            (arena, Arc::new(ram()))
        });
        let domains = Arc::new(Domains::new());
        for rdma_device in target_machine.devices().expect("one device") {
            let regions = [arena.region(), device.store().region()];
            domains.add(&rdma_device, &regions).expect("a fit device");
        }
        let mut listeners = Listeners::new(&target_machine, 0).expect("a channel");
        let any = SocketAddr::new(TARGET_IP, 0);
        let address = listeners.listen(any, PortId(0)).expect("a free port");
        let second_address = has_second.then(|| {
            let any = SocketAddr::new(SECOND_IP, 0);
            listeners.listen(any, PortId(0)).expect("a free port")
        });
        let target = target_over(&arena, &device, address, 1);
        let pool = arena.pool(4096);
        let options = QueueOptions::new(0, 256, pool);
        let set = Rc::new(DeviceSet::new());
        let device_parts = match setup.device_memory {
            None => {
                set.attach(0, &*device, options).expect("a queue");
                None
            }
            Some(memory) => {
                let (user, parts) = with_memory(&device, memory);
                set.attach(0, &user, options).expect("a queue");
                domains.set_device_memory(vec![parts.memory.current()]);
                Some(parts)
            }
        };
        let limits = CoreLimits {
            queues_max: setup.queues_max,
            executions_max: 1 << 16,
        };
        let core = TargetCore::new(Arc::clone(&target), 0, Rc::clone(&set), limits);
        let core = Rc::new(RefCell::new(core));
        let devices = ReactorDevices::new(set);
        devices.add(core.clone());
        let counters = Arc::new(RdmaCounters::default());
        let parts = SetParts {
            listeners,
            domains: Arc::clone(&domains),
            arena: Arc::clone(&arena),
            commands_max: 1 << 16,
            config: setup.rdma,
            counters: Arc::clone(&counters),
        };
        Self {
            set: ConnectionSet::new(Rc::clone(&core), parts),
            fabric,
            target_machine,
            host_machine,
            target,
            core,
            devices,
            parts: device_parts,
            arena,
            device,
            domains,
            counters,
            address,
            second_address,
            now: Nanos::from_secs(1000),
        }
    }

    /// One turn of the target's reactor.
    pub(crate) fn turn(&mut self) {
        self.now = self.now.saturating_add(Nanos::from_micros(10));
        self.fabric.progress();
        self.take_requests();
        for device in self.target_machine.devices().unwrap_or_default() {
            while let Some(event) = device.next_event() {
                self.set.device_event(device.index(), event, self.now);
            }
        }
        self.set.begin_turn(self.now);
        self.set.poll_completions(self.now);
        self.set.dispatch(self.now);
        self.set.expire(self.now);
        self.end_turn();
    }

    /// The second and the third phase of a turn.
    pub(crate) fn end_turn(&mut self) {
        self.devices.poll(self.now);
        self.set.take_responses(self.now);
        self.set.flush(self.now);
        self.devices.flush();
    }

    fn take_requests(&mut self) {
        let mut moved = 0;
        while let Some(event) = self.set.next_event(self.now, &mut moved) {
            match event {
                Event::ConnectRequest { request, .. } => {
                    if let Some(handoff) = self.set.negotiate_request(request, PortId(0), self.now)
                    {
                        self.set.adopt(handoff, self.now);
                    }
                }
                Event::ListenerFailed { .. } | Event::Connection { .. } => {}
            }
        }
    }

    /// Runs turns until `done` returns true.
    #[track_caller]
    pub(crate) fn turn_until(&mut self, what: &str, done: impl FnMut(&mut Self) -> bool) {
        World::turn_until(self, what, done);
    }

    pub(crate) fn pass(&mut self, time: Nanos) {
        self.now = self.now.saturating_add(time);
        self.turn();
    }

    /// Reads and writes that were measured in a stage, those of the turn before included.
    pub(crate) fn measured(&mut self, stage: nvme_target::Stage) -> (u64, u64) {
        self.turn();
        let latency = self.target.latency();
        let counts = &latency.subsystem(NQN).expect("the one there is")[stage];
        (counts.read.count(), counts.write.count())
    }

    /// Number of slices of the arena that are leased, without those of receives.
    pub(crate) fn leases_out(&self) -> u64 {
        let classes = self.arena.counters().classes;
        classes.iter().map(|class| class.taken).sum()
    }
}

pub(crate) fn ram() -> MemoryDevice {
    MemoryDevice::new(MemoryOptions {
        name: "ram".to_owned(),
        uuid: [1; 16],
        size_bytes: NAMESPACE_BYTES,
        block_size: BLOCK_BYTES as u32,
        pages: PagePolicy::Ordinary,
        read_only: false,
    })
    .expect("a small RAM device")
}

/// The subsystem, with a namespace on the one device.
pub(crate) fn subsystem_at(device: &Arc<MemoryDevice>, ports: &[PortId]) -> SubsystemConfig {
    let namespace = NamespaceConfig {
        nsid: 1,
        device: DeviceIndex(0),
        geometry: device.geometry(),
        uuid: [2; 16],
        nguid: [3; 16],
        eui64: [4; 8],
        read_only: false,
        ana_group: 1,
        reservations: true,
    };
    SubsystemConfig {
        nqn: NQN.to_owned(),
        serial: "TEST".to_owned(),
        model: "Windlass".to_owned(),
        firmware: "0".to_owned(),
        allow_any_host: false,
        hosts: vec![HOST.to_owned()],
        namespaces: vec![namespace],
        io_queues_max: 8,
        queue_depth_max: 128,
        ports: ports.to_vec(),
        masks: Vec::new(),
        authentication: BTreeMap::new(),
        secure_hosts: BTreeSet::new(),
        ana_states: BTreeMap::new(),
        controller_ids: CONTROLLER_IDS,
    }
}

/// A port for hosts that connect to `address`.
pub(crate) fn port_at(id: PortId, address: SocketAddr) -> PortConfig {
    PortConfig {
        id,
        transport: TransportKind::Rdma,
        address: address.ip().to_string(),
        service: address.port().to_string(),
        ipv6: false,
        security: PortSecurity::None,
    }
}

pub(crate) fn target_over(
    arena: &Arena,
    device: &Arc<MemoryDevice>,
    address: SocketAddr,
    reactors: usize,
) -> Arc<Target> {
    let config = TargetConfig {
        subsystems: vec![subsystem_at(device, &[PortId(0)])],
        ports: vec![port_at(PortId(0), address)],
        limits: TargetLimits {
            transfer_max: arena.max_transfer(),
            controllers_max: 4096,
            queues_max: 1 << 16,
            bind_queues: true,
        },
    };
    let device: Arc<dyn block::Device> = Arc::<MemoryDevice>::clone(device);
    Target::new(config, reactors, vec![device]).expect("a valid configuration")
}
