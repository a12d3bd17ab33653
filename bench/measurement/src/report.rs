//! Reports of ceilings and comparisons, as JSON and as tables.

use std::fmt;

use bench::report::{Latency, Machine};
use bench::table::Table;
use bench::units::{format_count, format_nanos, format_size};
use serde::{Deserialize, Serialize};

use crate::ceiling::DataMemory;

mod compare;
pub mod suite;

pub use compare::{AgainstCeiling, CeilingRound, CompareReport, CompareRound, CompareRow};

/// Location of the data of a bare pair's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedLocation {
    /// Random blocks of memory.
    Memory,
    /// One buffer that stays in the cache.
    OneHotBuffer,
}

impl ReportedLocation {
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
    pub fn new(memory: &DataMemory) -> Self {
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
    pub answers: ReportedLocation,
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
            "data from"
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
                "  memory: each response is a header and a random {size} block of\n    \
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
                "all responses send the same buffer from the cache"
            }
        )?;
        writeln!(
            f,
            "  the pair's congestion control: {}",
            self.congestion_control
        )
    }
}

#[cfg(test)]
mod tests;
