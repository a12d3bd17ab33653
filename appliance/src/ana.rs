//! `windlass ana`: lists the ANA states of a running appliance, and sets them.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use appliance_config::limits::ANA_GROUPS_MAX;
use clap::{Args, Subcommand};

use crate::client::{ANA_SET_PATH, Client, SocketArguments};
use crate::error::Failure;
use crate::observe::model::{AnaAnswer, AnaRequest, AnaStatus, AnaWord};
use crate::table::{Cell, Table, name};
use crate::terminal::print;

/// A change waits until commands on paths that lose access have ended; slightly longer than the
/// appliance's own bound.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(100);

/// What `ana` takes.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
A row is one path: an ANA group of an export at a listener. CONFIGURED is the state in the
configuration; STATE differs if an operator has set it.

Exit status: 0 if the request succeeded, 1 if not.")]
pub(crate) struct AnaArguments {
    #[command(subcommand)]
    command: Option<AnaCommand>,
    /// Print the answer as JSON, as /api/v1/ana gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Subcommand, Debug)]
enum AnaCommand {
    /// Set the state of groups of an export at its listeners.
    Set(SetArguments),
}

/// What `ana set` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The state applies at once to commands that have not been started. The command returns when the
commands that hosts had sent on paths without access have ended: from then on they change nothing.
Wait for that before another appliance takes over a shared device.

The state holds until the appliance restarts, or until a configuration is applied in which the state
of the same export, listener and group has changed. To keep it, change `ana` in the configuration.

Exit status: 0 if the states are set and such commands have ended, 1 if not.")]
struct SetArguments {
    /// The new state.
    #[arg(value_enum)]
    state: AnaWord,
    /// The export, by its NQN.
    #[arg(long, value_name = "NQN")]
    export: String,
    /// Only at this listener; without it, at all listeners of the export.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only this group; without it, all groups of the export.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ANA_GROUPS_MAX)))]
    group: Option<u32>,
    /// Print the answer as JSON, as POST /api/v1/ana/set gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Sends the request, and prints the result.
pub(crate) fn ana(arguments: &AnaArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Some(AnaCommand::Set(arguments)) => set(arguments)?,
        None => list(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(arguments: &AnaArguments) -> Result<(), Failure> {
    let client = Client::find(&arguments.socket)?;
    let all: Vec<AnaStatus> = client.get("/api/v1/ana")?;
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&all)?));
    } else {
        print(&in_lines(&all));
    }
    Ok(())
}

fn set(arguments: &SetArguments) -> Result<(), Failure> {
    let client = Client::find(&arguments.socket)?.with_response_timeout(RESPONSE_TIMEOUT);
    let request = AnaRequest {
        export: arguments.export.clone(),
        listener: arguments.listener.clone(),
        group: arguments.group,
        state: arguments.state,
    };
    let response: AnaAnswer = client.post(ANA_SET_PATH, &request)?;
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&response)?));
    } else {
        print(&changes_in_lines(&response));
    }
    Ok(())
}

fn in_lines(all: &[AnaStatus]) -> String {
    let mut table = Table::new(&[
        name("EXPORT"),
        name("GROUP"),
        name("LISTENER"),
        name("STATE"),
        name("CONFIGURED"),
        name("NAMESPACES"),
    ]);
    for path in all {
        let namespaces: Vec<String> = path.namespaces.iter().map(u32::to_string).collect();
        table.push(vec![
            Cell::text(&*path.export),
            Cell::text(path.group.to_string()),
            Cell::text(&*path.listener),
            Cell::text(path.state.word()),
            Cell::text(path.configured.word()),
            Cell::text(namespaces.join(", ")),
        ]);
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    for line in table.lines() {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn changes_in_lines(response: &AnaAnswer) -> String {
    let mut text = String::new();
    for change in &response.changes {
        let (group, listener) = (change.group, &change.listener);
        let (from, to) = (change.from.word(), change.to.word());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "group {group} at {listener}: {from} -> {to}");
    }
    let _ = writeln!(text, "export {}: {}", response.export, response.text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::model::AnaChange;

    #[test]
    fn paths_and_changes_are_listed() {
        let path = |listener: &str, state| AnaStatus {
            export: "nqn.x".to_owned(),
            group: 2,
            listener: listener.to_owned(),
            state,
            configured: AnaWord::NonOptimized,
            namespaces: vec![1, 7],
        };
        let text = in_lines(&[
            path("san-a", AnaWord::NonOptimized),
            path("san-b", AnaWord::PersistentLoss),
        ]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines.len(), 3, "{text}");
        let rest = ["persistent-loss", "non-optimized", "1,", "7"];
        assert_eq!(lines[2], [&["nqn.x", "2", "san-b"], &rest[..]].concat());
        let response = AnaAnswer {
            export: "nqn.x".to_owned(),
            changes: vec![AnaChange {
                group: 2,
                listener: "san-b".to_owned(),
                from: AnaWord::Optimized,
                to: AnaWord::Change,
            }],
            text: "done".to_owned(),
        };
        assert_eq!(
            changes_in_lines(&response),
            "group 2 at san-b: optimized -> change\nexport nqn.x: done\n"
        );
    }
}
