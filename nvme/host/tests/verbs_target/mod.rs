//! A minimal NVMe/RDMA target in a thread for tests of the host: one namespace of RAM on the
//! in-process fabric, and a choice of incorrect behaviours.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use hugemem::{Arena, ArenaConfig, DmaBuffer, PagePolicy};
use nvme_host::{ConnectOptions, HostIdentity, RdmaOptions, Transport};
use nvme_spec::ascii::SpacePadded;
use nvme_spec::command::{AdminOpcode, Cns, IoOpcode};
use nvme_spec::fabrics::{ConnectData, FabricsType};
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceList,
};
use nvme_spec::log::{DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType};
use nvme_spec::nqn;
use nvme_spec::rdma::{ConnectAccept, ConnectReject, ConnectRequest, RejectReason};
use nvme_spec::registers::{
    Cap, Cc, Csts, Register, ShutdownNotification, ShutdownStatus, Version,
};
use nvme_spec::sgl::{Sgl, SglDescriptor};
use nvme_spec::{Cqe, Sqe, Status, U16, U64};
use rdma::{
    Access, CompletionOpcode, CompletionQueue, ConnectParameters, ConnectRequest as _, Connection,
    Device, Domain, DomainMemory, Event, EventChannel, MemoryMap, Payload, Provider, QueuePair,
    QueuePairCapacity, QueuePairOptions, ReceiveRequest, RemoteAddress, SendOperation, SendRequest,
    Token, WorkCompletion,
};
use rdma_testing::fake::{
    DeviceConfig, Fabric, FabricConfig, Fake, FakeCompletionQueue, FakeConnection, FakeQueuePair,
};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const NQN: &str = "nqn.2026-11.org.windlass:fake";
pub(crate) const BLOCK: usize = 512;
pub(crate) const BLOCKS: u64 = 8192;
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Bytes of one receive: a command with descriptors and in-capsule data.
const CAPSULE_BYTES: usize = 16 * 1024;
const RECEIVES: usize = 40;

/// Settings of the target's correct and incorrect behaviour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetBehavior {
    pub(crate) in_capsule_bytes: u32,
    pub(crate) descriptors: u8,
    /// Whether to invalidate the host's key with the response, as the host requests.
    pub(crate) invalidates: bool,
    /// Receive queue entries reported in the accept data.
    pub(crate) queue_entries: u16,
    pub(crate) misbehavior: Misbehavior,
}

/// Incorrect behaviour on I/O queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misbehavior {
    Nothing,
    Rejects(RejectReason),
    AcceptFormat,
    AcceptsNothing,
    ShortResponse,
    UnknownCommand,
    Twice,
    WritesTooFar,
    Disconnects,
    Silent,
}

impl Default for TargetBehavior {
    fn default() -> Self {
        Self {
            in_capsule_bytes: 4096,
            descriptors: 1,
            invalidates: true,
            queue_entries: 128,
            misbehavior: Misbehavior::Nothing,
        }
    }
}

/// Counters of the target.
#[derive(Debug, Default)]
pub(crate) struct TargetCounters {
    pub(crate) in_capsule_writes: AtomicU64,
    pub(crate) descriptors_most: AtomicU64,
    pub(crate) invalidations: AtomicU64,
    pub(crate) connections_ended: AtomicU64,
}

/// A running target and its fabric.
pub(crate) struct VerbsTarget {
    pub(crate) fabric: Fabric,
    pub(crate) host: Fake,
    pub(crate) address: SocketAddr,
    pub(crate) counters: Arc<TargetCounters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl VerbsTarget {
    pub(crate) fn start(behaviour: TargetBehavior) -> Self {
        let fabric = Fabric::new(FabricConfig::IMMEDIATE);
        let machine = |name, address: [u8; 4]| {
            let device = DeviceConfig::new(name, address.into());
            fabric.machine(&[device]).expect("a machine")
        };
        let host = machine("host0", [10, 0, 0, 1]);
        let target = machine("target0", [10, 0, 0, 2]);
        let address = SocketAddr::from(([10, 0, 0, 2], 4420));
        let counters = Arc::new(TargetCounters::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = {
            let (counters, stop) = (Arc::clone(&counters), Arc::clone(&stop));
            std::thread::spawn(move || serve(&target, address, behaviour, &counters, &stop, &ready))
        };
        is_ready.recv().expect("the target listens");
        Self {
            fabric,
            host,
            address,
            counters,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn options(&self, rdma: RdmaOptions) -> ConnectOptions {
        let identity = HostIdentity::from_uuid([9; 16]);
        let transport = Transport::rdma(self.host.clone(), rdma).expect("memory");
        ConnectOptions {
            transport,
            ..ConnectOptions::new(self.address, NQN, identity)
        }
    }
}

impl Drop for VerbsTarget {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the target failed");
        }
    }
}

struct Shared<'a> {
    behaviour: TargetBehavior,
    memory: Mutex<Vec<u8>>,
    arena: Arc<Arena>,
    registered: Arc<DomainMemory<Fake>>,
    counters: &'a TargetCounters,
}

fn serve(
    provider: &Fake,
    address: SocketAddr,
    behaviour: TargetBehavior,
    counters: &TargetCounters,
    stop: &AtomicBool,
    ready: &std::sync::mpsc::Sender<()>,
) {
    let arena = Arena::new(ArenaConfig {
        bytes: 32 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    })
    .expect("32 MiB");
    let device = provider.devices().expect("a device").remove(0);
    let domain = device.create_domain().expect("a domain");
    let registered = Arc::new(DomainMemory::new(domain, Access::LOCAL));
    registered
        .attach_region(arena.region())
        .expect("registered");
    let shared = Shared {
        behaviour,
        memory: Mutex::new(vec![0; BLOCKS as usize * BLOCK]),
        arena,
        registered,
        counters,
    };
    let mut events = provider.event_channel().expect("events");
    let _listener = events.listen(address, 16, Token(0)).expect("listening");
    ready.send(()).expect("the test waits");
    let mut peers: Vec<Peer<'_>> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while let Some(event) = events.next_event().expect("events") {
            match event {
                Event::ConnectRequest { request, .. } => {
                    let token = Token(peers.len() as u64 + 1);
                    peers.extend(Peer::accept(request, &mut events, token, &shared));
                }
                Event::Connection {
                    token,
                    event: rdma::ConnectionEvent::Disconnected,
                } => {
                    counters.connections_ended.fetch_add(1, Ordering::Relaxed);
                    peers.retain(|peer| peer.connection.token() != token);
                }
                _ => {}
            }
        }
        for peer in &mut peers {
            peer.poll();
        }
        std::thread::yield_now();
    }
}

struct Peer<'a> {
    shared: &'a Shared<'a>,
    queue_pair: FakeQueuePair,
    connection: FakeConnection,
    completions: FakeCompletionQueue,
    map: Arc<MemoryMap<Fake>>,
    capsules: Vec<DmaBuffer>,
    data: DmaBuffer,
    backlog: VecDeque<WorkCompletion>,
    qid: u16,
    cc: Cc,
    closed: bool,
}

impl<'a> Peer<'a> {
    fn accept(
        request: <Fake as Provider>::ConnectRequest,
        events: &mut <Fake as Provider>::EventChannel,
        token: Token,
        shared: &'a Shared<'a>,
    ) -> Option<Self> {
        let (parameters, _) = ConnectRequest::read_from_prefix(request.private_data().as_slice())
            .expect("32 bytes of private data");
        assert_eq!(parameters.recfmt.get(), 0);
        assert_eq!(u32::from(parameters.hrqsize.get()), parameters.hsqsize());
        let qid = parameters.qid.get();
        let misbehavior = shared.behaviour.misbehavior;
        if let (Misbehavior::Rejects(reason), 1..) = (misbehavior, qid) {
            let reject = ConnectReject::new(reason);
            request.reject(reject.as_bytes()).expect("rejected");
            return None;
        }
        let mut connection = request.into_connection(events, token).expect("taken");
        let domain = shared.registered.domain();
        let completions = domain
            .create_completion_queue(512, token)
            .expect("completions");
        let options = QueuePairOptions {
            send_completions: &completions,
            receive_completions: &completions,
            shared_receives: None,
            capacity: QueuePairCapacity {
                send_requests: 256,
                receive_requests: RECEIVES as u32,
                send_sges: 2,
                receive_sges: 1,
                inline_bytes: 16,
            },
        };
        let queue_pair = connection
            .create_queue_pair(domain, &options)
            .expect("a queue pair");
        let take = |bytes| shared.arena.dma_buffer(bytes).expect("memory");
        let mut peer = Self {
            shared,
            queue_pair,
            connection,
            completions,
            map: shared.registered.map(),
            capsules: (0..RECEIVES).map(|_| take(CAPSULE_BYTES)).collect(),
            data: take(1 << 20),
            backlog: VecDeque::new(),
            qid,
            cc: Cc::new(),
            closed: false,
        };
        for index in 0..RECEIVES {
            peer.post_receive(index);
        }
        peer.queue_pair.flush().expect("posted");
        let mut accept = ConnectAccept::new(shared.behaviour.queue_entries);
        if misbehavior == Misbehavior::AcceptFormat && qid > 0 {
            accept.recfmt = U16::new(7);
        }
        let bytes: &[u8] = if misbehavior == Misbehavior::AcceptsNothing && qid > 0 {
            &[]
        } else {
            accept.as_bytes()
        };
        peer.connection
            .accept(&ConnectParameters {
                private_data: bytes,
                initiator_depth: 4,
                responder_resources: 0,
                retries: 7,
                rnr_retries: 7,
            })
            .expect("accepted");
        Some(peer)
    }

    fn post_receive(&mut self, index: usize) {
        let memory = self.map.gather(&self.capsules[index], 0, CAPSULE_BYTES);
        let memory = memory.expect("registered");
        let request = ReceiveRequest {
            wr_id: index as u64,
            memory,
        };
        self.queue_pair.queue_receive(&request).expect("room");
    }

    fn next(&mut self) -> Option<WorkCompletion> {
        let mut one = [WorkCompletion::default()];
        let found = self.completions.poll(&mut one).expect("completions");
        (found > 0).then(|| one[0])
    }

    fn poll(&mut self) {
        while let Some(done) = self.backlog.pop_front().or_else(|| self.next()) {
            if self.closed || !done.is_success() {
                self.closed = true;
                return;
            }
            if !done.is_receive() {
                continue;
            }
            let index = done.wr_id as usize;
            let mut bytes = vec![0; done.byte_len as usize];
            self.capsules[index].read(0, &mut bytes);
            self.post_receive(index);
            let (sqe, inside) = Sqe::read_from_prefix(&bytes).expect("a whole command");
            self.command(&sqe, inside);
            self.closed |= self.queue_pair.flush().is_err();
        }
    }

    /// The descriptors of a command: its own, or those of the segment that follows it.
    fn descriptors(&self, sqe: &Sqe, inside: &[u8]) -> Vec<Sgl> {
        let list: Vec<Sgl> = match sqe.dptr.sgl().decode() {
            Sgl::LastSegment {
                address: 0,
                length,
                in_capsule: true,
            } => inside[..length as usize]
                .chunks(16)
                .map(|bytes| {
                    SglDescriptor::read_from_bytes(bytes)
                        .expect("16 bytes")
                        .decode()
                })
                .collect(),
            one => vec![one],
        };
        let most = &self.shared.counters.descriptors_most;
        most.fetch_max(list.len() as u64, Ordering::Relaxed);
        assert!(list.len() <= usize::from(self.shared.behaviour.descriptors).max(1));
        list
    }

    /// Transfers data between `self.data` and the host's memory.
    fn move_data(&mut self, list: &[Sgl], to_host: bool, len: usize) -> bool {
        let mut offset = 0;
        for one in list {
            let Sgl::Keyed {
                address,
                length,
                key,
                ..
            } = *one
            else {
                panic!("a host that sends {one:?}");
            };
            let here = (length as usize).min(len - offset);
            let far =
                u64::from(self.shared.behaviour.misbehavior == Misbehavior::WritesTooFar) << 40;
            let remote = RemoteAddress {
                address: address + far,
                rkey: key,
            };
            let local = self.map.gather(&self.data, offset, here);
            let local = local.expect("registered");
            let payload = Payload::Memory(local.as_slice());
            let operation = if to_host {
                SendOperation::Write(remote)
            } else {
                SendOperation::Read(remote)
            };
            let request = SendRequest::new(9, operation, payload).signalled(!to_host);
            self.queue_pair.queue_send(&request).expect("room");
            offset += here;
        }
        assert_eq!(offset, len, "the descriptors have all of the data");
        if to_host {
            return true;
        }
        self.queue_pair.flush().expect("posted");
        let mut missing = list.len();
        while missing > 0 {
            match self.next() {
                Some(done) if !done.is_success() => return false,
                Some(done) if done.opcode == CompletionOpcode::READ => missing -= 1,
                Some(done) => self.backlog.push_back(done),
                None => std::thread::yield_now(),
            }
        }
        true
    }

    fn respond(&mut self, cqe: Cqe, list: &[Sgl]) {
        let asked = list.iter().find_map(|one| match *one {
            Sgl::Keyed {
                key,
                invalidate: true,
                ..
            } => Some(key),
            _ => None,
        });
        let misbehavior = if self.qid > 0 && self.cc.en() {
            self.shared.behaviour.misbehavior
        } else {
            Misbehavior::Nothing
        };
        let mut operation = SendOperation::Send;
        if let Some(rkey) = asked.filter(|_| self.shared.behaviour.invalidates) {
            self.shared
                .counters
                .invalidations
                .fetch_add(1, Ordering::Relaxed);
            operation = SendOperation::SendWithInvalidate { rkey };
        }
        let mut cqe = cqe;
        if misbehavior == Misbehavior::UnknownCommand {
            cqe.cid = U16::new(cqe.cid.get() ^ 0x4000);
        }
        let bytes = match misbehavior {
            Misbehavior::ShortResponse => &cqe.as_bytes()[..12],
            _ => cqe.as_bytes(),
        };
        let times = if misbehavior == Misbehavior::Twice {
            2
        } else {
            1
        };
        for _ in 0..times {
            let request = SendRequest::new(3, operation, Payload::Inline(bytes));
            self.closed |= self.queue_pair.queue_send(&request).is_err();
            operation = SendOperation::Send;
        }
    }

    /// Sends all data of a read and its response.
    fn respond_with_data(&mut self, sqe: &Sqe, inside: &[u8], data: &[u8]) {
        let list = self.descriptors(sqe, inside);
        self.data.write(0, data);
        self.move_data(&list, true, data.len());
        self.respond(Cqe::new(sqe.cid.get(), Status::SUCCESS), &list);
    }

    /// Receives the data of a write. Returns it with its descriptors.
    fn take_data(&mut self, sqe: &Sqe, inside: &[u8], len: usize) -> Option<(Vec<u8>, Vec<Sgl>)> {
        let list = self.descriptors(sqe, inside);
        if let [Sgl::Offset { offset: 0, length }] = list[..] {
            assert_eq!((length as usize, inside.len()), (len, len));
            let counters = &self.shared.counters.in_capsule_writes;
            counters.fetch_add(1, Ordering::Relaxed);
            return Some((inside.to_vec(), list));
        }
        let mut bytes = vec![0; len];
        if !self.move_data(&list, false, len) {
            return None;
        }
        self.data.read(0, &mut bytes);
        Some((bytes, list))
    }

    fn succeed(&mut self, sqe: &Sqe) {
        self.respond(Cqe::new(sqe.cid.get(), Status::SUCCESS), &[]);
    }

    fn fail(&mut self, sqe: &Sqe, status: Status) {
        self.respond(Cqe::new(sqe.cid.get(), status), &[]);
    }

    fn command(&mut self, sqe: &Sqe, inside: &[u8]) {
        if sqe.is_fabrics() {
            self.fabrics(sqe, inside);
        } else if self.qid == 0 {
            self.admin(sqe, inside);
        } else {
            match self.shared.behaviour.misbehavior {
                Misbehavior::Silent => {}
                Misbehavior::Disconnects => {
                    let _ = self.connection.disconnect();
                }
                _ => self.io(sqe, inside),
            }
        }
    }

    fn fabrics(&mut self, sqe: &Sqe, inside: &[u8]) {
        let cid = sqe.cid.get();
        match sqe.fctype() {
            FabricsType::CONNECT => {
                let len = size_of::<ConnectData>();
                let Some((data, list)) = self.take_data(sqe, inside, len) else {
                    return;
                };
                let data = ConnectData::read_from_bytes(&data).expect("1024 bytes");
                let name = nqn::from_field(&data.subnqn).expect("an NQN");
                assert_eq!(sqe.connect().qid.get(), self.qid);
                if name != NQN && name != nqn::DISCOVERY_NQN {
                    let field = nvme_spec::fabrics::ConnectField::SubsystemNqn;
                    return self.respond(Cqe::connect_invalid(cid, field), &list);
                }
                self.respond(Cqe::new(cid, Status::SUCCESS).with_dw0(5), &list);
                if self.qid > 0 {
                    // From here on, the configured incorrect behaviour applies.
                    self.cc = self.cc.with_en(true);
                }
            }
            FabricsType::PROPERTY_GET => {
                let value = self.property(Register(sqe.property().offset.get()));
                self.respond(Cqe::new(cid, Status::SUCCESS).with_result(value), &[]);
            }
            FabricsType::PROPERTY_SET => {
                if Register(sqe.property().offset.get()) == Register::CC {
                    self.cc = Cc::from_bits(sqe.property().sized_value() as u32);
                }
                self.succeed(sqe);
            }
            _ => self.fail(sqe, Status::INVALID_OPCODE),
        }
    }

    fn property(&self, register: Register) -> u64 {
        match register {
            Register::CAP => Cap::new().with_mqes_z(127).with_to(1).into_bits(),
            Register::VS => u64::from(Version::V2_1.into_bits()),
            Register::CSTS => {
                let shut = self.cc.shn() != ShutdownNotification::NONE;
                let status = if shut {
                    ShutdownStatus::COMPLETE
                } else {
                    ShutdownStatus::default()
                };
                let csts = Csts::new().with_rdy(self.cc.en()).with_shst(status);
                u64::from(csts.into_bits())
            }
            _ => 0,
        }
    }

    fn admin(&mut self, sqe: &Sqe, inside: &[u8]) {
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => match self.identify(sqe) {
                Some(page) => self.respond_with_data(sqe, inside, &page),
                None => self.fail(sqe, Status::INVALID_FIELD.with_dnr()),
            },
            AdminOpcode::GET_LOG_PAGE => {
                let mut entry = DiscoveryEntry::default();
                entry.trtype = TransportType::RDMA;
                entry.subtype = SubsystemType::NVM;
                entry.subnqn = nqn::to_field(NQN).expect("a name");
                entry.traddr = SpacePadded::new("10.0.0.2");
                let mut log = DiscoveryHeader::new(7, 1).as_bytes().to_vec();
                log.extend_from_slice(entry.as_bytes());
                let request = sqe.get_log_page();
                let start = request.lpo.get() as usize;
                let page = log[start..start + request.length_bytes() as usize].to_vec();
                self.respond_with_data(sqe, inside, &page);
            }
            AdminOpcode::KEEP_ALIVE => self.succeed(sqe),
            _ => self.fail(sqe, Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn identify(&self, sqe: &Sqe) -> Option<Vec<u8>> {
        let mut page = vec![0; IDENTIFY_BYTES];
        match (sqe.identify().select.cns(), sqe.nsid.get()) {
            (Cns::CONTROLLER, _) => {
                let mut identity = IdentifyController::default();
                identity.cntlid = U16::new(5);
                identity.mdts = 8;
                identity.msdbd = self.shared.behaviour.descriptors;
                identity.sgls = identity.sgls.with_offset(true).with_keyed(true);
                identity.set_in_capsule_data_bytes(self.shared.behaviour.in_capsule_bytes);
                page = identity.as_bytes().to_vec();
            }
            (Cns::NAMESPACE, 1) => {
                let mut namespace = IdentifyNamespace::read_from_bytes(&page).ok()?;
                namespace.nsze = U64::new(BLOCKS);
                namespace.lbaf[0] = LbaFormat::with_block_bytes(BLOCK as u32)?;
                page = namespace.as_bytes().to_vec();
            }
            (Cns::ACTIVE_NAMESPACE_LIST, after) => {
                let mut list = NamespaceList::default();
                list.fill((after < 1).then_some(1));
                page = list.as_bytes().to_vec();
            }
            (Cns::NAMESPACE_DESCRIPTORS, 1) => {}
            _ => return None,
        }
        Some(page)
    }

    fn io(&mut self, sqe: &Sqe, inside: &[u8]) {
        let range = sqe.read_write();
        let start = range.slba.get() as usize * BLOCK;
        let end = start + range.blocks() as usize * BLOCK;
        match sqe.io_opcode() {
            IoOpcode::READ | IoOpcode::WRITE if end > BLOCKS as usize * BLOCK => {
                let list = self.descriptors(sqe, inside);
                let status = Status::LBA_OUT_OF_RANGE.with_dnr();
                self.respond(Cqe::new(sqe.cid.get(), status), &list);
            }
            IoOpcode::READ => {
                let data = self.shared.memory.lock().expect("not poisoned")[start..end].to_vec();
                self.respond_with_data(sqe, inside, &data);
            }
            IoOpcode::WRITE => {
                if let Some((data, list)) = self.take_data(sqe, inside, end - start) {
                    self.shared.memory.lock().expect("not poisoned")[start..end]
                        .copy_from_slice(&data);
                    self.respond(Cqe::new(sqe.cid.get(), Status::SUCCESS), &list);
                }
            }
            IoOpcode::FLUSH => self.succeed(sqe),
            _ => self.fail(sqe, Status::INVALID_OPCODE.with_dnr()),
        }
    }
}
