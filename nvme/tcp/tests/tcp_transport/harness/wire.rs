//! The production connections over streams in memory, on one thread, in time that the test
//! controls.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;

use block::{Device, DeviceSet, QueueOptions, ReactorDevices};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, PropertySize};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, DigestFlags, Framing, IcReq, PduType,
};
use nvme_spec::{Cqe, Sqe};
use nvme_target::{CoreLimits, PortId, TargetCore};
use nvme_tcp::{ByteStream, ConnectionSet, TcpConfig, TcpCounters, Transferred};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::{HOST, names_of, target_over};

/// Capacity of a wire in each direction in bytes, allocated at the start.
pub(crate) const WIRE_BYTES: usize = 4 << 20;

/// Both directions of one connection.
pub(crate) struct Wire {
    pub(crate) to_target: VecDeque<u8>,
    pub(crate) to_host: VecDeque<u8>,
    /// Bytes that one receive or send of the target transfers at most.
    pub(crate) grain: usize,
    /// Bytes that the target can send before the host receives some.
    pub(crate) room: usize,
    /// Number of receives that returned data.
    pub(crate) receives: usize,
    /// The host has closed its end.
    pub(crate) closed: bool,
}

impl Wire {
    /// An empty wire without limits.
    pub(crate) fn new() -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            to_target: VecDeque::with_capacity(WIRE_BYTES),
            to_host: VecDeque::with_capacity(WIRE_BYTES),
            grain: usize::MAX,
            room: usize::MAX,
            receives: 0,
            closed: false,
        }))
    }

    fn left(&self) -> usize {
        self.room.min(WIRE_BYTES).saturating_sub(self.to_host.len())
    }
}

/// The target's end of a wire.
pub(crate) struct WireEnd(Rc<RefCell<Wire>>);

impl WireEnd {
    /// The target's end of `wire`.
    pub(crate) fn of(wire: &Rc<RefCell<Wire>>) -> Self {
        Self(Rc::clone(wire))
    }

    /// Another end of the same wire, for a new process.
    pub(crate) fn duplicate(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl ByteStream for WireEnd {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        let mut wire = self.0.borrow_mut();
        let (mut room, mut moved) = (wire.grain, 0);
        for buffer in buffers {
            let bytes = room.min(buffer.len()).min(wire.to_target.len());
            for (to, from) in buffer.iter_mut().zip(wire.to_target.drain(..bytes)) {
                *to = from;
            }
            (room, moved) = (room - bytes, moved + bytes);
        }
        wire.receives += usize::from(moved > 0);
        match moved {
            0 if wire.closed => Transferred::Closed,
            0 => Transferred::WouldBlock,
            bytes => Transferred::Bytes(bytes),
        }
    }

    fn available(&mut self) -> usize {
        let wire = self.0.borrow();
        wire.to_target.len().min(wire.grain)
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        let mut wire = self.0.borrow_mut();
        let (mut room, mut moved) = (wire.grain.min(wire.left()), 0);
        for buffer in buffers {
            let bytes = room.min(buffer.len());
            wire.to_host.extend(&buffer[..bytes]);
            (room, moved) = (room - bytes, moved + bytes);
        }
        if moved == 0 {
            Transferred::WouldBlock
        } else {
            Transferred::Bytes(moved)
        }
    }

    fn finish_sending(&mut self) {}
}

/// A target core with its connections, driven by the test.
pub(crate) struct Stage<S = WireEnd> {
    pub(crate) set: ConnectionSet<S>,
    pub(crate) core: Rc<RefCell<TargetCore>>,
    devices: ReactorDevices,
    pub(crate) arena: Arc<Arena>,
    pub(crate) counters: Arc<TcpCounters>,
    pub(crate) now: Nanos,
}

impl<S: ByteStream> Stage<S> {
    pub(crate) fn over(device: &Arc<dyn Device>, arena_bytes: usize) -> Self {
        let arena = Arena::new(ArenaConfig {
            bytes: arena_bytes,
            pages: PagePolicy::Ordinary,
            max_transfer: 1 << 20,
        })
        .expect("a small arena");
        let address = "127.0.0.1:4420".parse().expect("an address");
        let target = target_over(&arena, device, address, 1);
        let pool = arena.pool(4096);
        let options = QueueOptions::new(0, 256, pool.clone());
        let set = Rc::new(DeviceSet::new());
        set.attach(0, &**device, options).expect("a queue");
        let core = TargetCore::new(target, 0, Rc::clone(&set), CoreLimits::default());
        let core = Rc::new(RefCell::new(core));
        let devices = ReactorDevices::new(set);
        devices.add(core.clone());
        let counters = Arc::new(TcpCounters::default());
        let config = TcpConfig::default();
        let set = ConnectionSet::new(Rc::clone(&core), pool, config, Arc::clone(&counters));
        Self {
            set,
            core,
            devices,
            arena,
            counters,
            now: Nanos::from_secs(1),
        }
    }

    /// One turn of the reactor, with the connections at these places.
    pub(crate) fn turn_of(&mut self, places: impl Iterator<Item = u16> + Clone) {
        self.set.begin_turn(self.now);
        for place in places.clone() {
            self.set.receive(place, self.now);
        }
        self.set.dispatch(self.now);
        self.devices.poll(self.now);
        self.set.take_responses(self.now);
        self.set.flush(self.now, |_, _| {});
        self.devices.flush();
        for place in places {
            self.set.writable(place);
        }
        self.now = self.now.saturating_add(Nanos::from_micros(10));
    }

    pub(crate) fn leases_out(&self) -> u64 {
        self.arena
            .counters()
            .classes
            .iter()
            .map(|class| class.taken)
            .sum()
    }
}

impl Stage {
    pub(crate) fn new(device: &Arc<dyn Device>, arena_bytes: usize) -> Self {
        Self::over(device, arena_bytes)
    }

    /// Makes a new connection; returns the host's end.
    pub(crate) fn connect(&mut self) -> Host {
        let wire = Wire::new();
        let stream = WireEnd::of(&wire);
        let index = self.set.insert(stream, PortId(0), self.now);
        Host {
            wire,
            index: index.ok().expect("room in the table"),
            framing: Framing::default(),
        }
    }

    /// One turn of the reactor.
    pub(crate) fn turn(&mut self, hosts: &[&Host]) {
        self.turn_of(hosts.iter().map(|host| host.index));
    }

    /// An admin connection and an I/O queue of `depth` entries, without SQ flow control.
    pub(crate) fn attach(&mut self, depth: u16) -> (Host, Host) {
        self.attach_as(HOST, depth)
    }

    /// The same for the host of this NQN.
    pub(crate) fn attach_as(&mut self, host: &str, depth: u16) -> (Host, Host) {
        self.attach_with(host, depth, true)
    }

    /// An admin connection and an I/O queue of `depth` entries.
    pub(crate) fn attach_with(
        &mut self,
        host: &str,
        depth: u16,
        no_flow_control: bool,
    ) -> (Host, Host) {
        let names = names_of(host);
        let admin = self.connect();
        admin.initialise();
        let connect = Sqe::connect_queue(0, 31, ConnectAttributes::new(), 0);
        let data = names.connect_data(CNTLID_DYNAMIC);
        let cqe = self.command(&admin, connect, data.as_bytes());
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let cntlid = cqe.connect_success().cntlid();
        let enable = Sqe::set_property(0x14, PropertySize::BYTES_4, 0x0046_0001);
        assert!(self.command(&admin, enable, &[]).status().is_success());
        let ready = Sqe::get_property(0x1c, PropertySize::BYTES_4);
        for _ in 0..1000 {
            if self.command(&admin, ready, &[]).result() & 1 == 1 {
                break;
            }
        }
        let io = self.connect();
        io.initialise();
        let attributes = ConnectAttributes::new().with_disable_sq_flow_control(no_flow_control);
        let connect = Sqe::connect_queue(1, depth - 1, attributes, 0);
        let cqe = self.command(&io, connect, names.connect_data(cntlid).as_bytes());
        assert!(cqe.status().is_success(), "{}", cqe.status());
        (admin, io)
    }

    /// Sends one command with in-capsule data and runs turns until its response is received.
    pub(crate) fn command(&mut self, host: &Host, sqe: Sqe, data: &[u8]) -> Cqe {
        host.send(sqe.with_cid(0x4242), data);
        for _ in 0..10_000 {
            self.turn(&[host]);
            while let Some(pdu) = host.take_pdu() {
                if let TargetPdu::Response(cqe) = pdu {
                    return cqe;
                }
            }
        }
        panic!("no response");
    }
}

/// The host's end of a connection.
pub(crate) struct Host {
    pub(crate) wire: Rc<RefCell<Wire>>,
    pub(crate) index: u16,
    pub(crate) framing: Framing,
}

/// A PDU of the target, without digests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TargetPdu {
    Initialised,
    Response(Cqe),
    /// Identifier, whether it ends the command, and the first byte of the data.
    Data(u16, bool, u8),
    /// Identifier and tag.
    Request(u16, u16),
    Terminated,
}

impl Host {
    pub(crate) fn initialise(&self) {
        self.send_bytes(IcReq::new(0, DigestFlags::new(), 0).as_bytes());
    }

    /// The same with data digests.
    pub(crate) fn initialise_with_data_digest(&mut self) {
        self.framing.data_digest = true;
        let digests = DigestFlags::new().with_data(true);
        self.send_bytes(IcReq::new(0, digests, 0).as_bytes());
    }

    /// A Connect whose data digest is wrong.
    pub(crate) fn corrupt_connect(&self) -> Vec<u8> {
        let data = names_of(HOST).connect_data(CNTLID_DYNAMIC);
        let data = data.as_bytes();
        let connect = Sqe::connect_queue(0, 31, ConnectAttributes::new(), 0);
        let connect = connect.with_sgl(SglDescriptor::in_capsule(0, data.len() as u32));
        let capsule = CapsuleCmd::new(connect, data.len() as u32, self.framing);
        [capsule.as_bytes(), data, &[0xBA; 4]].concat()
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        self.wire.borrow_mut().to_target.extend(bytes);
    }

    pub(crate) fn send(&self, sqe: Sqe, data: &[u8]) {
        let sgl = match data.len() {
            0 => SglDescriptor::transport(0),
            bytes => SglDescriptor::in_capsule(0, bytes as u32),
        };
        self.send_as(sqe.with_sgl(sgl), data);
    }

    /// The same with an unchanged data pointer.
    pub(crate) fn send_as(&self, sqe: Sqe, data: &[u8]) {
        let capsule = CapsuleCmd::new(sqe, data.len() as u32, self.framing);
        self.send_bytes(capsule.as_bytes());
        self.send_bytes(data);
    }

    /// Takes the next complete PDU that the target has sent.
    pub(crate) fn take_pdu(&self) -> Option<TargetPdu> {
        let mut wire = self.wire.borrow_mut();
        let mut header = [0; 24];
        if wire.to_host.len() < header.len() {
            return None;
        }
        for (to, from) in header.iter_mut().zip(&wire.to_host) {
            *to = *from;
        }
        let (common, _) = CommonHeader::read_from_prefix(&header).expect("eight bytes");
        let bytes = common.plen.get() as usize;
        if wire.to_host.len() < bytes {
            return None;
        }
        let pdu = match common.pdu_type {
            PduType::IC_RESP => TargetPdu::Initialised,
            PduType::CAPSULE_RESP => {
                let capsule = CapsuleResp::read_from_bytes(&header).expect("24 bytes");
                TargetPdu::Response(capsule.cqe)
            }
            PduType::C2H_DATA => {
                let data = C2hData::read_from_bytes(&header).expect("24 bytes");
                let first = wire.to_host[usize::from(common.pdo)];
                TargetPdu::Data(data.cccid.get(), common.flags.success(), first)
            }
            PduType::R2T => {
                let request = nvme_spec::tcp::R2t::read_from_bytes(&header).expect("24 bytes");
                TargetPdu::Request(request.cccid.get(), request.ttag.get())
            }
            PduType::C2H_TERM_REQ => TargetPdu::Terminated,
            other => panic!("a target does not send {other}"),
        };
        wire.to_host.drain(..bytes);
        Some(pdu)
    }
}
