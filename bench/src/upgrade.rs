//! Measures how long hosts wait while the process of an appliance is replaced, by `windlass upgrade`
//! or by a restart of its service (`ARCHITECTURE.md` §9.1).
//!
//! Starts an appliance with a RAM namespace and puts verified load on it over many connections. In
//! each round the same load runs twice: without an upgrade, and with one in its middle. The pause
//! is the longest time between two completions of one connection in the latter, without the usual
//! time between two completions. The run without an upgrade shows what of it the machine causes.

mod appliance;
mod manager;

use std::fmt;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use nvme_host::{ConnectOptions, HostIdentity};
use serde::{Deserialize, Serialize};

use crate::load::run::PhaseTotal;
use crate::load::{
    Limit, LoadError, Outcome, Pattern, Phase, PhaseKind, PhaseStats, RunPlan, Watch, Workload,
    run_over,
};
use crate::report::{Machine, nanos};
use crate::table::Table;
use crate::units::{format_count, format_nanos, format_size, median};
use appliance::{Appliance, Replaced};

/// The goal for the longest pause, in nanoseconds.
pub const PAUSE_GOAL_NS: u64 = 100_000_000;

const NQN: &str = "nqn.2026-11.org.windlass:upgrade";
/// Size of the RAM namespace in bytes, all of which is written and read.
const NAMESPACE_BYTES: u64 = 64 << 20;
/// I/O queues of each controller, which has an admin connection too.
const QUEUES_PER_CONTROLLER: u16 = 8;
/// Share of reads in percent.
const READ_PERCENT: u8 = 50;

/// How the process is replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replacement {
    /// By `windlass upgrade`.
    #[default]
    Upgrade,
    /// By a restart of the service, from the descriptor store.
    Restart,
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct UpgradeOptions {
    /// The appliance's program.
    pub windlass: PathBuf,
    /// The program of the new process; by default the same.
    pub to: Option<PathBuf>,
    /// How the process is replaced.
    pub replacement: Replacement,
    /// Connections with I/O.
    pub connections: u16,
    /// Requests in flight on each.
    pub depth: u16,
    /// Size of the arena in bytes.
    pub memory_bytes: u64,
    /// Cores of the appliance's reactors; empty for its default.
    pub target_cores: Vec<usize>,
    /// Cores of the host's threads; empty for one thread on any core.
    pub host_cores: Vec<usize>,
    /// Number of rounds, each with an upgrade.
    pub rounds: usize,
    /// Duration of each load.
    pub time: Duration,
}

/// The reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The program does not exist.
    #[error(
        "{} does not exist: build it with `cargo build --release -p appliance`, or name it with \
         --windlass",
        .0.display()
    )]
    NoProgram(PathBuf),
    /// It could not be started, or its successor has ended.
    #[error("cannot run {}: {source}", path.display())]
    Process {
        /// The program.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It ended instead of serving.
    #[error("the appliance ended at its start: {0}")]
    Ended(String),
    /// A file of the measurement cannot be written or read.
    #[error("cannot use the files of the measurement: {0}")]
    Files(io::Error),
    /// The upgrade was refused.
    #[error("the appliance did not upgrade: {0}")]
    Refused(String),
    /// The answer of `windlass upgrade` is not the expected JSON.
    #[error("the answer of `windlass upgrade` is not understood: {0}")]
    Answer(#[from] serde_json::Error),
    /// The upgrade was not complete when the load ended.
    #[error("the upgrade took longer than the load: give a longer --time")]
    TooShort,
    /// The load failed to start.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A host saw an error or wrong data.
    #[error("the load failed{}: {problem}", if *.upgraded { " during an upgrade" } else { "" })]
    Trouble {
        /// Whether the process was replaced meanwhile.
        upgraded: bool,
        /// The first error.
        problem: String,
    },
    /// A signal ended the measurement.
    #[error("interrupted")]
    Interrupted,
}

/// The results of one round. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeRound {
    /// Longest time between two completions of a connection without that usually between them.
    pub pause_ns: u64,
    /// The mean time between two completions of a connection, with the upgrade.
    pub usual_gap_ns: u64,
    /// The same as `pause_ns`, without an upgrade.
    pub pause_without_ns: u64,
    /// The time in which the appliance admitted no requests, as it reports; 0 for a restart.
    pub held_ns: u64,
    /// Duration of the command `windlass upgrade`, or of the restart.
    pub command_ns: u64,
    /// Connections that continued, with those of admin queues.
    pub connections: u64,
    /// Blocks that were read and checked while the process was replaced, and after it.
    pub blocks_right: u64,
}

/// The results of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpgradeReport {
    /// The machine.
    pub machine: Machine,
    /// How the process was replaced.
    #[serde(default)]
    pub replacement: Replacement,
    /// Size of the arena in bytes.
    pub memory_bytes: u64,
    /// Connections with I/O.
    pub connections: u16,
    /// Requests in flight on each.
    pub depth: u16,
    /// Cores of the reactors, if they were chosen.
    pub target_cores: Vec<usize>,
    /// Cores of the host's threads, if they were chosen.
    pub host_cores: Vec<usize>,
    /// Seconds of each load.
    pub seconds: f64,
    /// Every round.
    pub rounds: Vec<UpgradeRound>,
}

impl UpgradeReport {
    /// The longest pause of all rounds in nanoseconds.
    #[must_use]
    pub fn pause_max_ns(&self) -> u64 {
        let pauses = self.rounds.iter().map(|it| it.pause_ns);
        pauses.max().unwrap_or(0)
    }

    /// Whether every pause is within [`PAUSE_GOAL_NS`].
    #[must_use]
    pub fn meets_goal(&self) -> bool {
        self.pause_max_ns() <= PAUSE_GOAL_NS
    }
}

impl fmt::Display for UpgradeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, without, command) = match self.replacement {
            Replacement::Upgrade => ("upgrade", "the same without an upgrade", "windlass upgrade"),
            Replacement::Restart => ("restart", "the same without a restart", "restart"),
        };
        writeln!(
            f,
            "{name} with {} connections of depth {} and {} of memory, {} rounds\n  on {}\n",
            self.connections,
            self.depth,
            format_size(self.memory_bytes),
            self.rounds.len(),
            self.machine,
        )?;
        let mut table = Table::new(&["", "median", "shortest", "longest"]);
        let mut row = |name: &str, value: fn(&UpgradeRound) -> u64| {
            let all = self.rounds.iter().map(value);
            let values: Vec<f64> = all.clone().map(|it| it as f64).collect();
            let (shortest, longest) = (all.clone().min(), all.max());
            let times = [
                median(&values) as u64,
                shortest.unwrap_or(0),
                longest.unwrap_or(0),
            ];
            let name = [name.to_owned()].into_iter();
            table.row(name.chain(times.map(format_nanos)));
        };
        row("pause of hosts", |it| it.pause_ns);
        row(without, |it| it.pause_without_ns);
        if self.replacement == Replacement::Upgrade {
            row("requests not admitted", |it| it.held_ns);
        }
        row("usual time between completions", |it| it.usual_gap_ns);
        row(command, |it| it.command_ns);
        write!(f, "{table}")?;
        let checked: u64 = self.rounds.iter().map(|it| it.blocks_right).sum();
        writeln!(
            f,
            "\n  longest pause {}, goal {}: {}\n  verified: {} blocks read, every one as it was \
             written",
            format_nanos(self.pause_max_ns()),
            format_nanos(PAUSE_GOAL_NS),
            match self.meets_goal() {
                true => "reached",
                false => "missed",
            },
            format_count(checked),
        )
    }
}

fn configuration(options: &UpgradeOptions, socket: &Path) -> String {
    let cores: Vec<String> = options.target_cores.iter().map(usize::to_string).collect();
    let cores = match cores.is_empty() {
        true => String::new(),
        false => format!("cores = \"{}\"\n", cores.join(",")),
    };
    format!(
        "[appliance]\n\
         name = \"upgrade\"\n\
         memory = {memory}\n\
         {cores}\n\
         [control]\n\
         socket = {socket:?}\n\
         http = \"off\"\n\
         \n\
         [[device]]\n\
         name = \"ram\"\n\
         type = \"memory\"\n\
         size = {NAMESPACE_BYTES}\n\
         \n\
         [[listener]]\n\
         name = \"loopback\"\n\
         transport = \"tcp\"\n\
         address = \"127.0.0.1:0\"\n\
         \n\
         [[export]]\n\
         nqn = \"{NQN}\"\n\
         devices = [\"ram\"]\n\
         listeners = [\"loopback\"]\n\
         allow_any_host = true\n",
        memory = options.memory_bytes,
    )
}

/// The load of one run.
fn plan(options: &UpgradeOptions, appliance: &Appliance, seed: u64) -> RunPlan {
    let identity = HostIdentity::from_uuid([0x57; 16]);
    RunPlan {
        connect: ConnectOptions::new(appliance.address(), NQN, identity),
        nsid: 1,
        workload: Workload {
            sizes_bytes: Vec::new(),
            depth: options.depth,
            queues: options.connections,
            threads: options.host_cores.len().clamp(1, usize::from(u16::MAX)) as u16,
            read_percent: READ_PERCENT,
            pattern: Pattern::Random,
            rate: None,
            limit: Limit::Time(options.time),
            warm_up: Duration::ZERO,
            verify: true,
            region_bytes: Some(NAMESPACE_BYTES),
            seed,
        },
        cores: options.host_cores.clone(),
    }
}

/// Replaces the process in the middle of the main phase, by `replace` on a thread of its own.
struct UpgradeWatch<'scope, 'env, F> {
    scope: &'scope Scope<'scope, 'env>,
    replace: Option<F>,
    started: Option<ScopedJoinHandle<'scope, Result<Replaced, UpgradeError>>>,
    /// When the replacement begins.
    after: Duration,
    is_main: bool,
    /// Whether the replacement was complete before the phase ended.
    is_within: bool,
    is_interrupted: &'env dyn Fn() -> bool,
}

impl<'scope, F> Watch for UpgradeWatch<'scope, '_, F>
where
    F: FnOnce() -> Result<Replaced, UpgradeError> + Send + 'scope,
{
    fn phase_begins(&mut self, phase: Phase, _: PhaseTotal) {
        self.is_main = phase.kind == PhaseKind::Main;
    }

    fn phase_progresses(&mut self, _: u64, _: u64, elapsed: Duration) {
        if self.is_main
            && elapsed >= self.after
            && let Some(replace) = self.replace.take()
        {
            self.started = Some(self.scope.spawn(replace));
        }
    }

    fn phase_ends(&mut self, _: Phase, _: &PhaseStats) {
        if std::mem::take(&mut self.is_main) {
            let started = self.started.as_ref();
            self.is_within = started.is_some_and(ScopedJoinHandle::is_finished);
        }
    }

    fn is_interrupted(&self) -> bool {
        (self.is_interrupted)()
    }
}

/// The times between completions in the main phase of a run.
#[derive(Debug, Clone, Copy)]
struct Measured {
    pause_ns: u64,
    usual_gap_ns: u64,
    blocks_right: u64,
}

impl Measured {
    fn of(outcome: &Outcome, connections: u16, upgraded: bool) -> Result<Self, UpgradeError> {
        let mut blocks_right = 0;
        let mut measured = None;
        for (phase, stats) in &outcome.phases {
            if let Some(problem) = &stats.trouble {
                let problem = problem.to_string();
                return Err(UpgradeError::Trouble { upgraded, problem });
            }
            blocks_right += stats.checked.right;
            if phase.kind == PhaseKind::Main {
                let all = nanos(stats.elapsed).saturating_mul(u64::from(connections));
                let usual_gap_ns = all / stats.gaps.count.max(1);
                let pause_ns = nanos(stats.gaps.longest).saturating_sub(usual_gap_ns);
                measured = Some((pause_ns, usual_gap_ns));
            }
        }
        let (pause_ns, usual_gap_ns) = measured.ok_or(UpgradeError::Interrupted)?;
        Ok(Self {
            pause_ns,
            usual_gap_ns,
            blocks_right,
        })
    }
}

/// Runs the load once, and replaces the process meanwhile, if `replaces`.
fn run_once(
    options: &UpgradeOptions,
    appliance: &mut Appliance,
    (seed, replaces): (u64, bool),
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(Measured, Option<Replaced>), UpgradeError> {
    let controllers = options.connections.div_ceil(QUEUES_PER_CONTROLLER);
    let controllers = NonZero::new(controllers).unwrap_or(NonZero::<u16>::MIN);
    let plan = plan(options, appliance, seed);
    let (ran, is_within, replaced) = std::thread::scope(|scope| {
        let mut watch = UpgradeWatch {
            scope,
            replace: replaces.then_some(|| appliance.replace(options.to.as_deref())),
            started: None,
            after: options.time / 2,
            is_main: false,
            is_within: false,
            is_interrupted,
        };
        let ran = run_over(&plan, controllers, &mut watch);
        let replaced = watch.started.map(|it| {
            it.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        (ran, watch.is_within, replaced)
    });
    let replaced = replaced.transpose()?;
    let outcome = ran?;
    if outcome.interrupted {
        return Err(UpgradeError::Interrupted);
    }
    if replaces && !is_within {
        return Err(UpgradeError::TooShort);
    }
    let measured = Measured::of(&outcome, options.connections, replaces)?;
    Ok((measured, replaced))
}

/// Measures upgrades; calls `report_step` before each round.
///
/// # Errors
/// [`UpgradeError`]: the appliance does not start or upgrade, or a host saw an error.
pub fn measure(
    options: &UpgradeOptions,
    mut report_step: impl FnMut(&str),
    is_interrupted: &dyn Fn() -> bool,
) -> Result<UpgradeReport, UpgradeError> {
    let configuration = |socket: &Path| configuration(options, socket);
    let mut appliance = Appliance::start(&options.windlass, options.replacement, configuration)?;
    let mut rounds = Vec::with_capacity(options.rounds);
    for round in 0..options.rounds {
        report_step(&format!("round {} of {}", round + 1, options.rounds));
        let seed = 2 * round as u64 + 1;
        let (without, _) = run_once(options, &mut appliance, (seed, false), is_interrupted)?;
        let (with, replaced) = run_once(options, &mut appliance, (seed + 1, true), is_interrupted)?;
        let replaced = replaced.ok_or(UpgradeError::TooShort)?;
        rounds.push(UpgradeRound {
            pause_ns: with.pause_ns,
            usual_gap_ns: with.usual_gap_ns,
            pause_without_ns: without.pause_ns,
            held_ns: replaced.held.map_or(0, nanos),
            command_ns: nanos(replaced.took),
            connections: replaced.connections,
            blocks_right: with.blocks_right,
        });
    }
    Ok(UpgradeReport {
        machine: Machine::here(),
        replacement: options.replacement,
        memory_bytes: options.memory_bytes,
        connections: options.connections,
        depth: options.depth,
        target_cores: options.target_cores.clone(),
        host_cores: options.host_cores.clone(),
        seconds: options.time.as_secs_f64(),
        rounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> UpgradeOptions {
        UpgradeOptions {
            windlass: "/nonexistent/windlass".into(),
            to: None,
            replacement: Replacement::Upgrade,
            connections: 64,
            depth: 4,
            memory_bytes: 1 << 30,
            target_cores: vec![0, 2],
            host_cores: Vec::new(),
            rounds: 1,
            time: Duration::from_secs(1),
        }
    }

    #[test]
    fn generated_configuration_is_valid() {
        let text = configuration(&options(), Path::new("/run/control.sock"));
        let table: toml::Table = text.parse().expect("TOML");
        assert_eq!(table["appliance"]["cores"].as_str(), Some("0,2"));
        assert_eq!(table["appliance"]["memory"].as_integer(), Some(1 << 30));
        let mut options = options();
        options.target_cores.clear();
        let text = configuration(&options, Path::new("/run/control.sock"));
        let table: toml::Table = text.parse().expect("TOML");
        assert!(table["appliance"].get("cores").is_none());
    }

    #[test]
    fn missing_program_error_says_how_to_build_it() {
        let error = measure(&options(), |_| {}, &|| false).expect_err("missing");
        let text = error.to_string();
        assert!(
            text.contains("cargo build --release -p appliance"),
            "{text}"
        );
    }

    #[test]
    fn goal_is_judged_by_the_longest_pause() {
        let round = |pause_ns| UpgradeRound {
            pause_ns,
            usual_gap_ns: 1,
            pause_without_ns: 1,
            held_ns: 1,
            command_ns: 1,
            connections: 72,
            blocks_right: 10,
        };
        let report = |pauses: &[u64]| UpgradeReport {
            machine: Machine::here(),
            replacement: Replacement::Upgrade,
            memory_bytes: 1 << 30,
            connections: 64,
            depth: 4,
            target_cores: Vec::new(),
            host_cores: Vec::new(),
            seconds: 1.0,
            rounds: pauses.iter().copied().map(round).collect(),
        };
        let reached = report(&[1, PAUSE_GOAL_NS, 1]);
        assert!(reached.meets_goal());
        assert!(reached.to_string().contains("goal 100 ms: reached"));
        let missed = report(&[1, PAUSE_GOAL_NS + 1, 1]);
        assert!(!missed.meets_goal());
        assert!(missed.to_string().contains("missed"));
    }
}
