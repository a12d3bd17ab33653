//! Asynchronous events, log pages, and namespace changes while the drive runs.

use block::{DriveHealth, ErrorRecord, HealthWarnings};
use nvme_spec::command::{AdminOpcode, Cns, LogPageId, LogPageSelect};
use nvme_spec::event::{AsyncEvent, EventType};
use nvme_spec::identify::IdentifyNamespace;
use nvme_spec::log::{ChangedNamespaces, ErrorEntry, SmartHealth};
use nvme_spec::{Cqe, NSID_BROADCAST, Sqe};
use reactors::Nanos;
use zerocopy::{FromBytes, transmute};

use super::DriveOwner;
use crate::admin::Purpose;
use crate::identity::{Identity, Namespace, NamespaceStatus};
use crate::memory::AdminPage;
use crate::shared::{DriveErrorRecord, Smart, count};
use crate::status::device_error;

/// A 128-bit count of a log page, saturated to 64 bits.
fn saturated(value: nvme_spec::U128) -> u64 {
    u64::try_from(value.get()).unwrap_or(u64::MAX)
}

impl DriveOwner {
    /// Handles the completion of an admin command of the running drive.
    pub(super) fn admin_done(
        &mut self,
        purpose: Purpose,
        opcode: AdminOpcode,
        cqe: &Cqe,
        now: Nanos,
    ) {
        let status = cqe.status();
        if !status.is_success() {
            tracing::debug!(drive = self.shared.options.name, %opcode, %status, "an admin command \
            failed");
        }
        match (purpose, status.is_success()) {
            (Purpose::Event, true) => {
                self.event(AsyncEvent::from_bits(cqe.dw0.get()), now);
                self.request_event();
            }
            (Purpose::Health, true) => self.store_health(),
            (Purpose::Errors, true) => self.store_errors(),
            (Purpose::Changes, true) => self.namespaces_changed(now),
            (Purpose::Recheck { nsid }, _) => {
                self.rechecked(nsid, status.is_success());
                self.recheck_next(now);
            }
            // A controller may refuse event requests or log pages; they are not retried. The
            // success of an Abort shows in the completion of the aborted command.
            (Purpose::Event | Purpose::Health | Purpose::Errors | Purpose::Changes, false)
            | (Purpose::Abort | Purpose::Step, _) => {}
        }
    }

    /// Sends an Asynchronous Event Request (Base 2.1 §5.1.2).
    pub(super) fn request_event(&mut self) {
        if let Some(admin) = &mut self.admin {
            admin.submit(Sqe::async_event_request(), None, Purpose::Event, None);
        }
    }

    /// Reading the event's log page also allows the controller to report the next event (Base 2.1
    /// §5.1.2).
    fn event(&mut self, event: AsyncEvent, now: Nanos) {
        count(&self.shared.counters.events, 1);
        tracing::info!(
            drive = self.shared.options.name,
            kind = %event.event_type(),
            information = event.information(),
            "the drive reports an event"
        );
        match (event.event_type(), event.log_page()) {
            (EventType::ERROR, _) => {
                self.fetch_errors(now);
                self.fetch_health(now);
            }
            (EventType::SMART_HEALTH, _) => self.fetch_health(now),
            (EventType::NOTICE, LogPageId::CHANGED_ATTACHED_NAMESPACES) => {
                let list = size_of::<ChangedNamespaces>();
                let lid = LogPageId::CHANGED_ATTACHED_NAMESPACES;
                self.fetch(lid, list, AdminPage::Changes, Purpose::Changes, now);
            }
            _ => {}
        }
    }

    fn fetch(
        &mut self,
        lid: LogPageId,
        bytes: usize,
        page: AdminPage,
        purpose: Purpose,
        now: Nanos,
    ) {
        let deadline = now + self.shared.options.deadlines.command;
        let Some(admin) = &mut self.admin else { return };
        if admin.has(purpose) {
            // The read in flight may miss the latest change; the next periodic read finds it.
            return;
        }
        let select = LogPageSelect::new()
            .with_lid(lid)
            .with_numd_z((bytes / 4 - 1) as u32);
        let sqe = Sqe::log_page(NSID_BROADCAST, select, 0);
        admin.submit(sqe, Some(page), purpose, Some(deadline));
    }

    pub(super) fn fetch_health(&mut self, now: Nanos) {
        let (lid, bytes) = (LogPageId::SMART_HEALTH, size_of::<SmartHealth>());
        self.fetch(lid, bytes, AdminPage::Health, Purpose::Health, now);
    }

    pub(super) fn fetch_errors(&mut self, now: Nanos) {
        let Some(identity) = self.shared.identity.get() else {
            return;
        };
        let bytes = usize::from(identity.limits.error_entries) * size_of::<ErrorEntry>();
        let lid = LogPageId::ERROR_INFORMATION;
        self.fetch(lid, bytes, AdminPage::Errors, Purpose::Errors, now);
    }

    fn store_health(&mut self) {
        let Some(admin) = &self.admin else { return };
        let page = admin.memory().read(AdminPage::Health);
        let Ok((page, _)) = SmartHealth::read_from_prefix(&page[..]) else {
            return;
        };
        let warning = page.critical_warning;
        let warnings = HealthWarnings {
            spare: warning.spare(),
            temperature: warning.temperature(),
            reliability: warning.reliability(),
            read_only: warning.read_only(),
            backup: warning.backup_failed(),
        };
        if warnings.any() {
            tracing::warn!(
                drive = self.shared.options.name,
                ?warnings,
                "the drive reports a critical warning"
            );
        }
        let kelvin = page.temperature.get();
        let smart = Smart {
            health: DriveHealth {
                warnings,
                spare_threshold_percent: page.available_spare_threshold,
                data_units_read: saturated(page.data_units_read),
                data_units_written: saturated(page.data_units_written),
                read_commands: saturated(page.host_read_commands),
                write_commands: saturated(page.host_write_commands),
                busy_minutes: saturated(page.controller_busy_time),
                power_cycles: saturated(page.power_cycles),
                power_on_hours: saturated(page.power_on_hours),
                unsafe_shutdowns: saturated(page.unsafe_shutdowns),
                media_errors: saturated(page.media_errors),
                error_log_entries: saturated(page.error_log_entries),
            },
            temperature_kelvin: (kelvin != 0).then_some(kelvin),
            available_spare_percent: page.available_spare,
            used_percent: page.percentage_used,
        };
        self.shared.control().smart = Some(smart);
    }

    fn store_errors(&mut self) {
        let Some(admin) = &self.admin else { return };
        let page = admin.memory().read(AdminPage::Errors);
        let entries: [ErrorEntry; 64] = transmute!(*page);
        let used = entries.iter().filter(|entry| entry.error_count.get() != 0);
        let records = used.map(|entry| {
            let status = entry.status.status();
            let nsid = entry.nsid.get();
            let code = u32::from(status.sct().0) << 8 | u32::from(status.sc());
            DriveErrorRecord {
                nsid,
                record: ErrorRecord {
                    number: entry.error_count.get(),
                    error: device_error(status, false),
                    code,
                    lba: (nsid != 0).then_some(entry.lba.get()),
                },
            }
        });
        self.shared.control().errors = records.collect();
    }

    /// Identifies the namespaces again that the controller reports as changed.
    fn namespaces_changed(&mut self, now: Nanos) {
        let Some(admin) = &self.admin else { return };
        let list: ChangedNamespaces = transmute!(*admin.memory().read(AdminPage::Changes));
        let Some(identity) = self.shared.identity.get() else {
            return;
        };
        let known = identity.namespaces.iter().map(|namespace| namespace.nsid);
        let named = |nsid: &u32| list.is_overflow() || list.0.iter().any(|other| other == *nsid);
        self.rechecks = known.filter(named).collect();
        self.recheck_next(now);
    }

    fn recheck_next(&mut self, now: Nanos) {
        let Some(nsid) = self.rechecks.pop() else {
            return;
        };
        let deadline = now + self.shared.options.deadlines.command;
        let sqe = Sqe::identify_structure(Cns::NAMESPACE, nsid);
        let (page, purpose) = (Some(AdminPage::Step), Purpose::Recheck { nsid });
        if let Some(admin) = &mut self.admin {
            admin.submit(sqe, page, purpose, Some(deadline));
        }
    }

    fn rechecked(&self, nsid: u32, identified: bool) {
        let (Some(admin), Some(identity)) = (&self.admin, self.shared.identity.get()) else {
            return;
        };
        let Some(known) = identity.namespace(nsid) else {
            return;
        };
        let page: IdentifyNamespace = transmute!(*admin.memory().read(AdminPage::Step));
        let status = if !identified || page.nsze.get() == 0 {
            NamespaceStatus::Removed
        } else {
            let write_cache = known
                .geometry
                .is_ok_and(|geometry| geometry.volatile_write_cache);
            let found = Namespace::new(nsid, &page, &identity.limits, write_cache);
            if found.geometry == known.geometry {
                NamespaceStatus::Usable
            } else {
                NamespaceStatus::Changed
            }
        };
        self.set_status(known, status);
    }

    fn set_status(&self, namespace: &Namespace, status: NamespaceStatus) {
        if namespace.status.get() == status {
            return;
        }
        namespace.status.set(status);
        let (drive, nsid) = (&self.shared.options.name, namespace.nsid);
        match status {
            NamespaceStatus::Usable => {
                tracing::info!(drive, nsid, "the namespace is usable again");
            }
            NamespaceStatus::Changed => tracing::error!(
                drive,
                nsid,
                "the namespace has another size or format: it is refused until the drive is \
                 opened again"
            ),
            NamespaceStatus::Removed => {
                tracing::error!(drive, nsid, "the namespace was removed");
            }
        }
    }

    /// Compares the namespaces with those of the first start, after another start.
    pub(super) fn compare_namespaces(&self, known: &Identity, found: &Identity) {
        for namespace in &known.namespaces {
            let status = match found.namespace(namespace.nsid) {
                None => NamespaceStatus::Removed,
                Some(now) if namespace.is_same(now) => NamespaceStatus::Usable,
                Some(_) => NamespaceStatus::Changed,
            };
            self.set_status(namespace, status);
        }
    }
}
