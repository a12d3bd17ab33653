//! All effects and all ways to choose matches, on a RAM device.

use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};

use super::*;
use block::{Completion, CompletionBatch, Drain, MemoryDevice, MemoryOptions, Refusal};

struct Bench {
    device: FaultDevice,
    control: FaultControl,
    queue: Box<dyn DeviceQueue>,
    pool: Pool,
    next_tag: u64,
}

impl Bench {
    fn new(rules: Vec<FaultRule>) -> Self {
        Self::seeded(FaultPlan { rules, seed: 0 })
    }

    fn seeded(plan: FaultPlan) -> Self {
        let options = MemoryOptions {
            name: "ram".into(),
            uuid: [1; 16],
            size_bytes: 1 << 20,
            block_size: 4096,
            pages: PagePolicy::Ordinary,
            read_only: false,
        };
        let inner = Arc::new(MemoryDevice::new(options).unwrap());
        let device = FaultDevice::new(inner, plan);
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        let pool = Arena::new(config).unwrap().pool(0);
        let options = QueueOptions::new(0, 4, pool.clone());
        let queue = device.open_queue(options).unwrap();
        Self {
            control: device.control(),
            device,
            queue,
            pool,
            next_tag: 1000,
        }
    }

    fn try_submit(&mut self, operation: Operation, lba: u64) -> Result<u64, Refusal> {
        self.next_tag += 1;
        let data = operation.has_data().then(|| self.pool.take(4096).unwrap());
        let blocks = u32::from(operation != Operation::Flush);
        self.queue.submit(Request {
            tag: self.next_tag,
            operation,
            lba,
            blocks,
            data,
        })?;
        Ok(self.next_tag)
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut batch = CompletionBatch::new();
        self.queue.flush();
        self.queue.poll(&mut batch);
        batch.into_iter().collect()
    }

    /// Runs a request that the device takes and completes immediately.
    fn run(&mut self, operation: Operation, lba: u64) -> Result<(), DeviceError> {
        let tag = self.try_submit(operation, lba).unwrap();
        let completions = self.poll();
        let [completion] = &completions[..] else {
            panic!("{completions:?}")
        };
        assert_eq!(completion.tag, tag);
        assert_eq!(
            completion.data.is_some(),
            operation.has_data(),
            "the lease comes back"
        );
        completion.result
    }
}

const WRITE: Operation = Operation::Write { fua: false };
const MEDIA: Effect = Effect::Fail(DeviceError::MediaRead);

#[test]
fn requests_fail_by_kind_and_by_block() {
    let mut bench = Bench::new(vec![FaultRule {
        operations: OperationKinds::READ | OperationKinds::COMPARE,
        blocks: 10..12,
        when: When::Always,
        effect: MEDIA,
    }]);
    for lba in [9, 12] {
        assert_eq!(bench.run(Operation::Read, lba), Ok(()));
    }
    for lba in [10, 11] {
        assert_eq!(bench.run(Operation::Read, lba), Err(DeviceError::MediaRead));
        assert_eq!(
            bench.run(Operation::Compare, lba),
            Err(DeviceError::MediaRead)
        );
        assert_eq!(bench.run(WRITE, lba), Ok(()));
    }
    assert_eq!(bench.control.fired(0), 4);
    bench.control.arm(0, false);
    assert_eq!(bench.run(Operation::Read, 10), Ok(()));
    bench.control.arm(0, true);
    assert_eq!(bench.run(Operation::Read, 10), Err(DeviceError::MediaRead));
}

#[test]
fn block_rule_matches_flush() {
    let effect = Effect::Fail(DeviceError::MediaWrite);
    let rule = FaultRule::new(OperationKinds::FLUSH, When::Always, effect);
    let mut bench = Bench::new(vec![FaultRule {
        blocks: 5..6,
        ..rule
    }]);
    assert_eq!(bench.run(Operation::Flush, 0), Err(DeviceError::MediaWrite));
}

#[test]
fn requests_fail_by_count() {
    let failing = |when| {
        let mut bench = Bench::new(vec![FaultRule::new(OperationKinds::ALL, when, MEDIA)]);
        (1..=6)
            .filter(|_| bench.run(Operation::Read, 0).is_err())
            .collect::<Vec<u64>>()
    };
    assert_eq!(failing(When::Nth(3)), [3]);
    assert_eq!(failing(When::Nth(0)), []);
    assert_eq!(failing(When::First(2)), [1, 2]);
    assert_eq!(failing(When::Every(2)), [2, 4, 6]);
    assert_eq!(failing(When::Every(0)), []);
}

#[test]
fn random_faults_are_reproducible_from_the_seed() {
    let failing = |seed, share| {
        let rule = FaultRule::new(OperationKinds::ALL, When::PerMillion(share), MEDIA);
        let mut bench = Bench::seeded(FaultPlan {
            rules: vec![rule],
            seed,
        });
        (0..400)
            .filter(|_| bench.run(Operation::Read, 0).is_err())
            .collect::<Vec<u64>>()
    };
    let some = failing(7, 250_000);
    assert!((50..150).contains(&some.len()), "{} of 400", some.len());
    assert_eq!(some, failing(7, 250_000));
    assert_ne!(some, failing(8, 250_000));
    assert_eq!(failing(7, 0), []);
    assert_eq!(failing(7, 1_000_000).len(), 400);
}

#[test]
fn held_completions_arrive_after_release() {
    let rule = FaultRule::new(OperationKinds::WRITE, When::Always, Effect::Hold);
    let mut bench = Bench::new(vec![rule]);
    let first = bench.try_submit(WRITE, 0).unwrap();
    assert!(bench.poll().is_empty());
    assert!(bench.queue.has_ready(), "nothing else tells of a release");
    assert_eq!(bench.queue.in_flight(), 1);
    assert_eq!(bench.queue.drain(), Drain::Outstanding(1));
    bench.control.release();
    assert_eq!(bench.poll()[0].tag, first);
    assert_eq!(bench.queue.drain(), Drain::Done);

    let options = QueueOptions::new(0, 4, bench.pool.clone());
    bench.queue = bench.device.open_queue(options).unwrap();
    bench.try_submit(WRITE, 0).unwrap();
    assert!(
        bench.poll().is_empty(),
        "an earlier release is not for later requests"
    );
    for lba in 1..4 {
        bench.try_submit(WRITE, lba).unwrap();
    }
    let Err(Refusal::Later(request)) = bench.try_submit(WRITE, 4) else {
        panic!("held requests count for the depth")
    };
    assert_eq!(request.tag, bench.next_tag);
    bench.control.release();
    assert_eq!(bench.poll().len(), 4);
}

/// The inner queue uses other tags, so that tags are translated for it.
#[test]
fn give_up_uses_the_callers_tags() {
    let mut bench = Bench::new(Vec::new());
    let read = Request {
        tag: 7,
        operation: Operation::Read,
        lba: 3,
        blocks: 1,
        data: None,
    };
    bench.queue.submit(read).unwrap();
    let borrow = bench.poll();
    let tags = [3, 3].map(|lba| bench.try_submit(WRITE, lba).unwrap());
    bench.queue.give_up(&mut |tag| tag == tags[0]);
    let ended = bench.poll();
    assert_eq!(ended.len(), 1);
    assert_eq!(
        (ended[0].tag, ended[0].result),
        (tags[0], Err(DeviceError::Aborted))
    );
    drop(borrow);
    let ended = bench.poll();
    assert_eq!((ended[0].tag, ended[0].result), (tags[1], Ok(())));
}

#[test]
fn later_refusal_returns_the_request() {
    let rule = FaultRule::new(OperationKinds::ALL, When::First(2), Effect::Later);
    let mut bench = Bench::new(vec![rule]);
    for _ in 0..2 {
        let Err(Refusal::Later(request)) = bench.try_submit(WRITE, 3) else {
            panic!("taken")
        };
        assert_eq!((request.tag, request.lba), (bench.next_tag, 3));
        assert!(request.data.is_some());
        assert_eq!(bench.queue.in_flight(), 0);
    }
    assert_eq!(bench.run(WRITE, 3), Ok(()));
}

#[test]
fn removed_device_ends_its_requests_and_refuses_new_ones() {
    let hold = FaultRule::new(OperationKinds::WRITE, When::Always, Effect::Hold);
    let remove = FaultRule::new(OperationKinds::FLUSH, When::Always, Effect::Remove);
    let mut bench = Bench::new(vec![hold, remove]);
    let held = bench.try_submit(WRITE, 0).unwrap();
    assert!(bench.poll().is_empty());
    bench
        .queue
        .submit(Request {
            tag: 1,
            operation: Operation::Read,
            lba: 1,
            blocks: 1,
            data: None,
        })
        .unwrap();
    let refused = bench.try_submit(Operation::Flush, 0);
    assert!(matches!(
        refused,
        Err(Refusal::Never(_, DeviceError::Removed))
    ));
    let mut completions = bench.poll();
    completions.sort_by_key(|completion| completion.tag);
    assert_eq!(
        completions
            .iter()
            .map(|completion| completion.tag)
            .collect::<Vec<_>>(),
        [1, held]
    );
    for completion in &completions {
        assert_eq!(completion.result, Err(DeviceError::Removed));
    }
    assert!(completions[0].data.is_none(), "no borrow after an error");
    assert!(completions[1].data.is_some(), "the lease comes back");
    let refused = bench.try_submit(Operation::Read, 0);
    assert!(matches!(
        refused,
        Err(Refusal::Never(_, DeviceError::Removed))
    ));
    assert_eq!(bench.device.health().state, HealthState::Removed);
    let options = QueueOptions::new(0, 4, bench.pool.clone());
    assert!(matches!(
        bench.device.open_queue(options),
        Err(OpenError::Removed)
    ));
    assert_eq!(bench.queue.drain(), Drain::Done);
}

#[test]
fn first_matching_fault_rule_applies() {
    let mut bench = Bench::new(vec![
        FaultRule::new(
            OperationKinds::READ,
            When::Nth(2),
            Effect::Fail(DeviceError::Aborted),
        ),
        FaultRule::new(OperationKinds::ALL, When::Always, MEDIA),
    ]);
    assert_eq!(bench.run(Operation::Read, 0), Err(DeviceError::MediaRead));
    assert_eq!(bench.run(Operation::Read, 0), Err(DeviceError::Aborted));
    assert_eq!((bench.control.fired(0), bench.control.fired(1)), (1, 1));
}

#[test]
fn invalid_requests_are_refused_before_fault_rules() {
    let mut bench = Bench::new(vec![FaultRule::new(
        OperationKinds::ALL,
        When::Always,
        MEDIA,
    )]);
    let refused = bench.try_submit(WRITE, 256);
    assert!(matches!(
        refused,
        Err(Refusal::Never(_, DeviceError::OutOfRange))
    ));
    assert_eq!(bench.control.fired(0), 0);
}
