//! `cargo xtask sim`: the appliance simulated among faults, by seeds (bench/simulation).

use std::ffi::OsString;

use clap::Args;

use crate::process::{self, cargo};

/// What is run in the tests: always the same seeds, and random ones for the rest of the time.
const TESTED: [&str; 4] = ["--seeds", "0..600", "--minutes", "2"];

/// What to simulate.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What bench/simulation understands: --seed N, --seeds A..B, --minutes N, --hours N, and what
    /// a failure says.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Builds the simulation and runs it with the options; an error when a seed fails.
///
/// It is not built for release: the assertions of the crates under test are part of the judgement.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut cargo = cargo();
    cargo.args(["run", "-p", "simulation", "--"]);
    process::run(cargo.args(&options.arguments))
}

/// What the tests run: with the features that they are built with, so that nothing is built twice.
pub(crate) fn test() -> Result<(), String> {
    let build = ["build", "--workspace", "--all-features", "--bin"];
    process::run(cargo().args(build).arg("simulation"))?;
    let program = process::root().join("target/debug/simulation");
    process::run(process::program(program).args(TESTED))
}
