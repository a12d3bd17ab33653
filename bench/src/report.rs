//! What a measurement found, as JSON for machines and as a table for people.
//!
//! Times are nanoseconds and sizes bytes in JSON, with the unit last in the field's name.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::table::Table;
use crate::units::{format_count, format_nanos, format_size};

mod run;

pub use run::{HostCosts, OperationReport, PhaseReport, RunReport, RunReports};

/// Latencies of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests that were timed.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The arithmetic mean.
    pub mean_ns: f64,
    /// Half were at most this.
    pub p50_ns: u64,
    /// 99 % were at most this.
    pub p99_ns: u64,
    /// 99.9 % were at most this.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    /// Reads the percentiles out of a histogram of nanoseconds; all 0 for an empty one.
    #[must_use]
    pub fn from_histogram(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            count: histogram.len(),
            min_ns: histogram.min(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// The machine that a figure was taken on; figures of different machines do not compare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor name, as the kernel gives it.
    pub processor: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// The system's TCP congestion control: some pace their sending even on loopback, which shows
    /// in the figures. (A ceiling's socket pair has its own.)
    pub congestion_control: String,
    /// Whether this build is optimised; figures of other builds say nothing.
    pub optimised: bool,
}

impl Machine {
    /// The machine that this process runs on.
    #[must_use]
    pub fn here() -> Self {
        let processor = std::fs::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| {
                let line = text.lines().find(|line| line.starts_with("model name"))?;
                Some(line.split_once(':')?.1.trim().to_owned())
            })
            .unwrap_or_else(|| "unknown".to_owned());
        Self {
            processor,
            cores: crate::pinning::available_cores().len(),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            congestion_control: congestion_control(),
            optimised: !cfg!(debug_assertions),
        }
    }
}

fn congestion_control() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores, ", self.processor, self.cores)?;
        write!(f, "Linux {}, TCP {}", self.kernel, self.congestion_control)?;
        if self.optimised {
            Ok(())
        } else {
            write!(f, " (not an optimised build: the figures say nothing)")
        }
    }
}

/// One row of a ceiling: a window and what it came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingRow {
    /// Requests in flight.
    pub window: usize,
    /// Requests per second.
    pub requests_per_second: f64,
    /// Data (without headers) per second, MiB.
    pub mib_per_second: f64,
    /// Latency, for a window of 1.
    pub latency: Option<Latency>,
}

/// The ceiling of one transport.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingReport {
    /// Where it was taken.
    pub machine: Machine,
    /// `tcp`.
    pub transport: String,
    /// Bytes of a request on the wire.
    pub request_bytes: usize,
    /// Bytes of an answer on the wire.
    pub response_bytes: usize,
    /// One row for each window.
    pub rows: Vec<CeilingRow>,
}

impl fmt::Display for CeilingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Ceiling of {}: a bare socket pair, {} bytes in, {} bytes out",
            self.transport, self.request_bytes, self.response_bytes
        )?;
        writeln!(f, "  on {}\n", self.machine)?;
        let mut table = Table::new(&["window", "requests/s", "MiB/s", "p50", "p99", "p99.9"]);
        for row in &self.rows {
            let mut cells = vec![
                row.window.to_string(),
                format_count(row.requests_per_second as u64),
                format!("{:.0}", row.mib_per_second),
            ];
            if let Some(latency) = &row.latency {
                cells.extend([latency.p50_ns, latency.p99_ns, latency.p999_ns].map(format_nanos));
            }
            table.row(cells);
        }
        write!(f, "{table}")
    }
}

/// One round of a comparison at one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CompareRound {
    /// Requests in flight.
    pub depth: usize,
    /// The bare pair's requests per second.
    pub ceiling_requests_per_second: f64,
    /// The target's requests per second.
    pub target_requests_per_second: f64,
    /// The bare pair's median latency; 0 at depths above 1.
    pub ceiling_p50_ns: u64,
    /// The target's median latency; 0 at depths above 1.
    pub target_p50_ns: u64,
}

/// Medians over the rounds at one depth. Each ratio is the median of the rounds' own ratios, so
/// that a machine that slows down between rounds does not show in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CompareRow {
    /// Requests in flight.
    pub depth: usize,
    /// The bare pair's requests per second.
    pub ceiling_requests_per_second: f64,
    /// The target's requests per second.
    pub target_requests_per_second: f64,
    /// Target over ceiling, requests per second.
    pub requests_ratio: f64,
    /// The bare pair's requests per second in its best round.
    pub best_ceiling_requests_per_second: f64,
    /// The target's requests per second in its best round.
    pub best_target_requests_per_second: f64,
    /// Best over best: what a busy machine disturbs least.
    pub best_requests_ratio: f64,
    /// The bare pair's median latency; 0 at depths above 1.
    pub ceiling_p50_ns: u64,
    /// The target's median latency; 0 at depths above 1.
    pub target_p50_ns: u64,
    /// Target over ceiling, median latency; 0 at depths above 1.
    pub latency_ratio: f64,
}

impl CompareRow {
    /// Medians of the rounds at `depth`.
    #[must_use]
    pub fn from_rounds(depth: usize, rounds: &[CompareRound]) -> Self {
        let median_of = |value: fn(&CompareRound) -> f64| {
            let values: Vec<f64> = rounds
                .iter()
                .filter(|round| round.depth == depth)
                .map(value)
                .collect();
            crate::units::median(&values)
        };
        let best_of = |value: fn(&CompareRound) -> f64| {
            let values = rounds
                .iter()
                .filter(|round| round.depth == depth)
                .map(value);
            values.fold(0.0, f64::max)
        };
        let best_ceiling = best_of(|round| round.ceiling_requests_per_second);
        let best_target = best_of(|round| round.target_requests_per_second);
        Self {
            depth,
            best_ceiling_requests_per_second: best_ceiling,
            best_target_requests_per_second: best_target,
            best_requests_ratio: ratio(best_target, best_ceiling),
            ceiling_requests_per_second: median_of(|round| round.ceiling_requests_per_second),
            target_requests_per_second: median_of(|round| round.target_requests_per_second),
            requests_ratio: median_of(|round| {
                ratio(
                    round.target_requests_per_second,
                    round.ceiling_requests_per_second,
                )
            }),
            ceiling_p50_ns: median_of(|round| round.ceiling_p50_ns as f64) as u64,
            target_p50_ns: median_of(|round| round.target_p50_ns as f64) as u64,
            latency_ratio: median_of(|round| {
                ratio(round.target_p50_ns as f64, round.ceiling_p50_ns as f64)
            }),
        }
    }
}

/// `value / base`; 0 where there is no base.
fn ratio(value: f64, base: f64) -> f64 {
    if base > 0.0 { value / base } else { 0.0 }
}

/// The target beside its ceiling, in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareReport {
    /// Where it was taken.
    pub machine: Machine,
    /// `tcp`.
    pub transport: String,
    /// Core of the target and of the bare pair's answering side.
    pub target_core: usize,
    /// Core of the host and of the bare pair's asking side.
    pub host_core: usize,
    /// From starting the process to the first accepted connection; median over the starts.
    pub start_to_accept_ns: u64,
    /// The arena that the target took at start, bytes.
    pub arena_bytes: u64,
    /// What the host did at the greatest depth, over all rounds.
    pub host: HostCosts,
    /// Medians for each depth.
    pub rows: Vec<CompareRow>,
    /// Every round, in the order taken.
    pub rounds: Vec<CompareRound>,
}

impl fmt::Display for CompareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "4 KiB random reads from RAM over {}, beside a bare socket pair",
            self.transport
        )?;
        writeln!(f, "  on {}", self.machine)?;
        writeln!(
            f,
            "  target on core {}, host on core {}\n",
            self.target_core, self.host_core
        )?;
        let mut table = Table::new(&["", "ceiling", "windlass", "ratio"]);
        for row in &self.rows {
            table.row([
                format!("depth {}: requests/s", row.depth),
                format_count(row.ceiling_requests_per_second as u64),
                format_count(row.target_requests_per_second as u64),
                format!("{:.2}", row.requests_ratio),
            ]);
            table.row([
                "  best round".to_owned(),
                format_count(row.best_ceiling_requests_per_second as u64),
                format_count(row.best_target_requests_per_second as u64),
                format!("{:.2}", row.best_requests_ratio),
            ]);
            if row.ceiling_p50_ns > 0 {
                table.row([
                    format!("depth {}: latency p50", row.depth),
                    format_nanos(row.ceiling_p50_ns),
                    format_nanos(row.target_p50_ns),
                    format!("{:.2}", row.latency_ratio),
                ]);
            }
        }
        write!(f, "{table}")?;
        let rounds = self.rows.first().map_or(0, |row| {
            self.rounds
                .iter()
                .filter(|round| round.depth == row.depth)
                .count()
        });
        writeln!(
            f,
            "\n  medians of {rounds} alternating rounds; ratios are taken within a round"
        )?;
        writeln!(
            f,
            "  start to first accepted connection, {} arena: {}",
            format_size(self.arena_bytes),
            format_nanos(self.start_to_accept_ns)
        )?;
        writeln!(
            f,
            "  host at depth {}: {:.2} system calls a request, {:.1} % of data copied once more",
            self.rows.first().map_or(0, |row| row.depth),
            self.host.calls_per_command(),
            self.host.copied_percent()
        )
    }
}

/// Why a report could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The report has no JSON form; a fault of ours.
    #[error("cannot express the report as JSON: {0}")]
    Encode(#[from] serde_json::Error),
}

/// Writes `report` to `path` as indented JSON.
///
/// # Errors
/// [`SaveError`] where the file cannot be written.
pub fn save_json(report: &impl Serialize, path: &Path) -> Result<(), SaveError> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    std::fs::write(path, text).map_err(|source| SaveError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests;
