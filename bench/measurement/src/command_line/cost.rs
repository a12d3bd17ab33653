//! `measure cost`: exact costs of a request, and whether they exceed their limits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cost::baseline::{Baseline, CaseBaselines, case_excesses, excesses, is_judged};
use crate::cost::drive_memory_loop::{self, PATH_MAIN_CASE};
use crate::cost::files_loop::FILES_MAIN_CASE;
use crate::cost::measure::{self, Subject, measure, measure_cases, measure_growth};
use crate::cost::report::CostReport;
use crate::cost::tcp_cases::{Case, HOST_MAIN_CASE, MAIN_CASE};
use crate::cost::{driver_loop, files_loop, growth_loop, host_loop, rdma_loop, tcp_loop};
use bench::report::save_json;
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;

use super::Failure;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SubjectArg {
    /// Our NVMe driver, on an emulated controller
    Driver,
    /// Our target over RDMA, on an in-process fabric
    Rdma,
    /// Our target over RDMA and our driver, on an in-process fabric and an emulated controller: the
    /// same requests through the arena and through memory of the drive
    DriveMemory,
    /// Our target over TCP, on the loopback interface: many cases
    Tcp,
    /// Our host over TCP, with the load generator, on the loopback interface: many cases
    TcpHost,
    /// Our file service over TCP, on the loopback interface: several cases
    Files,
    /// Our target over TCP beside more and more idle connections, exports, namespaces and reactors
    Growth,
}

impl SubjectArg {
    fn subject(self) -> &'static Subject {
        match self {
            Self::Driver => &measure::DRIVER,
            Self::Rdma => &measure::RDMA,
            Self::DriveMemory => &measure::DRIVE_MEMORY,
            Self::Tcp => &measure::TCP,
            Self::TcpHost => &measure::TCP_HOST,
            Self::Files => &measure::FILES,
            Self::Growth => &measure::GROWTH,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// What is measured
    #[arg(value_enum)]
    subject: SubjectArg,
    /// Only this case, such as ram-read-4k-128
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Requests of which the mean is taken, for driver and rdma; default 20,000
    #[arg(long, value_parser = clap::value_parser!(u64).range(1000..))]
    requests: Option<u64>,
    /// Fail if a limit is exceeded, or the baseline by more than 3 %
    #[arg(long)]
    check: bool,
    /// Compare instructions only with the baseline, not with the limit
    #[arg(long, requires = "baseline")]
    growth_only: bool,
    /// File with the baseline
    #[arg(long, value_name = "FILE", requires = "check")]
    baseline: Option<PathBuf>,
    /// Write the results to the file of the baseline
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    save_baseline: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
    /// Only run the loop, and print what it counts by itself: what this command runs under
    /// callgrind
    #[arg(long = "loop", value_name = "REQUESTS", hide = true)]
    only_loop: Option<u64>,
}

/// Default number of requests over which the results are averaged.
const REQUESTS: u64 = 20_000;

impl CostArgs {
    /// Rejects options before the measurement that the subject does not use or that cannot be
    /// judged.
    fn check(&self) -> Result<(), Failure> {
        let has_requests = matches!(self.subject, SubjectArg::Driver | SubjectArg::Rdma);
        let has_cases = matches!(
            self.subject,
            SubjectArg::DriveMemory | SubjectArg::Tcp | SubjectArg::TcpHost | SubjectArg::Files
        );
        let grows = matches!(self.subject, SubjectArg::Growth);
        if self.case.is_some() && !has_cases {
            return Err(
                "--case is for drive-memory, tcp, tcp-host and files, which have cases".into(),
            );
        }
        if self.requests.is_some() && !has_requests {
            return Err("--requests is for driver and rdma: the others have their own".into());
        }
        if grows && (self.baseline.is_some() || self.save_baseline.is_some()) {
            return Err("growth is judged by itself: it has no baseline".into());
        }
        if cfg!(debug_assertions) {
            return Err(
                "costs are those of an optimised build: cargo build --release -p bench".into(),
            );
        }
        Ok(())
    }
}

pub(crate) fn execute(args: &CostArgs) -> Result<ExitCode, Failure> {
    if let Some(requests) = args.only_loop {
        return only_loop(args, requests);
    }
    args.check()?;
    match args.subject {
        SubjectArg::Driver | SubjectArg::Rdma => {}
        SubjectArg::DriveMemory => {
            let cases = drive_memory_loop::CASES.map(|it| it.name.to_owned());
            return execute_cases(args, cases.into_iter(), PATH_MAIN_CASE);
        }
        SubjectArg::Tcp => {
            return execute_cases(args, Case::all().map(|it| it.name()), MAIN_CASE);
        }
        SubjectArg::TcpHost => {
            let cases = host_loop::cases().map(|it| it.name());
            return execute_cases(args, cases, HOST_MAIN_CASE);
        }
        SubjectArg::Files => {
            let cases = files_loop::names().map(str::to_owned);
            return execute_cases(args, cases, FILES_MAIN_CASE);
        }
        SubjectArg::Growth => return execute_growth(args),
    }
    let subject = args.subject.subject();
    let baseline = read_baseline(args.baseline.as_deref())?;
    let report = measure(
        &std::env::current_exe()?,
        subject,
        args.requests.unwrap_or(REQUESTS),
    )?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    if let Some(path) = &args.save_baseline {
        save_json(&Baseline::from(&report), path)?;
    }
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let aim = if args.growth_only {
        f64::INFINITY
    } else {
        subject.instructions_max
    };
    let subject = Subject {
        instructions_max: aim,
        ..*subject
    };
    judge(&excesses(&report, &subject, baseline))
}

fn only_loop(args: &CostArgs, requests: u64) -> Result<ExitCode, Failure> {
    let counts = match args.subject {
        SubjectArg::Driver => serde_json::to_string(&driver_loop::run(requests)?),
        SubjectArg::Rdma => serde_json::to_string(&rdma_loop::run(requests)?),
        SubjectArg::DriveMemory => {
            serde_json::to_string(&drive_memory_loop::run(args.case.as_deref())?)
        }
        SubjectArg::Tcp => serde_json::to_string(&tcp_loop::run(args.case.as_deref())?),
        SubjectArg::TcpHost => serde_json::to_string(&host_loop::run(args.case.as_deref())?),
        SubjectArg::Files => serde_json::to_string(&files_loop::run(args.case.as_deref())?),
        SubjectArg::Growth => serde_json::to_string(&growth_loop::run()?),
    };
    println!("{}", counts?);
    Ok(ExitCode::SUCCESS)
}

/// Measures all cases of a subject, and shows the main one in detail; or only the named one.
fn execute_cases(
    args: &CostArgs,
    cases: impl Iterator<Item = String>,
    chief: &str,
) -> Result<ExitCode, Failure> {
    let names: Vec<String> = cases.collect();
    if let Some(name) = &args.case
        && !names.contains(name)
    {
        return Err(format!("there is no case {name}: {}", names.join(", ")).into());
    }
    let baselines: Option<CaseBaselines> = read_baseline(args.baseline.as_deref())?;
    let subject = args.subject.subject();
    let reports = measure_cases(&std::env::current_exe()?, subject, args.case.as_deref())?;
    let detailed = args.case.as_deref().unwrap_or(chief);
    if let Some(report) = reports.case(detailed) {
        println!("{report}");
    }
    print!("{reports}");
    if let Some(path) = &args.json {
        save_json(&reports, path)?;
    }
    if let Some(path) = &args.save_baseline {
        let each = |report: &CostReport| (report.what.clone(), Baseline::from(report));
        let judged = reports
            .cases
            .iter()
            .filter(|report| is_judged(&report.what));
        let baselines: CaseBaselines = judged.map(each).collect();
        save_json(&baselines, path)?;
    }
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let excesses = case_excesses(&reports, baselines.as_ref(), args.growth_only);
    judge(&excesses)
}

/// Measures growth. The points of one dimension are compared with each other, so there is no
/// baseline.
fn execute_growth(args: &CostArgs) -> Result<ExitCode, Failure> {
    let report = measure_growth(&std::env::current_exe()?)?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    if args.check {
        judge(&report.excesses())
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

fn read_baseline<T: DeserializeOwned>(path: Option<&Path>) -> Result<Option<T>, Failure> {
    let Some(path) = path else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    let baseline = serde_json::from_str(&text);
    let baseline =
        baseline.map_err(|error| format!("{}: no baseline of this: {error}", path.display()))?;
    Ok(Some(baseline))
}

fn judge(excesses: &[String]) -> Result<ExitCode, Failure> {
    for line in excesses {
        println!("\n  TOO MUCH: {line}");
    }
    if excesses.is_empty() {
        println!("\n  within its limits");
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Arguments, Command};
    use super::*;

    #[test]
    fn options_ignored_by_a_cost_subject_are_refused() {
        for (arguments, part) in [
            (
                "driver --case ram-read-4k-128",
                "--case is for drive-memory, tcp",
            ),
            ("growth --case ram-read-4k-128", "--case is for drive"),
            ("tcp --requests 5000", "--requests is for driver and rdma"),
            (
                "growth --requests 5000",
                "--requests is for driver and rdma",
            ),
            ("growth --save-baseline x.json", "it has no baseline"),
        ] {
            let all = ["measure", "cost"]
                .into_iter()
                .chain(arguments.split_whitespace());
            let parsed = Arguments::try_parse_from(all).expect("well formed");
            let Command::Cost(args) = parsed.command else {
                panic!("another command")
            };
            let error = execute(&args).expect_err("refused").to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
    }
}
