//! The commands, their options and their output.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::compare::suite::{self, SuiteOptions, compare_all};
use crate::compare::{CompareOptions, compare_tcp, windlass_beside_this_binary};
use crate::cpu_limit;
use crate::leftovers::{self, Registration};
use bench::arguments::{
    Failure, at_least_one, parse_region, parse_report_file, parse_seconds, parse_seconds_or_none,
    show,
};
use clap::{Args, Parser, Subcommand, ValueEnum};

mod ceiling;
mod cost;
mod device_memory;
mod drive;
mod files;
mod scale;
mod start;
mod storm;
mod transfers;

/// Measures what Windlass costs, and compares it with ceilings and peers
#[derive(Debug, Parser)]
#[command(name = "measure", version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure requests per second over the number of reactors of the target, or of connections
    Scale(scale::ScaleArgs),
    /// Measure a bare socket pair, or bare verbs, with the same bytes in the same pattern
    Ceiling(ceiling::CeilingArgs),
    /// Compare our target with the ceilings, in one run on the same two cores
    Compare(CompareArgs),
    /// Count the exact cost of one request: instructions by stage, system calls, allocations
    Cost(cost::CostArgs),
    /// Measure what one core serves of files, beside NVMe/TCP
    Files(files::FilesArgs),
    /// Compare transfers over RDMA: by WRITE, by READ, within messages; and the cost of
    /// registration
    Transfers(transfers::TransfersArgs),
    /// Measure the time from exec of the appliance to its first connection, and the time to touch
    /// its memory
    Start(start::StartArgs),
    /// Measure one connection beside thousands that are idle, or that connect and disconnect
    Storm(storm::StormArgs),
    /// Measure copies through the memory of a drive, and through that of the machine, and how much
    /// both slow down other work
    DeviceMemory(device_memory::DeviceMemoryArgs),
    /// Measure random reads from a real drive with our own driver
    Drive(drive::DriveArgs),
}

/// The subject of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ComparedArg {
    /// 4 KiB reads over TCP, deep and one at a time, in detail
    Tcp,
    /// Every figure over TCP that there is a goal for
    All,
    /// TLS beside the same target without it
    Trust,
}

/// Default CPU share of the target in rows with a limited share, in percent.
const PART_PERCENT: u32 = 50;

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// What is compared
    #[arg(value_enum)]
    compared: ComparedArg,
    /// Rounds, of which medians are taken; default 9 for tcp, 5 for all
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    rounds: Option<usize>,
    /// With all, only these rows
    #[arg(long, value_name = "ROW,…", value_delimiter = ',',
        value_parser = clap::builder::PossibleValuesParser::new(suite::row_names()))]
    rows: Vec<String>,
    /// With all, directory of a temporary file of 256 MiB on the file system to be measured; by
    /// default the directory of temporary files
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Counted seconds of each measurement in a round
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Core of the target and of the pair's responding side
    #[arg(long, default_value_t = 0)]
    target_core: usize,
    /// Core of the host and of the pair's requesting side
    #[arg(long, default_value_t = 1)]
    host_core: usize,
    /// With all, CPU share in percent of the target and of the pair's responding side in rows with
    /// a limited share; default 50
    #[arg(long, value_name = "PERCENT",
        value_parser = clap::value_parser!(u32).range(i64::from(cpu_limit::PERCENT_MIN)..=100))]
    cpu_max: Option<u32>,
    /// Size of the RAM namespace, and of the memory that the bare pair sends from
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = parse_region)]
    namespace_size: u64,
    /// Path of the appliance's binary; by default in the directory of this one
    #[arg(long, value_name = "FILE")]
    windlass: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = parse_report_file)]
    json: Option<PathBuf>,
}

/// Runs `command` to its end.
pub(crate) fn execute(command: Command) -> Result<ExitCode, Failure> {
    if let Command::Compare(_) | Command::Scale(_) | Command::Start(_) | Command::Storm(_) = command
    {
        // These commands start an appliance and create files for it.
        leftovers::remove_on_signals()?;
    }
    match command {
        Command::Ceiling(args) => ceiling::execute(&args),
        Command::Compare(args) => execute_compare(&args),
        Command::Cost(args) => cost::execute(&args),
        Command::Files(args) => files::execute(&args),
        Command::Transfers(args) => transfers::execute(&args),
        Command::Scale(args) => scale::execute(&args),
        Command::Start(args) => start::execute(&args),
        Command::Storm(args) => storm::execute(&args),
        Command::DeviceMemory(args) => device_memory::execute(&args),
        Command::Drive(args) => drive::execute(&args),
    }
}

fn execute_compare(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let rounds = args.rounds.unwrap_or(match args.compared {
        ComparedArg::Tcp => 9,
        ComparedArg::All | ComparedArg::Trust => 5,
    });
    let of_all = [
        ("--rows", !args.rows.is_empty()),
        ("--folder", args.folder.is_some()),
        ("--cpu-max", args.cpu_max.is_some()),
    ];
    if args.compared != ComparedArg::All
        && let Some((name, _)) = of_all.into_iter().find(|(_, given)| *given)
    {
        return Err(format!("{name} is for `measure compare all`").into());
    }
    let common = CompareOptions {
        windlass: args
            .windlass
            .clone()
            .unwrap_or_else(windlass_beside_this_binary),
        target_core: args.target_core,
        host_core: args.host_core,
        rounds,
        duration: args.time,
        warm_up: Duration::from_millis(300),
        namespace_bytes: args.namespace_size,
        starts: 5,
    };
    let report_step = |step: &str| eprintln!("  {step}");
    match args.compared {
        ComparedArg::Tcp => show(&compare_tcp(&common, report_step)?, args.json.as_deref()),
        ComparedArg::All | ComparedArg::Trust => {
            let only = match args.compared {
                ComparedArg::Trust => suite::trust_row_names(),
                ComparedArg::All | ComparedArg::Tcp => Vec::new(),
            };
            let only = only.into_iter().map(str::to_owned);
            let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
            // A separate directory, which is removed with its content even after a signal.
            let own = tempfile::tempdir_in(&folder).map_err(|error| {
                format!("no files can be made in {}: {error}", folder.display())
            })?;
            let _registration = Registration::folder(own.path());
            let options = SuiteOptions {
                common,
                folder: own.path().to_owned(),
                only: only.chain(args.rows.iter().cloned()).collect(),
                part_percent: args.cpu_max.unwrap_or(PART_PERCENT),
            };
            show(&compare_all(&options, report_step)?, args.json.as_deref())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn refused(arguments: &[&str]) -> String {
        let all = ["measure"].iter().chain(arguments);
        Arguments::try_parse_from(all)
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_ignored_by_a_comparison_are_refused() {
        for option in ["--rows=idle", "--folder=/tmp", "--cpu-max=20"] {
            for compared in ["tcp", "trust"] {
                let all = ["measure", "compare", compared, option];
                let command = Arguments::try_parse_from(all).expect("well formed").command;
                let error = execute(command).expect_err("refused").to_string();
                assert!(error.contains("is for `measure compare all`"), "{error}");
            }
        }
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (arguments, part) in [
            (&["ceiling", "carrier-pigeon"][..], "tcp"),
            (&["ceiling", "tcp", "--memory", "lots"], "is not a size"),
            (&["compare", "tcp", "--namespace-size", ""], "is not a size"),
            (&["storm", "--json", "/"], "that is a folder"),
            (&["storm", "--rounds", "0"], "a number from 1"),
            (&["storm", "--idle", "0"], "0 is not in 1.."),
            (&["storm", "--connects", "0"], "0 is not in 1.."),
            (&["transfers", "--rounds", "0"], "a number from 1"),
            (&["start", "--exports", "0"], "a number from 1"),
            (&["compare", "all", "--rounds", "0"], "a number from 1"),
        ] {
            let text = refused(arguments);
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
    }
}
