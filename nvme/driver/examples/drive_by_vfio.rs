//! Opens a drive that is bound to `vfio-pci`, writes and verifies its first blocks, reads it for a
//! while at a depth, and shuts it down. **Overwrites the first MiB of every namespace.**
//!
//! ```text
//! deploy/lab/lab run --nvme 1 -- 'pcibind 0000:01:00.0 vfio-pci;
//!     target/debug/examples/drive_by_vfio 0000:01:00.0 32'
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;

use block::{CompletionBatch, Device, DeviceQueue, Operation, QueueOptions, Refusal, Request};
use hugemem::{Arena, ArenaConfig, Data, PagePolicy, Pool};
use nvme_driver::{BringUp, BringUpState, Drive, DriveOptions, DriveOwner, VfioBacking};
use reactors::sim::Seeded;
use reactors::{Clock, Nanos, Poller, StopState, TscClock};
use rustix::event::{PollFd, PollFlags, Timespec};
use vfio::{Container, PciAddress, System};

const SECONDS: u64 = 2;
const MIB: usize = 1 << 20;

fn request(operation: Operation, lba: u64, blocks: u32, pool: &Pool, bytes: usize) -> Request {
    let data = pool.take(bytes).expect("a large arena");
    Request {
        tag: lba,
        operation,
        lba,
        blocks,
        data: Some(data),
    }
}

/// Runs one request to completion.
fn run(
    queue: &mut dyn DeviceQueue,
    owner: &mut DriveOwner,
    request: Request,
) -> Result<Option<Data>, Box<dyn Error>> {
    let clock = TscClock::new();
    queue
        .submit(request)
        .map_err(|refusal| format!("{refusal:?}"))?;
    queue.flush();
    let mut batch = CompletionBatch::new();
    while queue.poll(&mut batch) == 0 {
        owner.poll(clock.now());
    }
    let completion = batch.remove(0);
    completion.result?;
    Ok(completion.data)
}

/// Writes and verifies 1 MiB, by one request and block by block.
fn verify(
    queue: &mut dyn DeviceQueue,
    owner: &mut DriveOwner,
    device: &dyn Device,
    pool: &Pool,
) -> Result<(), Box<dyn Error>> {
    let block_size = device.geometry().block_size;
    let blocks = MIB as u32 / block_size;
    let mut write = request(Operation::Write { fua: true }, 0, blocks, pool, MIB);
    if let Some(lease) = &mut write.data {
        for (at, byte) in lease.iter_mut().enumerate() {
            *byte = (at ^ (at >> 9)) as u8;
        }
    }
    run(queue, owner, write)?;
    let flush = Request {
        tag: 0,
        operation: Operation::Flush,
        lba: 0,
        blocks: 0,
        data: None,
    };
    run(queue, owner, flush)?;
    for lba in (0..u64::from(blocks)).step_by(7) {
        let bytes = block_size as usize;
        let read = request(Operation::Read, lba, 1, pool, bytes);
        let found = run(queue, owner, read)?.ok_or("a read without data")?;
        let start = lba as usize * bytes;
        let right = |(at, byte): (usize, &u8)| {
            let at = start + at;
            *byte == (at ^ (at >> 9)) as u8
        };
        if !found.iter().enumerate().all(right) {
            return Err(format!("block {lba} differs").into());
        }
    }
    Ok(())
}

/// Reads random blocks of 4 KiB for a while.
fn load(
    queue: &mut dyn DeviceQueue,
    owner: &mut DriveOwner,
    device: &dyn Device,
    pool: &Pool,
    depth: usize,
) -> Result<u64, Box<dyn Error>> {
    let geometry = device.geometry();
    let blocks = 4096 / geometry.block_size;
    let clock = TscClock::new();
    let end = clock.now() + Nanos::from_secs(SECONDS);
    let mut batch = CompletionBatch::new();
    let (mut random, mut completed) = (Seeded::new(1, 0), 0);
    while clock.now() < end || queue.in_flight() > 0 {
        while queue.in_flight() < depth && clock.now() < end {
            let lba = random.below(geometry.block_count / u64::from(blocks));
            let read = request(Operation::Read, lba * u64::from(blocks), blocks, pool, 4096);
            match queue.submit(read) {
                Ok(()) => {}
                // The drive's own queue is shorter than the depth requested.
                Err(Refusal::Later(_)) => break,
                Err(refusal) => return Err(format!("{refusal:?}").into()),
            }
        }
        queue.flush();
        queue.poll(&mut batch);
        for completion in batch.drain(..) {
            completion.result?;
            completed += 1;
        }
        owner.poll(clock.now());
    }
    Ok(completed)
}

/// Reads sequentially and sleeps on the drive's interrupt between reads. Returns the number of
/// sleeps.
fn sleep(
    queue: &mut dyn DeviceQueue,
    owner: &mut DriveOwner,
    pool: &Pool,
    block_size: usize,
) -> Result<usize, Box<dyn Error>> {
    let clock = TscClock::new();
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut batch = CompletionBatch::new();
    let mut slept = 0;
    for lba in 0..200 {
        let read = request(Operation::Read, lba, 1, pool, block_size);
        queue
            .submit(read)
            .map_err(|refusal| format!("{refusal:?}"))?;
        queue.flush();
        while queue.poll(&mut batch) == 0 {
            owner.poll(clock.now());
            if queue.prepare_sleep() {
                let source = queue.wake_source().ok_or("no interrupt")?;
                let mut polled = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
                if rustix::event::poll(&mut polled, Some(&second))? == 0 {
                    return Err("the drive does not interrupt".into());
                }
                slept += 1;
            }
        }
        for completion in batch.drain(..) {
            completion.result?;
        }
    }
    Ok(slept)
}

fn open(
    address: PciAddress,
    arena: &Arc<Arena>,
) -> Result<(Arc<Drive>, DriveOwner), Box<dyn Error>> {
    let container = Container::open(&System::default(), address)?;
    let backing = VfioBacking::open(&container, address, arena, 2)?;
    let options = DriveOptions {
        controller_memory: std::env::var_os("LAB_NO_CMB").is_none(),
        shadow_doorbells: std::env::var_os("LAB_NO_SHADOW").is_none(),
        ..DriveOptions::new("drive")
    };
    let mut bring_up = BringUp::new(Arc::new(backing), arena, options)?;
    let clock = TscClock::new();
    loop {
        match bring_up.poll(clock.now()) {
            BringUpState::Ready(ready) => return Ok(ready),
            BringUpState::Failed(error) => return Err(error.into()),
            BringUpState::Pending => std::thread::yield_now(),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address: PciAddress = arguments.next().ok_or("which drive?")?.parse()?;
    let depth: usize = arguments.next().map_or(Ok(32), |depth| depth.parse())?;
    let config = ArenaConfig {
        bytes: 32 << 20,
        pages: PagePolicy::Auto,
        max_transfer: MIB,
    };
    let arena = Arena::new(config)?;
    let clock = TscClock::new();
    let before = clock.now();
    let (drive, mut owner) = open(address, &arena)?;
    println!(
        "{} {} {} ready in {} us, depth {}",
        drive.model(),
        drive.serial(),
        drive.firmware(),
        (clock.now() - before).as_micros(),
        drive.queue_depth()
    );
    for namespace in drive.namespaces() {
        println!("{namespace:?}");
        if namespace.geometry.is_err() {
            continue;
        }
        let device = drive.device(namespace.nsid, "ns", [0; 16])?;
        let pool = arena.pool(0);
        let options = QueueOptions::new(0, 128, pool.clone());
        let mut queue = device.open_queue(options)?;
        verify(&mut *queue, &mut owner, &*device, &pool)?;
        let counters = drive.counters();
        let reads = load(&mut *queue, &mut owner, &*device, &pool, depth)?;
        let doorbells = drive.counters().doorbells - counters.doorbells;
        println!(
            "{} reads/s, {doorbells} doorbells for {reads}",
            reads / SECONDS
        );
        let block_size = device.geometry().block_size as usize;
        let slept = sleep(&mut *queue, &mut owner, &pool, block_size)?;
        println!("slept {slept} times in 200 reads");
        println!("{:?}", device.health());
    }
    println!("{:?}", drive.counters());
    while owner.stop(clock.now()) != StopState::Stopped {
        owner.poll(clock.now());
    }
    println!("{:?}", drive.state());
    Ok(())
}
