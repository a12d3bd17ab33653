//! The target's configuration, and its changes.

use std::collections::BTreeMap;

use appliance_config::{Config, Uuid};
use nvme_target::{
    DeviceIndex, NamespaceConfig, Pacing, PortConfig, RateLimit, SubsystemConfig, Target,
    TargetError,
};

use crate::devices::Devices;
use crate::exports::{self, Ports};
use crate::keys::Keys;
use crate::operator_states::OperatorStates;

/// The subsystems by name, the ports, the rate limits, and the latency targets and weights.
pub(super) struct TargetState {
    subsystems: BTreeMap<String, SubsystemConfig>,
    ports: Vec<PortConfig>,
    rate_limits: Vec<RateLimit>,
    pacing: Vec<Pacing>,
}

impl TargetState {
    /// The target's configuration for `config` and the states that operators have set.
    pub(super) fn new(
        config: &Config,
        devices: &Devices,
        ports: &Ports,
        keys: &Keys,
        states: &OperatorStates,
    ) -> Self {
        let subsystems = exports::subsystems(config, devices, ports, keys, states).into_iter();
        Self {
            subsystems: subsystems.map(|it| (it.nqn.clone(), it)).collect(),
            ports: ports.configs(config),
            rate_limits: exports::rate_limits(config, devices),
            pacing: exports::pacing(config, devices),
        }
    }

    /// The UUID of a device's namespace, by the device's index.
    pub(super) fn uuids(&self) -> BTreeMap<DeviceIndex, Uuid> {
        let namespaces = self.subsystems.values().flat_map(|it| &it.namespaces);
        namespaces
            .map(|it| (it.device, Uuid::from_bytes(it.uuid)))
            .collect()
    }

    /// Changes the target to `wanted`.
    ///
    /// # Errors
    /// The first change that the target refuses; the changes before it are made and recorded.
    pub(super) fn reconcile(&mut self, wanted: Self, target: &Target) -> Result<(), TargetError> {
        // Ports are added before the subsystems that refer to them, and removed after them.
        let mut all = wanted.ports.clone();
        let is_old = |port: &&PortConfig| wanted.ports.iter().all(|new| new.id != port.id);
        all.extend(self.ports.iter().filter(is_old).cloned());
        self.change_ports(all, target)?;
        let removed = self.subsystems.keys();
        let removed = removed.filter(|nqn| !wanted.subsystems.contains_key(*nqn));
        for nqn in removed.cloned().collect::<Vec<_>>() {
            target.remove_subsystem(&nqn)?;
            self.subsystems.remove(&nqn);
        }
        for (nqn, subsystem) in wanted.subsystems {
            match self.subsystems.get(&nqn) {
                Some(served) if *served == subsystem => continue,
                Some(served) => {
                    target.update_subsystem(subsystem.clone())?;
                    if served.namespaces != subsystem.namespaces {
                        tracing::info!("{nqn}: serving {}", identifiers(&subsystem.namespaces));
                    }
                }
                None => target.add_subsystem(subsystem.clone())?,
            }
            self.subsystems.insert(nqn, subsystem);
        }
        if self.rate_limits != wanted.rate_limits {
            target.set_rate_limits(wanted.rate_limits.clone())?;
            self.rate_limits = wanted.rate_limits;
        }
        if self.pacing != wanted.pacing {
            target.set_pacing(&wanted.pacing)?;
            self.pacing = wanted.pacing;
        }
        self.change_ports(wanted.ports, target)
    }

    fn change_ports(&mut self, ports: Vec<PortConfig>, target: &Target) -> Result<(), TargetError> {
        if self.ports != ports {
            target.update_ports(ports.clone())?;
            self.ports = ports;
        }
        Ok(())
    }
}

fn identifiers(namespaces: &[NamespaceConfig]) -> String {
    if namespaces.is_empty() {
        return "no namespace".to_owned();
    }
    let all: Vec<String> = namespaces.iter().map(|it| it.nsid.to_string()).collect();
    format!("namespace {}", all.join(", "))
}
