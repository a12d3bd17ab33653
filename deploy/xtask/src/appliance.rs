//! Runs an appliance under test: starts it with a configuration, kills or stops it, and logs its
//! output.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::log::Log;
use crate::process::killed_with_parent;

/// The appliance's output when its exports are available.
pub(crate) const READY_LINE: &str = "windlass: ready";
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A free TCP port on the loopback interface.
pub(crate) fn free_port() -> Result<u16, String> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}

/// Stops an appliance with SIGTERM; it has to end successfully in time.
pub(crate) fn stop_gracefully(child: &mut Child) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot stop the appliance: {error}");
    if let Some(status) = child.try_wait().map_err(cannot)? {
        return Err(format!("the appliance ended unexpectedly: {status}"));
    }
    // The process has not been reaped, so its process identifier is still valid.
    kill_process(Pid::from_child(child), Signal::TERM).map_err(|errno| cannot(errno.into()))?;
    let deadline = Instant::now() + STOP_TIMEOUT;
    loop {
        match child.try_wait().map_err(cannot)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("the appliance stopped with {status}")),
            None if Instant::now() > deadline => {
                return Err(format!(
                    "the appliance still runs {STOP_TIMEOUT:?} after SIGTERM"
                ));
            }
            None => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// A running appliance; killed on drop.
#[derive(Debug)]
pub(crate) struct Appliance {
    child: Child,
    log: Arc<Log>,
    readers: Vec<JoinHandle<()>>,
}

impl Appliance {
    /// Starts `program run CONFIGURATION` and waits until it is ready and accepts connections.
    pub(crate) fn start(
        program: &Command,
        configuration: &Path,
        port: u16,
        log: &Arc<Log>,
    ) -> Result<Appliance, String> {
        let mut command = killed_with_parent(program);
        command.arg("run").arg(configuration).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot start the appliance: {error}"))?;
        log.line(
            "harness",
            &format!("appliance started as process {}", child.id()),
        );
        let said_ready = Arc::new(AtomicBool::new(false));
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let said_ready = Arc::clone(&said_ready);
            readers.push(log.follow("appliance", stdout, move |line| {
                if line == READY_LINE {
                    said_ready.store(true, Ordering::Release);
                }
            }));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(log.follow("appliance", stderr, |_| {}));
        }
        let mut appliance = Appliance {
            child,
            log: Arc::clone(log),
            readers,
        };
        appliance.wait_until_ready(&said_ready, port)?;
        Ok(appliance)
    }

    fn wait_until_ready(&mut self, said_ready: &AtomicBool, port: u16) -> Result<(), String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut listens = false;
        loop {
            if let Some(status) = self.ended() {
                self.join();
                return Err(format!("the appliance ended before it was ready: {status}"));
            }
            listens = listens || TcpStream::connect_timeout(&address, POLL_INTERVAL).is_ok();
            if listens && said_ready.load(Ordering::Acquire) {
                self.log.line("harness", "appliance is ready");
                return Ok(());
            }
            if Instant::now() > deadline {
                let what = if listens {
                    "did not say that it is ready"
                } else {
                    "does not listen"
                };
                return Err(format!("the appliance {what} after {READY_TIMEOUT:?}"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Its exit status if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills it, like a crash.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        if let Some(status) = self.ended() {
            return Err(format!("the appliance ended unexpectedly: {status}"));
        }
        self.log
            .line("harness", "killing the appliance with SIGKILL");
        self.child
            .kill()
            .map_err(|error| format!("cannot kill the appliance: {error}"))
    }

    /// Stops it; it has to end successfully in time.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        self.log
            .line("harness", "stopping the appliance with SIGTERM");
        stop_gracefully(&mut self.child)
    }

    fn join(&mut self) {
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.join();
    }
}
