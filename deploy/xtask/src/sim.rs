//! `cargo xtask sim`: the appliance simulated among faults, by seeds (bench/simulation).

use std::ffi::OsString;

use clap::Args;

use crate::process::{self, cargo};

/// What is run in the tests: always the same seeds, and random ones for the rest of the time.
const TESTED: [&str; 4] = ["--seeds", "0..300", "--minutes", "2"];
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
    let mut cargo = cargo();
    cargo.args(["run", "-p", "simulation", "--"]);
    process::run(cargo.args(&options.arguments))
}

/// Looks for every planted defect and writes what was found to `page`. Other flags would rebuild
/// everything else, so this build has a folder of its own.
fn defects(page: &str) -> Result<(), String> {
    let mut cargo = cargo();
    cargo.env("RUSTFLAGS", "--cfg planted");
    cargo.args(["run", "-p", "simulation", "--target-dir", "target/planted"]);
    process::run_test(cargo.args(["--", "--defects", page]))
}

/// The same in the tests, which change no file of the tree.
pub(crate) fn test_defects() -> Result<(), String> {
    defects("target/planted/DEFECTS.md")
}

/// What the tests run: with the features that they are built with, so that nothing is built twice.
pub(crate) fn test() -> Result<(), String> {
    let build = ["build", "--workspace", "--all-features", "--bin"];
    process::run(cargo().args(build).arg("simulation"))?;
    let program = process::root().join("target/debug/simulation");
    let mut simulation = process::program(program);
    simulation.args(TESTED);
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
