//! The driver at one end and an emulated controller with immediate completions at the other, on one
//! thread.

use std::sync::Arc;

use block::{Completion, CompletionBatch, DeviceQueue, Operation, QueueOptions, Request};
use hugemem::allocation_counter::allocations_on_this_thread;
use hugemem::{Arena, ArenaConfig, Data, Lease, PagePolicy};
use nvme_driver::backing::DeviceBacking;
use nvme_driver::{BringUp, BringUpState, Drive, DriveOptions, DriveOwner};
use nvme_driver_testing::{EmulatedController, EmulatedNamespace, EmulatedOptions};
use reactors::{Nanos, Poller};

use crate::cost::measure::CostError;
use crate::cost::{DEPTH, LoopCounts, REQUEST_BYTES, WARM_UP_REQUESTS};
use bench::random::Random;

/// Blocks of the namespace, [`REQUEST_BYTES`] each.
const BLOCKS: u64 = 4096;

/// Virtual time of one turn.
const TURN: Nanos = Nanos::from_micros(50);

struct Rig {
    drive: Arc<Drive>,
    owner: DriveOwner,
    queue: Box<dyn DeviceQueue>,
    leases: Vec<Lease>,
    now: Nanos,
}

fn failed(what: &'static str) -> impl Fn(String) -> CostError {
    move |error| CostError::Setup(format!("{what}: {error}"))
}

fn rig() -> Result<Rig, CostError> {
    let arena = Arena::new(ArenaConfig {
        bytes: 32 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    })
    .map_err(|error| failed("memory")(error.to_string()))?;
    let emulated = EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, REQUEST_BYTES as u32, BLOCKS)],
        ..EmulatedOptions::default()
    };
    let controller = EmulatedController::new(arena.region(), emulated)
        .map_err(|error| failed("the emulated controller")(error.to_string()))?;
    let controller = Arc::new(controller);
    let backing = Arc::clone(&controller) as Arc<dyn DeviceBacking>;
    let wrong = |error: nvme_driver::DriveError| failed("the drive")(error.to_string());
    let mut bring_up = BringUp::new(backing, &arena, DriveOptions::new("drive")).map_err(wrong)?;
    let mut now = Nanos::ZERO;
    let (drive, owner) = loop {
        controller.tick(now);
        match bring_up.poll(now) {
            BringUpState::Pending => now += Nanos::from_millis(1),
            BringUpState::Ready(ready) => break ready,
            BringUpState::Failed(error) => return Err(wrong(error)),
        }
    };
    let device = drive.device(1, "namespace", [1; 16]).map_err(wrong)?;
    let pool = arena.pool(0);
    let options = QueueOptions::new(0, DEPTH, pool.clone());
    let queue = device
        .open_queue(options)
        .map_err(|error| failed("the queue")(error.to_string()))?;
    let leases = (0..DEPTH).map_while(|_| pool.take(REQUEST_BYTES)).collect();
    Ok(Rig {
        drive,
        owner,
        queue,
        leases,
        now,
    })
}

impl Rig {
    /// Submits requests until no lease is left.
    fn submit(&mut self, random: &mut Random) -> Result<(), CostError> {
        while let Some(lease) = self.leases.pop() {
            let request = Request {
                tag: 0,
                operation: Operation::Read,
                lba: random.below(BLOCKS),
                blocks: 1,
                data: Some(lease),
            };
            if self.queue.submit(request).is_err() {
                return Err(CostError::Setup("the queue is full".to_owned()));
            }
        }
        Ok(())
    }

    /// One turn of a reactor: completions, new requests, doorbells.
    fn turn(&mut self, random: &mut Random) -> Result<u64, CostError> {
        self.now += TURN;
        let owner: &mut dyn Poller = &mut self.owner;
        owner.poll(self.now);
        let mut batch = CompletionBatch::new();
        let ended = self.queue.poll(&mut batch);
        for Completion { result, data, .. } in batch {
            match (result, data) {
                (Ok(()), Some(Data::Lease(lease))) => self.leases.push(lease),
                (result, _) => return Err(CostError::Setup(format!("a read: {result:?}"))),
            }
        }
        self.submit(random)?;
        self.queue.flush();
        owner_flush(&mut self.owner, self.now);
        Ok(ended as u64)
    }
}

fn owner_flush(owner: &mut dyn Poller, now: Nanos) {
    owner.flush(now);
}

/// Runs `requests` requests after a warm-up.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(requests: u64) -> Result<LoopCounts, CostError> {
    let mut rig = rig()?;
    let mut random = Random::new(1);
    let mut ended = 0;
    while ended < WARM_UP_REQUESTS {
        ended += rig.turn(&mut random)?;
    }
    let before = rig.drive.counters();
    let allocations = allocations_on_this_thread();
    let mut counted = 0;
    while counted < requests {
        counted += rig.turn(&mut random)?;
    }
    let allocations = allocations_on_this_thread() - allocations;
    let after = rig.drive.counters();
    Ok(LoopCounts {
        requests: counted,
        allocations,
        counted: vec![
            ("commands".to_owned(), after.commands - before.commands),
            ("doorbells".to_owned(), after.doorbells - before.doorbells),
        ],
    })
}
