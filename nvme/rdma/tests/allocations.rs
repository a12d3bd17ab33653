//! Steady-state I/O does not allocate (`ARCHITECTURE.md` §5): tens of thousands of requests of
//! every kind with a counting allocator.

#[expect(dead_code, reason = "the tests of the transport use all of it")]
#[path = "rdma_transport/harness/mod.rs"]
mod harness;

use harness::FakeHost as Host;
use harness::Stage;
use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use zerocopy::IntoBytes;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const DEPTH: u16 = 32;
const DATA: [u8; 4096] = [0x5a; 4096];

/// Counts allocations of the target only, not of the host and the fabric.
struct Counted {
    stage: Stage,
    allocations: u64,
}

impl Counted {
    fn turn(&mut self) {
        let stage = &mut self.stage;
        stage.now = stage.now.saturating_add(reactors::Nanos::from_micros(10));
        stage.fabric.progress();
        let before = allocations_on_this_thread();
        stage.set.begin_turn(stage.now);
        stage.set.poll_completions(stage.now);
        stage.set.dispatch(stage.now);
        stage.set.expire(stage.now);
        stage.end_turn();
        self.allocations += allocations_on_this_thread() - before;
    }

    fn run(&mut self, io: &mut Host, requests: u32) {
        for batch in 0..requests / u32::from(DEPTH) {
            for number in 0..u32::from(DEPTH) {
                send_request(io, batch * u32::from(DEPTH) + number);
            }
            let mut turns = 0;
            while io.responses.len() < usize::from(DEPTH) {
                self.turn();
                io.poll();
                turns += 1;
                assert!(turns < 10_000, "{} responses", io.responses.len());
            }
            let succeeded = |(cqe, _): &(nvme_spec::Cqe, _)| cqe.status().is_success();
            assert!(io.responses.iter().all(succeeded));
            io.responses.clear();
        }
    }
}

/// Reads, writes in the capsule, writes by RDMA read, in one block and in two, and flushes.
fn send_request(io: &mut Host, number: u32) {
    let cid = (number % u32::from(DEPTH)) as u16;
    let lba = u64::from(number % 1000) * 16;
    let at = usize::from(cid) * 16_384;
    match number % 5 {
        0 | 1 => {
            let sqe = Sqe::read(1, lba, 7).with_sgl(io.keyed(at, 4096));
            io.send(sqe.with_cid(cid), &[]);
        }
        2 => {
            let sqe = Sqe::write(1, lba, 7, false);
            let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, 4096));
            io.send(sqe.with_cid(cid), &DATA);
        }
        3 => {
            let blocks = [io.keyed(at, 4096), io.keyed(at + 8192, 4096)];
            let sqe = Sqe::write(1, lba, 15, false);
            let sqe = sqe.with_sgl(SglDescriptor::last_segment_in_capsule(0, 32));
            io.send(sqe.with_cid(cid), blocks.as_bytes());
        }
        _ => {
            let sqe = Sqe::write(1, lba, 15, false).with_sgl(io.keyed(at, 8192));
            io.send(sqe.with_cid(cid), &[]);
        }
    }
}

#[test]
fn requests_allocate_nothing() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, DEPTH + 1);
    let leases = stage.leases_out();
    let mut counted = Counted {
        stage,
        allocations: 0,
    };
    counted.run(&mut io, 2_000);
    counted.allocations = 0;
    counted.run(&mut io, 30_000);
    // The fabric works for the target's calls on the target's thread, and does not allocate either.
    assert_eq!(counted.allocations, 0);
    counted.stage.turn();
    assert_eq!(counted.stage.leases_out(), leases);
    assert_eq!(counted.stage.counters.bytes_copied.get(), 0);
}
