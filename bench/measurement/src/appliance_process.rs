//! The appliance as a child process: started with a configuration, ended on drop.

use std::io::{self, BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nvme_host_testing::tcp::RawClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::cpu_limit::{CpuLimit, CpuLimitError};
use crate::leftovers::Registration;

/// Maximum duration of the appliance's start or shutdown.
pub const START_LIMIT: Duration = Duration::from_secs(20);
/// Interval between connection attempts: short compared with a start, but long enough that the
/// attempts do not slow the start down.
const RETRY_INTERVAL: Duration = Duration::from_micros(100);
/// The appliance is at rest if it takes at most one part in `REST_PART` of this time: one or two ticks
/// of the kernel's clock.
const REST_INTERVAL: Duration = Duration::from_millis(200);
const REST_PART: u32 = 10;
/// The appliance's output when its exports are available.
const READY: &str = "windlass: ready";

/// The reason why the appliance does not run.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The binary does not exist.
    #[error(
        "{} does not exist: build it with `cargo build --release -p appliance`, \
         or name it with --windlass",
        .0.display()
    )]
    NoBinary(PathBuf),
    /// It could not be started.
    #[error("cannot run {}: {source}", path.display())]
    Process {
        /// The binary.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It ended instead of serving.
    #[error("the appliance ended at its start: {0}")]
    Ended(String),
    /// It does not serve.
    #[error("the appliance accepts no connection within {START_LIMIT:?}: {0}")]
    NotServing(String),
    /// It works although nothing is asked of it.
    #[error("the appliance without hosts does not come to rest within {START_LIMIT:?}")]
    Restless,
    /// A file of the measurement cannot be written.
    #[error("cannot write the appliance's configuration: {0}")]
    Configuration(io::Error),
    /// Its CPU share cannot be limited.
    #[error(transparent)]
    Limit(#[from] CpuLimitError),
}

/// A running appliance.
#[derive(Debug)]
pub struct ApplianceProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
    started: Instant,
    directory: TempDir,
    binary: PathBuf,
    /// Registers the process and its directory for removal by a signal.
    _registration: [Registration; 2],
    /// Limits its processor time; removed after the process has ended.
    limit: Option<CpuLimit>,
}

impl ApplianceProcess {
    /// Starts `binary`. `text` makes the configuration from a directory for its files and the
    /// address of its listener. The time since exec starts here.
    ///
    /// # Errors
    /// [`ProcessError`]: it cannot be started.
    pub fn start(
        binary: &Path,
        text: impl FnOnce(&Path, SocketAddr) -> String,
    ) -> Result<Self, ProcessError> {
        if !binary.is_file() {
            return Err(ProcessError::NoBinary(binary.to_owned()));
        }
        let directory = tempfile::tempdir().map_err(ProcessError::Configuration)?;
        let folder = Registration::folder(directory.path());
        let address = free_address().map_err(ProcessError::Configuration)?;
        let file = directory.path().join("windlass.toml");
        std::fs::write(&file, text(directory.path(), address))
            .map_err(ProcessError::Configuration)?;
        let log = std::fs::File::create(directory.path().join("log"));
        let log = log.map_err(ProcessError::Configuration)?;
        let failed = |source| ProcessError::Process {
            path: binary.to_owned(),
            source,
        };
        let started = Instant::now();
        let mut command = Command::new(binary);
        command
            .arg("run")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        let (mut child, process) = Registration::child(|| command.spawn()).map_err(failed)?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self {
            child,
            output: BufReader::new(output),
            address,
            started,
            directory,
            binary: binary.to_owned(),
            _registration: [folder, process],
            limit: None,
        })
    }

    /// Waits until one of its reactors has initialized a connection. Returns the time since exec.
    ///
    /// # Errors
    /// [`ProcessError`]: it ended, or does not serve.
    pub fn await_connection(&mut self) -> Result<Duration, ProcessError> {
        loop {
            if let Ok(Some(_)) = self.child.try_wait() {
                return Err(ProcessError::Ended(self.last_errors()));
            }
            let initialized = RawClient::connect(self.address, START_LIMIT)
                .and_then(|mut client| client.initialize(false, false));
            let elapsed = self.started.elapsed();
            if initialized.is_ok() {
                return Ok(elapsed);
            }
            if elapsed > START_LIMIT {
                return Err(ProcessError::NotServing(self.last_errors()));
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Waits for its ready message. Returns the time since exec.
    ///
    /// # Errors
    /// [`ProcessError`]: it ended before.
    pub fn await_ready(&mut self) -> Result<Duration, ProcessError> {
        let mut line = String::new();
        while line.trim_end() != READY {
            line.clear();
            match self.output.read_line(&mut line) {
                Ok(bytes) if bytes > 0 => {}
                _ => return Err(ProcessError::Ended(self.last_errors())),
            }
        }
        Ok(self.started.elapsed())
    }

    /// Waits until it has finished what it prepares in the background after its start, such as pages
    /// of its memory, which takes processor time from its reactors. Only for one whose idle policy
    /// sleeps.
    ///
    /// # Errors
    /// [`ProcessError`]: it ended, or does not come to rest.
    pub fn await_rest(&self) -> Result<(), ProcessError> {
        let deadline = Instant::now() + START_LIMIT;
        let ended = || ProcessError::Ended(self.last_errors());
        while Instant::now() < deadline {
            let before = self.cpu_time().ok_or_else(ended)?;
            std::thread::sleep(REST_INTERVAL);
            let after = self.cpu_time().ok_or_else(ended)?;
            if after.saturating_sub(before) <= REST_INTERVAL / REST_PART {
                return Ok(());
            }
        }
        Err(ProcessError::Restless)
    }

    /// Limits it to this percentage of one core.
    ///
    /// # Errors
    /// [`ProcessError::Limit`].
    pub fn limit_to(&mut self, percent: u32) -> Result<(), ProcessError> {
        let limit = CpuLimit::new(percent)?;
        limit.add_process(self.child.id())?;
        self.limit = Some(limit);
        Ok(())
    }

    /// Total busy time of its reactors, from its control socket, which its configuration must set
    /// to `control.sock` in its directory. If its CPU share is limited, its processor time instead,
    /// because busy time would include throttled time. `None` if the socket does not respond.
    #[must_use]
    pub fn busy_time(&self) -> Option<Duration> {
        if let Some(limit) = &self.limit {
            return limit.cpu_time();
        }
        let output = Command::new(&self.binary)
            .args(["status", "--json", "--socket"])
            .arg(self.directory.path().join("control.sock"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let reactors = status["reactors"].as_array()?;
        let busy = reactors.iter().map(|one| one["busy_ns"].as_u64());
        Some(Duration::from_nanos(busy.sum::<Option<u64>>()?))
    }

    /// The address of its listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its processor time of all threads, including the kernel's part; `None` after its end.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // proc_pid_stat(5): the name may contain anything except the last parenthesis; utime and
        // stime are the 14th and 15th fields, which are the 12th and 13th after the name.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut times = fields.split_whitespace().skip(11);
        let ticks: u64 = times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?;
        let per_second = rustix::param::clock_ticks_per_second();
        Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// The errors in its log, or else its last line.
    fn last_errors(&self) -> String {
        let log = std::fs::read_to_string(self.directory.path().join("log"));
        last_errors(&log.unwrap_or_default())
    }
}

/// The errors in a log, or else its last line.
fn last_errors(log: &str) -> String {
    let errors = log.lines().filter_map(|line| line.strip_prefix("error: "));
    let mut errors: Vec<&str> = errors.collect();
    errors.dedup();
    if errors.is_empty() {
        let last = log.lines().next_back();
        last.unwrap_or("its log is empty").trim().to_owned()
    } else {
        errors.join("; ")
    }
}

impl Drop for ApplianceProcess {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let asked = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let deadline = Instant::now() + START_LIMIT;
        while asked && Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // A child that does not end in order must not outlive the measurement.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    listener.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_log_errors_are_reported() {
        let checked = "error: `memory` is too small\n  --> x.toml:4:1\n   |\n\n\
            error: no [[export]]\n\nerror: no [[export]]\n\nx.toml: 3 problems\n";
        assert_eq!(last_errors(checked), "`memory` is too small; no [[export]]");
        assert_eq!(last_errors("one\n  two \n"), "two");
        assert_eq!(last_errors(""), "its log is empty");
    }
}
