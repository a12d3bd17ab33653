//! `measure transfers`: compares ways of transferring data by RDMA.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::transfers::{TransferOptions, TransfersReport, measure};
use bench::report::save_json;
use clap::Args;
use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig};

use super::{Failure, at_least_one, parse_seconds};

#[derive(Debug, Args)]
pub(crate) struct TransfersArgs {
    /// An address of an RDMA device of this machine, which both ends use; without it, they are on
    /// an in-process fabric, whose times say nothing but whose counts do
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Rounds, of which medians are taken
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Seconds of each measurement in a round
    #[arg(long, default_value = "0.1", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
}

pub(crate) fn execute(args: &TransfersArgs) -> Result<ExitCode, Failure> {
    let options = TransferOptions {
        rounds: args.rounds,
        duration: args.time,
        ..TransferOptions::default()
    };
    let report = match args.address {
        Some(address) => on_verbs(SocketAddr::new(address, 0), &options)?,
        None => on_fabric(&options)?,
    };
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn on_fabric(options: &TransferOptions) -> Result<TransfersReport, Failure> {
    let fabric = Fabric::new(FabricConfig::IMMEDIATE);
    let machine = |name, last| {
        let address = IpAddr::from([192, 0, 2, last]);
        fabric.machine(&[DeviceConfig::new(name, address)])
    };
    let (server, client) = (machine("server0", 1)?, machine("client0", 2)?);
    let address = SocketAddr::from(([192, 0, 2, 1], 0));
    Ok(measure(&server, &client, address, options, |_| {})?)
}

#[cfg(feature = "verbs")]
fn on_verbs(address: SocketAddr, options: &TransferOptions) -> Result<TransfersReport, Failure> {
    let verbs = bench::arguments::open_verbs()?;
    let watch = |step: &str| eprintln!("  {step}");
    Ok(measure(&verbs, &verbs, address, options, watch)?)
}

#[cfg(not(feature = "verbs"))]
fn on_verbs(_: SocketAddr, _: &TransferOptions) -> Result<TransfersReport, Failure> {
    Err(bench::arguments::WITHOUT_VERBS.into())
}
