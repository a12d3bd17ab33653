//! An appliance of this measurement: a process that is replaced, and ended on drop.

use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use tempfile::TempDir;

use super::manager::Manager;
use super::{Replacement, UpgradeError};

/// Longest wait for the end of a process, in seconds.
const END_MAX_SECONDS: i64 = 20;
/// The line that ends what the appliance prints at its start.
const READY: &str = "windlass: ready";
/// The line before it that has the address of the listener.
const ATTACH: &str = "attach: ";

/// What the log says after the number of connections that a restart has continued.
const CONTINUED: &str = " connection(s) continue after the restart";

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
    /// Restarts the process; without it, the process is replaced by an upgrade.
    manager: Option<Manager>,
}

/// What a replacement of the process reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replaced {
    /// Connections that continue, with those of admin queues.
    pub(super) connections: u64,
    /// Time in which no request was admitted, if the appliance reports it.
    pub(super) held: Option<Duration>,
    /// Duration of the command or of the restart.
    pub(super) took: Duration,
}

/// What `windlass upgrade --json` reports.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Answer {
    pid: i32,
    connections: u64,
    pause_us: u64,
}

impl Appliance {
    /// Starts `windlass` with the configuration that `text` makes for the control socket's path.
    pub(super) fn start(
        windlass: &Path,
        replacement: Replacement,
        text: impl FnOnce(&Path) -> String,
    ) -> Result<Self, UpgradeError> {
        if !windlass.is_file() {
            return Err(UpgradeError::NoProgram(windlass.to_owned()));
        }
        let directory = tempfile::tempdir().map_err(UpgradeError::Files)?;
        let file = directory.path().join("windlass.toml");
        let text = text(&socket(directory.path()));
        std::fs::write(&file, text).map_err(UpgradeError::Files)?;
        let failed = |source| UpgradeError::Process {
            path: windlass.to_owned(),
            source,
        };
        let mut manager = match replacement {
            Replacement::Upgrade => None,
            Replacement::Restart => {
                let manager = Manager::new(directory.path());
                Some(manager.map_err(UpgradeError::Files)?)
            }
        };
        let mut command = match &mut manager {
            None => {
                let mut command = Command::new(windlass);
                command.stdin(Stdio::null());
                command
            }
            Some(manager) => manager.command(windlass),
        };
        run(&mut command, directory.path()).map_err(UpgradeError::Files)?;
        let mut first = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
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
            manager,
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

    /// Replaces its process, by the program `to` if given, and follows it to the new one.
    pub(super) fn replace(&mut self, to: Option<&Path>) -> Result<Replaced, UpgradeError> {
        let began = Instant::now();
        if self.manager.is_some() {
            return self.restart(to);
        }
        let command = self.upgrade_command(to).output();
        let done = command.map_err(UpgradeError::Files)?;
        let took = began.elapsed();
        let answer = self.follow(&done)?;
        Ok(Replaced {
            connections: answer.connections,
            held: Some(Duration::from_micros(answer.pause_us)),
            took,
        })
    }

    /// Restarts the process as a service manager does.
    fn restart(&mut self, to: Option<&Path>) -> Result<Replaced, UpgradeError> {
        let program = to.unwrap_or(&self.windlass).to_owned();
        let failed = |source| UpgradeError::Process {
            path: program.clone(),
            source,
        };
        let began = Instant::now();
        let signalled = pidfd_send_signal(&self.serving, Signal::TERM);
        signalled.map_err(|errno| failed(errno.into()))?;
        let Some(manager) = &mut self.manager else {
            return Err(UpgradeError::Refused("there is no manager".to_owned()));
        };
        manager.wait_for("BARRIER=1").map_err(UpgradeError::Files)?;
        if !wait_for_end(&self.serving) || !manager.has_state() {
            return Err(UpgradeError::Refused(self.log()));
        }
        let _ = self.first.wait();
        let mut command = manager.command(&program);
        run(&mut command, self.directory.path()).map_err(UpgradeError::Files)?;
        self.first = command.stdout(Stdio::null()).spawn().map_err(failed)?;
        self.serving = process(self.first.id().cast_signed()).map_err(failed)?;
        manager.wait_for("READY=1").map_err(UpgradeError::Files)?;
        let took = began.elapsed();
        let connections = continued(&self.whole_log());
        Ok(Replaced {
            connections: connections.ok_or_else(|| UpgradeError::Refused(self.log()))?,
            held: None,
            took,
        })
    }

    /// The command that replaces its process.
    fn upgrade_command(&self, to: Option<&Path>) -> Command {
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
    fn follow(&mut self, done: &Output) -> Result<Answer, UpgradeError> {
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

    fn whole_log(&self) -> String {
        let log = std::fs::read_to_string(self.directory.path().join("log"));
        log.unwrap_or_default()
    }

    /// The end of its log.
    fn log(&self) -> String {
        self.whole_log()
            .lines()
            .next_back()
            .unwrap_or_default()
            .to_owned()
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

/// Adds the arguments that run the configuration in `directory`, with the log there.
fn run(command: &mut Command, directory: &Path) -> io::Result<()> {
    let log = directory.join("log");
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(log)?;
    command
        .args(["--log", "info", "run"])
        .arg(directory.join("windlass.toml"))
        .env("STATE_DIRECTORY", directory)
        .stderr(log);
    Ok(())
}

/// Number of connections that the last restart has continued.
fn continued(log: &str) -> Option<u64> {
    let mut lines = log.lines().rev();
    let line = lines.find(|line| line.contains(CONTINUED))?;
    let before = line.split(CONTINUED).next()?;
    before.split_whitespace().next_back()?.parse().ok()
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
    fn continued_connections_are_read_from_the_log() {
        let log = "INFO x\nINFO 9 connection(s) continue after the restart\n\
                   INFO 72 connection(s) continue after the restart\nINFO y\n";
        assert_eq!(continued(log), Some(72));
        for log in [
            "",
            "INFO x\n",
            "INFO no connection(s) continue after the restart\n",
        ] {
            assert_eq!(continued(log), None, "{log}");
        }
    }

    #[test]
    fn address_is_read_from_the_attach_command() {
        let found = attach_address("nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.x\n");
        assert_eq!(found, Some(SocketAddr::from(([127, 0, 0, 1], 4420))));
        for command in ["", "nvme connect -a", "nvme connect -a 127.0.0.1 -s x"] {
            assert_eq!(attach_address(command), None, "{command}");
        }
    }
}
