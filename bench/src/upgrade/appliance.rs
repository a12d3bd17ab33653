//! An appliance of this measurement: a process that is replaced, and ended on drop.

use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use tempfile::TempDir;

use super::UpgradeError;

/// Longest wait for the end of a process, in seconds.
const END_MAX_SECONDS: i64 = 20;
/// The line that ends what the appliance prints at its start.
const READY: &str = "windlass: ready";
/// The line before it that has the address of the listener.
const ATTACH: &str = "attach: ";

/// A running appliance.
#[derive(Debug)]
pub(super) struct Appliance {
    /// The first process. Its standard output is that of its successors too.
    first: Child,
    _output: BufReader<ChildStdout>,
    /// The process that serves.
    serving: OwnedFd,
    address: SocketAddr,
    directory: TempDir,
    windlass: PathBuf,
}

/// What `windlass upgrade --json` reports.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) pid: i32,
    pub(super) connections: u64,
    pub(super) pause_us: u64,
}

impl Appliance {
    /// Starts `windlass` with the configuration that `text` makes for the control socket's path.
    pub(super) fn start(
        windlass: &Path,
        text: impl FnOnce(&Path) -> String,
    ) -> Result<Self, UpgradeError> {
        if !windlass.is_file() {
            return Err(UpgradeError::NoProgram(windlass.to_owned()));
        }
        let directory = tempfile::tempdir().map_err(UpgradeError::Files)?;
        let file = directory.path().join("windlass.toml");
        let text = text(&socket(directory.path()));
        std::fs::write(&file, text).map_err(UpgradeError::Files)?;
        let log = std::fs::File::create(directory.path().join("log"));
        let failed = |source| UpgradeError::Process {
            path: windlass.to_owned(),
            source,
        };
        let mut first = Command::new(windlass)
            .arg("run")
            .arg(&file)
            .env("STATE_DIRECTORY", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.map_err(UpgradeError::Files)?)
            .spawn()
            .map_err(failed)?;
        let output = first.stdout.take();
        let output = output.ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let serving = process(first.id().cast_signed()).map_err(failed)?;
        let mut appliance = Self {
            first,
            _output: BufReader::new(output),
            serving,
            address: SocketAddr::from(([0; 4], 0)),
            directory,
            windlass: windlass.to_owned(),
        };
        appliance.address = appliance.await_ready()?;
        Ok(appliance)
    }

    /// Waits until it is ready; returns the address of its listener.
    fn await_ready(&mut self) -> Result<SocketAddr, UpgradeError> {
        let mut address = None;
        loop {
            let mut line = String::new();
            let read = self._output.read_line(&mut line);
            if !matches!(read, Ok(bytes) if bytes > 0) {
                return Err(UpgradeError::Ended(self.log()));
            }
            if let Some(command) = line.strip_prefix(ATTACH) {
                address = attach_address(command);
            }
            if line.trim_end() == READY {
                return address.ok_or_else(|| UpgradeError::Ended(self.log()));
            }
        }
    }

    /// The address of its listener.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The command that replaces its process.
    pub(super) fn upgrade_command(&self, to: Option<&Path>) -> Command {
        let mut command = Command::new(&self.windlass);
        command
            .arg("upgrade")
            .args(to)
            .arg("--json")
            .arg("--socket")
            .arg(socket(self.directory.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Reads the answer of an upgrade, and follows it to the new process.
    pub(super) fn follow(&mut self, upgrade: Child) -> Result<Answer, UpgradeError> {
        let done = upgrade.wait_with_output().map_err(UpgradeError::Files)?;
        if !done.status.success() {
            let reason = String::from_utf8_lossy(&done.stderr);
            return Err(UpgradeError::Refused(reason.trim().to_owned()));
        }
        let answer: Answer = serde_json::from_slice(&done.stdout)?;
        let old = std::mem::replace(
            &mut self.serving,
            process(answer.pid).map_err(|source| UpgradeError::Process {
                path: self.windlass.clone(),
                source,
            })?,
        );
        wait_for_end(&old);
        self.await_control();
        Ok(answer)
    }

    /// Waits until the new process has opened the control socket.
    fn await_control(&self) {
        for _ in 0..200 {
            let socket = socket(self.directory.path());
            if std::os::unix::net::UnixStream::connect(socket).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The end of its log.
    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.directory.path().join("log"));
        let log = log.unwrap_or_default();
        log.lines().next_back().unwrap_or_default().to_owned()
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        if pidfd_send_signal(&self.serving, Signal::TERM).is_ok() && !wait_for_end(&self.serving) {
            let _ = pidfd_send_signal(&self.serving, Signal::KILL);
        }
        // It has ended, or another process serves in its place.
        let _ = self.first.wait();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

fn process(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits until the process has ended. Returns `false` if it goes on.
fn wait_for_end(process: &OwnedFd) -> bool {
    let limit = Timespec {
        tv_sec: END_MAX_SECONDS,
        tv_nsec: 0,
    };
    let mut descriptors = [PollFd::new(process, PollFlags::IN)];
    poll(&mut descriptors, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// The address in a command `nvme connect … -a ADDRESS -s PORT …`.
fn attach_address(command: &str) -> Option<SocketAddr> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let value = |option: &str| {
        let at = words.iter().position(|word| *word == option)?;
        words.get(at + 1).copied()
    };
    let address: IpAddr = value("-a")?.parse().ok()?;
    Some(SocketAddr::new(address, value("-s")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_read_from_the_attach_command() {
        let found = attach_address("nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.x\n");
        assert_eq!(found, Some(SocketAddr::from(([127, 0, 0, 1], 4420))));
        for command in ["", "nvme connect -a", "nvme connect -a 127.0.0.1 -s x"] {
            assert_eq!(attach_address(command), None, "{command}");
        }
    }
}
