//! Invalid input of hosts: each error has the result that the specification defines, is counted,
//! and does not affect other connections.

use crate::harness::FakeHost as Host;
use crate::harness::host::{Call, Refused, connect_data};
use crate::harness::{HOST_MACHINE, Setup, Stage, TARGET_MACHINE};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectField};
use nvme_spec::rdma::{ConnectRequest, RejectReason};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use rdma::{CompletionStatus, DeviceLimits, Provider, QueuePair};
use rdma_testing::fake::{DeviceConfig, Fault, Operation, Pattern};
use reactors::Nanos;
use zerocopy::IntoBytes;

/// A stage with one well-behaved host, which must still work at the end.
struct Scene {
    stage: Stage,
    admin: Host,
    io: Host,
    cntlid: u16,
    /// Number of leases of an idle target: those of the receives.
    baseline: u64,
}

impl Scene {
    fn new() -> Self {
        Self::with(Setup::default())
    }

    fn with(setup: Setup) -> Self {
        let mut stage = Stage::with(setup);
        let (admin, cntlid) = Host::admin(&mut stage);
        let io = Host::io(&mut stage, cntlid, 1, 32);
        stage.turn();
        let baseline = stage.leases_out();
        Self {
            stage,
            admin,
            io,
            cntlid,
            baseline,
        }
    }

    /// Connects another I/O queue, for invalid input.
    fn victim(&mut self) -> Host {
        Host::io(&mut self.stage, self.cntlid, 2, 8)
    }

    /// Checks that the victim's connection has ended with one more protocol violation.
    #[track_caller]
    fn expect_violation(&mut self, victim: &mut Host) {
        victim.await_end(&mut self.stage);
        assert_eq!(self.stage.counters.violations.get(), 1);
        self.finish(2);
    }

    /// Checks that all leases of ended connections are free and that the others work.
    #[track_caller]
    fn finish(&mut self, connections: usize) {
        self.stage.turn_until("the end of a connection", |stage| {
            stage.pass(Nanos::from_millis(20));
            stage.set.len() == connections
        });
        self.io.check_io(&mut self.stage, 3, 0x77);
        let baseline = self.baseline;
        self.stage.turn_until("every lease at home", |stage| {
            stage.leases_out() == baseline
        });
        let sqe = Sqe::get_property(0x1c, nvme_spec::fabrics::PropertySize::BYTES_4);
        let cqe = self.admin.command(&mut self.stage, sqe);
        assert_eq!(cqe.status(), Status::SUCCESS);
    }
}

#[track_caller]
fn rejected(call: &Call, reason: RejectReason) {
    let mut scene = Scene::new();
    let refusal = Host::connect(&mut scene.stage, call).err();
    assert_eq!(refusal, Some(Refused::Rejected(reason)));
    assert_eq!(scene.stage.counters.requests_invalid.get(), 1);
    scene.finish(2);
}

/// RDMA 1.1 §3: each invalid field of the private data has its reason.
#[test]
fn wrong_private_data_are_rejected_with_their_reason() {
    let request = |change: fn(&mut [u8; 32])| {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(ConnectRequest::new(1, 32, 31, 1).as_bytes());
        change(&mut bytes);
        Call::with(&bytes)
    };
    // The connection manager pads what it carries, so private data that are too short, or missing,
    // come as zeroes: a queue of one entry. (Where they do not, see the unit tests.)
    rejected(&Call::with(&[0; 31]), RejectReason::INVALID_HSQSIZE);
    rejected(&Call::with(&[]), RejectReason::INVALID_HSQSIZE);
    rejected(
        &request(|it| it[0] = 1),
        RejectReason::INVALID_RECORD_FORMAT,
    );
    rejected(&request(|it| it[3] = 9), RejectReason::INVALID_QUEUE_ID);
    rejected(&request(|it| it[6] = 0), RejectReason::INVALID_HSQSIZE);
    rejected(&request(|it| it[7] = 1), RejectReason::INVALID_HSQSIZE);
    rejected(&request(|it| it[4] = 31), RejectReason::INVALID_HRQSIZE);
    rejected(
        &request(|it| (it[8], it[9]) = (0xf0, 0xff)),
        RejectReason::INVALID_CNTLID,
    );
    let mut deaf = Call::queue(1, 32, 1);
    deaf.reads = 0;
    rejected(&deaf, RejectReason::INVALID_IRD);
}

/// The device's limits apply to a queue, whatever the listener is configured for.
#[test]
fn a_queue_deeper_than_the_device_manages_is_rejected() {
    let mut device = DeviceConfig::new("target0", crate::harness::TARGET_IP);
    device.limits = DeviceLimits {
        queue_pair_requests: 41,
        ..DeviceConfig::LIMITS
    };
    let mut scene = Scene::with(Setup {
        device,
        ..Setup::default()
    });
    let call = Call::queue(2, 33, scene.cntlid);
    let refusal = Host::connect(&mut scene.stage, &call).err();
    assert_eq!(
        refusal,
        Some(Refused::Rejected(RejectReason::INVALID_HSQSIZE))
    );
    scene.finish(2);
}

#[test]
fn a_full_table_rejects_connections() {
    let mut setup = Setup::default();
    setup.rdma.connections_max = 2;
    let mut scene = Scene::with(setup);
    let call = Call::queue(2, 8, scene.cntlid);
    let refusal = Host::connect(&mut scene.stage, &call).err();
    assert_eq!(refusal, Some(Refused::Rejected(RejectReason::NO_RESOURCES)));
    assert_eq!(scene.stage.counters.connections_refused.get(), 1);
    scene.finish(2);
}

/// RDMA 1.1 §3: QID, HSQSIZE and CNTLID are those of the Connect command that follows.
#[test]
fn a_connect_that_contradicts_the_private_data_is_refused() {
    let contradictions = [
        (1, 8, ConnectField::QueueId),
        (2, 9, ConnectField::SqSize),
        (2, 7, ConnectField::SqSize),
    ];
    for (qid, depth, field) in contradictions {
        let mut scene = Scene::new();
        let call = Call::queue(2, 8, scene.cntlid);
        let mut victim = Host::connect(&mut scene.stage, &call).expect("right private data");
        let cntlid = scene.cntlid;
        let cqe = victim.open_queue(&mut scene.stage, qid, depth, cntlid);
        assert_eq!(cqe.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
        assert_eq!(cqe.connect_invalid_parameters(), field.invalid());
        victim.await_end(&mut scene.stage);
        scene.finish(2);
    }
    let mut scene = Scene::new();
    let call = Call::queue(2, 8, scene.cntlid);
    let mut victim = Host::connect(&mut scene.stage, &call).expect("right private data");
    let other = scene.cntlid + 1;
    let cqe = victim.open_queue(&mut scene.stage, 2, 8, other);
    assert_eq!(
        cqe.connect_invalid_parameters(),
        ConnectField::ControllerId.invalid()
    );
    victim.await_end(&mut scene.stage);
    scene.finish(2);
}

/// Base 2.1 §6.3: the first command is Connect, with 1,024 bytes of data.
#[test]
fn a_queue_begins_with_a_whole_connect() {
    let short = Sqe::connect_queue(2, 7, ConnectAttributes::new(), 0);
    let length = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    let sequence = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
    for (sqe, bytes, status) in [
        (short, 1023, length),
        (short, 0, length),
        (Sqe::read(1, 0, 0), 512, sequence),
    ] {
        let mut scene = Scene::new();
        let call = Call::queue(2, 8, scene.cntlid);
        let mut victim = Host::connect(&mut scene.stage, &call).expect("accepted");
        let sgl = victim.keyed(0, bytes);
        let cqe = victim.command(&mut scene.stage, sqe.with_sgl(sgl));
        assert_eq!(cqe.status(), status);
        victim.await_end(&mut scene.stage);
        scene.finish(2);
    }
}

#[test]
fn connect_data_may_come_in_the_capsule() {
    let mut scene = Scene::new();
    let call = Call::queue(2, 8, scene.cntlid);
    let mut host = Host::connect(&mut scene.stage, &call).expect("accepted");
    let sqe = Sqe::connect_queue(2, 7, ConnectAttributes::new(), 0);
    let sgl = SglDescriptor::in_capsule(0, 1024);
    host.send(sqe.with_sgl(sgl), connect_data(scene.cntlid).as_bytes());
    let (cqe, _) = host.await_response(&mut scene.stage);
    assert_eq!(cqe.status(), Status::SUCCESS);
    host.check_io(&mut scene.stage, 9, 3);
    // And not all of it, or none, is a wrong length.
    for carried in [0, 1, 1023] {
        let call = Call::queue(3, 8, scene.cntlid);
        let mut victim = Host::connect(&mut scene.stage, &call).expect("accepted");
        let sqe = Sqe::connect_queue(3, 7, ConnectAttributes::new(), 0);
        let data = connect_data(scene.cntlid);
        victim.send(sqe.with_sgl(sgl), &data.as_bytes()[..carried]);
        let (cqe, _) = victim.await_response(&mut scene.stage);
        assert_eq!(cqe.status(), Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        victim.await_end(&mut scene.stage);
    }
    scene.finish(3);
}

#[test]
fn a_command_before_the_connect_response_is_a_violation() {
    let mut scene = Scene::new();
    let call = Call::queue(2, 8, scene.cntlid);
    let mut victim = Host::connect(&mut scene.stage, &call).expect("accepted");
    let sqe = Sqe::connect_queue(2, 7, ConnectAttributes::new(), 0);
    let sgl = victim.keyed(0, 1024);
    victim.send(sqe.with_sgl(sgl), &[]);
    victim.send(sqe.with_sgl(sgl), &[]);
    scene.expect_violation(&mut victim);
}

#[test]
fn a_host_that_does_not_connect_its_queue_is_closed() {
    let mut scene = Scene::new();
    let call = Call::queue(2, 8, scene.cntlid);
    let mut victim = Host::connect(&mut scene.stage, &call).expect("accepted");
    scene.stage.pass(Nanos::from_secs(11));
    victim.await_end(&mut scene.stage);
    assert_eq!(scene.stage.counters.setup_timeouts.get(), 1);
    scene.finish(2);
}

#[test]
fn a_capsule_shorter_than_a_command_ends_the_connection() {
    for bytes in [0, 1, 63] {
        let mut scene = Scene::new();
        let mut victim = scene.victim();
        victim.send_bytes(&vec![0xff; bytes]);
        scene.expect_violation(&mut victim);
    }
}

/// A capsule longer than any receive: the device refuses it, on both sides.
#[test]
fn a_capsule_longer_than_the_receive_ends_the_connection() {
    let mut scene = Scene::new();
    let mut victim = scene.victim();
    victim.send_bytes(&[0; 64 + crate::harness::IN_CAPSULE_BYTES as usize + 1]);
    victim.await_end(&mut scene.stage);
    assert_eq!(victim.failures, [CompletionStatus::REMOTE_INVALID_REQUEST]);
    assert_eq!(scene.stage.counters.work_failures.get(), 1);
    scene.finish(2);
}

/// A capsule longer than its queue permits, although the receive has room for another port's.
#[test]
fn a_capsule_longer_than_its_queues_capsules_ends_the_connection() {
    let mut setup = Setup::default();
    let other = nvme_rdma::PortSettings {
        in_capsule_bytes: 8192,
        ..crate::harness::port_settings()
    };
    setup.rdma.ports.push((nvme_target::PortId(1), other));
    let mut scene = Scene::with(setup);
    let mut victim = scene.victim();
    victim.send_bytes(&[0; 64 + crate::harness::IN_CAPSULE_BYTES as usize + 1]);
    scene.expect_violation(&mut victim);
}

#[test]
fn more_commands_than_the_depth_end_the_connection() {
    let mut scene = Scene::new();
    let mut victim = scene.victim();
    let slow = Fault::DelayCompletion(1000);
    let reads = Pattern::ALWAYS.of(Operation::Read).on(TARGET_MACHINE);
    scene.stage.fabric.add_fault(reads, slow);
    for cid in 0..9 {
        let sqe = Sqe::write(1, 0, 0, false).with_cid(cid);
        let sgl = victim.keyed(0, 512);
        victim.send(sqe.with_sgl(sgl), &[]);
    }
    scene
        .stage
        .turn_until("a violation", |stage| stage.counters.violations.get() == 1);
    scene.stage.fabric.clear_faults();
    scene.expect_violation(&mut victim);
}

/// A wrong key, an address outside of the region, a range that ends outside of it.
#[test]
fn memory_that_the_host_does_not_have_ends_the_connection() {
    for write in [false, true] {
        for wrong in 0..3 {
            let mut scene = Scene::new();
            let mut victim = scene.victim();
            let (address, key) = (victim.address(0), victim.key());
            let (address, key) = match wrong {
                0 => (address, key ^ 0x5a5a),
                1 => (address + (1 << 40), key),
                _ => (victim.address(0) + (14 << 20) - 511, key),
            };
            let sgl = SglDescriptor::keyed(address, 512, key, false).expect("short");
            let sqe = match write {
                true => Sqe::write(1, 0, 0, false),
                false => Sqe::read(1, 0, 0),
            };
            victim.send(sqe.with_sgl(sgl), &[]);
            victim.await_end(&mut scene.stage);
            assert_eq!(scene.stage.counters.remote_access_errors.get(), 1);
            assert_eq!(scene.stage.counters.connections_broken.get(), 1);
            assert!(victim.responses.is_empty(), "there is no way to answer");
            scene.finish(2);
        }
    }
}

/// Base 2.1 §4.3.2: a length that is not the command's, in every kind of descriptor.
#[test]
fn lengths_that_do_not_match_are_refused_and_the_connection_lives() {
    let mut scene = Scene::new();
    let mut host = scene.victim();
    let length = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    for bytes in [0, 511, 513, 4096] {
        for sqe in [Sqe::read(1, 0, 0), Sqe::write(1, 0, 0, false)] {
            let sgl = host.keyed(0, bytes);
            let cqe = host.command(&mut scene.stage, sqe.with_sgl(sgl));
            assert_eq!(cqe.status().with_more(false), length, "{bytes}");
        }
    }
    let write = Sqe::write(1, 0, 0, false);
    for (described, carried, status) in [
        (512, 511, length),
        (512, 513, length),
        (512, 0, length),
        (511, 511, length),
    ] {
        let sgl = SglDescriptor::in_capsule(0, described);
        host.send(write.with_sgl(sgl), &vec![0; carried]);
        let (cqe, _) = host.await_response(&mut scene.stage);
        let found = cqe.status().with_more(false);
        assert_eq!(found, status, "{described} {carried}");
    }
    let outside = SglDescriptor::in_capsule(u64::from(crate::harness::IN_CAPSULE_BYTES) + 1, 512);
    host.send(write.with_sgl(outside), &[0; 512]);
    let (cqe, _) = host.await_response(&mut scene.stage);
    let found = cqe.status().with_more(false);
    assert_eq!(found, Status::SGL_OFFSET_INVALID.with_dnr());
    for foreign in [
        SglDescriptor::transport(512),
        SglDescriptor::data_block(0, 512),
        SglDescriptor::bit_bucket(512),
        SglDescriptor::segment(0, 16),
    ] {
        let cqe = host.command(&mut scene.stage, Sqe::read(1, 0, 0).with_sgl(foreign));
        let found = cqe.status().with_more(false);
        assert_eq!(found, Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
    }
    scene.finish(3);
}

/// Each kind of device failure ends one connection, and its leases are freed.
#[test]
fn failed_work_requests_end_the_connection() {
    let failures = [
        CompletionStatus::REMOTE_ACCESS_ERROR,
        CompletionStatus::RETRIES_EXCEEDED,
        CompletionStatus::RNR_RETRIES_EXCEEDED,
        CompletionStatus::REMOTE_OPERATION_ERROR,
        CompletionStatus(99),
    ];
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        for status in failures {
            let mut scene = Scene::new();
            let mut victim = scene.victim();
            let once = Pattern::ONCE.of(operation).on(TARGET_MACHINE);
            scene.stage.fabric.add_fault(once, Fault::Fail(status));
            for cid in 0..8 {
                let sqe = match cid % 2 {
                    0 => Sqe::write(1, 0, 7, false),
                    _ => Sqe::read(1, 64, 7),
                };
                let sgl = victim.keyed(usize::from(cid) * 4096, 4096);
                victim.send(sqe.with_cid(cid).with_sgl(sgl), &[]);
            }
            scene.stage.turn_until("a failure", |stage| {
                stage.counters.connections_broken.get() == 1
            });
            assert_eq!(scene.stage.counters.work_failures.get(), 1);
            scene.finish(2);
        }
    }
}

/// The target waits for a receiver that is not ready.
#[test]
fn a_host_that_is_not_ready_is_waited_for() {
    let mut scene = Scene::new();
    let slow = Pattern::ALWAYS.of(Operation::Send).on(TARGET_MACHINE);
    scene.stage.fabric.add_fault(slow, Fault::NotReady(20));
    scene.io.check_io(&mut scene.stage, 1, 1);
    scene.stage.fabric.clear_faults();
    scene.finish(2);
}

/// Hosts wait for this side, which has fewer receives than the host has commands.
#[test]
fn fewer_receives_than_commands_hold_hosts_up_and_lose_nothing() {
    let mut setup = Setup::default();
    setup.rdma.receives = 4;
    let mut scene = Scene::with(setup);
    for cid in 0..32 {
        let sgl = scene.io.keyed(usize::from(cid) * 4096, 4096);
        let sqe = Sqe::read(1, 0, 7).with_cid(cid).with_sgl(sgl);
        scene.io.send(sqe, &[]);
    }
    let Scene { stage, io, .. } = &mut scene;
    stage.turn_until("32 responses", |_| {
        io.poll();
        io.responses.len() == 32
    });
    let machines = [&stage.target_machine, &stage.host_machine];
    assert!(
        machines
            .iter()
            .any(|machine| machine.counters().not_ready > 0)
    );
    io.responses.clear();
    scene.finish(2);
}

/// The connection breaks at every step of a mixed load, in any state of requests.
#[test]
fn connections_drop_at_every_moment() {
    for moment in 0..60 {
        let mut scene = Scene::new();
        let mut victim = scene.victim();
        let slow = Pattern {
            every: 2,
            ..Pattern::ALWAYS.on(TARGET_MACHINE)
        };
        scene
            .stage
            .fabric
            .add_fault(slow, Fault::DelayCompletion(5));
        for cid in 0..8 {
            let at = usize::from(cid) * 65_536;
            let sqe = match cid % 3 {
                0 => Sqe::write(1, 0, 127, false).with_sgl(victim.keyed(at, 65_536)),
                1 => Sqe::read(1, 0, 127).with_sgl(victim.keyed(at, 65_536)),
                _ => Sqe::write(1, 8, 7, false).with_sgl(SglDescriptor::in_capsule(0, 4096)),
            };
            let data = if cid % 3 == 2 {
                vec![1; 4096]
            } else {
                Vec::new()
            };
            victim.send(sqe.with_cid(cid), &data);
        }
        for _ in 0..moment / 2 {
            scene.stage.turn();
        }
        if moment % 2 == 0 {
            scene
                .stage
                .fabric
                .drop_connection(victim.queue_pair.number());
        } else {
            drop(victim);
        }
        scene.stage.fabric.clear_faults();
        scene.finish(2);
    }
}

/// A host vanishes at every step between accept and Connect.
#[test]
fn hosts_vanish_while_connecting() {
    for turns in 0..12 {
        let mut scene = Scene::new();
        let call = Call::queue(2, 8, scene.cntlid);
        let mut victim = Host::connect(&mut scene.stage, &call).expect("accepted");
        victim.write(0, connect_data(scene.cntlid).as_bytes());
        let sqe = Sqe::connect_queue(2, 7, ConnectAttributes::new(), 0);
        let sgl = victim.keyed(0, 1024);
        victim.send(sqe.with_sgl(sgl), &[]);
        for _ in 0..turns {
            scene.stage.turn();
        }
        drop(victim);
        scene.finish(2);
    }
}

#[test]
fn the_device_gives_up_on_a_queue_pair() {
    let mut scene = Scene::new();
    let mut victim = scene.victim();
    let once = Pattern::ONCE.of(Operation::Write).on(TARGET_MACHINE);
    scene.stage.fabric.add_fault(once, Fault::QueuePairFatal);
    let sgl = victim.keyed(0, 512);
    victim.send(Sqe::read(1, 0, 0).with_sgl(sgl), &[]);
    scene.stage.turn_until("a broken connection", |stage| {
        stage.counters.connections_broken.get() == 1
    });
    assert!(scene.stage.counters.device_events.get() > 0);
    scene.finish(2);
}

/// The device is removed: everything on it ends immediately, and every lease is freed.
#[test]
fn a_device_that_is_removed_takes_its_connections_along() {
    let mut scene = Scene::new();
    let slow = Pattern::ALWAYS.of(Operation::Read).on(TARGET_MACHINE);
    scene
        .stage
        .fabric
        .add_fault(slow, Fault::DelayCompletion(1000));
    let sgl = scene.io.keyed(0, 65_536);
    let sqe = Sqe::write(1, 0, 127, false).with_sgl(sgl);
    scene.io.send(sqe, &[]);
    scene.stage.turn();
    let device = scene.stage.target_machine.devices().expect("one").remove(0);
    scene.stage.fabric.remove_device(&device);
    let Scene { stage, .. } = &mut scene;
    for _ in 0..4 {
        stage.turn();
        while let Some(event) = rdma::Device::next_event(&device) {
            let index = rdma::Device::index(&device);
            stage.set.device_event(index, event, stage.now);
        }
    }
    assert!(
        stage.set.is_empty(),
        "{} connections are left",
        stage.set.len()
    );
    assert_eq!(stage.leases_out(), 0);
    assert!(stage.domains.devices().is_empty());
    drop(device);
    assert_eq!(stage.fabric.objects().queue_pairs, 2, "the host's own");
}

#[test]
fn a_port_that_stays_down_ends_its_connections() {
    let mut scene = Scene::new();
    let device = scene.stage.target_machine.devices().expect("one").remove(0);
    scene.io.check_io(&mut scene.stage, 1, 1);
    scene.stage.fabric.set_port(&device, false);
    let sgl = scene.io.keyed(0, 512);
    scene.io.send(Sqe::read(1, 0, 0).with_sgl(sgl), &[]);
    for _ in 0..50 {
        scene.stage.turn();
    }
    assert!(scene.stage.counters.device_events.get() > 0);
    scene.stage.fabric.set_port(&device, true);
    // The host connects again, and the target has lost nothing.
    let (admin, cntlid) = Host::admin(&mut scene.stage);
    scene.io = Host::io(&mut scene.stage, cntlid, 1, 32);
    scene.admin = admin;
    scene.io.check_io(&mut scene.stage, 1, 2);
    assert_eq!(scene.stage.host_machine.machine(), HOST_MACHINE);
    assert_ne!(cntlid, CNTLID_DYNAMIC);
}
