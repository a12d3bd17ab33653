//! Eviction of a host by an operator.

use nvme_reservations::HostIdentifier;
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_target::{CloseReason, HostName, TargetError};

use crate::harness::{
    CLOSED_SUBSYSTEM, ConnectOptions, HOLD, HOST, Link, RAM, STRANGER, SUBSYSTEM, World,
    discovery_call,
};

/// An admin queue on core 0 and an I/O queue on core 1 of the host with that name and identifier.
fn host(world: &mut World, host: &'static str, number: u8) -> (Link, Link) {
    let call = ConnectOptions {
        host,
        host_id: [number; 16],
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(0, &call);
    let cntlid = admin.info.controller_id;
    let io = ConnectOptions {
        cntlid,
        qid: 1,
        ..call
    };
    (admin, world.connect(1, &io))
}

fn write_block(world: &mut World, io: Link) -> bool {
    let sqe = Sqe::write(RAM, 0, 0, false);
    world.write(io, sqe, &[7; 512]).status().is_success()
}

/// All queues of the host are closed, and the eviction is complete when its last command has left
/// the device. Other hosts of the export are served.
#[test]
fn eviction_waits_for_commands_in_devices() {
    let mut world = World::new();
    let (admin, io) = host(&mut world, HOST, 1);
    let (_other_admin, other_io) = host(&mut world, HOST, 2);
    world.fault.arm(HOLD, true);
    let sqe = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let held = world.start(io, sqe.with_cid(900), &[1; 512]);
    assert!(held.is_err(), "the device holds it");
    world.fault.arm(HOLD, false);
    let name = HostName::Identifier(HostIdentifier([1; 16]));
    let evicted = world
        .target
        .evict_host(SUBSYSTEM, &name)
        .expect("it is there");
    assert_eq!(evicted.count(), 1);
    assert!(evicted.hosts().contains(&HostIdentifier([1; 16])));
    world.settle();
    for node in 0..2 {
        assert_eq!(world.close_reasons(node), [CloseReason::Evicted]);
    }
    world.close(io);
    world.close(admin);
    world.settle();
    assert!(!world.target.is_evicted(&evicted), "a write is left");
    world.fault.release();
    world.settle();
    assert!(world.target.is_evicted(&evicted));
    assert!(write_block(&mut world, other_io));
    // The host may return.
    let (_admin, io) = host(&mut world, HOST, 1);
    assert!(write_block(&mut world, io));
    assert!(world.target.is_evicted(&evicted), "another association");
}

/// A host NQN selects all identifiers of the host, on one subsystem only.
#[test]
fn eviction_by_name_ends_all_associations_with_one_subsystem() {
    let mut world = World::new();
    let of_host = [host(&mut world, HOST, 1), host(&mut world, HOST, 2)];
    let stranger = host(&mut world, STRANGER, 1);
    let discovery = world.enabled_by(0, &discovery_call());
    let elsewhere = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    let elsewhere = world.enabled_by(0, &elsewhere);
    let name = HostName::Nqn(HOST.to_owned());
    let evicted = world
        .target
        .evict_host(SUBSYSTEM, &name)
        .expect("it is there");
    assert_eq!((evicted.count(), evicted.hosts().len()), (2, 2));
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::Evicted; 2]);
    assert_eq!(world.close_reasons(1), [CloseReason::Evicted; 2]);
    for (admin, io) in of_host {
        world.close(io);
        world.close(admin);
    }
    world.settle();
    assert!(world.target.is_evicted(&evicted));
    assert!(write_block(&mut world, stranger.1));
    world.command(elsewhere, Sqe::keep_alive()).ok();
    world.command(discovery, Sqe::keep_alive()).ok();
}

#[test]
fn unknown_hosts_and_subsystems_change_nothing() {
    let mut world = World::new();
    let (_admin, io) = host(&mut world, HOST, 1);
    let stranger = HostName::Nqn(STRANGER.to_owned());
    let evicted = world.target.evict_host(SUBSYSTEM, &stranger);
    let evicted = evicted.expect("the subsystem is there");
    assert!(evicted.count() == 0 && world.target.is_evicted(&evicted));
    let zero = HostName::Identifier(HostIdentifier([0; 16]));
    let evicted = world.target.evict_host(SUBSYSTEM, &zero);
    assert_eq!(evicted.expect("the subsystem is there").count(), 0);
    let nqn = "nqn.2026-11.org.windlass:none";
    let refused = world
        .target
        .evict_host(nqn, &HostName::Nqn(HOST.to_owned()));
    let nqn = nqn.to_owned();
    assert_eq!(refused.err(), Some(TargetError::UnknownSubsystem { nqn }));
    world.settle();
    assert!(write_block(&mut world, io));
}
