//! Checks that a program with real verbs starts on a machine without rdma-core: its ELF header
//! names neither library. The test reads its own image, which uses the whole module.
#![cfg(feature = "verbs")]

use rdma::{Device, EventChannel, Provider, Unavailable, Verbs};

/// Uses every part of verbs, so that the linker keeps it.
fn use_verbs() -> Result<usize, rdma::Error> {
    let verbs = Verbs::open()?;
    let devices = verbs.devices()?;
    let mut channel = verbs.event_channel()?;
    while let Ok(Some(_)) = channel.next_event() {}
    for device in &devices {
        let _domain = device.create_domain()?;
    }
    Ok(devices.len())
}

#[test]
fn program_does_not_link_rdma_core_libraries() {
    match use_verbs() {
        Ok(count) => println!("{count} devices"),
        Err(error) => println!("{error}"),
    }
    let image = std::fs::read("/proc/self/exe").expect("our own image");
    let needed = needed_libraries(&image).expect("an ELF image of 64 bits");
    assert!(
        needed.iter().any(|name| name.starts_with("libc.so")),
        "{needed:?}"
    );
    for name in &needed {
        assert!(
            !name.contains("ibverbs") && !name.contains("rdmacm"),
            "{needed:?}"
        );
    }
}

#[test]
fn machine_without_rdma_gets_a_one_line_error_with_remedy() {
    match use_verbs() {
        Ok(_) => {}
        Err(rdma::Error::Unavailable(reason)) => {
            let line = reason.to_string();
            assert!(line.starts_with("RDMA is unavailable: "), "{line}");
            assert!(!line.contains('\n') && !reason.remedy().is_empty());
            assert!(!matches!(reason, Unavailable::NotOnDevice { .. }));
        }
        Err(other) => panic!("{other}"),
    }
}

/// Names in the DT_NEEDED entries of an image (System V ABI, edition 4.1, chapters 4 and 5).
fn needed_libraries(image: &[u8]) -> Option<Vec<String>> {
    const PROGRAM_LOAD: u64 = 1;
    const PROGRAM_DYNAMIC: u64 = 2;
    const TAG_NULL: u64 = 0;
    const TAG_NEEDED: u64 = 1;
    const TAG_STRING_TABLE: u64 = 5;

    let number = |at: u64, bytes: usize| -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(image.get(at..at + bytes)?);
        Some(u64::from_le_bytes(value))
    };
    // EI_CLASS 2: 64 bits; EI_DATA 1: little-endian.
    if image.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = number(32, 8)?;
    let (size, count) = (number(54, 2)?, number(56, 2)?);
    let programs: Vec<_> = (0..count)
        .filter_map(|index| {
            let at = table + index * size;
            let kind = number(at, 4)?;
            let (offset, address, bytes) =
                (number(at + 8, 8)?, number(at + 16, 8)?, number(at + 32, 8)?);
            Some((kind, offset, address, bytes))
        })
        .collect();
    let (_, dynamic, _, bytes) = *programs.iter().find(|one| one.0 == PROGRAM_DYNAMIC)?;
    let entries: Vec<_> = (0..bytes / 16)
        .filter_map(|index| {
            let at = dynamic + index * 16;
            Some((number(at, 8)?, number(at + 8, 8)?))
        })
        .take_while(|entry| entry.0 != TAG_NULL)
        .collect();
    let strings = entries.iter().find(|entry| entry.0 == TAG_STRING_TABLE)?.1;
    let (_, offset, address, _) = *programs
        .iter()
        .find(|one| one.0 == PROGRAM_LOAD && (one.2..one.2 + one.3).contains(&strings))?;
    let strings = strings - address + offset;
    entries
        .iter()
        .filter(|entry| entry.0 == TAG_NEEDED)
        .map(|entry| {
            let start = usize::try_from(strings + entry.1).ok()?;
            let name = image.get(start..)?.split(|byte| *byte == 0).next()?;
            Some(String::from_utf8_lossy(name).into_owned())
        })
        .collect()
}
