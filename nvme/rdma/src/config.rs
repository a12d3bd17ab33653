//! The settings of the NVMe/RDMA transport, with their limits.

use nvme_fabrics::settings_of;
use nvme_target::{PortId, QUEUE_DEPTH_MAX};
use reactors::Nanos;

/// Largest in-capsule data size of an I/O queue, in bytes.
pub const IN_CAPSULE_BYTES_MAX: u32 = 64 << 10;
/// Connections that one reactor serves at most.
pub const CONNECTIONS_PER_REACTOR_MAX: usize = 4096;
/// Receives that the connections of one reactor share on one device, at most.
pub const RECEIVES_MAX: u32 = 8192;
/// Devices that one reactor serves at most.
pub const DEVICES_MAX: usize = 16;

// A request token has 16 bits for each, of which one value is reserved.
const _: () = assert!(CONNECTIONS_PER_REACTOR_MAX < u16::MAX as usize);
const _: () = assert!(RECEIVES_MAX < u16::MAX as u32);
const _: () = assert!(QUEUE_DEPTH_MAX < u16::MAX);

/// Settings for the hosts of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSettings {
    /// In-capsule data size of I/O queues in bytes, a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Entries of an I/O queue at most. Devices may support fewer.
    pub queue_depth_max: u16,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            in_capsule_bytes: 4096,
            queue_depth_max: 128,
        }
    }
}

/// Settings of one reactor's NVMe/RDMA transport.
#[derive(Debug, Clone)]
pub struct RdmaConfig {
    /// Settings of ports that do not have the defaults.
    pub ports: Vec<(PortId, PortSettings)>,
    /// Receives that the connections of the reactor share on one device. Devices may support fewer,
    /// and a small arena grants fewer, the same number to each reactor and device.
    pub receives: u32,
    /// Reactors that share the arena.
    pub reactors: usize,
    /// Connections of this reactor at most.
    pub connections_max: usize,
    /// Time within which a host must connect its queue.
    pub setup_timeout: Nanos,
    /// Time within which queued responses must be sent after a connection begins to close, and time
    /// within which posted work must be flushed after that.
    pub close_timeout: Nanos,
}

impl RdmaConfig {
    /// The settings for hosts of `port`.
    #[must_use]
    pub fn port(&self, port: PortId) -> PortSettings {
        settings_of(&self.ports, port)
    }

    /// In-capsule data size for the receives of a device, which all ports share, in bytes.
    pub(crate) fn in_capsule_bytes(&self) -> u32 {
        let ports = self.ports.iter().map(|(_, port)| port.in_capsule_bytes);
        let most = ports.max();
        most.unwrap_or(PortSettings::default().in_capsule_bytes)
            .min(IN_CAPSULE_BYTES_MAX)
    }
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            receives: 1024,
            reactors: 1,
            connections_max: 1024,
            setup_timeout: Nanos::from_secs(10),
            close_timeout: Nanos::from_secs(1),
        }
    }
}
