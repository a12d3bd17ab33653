//! Valid sizes of devices, and the geometry of a device that grows.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{BLOCK_SIZES, Geometry};

/// Largest read, write or compare of the devices in this crate, in bytes: the arena's largest
/// lease.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// Why a device cannot have the requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The block size is not one of [`BLOCK_SIZES`].
    #[error("block size of {block_size} bytes: use 512 or 4096")]
    BlockSize {
        /// The requested block size in bytes.
        block_size: u32,
    },
    /// The size is 0.
    #[error("a device of 0 bytes")]
    Empty,
    /// The size is not a multiple of the block size.
    #[error("{size_bytes} bytes are not a multiple of the block size of {block_size} bytes")]
    Uneven {
        /// The requested size in bytes.
        size_bytes: u64,
        /// Bytes per block.
        block_size: u32,
    },
    /// An open device would shrink.
    #[error("{size_bytes} bytes are less than the current {now_bytes}: a device cannot shrink")]
    Shrinks {
        /// The requested size in bytes.
        size_bytes: u64,
        /// The current size in bytes.
        now_bytes: u64,
    },
    /// The size exceeds the address range of the back end.
    #[error("{size_bytes} bytes are more than a device of this kind can have")]
    TooLarge {
        /// The requested size in bytes.
        size_bytes: u64,
    },
}

/// The geometry of a device that may grow while it is open.
#[derive(Debug)]
pub(crate) struct GrowingGeometry {
    initial: Geometry,
    block_count: AtomicU64,
}

impl GrowingGeometry {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            initial: geometry,
            block_count: AtomicU64::new(geometry.block_count),
        }
    }

    /// The current geometry.
    pub(crate) fn now(&self) -> Geometry {
        Geometry {
            block_count: self.block_count.load(Ordering::Acquire),
            ..self.initial
        }
    }

    /// The number of blocks in `size_bytes`, which must not be less than the current size.
    pub(crate) fn larger(&self, size_bytes: u64) -> Result<u64, ShapeError> {
        let now = self.now();
        let wanted = block_count(size_bytes, now.block_size)?;
        if wanted < now.block_count {
            let now_bytes = now.bytes();
            return Err(ShapeError::Shrinks {
                size_bytes,
                now_bytes,
            });
        }
        Ok(wanted)
    }

    /// Sets the number of blocks. Release: a thread that loads the new number also sees the memory
    /// behind it.
    pub(crate) fn grow(&self, block_count: u64) {
        self.block_count.fetch_max(block_count, Ordering::Release);
    }
}

/// Number of blocks of a device. All of them are within the range of file offsets.
pub(crate) fn block_count(size_bytes: u64, block_size: u32) -> Result<u64, ShapeError> {
    check_block_size(block_size)?;
    if size_bytes == 0 {
        return Err(ShapeError::Empty);
    }
    if !size_bytes.is_multiple_of(u64::from(block_size)) {
        return Err(ShapeError::Uneven {
            size_bytes,
            block_size,
        });
    }
    if i64::try_from(size_bytes).is_err() {
        return Err(ShapeError::TooLarge { size_bytes });
    }
    Ok(size_bytes / u64::from(block_size))
}

pub(crate) fn check_block_size(block_size: u32) -> Result<(), ShapeError> {
    if BLOCK_SIZES.contains(&block_size) {
        Ok(())
    } else {
        Err(ShapeError::BlockSize { block_size })
    }
}

/// [`TRANSFER_BYTES_MAX`] in blocks.
pub(crate) fn max_transfer_blocks(block_size: u32) -> u32 {
    TRANSFER_BYTES_MAX as u32 / block_size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_device_sizes() {
        for block_size in [0, 1, 511, 520, 1024, 8192, u32::MAX] {
            assert_eq!(
                block_count(8192, block_size),
                Err(ShapeError::BlockSize { block_size })
            );
        }
        assert_eq!(block_count(0, 512), Err(ShapeError::Empty));
        let uneven = ShapeError::Uneven {
            size_bytes: 4095,
            block_size: 512,
        };
        assert_eq!(block_count(4095, 512), Err(uneven));
        let size_bytes = 1 << 63;
        assert_eq!(
            block_count(size_bytes, 512),
            Err(ShapeError::TooLarge { size_bytes })
        );
    }

    #[test]
    fn block_counts() {
        assert_eq!(block_count(8192, 512), Ok(16));
        assert_eq!(block_count((1 << 63) - 4096, 4096), Ok((1 << 51) - 1));
        assert_eq!(max_transfer_blocks(512), 2048);
        assert_eq!(max_transfer_blocks(4096), 256);
    }
}
