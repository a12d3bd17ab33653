//! Computes the ordered steps from one configuration to another.
//!
//! A dependent is removed before its dependency and added after it. Names, addresses and
//! identifiers stay unique, and every reference resolves, between any two steps.

mod apply_step;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::files::{FileListener, Files, Share, Volume};
use crate::model::{
    Access, AnaEntry, Backing, Config, Device, DriveNamespace, Export, HostAuthentication, Key,
    Listener, Mask, MaskedAccess, Namespace, RateLimit, RateScope,
};
use crate::table::Table;
use crate::value::{ByteSize, ControllerIds, ModelNumber, Name, Nqn, Period, SerialNumber};

/// The effect of a step on connected hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Hosts notice nothing except an event notification.
    Live,
    /// Requests in flight complete first, up to a deadline; then the hosts that use the removed
    /// object are disconnected from it.
    Drain,
    /// Requires a restart of the appliance.
    Restart,
}

impl Effect {
    /// The word for it in messages and JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Effect::Live => "live",
            Effect::Drain => "drain",
            Effect::Restart => "restart",
        }
    }
}

/// One step from the running to the wanted configuration. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Removes a namespace from an export.
    RemoveNamespace {
        /// The export.
        export: Nqn,
        /// The namespace.
        namespace: Namespace,
    },
    /// Removes an export and disconnects its hosts.
    RemoveExport(Nqn),
    /// Stops offering an export at a listener.
    DetachListener {
        /// The export.
        export: Nqn,
        /// The listener.
        listener: Name,
    },
    /// Removes a listener and closes its connections.
    RemoveListener(Name),
    /// Changes the hosts that may attach an export, and what they see of it, at once, so that no
    /// host sees what belongs to neither configuration. Hosts that lose access are disconnected.
    ChangeAccess {
        /// The export.
        export: Nqn,
        /// The new access list.
        access: Access,
        /// The new masks.
        masks: Vec<Mask>,
        /// How its hosts authenticate themselves from now on.
        authentication: Vec<HostAuthentication>,
        /// Whether a host that has access to the export or to a namespace now loses it, or has to
        /// authenticate itself from now on.
        revokes: bool,
    },
    /// Changes the serial or model number of an export. Its controllers are closed, and hosts
    /// reconnect.
    ChangeIdentity {
        /// The export.
        export: Nqn,
        /// The new serial number, as in the file.
        serial: Option<SerialNumber>,
        /// The new model number.
        model: ModelNumber,
    },
    /// Disconnects the hosts of an export because a namespace identifier gets a different disk or
    /// block size, so that hosts identify its namespaces again before they use them. Follows the
    /// removal of the old namespaces and precedes the addition of the new ones.
    DisconnectHosts {
        /// The export.
        export: Nqn,
        /// The replaced namespaces: at least one.
        replaced: Vec<Replaced>,
    },
    /// Closes a device.
    RemoveDevice(Name),
    /// Grows a device. Without a size, it is as large as its file.
    GrowDevice {
        /// The device.
        device: Name,
        /// The new size.
        size: Option<ByteSize>,
    },
    /// Opens a device.
    AddDevice(Box<Device>),
    /// Binds a listener.
    AddListener(Box<Listener>),
    /// Changes the settings of a listener for new connections.
    ChangeListener(Box<Listener>),
    /// Reads a key, and makes it available to exports.
    AddKey(Key),
    /// Reads a key from another place.
    ChangeKey(Key),
    /// Reads a key whose secret has changed in its place.
    ReloadKey(Name),
    /// Forgets a key. It follows the last change that ends its use.
    RemoveKey(Name),
    /// Adds an export.
    AddExport(Box<Export>),
    /// Offers an export at one more listener.
    AttachListener {
        /// The export.
        export: Nqn,
        /// The listener.
        listener: Name,
    },
    /// Changes the number of I/O queues of new controllers.
    ChangeQueues {
        /// The export.
        export: Nqn,
        /// Maximum number of I/O queues per controller.
        max_io_queues: u16,
    },
    /// Changes the states of ANA groups, and the groups of namespaces that stay, at once, so that
    /// no namespace has a state that belongs to neither configuration.
    ChangeAna {
        /// The export.
        export: Nqn,
        /// The new states.
        ana: Vec<AnaEntry>,
        /// The namespaces that change their group.
        regrouped: Vec<Namespace>,
    },
    /// Changes how an export shares the appliance with others.
    ChangePacing {
        /// The export.
        export: Nqn,
        /// The new latency target.
        p99: Option<Period>,
        /// The new weight.
        weight: Option<u32>,
    },
    /// Changes the identifiers of new controllers.
    ChangeControllerIds {
        /// The export.
        export: Nqn,
        /// The new range, as in the file.
        controller_ids: Option<ControllerIds>,
    },
    /// Adds a namespace to an export.
    AddNamespace {
        /// The export.
        export: Nqn,
        /// The namespace.
        namespace: Namespace,
    },
    /// Replaces the rate limits. Limits of removed devices and exports end before these are removed.
    ChangeRateLimits(Vec<RateLimit>),
    /// Stops serving files at a listener, and closes its connections.
    RemoveFileListener(Name),
    /// Serves files at one more listener.
    AddFileListener(FileListener),
    /// Stops serving a volume, which has no share any more.
    RemoveVolume(Name),
    /// Opens a volume.
    AddVolume(Volume),
    /// Replaces the shares of files.
    ChangeShares {
        /// The new shares.
        shares: Vec<Share>,
        /// The shares that are added, changed and removed.
        added: Vec<Name>,
        /// Those that change.
        changed: Vec<Name>,
        /// Those that end.
        removed: Vec<Name>,
        /// Whether clients may lose something: a share ends, gets other files or other clients.
        revokes: bool,
    },
    /// Changes the deadline of the next shutdown.
    ChangeShutdownDeadline(Period),
    /// Changes the maximum number of controllers; existing controllers stay.
    ChangeControllers(u16),
    /// A change of a key that takes a restart.
    Restart {
        /// The key, such as `appliance.memory`.
        key: String,
        /// The current value, as in the file.
        from: String,
        /// The wanted value.
        to: String,
    },
}

/// A namespace identifier that gets a different disk or format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The new namespace.
    pub namespace: Namespace,
    /// The difference that hosts have to detect.
    pub change: Change,
}

/// The difference between a namespace and the previous one with its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The content and the identifiers change.
    Content,
    /// The path of the file changes. If it is a different file, content and identifiers change too.
    Path,
    /// The content changes, but a configured `uuid` identifies it as the same disk.
    ContentUnderSameUuid,
    /// The identifiers change.
    Identifiers,
    /// The block size changes.
    BlockSize,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Namespace { nsid, device, .. } = &self.namespace;
        write!(f, "namespace {nsid} ({device}) ")?;
        f.write_str(match self.change {
            Change::Content => {
                "is replaced, and its identifiers change: hosts see a different disk"
            }
            Change::Path => {
                "gets another path; unless it is the same file, its identifiers change: hosts see \
                 a different disk"
            }
            Change::ContentUnderSameUuid => {
                "is replaced, but its configured uuid identifies it as the same disk"
            }
            Change::Identifiers => "gets other identifiers: hosts see a different disk",
            Change::BlockSize => "gets another block size",
        })
    }
}

impl Step {
    /// The effect of the step on connected hosts.
    pub fn effect(&self) -> Effect {
        match self {
            Step::RemoveNamespace { .. }
            | Step::RemoveExport(_)
            | Step::DetachListener { .. }
            | Step::RemoveListener(_)
            | Step::ChangeAccess { revokes: true, .. }
            | Step::ChangeIdentity { .. }
            | Step::DisconnectHosts { .. }
            | Step::RemoveFileListener(_)
            | Step::RemoveVolume(_)
            | Step::ChangeShares { revokes: true, .. }
            | Step::RemoveDevice(_) => Effect::Drain,
            Step::GrowDevice { .. }
            | Step::AddDevice(_)
            | Step::AddListener(_)
            | Step::ChangeListener(_)
            | Step::AddKey(_)
            | Step::ChangeKey(_)
            | Step::ReloadKey(_)
            | Step::RemoveKey(_)
            | Step::AddExport(_)
            | Step::AttachListener { .. }
            | Step::ChangeAccess { revokes: false, .. }
            | Step::ChangeQueues { .. }
            | Step::ChangeAna { .. }
            | Step::ChangePacing { .. }
            | Step::ChangeControllerIds { .. }
            | Step::AddNamespace { .. }
            | Step::ChangeRateLimits(_)
            | Step::AddFileListener(_)
            | Step::AddVolume(_)
            | Step::ChangeShares { revokes: false, .. }
            | Step::ChangeShutdownDeadline(_)
            | Step::ChangeControllers(_) => Effect::Live,
            Step::Restart { .. } => Effect::Restart,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::RemoveNamespace { export, namespace } => {
                let Namespace { nsid, device, .. } = namespace;
                write!(f, "remove namespace {nsid} ({device}) from {export}")
            }
            Step::RemoveExport(export) => {
                write!(f, "remove {export} and disconnect its hosts")
            }
            Step::DetachListener { export, listener } => {
                write!(f, "stop offering {export} at {listener}")
            }
            Step::RemoveListener(listener) => {
                write!(f, "close listener {listener} and its connections")
            }
            Step::ChangeAccess {
                export,
                access,
                masks,
                authentication,
                ..
            } => {
                match access {
                    Access::AnyHost => write!(f, "allow every host to attach {export}")?,
                    Access::Hosts(hosts) => {
                        write!(f, "allow {} host(s) to attach {export}", hosts.len())?;
                    }
                }
                let masked: usize = masks.iter().map(|mask| mask.hosts.len()).sum();
                if masked > 0 {
                    write!(f, ", {masked} of them only a part of it")?;
                }
                let count = |is_required: fn(&HostAuthentication) -> bool| {
                    authentication.iter().filter(|it| is_required(it)).count()
                };
                let chap = count(|it| it.requires_chap);
                if chap > 0 {
                    write!(f, ", {chap} of them after authentication")?;
                }
                let tls = count(|it| it.requires_tls);
                if tls > 0 {
                    write!(f, ", {tls} of them over TLS")?;
                }
                Ok(())
            }
            Step::ChangeIdentity { export, .. } => write!(
                f,
                "give {export} another serial or model number: its hosts are disconnected"
            ),
            Step::DisconnectHosts { export, replaced } => {
                write!(f, "disconnect the hosts of {export}")?;
                for (index, one) in replaced.iter().enumerate() {
                    f.write_str(if index == 0 { ": " } else { "; " })?;
                    write!(f, "{one}")?;
                }
                Ok(())
            }
            Step::RemoveDevice(device) => write!(f, "close device {device}"),
            Step::GrowDevice { device, size } => match size {
                Some(size) => write!(f, "resize device {device} to {size}"),
                None => write!(f, "use the file's size for device {device}"),
            },
            Step::AddDevice(device) => {
                write!(f, "open device {} ({})", device.name, device.backing.word())
            }
            Step::AddListener(listener) => write!(
                f,
                "listen on {} ({}) as {}",
                listener.address,
                listener.transport.word(),
                listener.name
            ),
            Step::ChangeListener(listener) => {
                write!(
                    f,
                    "change the settings of new connections of {}",
                    listener.name
                )
            }
            Step::AddKey(key) => write!(f, "read key {}", key.name),
            Step::ChangeKey(key) => write!(f, "read key {} from another place", key.name),
            Step::ReloadKey(name) => write!(f, "read key {name} again: its secret has changed"),
            Step::RemoveKey(name) => write!(f, "forget key {name}"),
            Step::AddExport(export) => write!(f, "offer {}", export.nqn),
            Step::AttachListener { export, listener } => write!(f, "offer {export} at {listener}"),
            Step::ChangeQueues {
                export,
                max_io_queues,
            } => write!(
                f,
                "limit new controllers of {export} to {max_io_queues} I/O queue(s)"
            ),
            Step::ChangeAna { export, .. } => {
                write!(f, "change ANA groups or states of {export}")
            }
            Step::ChangePacing {
                export,
                p99,
                weight,
            } => {
                match p99 {
                    Some(p99) => write!(f, "keep 99 % of the latencies of {export} below {p99}")?,
                    None => write!(f, "let {export} have no latency target")?,
                }
                match weight {
                    Some(weight) => write!(f, ", with weight {weight} on its disk"),
                    None => Ok(()),
                }
            }
            Step::ChangeControllerIds {
                export,
                controller_ids,
            } => match controller_ids {
                Some(ids) => {
                    let (first, last) = ids.range().into_inner();
                    write!(
                        f,
                        "give new controllers of {export} the identifiers {first} to {last}"
                    )
                }
                None => write!(f, "give new controllers of {export} any identifiers"),
            },
            Step::AddNamespace { export, namespace } => {
                let Namespace { nsid, device, .. } = namespace;
                write!(f, "add namespace {nsid} ({device}) to {export}")
            }
            Step::RemoveFileListener(name) => write!(f, "close file listener {name}"),
            Step::AddFileListener(listener) => write!(
                f,
                "serve files at {} ({}) as {}",
                listener.address,
                listener.transport.word(),
                listener.name
            ),
            Step::RemoveVolume(name) => write!(f, "close volume {name}"),
            Step::AddVolume(volume) => {
                write!(f, "open volume {} on device {}", volume.name, volume.device)
            }
            Step::ChangeShares {
                added,
                changed,
                removed,
                ..
            } => {
                f.write_str("change what is shared: ")?;
                let parts = [("add", added), ("change", changed), ("end", removed)];
                let parts = parts.iter().filter(|(_, names)| !names.is_empty());
                for (index, (what, names)) in parts.enumerate() {
                    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
                    f.write_str(if index == 0 { "" } else { "; " })?;
                    write!(f, "{what} {}", names.join(", "))?;
                }
                Ok(())
            }
            Step::ChangeShutdownDeadline(deadline) => {
                write!(f, "set the shutdown deadline to {deadline}")
            }
            Step::ChangeControllers(count) => {
                write!(f, "set the maximum number of controllers to {count}")
            }
            Step::ChangeRateLimits(limits) => match limits.as_slice() {
                [] => f.write_str("end all rate limits"),
                limits => {
                    f.write_str("apply these rate limits only: ")?;
                    for (index, limit) in limits.iter().enumerate() {
                        f.write_str(if index == 0 { "" } else { "; " })?;
                        write!(f, "{}", limit.in_words())?;
                    }
                    Ok(())
                }
            },
            Step::Restart { key, from, to } => {
                write!(f, "change {key} from {from} to {to}, which takes a restart")
            }
        }
    }
}

impl Config {
    /// The steps from this configuration to `wanted`, in the order in which they are carried out.
    /// Empty if both are equivalent; the order of sections is irrelevant.
    pub fn difference(&self, wanted: &Config) -> Vec<Step> {
        let mut steps = restarts(self, wanted);
        let comparison = Comparison {
            running: self,
            wanted,
        };
        let kept = comparison.kept_rate_limits();
        if kept != self.rate_limits {
            steps.push(Step::ChangeRateLimits(kept.clone()));
        }
        for export in &self.exports {
            comparison.push_removals(export, &mut steps);
        }
        for listener in &self.listeners {
            if !comparison.keeps_listener(&listener.name) {
                steps.push(Step::RemoveListener(listener.name.clone()));
            }
        }
        let kept_shares = comparison.push_file_removals(&mut steps);
        for device in &self.devices {
            if !comparison.keeps_device(&device.name) {
                steps.push(Step::RemoveDevice(device.name.clone()));
            }
        }
        for device in &wanted.devices {
            comparison.push_device_steps(device, &mut steps);
        }
        for listener in &wanted.listeners {
            comparison.push_listener_steps(listener, &mut steps);
        }
        for key in &wanted.keys {
            match self.key(&key.name) {
                Some(now) if now == key => {}
                Some(_) => steps.push(Step::ChangeKey(key.clone())),
                None => steps.push(Step::AddKey(key.clone())),
            }
        }
        for export in &wanted.exports {
            comparison.push_export_steps(export, &mut steps);
        }
        for key in &self.keys {
            if wanted.key(&key.name).is_none() {
                steps.push(Step::RemoveKey(key.name.clone()));
            }
        }
        if !same_entries(&kept, &wanted.rate_limits) {
            steps.push(Step::ChangeRateLimits(wanted.rate_limits.clone()));
        }
        comparison.push_file_additions(&kept_shares, &mut steps);
        let deadline = wanted.appliance.shutdown_deadline;
        if self.appliance.shutdown_deadline != deadline {
            steps.push(Step::ChangeShutdownDeadline(deadline));
        }
        let controllers = wanted.limits.max_controllers;
        if self.limits.max_controllers != controllers {
            steps.push(Step::ChangeControllers(controllers));
        }
        steps
    }

    /// This configuration, with the keys that take a restart as they are in `running`.
    pub fn without_restarts(&self, running: &Config) -> Config {
        let mut config = Config {
            appliance: running.appliance.clone(),
            limits: running.limits.clone(),
            control: running.control.clone(),
            ..self.clone()
        };
        config.appliance.take_live(&self.appliance);
        config.limits.take_live(&self.limits);
        config
    }
}

/// Two configurations and what stays from the first to the second.
struct Comparison<'c> {
    running: &'c Config,
    wanted: &'c Config,
}

impl Comparison<'_> {
    /// Whether the volume stays open.
    fn keeps_volume(&self, name: &Name) -> bool {
        let wanted = self.wanted.files.volume(name);
        let pair = self.running.files.volume(name).zip(wanted);
        pair.is_some_and(|(now, then)| now == then && self.keeps_device(&now.device))
    }

    /// Removes the listeners and volumes of files that do not stay, with their shares. Returns the
    /// shares that are left.
    fn push_file_removals(&self, steps: &mut Vec<Step>) -> Vec<Share> {
        let (running, wanted) = (&self.running.files, &self.wanted.files);
        for listener in &running.listeners {
            if wanted.listener(&listener.name) != Some(listener) {
                steps.push(Step::RemoveFileListener(listener.name.clone()));
            }
        }
        let kept = running.shares.iter();
        let kept: Vec<Share> = kept
            .filter(|it| self.keeps_volume(&it.volume))
            .cloned()
            .collect();
        steps.extend(change_of_shares(&running.shares, &kept));
        for volume in &running.volumes {
            if !self.keeps_volume(&volume.name) {
                steps.push(Step::RemoveVolume(volume.name.clone()));
            }
        }
        kept
    }

    /// Adds the volumes, shares and listeners of files that do not stay as they are.
    fn push_file_additions(&self, kept_shares: &[Share], steps: &mut Vec<Step>) {
        let (running, wanted) = (&self.running.files, &self.wanted.files);
        for volume in &wanted.volumes {
            if !self.keeps_volume(&volume.name) {
                steps.push(Step::AddVolume(volume.clone()));
            }
        }
        steps.extend(change_of_shares(kept_shares, &wanted.shares));
        for listener in &wanted.listeners {
            if running.listener(&listener.name) != Some(listener) {
                steps.push(Step::AddFileListener(listener.clone()));
            }
        }
    }

    /// Whether the device stays open; it may grow.
    fn keeps_device(&self, name: &Name) -> bool {
        let pair = self.running.device(name).zip(self.wanted.device(name));
        pair.is_some_and(|(now, then)| now == then || is_growth(now, then))
    }

    /// The rate limits without those of devices and exports that are removed or replaced.
    fn kept_rate_limits(&self) -> Vec<RateLimit> {
        let is_kept = |limit: &&RateLimit| match &limit.scope {
            RateScope::Device(device) => self.keeps_device(device),
            RateScope::Host(_) => true,
            RateScope::HostAt { export, .. } => self.wanted.export(export).is_some(),
        };
        let limits = self.running.rate_limits.iter();
        limits.filter(is_kept).cloned().collect()
    }

    /// Whether the listener stays bound; its settings may change.
    fn keeps_listener(&self, name: &Name) -> bool {
        let pair = self.running.listener(name).zip(self.wanted.listener(name));
        pair.is_some_and(|(now, then)| {
            now.transport == then.transport && now.address == then.address
        })
    }

    fn push_removals(&self, export: &Export, steps: &mut Vec<Step>) {
        let nqn = || export.nqn.clone();
        let Some(then) = self.wanted.export(&export.nqn) else {
            steps.push(Step::RemoveExport(nqn()));
            return;
        };
        for namespace in &export.namespaces {
            if !keeps_disk(then, namespace) || !self.keeps_device(&namespace.device) {
                steps.push(Step::RemoveNamespace {
                    export: nqn(),
                    namespace: namespace.clone(),
                });
            }
        }
        let replaced = export.namespaces.iter();
        let replaced: Vec<_> = replaced
            .filter_map(|it| self.replacement_of(it, then))
            .collect();
        if !replaced.is_empty() {
            steps.push(Step::DisconnectHosts {
                export: nqn(),
                replaced,
            });
        }
        for listener in &export.listeners {
            if !then.listeners.contains(listener) || !self.keeps_listener(listener) {
                steps.push(Step::DetachListener {
                    export: nqn(),
                    listener: listener.clone(),
                });
            }
        }
    }

    /// The replacement of a namespace in the wanted export, if hosts that know the old one must not
    /// continue with it.
    fn replacement_of(&self, old: &Namespace, then: &Export) -> Option<Replaced> {
        let mut namespaces = then.namespaces.iter();
        let new = namespaces.find(|it| it.nsid == old.nsid)?;
        let change = if new.device != old.device {
            Change::Content
        } else if self.keeps_device(&old.device) {
            return None;
        } else {
            let now = self.running.device(&old.device)?;
            changed_content(now, self.wanted.device(&old.device)?)?
        };
        Some(Replaced {
            namespace: new.clone(),
            change,
        })
    }

    /// The namespaces that stay and change their ANA group.
    fn regrouped(&self, now: &Export, then: &Export) -> Vec<Namespace> {
        let stays = |it: &&Namespace| keeps_disk(now, it) && self.keeps_device(&it.device);
        let moved = then.namespaces.iter().filter(stays);
        let moved = moved.filter(|it| !now.namespaces.contains(it));
        moved.cloned().collect()
    }

    fn push_device_steps(&self, device: &Device, steps: &mut Vec<Step>) {
        match self.running.device(&device.name) {
            Some(now) if now == device => {}
            Some(now) if is_growth(now, device) => steps.push(Step::GrowDevice {
                device: device.name.clone(),
                size: device.backing.size(),
            }),
            _ => steps.push(Step::AddDevice(Box::new(device.clone()))),
        }
    }

    fn push_listener_steps(&self, listener: &Listener, steps: &mut Vec<Step>) {
        let step = match self.running.listener(&listener.name) {
            Some(now) if now == listener => return,
            Some(_) if self.keeps_listener(&listener.name) => Step::ChangeListener,
            _ => Step::AddListener,
        };
        steps.push(step(Box::new(listener.clone())));
    }

    fn push_export_steps(&self, export: &Export, steps: &mut Vec<Step>) {
        let Some(now) = self.running.export(&export.nqn) else {
            steps.push(Step::AddExport(Box::new(export.clone())));
            return;
        };
        let nqn = || export.nqn.clone();
        // Precedes every addition, so that nothing is added with a state that it loses again.
        let regrouped = self.regrouped(now, export);
        if !regrouped.is_empty() || !same_entries(&now.ana, &export.ana) {
            steps.push(Step::ChangeAna {
                export: nqn(),
                ana: export.ana.clone(),
                regrouped,
            });
        }
        if (now.p99, now.weight) != (export.p99, export.weight) {
            steps.push(Step::ChangePacing {
                export: nqn(),
                p99: export.p99,
                weight: export.weight,
            });
        }
        if now.controller_ids != export.controller_ids {
            steps.push(Step::ChangeControllerIds {
                export: nqn(),
                controller_ids: export.controller_ids,
            });
        }
        if (&now.serial, &now.model) != (&export.serial, &export.model) {
            steps.push(Step::ChangeIdentity {
                export: nqn(),
                serial: export.serial.clone(),
                model: export.model.clone(),
            });
        }
        let is_same = same_access(&now.access, &export.access)
            && same_masks(&now.masks, &export.masks)
            && same_authentication(now, export);
        if !is_same {
            steps.push(Step::ChangeAccess {
                export: nqn(),
                access: export.access.clone(),
                masks: export.masks.clone(),
                authentication: export.authentication.clone(),
                revokes: !permits_all(&export.access, &now.access)
                    || hides(now, export)
                    || requires_more(now, export),
            });
        }
        if now.max_io_queues != export.max_io_queues {
            steps.push(Step::ChangeQueues {
                export: nqn(),
                max_io_queues: export.max_io_queues,
            });
        }
        for listener in &export.listeners {
            if !now.listeners.contains(listener) || !self.keeps_listener(listener) {
                steps.push(Step::AttachListener {
                    export: nqn(),
                    listener: listener.clone(),
                });
            }
        }
        for namespace in &export.namespaces {
            if !keeps_disk(now, namespace) || !self.keeps_device(&namespace.device) {
                steps.push(Step::AddNamespace {
                    export: nqn(),
                    namespace: namespace.clone(),
                });
            }
        }
    }
}

/// The difference that hosts have to detect when a device is closed and opened again as `then`;
/// `None` if hosts may continue.
fn changed_content(now: &Device, then: &Device) -> Option<Change> {
    let change = match (&now.backing, &then.backing) {
        (Backing::File { path: now, .. }, Backing::File { path: then, .. }) => {
            (now != then).then_some(Change::Path)
        }
        (Backing::Null { .. }, Backing::Null { .. }) => None,
        (Backing::Nvme(now), Backing::Nvme(then)) => {
            let place = |drive: &DriveNamespace| (drive.pci, drive.namespace);
            (place(now) != place(then)).then_some(Change::Content)
        }
        // The content of a memory device is lost when it is closed.
        _ => Some(Change::Content),
    };
    if change.is_some() && now.uuid.is_some() && now.uuid == then.uuid {
        return Some(Change::ContentUnderSameUuid);
    }
    let identifiers = (now.uuid != then.uuid).then_some(Change::Identifiers);
    let (from, to) = (now.backing.block_size(), then.backing.block_size());
    let format = (from != to).then_some(Change::BlockSize);
    change.or(identifiers).or(format)
}

/// Whether `then` is `now` with a size that loses no data: a larger one, or one that is added to or
/// removed from the file. A size that is now stated for a file does not truncate it.
fn is_growth(now: &Device, then: &Device) -> bool {
    let (from, to) = (now.backing.size(), then.backing.size());
    let mut resized = now.clone();
    set_size(&mut resized.backing, to);
    let larger = from.zip(to).is_none_or(|(from, to)| from < to);
    now != then && resized == *then && larger
}

fn set_size(backing: &mut Backing, to: Option<ByteSize>) {
    match (backing, to) {
        (Backing::Memory { size, .. } | Backing::Null { size, .. }, Some(to)) => *size = to,
        (Backing::File { size, .. }, to) => *size = to,
        (Backing::Memory { .. } | Backing::Null { .. }, None) | (Backing::Nvme(_), _) => {}
    }
}

/// Whether the export has the namespace, in any ANA group.
fn keeps_disk(export: &Export, namespace: &Namespace) -> bool {
    let mut namespaces = export.namespaces.iter();
    namespaces.any(|it| it.is_same_disk(namespace))
}

/// Whether the hosts of both authenticate themselves in the same way, whatever the order of hosts.
fn same_authentication(one: &Export, other: &Export) -> bool {
    same_entries(&one.authentication, &other.authentication)
}

/// Whether a host that may attach the running export, `now`, without authentication or TLS has to
/// authenticate itself or to use TLS.
fn requires_more(now: &Export, then: &Export) -> bool {
    then.authentication.iter().any(|it| {
        let before = now.authentication_of(&it.host);
        let (chap, tls) = before.map_or((false, false), |it| (it.requires_chap, it.requires_tls));
        let is_more = (it.requires_chap && !chap) || (it.requires_tls && !tls);
        is_more && now.access.permits(it.host.as_str())
    })
}

/// Whether both have the same entries, in any order.
fn same_entries<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    one.len() == other.len() && one.iter().all(|entry| other.contains(entry))
}

/// Whether every host that `few` permits is permitted by `many`.
fn permits_all(many: &Access, few: &Access) -> bool {
    match (many, few) {
        (Access::AnyHost, _) => true,
        (Access::Hosts(_), Access::AnyHost) => false,
        (Access::Hosts(many), Access::Hosts(few)) => few.iter().all(|host| many.contains(host)),
    }
}

fn same_access(one: &Access, other: &Access) -> bool {
    permits_all(one, other) && permits_all(other, one)
}

/// Whether both show the same to every host, whatever the order of masks, hosts and devices.
fn same_masks(one: &[Mask], other: &[Mask]) -> bool {
    let shown = |masks: &[Mask]| -> BTreeMap<String, BTreeSet<(String, MaskedAccess)>> {
        let mut shown = BTreeMap::new();
        for mask in masks {
            let devices = mask.devices.iter().chain(&mask.read_only);
            let devices = devices.map(|device| (device.to_string(), mask.shows(device)));
            let devices: BTreeSet<_> = devices.collect();
            let hosts = mask.hosts.iter();
            shown.extend(hosts.map(|host| (host.to_string(), devices.clone())));
        }
        shown
    };
    shown(one) == shown(other)
}

/// Whether a host of the running export, `now`, is shown less of one of its namespaces.
fn hides(now: &Export, then: &Export) -> bool {
    let devices = || now.namespaces.iter().map(|it| &it.device);
    then.masks.iter().any(|mask| {
        let mut permitted = mask.hosts.iter();
        permitted.any(|host| {
            let before = now.mask(host);
            now.access.permits(host.as_str())
                && devices().any(|it| {
                    let access = before.map_or(MaskedAccess::Unrestricted, |mask| mask.shows(it));
                    mask.shows(it) < access
                })
        })
    })
}

/// The changed keys that are read only at start: they size tables and memory, place threads, or are
/// part of every identity. The control plane's keys are among them: a request through it cannot
/// replace it, and a restart makes it available again quickly.
fn restarts(running: &Config, wanted: &Config) -> Vec<Step> {
    let mut steps = Vec::new();
    restarts_of(
        "appliance",
        &running.appliance,
        &wanted.appliance,
        &mut steps,
    );
    restarts_of("limits", &running.limits, &wanted.limits, &mut steps);
    restarts_of("control", &running.control, &wanted.control, &mut steps);
    steps
}

/// The step that replaces shares, if they differ.
fn change_of_shares(running: &[Share], wanted: &[Share]) -> Option<Step> {
    let same = |all: &[Share], share: &Share| all.iter().find(|it| it.name == share.name).cloned();
    let (mut added, mut changed, mut revokes) = (Vec::new(), Vec::new(), false);
    for share in wanted {
        match same(running, share) {
            None => added.push(share.name.clone()),
            Some(before) if before != *share => {
                revokes |= !Files::have_same_files(&before, share);
                revokes |= before.clients != share.clients;
                revokes |= before.allow_any_client != share.allow_any_client;
                changed.push(share.name.clone());
            }
            Some(_) => {}
        }
    }
    let removed = running.iter().filter(|it| same(wanted, it).is_none());
    let removed: Vec<Name> = removed.map(|it| it.name.clone()).collect();
    let is_same = added.is_empty() && changed.is_empty() && removed.is_empty();
    (!is_same).then(|| Step::ChangeShares {
        shares: wanted.to_vec(),
        revokes: revokes || !removed.is_empty(),
        added,
        changed,
        removed,
    })
}

fn restarts_of<T: Table>(path: &str, running: &T, wanted: &T, steps: &mut Vec<Step>) {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    for (now, then) in running.lines().into_iter().zip(wanted.lines()) {
        if !now.is_live && now.value != then.value {
            steps.push(Step::Restart {
                key: format!("{path}.{}", now.key),
                from: or_none(now.value),
                to: or_none(then.value),
            });
        }
    }
}

#[cfg(test)]
mod tests;
