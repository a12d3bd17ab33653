//! Features: Set Features and Get Features (Base 2.1 §5.1.25, §5.1.11; NVM 1.1 §4.1.3).
//!
//! No feature is saveable: values set by the host last until a controller level reset, and the
//! saved value is the default.

mod handover;

use nvme_spec::command::{AdminOpcode, FeatureId, FeatureSelect, Sqe};
use nvme_spec::features::{
    AsyncEventConfiguration, ErrorRecovery, FeatureCapabilities, HostBehavior, HostIdentifierSize,
    NumberOfQueues, PowerManagement, ReservationNotificationMask, ReservationPersistence,
    TemperatureThreshold, ThresholdType, Timestamp, TimestampAttributes, TimestampOrigin,
    VolatileWriteCache, WriteAtomicity,
};
use nvme_spec::log::ReservationNotificationType;
use nvme_spec::{NSID_BROADCAST, Status};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::identify::WARNING_TEMPERATURE_KELVIN;
use super::{AdminContext, Controller, ControllerKind, keep_alive_max_ms, keep_alive_rounded_ms};
use crate::admin::{AdminStep, AdminWork, admin_work};
use crate::config::NAMESPACE_ID_MAX;
use crate::interface::Direction;
use crate::io::{DataContext, namespace};
use crate::reservations::PersistenceChange;
use crate::reservations::notices::ReservationNotice;
use crate::status::{Fault, byte};
use crate::view::{SubsystemView, is_valid_nsid};

/// Supported TMPSEL values: the composite temperature, and all sensors in Set Features (Base 2.1
/// §5.1.25.1.3).
const COMPOSITE: u8 = 0;
const ALL_SENSORS: u8 = 0xf;

/// Current feature values of one controller.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    arbitration: u32,
    power: PowerManagement,
    over_temperature_kelvin: u16,
    under_temperature_kelvin: u16,
    /// TLER by namespace identifier minus one. Namespaces beyond the end have the default.
    recovery: Vec<ErrorRecovery>,
    /// Masked notifications by namespace identifier minus one. Namespaces beyond the end have none.
    reservation_masks: Vec<ReservationNotificationMask>,
    write_cache: bool,
    write_atomicity: WriteAtomicity,
    pub(crate) async_events: AsyncEventConfiguration,
    pub(crate) keep_alive_ms: u32,
    behavior: HostBehavior,
    timestamp_ms: u64,
    timestamp_origin: TimestampOrigin,
    timestamp_at: Nanos,
}

impl Features {
    /// Default values, with the Keep Alive Timeout of Connect.
    pub(crate) fn new(keep_alive_ms: u32, now: Nanos) -> Self {
        Self {
            arbitration: 0,
            power: PowerManagement::new(),
            over_temperature_kelvin: WARNING_TEMPERATURE_KELVIN,
            under_temperature_kelvin: 0,
            recovery: Vec::new(),
            reservation_masks: Vec::new(),
            write_cache: true,
            write_atomicity: WriteAtomicity::new(),
            async_events: AsyncEventConfiguration::new(),
            keep_alive_ms,
            behavior: HostBehavior::default(),
            timestamp_ms: 0,
            timestamp_origin: TimestampOrigin::RESET,
            timestamp_at: now,
        }
    }

    /// Controller level reset: restores all defaults except the Keep Alive Timeout.
    pub(crate) fn reset(&mut self, now: Nanos) {
        *self = Self::new(self.keep_alive_ms, now);
    }

    /// Whether the host has enabled any health event.
    pub(crate) fn wants_health_events(&self) -> bool {
        let wanted = self.async_events;
        wanted.spare()
            || wanted.temperature()
            || wanted.reliability()
            || wanted.read_only()
            || wanted.backup_failed()
    }

    /// Whether a composite temperature lies beyond a threshold (Base 2.1 §5.1.25.1.3).
    pub(crate) fn beyond_threshold(&self, kelvin: u16) -> bool {
        kelvin >= self.over_temperature_kelvin || kelvin <= self.under_temperature_kelvin
    }

    /// Whether the host masks a reservation notification (Base 2.1 §5.1.25.1.29).
    pub(crate) fn masks(&self, notice: ReservationNotice) -> bool {
        let mask = by_namespace(&self.reservation_masks, notice.nsid);
        match notice.kind {
            ReservationNotificationType::REGISTRATION_PREEMPTED => mask.regpre(),
            ReservationNotificationType::RESERVATION_RELEASED => mask.resrel(),
            ReservationNotificationType::RESERVATION_PREEMPTED => mask.respre(),
            _ => false,
        }
    }

    fn timestamp(&self, now: Nanos) -> Timestamp {
        let elapsed = now.saturating_sub(self.timestamp_at).as_millis();
        let attributes = TimestampAttributes::new().with_origin(self.timestamp_origin);
        Timestamp::new(self.timestamp_ms.wrapping_add(elapsed), attributes)
    }
}

/// Constant properties of a feature.
#[derive(Clone, Copy)]
struct FeatureProperties {
    changeable: bool,
    namespace_specific: bool,
    /// Bytes of data; 0 if the value is a dword.
    data_bytes: u32,
}

/// The properties of a feature for a kind of controller. `None` if it is not supported, which is
/// Invalid Field (Base 2.1 §5.1.25). Discovery controllers: Base 2.1 §3.1.3.3 and its table of
/// features.
fn feature_properties(kind: ControllerKind, fid: FeatureId) -> Option<FeatureProperties> {
    let value = FeatureProperties {
        changeable: true,
        namespace_specific: false,
        data_bytes: 0,
    };
    match fid {
        FeatureId::ASYNC_EVENT_CONFIGURATION | FeatureId::KEEP_ALIVE_TIMER => return Some(value),
        _ if kind == ControllerKind::Discovery => return None,
        _ => {}
    }
    match fid {
        FeatureId::ARBITRATION
        | FeatureId::POWER_MANAGEMENT
        | FeatureId::TEMPERATURE_THRESHOLD
        | FeatureId::VOLATILE_WRITE_CACHE
        | FeatureId::NUMBER_OF_QUEUES
        | FeatureId::WRITE_ATOMICITY
        | FeatureId::IO_COMMAND_SET_PROFILE => Some(value),
        FeatureId::ERROR_RECOVERY
        | FeatureId::RESERVATION_NOTIFICATION_MASK
        | FeatureId::RESERVATION_PERSISTENCE => Some(FeatureProperties {
            namespace_specific: true,
            ..value
        }),
        FeatureId::TIMESTAMP => Some(FeatureProperties {
            data_bytes: 8,
            ..value
        }),
        FeatureId::HOST_BEHAVIOR => Some(FeatureProperties {
            data_bytes: 512,
            ..value
        }),
        // Base 2.1 §5.1.25.1.28: over fabrics only Connect can set it.
        FeatureId::HOST_IDENTIFIER => Some(FeatureProperties {
            changeable: false,
            data_bytes: 16,
            ..value
        }),
        _ => None,
    }
}

/// Features that a kind of controller supports, and whether each is namespace specific, for the
/// effects log.
pub(crate) fn supported(kind: ControllerKind) -> impl Iterator<Item = (FeatureId, bool)> {
    (0..=u8::MAX).filter_map(move |fid| {
        let fid = FeatureId(fid);
        feature_properties(kind, fid).map(|properties| (fid, properties.namespace_specific))
    })
}

impl Controller {
    /// Checks Set Features. Executes it unless the feature has data, which has to be moved first.
    pub(crate) fn set_features(
        &mut self,
        sqe: &Sqe,
        data: DataContext,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        let command = sqe.set_features();
        let fid = command.select.fid();
        let properties = feature_properties(self.kind, fid).ok_or(Fault::field(byte::CDW10))?;
        // Base 2.1 §5.1.25, SV: no feature is saveable.
        if command.select.sv() {
            return Err(Fault::new(Status::FEATURE_NOT_SAVEABLE).at(byte::CDW10));
        }
        check_uuid(command.uuid.uuid_index())?;
        self.check_scope(sqe.nsid.get(), properties, context)?;
        let nsid = sqe.nsid.get();
        // Base 2.1 §4.4: a feature of controller scope cannot be set for one namespace.
        if !properties.namespace_specific && nsid != 0 && nsid != NSID_BROADCAST {
            return Err(Fault::new(Status::FEATURE_NOT_NAMESPACE_SPECIFIC).at(byte::NSID));
        }
        if !properties.changeable {
            // Base 2.1 §5.1.25.1.28: setting the Host Identifier over fabrics is a sequence error.
            return Err(Fault::new(Status::COMMAND_SEQUENCE_ERROR).at(byte::CDW10));
        }
        if properties.data_bytes > 0 {
            let direction = Direction::FromHost;
            return admin_work(sqe, direction, properties.data_bytes, data).map(AdminStep::Work);
        }
        self.set_value(sqe, fid, command.cdw11.get(), context)
    }

    /// Base 2.1 §4.4: checks the NSID of Get Features and Set Features. A feature of controller
    /// scope accepts 0h, FFFFFFFFh and any valid identifier; Set Features then refuses a valid
    /// identifier.
    fn check_scope(
        &self,
        nsid: u32,
        properties: FeatureProperties,
        context: &AdminContext<'_>,
    ) -> Result<(), Fault> {
        let no_namespace = Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID);
        if properties.namespace_specific {
            let subsystem = self.subsystem(context.view).ok_or(no_namespace)?;
            if nsid != NSID_BROADCAST {
                namespace(subsystem, nsid)?;
            }
            return Ok(());
        }
        // A discovery controller has no namespaces, so no namespace identifier is valid.
        let has_namespaces = self.kind == ControllerKind::Io;
        if nsid == 0 || nsid == NSID_BROADCAST || (has_namespaces && is_valid_nsid(nsid)) {
            return Ok(());
        }
        Err(no_namespace)
    }

    /// Executes Set Features for a feature whose value is Command Dword 11.
    fn set_value(
        &mut self,
        sqe: &Sqe,
        fid: FeatureId,
        value: u32,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        let bad_value = Fault::field(byte::CDW11);
        match fid {
            FeatureId::ARBITRATION => self.features.arbitration = value,
            FeatureId::POWER_MANAGEMENT => {
                let power = PowerManagement::from_bits(value);
                // NPSS is 0: there is one power state.
                if power.ps() != 0 {
                    return Err(bad_value);
                }
                self.features.power = power;
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                self.set_threshold(TemperatureThreshold::from_bits(value))?;
                self.check_health(context);
            }
            FeatureId::ERROR_RECOVERY => self.set_recovery(sqe.nsid.get(), value)?,
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                let mask = ReservationNotificationMask::from_bits(value);
                set_by_namespace(&mut self.features.reservation_masks, sqe.nsid.get(), mask);
            }
            FeatureId::RESERVATION_PERSISTENCE => {
                let devices = self.devices_of(sqe.nsid.get(), context);
                let persists = ReservationPersistence::from_bits(value).ptpl();
                if devices != 0 {
                    return Ok(AdminStep::SetPersistence(PersistenceChange {
                        devices,
                        persists,
                    }));
                }
            }
            FeatureId::VOLATILE_WRITE_CACHE => return self.set_write_cache(value, context),
            FeatureId::NUMBER_OF_QUEUES => {
                let granted = self.set_queues(NumberOfQueues::from_bits(value), context)?;
                return Ok(AdminStep::Complete(u64::from(granted.into_bits())));
            }
            FeatureId::WRITE_ATOMICITY => {
                self.features.write_atomicity = WriteAtomicity::from_bits(value);
            }
            FeatureId::ASYNC_EVENT_CONFIGURATION => {
                self.set_events(AsyncEventConfiguration::from_bits(value))?;
                self.rearm(context.now);
            }
            FeatureId::KEEP_ALIVE_TIMER => {
                // Base 2.1 §5.1.25.1.8 and §4.2.3.1: a value above the supported maximum is Keep
                // Alive Timeout Invalid.
                if value > keep_alive_max_ms(self.kind) {
                    let invalid = Fault::new(Status::KEEP_ALIVE_TIMEOUT_INVALID);
                    return Err(invalid.at(byte::CDW11));
                }
                self.features.keep_alive_ms = value;
                self.rearm(context.now);
            }
            // Base 2.1 §5.1.25.1.17: the only combination has index 0.
            FeatureId::IO_COMMAND_SET_PROFILE if value != 0 => {
                return Err(Fault::new(Status::IO_COMMAND_SET_COMBINATION_REJECTED).at(byte::CDW11));
            }
            FeatureId::IO_COMMAND_SET_PROFILE => {}
            _ => return Err(Fault::field(byte::CDW10)),
        }
        Ok(AdminStep::Complete(0))
    }

    /// One bit for the device of a namespace, or for that of every namespace.
    fn devices_of(&self, nsid: u32, context: &AdminContext<'_>) -> u128 {
        let Some(subsystem) = self.subsystem(context.view) else {
            return 0;
        };
        let namespaces = (1..).zip(&subsystem.namespaces);
        let chosen = namespaces.filter(|(it, _)| nsid == NSID_BROADCAST || *it == nsid);
        let devices = chosen.filter_map(|(_, view)| view.as_ref());
        devices.fold(0, |all, view| all | 1 << view.device)
    }

    /// Base 2.1 §5.1.25.1.3: only the composite temperature has a threshold.
    fn set_threshold(&mut self, threshold: TemperatureThreshold) -> Result<(), Fault> {
        if ![COMPOSITE, ALL_SENSORS].contains(&threshold.tmpsel()) {
            return Err(Fault::field(byte::CDW11));
        }
        match threshold.thsel() {
            ThresholdType::OVER => self.features.over_temperature_kelvin = threshold.tmpth(),
            ThresholdType::UNDER => self.features.under_temperature_kelvin = threshold.tmpth(),
            _ => return Err(Fault::field(byte::CDW11)),
        }
        Ok(())
    }

    /// NVM 1.1 §4.1.3.2: DULBE needs NSFEAT.DAE, which no namespace has.
    fn set_recovery(&mut self, nsid: u32, value: u32) -> Result<(), Fault> {
        let recovery = ErrorRecovery::from_bits(value);
        if recovery.dulbe() {
            return Err(Fault::field(byte::CDW11));
        }
        set_by_namespace(&mut self.features.recovery, nsid, recovery);
        Ok(())
    }

    /// Base 2.1 §5.1.25.1.4. While the cache is disabled, every later write of this controller is
    /// durable when it completes, and data cached before is flushed before this command completes.
    fn set_write_cache(
        &mut self,
        value: u32,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        // VWC.present is always 1, so the feature is always supported. It also applies to
        // namespaces with a volatile cache that are added later.
        let enabled = VolatileWriteCache::from_bits(value).wce();
        self.features.write_cache = enabled;
        self.shared.set_write_through(!enabled);
        let has_cache = self
            .subsystem(context.view)
            .is_some_and(SubsystemView::has_volatile_cache);
        // Also if it is already disabled: the flush of an earlier command may be under way or have
        // failed.
        if !enabled && has_cache {
            Ok(AdminStep::FlushAll)
        } else {
            Ok(AdminStep::Complete(0))
        }
    }

    /// Base 2.1 §5.1.25.2.1: valid only before the first I/O queue, and never for 65,536 queues.
    fn set_queues(
        &mut self,
        wanted: NumberOfQueues,
        context: &AdminContext<'_>,
    ) -> Result<NumberOfQueues, Fault> {
        if wanted.is_invalid_request() {
            return Err(Fault::field(byte::CDW11));
        }
        let subsystem = self
            .subsystem(context.view)
            .ok_or(Fault::field(byte::CDW10))?;
        let limit = u32::from(subsystem.config.io_queues_max);
        let registry = context.target.registry();
        let entry = registry.entry(self.shared.identity.cntlid);
        if entry.is_some_and(|entry| !entry.io_queues.is_empty()) {
            return Err(Fault::new(Status::COMMAND_SEQUENCE_ERROR).at(byte::CDW10));
        }
        // Over fabrics each submission queue has its own completion queue, so the smaller count
        // applies.
        let granted = wanted.nsq().min(wanted.ncq()).min(limit) as u16;
        self.shared.grant_io_queues(granted);
        Ok(queues_granted(granted))
    }

    /// Base 2.1 §5.1.25.1.5: enabling an event that OAES does not report is Invalid Field. Health
    /// events are not in OAES.
    fn set_events(&mut self, wanted: AsyncEventConfiguration) -> Result<(), Fault> {
        let offered = AsyncEventConfiguration::new();
        let offered = match self.kind {
            ControllerKind::Io => offered
                .with_namespace_attribute(true)
                .with_ana_change(true)
                .with_spare(true)
                .with_temperature(true)
                .with_reliability(true)
                .with_read_only(true)
                .with_backup_failed(true)
                .with_pmr_unreliable(true),
            ControllerKind::Discovery => offered.with_discovery_log(true),
        };
        if wanted.into_bits() & !offered.into_bits() != 0 {
            return Err(Fault::field(byte::CDW11));
        }
        self.features.async_events = wanted;
        Ok(())
    }

    /// Checks Get Features. Executes it unless the feature has data, which needs a buffer first.
    pub(crate) fn get_features(
        &self,
        sqe: &Sqe,
        data: DataContext,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        let command = sqe.get_features();
        let fid = command.select.fid();
        let properties = feature_properties(self.kind, fid).ok_or(Fault::field(byte::CDW10))?;
        check_uuid(command.uuid.uuid_index())?;
        let defaults;
        let features = match command.select.sel() {
            FeatureSelect::CURRENT => &self.features,
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => {
                defaults = Features::new(0, context.now);
                &defaults
            }
            FeatureSelect::SUPPORTED_CAPABILITIES => {
                let capabilities = FeatureCapabilities::new()
                    .with_changeable(properties.changeable)
                    .with_namespace_specific(properties.namespace_specific);
                return Ok(AdminStep::Complete(u64::from(capabilities.into_bits())));
            }
            _ => return Err(Fault::field(byte::CDW10)),
        };
        let nsid = sqe.nsid.get();
        // Base 2.1 §5.1.11: Get Features of a namespace specific feature needs one namespace.
        if properties.namespace_specific && nsid == NSID_BROADCAST {
            return Err(Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID));
        }
        self.check_scope(nsid, properties, context)?;
        let value = command.cdw11.get();
        if properties.data_bytes > 0 {
            // Base 2.1 §5.1.25.1.28: over fabrics the identifier has 128 bits.
            let short = !HostIdentifierSize::from_bits(value).exhid();
            if fid == FeatureId::HOST_IDENTIFIER && short {
                return Err(Fault::field(byte::CDW11));
            }
            let direction = Direction::ToHost;
            return admin_work(sqe, direction, properties.data_bytes, data).map(AdminStep::Work);
        }
        let current = command.select.sel() == FeatureSelect::CURRENT;
        let value = match fid {
            FeatureId::NUMBER_OF_QUEUES => self.queues_value(current, context),
            FeatureId::TEMPERATURE_THRESHOLD => threshold(features, value)?.into_bits(),
            FeatureId::RESERVATION_PERSISTENCE => {
                let device = self.devices_of(nsid, context).trailing_zeros() as u8;
                let persists =
                    current && context.target.registry().reservations().0.persists(device);
                ReservationPersistence::new()
                    .with_ptpl(persists)
                    .into_bits()
            }
            _ => value_of(features, fid, nsid).ok_or(Fault::field(byte::CDW10))?,
        };
        Ok(AdminStep::Complete(u64::from(value)))
    }

    /// Number of Queues: the granted number for the current value, otherwise the largest possible
    /// one.
    fn queues_value(&self, current: bool, context: &AdminContext<'_>) -> u32 {
        let limit = self
            .subsystem(context.view)
            .map_or(1, |view| view.config.io_queues_max);
        let granted = if current {
            self.shared.io_queues_granted()
        } else {
            limit
        };
        queues_granted(granted).into_bits()
    }

    /// Executes Get Features or Set Features with its data.
    pub(crate) fn execute_feature(
        &mut self,
        work: &AdminWork,
        data: &mut [u8],
        context: &AdminContext<'_>,
    ) -> Result<(), Fault> {
        let sqe = work.sqe();
        let bad_data = Fault::field(byte::SGL);
        if work.opcode == AdminOpcode::GET_FEATURES {
            let command = sqe.get_features();
            let current = command.select.sel() == FeatureSelect::CURRENT;
            let defaults = Features::new(0, context.now);
            let features = if current { &self.features } else { &defaults };
            return match command.select.fid() {
                FeatureId::TIMESTAMP => copy(data, features.timestamp(context.now).as_bytes()),
                FeatureId::HOST_BEHAVIOR => copy(data, features.behavior.as_bytes()),
                FeatureId::HOST_IDENTIFIER => copy(data, &self.shared.identity.host_id),
                _ => Err(bad_data),
            };
        }
        match sqe.set_features().select.fid() {
            FeatureId::TIMESTAMP => {
                let (stamp, _) = Timestamp::read_from_prefix(data).map_err(|_| bad_data)?;
                self.features.timestamp_ms = stamp.milliseconds();
                self.features.timestamp_origin = TimestampOrigin::SET;
                self.features.timestamp_at = context.now;
            }
            FeatureId::HOST_BEHAVIOR => {
                let (behavior, _) = HostBehavior::read_from_prefix(data).map_err(|_| bad_data)?;
                // Base 2.1 §5.1.25.1.14: each field is 0 or 1, and unsupported formats and features
                // cannot be enabled.
                let switches = [
                    behavior.acre,
                    behavior.etdas,
                    behavior.lbafee,
                    behavior.hdisns,
                ];
                let formats = behavior.cdfe;
                if switches.into_iter().any(|switch| switch > 1)
                    || behavior.hdisns != 0
                    || formats.format_3()
                    || formats.format_4()
                {
                    return Err(bad_data);
                }
                self.features.behavior = behavior;
                self.shared.set_copies_namespaces(formats.format_2());
            }
            _ => return Err(bad_data),
        }
        Ok(())
    }
}

/// The value of a namespace in a table by namespace identifier minus one.
fn by_namespace<T: Copy + Default>(table: &[T], nsid: u32) -> T {
    let value = table.get((nsid as usize).wrapping_sub(1));
    value.copied().unwrap_or_default()
}

/// Sets the value of a namespace, or of all, those that are added later included.
fn set_by_namespace<T: Copy + Default>(table: &mut Vec<T>, nsid: u32, value: T) {
    if nsid == NSID_BROADCAST {
        *table = vec![value; NAMESPACE_ID_MAX as usize];
        return;
    }
    let index = nsid as usize - 1;
    if table.len() <= index {
        table.resize(index + 1, T::default());
    }
    table[index] = value;
}

/// Copies a value to the start of the data, which admission made large enough.
fn copy(data: &mut [u8], value: &[u8]) -> Result<(), Fault> {
    let target = data.get_mut(..value.len()).ok_or(Fault::field(byte::SGL))?;
    target.copy_from_slice(value);
    Ok(())
}

/// Base 2.1 §8.1.28: there is no UUID list, so only index 0 is valid.
fn check_uuid(index: u8) -> Result<(), Fault> {
    if index == 0 {
        Ok(())
    } else {
        Err(Fault::field(byte::CDW14))
    }
}

/// Base 2.1 §5.1.25.1.3: the threshold selected by Command Dword 11 of Get Features.
fn threshold(features: &Features, selector: u32) -> Result<TemperatureThreshold, Fault> {
    let selector = TemperatureThreshold::from_bits(selector);
    if selector.tmpsel() != COMPOSITE {
        return Err(Fault::field(byte::CDW11));
    }
    let kelvin = match selector.thsel() {
        ThresholdType::OVER => features.over_temperature_kelvin,
        ThresholdType::UNDER => features.under_temperature_kelvin,
        _ => return Err(Fault::field(byte::CDW11)),
    };
    Ok(TemperatureThreshold::new()
        .with_tmpth(kelvin)
        .with_thsel(selector.thsel()))
}

/// Dword 0 for a number of granted queues, which is at least 1.
fn queues_granted(queues: u16) -> NumberOfQueues {
    let zero_based = queues.saturating_sub(1);
    NumberOfQueues::new()
        .with_nsq_z(zero_based)
        .with_ncq_z(zero_based)
}

/// The value of a feature that is one dword and depends only on the features.
fn value_of(features: &Features, fid: FeatureId, nsid: u32) -> Option<u32> {
    Some(match fid {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::POWER_MANAGEMENT => features.power.into_bits(),
        FeatureId::ERROR_RECOVERY => by_namespace(&features.recovery, nsid).into_bits(),
        FeatureId::RESERVATION_NOTIFICATION_MASK => {
            by_namespace(&features.reservation_masks, nsid).into_bits()
        }
        FeatureId::VOLATILE_WRITE_CACHE => VolatileWriteCache::new()
            .with_wce(features.write_cache)
            .into_bits(),
        FeatureId::WRITE_ATOMICITY => features.write_atomicity.into_bits(),
        FeatureId::ASYNC_EVENT_CONFIGURATION => features.async_events.into_bits(),
        // The effective time in milliseconds, rounded up to the granularity.
        FeatureId::KEEP_ALIVE_TIMER => {
            u32::try_from(keep_alive_rounded_ms(features.keep_alive_ms)).unwrap_or(u32::MAX)
        }
        FeatureId::IO_COMMAND_SET_PROFILE => 0,
        _ => return None,
    })
}
