//! Chooses the address of a region in a device's address space.

/// Lower addresses are avoided if there is room above: an access to a wrong small address, in
/// particular 0, then reaches no memory.
const LOW_ADDRESSES_END: u64 = 1 << 32;

/// The reason why a region has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlacementError {
    /// The IOMMU's smallest page is larger than the region's.
    #[error("pages of {smallest} bytes at least")]
    PageSize {
        /// Bytes of the IOMMU's smallest page.
        smallest: u64,
    },
    /// No range is large enough.
    #[error("{largest} bytes in one piece at most")]
    Room {
        /// Bytes of the largest range, page-aligned.
        largest: u64,
    },
}

/// Requirements of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlacementRequest {
    /// The region's address in this program.
    pub(crate) base: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// Page size in bytes.
    pub(crate) page: u64,
    /// The previous address, which is preferred.
    pub(crate) previous: Option<u64>,
}

/// Chooses the address of a region, given the IOMMU's page sizes (one bit each) and its address
/// ranges (first and last).
pub(crate) fn choose_address(
    wanted: PlacementRequest,
    page_sizes: u64,
    ranges: &[(u64, u64)],
) -> Result<u64, PlacementError> {
    // An IOMMU without any page size cannot map anything.
    let smallest = if page_sizes == 0 {
        u64::MAX
    } else {
        1 << page_sizes.trailing_zeros()
    };
    if !(wanted.base | wanted.len).is_multiple_of(smallest) || wanted.page < smallest {
        return Err(PlacementError::PageSize { smallest });
    }
    // Align to the region's own page size, so that the IOMMU can use large pages.
    let align = wanted.page.max(smallest);
    let fits = |at: u64, (first, last): (u64, u64)| {
        at >= first
            && at
                .checked_add(wanted.len - 1)
                .is_some_and(|end| end <= last)
    };
    if let Some(previous) = wanted.previous
        && ranges.iter().any(|range| fits(previous, *range))
    {
        return Ok(previous);
    }
    for lowest in [LOW_ADDRESSES_END, align] {
        for &(first, last) in ranges {
            let at = first.max(lowest).checked_next_multiple_of(align);
            if let Some(at) = at.filter(|at| fits(*at, (first, last))) {
                return Ok(at);
            }
        }
    }
    let room = |(first, last): &(u64, u64)| {
        let start = (*first).max(align).checked_next_multiple_of(align)?;
        Some(last.checked_sub(start)?.saturating_add(1) / smallest * smallest)
    };
    let largest = ranges.iter().filter_map(room).max().unwrap_or(0);
    Err(PlacementError::Room { largest })
}

/// Alignment of the addresses of a device's memory: more than any controller is known to need.
const DEVICE_MEMORY_ALIGN: u64 = 1 << 30;

/// Chooses an address for `len` bytes of a device's memory within the IOMMU's ranges (first and
/// last), such that none of them is in `taken`: at `at` if given.
pub(crate) fn choose_device_address(
    len: u64,
    at: Option<u64>,
    ranges: &[(u64, u64)],
    taken: &[(u64, u64)],
) -> Option<u64> {
    let last_of = |first: u64| first.checked_add(len.checked_sub(1)?);
    let overlapped = |first: u64| {
        let last = last_of(first)?;
        taken.iter().find(|it| first <= it.1 && it.0 <= last)
    };
    let fits = |first: u64| {
        let last = last_of(first)?;
        let is_within = ranges
            .iter()
            .any(|range| range.0 <= first && last <= range.1);
        is_within.then_some(())
    };
    if let Some(at) = at {
        return (fits(at).is_some() && overlapped(at).is_none()).then_some(at);
    }
    for &(first, _) in ranges {
        let lowest = first.max(LOW_ADDRESSES_END);
        let mut next = lowest.checked_next_multiple_of(DEVICE_MEMORY_ALIGN);
        // Each attempt is behind another range that is taken.
        while let Some(at) = next.filter(|at| fits(*at).is_some()) {
            let Some((_, last)) = overlapped(at) else {
                return Some(at);
            };
            let behind = last.checked_add(1)?;
            next = behind.checked_next_multiple_of(DEVICE_MEMORY_ALIGN);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u64 = 1 << 12 | 1 << 21 | 1 << 30;
    /// The ranges of QEMU's virtual IOMMU.
    const RANGES: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 48) - 1)];

    fn region(len: u64, page: u64) -> PlacementRequest {
        PlacementRequest {
            base: 0x7f00_0000_0000,
            len,
            page,
            previous: None,
        }
    }

    #[test]
    fn pages_smaller_than_the_iommu_page_are_refused() {
        let result = choose_address(region(1 << 20, 4096), 1 << 16, &RANGES);
        assert_eq!(result, Err(PlacementError::PageSize { smallest: 65536 }));
        let odd = PlacementRequest {
            base: 0x7f00_0000_1000,
            ..region(1 << 20, 1 << 16)
        };
        let result = choose_address(odd, 1 << 16, &RANGES);
        assert_eq!(result, Err(PlacementError::PageSize { smallest: 65536 }));
        assert!(choose_address(region(1 << 20, 4096), 0, &RANGES).is_err());
    }

    #[test]
    fn region_that_does_not_fit_is_refused() {
        let result = choose_address(region(1 << 48, 1 << 30), PAGES, &RANGES);
        assert!(matches!(result, Err(PlacementError::Room { largest }) if largest < 1 << 48));
        assert_eq!(
            choose_address(region(4096, 4096), PAGES, &[]),
            Err(PlacementError::Room { largest: 0 })
        );
    }

    #[test]
    fn region_is_placed_above_4_gib_if_possible() {
        assert_eq!(
            choose_address(region(1 << 21, 1 << 21), PAGES, &RANGES),
            Ok(1 << 32)
        );
        let low = [(0, 0x7fff_ffff)];
        assert_eq!(
            choose_address(region(1 << 21, 1 << 21), PAGES, &low),
            Ok(1 << 21)
        );
    }

    #[test]
    fn a_region_keeps_its_previous_address() {
        let wanted = PlacementRequest {
            previous: Some(3 << 32),
            ..region(1 << 30, 1 << 30)
        };
        assert_eq!(choose_address(wanted, PAGES, &RANGES), Ok(3 << 32));
        let narrow = [(1 << 32, 2 << 32)];
        assert_eq!(choose_address(wanted, PAGES, &narrow), Ok(1 << 32));
    }

    #[test]
    fn memory_of_a_device_is_not_placed_where_something_is() {
        let taken = [(1 << 32, (2 << 32) - 1), (2 << 32, (2 << 32) + 4095)];
        let choose = |len, at| choose_device_address(len, at, &RANGES, &taken);
        let free = (2 << 32) + DEVICE_MEMORY_ALIGN;
        assert_eq!(choose(1 << 20, None), Some(free));
        assert_eq!(choose(0, None), None);
        assert_eq!(choose(u64::MAX, None), None);
        assert_eq!(choose(1 << 48, None), None);
        // The address of a BAR.
        assert_eq!(choose(4096, Some(4096)), Some(4096));
        assert_eq!(choose(4096, Some(2 << 32)), None);
        assert_eq!(choose(4097, Some((1 << 32) - 4096)), None);
        assert_eq!(choose(4096, Some(0xfee0_0000)), None, "not in a range");
        assert_eq!(choose(4096, Some(u64::MAX - 4095)), None);
        assert_eq!(choose(4096, Some(u64::MAX)), None);
        assert_eq!(choose_device_address(4096, None, &[], &[]), None);
        assert_eq!(
            choose_device_address(4096, None, &[(0, u64::MAX)], &[(0, u64::MAX)]),
            None
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn memories_of_devices_do_not_overlap(
            lens in prop::collection::vec(1u64..(4 << 30), 1..24),
            ats in prop::collection::vec(prop::option::of(0u64..(1 << 36)), 24),
        ) {
            let mut taken: Vec<(u64, u64)> = vec![(1 << 32, 5 << 30)];
            for (len, at) in lens.into_iter().zip(ats) {
                if let Some(first) = choose_device_address(len, at, &RANGES, &taken) {
                    let last = first + (len - 1);
                    prop_assert!(taken.iter().all(|it| last < it.0 || it.1 < first));
                    prop_assert!(RANGES.iter().any(|it| it.0 <= first && last <= it.1));
                    taken.push((first, last));
                } else {
                    prop_assert!(at.is_some(), "there is room");
                }
            }
        }

        #[test]
        fn placement_is_aligned_and_within_a_range(
            pages in 1u64..(1 << 20),
            page in prop::sample::select(vec![1u64 << 12, 1 << 21, 1 << 30]),
            ranges in prop::collection::vec((any::<u64>(), any::<u64>()), 0..6),
        ) {
            let len = pages * page;
            match choose_address(region(len, page), PAGES, &ranges) {
                Ok(at) => {
                    prop_assert_eq!(at % page, 0);
                    prop_assert!(at > 0);
                    let last = at + (len - 1);
                    let within = |r: &(u64, u64)| r.0 <= at && last <= r.1;
                    prop_assert!(ranges.iter().any(within));
                }
                Err(PlacementError::Room { largest }) => prop_assert!(largest < len),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
