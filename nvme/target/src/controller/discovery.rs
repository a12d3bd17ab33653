//! The discovery log (Base 2.1 §5.1.12.3.1).
//!
//! An entry is listed if its subsystem allows the host and its port has the same address family as
//! the port to which the host connected, because a host that connected by IPv4 may not reach an
//! IPv6 address. For a port that listens on every address, the log reports the address to which the
//! host connected.

use std::borrow::Cow;
use std::net::IpAddr;

use nvme_spec::U16;
use nvme_spec::ascii::SpacePadded;
use nvme_spec::fabrics::CNTLID_DYNAMIC;
use nvme_spec::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, EntryFlags, RdmaCms, RdmaProvider, RdmaQpType,
    SecureChannel, SubsystemType, TcpSecurity, TransportRequirements, TransportType,
};
use nvme_spec::nqn::{DISCOVERY_NQN, to_field};
use zerocopy::{FromZeros, IntoBytes};

use crate::config::{PortConfig, PortId, PortSecurity, TransportKind};
use crate::page::Page;
use crate::view::{SubsystemView, TargetView};

/// The port in the entry of the discovery subsystem itself: the one to which the host connected.
/// Base 2.1 §5.1.12.3.1, SUBTYPE 03h.
fn current(view: &TargetView, arrival: PortId) -> Option<&PortConfig> {
    view.port(arrival)
}

/// Number of log entries for a host that connected to the port `arrival`.
pub(crate) fn count(view: &TargetView, host_nqn: &str, arrival: PortId) -> usize {
    entries(view, host_nqn, arrival).count() + usize::from(current(view, arrival).is_some())
}

/// The subsystems, each with its ports, in the log of a host that connected to the port `arrival`.
pub(crate) fn entries<'a>(
    view: &'a TargetView,
    host_nqn: &'a str,
    arrival: PortId,
) -> impl Iterator<Item = (&'a SubsystemView, &'a PortConfig)> {
    let ipv6 = view.port(arrival).map(|port| port.ipv6);
    let subsystems = view
        .subsystems
        .iter()
        .flatten()
        .filter(|view| view.allows(host_nqn));
    subsystems.flat_map(move |subsystem| {
        let ports = subsystem
            .config
            .ports
            .iter()
            .filter_map(|id| view.port(*id));
        ports
            .filter(move |port| ipv6.is_none_or(|ipv6| ipv6 == port.ipv6))
            .map(move |port| (&**subsystem, port))
    })
}

/// Whether a change of the configuration changes a host's log.
pub(crate) fn differs(
    before: &TargetView,
    after: &TargetView,
    host_nqn: &str,
    arrival: PortId,
) -> bool {
    let shown = |(subsystem, port): (&SubsystemView, &PortConfig)| {
        (subsystem.config.nqn.clone(), port.clone())
    };
    let entries_before = entries(before, host_nqn, arrival).map(shown);
    let entries_after = entries(after, host_nqn, arrival).map(shown);
    !entries_before.eq(entries_after) || current(before, arrival) != current(after, arrival)
}

/// Writes the log of a host that connected to a port at one of the target's addresses.
pub(crate) fn write(
    page: &mut Page<'_>,
    view: &TargetView,
    host_nqn: &str,
    (arrival, target_address): (PortId, Option<IpAddr>),
) {
    let records = count(view, host_nqn, arrival) as u64;
    page.put(DiscoveryHeader::new(view.generation, records).as_bytes());
    for (subsystem, port) in entries(view, host_nqn, arrival) {
        let nqn = &subsystem.config.nqn;
        page.put_with(|| entry(nqn, SubsystemType::NVM, port, target_address));
    }
    if let Some(port) = current(view, arrival) {
        page.put_with(|| {
            let subtype = SubsystemType::CURRENT_DISCOVERY;
            let mut entry = entry(DISCOVERY_NQN, subtype, port, target_address);
            // Base 2.1 §5.1.12.3.1, EPCSD: a discovery controller with Keep Alive supports
            // persistent connections.
            entry.eflags = EntryFlags::new().with_epcsd(true);
            entry
        });
    }
}

/// The address and family to report for a port. For a port that listens on every address, this is
/// the address to which the host connected; an IPv4 host of an IPv6 socket gets the IPv4 address.
fn advertised(port: &PortConfig, target_address: Option<IpAddr>) -> (Cow<'_, str>, bool) {
    let everywhere = port
        .address
        .parse()
        .is_ok_and(|address: IpAddr| address.is_unspecified());
    match target_address.map(|address| address.to_canonical()) {
        Some(address) if everywhere => (address.to_string().into(), address.is_ipv6()),
        _ => (port.address.as_str().into(), port.ipv6),
    }
}

/// One log entry.
fn entry(
    nqn: &str,
    subtype: SubsystemType,
    port: &PortConfig,
    target_address: Option<IpAddr>,
) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::new_zeroed();
    let (address, ipv6) = advertised(port, target_address);
    entry.adrfam = if ipv6 {
        AddressFamily::IPV6
    } else {
        AddressFamily::IPV4
    };
    entry.subtype = subtype;
    let channel = match port.security {
        PortSecurity::Required => SecureChannel::REQUIRED,
        PortSecurity::None | PortSecurity::Allowed => SecureChannel::NOT_REQUIRED,
    };
    entry.treq = TransportRequirements::new()
        .with_secure_channel(channel)
        .with_disable_sq_flow_control(true);
    entry.portid = U16::new(port.id.0);
    entry.cntlid = U16::new(CNTLID_DYNAMIC);
    entry.asqsz = U16::new(port.transport.admin_queue_depth_max());
    entry.trsvcid = SpacePadded::new(&port.service);
    entry.subnqn = to_field(nqn).unwrap_or_default();
    entry.traddr = SpacePadded::new(&address);
    match port.transport {
        TransportKind::Tcp => {
            entry.trtype = TransportType::TCP;
            entry.tcp_mut().sectype = match port.security {
                PortSecurity::None => TcpSecurity::NONE,
                PortSecurity::Allowed | PortSecurity::Required => TcpSecurity::TLS_1_3,
            };
        }
        TransportKind::Rdma => {
            entry.trtype = TransportType::RDMA;
            let rdma = entry.rdma_mut();
            rdma.qptype = RdmaQpType::RELIABLE_CONNECTED;
            rdma.prtype = RdmaProvider::NONE;
            rdma.cms = RdmaCms::RDMA_CM;
        }
    }
    entry
}
