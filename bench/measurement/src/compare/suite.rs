//! All figures for which the performance issue has a goal, in one run of alternating rounds.
//!
//! Each row compares our target with references: bare socket pairs with the same bytes in the same
//! pattern, fio on the same file, or our target with another setting. Ratios are taken within a
//! round.

mod trust;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::target::{POLL, Target, TargetOptions};
use super::{CompareError, CompareOptions, Load, READ_BYTES, measure_target};
use crate::appliance_process::ProcessError;
use crate::ceiling::{
    CONGESTION_CONTROL, CeilingMeasurement, CeilingOptions, DataLocation, DataMemory, Exchange,
    measure_copies, measure_tcp,
};
use crate::cpu_limit::CpuLimit;
use crate::report::MemoryReport;
use crate::report::suite::{Figures, Goal, Sample, SuiteReport, Unit};
use bench::random::Random;
use bench::report::Machine;
use bench::units::per_second;

/// Size of the file of the file device in bytes, filled with data so that it is not sparse.
const FILE_BYTES: usize = 256 << 20;

/// Namespaces of the null device and of the file.
const NULL_NSID: u32 = 2;
const FILE_NSID: u32 = 3;

/// Duration of the measurement of an idle target.
const REST: Duration = Duration::from_secs(1);

/// The same bytes and pattern with a bare pair whose target uses the same amount of memory.
const SAME_MEMORY: &str = "bare pair, same memory";
/// The same with one buffer.
const HOT_BUFFER: &str = "bare pair, one hot buffer";
/// The same target without a medium.
const NULL_DEVICE: &str = "windlass, null device";
/// Only copies of the same blocks.
const MEMORY_COPY: &str = "copying on one core";

/// A row that is compared with bare pairs.
#[derive(Debug, Clone, Copy)]
struct PairRow {
    name: &'static str,
    what: &'static str,
    write: bool,
    bytes: u32,
    connections: u16,
    depth: u16,
    goal: f64,
}

/// Suffix of the name of a row of `PAIR_ROWS` with a limited CPU share of the target.
const LIMITED_SUFFIX: &str = "-part";

/// The rows that are also measured with a limited CPU share of the target: those in which the host,
/// which has a whole core, is the slower end.
const LIMITED_ROWS: [&str; 2] = ["write-128-part", "write-128k-part"];

impl PairRow {
    fn exchange(&self) -> Exchange {
        Exchange {
            write: self.write,
            data_bytes: self.bytes as usize,
        }
    }

    /// The load of our host.
    fn load(&self) -> Load {
        Load {
            nsid: 1,
            write: self.write,
            bytes: self.bytes,
            connections: self.connections,
            depth: self.depth,
            digests: false,
            tls: false,
        }
    }
}

const PAIR_ROWS: [PairRow; 5] = [
    PairRow {
        name: "read-128",
        what: "4 KiB random read, 1 × 128 in flight",
        write: false,
        bytes: READ_BYTES,
        connections: 1,
        depth: 128,
        goal: 0.85,
    },
    PairRow {
        name: "read-4x32",
        what: "4 KiB random read, 4 × 32 in flight",
        write: false,
        bytes: READ_BYTES,
        connections: 4,
        depth: 32,
        goal: 0.85,
    },
    PairRow {
        name: "write-128",
        what: "4 KiB random write, 1 × 128 in flight",
        write: true,
        bytes: READ_BYTES,
        connections: 1,
        depth: 128,
        goal: 0.85,
    },
    PairRow {
        name: "read-128k",
        what: "128 KiB random read, 1 × 8 in flight",
        write: false,
        bytes: 128 << 10,
        connections: 1,
        depth: 8,
        goal: 0.90,
    },
    PairRow {
        name: "write-128k",
        what: "128 KiB random write, 1 × 8 in flight",
        write: true,
        bytes: 128 << 10,
        connections: 1,
        depth: 8,
        goal: 0.90,
    },
];

/// The other rows.
const LATENCY: &str = "latency";
const FILE: &str = "file";
const IDLE: &str = "idle";
const DIGESTS: &str = "digests";

/// The names of all rows in order.
#[must_use]
pub fn row_names() -> Vec<&'static str> {
    let pairs = PAIR_ROWS.iter().map(|row| row.name);
    let rows = pairs.chain(LIMITED_ROWS);
    let rows = rows.chain([LATENCY, FILE, IDLE, DIGESTS]);
    rows.chain(trust::row_names()).collect()
}

/// The names of the rows that show what security costs.
#[must_use]
pub fn trust_row_names() -> Vec<&'static str> {
    trust::row_names().collect()
}

/// Parameters of the comparison.
#[derive(Debug, Clone)]
pub struct SuiteOptions {
    /// Binary, cores, times, rounds.
    pub common: CompareOptions,
    /// The directory for the temporary file of the file device.
    pub folder: PathBuf,
    /// The rows to measure, by name; all if empty.
    pub only: Vec<String>,
    /// CPU share of the target and of the pair's responding side in rows with a limited share, in
    /// percent.
    pub part_percent: u32,
}

/// A running suite.
struct Suite<'a> {
    options: &'a SuiteOptions,
    memory: DataMemory,
    /// `None` only while it is replaced.
    target: Option<Target>,
    /// The file, if the file row is measured.
    file: Option<tempfile::NamedTempFile>,
    figures: Figures,
    notes: Vec<String>,
    /// Whether the system supports limited CPU shares.
    parts: bool,
}

/// Compares round by round; calls `report_step` before each row.
///
/// # Errors
/// [`CompareError`].
pub fn compare_all(
    options: &SuiteOptions,
    mut report_step: impl FnMut(&str),
) -> Result<SuiteReport, CompareError> {
    if !options.common.windlass.is_file() {
        return Err(ProcessError::NoBinary(options.common.windlass.clone()).into());
    }
    let file = options
        .takes(FILE)
        .then(|| make_file(&options.folder))
        .transpose()
        .map_err(CompareError::File)?;
    let mut suite = Suite {
        options,
        memory: DataMemory::take(options.common.namespace_bytes)?,
        target: Some(start_target(options, file.as_ref())?),
        file,
        figures: Figures::default(),
        notes: Vec::new(),
        parts: true,
    };
    if LIMITED_ROWS.iter().any(|row| options.takes(row))
        && let Err(error) = CpuLimit::new(options.part_percent)
    {
        suite.parts = false;
        suite.notes.push(error.to_string());
    }
    for round in 0..options.common.rounds {
        if round > 0 {
            suite.replace_memory()?;
        }
        for row in row_names() {
            if options.takes(row) {
                report_step(&format!(
                    "round {} of {}: {row}",
                    round + 1,
                    options.common.rounds
                ));
                suite.take(row, round % 2 == 1)?;
            }
        }
    }
    Ok(SuiteReport {
        machine: Machine::here(),
        target_core: options.common.target_core,
        host_core: options.common.host_core,
        memory: MemoryReport::new(&suite.memory),
        congestion_control: CONGESTION_CONTROL.to_owned(),
        rounds: options.common.rounds,
        seconds: options.common.duration.as_secs_f64(),
        figures: suite.figures.into(),
        notes: suite.notes,
    })
}

fn start_target(
    options: &SuiteOptions,
    file: Option<&tempfile::NamedTempFile>,
) -> Result<Target, ProcessError> {
    Target::start(&TargetOptions {
        file: file.map(|file| file.path().to_owned()),
        ..options.common.target()
    })
}

impl SuiteOptions {
    fn takes(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == row)
    }
}

/// Creates a file with incompressible data.
fn make_file(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix("windlass-compare-")
        .tempfile_in(folder)?;
    let mut random = Random::new(1);
    let mut piece = vec![0; 1 << 20];
    for _ in 0..FILE_BYTES / piece.len() {
        for word in piece.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        file.write_all(&piece)?;
    }
    file.as_file().sync_all()?;
    Ok(file)
}

/// Measures both, the second first if `swapped`.
fn in_turn<A, B>(
    swapped: bool,
    one: impl FnOnce() -> Result<A, CompareError>,
    other: impl FnOnce() -> Result<B, CompareError>,
) -> Result<(A, B), CompareError> {
    if swapped {
        let second = other()?;
        Ok((one()?, second))
    } else {
        Ok((one()?, other()?))
    }
}

impl Suite<'_> {
    /// Allocates new memory for target and pair: the physical pages change a figure by up to a
    /// half, so every round uses other pages.
    fn replace_memory(&mut self) -> Result<(), CompareError> {
        // Allocated before the old memory is freed. The file is used by one target at a time.
        self.memory = DataMemory::take(self.options.common.namespace_bytes)?;
        self.target = None;
        self.target = Some(start_target(self.options, self.file.as_ref())?);
        Ok(())
    }

    fn target(&self) -> &Target {
        self.target.as_ref().expect("it is only exchanged")
    }

    fn take(&mut self, row: &str, swapped: bool) -> Result<(), CompareError> {
        if let Some(pair) = PAIR_ROWS.iter().find(|pair| pair.name == row) {
            return self.against_pairs(pair, swapped);
        }
        if let Some(pair) = PAIR_ROWS
            .iter()
            .find(|pair| Some(pair.name) == row.strip_suffix(LIMITED_SUFFIX))
        {
            return self.with_cpu_limit(row, pair, swapped);
        }
        if let Some(measured) = self.take_trust(row, swapped) {
            return measured;
        }
        match row {
            LATENCY => self.latency(swapped),
            FILE => self.file(swapped),
            IDLE => self.idle(swapped),
            _ => self.digests(swapped),
        }
    }

    fn requests(&self, target: &Target, load: &Load) -> Result<Sample, CompareError> {
        let before = target.busy_time();
        let measured = measure_target(&self.options.common, target.address, load)?;
        let busy = target.busy_time().zip(before);
        let busy = busy.map(|(after, before)| after.saturating_sub(before));
        Ok(Sample {
            value: measured.requests_per_second,
            per_core_second: busy
                .filter(|busy| !busy.is_zero())
                .map(|busy| per_second(measured.completed, busy)),
            per_host_core_second: Some(measured.requests_per_second / measured.host_share),
        })
    }

    fn pair(
        &self,
        row: &PairRow,
        answers: DataLocation,
        responder_percent: Option<u32>,
    ) -> Result<CeilingMeasurement, CompareError> {
        Ok(measure_tcp(&CeilingOptions {
            connections: usize::from(row.connections),
            responder_percent,
            ..self.pair_options(row.exchange(), answers, row.depth)
        })?)
    }

    /// A pair with one connection on the cores of target and host.
    fn pair_options(
        &self,
        exchange: Exchange,
        answers: DataLocation,
        depth: u16,
    ) -> CeilingOptions {
        let common = &self.options.common;
        CeilingOptions {
            exchange,
            answers,
            sealed: false,
            connections: 1,
            window: usize::from(depth),
            responder_percent: None,
            server_core: Some(common.target_core),
            client_core: Some(common.host_core),
            warm_up: common.warm_up,
            duration: common.duration,
        }
    }

    /// Measures both pairs.
    fn pairs(
        &self,
        row: &PairRow,
        swapped: bool,
    ) -> Result<(CeilingMeasurement, CeilingMeasurement), CompareError> {
        let pair = |answers| self.pair(row, answers, None);
        in_turn(
            swapped,
            || pair(DataLocation::Memory(self.memory.clone())),
            || pair(DataLocation::HotBuffer),
        )
    }

    fn against_pairs(&mut self, row: &PairRow, swapped: bool) -> Result<(), CompareError> {
        let null = Load {
            nsid: NULL_NSID,
            ..row.load()
        };
        let (ours, (memory, buffer)) = in_turn(
            swapped,
            || self.requests(self.target(), &row.load()),
            || self.pairs(row, swapped),
        )?;
        let (null, copies) = in_turn(
            swapped,
            || self.requests(self.target(), &null),
            || self.copies(row),
        )?;
        let goal = Some(Goal::AtLeast(row.goal));
        self.figures.add(
            row.name,
            row.what,
            Unit::RequestsPerSecond,
            ours,
            &[
                (SAME_MEMORY, of_pair(&memory), goal),
                (HOT_BUFFER, of_pair(&buffer), None),
                (NULL_DEVICE, null, None),
                (MEMORY_COPY, copies.into(), None),
            ],
        );
        Ok(())
    }

    /// Requests per second if their data were only copied.
    fn copies(&self, row: &PairRow) -> Result<f64, CompareError> {
        let common = &self.options.common;
        let core = Some(common.target_core);
        Ok(measure_copies(
            row.exchange(),
            &self.memory,
            core,
            common.warm_up,
        )?)
    }

    /// Measures a row with a limited CPU share of the target, so that the host is not the
    /// bottleneck. Target and pair sleep while nothing has arrived, because polling would count
    /// against the share.
    fn with_cpu_limit(
        &mut self,
        name: &str,
        row: &PairRow,
        swapped: bool,
    ) -> Result<(), CompareError> {
        if !self.parts {
            return Ok(());
        }
        let percent = self.options.part_percent;
        let limited = TargetOptions {
            idle: "sleep",
            cpu_percent: Some(percent),
            ..self.options.common.target()
        };
        let (ours, pair) = in_turn(
            swapped,
            || self.requests(&Target::start(&limited)?, &row.load()),
            || {
                self.pair(
                    row,
                    DataLocation::Memory(self.memory.clone()),
                    Some(percent),
                )
            },
        )?;
        self.figures.add(
            name,
            &format!("{}, {percent} % of a core", row.what),
            Unit::RequestsPerSecond,
            ours,
            &[(SAME_MEMORY, of_pair(&pair), Some(Goal::AtLeast(row.goal)))],
        );
        Ok(())
    }

    fn latency(&mut self, swapped: bool) -> Result<(), CompareError> {
        let row = PairRow {
            depth: 1,
            ..PAIR_ROWS[0]
        };
        let (ours, (memory, buffer)) = in_turn(
            swapped,
            || measure_target(&self.options.common, self.target().address, &Load::reads(1)),
            || self.pairs(&row, swapped),
        )?;
        let (ours, memory, buffer) = (
            ours.latency,
            memory.latency.unwrap_or_default(),
            buffer.latency.unwrap_or_default(),
        );
        let goal = Some(Goal::AtMost(1.15));
        for (name, what, of) in [
            (
                "latency-p50",
                "4 KiB random read, 1 in flight, median",
                (|latency| latency.p50_ns) as fn(bench::report::Latency) -> u64,
            ),
            (
                "latency-p99",
                "4 KiB random read, 1 in flight, 99th percentile",
                |latency| latency.p99_ns,
            ),
        ] {
            self.figures.add(
                name,
                what,
                Unit::Nanoseconds,
                (of(ours) as f64).into(),
                &[
                    (SAME_MEMORY, (of(memory) as f64).into(), goal),
                    (HOT_BUFFER, (of(buffer) as f64).into(), None),
                ],
            );
        }
        Ok(())
    }

    /// Compares the file over the network with fio's io_uring on the same file from the same core.
    fn file(&mut self, swapped: bool) -> Result<(), CompareError> {
        let Some(path) = self.file.as_ref().map(|file| file.path().to_owned()) else {
            return Ok(());
        };
        let load = Load {
            nsid: FILE_NSID,
            ..Load::reads(128)
        };
        let common = &self.options.common;
        let (ours, fio) = in_turn(
            swapped,
            || self.requests(self.target(), &load),
            || Ok(fio(&path, common)),
        )?;
        let fio = match fio {
            Ok(requests) => requests,
            Err(reason) => {
                if !self.notes.contains(&reason) {
                    self.notes.push(reason);
                }
                return Ok(());
            }
        };
        self.figures.add(
            FILE,
            "4 KiB random read of a file, 128 in flight",
            Unit::RequestsPerSecond,
            ours,
            &[("fio io_uring, local", fio.into(), Some(Goal::AtLeast(0.9)))],
        );
        Ok(())
    }

    /// Compares the default idle policy under load with pure polling, and measures it idle.
    fn idle(&mut self, swapped: bool) -> Result<(), CompareError> {
        let load = Load::reads(128);
        let polling = TargetOptions {
            idle: POLL,
            ..self.options.common.target()
        };
        let (adaptive, poll) = in_turn(
            swapped,
            || self.requests(self.target(), &load),
            // Ended immediately: even idle it would use the core.
            || self.requests(&Target::start(&polling)?, &load),
        )?;
        self.figures.add(
            "idle-load",
            "adaptive idle policy, 4 KiB random read, 128 in flight",
            Unit::RequestsPerSecond,
            adaptive,
            &[("poll", poll, Some(Goal::AtLeast(0.97)))],
        );
        let before = self.target().cpu_time();
        std::thread::sleep(REST);
        if let (Some(before), Some(after)) = (before, self.target().cpu_time()) {
            let share = (after - before).as_secs_f64() / REST.as_secs_f64();
            self.figures.add(
                "idle-rest",
                "adaptive idle policy, at rest",
                Unit::Cores,
                share.into(),
                &[("a core", 1.0.into(), Some(Goal::AtMost(0.02)))],
            );
        }
        Ok(())
    }

    fn digests(&mut self, swapped: bool) -> Result<(), CompareError> {
        let load = |digests| Load {
            digests,
            ..Load::reads(128)
        };
        let (with, without) = in_turn(
            swapped,
            || self.requests(self.target(), &load(true)),
            || self.requests(self.target(), &load(false)),
        )?;
        self.figures.add(
            DIGESTS,
            "4 KiB random read with both digests, 128 in flight",
            Unit::RequestsPerSecond,
            with,
            &[("without digests", without, Some(Goal::AtLeast(0.8)))],
        );
        Ok(())
    }
}

/// The sample of a pair.
fn of_pair(pair: &CeilingMeasurement) -> Sample {
    Sample {
        value: pair.requests_per_second(),
        per_core_second: Some(pair.requests_per_core_second()),
        per_host_core_second: Some(pair.requests_per_host_core_second()),
    }
}

/// The rate of reads of fio from the file, or the reason why it is unknown.
fn fio(path: &Path, common: &CompareOptions) -> Result<f64, String> {
    let output = Command::new("fio")
        .args(["--name=compare", "--rw=randread", "--bs=4k"])
        .args(["--ioengine=io_uring", "--direct=1", "--iodepth=128"])
        .args(["--registerfiles", "--fixedbufs", "--norandommap"])
        .args(["--time_based", "--output-format=json", "--readonly"])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--cpus_allowed={}", common.target_core))
        .arg(format!("--ramp_time={}ms", common.warm_up.as_millis()))
        .arg(format!("--runtime={}ms", common.duration.as_millis()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err("fio is not installed (apt-get install fio): no file row".to_owned());
        }
        other => other.map_err(|error| format!("fio: {error}"))?,
    };
    let report = String::from_utf8_lossy(&output.stdout);
    // fio may print something before its report.
    let begin = report.find('{').unwrap_or(0);
    let report: Value = serde_json::from_str(&report[begin..])
        .map_err(|error| format!("fio's report is not understood: {error}"))?;
    let requests = report["jobs"][0]["read"]["iops"].as_f64();
    requests
        .filter(|requests| *requests > 0.0)
        .ok_or_else(|| "fio's report has no reads".to_owned())
}
