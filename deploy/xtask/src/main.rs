//! The project's own commands, run as `cargo xtask COMMAND`: checks, tests, the lab and the demo.
//!
//! It is outside the layers: no crate uses it, and it uses none.

#![forbid(unsafe_code)]

mod appliance;
mod browser;
mod citations;
mod crash;
mod demo;
mod dependencies;
mod documents;
mod fuzz;
mod interop;
mod lanes;
mod layers;
mod log;
mod metadata;
mod module_cycles;
mod monitoring;
mod package;
mod packages;
mod planted;
mod process;
mod rust_source;
mod sim;
mod steps;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need and run all of them, as continuous integration does.
    Test(steps::Options),
    /// Check that crates use only lower layers and that unsafe code is only in permitted modules.
    Layers,
    /// Build and start the appliance on its embedded default, and run a verified workload on it.
    Demo(demo::Options),
    /// Let the guest's kernel host attach to the appliance: the scenarios of deploy/interop.
    Interop(interop::Options),
    /// Take new pictures of the dashboard for the README.
    Screenshots(browser::Options),
    /// Kill the appliance under load repeatedly, and check that no data is lost.
    Crash(crash::Options),
    /// Look for inputs that break decoders and connections.
    Fuzz(fuzz::Options),
    /// Simulate the appliance with faults, seed by seed; `-- --help` lists the options.
    Sim(sim::Options),
    /// Make the Debian package.
    Package(package::Options),
    /// Run deploy/lab/lab with the given arguments.
    Lab {
        /// What deploy/lab/lab understands; put `--` before it where it begins with a dash.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Check licences, bans, sources and advisories of the dependencies with cargo-deny.
    Deny,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(options) => steps::test(&options),
        Command::Layers => layers::check_workspace(),
        Command::Demo(options) => demo::run(&options),
        Command::Interop(options) => interop::run(&options),
        Command::Screenshots(options) => browser::take_screenshots(&options),
        Command::Crash(options) => crash::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Package(options) => package::run(&options),
        Command::Lab { arguments } => {
            // The guest's command starts in the user's current directory.
            let here = std::env::current_dir().unwrap_or_else(|_| process::root());
            return process::replace_process(process::lab().args(arguments).current_dir(here));
        }
        Command::Deny => steps::deny(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
