//! Copies whose data stays in memory of the device.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{
    COPY_PIECES_MAX, Copier, CopyEnd, CopyError, CopyLimits, CopyMessage, CopyOrigin, CopyPlan,
    CopyProgress, CopyStart, CopyStep, CopyStop, DEVICE_MEMORY_FAILURES_MAX, DataPath, Device,
    DeviceClient, DeviceError, DeviceSet, MemoryDevice, Operation, QueueOptions, ReactorDevices,
};
use block_testing::conformance::arena;
use block_testing::{
    Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, MemoryUser, MemoryUserControl,
    OperationKinds, TestMemory, When,
};
use hugemem::{Arena, DeviceMemory};
use reactors::sim::Seeded;
use reactors::{Nanos, ring};

use super::{BLOCK, BLOCKS, DESTINATION, SOURCE, TURN, execute, failure, memory, request};

/// Size of a slice: less than a piece.
const SLICE: usize = 64 << 10;

pub(super) struct Lab {
    pub(super) arena: Arc<Arena>,
    pub(super) devices: ReactorDevices,
    pub(super) copier: Rc<RefCell<Copier>>,
    pub(super) messages: ring::Sender<CopyMessage>,
    pub(super) source: Arc<MemoryDevice>,
    pub(super) destination: Arc<MemoryDevice>,
    pub(super) faults: [FaultControl; 2],
    pub(super) memory: Arc<TestMemory>,
    /// Of the source and the destination.
    pub(super) controls: [Arc<MemoryUserControl>; 2],
    /// The ways of the next copy.
    pub(super) ways: Ways,
    pub(super) now: Nanos,
}

/// The ways that a copy may take besides the arena.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    pub(super) in_device: bool,
    pub(super) by_device: bool,
}

/// What the devices copy by themselves at most: less than a piece.
pub(super) const LIMITS: CopyLimits = CopyLimits {
    sources_max: 4,
    source_blocks_max: 8,
    blocks_max: 20,
};

impl Lab {
    pub(super) fn new(slices: u64) -> Self {
        Self::with_faults(slices, [Vec::new(), Vec::new()], 0)
    }

    /// With rules of the source and the destination.
    pub(super) fn with_faults(slices: u64, rules: [Vec<FaultRule>; 2], seed: u64) -> Self {
        let (arena, own) = (arena(), arena());
        let (source, destination) = (memory(), memory());
        let memory = TestMemory::new(slices, SLICE);
        let set = Rc::new(DeviceSet::new());
        let faulty = [&source, &destination].map(|device| Arc::clone(device) as Arc<dyn Device>);
        let mut rules = rules.into_iter();
        let faulty = faulty.map(|device| {
            let rules = rules.next().unwrap_or_default();
            FaultDevice::new(device, FaultPlan { rules, seed })
        });
        let faults = faulty.each_ref().map(FaultDevice::control);
        let mediums = [&source, &destination].map(|device| Arc::clone(device) as Arc<dyn Device>);
        let mut places = [SOURCE, DESTINATION].into_iter();
        let drives = faulty.map(|inner| {
            let origin = CopyOrigin {
                drive: 7,
                namespace: places.next().map_or(0, |place| place as u32 + 1),
                block_size: BLOCK,
                block_count: BLOCKS,
                limits: LIMITS,
            };
            let medium = Arc::clone(&mediums[DESTINATION]);
            MemoryUser::new(Arc::new(inner), &memory, &own, DataPath::DeviceMemory)
                .of_drive(origin)
                .copying(medium, LIMITS)
                .copying_from(Arc::clone(&mediums[SOURCE]))
        });
        for (place, drive) in [SOURCE, DESTINATION].into_iter().zip(&drives) {
            let options = QueueOptions::new(0, 64, arena.pool(0));
            set.attach(place, drive, options).expect("a queue");
        }
        let controls = drives.each_ref().map(MemoryUser::control);
        let (sender, messages) = ring::channel(16);
        let copier = Copier::new(Rc::clone(&set), arena.pool(0), messages);
        let copier = Rc::new(RefCell::new(copier));
        let devices = ReactorDevices::new(set);
        devices.add(copier.clone());
        for lba in 0..BLOCKS {
            let mut data = arena.pool(0).take(BLOCK as usize).expect("memory");
            data.fill((lba % 251) as u8);
            let write = Operation::Write { fua: false };
            execute(&*source, &arena, request(write, lba, Some(data)));
        }
        Self {
            arena,
            devices,
            copier,
            messages: sender,
            source,
            destination,
            faults,
            memory,
            controls,
            ways: Ways {
                in_device: true,
                by_device: false,
            },
            now: Nanos::from_secs(1),
        }
    }

    pub(super) fn memory(&self) -> Arc<DeviceMemory> {
        self.memory.current()
    }

    /// Makes each device refuse this number of requests.
    pub(super) fn refuse(&self, requests: u64) {
        for control in &self.controls {
            control.refusals.store(requests, Ordering::Relaxed);
        }
    }

    pub(super) fn start(&mut self) -> Arc<CopyProgress> {
        self.start_range(0, BLOCKS)
    }

    pub(super) fn start_range(&mut self, first_block: u64, blocks: u64) -> Arc<CopyProgress> {
        let progress = Arc::<CopyProgress>::default();
        let start = CopyStart {
            number: 1,
            plan: CopyPlan {
                source: SOURCE,
                destination: DESTINATION,
                first_block,
                blocks,
                block_bytes: BLOCK,
                max_transfer_blocks: self.source.geometry().max_transfer_blocks,
                in_device: self.ways.in_device,
                by_device: self.ways.by_device,
            },
            progress: Arc::clone(&progress),
        };
        assert!(self.messages.send(CopyMessage::Start(start)).is_ok());
        progress
    }

    pub(super) fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.devices.poll(self.now);
            self.devices.flush();
            self.now += TURN;
        }
    }

    #[track_caller]
    pub(super) fn run(&mut self, progress: &CopyProgress) -> CopyEnd {
        for _ in 0..10_000 {
            if let Some(end) = progress.end() {
                self.turns(1);
                assert_eq!(self.copier.borrow().next_deadline(), None);
                return end;
            }
            self.turns(1);
        }
        panic!("the copy does not end");
    }

    #[track_caller]
    pub(super) fn expect_copied(&self, blocks: u64) {
        for lba in 0..blocks {
            let data = self.arena.pool(0).take(BLOCK as usize);
            let read = request(Operation::Read, lba, data);
            let block = execute(&*self.destination, &self.arena, read);
            assert!(
                block.iter().all(|byte| *byte == (lba % 251) as u8),
                "block {lba}"
            );
        }
    }
}

/// Also after a write that succeeds: what the device took from the memory may be anything.
#[test]
fn pieces_in_memory_that_ends_are_copied_through_the_arena() {
    for turns in 2..10 {
        let mut lab = Lab::new(8);
        let progress = lab.start();
        lab.turns(turns);
        // The device is reset: its memory loses the content, and is there again.
        let before = lab.memory();
        lab.memory.reset(8);
        assert_eq!(lab.run(&progress), CopyEnd::Complete);
        lab.expect_copied(BLOCKS);
        let failures = progress.device_memory_failures();
        assert!(
            (1..=COPY_PIECES_MAX as u64).contains(&failures),
            "{failures}"
        );
        let lost_blocks = failures * SLICE as u64 / u64::from(BLOCK);
        assert_eq!(progress.in_device_blocks(), BLOCKS - lost_blocks);
        assert_eq!(progress.written_blocks(), BLOCKS);
        assert_eq!(before.counters().taken, 0);
        assert_eq!(lab.memory().counters().taken, 0);
    }
}

#[test]
fn memory_that_ends_again_and_again_is_not_used_any_more() {
    let mut lab = Lab::new(8);
    let progress = lab.start();
    let mut turns = 0;
    while progress.end().is_none() {
        lab.turns(1);
        lab.memory.reset(8);
        turns += 1;
        assert!(turns < 10_000, "the copy does not end");
    }
    assert_eq!(progress.end(), Some(CopyEnd::Complete));
    lab.expect_copied(BLOCKS);
    let (failures, most) = (
        progress.device_memory_failures(),
        u64::from(DEVICE_MEMORY_FAILURES_MAX),
    );
    // Pieces that were in flight together.
    assert!(
        (most..most + COPY_PIECES_MAX as u64).contains(&failures),
        "{failures}"
    );
    assert_eq!(lab.memory().counters().taken, 0);
}

/// A source or a destination that is gone, and requests that it may still execute, fail the copy, whether the
/// memory has ended or not. Errors of the medium do so while the memory is there.
#[test]
fn arena_does_not_help_devices_that_are_gone() {
    for (error, is_reset) in [
        (DeviceError::Removed, false),
        (DeviceError::Removed, true),
        (DeviceError::Aborted, true),
        (DeviceError::Damaged, true),
        (DeviceError::MediaRead, false),
        (DeviceError::NoSpace, false),
    ] {
        // The turn after which the request that fails is in its device.
        for (place, kind, turns) in [
            (SOURCE, OperationKinds::READ, 1),
            (DESTINATION, OperationKinds::WRITE, 2),
        ] {
            let mut rules = [Vec::new(), Vec::new()];
            rules[place] = vec![FaultRule::new(kind, When::Always, Effect::Fail(error))];
            let mut lab = Lab::with_faults(8, rules, 1);
            let progress = lab.start();
            lab.turns(turns);
            assert_eq!(progress.end(), None);
            if is_reset {
                lab.memory.reset(8);
            }
            let (written_blocks, failed) = failure(lab.run(&progress));
            assert_eq!(failed.error, CopyError::Device(error), "{is_reset}");
            assert_eq!((failed.first_block, written_blocks), (0, 0));
            assert_eq!(progress.device_memory_failures(), 0, "{error:?}");
            assert_eq!(lab.memory().counters().taken, 0);
        }
    }
}

/// Errors that may be of the way take the other one; so do those of the medium if the memory has ended.
#[test]
fn pieces_that_fail_in_memory_are_copied_through_the_arena() {
    for error in [
        DeviceError::Internal,
        DeviceError::Interrupted,
        DeviceError::Unsupported,
    ] {
        for (place, kind) in [
            (SOURCE, OperationKinds::READ),
            (DESTINATION, OperationKinds::WRITE),
        ] {
            let mut rules = [Vec::new(), Vec::new()];
            rules[place] = vec![FaultRule::new(kind, When::First(3), Effect::Fail(error))];
            let mut lab = Lab::with_faults(8, rules, 1);
            let progress = lab.start();
            assert_eq!(lab.run(&progress), CopyEnd::Complete, "{error:?}");
            lab.expect_copied(BLOCKS);
            assert_eq!(progress.device_memory_failures(), 3, "{error:?}");
        }
    }
    // Each device refuses such requests.
    let mut lab = Lab::new(8);
    for control in &lab.controls {
        control.refuses_all.store(true, Ordering::Relaxed);
    }
    let progress = lab.start();
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
    lab.expect_copied(BLOCKS);
    assert_eq!(progress.in_device_blocks(), 0);
    let failures = progress.device_memory_failures();
    assert_eq!(failures, u64::from(DEVICE_MEMORY_FAILURES_MAX));
}

/// The source is removed after its memory has ended: no arena helps.
#[test]
fn loss_of_source_or_destination_fails_the_copy() {
    for place in [SOURCE, DESTINATION] {
        let mut lab = Lab::new(8);
        let progress = lab.start();
        lab.turns(4);
        lab.memory.reset(8);
        lab.turns(1);
        lab.devices.remove_now(place, lab.now);
        let (written_blocks, failed) = failure(lab.run(&progress));
        assert_eq!(failed.error, CopyError::Device(DeviceError::Removed));
        assert!(written_blocks <= failed.first_block);
        lab.expect_copied(written_blocks);
    }
}

/// The device that does not have the memory may accept less in one request.
#[test]
fn pieces_are_as_long_as_both_devices_accept() {
    for (most, expected) in [([1, 5], BLOCKS), ([5, 1], BLOCKS), ([3, 0], 0), ([0, 3], 0)] {
        let mut lab = Lab::new(8);
        for (control, most) in lab.controls.iter().zip(most) {
            control.blocks_max.store(most, Ordering::Relaxed);
        }
        let progress = lab.start();
        assert_eq!(lab.run(&progress), CopyEnd::Complete);
        lab.expect_copied(BLOCKS);
        assert_eq!(progress.in_device_blocks(), expected);
        assert_eq!(lab.memory().counters().taken, 0);
    }
}

#[test]
fn slices_of_requests_that_never_complete_are_lost() {
    let mut lab = Lab::new(8);
    let progress = lab.start();
    lab.turns(2);
    lab.devices.remove_now(DESTINATION, lab.now);
    failure(lab.run(&progress));
    let counters = lab.memory().counters();
    assert_eq!(u64::from(counters.taken), counters.lost);
}

#[test]
fn refused_requests_are_submitted_again_or_cancelled() {
    let mut lab = Lab::new(8);
    lab.refuse(100);
    let progress = lab.start();
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
    for control in &lab.controls {
        assert_eq!(control.refusals.load(Ordering::Relaxed), 0);
    }
    lab.expect_copied(BLOCKS);

    lab.refuse(u64::MAX);
    let progress = lab.start();
    lab.turns(3);
    assert_eq!(progress.end(), None);
    let retry = lab.copier.borrow().next_deadline().expect("it tries again");
    assert!(retry <= lab.now + TURN);
    assert!(lab.messages.send(CopyMessage::Abort(1)).is_ok());
    let aborted = CopyEnd::Stopped {
        written_blocks: 0,
        cause: CopyStop::Aborted,
    };
    assert_eq!(lab.run(&progress), aborted);
    assert_eq!(lab.memory().counters().taken, 0);
}

#[test]
fn copy_uses_the_arena_while_no_slice_is_free() {
    for (slices, held) in [(1, 1), (3, 2), (8, 0)] {
        let mut lab = Lab::new(slices);
        let memory = lab.memory();
        let held: Vec<_> = (0..held).map(|_| memory.take().expect("free")).collect();
        let progress = lab.start();
        assert_eq!(lab.run(&progress), CopyEnd::Complete);
        lab.expect_copied(BLOCKS);
        let in_device = progress.in_device_blocks();
        match slices - held.len() as u64 {
            0 => assert_eq!(in_device, 0),
            1 => assert!(in_device > 0 && in_device < BLOCKS, "{in_device}"),
            _ => assert_eq!(in_device, BLOCKS),
        }
        drop(held);
        let counters = memory.counters();
        assert_eq!((counters.taken, counters.lost), (0, 0));
    }
}

/// Values of blocks, by address: those that the source has had since the copy began.
type Values = Vec<Vec<u8>>;

/// Number of random copies.
const STORIES: u64 = 200;
/// Turns after which nothing disturbs a copy any more.
const DISTURBED_TURNS: usize = 300;
/// What blocks of the destination have before.
const BEFORE: u8 = 0xee;

fn random_rules(seeded: &mut Seeded, kind: OperationKinds, error: DeviceError) -> Vec<FaultRule> {
    let mut rules = Vec::new();
    let share = |seeded: &mut Seeded, most| When::PerMillion(seeded.below(most) as u32);
    for (effect, most) in [
        (Effect::Fail(error), 60_000),
        (Effect::Hold, 300_000),
        (Effect::Later, 300_000),
    ] {
        if seeded.below(3) == 0 {
            rules.push(FaultRule::new(kind, share(seeded, most), effect));
        }
    }
    // Flushes are copies of the devices by themselves, too.
    for effect in [Effect::Fail(error), Effect::Hold, Effect::Later] {
        if seeded.below(4) == 0 {
            let share = share(seeded, 300_000);
            rules.push(FaultRule::new(OperationKinds::FLUSH, share, effect));
        }
    }
    if seeded.below(8) == 0 {
        rules.push(FaultRule::new(
            OperationKinds::FLUSH,
            When::Always,
            Effect::Fail(error),
        ));
    }
    rules
}

impl Lab {
    fn put(&self, device: &MemoryDevice, lba: u64, value: u8) {
        let mut data = self.arena.pool(0).take(BLOCK as usize).expect("memory");
        data.fill(value);
        let write = Operation::Write { fua: false };
        execute(device, &self.arena, request(write, lba, Some(data)));
    }

    /// One event that disturbs a copy.
    fn disturb(&mut self, seeded: &mut Seeded, values: &mut Values) {
        match seeded.below(60) {
            0..=9 => {
                let (lba, value) = (seeded.below(BLOCKS), seeded.below(200) as u8);
                self.put(&self.source, lba, value);
                values[lba as usize].push(value);
            }
            10..=29 => self.faults.iter().for_each(FaultControl::release),
            30 => {
                // The drive is reset.
                self.memory.reset(1 + seeded.below(8));
            }
            31 if seeded.below(4) == 0 => {
                assert!(self.messages.send(CopyMessage::Abort(1)).is_ok());
            }
            33 if seeded.below(8) == 0 => {
                let place = [SOURCE, DESTINATION][seeded.below(2) as usize];
                self.devices.remove_now(place, self.now);
            }
            34..=36 => self.refuse(seeded.below(20)),
            37 => {
                let refusals = seeded.below(20);
                (self.controls[DESTINATION].copies_refused).store(refusals, Ordering::Relaxed);
            }
            38 => {
                let control = &self.controls[seeded.below(2) as usize];
                let flag = match seeded.below(2) {
                    0 => &control.is_no_origin,
                    _ => &control.refuses_copies,
                };
                flag.store(seeded.below(3) == 0, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// A random copy, and what it promised: all blocks that it reports as written have a value that the
/// source had meanwhile, no block outside of the range is changed, and all memory returns.
fn story(seed: u64) {
    let mut seeded = Seeded::at(seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
    let rules = [
        random_rules(&mut seeded, OperationKinds::READ, DeviceError::MediaRead),
        random_rules(&mut seeded, OperationKinds::WRITE, DeviceError::NoSpace),
    ];
    let mut lab = Lab::with_faults(1 + seeded.below(8), rules, seed);
    lab.ways = Ways {
        in_device: seeded.below(4) != 0,
        by_device: seeded.below(2) != 0,
    };
    for control in &lab.controls {
        let most = seeded.below(SLICE as u64 / u64::from(BLOCK) + 1);
        control.blocks_max.store(most, Ordering::Relaxed);
    }
    let mut values: Values = (0..BLOCKS).map(|lba| vec![(lba % 251) as u8]).collect();
    (0..BLOCKS).for_each(|lba| lab.put(&lab.destination, lba, BEFORE));
    let first = seeded.below(BLOCKS);
    let blocks = 1 + seeded.below(BLOCKS - first);
    let held: Vec<_> = (0..seeded.below(4))
        .filter_map(|_| lab.memory().take())
        .collect();
    let progress = lab.start_range(first, blocks);
    let mut turns = 0;
    while progress.end().is_none() {
        match turns < DISTURBED_TURNS {
            true => lab.disturb(&mut seeded, &mut values),
            false => lab.faults.iter().for_each(FaultControl::release),
        }
        lab.turns(1);
        turns += 1;
        assert!(turns < 20_000, "the copy does not end");
    }
    let end = progress.end().expect("it has ended");
    let written = match end {
        CopyEnd::Complete => blocks,
        CopyEnd::Stopped {
            written_blocks,
            cause,
        } => {
            if let CopyStop::Failed(failed) = cause
                && failed.step != CopyStep::Flush
            {
                assert!(first + written_blocks <= failed.first_block, "{failed:?}");
                assert!(
                    failed.first_block + failed.blocks <= first + blocks,
                    "{failed:?}"
                );
            }
            written_blocks
        }
    };
    for lba in 0..BLOCKS {
        let data = lab.arena.pool(0).take(BLOCK as usize);
        let read = request(Operation::Read, lba, data);
        let block = execute(&*lab.destination, &lab.arena, read);
        let value = block[0];
        assert!(
            block.iter().all(|byte| *byte == value),
            "block {lba} is torn"
        );
        let is_copied = values[lba as usize].contains(&value);
        let may_be_copied = (first..first + blocks).contains(&lba);
        let is_written = (first..first + written).contains(&lba);
        assert!(
            is_copied && may_be_copied || value == BEFORE && !is_written,
            "block {lba} has {value}: {end:?}"
        );
    }
    assert_eq!(lab.copier.borrow().next_deadline(), None);
    drop(held);
    let counters = lab.memory().counters();
    assert_eq!(u64::from(counters.taken), counters.lost);
}

#[test]
fn random_copies_keep_what_they_promise() {
    let only = std::env::var("COPY_SEED").ok();
    let only: Option<u64> = only.map(|text| text.parse().expect("a number"));
    for seed in 0..STORIES {
        if only.is_none_or(|only| only == seed) {
            println!("to repeat it alone: COPY_SEED={seed} cargo test -p block random_copies");
            story(seed);
        }
    }
}
