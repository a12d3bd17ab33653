//! A minimal target in a thread for tests of the host: blocking sockets, one namespace of RAM, and
//! a hook by which a test responds to I/O commands itself, possibly incorrectly.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host::pdu::assemble;
use nvme_host::{ConnectOptions, HostIdentity};
use nvme_spec::ascii::SpacePadded;
use nvme_spec::command::{AdminOpcode, Cns, IoOpcode, LogPageId};
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::{ConnectData, FabricsType};
use nvme_spec::features::NumberOfQueues;
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceId,
    NamespaceIdWriter, NamespaceList,
};
use nvme_spec::log::{DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType};
use nvme_spec::nqn;
use nvme_spec::registers::{
    Cap, Cc, Csts, Register, ShutdownNotification, ShutdownStatus, Version,
};
use nvme_spec::sgl::Sgl;
use nvme_spec::tcp::{
    C2hData, C2hEnd, CapsuleCmd, CapsuleResp, CommonHeader, DigestFlags, Framing, H2cData, IcReq,
    IcResp, PduType, R2t,
};
use nvme_spec::{Cqe, Sqe, Status, U16, U64};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const NQN: &str = "nqn.2026-11.org.windlass:fake";
pub(crate) const BLOCK: usize = 512;
pub(crate) const BLOCKS: u64 = 4096;

/// Settings of the target's correct behaviour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetBehavior {
    /// Maximum data bytes per C2HData PDU.
    pub(crate) c2h_bytes: usize,
    /// Maximum data bytes per R2T.
    pub(crate) r2t_bytes: usize,
    /// Whether reads complete by the SUCCESS flag.
    pub(crate) success_flag: bool,
    /// In-capsule data of I/O commands in bytes.
    pub(crate) in_capsule_bytes: u32,
    /// Entries of the discovery log.
    pub(crate) discovery_entries: usize,
    /// Whether to grant as many I/O queues as requested; otherwise one less, to test that the host
    /// uses the response.
    pub(crate) grants_all_queues: bool,
    /// CSTS after CC.EN = 1.
    pub(crate) csts: Csts,
}

impl Default for TargetBehavior {
    fn default() -> Self {
        Self {
            c2h_bytes: usize::MAX,
            r2t_bytes: usize::MAX,
            success_flag: true,
            in_capsule_bytes: 4096,
            discovery_entries: 3,
            grants_all_queues: false,
            csts: Csts::new().with_rdy(true),
        }
    }
}

/// Handles an I/O command in place of the target. Returns false to leave it to the target.
pub(crate) type Hook = dyn Fn(&mut Peer, &Sqe) -> bool + Send + Sync;

#[derive(Clone)]
struct Shared {
    behaviour: TargetBehavior,
    memory: Arc<Mutex<Vec<u8>>>,
    hook: Arc<Hook>,
}

/// A running target. Its threads end with their connections.
pub(crate) struct FakeTarget {
    pub(crate) address: SocketAddr,
    pub(crate) memory: Arc<Mutex<Vec<u8>>>,
}

impl FakeTarget {
    pub(crate) fn start(behaviour: TargetBehavior) -> Self {
        Self::with_hook(behaviour, |_, _| false)
    }

    pub(crate) fn with_hook(
        behaviour: TargetBehavior,
        hook: impl Fn(&mut Peer, &Sqe) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let memory = Arc::new(Mutex::new(vec![0; BLOCKS as usize * BLOCK]));
        let shared = Shared {
            behaviour,
            memory: Arc::clone(&memory),
            hook: Arc::new(hook),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || Peer::new(stream, shared).serve());
            }
        });
        Self { address, memory }
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        let identity = HostIdentity::from_uuid([9; 16]);
        ConnectOptions::new(self.address, NQN, identity)
    }
}

pub(crate) fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 8 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 256 * 1024,
    };
    Arena::new(config).expect("8 MiB of memory")
}

/// Number of leases that are taken.
pub(crate) fn taken(arena: &Arena) -> u64 {
    arena
        .counters()
        .classes
        .iter()
        .map(|class| class.taken)
        .sum()
}

/// The target's end of one connection.
pub(crate) struct Peer {
    stream: TcpStream,
    pub(crate) framing: Framing,
    shared: Shared,
    cc: Cc,
    discovery: bool,
    io: bool,
    event: Option<u16>,
    /// Commands received while waiting for the data of another.
    backlog: VecDeque<(CommonHeader, Vec<u8>)>,
    pub(crate) closed: bool,
}

impl Peer {
    fn new(stream: TcpStream, shared: Shared) -> Self {
        stream.set_nodelay(true).expect("a socket option");
        let framing = Framing::default();
        let cc = Cc::new();
        Self {
            stream,
            framing,
            shared,
            cc,
            discovery: false,
            io: false,
            event: None,
            backlog: VecDeque::new(),
            closed: false,
        }
    }

    fn serve(mut self) {
        while !self.closed {
            let next = self.backlog.pop_front().or_else(|| self.read_pdu());
            let Some((common, bytes)) = next else {
                return;
            };
            match common.pdu_type {
                PduType::IC_REQ => self.initialize(&bytes),
                PduType::CAPSULE_CMD => self.command(&common, &bytes),
                _ => return,
            }
        }
    }

    /// Reads one PDU; `None` at the end of the stream.
    pub(crate) fn read_pdu(&mut self) -> Option<(CommonHeader, Vec<u8>)> {
        let mut bytes = vec![0; 8];
        self.stream.read_exact(&mut bytes).ok()?;
        let common = CommonHeader::read_from_bytes(&bytes).ok()?;
        bytes.resize(common.plen.get() as usize, 0);
        self.stream.read_exact(&mut bytes[8..]).ok()?;
        Some((common, bytes))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.closed |= self.stream.write_all(bytes).is_err();
    }

    pub(crate) fn close(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.closed = true;
    }

    fn initialize(&mut self, bytes: &[u8]) {
        let (request, _) = IcReq::read_from_prefix(bytes).expect("whole");
        let digests = DigestFlags::new()
            .with_header(request.dgst.header())
            .with_data(request.dgst.data());
        self.framing = Framing {
            header_digest: digests.header(),
            data_digest: digests.data(),
            alignment_z: 0,
        };
        self.send(IcResp::new(0, digests, 8192).as_bytes());
    }

    pub(crate) fn respond(&mut self, cqe: Cqe) {
        let pdu = CapsuleResp::new(cqe, self.framing);
        let bytes = assemble(pdu.as_bytes(), pdu.ch, &[]);
        self.send(&bytes);
    }

    pub(crate) fn respond_status(&mut self, sqe: &Sqe, status: Status) {
        self.respond(Cqe::new(sqe.cid.get(), status));
    }

    pub(crate) fn send_data(&mut self, cid: u16, offset: u32, data: &[u8], end: C2hEnd) {
        let pdu = C2hData::new(cid, offset, data.len() as u32, end, self.framing);
        let bytes = assemble(pdu.as_bytes(), pdu.ch, data);
        self.send(&bytes);
    }

    /// Sends all data of a read as configured, and completes the read.
    fn send_all(&mut self, sqe: &Sqe, data: &[u8]) {
        let cid = sqe.cid.get();
        let TargetBehavior {
            c2h_bytes,
            success_flag,
            ..
        } = self.shared.behaviour;
        let mut offset = 0;
        for part in data.chunks(c2h_bytes.min(data.len())) {
            let end = match offset + part.len() == data.len() {
                false => C2hEnd::More,
                true if success_flag => C2hEnd::Success,
                true => C2hEnd::Last,
            };
            self.send_data(cid, offset as u32, part, end);
            offset += part.len();
        }
        if !success_flag {
            self.respond_status(sqe, Status::SUCCESS);
        }
    }

    /// Receives the data of a write: from the capsule, or by R2Ts as configured.
    fn take_data(&mut self, sqe: &Sqe, common: &CommonHeader, bytes: &[u8]) -> Option<Vec<u8>> {
        match sqe.dptr.sgl().decode() {
            Sgl::Offset { offset: 0, length } => {
                let start = usize::from(common.pdo);
                assert!(start.is_multiple_of(4));
                Some(bytes[start..start + length as usize].to_vec())
            }
            Sgl::Transport { length } => {
                let mut data = Vec::new();
                while data.len() < length as usize {
                    let piece = (length as usize - data.len()).min(self.shared.behaviour.r2t_bytes);
                    self.fetch(sqe, &mut data, piece)?;
                }
                Some(data)
            }
            other => panic!("a host that sends {other:?}"),
        }
    }

    fn fetch(&mut self, sqe: &Sqe, data: &mut Vec<u8>, piece: usize) -> Option<()> {
        let (start, cid) = (data.len(), sqe.cid.get());
        let pdu = R2t::new(cid, 0x77, start as u32, piece as u32, self.framing);
        let bytes = assemble(pdu.as_bytes(), pdu.ch, &[]);
        self.send(&bytes);
        while data.len() < start + piece {
            let (common, bytes) = self.read_pdu()?;
            if common.pdu_type == PduType::CAPSULE_CMD {
                self.backlog.push_back((common, bytes));
                continue;
            }
            let (header, _) = H2cData::read_from_prefix(&bytes[..]).expect("a data PDU");
            assert_eq!((header.cccid.get(), header.ttag.get()), (cid, 0x77));
            assert_eq!(header.datao.get() as usize, data.len());
            assert!(header.datal.get() <= 8192);
            let first = usize::from(common.pdo);
            data.extend_from_slice(&bytes[first..first + header.datal.get() as usize]);
            assert_eq!(common.flags.last_pdu(), data.len() == start + piece);
        }
        Some(())
    }

    fn command(&mut self, common: &CommonHeader, bytes: &[u8]) {
        let (capsule, _) = CapsuleCmd::read_from_prefix(bytes).expect("a capsule");
        let sqe = capsule.sqe;
        if sqe.is_fabrics() {
            self.fabrics(&sqe, common, bytes);
        } else if self.io {
            let hook = Arc::clone(&self.shared.hook);
            if !hook(self, &sqe) {
                self.io(&sqe, common, bytes);
            }
        } else {
            self.admin(&sqe);
        }
    }

    fn fabrics(&mut self, sqe: &Sqe, common: &CommonHeader, bytes: &[u8]) {
        let cid = sqe.cid.get();
        match sqe.fctype() {
            FabricsType::CONNECT => {
                let data = &bytes[usize::from(common.pdo)..];
                let (data, _) = ConnectData::read_from_prefix(data).expect("1024 bytes");
                let name = nqn::from_field(&data.subnqn).expect("an NQN");
                self.discovery = name == nqn::DISCOVERY_NQN;
                if name != NQN && !self.discovery {
                    let field = nvme_spec::fabrics::ConnectField::SubsystemNqn;
                    return self.respond(Cqe::connect_invalid(cid, field));
                }
                self.io = sqe.connect().qid.get() > 0;
                self.respond(Cqe::new(cid, Status::SUCCESS).with_dw0(5));
            }
            FabricsType::PROPERTY_GET => {
                let value = self.property(Register(sqe.property().offset.get()));
                self.respond(Cqe::new(cid, Status::SUCCESS).with_result(value));
            }
            FabricsType::PROPERTY_SET => {
                let value = sqe.property().sized_value();
                if Register(sqe.property().offset.get()) == Register::CC {
                    self.cc = Cc::from_bits(value as u32);
                }
                self.respond_status(sqe, Status::SUCCESS);
            }
            _ => self.respond_status(sqe, Status::INVALID_OPCODE),
        }
    }

    fn property(&self, register: Register) -> u64 {
        match register {
            Register::CAP => Cap::new().with_mqes_z(127).with_to(1).into_bits(),
            Register::VS => u64::from(Version::V2_1.into_bits()),
            Register::CC => u64::from(self.cc.into_bits()),
            Register::CSTS if !self.cc.en() => 0,
            Register::CSTS => {
                let shut = self.cc.shn() != ShutdownNotification::NONE;
                let csts = self.shared.behaviour.csts;
                let csts = if shut {
                    csts.with_shst(ShutdownStatus::COMPLETE)
                } else {
                    csts
                };
                u64::from(csts.into_bits())
            }
            _ => 0,
        }
    }

    fn admin(&mut self, sqe: &Sqe) {
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => match self.identify(sqe) {
                Some(page) => self.send_all(sqe, &page),
                None => self.respond_status(sqe, Status::INVALID_FIELD.with_dnr()),
            },
            AdminOpcode::GET_LOG_PAGE if self.discovery => self.discovery_log(sqe),
            AdminOpcode::SET_FEATURES => {
                let asked = NumberOfQueues::from_bits(sqe.set_features().cdw11.get());
                let less = u16::from(!self.shared.behaviour.grants_all_queues);
                let granted_z = asked.nsq_z().saturating_sub(less);
                let granted = asked.with_nsq_z(granted_z).with_ncq_z(granted_z);
                let cqe = Cqe::new(sqe.cid.get(), Status::SUCCESS);
                self.respond(cqe.with_dw0(granted.into_bits()));
            }
            AdminOpcode::KEEP_ALIVE => {
                self.respond_status(sqe, Status::SUCCESS);
                if let Some(cid) = self.event.take() {
                    let event = AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.into_bits();
                    self.respond(Cqe::new(cid, Status::SUCCESS).with_dw0(event));
                }
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => self.event = Some(sqe.cid.get()),
            AdminOpcode::ABORT => {
                if let Some(cid) = self.event.take() {
                    self.respond_status(&sqe.with_cid(cid), Status::ABORT_REQUESTED);
                }
                self.respond(Cqe::new(sqe.cid.get(), Status::SUCCESS).with_dw0(0));
            }
            _ => self.respond_status(sqe, Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn identify(&self, sqe: &Sqe) -> Option<Vec<u8>> {
        let mut page = vec![0; IDENTIFY_BYTES];
        match (sqe.identify().select.cns(), sqe.nsid.get()) {
            (Cns::CONTROLLER, _) => {
                let mut identity = IdentifyController::default();
                identity.cntlid = U16::new(5);
                identity.mdts = 6;
                identity.set_in_capsule_data_bytes(self.shared.behaviour.in_capsule_bytes);
                page = identity.as_bytes().to_vec();
            }
            (Cns::NAMESPACE, 1) => {
                let mut namespace = IdentifyNamespace::read_from_bytes(&page).ok()?;
                namespace.nsze = U64::new(BLOCKS);
                namespace.nguid = [0x11; 16];
                namespace.lbaf[0] = LbaFormat::with_block_bytes(BLOCK as u32)?;
                page = namespace.as_bytes().to_vec();
            }
            (Cns::NAMESPACE_DESCRIPTORS, 1) => {
                let target: &mut [u8; IDENTIFY_BYTES] = page.as_mut_slice().try_into().ok()?;
                NamespaceIdWriter::new(target)
                    .push(&NamespaceId::Uuid([0x22; 16]))
                    .ok()?;
            }
            (Cns::ACTIVE_NAMESPACE_LIST, after) => {
                let mut list = NamespaceList::default();
                list.fill((after < 1).then_some(1));
                page = list.as_bytes().to_vec();
            }
            _ => return None,
        }
        Some(page)
    }

    fn discovery_log(&mut self, sqe: &Sqe) {
        let request = sqe.get_log_page();
        assert_eq!(request.select.lid(), LogPageId::DISCOVERY);
        let count = self.shared.behaviour.discovery_entries;
        let mut log = DiscoveryHeader::new(7, count as u64).as_bytes().to_vec();
        for port in 0..count {
            let mut entry = DiscoveryEntry::default();
            entry.portid = U16::new(port as u16);
            entry.trtype = TransportType::TCP;
            entry.subtype = SubsystemType::NVM;
            entry.subnqn = nqn::to_field(NQN).expect("a name");
            entry.traddr = SpacePadded::new("127.0.0.1");
            log.extend_from_slice(entry.as_bytes());
        }
        let start = request.lpo.get() as usize;
        let page = log[start..start + request.length_bytes() as usize].to_vec();
        self.send_all(sqe, &page);
    }

    fn io(&mut self, sqe: &Sqe, common: &CommonHeader, bytes: &[u8]) {
        let range = sqe.read_write();
        let start = range.slba.get() as usize * BLOCK;
        let end = start + range.blocks() as usize * BLOCK;
        match sqe.io_opcode() {
            IoOpcode::READ if end > BLOCKS as usize * BLOCK => {
                self.respond_status(sqe, Status::LBA_OUT_OF_RANGE.with_dnr());
            }
            IoOpcode::READ => {
                let data = self.shared.memory.lock().expect("not poisoned")[start..end].to_vec();
                self.send_all(sqe, &data);
            }
            IoOpcode::WRITE => {
                let Some(data) = self.take_data(sqe, common, bytes) else {
                    return;
                };
                assert_eq!(data.len(), end - start);
                self.shared.memory.lock().expect("not poisoned")[start..end].copy_from_slice(&data);
                self.respond_status(sqe, Status::SUCCESS);
            }
            IoOpcode::DATASET_MANAGEMENT => {
                let data = self.take_data(sqe, common, bytes);
                let expected = sqe.dataset_management().data_length_bytes();
                assert_eq!(data.map(|data| data.len()), Some(expected));
                self.respond_status(sqe, Status::SUCCESS);
            }
            IoOpcode::FLUSH | IoOpcode::WRITE_ZEROES => self.respond_status(sqe, Status::SUCCESS),
            _ => self.respond_status(sqe, Status::INVALID_OPCODE.with_dnr()),
        }
    }
}

/// Time limit for any step, generous for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
