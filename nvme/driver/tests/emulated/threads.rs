//! Reactors on separate threads with the machine's clock, while faults occur.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use block::{CompletionBatch, Device, DeviceError, Operation, QueueOptions, Refusal, Request};
use hugemem::{Arena, Data, Lease};
use nvme_driver::{Deadlines, DriveOptions, DriveState};
use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions};
use reactors::{Clock, Nanos, Poller, StopState, TscClock};

use crate::support::{Rig, taken};

const REACTORS: usize = 3;
const BLOCKS: u64 = 4000;
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> DriveOptions {
    DriveOptions {
        reactors: REACTORS,
        queue_depth_max: 64,
        // Long enough that no command is overdue on a busy machine.
        deadlines: Deadlines {
            command: Nanos::from_secs(20),
            quiesce: Nanos::from_secs(20),
            ..Deadlines::default()
        },
        ..DriveOptions::new("threads")
    }
}

/// State shared by all threads.
struct World {
    arena: Arc<Arena>,
    device: Arc<dyn Device>,
    stop: AtomicBool,
    completed: AtomicU64,
    interrupted: AtomicU64,
}

fn request(lba: u64, is_read: bool, lease: Lease) -> Request {
    let operation = if is_read {
        Operation::Read
    } else {
        Operation::Write { fua: false }
    };
    Request {
        tag: lba * 2 + u64::from(is_read),
        operation,
        lba,
        blocks: 1,
        data: Some(lease),
    }
}

/// Writes and reads back its own third of the device until `stop` is set.
fn reactor(world: &World, index: usize) {
    let pool = world.arena.pool(0);
    let options = QueueOptions::new(index, 16, pool.clone());
    let mut queue = world.device.open_queue(options).expect("a queue");
    let third = BLOCKS / REACTORS as u64;
    let mut batch = CompletionBatch::new();
    let mut number = 0;
    // Requests that were refused with "later", or interrupted, and are sent again.
    let mut deferred: Vec<Request> = Vec::new();
    let deadline = Instant::now() + 2 * PATIENCE;
    while !world.stop.load(Ordering::Acquire) || queue.in_flight() > 0 {
        assert!(Instant::now() < deadline, "a reactor does not end");
        while !world.stop.load(Ordering::Acquire) {
            let request = deferred.pop().unwrap_or_else(|| {
                let lba = index as u64 * third + number % third;
                let mut lease = pool.take(512).expect("a large arena");
                // The lease of a read starts with other data than expected.
                let is_read = number / third % 2 == 1;
                lease.fill(lba as u8 ^ u8::from(is_read));
                number += 1;
                request(lba, is_read, lease)
            });
            match queue.submit(request) {
                Ok(()) => {}
                Err(Refusal::Later(request)) => {
                    deferred.push(request);
                    break;
                }
                Err(Refusal::Never(_, error)) => panic!("refused: {error}"),
            }
        }
        queue.flush();
        queue.poll(&mut batch);
        for completion in batch.drain(..) {
            let Some(Data::Lease(mut lease)) = completion.data else {
                panic!("the lease comes back");
            };
            let (lba, is_read) = (completion.tag / 2, completion.tag % 2 == 1);
            match completion.result {
                Ok(()) => {
                    world.completed.fetch_add(1, Ordering::Relaxed);
                    assert!(lease.iter().all(|byte| *byte == lba as u8));
                }
                Err(DeviceError::Interrupted) => {
                    world.interrupted.fetch_add(1, Ordering::Relaxed);
                    lease.fill(lba as u8 ^ u8::from(is_read));
                    deferred.push(request(lba, is_read, lease));
                }
                Err(error) => panic!("{error}"),
            }
        }
        thread::yield_now();
    }
}

#[test]
fn controller_failing_under_load_is_reset() {
    let emulated = EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 512, BLOCKS)],
        ..EmulatedOptions::default()
    };
    let mut rig = Rig::new(emulated, options());
    let at_rest = taken(&rig.arena);
    let world = World {
        arena: Arc::clone(&rig.arena),
        device: rig.device(1),
        stop: AtomicBool::new(false),
        completed: AtomicU64::new(0),
        interrupted: AtomicU64::new(0),
    };
    let clock = TscClock::new();
    thread::scope(|scope| {
        for index in 0..REACTORS {
            let world = &world;
            scope.spawn(move || reactor(world, index));
        }
        let deadline = Instant::now() + PATIENCE;
        let start = rig.now;
        let mut failures = 0;
        let mut seen = 0;
        while rig.drive.counters().recoveries < 20 {
            assert!(
                Instant::now() < deadline,
                "{failures} failures in a minute: {:?}, {:?}",
                rig.drive.state(),
                rig.drive.counters()
            );
            let now = start + clock.now();
            rig.controller.tick(now);
            rig.owner.poll(now);
            let completed = world.completed.load(Ordering::Relaxed);
            // One failure at a time: a second failure of a failed controller has no effect.
            let recovered = rig.drive.counters().recoveries == failures;
            if recovered && completed > seen + 500 && failures < 20 {
                rig.control.fail();
                failures += 1;
                seen = completed;
            }
            thread::yield_now();
        }
        rig.now = start + clock.now();
        world.stop.store(true, Ordering::Release);
    });
    let counters = rig.drive.counters();
    assert_eq!((counters.resets, counters.recoveries), (20, 20));
    assert_eq!(counters.stale_identifiers + counters.unknown_identifiers, 0);
    assert_eq!(rig.control.counters().invalid_doorbells, 0);
    assert_eq!(rig.control.counters().illegal_accesses, 0);
    drop(world);
    // Threads that ended returned their slices to the arena.
    assert_eq!(taken(&rig.arena), at_rest);
    let deadline = Instant::now() + PATIENCE;
    while rig.owner.stop(rig.now) != StopState::Stopped {
        assert!(Instant::now() < deadline, "the owner does not stop");
        rig.step(Nanos::from_millis(1));
    }
    assert_eq!(rig.drive.state(), DriveState::Closed);
    assert!(!rig.control.is_bus_master());
}
