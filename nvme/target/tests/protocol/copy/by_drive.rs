//! Copies that a drive executes by itself: what it does not get, and what happens when it fails, is removed
//! or outlives its host. The result is that of a Copy through the arena.

use std::sync::atomic::Ordering;

use block::{CopyLimits, DataPath, DeviceError};

use super::across::{PLAIN_DEVICE, RAM_DEVICE, begin_across};
use super::in_device::{DELAY, FAIL, Lab, OwnCopies};
use super::*;

const LIMITS: CopyLimits = CopyLimits {
    sources_max: 2,
    source_blocks_max: 4,
    blocks_max: 6,
};

const ALLOWED: DataPath = DataPath::Best;

fn lab() -> Lab {
    Lab::copying(ALLOWED, DeviceError::Internal, LIMITS)
}

/// Devices of one drive: RAM copies from PLAIN within [`LIMITS`], PLAIN within larger ones.
const OF_ONE_DRIVE: [OwnCopies; 2] = [
    OwnCopies {
        limits: LIMITS,
        drive: Some((1, 1)),
    },
    OwnCopies {
        limits: CopyLimits {
            sources_max: 4,
            source_blocks_max: 8,
            blocks_max: 16,
        },
        drive: Some((1, 2)),
    },
];

fn lab_across(error: DeviceError) -> Lab {
    let mut lab = Lab::copying_across([ALLOWED; 2], error, OF_ONE_DRIVE);
    fill(&mut lab.world, lab.io, PLAIN, 32);
    lab
}

/// The same counts of PLAIN.
fn counts_of_plain(lab: &Lab) -> (u64, u64, u64, u64) {
    let drive = lab.world.target.copy_totals(PLAIN_DEVICE).drive;
    let taken = lab.controls[1].copies.load(Ordering::Relaxed);
    let (host, in_memory, _) = lab.counts(PLAIN);
    (drive, taken, host, in_memory)
}

/// Copies that the drive has executed, that it has taken, and those of other ways.
fn counts(lab: &Lab) -> (u64, u64, u64, u64) {
    let drive = lab.world.target.copy_totals(RAM_DEVICE).drive;
    let taken = lab.controls[0].copies.load(Ordering::Relaxed);
    let (host, in_memory, _) = lab.counts(RAM);
    (drive, taken, host, in_memory)
}

fn reasons(lab: &Lab) -> Vec<(&'static str, u64)> {
    lab.counts(RAM).2
}

#[track_caller]
fn assert_over(mut lab: Lab, lost: u64) {
    let memory = lab.memory.current();
    lab.assert_over(&memory, lost);
}

/// Limits of 0, and copies beyond the limits, take another way; so do those whose sources the drive does
/// not have, or may overwrite.
#[test]
fn drive_gets_no_copy_that_it_cannot_execute() {
    let nothing = [
        CopyLimits {
            sources_max: 0,
            ..LIMITS
        },
        CopyLimits {
            source_blocks_max: 0,
            ..LIMITS
        },
        CopyLimits {
            blocks_max: 0,
            ..LIMITS
        },
    ];
    for limits in nothing {
        let mut lab = Lab::copying(ALLOWED, DeviceError::Internal, limits);
        lab.copy(RAM, &[(RAM, 3, 1)], TO).ok();
        lab.expect(RAM, TO, &[4]);
        assert_eq!(counts(&lab), (0, 0, 0, 1), "{limits:?}");
        assert_over(lab, 0);
    }
    let mut lab = lab();
    for (sources, expected) in [
        // A range of 5 blocks, 7 blocks in all, and three ranges.
        (vec![(RAM, 3, 5)], vec![4, 5, 6, 7, 8]),
        (vec![(RAM, 3, 4), (RAM, 9, 3)], vec![4, 5, 6, 7, 10, 11, 12]),
        (vec![(RAM, 3, 1), (RAM, 9, 1), (RAM, 5, 1)], vec![4, 10, 6]),
        // Another device.
        (vec![(RAM, 3, 1), (PLAIN, 9, 1)], vec![4, 0]),
    ] {
        lab.copy(RAM, &sources, TO).ok();
        lab.expect(RAM, TO, &expected);
    }
    assert_eq!(counts(&lab), (0, 0, 0, 4));
    // Format 0 allows an overlap, and the destination gets the previous content.
    run(&mut lab.world, lab.io, RAM, &[(4, 3), (9, 1)], 3).ok();
    lab.expect(RAM, 2, &[3, 5, 6, 7, 10, 8]);
    run(&mut lab.world, lab.io, RAM, &[(10, 2)], 11).ok();
    lab.expect(RAM, 10, &[11, 11, 12]);
    assert_eq!(counts(&lab), (0, 0, 0, 6));
    run(&mut lab.world, lab.io, RAM, &[(RAM_BLOCKS - 1, 2)], TO).is(OUT_OF_RANGE);
    run(&mut lab.world, lab.io, RAM, &[(3, 2)], RAM_BLOCKS - 1).is(OUT_OF_RANGE);
    assert_eq!(counts(&lab), (0, 0, 0, 6));
    assert_over(lab, 0);
    // It was not allowed.
    let mut lab = Lab::copying(DataPath::Host, DeviceError::Internal, LIMITS);
    lab.copy(RAM, &[(RAM, 3, 1)], TO).ok();
    assert_eq!(counts(&lab), (0, 0, 1, 0));
    assert_over(lab, 0);
}

#[test]
fn drive_copies_within_itself() {
    let mut lab = lab();
    lab.copy(RAM, &[(RAM, 3, 2), (RAM, 9, 4)], TO).ok();
    lab.expect(RAM, TO, &[4, 5, 10, 11, 12, 13]);
    // Up to its own destination, and from behind it.
    run(&mut lab.world, lab.io, RAM, &[(8, 2), (13, 1)], 10).ok();
    lab.expect(RAM, 8, &[9, 10, 9, 10, 14, 14]);
    assert_eq!(counts(&lab), (2, 2, 0, 0));
    assert_eq!((lab.in_memory(), reasons(&lab)), (0, vec![]));
    assert_over(lab, 0);
}

/// A drive that is full or that fails, after it has copied a part: the copy is complete by another way.
#[test]
fn failed_copy_takes_another_way() {
    let mut lab = lab();
    lab.controls[0].copies_refused.store(1, Ordering::Relaxed);
    lab.copy(RAM, &[(RAM, 3, 2)], TO).ok();
    lab.expect(RAM, TO, &[4, 5]);
    assert_eq!(counts(&lab), (0, 0, 1, 0));
    assert_eq!(reasons(&lab), [("busy", 1)]);
    assert_over(lab, 0);
    for error in [
        DeviceError::Internal,
        DeviceError::Interrupted,
        DeviceError::MediaRead,
        DeviceError::MediaWrite,
        DeviceError::Unsupported,
        DeviceError::NoSpace,
    ] {
        for copied in 0..=2 {
            let mut lab = Lab::copying(ALLOWED, error, LIMITS);
            let control = &lab.controls[0];
            control.copied_sources_max.store(copied, Ordering::Relaxed);
            lab.faults[0].arm(FAIL, true);
            lab.copy(RAM, &[(RAM, 3, 2), (RAM, 9, 4)], TO).ok();
            assert_eq!(lab.faults[0].fired(FAIL), 1);
            lab.expect(RAM, TO, &[4, 5, 10, 11, 12, 13]);
            assert_eq!(counts(&lab), (0, 1, 1, 0), "{error:?}");
            assert_eq!(reasons(&lab), [("failed", 1)]);
            assert_over(lab, 0);
        }
    }
}

/// The host has lost access when its copy starts again, of which the drive has written a part: a status that
/// refuses it would say that nothing is written.
#[test]
fn copy_that_was_executed_in_part_is_not_refused() {
    let access = |lab: &mut Lab, state| {
        let path = AnaPath {
            port: TCP_PORT,
            group: 1,
        };
        let states = BTreeMap::from([(path, state)]);
        let done = lab.world.target.set_ana_states(SUBSYSTEM, &states);
        done.expect("a right change");
    };
    for (copied, fails) in [(0, false), (1, true), (0, true)] {
        let mut lab = lab();
        let control = &lab.controls[0];
        control.copied_sources_max.store(copied, Ordering::Relaxed);
        control
            .copies_refused
            .store(u64::from(!fails), Ordering::Relaxed);
        lab.faults[0].arm(FAIL, fails);
        let sources = [(RAM, 3, 2), (RAM, 9, 4)];
        let tag = begin_across(&mut lab.world, lab.io, RAM, &sources, TO);
        access(&mut lab, AnaState::Inaccessible);
        let reply = lab.world.wait(lab.io, tag);
        let expected = match fails {
            true => Status::COMMAND_INTERRUPTED,
            // The drive has not begun it.
            false => Status::ANA_INACCESSIBLE,
        };
        assert!(
            reply.status().is(expected) && !reply.status().dnr(),
            "{}",
            reply.status()
        );
        access(&mut lab, AnaState::Optimized);
        lab.world.settle();
        let written = if copied == 1 { [4, 5, 0] } else { [0; 3] };
        lab.expect(RAM, TO, &written);
        assert_over(lab, 0);
    }
}

/// A drive that is gone, and one that fails by each way: the host learns that no range is certain.
#[test]
fn copy_that_fails_by_each_way_fails() {
    let mut lab = Lab::copying(ALLOWED, DeviceError::Removed, LIMITS);
    lab.faults[0].arm(FAIL, true);
    let reply = lab.copy(RAM, &[(RAM, 3, 2)], TO);
    assert!(!reply.status().is_success(), "{}", reply.status());
    assert_eq!(counts(&lab), (0, 1, 0, 0), "it is not tried again");
    assert_over(lab, 0);
    let mut lab = Lab::copying(ALLOWED, DeviceError::MediaRead, LIMITS);
    let tag = begin_held(&mut lab);
    lab.faults[0].arm(FAIL, true);
    release(&mut lab);
    lab.world.wait(lab.io, tag).ok();
    assert_eq!(counts(&lab), (1, 1, 0, 0), "the request had been taken");
    assert_over(lab, 0);
}

/// Begins a copy that its drive does not complete.
fn begin_held(lab: &mut Lab) -> u64 {
    lab.faults[0].arm(DELAY, true);
    let tag = begin_across(&mut lab.world, lab.io, RAM, &[(RAM, 3, 2)], TO);
    lab.world.settle();
    assert_eq!(counts(lab).1, 1);
    tag
}

fn release(lab: &mut Lab) {
    lab.faults[0].arm(DELAY, false);
    lab.faults[0].release();
    lab.world.settle();
}

/// The drive is removed with the copy in flight: it ends, and its lease returns.
#[test]
fn removed_drive_ends_its_copies() {
    let mut lab = lab();
    let tag = begin_held(&mut lab);
    let now = lab.world.now;
    for node in &mut lab.world.nodes {
        node.cut(usize::from(RAM_DEVICE.0), now);
    }
    let status = lab.world.wait(lab.io, tag).status();
    assert_eq!(status, Status::INTERNAL_PATH_ERROR);
    release(&mut lab);
    assert_over(lab, 0);
}

/// The end of the connection, and a reset of the controller, with the copy in the drive: nothing follows
/// it, whether it fails or not.
#[test]
fn copies_of_orphans_end() {
    for (is_reset, fails) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut lab = lab();
        lab.faults[0].arm(FAIL, fails);
        begin_held(&mut lab);
        if is_reset {
            lab.world.set_cc(lab.admin, Cc::new());
        }
        lab.world.close(lab.io);
        lab.world.settle();
        release(&mut lab);
        let totals = lab.world.target.copy_totals(RAM_DEVICE);
        assert_eq!((totals.host, totals.drive, totals.device_memory), (0, 0, 0));
        assert_over(lab, 0);
    }
}

/// What is no copy between two namespaces of one drive, or exceeds the limits of one of them, takes another
/// way.
#[test]
fn drive_gets_no_copy_between_namespaces_that_it_cannot_execute() {
    let other = |copies: OwnCopies, drive: Option<(u64, u32)>| OwnCopies { drive, ..copies };
    let [ram, plain] = OF_ONE_DRIVE;
    for (paths, copies) in [
        // Of two drives, of none, and twice the same namespace.
        ([ALLOWED; 2], [ram, other(plain, Some((2, 2)))]),
        ([ALLOWED; 2], [ram, other(plain, None)]),
        ([ALLOWED; 2], [other(ram, None), plain]),
        ([ALLOWED; 2], [ram, other(plain, Some((1, 1)))]),
        // One of them keeps to the drive's memory, or to the arena.
        ([ALLOWED, DataPath::DeviceMemory], OF_ONE_DRIVE),
        ([DataPath::DeviceMemory, ALLOWED], OF_ONE_DRIVE),
        ([ALLOWED, DataPath::Host], OF_ONE_DRIVE),
        ([DataPath::Host, ALLOWED], OF_ONE_DRIVE),
    ] {
        let mut lab = Lab::copying_across(paths, DeviceError::Internal, copies);
        lab.copy(PLAIN, &[(RAM, 3, 2)], 20).ok();
        lab.expect(PLAIN, 20, &[4, 5]);
        let (drive, taken, host, in_memory) = counts_of_plain(&lab);
        assert_eq!((drive, taken, host + in_memory), (0, 0, 1), "{copies:?}");
        assert_over(lab, 0);
    }
    let mut lab = lab_across(DeviceError::Internal);
    for (sources, expected) in [
        // Limits of the source only: a range of 5 blocks, 7 blocks in all, and three ranges.
        (vec![(RAM, 3, 5)], vec![4, 5, 6, 7, 8]),
        (vec![(RAM, 3, 4), (RAM, 9, 3)], vec![4, 5, 6, 7, 10, 11, 12]),
        (vec![(RAM, 3, 1), (RAM, 9, 1), (RAM, 5, 1)], vec![4, 10, 6]),
        // Two namespaces.
        (vec![(RAM, 3, 1), (PLAIN, 9, 1)], vec![4, 10]),
    ] {
        lab.copy(PLAIN, &sources, 20).ok();
        lab.expect(PLAIN, 20, &expected);
    }
    lab.copy(PLAIN, &[(RAM, RAM_BLOCKS - 1, 2)], 20)
        .is(OUT_OF_RANGE);
    lab.copy(RAM, &[(PLAIN, 99, 2)], TO).is(OUT_OF_RANGE);
    assert_eq!(counts_of_plain(&lab), (0, 0, 0, 4));
    // It is no origin of copies now, such as after a change of its format.
    lab.controls[0].is_no_origin.store(true, Ordering::Relaxed);
    lab.copy(PLAIN, &[(RAM, 3, 2)], 20).ok();
    assert_eq!(counts_of_plain(&lab), (0, 0, 0, 5));
    assert_over(lab, 0);
}

/// The same blocks of another namespace do not overlap the destination.
#[test]
fn drive_copies_between_its_namespaces() {
    let mut lab = lab_across(DeviceError::Internal);
    lab.copy(PLAIN, &[(RAM, 3, 2), (RAM, 9, 4)], 9).ok();
    lab.expect(PLAIN, 9, &[4, 5, 10, 11, 12, 13]);
    lab.copy(RAM, &[(PLAIN, 9, 3)], 9).ok();
    lab.expect(RAM, 8, &[9, 4, 5, 10, 13]);
    assert_eq!(counts(&lab), (1, 1, 0, 0));
    assert_eq!(counts_of_plain(&lab), (1, 1, 0, 0));
    assert_eq!((lab.in_memory(), reasons(&lab)), (0, vec![]));
    // Within a namespace, by the same format.
    lab.copy(RAM, &[(RAM, 3, 2)], TO).ok();
    lab.expect(RAM, TO, &[4, 5]);
    assert_eq!(counts(&lab), (2, 2, 0, 0));
    assert_over(lab, 0);
}

/// A drive that is full, refuses, or fails after a part: the copy is complete by another way, from the
/// sources of the host's list.
#[test]
fn failed_copy_between_namespaces_takes_another_way() {
    for (prepare, reason) in [(0, "busy"), (1, "failed")] {
        let mut lab = lab_across(DeviceError::Internal);
        let control = &lab.controls[1];
        match prepare {
            0 => control.copies_refused.store(1, Ordering::Relaxed),
            _ => control.refuses_copies.store(true, Ordering::Relaxed),
        }
        lab.copy(PLAIN, &[(RAM, 3, 2), (RAM, 9, 4)], 20).ok();
        lab.expect(PLAIN, 20, &[4, 5, 10, 11, 12, 13]);
        assert_eq!(counts_of_plain(&lab), (0, 0, 1, 0));
        assert_eq!(lab.counts(PLAIN).2, [(reason, 1)]);
        assert_over(lab, 0);
    }
    for error in [
        DeviceError::Internal,
        DeviceError::Interrupted,
        DeviceError::MediaRead,
        DeviceError::Unsupported,
    ] {
        for copied in 0..=2 {
            let mut lab = lab_across(error);
            let control = &lab.controls[1];
            control.copied_sources_max.store(copied, Ordering::Relaxed);
            lab.faults[1].arm(FAIL, true);
            lab.copy(PLAIN, &[(RAM, 3, 2), (RAM, 9, 4)], 20).ok();
            assert_eq!(lab.faults[1].fired(FAIL), 1);
            lab.expect(PLAIN, 20, &[4, 5, 10, 11, 12, 13]);
            assert_eq!(counts_of_plain(&lab), (0, 1, 1, 0), "{error:?}");
            assert_eq!(lab.counts(PLAIN).2, [("failed", 1)]);
            assert_over(lab, 0);
        }
    }
}

fn release_across(lab: &mut Lab) {
    lab.faults[1].arm(DELAY, false);
    lab.faults[1].release();
    lab.world.settle();
}

/// A device is removed with the copy in flight: the request is in the destination, and the copy from a source
/// that is gone is complete if the drive says so, and fails otherwise.
#[test]
fn removed_device_ends_copies_between_namespaces() {
    for (removed, fails, status) in [
        (PLAIN_DEVICE, false, Status::INTERNAL_PATH_ERROR),
        (RAM_DEVICE, false, Status::SUCCESS),
        (RAM_DEVICE, true, Status::INTERNAL_PATH_ERROR),
    ] {
        let mut lab = lab_across(DeviceError::Internal);
        lab.faults[1].arm(FAIL, fails);
        lab.faults[1].arm(DELAY, !fails);
        let tag = begin_across(&mut lab.world, lab.io, PLAIN, &[(RAM, 3, 2)], 20);
        assert_eq!(counts_of_plain(&lab).1, 1, "it is in the drive");
        let now = lab.world.now;
        for node in &mut lab.world.nodes {
            node.cut(usize::from(removed.0), now);
        }
        if removed == RAM_DEVICE {
            release_across(&mut lab);
        }
        let reply = lab.world.wait(lab.io, tag);
        assert_eq!(reply.status(), status, "{removed:?}");
        assert_eq!(lab.faults[1].fired(FAIL), u64::from(fails));
        assert_eq!(reply.dw0(), 0);
        release_across(&mut lab);
        assert_over(lab, 0);
    }
}
