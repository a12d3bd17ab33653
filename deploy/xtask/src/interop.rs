//! Interoperability tests: the kernel host of a lab guest attaches to the appliance, which runs on
//! this machine, or in the guest if it needs drives.
//!
//! A scenario is a script of deploy/interop that runs in the guest, and an appliance for it. The
//! script can request that an appliance on this machine is killed and started again: it creates a
//! file `N.kill` or `N.start` (N counts from 1) in the signals directory, and `N.done` is the
//! response.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::appliance::{Appliance, free_port};
use crate::log::Log;
use crate::package;
use crate::process::{self, killed_with_parent};

const NQN: &str = "nqn.2026-11.org.windlass:interop";
/// The address of this machine's loopback interface in a guest on QEMU's user network.
const ADDRESS_IN_GUEST: &str = "10.0.2.2";
/// The port of a target in the guest.
const GUEST_PORT: u16 = 4420;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Lines of a guest's log that the report of a failure repeats.
const FAILURE_LINES_MAX: usize = 4;

/// A scenario: a script for the guest, and its environment.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    script: &'static str,
    /// Additional options of `nvme connect`.
    connect: &'static str,
    place: Place,
    timeout_s: u32,
}

/// The location of the appliance.
#[derive(Debug)]
enum Place {
    /// On this machine, exporting these devices. A restart loses the content of RAM devices.
    Here(&'static [Device]),
    /// In the guest: the script starts it with drives of the guest.
    Guest(Machine),
}

/// A guest with drives.
#[derive(Debug)]
struct Machine {
    /// Options of `lab run`.
    options: &'static [&'static str],
    /// Total number of namespaces of all drives.
    namespaces: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Device {
    Memory,
    File,
}

/// All scenarios in the order of execution.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "discover-connect-fs",
        script: "discover-connect-fs.sh",
        connect: "",
        place: Place::Here(&[Device::Memory, Device::File]),
        timeout_s: 600,
    },
    Scenario {
        name: "discover-connect-fs-digests",
        script: "discover-connect-fs.sh",
        connect: "--hdr-digest --data-digest",
        place: Place::Here(&[Device::Memory, Device::File]),
        timeout_s: 600,
    },
    Scenario {
        name: "kill-restart",
        script: "kill-restart.sh",
        connect: "",
        place: Place::Here(&[Device::File]),
        timeout_s: 600,
    },
    Scenario {
        name: "kill-file-system",
        script: "kill-file-system.sh",
        connect: "",
        place: Place::Here(&[Device::File]),
        timeout_s: 300,
    },
    Scenario {
        name: "file-faults",
        script: "file-faults.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 3,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "reservations",
        script: "reservations.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "masking",
        script: "masking.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 3,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "qos",
        script: "qos.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 3,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "pacing",
        script: "pacing.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme",
                "1",
                "--ns",
                "2",
                "--size",
                "64M",
                "--huge",
                "64",
                "--nsopt",
                "share-rw=on",
            ],
            namespaces: 2,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "chap",
        script: "chap.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "tls",
        script: "tls.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "concat",
        script: "concat.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "two-paths",
        script: "two-paths.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "nfs-tcp",
        script: "nfs-tcp.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "nfs-crash",
        script: "nfs-crash.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "nfs-drive",
        script: "nfs-drive.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--nvme", "1", "--ns", "1", "--size", "256M", "--huge", "96"],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "nfs-rdma",
        script: "nfs-rdma.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--smp", "4", "--huge", "160"],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "nfs-compare",
        script: "nfs-compare.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--smp", "4", "--huge", "320"],
            namespaces: 1,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "vfio",
        script: "vfio.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--nvme", "2", "--ns", "2", "--cmb", "16", "--huge", "64"],
            namespaces: 4,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-file-system",
        script: "drive-file-system.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--nvme", "2", "--ns", "2", "--size", "64M", "--huge", "96"],
            namespaces: 4,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-unplug",
        script: "drive-unplug.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme",
                "2",
                "--ns",
                "2",
                "--size",
                "64M",
                "--huge",
                "96",
                "--nsopt",
                "logical_block_size=4096,physical_block_size=4096",
            ],
            namespaces: 4,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-live",
        script: "drive-live.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--nvme", "2", "--ns", "2", "--size", "64M", "--huge", "96"],
            namespaces: 2,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-copy",
        script: "drive-copy.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "2", "--ns", "2", "--size", "64M", "--huge", "96", "--cmb", "16",
            ],
            namespaces: 2,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "copy-by-drive",
        script: "copy-by-drive.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "2", "--ns", "3", "--size", "64M", "--huge", "96", "--cmb", "16",
            ],
            namespaces: 2,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "drive-memory",
        script: "drive-memory.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "2", "--ns", "3", "--size", "64M", "--huge", "96", "--cmb", "16",
            ],
            namespaces: 2,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "device-memory",
        script: "device-memory.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "2", "--ns", "2", "--size", "64M", "--huge", "64", "--cmb", "16",
            ],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "nvme-copy",
        script: "nvme-copy.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "2", "--ns", "3", "--size", "64M", "--huge", "96", "--cmb", "16",
            ],
            namespaces: 5,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "nvme-copy-across",
        script: "nvme-copy-across.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "2", "--ns", "3", "--size", "64M", "--huge", "96", "--cmb", "16",
            ],
            namespaces: 6,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "drive-foreign",
        script: "drive-foreign.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "1", "--ns", "1", "--size", "64M", "--huge", "64", "--cmb", "16",
            ],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-upgrade",
        script: "drive-upgrade.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--nvme", "2", "--ns", "2", "--size", "64M", "--huge", "96"],
            namespaces: 4,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-faults",
        script: "drive-faults.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "2", "--ns", "2", "--size", "64M", "--huge", "96", "--cmb", "16",
            ],
            namespaces: 4,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-refused",
        script: "drive-refused.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--nvme", "1", "--ns", "1", "--nsopt", "ms=8", "--huge", "32",
            ],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "drive-without-iommu",
        script: "drive-without-iommu.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--nvme", "1", "--append", "intel_iommu=off"],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "rdma-verbs",
        script: "rdma-verbs.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--huge", "64"],
            namespaces: 0,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "rdma-host",
        script: "rdma-host.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--smp", "4", "--huge", "160"],
            namespaces: 2,
        }),
        timeout_s: 600,
    },
    Scenario {
        name: "rdma-live",
        script: "rdma-live.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--smp", "4", "--huge", "160"],
            namespaces: 1,
        }),
        timeout_s: 600,
    },
    Scenario {
        name: "rdma-upgrade",
        script: "rdma-upgrade.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--smp", "4", "--huge", "160"],
            namespaces: 1,
        }),
        timeout_s: 600,
    },
    Scenario {
        name: "rdma-drive",
        script: "rdma-drive.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &[
                "--smp", "4", "--nvme", "1", "--ns", "1", "--size", "64M", "--huge", "160",
                "--cmb", "16",
            ],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "rdma-hostile",
        script: "rdma-hostile.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--smp", "4", "--huge", "160"],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "rdma-compare",
        script: "rdma-compare.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--smp", "4", "--huge", "160"],
            namespaces: 1,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "service",
        script: "service.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--systemd", "--nvme", "1", "--ns", "1", "--size", "64M"],
            namespaces: 2,
        }),
        timeout_s: 480,
    },
    Scenario {
        name: "upgrade",
        script: "upgrade.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--systemd"],
            namespaces: 2,
        }),
        timeout_s: 300,
    },
    Scenario {
        name: "restart",
        script: "restart.sh",
        connect: "",
        place: Place::Guest(Machine {
            options: &["--systemd", "--nvme", "1", "--ns", "1", "--size", "64M"],
            namespaces: 2,
        }),
        timeout_s: 480,
    },
];

impl Machine {
    /// Whether the script installs our package; only such scripts use systemd.
    fn uses_package(&self) -> bool {
        self.options.contains(&"--systemd")
    }
}

impl Scenario {
    /// Whether every change must pass the scenario: one scenario for each variant of the data path.
    /// The others test parts that rarely change, or repeat tests with larger parameters.
    pub(crate) fn is_in_gate(&self) -> bool {
        const GATE: [&str; 4] = ["discover-connect-fs", "file-faults", "vfio", "rdma-host"];
        GATE.contains(&self.name)
    }

    /// Whether the guest needs a newer kernel than that of its Debian release.
    fn needs_backports(&self) -> bool {
        matches!(self.name, "concat" | "rdma-drive")
    }

    /// Lets a command of the lab use the scenario's kind of guest, or one with the newer kernel.
    fn choose_guest(&self, lab: &mut Command, newer_kernel: bool) {
        if newer_kernel || self.needs_backports() {
            lab.env("LAB_BACKPORTS", "1");
            lab.env("LAB_DIR", process::root().join("target/lab-backports"));
        }
    }

    /// Builds the scenario's kind of guest.
    pub(crate) fn build_guest(&self, newer_kernel: bool) -> Result<(), String> {
        let mut build = process::lab();
        self.choose_guest(build.arg("build"), newer_kernel);
        process::run(&mut build)
    }

    /// Whether the guest's own kernel target can replace the appliance.
    fn supports_self_check(&self) -> bool {
        matches!(self.place, Place::Here(_))
    }

    fn namespaces(&self) -> usize {
        match &self.place {
            Place::Here(devices) => devices.len(),
            Place::Guest(machine) => machine.namespaces,
        }
    }
}

/// Factor for the time-outs of scenarios on machines that are slower than the one on which they
/// were chosen. A passing scenario does not wait for its time-out.
const TIMEOUT_FACTOR: u32 = 4;

/// Number of repetitions of repeating scripts in the tests.
const ROUNDS_DEFAULT: u32 = 3;

/// The scenarios to run, and their target.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Scenarios to run; all of them by default.
    #[arg(value_parser = scenario_names())]
    scenarios: Vec<String>,
    /// Use the guest's own kernel target instead of the appliance: tests the script, not the
    /// appliance.
    #[arg(long)]
    self_check: bool,
    /// Take the appliance's release build.
    #[arg(long)]
    release: bool,
    /// Boot the kernel of Debian's backports in every scenario, and not only where it is needed.
    #[arg(long)]
    newer_kernel: bool,
}

fn scenario_names() -> clap::builder::PossibleValuesParser {
    let names = SCENARIOS.iter().map(|scenario| scenario.name);
    names.collect::<Vec<_>>().into()
}

/// Builds the appliance and runs the chosen scenarios.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !options.self_check {
        process::run(&mut build(options.release))?;
    }
    let mut harness = Harness::of_repository(options.release, options.self_check);
    harness.newer_kernel = options.newer_kernel;
    let mut failures = Vec::new();
    for scenario in SCENARIOS {
        if options.self_check && !scenario.supports_self_check() {
            continue;
        }
        if options.scenarios.is_empty() || options.scenarios.iter().any(|n| n == scenario.name) {
            scenario.build_guest(options.newer_kernel)?;
            let result = harness.run(scenario);
            println!(
                "{}: {}",
                scenario.name,
                result.as_ref().map_or_else(String::as_str, |()| "ok")
            );
            failures.extend(result.err().map(|_| scenario.name));
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failures.join(" ")))
    }
}

/// Builds the appliance and runs one scenario with this number of repetitions.
pub(crate) fn run_repeatedly(name: &str, rounds: u32) -> Result<(), String> {
    process::run(&mut build(false))?;
    process::run(process::lab().arg("build"))?;
    let mut harness = Harness::of_repository(false, false);
    harness.rounds = rounds;
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    harness.run(scenario.ok_or_else(|| format!("there is no scenario {name}"))?)
}

/// The command that builds the appliance, with the same features as the tests so that nothing is
/// built twice.
pub(crate) fn build(release: bool) -> Command {
    let mut cargo = process::cargo();
    cargo.args([
        "build",
        "--workspace",
        "--all-features",
        "--bins",
        "--examples",
    ]);
    cargo.args(release.then_some("--release"));
    cargo
}

/// Runs scenarios.
#[derive(Debug)]
pub(crate) struct Harness {
    appliance: Command,
    lab: Command,
    /// The directory of the guest's scripts.
    scripts: PathBuf,
    /// The directory for logs, configurations and files of devices.
    results: PathBuf,
    /// A directory that contains both of the above and is visible to the guest.
    share: PathBuf,
    self_check: bool,
    /// Number of repetitions of repeating scripts.
    rounds: u32,
    /// Whether every scenario gets the newer kernel.
    newer_kernel: bool,
}

impl Harness {
    /// The harness with this repository's appliance and lab.
    pub(crate) fn of_repository(release: bool, self_check: bool) -> Harness {
        let root = process::root();
        let profile = if release { "release" } else { "debug" };
        Harness {
            appliance: process::program(root.join("target").join(profile).join("windlass")),
            lab: process::lab(),
            scripts: root.join("deploy/interop"),
            results: root.join("target/interop"),
            share: root,
            self_check,
            rounds: ROUNDS_DEFAULT,
            newer_kernel: false,
        }
    }

    /// Runs one scenario; its log is NAME.log in the results directory.
    pub(crate) fn run(&self, scenario: &Scenario) -> Result<(), String> {
        let directory = self.results.join(scenario.name);
        let signals = directory.join("signals");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&signals).map_err(|e| format!("{}: {e}", signals.display()))?;
        let log_path = self.results.join(format!("{}.log", scenario.name));
        let log = Log::create(&log_path)?;
        let result = self.run_logged(scenario, &directory, &log);
        let outcome = result.as_ref().map_or_else(String::as_str, |()| "passed");
        log.line("harness", &format!("{}: {outcome}", scenario.name));
        // The files of the devices are large and only needed after a failure.
        if result.is_ok() {
            let _ = fs::remove_dir_all(&directory);
        }
        result.map_err(|error| {
            let reported = reported_failure(&log_path);
            format!("{error}{reported} (see {})", log_path.display())
        })
    }

    fn run_logged(
        &self,
        scenario: &Scenario,
        directory: &Path,
        log: &Arc<Log>,
    ) -> Result<(), String> {
        let devices = match scenario.place {
            Place::Here(devices) => devices,
            Place::Guest(ref machine) => {
                if machine.uses_package() {
                    self.make_packages(&directory.join("packages"))?;
                }
                let guest = Guest::start(self.lab_command(scenario, GUEST_PORT, directory), log)?;
                return script_result(scenario, guest.wait()?);
            }
        };
        let port = if self.self_check {
            GUEST_PORT
        } else {
            free_port()?
        };
        let configuration = directory.join("windlass.toml");
        let text = configuration_text(devices, port, directory);
        fs::write(&configuration, text).map_err(|e| format!("{}: {e}", configuration.display()))?;
        let start = || Appliance::start(&self.appliance, &configuration, port, log);
        let mut appliance = if self.self_check {
            None
        } else {
            Some(start()?)
        };
        let mut guest = Guest::start(self.lab_command(scenario, port, directory), log)?;
        let mut signals = Signals {
            directory: directory.join("signals"),
            next: 1,
        };
        let status = loop {
            if let Some(status) = guest.ended()? {
                break status;
            }
            match signals.take() {
                Some(Request::Kill) => {
                    appliance
                        .take()
                        .ok_or("the guest killed it twice")?
                        .kill()?;
                    signals.answer()?;
                }
                Some(Request::Start) if appliance.is_some() => {
                    return Err("the guest started it twice".into());
                }
                Some(Request::Start) => {
                    appliance = Some(start()?);
                    signals.answer()?;
                }
                None => thread::sleep(POLL_INTERVAL),
            }
            if let Some(status) = appliance.as_mut().and_then(Appliance::ended) {
                return Err(format!("the appliance ended unexpectedly: {status}"));
            }
        };
        script_result(scenario, status)?;
        appliance.map_or(Ok(()), Appliance::stop)
    }

    /// Builds the appliance's package in two versions, one to upgrade from and one to upgrade to.
    fn make_packages(&self, directory: &Path) -> Result<(), String> {
        let appliance = Path::new(self.appliance.get_program());
        for version in ["0.1.0", "0.1.1"] {
            package::build(appliance, version, directory)?;
        }
        Ok(())
    }

    fn lab_command(&self, scenario: &Scenario, port: u16, directory: &Path) -> Command {
        let is_in_guest = matches!(scenario.place, Place::Guest(_));
        let address = if self.self_check || is_in_guest {
            "127.0.0.1"
        } else {
            ADDRESS_IN_GUEST
        };
        let mut command = killed_with_parent(&self.lab);
        scenario.choose_guest(command.arg("run"), self.newer_kernel);
        match &scenario.place {
            Place::Here(_) => command.arg("--net"),
            Place::Guest(machine) => command.args(machine.options),
        };
        command.arg("--share").arg(&self.share);
        let timeout_s = TIMEOUT_FACTOR * scenario.timeout_s * self.rounds.div_ceil(ROUNDS_DEFAULT);
        command.arg("--timeout").arg(timeout_s.to_string());
        let programs = Path::new(self.appliance.get_program()).parent();
        for (name, value) in [
            ("ADDRESS", address.to_string()),
            ("PORT", port.to_string()),
            ("NQN", NQN.to_string()),
            ("CONNECT", scenario.connect.to_string()),
            ("NAMESPACES", scenario.namespaces().to_string()),
            (
                "PROGRAMS",
                programs.map_or_else(String::new, |path| path.display().to_string()),
            ),
            ("PACKAGES", directory.join("packages").display().to_string()),
            ("SIGNALS", directory.join("signals").display().to_string()),
            ("ROUNDS", self.rounds.to_string()),
            ("SELF", u8::from(self.self_check).to_string()),
        ] {
            command.arg("--env").arg(format!("INTEROP_{name}={value}"));
        }
        command
            .arg("--")
            .arg("bash")
            .arg(self.scripts.join(scenario.script));
        command
    }
}

/// The meaning of the exit status of a guest's script.
fn script_result(scenario: &Scenario, status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        124 => Err(format!(
            "the guest was not done after {} s",
            scenario.timeout_s
        )),
        125 => Err("the guest died".into()),
        status => Err(format!("the script in the guest exited with {status}")),
    }
}

/// The lines in which a guest's script reports why it failed; empty if it does not.
fn reported_failure(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter_map(|line| line.split_once(" guest: "));
    let lines = lines
        .map(|(_, line)| line)
        .skip_while(|line| !line.starts_with("FAILED: "));
    lines
        .take(FAILURE_LINES_MAX)
        .flat_map(|line| ["; ", line])
        .collect()
}

/// The cores that this process, and so the appliance, may use.
fn allowed_cores() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// The appliance's configuration with these devices, its files in `directory`.
fn configuration_text(devices: &[Device], port: u16, directory: &Path) -> String {
    let mut text = String::from("[appliance]\nname = \"interop\"\nmemory = \"64MiB\"\n");
    // With two reactors, some queues of a host are on another reactor than its admin queue.
    if let [first, second, ..] = allowed_cores()[..] {
        text += &format!("cores = \"{first},{second}\"\n");
    }
    let mut names = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let name = format!("device{index}");
        let kind = match device {
            Device::Memory => "type = \"memory\"".to_string(),
            Device::File => {
                let path = directory.join(format!("{name}.img"));
                format!("type = \"file\"\npath = {:?}", path.display().to_string())
            }
        };
        text += &format!("\n[[device]]\nname = \"{name}\"\n{kind}\nsize = \"256MiB\"\n");
        names.push(format!("{name:?}"));
    }
    let names = names.join(", ");
    text += &format!(
        "\n[[listener]]\nname = \"loopback\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:{port}\"\n\
         \n[[export]]\nnqn = \"{NQN}\"\ndevices = [{names}]\nlisteners = [\"loopback\"]\n\
         allow_any_host = true\n"
    );
    text
}

/// The lab's run of the script; dropping it ends the guest.
struct Guest {
    child: std::process::Child,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Guest {
    fn start(mut command: Command, log: &Arc<Log>) -> Result<Guest, String> {
        log.line("harness", &process::command_text(&command));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("cannot start the lab: {error}"))?;
        let mut readers = Vec::new();
        readers.extend(
            child
                .stdout
                .take()
                .map(|stream| log.follow("guest", stream, |_| {})),
        );
        readers.extend(
            child
                .stderr
                .take()
                .map(|stream| log.follow("guest", stream, |_| {})),
        );
        Ok(Guest { child, readers })
    }

    /// Waits for the end; the lab has its own time limit.
    fn wait(mut self) -> Result<i32, String> {
        loop {
            match self.ended()? {
                Some(status) => return Ok(status),
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// The exit status of the lab if it has ended; 125 if a signal ended it.
    fn ended(&mut self) -> Result<Option<i32>, String> {
        let status = self
            .child
            .try_wait()
            .map_err(|error| format!("the lab is lost: {error}"))?;
        Ok(status.map(|status| {
            for reader in self.readers.drain(..) {
                let _ = reader.join();
            }
            status.code().unwrap_or(125)
        }))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// A request of the guest.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Kill,
    Start,
}

/// The directory for the guest's requests, which are handled in order.
struct Signals {
    directory: PathBuf,
    next: u32,
}

impl Signals {
    /// The next request, if any.
    fn take(&self) -> Option<Request> {
        let is_there = |verb: &str| {
            self.directory
                .join(format!("{}.{verb}", self.next))
                .exists()
        };
        if is_there("kill") {
            return Some(Request::Kill);
        }
        is_there("start").then_some(Request::Start)
    }

    /// Notifies the guest that its request is complete.
    fn answer(&mut self) -> Result<(), String> {
        let path = self.directory.join(format!("{}.done", self.next));
        self.next += 1;
        fs::write(&path, "").map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests;
