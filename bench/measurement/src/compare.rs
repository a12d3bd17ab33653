//! Compares our target with its ceilings, in one run on the same two cores.
//!
//! The target is a child process, `windlass run` with one RAM namespace, on one core; our host is
//! on another. Rounds of the bare socket pair, with the same amount of memory and with one hot
//! buffer, alternate with rounds of the target. Ratios are taken within a round, so that
//! disturbances of the machine affect both. Pair, target and host use the same congestion control.
//! The target sleeps while the pair runs: its idle policy is the adaptive default.

pub mod suite;
pub(crate) mod target;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvme_host::{ConnectOptions, ConnectionCounters, HostIdentity, TlsOptions, Transport};

use self::target::{ARENA_BYTES, HOST_NQN, NQN, Target, TargetOptions, host_key};
use crate::appliance_process::ProcessError;
use crate::ceiling::{
    CONGESTION_CONTROL, CeilingError, CeilingOptions, DataLocation, DataMemory, Exchange,
    measure_tcp,
};
use crate::report::{CeilingRound, CompareReport, CompareRound, CompareRow, MemoryReport};
use bench::load::{
    Limit, LoadError, Pattern, PhaseKind, RunError, RunPlan, Workload, run, run::NoWatch,
};
use bench::report::nanos;
use bench::report::{HostCosts, Latency, Machine};
use bench::units::{median, per_second};

/// Size of a read in bytes.
const READ_BYTES: u32 = 4096;

/// The compared depths: for throughput and for latency.
const DEPTHS: [usize; 2] = [128, 1];

/// Parameters of the comparison.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// The appliance's binary.
    pub windlass: PathBuf,
    /// Core of the target and of the pair's responding side.
    pub target_core: usize,
    /// Core of the host and of the pair's requesting side.
    pub host_core: usize,
    /// Number of rounds.
    pub rounds: usize,
    /// Counted time of one measurement in a round.
    pub duration: Duration,
    /// Duration of the warm-up.
    pub warm_up: Duration,
    /// Size of the RAM namespace, and of the memory of the pair's data, in bytes.
    pub namespace_bytes: u64,
    /// Number of measured starts of the target.
    pub starts: usize,
}

/// The reason why the comparison failed.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// An error of the appliance.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// An error of the ceiling.
    #[error(transparent)]
    Ceiling(#[from] CeilingError),
    /// An error of the load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An error during data transfer.
    #[error(transparent)]
    RunError(#[from] RunError),
    /// The file of the file device cannot be created.
    #[error("cannot make a file for the file device: {0}")]
    File(io::Error),
}

/// The path of the appliance's binary in the directory of this one.
#[must_use]
pub fn windlass_beside_this_binary() -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    this.parent().unwrap_or(Path::new(".")).join("windlass")
}

impl CompareOptions {
    /// A target that serves RAM with the default idle policy.
    pub(crate) fn target(&self) -> TargetOptions {
        TargetOptions {
            windlass: self.windlass.clone(),
            core: self.target_core,
            memory_bytes: self.namespace_bytes,
            file: None,
            idle: "adaptive",
            more: "",
            cpu_percent: None,
            tls: false,
        }
    }
}

/// The load of our host on the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    nsid: u32,
    write: bool,
    bytes: u32,
    connections: u16,
    /// Requests in flight on each connection.
    depth: u16,
    /// With header and data digests.
    digests: bool,
    /// Protected by TLS.
    tls: bool,
}

impl Load {
    /// 4 KiB reads of the RAM namespace over one connection.
    pub(crate) fn reads(depth: usize) -> Self {
        Self {
            nsid: 1,
            write: false,
            bytes: READ_BYTES,
            connections: 1,
            depth: depth as u16,
            digests: false,
            tls: false,
        }
    }
}

/// The results of our target and host in one measurement.
pub(crate) struct Measured {
    pub(crate) requests_per_second: f64,
    /// The busy share of the host.
    host_share: f64,
    /// Requests of the whole run, including the warm-up.
    completed: u64,
    latency: Latency,
    counters: ConnectionCounters,
}

pub(crate) fn measure_target(
    options: &CompareOptions,
    address: SocketAddr,
    load: &Load,
) -> Result<Measured, CompareError> {
    let identity = HostIdentity {
        nqn: HOST_NQN.to_owned(),
        ..HostIdentity::random()
    };
    let transport = match load.tls {
        true => Transport::tls(TlsOptions::new(host_key())),
        false => Transport::tcp(),
    };
    let plan = RunPlan {
        connect: ConnectOptions {
            header_digest: load.digests,
            data_digest: load.digests,
            congestion_control: Some(CONGESTION_CONTROL.to_owned()),
            transport,
            ..ConnectOptions::new(address, NQN, identity)
        },
        nsid: load.nsid,
        workload: Workload {
            sizes_bytes: vec![load.bytes],
            depth: load.depth,
            queues: load.connections,
            threads: 1,
            read_percent: if load.write { 0 } else { 100 },
            pattern: Pattern::Random,
            rate: None,
            limit: Limit::Time(options.duration),
            warm_up: options.warm_up,
            verify: false,
            region_bytes: None,
            seed: 1,
        },
        cores: vec![options.host_core],
    };
    let outcome = run(&plan, &mut NoWatch)?;
    let mut measured = Measured {
        requests_per_second: 0.0,
        host_share: 1.0,
        completed: outcome.counters.completed,
        latency: Latency::default(),
        counters: outcome.counters,
    };
    for (phase, stats) in outcome.phases {
        if let Some(trouble) = stats.trouble {
            return Err(trouble.into());
        }
        if phase.kind == PhaseKind::Main {
            let operations = if load.write {
                &stats.writes
            } else {
                &stats.reads
            };
            measured.requests_per_second = per_second(operations.operations, stats.elapsed);
            measured.host_share -= stats.idle.as_secs_f64() / stats.elapsed.as_secs_f64();
            measured.latency = Latency::from_histogram(&operations.latencies);
        }
    }
    Ok(measured)
}

/// Compares round by round; calls `report_step` before each.
///
/// # Errors
/// [`CompareError`].
pub fn compare_tcp(
    options: &CompareOptions,
    mut report_step: impl FnMut(&str),
) -> Result<CompareReport, CompareError> {
    if !options.windlass.is_file() {
        return Err(ProcessError::NoBinary(options.windlass.clone()).into());
    }
    let memory = DataMemory::take(options.namespace_bytes)?;
    report_step("starting the target");
    let mut starts = Vec::with_capacity(options.starts);
    for _ in 1..options.starts {
        starts.push(nanos(Target::start(&options.target())?.start_to_accept) as f64);
    }
    let target = Target::start(&options.target())?;
    starts.push(nanos(target.start_to_accept) as f64);
    let mut rounds = Vec::new();
    let mut counters = ConnectionCounters::default();
    for round in 0..options.rounds {
        for depth in DEPTHS {
            report_step(&format!(
                "round {} of {}, depth {depth}",
                round + 1,
                options.rounds
            ));
            // Each pair runs before the target in one round, and after it in the next.
            let mut pairs = [
                DataLocation::Memory(memory.clone()),
                DataLocation::HotBuffer,
            ];
            let swapped = round % 2 == 1;
            if swapped {
                pairs.reverse();
            }
            let [early, late] = pairs;
            let early = measure_ceiling(options, depth, early)?;
            let measured = measure_target(options, target.address, &Load::reads(depth))?;
            let late = measure_ceiling(options, depth, late)?;
            let (same_memory, one_hot_buffer) = if swapped {
                (late, early)
            } else {
                (early, late)
            };
            let one = depth == 1;
            if !one {
                counters.add(&measured.counters);
            }
            rounds.push(CompareRound {
                depth,
                target_requests_per_second: measured.requests_per_second,
                target_p50_ns: if one { measured.latency.p50_ns } else { 0 },
                same_memory,
                one_hot_buffer,
            });
        }
    }
    Ok(CompareReport {
        machine: Machine::here(),
        transport: "tcp".to_owned(),
        target_core: options.target_core,
        host_core: options.host_core,
        memory: MemoryReport::new(&memory),
        congestion_control: CONGESTION_CONTROL.to_owned(),
        start_to_accept_ns: median(&starts) as u64,
        arena_bytes: ARENA_BYTES,
        host: HostCosts::new(&counters),
        rows: DEPTHS
            .iter()
            .map(|&depth| CompareRow::from_rounds(depth, &rounds))
            .collect(),
        rounds,
    })
}

fn measure_ceiling(
    options: &CompareOptions,
    depth: usize,
    answers: DataLocation,
) -> Result<CeilingRound, CompareError> {
    let measured = measure_tcp(&CeilingOptions {
        exchange: Exchange::READ_4K,
        answers,
        sealed: false,
        connections: 1,
        window: depth,
        server_core: Some(options.target_core),
        client_core: Some(options.host_core),
        responder_percent: None,
        warm_up: options.warm_up,
        duration: options.duration,
    })?;
    Ok(CeilingRound {
        requests_per_second: measured.requests_per_second(),
        p50_ns: measured.latency.unwrap_or_default().p50_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(windlass: &str) -> CompareOptions {
        CompareOptions {
            windlass: PathBuf::from(windlass),
            target_core: 0,
            host_core: 0,
            rounds: 1,
            duration: Duration::from_millis(10),
            warm_up: Duration::ZERO,
            namespace_bytes: 16 << 20,
            starts: 1,
        }
    }

    #[test]
    fn missing_binary_error_says_how_to_build_it() {
        let error = compare_tcp(&options("/nonexistent/windlass"), |_| {}).expect_err("missing");
        assert!(
            error
                .to_string()
                .contains("cargo build --release -p appliance"),
            "{error}"
        );
    }

    #[test]
    fn target_that_exits_immediately_is_reported() {
        let error = compare_tcp(&options("/bin/false"), |_| {}).expect_err("it ends");
        assert!(
            matches!(error, CompareError::Process(ProcessError::Ended(_))),
            "{error}"
        );
        assert!(error.to_string().contains("its log is empty"), "{error}");
    }
}
