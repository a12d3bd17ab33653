//! Devices, subsystems, ports and hosts that are added and removed under I/O.

use std::sync::Arc;

use block::{Device, Drain, MemoryDevice, MemoryOptions, NullDevice, NullOptions, QueueOptions};
use hugemem::PagePolicy;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::{
    Admission, CloseReason, DeviceIndex, NamespaceConfig, Outstanding, SubsystemConfig, TargetError,
};

use crate::harness::{
    CLOSED_SUBSYSTEM, ConnectOptions, HOLD, HOST, Link, RAM, SUBSYSTEM, TCP_PORT, World, config,
    discovery_call, namespace,
};

/// A namespace that is added later.
const LATE: u32 = 9;

fn memory(name: &str) -> Arc<dyn Device> {
    let device = MemoryDevice::new(MemoryOptions {
        name: name.to_owned(),
        uuid: [3; 16],
        size_bytes: 1 << 20,
        block_size: 512,
        pages: PagePolicy::Ordinary,
        read_only: false,
    });
    Arc::new(device.expect("a small device"))
}

/// Adds a device to the target and a queue of it to every core.
fn attach(world: &mut World, device: &Arc<dyn Device>) -> DeviceIndex {
    let place = world.target.add_device(Arc::clone(device)).expect("room");
    for (core, node) in world.nodes.iter_mut().enumerate() {
        let options = QueueOptions::new(core, 16, node.pool.clone());
        let attached = node.attach(usize::from(place.0), &**device, options);
        attached.expect("a queue");
    }
    place
}

fn detach(world: &mut World, device: DeviceIndex) -> Vec<Drain> {
    let nodes = world.nodes.iter_mut();
    let place = usize::from(device.0);
    nodes.map(|node| node.detach(place)).collect()
}

/// The initial configuration of a subsystem.
fn subsystem(world: &World, nqn: &str) -> SubsystemConfig {
    let subsystems = config(&world.devices()).subsystems.into_iter();
    let mut found = subsystems.filter(|subsystem| subsystem.nqn == nqn);
    found.next().expect("it is there")
}

/// Configures the usual namespaces and `more`.
fn serve(world: &mut World, more: Option<NamespaceConfig>) {
    let usual = subsystem(world, SUBSYSTEM).namespaces;
    let namespaces = usual.into_iter().chain(more).collect();
    let changed = world.target.update_namespaces(SUBSYSTEM, namespaces);
    changed.expect("a right change");
    world.settle();
}

fn write(nsid: u32, lba: u64) -> Sqe {
    Sqe::write(nsid, lba, 0, false).with_sgl(SglDescriptor::transport(512))
}

#[test]
fn invalid_changes_are_refused() {
    let mut world = World::new();
    let small = NullDevice::new(NullOptions {
        name: "small".to_owned(),
        uuid: [4; 16],
        size_bytes: 1 << 20,
        block_size: 512,
    });
    let small: Arc<dyn Device> = Arc::new(small.expect("a device"));
    let before = world.target.devices().len();
    for place in before..nvme_target::DEVICES_MAX {
        let added = world.target.add_device(Arc::clone(&small));
        assert_eq!(added, Ok(DeviceIndex(place as u16)));
    }
    let count = nvme_target::DEVICES_MAX + 1;
    let full = world.target.add_device(small);
    assert_eq!(full, Err(TargetError::TooManyDevices { count }));
    let device = DeviceIndex(0);
    let used = world.target.remove_device(device);
    assert_eq!(used, Err(TargetError::DeviceInUse { device }));
    for place in before..nvme_target::DEVICES_MAX {
        let removed = world.target.remove_device(DeviceIndex(place as u16));
        assert_eq!(removed, Ok(()));
    }
    let without_device = NamespaceConfig {
        device: DeviceIndex(before as u16),
        ..namespace(LATE, 0, &*world.devices()[0])
    };
    let unknown = world
        .target
        .update_namespaces(SUBSYSTEM, vec![without_device]);
    assert!(matches!(unknown, Err(TargetError::UnknownDevice { .. })));
    let mut wanted = subsystem(&world, SUBSYSTEM);
    wanted.io_queues_max = 0;
    let queues = world.target.update_subsystem(wanted);
    assert!(matches!(queues, Err(TargetError::Queues { .. })));
    let none = world
        .target
        .drain_subsystem("nqn.2026-11.org.windlass:none");
    assert!(matches!(none, Err(TargetError::UnknownSubsystem { .. })));
    assert!(world.target.limit_controllers(0).is_err());
    let (_, io) = world.ready();
    world
        .write(io, Sqe::write(RAM, 0, 0, false), &[1; 512])
        .ok();
}

#[test]
fn device_is_added_and_removed_under_io() {
    let mut world = World::new();
    let (_, io) = world.ready();
    for round in 0..3 {
        let device = memory("late");
        let place = attach(&mut world, &device);
        serve(&mut world, Some(namespace(LATE, place.0, &*device)));
        world.write(io, write(LATE, 5), &[7 + round; 512]).ok();
        assert_eq!(world.read_blocks(io, LATE, 5, 1), [7 + round; 512]);
        // A new device with the same index is empty.
        assert_eq!(world.read_blocks(io, LATE, 6, 1), [0; 512]);
        world.write(io, write(RAM, 5), &[1; 512]).ok();
        serve(&mut world, None);
        world
            .command(io, Sqe::flush(LATE))
            .is(Status::INVALID_FIELD.with_dnr());
        assert_eq!(detach(&mut world, place), [Drain::Done; 2]);
        world.target.remove_device(place).expect("nobody uses it");
        world.settle();
        assert_eq!(world.read_blocks(io, RAM, 5, 1), [1; 512]);
        assert_eq!(world.target.snapshot().devices.len(), 4);
        assert_eq!(Arc::strong_count(&device), 1, "nobody keeps it");
    }
}

/// Starts a write that the harness' first device holds back, and removes the device's namespaces.
fn hold_a_write(world: &mut World) -> (Link, u64) {
    let (_, io) = world.ready();
    world.fault.arm(HOLD, true);
    let held = world.start(io, write(RAM, 0).with_cid(1), &[5; 512]);
    let tag = held.expect_err("in the device");
    let mut namespaces = subsystem(world, SUBSYSTEM).namespaces;
    namespaces.retain(|namespace| namespace.device != DeviceIndex(0));
    let changed = world.target.update_namespaces(SUBSYSTEM, namespaces);
    changed.expect("a right change");
    world
        .target
        .remove_subsystem(CLOSED_SUBSYSTEM)
        .expect("there");
    (io, tag)
}

#[test]
fn device_is_released_after_its_requests_complete() {
    let mut world = World::new();
    let (io, tag) = hold_a_write(&mut world);
    let place = DeviceIndex(0);
    let one = Drain::Outstanding(1);
    // A core that has not seen the change does not release the device.
    assert_eq!(detach(&mut world, place)[0], one);
    world.settle();
    assert_eq!(detach(&mut world, place), [one, Drain::Done]);
    let named = world.nodes[0].core.outstanding(&[place]);
    let commands = Outstanding {
        subsystem_nqn: SUBSYSTEM.to_owned(),
        host_nqn: HOST.to_owned(),
        qid: 1,
        commands: 1,
    };
    assert_eq!(named, [commands]);
    world.fault.release();
    world.wait(io, tag).ok();
    assert_eq!(detach(&mut world, place), [Drain::Done; 2]);
    assert_eq!(world.nodes[0].core.outstanding(&[place]), []);
    world.target.remove_device(place).expect("nobody uses it");
    world.settle();
    assert_eq!(world.leases(), 0);
}

#[test]
fn unresponsive_device_is_cut_off() {
    let mut world = World::new();
    let (io, tag) = hold_a_write(&mut world);
    let orphan = world.io_queue(1, Link { node: 0, ..io }, 2);
    world.settle();
    let place = DeviceIndex(0);
    assert_eq!(detach(&mut world, place)[0], Drain::Outstanding(1));
    let now = world.now;
    for node in &mut world.nodes {
        node.cut(usize::from(place.0), now);
    }
    world.wait(io, tag).is(Status::INTERNAL_PATH_ERROR);
    assert_eq!(detach(&mut world, place), [Drain::Done; 2]);
    world.close(orphan);
    world.fault.release();
    world.settle();
    assert_eq!(world.nodes[0].core.in_flight(), 0);
    assert_eq!(world.leases(), 0);
    // The queue continues.
    world.command(io, Sqe::flush(0xffff_ffff)).ok();
}

/// A write whose data is being fetched when its device is removed must not reach the next device
/// with the same index.
#[test]
fn stale_write_does_not_reach_a_replacement_device() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let first = memory("first");
    let place = attach(&mut world, &first);
    serve(&mut world, Some(namespace(LATE, place.0, &*first)));
    let (tag, now) = (world.tag(), world.now);
    let admitted = world.nodes[0]
        .core
        .admit(io.queue, tag, &write(LATE, 0), now);
    let Admission::Work(work) = admitted else {
        panic!("{admitted:?}");
    };
    serve(&mut world, None);
    assert_eq!(detach(&mut world, place), [Drain::Done; 2]);
    world.target.remove_device(place).expect("nobody uses it");
    let second = memory("second");
    assert_eq!(attach(&mut world, &second), place);
    serve(&mut world, Some(namespace(LATE, place.0, &*second)));
    let reply = world.execute(io, tag, work, &[9; 512]);
    reply
        .expect("refused at once")
        .is(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
    assert_eq!(world.read_blocks(io, LATE, 0, 1), [0; 512]);
}

/// A Flush of all namespaces refers to no device, so a new device at the first index does not
/// affect it.
#[test]
fn broadcast_flush_continues_after_device_replacement() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let (tag, now) = (world.tag(), world.now);
    let flush = Sqe::flush(NSID_BROADCAST);
    let admitted = world.nodes[0].core.admit(io.queue, tag, &flush, now);
    let Admission::Work(work) = admitted else {
        panic!("{admitted:?}");
    };
    let first = DeviceIndex(0);
    for mut wanted in config(&world.devices()).subsystems {
        wanted.namespaces.retain(|it| it.device != first);
        let updated = world
            .target
            .update_namespaces(&wanted.nqn, wanted.namespaces);
        updated.expect("a right change");
    }
    world.settle();
    assert_eq!(detach(&mut world, first), [Drain::Done; 2]);
    world.target.remove_device(first).expect("nobody uses it");
    assert_eq!(attach(&mut world, &memory("second")), first);
    world.settle();
    let reply = world.execute(io, tag, work, &[]);
    reply.unwrap_or_else(|| world.wait(io, tag)).ok();
}

#[test]
fn associations_end_after_responses() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let (near, far) = (world.io_queue(0, admin, 1), world.io_queue(1, admin, 2));
    world.fault.arm(HOLD, true);
    let held = world.start(far, write(RAM, 0).with_cid(1), &[5; 512]);
    let tag = held.expect_err("in the device");
    world
        .target
        .drain_subsystem(SUBSYSTEM)
        .expect("it is there");
    world.settle();
    assert_eq!(world.target.draining_controllers(), 1);
    assert_eq!(world.close_reasons(0), [CloseReason::Revoked]);
    world.close(near);
    // A new command gets no response: the connection closes, so that the host sends it on another
    // path.
    let late = world.start(far, write(RAM, 1).with_cid(2), &[6; 512]);
    let late = late.expect_err("held");
    assert!(world.try_connect(0, &ConnectOptions::default()).is_err());
    let waits = Outstanding {
        subsystem_nqn: SUBSYSTEM.to_owned(),
        host_nqn: HOST.to_owned(),
        qid: 2,
        commands: 1,
    };
    assert_eq!(world.nodes[1].core.outstanding(&[]), [waits]);
    world.settle();
    assert_eq!((world.closes(0), world.closes(1)), (vec![], vec![]));
    world.fault.release();
    world.settle();
    world.wait(far, tag).ok();
    assert!(world.take_reply(1, late).is_none());
    assert_eq!(world.close_reasons(1), [CloseReason::Revoked]);
    world.close(far);
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::Revoked]);
    world.close(admin);
    assert_eq!(world.target.draining_controllers(), 0);
    world.target.remove_subsystem(SUBSYSTEM).expect("retired");
}

#[test]
fn drain_timeout_ends_associations() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.fault.arm(HOLD, true);
    let held = world.start(io, write(RAM, 0).with_cid(1), &[5; 512]);
    held.expect_err("in the device");
    world
        .target
        .drain_subsystem(SUBSYSTEM)
        .expect("it is there");
    world.settle();
    assert_eq!(world.closes(0), []);
    world.target.end_draining();
    world.settle();
    let reasons = world.close_reasons(0);
    assert_eq!(reasons, [CloseReason::Revoked; 2]);
    world.close(io);
    world.close(admin);
    assert_eq!(
        world.target.draining_controllers(),
        1,
        "its command is in the device"
    );
    world.fault.release();
    world.settle();
    assert_eq!(world.target.draining_controllers(), 0);
    assert_eq!(world.leases(), 0);
}

/// Hosts read Identify Controller when they connect, so they have to reconnect for a changed one.
#[test]
fn changed_controller_identity_disconnects_hosts() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let other = world.enabled_by(
        1,
        &ConnectOptions {
            subsystem: CLOSED_SUBSYSTEM,
            ..ConnectOptions::default()
        },
    );
    let mut wanted = subsystem(&world, SUBSYSTEM);
    wanted.serial = "another".to_owned();
    wanted.io_queues_max = 2;
    world.target.update_subsystem(wanted).expect("right");
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::Reconfigured]);
    world.close(io);
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::Reconfigured]);
    world.close(admin);
    assert_eq!(world.close_reasons(1), [], "another subsystem's host");
    world.csts(other);
    world.ready();
}

#[test]
fn closing_a_port_ends_its_connections() {
    let mut world = World::new();
    let discovery = world.enabled_by(1, &discovery_call());
    let (_, io) = world.ready();
    for nqn in [SUBSYSTEM, CLOSED_SUBSYSTEM] {
        let mut wanted = subsystem(&world, nqn);
        wanted.ports.retain(|port| *port != TCP_PORT);
        world.target.update_subsystem(wanted).expect("right");
    }
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::Revoked]);
    assert_eq!(world.close_reasons(1), []);
    world.close(io);
    let mut ports = config(&world.devices()).ports;
    ports.retain(|port| port.id != TCP_PORT);
    world.target.update_ports(ports).expect("nobody names it");
    world.settle();
    assert_eq!(world.close_reasons(1), [CloseReason::Revoked]);
    world.close(discovery);
    assert!(world.try_connect(0, &ConnectOptions::default()).is_err());
}
