//! Removal of RDMA devices: their connections end, the memory is freed, and the rest of the target
//! still works.

use crate::harness::FakeHost as Host;
use crate::harness::host::{Call, Refused};
use crate::harness::{SECOND_IP, Setup, Stage, TARGET_IP, TARGET_MACHINE};
use hugemem::{PagePolicy, Store};
use nvme_spec::Sqe;
use nvme_spec::rdma::RejectReason;
use nvme_spec::sgl::SglDescriptor;
use rdma::{Device, Provider};
use rdma_testing::fake::{DeviceConfig, FakeDevice, Fault, Pattern};

/// A target with two devices, and the hosts of each.
struct Scene {
    stage: Stage,
    pulled: FakeDevice,
    /// Hosts that connect through the other device.
    witness: (Host, Host),
    /// Number of leases while only the witness is connected.
    baseline: u64,
}

impl Scene {
    fn new() -> Self {
        let mut stage = Stage::with(Setup {
            second: Some(DeviceConfig::new("target1", SECOND_IP)),
            ..Setup::default()
        });
        let first = stage.address;
        stage.address = stage.second_address.expect("there are two");
        let witness = Host::attach(&mut stage, 32);
        stage.turn();
        let baseline = stage.leases_out();
        stage.address = first;
        let devices = stage.target_machine.devices().expect("two");
        let pulled = devices.into_iter().find(|it| it.name() == "target0");
        Self {
            stage,
            pulled: pulled.expect("it is there"),
            witness,
            baseline,
        }
    }

    /// Checks that nothing of the device is left and that the witness is not affected.
    #[track_caller]
    fn expect_removed(&mut self) {
        self.expect_removed_times(1);
    }

    /// The same for the removal of that number.
    #[track_caller]
    fn expect_removed_times(&mut self, times: u64) {
        let stage = &mut self.stage;
        stage.turn_until("the end of the device", |stage| stage.set.len() == 2);
        self.witness.1.check_io(stage, 3, 0x77);
        let baseline = self.baseline;
        stage.turn_until("every lease at home", |stage| {
            stage.leases_out() == baseline
        });
        assert_eq!(stage.counters.devices_lost.get(), times);
        assert_eq!(stage.domains.devices().len(), 1);
        // The target has released it, so a driver that waits for that can finish.
        assert_eq!(stage.fabric.handles(&self.pulled), 1);
    }
}

/// Puts requests of every kind in flight.
fn load(io: &mut Host) {
    for cid in 0..9 {
        let at = usize::from(cid) * 65_536;
        let sqe = match cid % 3 {
            0 => Sqe::write(1, 64, 127, false).with_sgl(io.keyed(at, 65_536)),
            1 => Sqe::read(1, 64, 127).with_sgl(io.keyed(at, 65_536)),
            _ => Sqe::write(1, 8, 7, false).with_sgl(SglDescriptor::in_capsule(0, 4096)),
        };
        let bytes = if cid % 3 == 2 { 4096 } else { 0 };
        io.send(sqe.with_cid(cid), &vec![1; bytes]);
    }
}

/// In any state of requests, whether the device itself reports its removal or only the connection
/// manager does.
#[test]
fn a_device_is_removed_at_every_moment() {
    for moment in 0..40 {
        let mut scene = Scene::new();
        let (_admin, mut io) = Host::attach(&mut scene.stage, 32);
        let slow = Pattern {
            every: 2,
            ..Pattern::ALWAYS.on(TARGET_MACHINE)
        };
        let fabric = scene.stage.fabric.clone();
        fabric.add_fault(slow, Fault::DelayCompletion(5));
        load(&mut io);
        for _ in 0..moment / 2 {
            scene.stage.turn();
        }
        if moment % 2 == 0 {
            fabric.remove_device(&scene.pulled);
        } else {
            fabric.remove_silent_device(&scene.pulled);
        }
        fabric.clear_faults();
        scene.expect_removed();
    }
}

#[test]
fn a_device_is_removed_while_a_host_connects() {
    for turns in 0..12 {
        let mut scene = Scene::new();
        let (_admin, cntlid) = Host::admin(&mut scene.stage);
        let mut io = Host::connect(&mut scene.stage, &Call::queue(1, 8, cntlid)).expect("accepted");
        let sqe = Sqe::connect_queue(1, 7, nvme_spec::fabrics::ConnectAttributes::new(), 0);
        let sgl = io.keyed(0, 1024);
        io.send(sqe.with_sgl(sgl), &[]);
        for _ in 0..turns {
            scene.stage.turn();
        }
        scene.stage.fabric.remove_device(&scene.pulled);
        scene.expect_removed();
    }
}

/// A device that returns counts as another device: hosts that connect through it are rejected for
/// lack of resources until the memory is registered with it, and served afterwards. Repeatedly,
/// without leaks.
#[test]
fn a_device_that_returns_is_served_again() {
    let mut scene = Scene::new();
    let registered = scene.stage.domains.registered();
    for round in 1..=4 {
        let (_admin, mut io) = Host::attach(&mut scene.stage, 32);
        load(&mut io);
        scene.stage.fabric.remove_device(&scene.pulled);
        scene.expect_removed_times(round);
        let stage = &mut scene.stage;
        assert_eq!(stage.domains.lost(), ["target0"]);
        assert!(Host::connect(stage, &Call::queue(0, 32, 0)).is_err());
        let again = DeviceConfig::new("target0", TARGET_IP);
        let added = stage.fabric.add_device(&stage.target_machine, &again);
        added.expect("descriptors");
        let any = std::net::SocketAddr::new(TARGET_IP, 0);
        let listening = stage.set.listeners().listen(any, nvme_target::PortId(0));
        stage.address = listening.expect("the address is back");
        let refusal = Host::connect(stage, &Call::queue(0, 32, 0)).err();
        assert_eq!(refusal, Some(Refused::Rejected(RejectReason::NO_RESOURCES)));
        assert_eq!(stage.counters.connections_refused.get(), round);
        let devices = stage.target_machine.devices().expect("two");
        let found = devices.into_iter().find(|it| it.name() == "target0");
        scene.pulled = found.expect("it is back");
        let regions = [stage.arena.region(), stage.device.store().region()];
        stage
            .domains
            .add(&scene.pulled, &regions)
            .expect("it is fit");
        stage.set.update_devices();
        assert_eq!(stage.domains.lost(), [""; 0]);
        assert_eq!(stage.domains.registered(), registered);
        let (_admin, mut io) = Host::attach(stage, 32);
        io.check_io(stage, 3, 0x78);
        scene.witness.1.check_io(&mut scene.stage, 3, 0x78);
    }
}

/// Registers the memory with all devices of the target.
fn add_devices(stage: &mut Stage) {
    let regions = [stage.arena.region(), stage.device.store().region()];
    for device in stage.target_machine.devices().expect("two") {
        stage.domains.add(&device, &regions).expect("it is fit");
    }
    stage.set.update_devices();
}

/// Without listeners the devices are released, and a later one is served.
#[test]
fn devices_are_released_and_used_again() {
    let mut scene = Scene::new();
    for round in 0..3 {
        let stage = &mut scene.stage;
        let (admin, io) = Host::attach(stage, 32);
        drop(stage.domains.clear());
        // The devices have connections.
        stage.set.update_devices();
        scene.witness.1.check_io(stage, 3, round);
        drop((admin, io));
        stage.turn_until("the end of the hosts", |stage| stage.set.len() == 2);
        stage.set.update_devices();
        assert_eq!(stage.fabric.handles(&scene.pulled), 1);
        assert_eq!(
            (
                stage.domains.lost().len(),
                stage.counters.devices_lost.get()
            ),
            (0, 0)
        );
        add_devices(stage);
    }
    let (_admin, mut io) = Host::attach(&mut scene.stage, 32);
    io.check_io(&mut scene.stage, 3, 0x7a);
}

/// Hosts still leave when the listeners, and with them the devices, are added again: their
/// connections keep the previous registrations, and new ones use the new registrations.
#[test]
fn devices_are_used_again_while_hosts_leave() {
    for is_removed in [false, true] {
        let mut scene = Scene::new();
        let stage = &mut scene.stage;
        let (old_admin, mut old) = Host::attach(stage, 32);
        let counts = |stage: &Stage| {
            let objects = stage.fabric.objects();
            (objects.domains, objects.registrations)
        };
        let (domains, registrations) = counts(stage);
        drop(stage.domains.clear());
        stage.set.update_devices();
        add_devices(stage);
        assert_eq!(counts(stage), (domains + 2, registrations + 4));
        let (_admin, mut new) = Host::attach(stage, 32);
        old.check_io(stage, 3, 0x31);
        new.check_io(stage, 3, 0x32);
        if is_removed {
            load(&mut old);
            load(&mut new);
            stage.fabric.remove_device(&scene.pulled);
            stage.turn_until("the end of the device", |stage| stage.set.len() == 2);
            scene.witness.1.check_io(stage, 3, 0x35);
            assert_eq!(stage.fabric.handles(&scene.pulled), 1);
            continue;
        }
        drop((old_admin, old));
        stage.turn_until("the end of the hosts", |stage| stage.set.len() == 4);
        stage.turn();
        // The other device has a host of before.
        assert_eq!(counts(stage), (domains + 1, registrations + 2));
        new.check_io(stage, 3, 0x33);
        scene.witness.1.check_io(stage, 3, 0x34);
    }
}

/// More memory can be registered after the removal of a device without connections.
#[test]
fn memory_grows_while_a_removed_device_is_not_released() {
    let mut scene = Scene::new();
    let before = scene.stage.domains.registered().count;
    let store = Store::new(1 << 20, PagePolicy::Ordinary).expect("1 MiB of memory");
    scene.stage.fabric.remove_device(&scene.pulled);
    let attached = scene.stage.domains.attach(store.region());
    attached.expect("the other device has it");
    assert_eq!(scene.stage.domains.registered().count, before + 1);
    let Scene { stage, witness, .. } = &mut scene;
    witness.1.check_io(stage, 3, 0x79);
    stage.domains.detach(store.region());
    assert_eq!(stage.domains.registered().count, before);
}
