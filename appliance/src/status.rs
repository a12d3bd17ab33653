//! `windlass status`: a running appliance on one screen, or as JSON.

use std::process::ExitCode;

use clap::Args;

use crate::client::{Client, ClientError, SocketArguments};
use crate::command_line::{Failure, one_line, print};

/// No appliance answers: as systemctl(1) and the LSB have it.
const EXIT_NOT_RUNNING: u8 = 3;
/// Whether one runs cannot be found out.
const EXIT_UNKNOWN: u8 = 4;

/// What `status` takes.
#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// Print what the appliance tells as JSON: counters since its start, as GET /api/v1/status.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Prints how the appliance stands.
pub(crate) fn status(arguments: &StatusArguments) -> Result<ExitCode, Failure> {
    match look(arguments) {
        Ok(text) => {
            print(&text);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("{}", one_line(&error));
            Ok(ExitCode::from(match error {
                ClientError::NotRunning { .. } | ClientError::Abandoned { .. } => EXIT_NOT_RUNNING,
                _ => EXIT_UNKNOWN,
            }))
        }
    }
}

fn look(arguments: &StatusArguments) -> Result<String, ClientError> {
    let client = Client::find(&arguments.socket)?;
    let answer: serde_json::Value = client.get("/api/v1/status")?;
    Ok(format!("{answer:#}\n"))
}
