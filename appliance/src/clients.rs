//! `windlass clients`: lists the clients of a running appliance's file shares.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::client::{CLIENTS_PATH, Client, SocketArguments};
use crate::error::Failure;
use crate::observe::model::FileClientStatus;
use crate::quantity::{self, NOTHING};
use crate::table::{Cell, Table, name, number};
use crate::terminal::print;

/// What `clients` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A client renews its lease with each request. When the lease has expired, the client keeps its opens
and locks until another one needs the file.

`windlass evict --client CLIENT` takes what a client has.")]
pub(crate) struct ClientsArguments {
    /// Print JSON, as GET /api/v1/clients gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Lists the clients.
pub(crate) fn clients(arguments: &ClientsArguments) -> Result<ExitCode, Failure> {
    let client = Client::find(&arguments.socket)?;
    let all: Vec<FileClientStatus> = client.get(CLIENTS_PATH)?;
    match arguments.json {
        true => print(&format!("{:#}\n", serde_json::to_value(&all)?)),
        false => print(&in_lines(&all)),
    }
    Ok(ExitCode::SUCCESS)
}

fn in_lines(all: &[FileClientStatus]) -> String {
    if all.is_empty() {
        return "no client\n".to_owned();
    }
    let mut table = Table::new(&[
        name("ID"),
        name("ADDRESS"),
        name("NAME"),
        number("SILENT"),
        name("LEASE"),
        number("SESSIONS"),
        number("OPENS"),
        number("LOCKS"),
    ]);
    let count = |value: u64| Cell::number(value as f64, quantity::count(value));
    for client in all {
        let silent = quantity::duration(Duration::from_millis(client.silent_ms));
        table.push(vec![
            Cell::text(client.id.as_deref().unwrap_or(NOTHING)),
            Cell::text(client.address.as_deref().unwrap_or(NOTHING)),
            Cell::text(client.name.as_deref().unwrap_or(NOTHING)),
            Cell::number(client.silent_ms as f64, silent),
            Cell::text(if client.expired { "expired" } else { "valid" }),
            count(client.sessions),
            count(client.opens),
            count(client.locks),
        ]);
    }
    let mut text = String::new();
    for line in table.lines() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_listed_with_what_they_have() {
        let client = FileClientStatus {
            id: Some("0000123400000001".to_owned()),
            name: Some("Linux NFSv4.2 host".to_owned()),
            address: Some("192.0.2.7".to_owned()),
            silent_ms: 95_000,
            expired: true,
            sessions: 1,
            opens: 2,
            locks: 3,
        };
        let text = in_lines(&[client]);
        for part in [
            "0000123400000001",
            "192.0.2.7",
            "Linux NFSv4.2 host",
            "expired",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert_eq!(in_lines(&[]), "no client\n");
    }
}
