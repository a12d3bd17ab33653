//! `windlass copy`: copies a device of a running appliance to another one, and shows the progress.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use appliance_config::ByteSize;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::client::{
    ABORT_COPY_PATH, Client, ClientError, START_COPY_PATH, SocketArguments, views,
};
use crate::error::Failure;
use crate::observe::model::{
    AbortCopyAnswer, AbortCopyRequest, CopyRequest, CopyState, CopyStatus, StartCopyAnswer, Status,
};
use crate::quantity;
use crate::terminal::print;

/// Interval in which the progress is read.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Without a terminal, a line is printed after each such part in percent.
const LINE_PERCENT: u64 = 10;

/// What `copy` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The appliance reads SOURCE and writes the same blocks of DESTINATION, while hosts use other devices;
requests of hosts get memory first. Both have the same block size, and DESTINATION is as large as the
range. At the end, DESTINATION is flushed. A copy is not a snapshot: with --live, hosts may write to
SOURCE meanwhile, and DESTINATION may have blocks of different moments. The command tells how many
requests have changed SOURCE.

Data goes through the memory of this machine. With --by-drive, and between devices with data_path =
\"auto\", a drive that has both devices copies by itself what it can; with --drive-memory, and between
devices with data_path = \"drive-memory\" or \"auto\", the rest goes through the memory of a drive. A range
that the drive's own copy fails with takes the next way.

Ctrl-C aborts the copy, a second one leaves it alone. If a request fails, the lowest range that failed
is reported; everything before it is written. Repeat the command with the printed --offset to
continue. `windlass apply` does not remove a device that is being copied, nor export one that is being
written, and `windlass upgrade` is refused meanwhile. The stop of the appliance aborts copies.

Exit status: 0 if everything is copied, with --detach if the copy has begun, with --abort if it is
being aborted; 1 if not.")]
pub(crate) struct CopyArguments {
    /// The device that is read.
    #[arg(required_unless_present = "abort")]
    source: Option<String>,
    /// The device that is overwritten.
    #[arg(required_unless_present = "abort")]
    destination: Option<String>,
    /// Where the range begins on both devices: a number of bytes, or a size such as `64MiB`.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", hide_default_value = true)]
    offset: u64,
    /// How long the range is; without it, to the end of SOURCE.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    length: Option<u64>,
    /// Copy although SOURCE is exported, so that hosts may write to it meanwhile.
    #[arg(long)]
    live: bool,
    /// Copy although DESTINATION is exported, so that hosts may use it.
    #[arg(long)]
    overwrite_exported: bool,
    /// Move data through the controller memory buffer of the drive of one of the devices, and not
    /// through the memory of this machine. No real drive has been tested.
    #[arg(long)]
    drive_memory: bool,
    /// Let the drive of both devices copy by itself (NVMe Copy between its namespaces) what it can; the
    /// rest takes the next way. No real drive has been tested.
    #[arg(long)]
    by_drive: bool,
    /// Begin the copy, print its number, and do not wait.
    #[arg(long)]
    detach: bool,
    /// Abort the copy with this number.
    #[arg(
        long,
        value_name = "NUMBER",
        conflicts_with_all = ["source", "destination", "offset", "length", "live",
            "overwrite_exported", "drive_memory", "by_drive", "detach"]
    )]
    abort: Option<u32>,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("the appliance does not know copy {0} any more: it was restarted")]
    Forgotten(u32),
}

/// A number of bytes, or a size with a unit.
fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes) => Ok(bytes),
        Err(_) => {
            let size = text.parse::<ByteSize>();
            size.map(ByteSize::bytes).map_err(|error| error.to_string())
        }
    }
}

/// Begins or aborts a copy, and shows its progress.
pub(crate) fn copy(arguments: &CopyArguments) -> Result<ExitCode, Failure> {
    let client = Client::find(&arguments.socket)?;
    if let Some(number) = arguments.abort {
        let answer = abort(&client, number)?;
        print(&format!("copy {}: {}\n", answer.number, answer.text));
        return Ok(ExitCode::SUCCESS);
    }
    let interrupted = interruptions()?;
    let request = CopyRequest {
        source: arguments.source.clone().unwrap_or_default(),
        destination: arguments.destination.clone().unwrap_or_default(),
        offset: arguments.offset,
        length: arguments.length,
        live: arguments.live,
        overwrite_exported: arguments.overwrite_exported,
        drive_memory: arguments.drive_memory,
        by_drive: arguments.by_drive,
    };
    let StartCopyAnswer { number } = client.post(START_COPY_PATH, &request)?;
    if arguments.detach {
        print(&format!(
            "copy {number} has begun: `windlass status` shows its progress, `windlass copy --abort \
             {number}` aborts it\n"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let ended = watch(&client, number, &interrupted)?;
    print(&result(&ended));
    Ok(match ended.state {
        CopyState::Complete => ExitCode::SUCCESS,
        CopyState::Running | CopyState::Failed | CopyState::Aborted => ExitCode::FAILURE,
    })
}

/// Is set by the first signal to end; the second one ends the program.
fn interruptions() -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let status = 128 + signal;
        signal_hook::flag::register_conditional_shutdown(signal, status, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

fn abort(client: &Client, number: u32) -> Result<AbortCopyAnswer, ClientError> {
    client.post(ABORT_COPY_PATH, &AbortCopyRequest { number })
}

/// Shows the progress until the copy has ended.
fn watch(client: &Client, number: u32, interrupted: &AtomicBool) -> Result<CopyStatus, Failure> {
    let mut progress = Progress::new(std::io::stdout().is_terminal());
    let mut is_aborting = false;
    loop {
        if interrupted.load(Ordering::Relaxed) && !is_aborting {
            is_aborting = true;
            // It may have ended meanwhile.
            if let Err(error) = abort(client, number) {
                tracing::debug!(%error, "not aborted");
            }
        }
        let status: Status = client.get(views::STATUS)?;
        let mut copies = status.copies.into_iter();
        let copy = copies.find(|it| it.number == number);
        let copy = copy.ok_or(CopyError::Forgotten(number))?;
        print(&progress.text(&copy));
        if copy.state != CopyState::Running {
            return Ok(copy);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// The progress as it is printed: one line that changes on a terminal, otherwise a line for each
/// part of the copy.
struct Progress {
    is_terminal: bool,
    /// The percentage of the last line.
    printed: Option<u64>,
    /// The length of the line on the terminal.
    width: usize,
}

impl Progress {
    fn new(is_terminal: bool) -> Self {
        Self {
            is_terminal,
            printed: None,
            width: 0,
        }
    }

    /// What is printed for this state, which may be nothing.
    fn text(&mut self, copy: &CopyStatus) -> String {
        let has_ended = copy.state != CopyState::Running;
        if self.is_terminal {
            let line = if has_ended { String::new() } else { line(copy) };
            let width = std::mem::replace(&mut self.width, line.chars().count());
            // The rest of the line before is overwritten.
            let text = format!("\r{line:width$}");
            return if has_ended { text + "\r" } else { text };
        }
        let step = copy.percent() / LINE_PERCENT;
        if has_ended || self.printed == Some(step) {
            return String::new();
        }
        self.printed = Some(step);
        line(copy) + "\n"
    }
}

fn line(copy: &CopyStatus) -> String {
    let CopyStatus {
        number,
        source,
        destination,
        ..
    } = copy;
    let done = quantity::bytes(copy.written_bytes);
    let bytes = quantity::bytes(copy.bytes);
    let mut line = format!(
        "copy {number}: {source} to {destination}: {} %, {done} of {bytes}",
        copy.percent()
    );
    let per_second = u128::from(copy.written_bytes) * 1000 / u128::from(copy.took_ms.max(1));
    let left = u128::from(copy.bytes.saturating_sub(copy.written_bytes));
    if per_second > 0
        && copy.took_ms >= 1000
        && let (Ok(rate), Ok(seconds)) =
            (u64::try_from(per_second), u64::try_from(left / per_second))
    {
        let rate = quantity::bytes(rate);
        let seconds = quantity::duration(Duration::from_secs(seconds));
        line += &format!(", {rate}/s, {seconds} left");
    }
    line
}

/// What was copied by other ways than through the memory of this machine.
fn ways(copy: &CopyStatus) -> String {
    let parts = [
        (copy.drive_bytes, "by the drive itself"),
        (copy.drive_memory_bytes, "through the memory of a drive"),
    ];
    let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
    parts
        .map(|(bytes, way)| format!(", {} {way}", quantity::bytes(*bytes)))
        .collect()
}

/// The last lines about a copy.
fn result(copy: &CopyStatus) -> String {
    let CopyStatus {
        number,
        source,
        destination,
        ..
    } = copy;
    let begin = format!("copy {number}: {source} to {destination}");
    let mut text = match &copy.error {
        None => {
            let took = Duration::from_millis(copy.took_ms);
            let bytes = quantity::bytes(copy.bytes);
            format!(
                "{begin}: complete: {bytes} in {:.1} s{}\n",
                took.as_secs_f64(),
                ways(copy)
            )
        }
        Some(error) => format!("{begin}: not complete: {error}\n"),
    };
    if copy.drive_failures > 0 {
        text += &format!(
            "{begin}: {} copies by the drive itself failed, and their data took another way\n",
            copy.drive_failures
        );
    }
    if copy.drive_memory_failures > 0 {
        text += &format!(
            "{begin}: {} requests lost their data in the memory of a drive or failed there, and were repeated \
             through the memory of this machine\n",
            copy.drive_memory_failures
        );
    }
    if copy.source_changes > 0 {
        text += &format!(
            "{begin}: {} request(s) changed {source} meanwhile: {destination} may have blocks of \
             different moments\n",
            copy.source_changes
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> CopyStatus {
        CopyStatus {
            number: 3,
            source: "old".to_owned(),
            destination: "new".to_owned(),
            state: CopyState::Running,
            offset: 0,
            bytes: 8 << 30,
            written_bytes: 0,
            drive_memory_bytes: 0,
            drive_bytes: 0,
            drive_failures: 0,
            drive_memory_failures: 0,
            began_unix_ms: 0,
            took_ms: 0,
            memory_waits: 0,
            source_changes: 0,
            intact_bytes: None,
            failed_offset: None,
            failed_bytes: None,
            error: None,
        }
    }

    #[test]
    fn progress_without_a_terminal_is_a_line_for_each_part() {
        let mut progress = Progress::new(false);
        let mut copy = status();
        let begin = "copy 3: old to new: 0 %, 0 KiB of 8 GiB\n";
        assert_eq!(progress.text(&copy), begin);
        assert_eq!(progress.text(&copy), "");
        (copy.written_bytes, copy.took_ms) = (2 << 30, 2000);
        let line = "copy 3: old to new: 25 %, 2 GiB of 8 GiB, 1 GiB/s, 6 s left\n";
        assert_eq!(progress.text(&copy), line);
        copy.written_bytes += 1 << 20;
        assert_eq!(progress.text(&copy), "");
        copy.state = CopyState::Complete;
        assert_eq!(progress.text(&copy), "");
    }

    #[test]
    fn progress_on_a_terminal_is_one_line_that_is_overwritten() {
        let mut progress = Progress::new(true);
        let mut copy = status();
        let first = progress.text(&copy);
        assert_eq!(first, "\rcopy 3: old to new: 0 %, 0 KiB of 8 GiB");
        copy.state = CopyState::Failed;
        let blank = " ".repeat(first.len() - 1);
        assert_eq!(progress.text(&copy), format!("\r{blank}\r"));
    }

    #[test]
    fn result_names_failures_and_changes() {
        let mut copy = status();
        (copy.state, copy.took_ms) = (CopyState::Complete, 3210);
        assert_eq!(
            result(&copy),
            "copy 3: old to new: complete: 8 GiB in 3.2 s\n"
        );
        (copy.drive_bytes, copy.drive_memory_bytes) = (6 << 30, 1 << 30);
        (copy.drive_failures, copy.drive_memory_failures) = (3, 2);
        assert_eq!(
            result(&copy),
            "copy 3: old to new: complete: 8 GiB in 3.2 s, 6 GiB by the drive itself, 1 GiB through the \
             memory of a drive\n\
             copy 3: old to new: 3 copies by the drive itself failed, and their data took another way\n\
             copy 3: old to new: 2 requests lost their data in the memory of a drive or failed there, and \
             were repeated through the memory of this machine\n"
        );
        (copy.drive_failures, copy.drive_memory_failures) = (0, 0);
        copy.error = Some("it was aborted: continue with --offset 4096".to_owned());
        copy.source_changes = 2;
        assert_eq!(
            result(&copy),
            "copy 3: old to new: not complete: it was aborted: continue with --offset 4096\n\
             copy 3: old to new: 2 request(s) changed old meanwhile: new may have blocks of \
             different moments\n"
        );
    }
}
