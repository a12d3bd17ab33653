//! `bench upgrade`: measures the pause of hosts while the process of an appliance is replaced.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::arguments::{at_least_one, parse_report_file};
use crate::report::save_json;
use crate::upgrade::{Replacement, UpgradeOptions, measure};
use clap::Args;

use super::run_watcher::RunWatcher;
use super::{Failure, parse_region, parse_seconds};

pub(super) const EXAMPLES: &str = "\
Examples:
  # 64 connections and 1 GiB of memory, five times; this machine's cores as the system chooses.
  windlass bench upgrade

  # The reactor on one core, the host on another.
  windlass bench upgrade --target-cores 0 --host-cores 1 --json upgrade.json

  # A restart of the service, whose state the descriptor store has meanwhile.
  windlass bench upgrade --restart

  # From the installed version to a new one.
  windlass bench upgrade --windlass /usr/bin/windlass --to ./windlass";

/// Places of the appliance's program relative to the directory of this one: beside it in a build,
/// and in the package.
const PLACES: [&str; 2] = ["windlass", "../../bin/windlass"];

#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// Connections with I/O, eight of each controller
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Requests in flight on each of them
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=128))]
    depth: u16,
    /// The appliance's arena
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = parse_region)]
    memory: u64,
    /// Cores of its reactors; by default those that it chooses
    #[arg(long, value_name = "CORE,…", value_delimiter = ',')]
    target_cores: Vec<usize>,
    /// Cores of the host's threads; by default one thread on any core
    #[arg(long, value_name = "CORE,…", value_delimiter = ',')]
    host_cores: Vec<usize>,
    /// Rounds, each of them one load without an upgrade and one with it
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Seconds of each load
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = parse_seconds)]
    time: Duration,
    /// The appliance's program; by default the one that is installed with this one
    #[arg(long, value_name = "FILE")]
    windlass: Option<PathBuf>,
    /// The program of the new process; by default the same
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Restart the process, as `systemctl restart` does, instead of an upgrade
    #[arg(long)]
    restart: bool,
    /// Fail when a pause is longer than 100 ms
    #[arg(long)]
    check: bool,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = parse_report_file)]
    json: Option<PathBuf>,
}

/// The program of the appliance beside this one.
fn installed_windlass() -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    let directory = this.parent().unwrap_or(Path::new("."));
    let places = PLACES.map(|place| directory.join(place));
    let found = places.iter().find(|place| place.is_file()).cloned();
    found.unwrap_or_else(|| directory.join(PLACES[0]))
}

pub(super) fn execute(args: &UpgradeArgs) -> Result<ExitCode, Failure> {
    let absolute = |path: &PathBuf| std::path::absolute(path);
    let options = UpgradeOptions {
        windlass: args.windlass.clone().unwrap_or_else(installed_windlass),
        to: args.to.as_ref().map(absolute).transpose()?,
        replacement: match args.restart {
            true => Replacement::Restart,
            false => Replacement::Upgrade,
        },
        connections: args.connections,
        depth: args.depth,
        memory_bytes: args.memory,
        target_cores: args.target_cores.clone(),
        host_cores: args.host_cores.clone(),
        rounds: args.rounds,
        time: args.time,
    };
    let watcher = RunWatcher::begin(false)?;
    let is_interrupted = || watcher.interrupted();
    let report = measure(&options, |step| eprintln!("  {step}"), &is_interrupted)?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(match args.check && !report.meets_goal() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}
