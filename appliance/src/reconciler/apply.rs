//! Changes the running configuration to a wanted one: plans the steps, checks whether they are
//! possible, and executes them.
//!
//! External resources - files, memory, addresses - are acquired before anything is changed, unless
//! the running configuration still holds them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use appliance_config::{
    Backing, ByteSize, Config, Device, Effect, FileListener, Key, KeySource, Listener, Name, Step,
    Transport, Volume,
};
use hugemem::Region;

use super::Reconciler;
use super::steps::{StepEnd, close_port};
use crate::devices::{DeviceError, Opened};
use crate::error::with_causes;
use crate::event_loop::{EventLoop, aside};
use crate::exports::BoundPort;
use crate::files::{self, PreparedListener};
use crate::keys::{KeySecret, Keys};
use crate::observe::model::{ApplyAnswer, ApplyStep, OutstandingCommands, StepState};
use crate::volumes;

/// How a configuration is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApplyOptions {
    /// Only list the steps.
    pub(crate) dry_run: bool,
    /// Carry out the possible steps even if others wait for a restart.
    pub(crate) partial: bool,
    /// The origin of the configuration.
    pub(crate) origin: Origin,
}

/// The author of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The owner of the file with which the appliance was started.
    #[default]
    File,
    /// A client of the control plane: `apply` and `allowed_paths` of \[control\] restrict it.
    Request,
}

/// The resources acquired before anything was changed.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) devices: BTreeMap<Name, Opened>,
    pub(super) listeners: BTreeMap<Name, BoundPort>,
    /// Devices that were released and could not be opened again, kept until it is certain that they
    /// are not needed.
    pub(super) retained: BTreeMap<Name, Opened>,
    /// Kept devices that are to be added again.
    pub(super) to_reopen: BTreeMap<Name, Opened>,
    /// Listeners of files that are bound.
    pub(super) file_listeners: BTreeMap<Name, PreparedListener>,
    /// Volumes in memory that were removed, kept until it is certain that they are not needed.
    pub(super) retained_volumes: BTreeMap<Name, Box<files_store::Volume>>,
    /// Kept volumes that are to be served again.
    pub(super) volumes_to_restore: BTreeMap<Name, Box<files_store::Volume>>,
    /// Secrets that were read and are not in use yet.
    pub(super) secrets: BTreeMap<Name, KeySecret>,
    /// Opened files must lie below one of these directories; `None`: anywhere.
    pub(super) allowed_paths: Option<Vec<PathBuf>>,
}

/// A planned step.
struct Planned {
    step: Step,
}

impl Planned {
    fn new(step: Step) -> Self {
        Self { step }
    }

    fn effect(&self) -> Effect {
        self.step.effect()
    }

    fn step_result(&self, state: StepState) -> ApplyStep {
        ApplyStep {
            effect: self.effect().word().to_owned(),
            text: self.step.to_string(),
            state,
            error: None,
            cut_off: Vec::new(),
            warning: None,
        }
    }
}

impl Reconciler {
    /// Applies the configuration `wanted`, and returns the result of each step.
    pub(crate) fn apply(
        &mut self,
        wanted: &Config,
        options: ApplyOptions,
        event_loop: &mut dyn EventLoop,
    ) -> ApplyAnswer {
        let plan = self.config.difference(wanted).into_iter();
        let mut plan: Vec<Planned> = plan.map(Planned::new).collect();
        let changed = match self.changed_secrets(wanted, event_loop) {
            Ok(changed) => changed,
            Err((name, error)) => {
                let failed = failure(&Planned::new(Step::ReloadKey(name)), error);
                let skipped = plan.iter().map(|it| it.step_result(StepState::Skipped));
                let refused = Some("nothing was changed".to_owned());
                return apply_result(std::iter::once(failed).chain(skipped), false, refused);
            }
        };
        let reloads = changed.keys().cloned().map(Step::ReloadKey);
        plan.splice(0..0, reloads.map(Planned::new));
        if let Some(refused) = self.forbidden(&plan, options) {
            return refused;
        }
        if options.dry_run {
            return apply_result(
                plan.iter().map(|it| it.step_result(StepState::Planned)),
                false,
                None,
            );
        }
        let skipped = |it: &Planned| it.step_result(StepState::Skipped);
        let refused = refusal(&plan, options).or_else(|| self.disturbs_copy(&plan));
        if let Some(refused) = refused {
            return apply_result(plan.iter().map(skipped), false, Some(refused));
        }
        let is_possible = |it: &Planned| it.effect() != Effect::Restart;
        let (plan, later): (Vec<_>, Vec<_>) = plan.into_iter().partition(is_possible);
        let waits = later.iter().map(skipped);
        let allowed_paths = self.allowed_paths(options);
        let mut prepared = match self.prepare((&plan, wanted), allowed_paths, changed, event_loop) {
            Ok(prepared) => prepared,
            Err((failed, error)) => {
                self.close_unused(event_loop);
                self.release_transports(event_loop);
                let results = plan.iter().enumerate().map(|(index, it)| {
                    if index == failed {
                        failure(it, error.clone())
                    } else {
                        skipped(it)
                    }
                });
                let refused = "nothing was changed".to_owned();
                return apply_result(waits.chain(results), false, Some(refused));
            }
        };
        let (before, keys_before) = (self.config.clone(), self.keys.clone());
        let mut results = self.carry_out(&plan, &mut prepared, event_loop);
        self.discard(&prepared, event_loop);
        let mut refused = None;
        if results.iter().any(|it| it.state == StepState::Failed) {
            self.keys.restore(keys_before);
            refused = Some(self.roll_back(before, &plan, &mut results, &mut prepared, event_loop));
        }
        self.keys.forget_others(&self.config);
        let config = &self.config;
        let is_known = |name: &str| config.keys.iter().any(|key| key.name.as_str() == name);
        self.target.forget_key_uses(is_known);
        // A failed change that could not be undone has removed paths for which operators' states
        // hold as soon as they are back.
        if refused.is_none() {
            let mut states = self.running.operator_states.lock();
            states.forget_changed(&self.config);
        }
        self.unreaped.extend(prepared.retained.into_values());
        self.unreaped.extend(prepared.to_reopen.into_values());
        self.reap();
        self.release_transports(event_loop);
        if refused.is_some() {
            self.close_unused(event_loop);
        }
        let is_done = later.is_empty() && results.iter().all(|it| it.state == StepState::Done);
        apply_result(waits.chain(results), is_done, refused)
    }

    /// The directories in which files of a configuration must lie; `None`: anywhere.
    fn allowed_paths(&self, options: ApplyOptions) -> Option<Vec<PathBuf>> {
        match options.origin {
            Origin::File => None,
            Origin::Request => self.config.control.allowed_paths.clone(),
        }
    }

    /// The refusal of a configuration that its sender may not apply.
    fn forbidden(&self, plan: &[Planned], options: ApplyOptions) -> Option<ApplyAnswer> {
        let skipped = |it: &Planned| it.step_result(StepState::Skipped);
        if options.origin == Origin::Request && !options.dry_run && !self.config.control.apply {
            let refused = "nothing was changed: `apply = false` in [control]: change the file \
                           with which the appliance was started, and run `windlass apply`";
            return Some(apply_result(
                plan.iter().map(skipped),
                false,
                Some(refused.to_owned()),
            ));
        }
        let allowed = self.allowed_paths(options)?;
        let error = |planned: &Planned| {
            if let Step::AddDevice(device) = &planned.step
                && matches!(device.backing, Backing::Nvme(_))
            {
                return Some(format!(
                    "device {}: `allowed_paths` of [control] permits files and no drives: name \
                     the drive in the file that the appliance was started with",
                    device.name
                ));
            }
            let (what, name, path) = self.file_of(&planned.step)?;
            let error = directory_of(path, &allowed).err()?;
            Some(format!("{what} {name}: {error}"))
        };
        plan.iter().any(|it| error(it).is_some()).then(|| {
            let results = plan.iter().map(|it| match error(it) {
                Some(error) => failure(it, error),
                None => skipped(it),
            });
            apply_result(results, false, Some("nothing was changed".to_owned()))
        })
    }

    /// The file that a step opens or changes, with the kind and the name of what is in it.
    fn file_of<'s>(&'s self, step: &'s Step) -> Option<(&'static str, &'s Name, &'s Path)> {
        let device = match step {
            Step::AddKey(key) | Step::ChangeKey(key) => {
                return match &key.source {
                    KeySource::File(path) => Some(("key", &key.name, path)),
                    KeySource::Credential(_) => None,
                };
            }
            Step::AddDevice(device) => device,
            Step::GrowDevice { device, .. } => self.config.device(device)?,
            _ => return None,
        };
        match &device.backing {
            Backing::File { path, .. } => Some(("device", &device.name, path)),
            Backing::Memory { .. } | Backing::Null { .. } | Backing::Nvme(_) => None,
        }
    }

    /// The secrets of keys that both configurations read from the same place and that differ from
    /// those in use. `Err`: a key that cannot be read, and why.
    fn changed_secrets(
        &self,
        wanted: &Config,
        event_loop: &mut dyn EventLoop,
    ) -> Result<BTreeMap<Name, KeySecret>, (Name, String)> {
        let kept = wanted.keys.iter();
        let kept: Vec<&Key> = kept
            .filter(|key| self.config.key(&key.name) == Some(*key))
            .collect();
        let keys = &self.keys;
        let mut changed = BTreeMap::new();
        for key in kept {
            let secret = read_key(keys, key, event_loop);
            let secret = secret.map_err(|error| (key.name.clone(), error))?;
            if keys.get(&key.name) != Some(&secret) {
                changed.insert(key.name.clone(), secret);
            }
        }
        Ok(changed)
    }

    /// Undoes the steps before a failed one; returns a description. Grown devices stay grown.
    fn roll_back(
        &mut self,
        mut before: Config,
        plan: &[Planned],
        results: &mut [ApplyStep],
        prepared: &mut Prepared,
        event_loop: &mut dyn EventLoop,
    ) -> String {
        let mut undone = Vec::new();
        let mut has_grown = false;
        let done = plan.iter().zip(results);
        for (planned, result) in done.filter(|(_, result)| result.state == StepState::Done) {
            let Step::GrowDevice { device, .. } = &planned.step else {
                undone.push(result);
                continue;
            };
            has_grown = true;
            let mut devices = before.devices.iter_mut();
            let grown = devices.find(|before| before.name == *device);
            if let Some((before, now)) = grown.zip(self.config.device(device)) {
                before.backing = now.backing.clone();
            }
        }
        let plan = self.config.difference(&before).into_iter();
        let plan: Vec<Planned> = plan.map(Planned::new).collect();
        // Devices opened for the wanted configuration are not the previous ones.
        prepared.devices.clear();
        prepared.listeners.clear();
        prepared.file_listeners.clear();
        prepared.volumes_to_restore = std::mem::take(&mut prepared.retained_volumes);
        prepared.secrets.clear();
        // The previous configuration may have files anywhere.
        prepared.allowed_paths = None;
        prepared.to_reopen = std::mem::take(&mut prepared.retained);
        let back = self.carry_out(&plan, prepared, event_loop);
        if let Err(error) = self.serve() {
            tracing::error!(%error, "the previous keys cannot be used again");
        }
        if let Some(error) = back.into_iter().find_map(|it| it.error) {
            return format!("the completed steps could not be undone: {error}");
        }
        for result in undone {
            result.state = StepState::Undone;
        }
        let what = if has_grown {
            "nothing but the size of devices was changed"
        } else {
            "nothing was changed"
        };
        format!("{what}: the completed steps were undone")
    }

    /// Carries out the steps until one fails.
    fn carry_out(
        &mut self,
        plan: &[Planned],
        prepared: &mut Prepared,
        event_loop: &mut dyn EventLoop,
    ) -> Vec<ApplyStep> {
        let deadline = event_loop.now() + self.config.appliance.shutdown_deadline.as_duration();
        let mut results = Vec::new();
        let mut has_failed = false;
        for planned in plan {
            if has_failed {
                results.push(planned.step_result(StepState::Skipped));
                continue;
            }
            tracing::info!("{}", planned.step);
            match self.step(&planned.step, prepared, deadline, event_loop) {
                Ok(StepEnd { cut_off, warning }) => {
                    for cut in &cut_off {
                        tracing::warn!("aborted at the deadline: {cut}");
                    }
                    if let Some(warning) = &warning {
                        tracing::error!("{}: {warning}", planned.step);
                    }
                    results.push(ApplyStep {
                        cut_off,
                        warning,
                        ..planned.step_result(StepState::Done)
                    });
                }
                Err(error) => {
                    tracing::error!("{}: {error}", planned.step);
                    results.push(failure(planned, error));
                    has_failed = true;
                }
            }
            event_loop.run_once();
        }
        results
    }

    /// Opens devices and binds listeners, except those whose resources the running configuration
    /// holds.
    fn prepare(
        &mut self,
        (plan, wanted): (&[Planned], &Config),
        allowed_paths: Option<Vec<PathBuf>>,
        secrets: BTreeMap<Name, KeySecret>,
        event_loop: &mut dyn EventLoop,
    ) -> Result<Prepared, (usize, String)> {
        let mut prepared = Prepared {
            allowed_paths,
            secrets,
            ..Prepared::default()
        };
        for (index, planned) in plan.iter().enumerate() {
            let had = match &planned.step {
                Step::AddDevice(device) if self.has_file(device) => self.refuse_truncation(device),
                Step::AddDevice(device) if self.shrinks_memory(device) => Err(format!(
                    "device {}: memory is never made smaller, because all that is in it would be \
                     lost: give the device another name for a new, empty disk",
                    device.name
                )),
                Step::AddDevice(device) if self.opener.is_held(device) => Ok(()),
                Step::AddDevice(device) => {
                    let opened = self.open_device(device, &prepared, event_loop);
                    opened.map(|opened| {
                        prepared.devices.insert(device.name.clone(), opened);
                    })
                }
                Step::AddListener(listener) if !self.address_conflicts(listener) => {
                    self.bind(listener, &prepared, event_loop).map(|port| {
                        prepared.listeners.insert(listener.name.clone(), port);
                    })
                }
                Step::AddFileListener(listener) if !self.file_address_conflicts(listener) => {
                    self.bind_for_files(listener, event_loop).map(|bound| {
                        prepared.file_listeners.insert(listener.name.clone(), bound);
                    })
                }
                Step::AddVolume(volume) => self.check_volume(volume, (plan, &prepared), event_loop),
                Step::AddKey(key) | Step::ChangeKey(key) => read_key(&self.keys, key, event_loop)
                    .map(|secret| {
                        prepared.secrets.insert(key.name.clone(), secret);
                    }),
                _ => Ok(()),
            };
            if let Err(error) = had {
                self.discard(&prepared, event_loop);
                return Err((index, error));
            }
        }
        if let Err((name, error)) = self.keys.check_uses(wanted, &prepared.secrets) {
            self.discard(&prepared, event_loop);
            return Err((step_about_key(plan, &name), with_causes(&error)));
        }
        Ok(prepared)
    }

    /// Closes listeners that were bound but are not needed. Their addresses are free afterwards.
    fn discard(&self, prepared: &Prepared, event_loop: &mut dyn EventLoop) {
        if let Some(files) = &self.files {
            let listeners = prepared.file_listeners.values();
            listeners.for_each(|it| files.discard(it, event_loop));
        }
        for port in prepared.listeners.values() {
            for transport in &self.transports {
                // No host can be attached: no reactor knows the port's exports.
                if let Err(error) = close_port(transport.as_ref(), port.id, event_loop) {
                    tracing::error!("listener of {}: {error}", port.address);
                }
            }
        }
    }

    /// Whether a running device uses the file of `device`.
    fn has_file(&self, device: &Device) -> bool {
        self.holder_of_file(device).is_some()
    }

    /// The running device that uses the file of `device`.
    fn holder_of_file(&self, device: &Device) -> Option<&Device> {
        let path = |device: &Device| match &device.backing {
            Backing::File { path, .. } => Some(path.clone()),
            Backing::Memory { .. } | Backing::Null { .. } | Backing::Nvme(_) => None,
        };
        let wanted = path(device)?;
        let mut devices = self.config.devices.iter();
        devices.find(|it| {
            // A renamed file conflicts under its new name too.
            path(it).as_ref() == Some(&wanted) || self.devices.is_in_file(&it.name, &wanted)
        })
    }

    /// Refuses a device that is smaller than the running one with the same file.
    fn refuse_truncation(&self, device: &Device) -> Result<(), String> {
        let Some(wanted) = device.backing.size() else {
            return Ok(());
        };
        let holder = self.holder_of_file(device);
        let held = holder.and_then(|holder| self.devices.get(&holder.name));
        let held = held.map_or(0, |(_, held)| {
            let geometry = held.geometry();
            geometry.block_count * u64::from(geometry.block_size)
        });
        if wanted.bytes() < held {
            let held = ByteSize::from_bytes(held);
            return Err(format!(
                "device {}: its file is {held} long and is never made shorter",
                device.name
            ));
        }
        Ok(())
    }

    /// Whether a memory device is smaller than the running one of its name.
    fn shrinks_memory(&self, device: &Device) -> bool {
        let size = |device: &Device| match device.backing {
            Backing::Memory { size, .. } => Some(size),
            Backing::File { .. } | Backing::Null { .. } | Backing::Nvme(_) => None,
        };
        let running = self.config.device(&device.name);
        let sizes = running.and_then(size).zip(size(device));
        sizes.is_some_and(|(now, then)| then < now)
    }

    /// Whether a running listener conflicts with `listener`.
    fn address_conflicts(&self, listener: &Listener) -> bool {
        let address = listener.address;
        let mut listeners = self.config.listeners.iter();
        let is_alike = |it: &Listener| it.transport == listener.transport;
        listeners.any(|it| is_alike(it) && it.address.overlaps(address))
    }

    /// Binds a listener of files.
    pub(super) fn bind_for_files(
        &self,
        listener: &FileListener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<PreparedListener, String> {
        let memory = self.file_memory();
        self.served_files()?.bind(listener, &memory, event_loop)
    }

    /// Whether a running listener of files has the address of `listener`, which is to replace it.
    fn file_address_conflicts(&self, listener: &FileListener) -> bool {
        let mut running = self.config.files.listeners_of(listener.transport);
        running.any(|it| it.address.overlaps(listener.address))
    }

    /// Checks that a volume can be served, as far as its device is open: a drive that is opened for it
    /// is not.
    fn check_volume(
        &self,
        volume: &Volume,
        (plan, prepared): (&[Planned], &Prepared),
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let is_added = |it: &Planned| match &it.step {
            Step::AddDevice(device) => device.name == volume.device,
            _ => false,
        };
        if !plan.iter().any(is_added) {
            let files = self.files.as_deref();
            return files.map_or(Ok(()), |files| {
                files.check_volume(volume, &self.config, &self.devices, event_loop)
            });
        }
        let opened = prepared.devices.get(&volume.device);
        let Some(opened) = opened.filter(|it| it.is_file()) else {
            return Ok(());
        };
        let Some(arena) = &self.arena else {
            return Ok(());
        };
        aside(event_loop, || {
            let pool = arena.pool(1);
            let queue = files::own_queue(volume, &*opened.device, &pool);
            let found = queue.and_then(|mut queue| volumes::identify(volume, &mut queue));
            found.map(drop).map_err(|error| with_causes(&error))
        })
    }

    /// Opens a device, which may be slow.
    pub(super) fn open_device(
        &self,
        device: &Device,
        prepared: &Prepared,
        event_loop: &mut dyn EventLoop,
    ) -> Result<Opened, String> {
        let opener = &self.opener;
        let directory = match (&device.backing, &prepared.allowed_paths) {
            (Backing::File { path, .. }, Some(allowed)) => Some(
                directory_of(path, allowed)
                    .map_err(|error| format!("device {}: {error}", device.name))?,
            ),
            _ => None,
        };
        aside(event_loop, || {
            let opened = match directory {
                Some(directory) => opener.open_below(device, directory),
                None => opener.open(device),
            };
            let opened = opened.map_err(|cause| with_causes(&DeviceError::new(device, cause)))?;
            opened.ok_or_else(|| "drives cannot be opened here".to_owned())
        })
    }

    /// All memory that holds data, also of devices that a rollback may open again. Memory of new
    /// devices is registered when they are added.
    fn regions_with<'r>(&'r self, prepared: &'r Prepared) -> Vec<&'r Region> {
        let mut regions = self.regions();
        if !regions.is_empty() {
            let removed = prepared
                .retained
                .values()
                .chain(prepared.to_reopen.values());
            regions.extend(removed.flat_map(Opened::regions));
        }
        regions
    }

    /// Binds a listener with an unused port number.
    pub(super) fn bind(
        &self,
        listener: &Listener,
        prepared: &Prepared,
        event_loop: &mut dyn EventLoop,
    ) -> Result<BoundPort, String> {
        let taken: Vec<_> = prepared.listeners.values().map(|port| port.id).collect();
        let id = self.ports.free_id(&taken);
        let transport = self.transport(listener.transport);
        let transport = transport.ok_or_else(|| no_transport(listener.transport))?;
        let mut ports = self.ports_of(listener.transport);
        ports.push((id, listener));
        let memory = self.regions_with(prepared);
        let bound = transport.prepare(id, listener, &memory, event_loop);
        let bound = bound.and_then(|()| transport.apply_settings(&ports, event_loop));
        let bound = bound.and_then(|()| transport.listen(id, listener, event_loop));
        let address = bound.map_err(|error| with_causes(error.as_ref()))?;
        Ok(BoundPort { id, address })
    }
}

/// The directory of `allowed` that `path` is below. Symbolic links are resolved when the file is
/// opened.
pub(crate) fn directory_of<'a>(path: &Path, allowed: &'a [PathBuf]) -> Result<&'a Path, String> {
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(format!(
            "{} has `..` in it, and `allowed_paths` of [control] restricts files",
            path.display()
        ));
    }
    let mut found = allowed
        .iter()
        .filter(|it| path.starts_with(it) && path != it.as_path());
    found.next().map(PathBuf::as_path).ok_or_else(|| {
        let allowed: Vec<String> = allowed.iter().map(|it| it.display().to_string()).collect();
        let allowed = match &allowed[..] {
            [] => "no directory".to_owned(),
            all => all.join(", "),
        };
        format!(
            "{} is not below `allowed_paths` of [control] ({allowed}): place the file there, or \
             name it in the file that the appliance was started with",
            path.display()
        )
    })
}

/// Reads a key beside the event loop.
fn read_key(keys: &Keys, key: &Key, event_loop: &mut dyn EventLoop) -> Result<KeySecret, String> {
    aside(event_loop, || {
        keys.read(key).map_err(|error| with_causes(&error))
    })
}

fn no_transport(transport: Transport) -> String {
    format!("transport {} is not available", transport.word())
}

/// Why a copy of a device forbids a change, if so.
impl Reconciler {
    /// A copy needs its devices, and hosts must not find a device that is being overwritten.
    fn disturbs_copy(&self, plan: &[Planned]) -> Option<String> {
        let disturbed = plan.iter().find_map(|planned| match &planned.step {
            Step::RemoveDevice(device) => self.copies.using(device),
            Step::AddNamespace { namespace, .. } => self.copies.writing(&namespace.device),
            Step::AddExport(export) => {
                let mut namespaces = export.namespaces.iter();
                namespaces.find_map(|it| self.copies.writing(&it.device))
            }
            _ => None,
        })?;
        Some(format!("nothing was changed: {disturbed}"))
    }
}

fn refusal(plan: &[Planned], options: ApplyOptions) -> Option<String> {
    let later = plan.iter().filter(|it| it.effect() == Effect::Restart);
    let count = later.count();
    if count == 0 {
        return None;
    }
    if options.partial {
        return None;
    }
    Some(format!(
        "nothing was changed: {count} step(s) take a restart: restart the appliance, or apply the \
         others alone with --partial"
    ))
}

fn failure(planned: &Planned, error: String) -> ApplyStep {
    ApplyStep {
        error: Some(error),
        ..planned.step_result(StepState::Failed)
    }
}

fn apply_result(
    steps: impl Iterator<Item = ApplyStep>,
    applied: bool,
    refused: Option<String>,
) -> ApplyAnswer {
    ApplyAnswer {
        steps: steps.collect(),
        applied,
        refused,
    }
}

/// The host, the queue and the number of commands, for people.
impl std::fmt::Display for OutstandingCommands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            export,
            host,
            queue,
            commands,
        } = self;
        write!(
            f,
            "{export}, host {host}, queue {queue}: {commands} command(s)"
        )
    }
}

/// The step that reads a key, or otherwise changes who uses it.
fn step_about_key(plan: &[Planned], key: &Name) -> usize {
    let reads = |it: &Planned| match &it.step {
        Step::AddKey(it) | Step::ChangeKey(it) => it.name == *key,
        Step::ReloadKey(name) => name == key,
        _ => false,
    };
    let uses = |it: &Planned| matches!(it.step, Step::ChangeAccess { .. } | Step::AddExport(_));
    let found = plan.iter().position(reads);
    found
        .or_else(|| plan.iter().position(uses))
        .unwrap_or_default()
}
