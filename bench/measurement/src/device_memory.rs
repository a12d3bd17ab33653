//! Copies between two namespaces of a drive through the arena, and through the drive's controller
//! memory buffer: bandwidth, and how much each slows down a neighbour that uses the memory bus.
//!
//! Each round measures the neighbour alone, copies of each path alone, and both at the same time, the
//! paths in an order that alternates. Figures are medians of the ratios within a round. At the end, all
//! that was copied is read and compared.

mod copies;
mod neighbour;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use block::{Device, Geometry};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use serde::{Deserialize, Serialize};
use vfio::{Container, PciAddress, System};

use crate::drive::{DriveError, OpenDrive};
use bench::pinning::pin_to_core;
use bench::report::Machine;
use bench::table::Table;
use bench::units::median;
use copies::{Copies, Path};
use neighbour::Neighbour;

/// Size of the memory that the drive can access, in bytes.
const ARENA_BYTES: usize = 32 << 20;

/// Size of a copied piece in bytes: the smallest request of hosts that uses memory of a drive.
const PIECE_BYTES: usize = nvme_target::DEVICE_TRANSFER_BYTES_MIN as usize;

/// Beginning of the model numbers of drives that QEMU emulates.
const EMULATED_MODEL: &str = "QEMU";

/// The reason why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum DeviceMemoryError {
    /// The drive cannot be used.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// It has no memory for data.
    #[error(
        "drive {0} has no controller memory buffer for data (CMBSZ.RDS and WDS) with room for {size} \
         KiB: `windlass doctor` explains it; take another drive",
        size = PIECE_BYTES >> 10
    )]
    NoMemory(PciAddress),
    /// Source and destination are one namespace.
    #[error("namespace {0} cannot be copied to itself: give two namespaces")]
    OneNamespace(u32),
    /// The namespaces do not fit each other.
    #[error(
        "the namespaces have blocks of {0} and {1} bytes, and {2} bytes in common: blocks of the same \
         size and at least {size} KiB are needed",
        size = PIECE_BYTES >> 10
    )]
    Shapes(u32, u32, u64),
    /// A depth that the drive or its memory does not allow.
    #[error("{0} copies in flight: 1 to {1} are possible with this drive and its memory")]
    Depth(usize, usize),
    /// A copy failed.
    #[error("a {0} failed: {1}")]
    Copy(&'static str, block::DeviceError),
    /// The destination has other data than the source.
    #[error("{0} of {1} copied pieces differ from their source: the drive is not to be trusted")]
    Differs(u64, u64),
    /// The copies cannot have their core.
    #[error(transparent)]
    Pin(#[from] bench::pinning::PinError),
    /// The neighbour cannot be started.
    #[error("the neighbour: {0}")]
    Neighbour(String),
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct DeviceMemoryPlan {
    /// The drive, which is bound to VFIO.
    pub address: PciAddress,
    /// The namespace that is read.
    pub source: u32,
    /// The namespace that is overwritten.
    pub destination: u32,
    /// Copies in flight.
    pub depth: usize,
    /// Number of rounds.
    pub rounds: usize,
    /// Duration of each measurement.
    pub duration: Duration,
    /// Size of the neighbour's memory in bytes: more than the caches have.
    pub neighbour_bytes: usize,
    /// The core of the copies.
    pub core: Option<usize>,
    /// The neighbour's core.
    pub neighbour_core: Option<usize>,
}

/// What was measured in one round, in bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceMemoryRound {
    /// What the neighbour copies alone.
    pub neighbour: f64,
    /// The results through the arena.
    pub host: PathRates,
    /// The results through memory of the drive.
    pub drive_memory: PathRates,
}

/// The results of one path, in bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PathRates {
    /// Copies alone.
    pub alone: f64,
    /// Copies beside the neighbour.
    pub beside: f64,
    /// The neighbour beside the copies.
    pub neighbour: f64,
}

/// The results of a drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceMemoryReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// PCI address.
    pub address: String,
    /// Model number.
    pub model: String,
    /// Whether the drive, and the bus between it and the memory, are emulated.
    pub emulated: bool,
    /// Copies in flight.
    pub depth: usize,
    /// Pieces that were compared at the end.
    pub compared: u64,
    /// The rounds.
    pub rounds: Vec<DeviceMemoryRound>,
}

impl DeviceMemoryReport {
    fn median_of(&self, value: impl Fn(&DeviceMemoryRound) -> f64) -> f64 {
        median(&self.rounds.iter().map(value).collect::<Vec<_>>())
    }

    /// Bandwidth of copies through memory of the drive, relative to those through the arena.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.median_of(|round| round.drive_memory.alone / round.host.alone)
    }

    /// The part of its rate that the neighbour loses beside copies of a path, in percent.
    #[must_use]
    pub fn slowdown(&self, path: impl Fn(&DeviceMemoryRound) -> PathRates) -> f64 {
        self.median_of(|round| (1.0 - path(round).neighbour / round.neighbour) * 100.0)
    }
}

impl fmt::Display for DeviceMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Copies of {} KiB within {} ({}), {} in flight; medians of {} rounds",
            PIECE_BYTES >> 10,
            self.address,
            self.model,
            self.depth,
            self.rounds.len()
        )?;
        if self.emulated {
            writeln!(
                f,
                "EMULATED: the processor moves all data, also within the drive. The figures show that \
                 both paths work, and nothing about hardware."
            )?;
        }
        let rate = |value: f64| format!("{:.1}", value / f64::from(1 << 20));
        let mut table = Table::new(&[
            "path",
            "MiB/s alone",
            "relative",
            "MiB/s beside",
            "neighbour MiB/s",
            "its slowdown",
        ]);
        let neighbour = rate(self.median_of(|round| round.neighbour));
        let none = String::new;
        let alone = "neighbour alone".to_owned();
        table.row([alone, none(), none(), none(), neighbour, none()]);
        let mut row = |name: &str, relative, path: fn(&DeviceMemoryRound) -> PathRates| {
            table.row([
                name.to_owned(),
                rate(self.median_of(|round| path(round).alone)),
                format!("{relative:.2}"),
                rate(self.median_of(|round| path(round).beside)),
                rate(self.median_of(|round| path(round).neighbour)),
                format!("{:.1} %", self.slowdown(path)),
            ]);
        };
        row("host", 1.0, |round| round.host);
        row("drive memory", self.bandwidth(), |round| round.drive_memory);
        write!(f, "\n{table}")?;
        writeln!(f, "\n  {} pieces compared: no difference", self.compared)
    }
}

/// Measures a drive.
///
/// # Errors
/// [`DeviceMemoryError`].
pub fn measure(plan: &DeviceMemoryPlan) -> Result<DeviceMemoryReport, DeviceMemoryError> {
    if plan.source == plan.destination {
        return Err(DeviceMemoryError::OneNamespace(plan.source));
    }
    let arena = Arena::new(ArenaConfig {
        bytes: ARENA_BYTES,
        pages: PagePolicy::Auto,
        max_transfer: 1 << 20,
    })
    .map_err(DriveError::from)?;
    let container = Container::open(&System::default(), plan.address).map_err(DriveError::from)?;
    let mut taken = OpenDrive::take(&container, plan.address, &arena)?;
    let measured = measure_drive(plan, &arena, &mut taken);
    let stopped = taken.stop();
    let report = measured?;
    stopped?;
    Ok(report)
}

fn measure_drive(
    plan: &DeviceMemoryPlan,
    arena: &Arc<Arena>,
    taken: &mut OpenDrive,
) -> Result<DeviceMemoryReport, DeviceMemoryError> {
    let device = |nsid| {
        let opened = taken.drive.device(nsid, "bench", [nsid as u8; 16]);
        opened.map_err(DriveError::from)
    };
    let (source, destination) = (device(plan.source)?, device(plan.destination)?);
    let shape = |geometry: Geometry| (geometry.block_size, geometry.block_count);
    let pieces = pieces(shape(source.geometry()), shape(destination.geometry()))?;
    let depth_max = depth_max(plan, &*source, taken.drive.queue_depth())?;
    if !(1..=depth_max).contains(&plan.depth) {
        return Err(DeviceMemoryError::Depth(plan.depth, depth_max));
    }
    let mut report = DeviceMemoryReport {
        machine: Machine::here(),
        address: plan.address.to_string(),
        model: taken.drive.model().trim().to_owned(),
        emulated: taken.drive.model().starts_with(EMULATED_MODEL),
        depth: plan.depth,
        compared: 0,
        rounds: Vec::new(),
    };
    let mut copies = Copies::new(arena, (&*source, &*destination), pieces, plan.depth)?;
    let neighbour = Neighbour::start(plan.neighbour_bytes, plan.neighbour_core)?;
    // A thread that is started later could use this core only.
    plan.core.map_or(Ok(()), pin_to_core)?;
    for round in 0..plan.rounds {
        report
            .rounds
            .push(measure_round(plan, round, &mut copies, &neighbour, taken)?);
    }
    drop(neighbour);
    report.compared = copies.compare(taken)?;
    Ok(report)
}

/// Pieces that both namespaces have: size of their blocks, and number of blocks.
fn pieces(source: (u32, u64), destination: (u32, u64)) -> Result<u64, DeviceMemoryError> {
    let bytes_of = |(block_bytes, blocks)| u64::from(block_bytes) * blocks;
    let bytes = bytes_of(source).min(bytes_of(destination));
    let pieces = bytes / PIECE_BYTES as u64;
    match source.0 == destination.0 && pieces > 0 {
        true => Ok(pieces),
        false => Err(DeviceMemoryError::Shapes(source.0, destination.0, bytes)),
    }
}

/// Copies that may be in flight: each needs a slice of the drive's memory, and a command.
fn depth_max(
    plan: &DeviceMemoryPlan,
    source: &dyn Device,
    queue_depth: usize,
) -> Result<usize, DeviceMemoryError> {
    let memory = source.device_memory();
    let memory = memory.filter(|it| it.slice_bytes() >= PIECE_BYTES);
    let memory = memory.ok_or(DeviceMemoryError::NoMemory(plan.address))?;
    Ok((memory.counters().slices as usize).min(queue_depth))
}

fn measure_round(
    plan: &DeviceMemoryPlan,
    round: usize,
    copies: &mut Copies,
    neighbour: &Neighbour,
    taken: &mut OpenDrive,
) -> Result<DeviceMemoryRound, DeviceMemoryError> {
    let mut rates = DeviceMemoryRound::default();
    neighbour.set_running(true);
    let since = neighbour.copied();
    std::thread::sleep(plan.duration);
    rates.neighbour = neighbour.rate_since(since);
    let mut order = [Path::Host, Path::DriveMemory];
    if round % 2 == 1 {
        order.reverse();
    }
    for path in order {
        neighbour.set_running(false);
        let alone = copies.run(path, plan.duration, taken)?;
        neighbour.set_running(true);
        let since = neighbour.copied();
        let beside = copies.run(path, plan.duration, taken)?;
        let of_path = match path {
            Path::Host => &mut rates.host,
            Path::DriveMemory => &mut rates.drive_memory,
        };
        *of_path = PathRates {
            alone,
            beside,
            neighbour: neighbour.rate_since(since),
        };
    }
    neighbour.set_running(false);
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_that_do_not_fit_are_refused() {
        let large = (512, 1024);
        assert_eq!(pieces(large, large).expect("they fit"), 4);
        assert_eq!(pieces(large, (512, 600)).expect("they fit"), 2);
        for (source, destination) in [
            (large, (4096, 1024)),
            (large, (512, 255)),
            ((512, 0), large),
        ] {
            let refused = pieces(source, destination)
                .expect_err("refused")
                .to_string();
            assert!(refused.contains("at least 128 KiB"), "{refused}");
        }
    }

    #[test]
    fn figures_are_medians_of_ratios() {
        let round = |neighbour, host, drive_memory| DeviceMemoryRound {
            neighbour,
            host: PathRates {
                alone: host,
                beside: host,
                neighbour: neighbour / 2.0,
            },
            drive_memory: PathRates {
                alone: drive_memory,
                beside: drive_memory,
                neighbour: neighbour * 0.9,
            },
        };
        let report = DeviceMemoryReport {
            machine: Machine::here(),
            address: "0000:01:00.0".to_owned(),
            model: "QEMU NVMe Ctrl".to_owned(),
            emulated: true,
            depth: 8,
            compared: 4,
            rounds: vec![
                round(1e9, 1e8, 2e8),
                round(1e9, 1e8, 1e8),
                round(2e9, 2e8, 3e8),
            ],
        };
        assert!((report.bandwidth() - 1.5).abs() < 1e-9);
        assert!((report.slowdown(|it| it.host) - 50.0).abs() < 1e-9);
        assert!((report.slowdown(|it| it.drive_memory) - 10.0).abs() < 1e-9);
        let table = report.to_string();
        for part in ["EMULATED", "1.50", "50.0 %", "10.0 %", "4 pieces compared"] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }
}
