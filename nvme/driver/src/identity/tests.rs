//! Tests of the limits and geometries derived from Identify pages.

use block::AtomicWrites;
use nvme_spec::identify::{
    Cdfs, DeallocatedRead, Dlfeat, Dps, Flbas, LbaFormat, Nsfeat, Oncs, Sgls,
};
use nvme_spec::{U16, U32, U64};

use super::*;

fn cap(mqes_z: u16) -> Cap {
    Cap::new().with_mqes_z(mqes_z)
}

fn limits_of(change: impl FnOnce(&mut IdentifyController, &mut NvmIdentifyController)) -> Limits {
    let mut page = IdentifyController::default();
    let mut nvm = NvmIdentifyController::default();
    change(&mut page, &mut nvm);
    Limits::new(cap(1023), &page, &nvm, &DriveOptions::new("test"), 1 << 20)
}

fn page(block_size: u32, blocks: u64) -> IdentifyNamespace {
    let mut page = IdentifyNamespace::default();
    page.nsze = U64::new(blocks);
    page.lbaf[0] = LbaFormat::with_block_bytes(block_size).unwrap();
    page
}

fn shape(page: &IdentifyNamespace) -> Result<Geometry, Unusable> {
    let limits = limits_of(|page, _| page.oncs = Oncs::new().with_dataset_management(true));
    Namespace::new(1, page, &limits, true).geometry
}

#[test]
fn queue_depth_is_limited_by_options_mqes_and_arena() {
    let options = |depth| DriveOptions {
        queue_depth_max: depth,
        ..DriveOptions::new("test")
    };
    assert_eq!(slots(cap(1023), &options(256), 1 << 20), 256);
    // MQES + 1 entries, one of which stays free (Base 2.1 §3.3.1.5).
    assert_eq!(slots(cap(63), &options(256), 1 << 20), 63);
    assert_eq!(slots(cap(u16::MAX), &options(4096), 1 << 20), 4096);
    assert_eq!(slots(cap(1023), &options(256), 4096), 63);
    assert_eq!(slots(cap(2), &options(256), 1 << 20), 2);
}

#[test]
fn part_length_is_limited_by_mdts_and_list_size() {
    let mdts = |mdts| limits_of(|page, _| page.mdts = mdts);
    assert_eq!((mdts(0).part_bytes, mdts(0).list_bytes), (256 << 10, 512));
    assert_eq!((mdts(5).part_bytes, mdts(5).list_bytes), (128 << 10, 256));
    assert_eq!((mdts(1).part_bytes, mdts(1).list_bytes), (8 << 10, 16));
    assert_eq!(mdts(63).part_bytes, 256 << 10);
    assert_eq!(mdts(255).part_bytes, 256 << 10);
    let sgl = limits_of(|page, _| {
        page.sgls = Sgls::new().with_support(SglSupport::DWORD);
    });
    assert_eq!(
        (sgl.part_bytes, sgl.list_bytes, sgl.sgl),
        (1 << 20, 16, true)
    );
}

/// NVM 1.1 §4.1.5.4: WZSL has the encoding of MDTS. If it is 0, MDTS is used.
#[test]
fn write_zeroes_is_limited_by_wzsl() {
    let wzsl = |mdts, wzsl| {
        limits_of(|page, nvm| {
            page.mdts = mdts;
            nvm.wzsl = wzsl;
        })
    };
    assert_eq!(zeroes_blocks(&wzsl(5, 0), 4096), 32);
    assert_eq!(zeroes_blocks(&wzsl(5, 8), 4096), 256);
    assert_eq!(zeroes_blocks(&wzsl(0, 0), 512), 1 << 16);
    assert_eq!(zeroes_blocks(&wzsl(0, 255), 512), 1 << 16);
    let unlimited = limits_of(|_, _| {});
    assert_eq!(unlimited.deallocate_blocks, u32::MAX);
    let limited = limits_of(|_, nvm| nvm.dmrsl = U32::new(100));
    assert_eq!(limited.deallocate_blocks, 100);
}

#[test]
fn geometry_follows_identify_namespace() {
    for block_size in [512, 4096] {
        let geometry = shape(&page(block_size, 1000)).unwrap();
        assert_eq!(
            (geometry.block_size, geometry.block_count),
            (block_size, 1000)
        );
        assert!(geometry.volatile_write_cache && !geometry.read_only);
        assert_eq!(geometry.max_transfer_blocks, (1 << 20) / block_size);
        assert_eq!(geometry.deallocate, Deallocate::Unspecified);
        assert_eq!(geometry.optimal_io_blocks, 1);
    }
}

#[test]
fn optimal_io_size_follows_drive_preferences() {
    let mut page = page(512, 1000);
    page.nsfeat = Nsfeat::new().with_nsabp(true);
    page.nawun_z = U16::new(7);
    assert_eq!(shape(&page).unwrap().optimal_io_blocks, 8);
    page.noiob = U16::new(256);
    assert_eq!(shape(&page).unwrap().optimal_io_blocks, 256);
    page.nsfeat = page.nsfeat.with_optperf(1);
    page.npwg_z = U16::new(31);
    assert_eq!(shape(&page).unwrap().optimal_io_blocks, 32);
}

#[test]
fn atomic_writes_are_those_that_are_not_split() {
    let mut page = page(512, 1000);
    (page.nawun_z, page.nawupf_z) = (U16::new(0xffff), U16::new(15));
    assert_eq!(
        shape(&page).unwrap().atomic,
        AtomicWrites::BLOCK,
        "not valid"
    );
    page.nsfeat = Nsfeat::new().with_nsabp(true);
    (page.nabsn_z, page.nabo) = (U16::new(255), U16::new(8));
    let atomic = shape(&page).unwrap().atomic;
    assert!(atomic.normal_blocks < 1 << 16 && atomic.normal_blocks >= 8);
    assert_eq!(atomic.power_failure_blocks, 16);
    assert_eq!(atomic.normal_boundary_blocks, 256);
    assert_eq!(atomic.power_failure_boundary_blocks, 0);
    assert_eq!(atomic.boundary_offset_blocks, 8);
}

#[test]
fn unsupported_formats_are_reported() {
    let mut odd = page(512, 1000);
    odd.lbaf[0].lbads = 13;
    assert_eq!(shape(&odd), Err(Unusable::BlockSize { bytes: 8192 }));
    odd.lbaf[0].lbads = 3;
    assert_eq!(shape(&odd), Err(Unusable::NoFormat));
    let mut metadata = page(4096, 1000);
    metadata.lbaf[0].ms = U16::new(8);
    assert_eq!(shape(&metadata), Err(Unusable::Metadata { bytes: 8 }));
    let mut protected = page(4096, 1000);
    protected.dps = Dps::new().with_protection_type(1);
    assert_eq!(shape(&protected), Err(Unusable::Protection { kind: 1 }));
    let mut beyond = page(4096, 1000);
    beyond.flbas = Flbas::new().with_index_low(3);
    assert_eq!(shape(&beyond), Err(Unusable::NoFormat));
    assert_eq!(shape(&page(4096, 0)), Err(Unusable::Empty));
}

#[test]
fn write_zeroes_deallocates_only_if_blocks_then_read_as_zeroes() {
    let limits = limits_of(|_, _| {});
    let with = |read, deallocates| {
        let mut page = page(512, 8);
        page.dlfeat = Dlfeat::new()
            .with_read(read)
            .with_write_zeroes_deallocate(deallocates);
        Namespace::new(1, &page, &limits, false).zeroes_deallocate
    };
    assert!(with(DeallocatedRead::ZEROES, true));
    assert!(!with(DeallocatedRead::ZEROES, false));
    assert!(!with(DeallocatedRead::ONES, true));
    assert!(!with(DeallocatedRead::NOT_REPORTED, true));
}

#[test]
fn drive_text_is_sanitized() {
    assert_eq!(text(b"  drive\x1b[2J\xff  "), "drive?[2J?");
    assert_eq!(text(b"\0\0"), "");
}

#[test]
fn reattached_drive_must_meet_the_previous_limits() {
    let small = limits_of(|page, _| page.mdts = 3);
    let large = limits_of(|page, _| page.oncs = Oncs::new().with_compare(true));
    assert!(small.can_run_on(&large) && small.can_run_on(&small));
    assert!(!large.can_run_on(&small));
}

/// Copies by the drive itself (NVM 1.1 §3.3.2): not without descriptor format 0, not with a limit of 0, and
/// not if they are less atomic than writes.
#[test]
fn copy_limits_are_those_of_the_namespace() {
    let copies = Oncs::new().with_copy(true);
    let whole = copies.with_copy_single_atomicity(true);
    let format_0 = Cdfs::new().with_format_0(true);
    let limits_with = |oncs, cdfs, is_atomic, change: &dyn Fn(&mut IdentifyNamespace)| {
        let limits = limits_of(|page, _| (page.oncs, page.cdfs) = (oncs, cdfs));
        let mut page = page(512, 1000);
        (page.mssrl, page.mcl, page.msrc_z) = (U16::new(128), U32::new(256), 3);
        page.nsfeat = Nsfeat::new().with_nsabp(is_atomic);
        change(&mut page);
        Namespace::new(1, &page, &limits, true).copy
    };
    let none: &dyn Fn(&mut IdentifyNamespace) = &|_| {};
    let all = CopyLimits {
        sources_max: 4,
        source_blocks_max: 128,
        blocks_max: 256,
    };
    assert_eq!(limits_with(Oncs::new(), format_0, false, none), None);
    assert_eq!(limits_with(copies, Cdfs::new(), false, none), None);
    assert_eq!(limits_with(copies, format_0, true, none), None);
    assert_eq!(limits_with(copies, format_0, false, none), Some(all));
    assert_eq!(limits_with(whole, format_0, true, none), Some(all));
    let zero: [&dyn Fn(&mut IdentifyNamespace); 2] =
        [&|page| page.mssrl = U16::ZERO, &|page| page.mcl = U32::ZERO];
    for change in zero {
        assert_eq!(limits_with(copies, format_0, false, change), None);
    }
    let most = limits_with(copies, format_0, false, &|page| page.msrc_z = u8::MAX);
    assert_eq!(most.map(|it| it.sources_max), Some(256));
    let across = |oncs, cdfs, is_atomic, change: &dyn Fn(&mut IdentifyNamespace)| {
        let limits = limits_of(|page, _| (page.oncs, page.cdfs) = (oncs, cdfs));
        let mut page = page(512, 1000);
        (page.mssrl, page.mcl, page.msrc_z) = (U16::new(128), U32::new(256), 3);
        page.nsfeat = Nsfeat::new().with_nsabp(is_atomic);
        change(&mut page);
        Namespace::new(1, &page, &limits, true).copy_across
    };
    let format_2 = Cdfs::new().with_format_2(true);
    assert_eq!(across(Oncs::new(), format_2, false, none), None);
    assert_eq!(across(copies, format_0, false, none), None);
    // What is written in pieces needs no atomicity beyond blocks.
    assert_eq!(across(copies, format_2, true, none), Some(all));
    for change in zero {
        assert_eq!(across(copies, format_2, false, change), None);
    }
    let with = |oncs| limits_of(|page, _| (page.oncs, page.cdfs) = (oncs, format_0));
    assert!(with(Oncs::new()).can_run_on(&with(copies)));
    assert!(!with(copies).can_run_on(&with(Oncs::new())));
    assert!(!with(whole).can_run_on(&with(copies)));
    let without = with(Oncs::new());
    let with_format_2 = limits_of(|page, _| (page.oncs, page.cdfs) = (copies, format_2));
    assert!(with_format_2.copy_across && without.can_run_on(&with_format_2));
    assert!(!with_format_2.can_run_on(&without));
}
