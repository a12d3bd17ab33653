//! Converts the configuration's exports and listeners to the target's configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::sync::Arc;

use appliance_config::limits::{ANA_GROUPS_MAX, CONTROLLER_ID_MAX, MASKS_MAX, RATE_LIMITS_MAX};
use appliance_config::{
    Access, AnaState, Backing, ByteSize, Config, ControllerIds, Device, Export, Listener, Mask,
    MaskedAccess, Name, Operations, Period, RateLimit, RateScope, Tls, Transport,
};
use block::HealthState;
use nvme_target::{
    AnaPath, CONTROLLER_IDS, DeviceIndex, NamespaceConfig, NamespaceMask, Pacing, PortConfig,
    PortId, PortSecurity, SubsystemConfig, TargetConfig, TargetLimits, TransportKind,
};
use reactors::Nanos;

use crate::devices::Devices;
use crate::keys::Keys;
use crate::operator_states::OperatorStates;

/// The firmware revision reported to hosts: the version of this build.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

const _: () = assert!(ANA_GROUPS_MAX == nvme_target::ANA_GROUPS_MAX);
const _: () = assert!(MASKS_MAX == nvme_target::MASKS_MAX);
const _: () = assert!(RATE_LIMITS_MAX == nvme_target::RATE_LIMITS_MAX);
const _: () = assert!(CONTROLLER_ID_MAX == *CONTROLLER_IDS.end());

/// The port number of the listener at `index` of the configuration at start.
pub(crate) fn port_id(index: usize) -> PortId {
    PortId(index as u16)
}

/// The listeners of the configuration at start with their port numbers.
#[cfg(feature = "verbs")]
pub(crate) fn numbered(config: &Config) -> impl Iterator<Item = (PortId, &Listener)> {
    let listeners = config.listeners.iter().enumerate();
    listeners.map(|(index, listener)| (port_id(index), listener))
}

/// A listener that is bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundPort {
    pub(crate) id: PortId,
    /// With the port that the system chose, if the configuration has port 0.
    pub(crate) address: SocketAddr,
}

/// The bound listeners by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ports(BTreeMap<Name, BoundPort>);

impl Ports {
    /// The ports at start, numbered in the order of the configuration.
    pub(crate) fn new(config: &Config, bound: &[SocketAddr]) -> Self {
        let bound = bound.iter().enumerate();
        Self::of_bound(config, bound.map(|(index, it)| (port_id(index), *it)))
    }

    /// The ports at start, with the number and the address of each listener of `config`.
    pub(crate) fn of_bound(
        config: &Config,
        bound: impl Iterator<Item = (PortId, SocketAddr)>,
    ) -> Self {
        let ports = config.listeners.iter().zip(bound);
        let named = ports
            .map(|(listener, (id, address))| (listener.name.clone(), BoundPort { id, address }));
        Self(named.collect())
    }

    pub(crate) fn get(&self, name: &Name) -> Option<BoundPort> {
        self.0.get(name).copied()
    }

    /// A number that is neither in use nor in `taken`.
    pub(crate) fn free_id(&self, taken: &[PortId]) -> PortId {
        let has = |id: &PortId| self.0.values().any(|port| port.id == *id);
        let is_free = |id: &PortId| !has(id) && !taken.contains(id);
        let mut ids = (0..=u16::MAX).map(PortId);
        // The maximum number of listeners is far below the number of port numbers.
        ids.find(is_free).unwrap_or(PortId(u16::MAX))
    }

    pub(crate) fn insert(&mut self, name: Name, port: BoundPort) {
        self.0.insert(name, port);
    }

    pub(crate) fn remove(&mut self, name: &Name) -> Option<BoundPort> {
        self.0.remove(name)
    }

    /// The bound listeners of `config`, with their numbers.
    pub(crate) fn of<'c>(&self, config: &'c Config) -> Vec<(PortId, &'c Listener)> {
        let listeners = config.listeners.iter();
        let bound = listeners.filter_map(|it| Some((self.get(&it.name)?.id, it)));
        bound.collect()
    }

    /// Their entries in the discovery log.
    pub(crate) fn configs(&self, config: &Config) -> Vec<PortConfig> {
        let listeners = config.listeners.iter();
        let bound = listeners.filter_map(|it| Some((it, self.get(&it.name)?)));
        bound
            .map(|(listener, BoundPort { id, address })| PortConfig {
                id,
                transport: match listener.transport {
                    Transport::Tcp => TransportKind::Tcp,
                    Transport::Rdma => TransportKind::Rdma,
                },
                address: address.ip().to_string(),
                service: address.port().to_string(),
                ipv6: address.is_ipv6(),
                security: match listener.tls {
                    Tls::Off => PortSecurity::None,
                    Tls::Allowed => PortSecurity::Allowed,
                    Tls::Required => PortSecurity::Required,
                },
            })
            .collect()
    }
}

/// The target's configuration at start.
pub(crate) fn target_config(
    config: &Config,
    devices: &Devices,
    ports: &Ports,
    keys: &Keys,
    states: &OperatorStates,
    transfer_max: usize,
) -> TargetConfig {
    TargetConfig {
        subsystems: subsystems(config, devices, ports, keys, states),
        ports: ports.configs(config),
        limits: TargetLimits {
            transfer_max,
            controllers_max: config.limits.max_controllers,
            queues_max: config.limits.max_connections as usize,
            bind_queues: config.limits.bind_queues,
        },
    }
}

/// The configuration of each export in the target, from the open devices, the bound listeners and
/// the states that operators have set.
pub(crate) fn subsystems(
    config: &Config,
    devices: &Devices,
    ports: &Ports,
    keys: &Keys,
    states: &OperatorStates,
) -> Vec<SubsystemConfig> {
    let exports = config.exports.iter();
    exports
        .map(|export| subsystem(config, export, devices, ports, keys, states))
        .collect()
}

fn subsystem(
    config: &Config,
    export: &Export,
    devices: &Devices,
    ports: &Ports,
    keys: &Keys,
    states: &OperatorStates,
) -> SubsystemConfig {
    let listeners = || {
        let bound = ports.of(config).into_iter();
        bound.filter(|(_, listener)| export.listeners.contains(&listener.name))
    };
    let (allow_any_host, hosts) = match &export.access {
        Access::AnyHost => (true, Vec::new()),
        Access::Hosts(hosts) => (
            false,
            hosts.iter().map(|host| host.as_str().to_owned()).collect(),
        ),
    };
    SubsystemConfig {
        nqn: export.nqn.as_str().to_owned(),
        serial: config.serial_number(export).as_str().to_owned(),
        model: export.model.as_str().to_owned(),
        firmware: FIRMWARE.to_owned(),
        allow_any_host,
        hosts,
        namespaces: namespaces(config, export, devices),
        io_queues_max: export.max_io_queues,
        // A subsystem has one queue size, which is that of its strictest listener.
        queue_depth_max: listeners()
            .map(|(_, listener)| listener.queue_depth)
            .min()
            .unwrap_or(Listener::QUEUE_DEPTH_DEFAULT),
        ports: listeners().map(|(port, _)| port).collect(),
        authentication: authentication(export, keys),
        secure_hosts: {
            let hosts = export.authentication.iter().filter(|it| it.requires_tls);
            hosts.map(|it| it.host.to_string()).collect()
        },
        masks: export.masks.iter().map(|it| mask(export, it)).collect(),
        ana_states: listeners()
            .flat_map(|(port, listener)| {
                let groups = export.ana_groups().into_iter();
                groups.map(move |group| {
                    let state = states.state(export, &listener.name, group);
                    (AnaPath { port, group }, ana_state(state))
                })
            })
            .filter(|(_, state)| *state != nvme_target::AnaState::default())
            .collect(),
        controller_ids: export
            .controller_ids
            .map_or(CONTROLLER_IDS, ControllerIds::range),
    }
}

/// The rate limits in the target. That of a device without an index is absent.
pub(crate) fn rate_limits(config: &Config, devices: &Devices) -> Vec<nvme_target::RateLimit> {
    let index = |name: &Name| devices.get(name).map(|(index, _)| index);
    let limits = config.rate_limits.iter();
    limits.filter_map(|it| rate_limit(it, index)).collect()
}

/// A rate limit in the target; `None` if `device` does not know its device.
pub(crate) fn rate_limit(
    limit: &RateLimit,
    device: impl Fn(&Name) -> Option<DeviceIndex>,
) -> Option<nvme_target::RateLimit> {
    let scope = match &limit.scope {
        RateScope::Device(name) => nvme_target::RateScope::Device(device(name)?),
        RateScope::Host(host) => nvme_target::RateScope::Host(host.to_string()),
        RateScope::HostAt { host, export } => nvme_target::RateScope::HostAt {
            host: host.to_string(),
            subsystem: export.to_string(),
        },
    };
    Some(nvme_target::RateLimit {
        scope,
        reads: limit.operations.overlap(Operations::Reads),
        writes: limit.operations.overlap(Operations::Writes),
        iops: limit.iops,
        bandwidth: limit.bandwidth.map(ByteSize::bytes),
        burst: nanos(limit.burst),
    })
}

/// The latency targets and weights in the target; none if no export has any.
pub(crate) fn pacing(config: &Config, devices: &Devices) -> Vec<Pacing> {
    let exports = config.exports.iter();
    if exports
        .clone()
        .all(|it| it.p99.is_none() && it.weight.is_none())
    {
        return Vec::new();
    }
    let pacing = exports.map(|export| {
        let disks = export.namespaces.iter().filter_map(|it| {
            let (place, _) = devices.get(&it.device)?;
            Some((place, disk(config.device(&it.device)?)))
        });
        Pacing {
            subsystem: export.nqn.to_string(),
            latency_target: export.p99.map(nanos),
            weight: export.weight,
            disks: disks.collect(),
        }
    });
    pacing.collect()
}

/// The drive or file system that a device is on, or the device itself.
fn disk(device: &Device) -> String {
    match &device.backing {
        Backing::Memory { .. } | Backing::Null { .. } => device.name.to_string(),
        Backing::Nvme(drive) => drive.pci.to_string(),
        Backing::File { path, .. } => match std::fs::metadata(path) {
            // A special file of a block device is a disk, wherever it is.
            Ok(found) if found.file_type().is_block_device() => disk_number(found.rdev()),
            Ok(found) => disk_number(found.dev()),
            Err(_) => path.display().to_string(),
        },
    }
}

/// The number of a disk, as `lsblk` prints it.
fn disk_number(device: u64) -> String {
    format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    )
}

fn nanos(period: Period) -> Nanos {
    Nanos::from_micros(period.as_micros())
}

/// How the hosts of an export authenticate themselves.
fn authentication(
    export: &Export,
    keys: &Keys,
) -> BTreeMap<String, Arc<nvme_target::HostAuthentication>> {
    let hosts = export.authentication.iter();
    let hosts = hosts.filter(|host| !host.chap.is_empty());
    let hosts = hosts.map(|host| (host.host.to_string(), Arc::new(keys.authentication(host))));
    hosts.collect()
}

/// The mask in the target, of namespaces that the export has now. One that is added is hidden until
/// its export names it with its device.
fn mask(export: &Export, mask: &Mask) -> NamespaceMask {
    let namespaces = export.namespaces.iter().filter_map(|namespace| {
        let access = match mask.shows(&namespace.device) {
            MaskedAccess::Hidden => return None,
            MaskedAccess::ReadOnly => nvme_target::MaskedAccess::ReadOnly,
            MaskedAccess::Unrestricted => nvme_target::MaskedAccess::Unrestricted,
        };
        Some((namespace.nsid, access))
    });
    NamespaceMask {
        hosts: mask.hosts.iter().map(ToString::to_string).collect(),
        namespaces: namespaces.collect(),
    }
}

/// The state in the target.
pub(crate) fn ana_state(state: AnaState) -> nvme_target::AnaState {
    match state {
        AnaState::Optimized => nvme_target::AnaState::Optimized,
        AnaState::NonOptimized => nvme_target::AnaState::NonOptimized,
        AnaState::Inaccessible => nvme_target::AnaState::Inaccessible,
        AnaState::PersistentLoss => nvme_target::AnaState::PersistentLoss,
        AnaState::Change => nvme_target::AnaState::Change,
    }
}

/// Whether another appliance, which does not know this one's reservations, serves the device too.
fn is_shared(device: &Device) -> bool {
    matches!(device.backing, Backing::File { shared: true, .. })
}

/// The namespaces of `export` whose devices are present. The namespaces of a removed drive are
/// absent until it returns.
fn namespaces(config: &Config, export: &Export, devices: &Devices) -> Vec<NamespaceConfig> {
    let mut namespaces = Vec::new();
    for namespace in &export.namespaces {
        // The check of the configuration guarantees that every namespace names a device.
        let Some(configured) = config.device(&namespace.device) else {
            continue;
        };
        let Some((place, device)) = devices.get(&namespace.device) else {
            continue;
        };
        if device.health().state == HealthState::Removed {
            continue;
        }
        let Some(identity) = devices.identity(config, export, namespace) else {
            continue;
        };
        let geometry = device.geometry();
        namespaces.push(NamespaceConfig {
            nsid: namespace.nsid,
            device: place,
            geometry,
            uuid: *identity.uuid.as_bytes(),
            nguid: identity.nguid,
            eui64: identity.eui64,
            read_only: geometry.read_only || configured.read_only,
            ana_group: namespace.ana_group,
            reservations: !is_shared(configured),
        });
    }
    namespaces
}
