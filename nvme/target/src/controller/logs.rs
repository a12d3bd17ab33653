//! Get Log Page (Base 2.1 §5.1.12): the supported pages and their content.
//!
//! A page is generated from front to back into the window that the host requested. It is never
//! buffered completely.

use nvme_spec::ascii::SpacePadded;
use nvme_spec::command::{AdminOpcode, LogPageId, Sqe};
use nvme_spec::log::{
    ActiveFirmware, AnaLogParameter, ChangedNamespaces, DiscoveryEntry, DiscoveryHeader,
    ErrorEntry, FirmwareSlots, LogPageSupport, ReservationNotification, SmartHealth,
    SupportedLogPages,
};
use nvme_spec::{NSID_BROADCAST, Status};
use zerocopy::{FromZeros, IntoBytes};

use super::events::EventKind;
use super::{AdminContext, Controller, ControllerKind, discovery, effects, smart};
use crate::admin::{AdminStep, AdminWork, admin_work};
use crate::error_log::{DeviceErrors, ERROR_LOG_ENTRIES};
use crate::interface::Direction;
use crate::io::DataContext;
use crate::page::Page;
use crate::status::{Fault, byte};
use crate::view::NamespaceView;

/// Size of the Changed Namespace List in bytes.
const CHANGED_NAMESPACES_BYTES: u64 = size_of::<ChangedNamespaces>() as u64;

/// Whether a kind of controller supports a log page. Discovery controllers: Base 2.1 §3.1.3.3 and
/// its table of logs.
pub(crate) fn is_supported(kind: ControllerKind, lid: LogPageId) -> bool {
    match lid {
        LogPageId::SUPPORTED_LOG_PAGES | LogPageId::ERROR_INFORMATION => true,
        LogPageId::SMART_HEALTH
        | LogPageId::FIRMWARE_SLOT
        | LogPageId::CHANGED_ATTACHED_NAMESPACES
        | LogPageId::RESERVATION_NOTIFICATION
        | LogPageId::ANA
        | LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS
        | LogPageId::FEATURES_SUPPORTED_AND_EFFECTS => kind == ControllerKind::Io,
        LogPageId::DISCOVERY => kind == ControllerKind::Discovery,
        _ => false,
    }
}

impl Controller {
    /// Checks Get Log Page and returns the work of moving its data.
    pub(crate) fn get_log_page(
        &self,
        sqe: &Sqe,
        data: DataContext,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        debug_assert_eq!(sqe.admin_opcode(), AdminOpcode::GET_LOG_PAGE);
        let command = sqe.get_log_page();
        let lid = command.select.lid();
        if !is_supported(self.kind, lid) {
            return Err(Fault::new(Status::INVALID_LOG_PAGE).at(byte::CDW10));
        }
        // Base 2.1 §5.1.13.2.1, MDTS: applies to log pages too.
        let length = u32::try_from(command.length_bytes()).ok();
        let Some(length) = length.filter(|it| *it <= context.target.transfer_max_bytes()) else {
            return Err(Fault::field(byte::CDW10));
        };
        // Base 2.1 §5.1.12: the offset is a multiple of 4 within the page, counted in bytes,
        // because no page here has an index (IOS is 0).
        let offset = command.lpo.get();
        let aligned = offset.is_multiple_of(4);
        if !aligned || command.qualifier.ot() || offset > self.page_bytes(lid, context) {
            return Err(Fault::field(byte::CDW12));
        }
        if command.qualifier.uuid_index() != 0 {
            return Err(Fault::field(byte::CDW14));
        }
        check_page(lid, sqe)?;
        admin_work(sqe, Direction::ToHost, length, data).map(AdminStep::Work)
    }

    /// The current size of a page in bytes.
    fn page_bytes(&self, lid: LogPageId, context: &AdminContext<'_>) -> u64 {
        match lid {
            LogPageId::SUPPORTED_LOG_PAGES => size_of::<SupportedLogPages>() as u64,
            LogPageId::ERROR_INFORMATION => (ERROR_LOG_ENTRIES * size_of::<ErrorEntry>()) as u64,
            LogPageId::SMART_HEALTH => size_of::<SmartHealth>() as u64,
            LogPageId::FIRMWARE_SLOT => size_of::<FirmwareSlots>() as u64,
            LogPageId::CHANGED_ATTACHED_NAMESPACES => CHANGED_NAMESPACES_BYTES,
            LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS => effects::COMMANDS_BYTES,
            LogPageId::FEATURES_SUPPORTED_AND_EFFECTS => effects::FEATURES_BYTES,
            LogPageId::RESERVATION_NOTIFICATION => size_of::<ReservationNotification>() as u64,
            LogPageId::ANA => self.ana_log_bytes(context),
            LogPageId::DISCOVERY => {
                let records = discovery::count(context.view, self.host_nqn(), self.port);
                let bytes = records * size_of::<DiscoveryEntry>();
                (size_of::<DiscoveryHeader>() + bytes) as u64
            }
            _ => 0,
        }
    }

    /// The NQN of the controller's host.
    pub(crate) fn host_nqn(&self) -> &str {
        &self.shared.identity.host_nqn
    }

    /// Writes the requested part of a page. Without Retain Asynchronous Event this also unmasks the
    /// page's events (Base 2.1 §5.1.12, RAE).
    pub(crate) fn write_log_page(
        &mut self,
        work: &AdminWork,
        data: &mut [u8],
        context: &AdminContext<'_>,
    ) -> Result<(), Fault> {
        let command = work.sqe().get_log_page();
        let lid = command.select.lid();
        let mut page = Page::new(data, command.lpo.get());
        if matches!(lid, LogPageId::ERROR_INFORMATION | LogPageId::SMART_HEALTH) {
            self.import_device_errors(context);
        }
        match lid {
            LogPageId::SUPPORTED_LOG_PAGES => page.put(supported_pages(self.kind).as_bytes()),
            LogPageId::ERROR_INFORMATION => self.shared.errors.write(&mut page),
            LogPageId::SMART_HEALTH => {
                page.put(smart::page(self, context).as_bytes());
            }
            LogPageId::FIRMWARE_SLOT => page.put(self.firmware_page(context).as_bytes()),
            LogPageId::CHANGED_ATTACHED_NAMESPACES => {
                let mut list = ChangedNamespaces::new_zeroed();
                list.fill(self.changed_namespaces.iter().copied());
                page.put(list.as_bytes());
                if !command.select.rae() {
                    self.changed_namespaces.clear();
                }
            }
            LogPageId::RESERVATION_NOTIFICATION => {
                page.put(self.reservation_log.page().as_bytes());
            }
            LogPageId::ANA => {
                let parameter = AnaLogParameter::from_bits(command.select.lsp());
                self.write_ana_log(&mut page, parameter, context);
            }
            LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS => {
                page.put(effects::commands(self.kind, command.qualifier.csi()).as_bytes());
            }
            LogPageId::FEATURES_SUPPORTED_AND_EFFECTS => {
                page.put(effects::features(self.kind).as_bytes());
            }
            LogPageId::DISCOVERY => {
                let arrival = (self.port, self.target_address);
                discovery::write(&mut page, context.view, self.host_nqn(), arrival);
            }
            _ => return Err(Fault::new(Status::INVALID_LOG_PAGE).at(byte::CDW10)),
        }
        if !command.select.rae() {
            self.events.log_read(lid);
            // The host has read one notification. Another one is another event.
            if lid == LogPageId::RESERVATION_NOTIFICATION && self.reservation_log.pop() {
                let configuration = self.features.async_events;
                self.events.raise(EventKind::ReservationLog, configuration);
            }
        }
        Ok(())
    }

    /// Adds the entries of the devices' own error logs to the controller's error log.
    fn import_device_errors(&self, context: &AdminContext<'_>) {
        let Some(subsystem) = self.subsystem(context.view) else {
            return;
        };
        let log_of = |(nsid, view): (u32, &NamespaceView)| {
            let device = usize::from(view.device);
            let mut records = Vec::new();
            context.view.device(device)?.error_log(&mut records);
            Some(DeviceErrors {
                device,
                nsid,
                records,
            })
        };
        let logs: Vec<_> = (1..)
            .zip(&subsystem.namespaces)
            .filter_map(|(nsid, view)| log_of((nsid, view.as_ref()?)))
            .collect();
        self.shared.errors.import(&logs);
    }

    /// Firmware Slot Information (Base 2.1 §5.1.12.1.4): one slot, read-only.
    fn firmware_page(&self, context: &AdminContext<'_>) -> FirmwareSlots {
        let mut page = FirmwareSlots::new_zeroed();
        page.afi = ActiveFirmware::new().with_active_slot(1);
        if let Some(subsystem) = self.subsystem(context.view) {
            page.frs[0] = SpacePadded::new(&subsystem.config.firmware);
        }
        page
    }
}

/// Checks the fields that only certain pages restrict.
fn check_page(lid: LogPageId, sqe: &Sqe) -> Result<(), Fault> {
    let nsid = sqe.nsid.get();
    match lid {
        // Base 2.1 §5.1.12.1.3: LPA bit 0 is 0, so there is no page per namespace.
        LogPageId::SMART_HEALTH if nsid != 0 && nsid != NSID_BROADCAST => {
            Err(Fault::field(byte::NSID))
        }
        _ => Ok(()),
    }
}

/// Supported Log Pages (Base 2.1 §5.1.12.1.1).
fn supported_pages(kind: ControllerKind) -> SupportedLogPages {
    let mut page = SupportedLogPages::new_zeroed();
    for lid in (0..=u8::MAX).map(LogPageId) {
        if is_supported(kind, lid) {
            page.set(lid, LogPageSupport::new().with_lsupp(true));
        }
    }
    page
}
