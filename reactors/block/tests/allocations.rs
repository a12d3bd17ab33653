//! Queues allocate nothing in steady state.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use block::{
    CompletionBatch, Copier, CopyEnd, CopyMessage, CopyPlan, CopyProgress, CopyStart, Device,
    DeviceSet, FileDevice, FileOptions, MemoryDevice, MemoryOptions, NullDevice, NullOptions,
    Operation, QueueOptions, ReactorDevices, Request,
};
use block_testing::{DelayDevice, FaultDevice, FaultPlan, Latency};
use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use reactors::{Nanos, TscClock, ring};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const BLOCKS: u64 = 1024;
const DEPTH: usize = 32;

fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 8 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 18,
    };
    Arena::new(config).unwrap()
}

fn memory() -> MemoryDevice {
    let options = MemoryOptions {
        name: "ram".into(),
        uuid: [1; 16],
        size_bytes: BLOCKS * 4096,
        block_size: 4096,
        pages: PagePolicy::Ordinary,
        read_only: false,
    };
    MemoryDevice::new(options).unwrap()
}

fn operation(number: u64) -> Operation {
    match number % 8 {
        0..3 => Operation::Read,
        3..5 => Operation::Write {
            fua: number.is_multiple_of(64),
        },
        5 => Operation::Compare,
        6 => Operation::WriteZeroes {
            fua: false,
            deallocate: number.is_multiple_of(16),
        },
        _ if number.is_multiple_of(16) => Operation::Deallocate,
        _ => Operation::Flush,
    }
}

/// Runs `requests` requests of all kinds and returns the number of allocations by this thread.
fn allocations(device: &dyn Device, arena: &Arc<Arena>, requests: u64) -> u64 {
    let pool = arena.pool(0);
    let options = QueueOptions::new(0, DEPTH, pool.clone());
    let mut queue = device.open_queue(options).unwrap();
    let (mut submitted, mut ended) = (0, 0);
    let mut batch = CompletionBatch::new();
    let before = allocations_on_this_thread();
    while ended < requests {
        while submitted < requests && queue.in_flight() < DEPTH {
            let operation = operation(submitted);
            let lba = submitted.wrapping_mul(7919) % (BLOCKS - 1);
            let lends = operation == Operation::Read && queue.can_borrow_read(lba, 2);
            let lent = lends && submitted.is_multiple_of(3);
            let data = (operation.has_data() && !lent).then(|| pool.take(8192).unwrap());
            queue
                .submit(Request {
                    tag: submitted,
                    operation,
                    lba,
                    blocks: 2,
                    data,
                })
                .unwrap();
            submitted += 1;
        }
        queue.flush();
        queue.poll(&mut batch);
        ended += batch.len() as u64;
        batch.clear();
    }
    let after = allocations_on_this_thread();
    let health = device.health();
    assert_eq!((health.media_errors, health.errors), (0, 0));
    after - before
}

#[test]
fn memory_device_does_not_allocate() {
    assert_eq!(allocations(&memory(), &arena(), 100_000), 0);
}

#[test]
fn file_device_does_not_allocate() {
    for fixed_buffers in [true, false] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let arena = arena();
        let options = FileOptions {
            size_bytes: Some(BLOCKS * 4096),
            arena: fixed_buffers.then(|| Arc::clone(&arena)),
            ..FileOptions::new("file", folder.path().join("image"))
        };
        let device = FileDevice::open(options).unwrap();
        assert_eq!(allocations(&device, &arena, 5_000), 0);
    }
}

#[test]
fn null_device_does_not_allocate() {
    let options = NullOptions {
        name: "null".into(),
        uuid: [1; 16],
        size_bytes: BLOCKS * 4096,
        block_size: 4096,
    };
    assert_eq!(
        allocations(&NullDevice::new(options).unwrap(), &arena(), 100_000),
        0
    );
}

#[test]
fn copy_does_not_allocate() {
    let arena = arena();
    let set = Rc::new(DeviceSet::new());
    for (place, device) in [memory(), memory()].iter().enumerate() {
        let options = QueueOptions::new(0, DEPTH, arena.pool(0));
        set.attach(place, device, options).unwrap();
    }
    let (mut sender, messages) = ring::channel(4);
    let copier = Copier::new(Rc::clone(&set), arena.pool(0), messages);
    let devices = ReactorDevices::new(set);
    devices.add(Rc::new(RefCell::new(copier)));
    let progress = Arc::<CopyProgress>::default();
    let start = CopyStart {
        number: 1,
        plan: CopyPlan {
            source: 0,
            destination: 1,
            first_block: 0,
            blocks: BLOCKS,
            block_bytes: 4096,
            // Many requests.
            max_transfer_blocks: 1,
            in_device: false,
            by_device: false,
        },
        progress: Arc::clone(&progress),
    };
    assert!(sender.send(CopyMessage::Start(start)).is_ok());
    let before = allocations_on_this_thread();
    let mut turns = 0;
    while progress.end().is_none() && turns < 100_000 {
        devices.poll(Nanos::from_micros(turns));
        devices.flush();
        turns += 1;
    }
    assert_eq!(allocations_on_this_thread() - before, 0);
    assert_eq!(progress.end(), Some(CopyEnd::Complete));
}

#[test]
fn fault_and_delay_wrappers_do_not_allocate() {
    let faults = FaultDevice::new(Arc::new(memory()), FaultPlan::default());
    assert_eq!(allocations(&faults, &arena(), 20_000), 0);
    let latency = Latency::Range {
        min: Nanos::ZERO,
        max: Nanos::from_micros(20),
    };
    let late = DelayDevice::new(Arc::new(memory()), latency, 1, TscClock::new);
    assert_eq!(allocations(&late, &arena(), 20_000), 0);
}
