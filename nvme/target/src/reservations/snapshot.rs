//! A snapshot of reservations, for operators.

use nvme_reservations::{HostIdentifier, ReservationKind};

use super::{DeviceReservations, ReservationTable};
use crate::config::DeviceIndex;

/// One registrant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrantSnapshot {
    /// The host.
    pub host: HostIdentifier,
    /// Its reservation key.
    pub key: u64,
    /// Whether it holds the reservation.
    pub is_holder: bool,
}

/// The reservations of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationSnapshot {
    /// The device.
    pub device: DeviceIndex,
    /// The type of the reservation that is held.
    pub kind: Option<ReservationKind>,
    /// Whether the state persists through power loss.
    pub persists: bool,
    /// The registrants, in the order of their registration.
    pub registrants: Vec<RegistrantSnapshot>,
    /// Whether the stored state is damaged, so that hosts are refused.
    pub is_unknown: bool,
}

impl ReservationTable {
    /// The reservations of the devices that have some, or whose reservations are not known.
    pub(crate) fn snapshot(&self) -> Vec<ReservationSnapshot> {
        let of_device = |(device, it): (&u8, &DeviceReservations)| {
            let state = &it.current;
            let registrants = state.registrants().iter().map(|registrant| {
                let role = state.role(registrant.host);
                RegistrantSnapshot {
                    host: registrant.host,
                    key: registrant.key,
                    is_holder: role == nvme_reservations::Role::Holder,
                }
            });
            let snapshot = ReservationSnapshot {
                device: DeviceIndex(u16::from(*device)),
                kind: state.reservation(),
                persists: state.persists(),
                registrants: registrants.collect(),
                is_unknown: it.is_unknown,
            };
            let has_some = it.is_unknown || !snapshot.registrants.is_empty();
            has_some.then_some(snapshot)
        };
        self.devices.iter().filter_map(of_device).collect()
    }
}
