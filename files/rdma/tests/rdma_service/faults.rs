//! Clients over a fabric that delays, refuses and breaks connections: they repeat what was not
//! answered over new connections, and a model has every byte that was acknowledged.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use files_client_testing::{Answer, Peer as _, Slot, World as _, data};
use files_spec::Status;
use files_spec::operations::{Operation, OperationResult, Outcome};
use rdma::CompletionStatus;
use rdma_testing::fake::{FabricConfig, Fault, Pattern};
use reactors::sim::Seeded;

use crate::stage::{Client, Stage, free, stage_with, try_client, turn_until};

const FILES: [&str; 3] = ["first", "second", "third"];
const FILE_BYTES: usize = 400_000;
/// Most bytes of one READ, so that its chunk has few segments.
const READ_BYTES_MAX: usize = 300_000;
const ROUNDS: usize = 25;
/// Attempts of one request, each over a new connection.
const ATTEMPTS_MAX: usize = 200;

/// A client with its session, its file and the model of the file.
struct User {
    stage: Rc<RefCell<Stage>>,
    client: Option<Client>,
    slot: Slot,
    model: Vec<u8>,
    segment_bytes: usize,
    repeated: usize,
}

impl User {
    fn new(stage: &Rc<RefCell<Stage>>, file: &'static str, segment_bytes: usize) -> Self {
        let mut client = try_client(stage).expect("a connection");
        let slot = Slot::with_file(&mut client, file.as_bytes(), file);
        Self {
            stage: Rc::clone(stage),
            client: Some(client),
            slot,
            model: Vec::new(),
            segment_bytes,
            repeated: 0,
        }
    }

    fn connected(&mut self) -> &mut Client {
        while self.client.is_none() {
            self.repeated += 1;
            self.client = try_client(&self.stage).ok();
            for _ in 0..50 {
                self.stage.borrow_mut().turn();
            }
        }
        let segment_bytes = self.segment_bytes;
        let client = self.client.as_mut().expect("connected");
        client.segment_bytes = segment_bytes;
        client
    }

    /// Sends a record until it is answered.
    fn exchange(&mut self, record: &[u8]) -> Answer {
        for _ in 0..ATTEMPTS_MAX {
            let client = self.connected();
            let answer = client.try_send(record).and_then(|()| client.try_receive());
            match answer {
                Ok(answer) => {
                    // The request is still executed.
                    let (_, results) = answer.parts();
                    if results.last()
                        == Some(&OperationResult::Sequence(Outcome::Failed(Status::DELAY)))
                    {
                        self.stage.borrow_mut().turn();
                        continue;
                    }
                    return answer;
                }
                Err(error) => {
                    assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                    self.client = None;
                }
            }
        }
        panic!("it is never answered");
    }

    /// Executes operations until they are done or fail for good.
    fn execute(&mut self, operations: &[Operation<'_>], is_cached: bool) -> Answer {
        for _ in 0..ATTEMPTS_MAX {
            self.connected();
            let client = self.client.as_mut().expect("connected");
            let record = self.slot.record(client, operations, is_cached);
            let answer = self.exchange(&record);
            match answer.parts().0 {
                Status::DELAY | Status::RETRY_UNCACHED_REP => self.repeated += 1,
                _ => return answer,
            }
        }
        panic!("it is never done");
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let write = self.slot.write(offset as u64, bytes);
        self.execute(&write, true).assert_ok();
        let end = offset + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset..end].copy_from_slice(bytes);
    }

    fn check(&mut self, mut offset: usize, end: usize) {
        let end = end.min(self.model.len());
        while offset < end {
            let count = (end - offset).min(READ_BYTES_MAX);
            let read = self.slot.read(offset as u64, count as u32);
            let answer = self.execute(&read, false);
            let bytes = data(&answer);
            assert!(!bytes.is_empty(), "{offset} of {end}");
            assert!(
                bytes == &self.model[offset..offset + bytes.len()],
                "at {offset}"
            );
            offset += bytes.len();
        }
    }
}

fn faults(seed: u64, fabric: &rdma_testing::fake::Fabric) {
    let fault = |permille, fault| {
        let pattern = Pattern {
            permille,
            ..Pattern::ALWAYS
        };
        fabric.add_fault(pattern, fault);
    };
    if seed.is_multiple_of(2) {
        fault(6, Fault::DropConnection);
    }
    if seed.is_multiple_of(3) {
        fault(6, Fault::Fail(CompletionStatus::RETRIES_EXCEEDED));
    }
    if seed.is_multiple_of(5) {
        fault(6, Fault::QueuePairFatal);
    }
    fault(50, Fault::NotReady(20));
    fault(50, Fault::DelayRequest(30));
    fault(50, Fault::DelayCompletion(30));
}

#[test]
fn nothing_acknowledged_is_lost() {
    let mut repeated = 0;
    for seed in 0..40 {
        let stage = stage_with(32 << 20, FabricConfig::manual(seed));
        let before = {
            drop(try_client(&stage).expect("a connection"));
            turn_until(&stage, |it| it.service.borrow().connections() == 0);
            free(&stage)
        };
        let mut seeded = Seeded::at(seed);
        let mut random = |bound: usize| seeded.below(bound as u64) as usize;
        let segment = |index| [usize::MAX, 100_000, 30_001][index];
        let users = FILES.iter().enumerate();
        let users = users.map(|(index, file)| User::new(&stage, file, segment(index)));
        let mut users: Vec<User> = users.collect();
        faults(seed, &stage.borrow().fabric);
        for round in 0..ROUNDS {
            for (index, user) in users.iter_mut().enumerate() {
                let offset = random(FILE_BYTES);
                let length = match random(3) {
                    0 => 1 + random(3000),
                    1 => 4096 * (1 + random(8)),
                    _ => 1 + random(200_000),
                };
                let first = (round * 7 + index * 3) as u8;
                let bytes: Vec<u8> = (0..length).map(|at| first.wrapping_add(at as u8)).collect();
                user.write(offset, &bytes);
                let offset = random(FILE_BYTES);
                user.check(offset, offset + random(100_000));
            }
        }
        stage.borrow().fabric.clear_faults();
        for user in &mut users {
            user.check(0, usize::MAX);
            repeated += user.repeated;
        }
        drop(users);
        turn_until(&stage, |it| it.service.borrow().connections() == 0);
        turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
        assert_eq!(free(&stage), before, "seed {seed}");
        assert_eq!(
            stage.borrow().arena.take_dma_violation(),
            None,
            "seed {seed}"
        );
    }
    assert!(repeated > 100, "{repeated} repetitions");
}
