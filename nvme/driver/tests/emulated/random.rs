//! Random requests and random faults against a model of every block.
//!
//! Invariants for every seed: each request ends exactly once and in bounded time; a read returns
//! data that the model allows; a write that completed with FUA or before a completed flush survives
//! every reset, removal and power cut; at the end the drive serves requests and no lease is
//! missing.
//!
//! A failure prints the command that replays it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use block::{DeviceError, Operation};
use block_testing::Latency;
use nvme_driver::backing::DeviceBacking;
use nvme_driver::{DriveCounters, DriveOptions, DriveState};
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedNamespace, EmulatedOptions, EmulatorCounters, FAULT_RULES_MAX,
    Fault, FaultMatch, FaultRule, SglRules, ShadowDoorbells, When,
};
use nvme_spec::Status;
use nvme_spec::registers::Version;
use reactors::Nanos;

use crate::support::{Client, Ended, MS, Rig, Seeded, drive_options, taken};

const SEEDS: u64 = 300;
const ROUNDS: u64 = 250;
const BLOCKS: u64 = 64;
const BLOCKS_PER_REQUEST_MAX: u64 = 12;

/// Maximum duration of a request, whatever happens to the drive.
const REQUEST_MAX: Nanos = Nanos::from_secs(3);
/// Maximum time for a drive without faults to become ready.
const READY_MAX: Nanos = Nanos::from_secs(10);

/// Possible contents of one block. Version 0 is all zeroes.
#[derive(Clone)]
struct Block {
    /// Versions that a read may return now.
    possible: Vec<u32>,
    /// Versions that may remain after a power cut.
    durable: Vec<u32>,
    /// Number of changes, so that a flush knows which blocks it covers.
    changes: u64,
    /// A request in flight covers it.
    busy: bool,
}

impl Block {
    fn add(to: &mut Vec<u32>, version: u32) {
        if !to.contains(&version) {
            to.push(version);
        }
    }

    /// Applies a write. `certain`: it is known to have succeeded.
    fn written(&mut self, version: u32, certain: bool, forced: bool) {
        self.changes += 1;
        if certain {
            self.possible = vec![version];
        } else {
            Self::add(&mut self.possible, version);
        }
        if certain && forced {
            self.durable = vec![version];
        } else {
            Self::add(&mut self.durable, version);
        }
    }
}

struct Request {
    namespace: usize,
    operation: Operation,
    lba: u64,
    blocks: u64,
    version: u32,
    /// Expected result of a compare.
    expected: Option<Result<(), DeviceError>>,
    /// For a flush: each block's number of changes, unless it was being written.
    covered: Vec<Option<u64>>,
    /// A power cut happened while it was in flight.
    cut: bool,
    submitted: Nanos,
}

struct World {
    seeded: Seeded,
    rig: Rig,
    clients: Vec<(usize, Client)>,
    blocks: Vec<Vec<Block>>,
    block_sizes: Vec<usize>,
    write_cache: bool,
    in_flight: HashMap<(usize, u64), Request>,
    /// Requests of dropped queues: executed at some time, or never. Their blocks are not used until
    /// the end.
    dropped_requests: Vec<Request>,
    versions: u32,
    removals: u64,
    rules: usize,
}

fn fill(block_size: usize, namespace: usize, lba: u64, version: u32) -> Vec<u8> {
    let word = if version == 0 {
        0
    } else {
        (namespace as u64 + 1) << 56 | lba << 32 | u64::from(version)
    };
    word.to_le_bytes().repeat(block_size / 8)
}

fn version_of(bytes: &[u8], namespace: usize, lba: u64) -> u32 {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let version = word as u32;
    let whole = fill(bytes.len(), namespace, lba, version);
    assert!(
        bytes == whole,
        "block {lba} of namespace {namespace} is torn or another's: {word:#x}"
    );
    version
}

fn emulated(seeded: &mut Seeded, seed: u64) -> EmulatedOptions {
    let namespace =
        |seeded: &mut Seeded, nsid| EmulatedNamespace::new(nsid, seeded.pick(&[512, 4096]), BLOCKS);
    let mut namespaces = vec![namespace(seeded, 1)];
    if seeded.one_in(2) {
        namespaces.push(namespace(seeded, 5));
    }
    let latency = match seeded.below(3) {
        0 => Latency::Fixed(Nanos::ZERO),
        1 => Latency::Fixed(Nanos::from_micros(300)),
        _ => Latency::Range {
            min: Nanos::ZERO,
            max: Nanos::from_millis(5),
        },
    };
    let memory = |placed_by_host| {
        Some(ControllerMemoryOptions {
            bytes: 32 << 10,
            placed_by_host,
            holds_data: true,
        })
    };
    let memory = [None, None, memory(true), memory(false)];
    let span = |seeded: &mut Seeded| Nanos::from_millis(seeded.pick(&[0, 0, 5, 80]));
    EmulatedOptions {
        version: seeded.pick(&[Version::V1_4, Version::V2_0]),
        queue_entries_max: seeded.pick(&[3, 4, 7, 16, 33, 1024]),
        doorbell_stride: seeded.pick(&[0, 0, 3]),
        timeout_units: 1,
        transfer_code: seeded.pick(&[0, 1, 2, 8]),
        interrupt_vectors: seeded.pick(&[1, 9]),
        ready_after: span(seeded),
        disabled_after: span(seeded),
        shutdown_after: span(seeded),
        latency,
        write_cache: !seeded.one_in(4),
        atomic_blocks: seeded.pick(&[1, 1, 4]),
        shadow_doorbells: seeded.pick(&[
            ShadowDoorbells::Unsupported,
            ShadowDoorbells::Ring,
            ShadowDoorbells::Poll,
        ]),
        sgl: seeded.pick(&[SglRules::Unsupported, SglRules::Any]),
        controller_memory: seeded.pick(&memory),
        optional_commands: !seeded.one_in(4),
        namespaces,
        seed,
        ..EmulatedOptions::default()
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut seeded = Seeded::new(seed);
        let emulated = emulated(&mut seeded, seed);
        let options = DriveOptions {
            queue_depth_max: seeded.pick(&[2, 5, 64]),
            ..drive_options(seeded.below(3) as usize + 1)
        };
        let (reactors, write_cache) = (options.reactors, emulated.write_cache);
        let namespaces = emulated.namespaces.clone();
        let rig = Rig::new(emulated, options);
        let block = Block {
            possible: vec![0],
            durable: vec![0],
            changes: 0,
            busy: false,
        };
        let mut clients = Vec::new();
        for (index, namespace) in namespaces.iter().enumerate() {
            for reactor in 0..reactors {
                clients.push((index, rig.client(namespace.nsid, reactor, 16)));
            }
        }
        Self {
            seeded,
            rig,
            clients,
            blocks: vec![vec![block; BLOCKS as usize]; namespaces.len()],
            block_sizes: namespaces
                .iter()
                .map(|found| found.block_size as usize)
                .collect(),
            write_cache,
            in_flight: HashMap::new(),
            dropped_requests: Vec::new(),
            versions: 0,
            removals: 0,
            rules: 0,
        }
    }

    fn submit_one(&mut self) {
        let index = self.seeded.below(self.clients.len() as u64) as usize;
        let namespace = self.clients[index].0;
        let lba = self.seeded.below(BLOCKS);
        let most = BLOCKS_PER_REQUEST_MAX.min(BLOCKS - lba);
        let blocks = self.seeded.below(most) + 1;
        let fua = self.seeded.one_in(4);
        let operation = match self.seeded.below(16) {
            0..5 => Operation::Read,
            5..10 => Operation::Write { fua },
            10..12 => Operation::Flush,
            12 => Operation::Compare,
            13 | 14 => Operation::WriteZeroes {
                fua,
                deallocate: self.seeded.one_in(2),
            },
            _ => Operation::Deallocate,
        };
        self.submit(index, namespace, operation, lba, blocks);
    }

    fn submit(
        &mut self,
        index: usize,
        namespace: usize,
        operation: Operation,
        lba: u64,
        blocks: u64,
    ) {
        let flush = operation == Operation::Flush;
        let range = lba as usize..(lba + blocks) as usize;
        if !flush
            && self.blocks[namespace][range.clone()]
                .iter()
                .any(|block| block.busy)
        {
            return;
        }
        let mut request = Request {
            namespace,
            operation,
            lba,
            blocks,
            version: 0,
            expected: None,
            covered: Vec::new(),
            cut: false,
            submitted: self.rig.now,
        };
        let data = match operation {
            Operation::Write { .. } => {
                self.versions += 1;
                request.version = self.versions;
                Some(
                    self.data(&request, |_| Some(self.versions))
                        .expect("versions"),
                )
            }
            Operation::Compare => {
                let known = |block: &Block| match block.possible[..] {
                    [version] => Some(version),
                    _ => None,
                };
                let Some(mut data) = self.data(&request, known) else {
                    return;
                };
                let wrong = self.seeded.one_in(3);
                if wrong {
                    let at = self.seeded.below(data.len() as u64) as usize;
                    data[at] ^= 0x80;
                }
                request.expected = Some(if wrong {
                    Err(DeviceError::CompareMismatch)
                } else {
                    Ok(())
                });
                Some(data)
            }
            _ => None,
        };
        if flush {
            let covered = self.blocks[namespace].iter();
            request.covered = covered
                .map(|block| (!block.busy).then_some(block.changes))
                .collect();
        }
        let (lba, count) = if flush { (0, 0) } else { (lba, blocks as u32) };
        let taken = self.clients[index]
            .1
            .submit(operation, lba, count, data.as_deref());
        self.notice_removal();
        match taken {
            Ok(tag) => {
                if !flush {
                    self.set_busy(&request, true);
                }
                self.in_flight.insert((index, tag), request);
            }
            Err(None | Some(DeviceError::Removed)) => {}
            Err(Some(DeviceError::Unsupported)) => {
                assert_eq!(operation, Operation::Deallocate);
            }
            Err(Some(error)) => panic!("{operation:?} refused: {error}"),
        }
    }

    /// Data of a request, from each block's version. `None` if a block has none.
    fn data(&self, request: &Request, version: impl Fn(&Block) -> Option<u32>) -> Option<Vec<u8>> {
        let Request {
            namespace,
            lba,
            blocks,
            ..
        } = *request;
        let mut data = Vec::new();
        for lba in lba..lba + blocks {
            let version = version(&self.blocks[namespace][lba as usize])?;
            data.extend(fill(self.block_sizes[namespace], namespace, lba, version));
        }
        Some(data)
    }

    fn set_busy(&mut self, request: &Request, busy: bool) {
        let range = request.lba as usize..(request.lba + request.blocks) as usize;
        for block in &mut self.blocks[request.namespace][range] {
            block.busy = busy;
        }
    }

    fn turn(&mut self, index: usize) {
        if self.seeded.one_in(8) {
            // As before a cancelled sleep, which must be harmless.
            let _ = self.clients[index].1.queue.prepare_sleep();
            self.notice_removal();
        }
        let ended = self.clients[index].1.turn();
        self.notice_removal();
        for ended in ended {
            let request = self.in_flight.remove(&(index, ended.tag));
            self.end(&request.expect("a request in flight"), &ended);
        }
    }

    fn end(&mut self, request: &Request, ended: &Ended) {
        let age = self.rig.now - request.submitted;
        assert!(age <= REQUEST_MAX, "{:?} took {age}", request.operation);
        if request.operation != Operation::Flush {
            self.set_busy(request, false);
        }
        let may_fail = !matches!(
            ended.result,
            Err(DeviceError::OutOfRange
                | DeviceError::Unaligned
                | DeviceError::NoSpace
                | DeviceError::ReadOnly
                | DeviceError::Unsupported)
        );
        assert!(may_fail, "{:?}: {:?}", request.operation, ended.result);
        let certain = ended.result.is_ok() && !request.cut;
        match request.operation {
            Operation::Read => {
                if certain {
                    self.check_read(request, ended.data.as_deref().expect("data"));
                }
            }
            Operation::Write { fua } | Operation::WriteZeroes { fua, .. } => {
                let forced = fua || !self.write_cache;
                // A write with FUA is durable, whenever the power cut happened.
                let certain = ended.result.is_ok() && (forced || !request.cut);
                self.change(request, certain, forced);
            }
            Operation::Deallocate => self.change(request, certain, !self.write_cache),
            Operation::Flush if certain => {
                let blocks = self.blocks[request.namespace].iter_mut();
                for (block, covered) in blocks.zip(&request.covered) {
                    if *covered == Some(block.changes) && !block.busy {
                        block.durable.clone_from(&block.possible);
                    }
                }
            }
            Operation::Flush => {}
            Operation::Compare => {
                let mismatch = ended.result == Err(DeviceError::CompareMismatch);
                if (ended.result.is_ok() || mismatch) && !request.cut {
                    assert_eq!(Some(ended.result), request.expected, "compare");
                }
            }
        }
    }

    fn change(&mut self, request: &Request, certain: bool, forced: bool) {
        let range = request.lba as usize..(request.lba + request.blocks) as usize;
        for block in &mut self.blocks[request.namespace][range] {
            block.written(request.version, certain, forced);
        }
    }

    fn check_read(&mut self, request: &Request, data: &[u8]) {
        let namespace = request.namespace;
        let block_size = self.block_sizes[namespace];
        for (lba, bytes) in (request.lba..).zip(data.chunks_exact(block_size)) {
            let version = version_of(bytes, namespace, lba);
            let block = &mut self.blocks[namespace][lba as usize];
            assert!(
                block.possible.contains(&version),
                "block {lba} of namespace {namespace} holds version {version}, not {:?}",
                block.possible
            );
            block.possible = vec![version];
        }
    }

    /// Applies a power cut: cached data of every block may be lost.
    fn cut(&mut self) {
        for block in self.blocks.iter_mut().flatten() {
            block.possible.clone_from(&block.durable);
            block.changes += 1;
        }
        for request in self.in_flight.values_mut() {
            request.cut = true;
        }
    }

    fn notice_removal(&mut self) {
        let removals = self.rig.control.counters().removals;
        if removals != self.removals {
            self.removals = removals;
            self.cut();
        }
    }

    fn step(&mut self) {
        let span = Nanos::from_micros(self.seeded.pick(&[0, 50, 500, 1000, 3000]));
        self.rig.step(span);
        self.notice_removal();
        for request in self.in_flight.values() {
            let age = self.rig.now - request.submitted;
            assert!(age <= REQUEST_MAX, "{:?} is lost", request.operation);
        }
    }

    fn inject(&mut self) {
        if self.rules == FAULT_RULES_MAX {
            return;
        }
        self.rules += 1;
        let delay = Nanos::from_millis(self.seeded.pick(&[1, 10, 45, 70, 400]));
        let io = [
            Fault::DropCompletion,
            Fault::Hang { abortable: true },
            Fault::Hang { abortable: false },
            Fault::Duplicate,
            Fault::WrongIdentifier(0x8000),
            Fault::StaleIdentifier,
            Fault::WrongHead(u16::MAX),
            Fault::Status(Status::UNRECOVERED_READ_ERROR),
            Fault::Status(Status::COMMAND_INTERRUPTED),
            Fault::Status(Status::INTERNAL_ERROR.with_dnr()),
            Fault::Delay(delay),
            Fault::Delay(delay),
            Fault::Fatal,
            Fault::Remove,
            Fault::DoorbellLost,
            Fault::DoorbellDeferred,
            Fault::DoorbellTorn,
        ];
        let steps = [
            Fault::Ready(Nanos::MAX),
            Fault::Ready(Nanos::from_millis(300)),
            Fault::Disabled(Nanos::MAX),
            Fault::Disabled(Nanos::from_millis(300)),
            Fault::EnableFatal,
            Fault::FunctionReset,
            Fault::DropCompletion,
            Fault::Status(Status::INTERNAL_ERROR),
            Fault::WrongIdentifier(0x4000),
        ];
        let (matching, fault) = if self.seeded.one_in(3) {
            (FaultMatch::admin(), self.seeded.pick(&steps))
        } else {
            (FaultMatch::io(), self.seeded.pick(&io))
        };
        let when = When::Nth(self.seeded.below(4) + 1);
        let rule = FaultRule::new(matching, when, fault);
        self.rig.control.inject(rule);
    }

    fn event(&mut self) {
        match self.seeded.below(400) {
            0..16 => self.inject(),
            16 | 17 => self.power_cut(),
            18 => self.rig.control.remove(),
            19 => self.rig.control.request_removal(true),
            20 => self.rig.control.fail(),
            21..25 => {
                self.rig.control.release();
            }
            25..35 => self.reopen_a_queue(),
            _ => {}
        }
        self.notice_removal();
        if self.rig.drive.wants_reopen() && self.seeded.one_in(5) {
            self.reattach();
        }
    }

    fn power_cut(&mut self) {
        self.rig.control.power_cut();
        self.cut();
        if self.seeded.one_in(2) {
            self.rig.control.reinsert();
        }
    }

    /// Replaces a queue, which may have requests in flight.
    fn reopen_a_queue(&mut self) {
        let index = self.seeded.below(self.clients.len() as u64) as usize;
        if self.clients[index].1.in_flight() > 0 && self.dropped_requests.len() > 6 {
            return;
        }
        let keys: Vec<_> = self.in_flight.keys().copied().collect();
        for key in keys.into_iter().filter(|key| key.0 == index) {
            self.dropped_requests.extend(self.in_flight.remove(&key));
        }
        let (namespace, _) = self.clients.remove(index);
        let reactors = (self.clients.len() + 1) / self.blocks.len();
        let nsid = self.rig.drive.namespaces()[namespace].nsid;
        let fresh = self.rig.client(nsid, index % reactors, 16);
        self.clients.insert(index, (namespace, fresh));
        self.notice_removal();
    }

    /// Resolves requests of dropped queues, once none can be in progress: each was executed, or
    /// not.
    fn resolve_dropped_requests(&mut self) {
        for request in std::mem::take(&mut self.dropped_requests) {
            if request.operation != Operation::Flush {
                self.set_busy(&request, false);
            }
            if request.operation.changes_medium() {
                self.change(&request, false, false);
            }
        }
    }

    fn reattach(&mut self) {
        self.rig.control.reinsert();
        // Opening a function through VFIO resets it.
        let _ = self.rig.controller.reset_function();
        let backing = Arc::clone(&self.rig.controller) as _;
        self.rig
            .drive
            .reattach(backing)
            .expect("a drive that waits");
    }

    fn round(&mut self) {
        for _ in 0..self.seeded.below(5) {
            self.submit_one();
        }
        self.event();
        for index in 0..self.clients.len() {
            if !self.seeded.one_in(4) {
                self.turn(index);
            }
        }
        self.step();
    }

    /// Disables all faults and waits until the drive is ready and no request is in flight.
    fn settle(&mut self) {
        self.rig.control.disarm_all();
        self.rig.control.request_removal(false);
        self.rig.control.release();
        let deadline = self.rig.now + READY_MAX;
        // The driver detects recent events within a few ticks.
        let noticed = self.rig.now + Nanos::from_millis(100);
        while self.rig.now < noticed
            || self.rig.drive.state() != DriveState::Ready
            || !self.in_flight.is_empty()
        {
            assert!(
                self.rig.now < deadline,
                "{:?} with {} requests in flight",
                self.rig.drive.state(),
                self.in_flight.len()
            );
            if self.rig.drive.wants_reopen() {
                self.reattach();
            }
            for index in 0..self.clients.len() {
                self.turn(index);
            }
            self.rig.step(MS);
            self.notice_removal();
        }
        self.resolve_dropped_requests();
    }

    fn one(&mut self, index: usize, operation: Operation, lba: u64, blocks: u64) {
        let namespace = self.clients[index].0;
        let deadline = self.rig.now + READY_MAX;
        let before = self.in_flight.len();
        loop {
            self.submit(index, namespace, operation, lba, blocks);
            if self.in_flight.len() > before {
                break;
            }
            assert!(
                self.rig.now < deadline,
                "{operation:?} is refused: {:?}",
                self.rig.drive.state()
            );
            self.turn(index);
            self.rig.step(MS);
        }
        while self.in_flight.len() > before {
            self.turn(index);
            self.rig.step(Nanos::from_micros(100));
            assert!(self.rig.now < deadline, "lost");
        }
    }

    fn check_everything(&mut self) {
        let first_of = |world: &Self, namespace| {
            let clients = world.clients.iter();
            clients
                .map(|client| client.0)
                .position(|of| of == namespace)
        };
        for namespace in 0..self.blocks.len() {
            let index = first_of(self, namespace).expect("a client");
            for lba in (0..BLOCKS).step_by(8) {
                self.one(index, Operation::Read, lba, 8);
            }
            self.one(index, Operation::Flush, 0, 0);
            let blocks = &self.blocks[namespace];
            assert!(blocks.iter().all(|block| block.possible == block.durable));
        }
    }
}

/// Counters of one run.
type RunCounters = (EmulatorCounters, DriveCounters);
/// Selects one of the counters.
type Count = fn(&RunCounters) -> u64;

fn run(seed: u64) -> RunCounters {
    let mut world = World::new(seed);
    let before = taken(&world.rig.arena);
    for _ in 0..ROUNDS {
        world.round();
    }
    world.settle();
    world.check_everything();
    world.rig.control.power_cut();
    world.cut();
    world.settle();
    world.check_everything();
    assert_eq!(taken(&world.rig.arena), before, "leases did not come home");
    let counters = world.rig.control.counters();
    assert_eq!(counters.illegal_accesses, 0, "{counters:?}");
    let happened = (counters, world.rig.drive.counters());
    let World { rig, clients, .. } = world;
    drop(clients);
    let (arena, control) = (Arc::clone(&rig.arena), rig.control.clone());
    drop(rig);
    assert_eq!(taken(&arena), 0, "the drive's own memory did not come home");
    assert!(!control.is_bus_master());
    happened
}

fn run_or_say_how_to_replay(seed: u64) -> RunCounters {
    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(happened) => happened,
        Err(_) => {
            panic!("replay: DRIVE_SEED={seed} cargo test -p nvme_driver --test emulated random")
        }
    }
}

#[test]
fn acknowledged_writes_survive_random_faults() {
    if let Ok(seed) = std::env::var("DRIVE_SEED") {
        let seed = seed.parse().expect("a number");
        println!("{:#?}", run(seed));
        return;
    }
    let all: Vec<RunCounters> = (0..SEEDS).map(run_or_say_how_to_replay).collect();
    let sum = |count: Count| all.iter().map(count).sum::<u64>();
    // Every kind of fault occurred many times.
    assert!(sum(|(_, drive)| drive.commands) > 100 * SEEDS);
    let often: [(&str, Count); 11] = [
        ("timeouts", |(_, drive)| drive.timeouts),
        ("aborts", |(_, drive)| drive.aborts),
        ("resets", |(_, drive)| drive.resets),
        ("recoveries", |(_, drive)| drive.recoveries),
        ("stale identifiers", |(_, drive)| drive.stale_identifiers),
        ("impossible heads", |(_, drive)| drive.bad_heads),
        ("events", |(_, drive)| drive.events),
        ("reattachments", |(_, drive)| drive.reattachments),
        ("removals", |(emulated, _)| emulated.removals),
        ("function resets", |(emulated, _)| emulated.function_resets),
        ("blocks lost", |(emulated, _)| emulated.blocks_lost),
    ];
    for (what, count) in often {
        println!("{what}: {}", sum(count));
        assert!(sum(count) >= 20, "{what}: {}", sum(count));
    }
}

#[test]
fn driver_run_is_reproducible_from_its_seed() {
    for seed in [3, 1_000_003] {
        assert_eq!(run(seed), run(seed));
    }
}
