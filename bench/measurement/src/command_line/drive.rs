//! `measure drive`: our driver on a real drive.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::drive::{DrivePlan, measure};
use bench::pinning::pin_to_core;
use bench::report::save_json;
use clap::Args;
use vfio::PciAddress;

use super::{Failure, parse_seconds};

#[derive(Debug, Args)]
pub(crate) struct DriveArgs {
    /// The drive's PCI address; it must have been handed over: windlass bind
    #[arg(value_name = "PCI")]
    address: PciAddress,
    /// The namespace, which is only read
    #[arg(long, default_value_t = 1)]
    nsid: u32,
    /// Reads in flight, one measurement for each
    #[arg(
        long,
        value_name = "DEPTH,…",
        value_delimiter = ',',
        default_value = "1,32"
    )]
    depth: Vec<usize>,
    /// Seconds of each measurement
    #[arg(long, default_value = "3", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Core to pin the polling thread to
    #[arg(long)]
    core: Option<usize>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
}

pub(crate) fn execute(args: &DriveArgs) -> Result<ExitCode, Failure> {
    if let Some(core) = args.core {
        pin_to_core(core)?;
    }
    let report = measure(&DrivePlan {
        address: args.address,
        nsid: args.nsid,
        depths: args.depth.clone(),
        duration: args.time,
        warm_up: Duration::from_millis(300),
    })?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}
