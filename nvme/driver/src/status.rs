//! The only table that maps a drive's status codes to device errors.

use block::DeviceError;
use nvme_spec::Status;
use nvme_spec::status::StatusCodeType;

/// Statuses with a more specific meaning than their type (Base 2.1 §4.2.3, NVM 1.1 §3.2.1).
const TABLE: &[(Status, DeviceError)] = &[
    (Status::LBA_OUT_OF_RANGE, DeviceError::OutOfRange),
    (Status::CAPACITY_EXCEEDED, DeviceError::NoSpace),
    (Status::COMPARE_FAILURE, DeviceError::CompareMismatch),
    (Status::UNRECOVERED_READ_ERROR, DeviceError::MediaRead),
    (
        Status::DEALLOCATED_OR_UNWRITTEN_BLOCK,
        DeviceError::MediaRead,
    ),
    (Status::WRITE_FAULT, DeviceError::MediaWrite),
    (Status::NAMESPACE_WRITE_PROTECTED, DeviceError::ReadOnly),
    (Status::WRITE_TO_READ_ONLY_RANGE, DeviceError::ReadOnly),
    (Status::INVALID_OPCODE, DeviceError::Unsupported),
    // The namespace was detached, deleted or formatted by another party.
    (Status::INVALID_NAMESPACE_OR_FORMAT, DeviceError::Removed),
    (Status::ABORT_REQUESTED, DeviceError::Aborted),
    (Status::ABORTED_POWER_LOSS, DeviceError::Interrupted),
    (Status::ABORTED_SQ_DELETION, DeviceError::Interrupted),
    (Status::COMMAND_INTERRUPTED, DeviceError::Interrupted),
    (Status::TRANSIENT_TRANSPORT_ERROR, DeviceError::Interrupted),
    (Status::NAMESPACE_NOT_READY, DeviceError::Interrupted),
    (Status::FORMAT_IN_PROGRESS, DeviceError::Interrupted),
    (Status::SANITIZE_IN_PROGRESS, DeviceError::Interrupted),
];

/// The device error for a status that is not success. `changes_medium` distinguishes write from
/// read errors of the medium.
pub(crate) fn device_error(status: Status, changes_medium: bool) -> DeviceError {
    if let Some((_, error)) = TABLE.iter().find(|(row, _)| row.is(status)) {
        return *error;
    }
    match status.sct() {
        StatusCodeType::MEDIA if changes_medium => DeviceError::MediaWrite,
        StatusCodeType::MEDIA => DeviceError::MediaRead,
        StatusCodeType::PATH => DeviceError::Interrupted,
        _ => DeviceError::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_table_rows_are_distinct_and_reachable() {
        for (at, (status, error)) in TABLE.iter().enumerate() {
            assert!(!status.is_success());
            assert_eq!(device_error(status.with_dnr(), false), *error);
            assert!(TABLE[..at].iter().all(|(row, _)| !row.is(*status)));
        }
    }

    #[test]
    fn unlisted_statuses_map_by_status_code_type() {
        let media = Status::new(StatusCodeType::MEDIA, 0xf0);
        assert_eq!(device_error(media, true), DeviceError::MediaWrite);
        assert_eq!(device_error(media, false), DeviceError::MediaRead);
        assert_eq!(
            device_error(Status::INTERNAL_PATH_ERROR, true),
            DeviceError::Interrupted
        );
        for odd in [
            Status::INTERNAL_ERROR,
            Status::PRP_OFFSET_INVALID,
            Status::new(StatusCodeType::VENDOR, 1),
            Status::new(StatusCodeType(5), 1),
        ] {
            assert_eq!(device_error(odd, true), DeviceError::Internal);
        }
    }

    /// Only Compare Failure reports a mismatch; no other status may map to it.
    #[test]
    fn only_compare_failure_maps_to_mismatch() {
        for sct in 0..8 {
            for sc in 0..=u8::MAX {
                let status = Status::new(StatusCodeType(sct), sc);
                if !status.is_success() {
                    let mismatch = device_error(status, false) == DeviceError::CompareMismatch;
                    assert_eq!(mismatch, status.is(Status::COMPARE_FAILURE));
                }
            }
        }
    }
}
