//! `cargo xtask sim`: the appliance simulated among faults, by seeds (bench/simulation).

use std::ffi::OsString;
use std::process::Command;

use clap::Args;

use crate::planted;
use crate::process::{self, cargo};
use crate::steps::Extent;

/// Seeds that every test runs.
const SEEDS_TESTED: &str = "0..300";
/// Random seeds that follow them in the gate: a number and not a time, so that the gate says the same of
/// the same files on every machine.
const RANDOM_GATE: u32 = 150;
/// Minutes of random seeds where everything is run.
pub(crate) const MINUTES_ALL: u32 = 10;
/// Compiles the crates of this repository with their planted defects.
const PLANTING: &str = "deploy/xtask/planted-rustc";

/// What became of the planted defects.
const DEFECTS_PAGE: &str = "bench/simulation/DEFECTS.md";

/// What to simulate.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Plant defects in the appliance, one at a time, and write which were found to
    /// bench/simulation/DEFECTS.md.
    #[arg(long)]
    defects: bool,
    /// What bench/simulation understands: --seed N, --seeds A..B, --minutes N, --hours N, and what
    /// a failure says.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        conflicts_with = "defects"
    )]
    arguments: Vec<OsString>,
}

/// Builds the simulation and runs it with the options; an error when a seed fails.
///
/// It is not built for release: the assertions of the crates under test are part of the judgement.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if options.defects {
        return defects(DEFECTS_PAGE);
    }
    build(None)?;
    process::run(built().args(&options.arguments))
}

/// Looks for every planted defect and writes what was found to `page`.
fn defects(page: &str) -> Result<(), String> {
    build(Some(PLANTING))?;
    let list = process::output(built().arg("--tested"))?;
    let simulated = process::run_test(built().args(["--defects", page]));
    let tested = planted::run(&String::from_utf8_lossy(&list), PLANTING);
    simulated.and(tested)
}

/// Builds the simulation with the features that the tests are built with, so that nothing is built
/// twice; `compiler` is what compiles our own crates, where it is not the usual one.
fn build(compiler: Option<&str>) -> Result<(), String> {
    let mut cargo = compiler.map_or_else(cargo, planted::with_planted);
    cargo.args(["build", "--workspace", "--all-features"]);
    cargo.args(["--bin", "simulation"]);
    process::run(&mut cargo)
}

/// The program that was built last.
fn built() -> Command {
    process::program(process::root().join("target/debug/simulation"))
}

/// The same in the tests, which change no file of the tree.
pub(crate) fn test_defects() -> Result<(), String> {
    defects("target/DEFECTS.md")
}

/// What the tests run.
pub(crate) fn test(extent: Extent) -> Result<(), String> {
    build(None)?;
    let mut simulation = built();
    simulation.args(["--seeds", SEEDS_TESTED]);
    match extent {
        Extent::Gate => simulation.args(["--count", &RANDOM_GATE.to_string()]),
        Extent::All => simulation.args(["--minutes", &MINUTES_ALL.to_string()]),
    };
    if let Some(draw) = tree_number() {
        simulation.args(["--draw", &draw.to_string()]);
    }
    process::run_test(&mut simulation)
}

/// A number that the committed files decide: other seeds for every change, and the same ones again
/// wherever the same files are tested.
fn tree_number() -> Option<u64> {
    let mut git = process::program("git");
    let told = git.args(["rev-parse", "HEAD^{tree}"]).output().ok()?;
    let name = String::from_utf8(told.stdout).ok()?;
    u64::from_str_radix(name.get(..16)?, 16).ok()
}
