//! The cases, one function each.

use hugemem::Data;

use super::BLOCKS_MIN;
use super::harness::{DEPTH, Harness, check_intact, pattern};
use block::{
    BLOCK_SIZES, COMPLETIONS_PER_POLL_MAX, Deallocate, DeviceError, Drain, OpenError, Operation,
    QUEUE_DEPTH_MAX, Refusal,
};

const WRITE: Operation = Operation::Write { fua: false };

fn write_zeroes(fua: bool, deallocate: bool) -> Operation {
    Operation::WriteZeroes { fua, deallocate }
}

pub(super) fn geometry_makes_sense(harness: &mut Harness) {
    let geometry = harness.geometry;
    assert!(BLOCK_SIZES.contains(&geometry.block_size));
    assert!(
        geometry.block_count >= BLOCKS_MIN,
        "the suite needs {BLOCKS_MIN} blocks"
    );
    assert!(geometry.optimal_io_blocks >= 1);
    assert!(geometry.max_transfer_blocks >= 1);
    assert!(!geometry.read_only);
    assert_eq!(geometry, harness.subject.device.geometry());
    let device = &harness.subject.device;
    assert!(!device.name().is_empty());
    let model = &device.identity().model;
    assert!(
        model.is_ascii() && (1..=40).contains(&model.len()),
        "{model:?}"
    );
}

pub(super) fn depths_out_of_bounds(harness: &mut Harness) {
    for depth in [0, QUEUE_DEPTH_MAX + 1, usize::MAX] {
        let refused = harness
            .subject
            .device
            .open_queue(harness.options(depth))
            .err();
        assert!(
            matches!(refused, Some(OpenError::Depth { .. })),
            "depth {depth}"
        );
    }
    harness.reopen(1);
    harness.write(0, &pattern(1, harness.bytes(1)));
}

pub(super) fn round_trips_at_the_edges(harness: &mut Harness) {
    let count = harness.geometry.block_count;
    let longest = harness.blocks_max();
    let ranges = [
        (0, 1),
        (count - 1, 1),
        (1, 3),
        (count - 3, 3),
        (7, 9),
        (0, longest),
        (count - u64::from(longest), longest),
    ];
    for (number, (lba, blocks)) in ranges.into_iter().enumerate() {
        for fua in [false, true] {
            let data = pattern(number as u64 * 2 + u64::from(fua), harness.bytes(blocks));
            let before = (lba > 0).then(|| harness.read(lba - 1, 1));
            let end = lba + u64::from(blocks);
            let after = (end < count).then(|| harness.read(end, 1));
            let written = harness.run(Operation::Write { fua }, lba, blocks, Some(&data));
            assert_eq!(written.result, Ok(()));
            drop(written);
            assert!(
                harness.read(lba, blocks) == data,
                "{blocks} blocks at {lba}, fua: {fua}"
            );
            if let Some(before) = before {
                assert!(
                    harness.read(lba - 1, 1) == before,
                    "the block before {lba} changed"
                );
            }
            if let Some(after) = after {
                assert!(harness.read(end, 1) == after, "the block at {end} changed");
            }
        }
    }
}

pub(super) fn ranges_outside_the_device(harness: &mut Harness) {
    let count = harness.geometry.block_count;
    let data = pattern(1, harness.bytes(2));
    for lba in [
        count - 1,
        count,
        count + 1,
        u64::MAX - 1,
        u64::MAX,
        u64::MAX / 512,
    ] {
        for operation in [
            Operation::Read,
            WRITE,
            Operation::Write { fua: true },
            Operation::Compare,
        ] {
            let error = harness.refused_for_good(operation, lba, 2, Some(&data));
            assert_eq!(error, DeviceError::OutOfRange, "{operation:?} at {lba}");
        }
        let error = harness.refused_for_good(write_zeroes(false, true), lba, 2, None);
        assert_eq!(error, DeviceError::OutOfRange);
        if harness.geometry.deallocate != Deallocate::Unsupported {
            let error = harness.refused_for_good(Operation::Deallocate, lba, 2, None);
            assert_eq!(error, DeviceError::OutOfRange);
        }
    }
    let whole = u32::try_from(count + 1).unwrap_or(u32::MAX);
    let error = harness.refused_for_good(write_zeroes(false, false), 0, whole, None);
    assert_eq!(error, DeviceError::OutOfRange);
}

pub(super) fn borrows(harness: &mut Harness) {
    if !harness.queue().can_borrow_read(4, 3) {
        return;
    }
    let (old, new) = (pattern(1, harness.bytes(3)), pattern(2, harness.bytes(3)));
    harness.write(4, &old);
    let completion = harness.run(Operation::Read, 4, 3, None);
    assert_eq!(completion.result, Ok(()));
    let Some(Data::Borrow(borrow)) = completion.data else {
        panic!("not a borrow")
    };
    assert!(*borrow == *old);
    let writing = harness.submit(WRITE, 4, 3, Some(&new));
    // Neither reads of the same or other blocks nor time may change borrowed data.
    let elsewhere = harness.submit(Operation::Read, 100, 1, None);
    assert_eq!(harness.wait(elsewhere).result, Ok(()));
    for _ in 0..10 {
        for completion in harness.poll(COMPLETIONS_PER_POLL_MAX) {
            assert_ne!(completion.tag, writing, "written while borrowed");
        }
        assert!(*borrow == *old, "a borrowed range changed");
    }
    assert!(
        harness.queue().borrow_read(4, 3).is_none(),
        "a read overtook a write that waits"
    );
    drop(borrow);
    assert_eq!(harness.wait(writing).result, Ok(()));
    assert!(harness.read(4, 3) == new);
}

/// An inline read returns the same data as a submitted one; a range that a read would refuse is
/// refused inline.
pub(super) fn inline_borrows(harness: &mut Harness) {
    let data = pattern(3, harness.bytes(2));
    harness.write(6, &data);
    let in_flight = harness.queue().in_flight();
    if let Some(borrow) = harness.queue().borrow_read(6, 2) {
        assert!(*borrow == *data);
    }
    assert_eq!(harness.queue().in_flight(), in_flight);
    let geometry = harness.geometry;
    for (lba, blocks) in [
        (geometry.block_count, 1),
        (geometry.block_count - 1, 2),
        (u64::MAX, 1),
        (0, 0),
        (0, geometry.max_transfer_blocks + 1),
    ] {
        let lent = harness.queue().borrow_read(lba, blocks);
        assert!(lent.is_none(), "{blocks} blocks at {lba}");
    }
}

/// An inline write takes effect; one that a write would refuse, or to a borrowed range, does not.
pub(super) fn writing_at_once(harness: &mut Harness) {
    let (old, new) = (pattern(5, harness.bytes(2)), pattern(6, harness.bytes(2)));
    harness.write(6, &old);
    let one_block = &old[..harness.bytes(1)];
    let in_flight = harness.queue().in_flight();
    let written = harness.queue().write_inline(6, &new);
    assert_eq!(harness.queue().in_flight(), in_flight);
    let expected = if written { &new } else { &old };
    assert!(harness.read(6, 2) == *expected);
    if let Some(borrow) = harness.queue().borrow_read(6, 2) {
        assert!(!harness.queue().write_inline(7, one_block));
        assert!(*borrow == **expected, "a borrowed range changed");
    }
    let geometry = harness.geometry;
    for (lba, data) in [
        (geometry.block_count, one_block),
        (geometry.block_count - 1, &old[..]),
        (u64::MAX, &old[..]),
        (0, &old[..0]),
        (0, &old[1..]),
    ] {
        let written = harness.queue().write_inline(lba, data);
        assert!(!written, "{} bytes at {lba}", data.len());
    }
    assert!(harness.read(6, 2) == *expected);
}

/// Directly placed data is read and counted, the write itself when it is complete. A range that a
/// write would refuse, or that is borrowed, is refused.
pub(super) fn filling_at_once(harness: &mut Harness) {
    let (old, new) = (pattern(7, harness.bytes(2)), pattern(8, harness.bytes(2)));
    harness.write(6, &old);
    let fills = harness.queue().supports_direct_placement();
    let counted = |harness: &Harness| {
        let health = harness.subject.device.health();
        (health.writes, health.bytes_written)
    };
    let before = counted(harness);
    let mut calls = 0;
    let filled = harness.queue().place_directly(6, new.len(), &mut |range| {
        range.copy_from_slice(&new);
        calls += 1;
    });
    assert_eq!((calls, filled && !fills), (u32::from(filled), false));
    let bytes = if filled { new.len() as u64 } else { 0 };
    assert_eq!(counted(harness), (before.0, before.1 + bytes));
    if filled {
        harness.queue().count_placed_write();
        assert_eq!(counted(harness), (before.0 + 1, before.1 + bytes));
    }
    let expected = if filled { &new } else { &old };
    assert!(harness.read(6, 2) == *expected);
    let (geometry, one_block) = (harness.geometry, harness.bytes(1));
    let refuses = |harness: &mut Harness, lba, bytes| {
        let filled = harness.queue().place_directly(lba, bytes, &mut |_| {
            panic!("{bytes} bytes at {lba}");
        });
        assert!(!filled, "{bytes} bytes at {lba}");
    };
    if let Some(borrow) = harness.queue().borrow_read(6, 2) {
        refuses(harness, 7, one_block);
        assert!(*borrow == **expected, "a borrowed range changed");
    }
    refuses(harness, geometry.block_count, one_block);
    refuses(harness, geometry.block_count - 1, 2 * one_block);
    refuses(harness, u64::MAX, one_block);
    refuses(harness, 0, 0);
    refuses(harness, 0, one_block - 1);
}

pub(super) fn zeroes_and_holes(harness: &mut Harness) {
    let around = pattern(9, harness.bytes(20));
    for (lba, blocks) in [(10, 1), (11, 7), (9, 18)] {
        for operation in [
            write_zeroes(false, false),
            write_zeroes(false, true),
            write_zeroes(true, false),
            write_zeroes(true, true),
            Operation::Deallocate,
        ] {
            let deallocate = harness.geometry.deallocate;
            if operation == Operation::Deallocate && deallocate == Deallocate::Unsupported {
                let error = harness.refused_for_good(operation, lba, blocks, None);
                assert_eq!(error, DeviceError::Unsupported);
                continue;
            }
            harness.write(8, &around);
            harness.succeed(operation, lba, blocks);
            let mut expected = around.clone();
            let start = harness.bytes((lba - 8) as u32);
            expected[start..start + harness.bytes(blocks)].fill(0);
            let mut found = harness.read(8, 20);
            if operation == Operation::Deallocate && deallocate == Deallocate::Unspecified {
                found[start..start + harness.bytes(blocks)].fill(0);
            }
            assert!(
                found == expected,
                "{operation:?} of {blocks} blocks at {lba}"
            );
        }
    }
    harness.write(8, &around);
    for operation in [write_zeroes(true, true), write_zeroes(false, false)] {
        harness.succeed(operation, 8, 0);
    }
    if harness.geometry.deallocate != Deallocate::Unsupported {
        harness.succeed(Operation::Deallocate, 8, 0);
    }
    assert!(
        harness.read(8, 20) == around,
        "a range of nothing changed something"
    );
}

pub(super) fn a_whole_device_of_zeroes(harness: &mut Harness) {
    let count = harness.geometry.block_count;
    let Ok(blocks) = u32::try_from(count) else {
        return;
    };
    let data = pattern(3, harness.bytes(1));
    for deallocate in [false, true] {
        for lba in [0, count / 2, count - 1] {
            harness.write(lba, &data);
        }
        harness.succeed(write_zeroes(false, deallocate), 0, blocks);
        for lba in [0, count / 2, count - 1] {
            assert!(
                harness.read(lba, 1).iter().all(|&byte| byte == 0),
                "block {lba}"
            );
        }
    }
}

pub(super) fn compare(harness: &mut Harness) {
    let longest = harness.blocks_max();
    for (lba, blocks) in [(0, 1), (5, 17), (0, longest)] {
        let mut data = pattern(u64::from(blocks), harness.bytes(blocks));
        harness.write(lba, &data);
        let equal = harness.run(Operation::Compare, lba, blocks, Some(&data));
        assert_eq!(equal.result, Ok(()));
        assert!(
            equal.data.as_deref() == Some(&data[..]),
            "a compare leaves its data alone"
        );
        drop(equal);
        for index in [0, data.len() / 2, data.len() - 1] {
            data[index] ^= 1;
            let unequal = harness.run(Operation::Compare, lba, blocks, Some(&data));
            assert_eq!(
                unequal.result,
                Err(DeviceError::CompareMismatch),
                "byte {index}"
            );
            data[index] ^= 1;
        }
        assert!(
            harness.read(lba, blocks) == data,
            "a compare leaves the device alone"
        );
    }
}

pub(super) fn flush(harness: &mut Harness) {
    harness.succeed(Operation::Flush, 0, 0);
    // The range is ignored, even if it is invalid.
    harness.succeed(Operation::Flush, u64::MAX, u32::MAX);
    let data = pattern(5, harness.bytes(1));
    let mut tags = Vec::new();
    for lba in 0..3 {
        tags.push(harness.submit(WRITE, lba, 1, Some(&data)));
        tags.push(harness.submit(Operation::Flush, 0, 0, None));
    }
    let all = harness.wait_all();
    assert_eq!(all.len(), tags.len());
    assert!(all.iter().all(|completion| completion.result.is_ok()));
}

pub(super) fn a_full_queue(harness: &mut Harness) {
    let data = pattern(6, harness.bytes(1));
    for lba in 0..DEPTH as u64 {
        harness.submit(WRITE, lba, 1, Some(&data));
    }
    let extra = pattern(7, harness.bytes(2));
    let mut request = harness.request(WRITE, 40, 2, Some(&extra));
    let tag = request.tag;
    for _ in 0..3 {
        request = match harness.try_submit(request) {
            Err(Refusal::Later(request)) => request,
            other => panic!("beyond the depth: {other:?}"),
        };
        check_intact(&request, tag, WRITE, (40, 2), Some(&extra));
    }
    let mut ended = 0;
    while ended == 0 {
        ended += harness.poll_or_sleep().len();
    }
    harness.try_submit(request).expect("there is room again");
    for completion in harness.wait_all() {
        assert_eq!(completion.result, Ok(()));
    }
    assert!(harness.read(40, 2) == extra);
}

pub(super) fn small_batches(harness: &mut Harness) {
    const MANY: usize = 100;
    harness.reopen(MANY);
    let data = pattern(8, harness.bytes(1));
    for lba in 0..MANY as u64 {
        harness.submit(WRITE, lba, 1, Some(&data));
    }
    let mut ended = 0;
    for room in [0, 1, 2, COMPLETIONS_PER_POLL_MAX].into_iter().cycle() {
        let fresh = harness.poll(room);
        assert!(fresh.len() <= room);
        assert!(fresh.iter().all(|completion| completion.result.is_ok()));
        ended += fresh.len();
        if ended == MANY {
            break;
        }
        if fresh.is_empty() && room > 0 {
            std::thread::yield_now();
        }
    }
    assert!(harness.poll(COMPLETIONS_PER_POLL_MAX).is_empty());
    assert!(!harness.queue().has_ready());
}

pub(super) fn drain(harness: &mut Harness) {
    let data = pattern(9, harness.bytes(1));
    for lba in 0..4 {
        harness.submit(WRITE, lba, 1, Some(&data));
    }
    assert_eq!(harness.queue().drain(), Drain::Outstanding(4));
    for _ in 0..2 {
        let error = harness.refused_for_good(WRITE, 0, 1, Some(&data));
        assert_eq!(error, DeviceError::Removed);
        let error = harness.refused_for_good(Operation::Flush, 0, 0, None);
        assert_eq!(error, DeviceError::Removed);
        assert!(
            harness.queue().borrow_read(0, 1).is_none(),
            "a draining queue refuses borrows"
        );
        assert!(
            !harness.queue().write_inline(0, &data),
            "a draining queue takes nothing"
        );
        let filled = harness.queue().place_directly(0, data.len(), &mut |_| {});
        assert!(!filled, "a draining queue gives no memory");
        let ended = harness.wait_all();
        assert!(ended.iter().all(|completion| completion.result.is_ok()));
        assert_eq!(harness.queue().drain(), Drain::Done);
    }
    harness.reopen(DEPTH);
    for lba in 0..4 {
        assert!(
            harness.read(lba, 1) == data,
            "what was in flight was carried out"
        );
    }
}

pub(super) fn a_queue_dropped_in_use(harness: &mut Harness) {
    let data = pattern(10, harness.bytes(2));
    for sent in [false, true] {
        for lba in 0..DEPTH as u64 / 4 {
            harness.submit(WRITE, lba * 2, 2, Some(&data));
            harness.submit(Operation::Read, lba * 2 + 100, 2, Some(&data));
            harness.submit(Operation::Compare, lba * 2 + 200, 2, Some(&data));
            harness.submit(write_zeroes(false, false), lba * 2 + 300, 2, None);
        }
        if sent {
            harness.queue().flush();
        }
        harness.abandon();
        if harness.subject.ends_late {
            harness.reopen(DEPTH);
            harness.wait_for_leases();
        } else {
            assert_eq!(harness.leases_taken(), 0, "a dropped queue keeps leases");
            harness.reopen(DEPTH);
        }
    }
    harness.write(0, &data);
    assert!(harness.read(0, 2) == data, "the device goes on");
}

pub(super) fn two_queues(harness: &mut Harness) {
    let second = harness
        .subject
        .device
        .open_queue(harness.options(2))
        .expect("a second queue");
    let data = pattern(11, harness.bytes(4));
    harness.write(64, &data);
    let first = harness.swap_queue(second);
    assert!(
        harness.read(64, 4) == data,
        "the other queue sees what was written"
    );
    let data = pattern(12, harness.bytes(4));
    harness.write(64, &data);
    let second = harness.swap_queue(first);
    assert!(harness.read(64, 4) == data, "and the other way round");
    drop(second);
}

/// A request that is given up ends once, executed or not; all others are executed.
pub(super) fn giving_up(harness: &mut Harness) {
    let old = pattern(15, harness.bytes(16));
    harness.write(0, &old);
    let new = pattern(16, harness.bytes(8));
    let wanted = harness.submit(WRITE, 0, 8, Some(&new));
    let mut unwanted = vec![
        harness.submit(WRITE, 8, 4, Some(&new[..harness.bytes(4)])),
        harness.submit(Operation::Compare, 8, 8, Some(&old[harness.bytes(8)..])),
        harness.submit(write_zeroes(false, true), 12, 4, None),
        harness.submit(Operation::Flush, 0, 0, None),
    ];
    let given_up = unwanted.clone();
    harness.queue().give_up(&mut |tag| given_up.contains(&tag));
    for completion in harness.wait_all() {
        if completion.tag == wanted {
            assert_eq!(completion.result, Ok(()));
            continue;
        }
        let place = unwanted.iter().position(|tag| *tag == completion.tag);
        unwanted.remove(place.expect("each completes once"));
        let results = [
            Ok(()),
            Err(DeviceError::Aborted),
            Err(DeviceError::CompareMismatch),
        ];
        assert!(
            results.contains(&completion.result),
            "{:?}",
            completion.result
        );
    }
    assert_eq!(unwanted, []);
    assert!(harness.read(0, 8) == new);
    // The queue keeps no state of a tag whose request has ended.
    harness.queue().give_up(&mut |_| true);
    harness.write(8, &old[harness.bytes(8)..]);
    assert!(harness.read(8, 8) == old[harness.bytes(8)..]);
}

pub(super) fn health(harness: &mut Harness) {
    let before = harness.subject.device.health();
    let data = pattern(13, harness.bytes(3));
    harness.write(0, &data);
    harness.read(0, 1);
    harness.succeed(Operation::Flush, 0, 0);
    let after = harness.subject.device.health();
    assert_eq!(after.state, before.state);
    assert_eq!(after.writes - before.writes, 1);
    assert_eq!(
        after.bytes_written - before.bytes_written,
        data.len() as u64
    );
    assert_eq!(after.reads - before.reads, 1);
    assert_eq!(
        after.bytes_read - before.bytes_read,
        harness.bytes(1) as u64
    );
    assert_eq!(after.flushes - before.flushes, 1);
    assert_eq!(
        (after.errors, after.media_errors),
        (before.errors, before.media_errors)
    );
}

pub(super) fn read_only(harness: &mut Harness) {
    assert!(harness.geometry.read_only);
    let data = pattern(14, harness.bytes(1));
    let before = harness.read(0, 1);
    for operation in [WRITE, Operation::Write { fua: true }] {
        let error = harness.refused_for_good(operation, 0, 1, Some(&data));
        assert_eq!(error, DeviceError::ReadOnly);
    }
    for operation in [
        write_zeroes(true, false),
        write_zeroes(false, true),
        Operation::Deallocate,
    ] {
        assert_eq!(
            harness.refused_for_good(operation, 0, 1, None),
            DeviceError::ReadOnly
        );
    }
    harness.succeed(Operation::Flush, 0, 0);
    let equal = harness.run(Operation::Compare, 0, 1, Some(&before));
    assert_eq!(equal.result, Ok(()));
    drop(equal);
    assert!(harness.read(0, 1) == before);
}
