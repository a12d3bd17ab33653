//! The discovery log (Base 2.1 §5.1.12.3.1).

use nvme_spec::command::{LogPageId, LogPageSelect};
use nvme_spec::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SecureChannel, SubsystemType, TcpSecurity,
    TransportType,
};
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_spec::{Sqe, Status};
use nvme_target::{CoreLimits, PortConfig, PortId, PortSecurity, TransportKind};
use zerocopy::FromBytes;

use crate::harness::{
    CLOSED_SUBSYSTEM, ConnectOptions, Link, STRANGER, SUBSYSTEM, TCP_PORT, TCP6_PORT, World,
    discovery_call, port,
};

fn log(world: &mut World, admin: Link) -> (DiscoveryHeader, Vec<DiscoveryEntry>) {
    let data = world.log(admin, LogPageId::DISCOVERY, 8192);
    let (header, rest) = DiscoveryHeader::read_from_prefix(&data).expect("a header");
    let count = header.numrec.get() as usize;
    let (entries, rest) =
        <[DiscoveryEntry]>::ref_from_prefix_with_elems(rest, count).expect("entries");
    assert!(rest.iter().all(|byte| *byte == 0));
    (header, entries.to_vec())
}

/// The entries of NVM subsystems.
fn nvm_entries(world: &mut World, admin: Link) -> Vec<DiscoveryEntry> {
    let (_, mut entries) = log(world, admin);
    entries.retain(|entry| entry.subtype == SubsystemType::NVM);
    entries
}

fn names(world: &mut World, call: &ConnectOptions<'_>) -> Vec<(String, String)> {
    let admin = world.enabled_by(0, call);
    let entries = nvm_entries(world, admin);
    world.close(admin);
    let text = |entry: &DiscoveryEntry| {
        let nqn = entry.subnqn.as_str().expect("UTF-8").to_owned();
        (nqn, entry.traddr.as_str().expect("UTF-8").to_owned())
    };
    entries.iter().map(text).collect()
}

/// The log lists the subsystems that allow the host, at addresses of the family by which it
/// connected.
#[test]
fn discovery_log_lists_only_accessible_subsystems() {
    let mut world = World::new();
    let entry = |nqn: &str, address: &str| (nqn.to_owned(), address.to_owned());
    let ipv4 = |nqn| entry(nqn, "192.0.2.1");
    let shown = names(&mut world, &discovery_call());
    assert_eq!(shown, [ipv4(SUBSYSTEM), ipv4(CLOSED_SUBSYSTEM)]);
    let stranger = ConnectOptions {
        host: STRANGER,
        ..discovery_call()
    };
    assert_eq!(names(&mut world, &stranger), [ipv4(SUBSYSTEM)]);
    let ipv6 = ConnectOptions {
        port: TCP6_PORT,
        ..discovery_call()
    };
    let ipv6 = ConnectOptions {
        host: STRANGER,
        ..ipv6
    };
    assert_eq!(names(&mut world, &ipv6), [entry(SUBSYSTEM, "2001:db8::1")]);
    let unknown = ConnectOptions {
        port: PortId(77),
        ..stranger
    };
    assert_eq!(
        names(&mut world, &unknown).len(),
        2,
        "by an unknown port: both families"
    );
}

/// Base 2.1 §5.1.12.3.1 and TCP 1.1 §3.1: the fields of an entry.
#[test]
fn discovery_entry_fields() {
    let rdma = PortConfig {
        id: PortId(3),
        transport: TransportKind::Rdma,
        security: PortSecurity::Required,
        ..port(PortId(3), "192.0.2.3", false)
    };
    let secure = PortConfig {
        security: PortSecurity::Required,
        ..port(PortId(4), "192.0.2.4", false)
    };
    let limits = CoreLimits::default();
    let mut world = World::with(1, limits, |config| {
        config.ports.extend([rdma, secure]);
        config.subsystems[0].ports.extend([PortId(3), PortId(4)]);
        config.subsystems.pop();
    });
    let admin = world.enabled_by(0, &discovery_call());
    let (header, entries) = log(&mut world, admin);
    assert_eq!((header.numrec.get(), header.recfmt.get()), (4, 0));
    let [tcp, rdma, secure, current] = &entries[..] else {
        panic!("{} entries", entries.len())
    };
    assert_eq!(
        (tcp.trtype, tcp.adrfam),
        (TransportType::TCP, AddressFamily::IPV4)
    );
    assert_eq!(tcp.subtype, SubsystemType::NVM);
    assert_eq!((tcp.portid.get(), tcp.cntlid.get()), (TCP_PORT.0, 0xffff));
    assert_eq!((tcp.asqsz.get(), rdma.asqsz.get()), (4096, 256));
    // Base 2.1 §5.1.12.3.1, SUBTYPE 03h: the discovery subsystem itself, at the address to which
    // the host connected.
    assert_eq!(current.subtype, SubsystemType::CURRENT_DISCOVERY);
    assert_eq!(current.subnqn.as_str(), Some(DISCOVERY_NQN));
    assert_eq!(current.portid.get(), TCP_PORT.0);
    assert_eq!(current.traddr.as_str(), Some("192.0.2.1"));
    assert_eq!(current.trsvcid.as_str(), Some("4420"));
    assert!(current.eflags.epcsd() && !tcp.eflags.epcsd());
    assert_eq!(tcp.trsvcid.as_str(), Some("4420"));
    assert_eq!(tcp.tcp().sectype, TcpSecurity::NONE);
    assert_eq!(tcp.treq.secure_channel(), SecureChannel::NOT_REQUIRED);
    assert!(tcp.treq.disable_sq_flow_control());
    assert_eq!(rdma.trtype, TransportType::RDMA);
    assert_eq!(rdma.rdma().qptype.0, 1);
    assert_eq!(secure.tcp().sectype, TcpSecurity::TLS_1_3);
    assert_eq!(secure.treq.secure_channel(), SecureChannel::REQUIRED);
}

/// Base 2.1 §5.1.12.3.1: the log is read in pieces, and the generation counter reveals a change.
#[test]
fn discovery_generation_counter_reveals_a_change() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &discovery_call());
    let whole = world.log(admin, LogPageId::DISCOVERY, 4096);
    let select = LogPageSelect::new()
        .with_lid(LogPageId::DISCOVERY)
        .with_numd_z(255);
    let mut pieces = Vec::new();
    for offset in [0, 1024, 2048, 3072] {
        pieces.extend(
            world
                .read(admin, Sqe::log_page(0, select, offset), 1024)
                .ok(),
        );
    }
    assert_eq!(pieces, whole);
    let beyond = Sqe::log_page(0, select, 4100);
    world
        .read(admin, beyond, 1024)
        .is(Status::INVALID_FIELD.with_dnr());
    let (before, _) = log(&mut world, admin);
    world
        .target
        .update_hosts(CLOSED_SUBSYSTEM, false, Vec::new())
        .expect("right");
    world.settle();
    let (after, entries) = log(&mut world, admin);
    assert!(after.genctr.get() > before.genctr.get());
    assert_eq!(entries.len(), 2, "the host is no longer let in");
    let other = port(TCP_PORT, "198.51.100.7", false);
    let ports = vec![other, port(TCP6_PORT, "2001:db8::1", true)];
    world.target.update_ports(ports).expect("right");
    world.settle();
    let (_, entries) = log(&mut world, admin);
    assert_eq!(entries[0].traddr.as_str(), Some("198.51.100.7"));
}

/// For a port that listens on every address, the log has the address to which the host connected.
#[test]
fn a_wildcard_port_reports_the_local_address() {
    let mut world = World::new();
    let everywhere = port(TCP_PORT, "0.0.0.0", false);
    let other = port(TCP6_PORT, "2001:db8::1", true);
    world
        .target
        .update_ports(vec![everywhere, other])
        .expect("valid ports");
    for (reached, told) in [
        ("198.51.100.7", "198.51.100.7"),
        // An IPv4 host of a socket for both address families.
        ("::ffff:198.51.100.8", "198.51.100.8"),
    ] {
        let call = ConnectOptions {
            local_address: Some(reached.parse().expect("an address")),
            ..discovery_call()
        };
        for (_, address) in names(&mut world, &call) {
            assert_eq!(address, told);
        }
    }
    for (_, address) in names(&mut world, &discovery_call()) {
        assert_eq!(address, "0.0.0.0", "a transport that cannot tell");
    }
}
