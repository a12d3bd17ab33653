//! Health of a subsystem, gathered from its devices and from what the cores counted (Base 2.1
//! §5.1.12.1.3).

use std::collections::BTreeSet;

use block::{Health, HealthState};
use nvme_spec::log::{CriticalWarning, SmartHealth, data_units};
use nvme_spec::{U16, U128};
use zerocopy::FromZeros;

use super::features::Features;
use super::{AdminContext, Controller};
use crate::target::Target;
use crate::view::SubsystemView;

/// Available Spare Threshold in percent.
const SPARE_THRESHOLD_PERCENT: u8 = 10;

/// The worst of several devices.
struct Summary {
    devices: BTreeSet<usize>,
    read_only: bool,
    removed: bool,
    temperature_kelvin: Option<u16>,
    spare_percent: u8,
    used_percent: u8,
    media_errors: u64,
}

impl Summary {
    fn of(subsystem: &SubsystemView, target: &Target) -> Self {
        let namespaces = subsystem.namespaces.iter().flatten();
        let devices: BTreeSet<_> = namespaces.map(|view| usize::from(view.device)).collect();
        let mut summary = Self {
            devices,
            read_only: false,
            removed: false,
            temperature_kelvin: None,
            spare_percent: 100,
            used_percent: 0,
            media_errors: 0,
        };
        let health: Vec<Health> = summary
            .devices
            .iter()
            .filter_map(|device| target.devices().get(*device))
            .map(|device| device.health())
            .collect();
        for health in health {
            summary.add(&health);
        }
        summary
    }

    fn add(&mut self, health: &Health) {
        match health.state {
            HealthState::Ready | HealthState::Resetting => {}
            HealthState::ReadOnly => self.read_only = true,
            HealthState::Removed => self.removed = true,
        }
        self.temperature_kelvin = self.temperature_kelvin.max(health.temperature_kelvin);
        self.spare_percent = self
            .spare_percent
            .min(health.available_spare_percent.unwrap_or(100));
        self.used_percent = self.used_percent.max(health.used_percent.unwrap_or(0));
        self.media_errors = self.media_errors.wrapping_add(health.media_errors);
    }

    fn warnings(&self, features: &Features) -> CriticalWarning {
        let beyond = |kelvin| features.beyond_threshold(kelvin);
        CriticalWarning::new()
            .with_spare(self.spare_percent < SPARE_THRESHOLD_PERCENT)
            .with_temperature(self.temperature_kelvin.is_some_and(beyond))
            .with_reliability(self.removed)
            .with_read_only(self.read_only)
    }
}

/// The critical warnings of a subsystem now.
pub(crate) fn warnings(
    subsystem: &SubsystemView,
    target: &Target,
    features: &Features,
) -> CriticalWarning {
    Summary::of(subsystem, target).warnings(features)
}

/// SMART / Health Information.
pub(crate) fn page(controller: &Controller, context: &AdminContext<'_>) -> SmartHealth {
    let mut page = SmartHealth::new_zeroed();
    let Some(subsystem) = controller.subsystem(context.view) else {
        return page;
    };
    let summary = Summary::of(subsystem, context.target);
    let totals = context
        .target
        .device_totals(&summary.devices.iter().copied());
    page.critical_warning = summary.warnings(&controller.features);
    // 0 where no device has a sensor.
    page.temperature = U16::new(summary.temperature_kelvin.unwrap_or(0));
    page.available_spare = summary.spare_percent;
    page.available_spare_threshold = SPARE_THRESHOLD_PERCENT;
    page.percentage_used = summary.used_percent;
    page.data_units_read = U128::new(data_units(u128::from(totals.bytes_read)));
    page.data_units_written = U128::new(data_units(u128::from(totals.bytes_written)));
    page.host_read_commands = U128::new(u128::from(totals.reads));
    page.host_write_commands = U128::new(u128::from(totals.writes));
    // The clock counts from the machine's start.
    page.power_on_hours = U128::new(u128::from(context.now.as_secs() / 3600));
    page.media_errors = U128::new(u128::from(summary.media_errors));
    page.error_log_entries = U128::new(u128::from(controller.shared.errors.count()));
    page
}
