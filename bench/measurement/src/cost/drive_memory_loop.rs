//! Reads and writes of 128 KiB of a drive by the target over RDMA: through the arena, and through the
//! drive's controller memory buffer. Both paths are namespaces of one emulated drive, so that nothing
//! else differs.
//!
//! All data of the host is marked. After the requests of each path, the arena is searched for marks:
//! data that went through it leaves some.

use std::sync::Arc;

use block::{DataPath, Device};
use hugemem::{Arena, DmaView};
use nvme_driver::backing::DeviceBacking;
use nvme_driver::{BringUp, BringUpState, Drive, DriveOptions, DriveOwner};
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedController, EmulatedNamespace, EmulatedOptions,
};
use nvme_host_testing::rdma::MEMORY_BYTES;
use nvme_spec::Sqe;
use reactors::Nanos;

use crate::cost::LoopCounts;
use crate::cost::measure::CostError;
use crate::cost::rdma_rig::{Host, Parts, Rig, arena};
use crate::cost::rig::{BLOCK_BYTES, setup};
use crate::cost::tcp_loop::{counting_begins, counting_ends};
use bench::random::Random;

/// Size of a request in bytes.
const BYTES: usize = 128 << 10;

/// Requests in flight.
const DEPTH: usize = 8;

// Each request in flight has its own memory of the host.
const _: () = assert!(BYTES * DEPTH <= MEMORY_BYTES);

/// Blocks of each namespace.
const BLOCKS: u64 = (16 << 20) / BLOCK_BYTES as u64;

/// Blocks of a request.
const REQUEST_BLOCKS: u64 = BYTES as u64 / BLOCK_BYTES as u64;

/// Size of the controller memory buffer in bytes.
const CONTROLLER_MEMORY_BYTES: usize = 8 << 20;

/// Uncounted and counted requests of a case.
const WARM_UP_REQUESTS: u64 = 8 * DEPTH as u64;
const REQUESTS: u64 = 60 * DEPTH as u64;

/// The first bytes of each block of data.
const MARK: &[u8; 16] = b"data of a block ";

/// The counter of bytes of data in the arena.
pub const ARENA_BYTES: &str = "bytes of data in host memory";

/// A counted case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathCase {
    /// Its name.
    pub name: &'static str,
    /// The name of the same case through the arena, if this one is through memory of the drive.
    pub host_path: Option<&'static str>,
    is_write: bool,
}

/// The case with a goal in the issue.
pub const PATH_MAIN_CASE: &str = "drive-memory-read-128k-8";

/// All cases. Writes come first: reads find marked data.
pub const CASES: [PathCase; 4] = [
    PathCase {
        name: "host-write-128k-8",
        host_path: None,
        is_write: true,
    },
    PathCase {
        name: "drive-memory-write-128k-8",
        host_path: Some("host-write-128k-8"),
        is_write: true,
    },
    PathCase {
        name: "host-read-128k-8",
        host_path: None,
        is_write: false,
    },
    PathCase {
        name: PATH_MAIN_CASE,
        host_path: Some("host-read-128k-8"),
        is_write: false,
    },
];

impl PathCase {
    /// The case of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        CASES.into_iter().find(|case| case.name == name)
    }

    fn nsid(self) -> u32 {
        match self.host_path {
            None => 1,
            Some(_) => 2,
        }
    }
}

struct EmulatedDrive {
    drive: Arc<Drive>,
    owner: DriveOwner,
    now: Nanos,
}

fn start(arena: &Arc<Arena>) -> Result<EmulatedDrive, CostError> {
    let namespace = |nsid| EmulatedNamespace::new(nsid, BLOCK_BYTES, BLOCKS);
    let options = EmulatedOptions {
        namespaces: vec![namespace(1), namespace(2)],
        controller_memory: Some(ControllerMemoryOptions {
            bytes: CONTROLLER_MEMORY_BYTES,
            placed_by_host: true,
            holds_data: true,
        }),
        write_cache: false,
        ..EmulatedOptions::default()
    };
    let controller = EmulatedController::new(arena.region(), options)
        .map_err(|error| setup("the emulated controller", &error))?;
    let controller = Arc::new(controller);
    let backing = Arc::clone(&controller) as Arc<dyn DeviceBacking>;
    let wrong = |error: nvme_driver::DriveError| setup("the drive", &error);
    let mut bring_up = BringUp::new(backing, arena, DriveOptions::new("drive")).map_err(wrong)?;
    let mut now = Nanos::ZERO;
    loop {
        controller.tick(now);
        match bring_up.poll(now) {
            BringUpState::Pending => now += Nanos::from_millis(1),
            BringUpState::Ready((drive, owner)) => return Ok(EmulatedDrive { drive, owner, now }),
            BringUpState::Failed(error) => return Err(wrong(error)),
        }
    }
}

/// Bytes of blocks of data that have a mark in the arena. Removes the marks. No request is in flight.
fn bytes_in_arena(arena: &Arena) -> Result<u64, CostError> {
    let view = DmaView::of_arena(arena.region());
    let view = view.map_err(|error| setup("a second mapping", &error))?;
    let mut block = [0; BLOCK_BYTES as usize];
    let mut bytes = 0;
    for offset in (0..view.len()).step_by(block.len()) {
        view.read(offset, &mut block);
        if block.starts_with(MARK) {
            view.write(offset, &[0; MARK.len()]);
            bytes += u64::from(BLOCK_BYTES);
        }
    }
    Ok(bytes)
}

fn mark(host: &Host) {
    let mut block = [0x5a; BLOCK_BYTES as usize];
    block[..MARK.len()].copy_from_slice(MARK);
    for offset in (0..MEMORY_BYTES).step_by(block.len()) {
        host.io.write_memory(offset, &block);
    }
}

/// Runs every case, or the named one, each after a warm-up. Returns the counters by name.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(only: Option<&str>) -> Result<Vec<(String, LoopCounts)>, CostError> {
    let arena = arena()?;
    let EmulatedDrive { drive, owner, now } = start(&arena)?;
    let device = |nsid, path| {
        drive
            .device_on_path(nsid, "namespace", [nsid as u8; 16], path)
            .map_err(|error| setup("a namespace", &error))
    };
    let devices: Vec<Arc<dyn Device>> = vec![
        device(1, DataPath::Host)?,
        device(2, DataPath::DeviceMemory)?,
    ];
    let memory = devices[1].device_memory();
    let memory = memory.ok_or_else(|| CostError::Setup("the drive has no memory".to_owned()))?;
    let parts = Parts {
        devices,
        memory: vec![memory],
        owner: Some(Box::new(owner)),
        depth: DEPTH,
        ..Parts::default()
    };
    let mut rig = Rig::new(Arc::clone(&arena), parts, now)?;
    let mut host = rig.attach()?;
    mark(&host);
    let mut counted = Vec::new();
    for case in CASES {
        let is_counted = only.is_none_or(|only| only == case.name);
        // Uncounted writes make the data of reads.
        if is_counted || case.is_write {
            bytes_in_arena(&arena)?;
            let counts = run_case(&mut rig, &mut host, case, is_counted)?;
            let in_arena = bytes_in_arena(&arena)?;
            if case.host_path.is_none() && in_arena == 0 {
                return Err(CostError::Setup(format!(
                    "{}: no data is marked",
                    case.name
                )));
            }
            if is_counted {
                counted.push((case.name.to_owned(), with_arena_bytes(counts, in_arena)));
            }
        }
    }
    Ok(counted)
}

fn with_arena_bytes(mut counts: LoopCounts, bytes: u64) -> LoopCounts {
    counts.counted.push((ARENA_BYTES.to_owned(), bytes));
    counts
}

fn run_case(
    rig: &mut Rig,
    host: &mut Host,
    case: PathCase,
    is_counted: bool,
) -> Result<LoopCounts, CostError> {
    let places = BLOCKS / REQUEST_BLOCKS;
    let mut random = Random::new(1);
    let mut place = 0;
    let mut next = || {
        // Writes cover the namespace; reads are random.
        place = match case.is_write {
            true => (place + 1) % places,
            false => random.below(places),
        };
        let (lba, blocks) = (place * REQUEST_BLOCKS, REQUEST_BLOCKS as u16 - 1);
        match case.is_write {
            true => Sqe::write(case.nsid(), lba, blocks, false),
            false => Sqe::read(case.nsid(), lba, blocks),
        }
    };
    let mut ended = rig.drive(host, (WARM_UP_REQUESTS.max(places), BYTES), &mut next)?;
    ended += rig.settle(host)?;
    debug_assert!(ended >= places);
    let counters = Arc::clone(&rig.counters);
    let moved = || {
        [
            (
                "work requests",
                counters.reads.get() + counters.writes.get() + counters.sends.get(),
            ),
            ("doorbells", counters.doorbells.get()),
            ("bytes copied", counters.bytes_copied.get()),
            (
                "bytes of drive memory",
                counters.bytes_from_devices.get() + counters.bytes_into_devices.get(),
            ),
        ]
    };
    let before = moved();
    rig.allocations = 0;
    if is_counted {
        counting_begins();
    }
    let mut requests = rig.drive(host, (REQUESTS, BYTES), &mut next)?;
    requests += rig.settle(host)?;
    if is_counted {
        counting_ends();
    }
    let counted = moved().into_iter().zip(before);
    Ok(LoopCounts {
        requests,
        allocations: rig.allocations,
        counted: counted
            .map(|((name, after), (_, before))| (name.to_owned(), after - before))
            .collect(),
    })
}
