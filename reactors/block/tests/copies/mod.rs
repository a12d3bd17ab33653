//! Copies between devices that fail, delay, refuse and disappear, in virtual time.

mod by_device;
mod in_device;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use block::{
    COPIES_MAX, COPY_MEMORY_TIME_MAX, COPY_PIECE_BYTES, COPY_PIECES_MAX, COPY_REQUEST_TIME_MAX,
    CompletionBatch, Copier, CopyEnd, CopyError, CopyFailure, CopyMessage, CopyPlan, CopyProgress,
    CopyStart, CopyStep, CopyStop, Device, DeviceClient, DeviceError, DeviceQueue, DeviceSet,
    Drain, GIVEN_UP_MAX, MemoryDevice, MemoryOptions, Operation, QueueOptions, ReactorDevices,
    Request,
};
use block_testing::conformance::arena;
use block_testing::{
    Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, OperationKinds, When,
};
use hugemem::{Account, Arena, Lease, PagePolicy, WaiterToken};
use reactors::{Nanos, ring};

const BLOCK: u32 = 4096;
/// Blocks of a piece.
const PIECE: u64 = COPY_PIECE_BYTES as u64 / BLOCK as u64;
/// Ten pieces, and one that is shorter.
const BLOCKS: u64 = 10 * PIECE + 7;
const SOURCE: usize = 0;
const DESTINATION: usize = 1;
const TURN: Nanos = Nanos::from_micros(100);

fn memory() -> Arc<MemoryDevice> {
    let options = MemoryOptions {
        name: "ram".into(),
        uuid: [1; 16],
        size_bytes: BLOCKS * u64::from(BLOCK),
        block_size: BLOCK,
        pages: PagePolicy::Ordinary,
        read_only: false,
    };
    Arc::new(MemoryDevice::new(options).expect("memory"))
}

/// Executes a request of the test on a queue of its own.
fn execute(device: &dyn Device, arena: &Arc<Arena>, request: Request) -> Vec<u8> {
    let mut queue: Box<dyn DeviceQueue> = device
        .open_queue(QueueOptions::new(0, 4, arena.pool(0)))
        .expect("a queue");
    queue.submit(request).expect("it is valid");
    queue.flush();
    let mut batch = CompletionBatch::new();
    while queue.poll(&mut batch) == 0 {}
    let completion = batch.pop().expect("one");
    completion.result.expect("it succeeds");
    completion.data.map_or_else(Vec::new, |data| data.to_vec())
}

fn request(operation: Operation, lba: u64, data: Option<Lease>) -> Request {
    Request {
        tag: 0,
        operation,
        lba,
        blocks: 1,
        data,
    }
}

struct Lab {
    arena: Arc<Arena>,
    devices: ReactorDevices,
    source: Arc<MemoryDevice>,
    destination: Arc<MemoryDevice>,
    source_faults: FaultControl,
    destination_faults: FaultControl,
    messages: ring::Sender<CopyMessage>,
    copier: Rc<RefCell<Copier>>,
    now: Nanos,
}

impl Lab {
    fn new(source_rules: Vec<FaultRule>, destination_rules: Vec<FaultRule>) -> Self {
        let arena = arena();
        let (source, destination) = (memory(), memory());
        let faulty = |device: &Arc<MemoryDevice>, rules| {
            let plan = FaultPlan { rules, seed: 7 };
            FaultDevice::new(Arc::clone(device) as Arc<dyn Device>, plan)
        };
        let faulty_source = faulty(&source, source_rules);
        let faulty_destination = faulty(&destination, destination_rules);
        let set = Rc::new(DeviceSet::new());
        for (place, device) in [(SOURCE, &faulty_source), (DESTINATION, &faulty_destination)] {
            let options = QueueOptions::new(0, 64, arena.pool(0));
            set.attach(place, device, options).expect("a queue");
        }
        let (sender, messages) = ring::channel(16);
        let copier = Copier::new(Rc::clone(&set), arena.pool(0), messages);
        let copier = Rc::new(RefCell::new(copier));
        let devices = ReactorDevices::new(set);
        devices.add(copier.clone());
        let lab = Self {
            source_faults: faulty_source.control(),
            destination_faults: faulty_destination.control(),
            arena,
            devices,
            source,
            destination,
            messages: sender,
            copier,
            now: Nanos::from_secs(1),
        };
        for lba in 0..BLOCKS {
            lab.write(&lab.source, lba, (lba % 251) as u8);
            lab.write(&lab.destination, lba, 0xee);
        }
        lab
    }

    fn write(&self, device: &Arc<MemoryDevice>, lba: u64, value: u8) {
        let mut data = self.arena.pool(0).take(BLOCK as usize).expect("memory");
        data.fill(value);
        let write = Operation::Write { fua: false };
        execute(&**device, &self.arena, request(write, lba, Some(data)));
    }

    /// The value of each block of the destination.
    fn copied(&self) -> Vec<u8> {
        let pool = self.arena.pool(0);
        let blocks = (0..BLOCKS).map(|lba| {
            let data = pool.take(BLOCK as usize);
            let block = execute(
                &*self.destination,
                &self.arena,
                request(Operation::Read, lba, data),
            );
            assert!(block.iter().all(|byte| *byte == block[0]), "block {lba}");
            block[0]
        });
        blocks.collect()
    }

    /// Checks that exactly the blocks in `copied` are those of the source.
    #[track_caller]
    fn expect_copied(&self, copied: impl Fn(u64) -> bool) {
        for (lba, value) in (0..).zip(self.copied()) {
            let expected = if copied(lba) { (lba % 251) as u8 } else { 0xee };
            assert_eq!(value, expected, "block {lba}");
        }
    }

    fn start_range(&mut self, number: u32, first_block: u64, blocks: u64) -> Arc<CopyProgress> {
        let progress = Arc::<CopyProgress>::default();
        let start = CopyStart {
            number,
            plan: CopyPlan {
                source: SOURCE,
                destination: DESTINATION,
                first_block,
                blocks,
                block_bytes: BLOCK,
                max_transfer_blocks: self.source.geometry().max_transfer_blocks,
                in_device: false,
                by_device: false,
            },
            progress: Arc::clone(&progress),
        };
        let sent = self.messages.send(CopyMessage::Start(start));
        assert!(sent.is_ok(), "room in the ring");
        progress
    }

    fn start(&mut self) -> Arc<CopyProgress> {
        self.start_range(1, 0, BLOCKS)
    }

    fn abort(&mut self, number: u32) {
        let sent = self.messages.send(CopyMessage::Abort(number));
        assert!(sent.is_ok(), "room in the ring");
    }

    fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.devices.poll(self.now);
            self.devices.flush();
            self.now += TURN;
        }
    }

    #[track_caller]
    fn run(&mut self, progress: &CopyProgress) -> CopyEnd {
        for _ in 0..10_000 {
            if let Some(end) = progress.end() {
                // Memory and devices are free again.
                assert_eq!(self.devices.set().in_flight(), 0);
                assert_eq!(self.devices.set().waiting(), 0);
                self.turns(1);
                assert!(self.copier.borrow().has_released_device(SOURCE));
                assert_eq!(self.copier.borrow().next_deadline(), None);
                return end;
            }
            self.turns(1);
        }
        panic!("the copy does not end");
    }
}

fn rule(operations: OperationKinds, when: When, effect: Effect) -> FaultRule {
    FaultRule::new(operations, when, effect)
}

fn at(operations: OperationKinds, lba: u64, effect: Effect) -> FaultRule {
    FaultRule {
        blocks: lba..lba + 1,
        ..FaultRule::new(operations, When::Always, effect)
    }
}

#[track_caller]
fn failure(end: CopyEnd) -> (u64, CopyFailure) {
    match end {
        CopyEnd::Stopped {
            written_blocks,
            cause: CopyStop::Failed(failure),
        } => (written_blocks, failure),
        other => panic!("{other:?}"),
    }
}

#[test]
fn failed_reads_and_writes_report_the_lowest_range() {
    // The later range fails first: its request precedes the completion of the earlier one.
    for (operations, step, error) in [
        (OperationKinds::READ, CopyStep::Read, DeviceError::MediaRead),
        (OperationKinds::WRITE, CopyStep::Write, DeviceError::NoSpace),
    ] {
        let rules = || {
            vec![
                at(operations, 2 * PIECE + 3, Effect::Hold),
                at(operations, 3 * PIECE + 1, Effect::Fail(error)),
            ]
        };
        let mut lab = match step {
            CopyStep::Read => Lab::new(rules(), Vec::new()),
            _ => Lab::new(Vec::new(), rules()),
        };
        let progress = lab.start();
        lab.turns(100);
        assert_eq!(
            progress.end(),
            None,
            "a piece before the failed one is held"
        );
        lab.source_faults.release();
        lab.destination_faults.release();
        let (written_blocks, failed) = failure(lab.run(&progress));
        let expected = CopyFailure {
            step,
            first_block: 3 * PIECE,
            blocks: PIECE,
            error: CopyError::Device(error),
        };
        assert_eq!(failed, expected);
        assert_eq!(written_blocks, 3 * PIECE);
        let copied = lab.copied();
        for (lba, value) in (0..3 * PIECE).zip(&copied) {
            assert_eq!(
                *value,
                (lba % 251) as u8,
                "block {lba} is before the failure"
            );
        }
    }
}

#[test]
fn several_failures_report_the_lowest_range() {
    let fails = |lba, error| at(OperationKinds::WRITE, lba, Effect::Fail(error));
    let mut lab = Lab::new(
        vec![at(OperationKinds::READ, PIECE, Effect::Hold)],
        vec![
            fails(PIECE, DeviceError::MediaWrite),
            fails(2 * PIECE, DeviceError::NoSpace),
        ],
    );
    let progress = lab.start();
    lab.turns(100);
    lab.source_faults.release();
    let (written_blocks, failed) = failure(lab.run(&progress));
    assert_eq!((written_blocks, failed.first_block), (PIECE, PIECE));
    assert_eq!(failed.error, CopyError::Device(DeviceError::MediaWrite));
}

#[test]
fn failed_flush_fails_the_whole_range() {
    let effect = Effect::Fail(DeviceError::Damaged);
    let rules = vec![rule(OperationKinds::FLUSH, When::Always, effect)];
    let mut lab = Lab::new(Vec::new(), rules);
    let progress = lab.start_range(1, 5, 20);
    let (written_blocks, failed) = failure(lab.run(&progress));
    let expected = CopyFailure {
        step: CopyStep::Flush,
        first_block: 5,
        blocks: 20,
        error: CopyError::Device(DeviceError::Damaged),
    };
    assert_eq!((written_blocks, failed), (20, expected));
    assert_eq!(progress.written_blocks(), 20);
}

#[test]
fn requests_that_do_not_complete_fail_the_copy_when_they_are_due() {
    for operations in [
        OperationKinds::READ,
        OperationKinds::WRITE,
        OperationKinds::FLUSH,
    ] {
        let rules = || vec![rule(operations, When::First(1), Effect::Hold)];
        let mut lab = Lab::new(rules(), rules());
        let progress = lab.start();
        lab.turns(200);
        lab.now += Nanos(COPY_REQUEST_TIME_MAX.0 / 2);
        lab.turns(2);
        assert_eq!(progress.end(), None);
        let deadline = lab
            .copier
            .borrow()
            .next_deadline()
            .expect("a request is in flight");
        assert!(deadline <= lab.now + COPY_REQUEST_TIME_MAX);
        lab.now = deadline;
        lab.turns(2);
        // It ends when the device has ended the request.
        assert_eq!(progress.end(), None);
        lab.now += GIVEN_UP_MAX;
        lab.turns(2);
        lab.source_faults.release();
        lab.destination_faults.release();
        let end = lab.run(&progress);
        if operations == OperationKinds::FLUSH {
            // Late, but everything is written and flushed.
            assert_eq!(end, CopyEnd::Complete);
            continue;
        }
        let (written_blocks, failed) = failure(end);
        assert_eq!((failed.error, failed.first_block), (CopyError::Overdue, 0));
        // Also if it has completed late: a copy that continues begins with what is reported.
        assert_eq!(written_blocks, 0);
    }
}

#[test]
fn devices_that_disappear_fail_the_copy() {
    for place in [SOURCE, DESTINATION] {
        let mut lab = Lab::new(Vec::new(), Vec::new());
        let progress = lab.start();
        lab.turns(3);
        match place {
            SOURCE => lab.source_faults.remove(),
            _ => lab.destination_faults.remove(),
        }
        let (written_blocks, failed) = failure(lab.run(&progress));
        assert_eq!(failed.error, CopyError::Device(DeviceError::Removed));
        assert!(written_blocks < BLOCKS, "{written_blocks}");
        lab.expect_copied(|lba| lba < written_blocks);
    }
    for (place, step) in [(SOURCE, CopyStep::Read), (DESTINATION, CopyStep::Write)] {
        let mut lab = Lab::new(Vec::new(), Vec::new());
        let progress = lab.start();
        lab.turns(3);
        assert!(!lab.copier.borrow().has_released_device(place));
        assert_ne!(lab.devices.detach(place), Drain::Done);
        lab.devices.remove_now(place, lab.now);
        let (_, failed) = failure(lab.run(&progress));
        assert_eq!(failed.error, CopyError::Device(DeviceError::Removed));
        assert_eq!(failed.step, step);
    }
}

#[test]
fn unknown_devices_fail_the_copy() {
    let mut lab = Lab::new(Vec::new(), Vec::new());
    let progress = Arc::<CopyProgress>::default();
    let start = CopyStart {
        number: 1,
        plan: CopyPlan {
            source: 7,
            destination: DESTINATION,
            first_block: 0,
            blocks: 1,
            block_bytes: BLOCK,
            max_transfer_blocks: 1,
            in_device: false,
            by_device: false,
        },
        progress: Arc::clone(&progress),
    };
    assert!(lab.messages.send(CopyMessage::Start(start)).is_ok());
    let (written_blocks, failed) = failure(lab.run(&progress));
    assert_eq!(
        (written_blocks, failed.error),
        (0, CopyError::Device(DeviceError::Removed))
    );
}

#[test]
fn aborted_copy_ends_when_its_requests_have() {
    let holds = FaultRule {
        blocks: 2 * PIECE..BLOCKS,
        ..rule(OperationKinds::WRITE, When::Always, Effect::Hold)
    };
    let mut lab = Lab::new(Vec::new(), vec![holds]);
    let progress = lab.start();
    lab.turns(20);
    lab.abort(2);
    lab.turns(20);
    assert_eq!(progress.end(), None, "another copy was aborted");
    lab.abort(1);
    lab.turns(2);
    assert_eq!(progress.end(), None, "the device has requests");
    lab.destination_faults.release();
    // The writes that the device had take effect.
    let written_blocks = (2 + COPY_PIECES_MAX as u64) * PIECE;
    let aborted = CopyEnd::Stopped {
        written_blocks,
        cause: CopyStop::Aborted,
    };
    assert_eq!(lab.run(&progress), aborted);
    lab.expect_copied(|lba| lba < written_blocks);
}

#[test]
fn requests_that_the_device_has_not_taken_are_cancelled() {
    let rules = vec![rule(OperationKinds::WRITE, When::Always, Effect::Later)];
    let mut lab = Lab::new(Vec::new(), rules);
    let progress = lab.start();
    lab.turns(20);
    assert!(lab.devices.set().waiting() > 0);
    lab.abort(1);
    let aborted = CopyEnd::Stopped {
        written_blocks: 0,
        cause: CopyStop::Aborted,
    };
    assert_eq!(lab.run(&progress), aborted);
    lab.expect_copied(|_| false);
}

#[test]
fn reactor_that_stops_ends_copies_and_begins_none() {
    let mut lab = Lab::new(Vec::new(), Vec::new());
    let progress = lab.start();
    lab.turns(3);
    let mut drained = false;
    for _ in 0..1000 {
        drained = lab.devices.drain(lab.now) == Drain::Done;
        if drained {
            break;
        }
        lab.turns(1);
    }
    assert!(drained, "the devices are drained");
    let Some(CopyEnd::Stopped {
        written_blocks,
        cause: CopyStop::ReactorStops,
    }) = progress.end()
    else {
        panic!("{:?}", progress.end());
    };
    lab.expect_copied(|lba| lba < written_blocks);
    let late = lab.start_range(2, 0, BLOCKS);
    lab.turns(1);
    let refused = CopyEnd::Stopped {
        written_blocks: 0,
        cause: CopyStop::ReactorStops,
    };
    assert_eq!(late.end(), Some(refused));
}

#[test]
fn copies_beyond_the_limit_are_not_begun() {
    let mut lab = Lab::new(
        vec![rule(OperationKinds::READ, When::Always, Effect::Later)],
        vec![],
    );
    let all: Vec<_> = (0..=COPIES_MAX as u32)
        .map(|number| lab.start_range(number, 0, 1))
        .collect();
    lab.turns(4);
    let (last, others) = all.split_last().expect("some");
    assert!(matches!(
        last.end(),
        Some(CopyEnd::Stopped {
            written_blocks: 0,
            ..
        })
    ));
    assert!(others.iter().all(|it| it.end().is_none()));
    lab.source_faults.arm(0, false);
    for progress in others {
        assert_eq!(lab.run(progress), CopyEnd::Complete);
    }
}

/// Takes every slice of a piece's size.
fn take_all(arena: &Arc<Arena>) -> Vec<Lease> {
    let pool = arena.pool(0);
    std::iter::from_fn(|| pool.take(COPY_PIECE_BYTES)).collect()
}

#[test]
fn copy_without_memory_waits_and_fails_when_it_is_due() {
    let mut lab = Lab::new(Vec::new(), Vec::new());
    let taken = take_all(&lab.arena);
    let progress = lab.start();
    lab.turns(3);
    let retry = lab.copier.borrow().next_deadline().expect("it tries again");
    assert!(retry <= lab.now + Nanos::from_millis(1));
    drop(taken);
    lab.turns(1);
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
    assert!(progress.memory_waits() > 0);

    let _taken = take_all(&lab.arena);
    let progress = lab.start_range(2, 0, BLOCKS);
    lab.turns(3);
    lab.now += COPY_MEMORY_TIME_MAX;
    let (written_blocks, failed) = failure(lab.run(&progress));
    assert_eq!((written_blocks, failed.error), (0, CopyError::NoMemory));
}

#[test]
fn copy_leaves_memory_to_those_who_wait_for_it() {
    // Writes are held, so that the copy has as many pieces in flight as it begins.
    let rules = vec![rule(OperationKinds::WRITE, When::Always, Effect::Hold)];
    let mut lab = Lab::new(Vec::new(), rules);
    let mut taken = take_all(&lab.arena);
    let (waits, other) = (lab.arena.pool(4), Account::io(1));
    assert!(
        waits
            .take_or_wait(other, COPY_PIECE_BYTES, WaiterToken(1), 0)
            .is_none()
    );
    assert!(waits.next_grant(0).is_none(), "nothing is left");
    taken.truncate(taken.len() - 3);
    let progress = lab.start();
    lab.turns(20);
    assert_eq!(
        lab.devices.set().in_flight(),
        1,
        "one piece, so that it does not stand still"
    );
    let granted = waits.next_grant(1).expect("memory is left");
    lab.turns(20);
    assert_eq!(lab.devices.set().in_flight(), 2, "none waits any more");
    drop((granted, taken));
    lab.destination_faults.arm(0, false);
    lab.destination_faults.release();
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
}

#[test]
fn everything_is_copied_in_spite_of_refusals_and_flushed_once() {
    let later = || {
        vec![rule(
            OperationKinds::ALL,
            When::PerMillion(300_000),
            Effect::Later,
        )]
    };
    let mut lab = Lab::new(later(), later());
    let progress = lab.start();
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
    assert_eq!(progress.written_blocks(), BLOCKS);
    lab.expect_copied(|_| true);
    assert_eq!(lab.destination.health().flushes, 1);
}

#[test]
fn only_the_range_is_copied() {
    for (first_block, blocks) in [
        (0, 1),
        (BLOCKS - 1, 1),
        (3, PIECE),
        (PIECE - 1, 2 * PIECE + 1),
    ] {
        let mut lab = Lab::new(Vec::new(), Vec::new());
        let progress = lab.start_range(1, first_block, blocks);
        assert_eq!(lab.run(&progress), CopyEnd::Complete);
        let range = first_block..first_block + blocks;
        lab.expect_copied(|lba| range.contains(&lba));
    }
}
