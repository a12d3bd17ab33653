//! From the configuration's exports and listeners to what the target core serves.

use std::net::SocketAddr;

use appliance_config::{Access, Config, Export, Listener, Transport};
use block::HealthState;
use nvme_target::{
    NamespaceConfig, PortConfig, PortId, SubsystemConfig, TargetConfig, TargetLimits, TransportKind,
};

use crate::devices::Devices;

/// The firmware revision that hosts are told: this build's version.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// What the target serves, given the devices that could be had and the addresses that were bound.
pub(crate) fn target_config(
    config: &Config,
    devices: &Devices,
    bound: &[SocketAddr],
    transfer_max: usize,
) -> TargetConfig {
    TargetConfig {
        subsystems: config
            .exports
            .iter()
            .map(|export| subsystem(config, export, devices))
            .collect(),
        ports: config
            .listeners
            .iter()
            .zip(bound)
            .enumerate()
            .map(|(index, (listener, address))| port(index, listener, *address))
            .collect(),
        limits: TargetLimits {
            transfer_max,
            controllers_max: config.limits.max_controllers,
        },
    }
}

/// The port number of the listener at `index`.
pub(crate) fn port_id(index: usize) -> PortId {
    PortId(index as u16)
}

fn port(index: usize, listener: &Listener, bound: SocketAddr) -> PortConfig {
    PortConfig {
        id: port_id(index),
        transport: match listener.transport {
            Transport::Tcp => TransportKind::Tcp,
            Transport::Rdma => TransportKind::Rdma,
        },
        address: bound.ip().to_string(),
        service: bound.port().to_string(),
        ipv6: bound.is_ipv6(),
        secure: false,
    }
}

fn subsystem(config: &Config, export: &Export, devices: &Devices) -> SubsystemConfig {
    let listeners = || {
        let named = config.listeners.iter().enumerate();
        named.filter(|(_, listener)| export.listeners.contains(&listener.name))
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
        // A subsystem has one queue size, so that of its strictest listener.
        queue_depth_max: listeners()
            .map(|(_, listener)| listener.queue_depth)
            .min()
            .unwrap_or(Listener::QUEUE_DEPTH_DEFAULT),
        ports: listeners().map(|(index, _)| port_id(index)).collect(),
    }
}

/// The namespaces of `export` whose devices are there now. A drive that is gone takes its
/// namespaces along until it comes back.
pub(crate) fn namespaces(
    config: &Config,
    export: &Export,
    devices: &Devices,
) -> Vec<NamespaceConfig> {
    let mut namespaces = Vec::new();
    for namespace in &export.namespaces {
        // The configuration's check has seen that every namespace names a device.
        let configured = config.devices.iter();
        let found = configured
            .enumerate()
            .find(|(_, device)| device.name == namespace.device);
        let Some((index, configured)) = found else {
            continue;
        };
        let Some((place, device)) = devices.get(index) else {
            continue;
        };
        if device.health().state == HealthState::Removed {
            continue;
        }
        let identity = config.namespace_identity(export, namespace);
        let geometry = device.geometry();
        namespaces.push(NamespaceConfig {
            nsid: namespace.nsid,
            device: place,
            geometry,
            uuid: *identity.uuid.as_bytes(),
            nguid: identity.nguid,
            eui64: identity.eui64,
            read_only: geometry.read_only || configured.read_only,
        });
    }
    namespaces
}
