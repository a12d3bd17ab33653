//! Results of measurements, as JSON and as tables.
//!
//! In JSON, times are in nanoseconds and sizes in bytes, with the unit at the end of the field's
//! name.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::ceiling::AnswerMemory;
use crate::table::Table;
use crate::units::{format_count, format_nanos, format_size};

mod compare;
mod run;
pub mod suite;

pub use compare::{AgainstCeiling, CeilingRound, CompareReport, CompareRound, CompareRow};
pub use run::{HostCosts, OperationReport, PhaseReport, RunReport, RunReports};

/// Latencies of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of measured requests.
    pub count: u64,
    /// Minimum.
    pub min_ns: u64,
    /// The arithmetic mean.
    pub mean_ns: f64,
    /// 50 % were at most this.
    pub p50_ns: u64,
    /// 90 % were at most this; 0 in older reports without this field.
    #[serde(default)]
    pub p90_ns: u64,
    /// 99 % were at most this.
    pub p99_ns: u64,
    /// 99.9 % were at most this.
    pub p999_ns: u64,
    /// 99.99 % were at most this; 0 in older reports without this field.
    #[serde(default)]
    pub p9999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

impl Latency {
    /// Reads the percentiles from a histogram of nanoseconds; all are 0 for an empty one.
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
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            p9999_ns: histogram.value_at_quantile(0.9999),
            max_ns: histogram.max(),
        }
    }
}

/// The machine of a measurement. Results of different machines are not comparable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor name from the kernel.
    pub processor: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// The system's TCP congestion control: algorithms with pacing affect results even on loopback.
    /// (A ceiling's socket pair has its own.)
    pub congestion_control: String,
    /// Whether this build is optimised; results of other builds are meaningless.
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

/// Location of the data of a bare pair's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerSource {
    /// Random blocks of memory.
    Memory,
    /// One buffer that stays in the cache.
    OneHotBuffer,
}

impl AnswerSource {
    /// Its name in a table.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::OneHotBuffer => "one hot buffer",
        }
    }
}

/// The memory with the random blocks that a bare pair sends or receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Its size.
    pub size_bytes: u64,
    /// The size of its pages: huge ones if available.
    pub page_bytes: u64,
}

impl MemoryReport {
    /// Describes `memory`.
    #[must_use]
    pub fn new(memory: &AnswerMemory) -> Self {
        Self {
            size_bytes: memory.bytes(),
            page_bytes: memory.page_bytes(),
        }
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, page) = (format_size(self.size_bytes), format_size(self.page_bytes));
        write!(f, "{size} of RAM in pages of {page}")
    }
}

/// One row of a ceiling: the result of a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingRow {
    /// Location of the data.
    pub answers: AnswerSource,
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
    /// The machine of the measurement.
    pub machine: Machine,
    /// `tcp`.
    pub transport: String,
    /// Whether the data is sent to the responding side.
    pub write: bool,
    /// Size of the data of a request in bytes.
    pub data_bytes: usize,
    /// Bytes of a request on the wire to the responding side.
    pub request_bytes: usize,
    /// Bytes of a request on the wire from the responding side.
    pub response_bytes: usize,
    /// The memory of the rows with memory; `None` if there are none.
    pub memory: Option<MemoryReport>,
    /// The pair's congestion control.
    pub congestion_control: String,
    /// One row for each window and location.
    pub rows: Vec<CeilingRow>,
}

impl CeilingReport {
    fn table(&self) -> Table {
        let place = if self.write {
            "data goes to"
        } else {
            "answers from"
        };
        let mut heading = vec![place, "in flight", "requests/s", "MiB/s"];
        if self.rows.iter().any(|row| row.latency.is_some()) {
            heading.extend(["p50", "p99", "p99.9"]);
        }
        let mut table = Table::new(&heading);
        for row in &self.rows {
            let mut cells = vec![
                row.answers.label().to_owned(),
                row.window.to_string(),
                format_count(row.requests_per_second as u64),
                format!("{:.0}", row.mib_per_second),
            ];
            if let Some(latency) = &row.latency {
                cells.extend([latency.p50_ns, latency.p99_ns, latency.p999_ns].map(format_nanos));
            }
            table.row(cells);
        }
        table
    }
}

impl fmt::Display for CeilingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = format_size(self.data_bytes as u64);
        writeln!(
            f,
            "Ceiling of {}: a bare socket pair, {} of {size}\n  each {} bytes in and {} bytes out",
            self.transport,
            if self.write { "writes" } else { "reads" },
            format_count(self.request_bytes as u64),
            format_count(self.response_bytes as u64)
        )?;
        writeln!(f, "  on {}\n", self.machine)?;
        writeln!(f, "{}", self.table())?;
        match &self.memory {
            Some(memory) if self.write => writeln!(
                f,
                "  memory: the data of each request goes to a random {size} block of\n    \
                 {memory}, as in a target that keeps it"
            )?,
            Some(memory) => writeln!(
                f,
                "  memory: each answer is a header and a random {size} block of\n    \
                 {memory}, as in a target that reads its data"
            )?,
            None => {}
        }
        writeln!(
            f,
            "  one hot buffer: {}",
            if self.write {
                "all data goes to one buffer, which stays in the cache"
            } else {
                "the answers are one buffer, sent from the cache again and again"
            }
        )?;
        writeln!(
            f,
            "  the pair's congestion control: {}",
            self.congestion_control
        )
    }
}

/// The reason why a report could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The report cannot be encoded as JSON, which is a defect.
    #[error("cannot express the report as JSON: {0}")]
    Encode(#[from] serde_json::Error),
}

/// Writes `report` to `path` as indented JSON.
///
/// # Errors
/// [`SaveError`] if the file cannot be written.
pub fn save_json(report: &impl Serialize, path: &Path) -> Result<(), SaveError> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    save_text(&text, path)
}

/// Writes `text` to `path`.
///
/// # Errors
/// [`SaveError::Write`].
pub fn save_text(text: &str, path: &Path) -> Result<(), SaveError> {
    std::fs::write(path, text).map_err(|source| SaveError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests;
