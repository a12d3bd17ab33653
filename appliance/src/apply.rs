//! `windlass apply`: changes a running appliance to the configuration of a file, or lists the
//! steps.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::client::{Client, SocketArguments};
use crate::error::Failure;
use crate::observe::model::{ApplyAnswer, ApplyRequest, ApplyStep, StepState};
use crate::terminal::print;

/// Removals wait for requests in flight; slightly longer than the appliance's own bound.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// What `apply` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Steps are marked `live` (hosts notice only an event), `drain` (requests in flight complete first, up
to `shutdown_deadline` of [appliance]; those outstanding then are listed and aborted) or `restart`
(only a restart can do it). Where a step takes a restart nothing is changed, unless --partial is
given. A file with a problem changes nothing. If a step fails, for instance because an address
is in use, the earlier steps are undone; only grown devices stay grown. A removed listener closes
its connections once their commands have completed. A file is never made shorter.

Exit status: 0 if the file is applied completely, 1 if not.")]
pub(crate) struct ApplyArguments {
    /// The configuration; without it, the file that the appliance was started with, as it is now.
    file: Option<PathBuf>,
    /// Only list the steps.
    #[arg(long)]
    dry_run: bool,
    /// If some steps take a restart, carry out only the others and list the rest.
    #[arg(long)]
    partial: bool,
    /// Print the answer as JSON, as POST /api/v1/apply gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be read")]
struct Unreadable {
    path: String,
    #[source]
    cause: std::io::Error,
}

/// Sends the request, and prints the result.
pub(crate) fn apply(arguments: &ApplyArguments) -> Result<ExitCode, Failure> {
    let text = arguments.file.as_deref().map(read).transpose()?;
    let client = Client::find(&arguments.socket)?.with_response_timeout(RESPONSE_TIMEOUT);
    let request = ApplyRequest {
        dry_run: arguments.dry_run,
        partial: arguments.partial,
        text,
    };
    let response: ApplyAnswer = client.post("/api/v1/apply", &request)?;
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&response)?));
    } else {
        print(&in_lines(&response, arguments.dry_run));
    }
    let is_done = response.applied || arguments.dry_run || response.steps.is_empty();
    Ok(if is_done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read(path: &Path) -> Result<String, Unreadable> {
    std::fs::read_to_string(path).map_err(|cause| Unreadable {
        path: path.display().to_string(),
        cause,
    })
}

fn in_lines(response: &ApplyAnswer, dry_run: bool) -> String {
    let mut text = String::new();
    for step in &response.steps {
        // Writing to a String cannot fail.
        let _ = line(&mut text, step, dry_run);
    }
    let end = match (&response.refused, response.steps.len()) {
        (Some(refused), _) => refused.clone(),
        (None, 0) => "the file is applied; nothing to change".to_owned(),
        (None, count) if dry_run => format!("{count} step(s); nothing was changed"),
        (None, count) if response.applied => format!("{count} step(s) done"),
        (None, count) => {
            let done = response
                .steps
                .iter()
                .filter(|it| it.state == StepState::Done);
            format!("{} of {count} step(s) done", done.count())
        }
    };
    text += &end;
    text.push('\n');
    text
}

fn line(text: &mut String, step: &ApplyStep, dry_run: bool) -> std::fmt::Result {
    write!(text, "{:7}  {}", step.effect, step.text)?;
    match step.state {
        StepState::Planned => {}
        StepState::Done => write!(text, ": done")?,
        StepState::Failed => write!(text, ": failed")?,
        StepState::Skipped if dry_run => {}
        StepState::Skipped => write!(text, ": not done")?,
        StepState::Undone => write!(text, ": undone again")?,
    }
    writeln!(text)?;
    if let Some(error) = &step.error {
        writeln!(text, "         {error}")?;
    }
    if let Some(warning) = &step.warning {
        writeln!(text, "         warning: {warning}")?;
    }
    for cut in &step.cut_off {
        writeln!(text, "         aborted at the deadline: {cut}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::model::OutstandingCommands;

    fn step(effect: &str, state: StepState) -> ApplyStep {
        ApplyStep {
            effect: effect.to_owned(),
            text: "do it".to_owned(),
            state,
            error: None,
            cut_off: Vec::new(),
            warning: None,
        }
    }

    #[test]
    fn every_apply_outcome_is_printed() {
        let response = |steps, applied, refused: Option<&str>| ApplyAnswer {
            steps,
            applied,
            refused: refused.map(str::to_owned),
        };
        let nothing = response(Vec::new(), true, None);
        assert_eq!(
            in_lines(&nothing, false),
            "the file is applied; nothing to change\n"
        );
        let refused = response(vec![step("restart", StepState::Skipped)], false, Some("no"));
        assert_eq!(in_lines(&refused, false), "restart  do it: not done\nno\n");
        let planned = response(vec![step("live", StepState::Planned)], false, None);
        assert_eq!(
            in_lines(&planned, true),
            "live     do it\n1 step(s); nothing was changed\n"
        );
        let done = ApplyStep {
            cut_off: vec![OutstandingCommands {
                export: "nqn.a".to_owned(),
                host: "nqn.h".to_owned(),
                queue: 2,
                commands: 3,
            }],
            warning: Some("may be lost".to_owned()),
            ..step("drain", StepState::Done)
        };
        let failed = ApplyStep {
            error: Some("no memory".to_owned()),
            ..step("live", StepState::Failed)
        };
        let all = vec![done, failed, step("live", StepState::Skipped)];
        assert_eq!(
            in_lines(&response(all, false, None), false),
            "drain    do it: done\n         warning: may be lost\n         \
             aborted at the deadline: nqn.a, host nqn.h, queue 2: 3 command(s)\n\
             live     do it: failed\n         no memory\n\
             live     do it: not done\n1 of 3 step(s) done\n"
        );
    }
}
