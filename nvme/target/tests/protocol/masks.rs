//! Masks of namespaces: a host sees, learns of and changes only what is its own.

use std::collections::BTreeMap;

use block::Operation;
use nvme_spec::command::{Cns, FeatureId, FeatureSelect, LogPageId, LogPageSelect};
use nvme_spec::event::AsyncEvent;
use nvme_spec::features::AsyncEventConfiguration;
use nvme_spec::identify::{IdentifyController, IdentifyNamespace};
use nvme_spec::log::AnaGroups;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::{
    Admission, CloseReason, CoreLimits, MASKS_MAX, MaskedAccess, NamespaceMask, SubsystemConfig,
    TargetError,
};
use zerocopy::FromBytes;

use crate::harness::{
    CACHED, CLOSED_SUBSYSTEM, ConnectOptions, HOST, Link, PLAIN, RAM, READ_ONLY, SUBSYSTEM, World,
};

/// A host without a mask.
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000000b";

fn mask(namespaces: &[(u32, MaskedAccess)]) -> NamespaceMask {
    NamespaceMask {
        hosts: vec![HOST.to_owned()],
        namespaces: namespaces.iter().copied().collect(),
    }
}

/// A world in which HOST sees these namespaces.
fn world(namespaces: &[(u32, MaskedAccess)]) -> World {
    let limits = CoreLimits {
        queues_max: 16,
        executions_max: 1024,
    };
    World::with(2, limits, |config| {
        config.subsystems[0].masks = vec![mask(namespaces)];
    })
}

/// Replaces the masks.
fn set_masks(world: &mut World, masks: Vec<NamespaceMask>) {
    let changed = with_masks(world, masks);
    world.target.update_subsystem(changed).unwrap();
    world.settle();
}

fn with_masks(world: &World, masks: Vec<NamespaceMask>) -> SubsystemConfig {
    let all = crate::harness::config(&world.devices());
    SubsystemConfig {
        masks,
        ..all.subsystems[0].clone()
    }
}

/// The admin queue and an I/O queue of a host.
fn attach(world: &mut World, node: usize, host: &'static str) -> (Link, Link) {
    let call = ConnectOptions {
        host,
        host_id: if host == HOST { [1; 16] } else { [2; 16] },
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(node, &call);
    let io = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..call
    };
    (admin, world.connect(node, &io))
}

fn list(world: &mut World, admin: Link, cns: Cns) -> Vec<u32> {
    let data = world
        .read(admin, Sqe::identify_structure(cns, 0), 4096)
        .ok();
    let entries = data.chunks_exact(4);
    entries
        .map(|it| u32::from_le_bytes(it.try_into().unwrap()))
        .take_while(|it| *it != 0)
        .collect()
}

fn controllers(world: &mut World, admin: Link, nsid: u32) -> Vec<u16> {
    let sqe = Sqe::identify_structure(Cns::NAMESPACE_CONTROLLER_LIST, nsid);
    let data = world.read(admin, sqe, 4096).ok();
    let entries = data.chunks_exact(2);
    let mut entries = entries.map(|it| u16::from_le_bytes(it.try_into().unwrap()));
    let count = entries.next().unwrap();
    entries.take(usize::from(count)).collect()
}

fn identify_namespace(world: &mut World, admin: Link, nsid: u32) -> IdentifyNamespace {
    let sqe = Sqe::identify_structure(Cns::NAMESPACE, nsid);
    let data = world.read(admin, sqe, 4096).ok();
    IdentifyNamespace::read_from_bytes(&data).unwrap()
}

fn write(nsid: u32) -> Sqe {
    Sqe::write(nsid, 0, 0, false).with_sgl(SglDescriptor::transport(512))
}

fn read(nsid: u32) -> Sqe {
    Sqe::read(nsid, 0, 0).with_sgl(SglDescriptor::transport(512))
}

fn write_status(world: &mut World, io: Link, nsid: u32) -> Status {
    world.write(io, write(nsid), &[3; 512]).status()
}

/// A host with a mask in each of two exports sees in each what that one's mask shows.
#[test]
fn a_mask_is_that_of_its_export() {
    let limits = CoreLimits {
        queues_max: 16,
        executions_max: 1024,
    };
    let mut world = World::with(2, limits, |config| {
        config.subsystems[0].masks = vec![mask(&[(PLAIN, MaskedAccess::Unrestricted)])];
        config.subsystems[1].masks = vec![mask(&[(1, MaskedAccess::ReadOnly)])];
    });
    for (subsystem, seen, status) in [
        (SUBSYSTEM, PLAIN, Status::SUCCESS),
        (CLOSED_SUBSYSTEM, 1, Status::NAMESPACE_WRITE_PROTECTED),
    ] {
        let call = ConnectOptions {
            subsystem,
            ..ConnectOptions::default()
        };
        let admin = world.enabled_by(0, &call);
        assert_eq!(list(&mut world, admin, Cns::ACTIVE_NAMESPACE_LIST), [seen]);
        let io = ConnectOptions {
            cntlid: admin.info.controller_id,
            qid: 1,
            ..call
        };
        let io = world.connect(0, &io);
        assert!(write_status(&mut world, io, seen).is(status));
    }
}

fn read_status(world: &mut World, io: Link, nsid: u32) -> Status {
    world.read(io, Sqe::read(nsid, 0, 0), 512).status()
}

const FULL: MaskedAccess = MaskedAccess::Unrestricted;

#[test]
fn a_masked_host_learns_only_of_its_namespaces() {
    let mut world = world(&[(RAM, FULL)]);
    let (admin, io) = attach(&mut world, 0, HOST);
    let (other_admin, other_io) = attach(&mut world, 1, OTHER);
    for cns in [Cns::ACTIVE_NAMESPACE_LIST, Cns::IO_ACTIVE_NAMESPACE_LIST] {
        assert_eq!(list(&mut world, admin, cns), [RAM]);
        let all = list(&mut world, other_admin, cns);
        assert_eq!(all, [RAM, CACHED, READ_ONLY, PLAIN]);
    }
    // As for a namespace that is not active.
    assert_eq!(identify_namespace(&mut world, admin, PLAIN).nsze.get(), 0);
    assert_ne!(
        identify_namespace(&mut world, other_admin, PLAIN)
            .nsze
            .get(),
        0
    );
    for cns in [Cns::NAMESPACE_DESCRIPTORS, Cns::NAMESPACE_CONTROLLER_LIST] {
        let reply = world.read(admin, Sqe::identify_structure(cns, PLAIN), 4096);
        reply.is(Status::INVALID_FIELD.with_dnr());
    }
    // The size of tables does not depend on the mask.
    let sqe = Sqe::identify_structure(Cns::CONTROLLER, 0);
    let pages = [admin, other_admin].map(|it| {
        let data = world.read(it, sqe, 4096).ok();
        IdentifyController::read_from_bytes(&data).unwrap()
    });
    assert_eq!(pages[0].nn.get(), pages[1].nn.get());
    let ids = [admin, other_admin].map(|it| it.info.controller_id);
    assert_eq!(controllers(&mut world, other_admin, RAM), ids);
    assert_eq!(controllers(&mut world, other_admin, PLAIN), ids[1..]);
    assert!(read_status(&mut world, io, RAM).is_success());
    for status in [
        read_status(&mut world, io, PLAIN),
        write_status(&mut world, io, PLAIN),
    ] {
        assert_eq!(status, Status::INVALID_FIELD.with_dnr());
    }
    assert!(write_status(&mut world, other_io, PLAIN).is_success());
}

#[test]
fn every_command_for_a_hidden_namespace_is_refused() {
    let mut world = world(&[(RAM, FULL)]);
    let (_, io) = attach(&mut world, 0, HOST);
    for opcode in 0..=u8::MAX {
        let mut sqe = write(PLAIN);
        sqe.opcode = opcode;
        let (hidden, absent) = {
            let hidden = world.write(io, sqe, &[3; 512]).status();
            sqe.nsid.set(PLAIN + 7);
            (hidden, world.write(io, sqe, &[3; 512]).status())
        };
        assert_eq!(hidden, absent, "opcode {opcode:#x}");
        assert!(!hidden.is_success(), "opcode {opcode:#x}");
    }
}

/// Admin commands answer for a hidden namespace as for one that does not exist.
#[test]
fn no_admin_command_distinguishes_hidden_from_absent_namespaces() {
    const ABSENT: u32 = PLAIN + 7;
    let mut world = world(&[(RAM, FULL)]);
    let (admin, _) = attach(&mut world, 0, HOST);
    let identify = (0..=u8::MAX).map(|cns| Sqe::identify_structure(Cns(cns), 0));
    let logs = (0..=u8::MAX).map(|lid| {
        let select = LogPageSelect::new().with_lid(LogPageId(lid));
        Sqe::log_page(0, select.with_rae(true).with_numd_z(1023), 0)
    });
    let selects = [
        FeatureSelect::CURRENT,
        FeatureSelect::SUPPORTED_CAPABILITIES,
    ];
    let features = (0..=u8::MAX).flat_map(|fid| {
        let get = selects.map(|sel| Sqe::get_feature(FeatureId(fid), sel, 0, 0));
        get.into_iter()
            .chain([Sqe::set_feature(FeatureId(fid), 0, 0)])
    });
    for sqe in identify.chain(logs).chain(features) {
        let [hidden, absent] = [PLAIN, ABSENT].map(|nsid| {
            let mut sqe = sqe.with_sgl(SglDescriptor::transport(4096));
            sqe.nsid.set(nsid);
            let reply = world.start(admin, sqe, &[0; 4096]);
            reply.unwrap_or_else(|tag| world.wait(admin, tag))
        });
        assert_eq!(hidden.status(), absent.status(), "{sqe:?}");
        assert_eq!(hidden.dw0(), absent.dw0(), "{sqe:?}");
        assert!(hidden.data == absent.data, "{sqe:?}");
    }
}

#[test]
fn a_namespace_may_be_read_only_for_one_host() {
    let mut world = world(&[(RAM, MaskedAccess::ReadOnly), (PLAIN, FULL)]);
    let (admin, io) = attach(&mut world, 0, HOST);
    let (other_admin, other_io) = attach(&mut world, 1, OTHER);
    assert!(
        identify_namespace(&mut world, admin, RAM)
            .nsattr
            .write_protected()
    );
    assert!(
        !identify_namespace(&mut world, other_admin, RAM)
            .nsattr
            .write_protected()
    );
    assert!(read_status(&mut world, io, RAM).is_success());
    let refused = write_status(&mut world, io, RAM);
    assert!(refused.is(Status::NAMESPACE_WRITE_PROTECTED), "{refused}");
    assert!(write_status(&mut world, io, PLAIN).is_success());
    assert!(write_status(&mut world, other_io, RAM).is_success());
}

/// NVM 1.1 §3.3.1: FFFFFFFFh stands for all namespaces of the controller.
#[test]
fn a_flush_of_all_namespaces_reaches_only_visible_ones() {
    let mut world = world(&[(RAM, FULL)]);
    let (_, io) = attach(&mut world, 0, HOST);
    let (_, other_io) = attach(&mut world, 1, OTHER);
    world.cached.take();
    world.command(io, Sqe::flush(NSID_BROADCAST)).ok();
    assert!(world.cached.take().is_empty());
    world.command(other_io, Sqe::flush(NSID_BROADCAST)).ok();
    assert_eq!(world.cached.take(), [(Operation::Flush, 0, 0)]);
}

#[test]
fn live_changes_of_masks_raise_events_only_at_their_hosts() {
    let mut world = world(&[(RAM, FULL)]);
    let (admin, io) = attach(&mut world, 0, HOST);
    let (other_admin, _) = attach(&mut world, 1, OTHER);
    let events = AsyncEventConfiguration::new().with_namespace_attribute(true);
    for link in [admin, other_admin] {
        let fid = nvme_spec::command::FeatureId::ASYNC_EVENT_CONFIGURATION;
        world.set_feature(link, fid, events.into_bits());
    }
    let requests = [admin, other_admin].map(|it| {
        world
            .start(it, Sqe::async_event_request(), &[])
            .expect_err("no event yet")
    });
    set_masks(
        &mut world,
        vec![mask(&[(RAM, MaskedAccess::ReadOnly), (PLAIN, FULL)])],
    );
    let event = world.wait(admin, requests[0]);
    assert_eq!(
        AsyncEvent::from_bits(event.dw0()),
        AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED
    );
    assert!(
        world.take_reply(1, requests[1]).is_none(),
        "the other host sees what it saw"
    );
    let changed = world.log(admin, LogPageId::CHANGED_ATTACHED_NAMESPACES, 4096);
    let changed: Vec<u32> = changed
        .chunks_exact(4)
        .map(|it| u32::from_le_bytes(it.try_into().unwrap()))
        .take_while(|it| *it != 0)
        .collect();
    assert_eq!(changed, [RAM, PLAIN]);
    assert!(write_status(&mut world, io, PLAIN).is_success());
    assert!(!write_status(&mut world, io, RAM).is_success());
    // A mask that is removed shows everything.
    set_masks(&mut world, Vec::new());
    assert!(write_status(&mut world, io, RAM).is_success());
    assert!(read_status(&mut world, io, READ_ONLY).is_success());
}

/// The ANA log has the groups and namespaces that the host sees.
#[test]
fn the_ana_log_shows_visible_namespaces() {
    let limits = CoreLimits {
        queues_max: 16,
        executions_max: 1024,
    };
    let mut world = World::with(2, limits, |config| {
        let subsystem = &mut config.subsystems[0];
        for namespace in &mut subsystem.namespaces {
            namespace.ana_group = if namespace.nsid == PLAIN { 2 } else { 1 };
        }
        subsystem.masks = vec![mask(&[(RAM, FULL), (READ_ONLY, FULL)])];
    });
    let (admin, _) = attach(&mut world, 0, HOST);
    let (other_admin, _) = attach(&mut world, 1, OTHER);
    let groups = |world: &mut World, admin| {
        let data = world.log(admin, LogPageId::ANA, 4096);
        let groups = AnaGroups::new(&data).expect("a log");
        let groups = groups.map(|(group, nsids)| {
            let nsids: Vec<u32> = nsids.iter().map(|it| it.get()).collect();
            (group.grpid.get(), nsids)
        });
        groups.collect::<Vec<_>>()
    };
    assert_eq!(groups(&mut world, admin), [(1, vec![RAM, READ_ONLY])]);
    let all = [(1, vec![RAM, CACHED, READ_ONLY]), (2, vec![PLAIN])];
    assert_eq!(groups(&mut world, other_admin), all);
}

/// A mask at another place in the list, for the same host, changes nothing for it.
#[test]
fn the_order_of_masks_does_not_matter() {
    let mut world = world(&[(RAM, FULL)]);
    let (admin, io) = attach(&mut world, 0, HOST);
    let first = NamespaceMask {
        hosts: vec![OTHER.to_owned()],
        namespaces: BTreeMap::from([(PLAIN, FULL)]),
    };
    set_masks(&mut world, vec![first, mask(&[(RAM, FULL)])]);
    assert!(read_status(&mut world, io, RAM).is_success());
    assert!(!read_status(&mut world, io, PLAIN).is_success());
    let changed = world.log(admin, LogPageId::CHANGED_ATTACHED_NAMESPACES, 4096);
    assert!(changed.iter().all(|it| *it == 0));
}

/// A write that waits for its data is checked again before it reaches the device.
#[test]
fn an_admitted_write_is_refused_after_its_namespace_was_hidden() {
    let mut world = world(&[(RAM, FULL)]);
    let (_, io) = attach(&mut world, 0, HOST);
    let tag = world.tag();
    let now = world.now;
    let admitted = world.nodes[0].core.admit(io.queue, tag, &write(RAM), now);
    let Admission::Work(work) = admitted else {
        panic!("{admitted:?}");
    };
    set_masks(&mut world, vec![mask(&[(PLAIN, FULL)])]);
    let reply = world.execute(io, tag, work, &[3; 512]);
    let status = reply.expect("no wait").status();
    assert_eq!(status, Status::INVALID_FIELD.with_dnr());
    assert!(world.ram.take().is_empty());
}

/// A host that is removed from the subsystem sees nothing more until its association has ended,
/// although its mask was removed with it.
#[test]
fn a_removed_host_keeps_its_mask_until_it_is_disconnected() {
    let seen = [(RAM, MaskedAccess::ReadOnly), (CACHED, FULL)];
    let mut world = world(&seen);
    let allow = |world: &World, hosts: &[&str], masks| SubsystemConfig {
        allow_any_host: false,
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        ..with_masks(world, masks)
    };
    let both = allow(&world, &[HOST, OTHER], vec![mask(&seen)]);
    world.target.update_subsystem(both).unwrap();
    world.settle();
    let (admin, busy) = attach(&mut world, 0, HOST);
    let second = ConnectOptions {
        host_id: [1; 16],
        cntlid: admin.info.controller_id,
        qid: 2,
        ..ConnectOptions::default()
    };
    let io = world.connect(1, &second);
    // A command that keeps the association until it has its response.
    let (tag, now) = (world.tag(), world.now);
    let flush = Sqe::flush(CACHED);
    let pending = world.nodes[0].core.admit(busy.queue, tag, &flush, now);
    let Admission::Work(pending) = pending else {
        panic!("{pending:?}");
    };
    // Two changes: the second one finds no mask of the host in the configuration.
    for hosts in [&[OTHER][..], &[]] {
        let changed = allow(&world, hosts, Vec::new());
        world.target.update_subsystem(changed).unwrap();
        // The reactor of the I/O queue adopts it before that of the admin queue ends the queues.
        world.nodes[1].poll(world.now);
        let tag = world.tag();
        let refused = world.nodes[1].core.admit(io.queue, tag, &write(RAM), now);
        assert!(matches!(refused, Admission::Respond(_)), "{refused:?}");
        let refused = world.nodes[1].core.admit(io.queue, tag, &read(PLAIN), now);
        assert!(matches!(refused, Admission::Respond(_)), "{refused:?}");
    }
    world.settle();
    let listed = list(&mut world, admin, Cns::ACTIVE_NAMESPACE_LIST);
    assert_eq!(listed, [RAM, CACHED]);
    world.execute(busy, tag, pending, &[]);
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::Revoked]);
}

#[test]
fn masks_are_checked() {
    let world = world(&[]);
    let twice = with_masks(&world, vec![mask(&[(RAM, FULL)]), mask(&[(PLAIN, FULL)])]);
    let refused = world.target.update_subsystem(twice);
    let (nqn, host) = (SUBSYSTEM.to_owned(), HOST.to_owned());
    assert_eq!(refused, Err(TargetError::DuplicateMask { nqn, host }));
    let many = (0..=MASKS_MAX).map(|it| NamespaceMask {
        hosts: vec![format!("nqn.2026-11.org.x:host{it}")],
        namespaces: BTreeMap::new(),
    });
    let many = with_masks(&world, many.collect());
    let refused = world.target.update_subsystem(many);
    let (nqn, count) = (SUBSYSTEM.to_owned(), MASKS_MAX + 1);
    assert_eq!(refused, Err(TargetError::TooManyMasks { nqn, count }));
    let wrong = NamespaceMask {
        hosts: vec!["x".repeat(300)],
        namespaces: BTreeMap::new(),
    };
    let wrong = with_masks(&world, vec![wrong]);
    assert!(matches!(
        world.target.update_subsystem(wrong),
        Err(TargetError::Nqn { .. })
    ));
}
