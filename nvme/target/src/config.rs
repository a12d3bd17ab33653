//! Configuration of a target: subsystems, namespaces, ports and limits, and its errors.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use block::Geometry;
use nvme_spec::fabrics::CNTLID_MAX;
use nvme_spec::nqn::{self, DISCOVERY_NQN, NqnError};

use crate::ana::{ANA_GROUPS_MAX, AnaState};
use crate::authentication::{HOST_KEYS_MAX, HostAuthentication};
use crate::pacing::WEIGHT_MAX;

/// Index of a device: its position in the list given to [`Target::new`](crate::Target::new), or the
/// value returned by [`Target::add_device`](crate::Target::add_device).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

impl DeviceIndex {
    /// The index as it is kept with commands. The configuration was checked for fewer than 128
    /// devices.
    pub(crate) const fn place(self) -> u8 {
        self.0 as u8
    }
}

/// Number of a port. It is PORTID in the discovery log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// The transport of a port or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// NVMe over TCP.
    Tcp,
    /// NVMe over RDMA.
    Rdma,
}

/// Most devices of one target: the capacity of a reactor's device set.
pub const DEVICES_MAX: usize = block::DEVICES_MAX;

/// Highest namespace identifier. It bounds the tables that are indexed by namespace identifier.
pub const NAMESPACE_ID_MAX: u32 = 1024;

/// Most I/O queues of one controller.
pub const IO_QUEUES_MAX: u16 = 128;

/// Most entries of one I/O queue.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Most entries of an admin queue: ASQSZ in the discovery log (Base 2.1 §5.1.12.3.1 requires at
/// least 32), and the largest admin queue (Base 2.1 §3.3.3.1).
pub const ADMIN_QUEUE_DEPTH_MAX: u16 = 4096;

/// Most entries of an admin queue over RDMA. A network card allocates memory for a queue's depth
/// when the queue is opened, before the host has identified itself.
pub const ADMIN_QUEUE_DEPTH_MAX_RDMA: u16 = 256;

impl TransportKind {
    /// Most entries of an admin queue.
    #[must_use]
    pub const fn admin_queue_depth_max(self) -> u16 {
        match self {
            Self::Tcp => ADMIN_QUEUE_DEPTH_MAX,
            Self::Rdma => ADMIN_QUEUE_DEPTH_MAX_RDMA,
        }
    }
}

/// Most concurrent flushes of all namespaces from one admin queue: the only admin commands that
/// wait for devices. The slot quota of an admin queue does not grow with its depth.
pub(crate) const ADMIN_EXECUTIONS_MAX: u16 = 32;

/// Most concurrent discovery controllers. They are counted apart from I/O controllers. When the
/// limit is reached, the one that was idle longest is evicted.
pub const DISCOVERY_CONTROLLERS_MAX: usize = 64;

/// Most controllers of one target. Identifiers from FFF0h on are reserved (Base 2.1 §3.1.2).
pub const CONTROLLERS_MAX: u16 = 0x1000;

/// One namespace of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Namespace identifier, 1 ..= [`NAMESPACE_ID_MAX`], unique within the subsystem.
    pub nsid: u32,
    /// The device that stores its blocks.
    pub device: DeviceIndex,
    /// The device's geometry.
    pub geometry: Geometry,
    /// UUID, network byte order; all zero: none.
    pub uuid: [u8; 16],
    /// NGUID, big endian; all zero: none.
    pub nguid: [u8; 16],
    /// EUI-64, big endian; all zero: none.
    pub eui64: [u8; 8],
    /// Whether writes are refused, even if the device accepts them.
    pub read_only: bool,
    /// Its ANA group, 1 ..= [`ANA_GROUPS_MAX`]. Namespaces of one subsystem on one device are in the
    /// same group.
    pub ana_group: u32,
    /// Whether hosts can reserve it: not if another target, which does not know its reservations,
    /// serves the device too.
    pub reservations: bool,
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
    /// Qualified names of the allowed hosts.
    pub hosts: Vec<String>,
    /// Its namespaces, in any order.
    pub namespaces: Vec<NamespaceConfig>,
    /// I/O queues granted to a controller, 1 ..= [`IO_QUEUES_MAX`].
    pub io_queues_max: u16,
    /// Most entries of an I/O queue, 2 ..= [`QUEUE_DEPTH_MAX`].
    pub queue_depth_max: u16,
    /// Ports on which hosts can reach it.
    pub ports: Vec<PortId>,
    /// The hosts that see only a part of it. All others see every namespace.
    pub masks: Vec<NamespaceMask>,
    /// How hosts authenticate themselves, by their qualified names. All others cannot.
    pub authentication: BTreeMap<String, Arc<HostAuthentication>>,
    /// The qualified names of the hosts that have to use a secure channel.
    pub secure_hosts: BTreeSet<String>,
    /// The ANA states of groups at ports; optimized where there is none.
    pub ana_states: BTreeMap<AnaPath, AnaState>,
    /// The identifiers that its controllers can have. Targets that serve the same subsystem need
    /// different ones.
    pub controller_ids: RangeInclusive<u16>,
}

/// The part of a subsystem that some hosts see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceMask {
    /// Qualified names of the hosts. A host has at most one mask in a subsystem.
    pub hosts: Vec<String>,
    /// Identifiers of the namespaces that they see, and whether they can only read them.
    pub namespaces: BTreeMap<u32, MaskedAccess>,
}

/// What hosts with a mask may do with a namespace that they see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskedAccess {
    /// What hosts without a mask may do.
    Unrestricted,
    /// Read only.
    ReadOnly,
}

/// Most masks of one subsystem. Each has a table of its namespaces.
pub const MASKS_MAX: usize = 64;

/// The identifiers that controllers can have by default.
pub const CONTROLLER_IDS: RangeInclusive<u16> = 1..=CNTLID_MAX;

/// An ANA group of a subsystem as hosts reach it at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnaPath {
    /// The port.
    pub port: PortId,
    /// The group's identifier.
    pub group: u32,
}

/// Whether the hosts of a port use a secure channel (TLS 1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortSecurity {
    /// They cannot.
    #[default]
    None,
    /// They may.
    Allowed,
    /// They must.
    Required,
}

/// One listener, as the discovery log describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its number, unique.
    pub id: PortId,
    /// Its transport.
    pub transport: TransportKind,
    /// The address that the discovery log reports, without the port: at most 256 ASCII characters.
    pub address: String,
    /// The transport service identifier (for IP: the port number): at most 32 ASCII characters.
    pub service: String,
    /// Whether the address is an IPv6 address.
    pub ipv6: bool,
    /// Whether hosts use a secure channel.
    pub security: PortSecurity,
}

/// Limits on the resources of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLimits {
    /// Largest transfer of one command in bytes; rounded down to a power of two, becomes MDTS.
    /// At least 4096.
    pub transfer_max: usize,
    /// Most concurrent I/O controllers, 1 ..= [`CONTROLLERS_MAX`]. Up to
    /// [`DISCOVERY_CONTROLLERS_MAX`] discovery controllers come in addition.
    pub controllers_max: u16,
    /// Most concurrent queues of all hosts on all reactors, admin queues included.
    pub queues_max: usize,
    /// Whether a controller's I/O queues over TCP have to come from the address of its admin queue.
    /// Other users of the network can observe the identifiers that an I/O Connect has to contain,
    /// and an address is harder to forge than a name.
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

/// The complete configuration of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetConfig {
    /// Its subsystems. The discovery subsystem always exists and is not listed.
    pub subsystems: Vec<SubsystemConfig>,
    /// Its listeners.
    pub ports: Vec<PortConfig>,
    /// Its limits.
    pub limits: TargetLimits,
}

/// Limits of one reactor's core. They determine its heap allocation at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreLimits {
    /// Most concurrent queues, admin queues included.
    pub queues_max: usize,
    /// Most concurrent executions. Each queue reserves its depth when it connects. A Connect that
    /// would exceed the sum fails with Controller Busy.
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

/// An error in a configuration or in a change of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// There is no reactor to run on.
    #[error("a target needs at least one reactor")]
    NoReactors,
    /// There are more devices than a device set can hold.
    #[error("{count} devices exceed the maximum of {DEVICES_MAX}")]
    TooManyDevices {
        /// The number of devices.
        count: usize,
    },
    /// There are more rate limits than the target takes.
    #[error("{count} rate limits exceed the maximum of {RATE_LIMITS_MAX}")]
    TooManyRateLimits {
        /// The number of rate limits.
        count: usize,
    },
    /// A weight or a latency target is out of range.
    #[error("{nqn}: a weight is 1 to {WEIGHT_MAX}, and a latency target is longer than zero")]
    Pacing {
        /// The subsystem.
        nqn: String,
    },
    /// The largest transfer is smaller than one memory page.
    #[error("the largest transfer, {bytes} bytes, is smaller than 4096 bytes")]
    TransferTooSmall {
        /// The configured maximum, or the maximum of the smallest device.
        bytes: usize,
    },
    /// The number of controllers is zero or exceeds the number of identifiers.
    #[error("controllers_max is {count}, not 1 to {CONTROLLERS_MAX}")]
    ControllersMax {
        /// The configured number.
        count: u16,
    },
    /// A name is malformed.
    #[error("{nqn:?} is not a qualified name")]
    Nqn {
        /// The name.
        nqn: String,
        /// The reason.
        #[source]
        source: NqnError,
    },
    /// The name of a subsystem is the discovery subsystem's or another subsystem's.
    #[error("the subsystem name {nqn} is already in use")]
    DuplicateSubsystem {
        /// The name.
        nqn: String,
    },
    /// The subsystem does not exist.
    #[error("subsystem {nqn} does not exist")]
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
    /// An ANA group identifier is zero or too high.
    #[error("ANA group {group} of {nqn} is not 1 to {ANA_GROUPS_MAX}")]
    AnaGroup {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        group: u32,
    },
    /// Namespaces on one device are in different ANA groups.
    #[error("namespaces of {nqn} on device {} are in different ANA groups", device.0)]
    AnaGroupOfDevice {
        /// The subsystem.
        nqn: String,
        /// The device.
        device: DeviceIndex,
    },
    /// A subsystem has no identifiers for its controllers.
    #[error(
        "the controller identifiers of {nqn}, {first} to {last}, are not within 1 to {CNTLID_MAX}"
    )]
    ControllerIds {
        /// The subsystem.
        nqn: String,
        /// The lowest identifier.
        first: u16,
        /// The highest identifier.
        last: u16,
    },
    /// A namespace refers to a device that does not exist.
    #[error("namespace {nsid} of {nqn}: device {} does not exist", device.0)]
    UnknownDevice {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// The device.
        device: DeviceIndex,
    },
    /// A namespace's block size or block count is not supported.
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
    #[error("{nqn}: {queues} queues of {depth} entries exceed the limits")]
    Queues {
        /// The subsystem.
        nqn: String,
        /// Its I/O queues.
        queues: u16,
        /// Their depth.
        depth: u16,
    },
    /// A subsystem refers to a port that does not exist or, for an ANA state, to one at which it is
    /// not offered, or two ports have the same number.
    #[error("port {} does not exist, is configured twice or does not offer the subsystem", port.0)]
    Port {
        /// The number.
        port: PortId,
    },
    /// There are too many masks.
    #[error("{nqn} has {count} masks of namespaces, the maximum is {MASKS_MAX}")]
    TooManyMasks {
        /// The subsystem.
        nqn: String,
        /// Their number.
        count: usize,
    },
    /// A host has several masks.
    #[error("{nqn}: host {host} has more than one mask of namespaces")]
    DuplicateMask {
        /// The subsystem.
        nqn: String,
        /// The host.
        host: String,
    },
    /// A host has too many keys.
    #[error("{nqn}: host {host} has {count} keys, and {HOST_KEYS_MAX} at most are possible")]
    HostKeys {
        /// The subsystem.
        nqn: String,
        /// The host.
        host: String,
        /// Their number.
        count: usize,
    },
    /// There are more subsystems than slots.
    #[error("more than {SUBSYSTEMS_MAX} subsystems")]
    TooManySubsystems,
    /// An added device has a smaller maximum transfer than the MDTS that hosts have already read.
    #[error(
        "the device's maximum transfer of {bytes} bytes is smaller than the {needed} bytes that \
         hosts may send"
    )]
    DeviceTransfer {
        /// The device's maximum in bytes.
        bytes: u64,
        /// The required maximum in bytes.
        needed: u32,
    },
    /// A device cannot be removed because a namespace refers to it.
    #[error("device {} is in use by a namespace", device.0)]
    DeviceInUse {
        /// The device.
        device: DeviceIndex,
    },
}

/// Most subsystems of one target. Removed subsystems count while hosts still have controllers of
/// them.
pub const SUBSYSTEMS_MAX: usize = 1024;

/// Most rate limits. A queue compares each with its host when a configuration is adopted.
pub const RATE_LIMITS_MAX: usize = 1024;

impl SubsystemConfig {
    /// Checks that the subsystem can be served with these devices and ports.
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
        let ana_ports = self.ana_states.keys().map(|path| &path.port);
        for port in self.ports.iter().chain(ana_ports) {
            if !ports.iter().any(|known| known.id == *port) {
                return Err(TargetError::Port { port: *port });
            }
        }
        for path in self.ana_states.keys() {
            check_ana_group(&self.nqn, path.group)?;
        }
        self.check_masks()?;
        for (host, authentication) in &self.authentication {
            check_hosts(std::slice::from_ref(host))?;
            authentication.check(&self.nqn, host)?;
        }
        let (first, last) = (*self.controller_ids.start(), *self.controller_ids.end());
        if first == 0 || first > last || last > CNTLID_MAX {
            return Err(TargetError::ControllerIds {
                nqn: self.nqn.clone(),
                first,
                last,
            });
        }
        check_namespaces(&self.nqn, &self.namespaces, is_device)
    }

    /// Whether a host may connect.
    pub(crate) fn allows(&self, host_nqn: &str) -> bool {
        self.allow_any_host || self.hosts.iter().any(|host| host == host_nqn)
    }

    /// Checks the masks. They may name namespaces that do not exist, because a namespace may be
    /// removed and added again.
    fn check_masks(&self) -> Result<(), TargetError> {
        let nqn = || self.nqn.clone();
        let count = self.masks.len();
        if count > MASKS_MAX {
            return Err(TargetError::TooManyMasks { nqn: nqn(), count });
        }
        let mut seen = BTreeSet::new();
        for mask in &self.masks {
            check_hosts(&mask.hosts)?;
            if let Some(host) = mask.hosts.iter().find(|host| !seen.insert(*host)) {
                let (nqn, host) = (nqn(), host.clone());
                return Err(TargetError::DuplicateMask { nqn, host });
            }
        }
        Ok(())
    }

    /// The subsystem as hosts with a mask see it.
    pub(crate) fn masked(&self, mask: &NamespaceMask) -> Self {
        let namespaces = self.namespaces.iter().filter_map(|namespace| {
            let access = mask.namespaces.get(&namespace.nsid)?;
            Some(NamespaceConfig {
                read_only: namespace.read_only || *access == MaskedAccess::ReadOnly,
                ..namespace.clone()
            })
        });
        Self {
            namespaces: namespaces.collect(),
            masks: Vec::new(),
            authentication: BTreeMap::new(),
            secure_hosts: BTreeSet::new(),
            // Whether a host may attach depends on the whole subsystem.
            allow_any_host: false,
            hosts: Vec::new(),
            ..self.clone()
        }
    }
}

/// Checks that every name in a list of allowed hosts is a possible host name.
pub(crate) fn check_hosts(hosts: &[String]) -> Result<(), TargetError> {
    for host in hosts {
        nqn::validate_size(host).map_err(|source| TargetError::Nqn {
            nqn: host.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Checks the identifier of an ANA group.
pub(crate) fn check_ana_group(nqn: &str, group: u32) -> Result<(), TargetError> {
    if !(1..=ANA_GROUPS_MAX).contains(&group) {
        return Err(TargetError::AnaGroup {
            nqn: nqn.to_owned(),
            group,
        });
    }
    Ok(())
}

/// Checks the namespaces of the subsystem `nqn`.
pub(crate) fn check_namespaces(
    nqn: &str,
    namespaces: &[NamespaceConfig],
    is_device: impl Fn(DeviceIndex) -> bool,
) -> Result<(), TargetError> {
    let mut seen = BTreeSet::new();
    let mut groups = BTreeMap::new();
    for NamespaceConfig {
        nsid,
        device,
        geometry,
        ana_group,
        ..
    } in namespaces
    {
        check_ana_group(nqn, *ana_group)?;
        let (nqn, nsid) = (nqn.to_owned(), *nsid);
        // Access is decided by device.
        if groups
            .insert(*device, *ana_group)
            .is_some_and(|it| it != *ana_group)
        {
            let device = *device;
            return Err(TargetError::AnaGroupOfDevice { nqn, device });
        }
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
    /// Checks that the configuration can be served with `devices` devices.
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

/// Checks that the numbers of the ports are unique.
pub(crate) fn check_ports(ports: &[PortConfig]) -> Result<(), TargetError> {
    let mut seen = BTreeSet::new();
    for port in ports {
        if !seen.insert(port.id) {
            return Err(TargetError::Port { port: port.id });
        }
    }
    Ok(())
}
