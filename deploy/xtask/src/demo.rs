//! `cargo xtask demo`: builds the appliance and the load generator, and lets the latter show both.

use std::ffi::OsString;
use std::process::Command;

use clap::Args;

use crate::process;

/// What the demo is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// End after the workload instead of serving until Ctrl-C.
    #[arg(long)]
    once: bool,
    /// Further arguments of `bench demo`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Builds both, and returns what runs the demo of `bench` on the appliance that was built.
pub(crate) fn build(options: &Options) -> Result<Command, String> {
    println!("demo: building the appliance and the load generator");
    process::run(process::cargo().args(["build", "--release", "-p", "appliance", "-p", "bench"]))?;
    let binaries = process::root().join("target/release");
    let mut demo = process::program(binaries.join("bench"));
    demo.arg("demo")
        .arg("--appliance")
        .arg(binaries.join("windlass"));
    demo.args(options.once.then_some("--once"))
        .args(&options.arguments);
    Ok(demo)
}

/// The demo as a test.
pub(crate) fn once() -> Result<(), String> {
    let options = Options {
        once: true,
        arguments: Vec::new(),
    };
    process::run(&mut build(&options)?)
}
