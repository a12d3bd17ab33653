//! Hand-over of feature values.

use nvme_handover::{Bytes, FeaturesRecord};
use nvme_spec::features::{
    AsyncEventConfiguration, ErrorRecovery, HostBehavior, PowerManagement,
    ReservationNotificationMask, TimestampOrigin, WriteAtomicity,
};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::{ControllerKind, Features, keep_alive_max_ms};
use crate::config::NAMESPACE_ID_MAX;

impl Features {
    pub(crate) fn export(&self, now: Nanos) -> FeaturesRecord {
        let recovery = self.recovery.iter();
        let masks = self.reservation_masks.iter();
        FeaturesRecord {
            arbitration: self.arbitration,
            power: self.power.into_bits(),
            over_temperature_kelvin: self.over_temperature_kelvin,
            under_temperature_kelvin: self.under_temperature_kelvin,
            error_recovery: recovery.map(|it| it.into_bits()).collect(),
            reservation_masks: masks.map(|it| it.into_bits()).collect(),
            write_cache: self.write_cache,
            write_atomicity: self.write_atomicity.into_bits(),
            async_events: self.async_events.into_bits(),
            keep_alive_ms: self.keep_alive_ms,
            host_behavior: Bytes(self.behavior.as_bytes().to_vec()),
            timestamp_ms: self.timestamp_ms,
            timestamp_origin: self.timestamp_origin.0,
            timestamp_age_ns: now.saturating_sub(self.timestamp_at).as_nanos(),
        }
    }

    /// Values as recorded at `exported_at`.
    ///
    /// # Errors
    /// The first problem of the record.
    pub(crate) fn restored(
        record: &FeaturesRecord,
        kind: ControllerKind,
        exported_at: Nanos,
    ) -> Result<Self, &'static str> {
        let namespaces_max = NAMESPACE_ID_MAX as usize;
        let (recovery, masks) = (&record.error_recovery, &record.reservation_masks);
        if recovery.len() > namespaces_max || masks.len() > namespaces_max {
            return Err("features of too many namespaces");
        }
        if record.keep_alive_ms > keep_alive_max_ms(kind) {
            return Err("a Keep Alive Timeout above the maximum");
        }
        let behavior = HostBehavior::read_from_bytes(&record.host_behavior.0);
        let behavior = behavior.map_err(|_| "Host Behavior Support data of a wrong size")?;
        let age = Nanos(record.timestamp_age_ns);
        Ok(Self {
            arbitration: record.arbitration,
            power: PowerManagement::from_bits(record.power),
            over_temperature_kelvin: record.over_temperature_kelvin,
            under_temperature_kelvin: record.under_temperature_kelvin,
            recovery: recovery
                .iter()
                .map(|it| ErrorRecovery::from_bits(*it))
                .collect(),
            reservation_masks: masks
                .iter()
                .map(|it| ReservationNotificationMask::from_bits(*it))
                .collect(),
            write_cache: record.write_cache,
            write_atomicity: WriteAtomicity::from_bits(record.write_atomicity),
            async_events: AsyncEventConfiguration::from_bits(record.async_events),
            keep_alive_ms: record.keep_alive_ms,
            behavior,
            timestamp_ms: record.timestamp_ms,
            timestamp_origin: TimestampOrigin(record.timestamp_origin),
            timestamp_at: exported_at.saturating_sub(age),
        })
    }

    /// Whether source ranges of a Copy may name their namespaces.
    pub(crate) fn copies_namespaces(&self) -> bool {
        self.behavior.cdfe.format_2()
    }

    /// Whether writes of the controller have to be durable.
    pub(crate) fn is_write_through(&self) -> bool {
        !self.write_cache
    }
}
