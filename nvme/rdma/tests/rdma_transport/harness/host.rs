//! A raw NVMe/RDMA host that sends what a test says, valid or not.

use std::time::Duration;

use hugemem::{PagePolicy, Region, SharedRegion};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::nqn::to_field;
use nvme_spec::rdma::{ConnectAccept, ConnectReject, ConnectRequest, RejectReason};
use nvme_spec::registers::{Cc, Register};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe, Status};
use rdma::{
    Access, CompletionQueue, CompletionStatus, ConnectParameters, Connection, ConnectionEvent,
    Device, Domain, Event, EventChannel, Payload, Provider, QueuePair, QueuePairCapacity,
    QueuePairOptions, ReceiveRequest, Registration, SendOperation, SendRequest, SgeList,
    SharedMemory, Token, WorkCompletion,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::world::{HOST, NQN, World};

/// Bytes reserved for one command capsule.
const CAPSULE_BYTES: usize = 12 << 10;
/// Bytes reserved for one response.
const RESPONSE_BYTES: usize = 64;
/// Number of responses that the memory has room for.
const RESPONSES: usize = 512;
/// Offset of the command capsules in a host's memory, behind the responses.
const CAPSULES_AT: usize = RESPONSES * RESPONSE_BYTES;

/// Marks the identifiers of receives.
const RECEIVE: u64 = 1 << 63;

/// A host's parameters for a connection.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) private_data: Vec<u8>,
    /// Concurrent RDMA reads that it serves.
    pub(crate) reads: u8,
    /// Number of receives that it posts for responses.
    pub(crate) receives: usize,
    pub(crate) retries: u8,
    /// Command capsules in flight at most.
    pub(crate) capsules: usize,
    /// Bytes of data.
    pub(crate) data_bytes: usize,
}

impl Call {
    pub(crate) fn queue(qid: u16, depth: u16, cntlid: u16) -> Self {
        let request = ConnectRequest::new(qid, depth, depth - 1, cntlid);
        Self::with(request.as_bytes())
    }

    pub(crate) fn with(private_data: &[u8]) -> Self {
        Self {
            private_data: private_data.to_vec(),
            reads: 8,
            receives: 256,
            retries: 7,
            capsules: 64,
            data_bytes: 14 << 20,
        }
    }

    /// The same for a host with little memory.
    pub(crate) fn small(mut self) -> Self {
        (self.capsules, self.data_bytes) = (2, 16 << 10);
        self
    }
}

/// Why an attempt to connect failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The target rejected it, with this reason.
    Rejected(RejectReason),
    /// Another failure.
    Failed,
}

/// One connection of a host.
pub(crate) struct Host<P: Provider> {
    pub(crate) queue_pair: P::QueuePair,
    pub(crate) connection: P::Connection,
    completions: P::CompletionQueue,
    channel: P::EventChannel,
    memory: SharedMemory<P>,
    pub(crate) accept: ConnectAccept,
    capsules: usize,
    next_capsule: usize,
    /// Received responses, with the key that each invalidated.
    pub(crate) responses: Vec<(Cqe, Option<u32>)>,
    /// How the connection ended, if it has.
    pub(crate) disconnected: bool,
    /// Failed work requests, without flushed ones.
    pub(crate) failures: Vec<CompletionStatus>,
}

impl<P: Provider> Host<P> {
    /// Connects to the target, and runs the target's turns meanwhile.
    pub(crate) fn connect(
        stage: &mut impl World<Provider = P>,
        call: &Call,
    ) -> Result<Self, Refused> {
        let data_at = CAPSULES_AT + call.capsules * CAPSULE_BYTES;
        let provider = stage.host_machine();
        let device = provider.devices().expect("one device").remove(0);
        let domain = device.create_domain().expect("a domain");
        let region = Region::map(data_at + call.data_bytes, PagePolicy::Ordinary).expect("memory");
        let region = SharedRegion::new(region).expect("a view");
        let memory = SharedMemory::<P>::register(&domain, region, Access::REMOTE);
        let memory = memory.expect("registered");
        let completions = domain
            .create_completion_queue(2048, Token(0))
            .expect("a queue");
        let mut channel = provider.event_channel().expect("a channel");
        let mut connection = channel.connection(Token(1)).expect("a connection");
        let timeout = Duration::from_secs(1);
        connection
            .resolve_address(None, stage.address(), timeout)
            .expect("begun");
        await_event(stage, &mut channel)?;
        connection.resolve_route(timeout).expect("begun");
        await_event(stage, &mut channel)?;
        let options = QueuePairOptions::<P> {
            send_completions: &completions,
            receive_completions: &completions,
            shared_receives: None,
            capacity: QueuePairCapacity {
                send_requests: 512,
                receive_requests: RESPONSES as u32,
                send_sges: 2,
                receive_sges: 1,
                inline_bytes: 0,
            },
        };
        let mut queue_pair = connection
            .create_queue_pair(&domain, &options)
            .expect("made");
        for index in 0..call.receives {
            queue_pair
                .queue_receive(&receive(index, &memory))
                .expect("room");
        }
        queue_pair.flush().expect("posted");
        let parameters = ConnectParameters {
            private_data: &call.private_data,
            initiator_depth: 0,
            responder_resources: call.reads,
            retries: call.retries,
            rnr_retries: 7,
        };
        connection.connect(&parameters).expect("begun");
        let accept = await_event(stage, &mut channel)?;
        Ok(Self {
            queue_pair,
            connection,
            completions,
            channel,
            memory,
            accept,
            capsules: call.capsules,
            next_capsule: 0,
            responses: Vec::new(),
            disconnected: false,
            failures: Vec::new(),
        })
    }

    /// Connects an admin queue, and enables the controller; returns its identifier.
    pub(crate) fn admin(stage: &mut impl World<Provider = P>) -> (Self, u16) {
        Self::admin_with(stage, 0)
    }

    /// The same with a keep-alive time.
    pub(crate) fn admin_with(
        stage: &mut impl World<Provider = P>,
        keep_alive_ms: u32,
    ) -> (Self, u16) {
        Self::admin_by(stage, &Call::queue(0, 32, 0), keep_alive_ms)
    }

    /// The same with the given connection parameters.
    pub(crate) fn admin_by(
        stage: &mut impl World<Provider = P>,
        call: &Call,
        keep_alive_ms: u32,
    ) -> (Self, u16) {
        let mut host = Self::connect(stage, call).expect("accepted");
        let data = connect_data_for(stage.subsystem(), CNTLID_DYNAMIC);
        host.write(0, data.as_bytes());
        let attributes = ConnectAttributes::new();
        let sqe = Sqe::connect_queue(0, 31, attributes, keep_alive_ms);
        let cqe = host.command(stage, sqe.with_sgl(host.keyed(0, 1024)));
        assert_eq!(cqe.status(), Status::SUCCESS);
        let enable = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        let sqe = Sqe::set_property(
            Register::CC.0,
            PropertySize::BYTES_4,
            u64::from(enable.into_bits()),
        );
        assert_eq!(host.command(stage, sqe).status(), Status::SUCCESS);
        (host, cqe.connect_success().cntlid())
    }

    /// Connects I/O queue `qid`.
    pub(crate) fn io(
        stage: &mut impl World<Provider = P>,
        cntlid: u16,
        qid: u16,
        depth: u16,
    ) -> Self {
        let call = Call::queue(qid, depth, cntlid);
        let mut host = Self::connect(stage, &call).expect("accepted");
        let cqe = host.open_queue(stage, qid, depth, cntlid);
        assert_eq!(cqe.status(), Status::SUCCESS);
        host
    }

    /// Connects an admin queue and an I/O queue.
    pub(crate) fn attach(stage: &mut impl World<Provider = P>, depth: u16) -> (Self, Self) {
        let (admin, cntlid) = Self::admin(stage);
        let io = Self::io(stage, cntlid, 1, depth);
        (admin, io)
    }

    /// Sends Connect with its data in the host's memory, and awaits the response.
    pub(crate) fn open_queue(
        &mut self,
        stage: &mut impl World<Provider = P>,
        qid: u16,
        depth: u16,
        cntlid: u16,
    ) -> Cqe {
        let data = connect_data_for(stage.subsystem(), cntlid);
        self.write(0, data.as_bytes());
        let attributes = ConnectAttributes::new();
        let sqe = Sqe::connect_queue(qid, depth - 1, attributes, 0).with_cid(0x77);
        let sqe = sqe.with_sgl(self.keyed(0, 1024));
        self.send(sqe, &[]);
        self.await_response(stage).0
    }

    pub(crate) fn queue_pair_number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// Offset of the data in its memory.
    fn data_at(&self) -> usize {
        CAPSULES_AT + self.capsules * CAPSULE_BYTES
    }

    /// Writes to this host's data.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.view().write(self.data_at() + offset, bytes);
    }

    /// Reads this host's data.
    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        self.memory.view().read(self.data_at() + offset, &mut into);
        into
    }

    pub(crate) fn key(&self) -> u32 {
        self.memory.registration().rkey()
    }

    /// The address of this host's data.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        (self.memory.registration().address() + self.data_at() + offset) as u64
    }

    /// A descriptor for this host's data.
    pub(crate) fn keyed(&self, offset: usize, bytes: u32) -> SglDescriptor {
        SglDescriptor::keyed(self.address(offset), bytes, self.key(), false).expect("short")
    }

    /// Posts a command capsule with `data` behind the command.
    pub(crate) fn send(&mut self, sqe: Sqe, data: &[u8]) {
        let mut capsule = sqe.as_bytes().to_vec();
        capsule.extend_from_slice(data);
        self.send_bytes(&capsule);
    }

    /// Posts a message of any kind.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= CAPSULE_BYTES);
        let at = CAPSULES_AT + self.next_capsule % self.capsules * CAPSULE_BYTES;
        self.next_capsule += 1;
        self.memory.view().write(at, bytes);
        let memory = SgeList::one(self.memory.piece(at, bytes.len()));
        let request = SendRequest::new(1, SendOperation::Send, Payload::Memory(memory.as_slice()));
        // A queue pair that has failed accepts no more work.
        let _ = self.queue_pair.queue_send(&request);
        let _ = self.queue_pair.flush();
    }

    /// Handles completions and events.
    pub(crate) fn poll(&mut self) {
        let mut batch = [WorkCompletion::default(); 32];
        loop {
            let taken = self.completions.poll(&mut batch).expect("never overflows");
            for completion in &batch[..taken] {
                self.complete(completion);
            }
            if taken == 0 {
                break;
            }
        }
        while let Ok(Some(event)) = self.channel.next_event() {
            if let Event::Connection {
                event: ConnectionEvent::Disconnected,
                ..
            } = event
            {
                self.disconnected = true;
            }
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) {
        if !completion.is_success() {
            if completion.status != CompletionStatus::FLUSHED {
                self.failures.push(completion.status);
            }
            return;
        }
        if completion.wr_id & RECEIVE == 0 {
            return;
        }
        assert_eq!(completion.byte_len, 16, "a response capsule");
        let index = (completion.wr_id & !RECEIVE) as usize;
        let mut cqe = Cqe::new_zeroed();
        let at = index * RESPONSE_BYTES;
        self.memory.view().read(at, cqe.as_mut_bytes());
        self.responses.push((cqe, completion.invalidated()));
        let _ = self.queue_pair.queue_receive(&receive(index, &self.memory));
        let _ = self.queue_pair.flush();
    }

    /// The next response. Runs the target's turns until it is received.
    #[track_caller]
    pub(crate) fn await_response(
        &mut self,
        stage: &mut impl World<Provider = P>,
    ) -> (Cqe, Option<u32>) {
        stage.turn_until("a response", |_| {
            self.poll();
            !self.responses.is_empty()
        });
        self.responses.remove(0)
    }

    /// Sends a command without in-capsule data, and awaits its response.
    #[track_caller]
    pub(crate) fn command(&mut self, stage: &mut impl World<Provider = P>, sqe: Sqe) -> Cqe {
        self.send(sqe, &[]);
        self.await_response(stage).0
    }

    /// Awaits the end of the connection.
    #[track_caller]
    pub(crate) fn await_end(&mut self, stage: &mut impl World<Provider = P>) {
        stage.turn_until("a disconnect", |_| {
            self.poll();
            self.disconnected
        });
    }

    /// Checks that this connection works: writes a block and reads it back.
    #[track_caller]
    pub(crate) fn check_io(&mut self, stage: &mut impl World<Provider = P>, lba: u64, fill: u8) {
        self.write(0, &[fill; 512]);
        let write = Sqe::write(1, lba, 0, false).with_cid(1);
        let cqe = self.command(stage, write.with_sgl(self.keyed(0, 512)));
        assert_eq!(cqe.status(), Status::SUCCESS);
        let read = Sqe::read(1, lba, 0).with_cid(2);
        let cqe = self.command(stage, read.with_sgl(self.keyed(4096, 512)));
        assert_eq!(cqe.status(), Status::SUCCESS);
        assert_eq!(self.read(4096, 512), [fill; 512]);
    }
}

pub(crate) fn connect_data(cntlid: u16) -> ConnectData {
    connect_data_for(NQN, cntlid)
}

fn connect_data_for(subsystem: &str, cntlid: u16) -> ConnectData {
    let subsystem = to_field(subsystem).expect("a name");
    let host = to_field(HOST).expect("a name");
    ConnectData::new([7; 16], cntlid, subsystem, host)
}

fn receive<P: Provider>(index: usize, memory: &SharedMemory<P>) -> ReceiveRequest {
    ReceiveRequest {
        wr_id: RECEIVE | index as u64,
        memory: SgeList::one(memory.piece(index * RESPONSE_BYTES, RESPONSE_BYTES)),
    }
}

/// Runs the target's turns until the host has an event; returns the private data of an accept.
fn await_event<P: Provider>(
    stage: &mut impl World<Provider = P>,
    channel: &mut P::EventChannel,
) -> Result<ConnectAccept, Refused> {
    let mut found = None;
    stage.turn_until("an event", |_| {
        found = channel.next_event().expect("it works");
        found.is_some()
    });
    let Some(Event::Connection { event, .. }) = found else {
        return Err(Refused::Failed);
    };
    match event {
        ConnectionEvent::AddressResolved | ConnectionEvent::RouteResolved => {
            Ok(ConnectAccept::new_zeroed())
        }
        ConnectionEvent::Established { private_data, .. } => {
            let (accept, _) = ConnectAccept::read_from_prefix(private_data.as_slice())
                .expect("an accept's private data");
            Ok(accept)
        }
        ConnectionEvent::Rejected { private_data, .. } => {
            let reject = ConnectReject::read_from_prefix(private_data.as_slice());
            let (reject, _) = reject.map_err(|_| Refused::Failed)?;
            Err(Refused::Rejected(reject.reason()))
        }
        _ => Err(Refused::Failed),
    }
}
