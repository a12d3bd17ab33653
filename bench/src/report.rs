//! Results of measurements, as JSON and as tables.
//!
//! In JSON, times are in nanoseconds and sizes in bytes, with the unit at the end of the field's
//! name.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

mod run;

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

/// An empty latency histogram in nanoseconds with three significant digits.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    // The constructor accepts these constants; a test constructs one.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

/// A duration in nanoseconds, as the histogram expects it.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
