//! Copies that devices execute by themselves, within a device or from another one of the same drive: their
//! data does not leave it.

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

impl CopyLimits {
    /// What both allow.
    #[must_use]
    pub fn both(self, other: Self) -> Self {
        Self {
            sources_max: self.sources_max.min(other.sources_max),
            source_blocks_max: self.source_blocks_max.min(other.source_blocks_max),
            blocks_max: self.blocks_max.min(other.blocks_max),
        }
    }

    /// The longest copy of consecutive blocks with at most `sources_max` source ranges.
    #[must_use]
    pub fn consecutive_blocks(&self, sources_max: u32) -> u32 {
        let sources = self.sources_max.min(sources_max);
        let blocks = sources.saturating_mul(self.source_blocks_max);
        blocks.min(self.blocks_max)
    }
}

/// A device as the source of copies that another device of its drive executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOrigin {
    /// A number that only devices of one drive have in common.
    pub drive: u64,
    /// The number of the device on its drive.
    pub namespace: u32,
    /// Size of its blocks in bytes.
    pub block_size: u32,
    /// Its size in blocks.
    pub block_count: u64,
    /// Its own limits.
    pub limits: CopyLimits,
}

impl CopyOrigin {
    /// What `destination` copies from this device at most; `None` if it copies nothing: it is of another
    /// drive, the same device, or has blocks of another size.
    #[must_use]
    pub fn limits_to(&self, destination: &Self) -> Option<CopyLimits> {
        let is_neighbour =
            self.drive == destination.drive && self.namespace != destination.namespace;
        let fits = is_neighbour && self.block_size == destination.block_size;
        fits.then(|| self.limits.both(destination.limits))
    }
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
    check_sources(request, sources, list_at, (geometry.block_count, limits))?;
    let overlaps = |source: &CopySource| source.overlaps(request.lba, request.blocks);
    if sources.iter().any(overlaps) {
        return Err(DeviceError::Unsupported);
    }
    check_written(request, geometry)
}

/// Checks a copy from another device, as [`check_copy`] does.
///
/// # Errors
/// The error with which the queue refuses it.
pub fn check_copy_from(
    request: &Request,
    (sources, list_at): (&[CopySource], usize),
    origin: &CopyOrigin,
    (geometry, limits): (&Geometry, &CopyLimits),
) -> Result<(), DeviceError> {
    check_sources(request, sources, list_at, (origin.block_count, limits))?;
    check_written(request, geometry)
}

/// Checks that the sources fill the range of the request and are within a device of `block_count` blocks
/// and the limits, and that the lease has room for them.
fn check_sources(
    request: &Request,
    sources: &[CopySource],
    list_at: usize,
    (block_count, limits): (u64, &CopyLimits),
) -> Result<(), DeviceError> {
    let room = list_at.saturating_add(sources.len() * COPY_SOURCE_BYTES);
    let lease_bytes = request.data.as_ref().map_or(0, hugemem::Lease::len);
    if !matches!(request.operation, Operation::Write { .. }) || lease_bytes < room {
        return Err(DeviceError::Internal);
    }
    let blocks: u64 = sources.iter().map(|it| u64::from(it.blocks)).sum();
    let is_within = |source: &CopySource| {
        let end = source.lba.checked_add(u64::from(source.blocks));
        end.is_some_and(|end| end <= block_count)
    };
    if blocks != u64::from(request.blocks) || blocks == 0 {
        return Err(DeviceError::Internal);
    }
    if !sources.iter().all(is_within) {
        return Err(DeviceError::OutOfRange);
    }
    let fits = |source: &CopySource| (1..=limits.source_blocks_max).contains(&source.blocks);
    if sources.len() > limits.sources_max as usize
        || request.blocks > limits.blocks_max
        || !sources.iter().all(fits)
    {
        return Err(DeviceError::Unsupported);
    }
    Ok(())
}
