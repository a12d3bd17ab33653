//! Seeded random runs: the fabric chooses the order of queue pairs and completions and injects
//! faults; a model checks every block. A seed determines the run, and a failure names it.

use std::collections::HashMap;

use crate::harness::FakeHost as Host;
use crate::harness::host::Call;
use crate::harness::{BLOCK_BYTES, Setup, Stage, TARGET_MACHINE};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use rdma_testing::fake::{FabricConfig, Fault, Operation, Pattern};
use reactors::Nanos;
use reactors::sim::Seeded;
use zerocopy::IntoBytes;

const DEPTH: u16 = 16;
/// Each queue has its own blocks, so that the valid results of a read are known.
const BLOCKS_PER_QUEUE: u64 = 64;
const BLOCK: u32 = BLOCK_BYTES as u32;

#[derive(Clone, Copy, Debug)]
enum Pending {
    Write { lba: u64, fill: u8 },
    Read { lba: u64, expected: u8 },
}

/// One queue with commands on distinct blocks.
struct Lane {
    host: Host,
    first_block: u64,
    blocks: HashMap<u64, u8>,
    pending: HashMap<u16, Pending>,
}

impl Lane {
    fn submit(&mut self, chance: &mut Seeded) {
        let busy = |lba: u64| {
            self.pending.values().any(|pending| match *pending {
                Pending::Write { lba: other, .. } | Pending::Read { lba: other, .. } => {
                    other == lba
                }
            })
        };
        let lba = self.first_block + chance.below(BLOCKS_PER_QUEUE);
        let cid = (0..DEPTH - 1).find(|cid| !self.pending.contains_key(cid));
        let Some(cid) = cid.filter(|_| !busy(lba)) else {
            return;
        };
        let at = usize::from(cid) * 4096;
        if chance.below(2) == 0 {
            let expected = self.blocks.get(&lba).copied().unwrap_or(0);
            self.host.write(at, &[!expected; BLOCK_BYTES]);
            let sqe = Sqe::read(1, lba, 0).with_cid(cid);
            self.host
                .send(sqe.with_sgl(self.host.keyed(at, BLOCK)), &[]);
            self.pending.insert(cid, Pending::Read { lba, expected });
            return;
        }
        let fill = chance.draw() as u8;
        let sqe = Sqe::write(1, lba, 0, false).with_cid(cid);
        match chance.below(3) {
            0 => {
                let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, BLOCK));
                self.host.send(sqe, &[fill; BLOCK_BYTES]);
            }
            1 => {
                self.host.write(at, &[fill; BLOCK_BYTES]);
                let sqe = sqe.with_sgl(self.host.keyed(at, BLOCK));
                self.host.send(sqe, &[]);
            }
            _ => {
                self.host.write(at, &[fill; BLOCK_BYTES]);
                let blocks = [
                    self.host.keyed(at, 100),
                    self.host.keyed(at + 100, BLOCK - 100),
                ];
                let sqe = sqe.with_sgl(SglDescriptor::last_segment_in_capsule(0, 32));
                self.host.send(sqe, blocks.as_bytes());
            }
        }
        self.pending.insert(cid, Pending::Write { lba, fill });
    }

    fn check(&mut self, seed: u64) {
        self.host.poll();
        for (cqe, _) in std::mem::take(&mut self.host.responses) {
            assert_eq!(cqe.status(), Status::SUCCESS, "seed {seed}");
            let cid = cqe.cid.get();
            match self.pending.remove(&cid) {
                Some(Pending::Write { lba, fill }) => {
                    self.blocks.insert(lba, fill);
                }
                Some(Pending::Read { expected, .. }) => {
                    let found = self.host.read(usize::from(cid) * 4096, BLOCK_BYTES);
                    assert_eq!(found, [expected; BLOCK_BYTES], "seed {seed}");
                }
                None => panic!("seed {seed}: an answer to no command, {cid}"),
            }
        }
    }
}

fn run(seed: u64, faults: bool) {
    let mut chance = Seeded::new(seed, 0);
    let mut stage = Stage::with(Setup {
        fabric: FabricConfig::manual(seed),
        ..Setup::default()
    });
    let (mut admin, cntlid) = Host::admin(&mut stage);
    let mut lanes: Vec<Lane> = (1..=3)
        .map(|qid| Lane {
            host: Host::io(&mut stage, cntlid, qid, DEPTH),
            first_block: u64::from(qid) * BLOCKS_PER_QUEUE,
            blocks: HashMap::new(),
            pending: HashMap::new(),
        })
        .collect();
    stage.turn();
    let leases = stage.leases_out();
    if faults {
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            let some = Pattern {
                permille: 100,
                ..Pattern::ALWAYS.of(operation).on(TARGET_MACHINE)
            };
            stage.fabric.add_fault(some, Fault::DelayCompletion(7));
            stage.fabric.add_fault(some, Fault::DelayRequest(5));
        }
        let drop = Pattern {
            permille: 5,
            times: 2,
            ..Pattern::ALWAYS.on(TARGET_MACHINE)
        };
        stage.fabric.add_fault(drop, Fault::DropConnection);
    }
    for _ in 0..400 {
        for lane in &mut lanes {
            if chance.below(2) == 0 {
                lane.submit(&mut chance);
            }
            lane.check(seed);
        }
        stage.turn();
        lanes.retain(|lane| !lane.host.disconnected);
        admin.poll();
    }
    stage.fabric.clear_faults();
    for _ in 0..2000 {
        stage.turn();
        lanes.iter_mut().for_each(|lane| lane.check(seed));
    }
    lanes.retain(|lane| !lane.host.disconnected);
    for lane in &lanes {
        assert!(lane.pending.is_empty(), "seed {seed}: {:?}", lane.pending);
    }
    if !admin.disconnected {
        assert_eq!(stage.leases_out(), leases, "seed {seed}");
    }
}

#[test]
fn any_delivery_order_preserves_every_block() {
    for seed in 0..40 {
        run(seed, false);
    }
}

#[test]
fn delays_and_drops_lose_no_response_of_an_open_connection() {
    for seed in 100..140 {
        run(seed, true);
    }
}

/// FIELD.md, complaint 7 and 10: connections by the thousand, each with its own queue pair, in
/// completion queues that cannot overflow.
#[test]
fn a_thousand_connections_open_and_close() {
    let mut setup = Setup {
        queues_max: 1100,
        ..Setup::default()
    };
    setup.rdma.connections_max = 1100;
    setup.device.limits.completion_queue_entries = 4096;
    let mut stage = Stage::with(setup);
    let mut admins = Vec::new();
    for _ in 0..500 {
        let call = Call::queue(0, 32, 0).small();
        let (admin, cntlid) = Host::admin_by(&mut stage, &call, 0);
        let call = Call::queue(1, 8, cntlid).small();
        let mut io = Host::connect(&mut stage, &call).expect("accepted");
        let cqe = io.open_queue(&mut stage, 1, 8, cntlid);
        assert_eq!(cqe.status(), Status::SUCCESS);
        admins.push((admin, io));
    }
    assert_eq!(stage.set.len(), 1000);
    for (number, (_, io)) in admins.iter_mut().enumerate() {
        io.check_io(&mut stage, number as u64, number as u8);
    }
    drop(admins);
    stage.turn_until("all ends", |stage| {
        stage.pass(Nanos::from_millis(20));
        stage.set.is_empty()
    });
    let (_admin, mut io) = Host::attach(&mut stage, 8);
    io.check_io(&mut stage, 0, 1);
}
