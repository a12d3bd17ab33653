//! A whole target on one thread: cores, RAM devices with faults, virtual time, and a transport that
//! copies data.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use block::{
    AtomicWrites, Deallocate, Device, DeviceClient, DeviceSet, Drain, OpenError, QueueOptions,
};
use block_testing::{
    Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, OperationKinds, When,
};
use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};
use nvme_spec::command::{FeatureId, LogPageId, LogPageSelect};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::nqn::{DISCOVERY_NQN, NqnField, to_field};
use nvme_spec::registers::{Cc, Csts, Register};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe, Status};
use nvme_target::{
    Admission, Arrival, CONTROLLER_IDS, Close, CloseReason, Completed, ConnectOutcome, CoreLimits,
    DeviceIndex, Direction, KeyOwner, NamespaceConfig, PortConfig, PortId, PortSecurity, QueueId,
    QueueInfo, SecureChannel, SubsystemConfig, Target, TargetConfig, TargetCore, TargetLimits,
    TransportId, TransportKind, Work,
};
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::probe::{Probe, ProbeOptions, Record};

/// The subsystem of every test.
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.org.windlass:test";
/// A subsystem with a list of allowed hosts.
pub(crate) const CLOSED_SUBSYSTEM: &str = "nqn.2026-11.org.windlass:closed";
/// The host of most tests.
pub(crate) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
/// Another host, which the closed subsystem does not list.
pub(crate) const STRANGER: &str =
    "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000002";
pub(crate) const HOST_ID: [u8; 16] = [0x11; 16];

/// Namespace 1: RAM, blocks of 512 bytes, supports borrowed reads.
pub(crate) const RAM: u32 = 1;
pub(crate) const RAM_BLOCKS: u64 = 2048;
/// Namespace 2: blocks of 4096 bytes, reports a volatile cache.
pub(crate) const CACHED: u32 = 2;
pub(crate) const CACHED_BLOCKS: u64 = 256;
/// Namespace 4: read-only. There is no namespace 3.
pub(crate) const READ_ONLY: u32 = 4;
/// Namespace 5: a RAM device that cannot deallocate.
pub(crate) const PLAIN: u32 = 5;
/// The largest valid namespace identifier, NN.
pub(crate) const HIGHEST: u32 = nvme_target::NAMESPACE_ID_MAX;

/// Rules of the RAM device's fault plan; all are disarmed at first.
pub(crate) const FAIL_INTERNAL: usize = 0;
pub(crate) const FAIL_MEDIA: usize = 1;
pub(crate) const HOLD: usize = 2;
pub(crate) const LATER: usize = 3;

pub(crate) const TRANSFER_MAX: usize = 128 << 10;
pub(crate) const QUEUE_DEPTH_MAX: u16 = 64;
pub(crate) const IO_QUEUES: u16 = 4;
/// Maximum of in-capsule data of I/O commands.
pub(crate) const IN_CAPSULE: u32 = 16 << 10;

pub(crate) const TCP_PORT: PortId = PortId(1);
pub(crate) const TCP6_PORT: PortId = PortId(2);

/// The limits of the cores of most tests.
pub(crate) const LIMITS: CoreLimits = CoreLimits {
    queues_max: 16,
    executions_max: 1024,
};

/// One core with its pool and its transports.
pub(crate) struct Node {
    pub(crate) core: TargetCore,
    pub(crate) pool: Pool,
    pub(crate) tcp: TransportId,
    pub(crate) rdma: TransportId,
    done: Vec<Completed>,
    /// Commands that wait for a rate, with their data.
    throttled: Vec<(u64, Link, Work, Vec<u8>)>,
}

/// The whole target.
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) target: Arc<Target>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) now: Nanos,
    /// The RAM device's faults.
    pub(crate) fault: FaultControl,
    /// The cached device's faults: rule 0 fails with an internal error.
    pub(crate) cached_fault: FaultControl,
    pub(crate) ram: Arc<Record>,
    pub(crate) cached: Arc<Record>,
    /// Whether responses are reported as sent, so that latencies are counted.
    pub(crate) counts_latencies: bool,
    next_tag: Cell<u64>,
    next_cid: Cell<u16>,
}

/// One queue of the transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) node: usize,
    pub(crate) queue: QueueId,
    pub(crate) info: QueueInfo,
}

/// The response to a command.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) cqe: Cqe,
    pub(crate) data: Vec<u8>,
}

impl Reply {
    /// The status without More, which reports whether the error log has an entry of the command.
    pub(crate) fn status(&self) -> Status {
        self.cqe.status().with_more(false)
    }

    pub(crate) fn dw0(&self) -> u32 {
        self.cqe.dw0.get()
    }

    /// Asserts success and returns the data.
    #[track_caller]
    pub(crate) fn ok(self) -> Vec<u8> {
        assert!(self.status().is_success(), "{}", self.status());
        self.data
    }

    /// Asserts exactly this status, flags other than More included.
    #[track_caller]
    pub(crate) fn is(&self, status: Status) {
        assert_eq!(self.status(), status);
        assert!(self.data.is_empty(), "an error carries no data");
    }
}

/// The secure channel of a key of this host and subsystem.
pub(crate) fn channel_of((host, subsystem): (&str, &str)) -> SecureChannel {
    SecureChannel {
        owner: Arc::new(KeyOwner {
            key: "db1".to_owned(),
            host_nqn: host.to_owned(),
            subsystem_nqn: subsystem.to_owned(),
            generation: None,
        }),
        keys_version: 3,
        cipher: "TLS_AES_128_GCM_SHA256",
        group: "X25519",
        has_kernel_records: false,
        derivation: "standard",
    }
}

/// The parameters of a connecting host.
#[derive(Clone, Copy)]
pub(crate) struct ConnectOptions<'a> {
    pub(crate) subsystem: &'a str,
    pub(crate) host: &'a str,
    pub(crate) host_id: [u8; 16],
    pub(crate) cntlid: u16,
    pub(crate) qid: u16,
    pub(crate) sqsize_z: u16,
    pub(crate) kato_ms: u32,
    pub(crate) no_flow_control: bool,
    pub(crate) port: PortId,
    pub(crate) rdma: bool,
    pub(crate) local_address: Option<std::net::IpAddr>,
    pub(crate) peer_address: Option<std::net::IpAddr>,
    /// The owner of the key of the connection's secure channel.
    pub(crate) channel: Option<(&'a str, &'a str)>,
}

impl Default for ConnectOptions<'_> {
    fn default() -> Self {
        Self {
            subsystem: SUBSYSTEM,
            host: HOST,
            host_id: HOST_ID,
            cntlid: CNTLID_DYNAMIC,
            qid: 0,
            sqsize_z: 31,
            kato_ms: 0,
            no_flow_control: false,
            port: TCP_PORT,
            rdma: false,
            local_address: None,
            peer_address: None,
            channel: None,
        }
    }
}

impl ConnectOptions<'_> {
    pub(crate) fn sqe(&self) -> Sqe {
        let attributes =
            ConnectAttributes::new().with_disable_sq_flow_control(self.no_flow_control);
        Sqe::connect_queue(self.qid, self.sqsize_z, attributes, self.kato_ms)
            .with_cid(0x77)
            .with_sgl(SglDescriptor::in_capsule(0, 1024))
    }

    pub(crate) fn data(&self) -> ConnectData {
        ConnectData::new(
            self.host_id,
            self.cntlid,
            to_field(self.subsystem).unwrap(),
            // An empty name cannot be constructed, but it can be sent.
            to_field(self.host).unwrap_or(NqnField::new("").unwrap()),
        )
    }
}

pub(crate) fn namespace(nsid: u32, device: u16, target: &dyn Device) -> NamespaceConfig {
    NamespaceConfig {
        nsid,
        device: DeviceIndex(device),
        geometry: target.geometry(),
        uuid: [nsid as u8; 16],
        nguid: [0x20 + nsid as u8; 16],
        eui64: [0x40 + nsid as u8; 8],
        read_only: false,
        ana_group: 1,
        reservations: true,
    }
}

fn rule(operations: OperationKinds, effect: Effect) -> FaultRule {
    FaultRule::new(operations, When::Always, effect)
}

/// The devices, and the handles to their faults and records.
struct Devices {
    all: Vec<Arc<dyn Device>>,
    fault: FaultControl,
    cached_fault: FaultControl,
    ram: Arc<Record>,
    cached: Arc<Record>,
}

/// A device that wraps another and fails by rules, all of which are disarmed.
fn faulty(inner: Probe) -> (Arc<FaultDevice>, FaultControl) {
    let rules = vec![
        rule(
            OperationKinds::ALL,
            Effect::Fail(block::DeviceError::Internal),
        ),
        rule(
            OperationKinds::ALL,
            Effect::Fail(block::DeviceError::MediaRead),
        ),
        rule(OperationKinds::ALL, Effect::Hold),
        rule(OperationKinds::ALL, Effect::Later),
    ];
    let device = FaultDevice::new(Arc::new(inner), FaultPlan { rules, seed: 1 });
    let control = device.control();
    for rule in [FAIL_INTERNAL, FAIL_MEDIA, HOLD, LATER] {
        control.arm(rule, false);
    }
    (Arc::new(device), control)
}

fn devices() -> Devices {
    let options = ProbeOptions {
        block_size: 512,
        block_count: RAM_BLOCKS,
        volatile: false,
        deallocate: Deallocate::ReadsZero,
        read_only: false,
        optimal_io_blocks: 8,
        atomic: AtomicWrites {
            normal_blocks: 16,
            power_failure_blocks: 8,
            normal_boundary_blocks: 32,
            power_failure_boundary_blocks: 0,
            boundary_offset_blocks: 4,
        },
    };
    let (ram, ram_record) = Probe::new("ram", options);
    let (cached, cached_record) = Probe::new(
        "cached",
        ProbeOptions {
            block_size: 4096,
            block_count: CACHED_BLOCKS,
            volatile: true,
            optimal_io_blocks: 1,
            atomic: AtomicWrites::BLOCK,
            ..options
        },
    );
    let (read_only, _) = Probe::new(
        "read-only",
        ProbeOptions {
            block_count: 64,
            read_only: true,
            ..options
        },
    );
    let deallocate = Deallocate::Unsupported;
    let (plain, _) = Probe::new(
        "plain",
        ProbeOptions {
            block_count: 64,
            deallocate,
            ..options
        },
    );
    let (ram, fault) = faulty(ram);
    let (cached, cached_fault) = faulty(cached);
    let all: Vec<Arc<dyn Device>> = vec![ram, cached, Arc::new(read_only), Arc::new(plain)];
    Devices {
        all,
        fault,
        cached_fault,
        ram: ram_record,
        cached: cached_record,
    }
}

pub(crate) fn port(id: PortId, address: &str, ipv6: bool) -> PortConfig {
    PortConfig {
        id,
        transport: TransportKind::Tcp,
        address: address.to_owned(),
        service: "4420".to_owned(),
        ipv6,
        security: PortSecurity::None,
    }
}

pub(crate) fn subsystem(nqn: &str, namespaces: Vec<NamespaceConfig>) -> SubsystemConfig {
    SubsystemConfig {
        nqn: nqn.to_owned(),
        serial: "W-0001".to_owned(),
        model: "Windlass".to_owned(),
        firmware: "0.1".to_owned(),
        allow_any_host: true,
        hosts: Vec::new(),
        namespaces,
        io_queues_max: IO_QUEUES,
        queue_depth_max: QUEUE_DEPTH_MAX,
        ports: vec![TCP_PORT, TCP6_PORT],
        masks: Vec::new(),
        authentication: BTreeMap::new(),
        secure_hosts: BTreeSet::new(),
        ana_states: BTreeMap::new(),
        controller_ids: CONTROLLER_IDS,
    }
}

/// The initial configuration of every world.
pub(crate) fn config(devices: &[Arc<dyn Device>]) -> TargetConfig {
    let namespaces = vec![
        namespace(RAM, 0, &*devices[0]),
        namespace(CACHED, 1, &*devices[1]),
        namespace(READ_ONLY, 2, &*devices[2]),
        namespace(PLAIN, 3, &*devices[3]),
    ];
    let closed = SubsystemConfig {
        allow_any_host: false,
        hosts: vec![HOST.to_owned()],
        ..subsystem(CLOSED_SUBSYSTEM, vec![namespace(1, 0, &*devices[0])])
    };
    TargetConfig {
        subsystems: vec![subsystem(SUBSYSTEM, namespaces), closed],
        ports: vec![
            port(TCP_PORT, "192.0.2.1", false),
            port(TCP6_PORT, "2001:db8::1", true),
        ],
        limits: TargetLimits {
            transfer_max: TRANSFER_MAX,
            controllers_max: 16,
            queues_max: 64,
            bind_queues: true,
        },
    }
}

/// The parts that the cores share, which can be passed to other threads.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) target: Arc<Target>,
    arena: Arc<Arena>,
    fault: FaultControl,
    cached_fault: FaultControl,
    ram: Arc<Record>,
    cached: Arc<Record>,
}

impl Parts {
    pub(crate) fn new(cores: usize, change: impl FnOnce(&mut TargetConfig)) -> Self {
        let Devices {
            all: devices,
            fault,
            cached_fault,
            ram,
            cached,
        } = devices();
        let mut config = config(&devices);
        change(&mut config);
        let target = Target::new(config, cores, devices).expect("a right configuration");
        let arena = Arena::new(ArenaConfig {
            bytes: 8 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: TRANSFER_MAX,
        })
        .expect("a small arena");
        Self {
            target,
            arena,
            fault,
            cached_fault,
            ram,
            cached,
        }
    }
}

impl Node {
    fn new(target: &Arc<Target>, arena: &Arc<Arena>, reactor: usize, limits: CoreLimits) -> Self {
        let pool = arena.pool(64);
        let devices = Rc::new(DeviceSet::new());
        for (place, device) in target.devices() {
            let options = QueueOptions::new(reactor, 128, pool.clone());
            let opened = devices.attach(usize::from(place.0), &*device, options);
            opened.expect("a queue");
        }
        let mut core = TargetCore::new(Arc::clone(target), reactor, devices, limits);
        let tcp = core.register_transport(TransportKind::Tcp);
        let rdma = core.register_transport(TransportKind::Rdma);
        Self {
            core,
            pool,
            tcp,
            rdma,
            done: Vec::new(),
            throttled: Vec::new(),
        }
    }
}

impl Node {
    /// Starts a turn of a transport, then polls the devices and the core.
    pub(crate) fn poll(&mut self, now: Nanos) {
        self.core.begin_turn(now);
        let devices = Rc::clone(self.core.devices());
        devices.poll(now, |_, completions| self.core.completed(completions, now));
        self.core.poll(now);
    }

    pub(crate) fn flush(&mut self) {
        self.core.flush();
        self.core.devices().flush();
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = [
            self.core.next_deadline(),
            self.core.devices().next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn prepare_sleep(&mut self) -> bool {
        self.core.devices().prepare_sleep() && !self.core.has_ready()
    }

    pub(crate) fn attach(
        &mut self,
        place: usize,
        device: &dyn Device,
        options: QueueOptions,
    ) -> Result<(), OpenError> {
        self.core.devices().attach(place, device, options)?;
        self.core.device_attached(place);
        Ok(())
    }

    pub(crate) fn detach(&mut self, place: usize) -> Drain {
        if self.core.has_released_device(place) {
            self.core.devices().detach(place)
        } else {
            Drain::Outstanding(self.core.devices().in_flight())
        }
    }

    pub(crate) fn cut(&mut self, place: usize, now: Nanos) {
        self.core.devices().remove_now(place);
        self.core.device_removed(place, now);
    }
}

impl World {
    /// Two cores with the default configuration.
    pub(crate) fn new() -> Self {
        Self::with(2, LIMITS, |_| {})
    }

    pub(crate) fn with(
        cores: usize,
        limits: CoreLimits,
        change: impl FnOnce(&mut TargetConfig),
    ) -> Self {
        Self::of(&Parts::new(cores, change), 0..cores, limits)
    }

    /// The devices by index.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        let devices = self.target.devices().into_iter();
        devices.map(|(_, device)| device).collect()
    }

    /// A world of another target with the same number of cores and the same devices.
    pub(crate) fn beside(&self, target: Arc<Target>, limits: CoreLimits) -> Self {
        let parts = Parts {
            target,
            arena: Arc::clone(&self.arena),
            fault: self.fault.clone(),
            cached_fault: self.cached_fault.clone(),
            ram: Arc::clone(&self.ram),
            cached: Arc::clone(&self.cached),
        };
        Self::of(&parts, 0..self.nodes.len(), limits)
    }

    /// Some of the cores of a target, on this thread.
    pub(crate) fn of(parts: &Parts, reactors: Range<usize>, limits: CoreLimits) -> Self {
        let Parts {
            target,
            arena,
            fault,
            cached_fault,
            ram,
            cached,
        } = parts.clone();
        let nodes = reactors
            .map(|reactor| Node::new(&target, &arena, reactor, limits))
            .collect();
        Self {
            nodes,
            target,
            arena,
            now: Nanos::from_secs(1000),
            fault,
            cached_fault,
            ram,
            cached,
            counts_latencies: false,
            next_tag: Cell::new(1),
            next_cid: Cell::new(1),
        }
    }

    pub(crate) fn cid(&self) -> u16 {
        self.next_cid.replace(self.next_cid.get().wrapping_add(1))
    }

    pub(crate) fn tag(&self) -> u64 {
        self.next_tag.replace(self.next_tag.get() + 1)
    }

    /// Leases taken from the arena.
    pub(crate) fn leases(&self) -> u64 {
        self.arena
            .counters()
            .classes
            .iter()
            .map(|class| class.taken)
            .sum()
    }

    /// One turn of every core.
    pub(crate) fn poll(&mut self) {
        for node in &mut self.nodes {
            node.poll(self.now);
            node.flush();
        }
    }

    /// Enough turns of every core for anything that needs no time.
    pub(crate) fn settle(&mut self) {
        for _ in 0..8 {
            self.poll();
        }
    }

    /// Advances the time.
    pub(crate) fn advance(&mut self, span: Nanos) {
        self.now += span;
        self.settle();
    }

    pub(crate) fn arrival(&self, node: usize, call: &ConnectOptions<'_>) -> Arrival {
        let node = &self.nodes[node];
        Arrival {
            transport: if call.rdma { node.rdma } else { node.tcp },
            port: call.port,
            connection: 1000 + u32::from(call.qid),
            local_address: call.local_address,
            peer_address: call.peer_address,
            in_capsule_max: IN_CAPSULE,
            channel: call.channel.map(|owner| Arc::new(channel_of(owner))),
        }
    }

    pub(crate) fn try_connect(
        &mut self,
        node: usize,
        call: &ConnectOptions<'_>,
    ) -> Result<Link, Cqe> {
        let arrival = self.arrival(node, call);
        let (sqe, data, now) = (call.sqe(), call.data(), self.now);
        let core = &mut self.nodes[node].core;
        match core.connect(&arrival, &sqe, data.as_bytes(), now) {
            ConnectOutcome::Accepted {
                queue,
                response,
                info,
            } => {
                assert!(response.status().is_success());
                assert_eq!(response.cid.get(), 0x77);
                assert_eq!(response.connect_success().cntlid(), info.controller_id);
                Ok(Link { node, queue, info })
            }
            ConnectOutcome::Rejected(response) => {
                assert_eq!(response.cid.get(), 0x77);
                assert!(!response.status().is_success());
                Err(response)
            }
        }
    }

    #[track_caller]
    pub(crate) fn connect(&mut self, node: usize, call: &ConnectOptions<'_>) -> Link {
        match self.try_connect(node, call) {
            Ok(link) => link,
            Err(cqe) => panic!("refused: {}", cqe.status()),
        }
    }

    /// An enabled controller: its admin queue on `node`.
    pub(crate) fn enabled(&mut self, node: usize) -> Link {
        self.enabled_by(node, &ConnectOptions::default())
    }

    pub(crate) fn enabled_by(&mut self, node: usize, call: &ConnectOptions<'_>) -> Link {
        let admin = self.connect(node, call);
        self.set_cc(admin, Cc::enabled_nvm());
        assert!(self.csts(admin).rdy());
        admin
    }

    /// An I/O queue of a controller.
    pub(crate) fn io_queue(&mut self, node: usize, admin: Link, qid: u16) -> Link {
        let cntlid = admin.info.controller_id;
        self.connect(
            node,
            &ConnectOptions {
                cntlid,
                qid,
                ..ConnectOptions::default()
            },
        )
    }

    /// A whole controller: admin queue on node 0, one I/O queue on node 0.
    pub(crate) fn ready(&mut self) -> (Link, Link) {
        let admin = self.enabled(0);
        let io = self.io_queue(0, admin, 1);
        (admin, io)
    }

    #[track_caller]
    pub(crate) fn set_cc(&mut self, admin: Link, cc: Cc) {
        let value = u64::from(cc.into_bits());
        let sqe = Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, value);
        self.command(admin, sqe).ok();
    }

    pub(crate) fn csts(&mut self, admin: Link) -> Csts {
        let sqe = Sqe::get_property(Register::CSTS.0, PropertySize::BYTES_4);
        let reply = self.command(admin, sqe);
        assert!(reply.status().is_success());
        Csts::from_bits(reply.dw0())
    }

    pub(crate) fn set_feature(&mut self, admin: Link, fid: FeatureId, value: u32) -> Reply {
        self.command(admin, Sqe::set_feature(fid, 0, value))
    }

    /// A log page from its beginning.
    pub(crate) fn log(&mut self, admin: Link, lid: LogPageId, bytes: u32) -> Vec<u8> {
        self.log_page(admin, lid, bytes, false).ok()
    }

    pub(crate) fn log_page(&mut self, admin: Link, lid: LogPageId, bytes: u32, rae: bool) -> Reply {
        let select = LogPageSelect::new()
            .with_lid(lid)
            .with_rae(rae)
            .with_numd_z(bytes / 4 - 1);
        self.read(
            admin,
            Sqe::log_page(nvme_spec::NSID_BROADCAST, select, 0),
            bytes,
        )
    }

    /// A command without data.
    pub(crate) fn command(&mut self, link: Link, sqe: Sqe) -> Reply {
        self.exchange(link, sqe, &[])
    }

    /// A command with `bytes` of data for the host.
    pub(crate) fn read(&mut self, link: Link, sqe: Sqe, bytes: u32) -> Reply {
        self.command(link, sqe.with_sgl(SglDescriptor::transport(bytes)))
    }

    /// A command with data from the host.
    pub(crate) fn write(&mut self, link: Link, sqe: Sqe, data: &[u8]) -> Reply {
        let sgl = SglDescriptor::transport(data.len() as u32);
        self.exchange(link, sqe.with_sgl(sgl), data)
    }

    /// A command and its response, which must be available without time passing.
    #[track_caller]
    pub(crate) fn exchange(&mut self, link: Link, sqe: Sqe, data: &[u8]) -> Reply {
        let sqe = sqe.with_cid(self.cid());
        match self.start(link, sqe, data) {
            Ok(reply) => reply,
            Err(tag) => self.wait(link, tag),
        }
    }

    /// Starts a command: returns its response, or the tag under which it will be available.
    pub(crate) fn start(&mut self, link: Link, sqe: Sqe, data: &[u8]) -> Result<Reply, u64> {
        let (tag, now) = (self.tag(), self.now);
        let core = &mut self.nodes[link.node].core;
        match core.admit(link.queue, tag, &sqe, now) {
            Admission::Respond(cqe) => {
                assert_eq!(cqe.cid.get(), sqe.cid.get());
                Ok(Reply {
                    cqe,
                    data: Vec::new(),
                })
            }
            Admission::Held => Err(tag),
            Admission::Work(work) => self.execute(link, tag, work, data).ok_or(tag),
            Admission::Throttled => {
                let work = core.take_set_aside().expect("just admitted");
                core.await_rate(link.queue, tag, &work, true, now);
                let node = &mut self.nodes[link.node];
                node.throttled.push((tag, link, work, data.to_vec()));
                Err(tag)
            }
            Admission::Copy => {
                let work = core.take_set_aside().expect("just admitted");
                self.execute(link, tag, work, data).ok_or(tag)
            }
        }
    }

    /// Moves a work's data and executes it.
    pub(crate) fn execute(
        &mut self,
        link: Link,
        tag: u64,
        work: Work,
        data: &[u8],
    ) -> Option<Reply> {
        let done = self.execute_any(link, tag, work, data)?;
        Some(self.respond(link.node, &done))
    }

    fn execute_any(&mut self, link: Link, tag: u64, work: Work, data: &[u8]) -> Option<Completed> {
        let node = &mut self.nodes[link.node];
        let lease = work.needs_lease().then(|| {
            let mut lease = node
                .pool
                .take(work.lease_bytes() as usize)
                .expect("a lease");
            lease.resize(work.bytes() as usize);
            if work.direction() == Direction::FromHost {
                lease.copy_from_slice(data);
            }
            lease
        });
        let done = node.core.execute(link.queue, tag, work, lease, self.now)?;
        assert_eq!(done.tag, tag);
        Some(done)
    }

    /// The response to a started command.
    #[track_caller]
    pub(crate) fn wait(&mut self, link: Link, tag: u64) -> Reply {
        for _ in 0..600 {
            if let Some(reply) = self.take_reply(link.node, tag) {
                return reply;
            }
            self.poll();
        }
        panic!("no answer");
    }

    /// The response to a started command, which must be available without another turn.
    #[track_caller]
    pub(crate) fn gathered(&mut self, link: Link, tag: u64) -> Reply {
        self.take_reply(link.node, tag).expect("answered")
    }

    /// The response to a started command, if it is available.
    pub(crate) fn take_reply(&mut self, node: usize, tag: u64) -> Option<Reply> {
        self.gather(node);
        let done = &mut self.nodes[node].done;
        let index = done.iter().position(|done| done.tag == tag)?;
        let done = done.swap_remove(index);
        Some(self.respond(node, &done))
    }

    fn gather(&mut self, node: usize) {
        self.continue_released(node);
        let node = &mut self.nodes[node];
        for transport in [node.tcp, node.rdma] {
            while let Some(done) = node.core.next_completion(transport) {
                node.done.push(done);
            }
        }
    }

    /// Executes or rejects the commands whose wait for a rate has ended.
    pub(crate) fn continue_released(&mut self, node: usize) {
        let transport = self.nodes[node].tcp;
        while let Some(released) = self.nodes[node].core.next_released(transport) {
            let throttled = &mut self.nodes[node].throttled;
            let mut tags = throttled.iter().map(|it| it.0);
            let place = tags.position(|tag| tag == released.tag).expect("it waits");
            let (tag, link, work, data) = throttled.remove(place);
            if let Some(status) = released.refused {
                let response = self.nodes[node].core.reject(link.queue, work, status);
                let done = Completed::without_data(tag, response);
                self.nodes[node].done.push(done);
            } else if let Some(done) = self.execute_any(link, tag, work, &data) {
                self.nodes[node].done.push(done);
            }
        }
    }

    /// Sends a response.
    fn respond(&mut self, node: usize, done: &Completed) -> Reply {
        if self.counts_latencies {
            self.nodes[node].core.sent(done.timing, self.now);
        }
        let data = done.data.as_ref();
        let data = data.map_or_else(Vec::new, |data| data.to_vec());
        assert_eq!(data.len(), done.bytes as usize);
        Reply {
            cqe: done.response,
            data,
        }
    }

    /// Connections that a core requests to close.
    pub(crate) fn closes(&mut self, node: usize) -> Vec<Close> {
        let node = &mut self.nodes[node];
        let mut closes = Vec::new();
        for transport in [node.tcp, node.rdma] {
            while let Some(close) = node.core.next_close(transport) {
                closes.push(close);
            }
        }
        closes
    }

    /// The reasons for which a core requests to close connections.
    pub(crate) fn close_reasons(&mut self, node: usize) -> Vec<CloseReason> {
        self.closes(node)
            .into_iter()
            .map(|close| close.reason)
            .collect()
    }

    pub(crate) fn close(&mut self, link: Link) {
        self.nodes[link.node].core.close_queue(link.queue, self.now);
    }

    /// Reads blocks of a namespace.
    #[track_caller]
    pub(crate) fn read_blocks(&mut self, io: Link, nsid: u32, lba: u64, blocks: u16) -> Vec<u8> {
        let size = if nsid == CACHED { 4096 } else { 512 };
        self.read(
            io,
            Sqe::read(nsid, lba, blocks - 1),
            u32::from(blocks) * size,
        )
        .ok()
    }
}

/// The parameters of a connection to the discovery subsystem.
pub(crate) fn discovery_call() -> ConnectOptions<'static> {
    ConnectOptions {
        subsystem: DISCOVERY_NQN,
        ..ConnectOptions::default()
    }
}
