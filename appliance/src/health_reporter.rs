//! Reports changes of the devices' state to the log and to hosts. The control thread calls it in
//! every iteration.

use std::collections::BTreeMap;
use std::sync::Arc;

use appliance_config::Name;
use block::{Damage, Device, Health, HealthState, HealthWarnings};
use nvme_target::Target;

use crate::devices::Devices;
use crate::observe::status::warnings;

/// The last reported state of a device.
type Condition = (HealthState, HealthWarnings, Option<Damage>);

/// The last reported state and warnings of each device.
pub(crate) struct HealthReporter(BTreeMap<Name, Condition>);

impl HealthReporter {
    /// Assumes that the current state of the devices is reported.
    pub(crate) fn new(devices: &Devices) -> Self {
        let all = devices.all();
        Self(
            all.map(|(name, it)| (name.clone(), condition(it)))
                .collect(),
        )
    }

    /// Compares the devices with their last reported state, and reports the differences. The caller
    /// that adds a device reports it.
    pub(crate) fn poll(&mut self, devices: &Devices, target: &Target) {
        let mut changed = false;
        let mut seen = BTreeMap::new();
        for (name, device) in devices.all() {
            let now = condition(device);
            seen.insert(name.clone(), now);
            let before = *self.0.get(name).unwrap_or(&now);
            if now == before {
                continue;
            }
            changed = true;
            match now.0 {
                state if state == before.0 => {}
                HealthState::Ready => tracing::info!("device {name} is ready"),
                HealthState::Damaged => log_damage(name, now.2),
                state => tracing::warn!("device {name} is {}", in_words(state)),
            }
            if now.1 != before.1 && now.1.any() {
                tracing::warn!("device {name} warns: {}", warnings(now.1).join(", "));
            }
        }
        self.0 = seen;
        if changed {
            target.health_changed();
        }
    }
}

/// Logs the cause and the remedy.
fn log_damage(name: &Name, damage: Option<Damage>) {
    let cause = damage.map_or_else(|| "no cause is known".into(), |it| it.cause.to_string());
    tracing::error!(
        "device {name} is damaged: {cause}; writes and flushes fail and reads continue: repair \
         the underlying storage, then run `windlass device reopen {name}` or restart"
    );
}

fn condition(device: &Arc<dyn Device>) -> Condition {
    let health = device.health();
    let Health {
        state,
        drive,
        damage,
        ..
    } = health;
    let warnings = drive.map(|drive| drive.warnings).unwrap_or_default();
    (state, warnings, damage)
}

fn in_words(state: HealthState) -> &'static str {
    match state {
        HealthState::Ready => "ready",
        HealthState::ReadOnly => "read-only",
        HealthState::Damaged => "damaged",
        HealthState::Resetting => "being reset",
        HealthState::Removed => "gone",
    }
}
