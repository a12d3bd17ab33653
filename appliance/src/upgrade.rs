//! `windlass upgrade`: replaces the process of a running appliance.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::client::{Client, SocketArguments, UPGRADE_PATH};
use crate::error::Failure;
use crate::observe::model::{UpgradeAnswer, UpgradeRequest};
use crate::terminal::print;

/// The new process maps all memory; slightly longer than the appliance's own bound.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// What `upgrade` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The running process starts BINARY, which builds everything from the running configuration and checks
that it can continue. Then requests in flight complete, and the new process gets the connections, the
memory of RAM devices, the files and the listeners. Hosts over TCP notice a pause and no
reconnection. If the new process fails before it serves, the old one serves on.

A change of the configuration is not part of it: apply it before or afterwards. Hosts over TLS and
RDMA are disconnected and connect again. NVMe drives are shut down and opened by the new process:
requests of all hosts wait for that, and the new process checks only then whether it can continue.

Exit status: 0 if the new process serves, or with --dry-run if it would; 1 if not.")]
pub(crate) struct UpgradeArguments {
    /// The new program; without it, the file of the running program, which a package may have
    /// replaced.
    binary: Option<PathBuf>,
    /// Only start the new process and let it check everything.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as JSON, as POST /api/v1/upgrade gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, thiserror::Error)]
enum BadProgram {
    #[error("{path} cannot be found")]
    Missing {
        path: String,
        #[source]
        cause: std::io::Error,
    },
    #[error("{0} is not UTF-8: give the program another name")]
    NotUtf8(String),
}

/// Sends the request, and prints the result.
pub(crate) fn upgrade(arguments: &UpgradeArguments) -> Result<ExitCode, Failure> {
    let program = arguments.binary.as_deref().map(absolute).transpose()?;
    let client = Client::find(&arguments.socket)?.with_response_timeout(RESPONSE_TIMEOUT);
    let request = UpgradeRequest {
        program,
        dry_run: arguments.dry_run,
    };
    let answer: UpgradeAnswer = client.post(UPGRADE_PATH, &request)?;
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&answer)?));
    } else {
        print(&in_lines(&answer));
    }
    Ok(ExitCode::SUCCESS)
}

/// The path from the root directory: the appliance has another working directory.
fn absolute(path: &Path) -> Result<String, BadProgram> {
    let found = path.canonicalize().map_err(|cause| BadProgram::Missing {
        path: path.display().to_string(),
        cause,
    })?;
    let text = found.to_str().map(str::to_owned);
    text.ok_or_else(|| BadProgram::NotUtf8(found.display().to_string()))
}

fn in_lines(answer: &UpgradeAnswer) -> String {
    let UpgradeAnswer {
        program,
        pid,
        connections,
        pause_us,
        effects,
    } = answer;
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match (pid, pause_us) {
        (Some(pid), Some(pause_us)) => writeln!(
            text,
            "process {pid} ({program}) serves; {connections} connection(s) continued after {}.{} ms",
            pause_us / 1000,
            pause_us % 1000 / 100
        ),
        _ => {
            for effect in effects {
                let _ = writeln!(text, "{effect}");
            }
            writeln!(text, "{program} can continue; nothing was changed")
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_printed() {
        let mut answer = UpgradeAnswer {
            program: "/usr/bin/windlass".to_owned(),
            pid: Some(7),
            connections: 64,
            pause_us: Some(12_345),
            effects: vec!["hosts wait".to_owned()],
        };
        assert_eq!(
            in_lines(&answer),
            "process 7 (/usr/bin/windlass) serves; 64 connection(s) continued after 12.3 ms\n"
        );
        (answer.pid, answer.pause_us) = (None, None);
        assert_eq!(
            in_lines(&answer),
            "hosts wait\n/usr/bin/windlass can continue; nothing was changed\n"
        );
    }

    #[test]
    fn missing_program_is_named() {
        let error = absolute(Path::new("/nothing/here")).expect_err("missing");
        assert_eq!(error.to_string(), "/nothing/here cannot be found");
    }
}
