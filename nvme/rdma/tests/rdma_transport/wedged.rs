//! Devices that fail to flush or to destroy queue pairs. Memory that such a device may still write
//! to is never reused.

use crate::harness::FakeHost as Host;
use crate::harness::{Stage, TARGET_MACHINE};
use hugemem::Lease;
use nvme_spec::Sqe;
use rdma::Connection as _;
use rdma_testing::fake::{Fault, LATE_BYTE, Operation, Pattern};
use reactors::Nanos;

const BYTES: usize = 4096;

/// A connection has ended whose device does not complete the read of a write's data.
fn fail_destruction(stage: &mut Stage, destructions_refused: u32) -> u64 {
    let (_admin, mut io) = Host::attach(stage, 32);
    let baseline = stage.leases_out();
    let stuck = Pattern::ONCE.of(Operation::Read).on(TARGET_MACHINE);
    stage.fabric.add_fault(stuck, Fault::Wedge);
    stage.fabric.refuse_destructions(destructions_refused);
    let write = Sqe::write(1, 0, (BYTES / 512 - 1) as u16, false).with_cid(1);
    io.send(write.with_sgl(io.keyed(0, BYTES as u32)), &[]);
    stage.turn_until("the read", |stage| stage.leases_out() == baseline + 1);
    let _ = io.connection.disconnect();
    stage.turn_until("the end of the connection", |stage| {
        stage.pass(Nanos::from_millis(100));
        stage.set.len() == 1
    });
    stage.fabric.refuse_destructions(0);
    baseline
}

/// Takes and marks all free memory of the arena, to detect writes of the device.
fn nothing_is_written(stage: &mut Stage) {
    let pool = stage.arena.pool(0);
    let mut all: Vec<Lease> = std::iter::from_fn(|| pool.take(1)).collect();
    for lease in &mut all {
        let bytes = lease.capacity();
        lease.resize(bytes);
        lease.fill(0x11);
    }
    for _ in 0..100 {
        stage.pass(Nanos::from_millis(10));
    }
    for lease in &all {
        assert!(!lease.contains(&LATE_BYTE), "memory in use was written");
    }
    assert_eq!(stage.arena.take_dma_violation(), None);
}

/// Posted memory is freed when the queue pair is destroyed, and not before.
#[test]
fn an_unflushed_queue_pair_holds_its_memory_until_destroyed() {
    let mut stage = Stage::new();
    let baseline = fail_destruction(&mut stage, 0);
    assert_eq!(stage.leases_out(), baseline);
    assert_eq!(stage.counters.queue_pairs_leaked.get(), 0);
    nothing_is_written(&mut stage);
}

/// The device continues to write: its memory is never reused, and everything else works.
#[test]
fn an_undestroyed_queue_pair_leaks_its_memory() {
    let mut stage = Stage::new();
    let baseline = fail_destruction(&mut stage, 1);
    assert_eq!(stage.leases_out(), baseline + 1);
    assert_eq!(stage.counters.queue_pairs_leaked.get(), 1);
    nothing_is_written(&mut stage);
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    io.check_io(&mut stage, 3, 0x44);
    assert_eq!(stage.leases_out(), baseline + 1);
}

/// The shared receive queue is not destroyed while a queue pair uses it.
#[test]
fn receives_of_a_queue_pair_that_is_not_destroyed_are_given_up() {
    let mut stage = Stage::new();
    let baseline = fail_destruction(&mut stage, 1);
    let receives = baseline;
    let Stage {
        set, arena, fabric, ..
    } = stage;
    drop(set);
    let classes = arena.counters().classes;
    let out: u64 = classes.iter().map(|class| class.taken).sum();
    assert!(out > receives / 2, "{out} of {receives} are out");
    fabric.progress();
    assert_eq!(arena.take_dma_violation(), None);
}
