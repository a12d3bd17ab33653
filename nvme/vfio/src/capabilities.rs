//! Descriptions of devices and IOMMUs from the kernel: a structure, followed by a chain of
//! capabilities.
//!
//! `struct vfio_info_cap_header` in Linux `include/uapi/linux/vfio.h`: every capability contains
//! the offset of the next, from the start of the structure.

use std::mem::offset_of;

use vfio_bindings::bindings::vfio::{
    self as abi, vfio_info_cap_header, vfio_iommu_type1_info, vfio_iommu_type1_info_cap_iova_range,
    vfio_iommu_type1_info_dma_avail, vfio_region_info, vfio_region_info_cap_sparse_mmap,
};

/// More capabilities than any description has; a longer chain is a loop.
const CAPABILITIES_MAX: usize = 64;

/// One description as bytes. Offsets in it are not trusted to be within it.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    bytes: Vec<u8>,
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let end = offset.checked_add(4)?;
    Some(u32::from_ne_bytes(bytes.get(offset..end)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let end = offset.checked_add(2)?;
    Some(u16::from_ne_bytes(bytes.get(offset..end)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let end = offset.checked_add(8)?;
    Some(u64::from_ne_bytes(bytes.get(offset..end)?.try_into().ok()?))
}

impl Info {
    pub(crate) fn new(bytes: Vec<u8>) -> Info {
        Info { bytes }
    }

    /// The word at `offset` of the structure; 0 if the kernel returned less.
    pub(crate) fn u32(&self, offset: usize) -> u32 {
        u32_at(&self.bytes, offset).unwrap_or_default()
    }

    fn u64(&self, offset: usize) -> u64 {
        u64_at(&self.bytes, offset).unwrap_or_default()
    }

    /// The bytes from the capability `id` on, if the chain that starts at `first` contains it.
    fn capability(&self, first: u32, id: u32) -> Option<&[u8]> {
        let mut at = first as usize;
        for _ in 0..CAPABILITIES_MAX {
            if at == 0 {
                return None;
            }
            let bytes = self.bytes.get(at..)?;
            let found = u16_at(bytes, offset_of!(vfio_info_cap_header, id))?;
            if u32::from(found) == id {
                return Some(bytes);
            }
            at = u32_at(bytes, offset_of!(vfio_info_cap_header, next))? as usize;
        }
        None
    }
}

/// `count` pairs of 64-bit numbers that follow `head` bytes of a capability.
fn pairs(capability: &[u8], count: u32, head: usize) -> Vec<(u64, u64)> {
    (0..count as usize)
        .map_while(|index| {
            let at = index.checked_mul(16)?.checked_add(head)?;
            Some((u64_at(capability, at)?, u64_at(capability, at + 8)?))
        })
        .collect()
}

/// A region of a device: a BAR, or its configuration space.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RegionInfo {
    /// Size in bytes; 0 if the device has no such region.
    pub(crate) size: u64,
    /// Offset of the region in the device's descriptor.
    pub(crate) offset: u64,
    /// Parts that can be mapped: offset within the region, and length.
    pub(crate) mappable: Vec<(u64, u64)>,
}

impl RegionInfo {
    pub(crate) fn of(info: &Info) -> RegionInfo {
        let flags = info.u32(offset_of!(vfio_region_info, flags));
        let size = info.u64(offset_of!(vfio_region_info, size));
        let mut mappable = Vec::new();
        if flags & abi::VFIO_REGION_INFO_FLAG_MMAP != 0 {
            mappable.push((0, size));
        }
        if flags & abi::VFIO_REGION_INFO_FLAG_CAPS != 0 {
            let first = info.u32(offset_of!(vfio_region_info, cap_offset));
            if let Some(sparse) = info.capability(first, abi::VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
                let count = offset_of!(vfio_region_info_cap_sparse_mmap, nr_areas);
                let count = u32_at(sparse, count).unwrap_or_default();
                let head = size_of::<vfio_region_info_cap_sparse_mmap>();
                mappable = pairs(sparse, count, head);
            }
        }
        // Keep only parts within the region, so that no caller has to check again.
        mappable.retain(|(start, len)| {
            *len > 0 && start.checked_add(*len).is_some_and(|end| end <= size)
        });
        RegionInfo {
            size,
            offset: info.u64(offset_of!(vfio_region_info, offset)),
            mappable,
        }
    }
}

/// Capabilities of an IOMMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IommuInfo {
    /// Supported page sizes, one bit each.
    pub(crate) page_sizes: u64,
    /// Usable addresses, first and last of each range.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// Number of mappings that can still be created, if the kernel reports it.
    pub(crate) mappings_left: Option<u32>,
}

/// Address ranges if the kernel reports none (before 5.4): 39 bits, the minimum of IOMMUs, without
/// the window for interrupts on x86.
const RANGES_DEFAULT: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];

impl IommuInfo {
    pub(crate) fn of(info: &Info) -> IommuInfo {
        let flags = info.u32(offset_of!(vfio_iommu_type1_info, flags));
        let has = |flag| flags & flag != 0;
        let first = if has(abi::VFIO_IOMMU_INFO_CAPS) {
            info.u32(offset_of!(vfio_iommu_type1_info, cap_offset))
        } else {
            0
        };
        let ranges = info
            .capability(first, abi::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE)
            .map(|capability| {
                let count = offset_of!(vfio_iommu_type1_info_cap_iova_range, nr_iovas);
                let count = u32_at(capability, count).unwrap_or_default();
                let head = size_of::<vfio_iommu_type1_info_cap_iova_range>();
                pairs(capability, count, head)
            });
        let mappings_left = info
            .capability(first, abi::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL)
            .and_then(|capability| {
                u32_at(
                    capability,
                    offset_of!(vfio_iommu_type1_info_dma_avail, avail),
                )
            });
        IommuInfo {
            page_sizes: if has(abi::VFIO_IOMMU_INFO_PGSIZES) {
                info.u64(offset_of!(vfio_iommu_type1_info, iova_pgsizes))
            } else {
                4096
            },
            ranges: ranges.unwrap_or_else(|| RANGES_DEFAULT.to_vec()),
            mappings_left,
        }
    }
}

#[cfg(test)]
mod tests;
