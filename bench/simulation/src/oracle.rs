//! Compares the served state with the configuration, value by value and key by key, independently
//! of the code that applies changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::SocketAddr;

use appliance_config::{Access, Config, Export, Listener, Name, Nqn, Transport};
use nvme_target::{
    DeviceIndex, MaskedAccess, NamespaceConfig, PortConfig, PortId, SubsystemConfig, TargetConfig,
    TransportKind,
};

/// Settings of a port: the in-capsule data size and, over RDMA, the queue depth.
pub type PortSetting = (u32, Option<u16>);

/// The state that an appliance serves.
pub struct Served {
    /// The target's own configuration.
    pub target: TargetConfig,
    /// The indexes of devices.
    pub places: BTreeMap<Name, DeviceIndex>,
    /// The settings that the transports received last, by port.
    pub settings: BTreeMap<PortId, PortSetting>,
    /// The bound TCP addresses.
    pub bound: BTreeSet<SocketAddr>,
    /// Devices that are read-only by themselves.
    pub protected: BTreeSet<Name>,
    /// Devices that were pulled out; their namespaces are not served.
    pub absent: BTreeSet<Name>,
}

/// The first difference between the served state and `config`.
#[must_use]
pub fn disagreement(config: &Config, served: &Served) -> Option<String> {
    compare(config, served).err()
}

fn same<T: PartialEq + Debug>(what: &str, served: &T, wanted: &T) -> Result<(), String> {
    if served == wanted {
        return Ok(());
    }
    Err(format!(
        "{what} is {served:?}, but {wanted:?} is configured"
    ))
}

fn compare(config: &Config, served: &Served) -> Result<(), String> {
    let target = &served.target;
    let wanted = config.limits.max_controllers;
    same(
        "limits.max_controllers",
        &target.limits.controllers_max,
        &wanted,
    )?;
    let devices: BTreeSet<&Name> = config.devices.iter().map(|it| &it.name).collect();
    same("the devices", &served.places.keys().collect(), &devices)?;
    let ports = ports(config, target)?;
    for (listener, port) in &ports {
        let setting = served.settings.get(port).copied();
        let what = format!("what hosts of listener {} get", listener.name);
        same(&what, &setting, &Some(wanted_setting(listener)))?;
    }
    let tcp = config.listeners.iter();
    let tcp = tcp.filter(|it| it.transport == Transport::Tcp);
    let wanted: BTreeSet<SocketAddr> = tcp.map(|it| it.address.socket_addr()).collect();
    same("the bound addresses", &served.bound, &wanted)?;
    let nqns = config.exports.iter().map(|it| it.nqn.as_str());
    let wanted: BTreeSet<&str> = nqns.collect();
    let found = target.subsystems.iter().map(|it| it.nqn.as_str()).collect();
    same("the subsystems", &found, &wanted)?;
    for export in &config.exports {
        let mut subsystems = target.subsystems.iter();
        let found = subsystems.find(|it| it.nqn == export.nqn.as_str());
        let found = found.ok_or_else(|| format!("{} is not served", export.nqn))?;
        compare_export(config, export, found, &ports, served)
            .map_err(|what| format!("{}: {what}", export.nqn))?;
    }
    Ok(())
}

fn wanted_setting(listener: &Listener) -> PortSetting {
    let depth = (listener.transport == Transport::Rdma).then_some(listener.queue_depth);
    (listener.in_capsule_data.bytes() as u32, depth)
}

/// The port of each listener, found by its address.
fn ports<'c>(
    config: &'c Config,
    target: &TargetConfig,
) -> Result<Vec<(&'c Listener, PortId)>, String> {
    let mut found = Vec::new();
    for listener in &config.listeners {
        let address = listener.address.socket_addr();
        let kind = match listener.transport {
            Transport::Tcp => TransportKind::Tcp,
            Transport::Rdma => TransportKind::Rdma,
        };
        let is_it = |port: &&PortConfig| {
            let here = (port.address.as_str(), port.service.as_str());
            let there = (address.ip().to_string(), address.port().to_string());
            here == (there.0.as_str(), there.1.as_str()) && port.transport == kind
        };
        let port = target.ports.iter().find(is_it);
        let port = port.ok_or_else(|| format!("listener {} is not offered", listener.name))?;
        found.push((listener, port.id));
    }
    same("the number of ports", &target.ports.len(), &found.len())?;
    Ok(found)
}

fn compare_export(
    config: &Config,
    export: &Export,
    found: &SubsystemConfig,
    ports: &[(&Listener, PortId)],
    served: &Served,
) -> Result<(), String> {
    let serial = config.serial_number(export);
    same("serial", &found.serial.as_str(), &serial.as_str())?;
    same("model", &found.model.as_str(), &export.model.as_str())?;
    same("max_io_queues", &found.io_queues_max, &export.max_io_queues)?;
    let (any, hosts) = match &export.access {
        Access::AnyHost => (true, BTreeSet::new()),
        Access::Hosts(hosts) => (false, hosts.iter().map(Nqn::as_str).collect()),
    };
    same("allow_any_host", &found.allow_any_host, &any)?;
    let allowed: BTreeSet<&str> = found.hosts.iter().map(String::as_str).collect();
    same("hosts", &allowed, &hosts)?;
    compare_masks(export, found, &hosts)?;
    let mine = ports.iter();
    let mine = mine.filter(|(listener, _)| export.listeners.contains(&listener.name));
    let wanted: BTreeSet<PortId> = mine.clone().map(|(_, port)| *port).collect();
    same("listeners", &found.ports.iter().copied().collect(), &wanted)?;
    let depth = mine.map(|(listener, _)| listener.queue_depth).min();
    same("queue_depth", &Some(found.queue_depth_max), &depth)?;
    compare_namespaces(config, export, found, served)
}

fn compare_namespaces(
    config: &Config,
    export: &Export,
    found: &SubsystemConfig,
    served: &Served,
) -> Result<(), String> {
    let present = export.namespaces.iter();
    let present = present.filter(|it| !served.absent.contains(&it.device));
    let wanted: BTreeMap<u32, Option<DeviceIndex>> = present
        .map(|it| (it.nsid, served.places.get(&it.device).copied()))
        .collect();
    let all = found.namespaces.iter();
    let all: BTreeMap<u32, Option<DeviceIndex>> =
        all.map(|it| (it.nsid, Some(it.device))).collect();
    let known: BTreeMap<u32, Option<DeviceIndex>> = all
        .into_iter()
        .filter(|(nsid, _)| {
            // A device that was just pulled out or put back may still differ.
            let mut namespaces = export.namespaces.iter();
            let named = namespaces.find(|it| it.nsid == *nsid);
            named.is_none_or(|it| !served.absent.contains(&it.device))
        })
        .collect();
    same("the namespaces", &known, &wanted)?;
    for namespace in &export.namespaces {
        let mut all = found.namespaces.iter();
        let (Some(found), Some(device)) = (
            all.find(|it| it.nsid == namespace.nsid),
            config.device(&namespace.device),
        ) else {
            continue;
        };
        compare_namespace(device, found, served.protected.contains(&device.name))
            .map_err(|what| format!("namespace {}: {what}", namespace.nsid))?;
        let what = format!("ana_group of namespace {}", namespace.nsid);
        same(&what, &found.ana_group, &namespace.ana_group)?;
    }
    Ok(())
}

/// Compares what each host is shown.
fn compare_masks(
    export: &Export,
    found: &SubsystemConfig,
    hosts: &BTreeSet<&str>,
) -> Result<(), String> {
    for host in hosts {
        let mut masks = export.masks.iter();
        let mask = masks.find(|it| it.hosts.iter().any(|other| other.as_str() == *host));
        let wanted: BTreeMap<u32, bool> = export
            .namespaces
            .iter()
            .filter_map(|it| {
                let Some(mask) = mask else {
                    return Some((it.nsid, false));
                };
                let only_reads = mask.read_only.contains(&it.device);
                let is_shown = only_reads || mask.devices.contains(&it.device);
                is_shown.then_some((it.nsid, only_reads))
            })
            .collect();
        let mut masks = found.masks.iter();
        let served: BTreeMap<u32, bool> =
            match masks.find(|it| it.hosts.iter().any(|it| it == host)) {
                None => export
                    .namespaces
                    .iter()
                    .map(|it| (it.nsid, false))
                    .collect(),
                Some(mask) => {
                    let shown = mask.namespaces.iter();
                    shown
                        .map(|(nsid, access)| (*nsid, *access == MaskedAccess::ReadOnly))
                        .collect()
                }
            };
        let what = format!("what {host} sees, and whether it only reads it,");
        same(&what, &served, &wanted)?;
    }
    Ok(())
}

fn compare_namespace(
    device: &appliance_config::Device,
    found: &NamespaceConfig,
    is_protected: bool,
) -> Result<(), String> {
    let read_only = device.read_only || is_protected;
    same("read_only", &found.read_only, &read_only)?;
    if let Some(block_size) = device.backing.block_size() {
        same(
            "block_size",
            &found.geometry.block_size,
            &block_size.bytes(),
        )?;
    }
    if let Some(size) = device.backing.size() {
        same("size", &found.geometry.bytes(), &size.bytes())?;
    }
    if let Some(uuid) = device.uuid {
        same("uuid", &found.uuid, uuid.as_bytes())?;
    }
    Ok(())
}
