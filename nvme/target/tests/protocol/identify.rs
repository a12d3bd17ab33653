//! Identify (Base 2.1 §5.1.13, NVM 1.1 §4.1.5).

use nvme_spec::command::{Cns, CommandSet, Identify};
use nvme_spec::fabrics::PropertySize;
use nvme_spec::identify::{
    CommandSetCombinations, ControllerList, ControllerType, DeallocatedRead, FlushBehavior,
    IdentifyController, IdentifyNamespace, IndependentIdentifyNamespace, NamespaceId, NamespaceIds,
    NamespaceList, NvmIdentifyController, SglSupport,
};
use nvme_spec::registers::{Register, Version};
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::NAMESPACE_ID_MAX;
use zerocopy::FromBytes;

use crate::harness::{
    CACHED, CACHED_BLOCKS, CLOSED_SUBSYSTEM, ConnectOptions, IN_CAPSULE, Link, PLAIN,
    QUEUE_DEPTH_MAX, RAM, RAM_BLOCKS, READ_ONLY, Reply, SUBSYSTEM, TCP_PORT, TRANSFER_MAX, World,
    discovery_call, namespace,
};

fn ask(world: &mut World, admin: Link, cns: Cns, nsid: u32) -> Reply {
    world.read(admin, Sqe::identify_structure(cns, nsid), 4096)
}

fn page<T: FromBytes>(reply: Reply) -> T {
    T::read_from_bytes(&reply.ok()).expect("4096 bytes")
}

/// Base 2.1 §5.1.13.1: unsupported structures are Invalid Field.
#[test]
fn unsupported_cns_values_are_refused() {
    let known = [0, 1, 2, 3, 5, 6, 7, 8, 0x12, 0x13, 0x1c];
    let mut world = World::new();
    let admin = world.enabled(0);
    for cns in (0..=0xff).filter(|cns| !known.contains(cns)) {
        ask(&mut world, admin, Cns(cns), RAM).is(Status::INVALID_FIELD.with_dnr());
    }
}

/// Base 2.1 §3.1.3.3: a discovery controller supports only Identify Controller.
#[test]
fn discovery_controller_supports_only_identify_controller() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &discovery_call());
    for cns in (0..=0xff).filter(|cns| *cns != 1) {
        ask(&mut world, admin, Cns(cns), 0).is(Status::INVALID_FIELD.with_dnr());
    }
    let controller: IdentifyController = page(ask(&mut world, admin, Cns::CONTROLLER, 0));
    assert_eq!(controller.cntrltype, ControllerType::DISCOVERY);
    assert!(controller.oaes.discovery_log() && !controller.oaes.namespace_attribute());
    assert_eq!(
        controller.subnqn.as_str(),
        Some(nvme_spec::nqn::DISCOVERY_NQN)
    );
    assert_eq!(
        (controller.nn.get(), controller.cntlid.get()),
        (0, admin.info.controller_id)
    );
    assert_ne!(controller.kas.get(), 0);
}

/// Base 2.1 §3.2.1.5: identifiers beyond NN are invalid; the structures of inactive ones are zero
/// in CNS 00h, 05h and 08h (Base 2.1 §5.1.13, CNS 00h), and Invalid Field in CNS 03h.
#[test]
fn identify_checks_namespace_identifiers() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let invalid = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
    for nsid in [0, NAMESPACE_ID_MAX + 1, NSID_BROADCAST - 1, NSID_BROADCAST] {
        let structures = [
            Cns::NAMESPACE,
            Cns::NAMESPACE_DESCRIPTORS,
            Cns::IO_NAMESPACE,
            Cns::INDEPENDENT_NAMESPACE,
            Cns::NAMESPACE_CONTROLLER_LIST,
        ];
        for cns in structures {
            ask(&mut world, admin, cns, nsid).is(invalid);
        }
    }
    for nsid in [3, NAMESPACE_ID_MAX] {
        for cns in [
            Cns::NAMESPACE,
            Cns::IO_NAMESPACE,
            Cns::INDEPENDENT_NAMESPACE,
        ] {
            let empty = ask(&mut world, admin, cns, nsid).ok();
            assert!(empty.iter().all(|byte| *byte == 0));
        }
        let reply = ask(&mut world, admin, Cns::NAMESPACE_DESCRIPTORS, nsid);
        reply.is(Status::INVALID_FIELD.with_dnr());
    }
}

/// Base 2.1 §5.1.13.2.1: the fields that a Linux host reads before it continues.
#[test]
fn identify_controller_fields() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let it: IdentifyController = page(ask(&mut world, admin, Cns::CONTROLLER, 0));
    assert_eq!(it.version(), Version::V2_1);
    assert_eq!(it.cntlid.get(), admin.info.controller_id);
    assert_eq!(it.cntrltype, ControllerType::IO);
    assert_eq!(it.sn.as_str(), Some("W-0001"));
    assert_eq!(it.mn.as_str(), Some("Windlass"));
    assert_eq!(it.fr.as_str(), Some("0.1"));
    assert_eq!(it.subnqn.as_str(), Some(SUBSYSTEM));
    assert_eq!(it.transfer_bytes_max(4096), Some(TRANSFER_MAX as u64));
    // The largest identifier that a namespace can ever have, not the current count.
    assert_eq!(it.nn.get(), NAMESPACE_ID_MAX);
    assert_eq!(it.mnan.get(), NAMESPACE_ID_MAX);
    assert_eq!((it.sqes.min(), it.sqes.max()), (6, 6));
    assert_eq!((it.cqes.min(), it.cqes.max()), (4, 4));
    assert_eq!(it.maxcmd.get(), QUEUE_DEPTH_MAX);
    assert_eq!((it.aerl_z, it.acl_z, it.elpe_z), (3, 3, 63));
    assert!(it.cmic.multiple_controllers() && it.cmic.multiple_ports());
    assert!(it.ctratt.hids() && it.ctratt.tbkas());
    assert!(it.oaes.namespace_attribute() && !it.oaes.discovery_log());
    assert!(it.oncs.compare() && it.oncs.dataset_management() && it.oncs.write_zeroes());
    assert!(it.oncs.save_select() && it.oncs.timestamp() && it.oncs.reservations());
    assert_eq!(it.fuses.into_bits().get(), 1);
    assert!(it.vwc.present());
    assert_eq!(it.vwc.flush(), FlushBehavior::BROADCAST_SUPPORTED);
    assert_eq!(it.sgls.support(), SglSupport::ANY_ALIGNMENT);
    assert!(it.sgls.offset() && it.sgls.transport() && !it.sgls.keyed());
    assert_eq!(it.in_capsule_data_bytes(), u64::from(IN_CAPSULE));
    assert_eq!((it.iorcsz.get(), it.icdoff.get(), it.msdbd), (1, 0, 1));
    assert!(it.ofcs.disconnect() && !it.fcatt.static_model());
    assert_ne!(it.kas.get(), 0);
    let rdma = world.enabled_by(
        0,
        &ConnectOptions {
            rdma: true,
            ..ConnectOptions::default()
        },
    );
    let keyed = nvme_spec::sgl::SglDescriptor::keyed(0, 4096, 1, false).expect("short");
    let sqe = Sqe::identify_structure(Cns::CONTROLLER, 0).with_sgl(keyed);
    let it: IdentifyController = page(world.command(rdma, sqe));
    assert!(it.sgls.keyed() && !it.sgls.transport());
    assert_eq!(usize::from(it.msdbd), nvme_target::KEYED_BLOCKS_MAX);
}

/// Base 2.1 §5.1.13.2.1 (VWC) and §5.1.13 (CNS 08h, VWCNP): a controller always reports that there
/// may be a volatile cache, and each namespace reports whether it has one.
#[test]
fn volatile_cache_is_reported_per_namespace() {
    let mut world = World::new();
    let call = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(0, &call);
    let it: IdentifyController = page(ask(&mut world, admin, Cns::CONTROLLER, 0));
    assert!(it.vwc.present());
    let it: IndependentIdentifyNamespace =
        page(ask(&mut world, admin, Cns::INDEPENDENT_NAMESPACE, 1));
    assert!(it.nsfeat.vwcnp());
}

/// Base 2.1 §5.1.13.2.1: hosts read Identify Controller when they connect. Namespaces that are
/// added to a live subsystem do not change a byte of it.
#[test]
fn added_namespace_does_not_change_identify_controller() {
    let mut world = World::new();
    let call = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(0, &call);
    let pages = |world: &mut World| {
        [Cns::CONTROLLER, Cns::IO_CONTROLLER].map(|cns| ask(world, admin, cns, 0).ok())
    };
    let capabilities = |world: &mut World| {
        let sqe = Sqe::get_property(Register::CAP.0, PropertySize::BYTES_8);
        world.command(admin, sqe).cqe.result()
    };
    let before = (pages(&mut world), capabilities(&mut world));
    let devices = world.devices();
    let mut namespaces = Vec::new();
    // RAM, a volatile cache, read-only, and one that cannot deallocate; the last has the highest
    // identifier.
    for (nsid, device) in [(1, 0), (2, 1), (3, 2), (NAMESPACE_ID_MAX, 3)] {
        namespaces.push(namespace(nsid, device, &*devices[usize::from(device)]));
        world
            .target
            .update_namespaces(CLOSED_SUBSYSTEM, namespaces.clone())
            .expect("right");
        world.settle();
        let after = (pages(&mut world), capabilities(&mut world));
        assert!(before == after, "namespace {nsid} changed a page");
        let it: IdentifyNamespace = page(ask(&mut world, admin, Cns::NAMESPACE, nsid));
        assert_ne!(it.nsze.get(), 0, "namespace {nsid} is there");
    }
    // The same after all but one are removed.
    namespaces.truncate(1);
    world
        .target
        .update_namespaces(CLOSED_SUBSYSTEM, namespaces)
        .expect("right");
    world.settle();
    assert!(before == (pages(&mut world), capabilities(&mut world)));
}

/// The same for a subsystem that starts without namespaces and gets another port.
#[test]
fn empty_subsystem_has_the_same_identify_controller() {
    let limits = nvme_target::CoreLimits {
        queues_max: 16,
        executions_max: 1024,
    };
    let mut world = World::with(1, limits, |config| {
        config.subsystems[0].namespaces.clear();
        config.subsystems[0].ports = vec![TCP_PORT];
    });
    let admin = world.enabled(0);
    let before = ask(&mut world, admin, Cns::CONTROLLER, 0).ok();
    let devices = world.devices();
    let full = (1..).zip(0..).take(devices.len());
    let full = full.map(|(nsid, device)| namespace(nsid, device, &*devices[usize::from(device)]));
    let wanted = crate::harness::subsystem(SUBSYSTEM, full.collect());
    world.target.update_subsystem(wanted).expect("right");
    world.settle();
    let after = ask(&mut world, admin, Cns::CONTROLLER, 0).ok();
    assert!(before == after, "the page changed");
}

/// NVM 1.1 §4.1.5.1.
#[test]
fn identify_namespace_fields() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let it: IdentifyNamespace = page(ask(&mut world, admin, Cns::NAMESPACE, RAM));
    assert_eq!(it.nsze.get(), RAM_BLOCKS);
    assert_eq!((it.ncap.get(), it.nuse.get()), (RAM_BLOCKS, RAM_BLOCKS));
    assert_eq!(it.block_bytes(), Some(512));
    assert_eq!(it.formats().len(), 1);
    assert_eq!(it.dlfeat.read(), DeallocatedRead::ZEROES);
    assert!(it.dlfeat.write_zeroes_deallocate() && it.nmic.shared());
    assert_eq!((it.nguid, it.eui64), ([0x21; 16], [0x41; 8]));
    assert_eq!(
        (it.nsfeat.optperf(), it.npwg_z.get(), it.nows_z.get()),
        (1, 7, 7)
    );
    assert!(!it.nsattr.write_protected() && it.nsfeat.nsabp());
    assert_eq!((it.nawun_z.get(), it.nawupf_z.get()), (15, 7));
    assert_eq!(
        (it.nabsn_z.get(), it.nabspf_z.get(), it.nabo.get()),
        (31, 0, 4)
    );
    let it: IdentifyNamespace = page(ask(&mut world, admin, Cns::NAMESPACE, CACHED));
    assert!(!it.nsfeat.nsabp());
    assert_eq!(
        (it.nsze.get(), it.block_bytes()),
        (CACHED_BLOCKS, Some(4096))
    );
    assert_eq!(it.nsfeat.optperf(), 0);
    let it: IdentifyNamespace = page(ask(&mut world, admin, Cns::NAMESPACE, READ_ONLY));
    assert!(it.nsattr.write_protected());
    let it: IdentifyNamespace = page(ask(&mut world, admin, Cns::NAMESPACE, PLAIN));
    assert_eq!(it.dlfeat.read(), DeallocatedRead::NOT_REPORTED);
    assert!(!it.dlfeat.write_zeroes_deallocate());
}

/// Base 2.1 §5.1.13, CNS 08h.
#[test]
fn independent_identify_namespace_fields() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let it: IndependentIdentifyNamespace =
        page(ask(&mut world, admin, Cns::INDEPENDENT_NAMESPACE, RAM));
    assert!(it.nstat.nrdy() && it.nmic.shared() && it.nsfeat.vwcnp());
    let it: IndependentIdentifyNamespace =
        page(ask(&mut world, admin, Cns::INDEPENDENT_NAMESPACE, CACHED));
    assert!(!it.nsfeat.vwcnp() && !it.nsattr.write_protected());
    let it: IndependentIdentifyNamespace = page(ask(
        &mut world,
        admin,
        Cns::INDEPENDENT_NAMESPACE,
        READ_ONLY,
    ));
    assert!(it.nsattr.write_protected());
}

/// Base 2.1 §5.1.13, CNS 03h: every configured identifier, and the command set.
#[test]
fn namespace_descriptors_list_every_identifier() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let data = ask(&mut world, admin, Cns::NAMESPACE_DESCRIPTORS, CACHED).ok();
    let ids: Vec<_> = NamespaceIds::new(&data).collect();
    let expected = [
        NamespaceId::Uuid([2; 16]),
        NamespaceId::Nguid([0x22; 16]),
        NamespaceId::Eui64([0x42; 8]),
        NamespaceId::CommandSet(CommandSet::NVM),
    ];
    assert_eq!(ids, expected);
}

/// Base 2.1 §5.1.13, CNS 02h: active identifiers above the given one, ascending.
#[test]
fn active_namespaces_are_listed() {
    let mut world = World::new();
    let admin = world.enabled(0);
    for cns in [Cns::ACTIVE_NAMESPACE_LIST, Cns::IO_ACTIVE_NAMESPACE_LIST] {
        let mut list = |after| {
            let list: NamespaceList = page(ask(&mut world, admin, cns, after));
            list.iter().collect::<Vec<_>>()
        };
        assert_eq!(list(0), [1, 2, 4, 5]);
        assert_eq!(list(2), [4, 5]);
        assert_eq!(list(4), [5]);
        assert!(list(5).is_empty());
        assert!(list(0xffff_fffd).is_empty());
        for nsid in [NSID_BROADCAST - 1, NSID_BROADCAST] {
            let reply = ask(&mut world, admin, cns, nsid);
            reply.is(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        }
    }
}

/// Base 2.1 §5.1.13, CNS 05h and 06h: structures of a command set.
#[test]
fn identify_supports_only_the_nvm_command_set() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let zoned = CommandSet::ZONED;
    for cns in [Cns::IO_NAMESPACE, Cns::IO_ACTIVE_NAMESPACE_LIST] {
        let sqe = Sqe::identify_for_command_set(cns, RAM, zoned);
        world
            .read(admin, sqe, 4096)
            .is(Status::INVALID_FIELD.with_dnr());
    }
    let sqe = Sqe::identify_for_command_set(Cns::IO_CONTROLLER, 0, zoned);
    assert!(
        world
            .read(admin, sqe, 4096)
            .ok()
            .iter()
            .all(|byte| *byte == 0)
    );
    let it: NvmIdentifyController = page(ask(&mut world, admin, Cns::IO_CONTROLLER, 0));
    // NVM 1.1 §4.1.5.4, WZSL: 2^13 pages of 4 KiB are 65,536 blocks of 512 bytes, the maximum of
    // NLB.
    assert_eq!(
        (it.wzsl, it.dmrl, it.dmrsl.get(), it.dmsl.get()),
        (13, 0, 0, 0)
    );
    let it: CommandSetCombinations = page(ask(&mut world, admin, Cns::IO_COMMAND_SETS, 0));
    assert!(it.vectors[0].contains(CommandSet::NVM) && !it.vectors[0].contains(zoned));
    assert!(it.vectors[1..].iter().all(|vector| vector.0.get() == 0));
}

/// Base 2.1 §5.1.13, CNS 12h and 13h: controllers of the subsystem, from an identifier on.
#[test]
fn controllers_are_listed() {
    let mut world = World::new();
    let first = world.enabled(0);
    let second = world.enabled(1);
    world.enabled_by(
        0,
        &ConnectOptions {
            subsystem: CLOSED_SUBSYSTEM,
            ..ConnectOptions::default()
        },
    );
    world.enabled_by(0, &discovery_call());
    let mut list = |cns, nsid, cntid| {
        let mut view: Identify = Sqe::identify_structure(cns, nsid).identify();
        view.select = view.select.with_cntid(cntid);
        let sqe = Sqe::identify_structure(cns, nsid).with_identify(view);
        let list: ControllerList = page(world.read(first, sqe, 4096));
        list.iter().collect::<Vec<_>>()
    };
    let (one, two) = (first.info.controller_id, second.info.controller_id);
    assert_eq!(list(Cns::CONTROLLER_LIST, 0, 0), [one, two]);
    assert_eq!(list(Cns::CONTROLLER_LIST, 0, two), [two]);
    assert!(list(Cns::CONTROLLER_LIST, 0, two + 1).is_empty());
    assert_eq!(list(Cns::NAMESPACE_CONTROLLER_LIST, CACHED, 0), [one, two]);
}
