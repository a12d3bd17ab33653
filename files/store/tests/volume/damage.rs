//! Devices with damaged metadata, and devices that fail: a clear error, never a wrong volume.

use files_store::{
    DiskCompletion, Error, FormatOptions, Formatter, NewNode, OpenError, Operation, Progress,
    Volume,
};

use crate::disk::{DEVICE_BYTES, Disk, formatted, open, options, settle};
use crate::names::{NOW, file, object};

const BLOCK: usize = 4096;

/// A device with a volume that has three batches in its log.
fn with_log() -> Vec<u8> {
    let content = formatted();
    let mut volume = open(&content).expect("opens").start();
    let mut disk = Disk::new(content);
    settle(&mut volume, &mut disk);
    for name in [b"a", b"b"] {
        file(&mut volume, name);
        settle(&mut volume, &mut disk);
    }
    disk.content().to_vec()
}

/// The places of batches on the device.
fn batches(content: &[u8]) -> Vec<usize> {
    let places = (0..content.len()).step_by(BLOCK);
    places
        .filter(|&at| content[at..].starts_with(b"WNDLBTCH"))
        .collect()
}

#[test]
fn a_damaged_batch_before_others_is_an_error_and_a_torn_last_one_is_not() {
    let content = with_log();
    let places = batches(&content);
    assert_eq!(places.len(), 3);
    for &place in &places[..2] {
        for at in [place, place + 9, place + 60] {
            let mut content = content.clone();
            content[at] ^= 1;
            let error = OpenError::Damaged("a batch within its log is not intact");
            assert_eq!(open(&content).map(|_| ()), Err(error));
        }
    }
    let mut content = content;
    content[places[2] + 60] ^= 1;
    let volume = open(&content).expect("opens").start();
    assert!(volume.lookup(volume.root(), b"a").is_ok());
    assert_eq!(volume.lookup(volume.root(), b"b"), Err(Error::NotFound));
}

#[test]
fn a_damaged_checkpoint_is_an_error() {
    let content = with_log();
    let header = BLOCK;
    let cases = [
        (header, "it has no checkpoint"),
        (header + 30, "it has no checkpoint"),
        (header + BLOCK + 5, "its checkpoint has a wrong checksum"),
    ];
    for (at, reason) in cases {
        let mut content = content.clone();
        assert_eq!(&content[header..header + 8], b"WNDLCKPT");
        content[at] ^= 1;
        assert_eq!(
            open(&content).map(|_| ()),
            Err(OpenError::Damaged(reason)),
            "{at}"
        );
    }
}

#[test]
fn a_damaged_or_foreign_superblock_is_an_error() {
    let content = formatted();
    let opened = |at: usize, value: u8| {
        let mut content = content.clone();
        content[at] ^= value;
        open(&content).map(|_| ()).expect_err("refused")
    };
    assert_eq!(opened(0, 1), OpenError::NoVolume);
    assert_eq!(opened(8, 2), OpenError::Version(3));
    let damaged = OpenError::Damaged("its superblock has a wrong checksum");
    assert_eq!(opened(40, 1), damaged);
    assert_eq!(open(&[0; 1 << 20]).map(|_| ()), Err(OpenError::NoVolume));
    let short = &content[..content.len() - BLOCK];
    let error = OpenError::DeviceTooSmall {
        device: DEVICE_BYTES - BLOCK as u64,
        volume: DEVICE_BYTES,
    };
    assert_eq!(open(short).map(|_| ()), Err(error));
    let small = FormatOptions {
        device_bytes: 1 << 20,
        ..options()
    };
    let refused = Formatter::new(&small).map(|_| ());
    assert!(
        matches!(refused, Err(OpenError::NoRoom { .. })),
        "{refused:?}"
    );
}

#[test]
fn any_changed_byte_of_metadata_is_found_or_harmless() {
    let content = with_log();
    let last = batches(&content)[2];
    let places = [0..96, BLOCK..BLOCK + 80, 2 * BLOCK..2 * BLOCK + 160];
    for at in places.into_iter().flatten() {
        let mut content = content.clone();
        content[at] ^= 0x10;
        if let Ok(opening) = open(&content) {
            assert_eq!(opening.problems(), [""; 0], "{at}");
            let volume = opening.start();
            assert!(volume.lookup(volume.root(), b"b").is_ok(), "{at} of {last}");
        }
    }
}

#[test]
fn a_device_that_fails_ends_all_changes_and_nothing_is_called_durable() {
    let content = formatted();
    let mut volume: Volume = open(&content).expect("opens").start();
    let mut disk = Disk::new(content);
    settle(&mut volume, &mut disk);
    let root = volume.root();
    let created = volume
        .create(root, b"a", &object(NewNode::File), NOW)
        .expect("room");
    let request = volume.poll().expect("the batch");
    let Operation::Write { data, .. } = request.operation else {
        panic!("{request:?}");
    };
    assert_eq!(volume.progress(created.ticket), Progress::Pending);
    let id = request.id;
    volume.complete(DiskCompletion {
        id,
        is_ok: false,
        data,
    });
    assert_eq!(volume.progress(created.ticket), Progress::Failed);
    assert_eq!(volume.poll(), None);
    let more = volume.create(root, b"b", &object(NewNode::File), NOW);
    assert_eq!(more, Err(Error::Io));
    assert!(volume.lookup(root, b"a").is_ok(), "reading goes on");
}
