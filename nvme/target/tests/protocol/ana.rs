//! Asymmetric Namespace Access (Base 2.1 §8.1.1): access of hosts by port, the log, events, and the
//! end of earlier commands.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};

use nvme_spec::command::{Cns, FeatureId, IoOpcode, LogPageId, LogPageSelect};
use nvme_spec::event::AsyncEvent;
use nvme_spec::features::AsyncEventConfiguration;
use nvme_spec::identify::{IdentifyController, IdentifyNamespace, IndependentIdentifyNamespace};
use nvme_spec::log::{AnaGroups, AnaHeader, AnaState as Code};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::{
    ANA_GROUPS_MAX, Admission, AnaPath, AnaState, CoreLimits, NamespaceConfig, PortId,
    SubsystemConfig, TargetConfig, TargetError,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::harness::{
    CACHED, ConnectOptions, HOLD, Link, PLAIN, RAM, READ_ONLY, SUBSYSTEM, TCP_PORT, TCP6_PORT,
    World, subsystem,
};

/// A host's controller and I/O queue at a port.
#[derive(Clone, Copy)]
struct Path {
    admin: Link,
    io: Link,
}

fn path(world: &mut World, node: usize, port: PortId) -> Path {
    let call = ConnectOptions {
        port,
        host_id: [1 + port.0 as u8; 16],
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(node, &call);
    let cntlid = admin.info.controller_id;
    let io = ConnectOptions {
        cntlid,
        qid: 1,
        ..call
    };
    let io = world.connect(node, &io);
    Path { admin, io }
}

fn world_with(change: impl FnOnce(&mut TargetConfig)) -> World {
    let limits = CoreLimits {
        queues_max: 16,
        executions_max: 1024,
    };
    World::with(2, limits, change)
}

/// A world whose namespace RAM is in group 2 and all others in group 1.
fn world() -> World {
    world_with(|config| {
        for namespace in &mut config.subsystems[0].namespaces {
            namespace.ana_group = if namespace.nsid == RAM { 2 } else { 1 };
        }
    })
}

fn set(world: &mut World, port: PortId, group: u32, state: AnaState) -> Receiver<()> {
    let states = BTreeMap::from([(AnaPath { port, group }, state)]);
    let done = world.target.set_ana_states(SUBSYSTEM, &states);
    world.settle();
    done.expect("a right change")
}

fn is_done(done: &Receiver<()>) -> bool {
    done.try_recv() == Err(TryRecvError::Disconnected)
}

fn write(nsid: u32) -> Sqe {
    let bytes = if nsid == CACHED { 4096 } else { 512 };
    Sqe::write(nsid, 0, 0, false).with_sgl(SglDescriptor::transport(bytes))
}

fn write_status(world: &mut World, io: Link, nsid: u32) -> Status {
    let bytes = if nsid == CACHED { 4096 } else { 512 };
    world.write(io, write(nsid), &vec![3; bytes]).status()
}

fn read_status(world: &mut World, io: Link, nsid: u32) -> Status {
    world.read(io, Sqe::read(nsid, 0, 0), 512).status()
}

/// The groups of the log with their states and namespaces, and the change count.
fn log(world: &mut World, admin: Link, lsp: u8) -> (u64, Vec<(u32, Code, Vec<u32>)>) {
    let select = LogPageSelect::new()
        .with_lid(LogPageId::ANA)
        .with_lsp(lsp)
        .with_numd_z(4096 / 4 - 1);
    let data = world.read(admin, Sqe::log_page(0, select, 0), 4096).ok();
    let (header, _) = AnaHeader::read_from_prefix(&data).unwrap();
    let groups = AnaGroups::new(&data).unwrap();
    let groups: Vec<_> = groups
        .map(|(group, nsids)| {
            let nsids = nsids.iter().map(|nsid| nsid.get()).collect();
            (group.grpid.get(), group.state.state(), nsids)
        })
        .collect();
    assert_eq!(groups.len(), usize::from(header.ngrps.get()));
    (header.chgcnt.get(), groups)
}

fn identify<T: FromBytes>(world: &mut World, admin: Link, cns: Cns, nsid: u32) -> T {
    let data = world
        .read(admin, Sqe::identify_structure(cns, nsid), 4096)
        .ok();
    T::read_from_bytes(&data).unwrap()
}

/// Base 2.1 §5.1.13.2.1: what hosts have to know before they read the log.
#[test]
fn identify_reports_ana_and_the_group_of_each_namespace() {
    let mut world = world();
    let at = path(&mut world, 0, TCP_PORT);
    let page: IdentifyController = identify(&mut world, at.admin, Cns::CONTROLLER, 0);
    assert!(page.cmic.ana_reporting() && page.oaes.ana_change());
    assert!(page.anacap.change() && page.anacap.persistent_loss() && !page.anacap.group_fixed());
    assert_eq!(page.anagrpmax.get(), ANA_GROUPS_MAX);
    assert_eq!(page.nanagrpid.get(), ANA_GROUPS_MAX);
    assert_ne!(page.anatt, 0);
    for (nsid, group) in [(RAM, 2), (CACHED, 1)] {
        let page: IdentifyNamespace = identify(&mut world, at.admin, Cns::NAMESPACE, nsid);
        assert_eq!(page.anagrpid.get(), group);
        let cns = Cns::INDEPENDENT_NAMESPACE;
        let page: IndependentIdentifyNamespace = identify(&mut world, at.admin, cns, nsid);
        assert_eq!(page.anagrpid.get(), group);
    }
}

#[test]
fn each_port_has_its_own_states() {
    let mut world = world();
    let at = path(&mut world, 0, TCP_PORT);
    let other = path(&mut world, 1, TCP6_PORT);
    for (state, status) in [
        (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (AnaState::Change, Status::ANA_TRANSITION),
    ] {
        let done = set(&mut world, TCP_PORT, 2, state);
        assert!(is_done(&done), "there was no command");
        assert_eq!(write_status(&mut world, at.io, RAM), status);
        assert_eq!(read_status(&mut world, at.io, RAM), status);
        let flush = Sqe::new(IoOpcode::FLUSH.0, NSID_BROADCAST);
        assert_eq!(world.command(at.io, flush).status(), status);
        assert!(write_status(&mut world, at.io, PLAIN).is_success());
        assert!(write_status(&mut world, other.io, RAM).is_success());
        let page: IdentifyNamespace = identify(&mut world, at.admin, Cns::NAMESPACE, RAM);
        assert!(page.nuse.get() == 0 && page.nsze.get() != 0);
        let later = path(&mut world, 0, TCP_PORT);
        assert_eq!(
            write_status(&mut world, later.io, RAM),
            status,
            "a new controller"
        );
        for link in [later.io, later.admin] {
            world.close(link);
        }
    }
    for state in [AnaState::NonOptimized, AnaState::Optimized] {
        let _ = set(&mut world, TCP_PORT, 2, state);
        assert!(write_status(&mut world, at.io, RAM).is_success());
        assert!(read_status(&mut world, at.io, RAM).is_success());
    }
}

/// A Flush of all namespaces needs access to each of them, not only to the first.
#[test]
fn a_flush_of_all_namespaces_needs_access_to_each() {
    let mut world = world_with(|config| {
        for namespace in &mut config.subsystems[0].namespaces {
            namespace.ana_group = if namespace.nsid == PLAIN { 2 } else { 1 };
        }
    });
    let at = path(&mut world, 0, TCP_PORT);
    let flush = Sqe::flush(NSID_BROADCAST);
    let _ = set(&mut world, TCP_PORT, 2, AnaState::Inaccessible);
    assert_eq!(
        world.command(at.io, flush).status(),
        Status::ANA_INACCESSIBLE
    );
    let _ = set(&mut world, TCP_PORT, 2, AnaState::Optimized);
    world.command(at.io, flush).ok();
}

/// Base 2.1 §5.1.12.1.13: the log, its change count, and Return Groups Only.
#[test]
fn the_log_shows_groups_with_namespaces() {
    let mut world = world();
    let at = path(&mut world, 0, TCP_PORT);
    let others = vec![CACHED, READ_ONLY, PLAIN];
    let (_, groups) = log(&mut world, at.admin, 0);
    let expected = |state| vec![(1, Code::OPTIMIZED, others.clone()), (2, state, vec![RAM])];
    assert_eq!(groups, expected(Code::OPTIMIZED));
    let _ = set(&mut world, TCP6_PORT, 2, AnaState::Inaccessible);
    assert_eq!(log(&mut world, at.admin, 0), (0, groups), "another port");
    let _ = set(&mut world, TCP_PORT, 2, AnaState::NonOptimized);
    let changed = log(&mut world, at.admin, 0);
    assert_eq!(changed, (1, expected(Code::NON_OPTIMIZED)));
    let (_, only) = log(&mut world, at.admin, 1);
    assert_eq!(
        only,
        [
            (1, Code::OPTIMIZED, vec![]),
            (2, Code::NON_OPTIMIZED, vec![])
        ]
    );
}

/// Base 2.1 §5.1.2.1: one event for each change, until the log is read.
#[test]
fn a_change_is_an_event_at_its_port() {
    let mut world = world();
    let at = path(&mut world, 0, TCP_PORT);
    let configuration = AsyncEventConfiguration::new().with_ana_change(true);
    let fid = FeatureId::ASYNC_EVENT_CONFIGURATION;
    world
        .set_feature(at.admin, fid, configuration.into_bits())
        .ok();
    let request = |world: &mut World| {
        let sqe = Sqe::async_event_request().with_cid(world.cid());
        world.start(at.admin, sqe, &[]).expect_err("held")
    };
    let first = request(&mut world);
    let second = request(&mut world);
    let _ = set(&mut world, TCP6_PORT, 2, AnaState::Inaccessible);
    assert!(world.take_reply(0, first).is_none(), "another port");
    let _ = set(&mut world, TCP_PORT, 2, AnaState::Inaccessible);
    let event = world.wait(at.admin, first);
    assert_eq!(AsyncEvent::from_bits(event.dw0()), AsyncEvent::ANA_CHANGED);
    let _ = set(&mut world, TCP_PORT, 2, AnaState::Optimized);
    assert!(world.take_reply(0, second).is_none(), "masked");
    log(&mut world, at.admin, 0);
    let _ = set(&mut world, TCP_PORT, 1, AnaState::NonOptimized);
    let event = world.wait(at.admin, second);
    assert_eq!(AsyncEvent::from_bits(event.dw0()), AsyncEvent::ANA_CHANGED);
}

/// A change is complete when no write that was started before it is left.
#[test]
fn a_change_waits_for_started_writes_and_refuses_others() {
    let mut world = world();
    let at = path(&mut world, 1, TCP_PORT);
    world.fault.arm(HOLD, true);
    let in_device = world.start(at.io, write(RAM).with_cid(900), &[1; 512]);
    let in_device = in_device.expect_err("the device holds it");
    let now = world.now;
    let core = &mut world.nodes[1].core;
    let admitted = core.admit(at.io.queue, 77, &write(RAM).with_cid(901), now);
    let Admission::Work(fetching) = admitted else {
        panic!("{admitted:?}")
    };
    let elsewhere = set(&mut world, TCP_PORT, 1, AnaState::Inaccessible);
    assert!(is_done(&elsewhere), "no command of this group");
    let done = set(&mut world, TCP_PORT, 2, AnaState::Inaccessible);
    assert!(!is_done(&done));
    let refused = world.execute(at.io, 77, fetching, &[2; 512]);
    refused.expect("at once").is(Status::ANA_INACCESSIBLE);
    let back = set(&mut world, TCP_PORT, 2, AnaState::Optimized);
    assert!(is_done(&back) && !is_done(&done));
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.settle();
    world.wait(at.io, in_device).ok();
    assert!(is_done(&done));
    assert_eq!(world.read_blocks(at.io, RAM, 0, 1), [1; 512]);
}

/// A write whose host has disconnected meanwhile is awaited too.
#[test]
fn a_change_waits_for_orphaned_writes() {
    let mut world = world();
    let at = path(&mut world, 1, TCP_PORT);
    world.fault.arm(HOLD, true);
    assert!(
        world
            .start(at.io, write(RAM).with_cid(900), &[1; 512])
            .is_err()
    );
    world.close(at.io);
    world.close(at.admin);
    let done = set(&mut world, TCP_PORT, 2, AnaState::Inaccessible);
    assert!(!is_done(&done));
    world.fault.release();
    world.settle();
    assert!(is_done(&done));
}

/// A subsystem that was removed and added again meanwhile is the same one.
#[test]
fn a_change_waits_for_orphans_of_the_removed_subsystem() {
    let mut world = world();
    let at = path(&mut world, 1, TCP_PORT);
    world.fault.arm(HOLD, true);
    let started = world.start(at.io, write(RAM).with_cid(900), &[1; 512]);
    started.expect_err("the device holds it");
    world.close(at.io);
    world.close(at.admin);
    let subsystem = world.target.configuration().subsystems[0].clone();
    let removed = world.target.remove_subsystem(SUBSYSTEM);
    removed.expect("it exists");
    world.settle();
    world.target.add_subsystem(subsystem).expect("right");
    world.settle();
    let done = set(&mut world, TCP_PORT, 2, AnaState::Inaccessible);
    assert!(!is_done(&done));
    world.fault.release();
    world.settle();
    assert!(is_done(&done));
}

/// A namespace that moves to another group takes that group's state.
#[test]
fn a_namespace_takes_the_state_of_its_new_group() {
    let mut world = world();
    let at = path(&mut world, 0, TCP_PORT);
    let _ = set(&mut world, TCP_PORT, 3, AnaState::Inaccessible);
    assert!(
        write_status(&mut world, at.io, RAM).is_success(),
        "no member"
    );
    let mut namespaces = world.target.configuration().subsystems[0]
        .namespaces
        .clone();
    namespaces[0].ana_group = 3;
    let changed = world
        .target
        .update_namespaces(SUBSYSTEM, namespaces.clone());
    changed.expect("a right change");
    world.settle();
    assert_eq!(
        write_status(&mut world, at.io, RAM),
        Status::ANA_INACCESSIBLE
    );
    namespaces.remove(0);
    let changed = world.target.update_namespaces(SUBSYSTEM, namespaces);
    changed.expect("a right change");
    world.settle();
    assert!(write_status(&mut world, at.io, PLAIN).is_success());
}

#[test]
fn wrong_groups_ports_and_controller_identifiers_are_refused() {
    let mut world = world();
    let state = |port, group| BTreeMap::from([(AnaPath { port, group }, AnaState::Change)]);
    let unknown = world
        .target
        .set_ana_states("nqn.2026-11.org.x:no", &state(TCP_PORT, 1));
    assert!(matches!(unknown, Err(TargetError::UnknownSubsystem { .. })));
    for group in [0, ANA_GROUPS_MAX + 1] {
        let refused = world
            .target
            .set_ana_states(SUBSYSTEM, &state(TCP_PORT, group));
        assert!(matches!(refused, Err(TargetError::AnaGroup { .. })));
    }
    let refused = world
        .target
        .set_ana_states(SUBSYSTEM, &state(PortId(77), 1));
    assert!(matches!(refused, Err(TargetError::Port { .. })));
    let mut current = world.target.configuration().subsystems[0].clone();
    let ports = current.ports.clone();
    current.ports = vec![TCP6_PORT];
    (world.target.update_subsystem(current.clone())).expect("a known port");
    let not_offered = world.target.set_ana_states(SUBSYSTEM, &state(TCP_PORT, 1));
    assert!(matches!(not_offered, Err(TargetError::Port { .. })));
    current.ports = ports;
    (world.target.update_subsystem(current.clone())).expect("known ports");
    let twice = NamespaceConfig {
        nsid: 9,
        ana_group: 5,
        ..current.namespaces[0].clone()
    };
    let namespaces = [current.namespaces.clone(), vec![twice]].concat();
    let refused = world.target.update_namespaces(SUBSYSTEM, namespaces);
    assert!(matches!(refused, Err(TargetError::AnaGroupOfDevice { .. })));
    #[expect(clippy::reversed_empty_ranges, reason = "a wrong configuration")]
    for controller_ids in [0..=5, 9..=3, 1..=u16::MAX] {
        let refused = world.target.update_subsystem(SubsystemConfig {
            controller_ids,
            ..current.clone()
        });
        assert!(matches!(refused, Err(TargetError::ControllerIds { .. })));
    }
    assert_eq!(world.target.configuration().subsystems[0], current);
    world.settle();
}

/// Two targets that serve one subsystem have different identifiers.
#[test]
fn controllers_have_identifiers_of_their_range() {
    let mut world = world_with(|config| {
        let namespaces = config.subsystems[0].namespaces.clone();
        config.subsystems[0] = SubsystemConfig {
            controller_ids: 100..=101,
            ..subsystem(SUBSYSTEM, namespaces)
        };
    });
    let (one, two) = (world.enabled(0), world.enabled(1));
    assert_eq!((one.info.controller_id, two.info.controller_id), (100, 101));
    let refused = world.try_connect(0, &ConnectOptions::default());
    assert!(refused.is_err(), "no identifier is left");
    world.close(one);
    world.settle();
    assert_eq!(world.enabled(0).info.controller_id, 100);
}

/// A namespace whose device another target serves too reports no reservations and has none.
#[test]
fn a_shared_device_has_no_reservations() {
    let mut world = world_with(|config| {
        config.subsystems[0].namespaces[0].reservations = false;
    });
    let at = path(&mut world, 0, TCP_PORT);
    let page: IdentifyNamespace = identify(&mut world, at.admin, Cns::NAMESPACE, RAM);
    assert_eq!(page.rescap.into_bits(), 0);
    let sqe = Sqe::new(IoOpcode::RESERVATION_REGISTER.0, RAM);
    let reply = world.write(at.io, sqe, [0_u64, 1].as_bytes());
    reply.is(Status::INVALID_OPCODE.with_dnr());
}

/// An operator's change does not undo the removal of a subsystem that has begun.
#[test]
fn a_draining_subsystem_stays_closed() {
    let mut world = world();
    let drained = world.target.drain_subsystem(SUBSYSTEM);
    drained.expect("it exists");
    let _ = set(&mut world, TCP_PORT, 2, AnaState::NonOptimized);
    let refused = world.try_connect(0, &ConnectOptions::default());
    assert!(refused.is_err());
}
