//! Runs a loop twice under callgrind and divides the difference.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::cost::LoopCounts;
use crate::cost::callgrind::{Cost, Profile, ProfileError};
use crate::cost::growth::{self, GrowthReport, GrowthRow};
use crate::cost::report::{CaseReports, CostReport, StageCost};
use crate::cost::stages::{self, CodeOwner, Map};
use crate::cost::{drive_memory_loop, files_loop, tcp_cases};
use bench::report::Machine;

/// The measuring program.
const VALGRIND: &str = "valgrind";

/// Minimum number of instructions of listed stages and functions.
const NEGLIGIBLE: f64 = 0.05;

/// Maximum number of listed functions.
const FUNCTIONS_MAX: usize = 24;

/// The reason why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// Valgrind is not installed.
    #[error("valgrind is not installed: apt-get install valgrind")]
    NoValgrind,
    /// A program could not be started, or a file could not be used.
    #[error("{what}: {source}")]
    System {
        /// The failed step.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The loop failed.
    #[error("the loop failed under valgrind: {0}")]
    Loop(String),
    /// Callgrind's file could not be parsed.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The loop's counters could not be parsed.
    #[error("the loop's counts are not understood: {0}")]
    Counts(#[from] serde_json::Error),
    /// The loop could not be set up.
    #[error("the loop cannot begin: {0}")]
    Setup(String),
}

/// A loop that can be measured.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// `driver` or `rdma`: the argument of the command.
    pub name: &'static str,
    /// Its description.
    pub what: &'static str,
    /// The assignment of source files.
    pub map: &'static Map,
    /// Maximum number of instructions per request.
    pub instructions_max: f64,
    /// Maximum number of system calls per request.
    pub system_calls_max: f64,
    /// Further limits: a counter of the loop, and its maximum per request.
    pub limits: &'static [(&'static str, f64)],
}

/// The driver on the emulated controller (issue 3).
pub const DRIVER: Subject = Subject {
    name: "driver",
    what: "nvme_driver, 4 KiB reads at depth 128 from an emulated controller with immediate completions",
    map: &stages::DRIVER,
    instructions_max: 450.0,
    system_calls_max: 0.0,
    limits: &[("doorbells", 1.0 / 8.0)],
};

/// The target on the in-process fabric (issue 4).
pub const RDMA: Subject = Subject {
    name: "rdma",
    what: "nvme_rdma and nvme_target, 4 KiB reads at depth 128 of a RAM device over the in-process \
           fabric",
    map: &stages::RDMA,
    instructions_max: 600.0,
    // The connection manager's descriptor is checked once in many turns.
    system_calls_max: 0.001,
    limits: &[
        ("work requests", 2.0),
        // One for each received command, and few for sends.
        ("completions", 1.1),
        ("bytes copied", 0.0),
    ],
};

/// The main case of the target over TCP (issue 7).
pub const TCP: Subject = Subject {
    name: "tcp",
    what: "nvme_tcp and nvme_target over the loopback interface, requests in batches",
    map: &stages::TCP,
    instructions_max: 900.0,
    system_calls_max: 0.1,
    limits: &[("bytes copied", 0.0)],
};

/// Our host over TCP.
pub const TCP_HOST: Subject = Subject {
    name: "tcp-host",
    what: "nvme_host and the load generator over the loopback interface, requests in batches",
    map: &stages::HOST,
    instructions_max: f64::INFINITY,
    // Its sends use the loop's own stream: the connection's counters are complete.
    system_calls_max: f64::INFINITY,
    limits: &[],
};

/// The file service over TCP. The limit is that of a read of 4 KiB from a device that lends.
pub const FILES: Subject = Subject {
    name: "files",
    what: "files_tcp, files_server and files_store over the loopback interface, requests in batches",
    map: &stages::FILES,
    instructions_max: 1500.0,
    system_calls_max: 0.3,
    limits: &[("bytes copied", 0.0)],
};

/// The target over RDMA, and the driver on an emulated controller: the same requests through the arena
/// and through memory of the drive (issue 20).
pub const DRIVE_MEMORY: Subject = Subject {
    name: "drive-memory",
    what: "nvme_rdma, nvme_target and nvme_driver on an emulated controller over the in-process \
           fabric, requests of 128 KiB",
    map: &stages::DRIVE_MEMORY,
    instructions_max: f64::INFINITY,
    // The connection manager's descriptor is checked once in many turns, which have few requests.
    system_calls_max: 0.05,
    limits: &[("bytes copied", 0.0), (drive_memory_loop::ARENA_BYTES, 0.0)],
};

/// Requests over TCP with a growing number of other objects; the results are only compared with
/// each other.
pub const GROWTH: Subject = Subject {
    name: "growth",
    instructions_max: f64::INFINITY,
    system_calls_max: f64::INFINITY,
    limits: &[],
    ..TCP
};

/// The limits of a case of `subject`: the goals of the issue apply to the target's main case.
#[must_use]
pub fn case(subject: &str, name: &str, growth_only: bool) -> Subject {
    if subject == TCP_HOST.name {
        return TCP_HOST;
    }
    if subject == DRIVE_MEMORY.name {
        let case = drive_memory_loop::PathCase::named(name);
        let is_in_drive = case.is_some_and(|it| it.host_path.is_some());
        return Subject {
            limits: if is_in_drive {
                DRIVE_MEMORY.limits
            } else {
                &[]
            },
            ..DRIVE_MEMORY
        };
    }
    let (of, is_chief) = match subject == FILES.name {
        true => (FILES, name == files_loop::FILES_MAIN_CASE),
        false => (TCP, name == tcp_cases::MAIN_CASE),
    };
    Subject {
        instructions_max: if is_chief && !growth_only {
            of.instructions_max
        } else {
            f64::INFINITY
        },
        system_calls_max: if is_chief {
            of.system_calls_max
        } else {
            f64::INFINITY
        },
        limits: if is_chief { of.limits } else { &[] },
        ..of
    }
}

/// Measures a subject by running `program cost NAME --loop N` under callgrind.
///
/// # Errors
/// [`CostError`].
pub fn measure(program: &Path, subject: &Subject, requests: u64) -> Result<CostReport, CostError> {
    let folder = temporary_folder()?;
    let count = |requests: u64, name: &str| {
        let file = folder.path().join(name);
        let loops = ["--loop", &requests.to_string()];
        let counted = under_callgrind(program, subject, &[], &loops, &file)?;
        let counts: LoopCounts = serde_json::from_slice(&counted)?;
        Ok::<_, CostError>((read_profile(&file)?, counts))
    };
    let (less, _) = count(requests, "less")?;
    let (more, counts) = count(2 * requests, "more")?;
    let what = subject.what.to_owned();
    Ok(report(
        subject,
        what,
        requests,
        &more.beyond(&less),
        &counts,
    ))
}

/// Measures every case of [`TCP`], [`TCP_HOST`], [`FILES`] or [`DRIVE_MEMORY`], or the one named `only`.
///
/// # Errors
/// [`CostError`].
pub fn measure_cases(
    program: &Path,
    subject: &Subject,
    only: Option<&str>,
) -> Result<CaseReports, CostError> {
    Ok(CaseReports {
        machine: Machine::here(),
        cases: measure_marked(program, subject, only)?,
    })
}

/// Measures requests over TCP with a growing number of other objects.
///
/// # Errors
/// [`CostError`].
pub fn measure_growth(program: &Path) -> Result<GrowthReport, CostError> {
    let reports = measure_marked(program, &GROWTH, None)?;
    let rows = growth::points().zip(reports);
    Ok(GrowthReport {
        machine: Machine::here(),
        rows: rows
            .map(|((beside, number, kind), report)| GrowthRow::new(beside, number, kind, report))
            .collect(),
    })
}

/// Measures the cases of a loop that marks the beginning and the end of each.
fn measure_marked(
    program: &Path,
    subject: &Subject,
    only: Option<&str>,
) -> Result<Vec<CostReport>, CostError> {
    let folder = temporary_folder()?;
    let file = folder.path().join("profile");
    // Each end mark writes the counts since its begin mark, as `profile.1` and so on.
    let marks = [
        "--zero-before=*counting_begins*",
        "--dump-before=*counting_ends*",
    ];
    let mut loops = vec!["--loop", "1"];
    loops.extend(only.iter().flat_map(|only| ["--case", only]));
    let counted = under_callgrind(program, subject, &marks, &loops, &file)?;
    let counted: Vec<(String, LoopCounts)> = serde_json::from_slice(&counted)?;
    let cases = counted
        .into_iter()
        .enumerate()
        .map(|(index, (name, counts))| {
            let profile = read_profile(&folder.path().join(format!("profile.{}", index + 1)))?;
            Ok(report(subject, name, counts.requests, &profile, &counts))
        });
    cases.collect()
}

fn temporary_folder() -> Result<tempfile::TempDir, CostError> {
    tempfile::tempdir().map_err(|source| CostError::System {
        what: "a temporary folder".to_owned(),
        source,
    })
}

/// Divides the cost of `requests` requests among the stages.
fn report(
    subject: &Subject,
    what: String,
    requests: u64,
    profile: &Profile,
    counts: &LoopCounts,
) -> CostReport {
    let divided = stages::divide(profile, subject.map);
    let per_request = 1.0 / requests as f64;
    let mut report = CostReport {
        machine: Machine::here(),
        subject: subject.name.to_owned(),
        what,
        requests,
        instructions: 0.0,
        system_calls: 0.0,
        allocations: counts.allocations as f64 / counts.requests as f64,
        counted: counts
            .counted
            .iter()
            .map(|(name, count)| (name.clone(), *count as f64 / counts.requests as f64))
            .collect(),
        stages: Vec::new(),
        functions: Vec::new(),
        subtracted: Vec::new(),
    };
    let each = |name: String, cost: Cost| StageCost {
        name,
        instructions: cost.instructions * per_request,
        system_calls: cost.system_calls * per_request,
    };
    for (place, cost) in divided.places {
        let mut stage = each(String::new(), cost);
        match place {
            CodeOwner::Ours(name) => {
                report.instructions += stage.instructions;
                report.system_calls += stage.system_calls;
                stage.name = name;
                report.stages.push(stage);
            }
            CodeOwner::Other(name) => {
                stage.name = name.to_owned();
                report.subtracted.push(stage);
            }
            CodeOwner::Shared(_) | CodeOwner::Unknown => unreachable!("divided among callers"),
        }
    }
    let most_expensive = |a: &StageCost, b: &StageCost| b.instructions.total_cmp(&a.instructions);
    let functions = divided.functions.into_iter();
    report.functions = functions.map(|(name, cost)| each(name, cost)).collect();
    for list in [
        &mut report.stages,
        &mut report.functions,
        &mut report.subtracted,
    ] {
        list.sort_by(most_expensive);
        list.retain(|stage| stage.instructions.abs() >= NEGLIGIBLE);
    }
    report.functions.truncate(FUNCTIONS_MAX);
    report
}

/// Runs `program cost NAME` with `loops` under callgrind with `marks`. Returns its output.
fn under_callgrind(
    program: &Path,
    subject: &Subject,
    marks: &[&str],
    loops: &[&str],
    file: &Path,
) -> Result<Vec<u8>, CostError> {
    let output = Command::new(VALGRIND)
        .args(["--tool=callgrind", "--collect-systime=yes"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .args(marks)
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args(["cost", subject.name])
        .args(loops)
        .output()
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CostError::NoValgrind,
            _ => CostError::System {
                what: VALGRIND.to_owned(),
                source,
            },
        })?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(CostError::Loop(error))
    }
}

fn read_profile(file: &Path) -> Result<Profile, CostError> {
    let text = std::fs::read(file).map_err(|source| CostError::System {
        what: file.display().to_string(),
        source,
    })?;
    Ok(Profile::parse(&String::from_utf8_lossy(&text))?)
}
