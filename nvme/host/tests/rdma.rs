//! The host over RDMA on the in-process fabric, against a minimal target: control path, data path,
//! keys, flow control, and an incorrect target.

mod verbs_target;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hugemem::{Arena, ArenaConfig, Lease, PagePolicy, Pool};
use nvme_host::{
    Controller, HostCompletion, HostCompletions, HostError, IoQueue, KeyMode, ProtocolError,
    RdmaOptions, Refusal, Rejection, Transfer, discover,
};
use nvme_spec::log::TransportType;
use nvme_spec::rdma::RejectReason;
use nvme_spec::{Sqe, Status};
use rdma::CompletionStatus;
use rdma_testing::fake::{Fault, Pattern};
use verbs_target::{BLOCK, BLOCKS, LIMIT, Misbehavior, NQN, TargetBehavior, VerbsTarget};

fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 24 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    Arena::new(config).expect("24 MiB of memory")
}

fn taken(arena: &Arena) -> u64 {
    let classes = arena.counters().classes;
    classes.iter().map(|class| class.taken).sum()
}

fn fill(pool: &Pool, blocks: usize, seed: u8) -> Lease {
    let mut lease = pool.take(blocks * BLOCK).expect("memory");
    for (index, byte) in lease.iter_mut().enumerate() {
        *byte = (index / BLOCK) as u8 ^ (index as u8).wrapping_mul(seed);
    }
    lease
}

fn finish(queue: &mut IoQueue) -> HostCompletion {
    queue
        .wait_completion(LIMIT, "the command")
        .expect("an answer")
}

/// Opens a controller, an I/O queue of `depth`, and the arena for its data.
fn open(
    target: &VerbsTarget,
    rdma: RdmaOptions,
    depth: u16,
) -> Result<(Controller, IoQueue, Arc<Arena>), HostError> {
    let options = target.options(rdma);
    let arena = arena();
    options.transport.attach(&arena)?;
    let controller = Controller::connect(options)?;
    let queue = controller.open_io_queue(1, depth, arena.pool(0))?;
    Ok((controller, queue, arena))
}

fn round_trip(queue: &mut IoQueue, lba: u64, blocks: usize) {
    let pool = queue.pool().clone();
    let data = fill(&pool, blocks, (lba as u8) | 1);
    let expected = data.to_vec();
    queue
        .submit_write(1, (lba, blocks as u32), true, data, 7)
        .expect("room");
    let written = finish(queue);
    assert_eq!((written.token, written.status()), (7, Status::SUCCESS));
    assert_eq!(written.data.as_deref(), Some(&expected[..]));
    drop(written);
    let place = pool.take(blocks * BLOCK).expect("memory");
    queue
        .submit_read(1, lba, blocks as u32, place, 8)
        .expect("room");
    let read = finish(queue);
    assert_eq!((read.token, read.received as usize), (8, blocks * BLOCK));
    assert_eq!(read.data.as_deref(), Some(&expected[..]));
}

#[test]
fn data_round_trips_in_every_transfer_mode() {
    for in_capsule_bytes in [0, 4096, 8192] {
        for (keys, invalidates) in [
            (KeyMode::Arena, false),
            (KeyMode::Windows, true),
            (KeyMode::Windows, false),
        ] {
            for descriptors in [1, 3, 16] {
                let target = VerbsTarget::start(TargetBehavior {
                    in_capsule_bytes,
                    invalidates,
                    descriptors,
                    ..TargetBehavior::default()
                });
                let rdma = RdmaOptions {
                    keys,
                    descriptors: 16,
                    ..RdmaOptions::default()
                };
                let (controller, mut queue, arena) = open(&target, rdma, 8).expect("connected");
                for (lba, blocks) in [(0, 1), (5, 8), (100, 16), (17, 256), (1000, 2048)] {
                    round_trip(&mut queue, lba, blocks);
                }
                let counted = queue.counters();
                let windows = keys == KeyMode::Windows;
                assert_eq!(counted.invalidations > 0, windows && invalidates);
                let inside = target.counters.in_capsule_writes.load(Ordering::Relaxed);
                assert_eq!(inside > 0, in_capsule_bytes > 0);
                let most = target.counters.descriptors_most.load(Ordering::Relaxed);
                let several = u64::from(in_capsule_bytes > 0) * u64::from(descriptors);
                assert_eq!(most, several.max(1));
                controller.shut_down().expect("in order");
                drop(queue);
                assert_eq!(taken(&arena), 0, "every lease is home");
            }
        }
    }
}

#[test]
fn in_capsule_data_can_be_disabled() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let rdma = RdmaOptions {
        in_capsule: false,
        ..RdmaOptions::default()
    };
    let (_controller, mut queue, _arena) = open(&target, rdma, 4).expect("connected");
    round_trip(&mut queue, 3, 4);
    assert_eq!(target.counters.in_capsule_writes.load(Ordering::Relaxed), 0);
}

#[test]
fn discovery_works_over_rdma() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let found = discover(target.options(RdmaOptions::default())).expect("a log");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].trtype, TransportType::RDMA);
    assert_eq!(found[0].subnqn.to_string(), NQN);
}

#[test]
fn control_path_works_over_rdma() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let mut controller =
        Controller::connect(target.options(RdmaOptions::default())).expect("connected");
    assert_eq!(controller.cntlid(), 5);
    let namespaces = controller.namespaces().expect("namespaces");
    assert_eq!(namespaces.len(), 1);
    assert_eq!(namespaces[0].blocks, BLOCKS);
    controller.keep_alive().expect("alive");
    let response = controller
        .admin(Sqe::abort_command(1, 1), Transfer::None)
        .expect("an answer");
    assert_eq!(response.status(), Status::INVALID_OPCODE.with_dnr());
    controller.shut_down().expect("in order");
}

#[test]
fn failed_command_returns_its_status_and_lease() {
    for keys in [KeyMode::Arena, KeyMode::Windows] {
        let target = VerbsTarget::start(TargetBehavior::default());
        let rdma = RdmaOptions {
            keys,
            ..RdmaOptions::default()
        };
        let (_controller, mut queue, _arena) = open(&target, rdma, 4).expect("connected");
        let lease = fill(queue.pool(), 8, 3);
        queue.submit_read(1, BLOCKS, 8, lease, 1).expect("room");
        let done = finish(&mut queue);
        assert_eq!(done.status(), Status::LBA_OUT_OF_RANGE.with_dnr());
        assert_eq!((done.received, done.data.is_some()), (0, true));
        round_trip(&mut queue, 9, 8);
    }
}

#[test]
fn full_queue_refuses_and_keeps_working() {
    for keys in [KeyMode::Arena, KeyMode::Windows] {
        let target = VerbsTarget::start(TargetBehavior::default());
        let rdma = RdmaOptions {
            keys,
            ..RdmaOptions::default()
        };
        let (_controller, mut queue, _arena) = open(&target, rdma, 16).expect("connected");
        let pool = queue.pool().clone();
        let mut completions = HostCompletions::new();
        let (mut submitted, mut ended, mut refused) = (0_u64, 0, 0);
        while ended < 3000 {
            while submitted < 3000 {
                let lease = pool.take(4096).expect("memory");
                let lba = submitted * 8 % BLOCKS;
                let taken = match submitted % 3 {
                    0 => queue.submit_write(1, (lba, 8), false, lease, submitted),
                    _ => queue.submit_read(1, lba, 8, lease, submitted),
                };
                if let Err(back) = taken {
                    assert_eq!((back.refusal, back.data.is_some()), (Refusal::Full, true));
                    refused += 1;
                    break;
                }
                submitted += 1;
            }
            queue.flush().expect("sent");
            if queue.poll(&mut completions).expect("fine") == 0 {
                queue.wait(Duration::from_millis(20));
            }
            for completion in completions.drain(..) {
                assert!(completion.status().is_success());
                ended += 1;
            }
        }
        assert!(refused > 0);
        assert_eq!((queue.in_flight(), queue.depth()), (0, 16));
    }
}

#[test]
fn queue_depth_is_limited_by_the_target() {
    let target = VerbsTarget::start(TargetBehavior {
        queue_entries: 3,
        ..TargetBehavior::default()
    });
    let (_controller, queue, _arena) = open(&target, RdmaOptions::default(), 16).expect("fine");
    assert_eq!(queue.depth(), 3);
}

#[test]
fn unregistered_memory_is_refused() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let (controller, mut queue, _arena) =
        open(&target, RdmaOptions::default(), 4).expect("connected");
    let other = arena().pool(0);
    let lease = other.take(4096).expect("memory");
    let refused = queue.submit_read(1, 0, 8, lease, 1).expect_err("refused");
    assert_eq!(refused.refusal, Refusal::NotRegistered);
    assert!(refused.data.is_some());
    round_trip(&mut queue, 0, 8);
    let error = controller.open_io_queue(2, 4, other).expect_err("refused");
    assert!(matches!(error, HostError::NotRegistered), "{error}");
}

#[test]
fn rejection_reports_the_targets_reason() {
    for reason in [
        RejectReason::INVALID_HSQSIZE,
        RejectReason::NO_RESOURCES,
        RejectReason(0x77),
    ] {
        let target = VerbsTarget::start(TargetBehavior {
            misbehavior: Misbehavior::Rejects(reason),
            ..TargetBehavior::default()
        });
        let error = open(&target, RdmaOptions::default(), 4).expect_err("rejected");
        let HostError::Rejected { status, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(status, Rejection::ByTarget(reason));
    }
}

#[test]
fn unreachable_address_fails_without_a_timeout() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let mut options = target.options(RdmaOptions::default());
    options.address.set_port(1);
    let error = Controller::connect(options).expect_err("nobody listens");
    assert!(matches!(error, HostError::Rejected { .. }), "{error}");
    let mut options = target.options(RdmaOptions::default());
    options.address.set_ip([10, 9, 9, 9].into());
    let error = Controller::connect(options).expect_err("nobody is there");
    assert!(
        matches!(
            error,
            HostError::Unreachable { .. } | HostError::Rdma { .. }
        ),
        "{error}"
    );
}

#[test]
fn digests_are_refused_over_rdma() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let mut options = target.options(RdmaOptions::default());
    options.data_digest = true;
    let error = Controller::connect(options).expect_err("not over RDMA");
    assert!(matches!(error, HostError::Unsupported(_)), "{error}");
}

/// Runs one read on a queue with an incorrect target. Returns the error.
fn fault(misbehavior: Misbehavior) -> HostError {
    let target = VerbsTarget::start(TargetBehavior {
        misbehavior,
        ..TargetBehavior::default()
    });
    let (_controller, mut queue, arena) = match open(&target, RdmaOptions::default(), 4) {
        Ok(all) => all,
        Err(error) => return error,
    };
    for token in 0..2 {
        let lease = fill(queue.pool(), 8, 3);
        queue.submit_read(1, 0, 8, lease, token).expect("room");
    }
    queue.flush().expect("sent");
    let mut completions = HostCompletions::new();
    let error = loop {
        match queue.poll(&mut completions) {
            Ok(0) => queue.wait(Duration::from_millis(20)),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let lease = fill(queue.pool(), 8, 3);
    let refused = queue.submit_read(1, 0, 8, lease, 9).expect_err("final");
    assert_eq!(refused.refusal, Refusal::Failed);
    drop(refused);
    assert!(queue.poll(&mut completions).is_err(), "a fault is final");
    let abandoned = std::iter::from_fn(|| queue.take_failed_command()).count();
    assert_eq!(abandoned + completions.len(), 2, "every command comes back");
    completions.clear();
    assert_eq!(taken(&arena), 0, "every lease is home");
    error
}

#[test]
fn target_protocol_violations_are_detected() {
    assert!(matches!(
        fault(Misbehavior::AcceptFormat),
        HostError::Protocol(ProtocolError::AcceptFormat { found: 7 })
    ));
    assert!(matches!(
        fault(Misbehavior::ShortResponse),
        HostError::Protocol(ProtocolError::ResponseLength { found: 12 })
    ));
    for misbehavior in [Misbehavior::UnknownCommand, Misbehavior::Twice] {
        assert!(matches!(
            fault(misbehavior),
            HostError::Protocol(ProtocolError::UnknownCommand { .. })
        ));
    }
    for misbehavior in [Misbehavior::Disconnects, Misbehavior::WritesTooFar] {
        let error = fault(misbehavior);
        assert!(
            matches!(error, HostError::Closed),
            "{misbehavior:?}: {error}"
        );
    }
}

#[test]
fn silent_rdma_target_times_out() {
    let target = VerbsTarget::start(TargetBehavior {
        misbehavior: Misbehavior::Silent,
        ..TargetBehavior::default()
    });
    let (_controller, mut queue, _arena) =
        open(&target, RdmaOptions::default(), 4).expect("connected");
    queue.submit_flush(1, 1).expect("room");
    let limit = Duration::from_millis(30);
    let error = queue.wait_completion(limit, "flush").expect_err("silence");
    assert!(matches!(error, HostError::TimedOut { .. }), "{error}");
}

#[test]
fn dropping_the_host_disconnects_from_the_target() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let (controller, queue, _arena) = open(&target, RdmaOptions::default(), 4).expect("connected");
    drop(queue);
    drop(controller);
    while target.counters.connections_ended.load(Ordering::Relaxed) < 2 {
        std::thread::yield_now();
    }
}

/// Runs one read with `fault` added to the fabric. Returns the error.
fn fabric_fault(pattern: Pattern, fault: Fault) -> HostError {
    let target = VerbsTarget::start(TargetBehavior::default());
    let (_controller, mut queue, arena) =
        open(&target, RdmaOptions::default(), 4).expect("connected");
    target.fabric.add_fault(pattern, fault);
    let lease = fill(queue.pool(), 8, 3);
    queue.submit_read(1, 0, 8, lease, 1).expect("room");
    let error = queue.wait_completion(LIMIT, "read").expect_err("lost");
    let back = queue.take_failed_command().expect("the read comes back");
    assert_eq!((back.0, back.1.is_some()), (1, true));
    drop(back);
    assert_eq!(taken(&arena), 0, "every lease is home");
    error
}

#[test]
fn fabric_faults_are_distinguished() {
    let host = Pattern::ALWAYS.on(0);
    for status in [
        CompletionStatus::RETRIES_EXCEEDED,
        CompletionStatus::RNR_RETRIES_EXCEEDED,
    ] {
        let error = fabric_fault(host, Fault::Fail(status));
        let HostError::WorkRequest { status: found, .. } = error else {
            panic!("{status}: {error}");
        };
        assert_eq!(found, status);
    }
    let error = fabric_fault(host, Fault::DropConnection);
    assert!(matches!(error, HostError::Closed), "{error}");
    let error = fabric_fault(Pattern::ALWAYS.on(1), Fault::DropConnection);
    assert!(matches!(error, HostError::Closed), "{error}");
}

#[test]
fn fabric_delays_do_not_affect_results() {
    for fault in [
        Fault::NotReady(5),
        Fault::DelayRequest(7),
        Fault::DelayCompletion(9),
    ] {
        for keys in [KeyMode::Arena, KeyMode::Windows] {
            let target = VerbsTarget::start(TargetBehavior {
                invalidates: false,
                ..TargetBehavior::default()
            });
            let rdma = RdmaOptions {
                keys,
                ..RdmaOptions::default()
            };
            let (_controller, mut queue, _arena) = open(&target, rdma, 4).expect("connected");
            let often = Pattern {
                permille: 300,
                ..Pattern::ALWAYS
            };
            target.fabric.add_fault(often, fault);
            for lba in 0..40 {
                round_trip(&mut queue, lba * 16, 16);
            }
        }
    }
}
