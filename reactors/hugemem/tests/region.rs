//! Regions: refused requests, and properties of a mapped region.

use std::cell::RefCell;
use std::error::Error;
use std::fs;
use std::os::fd::AsFd;

use hugemem::{DmaMap, DmaMapError, PagePolicy, PageSize, Region, RegionError};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, ftruncate};
use rustix::io::{pread, pwrite};

const POLICIES: [PagePolicy; 3] = [PagePolicy::Auto, PagePolicy::HugeOnly, PagePolicy::Ordinary];

#[test]
fn empty_and_oversized_regions_are_refused() {
    for policy in POLICIES {
        assert!(matches!(Region::map(0, policy), Err(RegionError::Empty)));
    }
    for len in [usize::MAX, usize::MAX - 4095, 1 << 47, 1 << 46, 1 << 44] {
        for policy in [PagePolicy::Auto, PagePolicy::Ordinary] {
            let error = Region::map(len, policy).expect_err("no machine has that");
            let RegionError::Shortage { wanted, available } = error else {
                panic!("{error}")
            };
            assert!(wanted == len && available < len);
            let line = error.to_string();
            assert!(line.contains(&wanted.to_string()), "{line}");
            assert!(line.contains(&available.to_string()), "{line}");
        }
        assert!(Region::map(len, PagePolicy::HugeOnly).is_err());
    }
}

#[test]
fn missing_hugepages_error_names_the_remedy() {
    // More hugepages than any test machine has reserved.
    let error = Region::map(1 << 44, PagePolicy::HugeOnly).expect_err("16 TiB");
    let RegionError::NoHugePages { wanted, missing } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        (*wanted, missing.len()),
        (1 << 44, 2),
        "one notice per size"
    );
    let line = error.to_string();
    assert!(line.contains("hugepages") && !line.contains('\n'), "{line}");
    assert!(error.source().is_none());
}

/// The lines of `/proc/self/smaps` about the mapping that begins at `address`.
fn smaps(address: usize) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let head = format!("{address:x}-");
    let mut lines = text
        .lines()
        .map(str::to_owned)
        .skip_while(|line| !line.starts_with(&head));
    lines.next().expect("the mapping is there");
    lines
        .take_while(|line| !line.split(' ').next().unwrap().contains('-'))
        .collect()
}

fn field<'a>(lines: &'a [String], key: &str) -> &'a str {
    lines
        .iter()
        .find_map(|line| line.strip_prefix(key))
        .unwrap()
        .trim()
}

#[test]
fn region_is_populated_pinned_and_not_inherited_by_forks() {
    for len in [1, 4096, 4097, (1 << 21) + 1, 70 << 20] {
        let region = Region::map(len, PagePolicy::Ordinary).unwrap();
        assert_eq!(region.page_size(), PageSize::Ordinary);
        assert_eq!(
            region.len(),
            len.next_multiple_of(rustix::param::page_size())
        );
        assert_eq!(region.base_address() % (1 << 21), 0);
        let allocated = fstat(&region).unwrap().st_blocks * 512;
        assert!(
            allocated >= i64::try_from(region.len()).unwrap(),
            "{allocated} of {len}"
        );
        let lines = smaps(region.base_address());
        let resident = field(&lines, "Rss:").trim_end_matches("kB").trim();
        assert_eq!(resident.parse::<usize>().unwrap() * 1024, region.len());
        let flags: Vec<&str> = field(&lines, "VmFlags:").split(' ').collect();
        assert!(flags.contains(&"dc"), "not copied on fork: {flags:?}");
        let noticed = region
            .notices()
            .iter()
            .any(|n| n.to_string().contains("locked"));
        assert_eq!(flags.contains(&"lo"), !noticed, "{flags:?}");
    }
}

#[test]
fn hugepages_are_used_or_a_notice_is_raised() {
    let region = Region::map((4 << 20) + 1, PagePolicy::Auto).unwrap();
    match region.page_size() {
        PageSize::Huge2MiB => assert_eq!(region.len(), 6 << 20),
        PageSize::Ordinary => {
            let line = region.notices()[0].to_string();
            assert!(line.contains("2 MiB hugepages"), "{line}");
        }
        PageSize::Huge1GiB => panic!("4 MiB are no multiple of 1 GiB"),
    }
    let small = Region::map(1 << 20, PagePolicy::Auto).unwrap();
    assert_eq!(small.page_size(), PageSize::Ordinary);
    assert!(
        small
            .notices()
            .iter()
            .all(|n| !n.to_string().contains("huge")),
        "none would fit"
    );
}

#[test]
fn size_of_a_memory_file_is_sealed() {
    for len in [1 << 20, 4 << 20] {
        for policy in [PagePolicy::Auto, PagePolicy::Ordinary] {
            let region = Region::map(len, policy).unwrap();
            let mut bytes = [1; 4096];
            assert_eq!(pread(&region, &mut bytes, 0), Ok(4096));
            assert_eq!(bytes, [0; 4096]);
            let seals = fcntl_get_seals(&region).unwrap();
            let has_seals = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
            assert!(
                has_seals || len >= 2 << 20,
                "only a tmpfs with transparent hugepages has none"
            );
            if has_seals {
                assert!(ftruncate(&region, 0).is_err());
                assert!(ftruncate(&region, 1 << 30).is_err());
            }
            assert_eq!(
                fstat(&region).unwrap().st_size,
                i64::try_from(region.len()).unwrap()
            );
        }
    }
}

#[test]
fn memory_continues_with_the_same_bytes_and_pages() {
    for len in [4097, 4 << 20, (4 << 20) + 1] {
        for policy in [PagePolicy::Auto, PagePolicy::Ordinary] {
            let first = Region::map(len, policy).unwrap();
            pwrite(&first, b"kept", 4093).unwrap();
            let passed = first.as_fd().try_clone_to_owned().unwrap();
            let next = Region::adopt(passed, len).unwrap();
            assert_eq!(next.len(), first.len());
            assert_eq!(next.page_size(), first.page_size());
            drop(first);
            let mut bytes = [0; 4];
            assert_eq!(pread(&next, &mut bytes, 4093), Ok(4));
            assert_eq!(&bytes, b"kept");
            // Again, as by a third process.
            let passed = next.as_fd().try_clone_to_owned().unwrap();
            assert_eq!(Region::adopt(passed, len).unwrap().len(), next.len());
        }
    }
}

#[test]
fn passed_file_of_another_size_is_refused() {
    let region = Region::map(8192, PagePolicy::Ordinary).unwrap();
    for wanted in [0, 1, 4096, 8193, 1 << 47] {
        let passed = region.as_fd().try_clone_to_owned().unwrap();
        let error = Region::adopt(passed, wanted).expect_err("another size");
        let expected =
            format!("the file that was passed for {wanted} bytes of memory has 8192 bytes");
        assert_eq!(error.to_string(), expected);
    }
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(Region::adopt(socket.into(), 4096).is_err());
}

struct Recorder {
    seen: RefCell<Vec<(usize, usize)>>,
    limit: usize,
}

impl DmaMap for Recorder {
    fn attach(&self, region: &Region) -> Result<(), DmaMapError> {
        if region.len() > self.limit {
            return Err(DmaMapError::LimitReached {
                wanted: region.len(),
                limit: self.limit,
            });
        }
        self.seen
            .borrow_mut()
            .push((region.base_address(), region.len()));
        Ok(())
    }
}

#[test]
fn device_map_is_called_once_for_the_whole_region() {
    let region = Region::map(8192, PagePolicy::Ordinary).unwrap();
    let map = Recorder {
        seen: RefCell::default(),
        limit: 4096,
    };
    let error = region.attach(&map).expect_err("over the limit");
    assert_eq!(
        error.to_string(),
        "cannot map 8192 bytes for a device: the limit is 4096 bytes"
    );
    let map = Recorder { limit: 8192, ..map };
    region.attach(&map).unwrap();
    assert_eq!(*map.seen.borrow(), [(region.base_address(), 8192)]);
}

#[test]
fn dropped_region_is_unmapped() {
    // No other test maps as much, so the address range cannot be mapped again in full.
    let len = 96 << 20;
    let region = Region::map(len, PagePolicy::Ordinary).unwrap();
    let range = format!(
        "{:x}-{:x}",
        region.base_address(),
        region.base_address() + len
    );
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&range))
    };
    assert!(is_mapped());
    drop(region);
    assert!(!is_mapped());
}
