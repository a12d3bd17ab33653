//! The binary as a user runs it: a child process that is always ended, by its process ID.

#![expect(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Generous limit for every wait of a test, for busy machines.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The configuration of most tests: one RAM namespace, for any host, on a port that the system
/// chooses.
pub(crate) const RAM_ON_LOOPBACK: &str = r#"
[[device]]
name = "ram"
type = "memory"
size = "8MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "nqn.2026-11.org.windlass:test"
devices = ["ram"]
listeners = ["loopback"]
allow_any_host = true
"#;

/// Runs `windlass` with `arguments` until it exits.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    let output = Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    Finished {
        status: output.status,
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// The result of a finished run.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A running appliance.
pub(crate) struct Windlass {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    /// The lines up to `windlass: ready`.
    pub(crate) announced: Vec<String>,
}

impl Windlass {
    /// Starts `windlass run FILE` and waits until it is ready.
    pub(crate) fn start(file: &Path) -> Self {
        Self::start_in(file, &[])
    }

    /// Like [`start`](Self::start), with these environment variables.
    pub(crate) fn start_in(file: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start_with(file, environment, Stdio::inherit())
    }

    /// Like [`start`](Self::start), with the log in the file `log`.
    pub(crate) fn start_logging(file: &Path, log: &Path) -> Self {
        let log = std::fs::File::create(log).expect("writable");
        Self::start_with(file, &[], log.into())
    }

    fn start_with(file: &Path, environment: &[(&str, &str)], log: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(["--log", "warn", "run"]).arg(file);
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null());
        Self::start_command(command, file, log)
    }

    /// Starts a command that executes `windlass run FILE`, and waits until it is ready.
    pub(crate) fn start_command(mut command: Command, file: &Path, log: Stdio) -> Self {
        let mut child = command
            // The records of served contents are private to the test.
            .env("STATE_DIRECTORY", file.parent().expect("a directory"))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut windlass = Self {
            child,
            stdout,
            announced: Vec::new(),
        };
        loop {
            let mut line = String::new();
            let bytes = windlass.stdout.read_line(&mut line).expect("readable");
            assert!(
                bytes > 0,
                "it ended before it was ready: {:?}",
                windlass.announced
            );
            if line.trim_end() == "windlass: ready" {
                return windlass;
            }
            windlass.announced.push(line.trim_end().to_owned());
        }
    }

    /// The address of the first listener, from the `attach:` line.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address_of("")
    }

    /// The address of the first listener of the export with this NQN.
    pub(crate) fn address_of(&self, nqn: &str) -> SocketAddr {
        let line = self
            .announced
            .iter()
            .find(|line| line.starts_with("attach: ") && line.contains(nqn));
        let words: Vec<&str> = line.expect("an attach line").split(' ').collect();
        let after = |option| {
            let at = words
                .iter()
                .position(|word| *word == option)
                .expect("the option is there");
            words[at + 1]
        };
        format!("{}:{}", after("-a"), after("-s"))
            .parse()
            .expect("an address")
    }

    /// Where files are served, from the `mount:` line.
    pub(crate) fn files_address(&self) -> SocketAddr {
        let mut lines = self.announced.iter();
        let line = lines
            .find_map(|line| line.strip_prefix("mount: "))
            .expect("a mount line");
        let after = |text: &str| {
            let (_, rest) = line.split_once(text).expect("the option is there");
            rest.split([' ', ':']).next().expect("a word").to_owned()
        };
        let (port, words) = (after("port="), line.split(' '));
        let source = words.rev().nth(1).expect("a source");
        let (ip, _) = source.split_once(':').expect("an address");
        format!("{ip}:{port}").parse().expect("an address")
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Processor time that the threads of the process have used.
    pub(crate) fn cpu_time(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let used = threads.expect("it runs").map(|thread| {
            // The first field of schedstat: nanoseconds on a processor. Those of /proc/PID/stat
            // are ticks of 10 ms.
            let path = thread.expect("readable").path().join("schedstat");
            let text = std::fs::read_to_string(path).expect("the thread runs");
            let field = text.split(' ').next().expect("a first field");
            field.parse::<u64>().expect("a number")
        });
        Duration::from_nanos(used.sum())
    }

    /// Waits for the process to exit.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waitable") {
                let mut rest = String::new();
                self.stdout.read_to_string(&mut rest).expect("readable");
                return (status, rest);
            }
            assert!(began.elapsed() < LIMIT, "it did not end within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Windlass {
    fn drop(&mut self) {
        // Already ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
