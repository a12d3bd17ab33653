//! `windlass trace`.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::client::{Client, SocketArguments};
use crate::error::Failure;

/// Longest wait for a trace: the largest has tens of megabytes.
const TRACE_TIME_MAX: Duration = Duration::from_secs(60);

/// What `windlass trace` takes.
#[derive(Args, Debug)]
pub(crate) struct TraceArguments {
    /// Where to write the trace; without it, to standard output. Open it at
    /// <https://ui.perfetto.dev> or in chrome://tracing.
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How far back, at most: under load the recorders reach back for less.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, thiserror::Error)]
#[error("the trace cannot be written to {}", path.display())]
struct Unwritable {
    path: PathBuf,
    #[source]
    cause: io::Error,
}

/// Writes a trace of the recent activity of a running appliance.
///
/// # Errors
/// No appliance answers, or the file cannot be written.
pub(crate) fn trace(arguments: &TraceArguments) -> Result<ExitCode, Failure> {
    let client = Client::find(&arguments.socket)?.with_response_timeout(TRACE_TIME_MAX);
    let path = format!("/api/v1/trace?seconds={}", arguments.seconds);
    let trace = client.get_bytes(&path)?;
    match &arguments.out {
        Some(path) => {
            let written = File::create(path).and_then(|mut file| file.write_all(&trace));
            written.map_err(|cause| Unwritable {
                path: path.clone(),
                cause,
            })?;
        }
        // A closed pipe is not an error.
        None => drop(io::stdout().lock().write_all(&trace)),
    }
    Ok(ExitCode::SUCCESS)
}
