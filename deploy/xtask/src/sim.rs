//! `cargo xtask sim`: simulates the appliance with faults, by seeds (bench/simulation).

use std::ffi::OsString;
use std::process::Command;

use clap::Args;

use crate::planted;
use crate::process::{self, cargo};
use crate::steps::Extent;

/// Seeds that every test runs.
const SEEDS_TESTED: &str = "0..300";
/// Number of additional random seeds in the gate. It is a count and not a time, so that the gate
/// has the same result for the same files on every machine.
const RANDOM_GATE: u32 = 150;
/// Minutes of random seeds if the whole step is run.
pub(crate) const MINUTES_ALL: u32 = 10;
/// The file with the results of planted defects.
const DEFECTS_PAGE: &str = "bench/simulation/DEFECTS.md";
/// The same where it is not to be committed.
const DEFECTS_PAGE_SCRATCH: &str = "target/DEFECTS.md";

/// The options of the simulation.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Plant defects in the appliance, one at a time, and write which were found to
    /// bench/simulation/DEFECTS.md.
    #[arg(long)]
    defects: bool,
    /// With --defects: look for these alone, and write to target/DEFECTS.md.
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "defects")]
    only: Vec<String>,
    /// What bench/simulation understands: --seed N, --seeds A..B, --minutes N, --hours N, and what
    /// a failure says.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        conflicts_with = "defects"
    )]
    arguments: Vec<OsString>,
}

/// Builds the simulation and runs it with the options. Returns an error if a seed fails.
///
/// It is a debug build, because the assertions of the crates under test are part of the judgement.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if options.defects {
        let page = match options.only.is_empty() {
            true => DEFECTS_PAGE,
            false => DEFECTS_PAGE_SCRATCH,
        };
        return defects(page, &options.only);
    }
    build(cargo())?;
    process::run(built().args(&options.arguments))
}

/// Looks for every planted defect, or for those of `only`, and writes what was found to `page`.
fn defects(page: &str, only: &[String]) -> Result<(), String> {
    planted::check_names(only)?;
    planted::plant()?;
    build(planted::cargo_in_copy())?;
    let list = process::output(built().arg("--tested"))?;
    let list = String::from_utf8_lossy(&list);
    let mut simulated = Ok(());
    if planted::needs_simulation(&list, only) {
        let mut simulation = built();
        simulation.args(["--defects", page]);
        if !only.is_empty() {
            simulation.args(["--only", &only.join(",")]);
        }
        simulated = process::run_test(&mut simulation);
    }
    let tested = planted::run(&list, only);
    simulated.and(tested)
}

/// Builds the simulation with the features of the tests, so that nothing is built twice: cargo adds those
/// of dev-dependencies where examples are built.
fn build(mut cargo: Command) -> Result<(), String> {
    cargo.args(["build", "--workspace", "--all-features"]);
    cargo.args(["--bin", "simulation", "--examples"]);
    process::run(&mut cargo)
}

/// The last built program.
fn built() -> Command {
    process::program(process::root().join("target/debug/simulation"))
}

/// Searches for planted defects as a test, which changes no file of the work tree.
pub(crate) fn test_defects() -> Result<(), String> {
    defects(DEFECTS_PAGE_SCRATCH, &[])
}

/// Builds the simulation.
pub(crate) fn prepare() -> Result<(), String> {
    build(cargo())
}

/// Runs the simulation, which is [prepared](prepare), as a test, beside whatever else runs.
pub(crate) fn test(extent: Extent) -> Result<(), String> {
    let mut simulation = built();
    simulation.args(["--seeds", SEEDS_TESTED]);
    match extent {
        Extent::Gate => simulation.args(["--count", &RANDOM_GATE.to_string()]),
        Extent::All => simulation.args(["--minutes", &MINUTES_ALL.to_string()]),
    };
    if let Some(draw) = tree_number() {
        simulation.args(["--draw", &draw.to_string()]);
    }
    process::run_test(&mut process::killed_with_parent(&process::idle(
        &simulation,
    )))
}

/// A number that depends on the committed files: every change tests other seeds, and the same files
/// always test the same seeds.
fn tree_number() -> Option<u64> {
    let mut git = process::program("git");
    let output = git.args(["rev-parse", "HEAD^{tree}"]).output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    u64::from_str_radix(name.get(..16)?, 16).ok()
}
