//! A whole appliance with emulated drives that fail, are removed and return, and a host on its
//! loopback.

mod handover;
mod live;
mod volumes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use appliance_config::Config;
use hugemem::Arena;
use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{
    EmulatedController, EmulatedNamespace, EmulatedOptions, EmulatorControl, Fault, FaultMatch,
    FaultRule, When,
};
use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::command::{IoOpcode, LogPageId, LogPageSelect};
use nvme_spec::log::CriticalWarning;
use nvme_spec::{Sqe, Status};
use reactors::Nanos;
use vfio::{PciAddress, Problem};

use super::Bus;
use crate::appliance::{Appliance, Environment};
use crate::error::Failure;

const NQN: &str = "nqn.2026-11.org.windlass:test";
/// Generous limit for every wait of a test, for busy machines.
const LIMIT: Duration = Duration::from_secs(30);
const BLOCK_BYTES: usize = 512;
/// Keeps the tick of the owners short.
const SHORT: &str = "command_deadline = \"200ms\"";

/// A slot with a drive.
#[derive(Clone)]
struct Slot {
    drive: Arc<EmulatedController>,
    is_there: bool,
    /// How often the appliance has opened it.
    opened: usize,
}

/// Drives by address; shared with the test, which removes them.
#[derive(Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<BTreeMap<PciAddress, Slot>>>);

impl Slots {
    fn control(&self, address: &str) -> EmulatorControl {
        self.with(address, |slot| slot.drive.control())
    }

    /// Whether the appliance has the drive open.
    fn is_open(&self, address: &str) -> bool {
        self.with(address, |slot| Arc::strong_count(&slot.drive) > 1)
    }

    /// How often the appliance has opened the drive.
    fn opened(&self, address: &str) -> usize {
        self.with(address, |slot| slot.opened)
    }

    fn with<T>(&self, address: &str, action: impl FnOnce(&mut Slot) -> T) -> T {
        let mut slots = self.0.lock().expect("no panic holds it");
        let address = address.parse().expect("an address");
        action(slots.get_mut(&address).expect("a slot with a drive"))
    }
}

impl Bus for Slots {
    fn open(&self, address: PciAddress) -> Result<Arc<dyn DeviceBacking>, Failure> {
        self.check(address)?;
        let mut slots = self.0.lock().expect("no panic holds it");
        let slot = slots.get_mut(&address).expect("it was checked");
        assert_eq!(Arc::strong_count(&slot.drive), 1, "it is open already");
        slot.opened += 1;
        Ok(slot.drive.clone())
    }

    fn check(&self, address: PciAddress) -> Result<(), Problem> {
        let slots = self.0.lock().expect("no panic holds it");
        match slots.get(&address) {
            Some(slot) if slot.is_there => Ok(()),
            Some(_) | None => Err(Problem::NoSuchFunction { address }),
        }
    }
}

/// A drive with two namespaces of 1 MiB behind a volatile cache.
fn options(serial: &str) -> EmulatedOptions {
    EmulatedOptions {
        serial: serial.to_owned(),
        namespaces: (1..=2)
            .map(|nsid| EmulatedNamespace::new(nsid, BLOCK_BYTES as u32, 2048))
            .collect(),
        ..EmulatedOptions::default()
    }
}

/// Both namespaces of both drives: the devices' names, their drives and namespaces.
const ALL: [(&str, u8, u32); 4] = [("a1", 1, 1), ("a2", 1, 2), ("b1", 2, 1), ("b2", 2, 2)];

/// A configuration with both namespaces of both drives in one export, with reactors on `cores`.
fn configuration(cores: &str, more: &str) -> Config {
    configuration_of(cores, &ALL, more)
}

/// A configuration with these devices in one export.
fn configuration_of(cores: &str, devices: &[(&str, u8, u32)], more: &str) -> Config {
    let names: Vec<String> = devices
        .iter()
        .map(|(name, ..)| format!("\"{name}\""))
        .collect();
    let names = names.join(", ");
    let mut text = format!(
        r#"
[appliance]
cores = "{cores}"
memory = "32MiB"
pages = "ordinary"
shutdown_deadline = "20s"

[control]
socket = "off"
http = "127.0.0.1:0"

[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"

[[export]]
nqn = "{NQN}"
devices = [{names}]
listeners = ["loopback"]
allow_any_host = true
"#
    );
    for (name, bus, namespace) in devices {
        text += &format!(
            "\n[[device]]\nname = \"{name}\"\ntype = \"nvme\"\npci = \"0{bus}:00.0\"\n\
             namespace = {namespace}\n{more}\n"
        );
    }
    Config::parse("test", &text).expect("a right configuration")
}

/// The status of commands to an inactive namespace (Base 2.1 §3.2.1.5).
const INACTIVE: Status = Status::INVALID_FIELD.with_dnr();

const A: &str = "0000:01:00.0";
const B: &str = "0000:02:00.0";

/// The first `count` cores that this process may use, or fewer if there are not as many.
pub(crate) fn cores(count: usize) -> String {
    let set = rustix::thread::sched_getaffinity(None).expect("a process has cores");
    let all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
    let some: Vec<String> = all.take(count).map(|core| core.to_string()).collect();
    some.join(",")
}

/// An appliance on two emulated drives, which `change` modifies before the start, with an
/// additional line for each device.
fn started_with(
    cores: &str,
    more: &str,
    change: impl Fn(&str, &mut EmulatedOptions),
) -> (Appliance, Slots) {
    started_on(configuration(cores, more), change)
}

/// An appliance with a configuration that names two emulated drives or fewer.
fn started_on(config: Config, change: impl Fn(&str, &mut EmulatedOptions)) -> (Appliance, Slots) {
    let slots = Slots::default();
    let bus = slots.clone();
    let make = move |arena: &Arc<Arena>, _| -> Box<dyn Bus> {
        for (address, serial) in [(A, "DRIVE-A"), (B, "DRIVE-B")] {
            let mut options = options(serial);
            change(address, &mut options);
            let drive = EmulatedController::new(arena.region(), options).expect("a small drive");
            let slot = Slot {
                drive: Arc::new(drive),
                is_there: true,
                opened: 0,
            };
            let address = address.parse().expect("an address");
            let mut slots = bus.0.lock().expect("no panic holds it");
            slots.insert(address, slot);
        }
        Box::new(bus)
    };
    let environment = Environment {
        bus: Box::new(make),
        ..Environment::default()
    };
    let appliance = Appliance::start_with(config, &Default::default(), environment);
    (appliance.expect("it starts"), slots)
}

pub(crate) fn started() -> (Appliance, Slots) {
    started_with(&cores(1), "", |_, _| {})
}

fn has_device(appliance: &Appliance, name: &str) -> bool {
    appliance.has_device(&name.parse().expect("a name"))
}

/// A host with one I/O queue.
pub(crate) struct Host {
    admin: RawClient,
    io: RawClient,
}

impl Host {
    pub(crate) fn attach(appliance: &Appliance) -> Self {
        let names = Names {
            host: "nqn.2026-11.org.windlass:host".to_owned(),
            host_id: [9; 16],
            subsystem: NQN.to_owned(),
        };
        let address = appliance.addresses()[0];
        let connect = || RawClient::connect(address, LIMIT).expect("it listens");
        let (mut admin, mut io) = (connect(), connect());
        let cntlid = admin.open_admin(&names).expect("any host may attach");
        io.open_io(&names, cntlid, 1).expect("queue 1 is free");
        Self { admin, io }
    }

    pub(crate) fn write(&mut self, nsid: u32, lba: u64, fill: u8) -> Status {
        let sqe = Sqe::write(nsid, lba, 0, false);
        let (cqe, _) = self
            .io
            .command(sqe, &[fill; BLOCK_BYTES], 0)
            .expect("a response");
        cqe.status().with_more(false)
    }

    /// The critical warning in the health log.
    fn warning(&mut self) -> u8 {
        let select = LogPageSelect::new()
            .with_lid(LogPageId::SMART_HEALTH)
            .with_numd_z(127);
        let sqe = Sqe::log_page(0, select, 0);
        let (cqe, page) = self.admin.command(sqe, &[], 512).expect("a response");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        page[0]
    }

    fn flush(&mut self, nsid: u32) -> Status {
        let (cqe, _) = self
            .io
            .command(Sqe::flush(nsid), &[], 0)
            .expect("a response");
        cqe.status().with_more(false)
    }

    pub(crate) fn read(&mut self, nsid: u32, lba: u64) -> Result<Vec<u8>, Status> {
        let sqe = Sqe::read(nsid, lba, 0);
        let (cqe, data) = self
            .io
            .command(sqe, &[], BLOCK_BYTES as u32)
            .expect("a response");
        if cqe.status().is_success() {
            Ok(data)
        } else {
            Err(cqe.status().with_more(false))
        }
    }
}

/// A host writes and reads its blocks of a drive meanwhile, and sees no error.
fn with_writer<T>(appliance: Appliance, act: impl FnOnce(Appliance) -> T) -> T {
    let is_over = AtomicBool::new(false);
    let mut writer = Host::attach(&appliance);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let mut written = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let fill = written as u8;
                assert_eq!(writer.write(1, written % 2048, fill), Status::SUCCESS);
                let read = writer.read(1, written % 2048);
                assert_eq!(read, Ok(vec![fill; BLOCK_BYTES]));
                written += 1;
            }
            written
        });
        let done = act(appliance);
        is_over.store(true, Ordering::Relaxed);
        assert!(written.join().expect("the host sees no error") > 0);
        done
    })
}

/// Runs the drives' monitoring until `holds`, with the time advanced by `later`.
#[track_caller]
fn poll_until(
    appliance: &mut Appliance,
    later: Duration,
    what: &str,
    mut holds: impl FnMut() -> bool,
) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what} did not come true");
        appliance.poll(Instant::now() + later);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the host sees that namespace 1 is active, or that it is not.
#[track_caller]
fn poll_until_served(appliance: &mut Appliance, host: &mut Host, served: bool) {
    let what = format!("served is {served}");
    poll_until(appliance, Duration::ZERO, &what, || match host.read(1, 0) {
        Ok(_) => served,
        Err(status) => !served && status == INACTIVE,
    });
}

#[test]
fn drives_are_served_and_shut_down_in_order() {
    for count in [1, 2] {
        let (appliance, slots) = started_with(&cores(count), "", |_, _| {});
        let mut host = Host::attach(&appliance);
        for nsid in 1..=4 {
            assert_eq!(host.write(nsid, 7, nsid as u8), Status::SUCCESS);
            assert_eq!(host.read(nsid, 7), Ok(vec![nsid as u8; BLOCK_BYTES]));
        }
        let mut block = [0; BLOCK_BYTES];
        let durable = |block: &mut [u8]| slots.control(B).read_durable(2, 7, block);
        assert!(durable(&mut block) && block[0] == 0, "it is in the cache");
        drop(host);
        assert!(appliance.stop_quietly(), "with {count} reactors");
        for (address, nsid, fill) in [(A, 1, 1), (A, 2, 2), (B, 1, 3), (B, 2, 4)] {
            let control = slots.control(address);
            assert!(control.read_durable(nsid, 7, &mut block));
            assert_eq!(block, [fill; BLOCK_BYTES], "the cache was flushed");
            assert!(!control.is_bus_master());
        }
    }
}

/// A drive that never becomes ready delays the start by the time that it reports (CAP.TO), and has
/// no other effect.
#[test]
fn drive_that_never_becomes_ready_is_skipped() {
    let began = Instant::now();
    let (appliance, _slots) = started_with(&cores(1), "", |address, options| {
        if address == A {
            options.timeout_units = 1;
            options.ready_after = Nanos::from_secs(3600);
        }
    });
    assert!(began.elapsed() < LIMIT);
    assert_eq!(
        ["a1", "a2", "b1", "b2"].map(|name| has_device(&appliance, name)),
        [false, false, true, true]
    );
    let mut host = Host::attach(&appliance);
    assert_eq!(host.read(1, 0), Err(INACTIVE));
    assert_eq!(host.write(3, 0, 1), Status::SUCCESS);
    drop(host);
    assert!(appliance.stop_quietly());
}

/// If one namespace of a drive has metadata, the other one is served.
#[test]
fn unsupported_namespace_is_skipped() {
    let (appliance, slots) = started_with(&cores(1), "", |address, options| {
        options.namespaces[0].metadata_bytes = 8;
        if address == B {
            options.namespaces[1].block_size = 1024;
        }
    });
    assert_eq!(
        ["a1", "a2", "b1", "b2"].map(|name| has_device(&appliance, name)),
        [false, true, false, false]
    );
    assert!(
        !slots.control(B).is_bus_master(),
        "nothing of it is served, so it was let go"
    );
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(2, 0, 1), Status::SUCCESS);
    drop(host);
    assert!(appliance.stop_quietly());
}

/// Surprise removal: the namespaces are removed, the other drive stays, and durable data is present
/// when the drive returns.
#[test]
fn surprise_removed_drive_is_served_again_after_reinsertion() {
    let (mut appliance, slots) = started();
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(1, 0, 5), Status::SUCCESS);
    assert_eq!(host.flush(1), Status::SUCCESS);
    let flushes = |it: &crate::observe::model::DeviceStatus| it.flushes;
    assert_eq!(
        appliance.status().devices.iter().map(flushes).sum::<u64>(),
        1
    );
    for _ in 0..2 {
        slots.with(A, |slot| slot.is_there = false);
        slots.control(A).remove();
        poll_until_served(&mut appliance, &mut host, false);
        assert_eq!(host.read(2, 0), Err(INACTIVE));
        assert_eq!(host.write(3, 0, 6), Status::SUCCESS);
        slots.control(A).reinsert();
        slots.with(A, |slot| slot.is_there = true);
        poll_until_served(&mut appliance, &mut host, true);
        assert_eq!(host.read(1, 0), Ok(vec![5; BLOCK_BYTES]));
    }
    drop(host);
    assert!(appliance.stop_quietly());
}

/// Requested by the system: the drive flushes its cache and is released. It is not reopened before
/// it was absent, or before several seconds have passed.
#[test]
fn drive_is_released_on_removal_request() {
    let (mut appliance, slots) = started();
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(1, 0, 5), Status::SUCCESS);
    slots.control(A).request_removal(true);
    poll_until_served(&mut appliance, &mut host, false);
    assert!(!slots.control(A).is_bus_master());
    let mut block = [0; BLOCK_BYTES];
    assert!(slots.control(A).read_durable(1, 0, &mut block));
    assert_eq!(block, [5; BLOCK_BYTES]);
    slots.control(A).request_removal(false);
    for _ in 0..20 {
        appliance.poll(Instant::now());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        host.read(1, 0),
        Err(INACTIVE),
        "nobody took it, so it is still left alone"
    );
    let later = Duration::from_secs(60);
    poll_until(&mut appliance, later, "taken again", || {
        host.read(1, 0).is_ok()
    });
    assert_eq!(host.read(1, 0), Ok(vec![5; BLOCK_BYTES]));
    drop(host);
    assert!(appliance.stop_quietly());
}

/// A different drive in the slot is not served in place of the first one.
#[test]
fn different_drive_in_the_slot_is_not_served() {
    let (mut appliance, slots) = started();
    let mut host = Host::attach(&appliance);
    slots.with(A, |slot| slot.is_there = false);
    slots.control(A).remove();
    poll_until_served(&mut appliance, &mut host, false);
    let plug_in = |serial: &str| {
        slots.control(A).replace_serial(serial);
        slots.control(A).reinsert();
        slots.with(A, |slot| slot.is_there = true);
    };
    plug_in("ANOTHER");
    for _ in 0..100 {
        appliance.poll(Instant::now());
        assert!(host.read(1, 0).is_err());
        std::thread::sleep(Duration::from_millis(5));
    }
    slots.with(A, |slot| slot.is_there = false);
    slots.control(A).remove();
    plug_in("DRIVE-A");
    // There is a delay between attempts, because each one resets the drive.
    let later = Duration::from_secs(600);
    poll_until(&mut appliance, later, "served again", || {
        host.read(1, 0).is_ok()
    });
    drop(host);
    assert!(appliance.stop_quietly());
}

/// Media errors have their status (NVM 1.1 §3.2.1). A command that hangs completes with a path
/// error after the drive was reset for it, and the drive works afterwards.
#[test]
fn drive_faults_are_mapped_to_host_statuses() {
    let (mut appliance, slots) = started_with(&cores(1), "command_deadline = \"100ms\"", |_, _| {});
    let mut host = Host::attach(&appliance);
    let control = slots.control(A);
    let inject = |opcode: IoOpcode, fault| {
        let matching = FaultMatch::io().with_opcode(opcode.0).with_namespace(1);
        control.inject(FaultRule::new(matching, When::First(1), fault));
    };
    inject(
        IoOpcode::READ,
        Fault::Status(Status::UNRECOVERED_READ_ERROR),
    );
    assert_eq!(host.read(1, 0), Err(Status::UNRECOVERED_READ_ERROR));
    inject(IoOpcode::WRITE, Fault::Status(Status::WRITE_FAULT));
    assert_eq!(host.write(1, 0, 1), Status::WRITE_FAULT);
    inject(IoOpcode::READ, Fault::Hang { abortable: true });
    assert_eq!(host.read(1, 0), Err(Status::ABORT_REQUESTED));
    control.disarm_all();
    inject(IoOpcode::READ, Fault::Hang { abortable: false });
    assert_eq!(host.read(1, 0), Err(Status::CONTROLLER_PATHING_ERROR));
    poll_until(&mut appliance, Duration::ZERO, "in order", || {
        host.read(1, 0).is_ok()
    });
    assert_eq!(host.write(3, 0, 1), Status::SUCCESS);
    drop(host);
    assert!(appliance.stop_quietly());
}

/// A stop during writes is orderly, and acknowledged data is on the medium.
#[test]
fn shutdown_under_load_keeps_acknowledged_writes() {
    let (appliance, slots) = started_with(&cores(2), "", |_, _| {});
    let mut host = Host::attach(&appliance);
    let (sender, receiver) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut written = 0;
        for lba in 0..2048_u64 {
            let sqe = Sqe::write(2, lba, 0, false);
            match host.io.command(sqe, &[lba as u8 | 1; BLOCK_BYTES], 0) {
                Ok((cqe, _)) if cqe.status().is_success() => written = lba + 1,
                // The stop ends the writer by an error status, or by the end of the connection.
                Ok(_) | Err(_) => break,
            }
            if lba == 100 {
                sender.send(()).expect("somebody waits");
            }
        }
        written
    });
    receiver.recv().expect("a hundred writes succeed");
    assert!(appliance.stop_quietly());
    let written = writer.join().expect("no panic");
    assert!(written > 100);
    let mut block = [0; BLOCK_BYTES];
    for lba in 0..written {
        assert!(slots.control(A).read_durable(2, lba, &mut block));
        assert_eq!(
            block,
            [lba as u8 | 1; BLOCK_BYTES],
            "block {lba} of {written}"
        );
    }
}

/// A drive that does not respond delays a stop until its deadline, and loses access to memory
/// nevertheless.
#[test]
fn shutdown_does_not_wait_for_a_hung_drive() {
    let (mut appliance, slots) = started();
    appliance.set_shutdown_deadline("500ms");
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(1, 0, 1), Status::SUCCESS);
    let control = slots.control(A);
    let flushes = FaultMatch::io().with_opcode(IoOpcode::FLUSH.0);
    let hang = Fault::Hang { abortable: false };
    control.inject(FaultRule::new(flushes, When::Always, hang));
    drop(host);
    let began = Instant::now();
    assert!(!appliance.stop_quietly(), "the cache was not flushed");
    assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
    assert!(!control.is_bus_master() && !slots.control(B).is_bus_master());
}

/// A drive's warning appears in the health log.
#[test]
fn drive_warning_appears_in_the_health_log() {
    let (mut appliance, slots) = started();
    let mut host = Host::attach(&appliance);
    assert_eq!(host.warning(), 0);
    let warning = CriticalWarning::new().with_reliability(true);
    slots.control(B).set_critical_warning(warning);
    let bits = warning.into_bits();
    poll_until(&mut appliance, Duration::ZERO, "told", || {
        host.warning() == bits
    });
    drop(host);
    assert!(appliance.stop_quietly());
}

#[test]
fn devices_with_one_pci_address_share_a_drive() {
    let wanted = super::wanted(&configuration("0", "queue_depth = 7"));
    let seen: Vec<_> = wanted
        .iter()
        .map(|drive| (drive.address.to_string(), drive.names.as_str()))
        .collect();
    assert_eq!(seen, [(A.to_owned(), "a1, a2"), (B.to_owned(), "b1, b2")]);
    assert_eq!(wanted[1].namespaces, [(2, 1), (3, 2)]);
    assert_eq!(wanted[0].settings.queue_depth, 7);
    assert!(wanted[1].has(3) && !wanted[1].has(0));
}
