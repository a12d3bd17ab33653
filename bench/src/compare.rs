//! Our target beside its ceilings, in one run on the same two cores.
//!
//! The target is a child process, `windlass run` with one RAM namespace, on one core; our host is
//! on another. Rounds of the bare socket pair, sending from as much memory and from one hot buffer,
//! and of the target take turns, and ratios are taken within a round, so that what the machine does
//! to one it does to the other. Pair and target have the same congestion control. The target sleeps
//! while the pair runs: its idle policy is the adaptive default.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvme_host::raw::RawClient;
use nvme_host::{ConnectOptions, ConnectionCounters, HostIdentity};
use rustix::process::{Pid, Signal, kill_process};

use crate::ceiling::{
    AnswerMemory, Answers, CONGESTION_CONTROL, CeilingError, CeilingOptions, measure_tcp, nanos,
};
use crate::load::{
    Limit, LoadError, Pattern, PhaseKind, RunPlan, Trouble, Workload, run, run::Unwatched,
};
use crate::report::{
    CeilingRound, CompareReport, CompareRound, CompareRow, HostCosts, Latency, Machine,
    MemoryReport,
};
use crate::units::{median, per_second};

/// Subsystem of the target under measurement.
const NQN: &str = "nqn.2026-11.org.windlass:compare";

/// The arena of the target, bytes.
const ARENA_BYTES: u64 = 256 << 20;

/// Size of a read, bytes.
const READ_BYTES: u32 = 4096;

/// How long the target may take to start or to end.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Depths that are compared: throughput, and latency.
const DEPTHS: [usize; 2] = [128, 1];

/// How to compare.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// The appliance's binary.
    pub windlass: PathBuf,
    /// Core of the target and of the pair's answering side.
    pub target_core: usize,
    /// Core of the host and of the pair's asking side.
    pub host_core: usize,
    /// Rounds.
    pub rounds: usize,
    /// Counted time of one measurement in a round.
    pub duration: Duration,
    /// Time before that.
    pub warm_up: Duration,
    /// Size of the RAM namespace, and of the memory that the pair's answers come from, bytes.
    pub namespace_bytes: u64,
    /// Starts of the target that are timed.
    pub starts: usize,
}

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The appliance's binary is not there.
    #[error(
        "{} is not there: build it with `cargo build --release -p appliance`, \
         or name it with --windlass",
        .0.display()
    )]
    NoBinary(PathBuf),
    /// The appliance could not be started or stopped.
    #[error("cannot run {}: {source}", path.display())]
    Process {
        /// The binary.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The appliance ended instead of serving.
    #[error("the target ended at its start: {0}")]
    Ended(String),
    /// The appliance does not serve.
    #[error("the target accepts no connection within {START_LIMIT:?}: {0}")]
    NotServing(String),
    /// The ceiling.
    #[error(transparent)]
    Ceiling(#[from] CeilingError),
    /// The load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Something went wrong while data moved.
    #[error(transparent)]
    Trouble(#[from] Trouble),
    /// A file of our own.
    #[error("cannot write the target's configuration: {0}")]
    Configuration(io::Error),
}

/// The configuration of the target under measurement.
fn configuration(options: &CompareOptions, port: u16) -> String {
    format!(
        "[appliance]\n\
         name = \"compare\"\n\
         cores = \"{core}\"\n\
         memory = {ARENA_BYTES}\n\
         \n\
         [[device]]\n\
         name = \"ram0\"\n\
         type = \"memory\"\n\
         size = {size}\n\
         block_size = {READ_BYTES}\n\
         \n\
         [[listener]]\n\
         name = \"loopback\"\n\
         transport = \"tcp\"\n\
         address = \"127.0.0.1:{port}\"\n\
         queue_depth = 256\n\
         congestion_control = \"{CONGESTION_CONTROL}\"\n\
         \n\
         [[export]]\n\
         nqn = \"{NQN}\"\n\
         devices = [\"ram0\"]\n\
         listeners = [\"loopback\"]\n\
         allow_any_host = true\n",
        core = options.target_core,
        size = options.namespace_bytes,
    )
}

/// A running target; ended when dropped.
struct Target {
    child: Child,
    address: SocketAddr,
    start_to_accept: Duration,
    directory: tempfile::TempDir,
}

impl Target {
    /// Starts the target and waits until it has initialised a connection.
    fn start(options: &CompareOptions) -> Result<Self, CompareError> {
        let directory = tempfile::tempdir().map_err(CompareError::Configuration)?;
        let port = free_port().map_err(CompareError::Configuration)?;
        let file = directory.path().join("compare.toml");
        let text = configuration(options, port);
        std::fs::write(&file, text).map_err(CompareError::Configuration)?;
        let output = std::fs::File::create(directory.path().join("output"));
        let output = output.map_err(CompareError::Configuration)?;
        let started = Instant::now();
        let spawned = Command::new(&options.windlass)
            .arg("run")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn();
        let path = options.windlass.clone();
        let child = spawned.map_err(|source| CompareError::Process { path, source })?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut target = Self {
            child,
            address,
            start_to_accept: Duration::ZERO,
            directory,
        };
        target.await_connection(started)?;
        Ok(target)
    }

    fn await_connection(&mut self, started: Instant) -> Result<(), CompareError> {
        loop {
            if let Ok(Some(_)) = self.child.try_wait() {
                return Err(CompareError::Ended(self.last_words()));
            }
            let initialized = RawClient::connect(self.address, START_LIMIT)
                .and_then(|mut client| client.initialize(false, false));
            self.start_to_accept = started.elapsed();
            if initialized.is_ok() {
                return Ok(());
            }
            if self.start_to_accept > START_LIMIT {
                return Err(CompareError::NotServing(self.last_words()));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// What the target said last.
    fn last_words(&self) -> String {
        let output = std::fs::read_to_string(self.directory.path().join("output"));
        let output = output.unwrap_or_default();
        output
            .lines()
            .next_back()
            .unwrap_or("it said nothing")
            .trim()
            .to_owned()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let asked = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let deadline = Instant::now() + START_LIMIT;
        while asked && Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // A child that does not end in order must not outlive the measurement.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(listener.local_addr()?.port())
}

/// The appliance's binary beside this one.
#[must_use]
pub fn windlass_beside_this_binary() -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    this.parent().unwrap_or(Path::new(".")).join("windlass")
}

/// What our target and host did in one measurement.
struct Measured {
    requests_per_second: f64,
    latency: Latency,
    counters: ConnectionCounters,
}

fn measure_target(
    options: &CompareOptions,
    address: SocketAddr,
    depth: usize,
) -> Result<Measured, CompareError> {
    let plan = RunPlan {
        connect: ConnectOptions::new(address, NQN, HostIdentity::random()),
        nsid: 1,
        workload: Workload {
            sizes_bytes: vec![READ_BYTES],
            depth: depth as u16,
            queues: 1,
            threads: 1,
            read_percent: 100,
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
    let outcome = run(&plan, &mut Unwatched)?;
    let mut measured = Measured {
        requests_per_second: 0.0,
        latency: Latency::default(),
        counters: outcome.counters,
    };
    for (phase, stats) in outcome.phases {
        if let Some(trouble) = stats.trouble {
            return Err(trouble.into());
        }
        if phase.kind == PhaseKind::Main {
            measured.requests_per_second = per_second(stats.reads.operations, stats.elapsed);
            measured.latency = Latency::from_histogram(&stats.reads.latencies);
        }
    }
    Ok(measured)
}

/// Compares, round by round; `tell` is called before each.
///
/// # Errors
/// [`CompareError`].
pub fn compare_tcp(
    options: &CompareOptions,
    mut tell: impl FnMut(&str),
) -> Result<CompareReport, CompareError> {
    if !options.windlass.is_file() {
        return Err(CompareError::NoBinary(options.windlass.clone()));
    }
    let memory = AnswerMemory::take(options.namespace_bytes)?;
    tell("starting the target");
    let mut starts = Vec::with_capacity(options.starts);
    for _ in 1..options.starts {
        starts.push(nanos(Target::start(options)?.start_to_accept) as f64);
    }
    let target = Target::start(options)?;
    starts.push(nanos(target.start_to_accept) as f64);
    let mut rounds = Vec::new();
    let mut counters = ConnectionCounters::default();
    for round in 0..options.rounds {
        for depth in DEPTHS {
            tell(&format!(
                "round {} of {}, depth {depth}",
                round + 1,
                options.rounds
            ));
            // Each pair runs before the target in one round, and after it in the next.
            let mut pairs = [Answers::Memory(memory.clone()), Answers::HotBuffer];
            let swapped = round % 2 == 1;
            if swapped {
                pairs.reverse();
            }
            let [early, late] = pairs;
            let early = measure_ceiling(options, depth, early)?;
            let measured = measure_target(options, target.address, depth)?;
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
    answers: Answers,
) -> Result<CeilingRound, CompareError> {
    let measured = measure_tcp(&CeilingOptions {
        answers,
        window: depth,
        server_core: Some(options.target_core),
        client_core: Some(options.host_core),
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
    fn a_missing_binary_says_how_to_build_it() {
        let error = compare_tcp(&options("/nonexistent/windlass"), |_| {}).expect_err("missing");
        assert!(
            error
                .to_string()
                .contains("cargo build --release -p appliance"),
            "{error}"
        );
    }

    #[test]
    fn the_target_has_the_pairs_congestion_control() {
        let text = configuration(&options("windlass"), 4420);
        let (_, listener) = text.split_once("[[listener]]\n").expect("a listener");
        let (listener, _) = listener.split_once("\n\n").expect("an export after it");
        let expected = format!("congestion_control = \"{CONGESTION_CONTROL}\"");
        assert!(listener.lines().any(|line| line == expected), "{text}");
    }

    #[test]
    fn a_target_that_ends_at_once_is_reported() {
        let error = compare_tcp(&options("/bin/false"), |_| {}).expect_err("it ends");
        assert!(matches!(error, CompareError::Ended(_)), "{error}");
        assert!(error.to_string().contains("it said nothing"), "{error}");
    }
}
