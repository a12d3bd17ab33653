//! Applies configurations to a running appliance: exports, devices and listeners change under I/O.
//!
//! It belongs to the control thread, which alone makes changes. The reactors own their parts: they
//! receive control messages and snapshots of the target, and are never waited for with a lock.

mod apply;
mod handover;
mod steps;
mod target_state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use appliance_config::{Config, Name, Transport as TransportName};
use arc_swap::ArcSwap;
use block::DataPath;
use hugemem::{Arena, DeviceMemory, Region};
use nvme_target::{EvictedAssociations, Target};
use nvme_tcp::SharedTlsKeys;
use reactors::ReactorHandle;

use crate::change_gate::ChangeGate;
use crate::copies::Copies;
use crate::devices::{Devices, Opened, Opener};
use crate::error::with_causes;
use crate::event_loop::{EventLoop, aside};
use crate::exports::Ports;
use crate::fabrics::ControlMessage;
use crate::files::{self, Files};
use crate::health_reporter::HealthReporter;
use crate::keys::{Keys, TlsKeyUse, tls_table};
use crate::messages::MessageRings;
use crate::nvme::data_path;
use crate::operator_states::{OperatorStates, SharedOperatorStates};
use crate::reservation_files::ReservationFiles;
use crate::running::Running;
use crate::transports::Listening;
pub(crate) use apply::{ApplyOptions, Origin, directory_of};
use target_state::TargetState;

/// The objects that a running appliance's configuration describes.
pub(crate) struct Reconciler {
    config: Config,
    running: Running,
    opener: Box<dyn Opener>,
    target: Arc<Target>,
    devices: Devices,
    reservation_files: ReservationFiles,
    ports: Ports,
    keys: Keys,
    /// What handshakes look keys up in, and what was put into it.
    tls_keys: SharedTlsKeys,
    tls_uses: Vec<TlsKeyUse>,
    /// The version of `tls_keys`.
    tls_version: u64,
    transports: Vec<Arc<dyn Listening>>,
    /// The memory of requests; `None` if no transport registers memory.
    arena: Option<Arc<Arena>>,
    control_queues: MessageRings<ControlMessage>,
    target_state: TargetState,
    health_reporter: HealthReporter,
    /// Devices that no reactor uses any more; hosts may still be sent data from their memory.
    unreaped: Vec<Opened>,
    files: Option<Arc<Files>>,
    copies: Arc<Copies>,
}

/// The result of a start, and the input of the reconciler.
pub(crate) struct Started {
    pub(crate) config: Config,
    /// Opens the devices that are added.
    pub(crate) opener: Box<dyn Opener>,
    pub(crate) target: Arc<Target>,
    pub(crate) devices: Devices,
    pub(crate) reservation_files: ReservationFiles,
    pub(crate) ports: Ports,
    pub(crate) keys: Keys,
    /// What the handshakes of TLS look keys up in.
    pub(crate) tls_keys: SharedTlsKeys,
    pub(crate) transports: Vec<Arc<dyn Listening>>,
    /// The memory of requests; `None` if no transport registers memory.
    pub(crate) arena: Option<Arc<Arena>>,
    pub(crate) control_queues: MessageRings<ControlMessage>,
    /// Those that the target has.
    pub(crate) operator_states: OperatorStates,
    /// The file service, if there is one.
    pub(crate) files: Option<Arc<Files>>,
    /// The copies of devices.
    pub(crate) copies: Arc<Copies>,
}

impl Reconciler {
    /// Takes over the result of a start; control messages wake the reactors from now on.
    pub(crate) fn new(started: Started, handles: &[ReactorHandle]) -> Self {
        let Started {
            config,
            opener,
            target,
            devices,
            reservation_files,
            ports,
            keys,
            tls_keys,
            transports,
            arena,
            control_queues,
            operator_states,
            files,
            copies,
        } = started;
        control_queues.set_wakers(handles);
        for transport in &transports {
            transport.set_wakers(handles);
        }
        let lowered = lowered(&config, &transports);
        let target_state = TargetState::new(&lowered, &devices, &ports, &keys, &operator_states);
        let tls_uses = keys.tls_uses(&config);
        let tls_version = tls_keys.replace(tls_table(&tls_uses, target.generated_keys()));
        Self {
            running: Running {
                revoked_keys: Arc::new(ArcSwap::from_pointee(keys.revoked())),
                uuids: Arc::new(ArcSwap::from_pointee(target_state.uuids())),
                config: Arc::new(ArcSwap::from_pointee(config.clone())),
                ports: Arc::new(ArcSwap::from_pointee(ports.clone())),
                operator_states: SharedOperatorStates::new(operator_states),
                change_gate: ChangeGate::default(),
            },
            target_state,
            health_reporter: HealthReporter::new(&devices),
            config,
            opener,
            target,
            devices,
            reservation_files,
            ports,
            keys,
            tls_keys,
            tls_uses,
            tls_version,
            transports,
            arena,
            control_queues,
            files,
            copies,
            unreaped: Vec::new(),
        }
    }

    /// The running configuration.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The running configuration and the bound ports, for other threads.
    pub(crate) fn running(&self) -> Running {
        self.running.clone()
    }

    pub(crate) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Reports changes of the devices since the last call to hosts and to the log.
    pub(crate) fn poll(&mut self) {
        self.health_reporter.poll(&self.devices, &self.target);
        if let Err(error) = self.serve() {
            // The next call finds the same error again.
            tracing::error!(%error, "what is served could not be changed");
        }
        self.reap();
    }

    /// Serves the listeners again whose network card has returned, and the volumes whose device has.
    pub(crate) fn restore(&self, event_loop: &mut dyn EventLoop) {
        if let Some(files) = &self.files {
            files.restore(&self.config.files, &self.devices, event_loop);
            files.restore_rdma(&self.file_memory(), event_loop);
        }
        for transport in &self.transports {
            let ports = self.ports_of(transport.name());
            transport.restore(&ports, &self.regions(), event_loop);
        }
        let memory = self.device_memory();
        for transport in &self.transports {
            transport.use_device_memory(&memory, event_loop);
        }
    }

    /// The memory of drives in which hosts' data may be.
    fn device_memory(&self) -> Vec<Arc<DeviceMemory>> {
        let mut all = Vec::<Arc<DeviceMemory>>::new();
        for device in &self.config.devices {
            let Some((_, opened)) = self.devices.get(&device.name) else {
                continue;
            };
            let memory = data_path(device) != DataPath::Host;
            let memory = memory.then(|| opened.device_memory()).flatten();
            // Namespaces of a drive have the same.
            all.extend(memory.filter(|memory| {
                let is_known = all.iter().any(|it| it.number() == memory.number());
                !memory.has_ended() && !is_known
            }));
        }
        all
    }

    /// All memory that holds data.
    fn regions(&self) -> Vec<&Region> {
        let arena = self.arena.as_deref();
        arena.map_or_else(Vec::new, |arena| self.devices.regions(arena))
    }

    /// The memory that data of files are in.
    fn file_memory(&self) -> Vec<&Region> {
        let arena = self.arena.as_deref();
        arena.map_or_else(Vec::new, |arena| {
            files::registered_memory(&self.config, &self.devices, arena)
        })
    }

    /// Releases the network cards of transports without a listener.
    fn release_transports(&self, event_loop: &mut dyn EventLoop) {
        for transport in &self.transports {
            if self.ports_of(transport.name()).is_empty() {
                transport.release(event_loop);
            }
        }
        if let Some(files) = &self.files {
            files.release_rdma(event_loop);
        }
    }

    /// Updates the target to the current configuration, devices and listeners.
    fn serve(&mut self) -> Result<(), nvme_target::TargetError> {
        let config = lowered(&self.config, &self.transports);
        let states = self.running.operator_states.lock();
        let wanted = TargetState::new(&config, &self.devices, &self.ports, &self.keys, &states);
        let outcome = self.target_state.reconcile(wanted, &self.target);
        let tls_uses = self.keys.tls_uses(&self.config);
        if tls_uses != self.tls_uses {
            let table = tls_table(&tls_uses, self.target.generated_keys());
            self.tls_version = self.tls_keys.replace(table);
            self.tls_uses = tls_uses;
        }
        let revoked = self.keys.revoked();
        self.running.revoked_keys.store(Arc::new(revoked));
        self.running.config.store(Arc::new(self.config.clone()));
        self.running.ports.store(Arc::new(self.ports.clone()));
        self.running
            .uuids
            .store(Arc::new(self.target_state.uuids()));
        outcome
    }

    /// Revokes the secret of a key. With `disconnect`, the associations that use it end; they are
    /// returned.
    ///
    /// # Errors
    /// Why nothing is revoked, for people.
    pub(crate) fn revoke_key(
        &mut self,
        key: &Name,
        disconnect: bool,
        event_loop: &mut dyn EventLoop,
    ) -> Result<EvictedAssociations, String> {
        if self.keys.get(key).is_none() {
            return Err(format!("the configuration has no key {key}"));
        }
        let keys = &mut self.keys;
        let recorded = aside(event_loop, || {
            keys.revoke(key).map_err(|error| with_causes(&error))
        });
        recorded.map_err(|error| format!("key {key} is not revoked: {error}"))?;
        self.serve().map_err(|error| {
            let error = with_causes(&error);
            format!("key {key} is revoked from the next restart on, but not yet: {error}")
        })?;
        Ok(match disconnect {
            true => self.target.revoke_key(key.as_str(), self.tls_version),
            false => EvictedAssociations::default(),
        })
    }

    /// Closes devices that are no longer referenced.
    fn reap(&mut self) {
        let (transports, files) = (&self.transports, &self.files);
        self.unreaped.retain(|opened| {
            let is_unreferenced = opened.is_unreferenced();
            if is_unreferenced {
                for region in opened.regions() {
                    transports.iter().for_each(|it| it.detach_memory(region));
                    if let Some(files) = files {
                        files.detach_memory(region);
                    }
                }
            }
            !is_unreferenced
        });
    }

    fn transport(&self, name: TransportName) -> Option<&Arc<dyn Listening>> {
        self.transports.iter().find(|it| it.name() == name)
    }
}

/// `config` with its settings lowered to the limits of the network cards.
fn lowered(config: &Config, transports: &[Arc<dyn Listening>]) -> Config {
    let mut config = config.clone();
    for listener in &mut config.listeners {
        let found = transports.iter().find(|it| it.name() == listener.transport);
        if let Some(transport) = found {
            transport.lower_limits(listener);
        }
    }
    config
}
