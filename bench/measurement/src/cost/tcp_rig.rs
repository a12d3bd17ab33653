//! A target with its TCP transport on any number of reactors, on the loopback interface and on the
//! caller's thread, which runs the turns of each reactor.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Device, DevicePoller, DeviceSet, QueueOptions, ReactorDevices};
use hugemem::allocation_counter::allocations_on_this_thread;
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host_testing::HostSteps;
use nvme_host_testing::Names;
use nvme_host_testing::tcp::{RawClient, RawError};
use nvme_reservations::{HostIdentifier, NamespaceIdentity, PersistenceSupport, Reservations};
use nvme_spec::command::reservation::{
    AcquireControl, AcquireData, RegisterControl, RegisterData, ReservationType,
};
use nvme_target::{
    CoreLimits, DeviceIndex, InitialReservations, PortId, RateLimit, RateScope, Target, TargetCore,
    TransportKind,
};
use nvme_tcp::{
    Acceptor, AcceptorPort, ConnectionSet, Handoff, TcpConfig, TcpCounters, TcpSocket, TcpTransport,
};
use reactors::mesh::{self, Port};
use reactors::{Nanos, Placement, Poller};
use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionread;

use crate::ceiling::CONGESTION_CONTROL;
use crate::cost::measure::CostError;
use crate::cost::rig::{Extent, HOST_NQN, export_nqn, setup, target};
use crate::cost::tcp_host::{Batch, Host, wait};
use bench::random::Random;

/// Entries of a busy I/O queue: one more than requests in flight.
pub(super) const ENTRIES: u16 = 129;

/// Entries of an idle I/O queue, zero-based.
const IDLE_ENTRIES_Z: u16 = 1;

/// Maximum number of entries of an idle host's two queues.
const IDLE_HOST_ENTRIES: usize = 160;

/// Virtual time of one turn: a socket counts as recently active for several turns.
const TURN: Nanos = Nanos::from_micros(50);

/// Time-out of operations on the loopback interface.
const LIMIT: Duration = Duration::from_secs(20);

/// Maximum number of turns of one batch.
const TURNS_MAX: u32 = 100_000;

/// Limits that delay nothing.
const LIMIT_IOPS: u64 = 100_000_000;
const LIMIT_BANDWIDTH: u64 = 1 << 36;

/// One reactor that the caller runs.
struct ReactorEnd {
    /// Boxed, as in a reactor: code inlined into the loop would count as the loop's.
    transport: Box<dyn Poller>,
    devices: Box<dyn Poller>,
    counters: Arc<TcpCounters>,
    now: Nanos,
}

/// The target's end of the loop.
pub(super) struct Rig {
    reactors: Vec<ReactorEnd>,
    /// Passes accepted sockets to the transports.
    handoff_port: Port<Handoff>,
    listener: TcpListener,
    target: Arc<Target>,
    /// Closes connections.
    _acceptor: Acceptor,
    /// Allocations in all turns.
    pub(super) allocations: u64,
    /// Number of turns of all reactors.
    pub(super) turns: u64,
    /// Time of all turns.
    pub(super) busy: Duration,
}

impl Rig {
    /// A target with these numbers of objects and the devices that `devices` creates with the arena
    /// of their data.
    pub(super) fn new(
        extent: &Extent,
        devices: impl FnOnce(&Arc<Arena>) -> Result<Vec<Arc<dyn Device>>, CostError>,
    ) -> Result<Self, CostError> {
        let arena = Arena::new(ArenaConfig {
            bytes: 64 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 1 << 20,
        });
        let arena = arena.map_err(|error| setup("memory", &error))?;
        let devices = devices(&arena)?;
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .map_err(|error| setup("the listener", &error))?;
        let _ = rustix::net::sockopt::set_tcp_congestion(&listener, CONGESTION_CONTROL);
        let address = listener.local_addr();
        let address = address.map_err(|error| setup("the listener", &error))?;
        let target = target(
            &arena,
            extent,
            devices.clone(),
            TransportKind::Tcp,
            address,
            2 * ENTRIES,
        )?;
        // The last port belongs to no reactor, but passes on the accepted sockets.
        let mut ports = mesh::mesh(extent.reactors + 1, 4);
        let handoff_port = ports.pop();
        let handoff_port =
            handoff_port.ok_or_else(|| CostError::Setup("a port of a mesh".to_owned()))?;
        let acceptor = Acceptor::start(extent.reactors, || {});
        let (acceptor, acceptor_ports) = acceptor.map_err(|error| setup("the acceptor", &error))?;
        let ports = ports.into_iter().zip(acceptor_ports);
        let reactors = (0..)
            .zip(ports)
            .map(|(number, ports)| reactor(number, ports, extent, &target, &devices, &arena));
        Ok(Self {
            reactors: reactors.collect::<Result<_, _>>()?,
            handoff_port,
            listener,
            target,
            _acceptor: acceptor,
            allocations: 0,
            turns: 0,
            busy: Duration::ZERO,
        })
    }

    /// The counters of a reactor.
    pub(super) fn counters(&self, reactor: usize) -> &TcpCounters {
        &self.reactors[reactor].counters
    }

    /// Another host holds a Write Exclusive reservation of a device from now on.
    pub(super) fn reserve_for_another_host(&self, device: DeviceIndex) -> Result<(), CostError> {
        let refused = |status| setup("a reservation", &status);
        let host = HostIdentifier([0xee; 16]);
        let mut state = Reservations::new(PersistenceSupport::Supported);
        let control = AcquireControl::new().with_rtype(ReservationType::WRITE_EXCLUSIVE);
        let registered = state.register(host, RegisterControl::new(), &RegisterData::default());
        let _ = registered.map_err(refused)?;
        let acquired = state.acquire(host, control, &AcquireData::default());
        let _ = acquired.map_err(refused)?;
        let identity = NamespaceIdentity([0xee; 16]);
        let initial = InitialReservations::Persistent { identity, state };
        self.target.set_reservations(device, initial);
        Ok(())
    }

    /// Sets limits of a device that delay nothing, or removes them.
    pub(super) fn limit(&self, device: DeviceIndex, is_limited: bool) -> Result<(), CostError> {
        let limit = RateLimit {
            scope: RateScope::Device(device),
            reads: true,
            writes: true,
            iops: Some(LIMIT_IOPS),
            bandwidth: Some(LIMIT_BANDWIDTH),
            burst: Nanos::from_secs(1),
        };
        let limits = is_limited.then_some(limit).into_iter().collect();
        let limited = self.target.set_rate_limits(limits);
        limited.map_err(|error| setup("a rate limit", &error))
    }

    /// Runs one turn of a reactor.
    pub(super) fn turn(&mut self, reactor: usize) {
        let end = &mut self.reactors[reactor];
        end.now += TURN;
        let begin = Instant::now();
        let before = allocations_on_this_thread();
        end.transport.poll(end.now);
        end.devices.poll(end.now);
        end.transport.flush(end.now);
        end.devices.flush(end.now);
        self.allocations += allocations_on_this_thread() - before;
        self.busy += begin.elapsed();
        self.turns += 1;
    }

    /// Runs one turn of every reactor.
    pub(super) fn turn_all(&mut self) {
        for reactor in 0..self.reactors.len() {
            self.turn(reactor);
        }
    }

    /// The address of its listener.
    pub(super) fn address(&self) -> Result<SocketAddr, CostError> {
        let address = self.listener.local_addr();
        address.map_err(|error| setup("the listener", &error))
    }

    /// Accepts a connection and passes it to a reactor. Returns the target's end of it too.
    pub(super) fn accept(&mut self, reactor: usize) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept()?;
        let end = stream.try_clone()?;
        let handoff = Handoff {
            stream: TcpSocket::new(stream)?.into(),
            framing: None,
            port: PortId(0),
            replaces: false,
        };
        let handed = self.handoff_port.send(reactor, handoff);
        handed.map_err(|_| io::Error::other("the transport takes no connection"))?;
        Ok(end)
    }

    /// Attaches a host to an export, with its admin queue on the first reactor and its I/O queue on
    /// `reactor`. It waits for its responses on a separate thread.
    fn open(
        &mut self,
        export: usize,
        reactor: usize,
        entries_z: u16,
    ) -> Result<(RawClient, RawClient, TcpStream), CostError> {
        let failed = |error: &dyn std::fmt::Display| setup("the host", error);
        let address = self.address()?;
        // Both connect before either is accepted.
        let admin = RawClient::connect(address, LIMIT).map_err(|error| failed(&error))?;
        let io = RawClient::connect(address, LIMIT).map_err(|error| failed(&error))?;
        let accepted = self.accept(0).and_then(|_| self.accept(reactor));
        let target_end = accepted.map_err(|error| setup("the connection", &error))?;
        let opening = std::thread::spawn(move || open(admin, io, export, entries_z));
        while !opening.is_finished() {
            // Waiting keeps the number of turns low, which varies between runs.
            self.await_any()?;
            self.turn_all();
        }
        let opened = opening.join();
        let opened = opened.map_err(|_| CostError::Setup("the host panicked".to_owned()))?;
        let (admin, io) = opened.map_err(|error| failed(&error))?;
        Ok((admin, io, target_end))
    }

    /// Attaches a busy host.
    pub(super) fn attach(&mut self, export: usize, reactor: usize) -> Result<Host, CostError> {
        let (admin, io, target_end) = self.open(export, reactor, ENTRIES - 1)?;
        Host::new(admin, io, target_end, reactor)
    }

    /// Attaches an idle host to the first reactor.
    pub(super) fn attach_idle(&mut self) -> Result<(RawClient, RawClient), CostError> {
        let (admin, io, _) = self.open(0, 0, IDLE_ENTRIES_Z)?;
        Ok((admin, io))
    }

    /// Sets a host's count of sent bytes to its reactor's count of received bytes, when no other
    /// host sends to that reactor any more.
    pub(super) fn sync_sent_count(&self, host: &mut Host) {
        host.sent_in_all = self.counters(host.reactor).bytes_received.get();
    }

    /// Waits for work of a reactor for a short time.
    pub(super) fn await_any(&self) -> Result<(), CostError> {
        let sources = self
            .reactors
            .iter()
            .filter_map(|end| end.transport.wake_source());
        let sources: Vec<_> = sources.collect();
        let mut watched: Vec<_> = sources
            .iter()
            .map(|source| PollFd::new(source, PollFlags::IN))
            .collect();
        wait(&mut watched)
    }

    /// Waits for work of a reactor: the `expected` bytes in flight to `target_end` have arrived, or
    /// its file device has completions.
    pub(super) fn await_work(
        &self,
        reactor: usize,
        target_end: &TcpStream,
        expected: u64,
    ) -> Result<(), CostError> {
        if let Some(source) = self.reactors[reactor].transport.wake_source() {
            wait(&mut [PollFd::new(&source, PollFlags::IN)])?;
        }
        for _ in 0..1000 {
            let waiting = ioctl_fionread(target_end);
            let waiting = waiting.map_err(|error| setup("the target's socket", &error))?;
            if waiting >= expected {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Runs one batch from its first request to its last response.
    pub(super) fn run_batch(
        &mut self,
        host: &mut Host,
        batch: &Batch,
        random: &mut Random,
    ) -> Result<(), CostError> {
        host.submit(batch, random);
        for _ in 0..TURNS_MAX {
            host.send()?;
            // Data that the socket has not accepted yet cannot arrive.
            let received = self.counters(host.reactor).bytes_received.get();
            let expected = if host.has_unsent() {
                0
            } else {
                host.sent_in_all - received
            };
            self.await_work(host.reactor, &host.target_end, expected)?;
            let sends = self.counters(host.reactor).sends.get();
            self.turn(host.reactor);
            host.collect(self.counters(host.reactor).sends.get() > sends)?;
            if host.is_completed() {
                return Ok(());
            }
        }
        Err(CostError::Setup(format!("{batch:?} is not completed")))
    }
}

/// One reactor's part of the target.
fn reactor(
    number: usize,
    (port, acceptor): (Port<Handoff>, AcceptorPort),
    extent: &Extent,
    target: &Arc<Target>,
    devices: &[Arc<dyn Device>],
    arena: &Arc<Arena>,
) -> Result<ReactorEnd, CostError> {
    let pool = arena.pool(4096);
    let attached = Rc::new(DeviceSet::new());
    for (place, device) in devices.iter().enumerate() {
        let options = QueueOptions::new(number, 2 * usize::from(ENTRIES), pool.clone());
        let opened = attached.attach(place, &**device, options);
        opened.map_err(|error| setup("a device's queue", &error))?;
    }
    let limits = CoreLimits::default();
    let limits = CoreLimits {
        queues_max: limits.queues_max + 2 * extent.idle_hosts,
        executions_max: limits.executions_max + 2 * IDLE_HOST_ENTRIES * extent.idle_hosts,
    };
    let core = TargetCore::new(Arc::clone(target), number, Rc::clone(&attached), limits);
    let core = Rc::new(RefCell::new(core));
    let devices = ReactorDevices::new(attached);
    devices.add(core.clone());
    let devices = DevicePoller::new(devices).map_err(|error| setup("the devices", &error))?;
    let counters = Arc::new(TcpCounters::default());
    let config = TcpConfig::default();
    let set = ConnectionSet::new(
        core,
        pool,
        TcpConfig {
            connections_max: config.connections_max + 2 * extent.idle_hosts,
            ..config
        },
        Arc::clone(&counters),
    );
    let placement = Placement::new(extent.reactors);
    let transport = TcpTransport::new(set, port, acceptor, placement, Vec::new())
        .map_err(|error| setup("the transport", &error))?;
    Ok(ReactorEnd {
        transport: Box::new(transport),
        devices: Box::new(devices),
        counters,
        now: Nanos::from_secs(1),
    })
}

fn open(
    mut admin: RawClient,
    mut io: RawClient,
    export: usize,
    entries_z: u16,
) -> Result<(RawClient, RawClient), RawError> {
    let names = Names {
        host: HOST_NQN.to_owned(),
        host_id: [5; 16],
        subsystem: export_nqn(export),
    };
    let cntlid = admin.open_admin(&names)?;
    io.initialize(false, false)?;
    let connected = io.connect_queue(&names, cntlid, 1, entries_z)?.status();
    if connected.is_success() {
        Ok((admin, io))
    } else {
        Err(RawError::Refused(connected))
    }
}
