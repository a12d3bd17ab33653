//! Tests with valid and invalid descriptions.

use super::*;
use proptest::prelude::*;

/// A description of `len` bytes with words at the given offsets.
fn description(len: usize, words: &[(usize, u32)]) -> Info {
    let mut bytes = vec![0; len];
    for (offset, word) in words {
        bytes[*offset..offset + 4].copy_from_slice(&word.to_ne_bytes());
    }
    Info::new(bytes)
}

const REGION_FLAGS: usize = offset_of!(vfio_region_info, flags);
const REGION_CAPABILITIES: usize = offset_of!(vfio_region_info, cap_offset);
const REGION_SIZE: usize = offset_of!(vfio_region_info, size);
const MAPPABLE: u32 = abi::VFIO_REGION_INFO_FLAG_MMAP;
const WITH_CAPABILITIES: u32 = MAPPABLE | abi::VFIO_REGION_INFO_FLAG_CAPS;

#[test]
fn truncated_region_info_is_an_empty_region() {
    assert_eq!(RegionInfo::of(&Info::new(vec![])), RegionInfo::default());
    let info = RegionInfo::of(&Info::new(vec![0xff; 7]));
    assert_eq!(info.size, 0);
    assert!(info.mappable.is_empty());
}

#[test]
fn looping_capability_chain_terminates() {
    // The capability at 32 is followed by itself.
    let info = description(
        64,
        &[
            (REGION_FLAGS, WITH_CAPABILITIES),
            (REGION_CAPABILITIES, 32),
            (REGION_SIZE, 8192),
            (32, 99),
            (36, 32),
        ],
    );
    assert_eq!(RegionInfo::of(&info).mappable, [(0, 8192)]);
}

#[test]
fn areas_outside_the_region_are_ignored() {
    let mut words = vec![
        (REGION_FLAGS, WITH_CAPABILITIES),
        (REGION_CAPABILITIES, 32),
        (REGION_SIZE, 8192),
        (32, abi::VFIO_REGION_INFO_CAP_SPARSE_MMAP),
        // The number of areas is larger than the description.
        (40, u32::MAX),
        (48, 0),
        (56, 4096),
        (64, 8192),
        (72, 4096),
    ];
    let info = RegionInfo::of(&description(80, &words));
    assert_eq!(info.mappable, [(0, 4096)]);
    words.extend([(64, u32::MAX), (68, u32::MAX)]);
    let info = RegionInfo::of(&description(80, &words));
    assert_eq!(info.mappable, [(0, 4096)]);
}

#[test]
fn region_without_sparse_areas_is_mapped_whole() {
    let words = [(REGION_FLAGS, MAPPABLE), (REGION_SIZE, 16384)];
    let info = RegionInfo::of(&description(32, &words));
    assert_eq!(info.mappable, [(0, 16384)]);
    let info = RegionInfo::of(&description(32, &words[1..]));
    assert_eq!((info.size, info.mappable), (16384, vec![]));
}

#[test]
fn an_iommu_reports_ranges_and_remaining_mappings() {
    const FLAGS: usize = offset_of!(vfio_iommu_type1_info, flags);
    const FIRST: usize = offset_of!(vfio_iommu_type1_info, cap_offset);
    const SIZES: usize = offset_of!(vfio_iommu_type1_info, iova_pgsizes);
    let words = [
        (
            FLAGS,
            abi::VFIO_IOMMU_INFO_PGSIZES | abi::VFIO_IOMMU_INFO_CAPS,
        ),
        (SIZES, 1 << 12 | 1 << 21),
        (FIRST, 24),
        (24, abi::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL),
        (28, 40),
        (32, 65535),
        (40, abi::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE),
        (48, 1),
        (56, 0x1000),
        (64, 0xfedf_ffff),
    ];
    let info = IommuInfo::of(&description(72, &words));
    assert_eq!(info.page_sizes, 1 << 12 | 1 << 21);
    assert_eq!(info.ranges, [(0x1000, 0xfedf_ffff)]);
    assert_eq!(info.mappings_left, Some(65535));
    // An old kernel reports none of this.
    let info = IommuInfo::of(&description(24, &[]));
    assert_eq!((info.page_sizes, info.mappings_left), (4096, None));
    assert_eq!(info.ranges, RANGES_DEFAULT);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn any_region_info_is_handled(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let region = RegionInfo::of(&Info::new(bytes.clone()));
        for (start, len) in region.mappable {
            prop_assert!(len > 0 && start.checked_add(len).unwrap() <= region.size);
        }
        let _ = IommuInfo::of(&Info::new(bytes));
    }
}
