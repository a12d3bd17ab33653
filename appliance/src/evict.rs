//! `windlass evict`: ends a host's associations, and unregisters it from reservations; or takes what a
//! client of files has.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::client::{Client, EVICT_CLIENT_PATH, EVICT_PATH, SocketArguments};
use crate::error::Failure;
use crate::observe::model::{EvictAnswer, EvictClientAnswer, EvictClientRequest, EvictRequest};
use crate::terminal::print;

/// An eviction waits until the host's commands have ended; slightly longer than the appliance's own
/// bound.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(100);

/// What `evict` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The host's associations with the exports end, it is unregistered from the reservations of their
devices, and its reservations are released. The command returns when the commands that the host had
sent have ended: from then on they change nothing. An NQN stands for all identifiers of connected
hosts with that NQN; an identifier is also found if its host is only registered.

The host may connect again. To keep it out, remove it from `hosts` of the export first, and run
`windlass apply`. Hosts are not authenticated.

With --client, the clients of file shares with that number, name or address lose their sessions, opens
and locks, as if their leases had expired. Their next requests get NFS4ERR_BADSESSION: they begin anew,
and programs get errors for files that were open. Requests that are being executed are completed. To
keep a client out, remove it from `clients` of the shares first.

Exit status: 0 if the host or client is evicted, 1 if not.")]
pub(crate) struct EvictArguments {
    /// The host's NQN, or its identifier as a UUID.
    #[arg(required_unless_present = "client")]
    host: Option<String>,
    /// The number, name or address of clients of files, as `windlass clients` lists them.
    #[arg(long, value_name = "CLIENT", conflicts_with_all = ["host", "export"])]
    client: Option<String>,
    /// Only from this export, by its NQN; without it, from all exports.
    #[arg(long, value_name = "NQN")]
    export: Option<String>,
    /// Print the answer as JSON, as POST /api/v1/hosts/evict or /api/v1/clients/evict gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Sends the request, and prints the result.
pub(crate) fn evict(arguments: &EvictArguments) -> Result<ExitCode, Failure> {
    let client = Client::find(&arguments.socket)?.with_response_timeout(RESPONSE_TIMEOUT);
    if let Some(wanted) = &arguments.client {
        return evict_client(&client, wanted, arguments.json);
    }
    let request = EvictRequest {
        host: arguments.host.clone().unwrap_or_default(),
        export: arguments.export.clone(),
    };
    let response: EvictAnswer = client.post(EVICT_PATH, &request)?;
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&response)?));
    } else {
        print(&format!("host {}: {}\n", response.host, response.text));
    }
    Ok(ExitCode::SUCCESS)
}

fn evict_client(client: &Client, wanted: &str, json: bool) -> Result<ExitCode, Failure> {
    let request = EvictClientRequest {
        client: wanted.to_owned(),
    };
    let response: EvictClientAnswer = client.post(EVICT_CLIENT_PATH, &request)?;
    if json {
        print(&format!("{:#}\n", serde_json::to_value(&response)?));
    } else {
        print(&format!("client {}: {}\n", response.client, response.text));
    }
    Ok(ExitCode::SUCCESS)
}
