//! One load at several strengths: over queue depth, or over the requested rate.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::report::{Latency, RunReport};
use crate::table::Table;
use crate::units::{format_count, format_nanos};

/// The parameter that changes from point to point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Requests in flight on each queue.
    Depth,
    /// Requested rate, up to the rate of the target without a limit.
    Load,
}

/// The result at one strength.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// Maximum number of requests in flight on each queue.
    pub depth: u16,
    /// In a sweep over load: the requested rate as a percentage of the unlimited rate.
    #[serde(default)]
    pub load_percent: Option<u32>,
    /// Requested rate in requests per second, if limited.
    pub rate: Option<f64>,
    /// Completed requests per second.
    pub iops: f64,
    /// Data throughput in MiB/s.
    pub mib_per_second: f64,
    /// Requests that were due and could not be sent.
    pub unsent: u64,
    /// Latency of reads, if any. With a limited rate, it counts from when a request was due.
    pub reads: Option<Latency>,
    /// Latency of writes, if any.
    pub writes: Option<Latency>,
}

/// A load at several strengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepReport {
    /// The parameter that changes from point to point.
    pub over: Over,
    /// The load at its first point. All of it except the phases and the changed parameter applies
    /// to every point.
    pub load: RunReport,
    /// The points, weakest first.
    pub points: Vec<SweepPoint>,
}

impl SweepPoint {
    /// The result of a run's main phase; `None` if the run has none.
    #[must_use]
    pub fn of(report: &RunReport) -> Option<Self> {
        let main = report.phases.iter().find(|phase| phase.name == "main")?;
        let kinds = || [&main.reads, &main.writes].into_iter().flatten();
        Some(Self {
            depth: report.depth,
            load_percent: None,
            rate: report.rate,
            iops: kinds().map(|kind| kind.iops).sum(),
            mib_per_second: kinds().map(|kind| kind.mib_per_second).sum(),
            unsent: main.unsent,
            reads: main.reads.map(|kind| kind.latency),
            writes: main.writes.map(|kind| kind.latency),
        })
    }
}

impl SweepReport {
    /// The highest number of requests per second of any point.
    #[must_use]
    pub fn most_iops(&self) -> f64 {
        self.points.iter().map(|it| it.iops).fold(0.0, f64::max)
    }
}

impl fmt::Display for SweepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = &self.load;
        let plural = if load.queues == 1 { "" } else { "s" };
        writeln!(
            f,
            "{} {}/{} % reads and writes on {} over {}, {} queue{plural}",
            load.pattern,
            load.read_percent,
            100 - load.read_percent.min(100),
            load.address,
            load.transport,
            load.queues,
        )?;
        writeln!(f, "{}\n", load.machine)?;
        let strength = match self.over {
            Over::Depth => "depth",
            Over::Load => "asked for",
        };
        let mut table = Table::new(&[
            strength, "IOPS", "MiB/s", "", "p50", "p90", "p99", "p99.9", "p99.99", "unsent",
        ]);
        for point in &self.points {
            let kinds = [("read", &point.reads), ("write", &point.writes)];
            for (kind, latency) in kinds {
                let Some(latency) = latency else { continue };
                let mut cells = vec![
                    match (self.over, point.rate) {
                        (Over::Load, Some(rate)) => format_count(rate as u64),
                        _ => point.depth.to_string(),
                    },
                    format_count(point.iops as u64),
                    format!("{:.0}", point.mib_per_second),
                    kind.to_owned(),
                ];
                let times = [
                    latency.p50_ns,
                    latency.p90_ns,
                    latency.p99_ns,
                    latency.p999_ns,
                    latency.p9999_ns,
                ];
                cells.extend(times.map(format_nanos));
                cells.push(format_count(point.unsent));
                table.row(cells);
            }
        }
        write!(f, "{table}")
    }
}
