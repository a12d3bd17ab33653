//! `measure storm`: one busy connection beside many others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::compare::windlass_beside_this_binary;
use crate::storm::{StormOptions, measure};
use bench::report::save_json;
use clap::Args;

use super::{Failure, at_least_one, parse_seconds};

#[derive(Debug, Args)]
pub(crate) struct StormArgs {
    /// Idle connections; hosts of one address get no more than about 1,530
    #[arg(long, default_value_t = 1500, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..))]
    idle: u16,
    /// Connections opened and closed per second
    #[arg(long, default_value_t = 1000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    connects: u32,
    /// Rounds, of which medians are taken
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Counted seconds of each measurement in a round
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Core of the target
    #[arg(long, default_value_t = 0)]
    target_core: usize,
    /// Core of the busy host
    #[arg(long, default_value_t = 1)]
    host_core: usize,
    /// Fail if the busy connection has less than this part of its rate beside the idle ones
    #[arg(long, value_name = "RATIO")]
    at_least: Option<f64>,
    /// Fail if the latency limits beside greedy hosts are exceeded
    #[arg(long)]
    check: bool,
    /// Path of the appliance's binary; by default in the directory of this one
    #[arg(long, value_name = "FILE")]
    windlass: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
}

pub(super) fn execute(args: &StormArgs) -> Result<ExitCode, Failure> {
    let options = StormOptions {
        windlass: args
            .windlass
            .clone()
            .unwrap_or_else(windlass_beside_this_binary),
        target_core: args.target_core,
        host_core: args.host_core,
        rounds: args.rounds,
        duration: args.time,
        idle: args.idle,
        connects_per_second: args.connects,
    };
    let report = measure(&options, |step| eprintln!("  {step}"))?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    if args.check
        && let Some(broken) = report.beside.iter().find(|row| !row.kept)
    {
        let (others, promise) = (&broken.others, &broken.promise);
        return Err(format!("beside {others}: {promise} was not kept").into());
    }
    match args.at_least {
        Some(least) if report.idle_ratio() < least => {
            let ratio = report.idle_ratio();
            Err(format!("the busy connection has {ratio:.3} of its rate, less than {least}").into())
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
