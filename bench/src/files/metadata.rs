//! Rates of operations on names, as mdtest measures them: each connection creates, looks up and
//! removes files and directories in a directory of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use files_client::{Answer, requests};
use files_spec::Bitmap;
use files_spec::attributes::{Attributes, number};
use files_spec::operations::{CloseArgs, Operation, OperationResult, Outcome};
use files_spec::types::{FileType, StateId};
use files_spec::xdr::Opaque;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::connection::{FilesConnection, no_payload};
use super::directory::{Directory, create_directory, name, succeeded};
use super::{FilesError, FilesTarget, unique};
use crate::load::phase::STALL_LIMIT;
use crate::report::{Latency, Machine, histogram, nanos};
use crate::table::Table;
use crate::units::{format_count, format_nanos, per_second};

/// Turns without an answer before a thread waits for its sockets.
const IDLE_TURNS_MAX: u32 = 1000;
/// The longest such wait.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// What is measured.
#[derive(Debug, Clone)]
pub struct MetadataPlan {
    /// The server and the directory.
    pub target: FilesTarget,
    /// Connections, each with a directory of its own.
    pub connections: u16,
    /// Threads that drive them.
    pub threads: u16,
    /// Requests in flight on each connection.
    pub depth: u16,
    /// Files and directories of each connection.
    pub items: u32,
}

/// The work of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    CreateFile,
    LookUpFile,
    RemoveFile,
    MakeDirectory,
    LookUpDirectory,
    RemoveDirectory,
}

const PHASES: [(&str, Work); 6] = [
    ("create file", Work::CreateFile),
    ("look up file", Work::LookUpFile),
    ("remove file", Work::RemoveFile),
    ("make directory", Work::MakeDirectory),
    ("look up directory", Work::LookUpDirectory),
    ("remove directory", Work::RemoveDirectory),
];

/// The results of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetadataPhase {
    /// Its name.
    pub name: String,
    /// Successful requests.
    pub operations: u64,
    /// Time from the first request to the last answer.
    pub elapsed_seconds: f64,
    /// Requests per second.
    pub per_second: f64,
    /// Latency from submission to answer.
    pub latency: Latency,
}

/// The results of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetadataReport {
    /// The machine.
    pub machine: Machine,
    /// The server and the directory.
    pub address: String,
    /// Connections.
    pub connections: u16,
    /// Threads that drove them.
    pub threads: u16,
    /// Requests in flight on each connection.
    pub depth: u16,
    /// Files and directories of each connection.
    pub items: u32,
    /// The phases that ended, in order.
    pub phases: Vec<MetadataPhase>,
    /// The error that ended the measurement early, if any.
    pub trouble: Option<String>,
    /// Whether it was interrupted.
    pub interrupted: bool,
}

impl fmt::Display for MetadataReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "operations on names of {}", self.address)?;
        writeln!(
            f,
            "  {} items on each of {} connections of depth {}\n",
            format_count(self.items.into()),
            self.connections,
            self.depth
        )?;
        let mut table = Table::new(&["phase", "per second", "p50", "p90", "p99", "p99.9", "max"]);
        for phase in &self.phases {
            let latency = &phase.latency;
            let times = [
                latency.p50_ns,
                latency.p90_ns,
                latency.p99_ns,
                latency.p999_ns,
                latency.max_ns,
            ];
            let rate = format_count(phase.per_second as u64);
            let heading = [phase.name.clone(), rate];
            table.row(heading.into_iter().chain(times.map(format_nanos)));
        }
        write!(f, "{table}")?;
        match &self.trouble {
            Some(trouble) => writeln!(f, "\n  FAILED: {trouble}"),
            None if self.interrupted => {
                writeln!(f, "\n  interrupted: the figures are of the time until then")
            }
            None => Ok(()),
        }
    }
}

/// Why a phase ended early.
enum End {
    Failed(FilesError),
    Interrupted,
}

/// A connection and its directory.
struct Lane {
    connection: FilesConnection,
    directory: Directory,
    /// When the request of each slot was submitted.
    submitted: Vec<Instant>,
    begun: u32,
    ended: u32,
}

/// The answers of a phase on some lanes.
struct Answers {
    latencies: Histogram<u64>,
    end: Option<End>,
}

/// Measures all phases. `is_interrupted` is asked many times per second.
///
/// # Errors
/// [`FilesError`] if the measurement could not start. Later errors are in the report.
pub fn measure(
    plan: &MetadataPlan,
    is_interrupted: &(dyn Fn() -> bool + Sync),
) -> Result<MetadataReport, FilesError> {
    let unique = unique();
    let mut connection = FilesConnection::new(&plan.target, &format!("bench {unique:016x}"), 1)?;
    let parent = Directory::of(&mut connection, &plan.target)?;
    let text = format!("windlass-bench-{unique:016x}");
    let base = parent.make(&mut connection, &text)?;
    let mut lanes = Vec::new();
    for number in 0..plan.connections {
        let owner = format!("bench {unique:016x} {number}");
        lanes.push(Lane {
            connection: FilesConnection::new(&plan.target, &owner, plan.depth.into())?,
            directory: base.make(&mut connection, &number.to_string())?,
            submitted: vec![Instant::now(); plan.depth.into()],
            begun: 0,
            ended: 0,
        });
    }
    let mut report = MetadataReport {
        machine: Machine::here(),
        address: plan.target.to_string(),
        connections: plan.connections,
        threads: plan.threads,
        depth: plan.depth,
        items: plan.items,
        phases: Vec::new(),
        trouble: None,
        interrupted: false,
    };
    for (name, work) in PHASES {
        let began = Instant::now();
        let answers = run_phase(&mut lanes, work, plan, is_interrupted);
        let elapsed = began.elapsed();
        match answers.end {
            Some(End::Failed(error)) => report.trouble = Some(format!("{name}: {error}")),
            Some(End::Interrupted) => report.interrupted = true,
            None => {}
        }
        let operations = answers.latencies.len();
        report.phases.push(MetadataPhase {
            name: name.to_owned(),
            operations,
            elapsed_seconds: elapsed.as_secs_f64(),
            per_second: per_second(operations, elapsed),
            latency: Latency::from_histogram(&answers.latencies),
        });
        if report.trouble.is_some() || report.interrupted {
            // What was created stays: to remove it could fail in the same way.
            return Ok(report);
        }
    }
    // A directory that is not empty cannot be removed.
    let mut clean = || {
        for number in 0..plan.connections {
            base.remove(&mut connection, &number.to_string())?;
        }
        parent.remove(&mut connection, &text)
    };
    report.trouble = clean().err().map(|error| error.to_string());
    Ok(report)
}

/// Runs a phase on all threads.
fn run_phase(
    lanes: &mut [Lane],
    work: Work,
    plan: &MetadataPlan,
    is_interrupted: &(dyn Fn() -> bool + Sync),
) -> Answers {
    let per_thread = lanes.len().div_ceil(plan.threads.max(1).into());
    let stops = AtomicBool::new(false);
    let mut sum = Answers {
        latencies: histogram(),
        end: None,
    };
    let run = |lanes| drive(lanes, work, plan.items, &stops, is_interrupted);
    thread::scope(|scope| {
        let parts = lanes.chunks_mut(per_thread.max(1));
        let threads: Vec<_> = parts.map(|part| scope.spawn(|| run(part))).collect();
        for thread in threads {
            let Ok(answers) = thread.join() else { continue };
            // Both have the same bounds.
            let _ = sum.latencies.add(&answers.latencies);
            sum.end = sum.end.take().or(answers.end);
        }
    });
    sum
}

/// Runs a phase on the lanes of a thread.
fn drive(
    lanes: &mut [Lane],
    work: Work,
    items: u32,
    stops: &AtomicBool,
    is_interrupted: &(dyn Fn() -> bool + Sync),
) -> Answers {
    let mut answers = Answers {
        latencies: histogram(),
        end: None,
    };
    for lane in &mut *lanes {
        (lane.begun, lane.ended) = (0, 0);
    }
    let mut answered_at = Instant::now();
    let mut idle_turns = 0;
    while answers.end.is_none() && lanes.iter().any(|lane| lane.ended < items) {
        let mut answered = 0;
        for lane in &mut *lanes {
            match lane.turn(work, items, &mut answers.latencies) {
                Ok(count) => answered += count,
                Err(error) => answers.end = answers.end.take().or(Some(End::Failed(error))),
            }
        }
        if answered > 0 {
            (answered_at, idle_turns) = (Instant::now(), 0);
        } else {
            idle_turns += 1;
        }
        if answered_at.elapsed() > STALL_LIMIT {
            answers.end = Some(End::Failed(FilesError::TimedOut(STALL_LIMIT)));
        }
        if is_interrupted() || stops.load(Ordering::Relaxed) {
            answers.end = answers.end.take().or(Some(End::Interrupted));
        }
        if idle_turns > IDLE_TURNS_MAX
            && let Some(lane) = lanes.iter().find(|lane| lane.connection.waiting() > 0)
        {
            lane.connection.wait(WAIT_MAX);
        }
    }
    if answers.end.is_some() {
        stops.store(true, Ordering::Relaxed);
    }
    answers
}

impl Lane {
    /// Submits, sends and receives. Returns the number of answers.
    fn turn(
        &mut self,
        work: Work,
        items: u32,
        latencies: &mut Histogram<u64>,
    ) -> Result<usize, FilesError> {
        while self.begun < items
            && let Some(slot) = self.connection.free_slot()
        {
            self.submit(slot, work)?;
            self.begun += 1;
        }
        self.connection.flush(&no_payload)?;
        let Self {
            connection,
            submitted,
            ended,
            ..
        } = self;
        connection.poll(usize::MAX, &mut |slot, answer| {
            check(answer, work)?;
            *ended += 1;
            let began = submitted.get(slot as usize).copied();
            let latency = began.unwrap_or_else(Instant::now).elapsed();
            latencies.saturating_record(nanos(latency));
            Ok(())
        })
    }

    fn submit(&mut self, slot: u32, work: Work) -> Result<(), FilesError> {
        let text = match work {
            Work::CreateFile | Work::LookUpFile | Work::RemoveFile => format!("f{}", self.begun),
            _ => format!("d{}", self.begun),
        };
        let to_directory = Operation::PutFh(Opaque(&self.directory.handle));
        let operations: &[Operation<'_>] = match work {
            Work::CreateFile => &[
                to_directory,
                requests::open_or_create(name(&text)?),
                Operation::Close(CloseArgs {
                    seqid: 0,
                    open_stateid: StateId::CURRENT,
                }),
            ],
            Work::MakeDirectory => &[to_directory, create_directory(&text)?],
            Work::LookUpFile | Work::LookUpDirectory => &[
                to_directory,
                Operation::Lookup(name(&text)?),
                Operation::GetAttr(Bitmap::of(&[number::TYPE])),
            ],
            Work::RemoveFile | Work::RemoveDirectory => {
                &[to_directory, Operation::Remove(name(&text)?)]
            }
        };
        if let Some(submitted) = self.submitted.get_mut(slot as usize) {
            *submitted = Instant::now();
        }
        self.connection.submit(slot, slot.into(), operations)
    }
}

/// Checks that a request has succeeded, and that an object has the type that it was created with.
fn check(answer: Answer<'_>, work: Work) -> Result<(), FilesError> {
    let (operation, expected) = match work {
        Work::CreateFile => ("OPEN", None),
        Work::MakeDirectory => ("CREATE", None),
        Work::RemoveFile | Work::RemoveDirectory => ("REMOVE", None),
        Work::LookUpFile => ("LOOKUP", Some(FileType::REGULAR)),
        Work::LookUpDirectory => ("LOOKUP", Some(FileType::DIRECTORY)),
    };
    succeeded(answer.status, operation, "a name of the run")?;
    let Some(expected) = expected else {
        return Ok(());
    };
    match answer.last()? {
        Some(OperationResult::GetAttr(Outcome::Ok(Attributes {
            file_type: Some(found),
            ..
        }))) if found == expected => Ok(()),
        _ => Err(FilesError::Result("GETATTR")),
    }
}
