//! `windlass reservations`: lists the reservations of a running appliance's devices, and clears
//! those of one device.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::client::{CLEAR_PATH, Client, SocketArguments};
use crate::error::Failure;
use crate::observe::model::{ClearAnswer, ClearRequest, DeviceReservations};
use crate::quantity::NOTHING;
use crate::table::{Cell, Table, name};
use crate::terminal::print;

/// Clearing waits until commands of the registrants have ended; slightly longer than the
/// appliance's own bound.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(100);

/// What `reservations` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Reservations are damaged if the file in which they are stored cannot be restored. The device's hosts
are refused (Namespace Not Ready) until the file is restored and the appliance restarted, or the
reservations are cleared. After a clearing no host is fenced: stop hosts that must not write first.

Exit status: 0 if the request succeeded, 1 if not.")]
pub(crate) struct ReservationsArguments {
    /// The device's name in the configuration; without it, all devices.
    device: Option<String>,
    /// Unregister all hosts of the device, abort their commands, and release the reservation. Also
    /// resets damaged reservations.
    #[arg(long, requires = "device")]
    clear: bool,
    /// Print the answer as JSON, as /api/v1/reservations gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, thiserror::Error)]
#[error("device {0} is not open: `windlass reservations` lists the devices")]
struct UnknownDevice(String);

/// Sends the request, and prints the result.
pub(crate) fn reservations(arguments: &ReservationsArguments) -> Result<ExitCode, Failure> {
    let client = Client::find(&arguments.socket)?;
    match &arguments.device {
        Some(device) if arguments.clear => clear(client, device, arguments.json)?,
        device => list(&client, device.as_deref(), arguments.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn clear(client: Client, device: &str, json: bool) -> Result<(), Failure> {
    let client = client.with_response_timeout(RESPONSE_TIMEOUT);
    let request = ClearRequest {
        device: device.to_owned(),
    };
    let response: ClearAnswer = client.post(CLEAR_PATH, &request)?;
    if json {
        print(&format!("{:#}\n", serde_json::to_value(&response)?));
    } else {
        let ClearAnswer { device, text } = response;
        print(&format!(
            "device {device}: its reservations are cleared: {text}\n"
        ));
    }
    Ok(())
}

fn list(client: &Client, device: Option<&str>, json: bool) -> Result<(), Failure> {
    let mut all: Vec<DeviceReservations> = client.get("/api/v1/reservations")?;
    if let Some(device) = device {
        all.retain(|it| it.device == device);
        if all.is_empty() {
            return Err(UnknownDevice(device.to_owned()).into());
        }
    }
    if json {
        print(&format!("{:#}\n", serde_json::to_value(&all)?));
    } else {
        print(&in_lines(&all));
    }
    Ok(())
}

/// A row for each registrant, and one for a device without registrants.
fn in_lines(all: &[DeviceReservations]) -> String {
    let mut table = Table::new(&[
        name("DEVICE"),
        name("RESERVATION"),
        name("PERSISTS"),
        name("HOST"),
        name("KEY"),
        name("HOLDER"),
        name("CONNECTED AS"),
    ]);
    for of_device in all {
        let kind = match of_device.kind {
            _ if of_device.damaged => "damaged",
            Some(kind) => kind.text(),
            None => "none",
        };
        let persists = match of_device.persists {
            _ if of_device.registrants.is_empty() => NOTHING,
            true => "yes",
            false => "no",
        };
        let device = [&*of_device.device, kind, persists].map(Cell::text);
        if of_device.registrants.is_empty() {
            let nothing = [NOTHING; 4].map(Cell::text);
            table.push([&device[..], &nothing[..]].concat());
        }
        for registrant in &of_device.registrants {
            let hosts = match &registrant.hosts[..] {
                [] => NOTHING.to_owned(),
                hosts => hosts.join(", "),
            };
            let registrant = [
                Cell::text(registrant.host_id.as_deref().unwrap_or(NOTHING)),
                Cell::text(registrant.key.as_deref().unwrap_or(NOTHING)),
                Cell::text(if registrant.holder { "yes" } else { "no" }),
                Cell::text(hosts),
            ];
            table.push([&device[..], &registrant[..]].concat());
        }
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    for line in table.lines() {
        let _ = writeln!(text, "{line}");
    }
    for damaged in all.iter().filter(|it| it.damaged) {
        let device = &damaged.device;
        let _ = writeln!(
            text,
            "device {device}: its stored reservations cannot be restored, and its hosts are \
             refused: the log names the file and the reason; `windlass reservations {device} \
             --clear` resets them"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::model::{RegistrantStatus, ReservationWord};

    #[test]
    fn registrants_and_damage_are_listed() {
        let registrant = |number: u32, holder, hosts: &[&str]| RegistrantStatus {
            host_id: Some(format!("0000000{number}-0000-0000-0000-000000000000")),
            key: Some(format!("{number:#018x}")),
            holder,
            hosts: hosts.iter().map(|it| (*it).to_owned()).collect(),
        };
        let device = |name: &str, damaged, registrants| DeviceReservations {
            device: name.to_owned(),
            kind: None,
            persists: false,
            damaged,
            registrants,
        };
        let shared = DeviceReservations {
            kind: Some(ReservationWord::WriteExclusiveRegistrantsOnly),
            persists: true,
            ..device(
                "shared",
                false,
                vec![
                    registrant(1, true, &["nqn.a", "nqn.b"]),
                    registrant(2, false, &[]),
                ],
            )
        };
        let text = in_lines(&[
            device("bad", true, Vec::new()),
            device("free", false, Vec::new()),
            shared,
        ]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|it| !it.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(
            lines[1],
            ["bad", "damaged", "-", "-", "-", "-", "-"],
            "{text}"
        );
        assert_eq!(lines[2][..3], ["free", "none", "-"], "{text}");
        let kind = "Write Exclusive - Registrants Only";
        let first = "00000001-0000-0000-0000-000000000000";
        let key = "0x0000000000000001";
        assert_eq!(
            lines[3],
            ["shared", kind, "yes", first, key, "yes", "nqn.a, nqn.b"],
            "{text}"
        );
        assert_eq!(lines[4][5..], ["no", "-"], "{text}");
        assert!(text.contains("windlass reservations bad --clear"), "{text}");
    }
}
