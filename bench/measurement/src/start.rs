//! Measures the time from exec of the appliance to its first connection.
//!
//! Two measurements alternate: the appliance, started as a child process with an arena of 2 MiB
//! pages and the requested number of exports, until a reactor has completed the initialization of a
//! connection; and this process, which only maps and touches the same amount of memory, which no
//! appliance with such an arena can avoid.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hugemem::{PagePolicy, Region, RegionError};
use serde::{Deserialize, Serialize};

use crate::appliance_process::{ApplianceProcess, ProcessError};
use bench::report::Machine;
use bench::report::nanos;
use bench::table::Table;
use bench::units::{format_nanos, format_size, median};

/// The goal for the time to the first connection in nanoseconds.
pub const FIRST_CONNECTION_GOAL_NS: u64 = 50_000_000;

/// Size of each export's RAM namespace in bytes.
const NAMESPACE_BYTES: u64 = 2 << 20;

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The appliance's binary.
    pub windlass: PathBuf,
    /// Arena size in bytes.
    pub memory_bytes: u64,
    /// Number of exports, each with its own RAM namespace.
    pub exports: usize,
    /// Number of counted rounds.
    pub rounds: usize,
    /// Number of rounds before those.
    pub warm_ups: usize,
}

/// The reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An error of the appliance.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The memory of the bare measurement, which the appliance needs too, is not available.
    #[error("cannot map the arena: {0}")]
    Memory(#[from] RegionError),
}

/// The times of one round in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRound {
    /// Time from exec to an initialized connection.
    pub first_connection_ns: u64,
    /// Time from exec to the appliance's ready message.
    pub ready_ns: u64,
    /// Time to map and touch an arena of that size.
    pub memory_alone_ns: u64,
}

/// The results of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartReport {
    /// The machine.
    pub machine: Machine,
    /// Arena size in bytes.
    pub memory_bytes: u64,
    /// Exports.
    pub exports: usize,
    /// Every round.
    pub rounds: Vec<StartRound>,
}

impl StartReport {
    fn median_of(&self, value: impl Fn(&StartRound) -> u64) -> u64 {
        let values: Vec<f64> = self.rounds.iter().map(|it| value(it) as f64).collect();
        median(&values) as u64
    }

    /// Whether the median time to the first connection is below [`FIRST_CONNECTION_GOAL_NS`].
    #[must_use]
    pub fn meets_goal(&self) -> bool {
        self.median_of(|round| round.first_connection_ns) < FIRST_CONNECTION_GOAL_NS
    }
}

impl fmt::Display for StartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "start with {} of memory in 2 MiB pages and {} exports, {} rounds in turn\n  on {}\n",
            format_size(self.memory_bytes),
            self.exports,
            self.rounds.len(),
            self.machine,
        )?;
        let mut table = Table::new(&["", "median", "fastest", "slowest"]);
        let mut row = |name: &str, value: fn(&StartRound) -> u64| {
            let all = self.rounds.iter().map(value);
            let (fastest, slowest) = (all.clone().min(), all.max());
            let times = [Some(self.median_of(value)), fastest, slowest];
            let cells = times.map(|time| format_nanos(time.unwrap_or_default()));
            table.row([name.to_owned()].into_iter().chain(cells));
        };
        row("exec to first connection", |it| it.first_connection_ns);
        row("exec to ready", |it| it.ready_ns);
        row("mapping and touching the arena alone", |it| {
            it.memory_alone_ns
        });
        write!(f, "{table}")
    }
}

/// The configuration of an appliance with this number of exports on one listener.
fn configuration(options: &StartOptions, directory: &Path, address: SocketAddr) -> String {
    let mut text = format!(
        "[appliance]\n\
         name = \"start\"\n\
         memory = {memory}\n\
         pages = \"huge\"\n\
         \n\
         [control]\n\
         socket = \"{socket}\"\n\
         http = \"off\"\n\
         \n\
         [[listener]]\n\
         name = \"loopback\"\n\
         transport = \"tcp\"\n\
         address = \"{address}\"\n",
        memory = options.memory_bytes,
        socket = directory.join("control.sock").display(),
    );
    for number in 0..options.exports {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n\
             [[device]]\n\
             name = \"ram{number}\"\n\
             type = \"memory\"\n\
             size = {NAMESPACE_BYTES}\n\
             \n\
             [[export]]\n\
             nqn = \"nqn.2026-11.org.windlass:start-{number}\"\n\
             devices = [\"ram{number}\"]\n\
             listeners = [\"loopback\"]\n\
             allow_any_host = true\n"
        );
    }
    text
}

/// Measures one start from exec.
fn start_once(options: &StartOptions) -> Result<(u64, u64), ProcessError> {
    let mut appliance = ApplianceProcess::start(&options.windlass, |directory, address| {
        configuration(options, directory, address)
    })?;
    let first_connection = appliance.await_connection()?;
    let ready = appliance.await_ready()?;
    Ok((nanos(first_connection), nanos(ready)))
}

/// Measures starts and the time for memory alone; calls `report_step` before each step.
///
/// # Errors
/// [`StartError`]: the appliance does not start, or there are not enough hugepages.
pub fn measure(
    options: &StartOptions,
    mut report_step: impl FnMut(&str),
) -> Result<StartReport, StartError> {
    let bytes = usize::try_from(options.memory_bytes).unwrap_or(usize::MAX);
    let mut rounds = Vec::with_capacity(options.rounds);
    for round in 0..options.warm_ups + options.rounds {
        let began = Instant::now();
        let region = Region::map(bytes, PagePolicy::HugeOnly)?;
        let memory_alone_ns = nanos(began.elapsed());
        drop(region);
        let (first_connection_ns, ready_ns) = start_once(options)?;
        match round.checked_sub(options.warm_ups) {
            None => report_step("a start to warm up"),
            Some(counted) => {
                report_step(&format!("round {} of {}", counted + 1, options.rounds));
                rounds.push(StartRound {
                    first_connection_ns,
                    ready_ns,
                    memory_alone_ns,
                });
            }
        }
    }
    Ok(StartReport {
        machine: Machine::here(),
        memory_bytes: options.memory_bytes,
        exports: options.exports,
        rounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> StartOptions {
        StartOptions {
            windlass: "/nonexistent/windlass".into(),
            memory_bytes: 64 << 20,
            exports: 2,
            rounds: 1,
            warm_ups: 0,
        }
    }

    #[test]
    fn generated_configuration_is_valid() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        let text = configuration(&options(), Path::new("/run"), address);
        let table: toml::Table = text.parse().expect("TOML");
        assert_eq!(table["export"].as_array().map(Vec::len), Some(2));
        assert_eq!(table["device"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn missing_binary_error_says_how_to_build_it() {
        let error = start_once(&options()).expect_err("missing");
        let text = error.to_string();
        assert!(
            text.contains("cargo build --release -p appliance"),
            "{text}"
        );
    }

    #[test]
    fn start_time_goal_is_judged_by_the_median() {
        let round = |first_connection_ns| StartRound {
            first_connection_ns,
            ready_ns: first_connection_ns,
            memory_alone_ns: 1,
        };
        let report = |times: [u64; 3]| StartReport {
            machine: Machine::here(),
            memory_bytes: 1 << 30,
            exports: 16,
            rounds: times.map(round).to_vec(),
        };
        let aim = FIRST_CONNECTION_GOAL_NS;
        assert!(report([aim - 1, aim - 1, 9 * aim]).meets_goal());
        assert!(!report([aim, aim - 1, aim]).meets_goal());
    }
}
