//! The published configuration in a form for lookups on the I/O path.
//!
//! A change builds a new [`TargetView`] and publishes it. A core adopts it between two polls, so
//! the view that a core uses never changes during a command.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use block::{ABANDONED_MAX, Deallocate, Device, GIVEN_UP_MAX};
use reactors::Nanos;

use crate::authentication::{Concatenation, HostAuthentication};
use crate::config::{
    DeviceIndex, MaskedAccess, NAMESPACE_ID_MAX, NamespaceConfig, NamespaceMask, PortConfig,
    PortId, PortSecurity, SubsystemConfig,
};
use crate::io::COPY_BYTES_MAX;
use crate::pacing::PaceRules;
use crate::rates::RateRules;
use crate::revocation::Revocations;
use crate::shared::ControllerIdentity;
use crate::stages::SubsystemMeasures;

/// Whether `nsid` is a valid namespace identifier: 1 to NN (Base 2.1 §3.2.1.2).
#[inline]
pub(crate) fn is_valid_nsid(nsid: u32) -> bool {
    nsid != 0 && nsid <= NAMESPACE_ID_MAX
}

/// The complete configuration as one immutable value.
#[derive(Clone)]
pub(crate) struct TargetView {
    /// Number of changes. A core with an older epoch has to adopt this view.
    pub(crate) epoch: u32,
    /// Generation Counter of the discovery log (Base 2.1 §5.1.12.3.1).
    pub(crate) generation: u64,
    /// Subsystems by slot. A slot is not reused while a controller refers to it.
    pub(crate) subsystems: Vec<Option<Arc<SubsystemView>>>,
    pub(crate) ports: Vec<PortConfig>,
    /// Subsystems as hosts see them: by slot as hosts without a mask do, and then for each mask, so
    /// that a lookup of the I/O path costs the same with and without one.
    pub(crate) seen: Vec<Option<Arc<SubsystemView>>>,
    /// The hosts that exports list.
    pub(crate) listed_hosts: Arc<BTreeSet<String>>,
    /// The devices by index; `None` where the index is free.
    pub(crate) devices: Vec<Option<DeviceEntry>>,
    /// The rate limits.
    pub(crate) rate_rules: RateRules,
    /// The rates of subsystems that wait for others.
    pub(crate) pace_rules: PaceRules,
    /// Revoked keys.
    pub(crate) revocations: Revocations,
}

/// A device at its index.
#[derive(Clone)]
pub(crate) struct DeviceEntry {
    pub(crate) device: Arc<dyn Device>,
    /// The epoch in which it was added. Commands that were checked in an earlier epoch refer to
    /// another device.
    pub(crate) since: u32,
}

/// What a host sees of its subsystem, for one epoch: an index of [`TargetView::seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visibility(u32);

impl Visibility {
    /// Before the first epoch.
    pub(crate) const NOTHING: Self = Self(u32::MAX);
}

/// One subsystem.
#[derive(Clone)]
pub(crate) struct SubsystemView {
    pub(crate) config: SubsystemConfig,
    /// The subsystem as the hosts of each mask see it.
    masked: Vec<Arc<Self>>,
    /// The index of each host's mask.
    mask_of_host: Arc<HashMap<String, usize>>,
    /// By namespace identifier minus one, up to the highest active identifier.
    pub(crate) namespaces: Vec<Option<NamespaceView>>,
    /// One bit for each device of a namespace that has a volatile write cache.
    pub(crate) volatile_devices: u128,
    /// Latencies and error counts of its commands.
    pub(crate) measures: Arc<SubsystemMeasures>,
    /// Its hosts are being disconnected, and Connects are refused.
    pub(crate) draining: bool,
    /// Number of times that all associations were ended so that hosts identify its namespaces
    /// again.
    pub(crate) incarnation: u32,
}

/// The properties of one namespace against which I/O commands are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceView {
    pub(crate) block_count: u64,
    /// Largest read, write or compare in blocks, limited by MDTS and the device.
    pub(crate) transfer_max_blocks: u32,
    /// Most blocks of one Copy, and of one of its source ranges.
    pub(crate) copy_max_blocks: u32,
    pub(crate) device: u8,
    /// Base-two logarithm of the block size.
    pub(crate) block_shift: u8,
    pub(crate) read_only: bool,
    pub(crate) volatile: bool,
    pub(crate) deallocate: Deallocate,
    /// Whether no other target serves the device.
    pub(crate) reservations: bool,
}

/// Time for a transport to close the connections of an ended association. Until then, commands
/// whose host has disconnected may still be in execution.
const QUEUE_END_MAX: Nanos = Nanos::from_secs(2);

/// The longest time for which a request may still take effect after its association has ended. It
/// does not depend on the devices of a subsystem, because devices that are added later must not
/// exceed the value that hosts read when they connected.
pub(crate) const QUIESCE_TIME_MAX: Nanos =
    Nanos(QUEUE_END_MAX.0 + GIVEN_UP_MAX.0 + ABANDONED_MAX.0);

impl NamespaceView {
    fn new(config: &NamespaceConfig, transfer_max_bytes: u32) -> Self {
        let geometry = &config.geometry;
        let transfer_max_blocks = transfer_max_bytes / geometry.block_size;
        let transfer_max_blocks = transfer_max_blocks.min(geometry.max_transfer_blocks);
        Self {
            block_count: geometry.block_count,
            transfer_max_blocks,
            copy_max_blocks: transfer_max_blocks.min(COPY_BYTES_MAX / geometry.block_size),
            device: config.device.place(),
            block_shift: geometry.block_size.trailing_zeros() as u8,
            read_only: config.read_only || geometry.read_only,
            volatile: geometry.volatile_write_cache,
            deallocate: geometry.deallocate,
            reservations: config.reservations,
        }
    }
}

impl SubsystemView {
    /// The view of a checked configuration with transfers of at most `transfer_max_bytes`.
    pub(crate) fn new(
        config: SubsystemConfig,
        transfer_max_bytes: u32,
        measures: Arc<SubsystemMeasures>,
    ) -> Self {
        Self::with_former_hosts(config, &[], transfer_max_bytes, measures)
    }

    /// The view of a changed configuration. Hosts of `attached` that it no longer allows see at
    /// most what they saw, until their associations have ended: their masks may have been removed
    /// together with them.
    pub(crate) fn changed(
        &self,
        config: SubsystemConfig,
        attached: &BTreeSet<&str>,
        transfer_max_bytes: u32,
    ) -> Self {
        let mut former: Vec<NamespaceMask> = Vec::new();
        for host in attached.iter().filter(|host| !config.allows(host)) {
            let seen = self.seen_by_host(host).config.namespaces.iter();
            let kept = seen.filter(|it| {
                let same = |other: &&NamespaceConfig| other.nsid == it.nsid;
                let found = config.namespaces.iter().find(same);
                found.is_some_and(|other| other.device == it.device)
            });
            let namespaces = kept.map(|it| match it.read_only {
                true => (it.nsid, MaskedAccess::ReadOnly),
                false => (it.nsid, MaskedAccess::Unrestricted),
            });
            let namespaces = namespaces.collect();
            match former.iter_mut().find(|it| it.namespaces == namespaces) {
                Some(mask) => mask.hosts.push((*host).to_owned()),
                None => former.push(NamespaceMask {
                    hosts: vec![(*host).to_owned()],
                    namespaces,
                }),
            }
        }
        let measures = Arc::clone(&self.measures);
        Self {
            incarnation: self.incarnation,
            ..Self::with_former_hosts(config, &former, transfer_max_bytes, measures)
        }
    }

    fn with_former_hosts(
        config: SubsystemConfig,
        former: &[NamespaceMask],
        transfer_max_bytes: u32,
        measures: Arc<SubsystemMeasures>,
    ) -> Self {
        let highest = config
            .namespaces
            .iter()
            .map(|namespace| namespace.nsid)
            .max()
            .unwrap_or(0);
        let masked = config.masks.iter().chain(former).map(|mask| {
            let config = config.masked(mask);
            let measures = Arc::clone(&measures);
            Arc::new(Self::new(config, transfer_max_bytes, measures))
        });
        let masked = masked.collect();
        let mut mask_of_host = HashMap::new();
        for (place, mask) in config.masks.iter().chain(former).enumerate() {
            mask_of_host.extend(mask.hosts.iter().map(|host| (host.clone(), place)));
        }
        let mut namespaces = vec![None; highest as usize];
        let mut volatile_devices = 0;
        for namespace in &config.namespaces {
            let view = NamespaceView::new(namespace, transfer_max_bytes);
            if view.volatile {
                volatile_devices |= 1 << view.device;
            }
            namespaces[namespace.nsid as usize - 1] = Some(view);
        }
        Self {
            config,
            masked,
            mask_of_host: Arc::new(mask_of_host),
            namespaces,
            volatile_devices,
            measures,
            draining: false,
            incarnation: 0,
        }
    }

    /// The same view with the incarnation `incarnation`.
    pub(crate) fn in_incarnation(self, incarnation: u32) -> Self {
        Self {
            incarnation,
            ..self
        }
    }

    /// The same view with its hosts being disconnected.
    pub(crate) fn as_draining(&self) -> Self {
        Self {
            draining: true,
            ..self.clone()
        }
    }

    /// The subsystem as the host with this name sees it.
    pub(crate) fn seen_by_host(&self, host_nqn: &str) -> &Self {
        let mask = self.mask_of_host.get(host_nqn);
        mask.map_or(self, |mask| &self.masked[*mask])
    }

    /// Indices of the namespaces' devices, each once.
    pub(crate) fn devices(&self) -> BTreeSet<usize> {
        let namespaces = self.namespaces.iter().flatten();
        namespaces.map(|view| usize::from(view.device)).collect()
    }

    /// The active namespace `nsid`.
    #[inline]
    pub(crate) fn namespace(&self, nsid: u32) -> Option<&NamespaceView> {
        self.namespaces
            .get((nsid as usize).wrapping_sub(1))?
            .as_ref()
    }

    /// The configuration of the active namespace `nsid`.
    pub(crate) fn namespace_config(&self, nsid: u32) -> Option<&NamespaceConfig> {
        self.config
            .namespaces
            .iter()
            .find(|namespace| namespace.nsid == nsid)
    }

    /// Active namespace identifiers above `after`, ascending.
    pub(crate) fn active_after(&self, after: u32) -> impl Iterator<Item = u32> + '_ {
        (1..)
            .zip(&self.namespaces)
            .filter(move |(nsid, namespace)| *nsid > after && namespace.is_some())
            .map(|(nsid, _)| nsid)
    }

    /// Whether any namespace currently has a volatile write cache.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.volatile_devices != 0
    }

    /// Whether a host may connect.
    pub(crate) fn allows(&self, host_nqn: &str) -> bool {
        !self.draining && self.config.allows(host_nqn)
    }

    /// Whether it is available at a port.
    pub(crate) fn is_at(&self, port: PortId) -> bool {
        self.config.ports.contains(&port)
    }

    /// Whether connected hosts may continue with `other`: the values that they read when they
    /// connected are unchanged, and each namespace identifier still refers to the same disk.
    pub(crate) fn has_identity_of(&self, other: &Self) -> bool {
        let known = |config: &SubsystemConfig| {
            let SubsystemConfig {
                serial,
                model,
                firmware,
                ..
            } = config;
            (serial.clone(), model.clone(), firmware.clone())
        };
        known(&self.config) == known(&other.config) && self.incarnation == other.incarnation
    }
}

impl TargetView {
    /// Collects the hosts that exports list, after a change.
    pub(crate) fn collect_listed_hosts(&mut self) {
        let subsystems = self.subsystems.iter().flatten();
        let closed = subsystems.filter(|view| !view.config.allow_any_host);
        let hosts = closed.flat_map(|view| view.config.hosts.iter().cloned());
        self.listed_hosts = Arc::new(hosts.collect());
    }

    /// Whether any export lists hosts.
    pub(crate) fn has_lists(&self) -> bool {
        !self.listed_hosts.is_empty()
    }

    /// Whether an export lists this host.
    pub(crate) fn lists(&self, host_nqn: &str) -> bool {
        self.listed_hosts.contains(host_nqn)
    }

    /// The subsystem in a slot, if it is configured.
    #[inline]
    pub(crate) fn subsystem(&self, slot: u32) -> Option<&SubsystemView> {
        self.subsystems.get(slot as usize)?.as_deref()
    }

    /// Collects what hosts see, after a change.
    pub(crate) fn collect_seen(&mut self) {
        self.seen.clone_from(&self.subsystems);
        let masked = self.subsystems.iter().flatten();
        let masked = masked.flat_map(|subsystem| subsystem.masked.iter().cloned());
        self.seen.extend(masked.map(Some));
    }

    /// A subsystem as a host sees it, if it is configured.
    #[inline]
    pub(crate) fn seen(&self, by: Visibility) -> Option<&SubsystemView> {
        self.seen.get(by.0 as usize)?.as_deref()
    }

    /// How a host authenticates itself to a subsystem; `None` if it cannot.
    pub(crate) fn host_authentication(
        &self,
        subsystem: u32,
        host_nqn: &str,
    ) -> Option<&Arc<HostAuthentication>> {
        let subsystem = self.subsystem(subsystem)?;
        subsystem.config.authentication.get(host_nqn)
    }

    /// Whether a host has to use a secure channel for a subsystem.
    pub(crate) fn needs_channel(&self, subsystem: u32, host_nqn: &str) -> bool {
        let subsystem = self.subsystem(subsystem);
        subsystem.is_some_and(|it| it.config.secure_hosts.contains(host_nqn))
    }

    /// Whether a host at a port may generate a key for a secure channel there.
    pub(crate) fn may_concatenate(
        &self,
        port: PortId,
        settings: Option<&Arc<HostAuthentication>>,
    ) -> bool {
        let has_tls = self
            .port(port)
            .is_some_and(|it| it.security != PortSecurity::None);
        has_tls && settings.is_some_and(|it| it.concatenation != Concatenation::Off)
    }

    /// What the host of a controller sees of its subsystem.
    pub(crate) fn visibility(&self, controller: &ControllerIdentity) -> Visibility {
        let slot = controller.subsystem;
        let subsystem = self.subsystem(slot);
        let mask = subsystem.and_then(|it| it.mask_of_host.get(&controller.host_nqn));
        let Some(mask) = mask else {
            return Visibility(slot);
        };
        let before = self.subsystems.iter().take(slot as usize).flatten();
        let masks: usize = before.map(|subsystem| subsystem.masked.len()).sum();
        Visibility((self.subsystems.len() + masks + mask) as u32)
    }

    /// Slot and view of the subsystem with this name.
    pub(crate) fn find(&self, nqn: &str) -> Option<(u32, &Arc<SubsystemView>)> {
        (0..).zip(&self.subsystems).find_map(|(slot, subsystem)| {
            let subsystem = subsystem.as_ref()?;
            (subsystem.config.nqn == nqn).then_some((slot, subsystem))
        })
    }

    /// The device with an index.
    pub(crate) fn device(&self, place: usize) -> Option<&Arc<dyn Device>> {
        let placed = self.devices.get(place)?.as_ref()?;
        Some(&placed.device)
    }

    /// Whether the device with an index is the one that had it in an earlier epoch.
    pub(crate) fn had_device(&self, place: u8, epoch: u32) -> bool {
        let placed = self.devices.get(usize::from(place));
        let placed = placed.and_then(Option::as_ref);
        // Epochs wrap around. No work lasts for half of their range.
        placed.is_some_and(|placed| epoch.wrapping_sub(placed.since) < 1 << 31)
    }

    /// Whether a namespace uses the device with an index.
    pub(crate) fn uses(&self, device: DeviceIndex) -> bool {
        let subsystems = self.subsystems.iter().flatten();
        let mut namespaces = subsystems.flat_map(|view| &view.config.namespaces);
        namespaces.any(|namespace| namespace.device == device)
    }

    /// The port with this number.
    pub(crate) fn port(&self, id: PortId) -> Option<&PortConfig> {
        self.ports.iter().find(|port| port.id == id)
    }
}
