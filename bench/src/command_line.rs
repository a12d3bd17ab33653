//! The commands, their options and their output.

use std::error::Error;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::compare::suite::{self, SuiteOptions, compare_all};
use bench::compare::{CompareOptions, compare_tcp, windlass_beside_this_binary};
use bench::cpu_limit;
use bench::leftovers::{self, Known};
use bench::report::save_json;
use bench::units::parse_size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

mod ceiling;
mod cost;
mod diff;
mod drive;
mod job;
mod run;
mod scale;
mod start;
mod storm;
mod sweep;
mod target;
mod transfers;
mod watching;

type Failure = Box<dyn Error>;

/// Measures and verifies NVMe over Fabrics targets, and what stands behind ours.
#[derive(Debug, Parser)]
#[command(name = "bench", version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put load on a target, and verify it where told
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::RunArgs>),
    /// One load at several strengths: throughput over depth, or latency over load
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(Box<sweep::SweepArgs>),
    /// Requests a second over the target's reactors, or over connections
    Scale(scale::ScaleArgs),
    /// What a bare socket pair, or bare verbs, do with the same bytes in the same pattern
    Ceiling(ceiling::CeilingArgs),
    /// Our target beside the ceilings, in one run on the same two cores
    Compare(CompareArgs),
    /// List the subsystems that a target offers
    Discover(target::DiscoverArgs),
    /// What one request costs us, counted exactly: instructions by stage, system calls, allocations
    Cost(cost::CostArgs),
    /// How data is best moved by RDMA: by WRITE, by READ, within messages; and what registering
    /// costs
    Transfers(transfers::TransfersArgs),
    /// How long the appliance takes from exec to its first connection, beside touching its memory
    Start(start::StartArgs),
    /// Reads over one connection beside thousands that are idle, or that come and go
    Storm(storm::StormArgs),
    /// Random reads from a real drive by our own driver
    Drive(drive::DriveArgs),
    /// What differs between two reports
    Diff(diff::DiffArgs),
}

/// The subject of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ComparedArg {
    /// 4 KiB reads over TCP, deep and one at a time, in detail
    Tcp,
    /// Every figure over TCP that there is a goal for
    All,
}

/// Default CPU share of the target in rows with a limited share, in percent.
const PART_PERCENT: u32 = 50;

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// What is compared
    #[arg(value_enum)]
    compared: ComparedArg,
    /// Rounds, of which medians are taken; else 9 for tcp, 5 for all
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    rounds: Option<usize>,
    /// With all, these rows alone
    #[arg(long, value_name = "ROW,…", value_delimiter = ',',
        value_parser = clap::builder::PossibleValuesParser::new(suite::row_names()))]
    rows: Vec<String>,
    /// With all, where a file of 256 MiB is made for a while, on the file system to be measured;
    /// else where temporary files go
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Counted seconds of each measurement in a round
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Core of the target and of the pair's answering side
    #[arg(long, default_value_t = 0)]
    target_core: usize,
    /// Core of the host and of the pair's asking side
    #[arg(long, default_value_t = 1)]
    host_core: usize,
    /// With all, the per cent of its core that the target has, and the pair's answering side, in
    /// the rows that give them a part; else 50
    #[arg(long, value_name = "PERCENT",
        value_parser = clap::value_parser!(u32).range(i64::from(cpu_limit::PERCENT_MIN)..=100))]
    cpu_max: Option<u32>,
    /// Size of the RAM namespace, and of the memory that the bare pair sends from
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = parse_region)]
    namespace_size: u64,
    /// The appliance's binary; else the one beside this
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
        Command::Run(args) => run::execute(&args),
        Command::Ceiling(args) => ceiling::execute(&args),
        Command::Compare(args) => execute_compare(&args),
        Command::Discover(args) => target::execute_discover(&args),
        Command::Cost(args) => cost::execute(&args),
        Command::Transfers(args) => transfers::execute(&args),
        Command::Sweep(args) => sweep::execute(&args),
        Command::Scale(args) => scale::execute(&args),
        Command::Start(args) => start::execute(&args),
        Command::Storm(args) => storm::execute(&args),
        Command::Drive(args) => drive::execute(&args),
        Command::Diff(args) => diff::execute(&args),
    }
}

fn parse_region(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("give a number from 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// Parses the path of a report file. It is better to reject it before the measurement than
/// afterwards.
fn parse_report_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() {
        return Err("that is a folder: name a file".to_owned());
    }
    match path.parent() {
        Some(folder) if folder != Path::new("") && !folder.is_dir() => {
            Err(format!("there is no folder {}", folder.display()))
        }
        _ => Ok(path),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match parse_seconds_or_none(text)? {
        Duration::ZERO => Err("give more than 0 seconds".to_owned()),
        time => Ok(time),
    }
}

fn parse_seconds_or_none(text: &str) -> Result<Duration, String> {
    let malformed = || format!("'{text}' is not a number of seconds");
    let seconds: f64 = text
        .trim_end_matches('s')
        .trim()
        .parse()
        .map_err(|_| malformed())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| malformed())
}

fn execute_compare(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let rounds = args.rounds.unwrap_or(match args.compared {
        ComparedArg::Tcp => 9,
        ComparedArg::All => 5,
    });
    let of_all = [
        ("--rows", !args.rows.is_empty()),
        ("--folder", args.folder.is_some()),
        ("--cpu-max", args.cpu_max.is_some()),
    ];
    if args.compared == ComparedArg::Tcp
        && let Some((name, _)) = of_all.into_iter().find(|(_, given)| *given)
    {
        return Err(format!("{name} is for `bench compare all`").into());
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
    let tell = |step: &str| eprintln!("  {step}");
    match args.compared {
        ComparedArg::Tcp => show(&compare_tcp(&common, tell)?, args.json.as_deref()),
        ComparedArg::All => {
            let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
            // A separate directory, which is removed with its content even after a signal.
            let own = tempfile::tempdir_in(&folder).map_err(|error| {
                format!("no files can be made in {}: {error}", folder.display())
            })?;
            let _known = Known::folder(own.path());
            let options = SuiteOptions {
                common,
                folder: own.path().to_owned(),
                only: args.rows.clone(),
                part_percent: args.cpu_max.unwrap_or(PART_PERCENT),
            };
            show(&compare_all(&options, tell)?, args.json.as_deref())
        }
    }
}

/// Prints a report, and saves it if requested.
fn show<R: Display + Serialize>(report: &R, json: Option<&Path>) -> Result<ExitCode, Failure> {
    print!("{report}");
    if let Some(path) = json {
        save_json(report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn refused(arguments: &[&str]) -> String {
        let all = ["bench"].iter().chain(arguments);
        Arguments::try_parse_from(all)
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn the_commands_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_that_a_comparison_would_ignore_are_refused() {
        for option in ["--rows=idle", "--folder=/tmp", "--cpu-max=20"] {
            let all = ["bench", "compare", "tcp", option];
            let command = Arguments::try_parse_from(all).expect("well formed").command;
            let error = execute(command).expect_err("refused").to_string();
            assert!(error.contains("is for `bench compare all`"), "{error}");
        }
    }

    #[test]
    fn bad_arguments_are_named() {
        for (arguments, part) in [
            (
                &["run", "--mix", "70/40"][..],
                "70 and 40 do not add up to 100",
            ),
            (&["run", "--mix", "70"], "not READ/WRITE in percent"),
            (&["run", "--mix", "300/-200"], "not READ/WRITE in percent"),
            (&["run", "--block-size", "4x"], "'4x' is not a size"),
            (
                &["run", "--block-size", "1T"],
                "more than one request carries",
            ),
            (&["run", "--time", "0"], "more than 0 seconds"),
            (&["run", "--time", "-1"], "'-1'"),
            (&["run", "--time", "NaN"], "not a number of seconds"),
            (&["run", "--time", "5", "--ops", "5"], "cannot be used with"),
            (
                &["run", "--nsid", "1", "--all-namespaces"],
                "cannot be used with",
            ),
            (
                &["run", "--pattern", "zigzag"],
                "random, sequential or zipf",
            ),
            (&["run", "--address", "no such host"], "no such address"),
            (&["ceiling", "carrier-pigeon"], "tcp"),
            (&["ceiling", "tcp", "--memory", "lots"], "is not a size"),
            (&["compare", "tcp", "--namespace-size", ""], "is not a size"),
            (
                &["run", "--json", "/nonexistent/run.json"],
                "there is no folder /nonexistent",
            ),
            (&["sweep", "depth", "--svg", "/"], "that is a folder"),
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
