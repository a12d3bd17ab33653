//! What the devices go through while the appliance serves: told to people, and to hosts that want to
//! know. Looked at once per round of the control thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use appliance_config::Name;
use block::{Damage, Device, Health, HealthState, HealthWarnings};
use nvme_target::Target;

use crate::devices::Devices;
use crate::observe::status::warnings;

/// What people were last told of a device.
type Condition = (HealthState, HealthWarnings, Option<Damage>);

/// The state and the warnings of each device, as they were told.
pub(crate) struct Watch(BTreeMap<Name, Condition>);

impl Watch {
    /// Takes the devices as they are now as told.
    pub(crate) fn new(devices: &Devices) -> Self {
        let all = devices.all();
        Self(
            all.map(|(name, it)| (name.clone(), condition(it)))
                .collect(),
        )
    }

    /// Compares the devices with what was told, and tells what differs. One that just came is told
    /// by whoever added it.
    pub(crate) fn look(&mut self, devices: &Devices, target: &Target) {
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
                HealthState::Damaged => tell_damage(name, now.2),
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

/// Names the cause and what the operator can do.
fn tell_damage(name: &Name, damage: Option<Damage>) {
    let cause = damage.map_or_else(|| "no cause is known".into(), |it| it.cause.to_string());
    tracing::error!(
        "device {name} is damaged: {cause}; writes and flushes fail and reads continue: repair what \
         the device lies on, then run `windlass device reopen {name}` or restart"
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
