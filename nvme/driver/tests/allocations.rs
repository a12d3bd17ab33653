//! Verifies that a queue pair in steady state does not allocate, and rings few doorbells.

#[path = "emulated/support/mod.rs"]
mod support;

use block::{CompletionBatch, DeviceQueue, Operation, Request};
use hugemem::Pool;
use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions};

use support::{Rig, drive_options};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const DEPTH: usize = 128;
const BLOCKS: u64 = 1000;

fn rig(optional_commands: bool) -> Rig {
    let emulated = EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, BLOCKS)],
        transfer_code: 3,
        optional_commands,
        ..EmulatedOptions::default()
    };
    Rig::new(emulated, drive_options(1))
}

/// Fills the queue, rings the doorbell and polls until the queue is empty, `turns` times.
fn turns(
    queue: &mut dyn DeviceQueue,
    pool: &Pool,
    turns: u64,
    depth: usize,
    kind: impl Fn(u64) -> (Operation, u32),
) -> u64 {
    let mut batch = CompletionBatch::new();
    let mut number = 0;
    for _ in 0..turns {
        for _ in 0..depth {
            let (operation, blocks) = kind(number);
            let bytes = blocks as usize * 4096;
            let request = Request {
                tag: number,
                operation,
                lba: number * 7919 % (BLOCKS - 20),
                blocks,
                data: operation
                    .has_data()
                    .then(|| pool.take(bytes).expect("a large arena")),
            };
            if queue.submit(request).is_err() {
                break;
            }
            number += 1;
        }
        queue.flush();
        while queue.in_flight() > 0 {
            queue.poll(&mut batch);
            for completion in batch.drain(..) {
                assert!(matches!(
                    completion.result,
                    Ok(()) | Err(block::DeviceError::CompareMismatch)
                ));
            }
        }
    }
    number
}

#[test]
fn reads_do_not_allocate_and_batch_doorbells() {
    let rig = rig(true);
    let mut client = rig.client(1, 0, DEPTH);
    let read = |_| (Operation::Read, 1);
    turns(&mut *client.queue, &client.pool, 2, DEPTH, read);
    let (allocations, doorbells) = (allocations_on_this_thread(), rig.drive.counters().doorbells);
    let requests = turns(&mut *client.queue, &client.pool, 100, DEPTH, read);
    assert_eq!(allocations_on_this_thread() - allocations, 0);
    assert_eq!(requests, 100 * DEPTH as u64);
    let doorbells = rig.drive.counters().doorbells - doorbells;
    assert!(
        doorbells * 8 < requests,
        "{doorbells} doorbells for {requests} reads"
    );
}

#[test]
fn all_request_kinds_do_not_allocate() {
    for optional_commands in [true, false] {
        let rig = rig(optional_commands);
        let mut client = rig.client(1, 0, DEPTH);
        let kind = |number: u64| match number % 7 {
            0 => (Operation::Read, 20),
            1 => (Operation::Write { fua: false }, 17),
            2 => (Operation::Flush, 0),
            3 => (
                Operation::WriteZeroes {
                    fua: true,
                    deallocate: true,
                },
                20,
            ),
            4 => (Operation::Compare, 9),
            5 if optional_commands => (Operation::Deallocate, 20),
            _ => (Operation::Read, 1),
        };
        turns(&mut *client.queue, &client.pool, 2, 32, kind);
        let before = allocations_on_this_thread();
        let requests = turns(&mut *client.queue, &client.pool, 60, 32, kind);
        assert_eq!(allocations_on_this_thread() - before, 0);
        assert!(requests > 1000, "{requests}");
    }
}
