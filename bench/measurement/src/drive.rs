//! Random reads from a real drive with our own driver on one thread, for comparison with fio on the
//! kernel's driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{CompletionBatch, DeviceQueue, Operation, QueueOptions, Request};
use hdrhistogram::Histogram;
use hugemem::{Arena, ArenaConfig, Data, Lease, PagePolicy};
use nvme_driver::{BringUp, BringUpState, Drive, DriveOptions, DriveOwner, VfioBacking};
use reactors::{Nanos, Poller, StopState};
use serde::{Deserialize, Serialize};
use vfio::{Container, PciAddress, System};

use bench::random::Random;
use bench::report::{Latency, Machine};
use bench::report::{histogram, nanos};
use bench::table::Table;
use bench::units::{format_count, format_nanos};

/// Size of a read in bytes.
const REQUEST_BYTES: usize = 4096;

/// Size of the memory that the drive can access, in bytes.
const ARENA_BYTES: usize = 16 << 20;

/// Maximum duration of the drive's start, and of its shutdown.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Time without a completion after which the drive counts as hanging.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The reason why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The drive cannot be opened.
    #[error(transparent)]
    Vfio(#[from] vfio::Error),
    /// Memory cannot be allocated.
    #[error(transparent)]
    Memory(#[from] hugemem::ArenaError),
    /// The drive does not start.
    #[error(transparent)]
    Drive(#[from] nvme_driver::DriveError),
    /// The namespace's queue cannot be opened.
    #[error("the queue: {0}")]
    Queue(block::OpenError),
    /// The drive did not become ready, or stopped responding.
    #[error("the drive did not respond within {0:?}")]
    Hangs(Duration),
    /// Reads of 4 KiB are not possible on the namespace.
    #[error("the namespace has {0} bytes in blocks of {1}: reads of 4 KiB are not possible")]
    Shape(u64, u32),
    /// More requests in flight than the drive supports.
    #[error("a depth of {0}: the drive takes 1 to {1}")]
    Depth(usize, usize),
    /// A read failed.
    #[error("a read failed: {0:?}")]
    Read(block::DeviceError),
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct DrivePlan {
    /// The drive, which is bound to VFIO.
    pub address: PciAddress,
    /// The namespace.
    pub nsid: u32,
    /// Numbers of reads in flight, measured one after the other.
    pub depths: Vec<usize>,
    /// Duration of each measurement.
    pub duration: Duration,
    /// Duration of the warm-up.
    pub warm_up: Duration,
}

/// The result of one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DriveRow {
    /// Reads in flight.
    pub depth: usize,
    /// Reads per second.
    pub iops: f64,
    /// Latency from submission to completion.
    pub latency: Latency,
    /// Doorbell writes per read.
    pub doorbells: f64,
}

/// The results of a drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// PCI address.
    pub address: String,
    /// Model number.
    pub model: String,
    /// One row for each depth.
    pub rows: Vec<DriveRow>,
}

impl std::fmt::Display for DriveReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "4 KiB random reads from {} ({})\n",
            self.address, self.model
        )?;
        let mut table = Table::new(&["in flight", "IOPS", "p50", "p99", "max", "doorbells"]);
        for row in &self.rows {
            table.row([
                row.depth.to_string(),
                format_count(row.iops as u64),
                format_nanos(row.latency.p50_ns),
                format_nanos(row.latency.p99_ns),
                format_nanos(row.latency.max_ns),
                format!("{:.3}", row.doorbells),
            ]);
        }
        write!(f, "{table}")
    }
}

/// An opened drive.
pub(crate) struct OpenDrive {
    pub(crate) drive: Arc<Drive>,
    owner: DriveOwner,
    begun: Instant,
}

impl OpenDrive {
    pub(crate) fn take(
        container: &Arc<Container>,
        address: PciAddress,
        arena: &Arc<Arena>,
    ) -> Result<Self, DriveError> {
        let backing = Arc::new(VfioBacking::open(container, address, arena, 2)?);
        let mut bring_up = BringUp::new(backing, arena, DriveOptions::new("drive"))?;
        let begun = Instant::now();
        loop {
            match bring_up.poll(Nanos(nanos(begun.elapsed()))) {
                BringUpState::Ready((drive, owner)) => {
                    return Ok(Self {
                        drive,
                        owner,
                        begun,
                    });
                }
                BringUpState::Failed(error) => return Err(error.into()),
                BringUpState::Pending if begun.elapsed() > START_LIMIT => {
                    return Err(DriveError::Hangs(START_LIMIT));
                }
                BringUpState::Pending => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn now(&self) -> Nanos {
        Nanos(nanos(self.begun.elapsed()))
    }

    /// Polls and flushes the drive's owner, as a reactor does in each turn.
    pub(crate) fn tend(&mut self) {
        let now = self.now();
        self.owner.poll(now);
        self.owner.flush(now);
    }

    /// Shuts the drive down.
    pub(crate) fn stop(mut self) -> Result<(), DriveError> {
        let begun = Instant::now();
        while self.owner.stop(self.now()) != StopState::Stopped {
            self.tend();
            if begun.elapsed() > START_LIMIT {
                return Err(DriveError::Hangs(START_LIMIT));
            }
        }
        Ok(())
    }
}

/// Measures a drive.
///
/// # Errors
/// [`DriveError`].
pub fn measure(plan: &DrivePlan) -> Result<DriveReport, DriveError> {
    let arena = Arena::new(ArenaConfig {
        bytes: ARENA_BYTES,
        pages: PagePolicy::Auto,
        max_transfer: 1 << 20,
    })?;
    let container = Container::open(&System::default(), plan.address)?;
    let mut taken = OpenDrive::take(&container, plan.address, &arena)?;
    let device = taken.drive.device(plan.nsid, "bench", [1; 16])?;
    let geometry = device.geometry();
    let reads = geometry.bytes() / REQUEST_BYTES as u64;
    if reads == 0 {
        return Err(DriveError::Shape(geometry.bytes(), geometry.block_size));
    }
    let mut report = DriveReport {
        machine: Machine::here(),
        address: plan.address.to_string(),
        model: taken.drive.model().trim().to_owned(),
        rows: Vec::new(),
    };
    let pool = arena.pool(0);
    for &depth in &plan.depths {
        let most = taken.drive.queue_depth();
        if !(1..=most).contains(&depth) {
            return Err(DriveError::Depth(depth, most));
        }
        let queue = device.open_queue(QueueOptions::new(0, depth, pool.clone()));
        let mut lane = Lane {
            queue: queue.map_err(DriveError::Queue)?,
            leases: (0..depth).map_while(|_| pool.take(REQUEST_BYTES)).collect(),
            started: vec![Instant::now(); depth],
            free: (0..depth).collect(),
            random: Random::new(depth as u64),
            reads,
            blocks: REQUEST_BYTES as u32 / geometry.block_size,
            latencies: histogram(),
            ended: 0,
        };
        lane.run(&mut taken, plan.warm_up)?;
        lane.latencies.reset();
        lane.ended = 0;
        let before = taken.drive.counters().doorbells;
        let elapsed = lane.run(&mut taken, plan.duration)?;
        let doorbells = taken.drive.counters().doorbells - before;
        report.rows.push(DriveRow {
            depth,
            iops: lane.ended as f64 / elapsed.as_secs_f64(),
            latency: Latency::from_histogram(&lane.latencies),
            doorbells: doorbells as f64 / lane.ended.max(1) as f64,
        });
    }
    drop(device);
    taken.stop()?;
    Ok(report)
}

/// Reads in flight at one depth.
struct Lane {
    queue: Box<dyn DeviceQueue>,
    leases: Vec<Lease>,
    started: Vec<Instant>,
    free: Vec<usize>,
    random: Random,
    /// Number of different read positions.
    reads: u64,
    /// Blocks per read.
    blocks: u32,
    latencies: Histogram<u64>,
    ended: u64,
}

impl Lane {
    /// Reads for the given time; nothing is in flight before and afterwards.
    fn run(&mut self, taken: &mut OpenDrive, limit: Duration) -> Result<Duration, DriveError> {
        let begun = Instant::now();
        let mut last_completed_at = begun;
        loop {
            let now = Instant::now();
            if now - begun < limit {
                self.submit(now)?;
            } else if self.free.len() == self.started.len() {
                return Ok(now - begun);
            }
            self.queue.flush();
            taken.tend();
            if self.collect()? > 0 {
                last_completed_at = Instant::now();
            } else if last_completed_at.elapsed() > STALL_LIMIT {
                return Err(DriveError::Hangs(STALL_LIMIT));
            }
        }
    }

    fn submit(&mut self, now: Instant) -> Result<(), DriveError> {
        while let (Some(&slot), Some(lease)) = (self.free.last(), self.leases.pop()) {
            let request = Request {
                tag: slot as u64,
                operation: Operation::Read,
                lba: self.random.below(self.reads) * u64::from(self.blocks),
                blocks: self.blocks,
                data: Some(lease),
            };
            match self.queue.submit(request) {
                Ok(()) => {
                    self.free.pop();
                    self.started[slot] = now;
                }
                Err(block::Refusal::Later(request)) => {
                    self.leases.extend(request.data);
                    return Ok(());
                }
                Err(block::Refusal::Never(_, error)) => return Err(DriveError::Read(error)),
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<usize, DriveError> {
        let mut batch = CompletionBatch::new();
        let ended = self.queue.poll(&mut batch);
        if ended > 0 {
            let now = Instant::now();
            for completion in batch {
                completion.result.map_err(DriveError::Read)?;
                if let Some(Data::Lease(lease)) = completion.data {
                    self.leases.push(lease);
                }
                let slot = completion.tag as usize;
                self.free.push(slot);
                let latency = now - self.started[slot];
                self.latencies.saturating_record(nanos(latency));
                self.ended += 1;
            }
        }
        Ok(ended)
    }
}
