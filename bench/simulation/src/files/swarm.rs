//! The choices of a seed: the device, the sizes, the clients, the network and the faults.

use reactors::Nanos;

use super::client::Repetitions;
use super::quotas::Quota;
use crate::disk::DiskBehaviour;
use crate::network::NetworkBehaviour;
use crate::random::Random;

/// Bounds of the number of events.
const EVENTS: (u64, u64) = (150, 700);
/// Size of a device that is never full in bytes.
const ROOMY_BYTES: u64 = 24 << 20;
/// Size of a device that is full soon, in bytes: without log and checkpoints, 1 MiB is left.
const TIGHT_BYTES: u64 = 3 << 20;

/// What is below the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A disk with a volatile cache, and a durable volume.
    Durable,
    /// A disk, and a volatile volume.
    Volatile,
    /// The production RAM device, and a volatile volume.
    Ram,
}

/// How often faults occur, per thousand events; 0 if they are off.
#[derive(Clone, Copy, Debug)]
pub struct FileFaults {
    /// A connection breaks.
    pub cut: u32,
    /// A connection stands still for up to a second.
    pub stall: u32,
    /// The device does nothing for up to a second.
    pub hold: u32,
    /// The server is killed and started again.
    pub kill: u32,
    /// Of these, those with a loss of power.
    pub power: u32,
    /// A client starts again and has forgotten everything.
    pub restart: u32,
    /// A client has no connection for a while.
    pub leave: u32,
    /// Requests to the device fail for a while.
    pub failure: u32,
    /// A client is silent for about as long as its lease.
    pub silence: u32,
    /// The device of a durable volume disappears for a while.
    pub absence: u32,
    /// The share of the clients becomes read-only, or can be changed again.
    pub share: u32,
}

/// The choices of a seed.
#[derive(Clone, Debug)]
pub struct FileSwarm {
    /// What is below the volume.
    pub backing: Backing,
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// Limit of the memory for metadata in bytes.
    pub memory_bytes: u64,
    /// Size of the arena in bytes.
    pub arena_bytes: usize,
    /// Whether operations may find no space.
    pub is_tight: bool,
    /// The behaviour of the device.
    pub device: DiskBehaviour,
    /// The behaviour of the network.
    pub network: NetworkBehaviour,
    /// How often clients repeat requests.
    pub repetitions: Repetitions,
    /// Number of clients.
    pub clients: usize,
    /// Number of events.
    pub events: u64,
    /// The longest time between two events.
    pub pace_max: Nanos,
    /// The faults.
    pub faults: FileFaults,
    /// The longest write in bytes.
    pub write_bytes_max: u64,
    /// The largest usual size of a file in bytes.
    pub file_bytes_max: u64,
    /// How often an OPEN denies something to others, per thousand.
    pub denial_permille: u32,
    /// Connections over RDMA, if there are any.
    pub rdma: Option<RdmaSwarm>,
    /// The quotas of the share, if it is one of two parts of the volume.
    pub quota: Option<Quota>,
}

/// The choices of a seed with connections over RDMA.
#[derive(Clone, Copy, Debug)]
pub struct RdmaSwarm {
    /// How many connections of clients are over RDMA, per thousand.
    pub permille: u32,
    /// Duration of a tick of the fabric.
    pub tick: Nanos,
    /// Ticks between two tries of a request.
    pub retry_ticks: u64,
    /// Reads that a connection executes at the same time.
    pub reads: u8,
    /// How often a work request is late, fails or is stuck, per thousand events.
    pub disturbed: u32,
    /// How often a message violates the protocol or an agreement, per thousand.
    pub hostile: u32,
}

impl RdmaSwarm {
    /// The choices of a seed, drawn apart, so that seeds without RDMA are as they were.
    fn of(seed: u64) -> Option<Self> {
        let mut random = Random::new(seed, 0xF7);
        let permille = random.pick(&[0, 0, 400, 800, 1000]);
        let chosen = Self {
            permille,
            tick: Nanos::from_micros(random.pick(&[1, 5, 20])),
            retry_ticks: random.pick(&[1, 50, 500]),
            reads: random.pick(&[1, 2, 4, 16]),
            disturbed: random.pick(&[0, 5, 30]),
            hostile: random.pick(&[0, 0, 5, 20]),
        };
        (permille > 0).then_some(chosen)
    }
}

impl FileSwarm {
    /// The choices of a seed, cut down to this number of events and clients.
    #[must_use]
    pub fn of(seed: u64, events_max: Option<u64>, clients_max: Option<usize>) -> Self {
        let mut random = Random::new(seed, 0xF1);
        let backing = random.pick(&[
            Backing::Durable,
            Backing::Durable,
            Backing::Durable,
            Backing::Volatile,
            Backing::Ram,
        ]);
        let is_tight = random.permille(200);
        let mut sometimes = |often: u32| match random.coin() {
            true => random.between(1, u64::from(often)) as u32,
            false => 0,
        };
        let faults = FileFaults {
            cut: sometimes(60),
            stall: sometimes(20),
            hold: sometimes(20),
            kill: sometimes(14),
            power: 700,
            restart: sometimes(8),
            leave: sometimes(10),
            // Drawn apart, so that seeds without failures are as they were before there were some.
            failure: match Random::new(seed, 0xF4).below(3) {
                0 => 8,
                _ => 0,
            },
            silence: Random::new(seed, 0xF6).pick(&[0, 0, 3, 8]),
            absence: match backing {
                Backing::Durable => Random::new(seed, 0xFB).pick(&[0, 0, 4, 12]),
                Backing::Volatile | Backing::Ram => 0,
            },
            share: Random::new(seed, 0xFC).pick(&[0, 0, 0, 20]),
        };
        let repetitions = Repetitions {
            twice_permille: sometimes(300),
            late_permille: sometimes(300),
        };
        let latency_max = random.pick(&[10, 80, 400]);
        let device = DiskBehaviour {
            latency_min: Nanos::from_micros(random.pick(&[0, 5])),
            latency_max: Nanos::from_micros(latency_max),
            slow_permille: random.pick(&[0, 0, 20]),
            slow_max: Nanos::from_millis(20),
            error_permille: 0,
            flush_error_permille: 0,
            later_permille: random.pick(&[0, 0, 100]),
            linger_permille: 0,
            linger_max: Nanos::ZERO,
            write_back_permille: random.pick(&[0, 100, 500]),
            forgotten_before: 0,
        };
        let network = NetworkBehaviour {
            latency_min: Nanos::from_micros(1),
            latency_max: Nanos::from_micros(random.pick(&[2, 20, 200])),
            grain: random.pick(&[1000, 4096, 1 << 20, 1 << 20]),
            window: random.pick(&[30_000, 1 << 20, 1 << 20]),
        };
        let device_bytes = if is_tight { TIGHT_BYTES } else { ROOMY_BYTES };
        let clients = random.between(1, 4) as usize;
        let events = random.between(EVENTS.0, EVENTS.1);
        Self {
            backing,
            device_bytes: device_bytes + (256 << 10),
            memory_bytes: 256 << 10,
            arena_bytes: random.pick(&[2 << 20, 4 << 20, 8 << 20]),
            is_tight,
            device,
            network,
            repetitions,
            clients: clients.min(clients_max.unwrap_or(usize::MAX)).max(1),
            events: events.min(events_max.unwrap_or(u64::MAX)),
            pace_max: Nanos::from_micros(random.pick(&[5, 50, 300, 2000])),
            faults,
            write_bytes_max: random.pick(&[600, 9000, 70_000]),
            file_bytes_max: random.pick(&[9000, 40_000, 200_000]),
            denial_permille: random.pick(&[0, 150, 400, 400]),
            rdma: RdmaSwarm::of(seed),
            quota: quota_of(seed),
        }
    }
}

/// Drawn apart, so that seeds without quotas are as they were.
fn quota_of(seed: u64) -> Option<Quota> {
    let mut random = Random::new(seed, 0xFA);
    let quota = Quota {
        files_max: random.pick(&[6, 12, 20, 40]),
        blocks_max: random.pick(&[20, 100, 400, 2000]),
    };
    random.permille(400).then_some(quota)
}
