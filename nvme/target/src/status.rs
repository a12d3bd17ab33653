//! NVMe status codes of faults: one table for device errors; command faults choose theirs where
//! they are detected.

use block::DeviceError;
use nvme_spec::Status;

/// The location of a fault that concerns no particular field, for the error log.
pub(crate) const LOCATION_NONE: u16 = 0xffff;

/// The status of a refused command, and the byte of it that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    /// Byte offset in the submission queue entry, or [`LOCATION_NONE`] (Base 2.1 §5.1.12.1.2,
    /// Parameter Error Location).
    pub(crate) location: u16,
}

impl Fault {
    /// A fault that would occur again if the host retried the command.
    pub(crate) const fn new(status: Status) -> Self {
        Self {
            status: status.with_dnr(),
            location: LOCATION_NONE,
        }
    }

    /// A fault that may not occur again if the host retries the command.
    pub(crate) const fn retry(status: Status) -> Self {
        Self {
            status,
            location: LOCATION_NONE,
        }
    }

    /// Sets the location to the byte `offset` of the command.
    pub(crate) const fn at(self, offset: u16) -> Self {
        Self {
            location: offset,
            ..self
        }
    }

    /// Invalid Field in Command at the byte `offset`.
    pub(crate) const fn field(offset: u16) -> Self {
        Self::new(Status::INVALID_FIELD).at(offset)
    }
}

/// Bytes of the submission queue entry that faults refer to (Base 2.1 §4.1.1).
pub(crate) mod byte {
    pub(crate) const OPCODE: u16 = 0;
    pub(crate) const FLAGS: u16 = 1;
    pub(crate) const NSID: u16 = 4;
    pub(crate) const SGL: u16 = 24;
    pub(crate) const CDW10: u16 = 40;
    pub(crate) const CDW11: u16 = 44;
    pub(crate) const CDW12: u16 = 48;
    pub(crate) const CDW14: u16 = 56;
}

/// Every device error and its status (Base 2.1 §4.2.3, NVM 1.1 §3.2.1): the only such table.
///
/// Do Not Retry is set where neither time nor another path helps without an operator. A removed or
/// reset device is a path error, so that a multipath host uses another path.
const TABLE: [(DeviceError, Status); 13] = [
    (DeviceError::OutOfRange, Status::LBA_OUT_OF_RANGE.with_dnr()),
    (DeviceError::Unaligned, Status::INVALID_FIELD.with_dnr()),
    (DeviceError::MediaRead, Status::UNRECOVERED_READ_ERROR),
    (DeviceError::MediaWrite, Status::WRITE_FAULT),
    (
        DeviceError::CompareMismatch,
        Status::COMPARE_FAILURE.with_dnr(),
    ),
    (DeviceError::NoSpace, Status::CAPACITY_EXCEEDED.with_dnr()),
    (
        DeviceError::ReadOnly,
        Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
    ),
    (DeviceError::Removed, Status::INTERNAL_PATH_ERROR),
    (DeviceError::Interrupted, Status::CONTROLLER_PATHING_ERROR),
    (DeviceError::Aborted, Status::ABORT_REQUESTED),
    (DeviceError::Unsupported, Status::INVALID_OPCODE.with_dnr()),
    (DeviceError::Internal, Status::INTERNAL_ERROR),
    // NVM 1.1 §3.2.1, Write Fault: "the write data could not be committed to the media". On any
    // controller a retry fails until an operator reopens the device (Base 2.1 §4.2.3).
    (DeviceError::Damaged, Status::WRITE_FAULT.with_dnr()),
];

/// The row of an error. Exhaustive, so that a new error does not compile without a row.
const fn row(error: DeviceError) -> usize {
    match error {
        DeviceError::OutOfRange => 0,
        DeviceError::Unaligned => 1,
        DeviceError::MediaRead => 2,
        DeviceError::MediaWrite => 3,
        DeviceError::CompareMismatch => 4,
        DeviceError::NoSpace => 5,
        DeviceError::ReadOnly => 6,
        DeviceError::Removed => 7,
        DeviceError::Interrupted => 8,
        DeviceError::Aborted => 9,
        DeviceError::Unsupported => 10,
        DeviceError::Internal => 11,
        DeviceError::Damaged => 12,
    }
}

/// The status that a host receives for a device error.
#[must_use]
pub const fn from_device(error: DeviceError) -> Status {
    TABLE[row(error)].1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device error of a status.
    fn to_device(status: Status) -> Option<DeviceError> {
        TABLE
            .iter()
            .find(|(_, row)| *row == status)
            .map(|(error, _)| *error)
    }

    #[test]
    fn device_errors_and_statuses_map_one_to_one() {
        for (error, status) in TABLE {
            assert_eq!(TABLE[row(error)].0, error, "row of {error:?}");
            assert_eq!(from_device(error), status);
            assert_eq!(to_device(status), Some(error));
            assert!(!status.is_success());
            assert!(status.text().is_some(), "{status} has no name");
        }
        assert_eq!(to_device(Status::SUCCESS), None);
    }

    /// Base 2.1 §4.2.3: Do Not Retry means that the same command would fail on any controller.
    #[test]
    fn transient_errors_can_be_retried() {
        for (error, status) in TABLE {
            let permanent = match error {
                DeviceError::OutOfRange
                | DeviceError::Unaligned
                | DeviceError::CompareMismatch
                | DeviceError::NoSpace
                | DeviceError::ReadOnly
                | DeviceError::Damaged
                | DeviceError::Unsupported => true,
                DeviceError::MediaRead
                | DeviceError::MediaWrite
                | DeviceError::Removed
                | DeviceError::Interrupted
                | DeviceError::Aborted
                | DeviceError::Internal => false,
            };
            assert_eq!(status.dnr(), permanent, "{error:?}");
        }
    }
}
