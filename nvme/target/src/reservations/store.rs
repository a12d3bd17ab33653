//! Where the states of reservations are stored: outside of this crate, which performs no I/O.

use nvme_reservations::{NamespaceIdentity, Reservations};

use crate::config::DeviceIndex;

/// A state to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRequest {
    /// The device that the reservations belong to.
    pub device: DeviceIndex,
    /// Identifies the request in [`Target::reservations_stored`](crate::Target::reservations_stored).
    pub number: u64,
    /// The name of the state. A new state replaces the previous one of this name.
    pub identity: NamespaceIdentity,
    /// The stored form (`nvme_reservations::decode` reads it).
    pub bytes: Vec<u8>,
}

/// Stores states so that they survive a loss of power.
pub trait ReservationStore: Send + Sync {
    /// Begins to store a state. Does not wait, and does not call the target: the caller holds a
    /// lock. [`Target::reservations_stored`](crate::Target::reservations_stored) reports the result.
    /// There is at most one request for a device at a time.
    fn store(&self, request: StoreRequest);
}

/// The reservations with which a device begins.
#[derive(Debug)]
pub enum InitialReservations {
    /// None, and their state cannot persist.
    Volatile,
    /// These; their state can persist.
    Persistent {
        /// The name under which the state is stored.
        identity: NamespaceIdentity,
        /// The stored state, or an empty one.
        state: Reservations,
    },
    /// They are not known, because the stored state is damaged. Hosts are refused until an operator
    /// clears the reservations.
    Unknown {
        /// The name under which the state is stored.
        identity: NamespaceIdentity,
    },
}
