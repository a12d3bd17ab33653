//! `windlass status`: shows a running appliance on one screen, or as JSON.

use std::fmt::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::client::delta::StatusDelta;
use crate::client::{Client, ClientError, SocketArguments, views};
use crate::error::{Failure, one_line};
use crate::observe::model::{RunState, Status};
use crate::quantity;
use crate::table::Table;
use crate::terminal::print;

/// Exit code: it runs, but a problem needs attention.
const EXIT_PROBLEMS: u8 = 1;
/// Exit code: no appliance runs; the same number as systemctl(1) and the LSB.
const EXIT_NOT_RUNNING: u8 = 3;
/// Exit code: the state cannot be determined.
const EXIT_UNKNOWN: u8 = 4;

/// The interval over which rates are measured.
const LOOK: Duration = Duration::from_secs(1);

/// The exit codes, for the help and the manual page.
pub(crate) const EXIT_CODES: &str = "Exit codes:\n  0  it serves, and there are no problems\n  \
    1  it runs, and the listed problems need attention\n  2  the command line is wrong\n  \
    3  no appliance runs here\n  4  the state is unknown: no permission, no response, another \
    version";

/// What `status` takes.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct StatusArguments {
    /// Print the status as JSON, as GET /api/v1/status: counters are totals since the start.
    #[arg(long)]
    json: bool,
    /// Show averages since the start instead of what moves within one second.
    #[arg(long, conflicts_with = "json")]
    since_start: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Prints the state of the appliance.
pub(crate) fn status(arguments: &StatusArguments) -> Result<ExitCode, Failure> {
    match ask(arguments) {
        Ok((text, status)) => {
            print(&text);
            let is_well = views::active_problems(&status).is_empty();
            Ok(if is_well {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(EXIT_PROBLEMS)
            })
        }
        Err(error) => {
            eprintln!("{}", one_line(&error));
            Ok(ExitCode::from(match error {
                ClientError::NoAppliance { .. } | ClientError::StaleSocket { .. } => {
                    EXIT_NOT_RUNNING
                }
                _ => EXIT_UNKNOWN,
            }))
        }
    }
}

fn ask(arguments: &StatusArguments) -> Result<(String, Status), ClientError> {
    let client = Client::find(&arguments.socket)?;
    let status: Status = client.get(views::STATUS)?;
    if arguments.json {
        let json = serde_json::to_string_pretty(&status);
        let json = json.map_err(|cause| ClientError::Request { cause })?;
        return Ok((json + "\n", status));
    }
    let delta = if arguments.since_start {
        StatusDelta::new(None, status)
    } else {
        std::thread::sleep(LOOK);
        StatusDelta::new(Some(status), client.get(views::STATUS)?)
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, &delta);
    Ok((text, delta.now))
}

fn write(out: &mut String, delta: &StatusDelta) -> fmt::Result {
    let appliance = &delta.now.appliance;
    writeln!(
        out,
        "{} is {}: windlass {}, process {}, up {}, started in {} ms",
        appliance.name,
        match appliance.state {
            RunState::Running => "running",
            RunState::Stopping => "stopping",
        },
        appliance.version,
        appliance.pid,
        quantity::duration(Duration::from_secs(appliance.uptime_s)),
        appliance.start_took_ms,
    )?;
    let file = appliance.config_path.as_deref();
    writeln!(
        out,
        "configuration: {}",
        file.unwrap_or("the embedded default")
    )?;
    let memory = &delta.now.memory;
    writeln!(
        out,
        "memory: {} in pages of {}",
        quantity::bytes(memory.bytes),
        quantity::bytes(memory.page_bytes)
    )?;
    writeln!(
        out,
        "over {:.1} s: {}",
        delta.seconds(),
        views::throughput_line(delta)
    )?;

    writeln!(out, "latency: {}", views::latency_line(delta))?;
    if let Some(files) = &delta.now.files {
        writeln!(out, "files: {}", views::files_line(files))?;
    }
    for table in [
        views::exports(delta),
        views::listeners(delta),
        views::devices(delta),
        views::hosts(delta),
        views::reactors(delta),
        views::pools(delta),
        views::rate_limits(delta),
        views::volumes(delta),
        views::shares(delta),
        views::file_operations(delta),
        views::copies(delta),
        views::errors(delta),
    ] {
        write_table(out, &table)?;
    }
    writeln!(out)?;
    for notice in &memory.notices {
        writeln!(out, "notice: memory: {notice}")?;
    }
    let active_problems = views::active_problems(&delta.now);
    for problem in &active_problems {
        writeln!(out, "problem: {problem}")?;
    }
    if active_problems.is_empty() {
        writeln!(out, "no problems")?;
    }
    Ok(())
}

fn write_table(out: &mut String, table: &Table) -> fmt::Result {
    if table.rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    for line in table.lines() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::status;
    use crate::observe::model::DeviceState;

    fn text(status: Status) -> String {
        let mut text = String::new();
        write(&mut text, &StatusDelta::new(None, status)).expect("it is a String");
        text
    }

    #[test]
    fn status_text_shows_every_section() {
        let text = text(status());
        for part in [
            "rack7-a is running: windlass",
            "configuration: /etc/windlass/windlass.toml",
            "nqn.2026-11.org.windlass:rack7-a.fast",
            "192.0.2.10:4420",
            "nqn.2014-08.org.nvmexpress:uuid:1",
            "fast0",
            "41 °C, 3 % used",
            "REACTOR",
            "4 KiB",
            "reads p50 80.0 µs",
            "Unrecovered Read Error",
            "files: 1 client(s), 2 connection(s), 1 session(s), 4 open file(s), 5 lock(s)",
            "durable",
            "25 %",
            "LOOKUP",
            "no problems",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn problems_are_listed_last() {
        let mut status = status();
        status.devices[0].state = DeviceState::Removed;
        status.devices[0].warnings = vec!["it has become unreliable".to_owned()];
        status.reactors[0].running = false;
        status.memory.classes[0].waiting = 3;
        let files = status.files.as_mut().expect("files");
        files.volumes[0].read_only = true;
        let text = text(status);
        let problems: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("problem: "))
            .collect();
        assert_eq!(problems[0], "reactor 0 has ended unexpectedly");
        assert_eq!(problems[1], "device fast0 is removed");
        assert_eq!(problems[2], "device fast0: it has become unreliable");
        assert!(
            problems[3].starts_with("volume scratch is read-only"),
            "{problems:?}"
        );
        assert!(
            problems[4].starts_with("3 requests wait for a buffer of 4 KiB"),
            "{problems:?}"
        );
        assert_eq!(problems.len(), 5);
    }
}
