//! Hand-over of reservations. Also those that persist are handed over: a state that does not persist
//! at the moment is not stored.

use nvme_handover::{Bytes, ReservationRecord};
use nvme_reservations::{NamespaceIdentity, PersistenceSupport, decode, encode};

use super::{Controllers, DeviceReservations, Progress, ReservationTable};
use crate::handover::{HandoverError, NotQuiet};

impl ReservationTable {
    /// The reservations of devices that `name_of` names. Those that are not known stay so in the new
    /// process, which reads the same damaged file.
    pub(crate) fn export(
        &self,
        name_of: impl Fn(u8) -> Option<String>,
    ) -> Result<Vec<ReservationRecord>, NotQuiet> {
        let is_idle = |it: &DeviceReservations| {
            matches!(it.progress, Progress::Idle) && it.waiting.is_empty()
        };
        let all_idle = self.devices.values().all(is_idle);
        if !all_idle || !self.results.is_empty() {
            return Err(NotQuiet::Change);
        }
        let known = self.devices.iter().filter(|(_, it)| !it.is_unknown);
        let records = known.filter_map(|(device, it)| {
            let mut state = Vec::new();
            encode(&it.current, stored_identity(it), &mut state);
            Some(ReservationRecord {
                device: name_of(*device)?,
                identity: stored_identity(it).0,
                state: Bytes(state),
            })
        });
        Ok(records.collect())
    }

    /// Replaces the reservations of a device with those of a record.
    pub(crate) fn restore(
        &mut self,
        device: u8,
        record: &ReservationRecord,
        controllers: &Controllers,
    ) -> Result<(), HandoverError> {
        let entry = self.entry(device);
        entry.current = restored(entry, record)?;
        entry.staged.clone_from(&entry.current);
        entry.is_unknown = false;
        self.publish_access(device, controllers);
        Ok(())
    }

    /// Checks whether [`restore`](Self::restore) accepts a record.
    pub(crate) fn check(
        &mut self,
        device: u8,
        record: &ReservationRecord,
    ) -> Result<(), HandoverError> {
        restored(self.entry(device), record).map(|_| ())
    }
}

/// The identity in the stored form; zero for a device that stores none.
fn stored_identity(reservations: &DeviceReservations) -> NamespaceIdentity {
    reservations.identity.unwrap_or(NamespaceIdentity([0; 16]))
}

fn restored(
    entry: &DeviceReservations,
    record: &ReservationRecord,
) -> Result<nvme_reservations::Reservations, HandoverError> {
    let refused = |problem: String| HandoverError::Reservations {
        device: record.device.clone(),
        problem,
    };
    let identity = stored_identity(entry);
    if identity.0 != record.identity {
        return Err(refused("the device has another identity".to_owned()));
    }
    let mut state = decode(&record.state.0, identity).map_err(|it| refused(it.to_string()))?;
    if entry.identity.is_none() {
        if state.persists() {
            return Err(refused(
                "they persist, but the device stores none".to_owned(),
            ));
        }
        state.set_persistence_support(PersistenceSupport::Unsupported);
    }
    Ok(state)
}
