//! `windlass device`: operations on one device of a running appliance.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::client::{Client, REOPEN_PATH, SocketArguments};
use crate::error::Failure;
use crate::observe::model::{ReopenAnswer, ReopenRequest};
use crate::terminal::print;

/// The file system may be slow during a repair.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// What `device` takes.
#[derive(Args, Debug)]
pub(crate) struct DeviceArguments {
    #[command(subcommand)]
    command: DeviceCommand,
}

#[derive(Subcommand, Debug)]
enum DeviceCommand {
    /// Return a damaged device to service, after its underlying storage is repaired.
    ///
    /// A device is damaged when data that it had accepted may be lost: a sync, a cached write or a
    /// part of a write failed. From then on all writes and flushes fail, so that hosts notice.
    /// Writes that were answered before the damage, and had not been flushed successfully, may be
    /// lost: reopening does not bring them back. Repair the file system or the disk first, and
    /// check the file systems and databases on the device afterwards.
    Reopen(ReopenArguments),
}

/// What `device reopen` takes.
#[derive(Args, Debug)]
struct ReopenArguments {
    /// The device's name in the configuration.
    name: String,
    /// Print the answer as JSON, as POST /api/v1/device/reopen gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Sends the request, and prints the result.
pub(crate) fn device(arguments: &DeviceArguments) -> Result<ExitCode, Failure> {
    let DeviceCommand::Reopen(arguments) = &arguments.command;
    let client = Client::find(&arguments.socket)?.with_response_timeout(RESPONSE_TIMEOUT);
    let request = ReopenRequest {
        device: arguments.name.clone(),
    };
    let response: ReopenAnswer = client.post(REOPEN_PATH, &request)?;
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&response)?));
    } else {
        print(&format!("device {}: {}\n", response.device, response.text));
    }
    Ok(ExitCode::SUCCESS)
}
