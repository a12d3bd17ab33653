//! Copies that the devices execute by themselves, and what happens if they refuse or fail.

use std::sync::atomic::Ordering;

use block::{
    COPY_REQUEST_TIME_MAX, CopyEnd, CopyError, CopyLimits, CopyMessage, CopyOrigin, CopyStep,
    CopyStop, DeviceClient, DeviceError, OWN_COPY_FAILURES_MAX,
};
use block_testing::{Effect, FaultControl, FaultRule, OperationKinds, When};

use super::in_device::{LIMITS, Lab, Ways};
use super::{BLOCKS, DESTINATION, PIECE, SOURCE, at, failure};

/// Blocks of a copy that the devices execute.
const OWN: u64 = LIMITS.blocks_max as u64;

const _: () = assert!(OWN < PIECE);

fn lab(in_device: bool, rules: [Vec<FaultRule>; 2]) -> Lab {
    let mut lab = Lab::with_faults(8, rules, 0);
    lab.ways = Ways {
        in_device,
        by_device: true,
    };
    lab
}

fn without_faults(in_device: bool) -> Lab {
    lab(in_device, [Vec::new(), Vec::new()])
}

/// A copy by the devices completes with a flush in these tests.
fn of_copies(when: When, effect: Effect) -> [Vec<FaultRule>; 2] {
    let rule = FaultRule::new(OperationKinds::FLUSH, when, effect);
    [Vec::new(), vec![rule]]
}

/// A device of another drive, the same device, and one with other blocks.
#[test]
fn limits_are_those_of_both_devices_of_one_drive() {
    let origin = CopyOrigin {
        drive: 1,
        namespace: 1,
        block_size: 512,
        block_count: 100,
        limits: LIMITS,
    };
    let other = CopyOrigin {
        namespace: 2,
        limits: CopyLimits {
            sources_max: 2,
            source_blocks_max: 100,
            blocks_max: 30,
        },
        ..origin
    };
    let both = CopyLimits {
        sources_max: 2,
        ..LIMITS
    };
    assert_eq!(origin.limits_to(&other), Some(both));
    assert_eq!(other.limits_to(&origin), Some(both));
    assert_eq!(origin.limits_to(&origin), None);
    for changed in [
        CopyOrigin { drive: 2, ..other },
        CopyOrigin {
            block_size: 4096,
            ..other
        },
    ] {
        assert_eq!(origin.limits_to(&changed), None);
    }
    for (sources_max, blocks) in [(0, 0), (1, 8), (2, 16), (3, 20), (u32::MAX, 20)] {
        assert_eq!(LIMITS.consecutive_blocks(sources_max), blocks);
    }
    let endless = CopyLimits {
        sources_max: u32::MAX,
        source_blocks_max: u32::MAX,
        blocks_max: u32::MAX,
    };
    assert_eq!(endless.consecutive_blocks(2), u32::MAX);
}

/// One of the devices is not there, or the destination refuses each copy: nothing is lost, and the next way
/// is taken.
#[test]
fn devices_that_refuse_leave_the_copy_to_the_next_way() {
    for in_device in [true, false] {
        for (place, refuses) in [(SOURCE, false), (DESTINATION, false), (DESTINATION, true)] {
            let mut lab = without_faults(in_device);
            let control = &lab.controls[place];
            let flag = match refuses {
                true => &control.refuses_copies,
                false => &control.is_no_origin,
            };
            flag.store(true, Ordering::Relaxed);
            let progress = lab.start();
            assert_eq!(lab.run(&progress), CopyEnd::Complete);
            lab.expect_copied(BLOCKS);
            assert_eq!(
                (progress.by_device_blocks(), progress.written_blocks()),
                (0, BLOCKS)
            );
            let failures = if refuses { OWN_COPY_FAILURES_MAX } else { 0 };
            assert_eq!(progress.own_copy_failures(), u64::from(failures));
            let in_device_blocks = if in_device { BLOCKS } else { 0 };
            assert_eq!(progress.in_device_blocks(), in_device_blocks);
        }
    }
}

/// A drive that copies a part and fails: the whole piece is copied again by the next way.
#[test]
fn partial_failures_are_copied_again() {
    for (first, error) in [
        (1, DeviceError::MediaWrite),
        (3, DeviceError::Interrupted),
        (u64::from(OWN_COPY_FAILURES_MAX) - 1, DeviceError::Internal),
    ] {
        let mut lab = lab(true, of_copies(When::First(first), Effect::Fail(error)));
        let control = &lab.controls[DESTINATION];
        control.copied_sources_max.store(1, Ordering::Relaxed);
        let progress = lab.start();
        for _ in 0..1000 {
            if progress.own_copy_failures() == first {
                break;
            }
            lab.turns(1);
        }
        assert_eq!(progress.own_copy_failures(), first);
        let control = &lab.controls[DESTINATION];
        // Copies in flight have been executed in part, and succeed.
        let wrong = control.copies.load(Ordering::Relaxed) - first;
        control
            .copied_sources_max
            .store(u64::MAX, Ordering::Relaxed);
        assert_eq!(lab.run(&progress), CopyEnd::Complete);
        assert_eq!(progress.own_copy_failures(), first);
        assert_eq!(progress.written_blocks(), BLOCKS);
        assert_eq!(
            progress.by_device_blocks() + progress.in_device_blocks(),
            BLOCKS
        );
        assert_eq!(progress.in_device_blocks(), first * OWN);
        if wrong == 0 {
            lab.expect_copied(BLOCKS);
        }
        lab.expect_copied(first * OWN);
    }
}

/// After that many failures, the devices are not asked any more.
#[test]
fn devices_that_always_fail_are_not_asked_again() {
    let failures = u64::from(OWN_COPY_FAILURES_MAX);
    let effect = Effect::Fail(DeviceError::Unsupported);
    let mut lab = lab(false, of_copies(When::First(failures), effect));
    let progress = lab.start();
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
    lab.expect_copied(BLOCKS);
    assert_eq!(progress.own_copy_failures(), failures);
    assert_eq!(progress.by_device_blocks(), 0);
    let copies = lab.controls[DESTINATION].copies.load(Ordering::Relaxed);
    assert_eq!(copies, failures);
}

/// The error of the next way is reported, with its own step and the lowest range.
#[test]
fn lowest_range_that_fails_by_all_ways_is_reported() {
    for in_device in [true, false] {
        let fails = Effect::Fail(DeviceError::MediaRead);
        let [_, destination] = of_copies(When::First(2), Effect::Fail(DeviceError::Internal));
        let source = vec![at(OperationKinds::READ, OWN + 3, fails)];
        let mut lab = lab(in_device, [source, destination]);
        let progress = lab.start();
        let (written_blocks, failed) = failure(lab.run(&progress));
        assert_eq!(failed.step, CopyStep::Read);
        assert_eq!(failed.error, CopyError::Device(DeviceError::MediaRead));
        assert_eq!((written_blocks, failed.first_block), (OWN, OWN));
        // A slice has less than what the devices were to copy.
        assert_eq!(failed.blocks, if in_device { 16 } else { OWN });
        lab.expect_copied(OWN);
    }
}

/// What a device was removed with, or may still execute, is not copied by another way.
#[test]
fn final_errors_fail_the_copy() {
    for error in [
        DeviceError::Removed,
        DeviceError::Aborted,
        DeviceError::Damaged,
    ] {
        let mut lab = lab(true, of_copies(When::Nth(1), Effect::Fail(error)));
        let progress = lab.start();
        let (written_blocks, failed) = failure(lab.run(&progress));
        assert_eq!((failed.step, failed.first_block), (CopyStep::Copy, 0));
        assert_eq!(
            (failed.blocks, failed.error),
            (OWN, CopyError::Device(error))
        );
        assert_eq!(written_blocks, 0);
        assert_eq!(progress.own_copy_failures(), 0);
    }
}

#[test]
fn devices_copy_everything_and_memory_returns() {
    let mut lab = without_faults(true);
    let free = lab.arena.counters();
    let progress = lab.start_range(3, BLOCKS - 5);
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
    assert_eq!(progress.by_device_blocks(), BLOCKS - 5);
    assert_eq!(
        (progress.in_device_blocks(), progress.own_copy_failures()),
        (0, 0)
    );
    let copies = lab.controls[DESTINATION].copies.load(Ordering::Relaxed);
    assert_eq!(copies, (BLOCKS - 5).div_ceil(OWN));
    assert_eq!(lab.memory().counters().taken, 0);
    let taken = |counters: &hugemem::ArenaCounters| -> u64 {
        counters.classes.iter().map(|class| class.taken).sum()
    };
    assert_eq!(taken(&lab.arena.counters()), taken(&free));
}

/// Also one that the destination has not taken.
#[test]
fn copies_by_devices_are_aborted() {
    for held in [true, false] {
        let rules = match held {
            true => of_copies(When::Always, Effect::Hold),
            false => [Vec::new(), Vec::new()],
        };
        let mut lab = lab(true, rules);
        if !held {
            let refused = &lab.controls[DESTINATION].copies_refused;
            refused.store(u64::MAX, Ordering::Relaxed);
        }
        let progress = lab.start();
        lab.turns(5);
        assert_eq!((progress.end(), progress.written_blocks()), (None, 0));
        assert!(lab.copier.borrow().next_deadline().is_some());
        assert!(lab.messages.send(CopyMessage::Abort(1)).is_ok());
        lab.turns(3);
        lab.faults.iter().for_each(FaultControl::release);
        let CopyEnd::Stopped {
            written_blocks,
            cause: CopyStop::Aborted,
        } = lab.run(&progress)
        else {
            panic!("{:?}", progress.end());
        };
        assert_eq!(written_blocks, progress.written_blocks());
        assert_eq!(lab.memory().counters().taken, 0);
    }
}

#[test]
fn copy_by_devices_that_does_not_complete_fails_when_it_is_due() {
    let mut lab = lab(true, of_copies(When::Nth(2), Effect::Hold));
    let progress = lab.start();
    lab.turns(500);
    assert_eq!(progress.end(), None);
    lab.now += COPY_REQUEST_TIME_MAX;
    lab.turns(2);
    assert_eq!(progress.end(), None, "the device may still execute it");
    lab.faults.iter().for_each(FaultControl::release);
    let (written_blocks, failed) = failure(lab.run(&progress));
    assert_eq!(
        (failed.step, failed.error),
        (CopyStep::Copy, CopyError::Overdue)
    );
    assert_eq!((failed.first_block, failed.blocks), (OWN, OWN));
    assert!(written_blocks >= OWN, "{written_blocks}");
    lab.expect_copied(OWN);
}

/// The next way of a piece waits for memory, and a later piece fails meanwhile: what precedes it is written.
#[test]
fn next_way_continues_after_a_later_failure() {
    let first = Effect::Fail(DeviceError::Internal);
    let [_, mut rules] = of_copies(When::Nth(1), first);
    let later = Effect::Fail(DeviceError::Damaged);
    // Counts those that the rule before it has not failed.
    rules.push(FaultRule::new(OperationKinds::FLUSH, When::Nth(1), later));
    let mut lab = lab(false, [Vec::new(), rules]);
    let progress = lab.start();
    let (written_blocks, failed) = failure(lab.run(&progress));
    assert_eq!((failed.step, failed.first_block), (CopyStep::Copy, OWN));
    assert_eq!(written_blocks, OWN);
    lab.expect_copied(OWN);
}

#[test]
fn removed_devices_end_copies_by_devices() {
    for place in [SOURCE, DESTINATION] {
        let mut lab = lab(true, of_copies(When::Always, Effect::Hold));
        let progress = lab.start();
        lab.turns(3);
        lab.devices.remove_now(place, lab.now);
        lab.faults.iter().for_each(FaultControl::release);
        let (written_blocks, failed) = failure(lab.run(&progress));
        assert_eq!(failed.error, CopyError::Device(DeviceError::Removed));
        assert!(written_blocks <= failed.first_block);
    }
}
