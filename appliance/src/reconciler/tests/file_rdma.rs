//! Listeners for files over RDMA, and volumes that are read through them, come and go on the in-process
//! fabric. A client over TCP is busy meanwhile and must see nothing of it.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use files_client_testing::{Connection, Peer, RdmaClient, Slot, World, create_file, data, name};
use files_rdma::RdmaFilePoller;
use files_spec::operations::{Operation, OperationResult, Outcome};
use nvme_rdma::RdmaTransport;
use rdma::{DeviceEvents, DeviceLimits, Provider as _, Unavailable};
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake};

use super::files::{FILES, MORE, share, texts};
use super::lab::{LIMIT, apply, base, parsed, try_apply};
use super::rdma::Later;
use crate::appliance::{Appliance, Environment};
use crate::event_loop::RealTime;
use crate::files::{FileRdma, FileRdmaSystem, RdmaListeners};
use crate::observe::model::FilesStatus;
use crate::reconciler::ApplyOptions;
use crate::state_directory::StateDirectory;
use crate::transports::{LateTransport, Rdma, System};

const SERVER_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const ADDRESS: SocketAddr = SocketAddr::new(SERVER_IP, 20_049);
const OTHER_ADDRESS: SocketAddr = SocketAddr::new(SERVER_IP, 20_050);

/// Length of a file of the share `more`: whole blocks.
const MORE_BYTES: usize = 17 << 12;

/// What a client over RDMA waits with: the reactors are threads.
struct Threads(Fabric);

impl World for Threads {
    fn turn(&mut self) {
        self.0.progress();
        std::thread::sleep(Duration::from_micros(50));
    }
}

type Client = RdmaClient<Fake, Threads>;

/// The appliance, its fabric, and a client over TCP.
struct Lab {
    appliance: Appliance,
    fabric: Fabric,
    server: Fake,
    clients: Fake,
    /// Whether the libraries are missing.
    is_missing: Arc<AtomicBool>,
    steady: Connection,
    slot: Slot,
    writes: u64,
    /// By how much the clock of the searches is ahead.
    passed: Duration,
}

/// A share of a volume in memory, served over TCP.
fn over_tcp() -> String {
    base("10s") + FILES + &share("data", "")
}

fn listener(name: &str, address: SocketAddr) -> String {
    format!("[[file_listener]]\nname = \"{name}\"\ntransport = \"rdma\"\naddress = \"{address}\"\n")
}

fn over_both() -> String {
    over_tcp() + &listener("fast", ADDRESS)
}

fn device(name: &str) -> DeviceConfig {
    DeviceConfig::new(name, SERVER_IP)
}

impl Lab {
    fn start(text: &str, devices: &[DeviceConfig]) -> Self {
        let fabric = Fabric::new(FabricConfig::IMMEDIATE);
        let server = fabric.machine(devices).expect("descriptors");
        let clients = fabric.machine(&[DeviceConfig::new("client0", CLIENT_IP)]);
        let is_missing = Arc::new(AtomicBool::new(false));
        let (provider, flag) = (server.clone(), Arc::clone(&is_missing));
        let open = move || match flag.load(Ordering::Relaxed) {
            true => Err(Unavailable::LibraryMissing {
                library: "librdmacm.so.1",
                cause: "no such file".to_owned(),
            }),
            false => Ok(provider.clone()),
        };
        let events = Arc::<DeviceEvents>::default();
        let file_rdma: Arc<dyn RdmaListeners> = Arc::new(FileRdma::new(FileRdmaSystem {
            open: Box::new(open),
            into_poller: |poller: RdmaFilePoller<Fake>| Box::new(poller),
            events: Arc::clone(&events),
        }));
        let provider = server.clone();
        let of_hosts = move |reactors| -> Arc<dyn LateTransport> {
            Arc::new(Rdma::new(
                reactors,
                System {
                    open: Box::new(move || Ok(provider.clone())),
                    into_poller: |transport: RdmaTransport<Fake>| Box::new(transport),
                    events,
                },
            ))
        };
        let environment = Environment {
            file_rdma,
            rdma: Box::new(of_hosts),
            ..Environment::default()
        };
        let state = StateDirectory::default();
        let appliance = Appliance::start_with(parsed(text), &state, environment);
        let appliance = appliance.expect("it starts");
        let mut addresses = appliance.files_addresses().into_iter();
        let over_tcp = addresses.find(|it| it.ip().is_loopback());
        let mut steady = Connection::new(over_tcp.expect("it listens over TCP"));
        let slot = Slot::with_file(&mut steady, b"steady", "steady");
        Self {
            appliance,
            fabric,
            server,
            clients: clients.expect("descriptors"),
            is_missing,
            steady,
            slot,
            writes: 0,
            passed: Duration::ZERO,
        }
    }

    /// The client over TCP writes and reads.
    #[track_caller]
    fn go_on(&mut self) {
        let bytes = [self.writes as u8; 5000];
        let write = self.slot.write(self.writes * 100, &bytes);
        self.slot.call(&mut self.steady, &write).assert_ok();
        let read = self.slot.read(self.writes * 100, 5000);
        assert_eq!(data(&self.slot.call(&mut self.steady, &read)), bytes);
        self.writes += 1;
    }

    fn apply(&mut self, text: &str) {
        let answer = apply(&mut self.appliance, text);
        let mut steps = answer.steps.iter();
        assert!(steps.all(|it| it.effect != "restart"), "{answer:#?}");
        self.go_on();
    }

    /// The reason for which a configuration is refused.
    #[track_caller]
    fn refused(&mut self, text: &str) -> String {
        let before = self.appliance.config().clone();
        let answer = try_apply(&mut self.appliance, text, ApplyOptions::default());
        assert!(!answer.applied, "{answer:#?}");
        assert_eq!(*self.appliance.config(), before);
        let reason = answer.failure_reason().expect("a reason");
        assert!(reason.contains("nothing was changed"), "{reason}");
        self.go_on();
        reason
    }

    fn connect(&self, address: SocketAddr) -> Option<Client> {
        let threads = Rc::new(RefCell::new(Threads(self.fabric.clone())));
        RdmaClient::connect(&self.clients, address, threads).ok()
    }

    /// A client that has written a file over RDMA and read it back.
    #[track_caller]
    fn used(&self, address: SocketAddr, owner: &[u8]) -> (Client, Slot) {
        let mut client = self.connect(address).expect("it listens");
        let mut slot = Slot::with_file(&mut client, owner, "over-rdma");
        check(&mut client, &mut slot, owner[0]);
        (client, slot)
    }

    /// Domains, registrations, completion queues, queue pairs and listeners.
    fn occupied(&self) -> [usize; 5] {
        let objects = self.fabric.objects();
        [
            objects.domains,
            objects.registrations,
            objects.completion_queues,
            objects.queue_pairs,
            objects.listeners,
        ]
    }

    fn files(&self) -> FilesStatus {
        self.appliance.status().files.expect("files are served")
    }

    #[track_caller]
    fn poll_until(&mut self, what: &str, mut is_done: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !is_done(self) {
            assert!(began.elapsed() < LIMIT, "not in time: {what}");
            self.fabric.progress();
            self.appliance.poll(Instant::now());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Searches for lost devices, as if the interval had passed.
    fn search(&mut self) {
        self.passed += Duration::from_secs(6);
        let mut later = Later(self.passed, RealTime(|_| {}));
        self.appliance.reconciler().restore(&mut later);
    }

    fn stop(self) {
        drop(self.steady);
        assert!(self.appliance.stop_quietly());
        assert_eq!(self.fabric.objects().queue_pairs, 0);
    }
}

/// Writes more than a message has, and reads it back.
#[track_caller]
fn check(peer: &mut impl Peer, slot: &mut Slot, fill: u8) {
    let bytes = vec![fill; 70_000];
    let sender = *slot;
    slot.call(peer, &sender.write(0, &bytes)).assert_ok();
    let answer = slot.call(peer, &sender.read(0, 70_000));
    assert!(data(&answer) == bytes);
}

/// Each failure names its cause and leaves nothing, and the next attempt succeeds.
#[test]
fn a_first_listener_that_fails_changes_nothing() {
    let limited = |registrations| DeviceConfig {
        limits: DeviceLimits {
            registrations,
            ..DeviceConfig::LIMITS
        },
        ..device("rdma0")
    };
    let elsewhere = DeviceConfig::new("rdma0", IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)));
    let cases = [
        (Some(limited(1)), "memory registrations"),
        (Some(elsewhere), "192.0.2.1:20049"),
        (None, "RDMA"),
    ];
    for (broken, expected) in cases {
        let mut lab = Lab::start(&over_tcp(), broken.as_slice());
        for _ in 0..3 {
            let reason = lab.refused(&over_both());
            for part in ["fast", expected] {
                assert!(reason.contains(part), "{part}: {reason}");
            }
            assert_eq!(lab.occupied(), [0; 5], "{expected}");
            assert_eq!(lab.fabric.objects().channels, 0);
        }
        if broken.is_some() {
            let devices = lab.server.devices().expect("devices");
            lab.fabric.remove_device(&devices[0]);
        }
        let added = lab.fabric.add_device(&lab.server, &device("rdma1"));
        added.expect("descriptors");
        lab.apply(&over_both());
        drop(lab.used(ADDRESS, b"1"));
        lab.stop();
    }
}

#[test]
fn missing_libraries_refuse_the_listener() {
    let mut lab = Lab::start(&over_tcp(), &[device("rdma0")]);
    lab.is_missing.store(true, Ordering::Relaxed);
    let reason = lab.refused(&over_both());
    for part in [
        "file_listener fast",
        "librdmacm.so.1",
        "install libibverbs1",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    lab.is_missing.store(false, Ordering::Relaxed);
    lab.apply(&over_both());
    drop(lab.used(ADDRESS, b"1"));
    lab.stop();
}

#[test]
fn the_first_and_the_last_listener_come_and_go_under_load() {
    let mut lab = Lab::start(&over_tcp(), &[device("rdma0")]);
    assert_eq!(lab.fabric.objects().channels, 0);
    assert_eq!(
        texts(&lab.appliance, &over_both()),
        ["serve files at 192.0.2.1:20049 (rdma) as fast"]
    );
    for owner in [b"0", b"1", b"2", b"3"] {
        lab.apply(&over_both());
        let [domains, registrations, .., listeners] = lab.occupied();
        assert_eq!((domains, registrations, listeners), (1, 2, 1));
        let (mut client, mut slot) = lab.used(ADDRESS, owner);
        // The memory of the client is registered, too.
        assert_eq!(lab.occupied(), [2, 3, 2, 2, 1]);
        assert_eq!(lab.files().service.rdma_connections, 1);
        lab.apply(&over_tcp());
        client.wait_for_end();
        drop(client);
        assert!(lab.connect(ADDRESS).is_none(), "the listener is gone");
        assert_eq!(lab.occupied(), [0; 5]);
        assert_eq!(lab.fabric.objects().channels, 1, "the reactor keeps it");
        assert_eq!(lab.files().service.rdma_connections, 0);
        // What the client has goes on over the other listener.
        let mut other = Connection::new(lab.appliance.files_addresses()[0]);
        check(&mut other, &mut slot, 99);
    }
    lab.stop();
}

/// Those of a start, too; further ones, and others at their addresses.
#[test]
fn listeners_are_added_moved_and_removed() {
    let mut lab = Lab::start(&over_both(), &[device("rdma0")]);
    let (mut first, mut slot) = lab.used(ADDRESS, b"1");
    let with_two = over_both() + &listener("more", OTHER_ADDRESS);
    lab.apply(&with_two);
    let mut second = lab.connect(OTHER_ADDRESS).expect("it listens");
    check(&mut second, &mut slot, 2);
    check(&mut first, &mut slot, 3);
    // Each gets the address of the other.
    let swapped = over_tcp() + &listener("fast", OTHER_ADDRESS) + &listener("more", ADDRESS);
    lab.apply(&swapped);
    first.wait_for_end();
    second.wait_for_end();
    let listeners = lab.files().listeners;
    let address = |name| listeners.iter().find(|it| it.name == name);
    assert_eq!(
        address("fast").expect("it is there").address,
        "192.0.2.1:20050"
    );
    drop((first, second));
    let (mut first, mut second) = (
        lab.connect(ADDRESS).expect("it listens"),
        lab.connect(OTHER_ADDRESS).expect("it listens"),
    );
    check(&mut first, &mut slot, 4);
    check(&mut second, &mut slot, 5);
    // An address that is taken, and one of no device: what is there goes on.
    for address in ["192.0.2.1:20050", "198.51.100.1:20049"] {
        let address = address.parse().expect("an address");
        let taken = swapped.clone() + &listener("third", address);
        match appliance_config::Config::parse("test", &taken) {
            Ok(_) => {
                let reason = lab.refused(&taken);
                assert!(reason.contains("file_listener third"), "{reason}");
            }
            Err(_) => assert_eq!(address, OTHER_ADDRESS),
        }
        check(&mut first, &mut slot, 6);
    }
    // Only one is moved.
    let port = "192.0.2.1:20051".parse().expect("an address");
    lab.apply(&(over_tcp() + &listener("fast", port) + &listener("more", ADDRESS)));
    second.wait_for_end();
    check(&mut first, &mut slot, 7);
    let mut moved = lab.connect(port).expect("it listens");
    check(&mut moved, &mut slot, 8);
    lab.apply(&over_tcp());
    first.wait_for_end();
    moved.wait_for_end();
    drop((first, second, moved));
    assert_eq!(lab.occupied(), [0; 5]);
    lab.stop();
}

/// A later step that fails undoes the listener, whether it is the first one or not.
#[test]
fn a_listener_is_undone_with_its_change() {
    let mut lab = Lab::start(&over_tcp(), &[device("rdma0")]);
    let missing = "[[device]]\nname = \"vol\"\ntype = \"file\"\npath = \"/nowhere/vol\"\n\
                   size = \"1MiB\"\n";
    let other = "[[file_listener]]\nname = \"z\"\naddress = \"192.0.2.77:1\"\n";
    for more in [missing, other] {
        lab.refused(&(over_both() + more));
        assert_eq!(lab.occupied(), [0; 5]);
    }
    lab.apply(&over_both());
    let (mut client, mut slot) = lab.used(ADDRESS, b"1");
    let before = lab.occupied();
    for more in [missing, other] {
        lab.refused(&(over_both() + &listener("more", OTHER_ADDRESS) + more));
        assert_eq!(lab.occupied(), before);
        check(&mut client, &mut slot, 2);
    }
    drop(client);
    lab.stop();
}

/// READs over RDMA are sent from memory of a RAM device that was added while files are served, before
/// its listener or after it, also together. The memory is registered as long as the device is there.
#[test]
fn volumes_that_are_added_are_read_from_their_memory() {
    let more = MORE.split("[[file_listener]]").next().expect("the volume");
    let with_more = over_both() + more;
    let cases = [(over_both(), 2), (over_tcp(), 0), (over_tcp() + more, 0)];
    for (before, registrations) in cases {
        let mut lab = Lab::start(&before, &[device("rdma0")]);
        assert_eq!(lab.fabric.objects().registrations, registrations);
        for owner in [b"0", b"1"] {
            lab.apply(&with_more);
            assert_eq!(lab.fabric.objects().registrations, 3);
            let mut client = lab.connect(ADDRESS).expect("it listens");
            let mut slot = Slot::session(&mut client, owner, "f");
            slot.complete_reclaim(&mut client);
            let borrowed = lab.files().service.read_bytes_borrowed;
            use_more(&mut client, &mut slot, owner[0]);
            let service = lab.files().service;
            assert_eq!(service.read_bytes_borrowed, borrowed + MORE_BYTES as u64);
            drop(client);
            lab.apply(&over_both());
            lab.poll_until("the memory is registered no more", |lab| {
                lab.fabric.objects().registrations == 2
            });
        }
        lab.stop();
    }
}

/// Writes a file of the share `more`, and reads it.
#[track_caller]
fn use_more(peer: &mut impl Peer, slot: &mut Slot, fill: u8) {
    let root = [Operation::PutRootFh(()), Operation::Lookup(name("more"))];
    let created = slot.call(peer, &[root[0], root[1], create_file("f")]);
    let OperationResult::Open(Outcome::Ok(opened)) = created.last() else {
        panic!("{:?}", created.parts());
    };
    slot.stateid = opened.stateid;
    let of_file = |operation| [root[0], root[1], Operation::Lookup(name("f")), operation];
    let bytes = vec![fill; MORE_BYTES];
    let [.., write] = slot.write(0, &bytes);
    slot.call(peer, &of_file(write)).assert_ok();
    let [.., read] = slot.read(0, MORE_BYTES as u32);
    let answer = slot.call(peer, &of_file(read));
    assert!(data(&answer) == bytes);
}

/// A device that is removed and returns, whether hosts use it too or not, and whether the device reports
/// that or only the connection manager does.
#[test]
fn a_device_that_returns_serves_files_again() {
    let to_hosts = base("10s").replace(
        "listeners = [\"steady\"]",
        "listeners = [\"steady\", \"san\"]",
    ) + "[[listener]]\nname = \"san\"\ntransport = \"rdma\"\naddress = \"192.0.2.1:4420\"\n";
    for (has_hosts, is_silent) in [(false, false), (false, true), (true, false), (true, true)] {
        let config = match has_hosts {
            true => over_both().replace(&base("10s"), &to_hosts),
            false => over_both(),
        };
        let mut lab = Lab::start(&config, &[device("rdma0")]);
        let expected = lab.fabric.objects().registrations;
        let (client, _) = lab.used(ADDRESS, b"1");
        let removed = lab.server.devices().expect("devices").remove(0);
        match is_silent {
            true => lab.fabric.remove_silent_device(&removed),
            false => lab.fabric.remove_device(&removed),
        }
        let fabric = lab.fabric.clone();
        lab.poll_until("it is released", |_| fabric.handles(&removed) == 1);
        drop(client);
        assert_eq!(lab.fabric.objects().registrations, 0);
        lab.poll_until("the listener is down", |lab| {
            lab.files().service.rdma_listeners_down == 1
        });
        let status = lab.appliance.status();
        let service = status.files.as_ref().expect("files are served");
        assert_eq!(service.service.rdma_devices_missing, 1);
        assert!(
            status
                .lost_rdma()
                .is_some_and(|it| it.contains("1 RDMA device"))
        );
        lab.go_on();
        lab.search();
        assert!(lab.connect(ADDRESS).is_none(), "it is not back");
        let added = lab.fabric.add_device(&lab.server, &device("rdma0"));
        added.expect("descriptors");
        lab.search();
        assert_eq!(lab.fabric.objects().registrations, expected);
        lab.poll_until("a client connects", |lab| lab.connect(ADDRESS).is_some());
        lab.poll_until("nothing is lost", |lab| {
            lab.appliance.status().lost_rdma().is_none()
        });
        drop(lab.used(ADDRESS, b"2"));
        lab.stop();
    }
}
