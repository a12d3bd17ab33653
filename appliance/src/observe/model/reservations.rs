//! The JSON of reservations and of evictions.

use serde::{Deserialize, Serialize};

/// The reservations of one device: `GET /api/v1/reservations` answers with a list of these, one for
/// each open device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DeviceReservations {
    /// The device's name.
    pub(crate) device: String,
    /// The type of the reservation that is held; none if none is.
    #[serde(rename = "type")]
    pub(crate) kind: Option<ReservationWord>,
    /// Whether registrants and reservation persist through a loss of power; false without
    /// registrants.
    pub(crate) persists: bool,
    /// Whether the stored reservations cannot be restored: the device's hosts are refused until
    /// they are cleared.
    pub(crate) damaged: bool,
    /// In the order of their registration.
    pub(crate) registrants: Vec<RegistrantStatus>,
}

/// A host that is registered with a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RegistrantStatus {
    /// The host's identifier, as a UUID; over HTTP only with the operators' token.
    pub(crate) host_id: Option<String>,
    /// Its reservation key, hexadecimal; over HTTP only with the operators' token.
    pub(crate) key: Option<String>,
    /// Whether it holds the reservation.
    pub(crate) holder: bool,
    /// The NQNs of connected hosts with this identifier; over HTTP without a token, pseudonyms.
    pub(crate) hosts: Vec<String>,
}

/// The type of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReservationWord {
    WriteExclusive,
    ExclusiveAccess,
    WriteExclusiveRegistrantsOnly,
    ExclusiveAccessRegistrantsOnly,
    WriteExclusiveAllRegistrants,
    ExclusiveAccessAllRegistrants,
}

impl ReservationWord {
    /// The specification's name.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::WriteExclusive => "Write Exclusive",
            Self::ExclusiveAccess => "Exclusive Access",
            Self::WriteExclusiveRegistrantsOnly => "Write Exclusive - Registrants Only",
            Self::ExclusiveAccessRegistrantsOnly => "Exclusive Access - Registrants Only",
            Self::WriteExclusiveAllRegistrants => "Write Exclusive - All Registrants",
            Self::ExclusiveAccessAllRegistrants => "Exclusive Access - All Registrants",
        }
    }
}

/// What `POST /api/v1/reservations/clear` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ClearRequest {
    /// The name of an open device.
    pub(crate) device: String,
}

/// What `POST /api/v1/reservations/clear` answers: the device has no registrant and no reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ClearAnswer {
    pub(crate) device: String,
    /// What was cleared, for people.
    pub(crate) text: String,
}

/// What `POST /api/v1/hosts/evict` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct EvictRequest {
    /// The NQN of a connected host, or a host identifier as a UUID.
    pub(crate) host: String,
    /// The NQN of the export; without it, all exports.
    #[serde(default)]
    pub(crate) export: Option<String>,
}

/// What `POST /api/v1/hosts/evict` answers: the commands that the host had sent have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EvictAnswer {
    pub(crate) host: String,
    /// Associations that were ended.
    pub(crate) associations: usize,
    /// Devices from whose reservations the host was unregistered.
    pub(crate) unregistered: Vec<String>,
    /// What was done, for people.
    pub(crate) text: String,
}
