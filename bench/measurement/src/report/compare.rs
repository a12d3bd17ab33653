//! Comparison of the target with its two ceilings: rounds, medians, and the table.

use std::fmt;

use serde::{Deserialize, Serialize};

use bench::report::{HostCosts, Machine};

use super::MemoryReport;
use bench::table::Table;
use bench::units::{format_count, format_nanos, format_size, median};

/// The result of the bare pair in one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CeilingRound {
    /// Requests per second.
    pub requests_per_second: f64,
    /// Median latency; 0 at depths above 1.
    pub p50_ns: u64,
}

/// One round of a comparison at one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CompareRound {
    /// Requests in flight.
    pub depth: usize,
    /// The target's requests per second.
    pub target_requests_per_second: f64,
    /// The target's median latency; 0 at depths above 1.
    pub target_p50_ns: u64,
    /// The bare pair that sends random blocks of a memory as large as the target reads.
    pub same_memory: CeilingRound,
    /// The bare pair that sends one buffer from the cache.
    pub one_hot_buffer: CeilingRound,
}

/// Comparison of the target with one ceiling over the rounds at one depth. Each ratio is the median
/// of the ratios per round, so that changes of the machine's speed between rounds do not affect it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AgainstCeiling {
    /// The bare pair's requests per second, median.
    pub requests_per_second: f64,
    /// Target over bare pair, requests per second.
    pub requests_ratio: f64,
    /// The bare pair's requests per second in its best round.
    pub best_requests_per_second: f64,
    /// Ratio of the best rounds, which a busy machine affects least.
    pub best_requests_ratio: f64,
    /// The bare pair's median latency; 0 at depths above 1.
    pub p50_ns: u64,
    /// Target over bare pair, median latency; 0 at depths above 1.
    pub latency_ratio: f64,
}

impl AgainstCeiling {
    fn from_rounds(rounds: &[&CompareRound], ceiling: fn(&CompareRound) -> CeilingRound) -> Self {
        let best = best_of(rounds, |round| ceiling(round).requests_per_second);
        let best_target = best_of(rounds, |round| round.target_requests_per_second);
        Self {
            requests_per_second: median_of(rounds, |round| ceiling(round).requests_per_second),
            requests_ratio: median_of(rounds, |round| {
                ratio(
                    round.target_requests_per_second,
                    ceiling(round).requests_per_second,
                )
            }),
            best_requests_per_second: best,
            best_requests_ratio: ratio(best_target, best),
            p50_ns: median_of(rounds, |round| ceiling(round).p50_ns as f64) as u64,
            latency_ratio: median_of(rounds, |round| {
                ratio(round.target_p50_ns as f64, ceiling(round).p50_ns as f64)
            }),
        }
    }
}

/// Medians over the rounds at one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CompareRow {
    /// Requests in flight.
    pub depth: usize,
    /// The target's requests per second.
    pub target_requests_per_second: f64,
    /// The target's requests per second in its best round.
    pub best_target_requests_per_second: f64,
    /// The target's median latency; 0 at depths above 1.
    pub target_p50_ns: u64,
    /// Comparison with the bare pair that sends random blocks of a memory as large as the target
    /// reads.
    pub same_memory: AgainstCeiling,
    /// Comparison with the bare pair that sends one buffer from the cache.
    pub one_hot_buffer: AgainstCeiling,
}

impl CompareRow {
    /// Medians of the rounds at `depth`.
    #[must_use]
    pub fn from_rounds(depth: usize, rounds: &[CompareRound]) -> Self {
        let rounds: Vec<&CompareRound> =
            rounds.iter().filter(|round| round.depth == depth).collect();
        Self {
            depth,
            target_requests_per_second: median_of(&rounds, |round| {
                round.target_requests_per_second
            }),
            best_target_requests_per_second: best_of(&rounds, |round| {
                round.target_requests_per_second
            }),
            target_p50_ns: median_of(&rounds, |round| round.target_p50_ns as f64) as u64,
            same_memory: AgainstCeiling::from_rounds(&rounds, |round| round.same_memory),
            one_hot_buffer: AgainstCeiling::from_rounds(&rounds, |round| round.one_hot_buffer),
        }
    }
}

fn median_of(rounds: &[&CompareRound], value: impl Fn(&CompareRound) -> f64) -> f64 {
    let values: Vec<f64> = rounds.iter().map(|round| value(round)).collect();
    median(&values)
}

fn best_of(rounds: &[&CompareRound], value: impl Fn(&CompareRound) -> f64) -> f64 {
    rounds.iter().map(|round| value(round)).fold(0.0, f64::max)
}

/// `value / base`; 0 if the base is 0.
fn ratio(value: f64, base: f64) -> f64 {
    if base > 0.0 { value / base } else { 0.0 }
}

/// Comparison of the target with its ceilings in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// `tcp`.
    pub transport: String,
    /// Core of the target and of the bare pair's responding side.
    pub target_core: usize,
    /// Core of the host and of the bare pair's requesting side.
    pub host_core: usize,
    /// The memory of the bare pair's data, as large as the target's namespace.
    pub memory: MemoryReport,
    /// Congestion control of target, host and bare pair.
    pub congestion_control: String,
    /// Time from the start of the process to the first accepted connection; median over the starts.
    pub start_to_accept_ns: u64,
    /// Arena size of the target in bytes.
    pub arena_bytes: u64,
    /// The costs of the host at the greatest depth, over all rounds.
    pub host: HostCosts,
    /// Medians for each depth.
    pub rows: Vec<CompareRow>,
    /// Every round, in order.
    pub rounds: Vec<CompareRound>,
}

impl CompareReport {
    fn table(&self) -> Table {
        let mut table = Table::new(&[
            "",
            "windlass",
            "same memory",
            "ratio",
            "one hot buffer",
            "ratio",
        ]);
        for row in &self.rows {
            let (memory, buffer) = (&row.same_memory, &row.one_hot_buffer);
            table.row([
                format!("depth {}: requests/s", row.depth),
                format_count(row.target_requests_per_second as u64),
                format_count(memory.requests_per_second as u64),
                format!("{:.2}", memory.requests_ratio),
                format_count(buffer.requests_per_second as u64),
                format!("{:.2}", buffer.requests_ratio),
            ]);
            table.row([
                "  best round".to_owned(),
                format_count(row.best_target_requests_per_second as u64),
                format_count(memory.best_requests_per_second as u64),
                format!("{:.2}", memory.best_requests_ratio),
                format_count(buffer.best_requests_per_second as u64),
                format!("{:.2}", buffer.best_requests_ratio),
            ]);
            if row.target_p50_ns > 0 {
                table.row([
                    format!("depth {}: latency p50", row.depth),
                    format_nanos(row.target_p50_ns),
                    format_nanos(memory.p50_ns),
                    format!("{:.2}", memory.latency_ratio),
                    format_nanos(buffer.p50_ns),
                    format!("{:.2}", buffer.latency_ratio),
                ]);
            }
        }
        table
    }

    fn rounds_at_each_depth(&self) -> usize {
        let depth = self.rows.first().map(|row| row.depth);
        let same = |round: &&CompareRound| Some(round.depth) == depth;
        self.rounds.iter().filter(same).count()
    }
}

impl fmt::Display for CompareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "4 KiB random reads from RAM over {}, beside bare socket pairs",
            self.transport
        )?;
        writeln!(f, "  on {}", self.machine)?;
        writeln!(
            f,
            "  target on core {}, host on core {}\n",
            self.target_core, self.host_core
        )?;
        writeln!(f, "{}", self.table())?;
        writeln!(
            f,
            "  same memory: a bare pair sends, as the target must, a header and a random 4 KiB \
             block of\n    {} for each request",
            self.memory
        )?;
        writeln!(
            f,
            "  one hot buffer: a bare pair sends one buffer from the cache again and again; no \
             target that\n    reads its data from memory can, so this ratio has the memory's cost \
             in it as well"
        )?;
        writeln!(
            f,
            "  medians of {} alternating rounds; ratios are taken within a round",
            self.rounds_at_each_depth()
        )?;
        writeln!(
            f,
            "  congestion control: {} for target, host and pairs",
            self.congestion_control
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
