//! `bench diff`: two reports beside each other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::difference::Difference;
use clap::Args;
use serde_json::Value;

use super::Failure;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The report to start from, JSON of any command here
    before: PathBuf,
    /// The report to compare with it, of the same command
    after: PathBuf,
    /// List only what moved by more than this much
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    above: f64,
    /// Fail where anything listed became worse
    #[arg(long)]
    fail_if_worse: bool,
}

fn load(path: &Path) -> Result<Value, Failure> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let report = serde_json::from_str(&text);
    Ok(report.map_err(|error| named(&format!("no report: {error}")))?)
}

pub(super) fn execute(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let difference = Difference::between(&load(&args.before)?, &load(&args.after)?, args.above);
    print!("{difference}");
    Ok(if args.fail_if_worse && difference.is_worse() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
