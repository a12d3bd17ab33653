//! Log pages: errors, health, firmware slot, changed namespaces (Base 2.1 §5.1.12).

use nvme_spec::ascii::SpacePadded;
use nvme_spec::command::{IoOpcode, LogPageId, Sqe};
use nvme_spec::completion::StatusField;
use nvme_spec::event::AsyncEvent;
use nvme_spec::identify::IDENTIFY_BYTES;
use nvme_spec::log::{
    ActiveFirmware, ChangedNamespaces, CriticalWarning, ErrorEntry, FirmwareSlots, LogPageSupport,
    ParameterErrorLocation, SmartHealth, SupportedLogPages, data_units,
};
use nvme_spec::status::StatusCodeType;
use nvme_spec::{NSID_BROADCAST, Status, U16, U32, U64, U128};
use zerocopy::IntoBytes;

use super::bus::Bus;
use super::namespaces::Namespace;
use super::state::{Outcome, State};

/// Number of entries of the error log.
pub(super) const ERROR_ENTRIES: usize = 64;

/// The most recent errors, newest first.
pub(super) struct ErrorLog {
    entries: [ErrorEntry; ERROR_ENTRIES],
    count: u64,
}

impl ErrorLog {
    pub(super) fn new() -> Self {
        Self {
            entries: [ErrorEntry::default(); ERROR_ENTRIES],
            count: 0,
        }
    }

    fn push(&mut self, entry: ErrorEntry) {
        self.count += 1;
        self.entries.rotate_right(1);
        self.entries[0] = entry;
        self.entries[0].error_count = U64::new(self.count);
    }
}

/// Values of the SMART log.
#[derive(Clone, Copy)]
pub(super) struct HealthModel {
    pub(super) critical_warning: CriticalWarning,
    pub(super) temperature_kelvin: u16,
    pub(super) spare_percent: u8,
    pub(super) used_percent: u8,
    pub(super) bytes_read: u128,
    pub(super) bytes_written: u128,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) power_cycles: u64,
    pub(super) unsafe_shutdowns: u64,
    pub(super) media_errors: u64,
}

impl Default for HealthModel {
    fn default() -> Self {
        Self {
            critical_warning: CriticalWarning::new(),
            temperature_kelvin: 310,
            spare_percent: 100,
            used_percent: 3,
            bytes_read: 0,
            bytes_written: 0,
            reads: 0,
            writes: 0,
            power_cycles: 1,
            unsafe_shutdowns: 0,
            media_errors: 0,
        }
    }
}

impl State {
    pub(super) fn record_error(&mut self, queue_id: u16, sqe: &Sqe, status: Status) {
        self.health.media_errors += u64::from(status.sct() == StatusCodeType::MEDIA);
        let ranged = queue_id != 0
            && matches!(
                sqe.io_opcode(),
                IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE | IoOpcode::WRITE_ZEROES
            );
        let lba = if ranged {
            sqe.read_write().slba
        } else {
            U64::ZERO
        };
        let mut entry = ErrorEntry::default();
        entry.sqid = U16::new(queue_id);
        entry.cid = sqe.cid;
        entry.status = StatusField::from_status(status);
        entry.location = ParameterErrorLocation::NONE;
        entry.lba = lba;
        entry.nsid = sqe.nsid;
        self.errors.push(entry);
    }

    pub(super) fn get_log_page(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        const FIELD: Status = Status::INVALID_FIELD.with_dnr();
        let command = sqe.get_log_page();
        let page = command.select.lid();
        let mut bytes = [0; IDENTIFY_BYTES];
        let Some(len) = self.log_page(page, sqe.nsid.get(), &mut bytes) else {
            return Status::INVALID_LOG_PAGE.with_dnr().into();
        };
        let offset = command.lpo.get();
        if command.qualifier.ot() || !offset.is_multiple_of(4) || offset > len as u64 {
            return FIELD.into();
        }
        let asked = usize::try_from(command.length_bytes()).unwrap_or(usize::MAX);
        if asked > self.transfer_bytes_max() {
            return FIELD.into();
        }
        let sent = self.send_admin(bus, sqe, &bytes[offset as usize..], asked);
        if sent.is_ok() && !command.select.rae() {
            self.clear_log(page);
            self.events.unmask(page);
            self.report_events(bus);
        }
        sent.into()
    }

    /// Writes a log page and returns its length.
    fn log_page(
        &self,
        page: LogPageId,
        nsid: u32,
        bytes: &mut [u8; IDENTIFY_BYTES],
    ) -> Option<usize> {
        let mut put = |from: &[u8]| {
            bytes[..from.len()].copy_from_slice(from);
            Some(from.len())
        };
        match page {
            LogPageId::SUPPORTED_LOG_PAGES => put(supported().as_bytes()),
            LogPageId::ERROR_INFORMATION => put(self.errors.entries.as_bytes()),
            LogPageId::SMART_HEALTH if nsid == 0 || nsid == NSID_BROADCAST => {
                put(self.smart().as_bytes())
            }
            LogPageId::FIRMWARE_SLOT => {
                let mut slots = FirmwareSlots::default();
                slots.afi = ActiveFirmware::new().with_active_slot(1);
                slots.frs[0] = SpacePadded::new(&self.options.firmware);
                put(slots.as_bytes())
            }
            LogPageId::CHANGED_ATTACHED_NAMESPACES => {
                let changed = self.namespaces.iter().filter(|found| found.changed);
                let mut list = ChangedNamespaces::default();
                list.fill(changed.map(Namespace::nsid));
                put(list.as_bytes())
            }
            _ => None,
        }
    }

    fn clear_log(&mut self, page: LogPageId) {
        if page == LogPageId::CHANGED_ATTACHED_NAMESPACES {
            for namespace in &mut self.namespaces {
                namespace.changed = false;
            }
        }
    }

    fn smart(&self) -> SmartHealth {
        let health = &self.health;
        let wide = |value: u64| U128::new(u128::from(value));
        let mut page = SmartHealth::default();
        page.critical_warning = health.critical_warning;
        page.temperature = U16::new(health.temperature_kelvin);
        page.available_spare = health.spare_percent;
        page.available_spare_threshold = 10;
        page.percentage_used = health.used_percent;
        page.data_units_read = U128::new(data_units(health.bytes_read));
        page.data_units_written = U128::new(data_units(health.bytes_written));
        page.host_read_commands = wide(health.reads);
        page.host_write_commands = wide(health.writes);
        page.power_cycles = wide(health.power_cycles);
        page.power_on_hours = wide(self.now.as_secs() / 3600);
        page.unsafe_shutdowns = wide(health.unsafe_shutdowns);
        page.media_errors = wide(health.media_errors);
        page.error_log_entries = wide(self.errors.count);
        page.warning_temperature_time = U32::ZERO;
        page
    }

    /// Sets the temperature and reports it if it crosses a threshold.
    pub(super) fn set_temperature(&mut self, bus: &Bus, kelvin: u16) {
        self.health.temperature_kelvin = kelvin;
        let [over, under] = self.features.thresholds;
        let warning = self.health.critical_warning;
        let beyond = kelvin >= over || kelvin <= under;
        self.warn(bus, warning.with_temperature(beyond));
    }

    /// Sets the critical warning and reports new warnings that are enabled.
    pub(super) fn warn(&mut self, bus: &Bus, warning: CriticalWarning) {
        let old = std::mem::replace(&mut self.health.critical_warning, warning);
        let wanted = self.features.events;
        let news = [
            (
                warning.spare() && !old.spare() && wanted.spare(),
                AsyncEvent::SPARE_BELOW_THRESHOLD,
            ),
            (
                warning.temperature() && !old.temperature() && wanted.temperature(),
                AsyncEvent::TEMPERATURE_THRESHOLD,
            ),
            (
                warning.reliability() && !old.reliability() && wanted.reliability()
                    || warning.read_only() && !old.read_only() && wanted.read_only(),
                AsyncEvent::RELIABILITY,
            ),
        ];
        for (_, event) in news.into_iter().filter(|(is_new, _)| *is_new) {
            self.raise(bus, event);
        }
    }
}

fn supported() -> SupportedLogPages {
    let mut pages = SupportedLogPages::default();
    for page in [
        LogPageId::SUPPORTED_LOG_PAGES,
        LogPageId::ERROR_INFORMATION,
        LogPageId::SMART_HEALTH,
        LogPageId::FIRMWARE_SLOT,
        LogPageId::CHANGED_ATTACHED_NAMESPACES,
    ] {
        pages.set(page, LogPageSupport::new().with_lsupp(true));
    }
    pages
}
