//! Devices with damaged metadata, and devices that fail: a clear error, never a wrong volume.

use files_store::{
    DiskCompletion, Error, FormatOptions, Formatter, NewNode, OpenError, Operation, Progress,
    Volume,
};

use crate::disk::{DEVICE_BYTES, Disk, formatted, open, options, settle};
use crate::names::{NOW, file, object};
use crate::random::Random;

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

/// The places of the headers of both checkpoints, the older one first.
fn checkpoints(content: &[u8]) -> [usize; 2] {
    let places = (0..content.len()).step_by(BLOCK);
    let found: Vec<usize> = places
        .filter(|&at| content[at..].starts_with(b"WNDLCKPT"))
        .collect();
    found.try_into().expect("two checkpoints")
}

#[test]
fn a_damaged_checkpoint_is_an_error_unless_an_older_one_replaces_it() {
    let content = with_log();
    let [older, newer] = checkpoints(&content);
    let damaged = |places: &[usize]| {
        let mut content = content.clone();
        for at in places {
            content[*at] ^= 1;
        }
        open(&content)
    };
    for at in [newer, newer + 30] {
        let volume = damaged(&[at]).expect("the older one has a log").start();
        assert!(volume.lookup(volume.root(), b"b").is_ok(), "{at}");
    }
    let none = OpenError::Damaged("it has no checkpoint");
    assert_eq!(damaged(&[older, newer]).map(|_| ()), Err(none));
    let wrong = OpenError::Damaged("its checkpoint has a wrong checksum");
    assert_eq!(damaged(&[newer + BLOCK + 5]).map(|_| ()), Err(wrong));
}

/// What was read when the volume was opened may be lost although every later flush succeeds: a flush
/// before has failed, and the cache has forgotten that. Of this, what the medium has.
fn without_last_batches(cached: &[u8], kept: usize) -> Vec<u8> {
    let mut medium = cached.to_vec();
    for at in &batches(cached)[kept..] {
        medium[*at..at + BLOCK].fill(0);
    }
    medium
}

fn has(volume: &Volume, name: &[u8]) -> bool {
    volume.lookup(volume.root(), name).is_ok()
}

#[test]
fn what_only_a_cache_had_is_written_again() {
    let cached = with_log();
    for kept in 0..3 {
        let mut volume = open(&cached).expect("opens").start();
        let mut disk = Disk::new(without_last_batches(&cached, kept));
        file(&mut volume, b"c");
        settle(&mut volume, &mut disk);
        let volume = open(disk.content()).expect("opens").start();
        let names: [&[u8]; 3] = [b"a", b"b", b"c"];
        assert!(names.iter().all(|it| has(&volume, it)), "{kept}");
    }
}

/// Until that is written again, nothing new is durable.
#[test]
fn a_power_cut_while_a_volume_begins_loses_nothing() {
    let cached = with_log();
    let mut random = Random::new(11);
    for round in 0..400 {
        let kept = round % 4;
        let mut volume = open(&cached).expect("opens").start();
        let mut disk = Disk::new(without_last_batches(&cached, kept));
        let created = volume.create(volume.root(), b"c", &object(NewNode::File), NOW);
        let created = created.expect("room").ticket;
        for _ in 0..random.below(12) {
            while let Some(request) = volume.poll() {
                disk.submit(request);
            }
            if disk.has_work() {
                volume.complete(disk.complete(&mut random));
            }
        }
        let is_durable = volume.progress(created) == Progress::Durable;
        let after = open(&disk.power_cut(&mut random)).expect("opens");
        assert_eq!(after.problems(), [""; 0]);
        let after = after.start();
        assert!(!is_durable || has(&after, b"c"), "{kept}");
        let keeps_all = is_durable || kept == 3;
        assert!(
            !keeps_all || has(&after, b"a") && has(&after, b"b"),
            "{kept}"
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
    let newer = checkpoints(&content)[1];
    let places = [
        0..96,
        BLOCK..BLOCK + 80,
        2 * BLOCK..2 * BLOCK + 160,
        newer..newer + 80,
    ];
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
