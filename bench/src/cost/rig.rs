//! The target that the loops drive: one subsystem with a namespace for each device.

use std::net::SocketAddr;
use std::sync::Arc;

use block::{Device, MemoryDevice, MemoryOptions};
use hugemem::{Arena, PagePolicy};
use nvme_target::{
    DeviceIndex, NamespaceConfig, PortConfig, PortId, SubsystemConfig, Target, TargetConfig,
    TargetLimits, TransportKind,
};

use crate::cost::measure::CostError;

/// The subsystem.
pub(super) const NQN: &str = "nqn.2026-11.org.windlass:cost";

/// The host's name.
pub(super) const HOST_NQN: &str = "nqn.2026-11.org.windlass:cost-host";

/// Bytes of the RAM device.
pub(super) const DEVICE_BYTES: u64 = 16 << 20;

/// Bytes of the devices' blocks.
pub(super) const BLOCK_BYTES: u32 = 512;

/// A step of the set-up that failed.
pub(super) fn setup(what: &str, error: &dyn std::fmt::Display) -> CostError {
    CostError::Setup(format!("{what}: {error}"))
}

/// The RAM device.
///
/// # Errors
/// [`CostError::Setup`].
pub(super) fn ram() -> Result<Arc<MemoryDevice>, CostError> {
    let device = MemoryDevice::new(MemoryOptions {
        name: "ram".to_owned(),
        uuid: [1; 16],
        size_bytes: DEVICE_BYTES,
        block_size: BLOCK_BYTES,
        pages: PagePolicy::Ordinary,
        read_only: false,
    });
    device
        .map(Arc::new)
        .map_err(|error| setup("the RAM device", &error))
}

/// A target at `address` that exports `devices` as namespaces 1, 2 and so on.
///
/// # Errors
/// [`CostError::Setup`].
pub(super) fn target(
    arena: &Arena,
    devices: Vec<Arc<dyn Device>>,
    transport: TransportKind,
    address: SocketAddr,
    entries_max: u16,
) -> Result<Arc<Target>, CostError> {
    let namespace = |(index, device): (usize, &Arc<dyn Device>)| NamespaceConfig {
        nsid: index as u32 + 1,
        device: DeviceIndex(index as u16),
        geometry: device.geometry(),
        uuid: [index as u8 + 2; 16],
        nguid: [index as u8 + 3; 16],
        eui64: [index as u8 + 4; 8],
        read_only: false,
    };
    let config = TargetConfig {
        subsystems: vec![SubsystemConfig {
            nqn: NQN.to_owned(),
            serial: "COST".to_owned(),
            model: "Windlass".to_owned(),
            firmware: "0".to_owned(),
            allow_any_host: true,
            hosts: Vec::new(),
            namespaces: devices.iter().enumerate().map(namespace).collect(),
            io_queues_max: 2,
            queue_depth_max: entries_max,
            ports: vec![PortId(0)],
        }],
        ports: vec![PortConfig {
            id: PortId(0),
            transport,
            address: address.ip().to_string(),
            service: address.port().to_string(),
            ipv6: false,
            secure: false,
        }],
        limits: TargetLimits {
            transfer_max: arena.max_transfer(),
            controllers_max: 4,
        },
    };
    Target::new(config, 1, devices).map_err(|error| setup("the target", &error))
}
