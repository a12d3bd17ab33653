//! The first and the last RDMA listener, and RDMA devices that are lost and return, on the
//! in-process fabric. A host over TCP is busy meanwhile and must see nothing of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvme_host_testing::Names;
use nvme_host_testing::rdma::{RawRdmaClient, RawRdmaError};
use nvme_rdma::RdmaTransport;
use nvme_spec::{Sqe, Status};
use rdma::{DeviceLimits, Provider as _, Unavailable};
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig, Fake, FakeDevice};

use super::lab::{Busy, HOST, LIMIT, STEADY, apply, base, parsed, try_apply};
use crate::appliance::{Appliance, Environment};
use crate::event_loop::{EventLoop, RealTime};
use crate::reconciler::ApplyOptions;
use crate::state_directory::StateDirectory;
use crate::transports::{LateTransport, Rdma, System};

const TARGET_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const HOST_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The RDMA listener's address.
const ADDRESS: SocketAddr = SocketAddr::new(TARGET_IP, 4420);
const BLOCK_BYTES: usize = 512;

/// The appliance, its fabric, and the hosts on it.
struct Lab {
    appliance: Appliance,
    fabric: Fabric,
    target: Fake,
    host: Fake,
    /// Whether the libraries are missing.
    is_missing: Arc<AtomicBool>,
    /// By how much the clock of the searches is ahead.
    passed: Duration,
}

/// An event loop whose clock is ahead.
pub(super) struct Later<F>(pub(super) Duration, pub(super) RealTime<F>);

impl<F: FnMut(Instant)> EventLoop for Later<F> {
    fn now(&self) -> Instant {
        self.1.now() + self.0
    }

    fn run_once(&mut self) {
        self.1.run_once();
    }

    fn pause(&self) -> Duration {
        self.1.pause()
    }

    fn run(&mut self, work: &mut (dyn FnMut() + Send)) -> bool {
        self.1.run(work)
    }
}

/// The configuration with an RDMA listener for the same export.
fn with_rdma() -> String {
    base("10s").replace(
        "listeners = [\"steady\"]",
        "listeners = [\"steady\", \"san\"]",
    ) + &format!("[[listener]]\nname = \"san\"\ntransport = \"rdma\"\naddress = \"{ADDRESS}\"\n")
}

fn device(name: &str) -> DeviceConfig {
    DeviceConfig::new(name, TARGET_IP)
}

/// The machine with these RDMA devices, whose libraries may be missing.
fn environment(target: &Fake, is_missing: &Arc<AtomicBool>) -> Environment<'static> {
    let (provider, flag) = (target.clone(), Arc::clone(is_missing));
    let open = move || match flag.load(Ordering::Relaxed) {
        true => Err(Unavailable::LibraryMissing {
            library: "librdmacm.so.1",
            cause: "no such file".to_owned(),
        }),
        false => Ok(provider.clone()),
    };
    let rdma = move |reactors| -> Arc<dyn LateTransport> {
        let system = System {
            open: Box::new(open),
            into_poller: |transport: RdmaTransport<Fake>| Box::new(transport),
            events: Arc::default(),
        };
        Arc::new(Rdma::new(reactors, system))
    };
    Environment {
        rdma: Box::new(rdma),
        ..Environment::default()
    }
}

impl Lab {
    /// An appliance whose machine has these RDMA devices.
    fn start(text: &str, devices: &[DeviceConfig]) -> Self {
        let fabric = Fabric::new(FabricConfig::IMMEDIATE);
        let target = fabric.machine(devices).expect("descriptors");
        let host = fabric.machine(&[DeviceConfig::new("host0", HOST_IP)]);
        let is_missing = Arc::new(AtomicBool::new(false));
        let environment = environment(&target, &is_missing);
        let appliance =
            Appliance::start_with(parsed(text), &StateDirectory::default(), environment);
        Self {
            appliance: appliance.expect("it starts"),
            fabric,
            target,
            host: host.expect("descriptors"),
            is_missing,
            passed: Duration::ZERO,
        }
    }

    fn apply(&mut self, text: &str) {
        let answer = apply(&mut self.appliance, text);
        let mut steps = answer.steps.iter();
        assert!(steps.all(|it| it.effect != "restart"), "{answer:#?}");
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
        reason
    }

    /// Hands over to another appliance on the same machine.
    fn hand_over(self) -> Self {
        let environment = environment(&self.target, &self.is_missing);
        let state = StateDirectory::default();
        let (appliance, failure) = self.appliance.hand_over_within(&state, environment);
        assert!(failure.is_none(), "{failure:?}");
        Self { appliance, ..self }
    }

    fn connect(&self) -> Result<(Client, Client), String> {
        let names = Names {
            host: HOST.to_owned(),
            host_id: [7; 16],
            subsystem: STEADY.to_owned(),
        };
        let failed = |error: RawRdmaError| error.to_string();
        let admin = RawRdmaClient::open_admin(&self.host, ADDRESS, &names);
        let (admin, cntlid) = admin.map_err(failed)?;
        let io = RawRdmaClient::open_io(&self.host, ADDRESS, &names, cntlid, 1);
        let io = io.map_err(failed)?;
        Ok((admin, io))
    }

    /// A host that writes a block over RDMA and reads it back.
    #[track_caller]
    fn check_io(&self, fill: u8) -> (Client, Client) {
        let (admin, mut io) = self.connect().expect("it listens");
        io.write_memory(0, &[fill; BLOCK_BYTES]);
        let write = io.command(Sqe::write(1, 2000, 0, false), BLOCK_BYTES);
        assert_eq!(write.expect("a response").status(), Status::SUCCESS);
        io.write_memory(0, &[0; BLOCK_BYTES]);
        let read = io.command(Sqe::read(1, 2000, 0), BLOCK_BYTES);
        assert_eq!(read.expect("a response").status(), Status::SUCCESS);
        assert_eq!(io.read_memory(0, BLOCK_BYTES), [fill; BLOCK_BYTES]);
        (admin, io)
    }

    /// Runs the control thread's loop until `done`.
    #[track_caller]
    fn poll_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < LIMIT, "not in time: {what}");
            self.fabric.progress();
            self.appliance.poll(Instant::now());
            let reconciler = self.appliance.reconciler();
            reconciler.restore(&mut RealTime(|_| {}));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The target's only device.
    fn device(&self) -> FakeDevice {
        self.target.devices().expect("it has one").remove(0)
    }

    /// Searches for lost devices, as if the interval had passed.
    fn search(&mut self) {
        self.passed += Duration::from_secs(6);
        self.appliance
            .reconciler()
            .restore(&mut Later(self.passed, RealTime(|_| {})));
    }

    /// What the fabric has for the target and its hosts.
    fn occupied(&self) -> [usize; 5] {
        let objects = self.fabric.objects();
        [
            objects.channels,
            objects.domains,
            objects.registrations,
            objects.shared_receive_queues,
            objects.listeners,
        ]
    }

    fn remove_device(&mut self, is_silent: bool) {
        let pulled = self.device();
        match is_silent {
            true => self.fabric.remove_silent_device(&pulled),
            false => self.fabric.remove_device(&pulled),
        }
        let fabric = self.fabric.clone();
        self.poll_until("the device is released", |_| fabric.handles(&pulled) == 1);
    }

    fn add_device(&self, name: &str) {
        let added = self.fabric.add_device(&self.target, &device(name));
        added.expect("descriptors");
    }

    fn rdma_counters(&self) -> BTreeMap<String, u64> {
        let mut transports = self.appliance.observe().status().transports;
        transports.remove("rdma").expect("it has been used")
    }

    fn registrations(&self) -> usize {
        self.fabric.objects().registrations
    }

    fn stop(self) {
        assert!(self.appliance.stop_quietly());
        let objects = self.fabric.objects();
        assert_eq!((objects.queue_pairs, objects.listeners), (0, 0));
    }
}

type Client = RawRdmaClient<Fake>;

#[test]
fn first_and_last_rdma_listener_under_io() {
    let mut lab = Lab::start(&base("10s"), &[device("rdma0")]);
    let busy = Busy::begin(&lab.appliance);
    let before = lab.fabric.objects();
    assert_eq!((before.channels, before.registrations), (0, 0));
    let mut occupied = None;
    for round in 0..4 {
        lab.apply(&with_rdma());
        assert_eq!(lab.registrations(), 2, "the arena and the device in memory");
        drop(lab.check_io(round));
        busy.go_on();
        lab.apply(&base("10s"));
        assert!(lab.connect().is_err(), "the listener is gone");
        let now = lab.fabric.objects();
        let left = (now.domains, now.registrations, now.shared_receive_queues);
        assert_eq!(left, (0, 0, 0), "round {round}");
        let channels = now.channels;
        assert_eq!(
            *occupied.get_or_insert(channels),
            channels,
            "the reactors keep theirs"
        );
        busy.go_on();
    }
    busy.end();
    lab.stop();
}

/// Each failure names its cause and leaves nothing, and the next attempt succeeds.
#[test]
fn first_rdma_listener_that_fails_changes_nothing() {
    let limited = |limits: DeviceLimits| DeviceConfig {
        limits,
        ..device("rdma0")
    };
    let no_registrations = limited(DeviceLimits {
        registrations: 1,
        ..DeviceConfig::LIMITS
    });
    let unfit = limited(DeviceLimits {
        shared_receive_queues: 0,
        ..DeviceConfig::LIMITS
    });
    let elsewhere = DeviceConfig::new("rdma0", IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)));
    let cases = [
        (Some(no_registrations), "memory registrations"),
        (Some(unfit), "rdma0"),
        (Some(elsewhere), "192.0.2.1:4420"),
        (None, "RDMA"),
    ];
    for (broken, expected) in cases {
        let mut lab = Lab::start(&base("10s"), broken.as_slice());
        let busy = Busy::begin(&lab.appliance);
        for _ in 0..3 {
            let reason = lab.refused(&with_rdma());
            assert!(reason.contains(expected), "{expected}: {reason}");
            let objects = lab.fabric.objects();
            let left = (objects.registrations, objects.listeners, objects.channels);
            assert_eq!(left, (0, 0, 0), "{expected}");
            busy.go_on();
        }
        if broken.is_some() {
            lab.fabric.remove_device(&lab.device());
        }
        lab.add_device("rdma1");
        lab.apply(&with_rdma());
        drop(lab.check_io(9));
        busy.go_on();
        busy.end();
        lab.stop();
    }
}

#[test]
fn missing_libraries_refuse_the_listener() {
    let mut lab = Lab::start(&base("10s"), &[device("rdma0")]);
    lab.is_missing.store(true, Ordering::Relaxed);
    let reason = lab.refused(&with_rdma());
    for part in ["listener san", "librdmacm.so.1", "install libibverbs1"] {
        assert!(reason.contains(part), "{reason}");
    }
    lab.is_missing.store(false, Ordering::Relaxed);
    lab.apply(&with_rdma());
    drop(lab.check_io(1));
    lab.stop();
}

/// A later step that fails undoes the first RDMA listener.
#[test]
fn first_rdma_listener_is_undone_with_its_change() {
    let mut lab = Lab::start(&base("10s"), &[device("rdma0")]);
    let busy = Busy::begin(&lab.appliance);
    let missing = "[[device]]\nname = \"vol\"\ntype = \"file\"\npath = \"/nowhere/vol\"\n\
                   size = \"1MiB\"\n";
    let other = "[[listener]]\nname = \"other\"\ntransport = \"tcp\"\naddress = \"192.0.2.77:1\"\n";
    for more in [missing, other] {
        lab.refused(&(with_rdma() + more));
        let objects = lab.fabric.objects();
        assert_eq!((objects.registrations, objects.listeners), (0, 0));
        busy.go_on();
    }
    lab.apply(&with_rdma());
    drop(lab.check_io(3));
    busy.end();
    lab.stop();
}

/// Whether the listener exists at start or is added later, and whether the device reports its
/// removal or only the connection manager does.
#[test]
fn device_that_returns_is_served_again() {
    for (is_late, is_silent) in [(false, false), (true, true)] {
        let start = if is_late { base("10s") } else { with_rdma() };
        let mut lab = Lab::start(&start, &[device("rdma0")]);
        lab.apply(&with_rdma());
        let busy = Busy::begin(&lab.appliance);
        assert_eq!(lab.appliance.observe().lost_rdma(), None);
        let mut occupied = None;
        for round in 0..2 {
            let hosts = lab.check_io(round);
            let now = lab.occupied();
            assert_eq!(*occupied.get_or_insert(now), now, "round {round}");
            lab.remove_device(is_silent);
            drop(hosts);
            assert_eq!(lab.rdma_counters()["devices_missing"], 1);
            let lost = lab.appliance.observe().lost_rdma();
            assert!(lost.is_some_and(|it| it.contains("1 RDMA device")));
            assert_eq!(lab.registrations(), 0);
            assert!(lab.connect().is_err());
            busy.go_on();
            lab.add_device("rdma0");
            lab.poll_until("a host connects", |lab| lab.connect().is_ok());
            drop(lab.check_io(round + 100));
            assert_eq!(lab.registrations(), 2, "round {round}");
            assert_eq!(lab.appliance.observe().lost_rdma(), None);
            busy.go_on();
        }
        busy.end();
        lab.stop();
    }
}

/// The listener is removed and added, and memory grows, while the device is lost.
#[test]
fn changes_while_a_device_is_lost() {
    let mut lab = Lab::start(&with_rdma(), &[device("rdma0")]);
    let busy = Busy::begin(&lab.appliance);
    lab.remove_device(false);
    let grown = with_rdma().replace("size = \"1MiB\"", "size = \"2MiB\"");
    lab.apply(&grown);
    busy.go_on();
    assert!(lab.appliance.observe().lost_rdma().is_some());
    lab.apply(&base("10s").replace("size = \"1MiB\"", "size = \"2MiB\""));
    // Nothing is lost that is not wanted.
    assert_eq!(lab.appliance.observe().lost_rdma(), None);
    let reason = lab.refused(&grown);
    assert!(reason.contains("RDMA"), "{reason}");
    lab.add_device("rdma0");
    lab.apply(&grown);
    drop(lab.check_io(5));
    assert_eq!(
        lab.registrations(),
        3,
        "the arena and both parts of the device"
    );
    busy.go_on();
    busy.end();
    lab.stop();
}

/// The device returns, and an operator adds another listener before the search has found it: both
/// listeners are served with their settings.
#[test]
fn listener_is_added_to_a_device_that_has_just_returned() {
    let mut lab = Lab::start(&with_rdma(), &[device("rdma0")]);
    lab.remove_device(false);
    lab.add_device("rdma0");
    let other = format!(
        "[[listener]]\nname = \"other\"\ntransport = \"rdma\"\naddress = \"{TARGET_IP}:4421\"\n"
    );
    lab.apply(&(with_rdma() + &other));
    assert_eq!(lab.registrations(), 2);
    assert_eq!(lab.rdma_counters()["devices_missing"], 0);
    lab.poll_until("a host connects", |lab| lab.connect().is_ok());
    drop(lab.check_io(4));
    assert_eq!(lab.appliance.observe().lost_rdma(), None);
    lab.stop();
}

/// A device that returns and does not register the memory stays lost, without leaks, until one
/// returns that does. A device of another name is not taken for it.
#[test]
fn device_that_returns_unfit_stays_lost() {
    let mut lab = Lab::start(&with_rdma(), &[device("rdma0")]);
    let busy = Busy::begin(&lab.appliance);
    let mut left = None;
    for limits in [
        DeviceLimits {
            registrations: 1,
            ..DeviceConfig::LIMITS
        },
        DeviceLimits {
            shared_receive_queues: 0,
            ..DeviceConfig::LIMITS
        },
    ] {
        lab.remove_device(false);
        let unfit = DeviceConfig {
            limits,
            ..device("rdma0")
        };
        let added = lab.fabric.add_device(&lab.target, &unfit);
        added.expect("descriptors");
        for _ in 0..3 {
            lab.search();
            assert_eq!(lab.rdma_counters()["devices_missing"], 1);
            assert_eq!(lab.registrations(), 0);
        }
        let now = lab.occupied()[..4].to_vec();
        assert_eq!(*left.get_or_insert(now.clone()), now);
        busy.go_on();
    }
    lab.remove_device(false);
    lab.add_device("rdma1");
    lab.search();
    assert_eq!(lab.registrations(), 0);
    lab.remove_device(false);
    lab.add_device("rdma0");
    lab.search();
    assert_eq!(lab.registrations(), 2);
    lab.poll_until("a host connects", |lab| lab.connect().is_ok());
    drop(lab.check_io(6));
    busy.go_on();
    busy.end();
    lab.stop();
}

/// A device that comes and goes: each registration ends with its device.
#[test]
fn device_that_flaps_leaves_nothing() {
    let mut lab = Lab::start(&with_rdma(), &[device("rdma0")]);
    let busy = Busy::begin(&lab.appliance);
    let mut occupied = None;
    for _ in 0..20 {
        lab.remove_device(false);
        lab.add_device("rdma0");
        lab.search();
        let now = lab.occupied()[..4].to_vec();
        assert_eq!(now[2], 2);
        assert_eq!(*occupied.get_or_insert(now.clone()), now);
    }
    busy.go_on();
    lab.poll_until("a host connects", |lab| lab.connect().is_ok());
    drop(lab.check_io(7));
    busy.end();
    lab.stop();
}

/// Hosts over RDMA are disconnected and connect again, whether the new process serves or not. The
/// host over TCP stays connected.
#[test]
fn hosts_connect_again_after_a_hand_over() {
    let mut lab = Lab::start(&base("10s"), &[device("rdma0")]);
    // Its port number is not its place in the configuration.
    let other = "[[listener]]\nname = \"other\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:0\"\n";
    lab.apply(&(base("10s") + other));
    lab.apply(&(with_rdma() + other));
    lab.apply(&with_rdma());
    let busy = Busy::begin(&lab.appliance);
    let told = |lab: &Lab| lab.appliance.effects_of_upgrade().join("\n");
    assert!(told(&lab).contains("0 host(s) over RDMA"), "{}", told(&lab));
    for round in 0..3 {
        let (mut admin, mut io) = lab.check_io(round);
        assert!(told(&lab).contains("1 host(s) over RDMA"), "{}", told(&lab));
        match round {
            0 => lab.appliance.fail_to_hand_over().expect("all is quiet"),
            _ => lab = lab.hand_over(),
        }
        for queue in [&mut admin, &mut io] {
            assert!(
                queue.command(Sqe::flush(1), 0).is_err(),
                "it is disconnected"
            );
        }
        drop((admin, io));
        busy.go_on();
        drop(lab.check_io(round + 100));
        assert_eq!(lab.fabric.objects().listeners, 1, "round {round}");
    }
    busy.end();
    lab.stop();
}

/// A process that lacks the libraries does not continue; the other one serves on, with all hosts.
#[test]
fn new_process_without_rdma_changes_nothing() {
    let lab = Lab::start(&with_rdma(), &[device("rdma0")]);
    let (admin, mut io) = lab.check_io(1);
    let is_missing = Arc::new(AtomicBool::new(true));
    let environment = environment(&lab.target, &is_missing);
    let state = StateDirectory::default();
    let (appliance, failure) = lab.appliance.hand_over_within(&state, environment);
    let error = failure.expect("it cannot continue").to_string();
    assert!(error.contains("listener san"), "{error}");
    let lab = Lab { appliance, ..lab };
    let read = io.command(Sqe::read(1, 2000, 0), BLOCK_BYTES);
    assert_eq!(read.expect("a response").status(), Status::SUCCESS);
    drop((admin, io));
    lab.stop();
}
