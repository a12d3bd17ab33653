//! Kills the appliance with SIGKILL at random times under load, restarts it, and checks every
//! block: acknowledged data is present; data in flight is present or absent, block by block.
//!
//! Killing the process loses no acknowledged write, flushed or not, because the kernel has the
//! data.
//!
//! `WINDLASS_CRASH_ROUNDS` is the number of rounds; `cargo xtask crash` sets it. Randomness only
//! selects times and requests: no assertion depends on it.

mod files;
mod process;

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use bench::verify::{check, stamp};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host::{ConnectOptions, Controller, HostCompletions, HostIdentity, IoQueue, IoQueuePlan};
use process::{LIMIT, Windlass};
use reactors::sim::Seeded;
use rustix::process::Signal;
use tempfile::TempDir;

const NQN: &str = "nqn.2026-11.org.windlass:crash";
const ROUNDS: &str = "WINDLASS_CRASH_ROUNDS";
/// The default number of rounds.
const ROUNDS_DEFAULT: u32 = 30;
const BLOCK_BYTES: usize = 512;
/// Number of blocks of each writer.
const BLOCKS: u64 = 2048;
const WRITERS: usize = 3;
const DEPTH: u16 = 16;
const BLOCKS_PER_WRITE_MAX: u64 = 16;
/// Longest lifetime of the appliance under load.
const LIFE_MAX_MS: u64 = 60;

/// The possible contents of a block: generations of its stamp, 0 for zeroes.
#[derive(Clone)]
struct Block {
    possible: Vec<u32>,
    is_busy: bool,
}

/// A request in flight.
struct Request {
    lba: u64,
    blocks: u64,
    /// The generation that it writes; none for a flush.
    generation: Option<u32>,
}

/// One writer's blocks, starting at `first`.
struct Model {
    seed: u64,
    first: u64,
    blocks: Vec<Block>,
    generation: u32,
    chance: Seeded,
    in_flight: HashMap<u64, Request>,
    next_token: u64,
    acknowledged: u64,
    interrupted: u64,
}

impl Model {
    fn new(seed: u64, writer: u64) -> Self {
        let block = Block {
            possible: vec![0],
            is_busy: false,
        };
        Self {
            seed,
            first: writer * BLOCKS,
            blocks: vec![block; BLOCKS as usize],
            generation: 0,
            chance: Seeded::new(seed, writer),
            in_flight: HashMap::new(),
            next_token: 0,
            acknowledged: 0,
            interrupted: 0,
        }
    }

    fn range(&mut self, lba: u64, blocks: u64) -> &mut [Block] {
        let start = (lba - self.first) as usize;
        &mut self.blocks[start..start + blocks as usize]
    }

    /// Submits a write, zeroes or a flush, if the queue has room and no block of it is in use.
    fn submit(&mut self, queue: &mut IoQueue) {
        let blocks = self.chance.below(BLOCKS_PER_WRITE_MAX) + 1;
        let lba = self.first + self.chance.below(BLOCKS - blocks);
        if self.range(lba, blocks).iter().any(|block| block.is_busy) {
            return;
        }
        let token = self.next_token;
        let kind = self.chance.below(10);
        let (taken, generation) = match kind {
            0 => (queue.submit_flush(1, token).is_ok(), None),
            1 => {
                let count = blocks as u32;
                let taken = queue.submit_write_zeroes(1, lba, count, false, token);
                (taken.is_ok(), Some(0))
            }
            _ => {
                self.generation += 1;
                let Some(mut data) = queue.pool().take(blocks as usize * BLOCK_BYTES) else {
                    return;
                };
                for (block, lba) in data.chunks_exact_mut(BLOCK_BYTES).zip(lba..) {
                    stamp(block, self.seed, lba, self.generation);
                }
                let range = (lba, blocks as u32);
                let taken = queue.submit_write(1, range, kind < 4, data, token);
                (taken.is_ok(), Some(self.generation))
            }
        };
        if !taken {
            return;
        }
        self.next_token += 1;
        let request = Request {
            lba,
            blocks,
            generation,
        };
        if generation.is_some() {
            for block in self.range(lba, blocks) {
                block.is_busy = true;
            }
        }
        self.in_flight.insert(token, request);
    }

    /// Ends a request, which is acknowledged or has an unknown result.
    fn finish(&mut self, token: u64, is_acknowledged: bool) {
        let request = self.in_flight.remove(&token).expect("completed once");
        let Some(generation) = request.generation else {
            return;
        };
        if is_acknowledged {
            self.acknowledged += 1;
        } else {
            self.interrupted += 1;
        }
        for block in self.range(request.lba, request.blocks) {
            block.is_busy = false;
            if is_acknowledged {
                block.possible.clear();
            }
            block.possible.push(generation);
        }
    }

    /// Writes until the connection breaks.
    fn write_until_death(&mut self, mut queue: IoQueue) {
        loop {
            for _ in 0..4 {
                self.submit(&mut queue);
            }
            let mut completions = HostCompletions::new();
            let moved = queue.flush().and_then(|()| queue.poll(&mut completions));
            for completion in &completions {
                assert!(completion.status().is_success(), "{}", completion.status());
                self.finish(completion.token, true);
            }
            if moved.is_err() {
                break;
            }
            if completions.is_empty() {
                queue.wait(Duration::from_millis(10));
            }
        }
        while let Some((token, _)) = queue.take_failed_command() {
            self.finish(token, false);
        }
        assert!(self.in_flight.is_empty(), "a request has vanished");
    }

    /// Reads every block and records the contents found.
    fn verify(&mut self, queue: &mut IoQueue, round: u32) {
        const STEP: u64 = 128;
        for lba in (self.first..self.first + BLOCKS).step_by(STEP as usize) {
            let lease = queue.pool().take(STEP as usize * BLOCK_BYTES);
            let lease = lease.expect("nothing else is in flight");
            let read = queue.submit_read(1, lba, STEP as u32, lease, lba);
            assert!(read.is_ok(), "the queue is empty");
            let completion = queue.wait_completion(LIMIT, "Read").expect("it completes");
            assert!(completion.status().is_success(), "{}", completion.status());
            let data = completion.data.expect("a read's data");
            for (found, lba) in data.chunks_exact(BLOCK_BYTES).zip(lba..) {
                self.judge(found, lba, round);
            }
        }
    }

    fn judge(&mut self, found: &[u8], lba: u64, round: u32) {
        let seed = self.seed;
        let block = &mut self.range(lba, 1)[0];
        let holds = |generation: &u32| match *generation {
            0 => found.iter().all(|byte| *byte == 0),
            generation => check(found, seed, lba, generation).is_ok(),
        };
        let held = block.possible.iter().copied().find(holds);
        let Some(held) = held else {
            let possible = &block.possible;
            let wrong = check(found, seed, lba, *possible.last().expect("never empty"));
            panic!("seed {seed:#x}, round {round}: block {lba}, one of {possible:?}: {wrong:?}");
        };
        block.possible = vec![held];
    }
}

/// One file namespace, on a port that the system chooses.
fn configuration(directory: &TempDir) -> PathBuf {
    let image = directory.path().join("vol0.img");
    let text = format!(
        r#"
[appliance]
name = "crash"
memory = "16MiB"
pages = "ordinary"
[control]
socket = "off"
http = "off"
[[device]]
name = "vol0"
type = "file"
path = "{}"
size = "8MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "{NQN}"
devices = ["vol0"]
listeners = ["loopback"]
allow_any_host = true
"#,
        image.display()
    );
    let path = directory.path().join("windlass.toml");
    fs::write(&path, text).expect("writable");
    path
}

/// A controller, and the plans of its writers' queues.
fn attach(address: SocketAddr) -> (Controller, Vec<IoQueuePlan>) {
    let identity = HostIdentity::from_uuid([7; 16]);
    let options = ConnectOptions {
        timeout: LIMIT,
        ..ConnectOptions::new(address, NQN, identity)
    };
    let mut controller = Controller::connect(options).expect("it listens");
    let queues = controller.request_io_queues(WRITERS as u16);
    assert_eq!(queues.expect("a response"), WRITERS as u16);
    let plan = |qid| controller.plan_io_queue(qid, DEPTH).expect("a right depth");
    let plans = (1..=WRITERS as u16).map(plan).collect();
    (controller, plans)
}

/// Number of rounds.
fn rounds() -> u32 {
    std::env::var(ROUNDS).map_or(ROUNDS_DEFAULT, |text| {
        text.parse().expect("a number of rounds")
    })
}

#[test]
fn killed_appliance_keeps_acknowledged_writes() {
    let rounds = rounds();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = since.map_or(1, |since| since.as_nanos() as u64);
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let arena = Arena::new(ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 64 << 10,
    })
    .expect("a small arena");
    let mut models: Vec<_> = (0..WRITERS as u64)
        .map(|writer| Model::new(seed, writer))
        .collect();
    let mut chance = Seeded::new(seed, WRITERS as u64);
    for round in 0..=rounds {
        let windlass = Windlass::start(&file);
        let (controller, plans) = attach(windlass.address());
        let life = Duration::from_millis(chance.below(LIFE_MAX_MS));
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            for (model, plan) in models.iter_mut().zip(plans) {
                let (arena, sender) = (Arc::clone(&arena), sender.clone());
                scope.spawn(move || {
                    let mut queue = plan.open(arena.pool(0)).expect("the queue is free");
                    model.verify(&mut queue, round);
                    if round < rounds {
                        sender.send(()).expect("the appliance waits for its death");
                        model.write_until_death(queue);
                    }
                });
            }
            drop(sender);
            if round < rounds {
                // All writers have verified the state after the last kill, or one has failed.
                let verified = receiver.iter().take(WRITERS).count();
                if verified == WRITERS {
                    std::thread::sleep(life);
                }
                windlass.signal(Signal::KILL);
            }
        });
        drop(controller);
        if round < rounds {
            assert!(!windlass.wait().0.success());
        }
    }
    let acknowledged: u64 = models.iter().map(|model| model.acknowledged).sum();
    let interrupted: u64 = models.iter().map(|model| model.interrupted).sum();
    println!("{rounds} deaths: {acknowledged} writes acknowledged, {interrupted} interrupted");
    assert!(acknowledged > 0 && interrupted > 0, "nothing was under way");
}
