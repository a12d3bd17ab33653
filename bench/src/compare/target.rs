//! The target under measurement: a child process with the configuration that a comparison needs.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvme_host::raw::RawClient;
use rustix::process::{Pid, Signal, kill_process};

use super::{CompareError, READ_BYTES};
use crate::ceiling::CONGESTION_CONTROL;

/// The arena of the target, bytes.
pub(super) const ARENA_BYTES: u64 = 256 << 20;

/// How long the target may take to start or to end.
pub(super) const START_LIMIT: Duration = Duration::from_secs(20);

/// Subsystem of the target under measurement.
pub(super) const NQN: &str = "nqn.2026-11.org.windlass:compare";

/// What the target under measurement is to be.
#[derive(Debug, Clone)]
pub(super) struct TargetOptions {
    /// The appliance's binary.
    pub(super) windlass: PathBuf,
    /// Its only core.
    pub(super) core: usize,
    /// Size of namespace 1, in RAM, bytes.
    pub(super) memory_bytes: u64,
    /// What namespace 2 is, where there is one: a file.
    pub(super) file: Option<PathBuf>,
    /// The idle policy.
    pub(super) idle: &'static str,
}

/// The configuration file.
fn configuration(options: &TargetOptions, port: u16) -> String {
    let (file, devices) = match &options.file {
        Some(path) => (
            format!(
                "[[device]]\n\
                 name = \"file0\"\n\
                 type = \"file\"\n\
                 path = {path:?}\n\
                 block_size = {READ_BYTES}\n\
                 \n"
            ),
            "\"ram0\", \"file0\"",
        ),
        None => (String::new(), "\"ram0\""),
    };
    format!(
        "[appliance]\n\
         name = \"compare\"\n\
         cores = \"{core}\"\n\
         memory = {ARENA_BYTES}\n\
         idle = \"{idle}\"\n\
         \n\
         [[device]]\n\
         name = \"ram0\"\n\
         type = \"memory\"\n\
         size = {size}\n\
         block_size = {READ_BYTES}\n\
         \n\
         {file}\
         [[listener]]\n\
         name = \"loopback\"\n\
         transport = \"tcp\"\n\
         address = \"127.0.0.1:{port}\"\n\
         queue_depth = 256\n\
         congestion_control = \"{CONGESTION_CONTROL}\"\n\
         \n\
         [[export]]\n\
         nqn = \"{NQN}\"\n\
         devices = [{devices}]\n\
         listeners = [\"loopback\"]\n\
         allow_any_host = true\n",
        core = options.core,
        idle = options.idle,
        size = options.memory_bytes,
    )
}

/// A running target; ended when dropped.
pub(super) struct Target {
    child: Child,
    pub(super) address: SocketAddr,
    pub(super) start_to_accept: Duration,
    directory: tempfile::TempDir,
}

impl Target {
    /// Starts the target and waits until it has initialised a connection.
    pub(super) fn start(options: &TargetOptions) -> Result<Self, CompareError> {
        let directory = tempfile::tempdir().map_err(CompareError::Configuration)?;
        let port = free_port().map_err(CompareError::Configuration)?;
        let file = directory.path().join("compare.toml");
        let text = configuration(options, port);
        std::fs::write(&file, text).map_err(CompareError::Configuration)?;
        let output = std::fs::File::create(directory.path().join("output"));
        let output = output.map_err(CompareError::Configuration)?;
        let started = Instant::now();
        let spawned = Command::new(&options.windlass)
            .arg("run")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn();
        let path = options.windlass.clone();
        let child = spawned.map_err(|source| CompareError::Process { path, source })?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut target = Self {
            child,
            address,
            start_to_accept: Duration::ZERO,
            directory,
        };
        target.await_connection(started)?;
        Ok(target)
    }

    fn await_connection(&mut self, started: Instant) -> Result<(), CompareError> {
        loop {
            if let Ok(Some(_)) = self.child.try_wait() {
                return Err(CompareError::Ended(self.last_words()));
            }
            let initialized = RawClient::connect(self.address, START_LIMIT)
                .and_then(|mut client| client.initialize(false, false));
            self.start_to_accept = started.elapsed();
            if initialized.is_ok() {
                return Ok(());
            }
            if self.start_to_accept > START_LIMIT {
                return Err(CompareError::NotServing(self.last_words()));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Processor time that the target has taken so far.
    pub(super) fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // proc_pid_stat(5): the name may hold anything but the last parenthesis; utime and stime
        // are the 14th and 15th fields, so the 12th and 13th behind it.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut times = fields.split_whitespace().skip(11);
        let ticks: u64 = times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?;
        let per_second = rustix::param::clock_ticks_per_second();
        Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// What the target said last.
    fn last_words(&self) -> String {
        let output = std::fs::read_to_string(self.directory.path().join("output"));
        let output = output.unwrap_or_default();
        output
            .lines()
            .next_back()
            .unwrap_or("it said nothing")
            .trim()
            .to_owned()
    }
}

impl Drop for Target {
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

fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(file: Option<PathBuf>) -> TargetOptions {
        TargetOptions {
            windlass: PathBuf::from("windlass"),
            core: 0,
            memory_bytes: 16 << 20,
            file,
            idle: "adaptive",
        }
    }

    #[test]
    fn the_target_has_the_pairs_congestion_control() {
        let text = configuration(&options(None), 4420);
        let (_, listener) = text.split_once("[[listener]]\n").expect("a listener");
        let (listener, _) = listener.split_once("\n\n").expect("an export after it");
        let expected = format!("congestion_control = \"{CONGESTION_CONTROL}\"");
        assert!(listener.lines().any(|line| line == expected), "{text}");
        assert!(text.contains("devices = [\"ram0\"]"), "{text}");
    }

    #[test]
    fn a_file_is_the_second_namespace() {
        let text = configuration(&options(Some(PathBuf::from("/tmp/a \"b\""))), 4420);
        assert!(text.contains("path = \"/tmp/a \\\"b\\\"\""), "{text}");
        assert!(text.contains("devices = [\"ram0\", \"file0\"]"), "{text}");
    }
}
