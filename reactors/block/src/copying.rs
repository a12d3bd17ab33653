//! Copies within a device that the device executes by itself: their data does not leave it.

use crate::bounds::check_written;
use crate::device::Geometry;
use crate::error::DeviceError;
use crate::request::{Operation, Request};

/// Room that a device needs for its own form of one source, in bytes.
pub const COPY_SOURCE_BYTES: usize = 32;

/// A source range of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySource {
    /// Its first block.
    pub lba: u64,
    /// Its length in blocks.
    pub blocks: u32,
}

impl CopySource {
    /// Whether it has a block of the range that begins with `lba`.
    fn overlaps(&self, lba: u64, blocks: u32) -> bool {
        let end = self.lba.saturating_add(u64::from(self.blocks));
        self.lba < lba.saturating_add(u64::from(blocks)) && lba < end
    }
}

/// What a device copies by itself at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// Source ranges of a copy.
    pub sources_max: u32,
    /// Blocks of a source range.
    pub source_blocks_max: u32,
    /// Blocks of a copy.
    pub blocks_max: u32,
}

/// Checks a copy: the request writes its range without having data, and the sources fill that range, do
/// not overlap it, and are within the device and its limits. The lease has room for the list of sources
/// from the byte `list_at` on.
///
/// # Errors
/// The error with which the queue refuses it.
pub fn check_copy(
    request: &Request,
    sources: &[CopySource],
    list_at: usize,
    (geometry, limits): (&Geometry, &CopyLimits),
) -> Result<(), DeviceError> {
    let room = list_at.saturating_add(sources.len() * COPY_SOURCE_BYTES);
    let lease_bytes = request.data.as_ref().map_or(0, hugemem::Lease::len);
    if !matches!(request.operation, Operation::Write { .. }) || lease_bytes < room {
        return Err(DeviceError::Internal);
    }
    let blocks: u64 = sources.iter().map(|it| u64::from(it.blocks)).sum();
    let is_within = |source: &CopySource| {
        let end = source.lba.checked_add(u64::from(source.blocks));
        end.is_some_and(|end| end <= geometry.block_count)
    };
    if blocks != u64::from(request.blocks) || blocks == 0 {
        return Err(DeviceError::Internal);
    }
    if !sources.iter().all(is_within) {
        return Err(DeviceError::OutOfRange);
    }
    let fits = |source: &CopySource| {
        (1..=limits.source_blocks_max).contains(&source.blocks)
            && !source.overlaps(request.lba, request.blocks)
    };
    if sources.len() > limits.sources_max as usize
        || request.blocks > limits.blocks_max
        || !sources.iter().all(fits)
    {
        return Err(DeviceError::Unsupported);
    }
    check_written(request, geometry)
}
