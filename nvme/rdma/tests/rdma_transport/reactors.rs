//! Real reactors on their own threads: connection requests are handed to the least loaded reactor,
//! each reactor serves its connections, a sleeping reactor is woken, and all stop in order.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::harness::FakeHost as Host;
use crate::harness::host::Call;
use crate::harness::{
    HOST_IP, SECOND_IP, TARGET_IP, World, port_at, port_settings, ram, subsystem_at, target_over,
};
use block::{DevicePoller, DeviceSet, MemoryDevice, QueueOptions, ReactorDevices};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_rdma::{
    ConnectionSet, ListenAddress, Listeners, Message, PortMessage, RdmaConfig, RdmaCounters,
    RdmaTransport, SetParts,
};
use nvme_target::{CoreLimits, PortId, Target, TargetCore};
use rdma::{Device as _, Domains, Provider};
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use reactors::mesh::Port;
use reactors::ring::{self, Receiver, Sender};
use reactors::{IdlePolicy, InitError, Nanos, Placement, ReactorConfig, ReactorSetup, Reactors};

/// The parts of one reactor.
type Own = (
    (Port<Message<Fake>>, Listeners<Fake>),
    Receiver<PortMessage>,
);

struct Server {
    fabric: Fabric,
    target_machine: Fake,
    host_machine: Fake,
    address: SocketAddr,
    arena: Arc<Arena>,
    device: Arc<MemoryDevice>,
    target: Arc<Target>,
    counters: Vec<Arc<RdmaCounters>>,
    port_messages: Vec<Sender<PortMessage>>,
    reactors: Option<Reactors>,
}

struct Parts {
    arena: Arc<Arena>,
    device: Arc<MemoryDevice>,
    target: Arc<Target>,
    domains: Arc<Domains<Fake>>,
    counters: Vec<Arc<RdmaCounters>>,
    placement: Placement,
    own: Mutex<Vec<Option<Own>>>,
}

impl Server {
    fn start(reactors: usize, idle: IdlePolicy) -> Self {
        let fabric = Fabric::new(FabricConfig::IMMEDIATE);
        let machine = |name, ip| fabric.machine(&[DeviceConfig::new(name, ip)]);
        let devices = [("target0", TARGET_IP), ("target1", SECOND_IP)];
        let devices = devices.map(|(name, ip)| DeviceConfig::new(name, ip));
        let target_machine = fabric.machine(&devices).expect("descriptors");
        let host_machine = machine("host0", HOST_IP).expect("descriptors");
        let arena = Arena::new(ArenaConfig {
            bytes: 32 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 1 << 20,
        })
        .expect("a small arena");
        let device = Arc::new(ram());
        let domains = Arc::new(Domains::new());
        for rdma_device in target_machine.devices().expect("two devices") {
            let regions = [arena.region(), device.store().region()];
            domains.add(&rdma_device, &regions).expect("a fit device");
        }
        let listeners = (0..reactors).map(|it| Listeners::new(&target_machine, it));
        let mut listeners: Vec<_> = listeners.map(|it| it.expect("a channel")).collect();
        let any = SocketAddr::new(TARGET_IP, 0);
        let address = listeners[0].listen(any, PortId(0)).expect("a free port");
        let target = target_over(&arena, &device, address, reactors);
        let counters: Vec<_> = (0..reactors)
            .map(|_| Arc::new(RdmaCounters::default()))
            .collect();
        let meshes = reactors::mesh::mesh(reactors, 64);
        let (port_messages, receivers): (Vec<_>, Vec<_>) =
            (0..reactors).map(|_| ring::channel(4)).unzip();
        let own = meshes.into_iter().zip(listeners).zip(receivers);
        let parts = Parts {
            arena: Arc::clone(&arena),
            device: Arc::clone(&device),
            target: Arc::clone(&target),
            domains,
            counters: counters.clone(),
            placement: Placement::new(reactors),
            own: Mutex::new(own.map(Some).collect()),
        };
        let config = ReactorConfig {
            idle,
            ..ReactorConfig::default()
        };
        let running = Reactors::start(vec![config; reactors], move |index, setup| {
            set_up(&parts, index, setup)
        })
        .expect("unpinned reactors");
        let handles = running.handles().to_vec();
        target.set_waker(Box::new(move |reactor| handles[reactor].wake()));
        Self {
            fabric,
            target_machine,
            host_machine,
            address,
            arena,
            device,
            target,
            counters,
            port_messages,
            reactors: Some(running),
        }
    }

    /// Sends a control message to a reactor, and waits for the result.
    fn request<T>(
        &mut self,
        reactor: usize,
        request: impl FnOnce(mpsc::Sender<T>) -> PortMessage,
    ) -> T {
        let (sender, reply) = mpsc::channel();
        let sent = self.port_messages[reactor].send(request(sender));
        assert!(sent.is_ok(), "nobody gives many orders at once");
        let running = self.reactors.as_ref().expect("they run");
        running.handles()[reactor].wake();
        let mut received = None;
        self.turn_until("an answer", |_| {
            received = reply.try_recv().ok();
            received.is_some()
        });
        received.expect("it came")
    }

    /// Stops the target. Everything must end in order, and nothing may be left on the fabric.
    fn stop(mut self) {
        self.target.shut_down();
        let reactors = self.reactors.take().expect("stopped once");
        let report = reactors.stop(Nanos::from_secs(20));
        assert!(report.is_clean(), "{report:?}");
        let classes = self.arena.counters().classes;
        assert_eq!(classes.iter().map(|class| class.taken).sum::<u64>(), 0);
        let objects = self.fabric.objects();
        assert_eq!((objects.queue_pairs, objects.listeners), (0, 0));
    }
}

impl World for Server {
    type Provider = Fake;

    const TURNS: usize = 200_000;

    fn host_machine(&self) -> Fake {
        self.host_machine.clone()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn turn(&mut self) {
        self.fabric.progress();
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn set_up(parts: &Parts, index: usize, setup: &mut ReactorSetup<'_>) -> Result<(), InitError> {
    let options = QueueOptions::new(index, 256, parts.arena.pool(4096));
    let set = Rc::new(DeviceSet::new());
    set.attach(0, &*parts.device, options)?;
    let limits = CoreLimits::default();
    let core = TargetCore::new(Arc::clone(&parts.target), index, Rc::clone(&set), limits);
    let core = Rc::new(RefCell::new(core));
    let devices = ReactorDevices::new(set);
    devices.add(core.clone());
    let own = parts.own.lock().expect("no panic holds it")[index].take();
    let ((mut messages, listeners), port_messages) = own.expect("each reactor is set up once");
    messages.attach_all(&setup.wakers());
    let config = RdmaConfig {
        ports: vec![(PortId(0), port_settings())],
        receives: 64,
        connections_max: 16,
        ..RdmaConfig::default()
    };
    let set_parts = SetParts {
        listeners,
        domains: Arc::clone(&parts.domains),
        arena: Arc::clone(&parts.arena),
        commands_max: 4096,
        config,
        counters: Arc::clone(&parts.counters[index]),
    };
    let connections = ConnectionSet::new(core, set_parts);
    let reactors = setup.handles().to_vec();
    let placement = parts.placement.clone();
    let mut transport = RdmaTransport::new(connections, messages, placement, reactors);
    transport.receive_port_messages(port_messages);
    setup.register(Box::new(transport))?;
    setup.register(Box::new(DevicePoller::new(devices)?))?;
    Ok(())
}

#[test]
fn queues_spread_over_the_reactors_and_work_on_each() {
    let mut server = Server::start(2, IdlePolicy::default());
    let (admin, cntlid) = Host::admin(&mut server);
    let mut queues: Vec<Host> = (1..=4)
        .map(|qid| Host::io(&mut server, cntlid, qid, 16))
        .collect();
    for round in 0..8 {
        for (number, queue) in queues.iter_mut().enumerate() {
            queue.check_io(&mut server, number as u64, round);
        }
    }
    for counters in &server.counters {
        assert!(counters.connections.get() >= 2, "both serve some");
        assert!(counters.commands.get() > 0);
    }
    drop((admin, queues));
    server.stop();
}

#[test]
fn a_sleeping_reactor_is_woken_by_capsules_requests_and_disconnects() {
    let mut server = Server::start(2, IdlePolicy::Sleep);
    for round in 0..3 {
        let (admin, cntlid) = Host::admin(&mut server);
        let mut io = Host::io(&mut server, cntlid, 1, 16);
        io.check_io(&mut server, 7, round);
        drop((admin, io));
        server.turn_until("the end of both connections", |server| {
            let open = server.counters.iter().map(|it| it.connections.get());
            open.sum::<u64>() == 0
        });
    }
    server.stop();
}

#[test]
fn a_listener_is_added_and_removed_while_another_serves() {
    let mut server = Server::start(2, IdlePolicy::Sleep);
    let first = server.address;
    let (admin, mut io) = Host::attach(&mut server, 16);
    let port = PortId(1);
    let address = SocketAddr::new(TARGET_IP, 0);
    let second = server.request(0, |reply| PortMessage::Listen {
        listener: ListenAddress::New(address),
        port,
        reply,
    });
    let second = second.expect("a free port");
    for reactor in 0..2 {
        let ports = [PortId(0), port].map(|port| (port, port_settings()));
        server.request(reactor, |reply| PortMessage::Settings {
            ports: ports.to_vec(),
            reply,
        });
    }
    let ports = vec![port_at(PortId(0), first), port_at(port, second)];
    server.target.update_ports(ports).expect("valid ports");
    let both = subsystem_at(&server.device, &[PortId(0), port]);
    server.target.update_subsystem(both).expect("a valid one");
    server.address = second;
    let (mut other_admin, mut other_io) = Host::attach(&mut server, 16);
    other_io.check_io(&mut server, 1, 1);
    io.check_io(&mut server, 2, 2);

    let one = subsystem_at(&server.device, &[PortId(0)]);
    server.target.update_subsystem(one).expect("a valid one");
    for reactor in 0..2 {
        server.request(reactor, |reply| PortMessage::Close { port, reply });
    }
    other_io.await_end(&mut server);
    other_admin.await_end(&mut server);
    let by_second = Host::connect(&mut server, &Call::queue(0, 32, 0));
    assert!(by_second.is_err(), "no listener at this address any more");
    io.check_io(&mut server, 3, 3);
    server.address = first;
    drop((admin, io, other_admin, other_io));
    let (admin, mut again) = Host::attach(&mut server, 16);
    again.check_io(&mut server, 4, 4);
    drop((admin, again));
    server.stop();
}

/// Every reactor releases a device that was removed, even if only the connections of one reactor
/// report it. The other device still works.
#[test]
fn a_removed_device_is_released_by_every_reactor() {
    for is_silent in [false, true] {
        let mut server = Server::start(2, IdlePolicy::Sleep);
        let first = server.address;
        let second = server.request(0, |reply| PortMessage::Listen {
            listener: ListenAddress::New(SocketAddr::new(SECOND_IP, 0)),
            port: PortId(0),
            reply,
        });
        server.address = second.expect("a free port");
        let (other_admin, mut other_io) = Host::attach(&mut server, 16);
        server.address = first;
        let (admin, mut io) = Host::attach(&mut server, 16);
        io.check_io(&mut server, 1, 1);
        let devices = server.target_machine.devices().expect("two devices");
        let pulled = devices.into_iter().find(|it| it.name() == "target0");
        let pulled = pulled.expect("it is there");
        if is_silent {
            server.fabric.remove_silent_device(&pulled);
        } else {
            server.fabric.remove_device(&pulled);
        }
        server.turn_until("the device to be let go of", |server| {
            server.fabric.handles(&pulled) == 1
        });
        for counters in &server.counters {
            assert_eq!(counters.devices_lost.get(), 1);
        }
        server.turn_until("the listener to be missed", |server| {
            server.counters[0].listeners_down.get() == 1
        });
        assert!(Host::connect(&mut server, &Call::queue(0, 32, 0)).is_err());
        other_io.check_io(&mut server, 2, 2);
        drop((admin, io, other_admin, other_io));
        server.stop();
    }
}

/// A device without connections reports nothing, and only the reactor of its listener notices the
/// removal. The reactor that receives the events of devices has it released.
#[test]
fn a_removed_device_without_connections_is_released() {
    for listening in 0..2 {
        let mut server = Server::start(2, IdlePolicy::Sleep);
        let bound = server.request(listening, |reply| PortMessage::Listen {
            listener: ListenAddress::New(SocketAddr::new(SECOND_IP, 0)),
            port: PortId(0),
            reply,
        });
        bound.expect("a free port");
        let devices = server.target_machine.devices().expect("two devices");
        let pulled = devices.into_iter().find(|it| it.name() == "target1");
        let pulled = pulled.expect("it is there");
        server.fabric.remove_silent_device(&pulled);
        server.turn_until("the device to be let go of", |server| {
            server.fabric.handles(&pulled) == 1
        });
        for counters in &server.counters {
            assert_eq!(counters.devices_lost.get(), 1);
        }
        let (admin, mut io) = Host::attach(&mut server, 16);
        io.check_io(&mut server, 1, 1);
        drop((admin, io));
        server.stop();
    }
}

#[test]
fn a_stop_closes_what_is_open() {
    let mut server = Server::start(2, IdlePolicy::default());
    let (mut admin, mut io) = Host::attach(&mut server, 16);
    io.check_io(&mut server, 1, 1);
    let fabric = server.fabric.clone();
    let machine = server.target_machine.clone();
    drop(machine);
    server.target.shut_down();
    let reactors = server.reactors.take().expect("stopped once");
    let report = reactors.stop(Nanos::from_secs(20));
    assert!(report.is_clean(), "{report:?}");
    for _ in 0..100 {
        fabric.progress();
        admin.poll();
        io.poll();
    }
    assert!(admin.disconnected && io.disconnected);
}
