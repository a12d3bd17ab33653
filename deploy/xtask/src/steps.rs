//! `cargo xtask test`: runs the project's checks in order and prints a table of the results.
//!
//! Without options it runs the gate: the checks that every change must pass, within 20 minutes on
//! two cores. `--all` adds the campaigns: longer searches, and guests for parts that rarely change.
//!
//! The gate runs guests and the simulation in processes of their own ([`Lane`]), beside other steps.

use std::fmt;
use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::interop::{self, Harness, SCENARIOS};
use crate::lanes::{Lane, RunningLane};
use crate::metadata::{self, Metadata};
use crate::process::{self, cargo};
use crate::{browser, demo, dependencies, documents, fuzz, layers, package, packages, sim};

/// Which steps to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leave out everything that needs the lab's guest.
    #[arg(long)]
    no_lab: bool,
    /// Run only this step, all of it (may be given several times).
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
    /// Run everything: the gate and all campaigns.
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Run these steps of the gate, and write their results to the file of `--rows`.
    #[arg(
        long,
        hide = true,
        requires = "rows",
        conflicts_with_all = ["only", "all", "no_lab"]
    )]
    lane: Option<Lane>,
    #[arg(long, hide = true, value_name = "FILE", requires = "lane")]
    rows: Option<PathBuf>,
}

/// The extent of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The checks that every change must pass.
    Gate,
    /// All checks.
    All,
}

impl Options {
    fn extent(&self) -> Extent {
        if self.all || !self.only.is_empty() {
            Extent::All
        } else {
            Extent::Gate
        }
    }
}

/// The steps, in the order they are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Install what is missing.
    Packages,
    /// Formatting.
    Fmt,
    /// Dependencies between crates, places of unsafe code.
    Layers,
    /// Documents name files and sections that exist.
    Documents,
    /// Everything compiles.
    Build,
    /// Lints.
    Clippy,
    /// What one request costs, counted exactly, against its limits.
    Cost,
    /// The appliance among simulated faults.
    Sim,
    /// The lab's tests without a guest.
    LabUnit,
    /// Build the lab's guest.
    LabBuild,
    /// The lab's tests in real guests.
    LabLive,
    /// The kernel host of a guest attaches to the appliance.
    Interop,
    /// Every Rust test.
    Test,
    /// Defects that are planted in the appliance, all of which the simulation must find.
    Defects,
    /// The documentation's links and code.
    Doc,
    /// Every order of atomic operations of the lock-free modules.
    Loom,
    /// Inputs that break decoders and connections are looked for, for a while.
    Fuzz,
    /// The Debian package and the units in it, without installing them.
    Package,
    /// The dashboard in headless Chromium, and what Prometheus' tool says of the metrics.
    Browser,
    /// The demo, once.
    Demo,
    /// Licences, bans, sources and advisories of the dependencies.
    Deny,
}

impl Step {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// Whether the step runs guests or prepares them.
    fn needs_lab(self) -> bool {
        matches!(self, Step::LabBuild | Step::LabLive | Step::Interop)
    }

    /// Description of what `--all` adds to the gate in this step; `None` if the gate runs all of
    /// it.
    fn added_by_all(self) -> Option<String> {
        match self {
            Step::Sim => Some(format!("random seeds for {} minutes", sim::MINUTES_ALL)),
            Step::Defects | Step::Doc | Step::Loom | Step::Fuzz | Step::LabLive | Step::Deny => {
                Some(format!("the step {}", self.name()))
            }
            Step::Interop => {
                let skipped_by_gate = SCENARIOS.iter().filter(|it| !it.is_in_gate());
                let names: Vec<&str> = skipped_by_gate.map(|it| it.name).collect();
                Some(format!("interop {}", names.join(", ")))
            }
            Step::Packages
            | Step::Fmt
            | Step::Layers
            | Step::Documents
            | Step::Build
            | Step::Clippy
            | Step::Cost
            | Step::LabUnit
            | Step::LabBuild
            | Step::Test
            | Step::Package
            | Step::Browser
            | Step::Demo => None,
        }
    }

    /// Whether the gate skips the whole step.
    fn is_campaign(self) -> bool {
        matches!(
            self,
            Step::Defects | Step::Doc | Step::Loom | Step::Fuzz | Step::LabLive | Step::Deny
        )
    }

    /// Whether the gate's guests can run beside the step: its result does not depend on time.
    fn may_run_beside_guests(self) -> bool {
        matches!(self, Step::Clippy | Step::Cost)
    }

    /// The lane in which the gate runs the step, if that has a process of its own.
    fn lane(self) -> Option<Lane> {
        match self {
            Step::Sim => Some(Lane::Simulation),
            _ if self.needs_lab() && !self.is_campaign() => Some(Lane::Guests),
            _ => None,
        }
    }

    /// Whether all later steps depend on the success of this step.
    fn is_prerequisite(self) -> bool {
        matches!(self, Step::Packages | Step::Build)
    }
}

/// The result of a row of the table.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    NotRun(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => write!(f, "ok"),
            Outcome::Failed(error) => write!(f, "FAILED  {error}"),
            Outcome::NotRun(reason) => write!(f, "not run  {reason}"),
        }
    }
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Outcome {
        result.map_or_else(Outcome::Failed, |()| Outcome::Passed)
    }
}

/// One row of the table.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) time: Duration,
}

/// Runs the chosen steps. Returns an error if one failed.
pub(crate) fn test(options: &Options) -> Result<(), String> {
    if let (Some(lane), Some(file)) = (options.lane, &options.rows) {
        let rows = run_lane(lane);
        let text = serde_json::to_vec(&rows).map_err(|error| error.to_string())?;
        return fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()));
    }
    let began = Instant::now();
    let rows = run_chosen(options);
    print!("{}", table(&rows, began.elapsed()));
    if options.extent() == Extent::Gate {
        print!("{}", skipped_by_gate());
    }
    let failed = rows.iter().filter(|row| row.outcome.is_failure()).count();
    if failed == 0 {
        Ok(())
    } else {
        Err(format!("{failed} step(s) failed"))
    }
}

/// Runs the chosen steps. Returns their rows.
fn run_chosen(options: &Options) -> Vec<Row> {
    let extent = options.extent();
    let is_gate = extent == Extent::Gate;
    let mut rows = Vec::new();
    let mut stopped = false;
    let mut lanes: Vec<RunningLane> = Vec::new();
    for &step in Step::value_variants() {
        let is_chosen = options.only.is_empty() || options.only.contains(&step);
        if !is_chosen || (is_gate && step.is_campaign()) {
            continue;
        }
        let reason = if stopped {
            "a step before it failed"
        } else if options.no_lab && step.needs_lab() {
            "--no-lab"
        } else {
            if is_gate && lanes.is_empty() && step.may_run_beside_guests() {
                lanes = start_lanes(options.no_lab);
            }
            if !step.may_run_beside_guests() {
                let guests = lanes.extract_if(.., |running| running.lane() == Lane::Guests);
                rows.extend(guests.flat_map(RunningLane::finish));
            }
            if is_gate && step.lane().is_some() {
                continue;
            }
            let done = run_step(step, extent, !options.no_lab);
            stopped = step.is_prerequisite() && done.iter().any(|row| row.outcome.is_failure());
            rows.extend(done);
            continue;
        };
        rows.push(Row {
            name: step.name(),
            outcome: Outcome::NotRun(reason.to_string()),
            time: Duration::ZERO,
        });
    }
    rows.extend(lanes.into_iter().flat_map(RunningLane::finish));
    rows
}

/// Starts the lanes, which are part of the gate.
fn start_lanes(no_lab: bool) -> Vec<RunningLane> {
    let lanes = Lane::value_variants().iter();
    lanes
        .filter(|lane| !no_lab || **lane != Lane::Guests)
        .map(|lane| lane.start())
        .collect()
}

/// Runs the gate's steps of a lane. Returns their rows.
fn run_lane(lane: Lane) -> Vec<Row> {
    let steps = Step::value_variants().iter();
    let of_lane = steps.filter(|step| step.lane() == Some(lane));
    of_lane
        .flat_map(|&step| run_step(step, Extent::Gate, true))
        .collect()
}

impl Outcome {
    fn is_failure(&self) -> bool {
        matches!(self, Outcome::Failed(_))
    }
}

/// Description of what `--all` adds.
fn skipped_by_gate() -> String {
    let added = Step::value_variants().iter();
    let added: Vec<String> = added.filter_map(|step| step.added_by_all()).collect();
    format!("`cargo xtask test --all` adds: {}\n", added.join("; "))
}

/// Runs one step. Returns one row, or one for each scenario.
fn run_step(step: Step, extent: Extent, with_lab: bool) -> Vec<Row> {
    let name = step.name();
    match step {
        Step::Packages => vec![timed(name, || packages::ensure_installed(with_lab))],
        Step::Fmt => vec![timed(name, || {
            process::run(cargo().args(["fmt", "--all", "--check"]))
        })],
        Step::Layers => vec![timed(name, layers::check_workspace)],
        Step::Documents => vec![timed(name, documents::check)],
        Step::Build => vec![timed(name, build)],
        Step::Clippy => vec![timed(name, clippy)],
        Step::Test => vec![timed(name, test_workspace)],
        Step::Cost => costs(),
        // The build is a step of the gate.
        Step::Sim if extent == Extent::Gate => vec![timed(name, || sim::test(extent))],
        Step::Sim => vec![timed(name, || {
            sim::prepare()?;
            sim::test(extent)
        })],
        Step::Defects => vec![timed(name, sim::test_defects)],
        Step::Doc => vec![timed(name, doc)],
        Step::Loom => vec![timed(name, loom)],
        Step::Fuzz => fuzzing(),
        Step::Package => vec![timed(name, || {
            package::check(&process::root().join("target/debug/windlass"))
        })],
        Step::Browser => vec![timed(name, || {
            browser::test(&process::root().join("target/debug"))
        })],
        Step::LabUnit => vec![timed(name, || process::run(&mut lab_tests("test_*.py")))],
        Step::LabBuild => vec![timed(name, || process::run(process::lab().arg("build")))],
        Step::LabLive => vec![timed(name, || process::run(&mut lab_tests("live_*.py")))],
        Step::Interop => interop_scenarios(extent),
        Step::Demo => vec![timed(name, demo::once)],
        Step::Deny => dependency_checks(),
    }
}

/// Runs the work of one step with a heading and measures its time.
fn timed(name: String, work: impl FnOnce() -> Result<(), String>) -> Row {
    timed_outcome(name, || Outcome::from(work()))
}

/// Like [`timed`], for work that cannot always be done.
fn timed_outcome(name: String, work: impl FnOnce() -> Outcome) -> Row {
    println!("\n=== {name}");
    let began = Instant::now();
    let outcome = work();
    Row {
        name,
        outcome,
        time: began.elapsed(),
    }
}

/// Builds tests and binaries, which the later steps use.
fn build() -> Result<(), String> {
    let tests = ["test", "--workspace", "--all-features", "--no-run"];
    process::run(cargo().args(tests))?;
    // The simulation, too.
    process::run(&mut interop::build(false))
}

/// Tests at a time on each core, of which most wait most of the time.
const TESTS_PER_CORE: usize = 2;

/// Runs every Rust test.
fn test_workspace() -> Result<(), String> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut tests = cargo();
    tests.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
    tests.env("RUST_TEST_THREADS", (TESTS_PER_CORE * cores).to_string());
    process::run_test(&mut tests)
}

fn clippy() -> Result<(), String> {
    let lints = ["clippy", "--workspace", "--all-targets", "--all-features"];
    process::run(&mut process::niced(
        cargo().args(lints).args(["--", "-D", "warnings"]),
    ))?;
    // The appliance in the configuration without RDMA's headers.
    let bare = ["clippy", "-p", "appliance", "--no-default-features"];
    process::run(&mut process::niced(
        cargo().args(bare).args(["--", "-D", "warnings"]),
    ))
}

/// The subjects of `measure cost`, and their committed baselines; without a baseline, the results of
/// a subject are compared with each other.
const COSTS: [(&str, Option<&str>); 7] = [
    ("driver", Some("bench/baselines/cost-driver.json")),
    ("rdma", Some("bench/baselines/cost-rdma.json")),
    (
        "drive-memory",
        Some("bench/baselines/cost-drive-memory.json"),
    ),
    ("tcp", Some("bench/baselines/cost-tcp.json")),
    ("tcp-host", Some("bench/baselines/cost-tcp-host.json")),
    ("files", Some("bench/baselines/cost-files.json")),
    ("growth", None),
];

/// One row for each subject, with its instructions, allocations and so on compared with the goals
/// and the committed baselines.
fn costs() -> Vec<Row> {
    // With the packages of the demo, which then reuses them: with other packages the features differ.
    let build = || {
        process::run(&mut process::niced(
            demo::build(true).args(["-p", "measurement"]),
        ))
    };
    let built = timed("cost build".to_string(), build);
    if built.outcome.is_failure() {
        return vec![built];
    }
    let check = |(subject, baseline): &(&str, Option<&str>)| {
        timed(format!("cost {subject}"), || {
            let root = process::root();
            let mut measure = process::program(root.join("target/release/measure"));
            measure.args(["cost", subject, "--check"]);
            if let Some(baseline) = baseline {
                measure.arg("--baseline").arg(root.join(baseline));
            }
            process::run_test(&mut measure)
        })
    };
    std::iter::once(built)
        .chain(COSTS.iter().map(check))
        .collect()
}

fn doc() -> Result<(), String> {
    let mut cargo = cargo();
    cargo.args(["doc", "--workspace", "--all-features", "--no-deps"]);
    process::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The crates whose unit tests contain loom models: they depend on it with `cfg(loom)`.
fn crates_with_loom_models(metadata: &Metadata) -> Vec<&str> {
    let has_models = |package: &&metadata::Package| {
        package
            .dependencies
            .iter()
            .any(|used| used.name == "loom" && used.target.as_deref() == Some("cfg(loom)"))
    };
    metadata
        .packages
        .iter()
        .filter(has_models)
        .map(|package| package.name.as_str())
        .collect()
}

fn loom() -> Result<(), String> {
    let metadata = metadata::of_workspace()?;
    let crates = crates_with_loom_models(&metadata);
    if crates.is_empty() {
        println!("loom: no crate has models under cfg(loom)");
        return Ok(());
    }
    let mut cargo = cargo();
    // Other flags would rebuild everything else, so these builds have a separate directory.
    cargo.args(["test", "--lib", "--release", "--target-dir", "target/loom"]);
    cargo
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    process::run(cargo.args(crates.iter().flat_map(|name| ["-p", name])))
}

/// One row for the build and one for each target.
fn fuzzing() -> Vec<Row> {
    let mut fuzzer = None;
    let built = timed("fuzz build".to_string(), || {
        fuzzer = Some(fuzz::Fuzzer::build()?);
        Ok(())
    });
    let Some(fuzzer) = fuzzer else {
        return vec![built];
    };
    let test = |target: &&str| timed(format!("fuzz {target}"), || fuzzer.test(target));
    std::iter::once(built)
        .chain(fuzz::TARGETS.iter().map(test))
        .collect()
}

fn lab_tests(pattern: &str) -> std::process::Command {
    let mut python = process::program("python3");
    python.args([
        "-B",
        "-m",
        "unittest",
        "discover",
        "-v",
        "-s",
        "deploy/lab/tests",
    ]);
    python.args(["-t", "deploy/lab", "-p", pattern]);
    python
}

fn interop_scenarios(extent: Extent) -> Vec<Row> {
    let harness = Harness::of_repository(false, false);
    let run = |scenario: &interop::Scenario| {
        timed(format!("interop {}", scenario.name), || {
            scenario.build_guest(false)?;
            harness.run(scenario)
        })
    };
    let chosen = SCENARIOS.iter();
    let chosen = chosen.filter(|it| extent == Extent::All || it.is_in_gate());
    chosen.map(run).collect()
}

/// The summary.
fn table(rows: &[Row], total: Duration) -> String {
    let width = rows
        .iter()
        .map(|row| row.name.len())
        .max()
        .unwrap_or(0)
        .max("total".len());
    let mut text = String::from("\n=== summary\n");
    for Row {
        name,
        outcome,
        time,
    } in rows
    {
        text += &format!("{name:width$} {:8.1} s  {outcome}\n", time.as_secs_f64());
    }
    text += &format!("{:width$} {:8.1} s\n", "total", total.as_secs_f64());
    text
}

/// One row for the installation of cargo-deny, one for licences, bans and sources, and one for
/// advisories, whose database may be unavailable.
fn dependency_checks() -> Vec<Row> {
    let provided = timed("deny build".to_string(), dependencies::provide);
    if provided.outcome.is_failure() {
        return vec![provided];
    }
    let checked = timed("deny".to_string(), dependencies::check);
    let advisories =
        timed_outcome(
            "deny advisories".to_string(),
            || match dependencies::check_advisories() {
                Ok(true) => Outcome::Passed,
                Ok(false) => {
                    Outcome::NotRun("the database of advisories cannot be fetched".to_string())
                }
                Err(error) => Outcome::Failed(error),
            },
        );
    vec![provided, checked, advisories]
}

/// Runs the checks of the dependencies. Returns an error if one failed.
pub(crate) fn deny() -> Result<(), String> {
    let began = Instant::now();
    let rows = dependency_checks();
    print!("{}", table(&rows, began.elapsed()));
    let failed = rows.iter().any(|row| row.outcome.is_failure());
    if failed {
        Err("a check failed".to_string())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Package};

    fn row(name: &str, outcome: Outcome) -> Row {
        Row {
            name: name.into(),
            outcome,
            time: Duration::from_millis(1500),
        }
    }

    #[test]
    fn step_table_has_one_line_per_step_and_a_total() {
        let rows = [
            row("fmt", Outcome::Passed),
            row("clippy", Outcome::Failed("`x` exited with 1".into())),
            row("demo", Outcome::NotRun("a step before it failed".into())),
        ];
        let text = table(&rows, Duration::from_secs(90));
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "fmt         1.5 s  ok",
                "clippy      1.5 s  FAILED  `x` exited with 1",
                "demo        1.5 s  not run  a step before it failed",
                "total      90.0 s",
            ]
        );
    }

    #[test]
    fn failed_step_becomes_a_row() {
        let failed = timed("x".into(), || Err("reason".into()));
        assert!(failed.outcome.is_failure());
        assert_eq!(timed("y".into(), || Ok(())).outcome, Outcome::Passed);
        assert!(!Outcome::NotRun("z".into()).is_failure());
    }

    #[test]
    fn step_names_match_the_command_line() {
        let names: Vec<String> = Step::value_variants()
            .iter()
            .map(|step| step.name())
            .collect();
        assert!(names.contains(&"lab-live".to_string()) && names.contains(&"fmt".to_string()));
        assert!(names.iter().all(|name| !name.is_empty()));
    }

    #[test]
    fn every_campaign_is_described() {
        let text = skipped_by_gate();
        let words: Vec<&str> = text.split([' ', ',', ';', '\n']).collect();
        for step in Step::value_variants() {
            assert!(!step.is_campaign() || words.contains(&step.name().as_str()));
        }
        for scenario in SCENARIOS {
            let name = scenario.name;
            assert_ne!(scenario.is_in_gate(), words.contains(&name), "{name}");
        }
    }

    #[test]
    fn loom_crates_are_found_by_their_dependency() {
        let package = |name: &str, target: Option<&str>| Package {
            name: name.into(),
            manifest_path: String::new(),
            dependencies: vec![Dependency {
                name: "loom".into(),
                kind: None,
                target: target.map(Into::into),
                path: None,
            }],
            targets: Vec::new(),
        };
        let metadata = Metadata {
            packages: vec![
                package("a", Some("cfg(loom)")),
                package("b", None),
                package("c", None),
            ],
        };
        assert_eq!(crates_with_loom_models(&metadata), ["a"]);
    }
}
