//! `bench cost`: exact costs of a request, and whether they are within their limits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::cost::baseline::{Baseline, excesses};
use bench::cost::measure::{self, Subject, measure};
use bench::cost::report::CostReport;
use bench::cost::{driver_loop, rdma_loop};
use bench::report::save_json;
use clap::{Args, ValueEnum};

use super::Failure;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SubjectArg {
    /// Our NVMe driver, on an emulated controller
    Driver,
    /// Our target over RDMA, on an in-process fabric
    Rdma,
}

impl SubjectArg {
    fn subject(self) -> &'static Subject {
        match self {
            Self::Driver => &measure::DRIVER,
            Self::Rdma => &measure::RDMA,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// What is measured
    #[arg(value_enum)]
    subject: SubjectArg,
    /// Requests that the mean is taken of
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1000..))]
    requests: u64,
    /// Fail where a limit is exceeded, or the baseline by more than 3 %
    #[arg(long)]
    check: bool,
    /// Judge instructions by the baseline alone, not by the aim
    #[arg(long, requires = "baseline")]
    growth_only: bool,
    /// The file with what was reached before
    #[arg(long, value_name = "FILE", requires = "check")]
    baseline: Option<PathBuf>,
    /// Write what was reached now as the file to compare with later
    #[arg(long, value_name = "FILE")]
    save_baseline: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only run the loop, and print what it counts by itself: what this command runs under
    /// callgrind
    #[arg(long = "loop", value_name = "REQUESTS", hide = true)]
    only_loop: Option<u64>,
}

pub(crate) fn execute(args: &CostArgs) -> Result<ExitCode, Failure> {
    if let Some(requests) = args.only_loop {
        let counts = match args.subject {
            SubjectArg::Driver => driver_loop::run(requests)?,
            SubjectArg::Rdma => rdma_loop::run(requests)?,
        };
        println!("{}", serde_json::to_string(&counts)?);
        return Ok(ExitCode::SUCCESS);
    }
    let subject = args.subject.subject();
    let report = measure(&std::env::current_exe()?, subject, args.requests)?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    if let Some(path) = &args.save_baseline {
        // A tenth of an instruction is as exact as it is worth.
        let instructions = (report.instructions * 10.0).round() / 10.0;
        save_json(&Baseline { instructions }, path)?;
    }
    if args.check {
        let aim = if args.growth_only {
            f64::INFINITY
        } else {
            subject.instructions_max
        };
        let subject = Subject {
            instructions_max: aim,
            ..*subject
        };
        return check(args.baseline.as_deref(), &subject, &report);
    }
    Ok(ExitCode::SUCCESS)
}

fn check(
    baseline: Option<&Path>,
    subject: &Subject,
    report: &CostReport,
) -> Result<ExitCode, Failure> {
    if !report.machine.optimised {
        return Err("only an optimised build can be checked: cargo build --release".into());
    }
    let baseline: Option<Baseline> = match baseline {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            Some(serde_json::from_str(&text)?)
        }
        None => None,
    };
    let excesses = excesses(report, subject, baseline);
    for line in &excesses {
        println!("\n  TOO MUCH: {line}");
    }
    if excesses.is_empty() {
        println!("\n  within its limits");
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}
