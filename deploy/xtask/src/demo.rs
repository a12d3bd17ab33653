//! `cargo xtask demo`: the main use case with the embedded default configuration and a volume of files
//! in memory, from the build to an attached host and a mounted share.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::appliance::{READY_LINE, stop_gracefully};
use crate::{packages, process};

/// Prefix of the appliance's output of each command that attaches an export.
const ATTACH_PREFIX: &str = "attach: ";
/// Prefix of the appliance's output of each command that mounts a share.
const MOUNT_PREFIX: &str = "mount: ";
/// The embedded default, and the path of the file in it.
const EMBEDDED: &str = include_str!("../../../config/src/embedded.toml");
const EMBEDDED_PATH: &str = "/var/lib/windlass/demo.img";
/// What the demo adds to it. The port is not that of NFS, which the kernel's server may use.
const FILES: &str = r#"
[[device]]
name = "ram1"
type = "memory"
size = "256MiB"

[[volume]]
name = "scratch"
device = "ram1"

[[share]]
name = "scratch"
volume = "scratch"
allow_any_client = true
squash = "none"

[[file_listener]]
name = "files"
address = "127.0.0.1:20490"
"#;
const FILES_ADDRESS: &str = "127.0.0.1:20490";
const SHARE: &str = "scratch";
/// Size of the file of the verified workload.
const FILE_SIZE: &str = "64M";
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The options of the demo.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// End after the workload instead of serving until Ctrl-C.
    #[arg(long)]
    once: bool,
    /// Seconds of checked reads and writes on each namespace, and of a file.
    #[arg(long, default_value_t = 5)]
    time: u32,
}

/// The command that builds the appliance and the load generator.
pub(crate) fn build(with_rdma: bool) -> Command {
    let mut cargo = process::cargo();
    cargo.args(["build", "--release", "-p", "appliance", "-p", "bench"]);
    if !with_rdma {
        cargo.arg("--no-default-features");
    }
    cargo
}

/// Builds the appliance and the load generator, starts the appliance, runs the load, and keeps
/// serving.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let with_rdma = packages::ensure_installed_for_demo()?;
    println!("demo: building the appliance and the load generator");
    process::run(&mut build(with_rdma))?;
    let binaries = process::root().join("target/release");
    let interrupted = interrupt_flag()?;
    println!("demo: starting the appliance on its embedded default, with a volume of files");
    let mut serving = DemoAppliance::start(&binaries.join("windlass"))?;
    println!("\ndemo: a verified workload on each namespace, by our own host over NVMe/TCP\n");
    let mut load = process::program(binaries.join("bench"));
    load.args(["run", "--all-namespaces", "--verify", "--progress"]);
    load.args(["--time", &options.time.to_string()]);
    let mut loaded = process::run(&mut load);
    if loaded.is_ok() && !interrupted.load(Ordering::Relaxed) {
        println!("\ndemo: a verified workload on a file, by our own client over NFSv4.2\n");
        let mut load = process::program(binaries.join("bench"));
        load.args(["files", "data", "--verify", "--progress"]);
        load.args(["--address", FILES_ADDRESS, "--share", SHARE]);
        load.args(["--region", FILE_SIZE]);
        load.args(["--time", &options.time.to_string()]);
        loaded = process::run(&mut load);
    }
    if interrupted.load(Ordering::Relaxed) {
        // The interruption has also ended the load generator.
        return serving.stop();
    }
    loaded?;
    explain(&serving);
    if !options.once {
        println!("Serving until Ctrl-C.");
        while !interrupted.load(Ordering::Relaxed) {
            if let Some(status) = serving.ended() {
                return Err(format!("the appliance ended unexpectedly: {status}"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
    serving.stop()
}

/// Runs the demo as a test.
pub(crate) fn once() -> Result<(), String> {
    run(&Options {
        once: true,
        time: 2,
    })
}

/// A flag that SIGINT or SIGTERM sets; they no longer end this process.
fn interrupt_flag() -> Result<Arc<AtomicBool>, String> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(|error| format!("signals cannot be handled: {error}"))?;
    }
    Ok(interrupted)
}

/// Writes the configuration of the demo, whose file is beside it. Returns its path.
fn write_configuration(directory: &Path) -> Result<PathBuf, String> {
    let failed = |error| format!("cannot write to {}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(failed)?;
    let path = directory.join("windlass.toml");
    std::fs::write(&path, configuration(directory)).map_err(failed)?;
    Ok(path)
}

fn configuration(directory: &Path) -> String {
    let image = directory.join("demo.img");
    EMBEDDED.replace(EMBEDDED_PATH, &image.to_string_lossy()) + FILES
}

fn explain(serving: &DemoAppliance) {
    println!("\nAttach it to a Linux machine, this one included, as root:\n");
    println!("    modprobe nvme-tcp");
    for command in &serving.attach {
        println!("    {command}");
    }
    println!("\nMount the files:\n");
    for command in &serving.mount {
        println!("    {command}");
    }
    println!();
}

/// The demo's appliance; killed on drop.
struct DemoAppliance {
    child: Child,
    attach: Vec<String>,
    mount: Vec<String>,
}

impl DemoAppliance {
    /// Starts `windlass run`, passes its output on, and waits until it is ready.
    fn start(windlass: &Path) -> Result<Self, String> {
        let mut command: Command = process::killed_with_parent(&process::program(windlass));
        command.args(["--log", "warn", "run"]);
        command.arg(write_configuration(&process::root().join("target/demo"))?);
        // Only this process receives Ctrl-C, and then stops the appliance in order.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot start the appliance: {error}"))?;
        let stdout = child.stdout.take().ok_or("no pipe to the appliance")?;
        let mut serving = Self {
            child,
            attach: Vec::new(),
            mount: Vec::new(),
        };
        let mut lines = BufReader::new(stdout).lines();
        loop {
            match lines.next() {
                Some(Ok(line)) if line == READY_LINE => break,
                Some(Ok(line)) => {
                    if let Some(command) = line.strip_prefix(ATTACH_PREFIX) {
                        serving.attach.push(command.to_owned());
                    } else if let Some(command) = line.strip_prefix(MOUNT_PREFIX) {
                        serving.mount.push(command.to_owned());
                    } else {
                        println!("{line}");
                    }
                }
                Some(Err(_)) | None => {
                    return Err("the appliance did not start: see its last line".to_owned());
                }
            }
        }
        // Further output must be read, so that the pipe does not fill up.
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| println!("{line}"));
        });
        Ok(serving)
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops it, which has to succeed.
    fn stop(mut self) -> Result<(), String> {
        println!("demo: stopping the appliance");
        stop_gracefully(&mut self.child)
    }
}

impl Drop for DemoAppliance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_has_the_demo_s_own_file_and_address() {
        let text = configuration(Path::new("/somewhere"));
        assert!(!text.contains(EMBEDDED_PATH), "{text}");
        assert!(text.contains("path = \"/somewhere/demo.img\""), "{text}");
        assert!(
            text.contains(&format!("address = \"{FILES_ADDRESS}\"")),
            "{text}"
        );
        assert!(text.contains(&format!("name = \"{SHARE}\"")), "{text}");
    }
}
