//! What the driver costs per 4 KiB read at depth 128, on the emulated controller answering inside
//! the doorbell: run it under callgrind and subtract `write_u32` of the controller.
//!
//! ```text
//! cargo build --release -p nvme_driver --example read_cost
//! valgrind --tool=callgrind --toggle-collect='*read_cost*turns*' target/release/examples/read_cost
//! ```

use std::hint::black_box;
use std::sync::Arc;

use block::{CompletionBatch, DeviceQueue, Operation, QueueOptions, Request};
use hugemem::{Arena, ArenaConfig, Lease, PagePolicy};
use nvme_driver::emulated::{EmulatedController, EmulatedNamespace, EmulatedOptions};
use nvme_driver::{BringUp, BringUpState, DriveOptions};
use reactors::Nanos;

const DEPTH: usize = 128;
const TURNS: usize = 8;

/// Turns of a full queue. Returns how many reads completed.
#[inline(never)]
fn turns(queue: &mut dyn DeviceQueue, leases: &mut Vec<Lease>, count: usize) -> usize {
    let mut batch = CompletionBatch::new();
    let mut completed = 0;
    let mut lba = 0;
    for _ in 0..count {
        while let Some(lease) = leases.pop() {
            let request = Request {
                tag: lba,
                operation: Operation::Read,
                lba,
                blocks: 1,
                data: Some(lease),
            };
            queue.submit(request).expect("room for a read");
            lba = (lba + 7) % 1000;
        }
        queue.flush();
        loop {
            completed += queue.poll(&mut batch);
            if batch.is_empty() {
                break;
            }
            for completion in batch.drain(..) {
                if let Some(hugemem::Data::Lease(lease)) = completion.data {
                    leases.push(lease);
                }
            }
        }
    }
    completed
}

fn main() {
    let config = ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    let arena = Arena::new(config).expect("16 MiB");
    let emulated = EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, 1000)],
        ..EmulatedOptions::default()
    };
    let controller = EmulatedController::new(arena.region(), emulated).expect("a controller");
    let controller = Arc::new(controller);
    let backing = Arc::clone(&controller);
    let mut bring_up = BringUp::new(backing, &arena, DriveOptions::new("cost")).expect("options");
    let mut now = Nanos::ZERO;
    let (drive, _owner) = loop {
        controller.tick(now);
        match bring_up.poll(now) {
            BringUpState::Ready(ready) => break ready,
            BringUpState::Pending => now += Nanos::from_millis(1),
            BringUpState::Failed(error) => panic!("{error}"),
        }
    };
    let device = drive.device(1, "cost", [0; 16]).expect("a namespace");
    let pool = arena.pool(0);
    let options = QueueOptions {
        core: 0,
        depth: DEPTH,
        pool: pool.clone(),
    };
    let mut queue = device.open_queue(options).expect("a queue");
    let mut leases: Vec<_> = (0..DEPTH).filter_map(|_| pool.take(4096)).collect();
    let before = drive.counters();
    let completed = turns(&mut *queue, &mut leases, black_box(TURNS));
    let after = drive.counters();
    println!(
        "{completed} reads, {} commands, {} doorbells",
        after.commands - before.commands,
        after.doorbells - before.doorbells
    );
}
