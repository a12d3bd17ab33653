//! The commands, their options and their output.

use std::process::ExitCode;

use crate::arguments::{Failure, parse_region, parse_seconds, parse_seconds_or_none};
use clap::{Parser, Subcommand};

mod diff;
mod files;
mod job;
mod run;
mod run_watcher;
mod sweep;
mod target;
mod upgrade;

/// Puts verified load on NVMe over Fabrics targets
#[derive(Debug, Parser)]
#[command(name = "bench", version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put load on a target, and optionally verify its data
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::RunArgs>),
    /// Measure a load at several levels: throughput over depth, or latency over load
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(Box<sweep::SweepArgs>),
    /// Put load on a server of files: NFSv4.1 or 4.2 over TCP
    #[command(after_help = files::EXAMPLES)]
    Files(Box<files::FilesArgs>),
    /// List the subsystems that a target offers
    Discover(target::DiscoverArgs),
    /// Measure how long hosts wait while the process of an appliance is replaced
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(upgrade::UpgradeArgs),
    /// List the differences between two reports
    Diff(diff::DiffArgs),
}

/// Runs `command` to its end.
pub(crate) fn execute(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => run::execute(&args),
        Command::Sweep(args) => sweep::execute(&args),
        Command::Files(args) => files::execute(&args),
        Command::Discover(args) => target::execute_discover(&args),
        Command::Upgrade(args) => upgrade::execute(&args),
        Command::Diff(args) => diff::execute(&args),
    }
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
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn invalid_arguments_are_named() {
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
            (
                &["files", "data", "--mix", "70"],
                "not READ/WRITE in percent",
            ),
            (
                &["files", "data", "--minor-version", "0"],
                "0 is not in 1..=2",
            ),
            (
                &["files", "metadata", "--depth", "513"],
                "513 is not in 1..=512",
            ),
            (&["files", "metadata", "--items", "0"], "0 is not in 1.."),
            (&["upgrade", "--connections", "0"], "0 is not in 1..=1024"),
            (&["upgrade", "--depth", "129"], "129 is not in 1..=128"),
            (&["upgrade", "--rounds", "0"], "give a number from 1"),
            (&["upgrade", "--time", "0"], "more than 0 seconds"),
            (
                &["upgrade", "--json", "/nonexistent/upgrade.json"],
                "there is no folder /nonexistent",
            ),
            (
                &["run", "--json", "/nonexistent/run.json"],
                "there is no folder /nonexistent",
            ),
            (&["sweep", "depth", "--svg", "/"], "that is a folder"),
        ] {
            let text = refused(arguments);
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        for arguments in [
            &["bench", "sweep"][..],
            &["bench", "run", "--mix", "7"],
            &["bench", "run", "--vrify"],
        ] {
            let error = Arguments::try_parse_from(arguments).expect_err("refused");
            let text = crate::arguments::one_line(&error.to_string());
            assert!(!text.contains('\n') && !text.contains("Usage"), "{text}");
            assert!(text.len() > 20 && !text.starts_with("error"), "{text}");
        }
    }
}
