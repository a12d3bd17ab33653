//! Checks whether a request fits the device. Every queue does this before it takes a request.

use crate::device::{Deallocate, Geometry};
use crate::error::DeviceError;
use crate::request::{Operation, Request};

/// See [`Request::check`].
pub(crate) fn check(
    request: &Request,
    geometry: &Geometry,
    lends_reads: bool,
) -> Result<(), DeviceError> {
    check_data(request, geometry, lends_reads)?;
    check_operation(request, geometry)
}

/// See [`Request::check_in_device`].
pub(crate) fn check_in_device(request: &Request, geometry: &Geometry) -> Result<(), DeviceError> {
    let moves = matches!(request.operation, Operation::Read | Operation::Write { .. });
    if !moves || request.blocks == 0 || request.data.is_some() {
        return Err(DeviceError::Internal);
    }
    check_operation(request, geometry)
}

/// Checks the range that a request writes, whatever its data is.
pub(crate) fn check_written(request: &Request, geometry: &Geometry) -> Result<(), DeviceError> {
    check_operation(request, geometry)
}

fn check_operation(request: &Request, geometry: &Geometry) -> Result<(), DeviceError> {
    if request.operation == Operation::Flush {
        return Ok(());
    }
    if geometry.read_only && request.operation.changes_medium() {
        return Err(DeviceError::ReadOnly);
    }
    if request.operation == Operation::Deallocate && geometry.deallocate == Deallocate::Unsupported
    {
        return Err(DeviceError::Unsupported);
    }
    let blocks = u64::from(request.blocks);
    let end = request.lba.checked_add(blocks);
    let end = end.ok_or(DeviceError::OutOfRange)?;
    if end > geometry.block_count {
        return Err(DeviceError::OutOfRange);
    }
    if request.operation.has_data() && request.blocks > geometry.max_transfer_blocks {
        return Err(DeviceError::Unsupported);
    }
    Ok(())
}

/// Data that does not match the range is a bug of the caller, not invalid external input.
fn check_data(
    request: &Request,
    geometry: &Geometry,
    lends_reads: bool,
) -> Result<(), DeviceError> {
    let bytes = u64::from(request.blocks) * u64::from(geometry.block_size);
    let fits = match (&request.data, request.operation.has_data()) {
        (Some(lease), true) => request.blocks > 0 && lease.len() as u64 == bytes,
        (None, true) => request.blocks > 0 && request.operation == Operation::Read && lends_reads,
        (Some(_), false) => false,
        (None, false) => true,
    };
    debug_assert!(fits, "the data does not match the request: {request:?}");
    if fits {
        Ok(())
    } else {
        Err(DeviceError::Internal)
    }
}

/// First byte and length of a request's range, which passed [`check`]. A flush has no range.
pub(crate) fn byte_range(request: &Request, geometry: &Geometry) -> (u64, u64) {
    if request.operation == Operation::Flush {
        return (0, 0);
    }
    let block_size = u64::from(geometry.block_size);
    (
        request.lba * block_size,
        u64::from(request.blocks) * block_size,
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GEOMETRY: Geometry = Geometry {
        block_size: 4096,
        block_count: 1000,
        volatile_write_cache: false,
        optimal_io_blocks: 1,
        deallocate: Deallocate::ReadsZero,
        max_transfer_blocks: 256,
        read_only: false,
        atomic: crate::AtomicWrites::BLOCK,
    };

    fn request(operation: Operation, lba: u64, blocks: u32) -> Request {
        Request {
            tag: 0,
            operation,
            lba,
            blocks,
            data: None,
        }
    }

    fn checked(operation: Operation, lba: u64, blocks: u32) -> Result<(), DeviceError> {
        request(operation, lba, blocks).check(&GEOMETRY, true)
    }

    const ZEROES: Operation = Operation::WriteZeroes {
        fua: false,
        deallocate: false,
    };

    #[test]
    fn ranges_that_overflow_or_exceed_the_device_are_refused() {
        for operation in [Operation::Read, ZEROES, Operation::Deallocate] {
            for (lba, blocks) in [
                (1000, 1),
                (999, 2),
                (u64::MAX, 1),
                (u64::MAX, u32::MAX),
                (1, 1000),
            ] {
                assert_eq!(
                    checked(operation, lba, blocks),
                    Err(DeviceError::OutOfRange)
                );
            }
            assert_eq!(checked(operation, 999, 1), Ok(()));
        }
        assert_eq!(checked(ZEROES, 0, 1000), Ok(()));
        assert_eq!(checked(ZEROES, 1000, 0), Ok(()));
        assert_eq!(checked(ZEROES, 1001, 0), Err(DeviceError::OutOfRange));
    }

    #[test]
    fn transfer_above_the_limit_is_unsupported() {
        assert_eq!(checked(Operation::Read, 0, 256), Ok(()));
        assert_eq!(
            checked(Operation::Read, 0, 257),
            Err(DeviceError::Unsupported)
        );
    }

    #[test]
    fn a_flush_has_no_range() {
        assert_eq!(checked(Operation::Flush, u64::MAX, u32::MAX), Ok(()));
    }

    #[test]
    fn read_only_device_refuses_modifying_operations() {
        let geometry = Geometry {
            read_only: true,
            ..GEOMETRY
        };
        for operation in [ZEROES, Operation::Deallocate] {
            let refused = request(operation, 0, 1).check(&geometry, true);
            assert_eq!(refused, Err(DeviceError::ReadOnly));
        }
        for operation in [Operation::Read, Operation::Flush] {
            assert_eq!(request(operation, 0, 1).check(&geometry, true), Ok(()));
        }
    }

    #[test]
    fn deallocate_requires_device_support() {
        let geometry = Geometry {
            deallocate: Deallocate::Unsupported,
            ..GEOMETRY
        };
        let refused = request(Operation::Deallocate, 0, 1).check(&geometry, true);
        assert_eq!(refused, Err(DeviceError::Unsupported));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "does not match"))]
    fn read_without_a_lease_requires_a_borrowing_queue() {
        let refused = request(Operation::Read, 0, 1).check(&GEOMETRY, false);
        assert_eq!(refused, Err(DeviceError::Internal));
    }

    proptest! {
        #[test]
        fn accepted_ranges_fit_the_device(lba: u64, blocks: u32, count in 1..u64::MAX >> 12) {
            let geometry = Geometry { block_count: count, ..GEOMETRY };
            let request = request(ZEROES, lba, blocks);
            let inside = u128::from(lba) + u128::from(blocks) <= u128::from(count);
            prop_assert_eq!(request.check(&geometry, false).is_ok(), inside);
            if inside {
                let (offset, length) = byte_range(&request, &geometry);
                prop_assert!(offset + length <= geometry.bytes());
            }
        }
    }
}
