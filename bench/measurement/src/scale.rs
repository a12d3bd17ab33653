//! Requests per second over the number of reactors, and over the number of connections.
//!
//! The target is a child process with one RAM namespace, restarted for each number of reactors. The
//! host uses separate cores if there are enough. Connections are I/O queues, at most 64 per
//! controller, and each of the host's cores has one thread for its share of them. The total number
//! of requests in flight stays constant while each connection has at least one, so that only the
//! number of connections grows.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use nvme_host::{ConnectOptions, HostIdentity};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::appliance_process::{ApplianceProcess, ProcessError};
use crate::ceiling::CONGESTION_CONTROL;
use bench::load::{
    Limit, LoadError, Outcome, Pattern, PhaseKind, RunError, RunPlan, Workload, run::NoWatch,
    run_over,
};
use bench::report::{Latency, Machine};
use bench::table::Table;
use bench::units::{format_count, format_nanos, per_second};

/// Subsystem of the target.
const NQN: &str = "nqn.2026-11.org.windlass:scale";
/// Size of a read in bytes.
const READ_BYTES: u32 = 4096;
/// Size of the RAM namespace in bytes.
const NAMESPACE_BYTES: u64 = 64 << 20;
/// Maximum number of I/O queues of one controller.
const QUEUES_PER_CONTROLLER: usize = 64;
/// Total requests in flight, unless there are more connections.
const IN_FLIGHT: usize = 256;
/// Connections per reactor when the number of reactors changes.
const CONNECTIONS_PER_REACTOR: usize = 4;
/// Receive buffer of each of the host's connections in bytes; small, because there are thousands.
const RECEIVE_BYTES: usize = 64 << 10;

/// The parameter that changes from point to point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Reactors of the target.
    Reactors,
    /// Connections to a target with one reactor.
    Connections,
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct ScaleOptions {
    /// The appliance's binary.
    pub windlass: PathBuf,
    /// The parameter that changes.
    pub over: Dimension,
    /// Its values.
    pub numbers: Vec<usize>,
    /// Cores for reactors, in the order of their use.
    pub target_cores: Vec<usize>,
    /// Cores for the host's threads.
    pub host_cores: Vec<usize>,
    /// Counted time of one point.
    pub duration: Duration,
    /// Duration of the warm-up.
    pub warm_up: Duration,
}

/// The reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// An error of the appliance.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// An error of the load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An error during data transfer.
    #[error(transparent)]
    RunError(#[from] RunError),
    /// More reactors than cores.
    #[error("{wanted} reactors need {wanted} cores, and --target-cores names {there}")]
    Cores {
        /// Reactors of the largest point.
        wanted: usize,
        /// Number of given cores.
        there: usize,
    },
    /// More connections than the limit of open files permits.
    #[error(
        "{wanted} connections are more than the limit of open files allows ({limit}): ulimit -Hn"
    )]
    Files {
        /// Connections of the largest point.
        wanted: usize,
        /// The hard limit.
        limit: u64,
    },
    /// No number was given, or 0.
    #[error("a number of reactors or connections is at least 1")]
    Nothing,
}

/// The result of one number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalePoint {
    /// Reactors of the target.
    pub reactors: usize,
    /// Connections, not including the admin connections.
    pub connections: usize,
    /// Requests in flight on each connection.
    pub depth: u16,
    /// Requests per second over all connections.
    pub iops: f64,
    /// Processor time of the target per request in nanoseconds, including the kernel's part.
    pub target_ns_per_request: f64,
    /// Latency from submission to completion.
    pub latency: Latency,
}

/// Results over the number of reactors or connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleReport {
    /// The machine.
    pub machine: Machine,
    /// The parameter that changed.
    pub over: Dimension,
    /// Whether a core was used by both a reactor and a thread of the host.
    pub cores_shared: bool,
    /// The points, smallest first.
    pub points: Vec<ScalePoint>,
}

impl fmt::Display for ScaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "4 KiB random reads from RAM over TCP\n{}", self.machine)?;
        if self.cores_shared {
            writeln!(
                f,
                "target and host share cores: rates say little, costs still hold"
            )?;
        }
        writeln!(f)?;
        let mut table = Table::new(&[
            "reactors",
            "connections",
            "depth",
            "IOPS",
            "IOPS/reactor",
            "target's time",
            "p50",
            "p99",
        ]);
        for point in &self.points {
            table.row([
                point.reactors.to_string(),
                format_count(point.connections as u64),
                point.depth.to_string(),
                format_count(point.iops as u64),
                format_count((point.iops / point.reactors as f64) as u64),
                format_nanos(point.target_ns_per_request as u64),
                format_nanos(point.latency.p50_ns),
                format_nanos(point.latency.p99_ns),
            ]);
        }
        write!(f, "{table}")
    }
}

fn configuration(
    cores: &[usize],
    (connections, hosts): (usize, usize),
    directory: &Path,
    address: SocketAddr,
) -> String {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let controllers = connections.div_ceil(QUEUES_PER_CONTROLLER) + hosts;
    // One host leaves an eighth to others.
    let (connections, controllers) = (2 * connections, 2 * controllers);
    format!(
        "[appliance]\n\
         name = \"scale\"\n\
         cores = \"{cores}\"\n\
         memory = \"1GiB\"\n\
         \n\
         [limits]\n\
         max_connections = {connections}\n\
         max_controllers = {controllers}\n\
         \n\
         [control]\n\
         socket = {socket:?}\n\
         http = \"off\"\n\
         \n\
         [[device]]\n\
         name = \"ram0\"\n\
         type = \"memory\"\n\
         size = {NAMESPACE_BYTES}\n\
         block_size = {READ_BYTES}\n\
         \n\
         [[listener]]\n\
         name = \"loopback\"\n\
         transport = \"tcp\"\n\
         address = \"{address}\"\n\
         queue_depth = 256\n\
         congestion_control = \"{CONGESTION_CONTROL}\"\n\
         \n\
         [[export]]\n\
         nqn = \"{NQN}\"\n\
         devices = [\"ram0\"]\n\
         listeners = [\"loopback\"]\n\
         allow_any_host = true\n",
        cores = cores.join(","),
        socket = directory.join("control.sock"),
        // Each controller has an admin connection, and the start's probe is also one. Each of the
        // hosts may have a controller with fewer queues than the others.
        connections = connections + controllers + 2,
        controllers = controllers + 2,
    )
}

/// One load with its controllers for each of the host's cores: with several threads on one core,
/// requests would wait for the other threads.
fn plans(
    options: &ScaleOptions,
    address: SocketAddr,
    connections: usize,
    depth: u16,
) -> Vec<(RunPlan, NonZero<u16>)> {
    let cores = &options.host_cores[..options.host_cores.len().min(connections)];
    let plan = |(number, core): (usize, &usize)| {
        let queues = connections / cores.len() + usize::from(number < connections % cores.len());
        let controllers = queues.div_ceil(QUEUES_PER_CONTROLLER);
        let counted = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let plan = RunPlan {
            connect: ConnectOptions {
                receive_bytes: RECEIVE_BYTES,
                congestion_control: Some(CONGESTION_CONTROL.to_owned()),
                ..ConnectOptions::new(address, NQN, HostIdentity::random())
            },
            nsid: 1,
            workload: Workload {
                sizes_bytes: vec![READ_BYTES],
                depth,
                queues: counted(queues),
                threads: 1,
                read_percent: 100,
                pattern: Pattern::Random,
                rate: None,
                limit: Limit::Time(options.duration),
                warm_up: options.warm_up,
                verify: false,
                region_bytes: None,
                seed: number as u64,
            },
            cores: vec![*core],
        };
        (
            plan,
            NonZero::new(counted(controllers)).unwrap_or(NonZero::<u16>::MIN),
        )
    };
    cores.iter().enumerate().map(plan).collect()
}

/// Runs all loads concurrently, each on a thread.
fn run_together(plans: &[(RunPlan, NonZero<u16>)]) -> Result<Vec<Outcome>, ScaleError> {
    std::thread::scope(|scope| {
        let loads = plans
            .iter()
            .map(|(plan, controllers)| scope.spawn(|| run_over(plan, *controllers, &mut NoWatch)));
        let loads: Vec<_> = loads.collect();
        loads
            .into_iter()
            .map(|load| Ok(load.join().map_err(|_| LoadError::ThreadLost)??))
            .collect()
    })
}

fn measure_point(
    options: &ScaleOptions,
    reactors: usize,
    connections: usize,
) -> Result<ScalePoint, ScaleError> {
    let cores = &options.target_cores[..reactors];
    let mut target = ApplianceProcess::start(&options.windlass, |directory, address| {
        let hosts = options.host_cores.len();
        configuration(cores, (connections, hosts), directory, address)
    })?;
    target.await_connection()?;
    let depth = u16::try_from((IN_FLIGHT / connections).clamp(1, 128)).unwrap_or(1);
    let before = target.cpu_time();
    let outcomes = run_together(&plans(options, target.address(), connections, depth))?;
    let after = target.cpu_time();
    let mut iops = 0.0;
    let mut completed = 0;
    let mut latencies = Histogram::<u64>::new(3).map_err(|_| LoadError::ThreadLost)?;
    for outcome in outcomes {
        completed += outcome.counters.completed;
        for (phase, stats) in outcome.phases {
            if let Some(trouble) = stats.trouble {
                return Err(trouble.into());
            }
            if phase.kind == PhaseKind::Main {
                iops += per_second(stats.reads.operations, stats.elapsed);
                // The histogram resizes itself, so every value fits.
                let _ = latencies.add(&stats.reads.latencies);
            }
        }
    }
    let taken = after
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    Ok(ScalePoint {
        reactors,
        connections,
        depth,
        iops,
        target_ns_per_request: taken.unwrap_or_default().as_nanos() as f64
            / completed.max(1) as f64,
        latency: Latency::from_histogram(&latencies),
    })
}

/// Raises the limit of open files to the maximum; the target inherits it.
fn allow_files(connections: usize) -> Result<(), ScaleError> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    // A socket for each connection in each of the two processes, and some for everything else.
    let wanted = connections + connections.div_ceil(QUEUES_PER_CONTROLLER) + 128;
    match limit.maximum {
        Some(limit) if limit < wanted as u64 => Err(ScaleError::Files {
            wanted: connections,
            limit,
        }),
        _ => Ok(()),
    }
}

/// Measures one point after the other; calls `report_step` before each.
///
/// # Errors
/// [`ScaleError`].
pub fn measure(
    options: &ScaleOptions,
    mut report_step: impl FnMut(&str),
) -> Result<ScaleReport, ScaleError> {
    let Some(&most) = options.numbers.iter().max() else {
        return Err(ScaleError::Nothing);
    };
    if options.numbers.contains(&0) || options.host_cores.is_empty() {
        return Err(ScaleError::Nothing);
    }
    let reactors_most = match options.over {
        Dimension::Reactors => most,
        Dimension::Connections => 1,
    };
    if reactors_most > options.target_cores.len() {
        return Err(ScaleError::Cores {
            wanted: reactors_most,
            there: options.target_cores.len(),
        });
    }
    allow_files(match options.over {
        Dimension::Reactors => most * CONNECTIONS_PER_REACTOR,
        Dimension::Connections => most,
    })?;
    let mut points = Vec::with_capacity(options.numbers.len());
    for &number in &options.numbers {
        let (reactors, connections) = match options.over {
            Dimension::Reactors => (number, number * CONNECTIONS_PER_REACTOR),
            Dimension::Connections => (1, number),
        };
        report_step(&format!("{reactors} reactors, {connections} connections"));
        points.push(measure_point(options, reactors, connections)?);
    }
    let taken = &options.target_cores[..reactors_most];
    Ok(ScaleReport {
        machine: Machine::here(),
        over: options.over,
        cores_shared: taken.iter().any(|core| options.host_cores.contains(core)),
        points,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(over: Dimension, numbers: &[usize]) -> ScaleOptions {
        ScaleOptions {
            windlass: "/nonexistent/windlass".into(),
            over,
            numbers: numbers.to_vec(),
            target_cores: vec![1],
            host_cores: vec![0],
            duration: Duration::from_millis(1),
            warm_up: Duration::ZERO,
        }
    }

    #[test]
    fn connections_are_divided_among_loads() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        let mut options = options(Dimension::Connections, &[1]);
        options.host_cores = vec![2, 3, 4];
        for connections in [1, 2, 3, 64, 65, 1000, 4096] {
            let plans = plans(&options, address, connections, 1);
            let queues = plans.iter().map(|(plan, _)| plan.workload.queues);
            assert_eq!(queues.clone().map(usize::from).sum::<usize>(), connections);
            assert_eq!(plans.len(), connections.min(3), "a thread for each core");
            for (plan, controllers) in &plans {
                let queues = usize::from(plan.workload.queues);
                let room = usize::from(controllers.get()) * QUEUES_PER_CONTROLLER;
                assert!(queues > 0 && (queues..queues + QUEUES_PER_CONTROLLER).contains(&room));
            }
        }
    }

    #[test]
    fn impossible_scale_measurements_are_refused_before_start() {
        let refused = |over, numbers: &[usize]| {
            let error = measure(&options(over, numbers), |_| {}).expect_err("refused");
            error.to_string()
        };
        let text = refused(Dimension::Reactors, &[1, 2]);
        assert!(text.contains("2 reactors need 2 cores"), "{text}");
        let text = refused(Dimension::Connections, &[0]);
        assert!(text.contains("at least 1"), "{text}");
        let text = refused(Dimension::Connections, &[1]);
        assert!(
            text.contains("cargo build --release -p appliance"),
            "{text}"
        );
    }
}
