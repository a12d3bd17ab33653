//! `measure start`: measures the start of the appliance.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::compare::windlass_beside_this_binary;
use crate::start::{StartOptions, measure};
use bench::report::save_json;
use clap::Args;

use super::{Failure, at_least_one, parse_region};

#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The arena, in pages of 2 MiB: sysctl vm.nr_hugepages=528 reserves enough for 1 GiB and 16
    /// exports
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = parse_region)]
    memory: u64,
    /// Exports, each with a RAM namespace of 2 MiB
    #[arg(long, default_value_t = 16, value_parser = at_least_one)]
    exports: usize,
    /// Rounds, of which medians are taken
    #[arg(long, default_value_t = 15, value_parser = at_least_one)]
    rounds: usize,
    /// Rounds before those, for memory that a hypervisor has not backed yet
    #[arg(long, default_value_t = 2)]
    warm_ups: usize,
    /// Fail when the median to the first connection is not below 50 ms
    #[arg(long)]
    check: bool,
    /// Path of the appliance's binary; by default in the directory of this one
    #[arg(long, value_name = "FILE")]
    windlass: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
}

pub(crate) fn execute(args: &StartArgs) -> Result<ExitCode, Failure> {
    let windlass = args.windlass.clone();
    let options = StartOptions {
        windlass: windlass.unwrap_or_else(windlass_beside_this_binary),
        memory_bytes: args.memory,
        exports: args.exports,
        rounds: args.rounds,
        warm_ups: args.warm_ups,
    };
    let report = measure(&options, |step| eprintln!("  {step}"))?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(if args.check && !report.meets_goal() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
