//! `measure files`: what one core serves of files, beside NVMe/TCP.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::arguments::show;
use clap::Args;

use super::{Failure, at_least_one};
use crate::cost::files_rates::measure;

#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Rounds, of which medians are taken; the volumes have room for 15
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = at_least_one)]
    rounds: usize,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
}

pub(crate) fn execute(args: &FilesArgs) -> Result<ExitCode, Failure> {
    show(&measure(args.rounds)?, args.json.as_deref())
}
