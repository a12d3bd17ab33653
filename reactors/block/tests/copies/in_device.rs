//! Copies whose data stays in memory of the device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use block::{
    CompletionBatch, Copier, CopyEnd, CopyError, CopyMessage, CopyPlan, CopyProgress, CopyStart,
    CopyStep, CopyStop, Device, DeviceClient, DeviceError, DeviceIdentity, DeviceQueue, DeviceSet,
    Drain, Geometry, Health, MemoryDevice, OpenError, Operation, QueueOptions, ReactorDevices,
    Refusal, Request,
};
use block_testing::conformance::arena;
use block_testing::{
    Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, OperationKinds, When,
};
use hugemem::{Arena, DeviceLease, DeviceMemory, Pool, Sharing};
use reactors::sim::Seeded;
use reactors::{Nanos, ring};

use super::{BLOCK, BLOCKS, DESTINATION, SOURCE, TURN, execute, failure, memory, request};

/// Size of a slice: less than a piece.
const SLICE: usize = 64 << 10;

/// A drive with memory of its own: each queue keeps the data of its slices.
struct DriveWithMemory {
    inner: Arc<dyn Device>,
    memory: Arc<Mutex<Arc<DeviceMemory>>>,
    /// The content of the memory, by address.
    content: Arc<Mutex<HashMap<u64, Vec<u8>>>>,
    /// Requests that are refused for now, and executed later.
    refusals: Arc<AtomicU64>,
    /// The longest request that it takes, in blocks.
    blocks_max: Arc<AtomicU64>,
    arena: Arc<Arena>,
}

struct QueueWithMemory {
    inner: Box<dyn DeviceQueue>,
    memory: Arc<Mutex<Arc<DeviceMemory>>>,
    content: Arc<Mutex<HashMap<u64, Vec<u8>>>>,
    refusals: Arc<AtomicU64>,
    blocks_max: Arc<AtomicU64>,
    pool: Pool,
    /// The address of reads in flight, by tag.
    addresses: HashMap<u64, u64>,
    /// Writes in flight.
    writes: Vec<u64>,
}

impl Device for DriveWithMemory {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> &DeviceIdentity {
        self.inner.identity()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        Ok(Box::new(QueueWithMemory {
            inner: self.inner.open_queue(options)?,
            memory: Arc::clone(&self.memory),
            content: Arc::clone(&self.content),
            refusals: Arc::clone(&self.refusals),
            blocks_max: Arc::clone(&self.blocks_max),
            pool: self.arena.pool(0),
            addresses: HashMap::new(),
            writes: Vec::new(),
        }))
    }
}

impl DeviceQueue for QueueWithMemory {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        self.inner.submit(request)
    }

    fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        Some(Arc::clone(&self.memory.lock().expect("not poisoned")))
    }

    fn blocks_in(&self, memory: &Arc<DeviceMemory>) -> u32 {
        let own = self.memory.lock().expect("not poisoned");
        match Arc::ptr_eq(&own, memory) {
            true => self.blocks_max.load(Ordering::Relaxed) as u32,
            false => 0,
        }
    }

    fn submit_in_device(
        &mut self,
        mut request: Request,
        lease: &mut DeviceLease,
    ) -> Result<(), Refusal> {
        if self.refusals.load(Ordering::Relaxed) > 0 {
            self.refusals.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Later(request));
        }
        let most = self.blocks_max.load(Ordering::Relaxed);
        assert!(u64::from(request.blocks) <= most, "too long");
        let address = lease.begin();
        let mut data = self.pool.take(request.blocks as usize * BLOCK as usize);
        let tag = request.tag;
        if request.operation == Operation::Read {
            self.addresses.insert(tag, address);
        } else {
            let content = self.content.lock().expect("not poisoned");
            let written = data.as_mut().expect("memory");
            let bytes = written.len();
            written.copy_from_slice(&content[&address][..bytes]);
            self.writes.push(tag);
        }
        request.data = data;
        self.inner.submit(request).map_err(|refusal| {
            lease.complete();
            self.addresses.remove(&tag);
            self.writes.retain(|it| *it != tag);
            let refuse = match &refusal {
                Refusal::Later(_) => None,
                Refusal::Never(_, error) => Some(*error),
            };
            let mut request = refusal.into_request();
            request.data = None;
            match refuse {
                None => Refusal::Later(request),
                Some(error) => Refusal::Never(request, error),
            }
        })
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let mut batch = CompletionBatch::new();
        let count = self.inner.poll(&mut batch);
        for mut completion in batch {
            if let Some(address) = self.addresses.remove(&completion.tag) {
                if let Some(data) = completion.data.take() {
                    let mut content = self.content.lock().expect("not poisoned");
                    content.insert(address, data.to_vec());
                }
            } else if self.writes.contains(&completion.tag) {
                self.writes.retain(|tag| *tag != completion.tag);
                completion.data = None;
            }
            completions.push(completion);
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn has_ready(&self) -> bool {
        self.inner.has_ready()
    }

    fn drain(&mut self) -> Drain {
        self.inner.drain()
    }
}

struct Lab {
    arena: Arc<Arena>,
    devices: ReactorDevices,
    copier: Rc<RefCell<Copier>>,
    messages: ring::Sender<CopyMessage>,
    source: Arc<MemoryDevice>,
    destination: Arc<MemoryDevice>,
    faults: [FaultControl; 2],
    memory: Arc<Mutex<Arc<DeviceMemory>>>,
    refusals: Arc<AtomicU64>,
    /// Of the source and the destination.
    blocks_max: [Arc<AtomicU64>; 2],
    now: Nanos,
}

fn device_memory(slices: u64) -> Arc<DeviceMemory> {
    let own = Sharing::Own("there is one device".to_owned());
    DeviceMemory::new(1 << 40, slices * SLICE as u64, SLICE, own).expect("room")
}

impl Lab {
    fn new(slices: u64) -> Self {
        Self::with_faults(slices, [Vec::new(), Vec::new()], 0)
    }

    /// With rules of the source and the destination.
    fn with_faults(slices: u64, rules: [Vec<FaultRule>; 2], seed: u64) -> Self {
        let arena = arena();
        let (source, destination) = (memory(), memory());
        let memory = Arc::new(Mutex::new(device_memory(slices)));
        let content = Arc::default();
        let refusals = Arc::<AtomicU64>::default();
        let blocks_max = [SOURCE, DESTINATION].map(|_| {
            let slice = SLICE as u64 / u64::from(BLOCK);
            Arc::new(AtomicU64::new(slice))
        });
        let set = Rc::new(DeviceSet::new());
        let faulty = [&source, &destination].map(|device| Arc::clone(device) as Arc<dyn Device>);
        let mut rules = rules.into_iter();
        let faulty = faulty.map(|device| {
            let rules = rules.next().unwrap_or_default();
            FaultDevice::new(device, FaultPlan { rules, seed })
        });
        let faults = faulty.each_ref().map(FaultDevice::control);
        for (place, inner) in [SOURCE, DESTINATION].into_iter().zip(faulty) {
            let drive = DriveWithMemory {
                inner: Arc::new(inner),
                memory: Arc::clone(&memory),
                content: Arc::clone(&content),
                refusals: Arc::clone(&refusals),
                blocks_max: Arc::clone(&blocks_max[place]),
                arena: Arc::clone(&arena),
            };
            let options = QueueOptions::new(0, 64, arena.pool(0));
            set.attach(place, &drive, options).expect("a queue");
        }
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
            refusals,
            blocks_max,
            now: Nanos::from_secs(1),
        }
    }

    fn memory(&self) -> Arc<DeviceMemory> {
        Arc::clone(&self.memory.lock().expect("not poisoned"))
    }

    fn start(&mut self) -> Arc<CopyProgress> {
        self.start_range(0, BLOCKS)
    }

    fn start_range(&mut self, first_block: u64, blocks: u64) -> Arc<CopyProgress> {
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
                in_device: true,
            },
            progress: Arc::clone(&progress),
        };
        assert!(self.messages.send(CopyMessage::Start(start)).is_ok());
        progress
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
                self.turns(1);
                assert_eq!(self.copier.borrow().next_deadline(), None);
                return end;
            }
            self.turns(1);
        }
        panic!("the copy does not end");
    }

    #[track_caller]
    fn expect_copied(&self, blocks: u64) {
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

/// Also a write that succeeds: what the device took from the memory may be anything.
#[test]
fn memory_that_ends_fails_the_copy() {
    let mut steps = Vec::new();
    for turns in 2..10 {
        let mut lab = Lab::new(8);
        let progress = lab.start();
        lab.turns(turns);
        // The device is reset: its memory loses the content, and is there again.
        let before = lab.memory();
        before.end();
        *lab.memory.lock().expect("not poisoned") = device_memory(8);
        let (written_blocks, failed) = failure(lab.run(&progress));
        assert_eq!(failed.error, CopyError::MemoryLost);
        assert_eq!(failed.first_block, written_blocks);
        steps.push(failed.step);
        lab.expect_copied(written_blocks);
        assert_eq!(before.counters().taken, 0);
    }
    for step in [CopyStep::Read, CopyStep::Write] {
        assert!(steps.contains(&step), "{steps:?}");
    }
}

/// The device that does not have the memory may accept less in one request.
#[test]
fn pieces_are_as_long_as_both_devices_accept() {
    for (most, expected) in [([1, 5], BLOCKS), ([5, 1], BLOCKS), ([3, 0], 0), ([0, 3], 0)] {
        let mut lab = Lab::new(8);
        for (blocks_max, most) in lab.blocks_max.iter().zip(most) {
            blocks_max.store(most, Ordering::Relaxed);
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
    lab.refusals.store(100, Ordering::Relaxed);
    let progress = lab.start();
    assert_eq!(lab.run(&progress), CopyEnd::Complete);
    assert_eq!(lab.refusals.load(Ordering::Relaxed), 0);
    lab.expect_copied(BLOCKS);

    lab.refusals.store(u64::MAX, Ordering::Relaxed);
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
                self.memory().end();
                let slices = 1 + seeded.below(8);
                *self.memory.lock().expect("not poisoned") = device_memory(slices);
            }
            31 if seeded.below(4) == 0 => {
                assert!(self.messages.send(CopyMessage::Abort(1)).is_ok());
            }
            33 if seeded.below(8) == 0 => {
                let place = [SOURCE, DESTINATION][seeded.below(2) as usize];
                self.devices.remove_now(place, self.now);
            }
            34..=36 => self.refusals.store(seeded.below(20), Ordering::Relaxed),
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
    for blocks_max in &lab.blocks_max {
        let most = seeded.below(SLICE as u64 / u64::from(BLOCK) + 1);
        blocks_max.store(most, Ordering::Relaxed);
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
