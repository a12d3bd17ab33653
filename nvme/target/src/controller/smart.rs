//! Health of a subsystem, from its devices and the cores' counters (Base 2.1 §5.1.12.1.3).
//!
//! The log page describes the controller, whose subsystem may have several devices: conditions are
//! those of the worst device, lifetimes those of the oldest, and amounts are sums. A drive reports
//! its whole life; for other devices only the commands of this target are counted.

use std::collections::BTreeSet;

use block::{DriveHealth, Health, HealthState, HealthWarnings};
use nvme_spec::log::{CriticalWarning, SmartHealth, data_units};
use nvme_spec::{U16, U128};
use zerocopy::FromZeros;

use super::features::Features;
use super::{AdminContext, Controller};
use crate::target::Target;
use crate::view::SubsystemView;

/// Composite temperature of a subsystem in which no device has a sensor, in kelvin: 25 °C. Base 2.1
/// §5.1.12.1.3 leaves the value to the implementation and defines none for "not reported"; tools
/// show 0 K as -273 °C.
const NOMINAL_TEMPERATURE_KELVIN: u16 = 298;

/// Available Spare Threshold in percent for devices that report none.
const SPARE_THRESHOLD_PERCENT: u8 = 10;

/// Combined health of several devices.
struct Summary {
    /// Devices that do not report counters of their own life.
    others: BTreeSet<usize>,
    /// Each drive once, even if several of its namespaces are devices.
    drives: Vec<DriveHealth>,
    warnings: HealthWarnings,
    temperature_kelvin: Option<u16>,
    /// Available spare and its threshold, from the device that is closest to its threshold.
    spare_percent: u8,
    spare_threshold_percent: u8,
    used_percent: u8,
    /// Media errors of devices that are not drives.
    media_errors: u64,
}

impl Summary {
    fn of(subsystem: &SubsystemView, target: &Target) -> Self {
        let mut summary = Self {
            others: BTreeSet::new(),
            drives: Vec::new(),
            warnings: HealthWarnings::default(),
            temperature_kelvin: None,
            spare_percent: 100,
            spare_threshold_percent: SPARE_THRESHOLD_PERCENT,
            used_percent: 0,
            media_errors: 0,
        };
        let published = target.published();
        for index in subsystem.devices() {
            if let Some(device) = published.device(index) {
                summary.add(index, &device.health());
            }
        }
        summary
    }

    fn add(&mut self, index: usize, health: &Health) {
        let warnings = &mut self.warnings;
        match health.state {
            HealthState::Ready | HealthState::Resetting => {}
            HealthState::ReadOnly => warnings.read_only = true,
            // Base 2.1 §5.1.12.1.3, Critical Warning bit 2: reliability degraded by media related
            // errors. Not bit 3, which means that all of the media is read-only: other namespaces
            // still accept writes.
            HealthState::Removed | HealthState::Damaged => warnings.reliability = true,
        }
        // A drive that reports 0 K has no sensor.
        let reported = health.temperature_kelvin.filter(|kelvin| *kelvin > 0);
        self.temperature_kelvin = self.temperature_kelvin.max(reported);
        self.used_percent = self.used_percent.max(health.used_percent.unwrap_or(0));
        let threshold = health.drive.map_or(SPARE_THRESHOLD_PERCENT, |drive| {
            drive.spare_threshold_percent
        });
        if let Some(spare) = health.available_spare_percent {
            warnings.spare |= spare < threshold;
            let margin = |spare: u8, threshold: u8| i16::from(spare) - i16::from(threshold);
            let least = margin(self.spare_percent, self.spare_threshold_percent);
            if margin(spare, threshold) < least {
                (self.spare_percent, self.spare_threshold_percent) = (spare, threshold);
            }
        }
        match health.drive {
            Some(drive) => self.add_drive(drive),
            None => {
                self.others.insert(index);
                self.media_errors = self.media_errors.wrapping_add(health.media_errors);
            }
        }
    }

    fn add_drive(&mut self, drive: DriveHealth) {
        let HealthWarnings {
            spare,
            temperature,
            reliability,
            read_only,
            backup,
        } = drive.warnings;
        self.warnings.spare |= spare;
        self.warnings.temperature |= temperature;
        self.warnings.reliability |= reliability;
        self.warnings.read_only |= read_only;
        self.warnings.backup |= backup;
        // Namespaces of one drive report the same health. Two drives with equal counts can only be
        // new.
        if !self.drives.contains(&drive) {
            self.drives.push(drive);
        }
    }

    fn warnings(&self, features: &Features) -> CriticalWarning {
        let hot = features.beyond_threshold(self.composite_temperature_kelvin());
        CriticalWarning::new()
            .with_spare(self.warnings.spare)
            .with_temperature(self.warnings.temperature || hot)
            .with_reliability(self.warnings.reliability)
            .with_read_only(self.warnings.read_only)
            .with_backup_failed(self.warnings.backup)
    }

    /// The temperature of the hottest device with a sensor.
    fn composite_temperature_kelvin(&self) -> u16 {
        self.temperature_kelvin
            .unwrap_or(NOMINAL_TEMPERATURE_KELVIN)
    }

    /// The sum of a counter over all drives.
    fn sum(&self, amount: impl Fn(&DriveHealth) -> u64) -> u128 {
        self.drives
            .iter()
            .map(|drive| u128::from(amount(drive)))
            .sum()
    }

    /// The largest value of a lifetime counter over all drives.
    fn most(&self, lifetime: impl Fn(&DriveHealth) -> u64) -> u128 {
        u128::from(self.drives.iter().map(lifetime).max().unwrap_or(0))
    }
}

/// The current critical warnings of a subsystem.
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
        .device_totals(&summary.others.iter().copied());
    let amount = |drives: u128, counted: u128| U128::new(drives.saturating_add(counted));
    page.critical_warning = summary.warnings(&controller.features);
    page.temperature = U16::new(summary.composite_temperature_kelvin());
    page.available_spare = summary.spare_percent;
    page.available_spare_threshold = summary.spare_threshold_percent;
    page.percentage_used = summary.used_percent;
    page.data_units_read = amount(
        summary.sum(|drive| drive.data_units_read),
        data_units(u128::from(totals.bytes_read)),
    );
    page.data_units_written = amount(
        summary.sum(|drive| drive.data_units_written),
        data_units(u128::from(totals.bytes_written)),
    );
    page.host_read_commands = amount(
        summary.sum(|drive| drive.read_commands),
        u128::from(totals.reads),
    );
    page.host_write_commands = amount(
        summary.sum(|drive| drive.write_commands),
        u128::from(totals.writes),
    );
    page.controller_busy_time = U128::new(summary.most(|drive| drive.busy_minutes));
    page.power_cycles = U128::new(summary.most(|drive| drive.power_cycles));
    // The clock starts with the machine.
    let clock_hours = u128::from(context.now.as_secs() / 3600);
    let drive_hours = summary.most(|drive| drive.power_on_hours);
    page.power_on_hours = U128::new(match summary.drives[..] {
        [] => clock_hours,
        _ => drive_hours,
    });
    page.unsafe_shutdowns = U128::new(summary.most(|drive| drive.unsafe_shutdowns));
    page.media_errors = amount(
        summary.sum(|drive| drive.media_errors),
        u128::from(summary.media_errors),
    );
    page.error_log_entries = U128::new(u128::from(controller.shared.errors.count()));
    page
}
