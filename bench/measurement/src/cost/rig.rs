//! The target of the loops: one subsystem with a namespace for each device.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use block::{Device, MemoryDevice, MemoryOptions};
use hugemem::{Arena, PagePolicy};
use nvme_target::{
    CONTROLLER_IDS, DeviceIndex, NamespaceConfig, PortConfig, PortId, PortSecurity,
    SubsystemConfig, Target, TargetConfig, TargetLimits, TransportKind,
};

use crate::cost::measure::CostError;

/// The subsystem.
pub(super) const NQN: &str = "nqn.2026-11.org.windlass:cost";

/// The host's name.
pub(super) const HOST_NQN: &str = "nqn.2026-11.org.windlass:cost-host";

/// Size of the RAM device in bytes: too large for the caches, like most.
pub(super) const DEVICE_BYTES: u64 = 64 << 20;

/// Block size of the devices in bytes.
pub(super) const BLOCK_BYTES: u32 = 512;

/// The error of a failed set-up step.
pub(super) fn setup(what: &str, error: &dyn std::fmt::Display) -> CostError {
    CostError::Setup(format!("{what}: {error}"))
}

/// The numbers of objects in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Exports.
    pub(super) exports: usize,
    /// Namespaces of each export, distributed over all devices in turn.
    pub(super) namespaces: usize,
    /// Reactors.
    pub(super) reactors: usize,
    /// Number of attached idle hosts.
    pub(super) idle_hosts: usize,
}

impl Extent {
    /// One object of each kind, and no idle host.
    pub(super) const ONE: Self = Self {
        exports: 1,
        namespaces: 1,
        reactors: 1,
        idle_hosts: 0,
    };
}

/// The name of an export.
pub(super) fn export_nqn(export: usize) -> String {
    match export {
        0 => NQN.to_owned(),
        number => format!("{NQN}-{number}"),
    }
}

/// A RAM device of this size.
///
/// # Errors
/// [`CostError::Setup`].
pub(super) fn ram(size_bytes: u64) -> Result<Arc<MemoryDevice>, CostError> {
    let device = MemoryDevice::new(MemoryOptions {
        name: "ram".to_owned(),
        uuid: [1; 16],
        size_bytes,
        block_size: BLOCK_BYTES,
        pages: PagePolicy::Ordinary,
        read_only: false,
    });
    device
        .map(Arc::new)
        .map_err(|error| setup("the RAM device", &error))
}

/// A target with these numbers of objects at `address` that exports `devices` in turn as namespaces
/// 1, 2 and so on.
///
/// # Errors
/// [`CostError::Setup`].
pub(super) fn target(
    arena: &Arena,
    extent: &Extent,
    devices: Vec<Arc<dyn Device>>,
    transport: TransportKind,
    address: SocketAddr,
    entries_max: u16,
) -> Result<Arc<Target>, CostError> {
    let namespace = |place: usize| {
        let device = place % devices.len();
        let number = place as u64 + 2;
        NamespaceConfig {
            nsid: (place % extent.namespaces) as u32 + 1,
            device: DeviceIndex(device as u16),
            geometry: devices[device].geometry(),
            uuid: u128::from(number).to_be_bytes(),
            nguid: u128::from(number).to_be_bytes(),
            eui64: number.to_be_bytes(),
            read_only: false,
            ana_group: 1,
            reservations: true,
        }
    };
    let export = |number: usize| SubsystemConfig {
        nqn: export_nqn(number),
        serial: "COST".to_owned(),
        model: "Windlass".to_owned(),
        firmware: "0".to_owned(),
        allow_any_host: true,
        hosts: Vec::new(),
        namespaces: (number * extent.namespaces..(number + 1) * extent.namespaces)
            .map(namespace)
            .collect(),
        io_queues_max: 2,
        queue_depth_max: entries_max,
        ports: vec![PortId(0)],
        masks: Vec::new(),
        authentication: BTreeMap::new(),
        secure_hosts: BTreeSet::new(),
        ana_states: BTreeMap::new(),
        controller_ids: CONTROLLER_IDS,
    };
    let config = TargetConfig {
        subsystems: (0..extent.exports).map(export).collect(),
        ports: vec![PortConfig {
            id: PortId(0),
            transport,
            address: address.ip().to_string(),
            service: address.port().to_string(),
            ipv6: false,
            security: PortSecurity::None,
        }],
        limits: TargetLimits {
            transfer_max: arena.max_transfer(),
            // One busy host for each reactor, and the part that one host leaves to others.
            controllers_max: 2 * (extent.idle_hosts + extent.reactors + 3) as u16,
            queues_max: 1 << 16,
            bind_queues: true,
        },
    };
    Target::new(config, extent.reactors, devices).map_err(|error| setup("the target", &error))
}
