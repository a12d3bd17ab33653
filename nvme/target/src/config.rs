//! What a target serves: subsystems, namespaces, ports and limits, and what may be wrong with them.

use std::collections::BTreeSet;

use block::Geometry;
use nvme_spec::nqn::{self, DISCOVERY_NQN, NqnError};

/// Place of a device: its number in the list that [`Target::new`](crate::Target::new) was given, or
/// what [`Target::add_device`](crate::Target::add_device) answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

/// Number of a port; becomes PORTID in the discovery log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// Which transport a port or a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// NVMe over TCP.
    Tcp,
    /// NVMe over RDMA.
    Rdma,
}

/// Devices of one target at most: as many as a reactor's set has room for.
pub const DEVICES_MAX: usize = block::DEVICES_MAX;

/// Highest namespace identifier: the tables that are indexed by it stay small.
pub const NAMESPACE_ID_MAX: u32 = 1024;

/// I/O queues of one controller at most.
pub const IO_QUEUES_MAX: u16 = 128;

/// Entries of one I/O queue at most.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Entries of an admin queue at most: what the discovery log announces as ASQSZ (Base 2.1
/// §5.1.12.3.1 asks for at least 32), and the most that an admin queue can have (Base 2.1
/// §3.3.3.1).
pub const ADMIN_QUEUE_DEPTH_MAX: u16 = 4096;

/// The same over RDMA, where a network card takes memory for a queue's depth when it is opened,
/// before the host says who it is.
pub const ADMIN_QUEUE_DEPTH_MAX_RDMA: u16 = 256;

impl TransportKind {
    /// Entries of an admin queue at most.
    #[must_use]
    pub const fn admin_queue_depth_max(self) -> u16 {
        match self {
            Self::Tcp => ADMIN_QUEUE_DEPTH_MAX,
            Self::Rdma => ADMIN_QUEUE_DEPTH_MAX_RDMA,
        }
    }
}

/// Flushes of all namespaces that one admin queue may have in devices at once: the only admin
/// commands that wait for devices. What an admin queue reserves does not grow with its depth.
pub(crate) const ADMIN_EXECUTIONS_MAX: u16 = 32;

/// Discovery controllers at once. They are apart from the controllers of subsystems, and the one
/// that was idle longest makes room for a new one.
pub const DISCOVERY_CONTROLLERS_MAX: usize = 64;

/// Controllers of one target at most: identifiers from FFF0h on are reserved (Base 2.1 §3.1.2).
pub const CONTROLLERS_MAX: u16 = 0x1000;

/// One namespace of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Namespace identifier, 1 ..= [`NAMESPACE_ID_MAX`], unique within the subsystem.
    pub nsid: u32,
    /// The device behind it.
    pub device: DeviceIndex,
    /// The device's shape.
    pub geometry: Geometry,
    /// UUID, network byte order; all zero: none.
    pub uuid: [u8; 16],
    /// NGUID, big endian; all zero: none.
    pub nguid: [u8; 16],
    /// EUI-64, big endian; all zero: none.
    pub eui64: [u8; 8],
    /// Whether writes are refused, whatever the device takes.
    pub read_only: bool,
}

/// One NVM subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its qualified name.
    pub nqn: String,
    /// Serial number, at most 20 printable ASCII characters.
    pub serial: String,
    /// Model number, at most 40.
    pub model: String,
    /// Firmware revision, at most 8.
    pub firmware: String,
    /// Whether every host may connect.
    pub allow_any_host: bool,
    /// Qualified names of the hosts that may.
    pub hosts: Vec<String>,
    /// Its namespaces, in any order.
    pub namespaces: Vec<NamespaceConfig>,
    /// I/O queues that a controller grants, 1 ..= [`IO_QUEUES_MAX`].
    pub io_queues_max: u16,
    /// Entries of an I/O queue at most, 2 ..= [`QUEUE_DEPTH_MAX`].
    pub queue_depth_max: u16,
    /// Ports it can be reached by.
    pub ports: Vec<PortId>,
}

/// One listener, as the discovery log describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its number, unique.
    pub id: PortId,
    /// Its transport.
    pub transport: TransportKind,
    /// The address that hosts are told, without the port: at most 256 ASCII characters.
    pub address: String,
    /// The transport service identifier (for IP: the port number): at most 32 ASCII characters.
    pub service: String,
    /// Whether the address is an IPv6 address.
    pub ipv6: bool,
    /// Whether hosts must use a secure channel (TLS).
    pub secure: bool,
}

/// Bounds on what hosts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLimits {
    /// Largest transfer of one command in bytes; rounded down to a power of two, becomes MDTS.
    /// At least 4096.
    pub transfer_max: usize,
    /// Controllers of subsystems at once, 1 ..= [`CONTROLLERS_MAX`]. There may be
    /// [`DISCOVERY_CONTROLLERS_MAX`] discovery controllers beside them.
    pub controllers_max: u16,
    /// Queues of all hosts at once, admin queues included, on all reactors together.
    pub queues_max: usize,
    /// Whether a controller's I/O queues over TCP have to come from the address of its admin queue.
    /// What an I/O Connect has to know of the association is no secret to other users of the
    /// network, and an address is harder to take than a name.
    pub bind_queues: bool,
}

impl Default for TargetLimits {
    fn default() -> Self {
        Self {
            transfer_max: 1 << 20,
            controllers_max: 256,
            queues_max: 1024,
            bind_queues: true,
        }
    }
}

/// All that a target serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetConfig {
    /// Its subsystems; the discovery subsystem is always there and not among them.
    pub subsystems: Vec<SubsystemConfig>,
    /// Its listeners.
    pub ports: Vec<PortConfig>,
    /// Its bounds.
    pub limits: TargetLimits,
}

/// Bounds of one reactor's core: what it takes from the heap at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreLimits {
    /// Queues at once, admin queues included.
    pub queues_max: usize,
    /// Commands in execution at once. Each queue reserves its depth of them when it connects, so a
    /// Connect that would exceed the sum is answered with Controller Busy.
    pub executions_max: usize,
}

impl Default for CoreLimits {
    fn default() -> Self {
        Self {
            queues_max: 256,
            executions_max: 16_384,
        }
    }
}

/// What is wrong with a configuration or a change of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// No reactor to run on.
    #[error("a target needs at least one reactor")]
    NoReactors,
    /// More devices than a set can hold.
    #[error("{count} devices are more than {DEVICES_MAX}")]
    TooManyDevices {
        /// How many there were.
        count: usize,
    },
    /// The largest transfer is smaller than one memory page.
    #[error("the largest transfer, {bytes} bytes, is smaller than 4096 bytes")]
    TransferTooSmall {
        /// What was asked for, or what the smallest device takes.
        bytes: usize,
    },
    /// No controllers, or more than there are identifiers for.
    #[error("controllers_max is {count}, not 1 to {CONTROLLERS_MAX}")]
    ControllersMax {
        /// What was asked for.
        count: u16,
    },
    /// A name is malformed.
    #[error("{nqn:?} is not a qualified name")]
    Nqn {
        /// The name.
        nqn: String,
        /// What is wrong with it.
        #[source]
        source: NqnError,
    },
    /// A subsystem has the discovery subsystem's name, or that of another one.
    #[error("the subsystem name {nqn} is taken")]
    DuplicateSubsystem {
        /// The name.
        nqn: String,
    },
    /// There is no such subsystem.
    #[error("there is no subsystem {nqn}")]
    UnknownSubsystem {
        /// The name.
        nqn: String,
    },
    /// A namespace identifier is zero or too high.
    #[error("namespace identifier {nsid} of {nqn} is not 1 to {NAMESPACE_ID_MAX}")]
    NamespaceId {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
    },
    /// Two namespaces of a subsystem have one identifier.
    #[error("namespace identifier {nsid} of {nqn} is used twice")]
    DuplicateNamespace {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
    },
    /// A namespace names a device that is not there.
    #[error("namespace {nsid} of {nqn} names a device that is not there: {}", device.0)]
    UnknownDevice {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// The device.
        device: DeviceIndex,
    },
    /// A namespace's block size or size cannot be served.
    #[error("namespace {nsid} of {nqn} has {block_count} blocks of {block_size} bytes")]
    Geometry {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// Its block size.
        block_size: u32,
        /// Its block count.
        block_count: u64,
    },
    /// The number of I/O queues or their depth is out of bounds.
    #[error("{nqn}: {queues} queues of {depth} entries are out of bounds")]
    Queues {
        /// The subsystem.
        nqn: String,
        /// Its I/O queues.
        queues: u16,
        /// Their depth.
        depth: u16,
    },
    /// A subsystem names a port that is not there, or two ports have one number.
    #[error("port {} is not there, or is there twice", port.0)]
    Port {
        /// The number.
        port: PortId,
    },
    /// More subsystems than slots.
    #[error("more than {SUBSYSTEMS_MAX} subsystems")]
    TooManySubsystems,
    /// A device that comes later takes less at once than hosts were told when they attached.
    #[error("the device takes {bytes} bytes at once, and hosts may send {needed}")]
    DeviceTransfer {
        /// What it takes.
        bytes: u64,
        /// What every device has to take.
        needed: u32,
    },
    /// A namespace still names a device that is to go.
    #[error("a namespace is on device {}", device.0)]
    DeviceInUse {
        /// The device.
        device: DeviceIndex,
    },
}

/// Subsystems of one target at most, those included that were removed while hosts still hold
/// controllers of them.
pub const SUBSYSTEMS_MAX: usize = 1024;

impl SubsystemConfig {
    /// Whether the subsystem can be served with these devices and ports.
    pub(crate) fn check(
        &self,
        is_device: impl Fn(DeviceIndex) -> bool,
        ports: &[PortConfig],
    ) -> Result<(), TargetError> {
        let name = |nqn: &String, source| TargetError::Nqn {
            nqn: nqn.clone(),
            source,
        };
        nqn::validate(&self.nqn).map_err(|source| name(&self.nqn, source))?;
        if self.nqn == DISCOVERY_NQN {
            return Err(TargetError::DuplicateSubsystem {
                nqn: self.nqn.clone(),
            });
        }
        check_hosts(&self.hosts)?;
        let (queues, depth) = (self.io_queues_max, self.queue_depth_max);
        if !(1..=IO_QUEUES_MAX).contains(&queues) || !(2..=QUEUE_DEPTH_MAX).contains(&depth) {
            return Err(TargetError::Queues {
                nqn: self.nqn.clone(),
                queues,
                depth,
            });
        }
        for port in &self.ports {
            if !ports.iter().any(|known| known.id == *port) {
                return Err(TargetError::Port { port: *port });
            }
        }
        check_namespaces(&self.nqn, &self.namespaces, is_device)
    }
}

/// Whether every name in an allow-list can be a host's.
pub(crate) fn check_hosts(hosts: &[String]) -> Result<(), TargetError> {
    for host in hosts {
        nqn::validate_size(host).map_err(|source| TargetError::Nqn {
            nqn: host.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Whether these namespaces can be those of the subsystem `nqn`.
pub(crate) fn check_namespaces(
    nqn: &str,
    namespaces: &[NamespaceConfig],
    is_device: impl Fn(DeviceIndex) -> bool,
) -> Result<(), TargetError> {
    let mut seen = BTreeSet::new();
    for NamespaceConfig {
        nsid,
        device,
        geometry,
        ..
    } in namespaces
    {
        let (nqn, nsid) = (nqn.to_owned(), *nsid);
        if nsid == 0 || nsid > NAMESPACE_ID_MAX {
            return Err(TargetError::NamespaceId { nqn, nsid });
        }
        if !seen.insert(nsid) {
            return Err(TargetError::DuplicateNamespace { nqn, nsid });
        }
        if !is_device(*device) {
            return Err(TargetError::UnknownDevice {
                nqn,
                nsid,
                device: *device,
            });
        }
        let Geometry {
            block_size,
            block_count,
            ..
        } = *geometry;
        let known_size = block::BLOCK_SIZES.contains(&block_size);
        if !known_size || block_count == 0 || block_count > u64::MAX / u64::from(block_size) {
            return Err(TargetError::Geometry {
                nqn,
                nsid,
                block_size,
                block_count,
            });
        }
    }
    Ok(())
}

impl TargetConfig {
    /// Whether the whole can be served with `devices` devices.
    pub(crate) fn check(&self, devices: usize) -> Result<(), TargetError> {
        if devices > DEVICES_MAX {
            return Err(TargetError::TooManyDevices { count: devices });
        }
        let count = self.limits.controllers_max;
        if !(1..=CONTROLLERS_MAX).contains(&count) {
            return Err(TargetError::ControllersMax { count });
        }
        if self.subsystems.len() > SUBSYSTEMS_MAX {
            return Err(TargetError::TooManySubsystems);
        }
        check_ports(&self.ports)?;
        let mut names = BTreeSet::new();
        for subsystem in &self.subsystems {
            subsystem.check(|device| usize::from(device.0) < devices, &self.ports)?;
            if !names.insert(&subsystem.nqn) {
                return Err(TargetError::DuplicateSubsystem {
                    nqn: subsystem.nqn.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Whether the ports' numbers are unique.
pub(crate) fn check_ports(ports: &[PortConfig]) -> Result<(), TargetError> {
    let mut seen = BTreeSet::new();
    for port in ports {
        if !seen.insert(port.id) {
            return Err(TargetError::Port { port: port.id });
        }
    }
    Ok(())
}
