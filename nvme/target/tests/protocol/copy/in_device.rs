//! Copies whose data stays in memory of a device: exhausted, refusing, failing and lost memory, and
//! devices that fail or are removed. The result is that of a Copy through the arena.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{CopyLimits, CopyOrigin, DataPath, Device, DeviceError, Drain, QueueOptions};
use block_testing::conformance::arena;
use block_testing::{
    Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, MemoryUser, MemoryUserControl,
    OperationKinds, TestMemory, When,
};
use hugemem::DeviceMemory;
use nvme_target::{HostPathReason, TransferReason};
use reactors::sim::Seeded;

use super::across::{Named, PLAIN_DEVICE, RAM_DEVICE, begin_across, ready, run_across};
use super::*;

pub(super) const SLICE: usize = 64 << 10;
/// The rule of a device's plan by which it fails once.
pub(super) const FAIL: usize = 0;
/// The rule of a device's plan by which completions are held.
pub(super) const DELAY: usize = 1;

/// Places of the namespaces' devices.
const PLACES: [usize; 2] = [RAM_DEVICE.0 as usize, PLAIN_DEVICE.0 as usize];

/// A world in which the devices of RAM and PLAIN have data in one memory.
pub(super) struct Lab {
    pub(super) world: World,
    pub(super) admin: Link,
    pub(super) io: Link,
    pub(super) memory: Arc<TestMemory>,
    /// Of RAM and PLAIN.
    pub(super) controls: [Arc<MemoryUserControl>; 2],
    pub(super) faults: [FaultControl; 2],
}

/// How a device copies by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnCopies {
    pub(super) limits: CopyLimits,
    /// Its drive and its namespace there, if it copies from other ones.
    pub(super) drive: Option<(u64, u32)>,
}

impl OwnCopies {
    /// Makes a device one that copies from itself, and from the other one.
    fn of(self, user: MemoryUser, own: Arc<dyn Device>, other: Arc<dyn Device>) -> MemoryUser {
        let geometry = own.geometry();
        let user = user.copying(own, self.limits);
        let Some((drive, namespace)) = self.drive else {
            return user;
        };
        let origin = CopyOrigin {
            drive,
            namespace,
            block_size: geometry.block_size,
            block_count: geometry.block_count,
            limits: self.limits,
        };
        user.of_drive(origin).copying_from(other)
    }
}

impl Lab {
    fn new(slices: u64, paths: [DataPath; 2]) -> Self {
        let memory = TestMemory::new(slices, SLICE);
        Self::with([&memory; 2], paths, DeviceError::Internal, 1)
    }

    fn allowed(slices: u64) -> Self {
        Self::new(slices, [DataPath::DeviceMemory; 2])
    }

    /// With the memory of each device, and the error of its rule [`FAIL`].
    fn with(
        memories: [&Arc<TestMemory>; 2],
        paths: [DataPath; 2],
        error: DeviceError,
        seed: u64,
    ) -> Self {
        Self::build(memories, paths, (error, seed), [None; 2])
    }

    /// With a device of RAM that copies by itself within these limits, and one slice of memory.
    pub(super) fn copying(path: DataPath, error: DeviceError, limits: CopyLimits) -> Self {
        let memory = TestMemory::new(1, SLICE);
        let own = OwnCopies {
            limits,
            drive: None,
        };
        Self::build([&memory; 2], [path; 2], (error, 1), [Some(own), None])
    }

    /// With devices that copy by themselves, and one slice of memory.
    pub(super) fn copying_across(
        paths: [DataPath; 2],
        error: DeviceError,
        copies: [OwnCopies; 2],
    ) -> Self {
        let memory = TestMemory::new(1, SLICE);
        Self::build([&memory; 2], paths, (error, 1), copies.map(Some))
    }

    fn build(
        memories: [&Arc<TestMemory>; 2],
        paths: [DataPath; 2],
        (error, seed): (DeviceError, u64),
        copies: [Option<OwnCopies>; 2],
    ) -> Self {
        let mut world = World::new();
        let devices = world.devices();
        let own = arena();
        let parts = [0, 1].map(|index: usize| {
            let rule = |when, effect| FaultRule::new(OperationKinds::ALL, when, effect);
            let rules = vec![
                rule(When::First(1), Effect::Fail(error)),
                rule(When::Always, Effect::Hold),
            ];
            let inner = Arc::clone(&devices[PLACES[index]]);
            let inner = FaultDevice::new(inner, FaultPlan { rules, seed });
            let control = inner.control();
            control.arm(FAIL, false);
            control.arm(DELAY, false);
            let user = MemoryUser::new(Arc::new(inner), memories[index], &own, paths[index]);
            let [own, other] = [index, 1 - index].map(|it| Arc::clone(&devices[PLACES[it]]));
            let user = match copies[index] {
                Some(copies) => copies.of(user, own, other),
                None => user,
            };
            (user, control)
        });
        for (reactor, node) in world.nodes.iter_mut().enumerate() {
            for (place, (user, _)) in PLACES.into_iter().zip(&parts) {
                let options = QueueOptions::new(reactor, 128, node.pool.clone());
                node.attach(place, user, options).expect("a queue");
            }
        }
        let (admin, io) = ready(&mut world);
        fill(&mut world, io, RAM, 64);
        Self {
            world,
            admin,
            io,
            memory: Arc::clone(memories[0]),
            controls: parts.each_ref().map(|(user, _)| user.control()),
            faults: parts.map(|(_, control)| control),
        }
    }

    pub(super) fn copy(&mut self, nsid: u32, sources: &[Named], to: u64) -> Reply {
        run_across(&mut self.world, self.io, nsid, sources, to)
    }

    #[track_caller]
    pub(super) fn expect(&mut self, nsid: u32, lba: u64, expected: &[u8]) {
        let count = expected.len() as u16;
        assert_eq!(blocks(&mut self.world, self.io, nsid, lba, count), expected);
    }

    /// Completed copies through the arena and through memory of a device, and reasons, with a word.
    pub(super) fn counts(&self, nsid: u32) -> (u64, u64, Vec<(&'static str, u64)>) {
        let device = if nsid == RAM {
            RAM_DEVICE
        } else {
            PLAIN_DEVICE
        };
        let totals = self.world.target.copy_totals(device);
        let reasons = HostPathReason::WORDS.map(|(reason, word)| (word, totals.reason(reason)));
        let reasons = reasons.into_iter().filter(|(_, count)| *count > 0);
        (totals.host, totals.device_memory, reasons.collect())
    }

    pub(super) fn in_memory(&self) -> u64 {
        let taken = self
            .controls
            .iter()
            .map(|it| it.taken.load(Ordering::Relaxed));
        taken.sum()
    }

    /// Nothing is left, and so many slices are lost.
    #[track_caller]
    pub(super) fn assert_over(&mut self, memory: &DeviceMemory, lost: u64) {
        self.world.settle();
        for node in &self.world.nodes {
            assert_eq!(node.core.in_flight(), 0);
        }
        assert_eq!(self.world.leases(), 0);
        let counters = memory.counters();
        assert_eq!((u64::from(counters.taken), counters.lost), (lost, lost));
    }
}

/// Whatever keeps the data out of the memory, the copy is complete, and the reason is counted.
#[test]
fn arena_is_used_without_memory() {
    let (allowed, host) = (DataPath::DeviceMemory, DataPath::Host);
    type Prepare = fn(&mut Lab);
    let none: Prepare = |_| {};
    let cases: [([DataPath; 2], Prepare, Option<&str>, u64); 8] = [
        ([host, host], none, None, 0),
        ([allowed, host], none, None, 0),
        ([host, allowed], none, Some("source_on_host_path"), 0),
        (
            [allowed; 2],
            |lab| lab.controls[0].blocks_max.store(5, Ordering::Relaxed),
            Some("too_small"),
            0,
        ),
        (
            [allowed; 2],
            |lab| lab.controls[1].blocks_max.store(0, Ordering::Relaxed),
            Some("unreachable"),
            0,
        ),
        (
            [allowed; 2],
            |lab| lab.controls[0].refusals.store(1, Ordering::Relaxed),
            Some("busy"),
            0,
        ),
        // The write, after the reads.
        (
            [allowed; 2],
            |lab| lab.controls[1].refusals.store(1, Ordering::Relaxed),
            Some("busy"),
            2,
        ),
        (
            [allowed; 2],
            |lab| lab.controls[1].refuses_all.store(true, Ordering::Relaxed),
            Some("failed"),
            2,
        ),
    ];
    for (paths, prepare, reason, in_memory) in cases {
        let mut lab = Lab::new(2, paths);
        prepare(&mut lab);
        lab.copy(PLAIN, &[(RAM, 3, 2), (RAM, 9, 4)], 20).ok();
        lab.expect(PLAIN, 20, &[4, 5, 10, 11, 12, 13]);
        let reasons = reason.map(|reason| (reason, 1));
        let expected = (1, 0, reasons.into_iter().collect::<Vec<_>>());
        assert_eq!(lab.counts(PLAIN), expected);
        assert_eq!(lab.in_memory(), in_memory);
        let memory = lab.memory.current();
        lab.assert_over(&memory, 0);
    }
}

#[test]
fn exhausted_and_unreachable_memory_is_counted() {
    let mut lab = Lab::allowed(2);
    let memory = lab.memory.current();
    let held: Vec<_> = std::iter::from_fn(|| memory.take()).collect();
    lab.copy(PLAIN, &[(RAM, 3, 2)], 20).ok();
    assert_eq!(lab.counts(PLAIN), (1, 0, vec![("exhausted", 1)]));
    drop(held);
    lab.copy(PLAIN, &[(RAM, 3, 2)], 30).ok();
    assert_eq!(lab.counts(PLAIN), (1, 1, vec![("exhausted", 1)]));
    for lba in [20, 30] {
        lab.expect(PLAIN, lba, &[4, 5]);
    }
    lab.assert_over(&memory, 0);

    let memories = [2, 2].map(|slices| TestMemory::new(slices, SLICE));
    let paths = [DataPath::DeviceMemory; 2];
    let mut lab = Lab::with(memories.each_ref(), paths, DeviceError::Internal, 1);
    lab.copy(PLAIN, &[(RAM, 3, 2)], 20).ok();
    assert_eq!(lab.counts(PLAIN), (1, 0, vec![("unreachable", 1)]));
    // Within a namespace, its own is enough.
    lab.copy(RAM, &[(RAM, 3, 2)], TO).ok();
    assert_eq!(lab.counts(RAM), (0, 1, vec![]));
    lab.expect(RAM, TO, &[4, 5]);
}

/// Ranges of several namespaces are in their order, and none of their data is in the arena.
#[test]
fn data_stays_in_the_device() {
    let mut lab = Lab::allowed(1);
    lab.copy(PLAIN, &[(RAM, 7, 3)], 0).ok();
    let sources = [(RAM, 1, 1), (PLAIN, 0, 3), (RAM, 20, 2), (PLAIN, 1, 1)];
    lab.copy(PLAIN, &sources, 9).ok();
    lab.expect(PLAIN, 9, &[2, 8, 9, 10, 21, 22, 9]);
    lab.copy(RAM, &sources, TO).ok();
    lab.expect(RAM, TO, &[2, 8, 9, 10, 21, 22, 9]);
    assert_eq!(lab.counts(PLAIN), (0, 2, vec![]));
    assert_eq!(lab.counts(RAM), (0, 1, vec![]));
    assert_eq!(lab.in_memory(), 2 + 5 + 5);
    // All of a slice.
    let most = (SLICE / 512) as u16;
    lab.copy(RAM, &[(RAM, 0, most)], 1000).ok();
    assert_eq!(lab.counts(RAM), (0, 2, vec![]));
    lab.copy(RAM, &[(RAM, 0, most), (RAM, 0, 1)], 1000).ok();
    assert_eq!(lab.counts(RAM), (1, 2, vec![("too_small", 1)]));
    let memory = lab.memory.current();
    lab.assert_over(&memory, 0);
}

/// A destination that overlaps its sources gets their previous content (format 0).
#[test]
fn overlapping_ranges_are_read_first() {
    let mut lab = Lab::allowed(1);
    let sources = [(4, 3), (2, 2), (5, 1)];
    run(&mut lab.world, lab.io, RAM, &sources, 3).ok();
    lab.expect(RAM, 2, &[3, 5, 6, 7, 3, 4, 6, 10]);
    assert_eq!(lab.counts(RAM), (0, 1, vec![]));
    let invalid = [(RAM_BLOCKS - 1, 2), (0, 1)];
    run(&mut lab.world, lab.io, RAM, &invalid, 3).is(OUT_OF_RANGE);
    let memory = lab.memory.current();
    lab.assert_over(&memory, 0);
}

/// The device with the memory is reset before any request, or with it in flight: the Copy starts again
/// through the arena. Only a write that may have changed its own sources is an error.
#[test]
fn lost_memory_starts_the_copy_again() {
    for is_overlapping in [false, true] {
        // Two reads and the write.
        for completed in 0..3 {
            let mut lab = Lab::allowed(2);
            for fault in &lab.faults {
                fault.arm(DELAY, true);
            }
            let (nsid, to) = if is_overlapping {
                (RAM, 4)
            } else {
                (PLAIN, 20)
            };
            let sources = [(3, 2), (9, 1)];
            let tag = match is_overlapping {
                true => begin(&mut lab.world, lab.io, RAM, &sources, to),
                false => {
                    let sources = sources.map(|(lba, blocks)| (RAM, lba, blocks));
                    begin_across(&mut lab.world, lab.io, nsid, &sources, to)
                }
            };
            for _ in 0..completed {
                lab.world.settle();
                lab.faults.iter().for_each(FaultControl::release);
            }
            lab.world.settle();
            assert_eq!(lab.in_memory(), completed + 1);
            let memory = lab.memory.current();
            lab.memory.reset(2);
            for fault in &lab.faults {
                fault.arm(DELAY, false);
                fault.release();
            }
            let status = lab.world.wait(lab.io, tag).status();
            let fails = is_overlapping && completed == 2;
            assert_eq!(status.is_success(), !fails, "{status}");
            if !fails {
                lab.expect(nsid, to, &[4, 5, 10]);
                assert_eq!(lab.counts(nsid), (1, 0, vec![("failed", 1)]));
            }
            assert!(!status.dnr(), "it may be sent again");
            lab.assert_over(&memory, 0);
        }
    }
}

/// An error of the medium is the result; another one may be of the way, so that the Copy starts again.
#[test]
fn drive_that_fails_once() {
    for (error, index, restarts) in [
        (DeviceError::Internal, 0, true),
        (DeviceError::Internal, 1, true),
        (DeviceError::Interrupted, 0, true),
        (DeviceError::Interrupted, 1, true),
        (DeviceError::MediaRead, 0, false),
        (DeviceError::MediaWrite, 1, false),
        (DeviceError::Removed, 0, false),
        (DeviceError::NoSpace, 1, false),
    ] {
        let memory = TestMemory::new(1, SLICE);
        let paths = [DataPath::DeviceMemory; 2];
        let mut lab = Lab::with([&memory; 2], paths, error, 1);
        lab.faults[index].arm(FAIL, true);
        let status = lab.copy(PLAIN, &[(RAM, 3, 2)], 20).status();
        assert_eq!(lab.faults[index].fired(FAIL), 1);
        assert_eq!(status.is_success(), restarts, "{error:?}: {status}");
        lab.faults[index].arm(FAIL, false);
        match restarts {
            true => {
                lab.expect(PLAIN, 20, &[4, 5]);
                assert_eq!(lab.counts(PLAIN), (1, 0, vec![("failed", 1)]));
            }
            false => assert_eq!(lab.counts(PLAIN), (0, 0, vec![])),
        }
        let current = memory.current();
        lab.assert_over(&current, 0);
    }
}

/// A device that is removed with a request of a Copy in flight takes the slice with it, and ends the
/// Copy; a request of the other one completes.
#[test]
fn removed_device_ends_its_copies() {
    for (removed, is_writing, lost) in [
        (RAM_DEVICE, false, 1),
        (PLAIN_DEVICE, true, 1),
        (PLAIN_DEVICE, false, 0),
        (RAM_DEVICE, true, 0),
    ] {
        let mut lab = Lab::allowed(2);
        let memory = lab.memory.current();
        for fault in &lab.faults {
            fault.arm(DELAY, true);
        }
        let tag = begin_across(&mut lab.world, lab.io, PLAIN, &[(RAM, 3, 2)], 20);
        lab.world.settle();
        if is_writing {
            lab.faults[0].release();
            lab.world.settle();
        }
        assert_eq!(lab.in_memory(), 1 + u64::from(is_writing));
        let now = lab.world.now;
        for node in &mut lab.world.nodes {
            node.cut(usize::from(removed.0), now);
        }
        for fault in &lab.faults {
            fault.arm(DELAY, false);
            fault.release();
        }
        let status = lab.world.wait(lab.io, tag).status();
        // The source is not needed any more for the write.
        let is_complete = is_writing && removed == RAM_DEVICE;
        match is_complete {
            true => assert!(status.is_success(), "{status}"),
            false => assert_eq!(status, Status::INTERNAL_PATH_ERROR),
        }
        for node in &mut lab.world.nodes {
            assert_eq!(node.detach(usize::from(removed.0)), Drain::Done);
        }
        lab.assert_over(&memory, lost);
    }
}

/// The end of the connection, and a reset of the controller, with a read or the write in a device:
/// the slice returns when the device has completed it, and no write follows a read.
#[test]
fn slices_of_orphans_return() {
    for is_reset in [false, true] {
        for is_writing in [false, true] {
            let mut lab = Lab::allowed(2);
            let memory = lab.memory.current();
            for fault in &lab.faults {
                fault.arm(DELAY, true);
            }
            begin_across(&mut lab.world, lab.io, PLAIN, &[(RAM, 3, 2)], 20);
            lab.world.settle();
            if is_writing {
                lab.faults[0].release();
                lab.world.settle();
            }
            if is_reset {
                lab.world.set_cc(lab.admin, Cc::new());
            }
            lab.world.close(lab.io);
            lab.world.settle();
            assert_eq!(memory.counters().taken, 1, "a device has a request");
            for fault in &lab.faults {
                fault.arm(DELAY, false);
                fault.release();
            }
            lab.world.settle();
            assert_eq!(memory.counters().taken, 0);
            if is_reset {
                lab.world.set_cc(lab.admin, Cc::enabled_nvm());
            }
            lab.io = lab.world.io_queue(1, lab.admin, 1);
            let expected = if is_writing { [4, 5] } else { [0, 0] };
            lab.expect(PLAIN, 20, &expected);
            lab.assert_over(&memory, 0);
        }
    }
}

/// A Copy that waits for its device through the arena is aborted; one that is in a device is not.
#[test]
fn copies_are_aborted_where_they_wait() {
    for is_held in [true, false] {
        let mut lab = Lab::allowed(2);
        let memory = lab.memory.current();
        match is_held {
            true => lab.faults[0].arm(DELAY, true),
            // The device refuses the request for now, also that through the arena.
            false => {
                lab.controls[0].refusals.store(1, Ordering::Relaxed);
                lab.world.fault.arm(LATER, true);
            }
        }
        let cid = lab.world.cid();
        let tag = begin_across(&mut lab.world, lab.io, PLAIN, &[(RAM, 1, 2)], 9);
        let abort = Sqe::abort_command(1, cid.wrapping_add(1));
        let is_aborted = lab.world.command(lab.admin, abort).dw0() & 1 == 0;
        assert_eq!(is_aborted, !is_held);
        lab.world.fault.arm(LATER, false);
        lab.faults[0].arm(DELAY, false);
        lab.faults[0].release();
        let status = lab.world.wait(lab.io, tag).status();
        match is_aborted {
            true => assert_eq!(status, Status::ABORT_REQUESTED),
            false => assert!(status.is_success(), "{status}"),
        }
        lab.assert_over(&memory, 0);
    }
}

/// A source that its host may not read any more is not read, and nothing is written.
#[test]
fn gate_is_asked_before_each_request() {
    let mut lab = Lab::allowed(2);
    let memory = lab.memory.current();
    lab.faults[0].arm(DELAY, true);
    // The last range is read first.
    let sources = [(PLAIN, 0, 1), (RAM, 2, 1)];
    let tag = begin_across(&mut lab.world, lab.io, RAM, &sources, TO);
    let mut changed = crate::harness::config(&lab.world.devices())
        .subsystems
        .remove(0);
    changed.namespaces.retain(|it| it.nsid != PLAIN);
    let updated = lab.world.target.update_subsystem(changed);
    updated.expect("a right change");
    lab.world.settle();
    lab.faults[0].arm(DELAY, false);
    lab.faults[0].release();
    let reply = lab.world.wait(lab.io, tag);
    assert_eq!((reply.status(), reply.dw0()), (INVALID, 0));
    assert_eq!(lab.in_memory(), 1);
    lab.assert_over(&memory, 0);
}

/// Number of random stories.
const STORIES: u64 = 60;
/// Copies of a story.
const COPIES: u64 = 20;

/// Random copies, one after the other, with devices that delay and fail once, refuse, lose their memory,
/// and have little of it. Each that succeeds has the result of a Copy of a model; one that fails has
/// changed nothing but its destination.
fn story(seed: u64) {
    let mut random = Seeded::at(seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
    let slices = 1 + random.below(2);
    let errors = [
        DeviceError::Internal,
        DeviceError::Interrupted,
        DeviceError::MediaRead,
        DeviceError::NoSpace,
    ];
    let error = errors[random.below(4) as usize];
    let memory = TestMemory::new(slices, SLICE);
    let mut lab = Lab::with(
        [&memory; 2],
        [DataPath::DeviceMemory; 2],
        error,
        random.below(u64::MAX),
    );
    let mut model: [Vec<Option<u8>>; 2] = [
        (0..64).map(|lba| Some(content(lba))).collect(),
        vec![Some(0); 64],
    ];
    for _ in 0..COPIES {
        let index = |nsid| usize::from(nsid == PLAIN);
        let (mut sources, mut total) = (Vec::new(), 0);
        for _ in 0..=random.below(4) {
            let nsid = [RAM, PLAIN][random.below(2) as usize];
            let blocks = 1 + random.below(6);
            sources.push((nsid, random.below(64 - blocks), blocks as u16));
            total += blocks;
        }
        let nsid = [RAM, PLAIN][random.below(2) as usize];
        let to = random.below(64 - total);
        for control in &lab.controls {
            let limits = [0, 4, 128, 128];
            let limit = limits[random.below(4) as usize];
            control.blocks_max.store(limit, Ordering::Relaxed);
            control
                .refusals
                .store(random.below(3) / 2, Ordering::Relaxed);
        }
        for fault in &lab.faults {
            fault.arm(FAIL, random.below(4) == 0);
            fault.arm(DELAY, random.below(2) == 0);
        }
        let held = (random.below(4) == 0).then(|| memory.current().take());
        let sqe = super::across::across(nsid, to, sources.len());
        let sqe = sqe.with_cid(lab.world.cid());
        let list = super::across::named(&sources);
        let started = lab.world.start(lab.io, sqe, &list);
        let reply = started.unwrap_or_else(|tag| {
            for _ in 0..200 {
                if let Some(reply) = lab.world.take_reply(0, tag) {
                    return reply;
                }
                if random.below(20) == 0 {
                    memory.reset(1 + random.below(2));
                }
                if random.below(3) == 0 {
                    lab.faults.iter().for_each(FaultControl::release);
                }
                lab.world.poll();
            }
            panic!("the Copy does not end");
        });
        drop(held);
        for fault in &lab.faults {
            fault.arm(FAIL, false);
            fault.arm(DELAY, false);
        }
        let copied: Vec<Option<u8>> = sources
            .iter()
            .flat_map(|(nsid, lba, blocks)| {
                let from = &model[index(*nsid)];
                from[*lba as usize..][..usize::from(*blocks)].to_vec()
            })
            .collect();
        let destination = &mut model[index(nsid)][to as usize..][..total as usize];
        if reply.status().is_success() {
            destination.copy_from_slice(&copied);
        } else if !reply.status().is(Status::OVERLAPPING_IO_RANGE) {
            destination.fill(None);
        }
        for nsid in [RAM, PLAIN] {
            let found = blocks(&mut lab.world, lab.io, nsid, 0, 64);
            for (known, found) in model[index(nsid)].iter_mut().zip(found) {
                assert_eq!(*known.get_or_insert(found), found, "{sources:?} to {nsid}");
            }
        }
        let current = memory.current();
        lab.assert_over(&current, 0);
    }
}

#[test]
fn random_copies_are_those_of_a_model() {
    let only = std::env::var("COPY_SEED").ok();
    let only: Option<u64> = only.map(|text| text.parse().expect("a number"));
    for seed in 0..STORIES {
        if only.is_none_or(|only| only == seed) {
            println!(
                "to repeat it alone: COPY_SEED={seed} cargo test -p nvme_target random_copies"
            );
            story(seed);
        }
    }
}

/// Reads and writes over a transport that does not access memory of devices take the arena, by reason.
#[test]
fn reads_and_writes_of_other_transports_are_counted() {
    let mut lab = Lab::allowed(8);
    let reasons = |lab: &Lab| {
        let totals = lab.world.target.transfer_totals(RAM_DEVICE);
        assert_eq!((totals.reads, totals.writes, totals.failed), (0, 0, 0));
        [TransferReason::Small, TransferReason::Transport].map(|it| totals.reason(it))
    };
    let before = reasons(&lab);
    lab.expect(RAM, 3, &[4, 5]);
    assert_eq!(reasons(&lab), [before[0] + 1, before[1]]);
    for core in &mut lab.world.nodes {
        core.core.set_device_transfer_bytes_min(1024);
    }
    lab.expect(RAM, 3, &[4, 5]);
    assert_eq!(reasons(&lab), [before[0] + 1, before[1] + 1]);
    let memory = lab.memory.current();
    assert_eq!(memory.counters().leases, 0);
    lab.assert_over(&memory, 0);
}
