//! Carries out each step on the running appliance.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use appliance_config::{Device, Key, Listener, Name, Nqn, Step, Transport};
use nvme_target::{DeviceIndex, Outstanding, PortId};

use super::Reconciler;
use super::apply::Prepared;
use crate::devices::Opened;
use crate::error::{Failure, with_causes};
use crate::event_loop::{EventLoop, aside};
use crate::fabrics::ControlMessage;
use crate::files::Files;
use crate::observe::model::OutstandingCommands;
use crate::transports::Listening;

/// Aborted commands must end within this time.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections close by their own deadlines; those of a removed listener within this time.
const CLOSE_PORT_TIMEOUT: Duration = Duration::from_secs(60);
/// A device that every reactor has released is closed when the last of them has noticed its
/// removal.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// A step waits at most this long for a drive to shut down: the driver bounds each step of it, and
/// a drive may report some ten seconds for its cache (RTD3E).
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// The commands that a step aborted.
type CutOff = Vec<OutstandingCommands>;

/// The result of a successful step.
#[derive(Default)]
pub(super) struct StepEnd {
    /// The commands that it aborted.
    pub(super) cut_off: CutOff,
    /// Data that may be lost, or a drive that is not closed yet.
    pub(super) warning: Option<String>,
}

impl From<CutOff> for StepEnd {
    fn from(cut_off: CutOff) -> Self {
        Self {
            cut_off,
            warning: None,
        }
    }
}

impl Reconciler {
    /// Carries out a step. Conflicting requests may complete until `deadline`; those aborted then
    /// are in the result.
    pub(super) fn step(
        &mut self,
        step: &Step,
        prepared: &mut Prepared,
        deadline: Instant,
        event_loop: &mut dyn EventLoop,
    ) -> Result<StepEnd, String> {
        let cut_off = match step {
            Step::RemoveDevice(name) => {
                return self.remove_device(name, step, prepared, deadline, event_loop);
            }
            Step::RemoveExport(export) => self.remove_export(export, step, deadline, event_loop),
            Step::RemoveListener(name) => self.remove_listener(name, step, deadline, event_loop),
            Step::GrowDevice { device, size } => {
                let size = *size;
                self.grow_device(device, step, event_loop, |opened| opened.grow(size))
            }
            Step::AddKey(Key { name, .. })
            | Step::ChangeKey(Key { name, .. })
            | Step::ReloadKey(name) => {
                // Without a new secret, a rollback continues with the earlier one.
                if let Some(secret) = prepared.secrets.remove(name) {
                    self.keys.insert(name.clone(), secret);
                }
                self.change(step)?;
                Ok(Vec::new())
            }
            Step::RemoveFileListener(name) => {
                self.served_files()?.remove_listener(name, event_loop)?;
                self.change(step)?;
                Ok(Vec::new())
            }
            Step::AddFileListener(listener) => {
                let bound = match prepared.file_listeners.remove(&listener.name) {
                    Some(bound) => bound,
                    None => self.bind_for_files(listener, event_loop)?,
                };
                self.served_files()?
                    .add_listener(listener, bound, event_loop)?;
                self.change(step)?;
                Ok(Vec::new())
            }
            Step::RemoveVolume(name) => {
                let removed = self.served_files()?.remove_volume(name, event_loop)?;
                if let Some(volume) = removed {
                    prepared.retained_volumes.insert(name.clone(), volume);
                }
                self.change(step)?;
                Ok(Vec::new())
            }
            Step::AddVolume(volume) => {
                let before = prepared.volumes_to_restore.remove(&volume.name);
                let of_devices = (&self.config, &self.devices);
                self.served_files()?
                    .add_volume(volume, of_devices, before, event_loop)?;
                self.change(step)?;
                Ok(Vec::new())
            }
            Step::ChangeShares { .. } => {
                let before = self.config.clone();
                self.change(step)?;
                if let Some(files) = &self.files
                    && let Err(error) = files.set_shares(&self.config.files, event_loop)
                {
                    self.config = before;
                    return Err(error.to_string());
                }
                Ok(Vec::new())
            }
            Step::RemoveKey(_) | Step::ChangeRateLimits(_) => {
                self.change(step)?;
                Ok(Vec::new())
            }
            Step::AddDevice(device) => self.add_device(device, step, prepared, event_loop),
            Step::AddListener(listener) => self.add_listener(listener, step, prepared, event_loop),
            Step::ChangeListener(listener) => {
                self.change(step)?;
                self.apply_settings(listener.transport, event_loop)?;
                Ok(Vec::new())
            }
            Step::ChangeControllers(count) => {
                let limited = self.target.limit_controllers(*count);
                limited.map_err(|error| error.to_string())?;
                self.change(step)?;
                Ok(Vec::new())
            }
            Step::DisconnectHosts { export, .. } => {
                let ended = self.target.end_associations(export.as_str());
                ended.map_err(|error| error.to_string())?;
                self.change(step)?;
                self.drain_hosts(deadline, event_loop)
            }
            Step::RemoveNamespace { .. }
            | Step::DetachListener { .. }
            | Step::ChangeAccess { .. }
            | Step::ChangeIdentity { .. }
            | Step::AddExport(_)
            | Step::AttachListener { .. }
            | Step::ChangeQueues { .. }
            | Step::ChangeAna { .. }
            | Step::ChangePacing { .. }
            | Step::ChangeControllerIds { .. }
            | Step::AddNamespace { .. }
            | Step::ChangeShutdownDeadline(_) => {
                self.change(step)?;
                self.drain_hosts(deadline, event_loop)
            }
            Step::Restart { .. } => Err("only a restart can do that".to_owned()),
        };
        cut_off.map(StepEnd::from)
    }

    /// The file service, which exists where a step changes it.
    pub(super) fn served_files(&self) -> Result<&Files, String> {
        let files = self.files.as_deref();
        files.ok_or_else(|| "no files are served: restart the appliance".to_owned())
    }

    /// Applies a step to the configuration and the target; changes nothing on failure.
    fn change(&mut self, step: &Step) -> Result<(), String> {
        let before = self.config.clone();
        if !self.config.apply_step(step) {
            return Err("the step does not apply to the running configuration".to_owned());
        }
        let served = self.serve();
        if served.is_err() {
            self.config = before;
            // The previous configuration is still valid.
            if let Err(error) = self.serve() {
                tracing::error!(%error, "what was served before cannot be served again");
            }
        }
        served.map_err(|error| error.to_string())
    }

    fn remove_export(
        &mut self,
        export: &Nqn,
        step: &Step,
        deadline: Instant,
        event_loop: &mut dyn EventLoop,
    ) -> Result<CutOff, String> {
        let retired = self.target.drain_subsystem(export.as_str());
        retired.map_err(|error| error.to_string())?;
        let cut_off = self.drain_hosts(deadline, event_loop)?;
        self.change(step)?;
        Ok(cut_off)
    }

    /// Waits for hosts to disconnect; disconnects them at the deadline.
    fn drain_hosts(
        &mut self,
        deadline: Instant,
        event_loop: &mut dyn EventLoop,
    ) -> Result<CutOff, String> {
        // The affected hosts are known when every core has applied the change.
        self.apply_snapshot(event_loop)?;
        while self.target.draining_controllers() > 0 && event_loop.now() < deadline {
            event_loop.rest();
        }
        if self.target.draining_controllers() == 0 {
            return Ok(Vec::new());
        }
        let cut_off = self.outstanding(&[], event_loop)?;
        self.target.end_draining();
        let until = event_loop.now() + ABORT_TIMEOUT;
        // A command that its device never completes occupies only a controller identifier.
        while self.target.draining_controllers() > 0 && event_loop.now() < until {
            event_loop.rest();
        }
        Ok(cut_off)
    }

    /// The outstanding commands of closing queues and of `devices`.
    fn outstanding(
        &self,
        devices: &[DeviceIndex],
        event_loop: &mut dyn EventLoop,
    ) -> Result<CutOff, String> {
        let reports = self
            .control_queues
            .request_all(event_loop, |reply| ControlMessage::Report {
                devices: devices.to_vec(),
                reply,
            });
        let reports = reports.map_err(|error| error.to_string())?;
        let mut commands: BTreeMap<(String, String, u16), usize> = BTreeMap::new();
        for it in reports.into_iter().flatten() {
            let Outstanding {
                subsystem_nqn,
                host_nqn,
                qid,
                commands: count,
            } = it;
            *commands.entry((subsystem_nqn, host_nqn, qid)).or_default() += count;
        }
        let all = commands.into_iter();
        Ok(all
            .map(|((export, host, queue), commands)| OutstandingCommands {
                export,
                host,
                queue,
                commands,
            })
            .collect())
    }

    fn remove_listener(
        &mut self,
        name: &Name,
        step: &Step,
        deadline: Instant,
        event_loop: &mut dyn EventLoop,
    ) -> Result<CutOff, String> {
        let transport = self.config.listener(name).map(|it| it.transport);
        self.change(step)?;
        let cut_off = self.drain_hosts(deadline, event_loop)?;
        let port = self.ports.remove(name);
        let transport = transport.and_then(|name| self.transport(name));
        if let (Some(port), Some(transport)) = (port, transport) {
            close_port(transport.as_ref(), port.id, event_loop)?;
        }
        Ok(cut_off)
    }

    fn add_listener(
        &mut self,
        listener: &Listener,
        step: &Step,
        prepared: &mut Prepared,
        event_loop: &mut dyn EventLoop,
    ) -> Result<CutOff, String> {
        let port = match prepared.listeners.remove(&listener.name) {
            Some(port) => port,
            None => self.bind(listener, prepared, event_loop)?,
        };
        self.ports.insert(listener.name.clone(), port);
        tracing::info!("listener {} is bound to {}", listener.name, port.address);
        self.change(step)?;
        // Other ports may have been bound since this one's settings were applied.
        self.apply_settings(listener.transport, event_loop)?;
        Ok(Vec::new())
    }

    /// Applies the settings of a transport's listeners to hosts that connect from now on.
    fn apply_settings(
        &self,
        transport: Transport,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let Some(found) = self.transport(transport) else {
            return Ok(());
        };
        let applied = found.apply_settings(&self.ports_of(transport), event_loop);
        applied.map_err(|error| with_causes(error.as_ref()))
    }

    /// The bound listeners of a transport.
    pub(crate) fn ports_of(&self, transport: Transport) -> Vec<(PortId, &Listener)> {
        let mut ports = self.ports.of(&self.config);
        ports.retain(|(_, listener)| listener.transport == transport);
        ports
    }

    fn add_device(
        &mut self,
        device: &Device,
        step: &Step,
        prepared: &mut Prepared,
        event_loop: &mut dyn EventLoop,
    ) -> Result<CutOff, String> {
        let opened = match prepared.to_reopen.remove(&device.name) {
            // Its memory is still registered with the network cards.
            Some(opened_before) => opened_before,
            None => {
                let opened = match prepared.devices.remove(&device.name) {
                    Some(opened) => opened,
                    None => self.open_device(device, prepared, event_loop)?,
                };
                self.attach_memory(opened.regions())?;
                opened
            }
        };
        let files = &self.reservation_files;
        let initial = aside(event_loop, || {
            Ok(files.initial(&device.name, opened.reserved_content()))
        })?;
        let attached = self.attach(&opened, event_loop);
        let place = attached.inspect_err(|_| self.reservation_files.forget(&device.name))?;
        self.target.set_reservations(place, initial);
        self.devices.insert(device.name.clone(), place, opened);
        self.change(step)?;
        Ok(Vec::new())
    }

    /// Adds a device to the target, and opens a queue of it on every reactor.
    fn attach(
        &mut self,
        opened: &Opened,
        event_loop: &mut dyn EventLoop,
    ) -> Result<DeviceIndex, String> {
        let place = self.target.add_device(opened.device.clone());
        let place = place.map_err(|error| error.to_string())?;
        let opened_queues =
            self.control_queues
                .request_all(event_loop, |reply| ControlMessage::Attach {
                    place,
                    device: opened.device.clone(),
                    reply,
                });
        let failed = match opened_queues {
            Ok(replies) => {
                let failed = replies.into_iter().find_map(Result::err);
                failed.map(|error| with_causes(&error))
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(error) = failed else {
            return Ok(place);
        };
        // Closes the queues that were opened; they were not used.
        let closed = self
            .control_queues
            .request_all(event_loop, |reply| ControlMessage::Detach { place, reply });
        if closed.is_ok() {
            let removed = self.target.remove_device(place);
            debug_assert_eq!(removed, Ok(()));
        }
        for region in opened.regions() {
            self.transports
                .iter()
                .for_each(|it| it.detach_memory(region));
        }
        Err(error)
    }

    /// Registers memory with the network cards.
    fn attach_memory<'r>(
        &self,
        regions: impl Iterator<Item = &'r hugemem::Region>,
    ) -> Result<(), String> {
        for region in regions {
            for transport in &self.transports {
                let attached = transport.attach_memory(region);
                attached.map_err(|error| with_causes(error.as_ref()))?;
            }
        }
        Ok(())
    }

    fn grow_device(
        &mut self,
        name: &Name,
        step: &Step,
        event_loop: &mut dyn EventLoop,
        grow: impl FnOnce(&Opened) -> Result<Option<Grown>, Failure> + Send,
    ) -> Result<CutOff, String> {
        if let Some((place, opened)) = self.devices.opened_mut(name) {
            let more = aside(event_loop, || {
                let opened: &Opened = opened;
                grow(opened).map_err(|error| with_causes(error.as_ref()))
            })?;
            if let Some(more) = more {
                self.attach_memory(std::iter::once(more.region()))?;
                if let Some((_, opened)) = self.devices.opened_mut(name) {
                    opened.grow_by(more);
                }
            }
            let replies = self
                .control_queues
                .request_all(event_loop, |reply| ControlMessage::Grew { place, reply });
            replies.map_err(|error| error.to_string())?;
        }
        self.change(step)?;
        self.apply_snapshot(event_loop)?;
        Ok(Vec::new())
    }

    /// Returns when every reactor has applied the current configuration.
    fn apply_snapshot(&self, event_loop: &mut dyn EventLoop) -> Result<(), String> {
        let seen = self
            .control_queues
            .request_all(event_loop, |reply| ControlMessage::ApplySnapshot { reply });
        seen.map(drop).map_err(|error| error.to_string())
    }

    fn remove_device(
        &mut self,
        name: &Name,
        step: &Step,
        prepared: &mut Prepared,
        deadline: Instant,
        event_loop: &mut dyn EventLoop,
    ) -> Result<StepEnd, String> {
        let mut end = StepEnd::default();
        if let Some((place, _)) = self.devices.get(name) {
            end.cut_off = self.detach(place, deadline, event_loop)?;
        }
        if let Some(opened) = self.devices.remove(name) {
            self.reservation_files.forget(name);
            // Removal is durable: acknowledged data survives from now on.
            if !aside(event_loop, || Ok(opened.flush()))? {
                end.warning =
                    Some("its file could not be flushed: completed writes may be lost".to_owned());
            }
            if opened.can_be_reopened() {
                self.unreaped.push(opened);
            } else {
                prepared.retained.insert(name.clone(), opened);
            }
        }
        self.change(step)?;
        let until = event_loop.now() + CLOSE_TIMEOUT;
        self.reap();
        while !self.unreaped.is_empty() && event_loop.now() < until {
            event_loop.rest();
            self.reap();
        }
        end.warning = end.warning.or(self.close_unused(event_loop));
        Ok(end)
    }

    /// Closes drives that no device uses any more. Returns a warning if one does not shut down in
    /// time; the control thread then continues.
    pub(super) fn close_unused(&self, event_loop: &mut dyn EventLoop) -> Option<String> {
        let until = event_loop.now() + SHUTDOWN_TIMEOUT;
        loop {
            let closing = self.opener.close_unused()?;
            if event_loop.now() >= until {
                return Some(format!(
                    "{closing} is still shutting down: the log reports when it is closed"
                ));
            }
            event_loop.rest();
        }
    }

    /// Closes the queue of a device on every reactor; remaining requests are aborted at the
    /// deadline.
    fn detach(
        &mut self,
        place: DeviceIndex,
        deadline: Instant,
        event_loop: &mut dyn EventLoop,
    ) -> Result<CutOff, String> {
        let detached = self
            .control_queues
            .send_all(|reply| ControlMessage::Detach { place, reply });
        let mut detached = detached.map_err(|error| error.to_string())?;
        let mut are_done = detached.poll_responses(event_loop);
        while !are_done && event_loop.now() < deadline {
            event_loop.run_once();
            are_done = detached.poll_responses(event_loop);
        }
        let mut cut_off = Vec::new();
        if !are_done {
            cut_off = self.outstanding(&[place], event_loop)?;
            let cut =
                self.control_queues
                    .request_all(event_loop, |reply| ControlMessage::ForceDetach {
                        place,
                        reply,
                    });
            cut.map_err(|error| error.to_string())?;
        }
        detached
            .wait(event_loop)
            .map_err(|error| error.to_string())?;
        let removed = self.target.remove_device(place);
        removed.map_err(|error| error.to_string())?;
        Ok(cut_off)
    }
}

/// Memory by which a device grows.
type Grown = std::sync::Arc<hugemem::Store>;

/// Closes a listener, and waits until every reactor has closed its connections.
pub(super) fn close_port(
    transport: &dyn Listening,
    port: PortId,
    event_loop: &mut dyn EventLoop,
) -> Result<(), String> {
    let closed = transport.close(port);
    let mut closed = closed.map_err(|error| with_causes(error.as_ref()))?;
    let until = event_loop.now() + CLOSE_PORT_TIMEOUT;
    while !closed.poll_responses(event_loop) {
        if event_loop.now() >= until {
            return Err("its connections were not closed in time".to_owned());
        }
        event_loop.run_once();
    }
    Ok(())
}
