//! `measure device-memory`: copies through the memory of a drive beside those through the arena.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::device_memory::{DeviceMemoryPlan, measure};
use bench::report::save_json;
use clap::Args;
use vfio::PciAddress;

use super::{Failure, at_least_one, parse_region, parse_seconds};

#[derive(Debug, Args)]
pub(crate) struct DeviceMemoryArgs {
    /// The drive's PCI address; it must have been handed over: windlass bind
    #[arg(value_name = "PCI")]
    address: PciAddress,
    /// The namespace that is read
    #[arg(long, value_name = "NSID", default_value_t = 1)]
    source: u32,
    /// The namespace of the same drive whose content is overwritten
    #[arg(long, value_name = "NSID")]
    overwrite: u32,
    /// Copies in flight
    #[arg(long, default_value = "8", value_parser = at_least_one)]
    depth: usize,
    /// Rounds, of which medians are taken
    #[arg(long, default_value = "5", value_name = "N", value_parser = at_least_one)]
    rounds: usize,
    /// Seconds of each of the five measurements of a round
    #[arg(long, default_value = "2", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Memory that the neighbour copies: more than the caches
    #[arg(long, default_value = "256MiB", value_name = "SIZE", value_parser = parse_region)]
    neighbour_memory: u64,
    /// Core to pin the polling thread to
    #[arg(long)]
    core: Option<usize>,
    /// Core to pin the neighbour to
    #[arg(long, value_name = "CORE")]
    neighbour_core: Option<usize>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
}

pub(crate) fn execute(args: &DeviceMemoryArgs) -> Result<ExitCode, Failure> {
    let report = measure(&DeviceMemoryPlan {
        address: args.address,
        source: args.source,
        destination: args.overwrite,
        depth: args.depth,
        rounds: args.rounds,
        duration: args.time,
        neighbour_bytes: usize::try_from(args.neighbour_memory)?,
        core: args.core,
        neighbour_core: args.neighbour_core,
    })?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}
