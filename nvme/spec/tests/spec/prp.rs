//! Checks PRP arithmetic against a page by page simulation.

use nvme_spec::prp::PageSize;
use proptest::prelude::*;

const PAGE: PageSize = PageSize::from_mps(0);

#[test]
fn prp_page_sizes() {
    assert_eq!(PAGE.bytes(), 4096);
    assert_eq!(PageSize::from_mps(4).bytes(), 65_536);
    assert_eq!(PageSize::from_mps(15).bytes(), 1 << 27);
    assert_eq!(PAGE.list_entries(), 512);
    assert_eq!(PAGE.list_entries_from(0x1_0ff8), 1);
    assert_eq!(PAGE.list_entries_from(0x1_0000), 512);
}

#[test]
fn prp_entry_counts() {
    assert_eq!(PAGE.entries(0x1000, 0), 0);
    assert_eq!(PAGE.entries(0x1000, 1), 1);
    assert_eq!(PAGE.entries(0x1000, 4096), 1);
    assert_eq!(PAGE.entries(0x1000, 4097), 2);
    assert_eq!(PAGE.entries(0x1ffc, 4), 1);
    assert_eq!(PAGE.entries(0x1ffc, 5), 2);
    assert_eq!(PAGE.entries(0x1800, 8192), 3);
    assert_eq!(PAGE.entries(!0xfff, u64::MAX), 1 << 52);
}

#[test]
fn prp_list_page_counts() {
    // The last list page holds 512 entries.
    assert_eq!(PAGE.list_pages(0, 8192), 0);
    assert_eq!(PAGE.list_pages(0, 8193), 1);
    assert_eq!(PAGE.list_pages(0, 513 * 4096), 1);
    assert_eq!(PAGE.list_pages(0, 514 * 4096), 2);
    assert_eq!(PAGE.list_pages(0, (1 + 511 + 512) * 4096), 2);
    assert_eq!(PAGE.list_pages(0, (1 + 511 + 512) * 4096 + 1), 3);
}

#[test]
fn only_the_first_prp_entry_may_have_an_offset() {
    assert!(PAGE.is_valid_entry(0x1004, true));
    assert!(!PAGE.is_valid_entry(0x1002, true));
    assert!(!PAGE.is_valid_entry(0x1004, false));
    assert!(PAGE.is_valid_entry(0x1000, false));
}

/// List pages for `listed` entries, counted by writing them one by one.
fn walk_list(listed: u64, per_page: u64) -> u64 {
    let (mut pages, mut left) = (0, listed);
    while left > 0 {
        pages += 1;
        left = if left <= per_page {
            0
        } else {
            left - (per_page - 1)
        };
    }
    pages
}

proptest! {
    #[test]
    fn prp_entry_count_matches_a_page_walk(
        mps in 0..3_u8,
        address in 0..1_u64 << 40,
        length in 1..16_u64 << 20,
    ) {
        let page = PageSize::from_mps(mps);
        let (mut at, end, mut entries) = (address, address + length, 0);
        while at < end {
            prop_assert_eq!(page.base(at) + page.offset(at), at);
            at += page.rest(at);
            entries += 1;
        }
        prop_assert_eq!(page.entries(address, length), entries);
        let listed = if entries <= 2 { 0 } else { entries - 1 };
        prop_assert_eq!(page.list_pages(address, length), walk_list(listed, page.list_entries()));
    }

    #[test]
    fn prp_functions_accept_any_input(mps: u8, address: u64, length: u64) {
        let page = PageSize::from_mps(mps);
        let _ = (page.entries(address, length), page.list_pages(address, length));
        let _ = (page.base(address), page.rest(address), page.list_entries_from(address));
    }
}
