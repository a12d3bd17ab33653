//! The `bench` command.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::ceiling::{CeilingError, CeilingOptions, REQUEST_BYTES, RESPONSE_BYTES, measure_tcp};
use bench::report::{CeilingReport, CeilingRow, Machine, save_json};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Measures and verifies NVMe/TCP targets.
#[derive(Debug, Parser)]
#[command(name = "bench", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What a bare socket pair does with the same bytes in the same pattern
    Ceiling(CeilingArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Transport {
    Tcp,
}

#[derive(Debug, Args)]
struct CeilingArgs {
    /// The transport whose byte pattern is driven
    transport: Transport,
    /// Counted seconds for each window
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Core of the answering thread
    #[arg(long, default_value_t = 0)]
    target_core: usize,
    /// Core of the asking thread
    #[arg(long, default_value_t = 1)]
    host_core: usize,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Ceiling(args) => run_ceiling(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_ceiling(args: &CeilingArgs) -> Result<(), Box<dyn std::error::Error>> {
    let rows = [128, 1]
        .into_iter()
        .map(|window| ceiling_row(args, window))
        .collect::<Result<Vec<_>, CeilingError>>()?;
    let report = CeilingReport {
        machine: Machine::here(),
        transport: "tcp".to_owned(),
        request_bytes: REQUEST_BYTES,
        response_bytes: RESPONSE_BYTES,
        rows,
    };
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(())
}

fn ceiling_row(args: &CeilingArgs, window: usize) -> Result<CeilingRow, CeilingError> {
    let measured = measure_tcp(CeilingOptions {
        window,
        server_core: Some(args.target_core),
        client_core: Some(args.host_core),
        warm_up: Duration::from_millis(300),
        duration: Duration::from_secs_f64(args.time),
    })?;
    let rate = measured.requests_per_second();
    Ok(CeilingRow {
        window,
        requests_per_second: rate,
        mib_per_second: rate * 4096.0 / f64::from(1 << 20),
        latency: measured.latency,
    })
}
