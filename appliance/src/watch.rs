//! What changes while the appliance serves: devices that go, come back or grow, and what they warn
//! of. Looked at once per round of the control thread, so that hosts are told.

use std::sync::Arc;

use appliance_config::Config;
use block::{Device, Health, HealthState, HealthWarnings};
use nvme_target::{NamespaceConfig, Target};

use crate::devices::Devices;
use crate::exports;
use crate::observe::status::warnings;

/// What the target and people were last told.
pub(crate) struct Watch {
    /// The namespaces of each export.
    served: Vec<Vec<NamespaceConfig>>,
    /// The state and the warnings of each device.
    seen: Vec<(HealthState, HealthWarnings)>,
}

impl Watch {
    /// Takes what the target was made with as told.
    pub(crate) fn new(config: &Config, devices: &Devices) -> Self {
        let exports = config.exports.iter();
        Self {
            served: exports
                .map(|export| exports::namespaces(config, export, devices))
                .collect(),
            seen: devices.all().iter().map(condition).collect(),
        }
    }

    /// Compares the devices with what was told, and tells what differs.
    pub(crate) fn look(&mut self, config: &Config, devices: &Devices, target: &Target) {
        self.look_at_health(devices, target);
        for (export, served) in config.exports.iter().zip(&mut self.served) {
            let now = exports::namespaces(config, export, devices);
            if now == *served {
                continue;
            }
            let nqn = export.nqn.as_str();
            tracing::info!("{nqn}: serving {}", identifiers(&now));
            match target.update_namespaces(nqn, now.clone()) {
                Ok(()) => *served = now,
                // What one look finds wrong the next one finds again.
                Err(error) => tracing::error!(%error, "the namespaces could not be changed"),
            }
        }
    }

    fn look_at_health(&mut self, devices: &Devices, target: &Target) {
        let mut changed = false;
        for (device, seen) in devices.all().iter().zip(&mut self.seen) {
            let now = condition(device);
            let before = std::mem::replace(seen, now);
            if now == before {
                continue;
            }
            changed = true;
            let name = device.name();
            match now.0 {
                state if state == before.0 => {}
                HealthState::Ready => tracing::info!("device {name} is ready"),
                state => tracing::warn!("device {name} is {}", in_words(state)),
            }
            if now.1 != before.1 && now.1.any() {
                tracing::warn!("device {name} warns: {}", warnings(now.1).join(", "));
            }
        }
        if changed {
            target.health_changed();
        }
    }
}

fn condition(device: &Arc<dyn Device>) -> (HealthState, HealthWarnings) {
    let Health { state, drive, .. } = device.health();
    (state, drive.map(|drive| drive.warnings).unwrap_or_default())
}

fn in_words(state: HealthState) -> &'static str {
    match state {
        HealthState::Ready => "ready",
        HealthState::ReadOnly => "read-only",
        HealthState::Resetting => "being reset",
        HealthState::Removed => "gone",
    }
}

fn identifiers(namespaces: &[NamespaceConfig]) -> String {
    if namespaces.is_empty() {
        return "no namespace".to_owned();
    }
    let all: Vec<String> = namespaces.iter().map(|it| it.nsid.to_string()).collect();
    format!("namespace {}", all.join(", "))
}
